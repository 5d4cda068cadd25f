"""Augmented training: what an ordinary loop does with the same draws, whoever is beside it."""

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from temperance.errors import InvalidInput, TemperanceWarning
from temperance.head import insert, parameter_groups
from temperance.study import augmentation, networks_train
from temperance.study.augmentation import NOISE, check_augment, new_augmentation, spread_of
from temperance.study.batches import batch_rows, learning_rate
from temperance.study.fit_check import domain_of
from temperance.study.ledger import open_ledger, read_rows, row_of, task_key
from temperance.study.networks import train_networks
from temperance.study.outcome import Outcome, StudyData
from temperance.study.plan import parse_plan
from temperance.study.probe import train_probes
from temperance.study.runner import Runner
from temperance.study.runs import curves_of_rows, example_rows, read_curves
from temperance.study.selection import mixed_settings
from temperance.study.sweep_check import check_units
from temperance.study.train_runs import rows_of_training
from temperance.study.trial import Trial, trial_from_dict
from temperance.study.units import work_units
from temperance.training.job import run_job
from temperance.training.loop import Budget, mixed_seed
from temperance.training.nets import build_net
from temperance.training.plan import Plan

RUNS = Path(__file__).parents[2] / "studies" / "budget" / "runs"


def made(shape, n_classes=3, *, n=60, seed=0):
    """Classes with a pattern each, and noise; columns have spreads and means of their own."""
    rng = np.random.default_rng(seed)
    patterns, scale = rng.normal(size=(n_classes, *shape)), rng.uniform(0.5, 2, size=shape)
    x, y = {}, {}
    for split, rows in (("train", n), ("val", 30), ("test", 30)):
        y[split] = rng.integers(0, n_classes, rows)
        noise = rng.normal(size=(rows, *shape))
        x[split] = (scale * (patterns[y[split]] + noise) + 0.3).astype(np.float32)
    return StudyData("made", x, y, n_classes)


FEATURES, GRAY, COLOURS = made((6,)), made((1, 8, 8)), made((3, 16, 16), n=32)


def trial(model="mlp", **changes):
    base = {"feature_dim": 12, "batch_size": 16, "steps": 15, "lr": 0.02, "norm": "batch"}
    return Trial("made", model=model, **(base | changes))


# ------------------------------------------------------------------ the oracle
def changed(data, t, rows, step):
    """The rows of a step, one by one, with the draws that the page names."""
    x = data.x["train"][rows].copy()
    generator = torch.Generator().manual_seed(mixed_seed("augment", t.seed, step))
    if t.augment == "noise":
        train = data.x["train"].astype(np.float64)
        s = math.sqrt(np.mean((train - train.mean(axis=0)) ** 2))
        return x + np.float32(0.3 * s) * torch.randn(x.shape, generator=generator).numpy()
    height, width = x.shape[2:]
    pad = height // 8
    down, right = (torch.randint(0, 2 * pad + 1, (len(x), 1), generator=generator) for _ in "dr")
    mirrored = torch.rand(len(x), 1, generator=generator) < 0.5
    out = np.zeros_like(x)
    for i in range(len(x)):
        around = np.pad(x[i], ((0, 0), (pad, pad), (pad, pad)))
        top, left = int(down[i]), int(right[i])
        out[i] = around[:, top : top + height, left : left + width]
        if t.augment == "shift-flip" and mirrored[i]:
            out[i] = out[i, :, :, ::-1]
    return out


def new_model(data, t):
    if t.model == "probe":
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(t.seed)
            linear = nn.Linear(data.input_shape[0], data.n_classes)
        kinds = {"none": nn.Identity, "layer": nn.LayerNorm, "batch": nn.BatchNorm1d}
        model = nn.Sequential(kinds[t.norm](data.input_shape[0]), linear)
        return model, lambda x: model(x) / t.temperature
    net = build_net(
        t.model,
        input_shape=data.input_shape,
        n_classes=data.n_classes,
        seed=t.seed,
        feature_dim=t.feature_dim,
    ).module
    insert(net, t.temperature, norm=t.norm, name="head")
    return net, net


def alone(data, t, *, augmented=True):
    """An ordinary loop; gives the logits of the test rows."""
    net, logits = new_model(data, t)
    optimizer = torch.optim.SGD(parameter_groups(net, 0.0), lr=t.lr, momentum=t.momentum)
    y = torch.tensor(data.y["train"])
    for step, rows in enumerate(batch_rows(len(y), t.batch_size, t.steps, t.seed)):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, t.steps, peak=t.lr, schedule=t.schedule)
        x = changed(data, t, rows, step) if augmented else data.x["train"][rows]
        loss = nn.functional.cross_entropy(logits(torch.from_numpy(x)), y[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    net.eval()
    with torch.no_grad():
        return logits(torch.from_numpy(data.x["test"])).numpy()


CASES = [
    (FEATURES, "mlp", "noise"),
    (FEATURES, "probe", "noise"),
    (GRAY, "convnet", "shift"),
    (GRAY, "mlp", "shift-flip"),
    (COLOURS, "resnet", "shift-flip"),
]


def engine(model):
    return train_probes if model == "probe" else train_networks


def own(model, augment, **changes):
    dim = {"feature_dim": None} if model == "probe" else {}
    return trial(model, augment=augment, **dim, **changes)


@pytest.mark.parametrize(("data", "model", "augment"), CASES)
def test_a_stack_is_the_ordinary_loop_with_the_same_draws(data, model, augment):
    trials = [own(model, augment, temperature=t, seed=s) for t in (0.7, 3) for s in (0, 2)]
    for outcome in engine(model)(data, trials):
        assert (outcome.outcome, outcome.message) == ("done", "")
        expected = alone(data, outcome.trial)
        np.testing.assert_allclose(outcome.logits["test"], expected, rtol=1e-3, atol=1e-3)
        plain = alone(data, outcome.trial, augmented=False)
        assert np.abs(plain - expected).max() > 0.02  # else the test would show nothing


def refuse(net):
    raise InvalidInput("net", expected="", found="a part", fix="")


@pytest.mark.parametrize(("data", "augment"), [(FEATURES, "noise"), (GRAY, "shift-flip")])
def test_nets_that_cannot_be_stacked_see_the_same_rows(data, augment, monkeypatch):
    monkeypatch.setattr("temperance.study.networks_net.trace_steps", refuse)
    trials = [trial(augment=augment, temperature=t) for t in (1, 4)]
    with pytest.warns(TemperanceWarning, match="one by one"):
        outcomes = list(train_networks(data, trials))
    for outcome in outcomes:
        expected = alone(data, outcome.trial)
        np.testing.assert_allclose(outcome.logits["test"], expected, rtol=1e-3, atol=1e-3)


# ------------------------------------------------------------------ company, seeds, random state
@pytest.mark.parametrize(("data", "model", "augment"), CASES[:3])
def test_company_order_and_limits_change_nothing(data, model, augment):
    kinds = (augment, "none")
    trials = [own(model, a, temperature=t, seed=s) for t in (1, 4) for a in kinds for s in (0, 1)]
    together = {o.trial: o for o in engine(model)(data, trials)}
    backwards = {o.trial: o for o in engine(model)(data, trials[::-1])}
    for t in trials:
        (single,) = engine(model)(data, [t])
        for other in (together[t], backwards[t]):
            found = other.logits["test"]
            np.testing.assert_allclose(found, single.logits["test"], rtol=1e-3, atol=1e-4)
            np.testing.assert_allclose(
                other.history["train_loss"], single.history["train_loss"], rtol=1e-3, atol=1e-4
            )


@pytest.mark.parametrize(("data", "model", "augment"), CASES[:3])
def test_an_equal_trial_is_an_equal_result_and_no_global_state_moves(
    data, model, augment, rng_guard
):
    trials = [own(model, augment, seed=s) for s in (0, 1)]
    with rng_guard():
        first, second = ([o.logits["test"] for o in engine(model)(data, trials)] for _ in "ab")
    np.testing.assert_array_equal(first, second)
    (plain,) = engine(model)(data, [replace(trials[0], augment="none")])
    assert np.abs(first[0] - plain.logits["test"]).max() > 0.01


def test_draws_differ_by_seed_and_step_and_not_by_temperature():
    x = GRAY.x["train"][:20]

    def rows(step=0, **changes):
        return new_augmentation(GRAY, trial("convnet", augment="shift", **changes))(x.copy(), step)

    np.testing.assert_array_equal(rows(), rows(temperature=9.0, lr=0.3, steps=999))
    assert (rows() != rows(seed=1)).any()
    assert (rows() != rows(step=1)).any()
    assert (rows() != x).any()
    plain = new_augmentation(GRAY, trial("convnet"))(x, 0)
    np.testing.assert_array_equal(plain, x)


@pytest.mark.parametrize("augment", ["shift", "shift-flip"])
def test_gray_pictures_may_become_channels_before_or_after(augment):
    change = new_augmentation(GRAY, trial("convnet", augment=augment))
    gray = GRAY.x["train"][:9]
    before = change(np.ascontiguousarray(np.repeat(gray, 3, axis=1)), 4)
    np.testing.assert_array_equal(before, np.repeat(change(gray.copy(), 4), 3, axis=1))


def test_rows_are_not_changed_in_the_data_and_none_that_judge_are_changed(monkeypatch):
    kept = {split: x.copy() for split, x in FEATURES.x.items()}
    seen = []

    def spy(data, t):
        change = new_augmentation(data, t)
        return lambda rows, step: seen.append(rows.copy()) or change(rows, step)

    monkeypatch.setattr(networks_train, "new_augmentation", spy)
    path = {"path": "hypergradient", "augment": "noise", "steps": 6}  # draws validation rows, too
    list(train_networks(FEATURES, [trial(temperature=t, **path) for t in (1, 2)]))
    assert len(seen) == 6
    trained = {row.tobytes() for row in kept["train"]}
    assert all(row.tobytes() in trained for rows in seen for row in rows)
    for split, x in kept.items():
        np.testing.assert_array_equal(FEATURES.x[split], x)


def test_read_only_rows_are_fine():
    x = {split: rows.copy() for split, rows in FEATURES.x.items()}
    for rows in x.values():
        rows.flags.writeable = False
    data = replace(FEATURES, x=x)
    for model in ("mlp", "probe"):
        t = own(model, "noise", steps=4)
        (found,), (expected,) = engine(model)(data, [t]), engine(model)(FEATURES, [t])
        np.testing.assert_array_equal(found.logits["test"], expected.logits["test"])


# ------------------------------------------------------------------ the size of the noise
def test_the_spread_is_that_around_the_mean_of_the_column(monkeypatch):
    monkeypatch.setattr(augmentation, "_BLOCK", 50)  # several blocks, the last one smaller
    x = np.random.default_rng(0).normal([1e4, -3, 0], [2, 0.5, 0], size=(101, 3)).astype(np.float32)
    expected = np.sqrt(np.mean((x.astype(np.float64) - x.mean(axis=0, dtype=np.float64)) ** 2))
    np.testing.assert_allclose(spread_of(x), expected, rtol=1e-12)


def test_noise_has_its_size_and_is_the_same_for_all_columns():
    rng = np.random.default_rng(1)
    x = rng.normal(0, [1, 7], size=(4000, 2)).astype(np.float32)
    data = StudyData("made", {"train": x}, {"train": np.zeros(4000, np.int64)}, 2)
    noise = new_augmentation(data, Trial("made", augment="noise"))(x.copy(), 0) - x
    expected = NOISE * np.sqrt((1 + 49) / 2)
    np.testing.assert_allclose(noise.std(axis=0), expected, rtol=0.05)
    np.testing.assert_allclose(noise.mean(axis=0), 0, atol=0.1)


# ------------------------------------------------------------------ bad input
LETTERS = made((5, 1, 24))


@pytest.mark.parametrize(
    ("data", "model", "augment", "expected", "found"),
    [
        (FEATURES, "mlp", "shift", "noise or none", "shift, for rows of 6 numbers"),
        (FEATURES, "probe", "shift-flip", "noise or none", "shift-flip, for rows of 6 numbers"),
        (GRAY, "convnet", "noise", "shift, shift-flip or none", "noise, for rows of shape"),
        (LETTERS, "mlp", "noise", "shift, shift-flip or none", "noise, for rows of shape"),
        (LETTERS, "mlp", "shift", "less than 8 lines", "shift, for rows of shape [5, 1, 24]"),
    ],
)
def test_what_the_rows_do_not_allow_is_refused_before_any_work(
    data, model, augment, expected, found
):
    trials = [own(model, "none"), own(model, augment)]
    with pytest.raises(InvalidInput) as error:
        engine(model)(data, trials)  # not iterated
    assert error.value.subject == "trial.augment"
    assert expected in error.value.expected
    assert found in error.value.found
    assert error.value.fix
    with pytest.raises(InvalidInput):
        check_augment(data, trials)
    check_augment(data, trials[:1])


def test_a_sweep_looks_at_every_augmentation_of_a_model():
    trials = [
        Trial("iris", model="mlp", feature_dim=4, augment=a, seed=s)
        for s, a in enumerate(("none", "noise", "shift"))
    ]
    check_units(work_units(trials[:2]), Runner())
    with pytest.raises(InvalidInput, match="shift, for rows of 4 numbers") as error:
        check_units(work_units(trials), Runner())
    assert "trial of mlp on iris" in error.value.subject


# ------------------------------------------------------------------ trials, ledgers, curves
def test_a_plan_names_it_and_a_wrong_one_is_refused_with_its_place():
    text = '[fixed]\ndataset = "iris"\n[grid]\naugment = ["none", "{}"]\n'
    assert [t.augment for t in parse_plan(text.format("noise")).trials] == ["none", "noise"]
    with pytest.raises(InvalidInput, match="augment"):
        parse_plan(text.format("mixup"))


def test_trials_of_one_augmentation_stand_together_in_a_unit():
    kinds = ("none", "noise") * 3
    trials = [Trial("iris", augment=a, temperature=1 + i) for i, a in enumerate(kinds)]
    (unit,) = work_units(trials)
    assert [t.augment for t in unit.trials] == ["noise"] * 3 + ["none"] * 3


def test_committed_ledgers_read_as_without():
    pytest.importorskip("pyarrow")
    rows = read_rows(RUNS / "held-out" / "ledger.parquet", history=False)
    assert rows[0]["key"] == "44c2f7e3cc0ea3d56e19"
    assert not any("augment" in row["trial"] for row in rows)
    trials = [trial_from_dict(row["trial"]) for row in rows]
    assert [t.key for t in trials] == [row["key"] for row in rows]
    assert {t.augment for t in trials} == {"none"}
    (first, *others) = read_curves(RUNS / "held-out")
    assert {c.setting["augment"] for c in (first, *others)} == {"none"}
    assert not any("augment" in c.task.training for c in (first, *others))
    assert "augment" not in first.label


def test_old_and_new_rows_are_compacted_into_one_table(tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    trials = [Trial("iris"), Trial("iris", augment="noise")]
    rows = [row_of(Outcome(t, "done"), {}, task_key(t.task_content)) for t in trials]
    for name in ("augment", "path"):
        del rows[0]["trial"][name]  # as an older release wrote it
    ledger = open_ledger(tmp_path)
    ledger.append(rows)
    ledger.compact()
    table = parquet.read_table(tmp_path / "ledger.parquet")
    assert table["trial.augment"].to_pylist() == ["none", "noise"]
    assert table["trial.path"].to_pylist() == ["constant", "constant"]
    assert table["trial.train_rows"].to_pylist() == [None, None]
    found = [trial_from_dict(row["trial"]) for row in read_rows(tmp_path)]
    assert found == trials


def test_curves_are_apart_and_only_augmented_ones_say_so():
    rows, tasks = example_rows((1.0, 2.0, 4.0))
    rows = json.loads(json.dumps(rows))
    more = [{**row, "trial": {**row["trial"], "augment": "noise"}} for row in rows]
    written = [{**row, "trial": {**row["trial"], "augment": "none"}} for row in rows[:1]]
    noisy, plain = curves_of_rows(rows + more + written, tasks)
    assert (noisy.task.training["augment"], noisy.setting["augment"]) == ("noise", "noise")
    assert "augment" not in plain.task.training
    assert "augment noise" in noisy.label
    assert mixed_settings([noisy, plain]) == ["augment"]
    for curves, reasons in (([plain], 1), ([plain, noisy], 0)):
        domain = domain_of(curves, [])
        assert [r for r in domain.reasons(plain.task) if "augment" in r] == []
        assert len([r for r in domain.reasons(noisy.task) if "augment" in r]) == reasons


def test_a_training_with_augmentation_is_a_trial_with_it(tmp_path):
    plan = Plan(
        source="digits",
        model="mlp",
        feature_dim=8,
        arms=("bn",),
        seeds=1,
        train_rows=100,
        budget=Budget(epochs=1, batch_size=32, augment="shift-flip"),
    )
    run_job(plan, tmp_path / "out")
    (row,), _ = rows_of_training(tmp_path / "out")
    assert (row["trial"]["augment"], row["trial"]["features"]) == ("shift-flip", "input")
