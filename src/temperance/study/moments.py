"""Least squares from sums over data sets, so that leaving one out is a subtraction.

For each data set ``S_d = mean over its tasks of v v^T`` with ``v = (1, x_1 .. x_p, y)``. Any fit on
some data sets, with each counting once, and its error on others, follow from sums of these.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["Linear", "forward", "moments", "ridge", "solve", "squared_error"]

_LAMBDAS = np.logspace(-4, 3, 29)  # of ridge, on columns of unit spread
_JITTER = 1e-10  # share of the diagonal that keeps a singular system solvable

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Linear:
    """A linear model of ``y``.

    Attributes:
        chosen: places of the columns that it uses.
        weights: offset and the coefficient of each of them, ``[1 + len(chosen)]``.
        penalty: lambda of ridge; 0 without.
    """

    chosen: tuple[int, ...]
    weights: Array
    penalty: float = 0.0


def moments(x: Array, y: Array, names: Sequence[str]) -> tuple[tuple[str, ...], Array]:
    """Give the second moments of every data set.

    Args:
        x: columns, ``[n, p]``.
        y: target, ``[n]``.
        names: data set of every row.

    Returns:
        The data sets, sorted, and ``[data sets, p + 2, p + 2]``.
    """
    unique, place = np.unique(np.asarray(names, dtype=str), return_inverse=True)
    rows = np.column_stack([np.ones(len(y)), x, y])
    groups = [rows[place == d] for d in range(len(unique))]
    return tuple(map(str, unique)), np.stack([group.T @ group / len(group) for group in groups])


def solve(total: Array, chosen: Sequence[int], penalty: float = 0.0) -> Linear:
    """Fit ``y`` by some columns, from the sum of the moments.

    Args:
        total: sum over data sets, ``[p + 2, p + 2]``.
        chosen: places of the columns.
        penalty: lambda of ridge on columns of unit spread; the offset is free. At 1 a coefficient
            that stands alone is halved.

    Returns:
        The model.
    """
    columns = np.array([[0, *(1 + c for c in chosen)]])
    return Linear(tuple(chosen), _solved(total[None], columns, penalty)[0, 0], penalty)


def _solved(totals: Array, columns: NDArray[np.intp], penalty: float = 0.0) -> Array:
    """Weights ``[t, c, k]`` for sums of moments ``[t, ...]`` and sets of columns ``[c, k]``."""
    gram = totals[:, columns[:, :, None], columns[:, None, :]]
    right = totals[:, columns, -1]
    diagonal = np.einsum("tcii->tci", gram)
    # By the unit spread over all tasks, and not by that of the data sets at hand: a column that
    # hardly varies among these would be shrunk as little, and lead far away on others.
    shrink = penalty * totals[:, 0, 0][:, None, None] + _JITTER * diagonal
    shrink[:, :, 0] = 0.0
    place = np.arange(columns.shape[1])
    gram[:, :, place, place] += shrink
    return np.asarray(np.linalg.solve(gram, right[..., None])[..., 0], np.float64)


def squared_error(part: Array, model: Linear) -> float:
    """Give the mean squared error of a model on one data set, ``part`` its moments."""
    row = np.zeros(len(part))
    row[0], row[-1] = -model.weights[0], 1.0
    row[[1 + c for c in model.chosen]] = -model.weights[1:]
    return max(float(row @ part @ row), 0.0)


# ------------------------------------------------------------------ choosing
def forward(parts: Array, *, most: int) -> Linear:
    """Choose columns one by one, and how many, by leave-one-data-set-out error.

    In each step the column with the lowest error joins. Of the models with 0 to ``most`` columns on
    that way the smallest stays whose error is within one standard error (over data sets, of the
    difference) of the lowest: among many candidates some help by chance.

    Args:
        parts: moments of the data sets, ``[D, p + 2, p + 2]``, two or more.
        most: columns at most.

    Returns:
        The model, fitted on all of them.

    Reference:
        L. Breiman et al., "Classification and regression trees", 1984, section 3.4.3 (the rule of
        one standard error).
    """
    chosen: list[int] = []
    errors = [_left_out(parts, np.array([[0]]))[:, 0]]
    for _ in range(min(most, parts.shape[1] - 2)):
        free = [c for c in range(parts.shape[1] - 2) if c not in chosen]
        columns = np.array([[0, *(1 + c for c in chosen), 1 + c] for c in free])
        squares = _left_out(parts, columns)
        best = int(squares.mean(axis=0).argmin())
        chosen.append(free[best])
        errors.append(squares[:, best])
    return solve(parts.sum(axis=0), chosen[: _fewest(np.array(errors))])


def _fewest(errors: Array) -> int:
    """Smallest model within one standard error of the best; errors ``[models, data sets]``."""
    excess = errors - errors[int(errors.mean(axis=1).argmin())]
    spread = excess.std(axis=1, ddof=1) / np.sqrt(errors.shape[1])
    return int(np.argmax(excess.mean(axis=1) <= spread))


def _left_out(parts: Array, columns: NDArray[np.intp], penalty: float = 0.0) -> Array:
    """Mean squared error ``[D, c]`` on each data set of the model of the others."""
    weights = _solved(parts.sum(axis=0) - parts, columns, penalty)
    gram = parts[:, columns[:, :, None], columns[:, None, :]]
    cross = parts[:, columns, -1]
    squares = (
        parts[:, -1, -1][:, None]
        - 2 * np.einsum("dck,dck->dc", weights, cross)
        + np.einsum("dck,dckl,dcl->dc", weights, gram, weights)
    )
    return np.maximum(squares, 0.0)


def ridge(parts: Array) -> Linear:
    """Use all columns, with the penalty that has the lowest leave-one-data-set-out error.

    Args:
        parts: moments of the data sets, ``[D, p + 2, p + 2]``, two or more.

    Returns:
        The model, fitted on all of them.

    Reference:
        A. Hoerl, R. Kennard, "Ridge regression: biased estimation for nonorthogonal problems",
        Technometrics 12, 1970.
    """
    columns = np.arange(parts.shape[1] - 1)[None]
    errors = [_left_out(parts, columns, penalty).mean() for penalty in _LAMBDAS]
    everything = range(parts.shape[1] - 2)
    return solve(parts.sum(axis=0), everything, float(_LAMBDAS[int(np.argmin(errors))]))
