"""One temperature fitted after training, on held-out logits.

The fit is a bracketed search for the minimum of a convex function (``nll_curve``). There is no
learning rate, T is positive by construction, and every input ends in a value and a status.

Only a T that has converged is applied to other rows. At a bound the rows do not say what T is: if
all of them are right, the NLL falls all the way to T = 0, and the T of the bound, 1e-4, would turn
the first wrong row among others into an NLL of thousands.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from temperance.arrays import as_numpy
from temperance.errors import InvalidInput
from temperance.evaluation.nll_curve import Slope, minimize, slope_at
from temperance.evaluation.predictions import (
    Predictions,
    read_array,
    read_logits,
    read_predictions,
    row_chunks,
)

__all__ = ["BOUNDS", "TemperatureFit", "apply_temperature", "fit_temperature"]

BOUNDS = (1e-4, 1e6)  # of T; two decades beyond the 1e-3 .. 1e4 that real logits were seen to need
_Z95 = 1.959963984540054  # 97.5 % point of the normal distribution
_CHI95 = 3.841458820694124  # 95 % point of chi-squared with one degree of freedom
_MANY, _TRAINED = 200, 0.999  # rows, and the accuracy on them that held-out rows hardly reach
_FEW = 30  # rows below which the normal approximation of the interval is poor


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
        _check_temperature(self.temperature)

    @property
    def applied(self) -> float:
        """The T to divide the logits of other rows by: ``temperature`` if converged, else 1."""
        return self.temperature if self.status == "converged" else 1.0

    def probs(self, logits: ArrayLike) -> NDArray[np.float64]:
        """Calibrated probabilities ``softmax(logits / applied)``, shape ``[n, C]``, float64.

        Args:
            logits: shape ``[n, C]``; for two classes also ``[n]`` or ``[n, 1]``, the logit of
                class 1 (the result has two columns then).
        """
        z = read_logits(logits)
        out = np.empty(z.shape)
        for part in row_chunks(*z.shape):
            d = z[part].astype(np.float64)
            d -= d.max(axis=1, keepdims=True)
            p = np.exp(d / self.applied)
            out[part] = p / p.sum(axis=1, keepdims=True)
        return out


def apply_temperature(logits: ArrayLike, temperature: float) -> NDArray[np.float64]:
    """Divide logits by a temperature, in float64.

    Args:
        logits: any shape; half precision is widened before the division.
        temperature: T, a positive number.

    Returns:
        ``logits / T`` in the same shape.

    Raises:
        InvalidInput: if T is not a positive, finite number, or the logits are not numbers.

    Example:
        >>> from temperance.evaluation import apply_temperature
        >>> apply_temperature([[2.0, 0.0]], 4.0).tolist()
        [[0.5, 0.0]]
    """
    _check_temperature(temperature)
    z = read_array(logits, "logits")
    if z.dtype.kind not in "fiu":
        raise InvalidInput(
            "logits",
            expected="numbers",
            found=f"type {z.dtype}",
            fix="Pass what the model puts out.",
        )
    return z.astype(np.float64) / float(temperature)


def fit_temperature(
    *,
    logits: ArrayLike,
    labels: ArrayLike,
    ignore: tuple[object, ...] = (),
    weights: ArrayLike | None = None,
    bounds: tuple[float, float] = BOUNDS,
) -> TemperatureFit:
    """Fit the temperature with the lowest NLL on held-out logits.

    ``T = argmin mean_i w_i (logsumexp(z_i / T) - z_i[y_i] / T)``, plain NLL, relative error of T
    below 1e-6. Fit on rows that the model was not trained on: on training rows T comes out too low.

    Args:
        logits: numbers before the softmax, shape ``[n, C]``; for two classes also ``[n]`` or
            ``[n, 1]``, the logit of class 1. Log-probabilities are valid logits; -inf marks a class
            that a row cannot have. Any precision; NumPy, tensors or lists.
        labels: class ids ``0 .. C-1``, shape ``[n]``.
        ignore: numbers in ``labels`` that mark rows without a label, or one such number; these rows
            are left out.
        weights: one number of 0 or more per row; all rows count the same if absent.
        bounds: lower and upper bound of T, with 1 between them.

    Returns:
        T with its status, 95 % interval and the NLL before and after. Unless the status is
        ``"converged"``, T is not applied to other rows: see ``TemperatureFit.applied``.

    Raises:
        InvalidInput: for probabilities passed as logits; for NaN, +inf, a label out of range or a
            label whose class is masked, naming the row; for no rows; for weights or bounds that
            cannot be used.

    Example:
        >>> from temperance import fit_temperature
        >>> fit = fit_temperature(logits=[[8.0, 0.0]] * 3 + [[0.0, 8.0]], labels=[0, 0, 0, 0])
        >>> round(fit.temperature, 4), fit.status  # three of four are right: 8 / T = log 3
        (7.2819, 'converged')

    Reference:
        Guo, Pleiss, Sun, Weinberger, On calibration of modern neural networks, 2017,
        arXiv 1706.04599, section 4.2.
    """
    bounds = _check_bounds(bounds)
    rows = read_predictions(logits=logits, labels=labels, ignore=ignore)
    w = _read_weights(weights, rows)
    before = slope_at(rows, w, 1.0)
    one_column = rows.n_classes == 2 and np.size(as_numpy(logits)) == len(rows.kept)
    notes = _notes(rows, before, one_column=one_column)
    if not before.spread:
        found = (1.0, before.nll, before.nll, len(rows))
        return _fit("not identifiable", None, found, bounds, (_NOTHING, *notes))
    temperature, status, at = minimize(rows, w, bounds, before)
    if at.nll > before.nll and status == "converged":  # the same but for rounding
        temperature, at = 1.0, before
    n_eff = float(w.sum() ** 2 / np.square(w).sum())
    found = (temperature, before.nll, min(at.nll, before.nll), len(rows))
    interval = _interval(1 / temperature, at, n_eff, bounds) if status == "converged" else None
    notes = (*_fit_notes(rows, w, status, at, n_eff), *notes)
    return _fit(status, interval, found, bounds, notes)


def _fit(
    status: str,
    interval: tuple[float, float] | None,
    found: tuple[float, float, float, int],
    bounds: tuple[float, float],
    notes: tuple[str, ...],
) -> TemperatureFit:
    temperature, before, after, n = found
    return TemperatureFit(temperature, status, interval, before, after, n, bounds, notes)


def _interval(
    b: float, at: Slope, n_eff: float, bounds: tuple[float, float]
) -> tuple[float, float] | None:
    """``T * exp(+-1.96 / sqrt(information))``; information in log T is ``n b^2 var(z)``."""
    information = n_eff * b * b * at.curvature
    if not information > 0:
        return None
    half = min(_Z95 / math.sqrt(information), 700.0)
    return max(bounds[0], math.exp(-half) / b), min(bounds[1], math.exp(half) / b)


# ------------------------------------------------------------------ notes
_NOTHING = "every row gives all its classes the same logit, so the NLL does not depend on T"


def _notes(rows: Predictions, before: Slope, *, one_column: bool) -> tuple[str, ...]:
    """What is odd about the rows."""
    notes = []
    if len(rows) >= _MANY and 1 - before.wrong > _TRAINED:
        notes.append(
            f"accuracy on the {len(rows)} fit rows is {1 - before.wrong:.2%}: this looks like "
            "training data, on which T comes out too low for new rows"
        )
    if one_column and rows.scores.min() >= 0 and rows.scores.max() <= 1:
        notes.append(
            "all single logits lie in [0, 1]: if they are probabilities of class 1, pass "
            "log(p / (1 - p)) instead"
        )
    if len(rows) < _FEW:
        notes.append(f"only {len(rows)} fit rows: T is rough, and so is its interval")
    return tuple(notes)


def _fit_notes(
    rows: Predictions, w: NDArray[np.float64], status: str, at: Slope, n_eff: float
) -> tuple[str, ...]:
    """What is odd about the result."""
    notes = []
    if _uninformative(rows, w, status, at, n_eff):
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


def _uninformative(
    rows: Predictions, w: NDArray[np.float64], status: str, at: Slope, n_eff: float
) -> bool:
    """Whether uniform probabilities fit these rows as well as the best T does."""
    if status == "at lower bound":
        return False
    if status == "at upper bound":  # which may be the caller's own: is there a minimum beyond it?
        return slope_at(rows, w, 1.0 / BOUNDS[1]).slope >= 0
    return bool(2 * n_eff * (_uniform_nll(rows, w) - at.nll) < _CHI95)


def _uniform_nll(rows: Predictions, w: NDArray[np.float64]) -> float:
    """NLL of the same probability for all classes that a row can have."""
    if rows.scores.dtype.kind != "f":
        return math.log(rows.n_classes)
    possible = np.concatenate(
        [np.isfinite(rows.scores[part]).sum(axis=1) for part in row_chunks(*rows.scores.shape)]
    )
    return float(w @ np.log(possible) / w.sum())


# ------------------------------------------------------------------ the checks
def _read_weights(weights: ArrayLike | None, rows: Predictions) -> NDArray[np.float64]:
    if weights is None:
        return np.ones(len(rows))
    w = read_array(weights, "weights")
    if w.shape != rows.kept.shape or w.dtype.kind not in "fiub":
        raise InvalidInput(
            "weights",
            expected=f"{len(rows.kept)} numbers, one per row",
            found=f"type {w.dtype}, shape {list(w.shape)}",
            fix="Pass one weight per row of the logits.",
        )
    w = w.astype(np.float64)
    bad = ~(np.isfinite(w) & (w >= 0))
    if bad.any():
        row = int(np.argmax(bad))
        raise InvalidInput(
            "weights",
            expected="finite numbers of 0 or more",
            found=f"{w[row]} in row {row}",
            fix="Repair the weight of that row.",
        )
    w = w[rows.kept]
    if not w.any():
        raise InvalidInput(
            "weights",
            expected="at least one weight above 0",
            found="zeros only",
            fix="Leave weights out to count all rows the same.",
        )
    return w / w.max()


def _check_bounds(bounds: Any) -> tuple[float, float]:
    pair = tuple(bounds) if isinstance(bounds, (tuple, list, np.ndarray)) else ()
    low, high = map(_number, pair) if len(pair) == 2 else (math.nan, math.nan)
    if not 0 < low < 1 < high < math.inf:
        raise InvalidInput(
            "bounds",
            expected="two numbers, 0 < lower < 1 < upper, so that T is never worse than 1",
            found=repr(bounds),
            fix=f"The default is {BOUNDS}.",
        )
    return low, high


def _check_temperature(temperature: Any) -> None:
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
