"""The steps that all fits share: the softmax, the descent, the folds, the choice."""

import numpy as np
import pytest
from scipy.special import log_softmax as scipy_log_softmax

from temperance.evaluation.calibration_method import choose
from temperance.evaluation.fit_rows import (
    centred,
    descend,
    fold_of_rows,
    held_out_nll,
    log_softmax,
    read_fit_rows,
)
from temperance.evaluation.predictions import FLOOR


def test_log_softmax_is_exact_next_to_one():
    u = np.random.default_rng(0).normal(size=(50, 6)) * 10
    np.testing.assert_allclose(log_softmax(u), scipy_log_softmax(u, axis=1), rtol=1e-12, atol=1e-15)
    assert log_softmax(np.array([[0.0, -60.0]]))[0, 0] == pytest.approx(-np.exp(-60), rel=1e-12)


def test_centring_leaves_masks_out():
    d = np.array([[0.0, -2.0, FLOOR], [0.0, -3.0, -3.0]])
    np.testing.assert_allclose(centred(d), [[1.0, -1.0, FLOOR], [2.0, -1.0, -1.0]])


def bowl(x):
    return float(x @ x) / 2, x


@pytest.mark.parametrize(
    ("low", "end", "status"), [(-9.0, 0.0, "converged"), (1.0, 1.0, "at a bound")]
)
def test_the_descent_says_where_it_ended(low, end, status):
    found = descend(bowl, np.full(3, 4.0), (np.full(3, low), np.full(3, 9.0)))
    np.testing.assert_allclose(found.x, end, atol=1e-6)
    assert found.status == status


def test_a_descent_that_finds_nothing_lower_stays():
    found = descend(lambda x: (-bowl(x)[0], x), np.ones(2), (np.full(2, -5.0), np.full(2, 5.0)))
    assert found.status == "not converged"  # the gradient is a lie
    np.testing.assert_array_equal(found.x, np.ones(2))


def test_a_descent_that_is_cut_short_says_so():
    found = descend(
        lambda x: (float(np.sum(np.abs(x) ** 1.0)), np.sign(x) + (x == 0)),
        np.array([3.3]),
        (np.array([-10.0]), np.array([10.0])),
    )
    assert found.status == "not converged"
    assert abs(found.x[0]) <= 3.3


def test_folds_spread_every_class():
    ids = np.repeat([0, 1, 2], [50, 11, 5])
    fold = fold_of_rows(ids, folds=5, seed=0)
    for k in range(3):
        counts = np.bincount(fold[ids == k], minlength=5)
        assert counts.max() - counts.min() <= 1
    assert not np.array_equal(fold, fold_of_rows(ids, folds=5, seed=1))
    np.testing.assert_array_equal(fold, fold_of_rows(ids, folds=5, seed=0))


def rows(n=200, factor=5.0):
    rng = np.random.default_rng(0)
    z = rng.normal(size=(n, 3)) * 2
    y = (z + rng.gumbel(size=z.shape)).argmax(axis=1)
    return read_fit_rows(logits=z * factor, labels=y, ignore=(), weights=None)


def test_held_out_rows_are_not_fitted_on():
    data = rows()
    seen = []

    def path(train):
        seen.append(len(train.rows))
        known = {row.tobytes() for row in train.rows.scores}
        held_out = [row.tobytes() not in known for row in data.rows.scores]
        assert sum(held_out) == 40
        return [lambda d: log_softmax(d / train.temperature)]

    nll = held_out_nll(data, path, folds=5, seed=0)
    assert seen == [160] * 5
    np.testing.assert_allclose(nll[0], nll[1], rtol=1e-12)
    assert nll.shape == (2, 200)


@pytest.mark.parametrize(("shift", "best"), [(0.0, None), (0.05, None), (1.5, 1)])
def test_a_candidate_must_gain_more_than_one_standard_error(shift, best):
    """Candidates add a number to class 2, which is more frequent than its logits say."""
    rng = np.random.default_rng(1)
    z = rng.normal(size=(300, 3))
    y = (z + np.array([0, 0, shift]) + rng.gumbel(size=z.shape)).argmax(axis=1)
    data = read_fit_rows(logits=z, labels=y, ignore=(), weights=None)

    def path(train):
        return [
            lambda d, by=by: log_softmax(d / train.temperature + np.array([0, 0, by]))
            for by in (-1.0, 1.0)
        ]

    found = choose(data, path, {"folds": 5, "seed": 0}, ["down", "up"])
    assert found.best == best
    assert (found.settings["gain"] > found.settings["standard_error"]) == (best is not None)
    losses = found.settings["held_out_nll"]
    assert list(losses) == ["temperature", "down", "up"]
    assert found.settings["gain"] == pytest.approx(
        losses["temperature"] - min(losses["down"], losses["up"])
    )
    assert bool(found.why) == (best is None)


def test_too_few_rows_choose_nothing():
    found = choose(rows(9), lambda train: [], {"folds": 5, "seed": 0}, [])
    assert found.best is None
    assert "too few" in found.why
