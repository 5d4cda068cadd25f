"""Matrix and Dirichlet scaling: stated losses, scikit-learn's regression, confusion."""

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.special import log_softmax
from sklearn.linear_model import LogisticRegression

from temperance.evaluation import fit_calibrator, fit_temperature

RNG = np.random.default_rng(0)
INPUTS = {
    "matrix": lambda z: z - z.mean(axis=1, keepdims=True),
    "dirichlet": lambda z: log_softmax(z, axis=1),
}


def draw(logits, seed):
    rng = np.random.default_rng(seed)
    return (logits + rng.gumbel(size=logits.shape)).argmax(axis=1)


def confused(n, seed=0):
    """Logits in which class 0 leaks into class 1."""
    rng = np.random.default_rng(seed)
    z = rng.normal(size=(n, 3)) * 2
    mixing = np.array([[1.0, 0, 0], [0.8, 1, 0], [0, 0, 1]])
    return z, draw(INPUTS["matrix"](z) @ mixing.T + [0.0, 0.5, 0.0], seed=seed + 1)


Z, Y = confused(4000)


@pytest.mark.parametrize("method", ["matrix", "dirichlet"])
@pytest.mark.parametrize(("lam", "mu"), [(0.5, 0.1), (1e-3, 10.0)])
def test_it_is_the_minimum_of_its_stated_loss(method, lam, mu):
    z, y = Z[:200] * 3, Y[:200]
    options = {"off_diagonal": lam, "bias": mu}
    fit = fit_calibrator(method, logits=z, labels=y, options=options)
    t = fit_temperature(logits=z, labels=y).temperature
    x = INPUTS[method](z / t)

    def loss(theta):
        w, b = theta[:9].reshape(3, 3), theta[9:]
        log_p = log_softmax(x @ w.T + b, axis=1)
        off = w[~np.eye(3, dtype=bool)]
        return -log_p[np.arange(200), y].mean() + lam * np.mean(off**2) + mu * np.mean(b**2)

    found = minimize(loss, np.append(np.eye(3).ravel(), [0, 0, 0]), options={"gtol": 1e-7})
    ours = np.append(np.array(fit.parameters["matrix"]).ravel(), fit.parameters["bias"])
    assert loss(ours) <= found.fun + 1e-10
    np.testing.assert_allclose(ours, found.x, atol=2e-3)
    assert fit.status == "converged"
    assert fit.settings["off_diagonal"] == lam


@pytest.mark.parametrize("method", ["matrix", "dirichlet"])
def test_without_penalties_it_is_logistic_regression(method):
    fit = fit_calibrator(method, logits=Z, labels=Y, options={"off_diagonal": 0, "bias": 0})
    x = INPUTS[method](Z / fit.parameters["temperature"])
    peer = LogisticRegression(C=1e12, tol=1e-10, max_iter=5000).fit(x, Y)
    np.testing.assert_allclose(fit.probs(Z), peer.predict_proba(x), atol=1e-4)


def test_it_finds_the_planted_confusion_and_is_favoured():
    fit = fit_calibrator("matrix", logits=Z, labels=Y)
    assert fit.status == "converged"
    assert fit.settings["gain"] > 5 * fit.settings["standard_error"]
    assert len(fit.settings["held_out_nll"]) == 11
    w = np.array(fit.parameters["matrix"]) / fit.parameters["temperature"]
    # the softmax and the row mean leave columns and rows free up to constants
    contrast = w[1, 0] - w[2, 0] - w[1, 2] + w[2, 2]
    assert contrast == pytest.approx(0.8 - 0.0 - 0.0 + 1.0, abs=0.15)
    z, y = confused(4000, seed=9)
    held_out = -fit.log_probs(z)[np.arange(len(y)), y].mean()
    plain = fit_calibrator("temperature", logits=Z, labels=Y)
    assert held_out < -plain.log_probs(z)[np.arange(len(y)), y].mean() - 0.05


@pytest.mark.parametrize("method", ["matrix", "dirichlet"])
def test_it_is_given_up_where_held_out_rows_do_not_favour_it(method):
    z = RNG.normal(size=(400, 8)) * 2
    fit = fit_calibrator(method, logits=z * 3, labels=draw(z, seed=3))
    assert fit.status == "not favoured"
    assert fit.parameters == {"temperature": pytest.approx(3, rel=0.2)}
    assert "standard error" in fit.notes[0]


def test_the_strengths_that_are_given_are_kept():
    one = fit_calibrator("matrix", logits=Z, labels=Y, options={"off_diagonal": 0.1})
    other = fit_calibrator("matrix", logits=Z, labels=Y, options={"bias": 0.1})
    assert one.settings["off_diagonal"] == 0.1
    assert len(one.settings["held_out_nll"]) == 3
    assert other.settings["bias"] == 0.1
    assert len(other.settings["held_out_nll"]) == 6


def test_a_strong_pull_leaves_no_bias_and_nothing_off_the_diagonal():
    fit = fit_calibrator("matrix", logits=Z, labels=Y, options={"off_diagonal": 1e7, "bias": 1e7})
    w = np.array(fit.parameters["matrix"])
    assert np.abs(w - np.diag(np.diag(w))).max() < 1e-5
    assert np.abs(fit.parameters["bias"]).max() < 1e-5
    assert np.diag(w).min() > 0.1
