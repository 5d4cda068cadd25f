"""The terms that a statistics rule can be made of, measured on the tasks of runs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from temperance.errors import NotFound
from temperance.rules.statistics import SIZES, variable_value
from temperance.study.moments import Linear
from temperance.study.runs import Curve

__all__ = ["Terms", "candidate_terms"]

_CONSTANT = 1e-9  # spread of a column, relative to its size, that says nothing

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Terms:
    """Columns of a regression.

    Attributes:
        names: terms as ``rules.statistics`` writes them, ``p`` of them.
        standard: their values, shifted and divided to mean 0 and spread 1, ``[n, p]``.
        mean: the shift, ``[p]``.
        spread: the divisor, ``[p]``.
        missing: statistics that not every task has; no term is made of them.
    """

    names: tuple[str, ...]
    standard: Array
    mean: Array
    spread: Array
    missing: tuple[str, ...]

    def predict(self, row: Array, model: Linear) -> float:
        """Give what a model says for one row of ``standard``."""
        return float(model.weights[0] + row[list(model.chosen)] @ model.weights[1:])

    def coefficients(self, model: Linear) -> tuple[float, tuple[tuple[str, float], ...]]:
        """Give offset and coefficients of a model, for the terms as they are."""
        chosen = list(model.chosen)
        values = model.weights[1:] / self.spread[chosen]
        offset = float(model.weights[0] - values @ self.mean[chosen])
        names = [self.names[place] for place in chosen]
        return offset, tuple(zip(names, values.tolist(), strict=True))


def candidate_terms(curves: Sequence[Curve], statistics: Sequence[str] | None = None) -> Terms:
    """Make all terms that every task has.

    A statistic is a term as it is and, where it is positive on all tasks, as its logarithm; M, C
    and n are logarithms. Left out: terms that are the same on all tasks, and statistics that are
    M, C or n under another name.

    Args:
        curves: the runs.
        statistics: names to choose from, among statistics, ``M``, ``C`` and ``n``; None for all.

    Returns:
        The columns.

    Raises:
        NotFound: for a name that no task has.
    """
    tasks = [curve.task for curve in curves]
    there = sorted({name for task in tasks for name in task.statistics})
    wanted = list(statistics) if statistics is not None else [*SIZES, *there]
    for name in wanted:
        if name not in (*SIZES, *there):
            raise NotFound(
                "statistic",
                found=f"no task has {name!r}",
                candidates=[*SIZES, *there],
                fix="Name one of them.",
            )
    columns: dict[str, Array] = {}
    missing = []
    sizes = [np.array([_value(size, curve) for curve in curves]) for size in SIZES]
    for name in wanted:
        values = np.array([_value(name, curve) for curve in curves])
        if not np.isfinite(values).all():
            missing.append(name)
            continue
        if name not in SIZES and any(np.array_equal(values, size) for size in sizes):
            continue
        if (values > 0).all():
            columns[f"log({name})"] = np.log(values)
        if name not in SIZES:
            columns[name] = values
    kept = {name: x for name, x in columns.items() if x.std() > _CONSTANT * np.abs(x).max()}
    table = np.array(list(kept.values())).reshape(len(kept), len(curves)).T
    mean, spread = table.mean(axis=0), table.std(axis=0)
    return Terms(tuple(kept), (table - mean) / spread, mean, spread, tuple(missing))


def _value(name: str, curve: Curve) -> float:
    task = curve.task
    known = name in task.statistics or (name in SIZES and (name != "n" or task.n_samples))
    return variable_value(name, task) if known else math.nan
