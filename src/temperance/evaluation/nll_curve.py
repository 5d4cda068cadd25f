"""The NLL of ``softmax(b z)`` along ``b = 1/T``: its value, slope and curvature, and its minimum.

The NLL is convex in b. The search looks for the zero of its slope on a bracket: Newton steps on
``log b``, and bisection wherever such a step is not safe.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from temperance.errors import InvalidInput
from temperance.evaluation.predictions import FLOOR, Predictions

__all__ = ["Slope", "minimize", "slope_at"]

_TOLERANCE = 1e-7  # size of the last step in log T; the error after it is about its square
_SAMPLE = 1 << 20  # numbers in the part of a large set on which the search begins


class Slope(NamedTuple):
    """The NLL at one b, its first two derivatives in b, and what the rows are like."""

    nll: float
    slope: float
    curvature: float
    spread: bool  # some row has two different finite logits
    wrong: (
        float  # weighted share of rows whose label does not have the largest logit; ties are right
    )


def slope_at(rows: Predictions, w: NDArray[np.float64], b: float) -> Slope:
    """One pass over the rows; sums in float64, chunk by chunk."""
    sums, spread = np.zeros(4), False
    for part, d, top in rows.shifted():
        at, ids, w_part = np.arange(len(d)), rows.ids[part], w[part]
        label_d = d[at, ids]
        if (label_d <= FLOOR).any():
            _refuse_masked(rows, part.start + int(np.argmax(label_d <= FLOOR)))
        spread = spread or bool(((d < 0) & (d > FLOOR)).any())
        p = np.exp(d * b)
        p[at, top] = 0.0
        tail = p.sum(axis=1)  # summed without the largest, which is 1: log1p keeps tiny NLLs
        p /= (1.0 + tail)[:, None]
        p *= d
        mean = p.sum(axis=1)
        variance = np.einsum("nc,nc->n", p, d) - mean**2
        columns = (np.log1p(tail) - b * label_d, mean - label_d, variance, label_d < 0)
        sums += [float(w_part @ column) for column in columns]
    nll, slope, curvature, wrong = (sums / w.sum()).tolist()
    return Slope(nll, slope, max(curvature, 0.0), spread, wrong)


def minimize(
    rows: Predictions, w: NDArray[np.float64], bounds: tuple[float, float], before: Slope
) -> tuple[float, str, Slope]:
    """Find the T at which the slope is zero; returns T, the status, and the NLL there."""
    if before.wrong == 0.0:  # the slope is negative for every b, down to underflow
        return bounds[0], "at lower bound", slope_at(rows, w, 1.0 / bounds[0])
    low, high = ends = -math.log(bounds[1]), -math.log(bounds[0])  # of u = log b
    unseen = set(ends)
    u, last = _head_start(rows, w, bounds), math.inf
    at = before if u == 0.0 else slope_at(rows, w, math.exp(u))
    for _ in range(200):  # bisection alone needs fewer
        low, high = (low, u) if at.slope > 0 else (u, high)
        step = _newton(at, math.exp(u))
        if abs(step) <= _TOLERANCE:
            u = min(max(u + step, low), high)
            break
        target = _next(u, step, (low, high), unseen, last)
        last, u = target - u, target
        if abs(last) <= _TOLERANCE / 8:  # the bracket has closed
            break
        at = slope_at(rows, w, math.exp(u))
        unseen.discard(u)
        if u == ends[0] and at.slope >= 0:
            return bounds[1], "at upper bound", at
        if u == ends[1] and at.slope <= 0:
            return bounds[0], "at lower bound", at
    return math.exp(-u), "converged", at


def _newton(at: Slope, b: float) -> float:
    """Newton step in log b; infinite where the curvature has underflowed."""
    if at.slope == 0.0:
        return 0.0
    scaled = b * at.curvature
    return (
        -at.slope / scaled
        if scaled > abs(at.slope) * 1e-300
        else -math.copysign(math.inf, at.slope)
    )


def _next(
    u: float, step: float, bracket: tuple[float, float], unseen: set[float], last: float
) -> float:
    """Where to look next: the Newton point, a bound not yet seen, or the middle of the bracket."""
    low, high = bracket
    middle = (low + high) / 2
    if not low < u + step < high:
        end = low if step < 0 else high
        return end if end in unseen else middle
    slow = abs(step) > abs(last) / 2 and low not in unseen and high not in unseen
    return middle if slow else u + step


def _head_start(rows: Predictions, w: NDArray[np.float64], bounds: tuple[float, float]) -> float:
    """Log b of an evenly spaced part of a large set: most steps are then cheap ones."""
    stride = rows.scores.size // _SAMPLE
    if stride < 4:
        return 0.0
    part = Predictions(rows.scores[::stride], True, rows.ids[::stride], rows.kept)
    if not w[::stride].any():
        return 0.0
    temperature, status, _ = minimize(part, w[::stride], bounds, slope_at(part, w[::stride], 1.0))
    return -math.log(temperature) if status == "converged" else 0.0


def _refuse_masked(rows: Predictions, row: int) -> None:
    number = int(np.flatnonzero(rows.kept)[row])
    raise InvalidInput(
        "logits and labels",
        expected="a finite logit for the class of the label",
        found=f"-inf in row {number}, whose label is {int(rows.ids[row])}",
        fix="Unmask the class or leave the row out: its NLL is infinite at every T.",
    )
