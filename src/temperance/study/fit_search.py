"""The search for coefficients: differential evolution, what cannot be told apart, the bootstrap."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import differential_evolution, minimize

from temperance.errors import InvalidInput
from temperance.study.fit_objective import RegretTable, RuleForm

__all__ = ["Problem", "default_bounds", "inseparable", "refine", "search"]

_POPULATION = 15  # members per coefficient, SciPy's default
_GENERATIONS = 1000  # at most, SciPy's default; the search ends when its members agree
_AGREE = 1e-6  # spread of the members' values, relative to their mean
_SHORT = 60  # generations of a refit that starts from an optimum near by
_NEAR = 0.05  # width of its first population, as a share of the bounds
_REACH = 4.0  # bounds: how far one term may move T, in largest tried temperatures
_WORST = 1e6  # regret of coefficients that give no number
_SAME = 1e-7  # singular values below this share of the largest: columns that say the same

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Problem:
    """A rule, the curves it is fitted on, and how much each counts.

    Attributes:
        form: the rule as a function of its coefficients.
        table: regret of the curves.
        weights: of the curves, ``[n]``, sum 1.
        bounds: smallest and largest value of every coefficient, ``[p, 2]``.
    """

    form: RuleForm
    table: RegretTable
    weights: Array
    bounds: Array

    def regrets(self, coefficients: Array) -> Array:
        """Give the regret of every curve, ``[n, s]``, for coefficients ``[p, s]``."""
        found = self.table.regret(self.form.temperatures(coefficients))
        return np.where(np.isfinite(found), found, _WORST)

    def value(self, coefficients: Array) -> Any:
        """Give the weighted mean of the regrets, for coefficients ``[p]`` or ``[p, s]``."""
        columns = coefficients.reshape(len(self.form.names), -1)
        found = self.weights @ self.regrets(columns)
        return found if coefficients.ndim == 2 else float(found[0])

    def weighted(self, weights: Array) -> Problem:
        """Give the same problem with other weights."""
        return replace(self, weights=weights)


def default_bounds(
    form: RuleForm, table: RegretTable, given: Mapping[str, Sequence[float]] | None = None
) -> Array:
    """Give the range in which every coefficient is searched.

    For a rule that is linear in its coefficients: as far as lets that term alone move T by four
    times the largest tried temperature, on either side of 0. For any other: the rule's own value
    plus and minus ten times its size (at least 10). The rule's own value is always inside.

    Args:
        form: the rule.
        table: the curves.
        given: ranges by coefficient that replace these.

    Returns:
        ``[p, 2]``.

    Raises:
        InvalidInput: for a name that the rule has not, or a range without width.
    """
    if form.design is None:
        reach = 10 * np.maximum(np.abs(form.start), 1.0)
        low, high = form.start - reach, form.start + reach
    else:
        largest = np.abs(form.design).max(axis=0)
        reach = _REACH * float(np.exp(table.high.max())) / np.where(largest > 0, largest, 1.0)
        low, high = np.minimum(-reach, form.start), np.maximum(reach, form.start)
    bounds = np.stack([low, high], axis=1)
    for name, ends in (given or {}).items():
        if name not in form.names or len(ends) != 2 or not float(ends[0]) < float(ends[1]):
            raise InvalidInput(
                f"bounds of {name}",
                expected=f"(lower, upper) of one of {', '.join(form.names)}",
                found=repr(ends),
                fix='For instance {"alpha": (0, 2)}.',
            )
        bounds[form.names.index(name)] = ends
    return bounds


def search(problem: Problem, *, seed: int) -> Array:
    """Find the coefficients with the lowest regret: differential evolution, then a polish.

    SciPy's ``differential_evolution`` (best1bin, 15 members per coefficient, vectorized) starts
    from the rule's own coefficients and a Latin hypercube over the bounds; Nelder and Mead's
    simplex polishes what it finds.

    Args:
        problem: rule, curves, weights, bounds.
        seed: of the evolution.

    Returns:
        Coefficients, ``[p]``.

    Reference:
        R. Storn, K. Price, "Differential evolution: a simple and efficient heuristic for global
        optimization over continuous spaces", Journal of Global Optimization 11, 1997.
    """
    found = _evolve(problem, seed, x0=np.clip(problem.form.start, *problem.bounds.T))
    return _settled(problem, _polish(problem, found))


def refine(problem: Problem, near: Array, *, seed: int) -> Array:
    """Find the coefficients again after a small change, by a short evolution around the old ones.

    Args:
        problem: the changed problem.
        near: coefficients of the unchanged one.
        seed: of the evolution.

    Returns:
        Coefficients, ``[p]``.
    """
    rng = np.random.default_rng(seed)
    width = np.diff(problem.bounds, axis=1)[:, 0] * _NEAR
    members = max(5, _POPULATION * len(near) // 2)
    init = np.clip(near + width * rng.normal(size=(members, len(near))), *problem.bounds.T)
    init[0] = near
    return _settled(problem, _evolve(problem, seed, init=init, generations=_SHORT))


def _evolve(
    problem: Problem,
    seed: int,
    *,
    x0: Array | None = None,
    init: Any = "latinhypercube",
    generations: int = _GENERATIONS,
) -> Array:
    found = differential_evolution(
        problem.value,
        problem.bounds,
        vectorized=True,
        updating="deferred",
        polish=False,
        popsize=_POPULATION,
        maxiter=generations,
        tol=_AGREE,
        seed=np.random.default_rng(seed),
        init=init,
        x0=x0,
    )
    return np.asarray(found.x, np.float64)


def _polish(problem: Problem, start: Array) -> Array:
    found = minimize(
        problem.value,
        start,
        method="Nelder-Mead",
        bounds=problem.bounds,
        options={"maxiter": 200 * len(start), "fatol": 1e-10, "xatol": 1e-6},
    )
    return np.asarray(found.x) if found.fun < problem.value(start) else start


# ------------------------------------------------------------------ what cannot be told apart
def _blind(problem: Problem) -> tuple[Array, Array] | None:
    """Directions in which the coefficients can move without moving any T, and their scale."""
    design = problem.form.design
    if design is None:
        return None
    rows = design[problem.weights > 0]
    scale = np.sqrt((rows**2).mean(axis=0))
    scale[scale == 0] = 1.0
    _, singular, right = np.linalg.svd(rows / scale, full_matrices=True)
    rank = int((singular > _SAME * singular[0]).sum())
    return right[rank:].T, scale


def _settled(problem: Problem, found: Array) -> Array:
    """Where coefficients cannot be told apart, take those nearest to the rule's own ones."""
    blind = _blind(problem)
    if blind is None or not blind[0].size:
        return found
    directions, scale = blind
    moved = (found - problem.form.start) * scale
    settled = problem.form.start + (moved - directions @ (directions.T @ moved)) / scale
    settled = np.clip(settled, *problem.bounds.T)
    return settled if problem.value(settled) <= problem.value(found) + 1e-9 else found


def inseparable(problem: Problem) -> tuple[str, ...]:
    """Name the coefficients that these tasks cannot tell apart.

    With one M in all tasks, ``alpha * sqrt(M)`` and ``beta`` are one number.

    Args:
        problem: rule and curves.

    Returns:
        Their names; none where each has an effect of its own.
    """
    blind = _blind(problem)
    if blind is None:
        return ()
    involved = np.flatnonzero(np.abs(blind[0]).max(axis=1, initial=0.0) > 1e-6)
    return tuple(problem.form.names[place] for place in involved)
