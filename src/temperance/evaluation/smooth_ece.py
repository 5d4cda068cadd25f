"""Smooth ECE: a calibration error without bins, and without a width to choose."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from temperance.evaluation.predictions import Predictions, read_predictions
from temperance.evaluation.scores import score_rows
from temperance.evaluation.weighted import Floats, Measure, plain_value

__all__ = ["smooth_ece"]

_CELLS, _MOST_CELLS = 1 << 12, 1 << 16  # of the grid on [0, 1]
_PER_WIDTH = 24  # cells of the grid in one bandwidth, at least: a relative error below 1e-4
_LEAST = 1e-7  # bandwidths below it count as none


def smooth_ece(
    *, logits: ArrayLike | None = None, probs: ArrayLike | None = None, labels: ArrayLike
) -> float:
    """Smooth ECE of the most probable class: the fixed point of its own bandwidth.

    With confidences ``f_i``, ``y_i`` = 1 where the class is the label, and the Gaussian kernel
    ``K_s`` of standard deviation s reflected at 0 and 1,
    ``smECE_s = integral_0^1 |1 / n * sum_i K_s(t, f_i) (y_i - f_i)| dt``. It falls with s; the
    figure is the one s at which ``smECE_s = s``. It is worked out from the cosine series of the
    residuals, in which the reflected kernel is a factor ``exp(-(pi k s)^2 / 2)``, so that neither
    kernel nor reflection is cut off; the confidences lie on a grid of at least 24 points in s.

    Args:
        logits: numbers before the softmax, shape ``[n, C]``, or ``[n]`` for two classes.
        probs: probabilities, same shapes; exactly one of the two is given.
        labels: class ids, shape ``[n]``.

    Returns:
        The error, which is its bandwidth too, 0 to 1; to a relative 1e-4, for errors of 4e-4 and
        more, else to 1e-5. Few rows push it up, about as much as the ECE.

    Raises:
        InvalidInput: if the predictions or labels cannot be used.

    Example:
        >>> from temperance.evaluation import smooth_ece
        >>> round(smooth_ece(probs=[[0.3, 0.7]] * 10, labels=[0] * 10), 4)
        0.7

    Reference:
        Błasiok, Nakkiran, Smooth ECE: principled reliability diagrams via kernel smoothing, 2023,
        arXiv 2309.12236, definitions 6 to 8.
    """
    predictions = read_predictions(logits=logits, probs=probs, labels=labels)
    return plain_value(smooth_ece_measure(predictions), len(predictions))


def smooth_ece_measure(predictions: Predictions) -> Measure:
    """Measure of ``smooth_ece``; its grid is made for the rows as they are."""
    scores = score_rows(predictions)
    residual, cells = scores.correct - scores.confidence, _CELLS
    grid = _grid(scores.confidence, cells)
    while cells < _MOST_CELLS and _fixed_point(grid, residual) * cells < _PER_WIDTH:
        cells *= 4
        grid = _grid(scores.confidence, cells)
    return lambda weights: np.array([_fixed_point(grid, w * residual) for w in weights])


@dataclass(frozen=True, eq=False)
class _Grid:
    """Rows on a grid of midpoints; each is shared by the two that are nearest to it."""

    low: NDArray[np.intp]
    high: NDArray[np.intp]
    share: Floats  # of the higher one
    decay: Floats  # -(pi k)^2 / 2 for each term k of the cosine series


def _grid(confidence: Floats, cells: int) -> _Grid:
    place = np.clip(confidence, 0.0, 1.0) * cells - 0.5
    floor = np.floor(place)
    # reflection puts what lies beyond both ends back onto the first and the last midpoint
    low = np.clip(floor, 0, cells - 1).astype(np.intp)
    high = np.clip(floor + 1, 0, cells - 1).astype(np.intp)
    decay: Floats = -0.5 * (math.pi * np.arange(cells, dtype=np.float64)) ** 2
    return _Grid(low, high, place - floor, decay)


def _fixed_point(grid: _Grid, residual: Floats) -> float:
    """The bandwidth that equals the smooth ECE of weighted residuals."""
    from scipy.fft import dct, idct
    from scipy.optimize import brentq

    cells = len(grid.decay)
    mass = np.bincount(grid.low, residual * (1 - grid.share), minlength=cells)
    mass += np.bincount(grid.high, residual * grid.share, minlength=cells)
    series = dct(mass / len(residual), type=2)

    def excess(width: float) -> float:
        smoothed = idct(series * np.exp(grid.decay * width * width), type=2)
        return float(np.abs(smoothed).sum()) - width

    if excess(_LEAST) <= 0:
        return 0.0
    if excess(1.0) >= 0:  # only where every residual is 1: sure and wrong throughout
        return 1.0
    return float(brentq(excess, _LEAST, 1.0, xtol=1e-9, rtol=1e-6))
