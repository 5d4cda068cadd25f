"""Sweeps: every trial once, the same figures on every way, nothing lost and nothing twice."""

import errno
import os
import subprocess
import sys
import textwrap
import warnings
from collections import Counter
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from temperance.errors import Interrupted, InvalidInput, NotFound, TemperanceWarning
from temperance.records import Statistic
from temperance.study import ledger_write
from temperance.study.batches import history_steps
from temperance.study.cost import estimate_cost, wall_seconds
from temperance.study.data import load
from temperance.study.ledger import open_ledger, read_rows, read_tasks, task_key
from temperance.study.mappers import Lost, processes
from temperance.study.outcome import Outcome
from temperance.study.plan import Plan, parse_plan
from temperance.study.probe import train_probes
from temperance.study.runner import Runner
from temperance.study.score import score
from temperance.study.sweep import SweepOptions, SweepProgress, sweep
from temperance.study.sweep_check import Facts
from temperance.study.trial import Trial
from temperance.study.units import data_key, measuring_units, work_units
from temperance.study.work import fits_in_unit, work_of

PLAN = parse_plan(
    """
    [fixed]
    steps = 12
    [grid]
    dataset = ["iris", "wine"]
    features = "standardized"
    temperature = [0.5, 1, 4]
    norm = ["none", "batch"]
    seed = {count = 2}
""".replace('features = "standardized"', 'features = ["standardized"]')
)
NETS = parse_plan("""
    [fixed]
    dataset = "iris"
    model = "mlp"
    feature_dim = 8
    steps = 12
    [grid]
    temperature = [1, 4]
    norm = ["none", "batch"]
    seed = {count = 2}
""")


def nothing_measured(**parts):
    """Options of a sweep with other parts, which measures nothing."""
    return SweepOptions(runner=Runner(measure=None, **parts))


def figures(folder):
    """What must not depend on the way: all but times."""
    return {
        row["key"]: (row["outcome"], row["metrics"], row["history"], row["feature_dim"])
        for row in read_rows(folder)
    }


def lines(folder):
    return (folder / "ledger.jsonl").read_bytes().splitlines()


class Counting:
    """An engine that counts what it trains, not what it only looks at."""

    def __init__(self):
        self.trials = Counter()

    def __call__(self, data, trials):
        outcomes = train_probes(data, trials)

        def train():
            self.trials.update(trials)
            yield from outcomes

        return train()


def stop_after(units):
    """Progress that presses Ctrl-C when so many units are finished."""
    heard = []

    def trials(tally):
        heard.append(tally)
        if len(heard) == units + 1:
            raise KeyboardInterrupt

    return SweepProgress(trials=trials)


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sweep")
    summary = sweep(PLAN, folder)
    return folder, summary


# ------------------------------------------------------------------ what is in the ledger
def test_rows_are_what_engine_and_score_give(done):
    folder, summary = done
    rows = {row["key"]: row for row in read_rows(folder)}
    assert summary.outcomes == {"done": 24, "diverged": 0, "failed": 0, "missing": 0}
    assert (summary.trials, summary.new, summary.tasks) == (24, 24, 2)
    data = load("iris", "standardized")
    chosen = [t for t in PLAN.trials if t.dataset == "iris" and t.seed == 1]
    for outcome in train_probes(data, chosen):
        row = rows[outcome.trial.key]
        assert row["trial"] == outcome.trial.to_dict()
        assert row["task"] == task_key(outcome.trial.task_content)
        assert row["feature_dim"] == 4
        expected = score(outcome, data)
        assert row["metrics"].keys() == expected.keys()
        for name, value in expected.items():
            np.testing.assert_allclose(row["metrics"][name], value, rtol=1e-5, atol=1e-6)


def test_tasks_are_described_and_measured(done):
    folder, _ = done
    tasks = {row["content"]["dataset"]: row["task"] for row in read_tasks(folder).values()}
    assert tasks["iris"]["feature_dim"] == 4
    assert (tasks["iris"]["n_classes"], tasks["wine"]["n_classes"]) == (3, 3)
    assert tasks["iris"]["n_samples"] == len(load("iris").y["train"])
    assert "csg" in tasks["wine"]["statistics"]


def test_nothing_is_done_twice(done, tmp_path):
    folder, first = done
    before = lines(folder)
    engine = Counting()
    again = sweep(PLAN, folder, options=SweepOptions(runner=Runner(probe=engine)))
    assert not engine.trials
    assert again.new == 0
    assert again.outcomes == first.outcomes
    assert lines(folder) == before


# ------------------------------------------------------------------ the same on every way
DEADLY = """
import os, signal
from pathlib import Path
from temperance.study.probe import train_probes

MARK = Path(__file__).with_name("killed")

def train(data, trials):
    for place, outcome in enumerate(train_probes(data, trials)):
        if place == 1 and outcome.trial.seed == 1 and not MARK.exists():
            MARK.touch()
            os.kill(os.getpid(), getattr(signal, "SIGKILL", signal.SIGTERM))
        yield outcome
"""


def test_in_processes_the_figures_are_the_same_to_the_last_bit(tmp_path, monkeypatch):
    """Also if a process is killed on the way, and whatever number of threads the user has set."""
    (tmp_path / "deadly_engine.py").write_text(DEADLY)
    monkeypatch.syspath_prepend(str(tmp_path))
    import deadly_engine

    plan = replace(PLAN, trials=(*PLAN.trials, *NETS.trials))
    torch.set_num_threads(2)
    try:
        sweep(plan, tmp_path / "one", options=nothing_measured())
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)
    options = nothing_measured(probe=deadly_engine.train)
    summary = sweep(plan, tmp_path / "two", mapper=processes(2), options=options)
    assert (tmp_path / "killed").exists()
    assert summary.outcomes["done"] == len(plan.trials)
    assert figures(tmp_path / "one") == figures(tmp_path / "two")


def test_no_global_random_state_is_moved(tmp_path, rng_guard):
    with rng_guard():
        sweep(PLAN, tmp_path)


@given(st.integers(0, 5))
@settings(max_examples=6, deadline=None)
def test_an_interrupted_sweep_goes_on_to_the_same_rows(done, tmp_path_factory, units):
    folder = tmp_path_factory.mktemp("again")
    with pytest.raises(Interrupted) as caught:
        sweep(PLAN, folder, progress=stop_after(units))
    assert str(folder) in caught.value.resume
    kept = set(figures(folder)) if (folder / "ledger.jsonl").exists() else set()
    engine = Counting()
    summary = sweep(PLAN, folder, options=SweepOptions(runner=Runner(probe=engine)))
    assert set(engine.trials.values()) == {1}
    assert {trial.key for trial in engine.trials} == {t.key for t in PLAN.trials} - kept
    assert summary.new == 24 - len(kept)
    assert figures(folder) == figures(done[0])
    assert len(lines(folder)) == 24


def test_a_longer_plan_does_what_is_new(done, tmp_path):
    trials = PLAN.trials
    sweep(replace(PLAN, trials=trials[:5]), tmp_path, options=nothing_measured())
    engine = Counting()
    sweep(PLAN, tmp_path, options=nothing_measured(probe=engine))
    assert engine.trials.keys() == set(trials[5:])
    other = sweep(replace(PLAN, trials=trials[3:7]), tmp_path)
    assert (other.trials, other.new, other.outcomes["done"]) == (4, 0, 4)


# ------------------------------------------------------------------ what goes wrong
def poisoned(data, trials):
    for outcome in train_probes(data, trials):
        if outcome.trial.temperature == 1:
            raise RuntimeError("no luck")
        yield outcome


def test_a_trial_that_raises_fails_alone(tmp_path):
    summary = sweep(PLAN, tmp_path, options=nothing_measured(probe=poisoned))
    assert summary.outcomes == {"done": 16, "diverged": 0, "failed": 8, "missing": 0}
    assert summary.failures == (("RuntimeError: no luck", 8),)
    failed = [row for row in read_rows(tmp_path) if row["outcome"] == "failed"]
    assert {row["trial"]["temperature"] for row in failed} == {1.0}
    assert all(row["metrics"] == {} for row in failed)


def test_failed_trials_are_done_again_only_if_asked(tmp_path):
    sweep(PLAN, tmp_path, options=nothing_measured(probe=poisoned))
    assert sweep(PLAN, tmp_path, options=nothing_measured()).new == 0
    again = replace(nothing_measured(probe=poisoned), retry_failed=True)
    assert sweep(PLAN, tmp_path, options=again).new == 8  # once, though they fail again
    mended = sweep(PLAN, tmp_path, options=replace(nothing_measured(), retry_failed=True))
    assert mended.new == 8
    assert mended.outcomes["done"] == 24
    assert len(figures(tmp_path)) == 24


def test_a_score_that_raises_fails_its_trial(tmp_path):
    def never(outcome, data):
        raise ValueError("not a number")

    summary = sweep(PLAN, tmp_path, options=nothing_measured(score=never))
    assert summary.failures == (("ValueError: not a number", 24),)


def test_an_engine_that_gives_too_few(tmp_path):
    summary = sweep(PLAN, tmp_path, options=nothing_measured(probe=lambda data, trials: iter(())))
    assert summary.failures == (("the engine gave no outcome", 24),)


def test_diverged_is_an_outcome(tmp_path):
    trials = (Trial("iris", lr=1e30, temperature=1e-9, steps=20), Trial("iris", steps=20))
    summary = sweep(Plan("wild", trials), tmp_path)
    assert summary.outcomes == {"done": 1, "diverged": 1, "failed": 0, "missing": 0}
    assert sweep(Plan("wild", trials), tmp_path, options=SweepOptions(retry_failed=True)).new == 0


def test_data_that_vanish_on_the_way_are_failed_rows(tmp_path):
    seen = Counter()

    def loader(dataset, features, **rest):
        seen[dataset] += 1
        if seen[dataset] > 1:
            raise OSError(errno.EIO, "the disk is gone")
        return load(dataset, features, **rest)

    summary = sweep(PLAN, tmp_path, options=nothing_measured(load=loader))
    assert summary.outcomes["failed"] == 12  # the rows of the other data set are in memory
    assert "the disk is gone" in summary.failures[0][0]


def test_lost_units_are_failed_rows(tmp_path):
    def lossy(function, units):
        for number, unit in enumerate(units):
            yield Lost(unit, "the worker died") if number == 2 else function(unit)

    summary = sweep(PLAN, tmp_path, mapper=lossy, options=nothing_measured())
    assert summary.outcomes["failed"] == 6
    assert summary.failures == (("the worker died", 6),)


def test_a_mapper_that_says_nothing_leaves_trials_missing(tmp_path):
    def forgetful(function, units):
        for number, unit in enumerate(units):
            if number != 2:
                yield function(unit)

    summary = sweep(PLAN, tmp_path, mapper=forgetful, options=nothing_measured())
    assert summary.outcomes["missing"] == 6
    assert sweep(PLAN, tmp_path, options=nothing_measured()).outcomes["missing"] == 0


def test_a_mapper_that_gives_something_else(tmp_path):
    with pytest.raises(InvalidInput) as caught:
        sweep(PLAN, tmp_path, mapper=lambda function, units: [1, 2])
    assert caught.value.subject == "mapper"
    assert sweep(PLAN, tmp_path, options=nothing_measured()).outcomes["done"] == 24


def test_warnings_of_the_work_are_notices(tmp_path):
    def warning(outcome, data):
        warnings.warn("look at this", TemperanceWarning, stacklevel=2)
        return score(outcome, data)

    summary = sweep(PLAN, tmp_path, options=nothing_measured(score=warning))
    assert "look at this (4 times)" in summary.notices


# ------------------------------------------------------------------ statistics
def test_rows_that_train_and_judge_are_a_notice(tmp_path):
    rng = np.random.default_rng(0)
    x, split = rng.normal(size=(60, 4)), np.repeat([0, 1, 2], 20)
    x[45:48] = x[5:8]
    np.savez(tmp_path / "data.npz", x=x, y=np.arange(60) % 3, classes=list("abc"), split=split)
    trials = (Trial(str(tmp_path / "data.npz"), steps=3),)
    summary = sweep(Plan("copies", trials), tmp_path / "out", options=nothing_measured())
    (notice,) = summary.notices
    assert "3 of the 20 test rows are copies of training rows" in notice


def test_tasks_without_statistics_are_measured_later(tmp_path):
    sweep(PLAN, tmp_path, options=SweepOptions(statistics=False))
    assert all(not row["task"]["statistics"] for row in read_tasks(tmp_path).values())
    measured = Counter()

    def measure(data):
        measured[data.name] += 1
        return {"csg": Statistic(0.5)}

    options = SweepOptions(runner=Runner(measure=measure))
    assert sweep(PLAN, tmp_path, options=options).new == 0
    sweep(PLAN, tmp_path, options=options)
    assert measured == {"iris": 1, "wine": 1}
    assert all(row["task"]["statistics"] for row in read_tasks(tmp_path).values())


def test_statistics_that_cannot_be_measured_are_a_notice(tmp_path):
    def broken(data):
        raise ValueError("no")

    options = SweepOptions(runner=Runner(measure=broken))
    summary = sweep(PLAN, tmp_path, options=options)
    assert summary.outcomes["done"] == 24
    assert summary.tasks == 2
    assert "statistics of iris: ValueError: no" in summary.notices


def test_one_measurement_serves_all_models_on_the_same_rows(tmp_path):
    trials = [Trial("iris", model="mlp", feature_dim=m, steps=1) for m in (4, 8)]
    (unit,) = measuring_units([*trials, Trial("iris"), Trial("iris", temperature=2)])
    result = Runner(measure=lambda data: {})(unit)
    assert [task.feature_dim for _, task in result.tasks] == [4, 8, 4]


# ------------------------------------------------------------------ before it starts
@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"dataset": "nowhere"}, NotFound),
        ({"features": "no-such-thing"}, NotFound),
        ({"features": "pca:99"}, InvalidInput),
        ({"model": "resnet9000"}, NotFound),
        ({"model": "convnet"}, InvalidInput),  # no pictures
        ({"feature_dim": 5}, InvalidInput),  # a probe has the M of its rows
        ({"train_rows": 10_000}, InvalidInput),
        ({"dataset": "digits"}, InvalidInput),  # pictures, for a probe
        ({"norm": "batch", "batch_size": 1}, InvalidInput),
    ],
)
def test_what_cannot_be_trained_is_said_before_the_first_trial(tmp_path, changes, error):
    bad = replace(Trial("iris", steps=5), **changes)
    plan = Plan("bad", (*PLAN.trials, bad))
    for work in (sweep, estimate_cost):
        with pytest.raises(error):
            work(plan, tmp_path)
    assert not (tmp_path / "ledger.jsonl").exists()


def test_other_rows_behind_a_name_are_refused(tmp_path, monkeypatch):
    """A relative path, seen from another folder."""
    rng = np.random.default_rng(0)
    for folder, n, m in (("here", 60, 4), ("there", 60, 5), ("elsewhere", 90, 4)):
        (tmp_path / folder).mkdir()
        arrays = {"x": rng.normal(size=(n, m)), "y": np.arange(n) % 3, "classes": list("abc")}
        np.savez(tmp_path / folder / "data.npz", **arrays)
    trials = tuple(Trial("data.npz", steps=3, temperature=t) for t in (1, 2))
    monkeypatch.chdir(tmp_path / "here")
    sweep(Plan("one", trials[:1]), tmp_path / "out")
    for folder, what in (("there", "5 features"), ("elsewhere", "54 training rows")):
        monkeypatch.chdir(tmp_path / folder)
        for work in (sweep, estimate_cost):
            with pytest.raises(InvalidInput) as caught:
                work(Plan("two", trials), tmp_path / "out")
            assert caught.value.subject == "data set data.npz, features input"
            assert what in caught.value.found
    monkeypatch.chdir(tmp_path / "here")
    assert sweep(Plan("two", trials), tmp_path / "out").new == 1


def test_the_output_is_a_file(tmp_path):
    (tmp_path / "out").write_text("here first")
    with pytest.raises(InvalidInput):
        sweep(PLAN, tmp_path / "out")
    assert (tmp_path / "out").read_text() == "here first"


def test_a_full_disk_is_an_error_and_the_sweep_goes_on_later(done, tmp_path, monkeypatch):
    write, count = os.write, Counter()

    def full(handle, content):
        count["writes"] += 1
        if count["writes"] > 3:
            half = write(handle, bytes(content[: len(content) // 2]))
            if count["writes"] > 4:
                raise OSError(errno.ENOSPC, "No space left on device")
            return half
        return write(handle, content)

    monkeypatch.setattr(ledger_write.os, "write", full)
    with pytest.raises(InvalidInput) as caught:
        sweep(PLAN, tmp_path, options=nothing_measured())
    assert caught.value.expected == "room on the disk"
    monkeypatch.undo()
    kept = figures(tmp_path)
    assert 0 < len(kept) < 24
    assert len(lines(tmp_path)) == len(kept)
    sweep(PLAN, tmp_path, options=nothing_measured())
    assert figures(tmp_path) == figures(done[0])


# ------------------------------------------------------------------ two sweeps on one ledger
SHARED = """
    import sys, time
    from temperance.study.plan import read_plan
    from temperance.study.probe import train_probes
    from temperance.study.runner import Runner
    from temperance.study.sweep import SweepOptions, sweep

    def slowly(data, trials):
        outcomes = train_probes(data, trials)
        def train():
            with open(log, "a") as file:
                file.write("".join(trial.key + "\\n" for trial in trials))
            time.sleep(0.1)
            yield from outcomes
        return train()

    plan, out, log = sys.argv[1:]
    options = SweepOptions(runner=Runner(probe=slowly, measure=None))
    summary = sweep(read_plan(plan), out, options=options)
    print(summary.new, summary.outcomes["missing"])
"""


@pytest.mark.skipif(sys.platform == "win32", reason="locks are tested on POSIX")
def test_two_processes_share_the_work_of_one_ledger(done, tmp_path):
    script, plan = tmp_path / "script.py", tmp_path / "plan.toml"
    script.write_text(textwrap.dedent(SHARED))
    plan.write_text("""
        fixed.steps = 12
        fixed.dataset = "wine"
        fixed.features = "standardized"
        grid.temperature = [1, 4]
        grid.seed = {count = 20}
    """)
    out, log = tmp_path / "out", tmp_path / "log"
    command = [sys.executable, script, plan, out, log]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    said = [process.communicate(timeout=120)[0].split() for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert sum(int(new) for new, _ in said) == 40
    assert all(missing == "0" for _, missing in said)  # either waits for what the other does
    assert len(lines(out)) == len(figures(out)) == 40
    assert set(Counter(log.read_text().split()).values()) == {1}


def test_what_another_sweep_has_claimed_is_waited_for(tmp_path, monkeypatch):
    monkeypatch.setattr("temperance.study.sweep._PAUSE", 0.02)
    ledger = open_ledger(tmp_path)
    other = work_units(PLAN.trials)[1]
    assert ledger.claim(other.name)
    stages = []

    def stage(text):
        stages.append(text)
        if text.startswith("waiting"):  # the other sweep finishes a part of its unit and ends
            ledger.append(Runner(measure=None)(replace(other, trials=other.trials[:2])).rows)
            ledger.release(other.name)

    engine = Counting()
    summary = sweep(
        PLAN, tmp_path, options=nothing_measured(probe=engine), progress=SweepProgress(stage=stage)
    )
    assert sum(text.startswith("waiting") for text in stages) == 1
    assert summary.outcomes["done"] == 24
    assert engine.trials.keys() == set(PLAN.trials) - set(other.trials[:2])


def test_claims_are_given_up_whatever_happens(tmp_path):
    with pytest.raises(Interrupted):
        sweep(PLAN, tmp_path, progress=stop_after(2), options=nothing_measured())
    ledger = open_ledger(tmp_path)
    assert all(ledger.claim(unit.name) for unit in work_units(PLAN.trials))
    for unit in work_units(PLAN.trials):
        ledger.release(unit.name)


# ------------------------------------------------------------------ units, progress, cost
trials_of = st.builds(
    Trial,
    dataset=st.sampled_from(["a", "b"]),
    model=st.sampled_from(["probe", "mlp"]),
    norm=st.sampled_from(["none", "batch"]),
    temperature=st.sampled_from([1.0, 2.0, 4.0]),
    steps=st.sampled_from([1, 2]),
    seed=st.integers(0, 2),
)


@given(st.lists(trials_of, max_size=40), st.integers(1, 5))
def test_units_hold_every_trial_once_and_what_belongs_together(trials, size):
    units = work_units(trials, at_most=lambda trial: size)
    held = [trial for unit in units for trial in unit.trials]
    assert Counter(held) == Counter(set(trials))
    assert len({unit.name for unit in units}) == len(units)
    for unit in units:
        assert 1 <= len(unit.trials) <= size
        shared = {(*data_key(t), t.model, t.batch_size, t.steps, t.seed) for t in unit.trials}
        assert len(shared) == 1
    places = [data_key(unit.trials[0]) for unit in units]
    assert len([1 for a, b in pairwise(places) if a != b]) <= 1


@given(st.lists(trials_of, max_size=40, unique=True), st.data())
def test_what_is_left_of_a_unit_keeps_its_name_and_order(trials, data):
    done = {t.key for t in trials if data.draw(st.booleans())}
    for unit in work_units(trials):
        left = unit.without(done)
        assert left.name == unit.name
        assert list(left.trials) == [t for t in unit.trials if t.key not in done]


def test_progress(tmp_path):
    heard, stages = [], []
    checked = []
    progress = SweepProgress(
        stage=stages.append, trials=heard.append, checked=lambda *counts: checked.append(counts)
    )
    sweep(PLAN, tmp_path, progress=progress, options=nothing_measured())
    assert [tally.finished for tally in heard] == [0, 0, 6, 12, 12, 18, 24]
    assert heard[0].seconds_left is None
    assert heard[-1].seconds_left == 0
    assert heard[-1].outcomes == {"done": 24}
    assert stages == ["reading the ledger", "checking data and models", "training"]
    assert checked == [(0, 2), (1, 2), (2, 2)]


def test_the_estimate_of_what_is_left(tmp_path):
    out = tmp_path / "out"
    first = estimate_cost(PLAN, out)
    assert not out.exists()
    assert (first.trials, first.finished, first.units, first.tasks) == (24, 0, 4, 2)
    assert first.basis == {"probe": "tried"}
    assert first.cpu_seconds > 0
    with pytest.raises(Interrupted):
        sweep(PLAN, out, progress=stop_after(2), options=nothing_measured())
    second = estimate_cost(PLAN, out)
    assert (second.finished, second.units, second.tasks_measured) == (6, 3, 0)
    assert second.basis == {"probe": "ledger"}
    sweep(PLAN, out, options=nothing_measured())
    last = estimate_cost(PLAN, out)
    assert (last.finished, last.units, last.cpu_seconds) == (24, 0, 0)
    assert last.wall_seconds == {1: 0}


def test_the_estimate_says_what_it_cannot_know(tmp_path):
    def broken(data, trials):
        def train():
            raise RuntimeError("no luck")
            yield

        return train()

    estimate = estimate_cost(PLAN, tmp_path, runner=Runner(probe=broken))
    assert estimate.basis == {"probe": "unknown: RuntimeError: no luck"}
    assert estimate.cpu_seconds == 0


def test_the_estimate_finds_a_known_price(tmp_path):
    """Seconds that follow the formula are found again from short runs, for longer ones."""
    width = {"iris": 4, "wine": 13}

    def price(trial, data):
        judged = len(data.y["val"]) * (len(history_steps(trial.steps)) + 1) + len(data.y["test"])
        rows = 3 * trial.steps * trial.batch_size + judged
        return 0.01 + 1e-3 * trial.steps + 1e-7 * rows * 3 * width[data.name]

    def priced(data, trials):
        for trial in trials:
            yield Outcome(trial, "diverged", seconds=price(trial, data))

    plan = parse_plan("""
        fixed.steps = 5000
        grid.dataset = ["iris", "wine"]
        grid.temperature = [1, 2]
        grid.batch_size = [16, 32]
    """)
    found = estimate_cost(plan, tmp_path, runner=Runner(probe=priced))
    expected = sum(price(trial, load(trial.dataset)) for trial in plan.trials)
    np.testing.assert_allclose(found.cpu_seconds, expected, rtol=0.02)


@given(st.lists(st.floats(0.1, 10), min_size=1, max_size=20), st.integers(1, 8))
def test_wall_time_is_between_its_bounds(costs, workers):
    found = wall_seconds(costs, workers)
    least = max(max(costs), sum(costs) / workers)
    assert least * (1 - 1e-9) <= found <= sum(costs) / workers + max(costs) + 1e-9


def test_work_grows_with_steps_batch_and_size():
    facts = Facts((64,), 10, 1000, 100, 100)
    base = work_of(Trial("a", steps=100), facts)
    assert work_of(Trial("a", steps=200), facts) > 1.9 * base
    assert work_of(Trial("a", steps=100, batch_size=128), facts) > base
    assert work_of(Trial("a", steps=100), replace(facts, n_classes=100)) > base
    full = work_of(Trial("a", steps=100, batch_size=1000), facts)
    assert work_of(Trial("a", steps=100, batch_size=5000), facts) == full


def test_units_are_of_a_sensible_size():
    facts = Facts((3, 32, 32), 10, 1000, 100, 100)
    assert fits_in_unit(Trial("a", model="mlp", feature_dim=16, steps=100), facts) == 64
    assert 1 < fits_in_unit(Trial("a", model="mlp", feature_dim=128, steps=500), facts) < 64
    assert fits_in_unit(Trial("a", model="resnet", steps=10_000), facts) == 1
