"""The record of a fitted temperature, and the fit itself on rows that are walked in blocks.

The first pass over the rows finds all that must be known of them beside the slope (``Survey``), and
keeps every so many rows for the first steps of the search. It takes two or three passes more.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from temperance.errors import InvalidInput
from temperance.evaluation.logit_rows import Rows
from temperance.evaluation.nll_curve import Block, Sample, Slope, search, slope_of
from temperance.evaluation.predictions import (
    FLOOR,
    read_array,
    read_logits,
    refuse_probs_as_logits,
    row_chunks,
)

__all__ = ["BOUNDS", "TemperatureFit", "check_bounds", "check_temperature", "fit_rows"]

BOUNDS = (1e-4, 1e6)  # of T; two decades beyond the 1e-3 .. 1e4 that real logits were seen to need
_WIDEST = 1e100  # bounds beyond which products in float64 overflow
_Z95 = 1.959963984540054  # 97.5 % point of the normal distribution
_CHI95 = 3.841458820694124  # 95 % point of chi-squared with one degree of freedom
_MANY, _TRAINED = 200, 0.999  # rows, and the accuracy on them that held-out rows hardly reach
_FEW = 30  # rows below which the normal approximation of the interval is poor
_LOOKS_LIKE_PROBS = 5e-3  # logits whose rows all sum to 1 this closely are probabilities


@dataclass(frozen=True)
class TemperatureFit:
    """A temperature fitted on held-out logits, with all that is needed to judge it.

    Attributes:
        temperature: T of the lowest NLL inside the bounds, positive; what divides the logits of
            other rows is ``applied``.
        status: ``"converged"``, ``"at lower bound"`` or ``"at upper bound"`` (the NLL still falls
            there: it has no minimum inside), or ``"not identifiable"`` (the NLL does not depend
            on T; T is then 1).
        interval: 95 % interval of T from the observed information in log T; None unless converged.
        nll_before: NLL of the fit rows at T = 1, in nats.
        nll_after: NLL of the fit rows at T; never above ``nll_before``.
        n: number of fit rows.
        bounds: lower and upper bound of T.
        notes: what else should be known about the fit, in words; empty when all is well.
    """

    temperature: float
    status: str
    interval: tuple[float, float] | None
    nll_before: float
    nll_after: float
    n: int
    bounds: tuple[float, float] = BOUNDS
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_temperature(self.temperature)

    @property
    def applied(self) -> float:
        """The T to divide the logits of other rows by: ``temperature`` if converged, else 1."""
        return self.temperature if self.status == "converged" else 1.0

    def probs(self, logits: ArrayLike, *, axis: int | None = None) -> NDArray[np.float64]:
        """Calibrated probabilities ``softmax(logits / applied)``, float64.

        Args:
            logits: shape ``[n, C]``; for two classes also ``[n]`` or ``[n, 1]``, the logit of
                class 1 (the result has two columns then). Any shape with ``axis``.
            axis: the class axis of logits with more than two axes, such as 1 for (B, C, H, W).
        """
        if axis is None:
            return self._rows(read_logits(logits))
        moved = np.moveaxis(read_array(logits, "logits"), axis, -1)
        flat = self._rows(read_logits(moved.reshape(-1, moved.shape[-1])))
        return np.moveaxis(flat.reshape(*moved.shape[:-1], -1), -1, axis)

    def _rows(self, z: NDArray[np.generic]) -> NDArray[np.float64]:
        out = np.empty(z.shape)
        for part in row_chunks(*z.shape):
            d = z[part].astype(np.float64)
            d -= d.max(axis=1, keepdims=True)
            p = np.exp(d / self.applied)
            out[part] = p / p.sum(axis=1, keepdims=True)
        return out


# ------------------------------------------------------------------ the fit
def fit_rows(rows: Rows, bounds: tuple[float, float]) -> TemperatureFit:
    """Fit T on rows that can be walked again and again.

    Args:
        rows: gives the same blocks, in any order, on every walk.
        bounds: of T, checked.

    Raises:
        InvalidInput: if there are no rows, if all weights are 0, if a row cannot be used, or if the
            logits are probabilities.
    """
    survey = _survey(rows)
    before, notes = survey.before, _notes(survey, rows)
    if not before.spread:
        fit = (1.0, "not identifiable", None, before.nll, before.nll, survey.n)
        kept = [note for note in notes if "training data" not in note]  # ties count as right there
        return TemperatureFit(*fit, bounds, (_NOTHING, *kept))
    temperature, status, at = search(rows, survey.sample, bounds, before)
    if at.nll > before.nll and status == "converged":  # the same but for rounding
        temperature, at = 1.0, slope_of(rows, 1.0)
    interval = _interval(1 / temperature, at, survey, bounds) if status == "converged" else None
    nll = (before.nll, min(at.nll, before.nll), survey.n)
    notes = (*_fit_notes(rows, survey, status, at), *notes)
    return TemperatureFit(temperature, status, interval, *nll, bounds, notes)


class Survey:
    """What one pass over the rows says about them beside the slope.

    Attributes:
        before: the NLL at T = 1, without derivatives.
        sample: rows kept for the first steps of the search.
        n: number of rows.
        uniform: NLL of the same probability for all classes that a row can have.
        n_effective: number of rows of equal weight that carry as much information.
        probs: whether every row lies in [0, 1] and sums to 1.
        unit: whether there are two classes, the first logit 0 and the second in [0, 1].
    """

    before: Slope

    def __init__(self) -> None:
        self.sample = Sample()
        self.n, self.probs, self.unit = 0, True, True
        self._total = self._uniform = self._squares = self._scale = 0.0

    def watch(self, rows: Rows) -> Iterator[Block]:
        """Pass the blocks on, and look at them."""
        for block in rows:
            self.sample.add(block)
            self._add(block)
            yield block

    def _add(self, block: Block) -> None:
        d, w = block.d, block.w
        self.n += d.shape[1]
        self._total += float(w.sum())
        possible = (d > FLOOR).sum(axis=0) if block.masked else np.full(d.shape[1], len(d))
        self._uniform += float(w @ np.log(possible))
        scale = max(self._scale, float(w.max(initial=0.0)))
        if scale > 0:  # squares of weights relative to the largest, lest they overflow
            self._squares *= (self._scale / scale) ** 2
            self._squares += float(np.square(w / scale).sum())
            self._scale = scale
        self.probs = self.probs and _all_probs(block)
        self.unit = self.unit and len(d) == 2 and bool((d[1] == 0).all() and (d[0] >= -1).all())

    @property
    def total(self) -> float:
        """Sum of the weights."""
        return self._total

    @property
    def uniform(self) -> float:
        """See the class."""
        return self._uniform / self._total

    @property
    def n_effective(self) -> float:
        """See the class."""
        return (self._total / self._scale) ** 2 / self._squares


def _all_probs(block: Block) -> bool:
    if block.masked or (block.largest > 1).any():
        return False
    z = block.d + block.largest
    sums = np.abs(z.sum(axis=0) - 1) <= _LOOKS_LIKE_PROBS
    return bool(sums.all()) and bool((z >= -1e-12).all())


def _survey(rows: Rows) -> Survey:
    survey = Survey()
    survey.before = slope_of(survey.watch(rows), 1.0, derivatives=False)
    if survey.n == 0:
        raise InvalidInput(
            "labels",
            expected="at least one row with a label",
            found="none that is not ignored",
            fix="Choose a split with labels.",
        )
    if not survey.total > 0:
        raise InvalidInput(
            "weights",
            expected="at least one weight above 0",
            found="zeros only",
            fix="Leave weights out to count all rows the same.",
        )
    if survey.probs and survey.n >= 2 and rows.floating and not rows.one_column:
        refuse_probs_as_logits(survey.n)
    return survey


def _interval(
    b: float, at: Slope, survey: Survey, bounds: tuple[float, float]
) -> tuple[float, float] | None:
    """``T * exp(+-1.96 / sqrt(information))``; information in log T is ``n b^2 var(z)``."""
    information = survey.n_effective * b * b * at.curvature
    if not information > 0:
        return None
    half = min(_Z95 / math.sqrt(information), 200.0)
    return max(bounds[0], math.exp(-half) / b), min(bounds[1], math.exp(half) / b)


# ------------------------------------------------------------------ notes
_NOTHING = "every row gives all its classes the same logit, so the NLL does not depend on T"


def _notes(survey: Survey, rows: Rows) -> tuple[str, ...]:
    """What is odd about the rows."""
    notes = []
    right = 1 - survey.before.wrong
    if survey.n >= _MANY and right > _TRAINED:
        notes.append(
            f"accuracy on the {survey.n} fit rows is {right:.2%}: this looks like "
            "training data, on which T comes out too low for new rows"
        )
    if rows.one_column and survey.unit:
        notes.append(
            "all single logits lie in [0, 1]: if they are probabilities of class 1, pass "
            "log(p / (1 - p)) instead"
        )
    if survey.n < _FEW:
        notes.append(f"only {survey.n} fit rows: T is rough, and so is its interval")
    return tuple(notes)


def _fit_notes(rows: Rows, survey: Survey, status: str, at: Slope) -> tuple[str, ...]:
    """What is odd about the result."""
    notes = []
    if _uninformative(rows, survey, status, at):
        notes.append(
            "these rows do not show that the logits carry information on the labels (uniform "
            "probabilities, T to infinity, fit as well); check that the classes are in one order"
        )
    if status == "at lower bound":
        why = "" if at.wrong else ": every row is right, so that it falls all the way to T = 0"
        notes.append(f"the NLL still falls at the lower bound{why}")
    if status == "at upper bound":
        notes.append("the NLL still falls at the upper bound")
    return tuple(notes)


def _uninformative(rows: Rows, survey: Survey, status: str, at: Slope) -> bool:
    """Whether uniform probabilities fit these rows as well as the best T does."""
    if status == "at lower bound":
        return False
    if status == "at upper bound":  # which may be the caller's own: is there a minimum beyond it?
        return slope_of(rows, 1.0 / BOUNDS[1]).slope >= 0
    return bool(2 * survey.n_effective * (survey.uniform - at.nll) < _CHI95)


# ------------------------------------------------------------------ the checks
def check_bounds(bounds: Any) -> tuple[float, float]:
    """Check the bounds of T.

    Raises:
        InvalidInput: unless they are two numbers with 1 between them.
    """
    pair = tuple(bounds) if isinstance(bounds, (tuple, list, np.ndarray)) else ()
    low, high = map(_number, pair) if len(pair) == 2 else (math.nan, math.nan)
    if not 1 / _WIDEST <= low < 1 < high <= _WIDEST:
        raise InvalidInput(
            "bounds",
            expected="two numbers, 1e-100 <= lower < 1 < upper <= 1e100, so that T is never worse "
            "than 1",
            found=repr(bounds),
            fix=f"The default is {BOUNDS}.",
        )
    return low, high


def check_temperature(temperature: Any) -> None:
    """Raise InvalidInput unless T is a positive, finite number."""
    if not 0 < _number(temperature) < math.inf:
        raise InvalidInput(
            "temperature",
            expected="a positive, finite number",
            found=repr(temperature),
            fix="Fit it with temperance.fit_temperature.",
        )


def _number(value: Any) -> float:
    """The number, or NaN for what is none; text is none, even of digits."""
    try:
        return math.nan if isinstance(value, (str, bytes)) else float(value)
    except (TypeError, ValueError, RuntimeError):
        return math.nan
