"""One temperature fitted after training, on held-out logits.

The fit is a bracketed search for the minimum of a convex function (``nll_curve``). There is no
learning rate, T is positive by construction, and every input ends in a value and a status.

Only a T that has converged is applied to other rows. At a bound the rows do not say what T is: if
all of them are right, the NLL falls all the way to T = 0, and the T of the bound, 1e-4, would turn
the first wrong row among others into an NLL of thousands.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import closing
from typing import Any, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray
from torch import nn

from temperance.errors import InvalidInput
from temperance.evaluation.logit_rows import read_logit_rows
from temperance.evaluation.predict import logit_batches
from temperance.evaluation.predictions import read_array
from temperance.evaluation.stream import fit_temperature_stream
from temperance.evaluation.temperature_fit import (
    BOUNDS,
    TemperatureFit,
    check_bounds,
    check_temperature,
    fit_rows,
)

__all__ = ["BOUNDS", "TemperatureFit", "apply_temperature", "fit_temperature"]


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
    check_temperature(temperature)
    z = read_array(logits, "logits")
    if z.dtype.kind not in "fiu":
        raise InvalidInput(
            "logits",
            expected="numbers",
            found=f"type {z.dtype}",
            fix="Pass what the model puts out.",
        )
    return z.astype(np.float64) / float(temperature)


@overload
def fit_temperature(
    model: nn.Module,
    loader: Iterable[Any],
    *,
    key: str | int | None = None,
    ignore: tuple[object, ...] = (),
    axis: int | None = None,
    bounds: tuple[float, float] = BOUNDS,
) -> TemperatureFit: ...


@overload
def fit_temperature(
    *,
    logits: ArrayLike,
    labels: ArrayLike,
    ignore: tuple[object, ...] = (),
    weights: ArrayLike | None = None,
    axis: int | None = None,
    bounds: tuple[float, float] = BOUNDS,
) -> TemperatureFit: ...


def fit_temperature(
    model: nn.Module | None = None,
    loader: Iterable[Any] | None = None,
    *,
    key: str | int | None = None,
    logits: ArrayLike | None = None,
    labels: ArrayLike | None = None,
    ignore: tuple[object, ...] = (),
    weights: ArrayLike | None = None,
    axis: int | None = None,
    bounds: tuple[float, float] = BOUNDS,
) -> TemperatureFit:
    """Fit the temperature with the lowest NLL on held-out logits, or on a held-out loader.

    ``T = argmin mean_i w_i (logsumexp(z_i / T) - z_i[y_i] / T)``, plain NLL, relative error of T
    below 1e-9. Fit on rows that the model was not trained on: on training rows T comes out too low.

    Memory does not grow with the rows beyond the labels: the logits are widened to float64 piece by
    piece, whatever their precision, layout or device. Logits larger than memory go in as a memory
    map, or through ``fit_temperature_stream``.

    Args:
        model: runs over ``loader`` once, in evaluation mode, and is left as it was; the logits wait
            in a temporary file if they are large.
        loader: batches with labels.
        key: which entry of the model's output holds the logits, if it is not clear.
        logits: numbers before the softmax, shape ``[n, C]``; for two classes also ``[n]`` or
            ``[n, 1]``, the logit of class 1; dense ones in any shape, with ``axis``.
            Log-probabilities are valid logits; -inf marks a class that a row cannot have. Any
            precision; NumPy, tensors or lists.
        labels: class ids ``0 .. C-1``, shape ``[n]``, or that of dense logits without the class
            axis.
        ignore: numbers in ``labels`` that mark rows without a label, or one such number; these rows
            are left out.
        weights: one number of 0 or more per row; all rows count the same if absent.
        axis: the class axis; must be given for logits of more than two axes: 1 for (B, C, H, W).
        bounds: lower and upper bound of T, with 1 between them.

    Returns:
        T with its status, 95 % interval and the NLL before and after. Unless the status is
        ``"converged"``, T is not applied to other rows: see ``TemperatureFit.applied``.

    Raises:
        InvalidInput: for probabilities passed as logits; for NaN, +inf, a label out of range or a
            label whose class is masked, naming the row; for no rows; for weights, bounds or an axis
            that cannot be used; if it is not one of the two forms.

    Example:
        >>> from temperance import fit_temperature
        >>> fit = fit_temperature(logits=[[8.0, 0.0]] * 3 + [[0.0, 8.0]], labels=[0, 0, 0, 0])
        >>> round(fit.temperature, 4), fit.status  # three of four are right: 8 / T = log 3
        (7.2819, 'converged')

    Reference:
        Guo, Pleiss, Sun, Weinberger, On calibration of modern neural networks, 2017,
        arXiv 1706.04599, section 4.2.
    """
    bounds = check_bounds(bounds)
    arrays = (logits, labels, weights)
    if model is not None and loader is not None and all(a is None for a in arrays):
        with closing(logit_batches(model, loader, key=key, dense=axis is not None)) as batches:
            return fit_temperature_stream(batches, ignore=ignore, axis=axis, bounds=bounds)
    parts = (model, loader, key)
    if any(part is not None for part in parts) or logits is None or labels is None:
        raise InvalidInput(
            "fit_temperature",
            expected="fit_temperature(model, loader) or fit_temperature(logits=..., labels=...)",
            found="a part of one form, or of both",
            fix="Pass a model with a loader, or arrays with labels.",
        )
    rows = read_logit_rows(logits, labels, ignore=ignore, weights=weights, axis=axis)
    return fit_rows(rows, bounds)
