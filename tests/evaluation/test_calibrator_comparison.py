"""The comparison table: out-of-fold figures, paired intervals, and words that can be trusted."""

import numpy as np
import pytest

from temperance.errors import InvalidInput, NotFound
from temperance.evaluation import CALIBRATORS, compare_calibrators, fit_calibrator, nll
from temperance.evaluation.fit_rows import fold_of_rows

RNG = np.random.default_rng(0)


def draw(logits, seed=0):
    rng = np.random.default_rng(seed)
    return (logits + rng.gumbel(size=logits.shape)).argmax(axis=1)


CALM = RNG.normal(size=(600, 3)) * 2
CALM_Y = draw(CALM)
SKEWED = RNG.normal(size=(1500, 3)) * 2
SKEWED_Y = draw(SKEWED * [0.5, 1.0, 2.0] + [1.5, 0.0, -1.5])
FAST = ["vector", "class-temperature", "ensemble-temperature"]


def by_name(rows):
    return {row.method: row for row in rows}


def test_every_method_has_a_row_and_none_beats_one_temperature_where_that_is_the_truth():
    rows = by_name(compare_calibrators(logits=CALM * 10, labels=CALM_Y))
    assert list(rows) == ["none", *CALIBRATORS]
    for name, row in rows.items():
        assert set(row.metrics) == {"nll", "ece", "brier", "accuracy"}
        assert all(e.interval[0] <= e.value <= e.interval[1] for e in row.metrics.values())
        assert "out of fold" in row.metrics["nll"].method
        if name == "temperature":
            assert (row.change, row.verdict) == ({}, {})
        else:
            assert "better" not in row.verdict.values()
        assert sum(row.statuses.values()) == (0 if name == "none" else 5)
    assert rows["none"].verdict["nll"] == "worse"
    assert rows["none"].verdict["ece"] == "worse"
    assert rows["none"].verdict["accuracy"] == "no difference shown"


def test_a_method_that_is_needed_is_named_better():
    rows = by_name(compare_calibrators(logits=SKEWED, labels=SKEWED_Y, methods=FAST))
    assert rows["vector"].verdict["nll"] == "better"
    assert rows["vector"].verdict["brier"] == "better"
    assert rows["vector"].verdict["accuracy"] == "better"
    low, high = rows["vector"].change["nll"].interval
    assert low <= rows["vector"].change["nll"].value <= high < 0
    assert rows["class-temperature"].change["accuracy"].value == 0
    assert rows["vector"].statuses == {"converged": 5}


def test_figures_are_out_of_fold():
    (_, base, ours) = compare_calibrators(
        logits=SKEWED, labels=SKEWED_Y, methods=["vector"], folds=3, seed=4
    )
    fold = fold_of_rows(SKEWED_Y, folds=3, seed=4)
    total = 0.0
    for f in range(3):
        fit = fit_calibrator("vector", logits=SKEWED[fold != f], labels=SKEWED_Y[fold != f])
        held = fold == f
        total += nll(logits=fit.log_probs(SKEWED[held]), labels=SKEWED_Y[held]) * held.sum()
    assert ours.metrics["nll"].value == pytest.approx(total / 1500, rel=1e-6)
    difference = ours.metrics["nll"].value - base.metrics["nll"].value
    assert ours.change["nll"].value == pytest.approx(difference, rel=1e-9)


def test_it_is_the_same_twice_and_touches_no_global_state(rng_guard):
    def table():
        rows = compare_calibrators(logits=CALM, labels=CALM_Y, methods=FAST)
        return [(r.method, r.metrics, r.change, r.verdict, r.statuses) for r in rows]

    with rng_guard():
        assert table() == table()


def test_methods_that_take_no_masks_are_left_out_of_the_whole_table():
    z = CALM.copy()
    z[3, (CALM_Y[3] + 1) % 3] = -np.inf
    names = [row.method for row in compare_calibrators(logits=z[:200], labels=CALM_Y[:200])]
    assert "vector" in names
    assert "matrix" not in names
    with pytest.raises(InvalidInput):
        compare_calibrators(logits=z, labels=CALM_Y, methods=["matrix"])


def test_names_may_be_one_or_twice_the_same():
    rows = compare_calibrators(logits=CALM, labels=CALM_Y, methods="vector")
    assert [row.method for row in rows] == ["none", "temperature", "vector"]
    rows = compare_calibrators(
        logits=CALM, labels=CALM_Y, methods=["none", "temperature", "vector", "vector"]
    )
    assert [row.method for row in rows] == ["none", "temperature", "vector"]


@pytest.mark.parametrize("folds", [1, 601, 2.5, True, "5"])
def test_folds_that_cannot_be_are_refused(folds):
    with pytest.raises(InvalidInput):
        compare_calibrators(logits=CALM, labels=CALM_Y, methods=[], folds=folds)


def test_an_unknown_method_is_refused():
    with pytest.raises(NotFound):
        compare_calibrators(logits=CALM, labels=CALM_Y, methods=["platt"])


def test_rows_without_an_answer_still_give_a_table():
    z = CALM[:20]
    for y in (z.argmax(axis=1), z.argmin(axis=1)):
        rows = compare_calibrators(logits=z, labels=y, folds=2)
        assert all(r.verdict.get("nll", "").startswith(("no", "")) for r in rows)
        assert all(np.isfinite(r.metrics["nll"].value) for r in rows)
