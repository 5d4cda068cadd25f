"""How far the coefficients of a fit can be trusted: intervals, left-out data sets, warnings."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from temperance.records import Estimate
from temperance.study.fit_check import data_set_weights, some
from temperance.study.fit_objective import RegretTable
from temperance.study.fit_search import Problem, inseparable, refine, search
from temperance.study.resample import FEW, METHOD, data_set_interval, resample_data_sets
from temperance.study.runs import Curve
from temperance.study.selection import mixed_settings

__all__ = [
    "Progress",
    "coefficient_intervals",
    "held_out_regrets",
    "left_out_temperatures",
    "mean_regrets",
    "notes_on",
    "notes_on_mix",
    "notes_on_plain",
]

Array = NDArray[np.float64]
Progress = Callable[[str, int, int], None]
"""Told what is being done, how much of it is done, and how much there is."""

_DRAWS = 2000  # of data sets, for the intervals of means


def coefficient_intervals(
    problem: Problem,
    found: Array,
    names: Sequence[str],
    *,
    draws: int,
    seed: int,
    tell: Progress,
) -> dict[str, tuple[float, float]]:
    """Give the 95 % interval of every coefficient, by a bootstrap over data sets.

    Args:
        problem: what was fitted.
        found: the coefficients.
        names: data set of every curve.
        draws: how many; 0 for none.
        seed: of the draws, and of the short evolution around ``found`` that fits each.
        tell: progress.

    Returns:
        Intervals by coefficient; none for coefficients that cannot be told apart, and none at all
        for one data set.
    """
    if draws == 0 or len(set(names)) < 2:
        return {}
    sample = resample_data_sets(names, replicates=draws, seed=seed)
    own = data_set_weights(names)
    blind = inseparable(problem)
    replicates = np.empty((draws, len(found)))
    for row, times in enumerate(sample.weights):
        tell("bootstrap over data sets", row, draws)
        weights = own * times[sample.place]
        drawn = problem.weighted(weights / weights.sum())
        known = inseparable(drawn) == blind
        replicates[row] = refine(drawn, found, seed=seed + row) if known else np.nan
    intervals = {}
    for place, name in enumerate(problem.form.names):
        ends = data_set_interval(float(found[place]), replicates[:, place], len(sample.names))
        if ends is not None and name not in blind:
            intervals[name] = ends
    return intervals


def left_out_temperatures(
    problem: Problem, names: Sequence[str], *, seed: int, tell: Progress
) -> Array | None:
    """Give the T of every curve by coefficients that were fitted without its data set.

    Args:
        problem: what was fitted.
        names: data set of every curve.
        seed: of the search.
        tell: progress.

    Returns:
        Temperatures, ``[n]``; None for one data set.
    """
    datasets = sorted(set(names))
    if len(datasets) < 2:
        return None
    result = np.empty(len(names))
    for done, left_out in enumerate(datasets):
        tell("leaving out one data set", done, len(datasets))
        inside = np.array([name != left_out for name in names])
        weights = np.zeros(len(names))
        weights[inside] = data_set_weights([n for n in names if n != left_out])
        found = search(problem.weighted(weights), seed=seed)
        result[~inside] = problem.form.temperatures(found[:, None])[~inside, 0]
    return result


def mean_regrets(
    table: RegretTable, temperatures: Mapping[str, Array], names: Sequence[str], *, seed: int
) -> dict[str, Estimate]:
    """Give the mean over data sets of the regret of some temperatures.

    A T outside of those that were tried is judged at the nearest tried one.

    Args:
        table: the curves.
        temperatures: ``[n]``, by what chose them.
        names: data set of every curve.
        seed: of the bootstrap over data sets.

    Returns:
        Means with 95 % intervals (none for one data set).
    """
    sample = resample_data_sets(names, replicates=_DRAWS, seed=seed)
    counts = np.bincount(sample.place)
    found = {}
    for title, chosen in temperatures.items():
        per_set = np.bincount(sample.place, _clamped_regret(table, chosen)) / counts
        draws = sample.weights @ per_set / sample.weights.sum(axis=1)
        value = float(per_set.mean())
        ends = data_set_interval(value, draws, len(counts))
        found[title] = Estimate(value, ends, METHOD if ends else "")
    return found


def held_out_regrets(
    table: RegretTable, temperatures: Mapping[str, Array], names: Sequence[str]
) -> dict[str, dict[str, float]]:
    """Give the regret of some temperatures on every data set of its own.

    Args:
        table: the curves that were kept out.
        temperatures: ``[n]``, by what chose them.
        names: data set of every curve.

    Returns:
        By data set, by what chose T: the mean over its curves.
    """
    found: dict[str, dict[str, float]] = {}
    for title, chosen in temperatures.items():
        values = _clamped_regret(table, chosen)
        for name in sorted(set(names)):
            mine = np.array([n == name for n in names])
            found.setdefault(name, {})[title] = float(values[mine].mean())
    return found


def _clamped_regret(table: RegretTable, temperatures: Array) -> Array:
    """Give the regret ``[n]`` of one T per curve, at the nearest tried one where it is outside."""
    low, high = np.exp(table.low), np.exp(table.high)
    return table.regret(np.clip(temperatures, low, high)[:, None])[:, 0]


# ------------------------------------------------------------------ what must be said
def notes_on(problem: Problem, found: Array, names: Sequence[str]) -> list[str]:
    """Say what makes the coefficients of a fit doubtful.

    Args:
        problem: what was fitted.
        found: the coefficients.
        names: data set of every curve.

    Returns:
        Sentences; none where all is well.
    """
    notes, datasets, form = [], len(set(names)), problem.form
    if blind := inseparable(problem):
        notes.append(
            f"{' and '.join(blind)} cannot be told apart on these tasks (what they are multiplied "
            "with does not vary by itself): of all equally good values those nearest to the old "
            "ones are given"
        )
    if datasets <= len(form.names) > 1:
        sets = f"{datasets} data set{'s' if datasets > 1 else ''}"
        notes.append(f"{len(form.names)} coefficients were fitted on {sets}: too few")
    if datasets == 1:
        notes.append("one data set: no bootstrap over data sets and no leaving out, no intervals")
    elif datasets < FEW:
        notes.append(f"{datasets} data sets: intervals are too short to be trusted")
    width = np.diff(problem.bounds, axis=1)[:, 0]
    edge = np.minimum(*np.abs(problem.bounds.T - found)) < 1e-3 * width
    if edge.any():
        at = [name for name, yes in zip(form.names, edge.tolist(), strict=True) if yes]
        notes.append(f"at the bounds of the search: {some(at)}; give wider ones")
    censored = problem.table.censored.any(axis=1)
    if censored.mean() > 1 / 4:
        notes.append(
            f"on {int(censored.sum())} of {len(names)} tasks the smallest or the largest tried T "
            "is as good as any: a wider grid would say more"
        )
    outside = problem.table.outside(form.temperatures(found[:, None])[:, 0])
    if outside.any():
        notes.append(f"on {int(outside.sum())} of {len(names)} tasks the rule's T was not tried")
    return [*notes, *notes_on_plain(problem.table)]


def notes_on_plain(table: RegretTable) -> list[str]:
    """Say on how many tasks T = 1, which everything is held against, was not tried."""
    outside = int(table.outside(np.ones(len(table.low))).sum())
    return [
        f"T = 1 lies beyond the tried ones on {outside} of {len(table.low)} tasks: the regret of "
        "T = 1 is that of the nearest"
    ][: outside > 0]


def notes_on_mix(curves: Sequence[Curve]) -> list[str]:
    """Say which facts of the trainings differ between curves that are fitted together."""
    mixed = mixed_settings(curves)
    return [f"trainings of several settings are fitted together: {some(mixed)}"] if mixed else []
