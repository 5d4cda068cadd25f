"""The figures of an outcome: those of the public functions, finite in every corner."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from temperance.errors import InvalidInput
from temperance.evaluation import accuracy, ece, fit_temperature, nll
from temperance.study.outcome import Outcome, StudyData
from temperance.study.score import METRICS, score
from temperance.study.trial import Trial


def sample(n=300, c=4, *, scale=3.0, seed=0):
    rng = np.random.default_rng(seed)
    z = rng.normal(size=(n, c)) * 2
    y = (z + rng.gumbel(size=z.shape)).argmax(axis=1)
    return (z * scale).astype(np.float32), y


def scored(val, test, y_val, y_test, n_classes=4):
    data = StudyData("made", {}, {"val": y_val, "test": y_test}, n_classes)
    return score(Outcome(Trial("made"), "done", logits={"val": val, "test": test}), data)


def test_the_figures_are_those_of_the_public_functions():
    (val, y_val), (test, y_test) = sample(), sample(seed=1)
    metrics = scored(val, test, y_val, y_test)
    t = fit_temperature(logits=val, labels=y_val).temperature
    assert tuple(metrics) == METRICS
    assert metrics["posthoc_temperature"] == pytest.approx(t, rel=1e-9)
    assert t == pytest.approx(3.0, rel=0.2)
    for split, z, y in (("val", val, y_val), ("test", test, y_test)):
        after = z.astype(np.float64) / t
        assert metrics[f"{split}_accuracy"] == accuracy(logits=z, labels=y)
        assert metrics[f"{split}_nll"] == pytest.approx(nll(logits=z, labels=y), rel=1e-12)
        assert metrics[f"{split}_nll_posthoc"] == pytest.approx(nll(logits=after, labels=y))
    assert metrics["test_ece"] == pytest.approx(ece(logits=test, labels=y_test))
    assert metrics["test_ece_posthoc"] == pytest.approx(ece(logits=test / t, labels=y_test))
    assert metrics["test_nll_posthoc"] < metrics["test_nll"]
    assert metrics["val_nll_posthoc"] < metrics["val_nll"]


CORNERS = {
    "constant": np.zeros((40, 2)),
    "constant, like probabilities": np.full((40, 2), 0.5),
    "one class always": np.tile([9.0, -9.0], (40, 1)),
    "all right": np.where(np.arange(40)[:, None] % 2 == [0, 1], 5.0, -5.0),
    "all wrong": np.where(np.arange(40)[:, None] % 2 == [0, 1], -5.0, 5.0),
    "far apart": np.where(np.arange(40)[:, None] % 2 == [0, 1], 3e38, -3e38),
    "far and wrong": np.where(np.arange(40)[:, None] % 2 == [0, 1], -3e38, 3e38),
}


@pytest.mark.parametrize("corner", CORNERS)
def test_corners_give_finite_figures(corner):
    z, y = CORNERS[corner].astype(np.float32), np.arange(40) % 2
    metrics = scored(z, z, y, y, 2)
    assert all(np.isfinite(list(metrics.values())))
    fit = fit_temperature(logits=z.astype(np.float64) - z.max(1, keepdims=True), labels=y)
    assert metrics["posthoc_temperature"] == fit.applied
    if fit.status != "converged":
        assert metrics["posthoc_temperature"] == 1
        assert metrics["test_nll_posthoc"] == metrics["test_nll"]
        assert metrics["test_ece_posthoc"] == metrics["test_ece"]


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10_000), st.floats(0.05, 50), st.integers(2, 6))
def test_shares_are_shares_and_the_fit_is_never_worse_on_its_rows(seed, scale, c):
    z, y = sample(40, c, scale=scale, seed=seed)
    metrics = scored(z, z + 1, y, y, c)  # a constant in all logits changes nothing
    for name in ("val_accuracy", "test_accuracy", "test_ece", "test_ece_posthoc"):
        assert 0 <= metrics[name] <= 1
    assert metrics["val_nll_posthoc"] <= metrics["val_nll"] + 1e-12
    assert metrics["test_nll"] == pytest.approx(metrics["val_nll"], rel=1e-4, abs=1e-5)


def wrong_outcomes():
    z, y = sample(10)
    data = StudyData("made", {}, {"val": y, "test": y}, 4)
    holed = z.copy()
    holed[3, 1] = np.nan
    trial = Trial("made")
    yield Outcome(trial, "diverged", "the loss was nan"), data, "an outcome that is done"
    yield Outcome(trial, "done"), data, "an outcome that is done"
    yield Outcome(trial, "done", logits={"val": z}), data, "logits and labels of test"
    yield Outcome(trial, "done", logits={"val": z, "test": z[:9]}), data, "shape [10, 4]"
    yield Outcome(trial, "done", logits={"val": z, "test": z[:, :3]}), data, "shape [10, 4]"
    yield Outcome(trial, "done", logits={"val": z, "test": holed}), data, "finite logits"


@pytest.mark.parametrize(("outcome", "data", "expected"), list(wrong_outcomes()))
def test_what_cannot_be_scored_is_refused(outcome, data, expected):
    with pytest.raises(InvalidInput) as error:
        score(outcome, data)
    assert error.value.subject == "outcome"
    assert expected in error.value.expected
