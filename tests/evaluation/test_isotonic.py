"""Isotonic calibrators against a naive pool-adjacent-violators and the formula of the paper."""

import numpy as np
import pytest
from scipy.special import softmax

from temperance.evaluation import fit_calibrator, fit_temperature


def naive_steps(x, y):
    """Least-squares rising fit by merging neighbours, value for each x; equal x share one."""
    places = np.unique(x)
    blocks = [[y[x == p].sum(), (x == p).sum(), [p]] for p in places]
    k = 0
    while k < len(blocks) - 1:
        if blocks[k][0] / blocks[k][1] >= blocks[k + 1][0] / blocks[k + 1][1]:
            left = blocks[k]
            blocks[k : k + 2] = [[a + b for a, b in zip(left, blocks[k + 1], strict=True)]]
            k = max(k - 1, 0)
        else:
            k += 1
    value = {p: s / n for s, n, members in blocks for p in members}
    return np.array([value[v] for v in x])


def bent(n, seed=0, c=3):
    """Labels that follow a bend of the probabilities that no temperature makes."""
    rng = np.random.default_rng(seed)
    z = rng.normal(size=(n, c)) * 3
    p = softmax(z, axis=1) + 0.5 * (softmax(z, axis=1) > 0.5)
    p /= p.sum(axis=1, keepdims=True)
    return z, (np.log(p) + rng.gumbel(size=z.shape)).argmax(axis=1)


Z, Y = bent(150)
P = softmax(Z / fit_temperature(logits=Z, labels=Y).temperature, axis=1)
HIT = np.arange(3) == Y[:, None]


def test_one_against_rest_is_naive_pooling():
    shrink = 0.05
    fit = fit_calibrator("isotonic", logits=Z, labels=Y, options={"shrink": shrink})
    g = np.stack([naive_steps(P[:, k], HIT[:, k]) for k in range(3)], axis=1)
    total = g.sum(axis=1, keepdims=True)
    expected = (1 - shrink) * np.where(total > 0, g / np.maximum(total, 1e-9), P) + shrink * P
    np.testing.assert_allclose(fit.probs(Z), expected, atol=1e-9)


def test_the_joint_one_is_the_formula_of_the_paper():
    shrink = 0.05
    fit = fit_calibrator("isotonic-joint", logits=Z, labels=Y, options={"shrink": shrink})
    g = naive_steps(P.ravel(), HIT.ravel()).reshape(P.shape)
    expected = (1 - shrink) * g / g.sum(axis=1, keepdims=True) + shrink * P
    np.testing.assert_allclose(fit.probs(Z), expected, atol=1e-9)


@pytest.mark.parametrize("method", ["isotonic", "isotonic-joint"])
def test_a_bend_is_found_and_holds_on_new_rows(method):
    z, y = bent(6000, seed=1)
    new_z, new_y = bent(6000, seed=2)
    fit = fit_calibrator(method, logits=z, labels=y)
    plain = fit_temperature(logits=z, labels=y)
    at = np.arange(len(new_y))
    ours, theirs = fit.log_probs(new_z)[at, new_y], np.log(plain.probs(new_z)[at, new_y])
    assert fit.status == "converged"
    assert fit.settings["gain"] > fit.settings["standard_error"]
    assert ours.mean() > theirs.mean() + 0.003


@pytest.mark.parametrize("method", ["isotonic", "isotonic-joint"])
def test_no_row_gets_an_infinite_nll(method):
    fit = fit_calibrator(method, logits=Z, labels=Y, options={"shrink": 0.01})
    wild = np.random.default_rng(0).normal(size=(200, 3)) * 50
    assert np.isfinite(fit.log_probs(wild)).all()


@pytest.mark.parametrize("method", ["isotonic", "isotonic-joint"])
def test_all_of_the_plain_temperature_is_the_plain_temperature(method):
    fit = fit_calibrator(method, logits=Z, labels=Y, options={"shrink": 1})
    np.testing.assert_allclose(fit.probs(Z), P, atol=1e-12)


@pytest.mark.parametrize("method", ["isotonic", "isotonic-joint"])
def test_calibrated_rows_are_left_to_one_temperature(method):
    kept = 0
    for seed in range(8):  # one standard error is passed by chance in one of six
        rng = np.random.default_rng(seed)
        z = rng.normal(size=(500, 4)) * 2
        y = (z + rng.gumbel(size=z.shape)).argmax(axis=1)
        fit = fit_calibrator(method, logits=z * 30, labels=y)
        assert fit.plain == (fit.status == "not favoured")
        kept += fit.plain
    assert kept >= 6


@pytest.mark.parametrize("method", ["isotonic", "isotonic-joint"])
def test_saturated_logits_keep_their_order(method):
    z, y = bent(2000, seed=4)
    options = {"shrink": 0.05}
    a = fit_calibrator(method, logits=z, labels=y, options=options).probs(z)
    b = fit_calibrator(method, logits=z * 500, labels=y, options=options).probs(z * 500)
    np.testing.assert_allclose(b, a, atol=1e-6)


def test_the_joint_one_keeps_the_order_of_all_classes():
    z, y = bent(500, seed=5, c=6)
    fit = fit_calibrator("isotonic-joint", logits=z, labels=y, options={"shrink": 0.01})
    np.testing.assert_array_equal(fit.probs(z).argsort(axis=1), z.argsort(axis=1))
