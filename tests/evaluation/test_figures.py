"""The table of figures: what holds for every row of it, and the intervals."""

import math
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from temperance.errors import InvalidInput, NotFound
from temperance.evaluation import (
    FIGURES,
    accuracy,
    class_ece,
    evaluate,
    mean_confidence,
    nll,
    overconfidence,
    sharpness,
    with_interval,
)
from temperance.evaluation.predictions import read_predictions

SETTINGS = settings(deadline=None, max_examples=20, derandomize=True)
NAMES = sorted(FIGURES)
every = pytest.mark.parametrize("name", NAMES)


def rows(n=300, c=4, scale=3.0, seed=0):
    rng = np.random.default_rng(seed)
    z = rng.normal(size=(n, c)) * scale
    return z, (z / 1.5 + rng.gumbel(size=z.shape)).argmax(axis=1)


def softmax(z):
    e = np.exp(z - z.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


# ------------------------------------------------------------------ the contract
@every
def test_rows_of_the_table_are_complete(name):
    figure = FIGURES[name]
    assert figure.better in ("higher", "lower", "zero", "neither")
    assert figure.unit
    assert figure.title
    assert figure.reference
    assert figure.most > 0
    text = figure.function.__doc__
    assert all(part in text for part in ("Args:", "Returns:", "Raises:", "Example:"))


@every
@SETTINGS
@given(seed=st.integers(0, 999), c=st.integers(2, 6), n=st.integers(1, 40))
def test_figures_are_in_range_and_blind_to_row_order(name, seed, c, n):
    figure = FIGURES[name]
    z, y = rows(n, c, seed=seed)
    value = figure.function(logits=z, labels=y)
    least = -figure.most if figure.better == "zero" else 0.0
    assert least - 1e-12 <= value <= figure.most + 1e-12
    order = np.random.default_rng(seed).permutation(n)
    assert figure.function(logits=z[order], labels=y[order]) == pytest.approx(value, abs=1e-9)
    assert figure.function(probs=softmax(z), labels=y) == pytest.approx(value, abs=1e-6)


@every
def test_two_classes_in_three_forms(name):
    figure = FIGURES[name]
    z = np.random.default_rng(1).normal(size=200) * 2
    y = (np.random.default_rng(2).random(200) < 1 / (1 + np.exp(-z))).astype(int)
    value = figure.function(logits=z, labels=y)
    for form in (z[:, None], np.stack([np.zeros(200), z], axis=1)):
        assert figure.function(logits=form, labels=y) == pytest.approx(value, abs=1e-12)
    p = 1 / (1 + np.exp(-z))
    assert figure.function(probs=p, labels=y) == pytest.approx(value, abs=1e-6)


@every
def test_logits_in_0_1_are_logits(name):
    """Nothing is guessed from the values."""
    figure = FIGURES[name]
    z = np.random.default_rng(3).random((200, 3))
    y = np.random.default_rng(4).integers(0, 3, 200)
    value = figure.function(logits=z, labels=y)
    assert value == pytest.approx(figure.function(logits=z + 100, labels=y), abs=1e-9)


@every
@pytest.mark.parametrize(
    "given",
    [
        {"labels": [0, 1]},
        {"labels": [0, 1], "logits": [[0.0, 1.0]] * 2, "probs": [[0.0, 1.0]] * 2},
        {"labels": [0, 2], "logits": [[0.0, 3.0]] * 2},
        {"labels": [0, 1], "logits": [[0.0, np.nan]] * 2},
        {"labels": [0, 1], "logits": [[0.0, np.inf]] * 2},
        {"labels": [0, 1], "probs": [[0.0, 3.0]] * 2},
        {"labels": [0, 1], "logits": softmax(np.ones((2, 2)))},
        {"labels": [0, 1, 1], "logits": [[0.0, 3.0]] * 2},
        {"labels": [], "logits": np.empty((0, 3))},
    ],
)
def test_bad_input_is_refused(name, given):
    with pytest.raises(InvalidInput):
        FIGURES[name].function(**given)


@every
def test_sure_rows_and_masked_classes_count(name):
    """Confidences of exactly 0 and 1, and a class that cannot be, give a number like any other."""
    p = [[0.0, 1.0], [1.0, 0.0], [0.0, 1.0], [0.5, 0.5]]
    value = FIGURES[name].function(probs=p, labels=[1, 0, 1, 0])
    masked = [[-np.inf, 0.0], [0.0, -np.inf], [-np.inf, 0.0], [0.0, 0.0]]
    assert math.isfinite(value)
    assert FIGURES[name].function(logits=masked, labels=[1, 0, 1, 0]) == pytest.approx(value)


@every
def test_chunks_do_not_matter(name, monkeypatch):
    z, y = rows(120, 5)
    whole = with_interval(name, logits=z, labels=y, bootstrap=20)
    monkeypatch.setattr("temperance.evaluation.predictions._CHUNK", 70)
    monkeypatch.setattr("temperance.evaluation.weighted._BLOCK", 240)
    monkeypatch.setattr("temperance.evaluation.intervals._CHUNK", 700)
    parts = with_interval(name, logits=z, labels=y, bootstrap=20)
    assert parts.value == pytest.approx(whole.value, abs=1e-12)
    # other chunks draw other rows in other batches, from the same stream
    assert parts.interval == pytest.approx(whole.interval, abs=1e-12)


# ------------------------------------------------------------------ intervals
@every
def test_intervals_hold_the_value_and_come_from_the_seed(name, rng_guard):
    z, y = rows()
    with rng_guard():
        found = with_interval(name, logits=z, labels=y, bootstrap=100)
    assert found.value == pytest.approx(FIGURES[name].function(logits=z, labels=y), abs=1e-12)
    low, high = found.interval
    assert low <= found.value <= high
    assert low < high
    assert with_interval(name, logits=z, labels=y, bootstrap=100) == found
    other = with_interval(name, logits=z, labels=y, bootstrap=100, seed=1)
    assert (other.interval == found.interval) == (name == "accuracy")
    assert found.method


@every
def test_weights_are_rows_counted_again(name):
    """The figure of drawn rows is that of the measure with weights, bins being given."""
    figure = FIGURES[name]
    z, y = rows(60, 3)
    w = np.bincount(np.random.default_rng(5).integers(0, 60, 60), minlength=60)
    again = np.repeat(np.arange(60), w)
    fixed = {"scheme": "width"} if name == "rms_ece" else {}
    measure = figure.measure(read_predictions(logits=z, labels=y), **fixed)
    drawn = measure(np.stack([w, np.ones(60)]).astype(float))
    direct = figure.function(logits=z[again], labels=y[again], **fixed)
    assert drawn[0] == pytest.approx(direct, abs=1e-6 if name == "smooth_ece" else 1e-12)
    assert drawn[1] == pytest.approx(figure.function(logits=z, labels=y, **fixed), abs=1e-12)


def test_intervals_are_those_of_the_report():
    z, y = rows()
    report = evaluate(logits=z, labels=y)
    for name in ("accuracy", "nll", "brier", "ece"):
        ours, theirs = with_interval(name, logits=z, labels=y), report.metrics[name]
        assert ours.value == pytest.approx(theirs.value, abs=1e-12)
        assert ours.interval[1] == pytest.approx(theirs.interval[1], abs=1e-12)
        if name == "ece":  # two ways to the bias of few rows: drawn labels, and a bound by bin
            assert ours.interval[0] == pytest.approx(theirs.interval[0], abs=0.01)
        else:
            assert ours.interval == pytest.approx(theirs.interval, abs=1e-12)
            assert ours.method == theirs.method


def test_names_functions_and_settings():
    z, y = rows()
    call = {"logits": z, "labels": y, "bootstrap": 50}
    assert with_interval("class_ece", **call) == with_interval(class_ece, **call)
    few = with_interval(partial(class_ece, bins=3), **call)
    assert few.value == pytest.approx(class_ece(logits=z, labels=y, bins=3))
    assert few != with_interval(class_ece, **call)


def test_any_function_can_have_an_interval():
    z, y = rows(100)

    def share_of_first(*, logits, labels):
        return float((labels == 0).mean())

    found = with_interval(share_of_first, logits=z, labels=y, bootstrap=200)
    assert found.value == pytest.approx((y == 0).mean())
    assert found.interval[0] < found.value < found.interval[1]
    # the slow way draws the same rows as the fast one
    slow = with_interval(lambda **k: nll(**k), logits=z, labels=y, bootstrap=50)
    fast = with_interval("nll", logits=z, labels=y, bootstrap=50)
    assert slow.interval == pytest.approx(fast.interval)


def test_there_is_no_interval_where_none_can_be():
    infinite = with_interval("nll", probs=[[1.0, 0.0], [0.5, 0.5]], labels=[1, 0])
    assert (infinite.value, infinite.interval) == (math.inf, None)
    assert with_interval("brier", probs=[[0.5, 0.5]], labels=[0]).interval is None
    z, y = rows()
    assert with_interval("ece", logits=z, labels=y, bootstrap=0).interval is None


@pytest.mark.parametrize(
    ("metric", "error"), [("nothing", NotFound), (3, InvalidInput), (None, InvalidInput)]
)
def test_unknown_metrics_are_refused(metric, error):
    with pytest.raises(error):
        with_interval(metric, logits=[[0.0, 3.0]], labels=[0])


@pytest.mark.parametrize("draws", [{"bootstrap": 1}, {"bootstrap": -1}, {"seed": -1}])
def test_draws_are_checked(draws):
    with pytest.raises(InvalidInput):
        with_interval("ece", logits=[[0.0, 3.0]], labels=[0], **draws)


BIASED = [name for name in NAMES if FIGURES[name].interval == "centred"]


def calibrated(n, c, factor, seed):
    """Logits that are calibrated exactly, times a factor."""
    rng = np.random.default_rng(seed)
    z = rng.normal(size=(n, c)) * 2
    return z * factor, (z + rng.gumbel(size=z.shape)).argmax(axis=1)


def coverage(names, n, c, factor, trials):
    """Share of trials whose interval holds the figure of 100,000 rows."""
    z, y = calibrated(100_000, c, factor, 10**6)
    truth = {name: FIGURES[name].function(logits=z, labels=y) for name in names}
    held = dict.fromkeys(names, 0)
    for seed in range(trials):
        z, y = calibrated(n, c, factor, seed)
        for name in names:
            low, high = with_interval(name, logits=z, labels=y, bootstrap=100).interval
            held[name] += low <= truth[name] <= high
    return {name: count / trials for name, count in held.items()}


@pytest.mark.parametrize("factor", [1.0, 2.0])
def test_intervals_cover(factor):
    """Also those of figures that few rows push up, whose plain bootstrap holds the truth never."""
    names = ["nll", "aurc", "overconfidence", "sharpness", *BIASED]
    for name, share in coverage(names, 200, 4, factor, trials=15).items():
        assert share >= 0.8, name


def test_calibrated_rows_may_have_no_error():
    z, y = calibrated(500, 4, 1.0, 0)
    for name in ("ece", "class_ece", "smooth_ece", "debiased_ece", "rms_ece", "brier_reliability"):
        found = with_interval(name, logits=z, labels=y, bootstrap=100)
        assert found.interval[0] == 0.0, name
    z, y = calibrated(2000, 4, 3.0, 0)  # far too sure
    for name in ("ece", "class_ece", "smooth_ece", "debiased_ece", "rms_ece", "brier_reliability"):
        assert with_interval(name, logits=z, labels=y, bootstrap=100).interval[0] > 0, name


# ------------------------------------------------------------------ confidence
def test_confidence_figures_are_those_of_the_loops():
    z, y = rows(50, 3)
    p = softmax(z)
    top = [max(row) for row in p.tolist()]
    assert mean_confidence(logits=z, labels=y) == pytest.approx(math.fsum(top) / 50)
    gap = math.fsum(top) / 50 - accuracy(logits=z, labels=y)
    assert overconfidence(logits=z, labels=y) == pytest.approx(gap)
    spread = sum(float(np.var(column)) for column in p.T)
    assert sharpness(logits=z, labels=y) == pytest.approx(spread)


def test_sharpness_of_small_spreads_keeps_its_digits():
    p = 0.5 + np.array([1.0, -1.0]) * 1e-9
    assert sharpness(probs=p, labels=[0, 1]) == pytest.approx(2e-18, rel=1e-6)
    assert sharpness(probs=[[0.3, 0.7]] * 5, labels=[0] * 5) == 0.0


if __name__ == "__main__":
    for rows_, classes, factor_ in (
        (500, 4, 1.0),
        (500, 4, 2.0),
        (500, 4, 1.3),
        (500, 4, 0.6),
        (2000, 20, 1.0),
        (500, 20, 1.3),
    ):
        shares = coverage([*BIASED, "nll", "aurc"], rows_, classes, factor_, trials=60)
        print(rows_, classes, factor_, {name: f"{share:.0%}" for name, share in shares.items()})
