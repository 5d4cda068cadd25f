"""Regression on values that are known exactly, or only to lie above, below or between two ends."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

__all__ = ["Fit", "fit", "predict"]

Array = NDArray[np.float64]

_ROUNDS, _CLOSE = 100, 1e-4
_RIDGE = (
    1e-2  # keeps what a small part of the rows cannot tell apart near 0; no term of a full study
)


@dataclass(frozen=True, eq=False)
class Fit:
    """Coefficients, the spread of what they leave, and the log likelihood."""

    coefficients: Array
    sigma: float
    loglik: float


def fit(x: Array, low: Array, high: Array, *, start: Fit | None = None) -> Fit:
    """Most likely coefficients of ``y = x @ b + sigma * normal`` with ``low <= y <= high``.

    Expectation maximization: values that are not known are replaced by their mean, given the ends
    and the coefficients; the spread counts what they vary besides.

    Args:
        x: ``[n, p]``, a column of ones among them.
        low: lower ends, ``-inf`` where there is none; equal to ``high`` where the value is known.
        high: upper ends.
        start: where to start.

    Returns:
        The fit.
    """
    exact = low == high
    y = np.where(exact, low, np.where(np.isfinite(low), low, high))
    open_low, open_high, unknown = low[~exact], high[~exact], x[~exact]
    ridge = np.where(np.ptp(x, axis=0) > 0, _RIDGE * x.std(axis=0) ** 2, 1e-9)
    solve = np.linalg.solve(x.T @ x + np.diag(ridge), x.T)
    b = start.coefficients if start else solve @ y
    sigma = start.sigma if start else max(float((y - x @ b).std()), 1e-3)
    spare = 0.0
    for _ in range(_ROUNDS):
        if len(unknown):
            y[~exact], variance = _expected(unknown @ b, sigma, open_low, open_high)
            spare = float(variance.sum()) / len(x)
        new = solve @ y
        moved, b = float(np.abs(new - b).max()), new
        sigma = max(float(np.sqrt(np.mean((y - x @ b) ** 2) + spare)), 1e-3)
        if moved < _CLOSE or not len(unknown):
            break
    loglik = float(np.log(_density((low[exact] - x[exact] @ b) / sigma) / sigma).sum())
    return Fit(b, sigma, loglik + _log_between(unknown @ b, sigma, open_low, open_high))


def predict(found: Fit, x: Array) -> Array:
    """Give ``x @ b``."""
    return x @ found.coefficients


def _density(z: Array) -> Array:
    return np.maximum(np.exp(-0.5 * z**2) / np.sqrt(2 * np.pi), 1e-300)


def _ends(mean: Array, sigma: float, low: Array, high: Array) -> tuple[Array, Array, Array]:
    """Both ends in units of the spread, mirrored into the tail that keeps its digits."""
    a = np.clip((low - mean) / sigma, -30, 30)
    b = np.clip((high - mean) / sigma, -30, 30)
    mirror = a > 0
    return np.where(mirror, -b, a), np.where(mirror, -a, b), mirror


def _expected(mean: Array, sigma: float, low: Array, high: Array) -> tuple[Array, Array]:
    """Mean and variance of a normal between two ends."""
    a, b, mirror = _ends(mean, sigma, low, high)
    share = np.maximum(ndtr(b) - ndtr(a), 1e-300)
    at_a, at_b = _density(a), _density(b)
    first = (at_a - at_b) / share
    second = np.clip(1 + (a * at_a - b * at_b) / share - first**2, 0, 1)
    return mean + sigma * np.where(mirror, -first, first), sigma**2 * second


def _log_between(mean: Array, sigma: float, low: Array, high: Array) -> float:
    a, b, _ = _ends(mean, sigma, low, high)
    return float(np.log(np.maximum(ndtr(b) - ndtr(a), 1e-300)).sum())
