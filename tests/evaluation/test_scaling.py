"""Vector scaling and class-wise temperatures against general minimizers and planted parameters."""

import numpy as np
import pytest
from scipy.optimize import approx_fprime, minimize
from scipy.special import log_softmax

from temperance.evaluation import (
    fit_calibrator,
    fit_temperature,
    matrix_scaling,
    persample,
    scaling,
)


def draw(logits, seed):
    rng = np.random.default_rng(seed)
    return (logits + rng.gumbel(size=logits.shape)).argmax(axis=1)


def mean_nll(logits, y):
    return -log_softmax(logits, axis=1)[np.arange(len(y)), y].mean()


def lowest(loss, start):
    """The least of several general runs without gradients of ours."""
    found = minimize(loss, start, method="BFGS", options={"gtol": 1e-9})
    return minimize(loss, found.x, method="Nelder-Mead", options={"xatol": 1e-7, "fatol": 1e-12})


RNG = np.random.default_rng(0)
SCALE, BIAS = np.array([0.5, 1.0, 2.0]), np.array([1.0, 0.0, -1.0])
TRUE = RNG.normal(size=(20_000, 3)) * 2
TRUE -= TRUE.mean(axis=1, keepdims=True)
LABELS = draw(SCALE * TRUE + BIAS, seed=1)
SMALL, SMALL_Y = TRUE[:150] * 7, LABELS[:150]


# ------------------------------------------------------------------ gradients
@pytest.mark.parametrize(
    ("module", "method", "options"),
    [
        (scaling, "vector", {"prior": 2.0}),
        (scaling, "class-temperature", {"spread": 0.3}),
        (matrix_scaling, "matrix", {"off_diagonal": 0.3, "bias": 0.2}),
        (matrix_scaling, "dirichlet", {"off_diagonal": 0.3, "bias": 0.2}),
        (persample, "sample-temperature", {"ridge": 2.0}),
    ],
)
def test_gradients_are_those_of_the_loss(module, method, options, monkeypatch):
    seen = []
    true = module.descend

    def spy(loss, start, bounds, **how):
        seen.append((loss, start))
        return true(loss, start, bounds, **how)

    monkeypatch.setattr(module, "descend", spy)
    fit_calibrator(method, logits=SMALL, labels=SMALL_Y, options=options)
    loss, start = seen[-1]
    for seed in range(3):
        x = start + np.random.default_rng(seed).normal(size=start.shape) * 0.3
        numeric = approx_fprime(x, lambda v: loss(v)[0], 1e-7)
        np.testing.assert_allclose(loss(x)[1], numeric, atol=3e-6)


# ------------------------------------------------------------------ vector scaling
@pytest.mark.parametrize("prior", [0.0, 1.0, 30.0])
def test_vector_scaling_is_the_minimum_of_its_stated_loss(prior):
    fit = fit_calibrator("vector", logits=SMALL, labels=SMALL_Y, options={"prior": prior})
    t = fit_temperature(logits=SMALL, labels=SMALL_Y).temperature
    z, n = SMALL - SMALL.mean(axis=1, keepdims=True), len(SMALL)

    def loss(theta):
        away = np.sum((theta[:3] - 1) ** 2) + np.sum(theta[3:] ** 2)
        return mean_nll(theta[:3] * z / t + theta[3:], SMALL_Y) + prior / 2 * away / n

    found = lowest(loss, np.array([1.0, 1, 1, 0, 0, 0]))
    ours = np.concatenate([np.array(fit.parameters["scale"]) * t, fit.parameters["bias"]])
    assert loss(ours) <= found.fun + 1e-10
    expected = log_softmax(found.x[:3] * z / t + found.x[3:], axis=1)
    np.testing.assert_allclose(fit.log_probs(SMALL), expected, atol=2e-3)


def test_vector_scaling_finds_planted_parameters():
    fit = fit_calibrator("vector", logits=TRUE, labels=LABELS)
    np.testing.assert_allclose(fit.parameters["scale"], SCALE, atol=0.06)
    bias = np.array(fit.parameters["bias"])
    np.testing.assert_allclose(bias - bias.mean(), BIAS, atol=0.06)
    assert fit.n_parameters == 6


def test_a_strong_prior_leaves_one_temperature():
    fit = fit_calibrator("vector", logits=TRUE, labels=LABELS, options={"prior": 1e12})
    plain = fit_temperature(logits=TRUE, labels=LABELS)
    np.testing.assert_allclose(fit.probs(TRUE), plain.probs(TRUE), atol=1e-6)


def test_without_a_prior_separable_rows_end_at_a_bound():
    z = np.array([[3.0, 0, 0], [0, 3, 0], [0, 0, 1], [0, 1, 0], [1, 0, 0], [0, 1.2, 1]])
    y = np.array([0, 1, 2, 1, 0, 2])
    fit = fit_calibrator("vector", logits=z, labels=y, options={"prior": 0})
    assert fit.status in ("at a bound", "converged")
    assert np.abs(fit.parameters["bias"]).max() <= 100
    assert fit.nll_after < 1e-3
    pulled = fit_calibrator("vector", logits=z, labels=y)
    assert pulled.status == "converged"
    assert np.abs(pulled.parameters["bias"]).max() < 3


def test_a_class_whose_logits_point_the_wrong_way_is_named():
    z = TRUE * np.array([1.0, 1.0, -1.0])
    fit = fit_calibrator("vector", logits=z[:2000], labels=LABELS[:2000])
    assert fit.parameters["scale"][2] < 0
    assert any(note.startswith("class 2 has a negative scale") for note in fit.notes)


# ------------------------------------------------------------------ class-wise temperatures
def test_class_temperatures_are_planted_ones():
    z = RNG.normal(size=(20_000, 3)) * 3
    temperatures = np.array([1.0, 2.0, 4.0])
    y = draw(z / temperatures[z.argmax(axis=1)][:, None], seed=4)
    fit = fit_calibrator("class-temperature", logits=z, labels=y)
    np.testing.assert_allclose(fit.parameters["temperature"], temperatures, rtol=0.06)
    assert fit.status == "converged"
    assert fit.settings["gain"] > fit.settings["standard_error"]


def test_without_shrinkage_each_class_has_the_temperature_of_its_rows():
    z, y = TRUE[:3000] * 3, LABELS[:3000]
    fit = fit_calibrator("class-temperature", logits=z, labels=y, options={"spread": 1e6})
    for k in range(3):
        own = z.argmax(axis=1) == k
        alone = fit_temperature(logits=z[own], labels=y[own]).temperature
        assert fit.parameters["temperature"][k] == pytest.approx(alone, rel=1e-4)


@pytest.mark.parametrize("spread", [0.0, 0.1, 1.0])
def test_class_temperatures_are_the_minimum_of_their_stated_loss(spread):
    fit = fit_calibrator(
        "class-temperature", logits=SMALL, labels=SMALL_Y, options={"spread": spread}
    )
    t = fit_temperature(logits=SMALL, labels=SMALL_Y).temperature
    if spread == 0:
        np.testing.assert_allclose(fit.parameters["temperature"], t, rtol=1e-6)
        return

    def loss(r):
        scaled = SMALL / t * r[SMALL.argmax(axis=1)][:, None]
        return mean_nll(scaled, SMALL_Y) + np.sum((r - 1) ** 2) / (2 * spread**2 * len(SMALL))

    found = lowest(loss, np.ones(3))
    np.testing.assert_allclose(t / np.array(fit.parameters["temperature"]), found.x, atol=1e-4)


def test_rows_of_one_temperature_get_one():
    z = RNG.normal(size=(3000, 5)) * 2
    fit = fit_calibrator("class-temperature", logits=z * 4, labels=draw(z, seed=5))
    assert fit.status == "not favoured"
    assert fit.plain
    assert fit.parameters["temperature"] == pytest.approx(4, rel=0.1)
    assert fit.n_parameters == 1
