"""Calibrators that scale every class: vector scaling, and a temperature for each predicted class.

Both start at the plain temperature T, and both are convex: vector scaling in its scales and biases,
class-wise temperatures in their inverses.
"""

from __future__ import annotations

from collections.abc import Mapping
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
from temperance.evaluation.fit_rows import (
    Apply,
    Descent,
    FitRows,
    centred,
    descend,
    log_softmax,
    softmax_loss,
)
from temperance.evaluation.predictions import FLOOR

__all__ = ["CLASS_TEMPERATURE", "VECTOR"]

Array = NDArray[np.float64]
_BOX = 100.0  # of scales relative to 1/T and of biases in nats: beyond lies only separable data
_FACTOR = 100.0  # of a class's temperature to the plain one, up or down
#: Spreads of 1/T over the classes to choose from, relative: none, a few per cent, up to free.
_SPREADS = (0.03, 0.1, 0.3, 1.0)


# ------------------------------------------------------------------ vector scaling
def fit_vector(data: FitRows, options: Mapping[str, Any]) -> Found:
    """Scales and biases of highest posterior: ``sum NLL + prior/2 (|a - 1|^2 + |b|^2)``."""
    c, t = data.rows.n_classes, data.temperature
    strength = options["prior"] / data.n_effective
    walk = data.walk(lambda d: centred(d) / t)
    start = np.concatenate([np.ones(c), np.zeros(c)])

    def loss(theta: Array) -> tuple[float, Array]:
        scale, bias, away = theta[:c], theta[c:], theta - start
        total, slope = strength / 2 * float(away @ away), strength * away
        for chunk in walk:
            value, residual = softmax_loss(chunk.x * scale + bias, chunk)
            total += value
            slope[:c] += np.einsum("nc,nc->c", residual, chunk.x)
            slope[c:] += residual.sum(axis=0)
        return total, slope

    found = descend(loss, start, (np.full(2 * c, -_BOX), np.full(2 * c, _BOX)))
    arrays = {"scale": found.x[:c] / t, "bias": found.x[c:]}
    notes = []
    if (arrays["scale"] < 0).any():
        notes.append(
            f"class {int(np.argmin(arrays['scale']))} has a negative scale: its logits "
            "point the wrong way on these rows"
        )
    return Found(arrays, 2 * c, found.status, {}, tuple(notes))


def vector_log_probs(arrays: Arrays, d: Array) -> Array:
    """``log softmax(a z + b)`` of centred logits z."""
    u = centred(d) * arrays["scale"] + arrays["bias"]
    return log_softmax(np.where(d <= FLOOR, FLOOR, u))


VECTOR = CalibrationMethod(
    name="vector",
    formula="softmax(a * z + b), z less its row mean; a and b one number per class, a priori "
    "a T ~ N(1, 1/prior) and b ~ N(0, 1/prior) (prior=0: maximum likelihood, as published)",
    n_parameters="2C",
    reference="Guo, Pleiss, Sun, Weinberger, On calibration of modern neural networks, 2017, "
    "arXiv 1706.04599, section 4.2",
    trust="single classes that are too sure or too frequent; wants some tens of rows per class",
    keeps_top=False,
    masks=True,
    shapes={"scale": ("C",), "bias": ("C",)},
    fit=fit_vector,
    log_probs=vector_log_probs,
    options={"prior": Option(1.0)},
)


# ------------------------------------------------------------------ class-wise temperatures
def fit_class_temperature(data: FitRows, options: Mapping[str, Any]) -> Found:
    """One temperature per predicted class, shrunk to the plain one."""
    spread: float | None = options["spread"]
    settings: dict[str, Any] = {}
    if spread is None:
        choice = choose(data, _path, options, [f"spread {s:g}" for s in _SPREADS])
        if choice.best is None:
            return plain(data, status=NOT_FAVOURED, note=choice.why, settings=choice.settings)
        spread, settings = _SPREADS[choice.best], dict(choice.settings)
    found = _inverse_temperatures(data, spread, np.ones(data.rows.n_classes))
    seen = np.bincount(_predicted(data), minlength=data.rows.n_classes) > 0
    arrays = {"temperature": data.temperature / found.x}
    settings = {**settings, "spread": spread, "classes_predicted": int(seen.sum())}
    return Found(arrays, int(seen.sum()), found.status, settings)


def _path(train: FitRows) -> list[Apply]:
    applies: list[Apply] = []
    relative = np.ones(train.rows.n_classes)
    for spread in _SPREADS:
        relative = _inverse_temperatures(train, spread, relative).x
        arrays = {"temperature": train.temperature / relative}
        applies.append(partial(class_temperature_log_probs, arrays))
    return applies


def _inverse_temperatures(data: FitRows, spread: float, start: Array) -> Descent:
    """``r_k = T / T_k`` of least ``sum NLL + sum_k (r_k - 1)^2 / (2 spread^2)``."""
    c, t = data.rows.n_classes, data.temperature
    strength = 1.0 / (max(spread, 1e-6) ** 2 * data.n_effective)
    walk = [(chunk, chunk.x.argmax(axis=1)) for chunk in data.walk(lambda d: d / t)]

    def loss(r: Array) -> tuple[float, Array]:
        total, slope = strength / 2 * float((r - 1) @ (r - 1)), strength * (r - 1)
        for chunk, top in walk:
            value, residual = softmax_loss(chunk.x * r[top][:, None], chunk)
            total += value
            weights = np.einsum("nc,nc->n", residual, chunk.x)
            slope += np.bincount(top, weights=weights, minlength=c)
        return total, slope

    return descend(loss, start, (np.full(c, 1 / _FACTOR), np.full(c, _FACTOR)))


def _predicted(data: FitRows) -> NDArray[np.intp]:
    return np.concatenate([top for _, _, top in data.rows.shifted()])


def class_temperature_log_probs(arrays: Arrays, d: Array) -> Array:
    """``log softmax(z / T_k)`` with k the class of the largest logit."""
    return log_softmax(d / arrays["temperature"][d.argmax(axis=1)][:, None])


CLASS_TEMPERATURE = CalibrationMethod(
    name="class-temperature",
    formula="softmax(z / T_k), k = argmax z; a priori T / T_k ~ N(1, spread^2)",
    n_parameters="C",
    reference="Frenkel, Goldberger, Network calibration by class-based temperature scaling, "
    "EUSIPCO 2021, pages 1486-1490 (there fitted by ECE; here by NLL, shrunk to one T)",
    trust="predictions of some classes being surer than those of others, at the same accuracy",
    keeps_top=True,
    masks=True,
    shapes={"temperature": ("C",)},
    fit=fit_class_temperature,
    log_probs=class_temperature_log_probs,
    valid=lambda arrays: bool((arrays["temperature"] > 0).all()),
    options={"spread": Option(None), "folds": FOLDS, "seed": SEED},
)
