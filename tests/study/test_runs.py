"""Curves from ledger rows: grouping, seeds that count, what is refused."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from temperance.errors import InvalidInput, NotFound, TemperanceWarning
from temperance.records import Task
from temperance.study.ledger import open_ledger, row_of, task_key
from temperance.study.outcome import Outcome
from temperance.study.runs import curves_of_rows, example_rows, judged, read_curves
from temperance.study.selection import split_curves
from temperance.study.trial import Trial
from temperance.training.job import run_job
from temperance.training.loop import Budget
from temperance.training.plan import Plan

TASK = Task(64, 10, n_samples=800, statistics={"csg": 0.4})
GRID = (0.5, 1.0, 2.0, 4.0)


def outcome_row(trial, outcome="done", value=0.5, dim=64):
    metrics = {"val_nll": value, "test_nll": value + 0.1} if outcome == "done" else {}
    made = Outcome(trial, outcome, "" if outcome == "done" else "why", feature_dim=dim)
    return row_of(made, metrics, task_key(trial.task_content))


def trials(dataset="digits", temperatures=GRID, seeds=(0, 1), **fields):
    return [
        Trial(dataset, temperature=t, seed=s, norm="batch", **fields)
        for t in temperatures
        for s in seeds
    ]


def curves(rows, tasks=None):
    keys = {row["task"] for row in rows}
    return curves_of_rows(rows, dict.fromkeys(keys, TASK) if tasks is None else tasks)


# ------------------------------------------------------------------ grouping
def test_a_setting_is_one_curve_with_its_values_in_place():
    rows = [outcome_row(t, value=t.temperature + 10 * t.seed) for t in trials()]
    rng = np.random.default_rng(0)
    (curve,) = curves([rows[i] for i in rng.permutation(len(rows))])
    assert (curve.dataset, curve.seeds) == ("digits", (0, 1))
    np.testing.assert_array_equal(curve.temperatures, GRID)
    expected = np.array(GRID)[:, None] + 10 * np.array([0, 1])
    np.testing.assert_array_equal(curve.metrics["val_nll"], expected)
    assert (curve.outcomes == "done").all()
    assert "temperature" not in curve.setting
    assert curve.setting["norm"] == "batch"
    assert curve.task.feature_dim == 64
    assert curve.task.training["lr"] == 0.1
    assert float(curve.task.statistics["csg"]) == 0.4


def test_settings_make_curves_of_their_own():
    rows = [
        outcome_row(t)
        for fields in (
            {},
            {"lr": 0.3},
            {"loss": "normalized"},
            {"train_rows": 50},
            {"path": "ramp"},
        )
        for t in trials(**fields)
    ]
    found = curves([*rows, *(outcome_row(t) for t in trials("wine"))])
    assert len(found) == 6
    assert [c.dataset for c in found].count("wine") == 1
    assert len({c.label for c in found}) == 6


def test_missing_failed_and_diverged_runs_are_no_values():
    plan = trials()
    rows = [outcome_row(t) for t in plan[:-1]]
    rows[0] = outcome_row(plan[0], "diverged")
    rows[1] = outcome_row(plan[1], "failed")
    (curve,) = curves(rows)
    assert curve.outcomes.tolist() == [
        ["diverged", "failed"],
        ["done", "done"],
        ["done", "done"],
        ["done", "missing"],
    ]
    lost = curve.outcomes != "done"
    assert np.isnan(curve.metrics["val_nll"][lost]).all()
    assert np.isfinite(curve.metrics["val_nll"][~lost]).all()


def test_of_two_rows_of_a_trial_the_finished_and_then_the_last_counts():
    plan = trials()
    rows = [outcome_row(t, value=1.0) for t in plan]
    again = [outcome_row(plan[0], "failed"), outcome_row(plan[1], value=2.0)]
    (curve,) = curves([*rows, *again])
    assert curve.metrics["val_nll"][0].tolist() == [1.0, 2.0]
    (other,) = curves([again[0], *rows])
    assert other.metrics["val_nll"][0].tolist() == [1.0, 1.0]


# ------------------------------------------------------------------ which temperatures count
def loop_judged(outcomes):
    """The rule in words, as loops."""
    result = [[o in ("done", "diverged") for o in row] for row in outcomes]
    k, s = len(result), len(result[0])
    seeds = [j for j in range(s) if sum(result[i][j] for i in range(k)) > k / 2]
    counts = [bool(seeds) and all(result[i][j] for j in seeds) for i in range(k)]
    return [[counts[i] and j in seeds for j in range(s)] for i in range(k)]


@given(st.data())
def test_judged_is_the_loop(data):
    (curve,) = curves([outcome_row(t) for t in trials(temperatures=(1, 2, 3), seeds=(0,))])
    k, s = data.draw(st.integers(1, 6)), data.draw(st.integers(1, 4))
    names = st.sampled_from(["done", "diverged", "failed", "missing"])
    table = data.draw(st.lists(st.lists(names, min_size=s, max_size=s), min_size=k, max_size=k))
    object.__setattr__(curve, "outcomes", np.array(table))
    object.__setattr__(curve, "temperatures", np.arange(1.0, k + 1))
    assert judged(curve).tolist() == loop_judged(table)


# ------------------------------------------------------------------ files
def write_sweep(folder, rows, contents, task=TASK):
    ledger = open_ledger(folder)
    ledger.append(rows)
    for content in contents:
        ledger.append_task(content, task)
    return ledger


def test_read_from_folder_file_table_and_several_paths(tmp_path):
    first, second = trials(seeds=(0,)), trials(seeds=(1,))
    for name, plan in (("a", first), ("b", second)):
        ledger = write_sweep(
            tmp_path / name, [outcome_row(t) for t in plan], [plan[0].task_content]
        )
    (both,) = read_curves(tmp_path / "a", tmp_path / "b")
    assert both.seeds == (0, 1)
    assert float(both.task.statistics["csg"]) == 0.4
    (one,) = read_curves(tmp_path / "a" / "ledger.jsonl")
    assert one.seeds == (0,)
    pytest.importorskip("pyarrow")
    table = ledger.compact()
    (compacted,) = read_curves(table)
    np.testing.assert_array_equal(compacted.metrics["val_nll"], both.metrics["val_nll"][:, 1:])


def test_nothing_there(tmp_path):
    with pytest.raises(NotFound) as caught:
        read_curves(tmp_path / "nowhere")
    assert "nowhere" in caught.value.subject
    open_ledger(tmp_path / "empty").append([])
    with pytest.raises((InvalidInput, NotFound)):
        read_curves(tmp_path / "empty")
    with pytest.raises(InvalidInput):
        read_curves()


def test_rows_without_their_task(tmp_path):
    write_sweep(tmp_path / "a", [outcome_row(t) for t in trials()], [])
    with pytest.raises(InvalidInput) as caught:
        read_curves(tmp_path / "a")
    assert "tasks.jsonl" in caught.value.expected


def test_another_schema_version_is_refused(tmp_path):
    rows = [outcome_row(t) for t in trials()]
    mixed = [*rows[:-1], {**rows[-1], "schema": 2}]
    with pytest.raises(InvalidInput) as caught:
        curves(mixed)
    assert caught.value.expected == "schema version 1"
    write_sweep(tmp_path / "a", rows, [trials()[0].task_content])
    with (tmp_path / "a" / "ledger.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps(mixed[-1]) + "\n")
    with pytest.raises(InvalidInput):
        read_curves(tmp_path / "a")


# ------------------------------------------------------------------ variation in T
def test_settings_with_too_few_temperatures_are_named():
    poor = [outcome_row(t) for t in trials("wine", temperatures=(1.0, 2.0))]
    with pytest.raises(InvalidInput) as caught:
        curves(poor)
    assert "wine" in caught.value.found
    with pytest.warns(TemperanceWarning, match="wine"):
        found = curves([*poor, *(outcome_row(t) for t in trials())])
    assert [c.dataset for c in found] == ["digits"]


def test_failed_runs_are_no_temperatures():
    rows = [outcome_row(t, "failed" if t.temperature > 1 else "done") for t in trials()]
    with pytest.raises(InvalidInput):
        curves(rows)


def test_one_setting_has_one_feature_dimension():
    rows = [outcome_row(t, dim=64 if t.seed else 32) for t in trials()]
    with pytest.raises(InvalidInput) as caught:
        curves(rows)
    assert "32, 64" in caught.value.found


# ------------------------------------------------------------------ several sweeps
def test_one_task_has_all_that_two_sweeps_measured(tmp_path):
    plan = trials()
    with_csg, bare = TASK, Task(64, 10, n_samples=800, statistics={"silhouette": 0.2})
    for name, task, seed in (("a", with_csg, 0), ("b", bare, 1)):
        rows = [outcome_row(t) for t in plan if t.seed == seed]
        write_sweep(tmp_path / name, rows, [plan[0].task_content], task)
    for order in ("ab", "ba"):
        (curve,) = read_curves(*(tmp_path / name for name in order))
        assert {n: float(s) for n, s in curve.task.statistics.items()} == {
            "csg": 0.4, "silhouette": 0.2,
        }  # fmt: skip
        assert curve.seeds == (0, 1)


def test_data_that_changed_between_two_sweeps_are_not_mixed(tmp_path):
    plan = trials()
    for name, task in (("a", TASK), ("b", Task(64, 9, n_samples=800))):
        write_sweep(tmp_path / name, [outcome_row(t) for t in plan], [plan[0].task_content], task)
    with pytest.raises(InvalidInput) as caught:
        read_curves(tmp_path / "a", tmp_path / "b")
    assert caught.value.found == "M, C, n = 64, 9, 800"


def test_one_data_set_under_two_names_is_one_unit():
    rows = [outcome_row(t) for name in ("data/Digits.npz", "digits", "wine") for t in trials(name)]
    with pytest.warns(TemperanceWarning, match=r"one data set each.*: data/Digits\.npz/digits$"):
        found = curves(rows)
    assert [c.dataset for c in found] == ["data/Digits.npz", "data/Digits.npz", "wine"]
    assert [c.setting["dataset"] for c in found] == ["data/Digits.npz", "digits", "wine"]
    inside, outside = split_curves(found, ["digits"])
    assert [len(inside), len(outside)] == [1, 2]


# ------------------------------------------------------------------ temperance train
def test_arms_of_a_training_are_a_curve(tmp_path):
    plan = Plan(
        source="digits",
        model="mlp",
        feature_dim=16,
        arms=("bn", "bn:T=2", "bn:T=4", "plain"),
        seeds=2,
        train_rows=200,
        budget=Budget(epochs=1, batch_size=32),
    )
    comparison = run_job(plan, tmp_path / "out")
    with pytest.warns(TemperanceWarning, match="norm none"):  # one temperature only
        (curve,) = read_curves(tmp_path / "out")
    np.testing.assert_array_equal(curve.temperatures, [1, 2, 4])
    assert (curve.seeds, curve.setting["norm"], curve.setting["steps"]) == ((0, 1), "batch", 7)
    assert curve.task.statistics == comparison.task.statistics
    for name in ("accuracy", "nll", "nll_posthoc"):
        reported = [a.metrics[name].value for a in comparison.arms if a.arm.norm == "batch"]
        found = curve.metrics[f"test_{name}"].mean(axis=1)
        np.testing.assert_allclose(found, reported, rtol=1e-5)
    (lost,) = (tmp_path / "out" / "runs").glob("bn-T-2-seed1.logits.safetensors")
    lost.unlink()
    with pytest.raises(InvalidInput) as caught:
        read_curves(tmp_path / "out")
    assert lost.name in caught.value.found


def test_settings_whose_task_a_running_sweep_has_not_described_are_left_out():
    rows, tasks = example_rows((1.0, 2.0, 4.0), datasets=("first", "second"))
    kept = next(row["task"] for row in rows if row["trial"]["dataset"] == "first")
    with pytest.warns(TemperanceWarning, match="1 of 2 settings"):
        curves = curves_of_rows(rows, {kept: tasks[kept]})
    assert [c.dataset for c in curves] == ["first"]
