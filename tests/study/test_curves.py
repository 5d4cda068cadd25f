"""Best T and values between the tried ones, against loops and on curves with a known peak."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from temperance.errors import InvalidInput, NotFound
from temperance.records import Task
from temperance.study.curves import best_temperature, metric_curve, value_at
from temperance.study.runs import Curve, curves_of_rows, example_rows
from temperance.study.trial import Trial

GRID = np.array([0.5, 1.0, 2.0, 4.0, 8.0])


def make(values, *, metric="val_nll", grid=GRID, outcomes=None, classes=10):
    """A curve of one metric; values ``[k]`` or ``[k, s]``."""
    table = np.asarray(values, float).reshape(len(grid), -1)
    status = np.full(table.shape, "done", dtype="<U8")
    for place, outcome in (outcomes or {}).items():
        status[place] = outcome
    table = np.where(status == "done", table, np.nan)
    setting = Trial("digits").setting
    seeds = tuple(range(table.shape[1]))
    return Curve("digits", setting, Task(64, classes), grid, seeds, {metric: table}, status)


def bowl(peak, grid=GRID, lift=0.3):
    return lift + 0.1 * np.log(grid / peak) ** 2


# ------------------------------------------------------------------ means
def test_the_mean_is_over_the_seeds_that_count():
    values = np.arange(15.0).reshape(5, 3)
    curve = make(values, outcomes={(4, 1): "missing", (0, 2): "missing", (1, 2): "missing"})
    curve.outcomes[2, 2] = "failed"  # seed 2 has results at 2 of 5: it does not count
    curve.metrics["val_nll"][2, 2] = np.nan
    means = metric_curve(curve, "val_nll")
    np.testing.assert_allclose(np.exp(means.log_temperatures), GRID[:4])
    np.testing.assert_allclose(means.values, values[:4, :2].mean(axis=1))
    assert means.n_seeds == 2


def test_a_diverged_run_counts_as_chance_and_is_never_best():
    curve = make(np.full((5, 2), 9.0), outcomes={(2, 0): "diverged"}, classes=10)
    means = metric_curve(curve, "val_nll")
    assert means.values[2] == pytest.approx((9.0 + math.log(10)) / 2)
    assert means.diverged.tolist() == [0, 0, 0.5, 0, 0]
    assert best_temperature(curve, "val_nll").grid_temperature != 2.0
    accuracy = make(
        np.full((5, 2), 0.05), metric="val_accuracy", outcomes={(2, 0): "diverged"}, classes=10
    )
    assert metric_curve(accuracy, "val_accuracy").values[2] == pytest.approx((0.05 + 0.1) / 2)
    everywhere = {(i, 0): "diverged" for i in range(5)}
    with pytest.raises(InvalidInput):
        best_temperature(make(np.zeros(5), outcomes=everywhere), "val_nll")


def test_bad_metrics():
    curve = make(bowl(2.0))
    for name in ("nll", "val_ece", "train_nll", "val_brier"):
        with pytest.raises(NotFound) as caught:
            metric_curve(curve, name)
        assert "val_nll" in caught.value.candidates
    with pytest.raises(NotFound) as caught:
        metric_curve(curve, "test_nll")
    assert caught.value.candidates == ("val_nll",)
    few = make(np.ones((3, 1)), grid=np.array([1.0, 2.0, 3.0]), outcomes={(0, 0): "missing"})
    with pytest.raises(InvalidInput) as refused:
        metric_curve(few, "val_nll")
    assert refused.value.found == "2"


# ------------------------------------------------------------------ best
@given(st.floats(0.75, 5.5), st.floats(-1, 1))
def test_the_peak_of_a_parabola_is_found_exactly(peak, lift):
    found = best_temperature(make(bowl(peak, lift=lift)), "val_nll")
    assert found.temperature == pytest.approx(peak, rel=1e-6)
    assert found.value == pytest.approx(lift, abs=1e-9)
    assert found.at_edge == ""
    nearest = GRID[np.abs(np.log(GRID / peak)).argmin()]
    assert found.grid_temperature == nearest  # as it was tried, to the last bit
    upside_down = best_temperature(make(-bowl(peak), metric="val_accuracy"), "val_accuracy")
    assert upside_down.temperature == pytest.approx(peak, rel=1e-6)
    assert upside_down.value == pytest.approx(-0.3)


@given(st.lists(st.integers(0, 9), min_size=5, max_size=5))
def test_the_best_of_the_grid_is_the_loop(tenths):
    values = [v / 10 + (1e-16 if at % 2 else 0.0) for at, v in enumerate(tenths)]
    found = best_temperature(make(values), "val_nll")
    assert found.grid_value == pytest.approx(min(values))
    low, high = found.plateau
    tied = [t for t, v in zip(GRID, tenths, strict=True) if v == min(tenths)]
    assert (low, high) == pytest.approx((tied[0], tied[-1]))
    ends = (tied[0] == GRID[0], tied[-1] == GRID[-1])
    assert found.at_edge == {
        (False, False): "", (True, False): "lower", (False, True): "upper", (True, True): "both",
    }[ends]  # fmt: skip
    assert any(found.grid_temperature == pytest.approx(t) for t in tied)
    assert found.value <= found.grid_value + 1e-12
    if not found.at_edge:
        at = int(np.abs(GRID - found.grid_temperature).argmin())
        assert GRID[at - 1] <= found.temperature <= GRID[at + 1]


@pytest.mark.parametrize(("peak", "edge", "best"), [(0.1, "lower", 0.5), (50.0, "upper", 8.0)])
def test_a_best_t_at_the_edge_is_censored(peak, edge, best):
    found = best_temperature(make(bowl(peak)), "val_nll")
    assert found.at_edge == edge
    assert found.temperature == found.grid_temperature == pytest.approx(best)


def test_equal_values_give_the_middle():
    found = best_temperature(make([3, 1, 1, 1, 2]), "val_nll")
    assert found.temperature == pytest.approx(2.0)
    assert found.plateau == pytest.approx((1.0, 4.0))
    flat = best_temperature(make(np.ones(5)), "val_nll")
    assert (flat.temperature, flat.at_edge) == (pytest.approx(2.0), "both")


def test_equal_values_that_reach_an_edge_are_censored():
    found = best_temperature(make([1, 1, 1, 1, 2]), "val_nll")
    assert found.at_edge == "lower"  # lower ones may be as good, too
    assert found.temperature == pytest.approx(1.0)


def test_means_of_the_same_shares_in_another_order_are_equal():
    shares = np.array(
        [[0.1, 0.2, 0.3], [0.9, 0.7, 0.8], [0.7, 0.8, 0.9], [0.8, 0.9, 0.7], [0, 0, 0]]
    )
    means = shares.mean(axis=1)
    assert len(set(means[1:4])) > 1  # rounding would decide
    found = best_temperature(make(shares, metric="val_accuracy"), "val_accuracy")
    assert found.plateau == pytest.approx((1.0, 4.0))
    assert found.grid_temperature == pytest.approx(2.0)


def test_no_parabola_beside_a_diverged_run():
    curve = make([0.1, 0.2, 0.3, 0.4, 0.5], outcomes={(0, 0): "diverged"})
    found = best_temperature(curve, "val_nll")
    assert found.temperature == found.grid_temperature == pytest.approx(1.0)
    assert found.at_edge == ""


# ------------------------------------------------------------------ between
def test_values_between_are_linear_in_log_t_and_clamped_outside():
    means = metric_curve(make([1.0, 2.0, 4.0, 3.0, 5.0]), "val_nll")
    values, outside = value_at(means, [0.1, 0.5, math.sqrt(2), 8.0, 8.0000001, 100.0])
    np.testing.assert_allclose(values, [1.0, 1.0, 3.0, 5.0, 5.0, 5.0])
    assert outside.tolist() == ["below", "", "", "", "above", "above"]
    at_grid, flags = value_at(means, GRID)
    np.testing.assert_allclose(at_grid, means.values)
    assert set(flags.tolist()) == {""}


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf, [1.0, 0.0]])
def test_temperatures_that_cannot_be(bad):
    with pytest.raises(InvalidInput):
        value_at(metric_curve(make(bowl(2.0)), "val_nll"), bad)


def test_a_neighbour_that_all_but_diverged_does_not_pull_the_value_below_everything():
    rows, tasks = example_rows((0.25, 0.5, 1.0, 2.0))
    for row, value in zip(rows, (1e10, 0.2, 0.3, 0.5), strict=True):
        row["metrics"]["val_nll"] = value
    (curve,) = curves_of_rows(rows, tasks)
    found = best_temperature(curve, "val_nll")
    assert (found.temperature, found.value) == (0.5, 0.2)
