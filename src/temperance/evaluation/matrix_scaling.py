"""Matrix and Dirichlet scaling with the regularization of Kull et al. (ODIR).

Both are one multinomial regression, on logits (matrix) or on log-probabilities (Dirichlet). The
elements off the diagonal and the biases are pulled to 0 by the mean of their squares, the diagonal
is free. The inputs are those at the plain temperature T, so that the strengths mean the same
whatever the scale of the logits is, and saturated probabilities do not lose what the logits knew.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from temperance.errors import InvalidInput
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

__all__ = ["DIRICHLET", "MATRIX"]

Array = NDArray[np.float64]
Inputs = Callable[[Array, float], Array]  # of shifted logits and T
_BOX = 100.0  # of the elements of the matrix, and of biases in nats
_STRENGTHS = (10.0, 1.0, 0.1, 1e-2, 1e-3)  # off the diagonal, to choose from
_BIAS_STRENGTHS = (1.0, 1e-2)  # of the bias, to choose from


def fit_matrix(inputs: Inputs, data: FitRows, options: Mapping[str, Any]) -> Found:
    """Matrix and bias with the least ``NLL + off_diagonal * mean w_ij^2 + bias * mean b_j^2``."""
    _refuse_masks(data)
    pairs = _pairs(options["off_diagonal"], options["bias"])
    settings: dict[str, Any] = {}
    pair = pairs[0]
    if len(pairs) > 1:
        names = [f"off_diagonal {lam:g}, bias {mu:g}" for lam, mu in pairs]
        choice = choose(data, partial(_path, inputs, pairs), options, names)
        if choice.best is None:
            return plain(data, status=NOT_FAVOURED, note=choice.why, settings=choice.settings)
        pair, settings = pairs[choice.best], dict(choice.settings)
    found = _regression(inputs, data, pair, _identity(data))
    settings.update(off_diagonal=pair[0], bias=pair[1])
    c = data.rows.n_classes
    return Found(_arrays(found.x, data), c * c + c, found.status, settings)


def _pairs(lam: float | None, mu: float | None) -> list[tuple[float, float]]:
    """Strengths to choose from, from strong to weak; a given one stays as it is."""
    if lam is not None and mu is not None:
        return [(lam, mu)]
    if lam is None and mu is None:
        return list(product(_STRENGTHS, _BIAS_STRENGTHS))
    if lam is None:
        return [(s, float(mu or 0.0)) for s in _STRENGTHS]
    return [(lam, s) for s in _BIAS_STRENGTHS]


def _path(inputs: Inputs, pairs: list[tuple[float, float]], train: FitRows) -> list[Apply]:
    """Fits from strong to weak, each begun where the last one ended."""
    applies: list[Apply] = []
    theta = _identity(train)
    for pair in pairs:
        theta = _regression(inputs, train, pair, theta, rough=True).x
        arrays = _arrays(theta, train)
        applies.append(partial(matrix_log_probs, inputs, arrays))
    return applies


def _identity(data: FitRows) -> Array:
    """Matrix 1 and bias 0, the plain temperature, as one vector."""
    c = data.rows.n_classes
    return np.concatenate([np.eye(c).ravel(), np.zeros(c)])


def _arrays(theta: Array, data: FitRows) -> dict[str, Array]:
    c = data.rows.n_classes
    matrix, bias = theta[: c * c].reshape(c, c), theta[c * c :]
    return {"temperature": np.asarray(data.temperature), "matrix": matrix, "bias": bias}


def _regression(
    inputs: Inputs,
    data: FitRows,
    pair: tuple[float, float],
    start: Array,
    *,
    rough: bool = False,
) -> Descent:
    c, t = data.rows.n_classes, data.temperature
    walk = data.walk(lambda d: inputs(d, t))
    diagonal = np.eye(c, dtype=bool)
    off, per_bias = pair[0] / (c * (c - 1)), pair[1] / c

    def loss(theta: Array) -> tuple[float, Array]:
        w, b = theta[: c * c].reshape(c, c), theta[c * c :]
        away = np.where(diagonal, 0.0, w)
        total = off * float(np.sum(away**2)) + per_bias * float(b @ b)
        slope_w, slope_b = 2 * off * away, 2 * per_bias * b
        for chunk in walk:
            value, residual = softmax_loss(chunk.x @ w.T + b, chunk)
            total += value
            slope_w += residual.T @ chunk.x
            slope_b += residual.sum(axis=0)
        return total, np.concatenate([slope_w.ravel(), slope_b])

    box = np.full(c * c + c, _BOX)
    return descend(loss, start, (-box, box), rough=rough)


def matrix_log_probs(inputs: Inputs, arrays: Arrays, d: Array) -> Array:
    """``log softmax(W x + b)`` with x the centred logits over T or the log-probabilities at T."""
    x = inputs(d, float(arrays["temperature"]))
    return log_softmax(x @ arrays["matrix"].T + arrays["bias"])


def logits_at(d: Array, t: float) -> Array:
    """Centred logits over T."""
    return centred(d) / t


def log_probs_at(d: Array, t: float) -> Array:
    """Log-probabilities at T."""
    return log_softmax(d / t)


def _valid(arrays: Arrays) -> bool:
    return bool(arrays["temperature"] > 0)


def _refuse_masks(data: FitRows) -> None:
    for part, d, _ in data.rows.shifted():
        masked = (d <= FLOOR).any(axis=1)
        if masked.any():
            row = int(np.flatnonzero(data.rows.kept)[part.start + int(np.argmax(masked))])
            raise InvalidInput(
                "logits",
                expected="finite numbers: a matrix mixes the logits of all classes",
                found=f"-inf in row {row}",
                fix="Choose a method that takes masked classes, such as 'vector'.",
            )


_REFERENCE = (
    "Kull, Perello-Nieto, Kangsepp, Silva Filho, Song, Flach, Beyond temperature scaling: "
    "obtaining well-calibrated multi-class probabilities with Dirichlet calibration, 2019, "
    "arXiv 1910.12656"
)
_OPTIONS = {"off_diagonal": Option(None), "bias": Option(None), "folds": FOLDS, "seed": SEED}

MATRIX = CalibrationMethod(
    name="matrix",
    formula="softmax(W z / T + b), z less its row mean, T the plain temperature",
    n_parameters="C^2 + C",
    reference=f"{_REFERENCE}, section 4 (MS-ODIR)",
    trust="classes that are taken for each other; few classes and many rows (some hundreds each)",
    keeps_top=False,
    masks=False,
    shapes={"temperature": (), "matrix": ("C", "C"), "bias": ("C",)},
    valid=_valid,
    fit=partial(fit_matrix, logits_at),
    log_probs=partial(matrix_log_probs, logits_at),
    options=_OPTIONS,
)

DIRICHLET = CalibrationMethod(
    name="dirichlet",
    formula="softmax(W log softmax(z / T) + b), T the plain temperature",
    n_parameters="C^2 + C",
    reference=f"{_REFERENCE}, section 3 (Dir-ODIR)",
    trust="probabilities rather than logits as input; few classes and many rows",
    keeps_top=False,
    masks=False,
    shapes={"temperature": (), "matrix": ("C", "C"), "bias": ("C",)},
    valid=_valid,
    fit=partial(fit_matrix, log_probs_at),
    log_probs=partial(matrix_log_probs, log_probs_at),
    options=_OPTIONS,
)
