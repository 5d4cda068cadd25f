"""Ensemble temperature scaling: the simplex by brute force, planted noise, its promises."""

import itertools

import numpy as np
import pytest
from scipy.special import log_softmax, softmax

from temperance.evaluation import fit_calibrator, fit_temperature
from temperance.evaluation.ensemble_scaling import _on_simplex


def noisy(n, share, *, seed=0, factor=1.0):
    """Labels of which a share says nothing, for logits too large by a factor."""
    rng = np.random.default_rng(seed)
    z = rng.normal(size=(n, 5)) * 4
    y = (z + rng.gumbel(size=z.shape)).argmax(axis=1)
    return z * factor, np.where(rng.random(n) < share, rng.integers(0, 5, size=n), y)


@pytest.mark.parametrize(("share", "factor"), [(0.0, 3.0), (0.1, 1.0), (0.3, 0.3)])
def test_no_point_of_the_simplex_is_better(share, factor):
    z, y = noisy(400, share, factor=factor)
    fit = fit_calibrator("ensemble-temperature", logits=z, labels=y)
    t = fit_temperature(logits=z, labels=y).temperature
    parts = [softmax(z / t, axis=1), softmax(z, axis=1), np.full(z.shape, 0.2)]
    at = np.arange(len(y))
    grid = [v for v in itertools.product(np.linspace(0, 1, 41), repeat=2) if sum(v) <= 1]
    with np.errstate(divide="ignore"):
        losses = [
            -np.log(a * parts[0] + b * parts[1] + (1 - a - b) * parts[2])[at, y].mean()
            for a, b in grid
        ]
    assert fit.nll_after <= min(losses) + 1e-9
    assert fit.nll_after > min(losses) - 5e-3
    a, b, c = fit.parameters["weights"]
    expected = np.log(a * parts[0] + b * parts[1] + c * parts[2])
    np.testing.assert_allclose(fit.log_probs(z), expected, atol=1e-9)
    assert fit.parameters["temperature"] == pytest.approx(t)


def test_label_noise_becomes_a_uniform_share():
    z, y = noisy(20_000, 0.2)
    fit = fit_calibrator("ensemble-temperature", logits=z, labels=y)
    truth = np.log(0.8 * softmax(z, axis=1) + 0.2 / 5)[np.arange(len(y)), y].mean()
    assert fit.nll_after == pytest.approx(-truth, abs=2e-3)
    assert fit.parameters["weights"][2] == pytest.approx(0.2, abs=0.05)


@pytest.mark.parametrize("seed", range(6))
def test_the_gap_bounds_the_distance_to_the_minimum(seed):
    rng = np.random.default_rng(seed)
    q = rng.dirichlet(np.ones(3) * 0.3, size=50) * 3
    q /= q.max(axis=1, keepdims=True)
    w = rng.dirichlet(np.ones(50))
    v, gap = _on_simplex(q, w)
    assert v.sum() == pytest.approx(1)
    assert v.min() >= 0
    fine = np.linspace(0, 1, 201)
    best = min(
        -w @ np.log(np.maximum(q @ [a, b, 1 - a - b], 1e-300))
        for a in fine
        for b in fine
        if a + b <= 1
    )
    assert gap <= 1e-6
    assert -w @ np.log(q @ v) <= best + gap + 1e-12


def test_it_is_never_worse_than_either_temperature():
    for seed in range(5):
        z, y = noisy(60, 0.1, seed=seed, factor=5)
        fit = fit_calibrator("ensemble-temperature", logits=z, labels=y)
        plain = fit_temperature(logits=z, labels=y)
        assert fit.nll_after <= plain.nll_after + 1e-12


def test_even_where_the_uniform_share_is_all_the_order_of_classes_stays():
    rng = np.random.default_rng(0)
    z = rng.normal(size=(500, 4)) * 6
    y = rng.integers(0, 4, size=500)
    fit = fit_calibrator("ensemble-temperature", logits=z, labels=y)
    np.testing.assert_array_equal(fit.probs(z).argmax(axis=1), z.argmax(axis=1))


def test_rows_certain_to_hundreds_of_nats():
    z, y = noisy(300, 0.1, factor=200)
    fit = fit_calibrator("ensemble-temperature", logits=z, labels=y)
    assert np.isfinite(fit.log_probs(z)).all()
    assert fit.nll_after < 1.2
    assert fit.nll_before > 30
    assert log_softmax(z, axis=1).min() < -1000
