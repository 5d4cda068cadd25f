"""A temperature per row: found where it is planted, and given up where one is enough."""

import numpy as np
import pytest
from scipy.special import log_softmax

from temperance.evaluation import fit_calibrator, fit_temperature
from temperance.evaluation.persample import features
from temperance.evaluation.predictions import FLOOR


def planted(n, *, seed=0, strength=0.6):
    """Rows whose own temperature rises with the margin of their logits."""
    rng = np.random.default_rng(seed)
    z = rng.normal(size=(n, 4)) * 2
    two = np.sort(z, axis=1)[:, -2:]
    temperature = np.exp(strength * (two[:, 1] - two[:, 0] - 1.5))
    y = (z / temperature[:, None] + rng.gumbel(size=z.shape)).argmax(axis=1)
    return z, y, temperature


def nll_of(log_p, y):
    return -log_p[np.arange(len(y)), y].mean()


@pytest.mark.parametrize("factor", [1.0, 20.0])
def test_planted_temperatures_are_found(factor):
    z, y, temperature = planted(6000)
    fit = fit_calibrator("sample-temperature", logits=z * factor, labels=y)
    assert fit.status == "converged"
    assert fit.settings["gain"] > fit.settings["standard_error"]
    new_z, new_y, new_t = planted(6000, seed=1)
    best = nll_of(log_softmax(new_z / new_t[:, None], axis=1), new_y)
    plain = fit_temperature(logits=z, labels=y).temperature
    one = nll_of(log_softmax(new_z / plain, axis=1), new_y)
    ours = nll_of(fit.log_probs(new_z * factor), new_y)
    assert ours - best < 0.3 * (one - best)
    # the temperature of a row shows in the distance of its two largest log-probabilities
    top = np.sort(fit.log_probs(z * factor), axis=1)[:, -2:]
    raw = np.sort(z, axis=1)[:, -2:]
    found = np.log((raw[:, 1] - raw[:, 0]) / (top[:, 1] - top[:, 0]))
    assert np.corrcoef(found, np.log(temperature))[0, 1] > 0.9


@pytest.mark.parametrize("seed", range(4))
def test_one_temperature_is_kept_where_it_is_enough(seed):
    rng = np.random.default_rng(seed)
    z = rng.normal(size=(1000, 5)) * 2
    y = (z + rng.gumbel(size=z.shape)).argmax(axis=1)
    fit = fit_calibrator("sample-temperature", logits=z * 6, labels=y)
    assert (fit.status, fit.plain, fit.n_parameters) == ("not favoured", True, 1)
    assert "no more than one standard error" in fit.notes[0]
    assert fit.parameters["temperature"] == pytest.approx(6, rel=0.15)


def test_features_are_what_they_are_called():
    x = np.array([[0.0, -1.0, -3.0], [0.0, 0.0, 0.0], [0.0, FLOOR, -2.0], [0.0, -1e9, -1e9]])
    entropy, margin, spread = features(x).T
    p = np.exp(log_softmax(x[0]))
    assert entropy[0] == pytest.approx(-(p * np.log(p)).sum())
    assert entropy[1] == pytest.approx(np.log(3))
    two = np.exp(log_softmax([0.0, -2.0]))
    assert entropy[2] == pytest.approx(-(two * np.log(two)).sum())
    assert entropy[3] == 0
    np.testing.assert_allclose(margin, [1, 0, 2, 30])
    assert spread[0] == pytest.approx(np.log(np.std([0.0, -1.0, -3.0])))
    assert spread[1] == pytest.approx(np.log(1e-6))
    assert spread[2] == pytest.approx(np.log(1.0))
    assert np.isfinite(spread[3])


def test_rows_far_from_the_fit_rows_get_the_outermost_temperature():
    z, y, _ = planted(6000)
    fit = fit_calibrator("sample-temperature", logits=z, labels=y)
    far = np.array([[1e3, 0.0, 0.0, 0.0], [1e4, 0.0, 0.0, 0.0]])
    log_p = fit.log_probs(far)
    implied = far[:, 0] / -log_p[:, 1]
    assert implied[0] == pytest.approx(implied[1], rel=1e-6)
    assert implied[0] < 100 * fit.parameters["temperature"]
