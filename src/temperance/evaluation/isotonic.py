"""Isotonic calibrators: rising step functions of the probability, without bins.

Both look at the log-probability at the plain temperature T, which keeps the order of saturated
logits, and both are mixed with that plain temperature: pure steps give probabilities of 0 and 1,
and with them an infinite NLL on the first row that is an exception. The share of the plain
temperature in the mixture, ``shrink``, is chosen by held-out rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from temperance.evaluation.calibration_method import (
    FOLDS,
    NOT_FAVOURED,
    SEED,
    Arrays,
    CalibrationMethod,
    Found,
    Option,
    choose,
    plain,
)
from temperance.evaluation.fit_rows import Apply, FitRows, log_softmax
from temperance.evaluation.predictions import FLOOR

__all__ = ["ISOTONIC", "ISOTONIC_JOINT"]

Array = NDArray[np.float64]
_SHRINKS = (0.3, 0.1, 0.03, 0.01, 0.003)  # shares of the plain temperature to choose from
_LEAST = 1e-6  # smallest share: it keeps the steps strictly rising (Mix-n-Match adds 1e-9 p)

Steps = tuple[Array, Array]  # where a function bends, and its values there; straight in between
FitSteps = Callable[[FitRows], list[Steps]]


# ------------------------------------------------------------------ fitting
def fit_isotonic(fit_steps: FitSteps, data: FitRows, options: Mapping[str, Any]) -> Found:
    """Steps of least squares (pool adjacent violators), and how much to trust them."""
    shrink: float | None = options["shrink"]
    settings: dict[str, Any] = {}
    if shrink is None:
        names = [f"shrink {s:g}" for s in _SHRINKS]
        choice = choose(data, partial(_path, fit_steps), options, names)
        if choice.best is None:
            return plain(data, status=NOT_FAVOURED, note=choice.why, settings=choice.settings)
        shrink, settings = _SHRINKS[choice.best], dict(choice.settings)
    arrays = _arrays(fit_steps(data), data.temperature, shrink)
    levels = sum(len(np.unique(y)) for _, y in _steps(arrays))
    return Found(arrays, levels + 1, "converged", {**settings, "shrink": shrink})


def _path(fit_steps: FitSteps, train: FitRows) -> list[Apply]:
    steps = fit_steps(train)
    candidates = [_arrays(steps, train.temperature, shrink) for shrink in _SHRINKS]
    return [partial(isotonic_log_probs, arrays) for arrays in candidates]


def one_against_rest(data: FitRows) -> list[Steps]:
    """One function per class: the share of rows of the class, given its probability."""
    log_p, possible = _abscissa(data)
    return [
        _pool(log_p[possible[:, k], k], data.rows.ids[possible[:, k]] == k, data.w[possible[:, k]])
        for k in range(data.rows.n_classes)
    ]


def joint(data: FitRows) -> list[Steps]:
    """One function for all classes, of all ``n * C`` probabilities."""
    log_p, possible = _abscissa(data)
    hit = data.rows.ids[:, None] == np.arange(data.rows.n_classes)
    w = np.broadcast_to(data.w[:, None], hit.shape)
    return [_pool(log_p[possible], hit[possible], w[possible])]


def _abscissa(data: FitRows) -> tuple[Array, NDArray[np.bool_]]:
    """Log-probabilities of all rows at the plain temperature, and which classes are possible."""
    log_p = np.empty(data.rows.scores.shape)
    possible = np.empty(log_p.shape, dtype=bool)
    for part, d, _ in data.rows.shifted():
        possible[part] = d > FLOOR
        log_p[part] = log_softmax(d / data.temperature)
    return log_p, possible


def _pool(x: Array, hit: NDArray[np.bool_], w: Array) -> Steps:
    from sklearn.isotonic import IsotonicRegression

    counts = w > 0
    if not counts.any():
        return np.zeros(1), np.zeros(1)  # a class that no row can have
    found = IsotonicRegression(y_min=0.0, y_max=1.0, out_of_bounds="clip").fit(
        x[counts], hit[counts].astype(np.float64), sample_weight=w[counts] / w[counts].max()
    )
    return found.X_thresholds_.astype(np.float64), found.y_thresholds_.astype(np.float64)


def _arrays(steps: list[Steps], temperature: float, shrink: float) -> dict[str, Array]:
    """The functions one behind the other; ``ends[k]`` is where that of class k ends."""
    return {
        "temperature": np.asarray(temperature),
        "shrink": np.asarray(max(shrink, _LEAST)),
        "ends": np.cumsum([len(x) for x, _ in steps]).astype(np.float64),
        "x": np.concatenate([x for x, _ in steps]),
        "y": np.concatenate([y for _, y in steps]),
    }


# ------------------------------------------------------------------ applying
def _steps(arrays: Arrays) -> list[Steps]:
    inner = arrays["ends"].astype(np.intp)[:-1]
    return list(zip(np.split(arrays["x"], inner), np.split(arrays["y"], inner), strict=True))


def isotonic_log_probs(arrays: Arrays, d: Array) -> Array:
    """``log((1 - s) g(p) / sum g(p) + s p)`` with p the plain temperature's probabilities."""
    log_p = log_softmax(d / float(arrays["temperature"]))
    steps, shrink = _steps(arrays), float(arrays["shrink"])
    one = len(steps) == 1
    g = np.stack([np.interp(log_p[:, k], *steps[0 if one else k]) for k in range(d.shape[1])], 1)
    g[d <= FLOOR] = 0.0
    total = g.sum(axis=1, keepdims=True)
    p = np.exp(log_p)
    g = np.where(total > 0, g / np.where(total > 0, total, 1.0), p)
    with np.errstate(divide="ignore"):  # an underflow to 0 is the smallest log there is
        mixed = np.maximum(np.log((1 - shrink) * g + shrink * p), log_p + np.log(shrink))
    return log_softmax(np.where(d <= FLOOR, FLOOR, mixed))


def _valid(arrays: Arrays) -> bool:
    ends, x, y = arrays["ends"], arrays["x"], arrays["y"]
    whole = (ends == np.floor(ends)).all() and (np.diff(ends, prepend=0) >= 1).all()
    if not whole or ends[-1] != len(x) or len(x) != len(y) or arrays["temperature"] <= 0:
        return False
    rising = all((np.diff(a) > 0).all() and (np.diff(b) >= 0).all() for a, b in _steps(arrays))
    return bool(rising and ((y >= 0) & (y <= 1)).all() and 0 < arrays["shrink"] <= 1)


_OPTIONS = {"shrink": Option(None, high=1.0), "folds": FOLDS, "seed": SEED}
_STEPS: Mapping[str, tuple[str | int, ...]] = {
    "temperature": (),
    "shrink": (),
    "x": ("*",),
    "y": ("*",),
}

ISOTONIC = CalibrationMethod(
    name="isotonic",
    formula="(1 - s) g_k(p_k) / sum_j g_j(p_j) + s p_k, p = softmax(z / T), g_k rising",
    n_parameters="steps of C functions",
    reference="Zadrozny, Elkan, Transforming classifier scores into accurate multiclass "
    "probability estimates, KDD 2002, doi 10.1145/775047.775151",
    trust="bends that no temperature can follow, class by class; thousands of rows per class",
    keeps_top=False,
    masks=True,
    shapes={**_STEPS, "ends": ("C",)},
    fit=partial(fit_isotonic, one_against_rest),
    log_probs=isotonic_log_probs,
    valid=_valid,
    options=_OPTIONS,
)

ISOTONIC_JOINT = CalibrationMethod(
    name="isotonic-joint",
    formula="(1 - s) g(p_k) / sum_j g(p_j) + s p_k, p = softmax(z / T), g rising",
    n_parameters="steps of one function",
    reference="Zhang, Kailkhura, Han, Mix-n-Match: ensemble and compositional methods for "
    "uncertainty calibration in deep learning, 2020, arXiv 2003.07329, section 3 (IRM)",
    trust="bends that no temperature can follow, at the same accuracy; thousands of rows",
    keeps_top=True,
    masks=True,
    shapes={**_STEPS, "ends": (1,)},
    fit=partial(fit_isotonic, joint),
    log_probs=isotonic_log_probs,
    valid=_valid,
    options=_OPTIONS,
)
