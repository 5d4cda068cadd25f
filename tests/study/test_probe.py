"""Probes side by side: the same as one by one in an ordinary loop, and nobody disturbs anybody."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from temperance.errors import InvalidInput
from temperance.study import probe, probe_product, probe_train
from temperance.study.batches import batch_rows, history_steps, learning_rate
from temperance.study.outcome import StudyData
from temperance.study.probe import train_probes
from temperance.study.probe_head import new_heads
from temperance.study.trial import LOSSES, NORMS, OPTIMIZERS, SCHEDULES, Trial

M, C = 7, 4
FIRST = Trial("blobs", steps=40, batch_size=16, lr=0.1, weight_decay=0.01)


def blobs(m=M, c=C, sizes=(50, 30, 20), seed=0):
    """Gaussian classes whose features have means and spreads of their own."""
    rng = np.random.default_rng(seed)
    centres, spread, shift = rng.normal(size=(c, m)), rng.uniform(0.2, 3, m), rng.normal(size=m)
    x, y = {}, {}
    for split, n in zip(("train", "val", "test"), sizes, strict=True):
        y[split] = rng.integers(0, c, n)
        rows = (centres[y[split]] + rng.normal(size=(n, m))) * spread + shift
        x[split] = rows.astype(np.float32)
    return StudyData("blobs", x, y, c)


# ------------------------------------------------------------------ the oracle
def alone(data, trial):
    """Train one probe as anybody would; gives logits, history, and where it diverged."""
    x = {split: torch.tensor(rows) for split, rows in data.x.items()}
    y = {split: torch.tensor(labels) for split, labels in data.y.items()}
    m = x["train"].shape[1]
    torch.manual_seed(trial.seed)
    linear = nn.Linear(m, data.n_classes)
    kinds = {"none": nn.Identity, "layer": nn.LayerNorm, "batch": nn.BatchNorm1d}
    model = nn.Sequential(kinds[trial.norm](m), linear)
    optimizer = make_optimizer(model, trial)
    rows = batch_rows(len(y["train"]), trial.batch_size, trial.steps, trial.seed)
    history, since, bad = [], [], None
    for step in range(trial.steps):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, trial.steps, peak=trial.lr, schedule=trial.schedule)
        place = rows[step]
        z = model.train()(x["train"][place]) / trial.temperature
        loss = cross_entropy(z, y["train"][place], label_smoothing=trial.smoothing)
        since.append(float(cross_entropy(z.detach(), y["train"][place])))
        if bad is None and not math.isfinite(since[-1]):
            bad = step + 1
        optimizer.zero_grad()
        (loss * trial.temperature if trial.loss == "normalized" else loss).backward()
        optimizer.step()
        if step + 1 in history_steps(trial.steps):
            z = logits_of(model, x["val"], trial)
            hits = (z.argmax(dim=1) == y["val"]).double().mean()
            nll = cross_entropy(z.double(), y["val"])
            history.append((step + 1, sum(since) / len(since), float(nll), float(hits)))
            since = []
    return {s: logits_of(model, x[s], trial).numpy() for s in ("val", "test")}, history, bad


def make_optimizer(model, trial):
    weight = model[1].weight
    others = [p for p in model.parameters() if p is not weight]
    groups = [
        {"params": [weight], "weight_decay": trial.weight_decay},
        {"params": others, "weight_decay": 0.0},
    ]
    if trial.optimizer == "sgd":
        return torch.optim.SGD(groups, lr=trial.lr, momentum=trial.momentum)
    if trial.optimizer == "rmsprop":
        return torch.optim.RMSprop(groups, lr=trial.lr)
    return torch.optim.AdamW(groups, lr=trial.lr)


def logits_of(model, x, trial):
    with torch.no_grad():
        return model.eval()(x) / trial.temperature


def assert_same(data, outcome, tolerance=1e-4):
    """The outcome is that of the oracle: logits relative to the largest one, and the curves."""
    logits, history, _ = alone(data, outcome.trial)
    assert outcome.outcome == "done", outcome.message
    for split, expected in logits.items():
        found = outcome.logits[split]
        assert found.dtype == np.float32
        scale = max(1.0, float(np.abs(expected).max()))
        np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance * scale)
    assert outcome.history["step"] == tuple(entry[0] for entry in history)
    for column, name in enumerate(("train_loss", "val_nll"), start=1):
        expected = [entry[column] for entry in history]
        np.testing.assert_allclose(outcome.history[name], expected, rtol=3e-4, atol=3e-4)
    expected = [entry[3] for entry in history]
    np.testing.assert_allclose(outcome.history["val_accuracy"], expected, atol=1e-12)


# ------------------------------------------------------------------ equal to one by one
def test_every_combination_is_as_if_trained_alone():
    data = blobs()
    places = itertools.cycle(itertools.product((0.25, 1.0, 6.0), (0, 1), (0.0, 0.5, 0.9)))
    trials = []
    for norm, optimizer, loss, schedule, smoothing in itertools.product(
        NORMS, OPTIMIZERS, LOSSES, SCHEDULES, (0.0, 0.1)
    ):
        temperature, seed, momentum = next(places)
        trials.append(
            replace(
                FIRST,
                norm=norm,
                optimizer=optimizer,
                loss=loss,
                schedule=schedule,
                smoothing=smoothing,
                temperature=temperature,
                seed=seed,
                momentum=momentum,
                lr={"sgd": 0.05, "adamw": 0.02, "rmsprop": 0.005}[optimizer],
            )
        )
    outcomes = list(train_probes(data, trials))
    assert [outcome.trial for outcome in outcomes] == trials
    for outcome in outcomes:
        assert_same(data, outcome)
        assert outcome.feature_dim == M


def test_a_grid_of_rates_decays_and_temperatures_in_one_stack():
    data = blobs()
    grid = itertools.product((0.5, 8.0), (0.02, 0.2), (0.0, 0.3), SCHEDULES)
    trials = [
        replace(FIRST, norm="batch", temperature=t, lr=lr, weight_decay=decay, schedule=schedule)
        for t, lr, decay, schedule in grid
    ]
    for outcome in train_probes(data, trials):
        assert_same(data, outcome)


@pytest.mark.parametrize("temperature", [1e-3, 1e4])
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_extreme_temperatures_are_right(temperature, loss, optimizer):
    data = blobs(seed=2)
    lr = 1e-3
    if optimizer == "sgd":  # where T is small, a step that moves the logits by about T
        lr = 0.1 * min(1.0, temperature * (temperature if loss == "plain" else 1.0))
    trial = replace(FIRST, temperature=temperature, loss=loss, optimizer=optimizer, lr=lr, steps=10)
    for norm in NORMS:
        (outcome,) = train_probes(data, [replace(trial, norm=norm, weight_decay=0.0)])
        logits, _, _ = alone(data, outcome.trial)
        scale = np.abs(logits["val"]).max()
        assert np.isfinite(scale)
        np.testing.assert_allclose(outcome.logits["val"] / scale, logits["val"] / scale, atol=1e-4)
        assert np.isfinite(outcome.history["val_nll"]).all()


def test_a_loss_far_beyond_what_a_probability_can_hold():
    """At T = 1e-3 and before training most losses are hundreds of nats, and exact."""
    data = blobs(seed=3)
    (outcome,) = train_probes(data, [replace(FIRST, temperature=1e-3, lr=1e-12, steps=1)])
    _, history, _ = alone(data, outcome.trial)
    assert history[0][2] > 200
    np.testing.assert_allclose(outcome.history["val_nll"], [history[0][2]], rtol=1e-5)
    np.testing.assert_allclose(outcome.history["train_loss"], [history[0][1]], rtol=1e-5)


def test_heads_start_as_torch_makes_them(rng_guard):
    with rng_guard():
        heads = new_heads([1.0, 2.0], norm="batch", shape=(C, M), seed=5)
    torch.manual_seed(5)
    linear = nn.Linear(M, C)
    for weight, bias in zip(heads.weight, heads.bias, strict=True):
        assert torch.equal(weight, linear.weight)
        assert torch.equal(bias[:, 0], linear.bias)


@pytest.mark.parametrize("norm", ["none", "layer"])
def test_batches_of_one_row_two_classes_and_one_feature(norm):
    data = blobs(m=1, c=2, sizes=(5, 1, 1))
    trial = replace(FIRST, norm=norm, batch_size=1, steps=9)
    for outcome in train_probes(data, [trial, replace(trial, temperature=3.0)]):
        assert_same(data, outcome)


def test_a_batch_larger_than_the_data_is_all_of_them():
    data = blobs(sizes=(20, 8, 8))
    small, large = (
        next(train_probes(data, [replace(FIRST, norm="batch", batch_size=size)]))
        for size in (20, 500)
    )
    np.testing.assert_array_equal(small.logits["test"], large.logits["test"])
    assert_same(data, large)


def test_rows_may_be_read_only_and_need_not_lie_next_to_each_other(tmp_path):
    data = blobs()
    expected = next(train_probes(data, [FIRST]))
    wide = {split: np.repeat(rows, 2, axis=1)[:, ::2] for split, rows in data.x.items()}
    np.save(tmp_path / "rows.npy", data.x["train"])
    wide["train"] = np.load(tmp_path / "rows.npy", mmap_mode="r")
    labels = {split: y.copy() for split, y in data.y.items()}
    for array in (*wide.values(), *labels.values()):
        array.flags.writeable = False
    found = next(train_probes(replace(data, x=wide, y=labels), [FIRST]))
    np.testing.assert_array_equal(found.logits["val"], expected.logits["val"])


# ------------------------------------------------------------------ together and in parts
def grid():
    return [
        replace(FIRST, temperature=t, seed=seed, norm=norm, optimizer=optimizer, steps=12)
        for t in (0.5, 2.0, 8.0)
        for seed in (0, 1)
        for norm in ("none", "batch")
        for optimizer in OPTIMIZERS
    ]


def test_the_same_call_gives_the_same_bits(rng_guard):
    data, trials = blobs(), grid()
    with rng_guard():
        first, second = (list(train_probes(data, trials)) for _ in range(2))
    for a, b in zip(first, second, strict=True):
        np.testing.assert_array_equal(a.logits["val"], b.logits["val"])
        np.testing.assert_array_equal(a.logits["test"], b.logits["test"])
        assert a.history == b.history
        assert a.seconds >= 0


def test_small_stacks_and_little_memory_change_nothing_but_rounding(monkeypatch):
    data, trials = blobs(), grid()
    expected = list(train_probes(data, trials))
    needed = 2 * max(probe._bytes_of(data, trial) for trial in trials)
    for cached in (1, 2 * needed):
        monkeypatch.setattr(probe, "_CACHED", cached)
        found = list(train_probes(data, trials, memory_limit=needed))
        assert [outcome.trial for outcome in found] == trials
        for a, b in zip(found, expected, strict=True):
            np.testing.assert_allclose(a.logits["val"], b.logits["val"], rtol=1e-4, atol=1e-5)


def test_a_limit_below_one_trial_is_refused():
    with pytest.raises(InvalidInput) as caught:
        train_probes(blobs(), [FIRST], memory_limit=1000)
    assert caught.value.subject == "memory_limit"
    needed = int(caught.value.expected.split()[0])
    assert next(train_probes(blobs(), [FIRST], memory_limit=needed)).outcome == "done"


def test_many_rows_are_judged_in_blocks(monkeypatch):
    data = blobs()
    expected = next(train_probes(data, [replace(FIRST, norm="batch")]))
    monkeypatch.setattr("temperance.study.probe_head._BLOCK", 11 * M)
    found = next(train_probes(data, [replace(FIRST, norm="batch")]))
    np.testing.assert_allclose(found.logits["val"], expected.logits["val"], rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(found.history["val_nll"], expected.history["val_nll"], rtol=1e-5)
    assert found.history["val_accuracy"] == expected.history["val_accuracy"]


def test_logits_are_made_when_they_are_asked_for(monkeypatch):
    made = []
    original = probe._logits
    monkeypatch.setattr(probe, "_logits", lambda *args: made.append(1) or original(*args))
    outcomes = train_probes(blobs(), grid()[:4])
    next(outcomes)
    assert len(made) == 2
    next(outcomes)
    assert len(made) == 4


def test_the_grad_mode_of_the_caller_stays():
    for _ in train_probes(blobs(), grid()[:3]):
        assert torch.is_grad_enabled()
    assert torch.is_grad_enabled()


def test_progress_counts_to_the_end():
    told = []
    trials = [replace(trial, steps=230) for trial in grid()]
    list(train_probes(blobs(), trials, progress=lambda done, total: told.append((done, total))))
    assert told == sorted(told)
    assert told[-1] == (230 * len(trials), 230 * len(trials))
    assert len(told) > 3 * 8


def test_no_trials_no_outcomes():
    assert list(train_probes(blobs(), [])) == []


def test_the_same_trial_twice():
    first, second = train_probes(blobs(), [FIRST, FIRST])
    np.testing.assert_array_equal(first.logits["val"], second.logits["val"])


# ------------------------------------------------------------------ divergence
def diverging(**changes):
    """lr * weight_decay far above 2: the weights grow by a factor in each step."""
    return replace(FIRST, lr=10.0, weight_decay=10.0, schedule="constant", momentum=0.0, **changes)


@pytest.mark.parametrize("norm", NORMS)
def test_a_trial_that_diverges_says_in_which_step_and_disturbs_nobody(norm):
    data = blobs()
    good = replace(FIRST, norm=norm, temperature=2.0, schedule="constant")
    bad = diverging(norm=norm)
    calm = replace(bad, lr=1e-3, weight_decay=0.0)
    alone_with = {
        name: next(train_probes(data, [good, other]))
        for name, other in [("bad", bad), ("calm", calm)]
    }
    np.testing.assert_array_equal(alone_with["bad"].logits["val"], alone_with["calm"].logits["val"])
    assert_same(data, alone_with["bad"])
    outcome = list(train_probes(data, [good, bad]))[1]
    assert (outcome.outcome, outcome.logits) == ("diverged", None)
    _, _, step = alone(data, bad)
    assert 2 < step < FIRST.steps
    assert f"in step {step} of {FIRST.steps}" in outcome.message
    assert outcome.history["step"] == tuple(s for s in history_steps(FIRST.steps) if s < step)
    for values in outcome.history.values():
        assert np.isfinite(values).all()


def test_adamw_that_diverges():
    trials = [
        replace(FIRST, optimizer="adamw", lr=1e3, weight_decay=1e3, schedule="constant"),
        replace(FIRST, optimizer="adamw", lr=1e-2),
    ]
    bad, good = train_probes(blobs(), trials)
    assert bad.outcome == "diverged"
    assert_same(blobs(), good)


def test_when_all_have_diverged_the_rest_of_the_steps_is_left_out(monkeypatch):
    told, taken = [], []
    original = probe_train.scores

    def counted(*args, **kwargs):
        taken.append(1)
        return original(*args, **kwargs)

    monkeypatch.setattr("temperance.study.probe_train.scores", counted)
    trial = replace(diverging(), steps=10_000)
    (outcome,) = train_probes(blobs(), [trial], progress=lambda *now: told.append(now))
    assert outcome.outcome == "diverged"
    assert len(taken) < 400
    assert told[-1] == (10_000, 10_000)


def test_weights_that_are_lost_in_the_last_step_are_found():
    trial = replace(FIRST, lr=3e38, steps=1)
    data = blobs()
    big = {split: rows * np.float32(100) for split, rows in data.x.items()}
    (outcome,) = train_probes(replace(data, x=big), [trial])
    assert outcome.outcome == "diverged"
    assert outcome.message == "a weight was no finite number after step 1 of 1"


def test_a_validation_loss_that_is_lost_is_divergence():
    data = blobs()
    x = {**data.x, "val": data.x["val"] * np.float32(1e37)}
    (outcome,) = train_probes(replace(data, x=x), [replace(FIRST, temperature=1e-3)])
    assert outcome.outcome == "diverged"
    assert "validation loss" in outcome.message


def test_test_logits_that_overflow_are_divergence():
    data = blobs()
    x = {**data.x, "test": data.x["test"] * np.float32(1e37)}
    (outcome,) = train_probes(replace(data, x=x), [replace(FIRST, temperature=1e-3)])
    assert outcome.outcome == "diverged"
    assert "logit" in outcome.message


# ------------------------------------------------------------------ without oneDNN
def test_without_onednn_the_results_are_the_same(monkeypatch):
    def missing(a, b):
        raise AttributeError

    data, trials = blobs(), grid()
    monkeypatch.setattr(probe_product, "_onednn", missing)
    assert probe_product.choose_product() is probe_product._mm
    for outcome in train_probes(data, trials[:4]):
        assert_same(data, outcome)
