"""A temperature for every row, from how sure the row's own logits are.

A small linear model on ``log T`` of features of the logits. It is used only if held-out rows favour
it over one temperature by more than one standard error; otherwise one temperature is what is given.
"""

from __future__ import annotations

import math
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
    FitRows,
    descend,
    log_softmax,
    softmax_loss,
)
from temperance.evaluation.predictions import FLOOR

__all__ = ["SAMPLE_TEMPERATURE"]

Array = NDArray[np.float64]
_NAMES = ("entropy", "margin", "log spread")  # the features, in this order
_MARGIN = 30.0  # nats beyond which a margin says nothing more
_LOWEST = -1e6  # shifted logits below it do not make the spread any larger
_BOX = 5.0  # of a coefficient: log T per standard deviation of a feature
_FACTOR = 100.0  # of a row's temperature to the plain one, up or down


def fit_sample_temperature(data: FitRows, options: Mapping[str, Any]) -> Found:
    """Coefficients of least ``sum NLL + ridge/2 |slopes|^2``, if held-out rows favour them."""

    def path(train: FitRows) -> list[Apply]:
        return [partial(sample_log_probs, _fit(train, options["ridge"])[0])]

    choice = choose(data, path, options, ["sample"])
    if choice.best is None:
        return plain(data, status=NOT_FAVOURED, note=choice.why, settings=choice.settings)
    arrays, status = _fit(data, options["ridge"])
    return Found(arrays, len(_NAMES) + 2, status, {**choice.settings, "features": list(_NAMES)})


def _fit(data: FitRows, ridge: float) -> tuple[dict[str, Array], str]:
    t, strength = data.temperature, ridge / data.n_effective
    raw = np.concatenate([features(d / t) for _, d, _ in data.rows.shifted()])
    mean = data.w @ raw
    sd = np.sqrt(data.w @ np.square(raw - mean))
    scale = np.where(sd > 1e-9 * (1 + np.abs(mean)), sd, math.inf)
    standard = (raw - mean) / scale
    design = np.column_stack([np.ones(len(raw)), standard])
    walk, place = [], 0
    for chunk in data.walk(lambda d: d / t):
        walk.append((chunk, design[place : place + len(chunk.x)]))
        place += len(chunk.x)

    def loss(theta: Array) -> tuple[float, Array]:
        slopes = theta.copy()
        slopes[0] = 0.0  # the intercept is free
        total, slope = strength / 2 * float(slopes @ slopes), strength * slopes
        for chunk, phi in walk:
            log_t = phi @ theta
            b = np.exp(-np.clip(log_t, -math.log(_FACTOR), math.log(_FACTOR)))
            value, residual = softmax_loss(chunk.x * b[:, None], chunk)
            total += value
            inside = np.abs(log_t) < math.log(_FACTOR)
            slope -= (np.einsum("nc,nc->n", residual, chunk.x) * b * inside) @ phi
        return total, slope

    size = len(_NAMES) + 1
    found = descend(loss, np.zeros(size), (np.full(size, -_BOX), np.full(size, _BOX)))
    used = np.isfinite(scale)
    arrays = {
        "temperature": np.asarray(t),
        "intercept": np.asarray(found.x[0]),
        "slopes": np.where(used, found.x[1:] / np.where(used, scale, 1.0), 0.0),
        "mean": mean,
        "lowest": raw.min(axis=0),
        "highest": raw.max(axis=0),
    }
    return arrays, found.status


def features(x: Array) -> Array:
    """Entropy, margin of the two largest, and log spread of logits at the plain temperature.

    Args:
        x: shifted logits over T, shape ``[m, C]``, largest 0, far below where masked.

    Returns:
        Shape ``[m, 3]``: entropy of the softmax in nats; largest less second largest logit, at most
        30; log of the standard deviation over the possible classes.
    """
    possible = x > FLOOR / 2e6  # FLOOR over the largest temperature there is, and more
    log_p = log_softmax(x)
    entropy = -np.sum(np.where(possible, np.exp(log_p) * log_p, 0.0), axis=1)
    second = np.partition(x, -2, axis=1)[:, -2]
    count = possible.sum(axis=1)
    finite = np.where(possible, np.maximum(x, _LOWEST), 0.0)
    mean = finite.sum(axis=1) / count
    squares = np.where(possible, np.square(finite - mean[:, None]), 0.0).sum(axis=1) / count
    spread = np.log(np.maximum(np.sqrt(squares), 1e-6))
    return np.column_stack([entropy, np.minimum(-second, _MARGIN), spread])


def sample_log_probs(arrays: Arrays, d: Array) -> Array:
    """``log softmax(z / T_i)``; features beyond those of the fit rows count as the outermost."""
    x = d / float(arrays["temperature"])
    phi = np.clip(features(x), arrays["lowest"], arrays["highest"]) - arrays["mean"]
    log_t = float(arrays["intercept"]) + phi @ arrays["slopes"]
    b = np.exp(-np.clip(log_t, -math.log(_FACTOR), math.log(_FACTOR)))
    return log_softmax(x * b[:, None])


SAMPLE_TEMPERATURE = CalibrationMethod(
    name="sample-temperature",
    formula="softmax(z / T_i), log(T_i / T) linear in entropy, margin and log spread of z_i / T",
    n_parameters="5",
    reference="Balanya, Maronas, Ramos, Adaptive temperature scaling for robust calibration of "
    "deep neural networks, 2022, arXiv 2208.00461; Tomani, Cremers, Buettner, Parameterized "
    "temperature scaling, 2021, arXiv 2102.12182",
    trust="sure rows being too sure while unsure ones are not (or the reverse), at the same "
    "accuracy; used only if held-out rows favour it",
    keeps_top=True,
    masks=True,
    shapes={
        "temperature": (),
        "intercept": (),
        "slopes": (len(_NAMES),),
        "mean": (len(_NAMES),),
        "lowest": (len(_NAMES),),
        "highest": (len(_NAMES),),
    },
    fit=fit_sample_temperature,
    log_probs=sample_log_probs,
    valid=lambda arrays: bool(
        arrays["temperature"] > 0 and (arrays["lowest"] <= arrays["highest"]).all()
    ),
    options={"ridge": Option(1.0), "folds": FOLDS, "seed": SEED},
)
