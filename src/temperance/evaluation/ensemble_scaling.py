"""Ensemble temperature scaling: a mixture of the plain temperature, T = 1 and no opinion at all."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from temperance.evaluation.calibration_method import Arrays, CalibrationMethod, Found
from temperance.evaluation.fit_rows import FitRows, log_softmax
from temperance.evaluation.predictions import FLOOR

__all__ = ["ENSEMBLE_TEMPERATURE"]

Array = NDArray[np.float64]
_GAP = 1e-9  # nats by which the NLL of the weights may lie above the least; certified, see below
_KEPT = 1e-6  # least weight of the plain temperature, so that the order of the classes is kept
_ROUNDS = 20_000  # of the multiplicative updates; each is one product of n x 3 numbers


def fit_ensemble_temperature(data: FitRows, options: Mapping[str, Any]) -> Found:  # noqa: ARG001
    """Weights of least NLL on the simplex, at the plain temperature."""
    t = data.temperature
    parts = []
    for part, d, _ in data.rows.shifted():
        at, ids = np.arange(len(d)), data.rows.ids[part]
        parts.append(np.stack([q[at, ids] for q in _components(t, d)], axis=1))
    log_q = np.concatenate(parts)
    q = np.exp(log_q - log_q.max(axis=1, keepdims=True))  # relative to the row's best of the three
    weights, gap = _on_simplex(q, data.w)
    weights = (1 - _KEPT) * weights + _KEPT * np.eye(3)[0]
    status = "converged" if gap <= 1e3 * _GAP else "not converged"
    arrays = {"temperature": np.asarray(t), "weights": weights}
    return Found(arrays, 3, status, {"gap": gap})  # T and two of the weights are free


def _components(t: float, d: Array) -> tuple[Array, Array, Array]:
    """Log-probabilities at T, at 1, and uniform over the possible classes."""
    possible = (d > FLOOR).sum(axis=1, keepdims=True)
    return log_softmax(d / t), log_softmax(d), np.broadcast_to(-np.log(possible), d.shape)


def _on_simplex(q: Array, w: Array) -> tuple[Array, float]:
    """Minimize the convex ``-sum_i w_i log(q_i . v)`` over the simplex.

    SciPy's SLSQP, then multiplicative (EM) updates, which only go down. ``max_j slope_j - 1``
    bounds how far the NLL is above the minimum, by convexity, so that nothing is taken on trust.
    """
    from scipy.optimize import minimize

    def loss(v: Array) -> tuple[float, Array]:
        mixed = np.maximum(q @ v, 1e-300)
        return -float(w @ np.log(mixed)), -(w / mixed) @ q

    starts = [np.array([0.98, 0.01, 0.01]), np.eye(3)[0]]
    found = minimize(
        loss,
        starts[0],
        jac=True,
        method="SLSQP",
        bounds=[(0.0, 1.0)] * 3,
        constraints={"type": "eq", "fun": lambda v: v.sum() - 1, "jac": lambda v: np.ones(3)},  # noqa: ARG005
        options={"ftol": 1e-15, "maxiter": 200},
    )
    tried = np.clip(found.x, 0.0, 1.0)
    if np.isfinite(tried).all() and tried.sum() > 0:
        starts.append(tried / tried.sum())
    v = min(starts, key=lambda one: loss(one)[0])
    for _ in range(_ROUNDS):
        slope = -loss(v)[1]  # at the minimum 1 where v > 0, and at most 1 elsewhere
        if slope.max() - 1 <= _GAP:
            break
        v = v * slope
        v /= v.sum()
    return v, max(float((-loss(v)[1]).max()) - 1, 0.0)


def ensemble_log_probs(arrays: Arrays, d: Array) -> Array:
    """``log(v_1 softmax(z/T) + v_2 softmax(z) + v_3 uniform)``."""
    with np.errstate(divide="ignore"):
        log_v = np.log(arrays["weights"])
    scaled, raw, uniform = _components(float(arrays["temperature"]), d)
    mixed = np.logaddexp(np.logaddexp(scaled + log_v[0], raw + log_v[1]), uniform + log_v[2])
    return log_softmax(np.where(d <= FLOOR, FLOOR, mixed))


ENSEMBLE_TEMPERATURE = CalibrationMethod(
    name="ensemble-temperature",
    formula="v_1 softmax(z / T) + v_2 softmax(z) + v_3 / C, v on the simplex, T the plain one",
    n_parameters="3",
    reference="Zhang, Kailkhura, Han, Mix-n-Match: ensemble and compositional methods for "
    "uncertainty calibration in deep learning, 2020, arXiv 2003.07329, section 4 (ETS)",
    trust="a share of labels that no logit explains (label noise), which one T has to pay for",
    keeps_top=True,
    masks=True,
    shapes={"temperature": (), "weights": (3,)},
    fit=fit_ensemble_temperature,
    log_probs=ensemble_log_probs,
    valid=lambda arrays: bool(
        arrays["temperature"] > 0
        and (arrays["weights"] >= 0).all()
        and abs(arrays["weights"].sum() - 1) < 1e-6
    ),
)
