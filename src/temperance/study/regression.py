"""Heuristics of statistics: log best T regressed on a few terms, judged on left-out data sets."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from temperance.errors import InvalidInput, TemperanceWarning
from temperance.records import Estimate, Task
from temperance.rules import FittedRule, StatisticsRule
from temperance.rules.statistics import parse_term
from temperance.study.curves import BestTemperature, best_temperature
from temperance.study.fit_check import check_alike, domain_of, some
from temperance.study.fit_judge import (
    Progress,
    held_out_regrets,
    mean_regrets,
    notes_on_mix,
    notes_on_plain,
)
from temperance.study.fit_objective import objective_name, regret_table
from temperance.study.moments import Linear, forward, moments, ridge, solve, squared_error
from temperance.study.regression_records import RegressionOptions, StatisticsFit
from temperance.study.regression_terms import Terms, candidate_terms
from temperance.study.resample import METHOD, data_set_interval, resample_data_sets
from temperance.study.runs import Curve, judged
from temperance.study.selection import split_curves
from temperance.version import __version__

__all__ = ["RegressionOptions", "StatisticsFit", "fit_statistics"]

Array = NDArray[np.float64]

_LEAST_SETS = 4  # leaving one out inside of leaving one out must leave two
_DRAWS = 2000  # of data sets, for the intervals of errors
_SMALL = 0.01  # an error in log T that is none


def fit_statistics(
    curves: Sequence[Curve],
    *,
    objective: str = "nll",
    hold_out: Sequence[str] = (),
    options: RegressionOptions | None = None,
    progress: Progress | None = None,
) -> StatisticsFit:
    """Fit ``log T = offset + sum of coefficient * term`` to the best temperatures of runs.

    The target is the natural logarithm of the best T (``curves.best_temperature``, interpolated)
    on validation rows. Terms are statistics of the task as they are and, where positive, as
    logarithms, and log M, log C, log n. Each data set counts once, however many curves it has.
    How many terms, which, and the penalty are chosen by leave-one-data-set-out error; the error
    that is reported repeats this choice without each data set in turn.

    Args:
        curves: the runs, of one norm and one loss (``selection.select_curves``).
        objective: ``accuracy``, ``nll``, or ``nll_posthoc`` (after a fitted post-hoc T).
        hold_out: data sets that are kept out of everything and only judged.
        options: method, terms, censored curves, bootstrap, seed.
        progress: told about the stages: what, how much is done, how much there is.

    Returns:
        The rule with its errors.

    Raises:
        InvalidInput: for curves of several norms or losses, or fewer than four data sets with a
            best T inside of the tried ones.
        NotFound: if there is no such metric, statistic or data set.

    Warns:
        TemperanceWarning: for whatever is in ``notes``.

    Example:
        >>> from temperance.study.regression import fit_statistics
        >>> from temperance.study.runs import curves_of_rows, example_rows
        >>> rows, tasks = example_rows((0.5, 1.0, 2.0, 4.0, 8.0), datasets=tuple("abcdef"))
        >>> fit = fit_statistics(curves_of_rows(rows, tasks))  # best T is 2 on all of them
        >>> round(fit.rule(curves_of_rows(rows, tasks)[0].task), 2), fit.rule.coefficients.keys()
        (2.0, dict_keys(['offset']))
    """
    chosen, metric = options or RegressionOptions(), objective_name(objective)
    check_alike(curves)
    inside, kept_out = split_curves(curves, hold_out)
    job = _job(inside, metric, chosen)
    model = _fit(job.parts, chosen)
    fit = _report(job, model, progress or (lambda stage, done, total: None))  # noqa: ARG005
    fit = _with_provenance(_held_out(fit, kept_out), chosen, kept_out)
    for note in fit.notes:
        warnings.warn(note, TemperanceWarning, stacklevel=2)
    return fit


# ------------------------------------------------------------------ the work
@dataclass(frozen=True, eq=False)
class _Job:
    """What is fitted: all curves, and of those that count the terms, targets and moments."""

    curves: list[Curve]
    terms: Terms
    known: NDArray[np.bool_]  # which curves have a best T that counts
    target: Array  # log best T of these
    datasets: tuple[str, ...]
    parts: Array
    metric: str
    options: RegressionOptions
    n_censored: int
    n_unknown: int

    @property
    def names(self) -> list[str]:
        return [curve.dataset for curve in self.curves]


def _job(curves: list[Curve], metric: str, options: RegressionOptions) -> _Job:
    found = [_best(curve, f"val_{metric}") for curve in curves]
    unknown = np.array([best is None for best in found])
    censored = np.array([best is not None and best.at_edge != "" for best in found])
    known = ~(unknown | censored) if options.censored == "drop" else ~unknown
    left = {curve.dataset for curve, yes in zip(curves, known, strict=True) if yes}
    if len(left) < _LEAST_SETS:
        raise InvalidInput(
            "runs",
            expected=f"{_LEAST_SETS} data sets or more with a best T inside of the tried ones",
            found=f"{len(left)} of {len({c.dataset for c in curves})}",
            fix="Add data sets or widen the temperatures of the plan.",
        )
    terms = candidate_terms(curves, options.statistics)
    rows = zip(found, known, strict=True)
    target = np.log([best.temperature for best, yes in rows if best is not None and yes])
    names = [curve.dataset for curve, yes in zip(curves, known, strict=True) if yes]
    datasets, parts = moments(terms.standard[known], target, names)
    counts = int(censored.sum()), int(unknown.sum())
    return _Job(curves, terms, known, target, datasets, parts, metric, options, *counts)


def _best(curve: Curve, metric: str) -> BestTemperature | None:
    """The best T; None where nothing tells the temperatures apart."""
    try:
        found = best_temperature(curve, metric)
    except InvalidInput:  # diverged at every T
        return None
    return None if found.at_edge == "both" else found


def _fit(parts: Array, options: RegressionOptions) -> Linear:
    if options.method == "ridge":
        return ridge(parts)
    return forward(parts, most=options.most_terms)


def _report(job: _Job, model: Linear, tell: Progress) -> StatisticsFit:
    without = []
    for place in range(len(job.datasets)):
        tell("leaving out one data set", place, len(job.datasets))
        without.append(_fit(np.delete(job.parts, place, axis=0), job.options))
    rule = StatisticsRule(*job.terms.coefficients(model))
    used = [parse_term(term)[0] for term, _ in rule.coefficients]
    errors = _errors(job, model, without)
    return StatisticsFit(
        rule=FittedRule(rule, domain_of(job.curves, used), str(job.curves[0].setting["norm"])),
        coefficients=_estimates(job, model, rule),
        errors=errors,
        regret=_regret(job, model, without),
        held_out={},
        chosen=_shares(job, without),
        objective=job.metric,
        method=job.options.method,
        penalty=model.penalty,
        datasets=tuple(sorted(set(job.names))),
        counts={
            "tasks": len(job.curves),
            "datasets": len(set(job.names)),
            "runs": sum(int(judged(curve).sum()) for curve in job.curves),
            "candidates": len(job.terms.names),
            "censored": job.n_censored,
        },
        notes=_notes(job, errors),
    )


def _errors(job: _Job, model: Linear, without: Sequence[Linear]) -> dict[str, Estimate]:
    """Root mean squares of the error in log T; each is a mean over data sets first."""
    root_m = 0.5 * np.log([curve.task.feature_dim for curve in job.curves])[job.known]
    names = [name for name, yes in zip(job.names, job.known, strict=True) if yes]
    place = np.searchsorted(job.datasets, names)
    left_out = [squared_error(p, m) for p, m in zip(job.parts, without, strict=True)]
    squares = {
        "fitted": np.array([squared_error(part, model) for part in job.parts]),
        "left out": np.array(left_out),
        "constant": _shifted(job.target, place),
        "sqrt(M)": _shifted(job.target - root_m, place),
        "T = 1": job.parts[:, -1, -1],
    }
    sample = resample_data_sets(job.datasets, replicates=_DRAWS, seed=job.options.seed)
    found = {}
    for title, values in squares.items():
        value = float(np.sqrt(np.mean(values)))
        ends = data_set_interval(value, np.sqrt(sample.mean(values)), len(job.datasets))
        found[title] = Estimate(value, ends, METHOD)
    return found


def _shifted(values: Array, place: NDArray[np.intp]) -> Array:
    """Squared error on each data set of the mean of the means of the others."""
    counts = np.bincount(place)
    means = np.bincount(place, values) / counts
    others = (means.sum() - means) / (len(means) - 1)
    squares: Array = np.bincount(place, (values - others[place]) ** 2) / counts
    return squares


def _temperatures(job: _Job, model: Linear, without: Sequence[Linear]) -> dict[str, Array]:
    """T of every curve, censored ones too, by the rule and by what left its data set out."""
    left_out = dict(zip(job.datasets, without, strict=True))
    rows = zip(job.terms.standard, job.names, strict=True)
    log_t = [job.terms.predict(row, left_out.get(name, model)) for row, name in rows]
    per_set = {d: float(p[0, -1]) for d, p in zip(job.datasets, job.parts, strict=True)}
    constant = [np.mean([v for d, v in per_set.items() if d != name]) for name in job.names]
    fitted = [job.terms.predict(row, model) for row in job.terms.standard]
    logs = {"fitted": fitted, "left out": log_t, "constant": constant}
    with np.errstate(over="ignore"):  # infinite is beyond the tried ones, as a large one is
        found = {title: np.exp(np.asarray(values)) for title, values in logs.items()}
    return {**found, "T = 1": np.ones(len(job.curves))}


def _regret(job: _Job, model: Linear, without: Sequence[Linear]) -> dict[str, Estimate]:
    temperatures = _temperatures(job, model, without)
    table = regret_table(job.curves, job.metric)
    return mean_regrets(table, temperatures, job.names, seed=job.options.seed)


def _estimates(job: _Job, model: Linear, rule: StatisticsRule) -> dict[str, Estimate]:
    """The numbers of the rule with intervals, terms and penalty as they are."""
    numbers = {"offset": rule.offset, **dict(rule.coefficients)}
    if job.options.bootstrap == 0:
        return {name: Estimate(value) for name, value in numbers.items()}
    sample = resample_data_sets(
        job.datasets, replicates=job.options.bootstrap, seed=job.options.seed
    )
    replicates = np.empty((job.options.bootstrap, len(numbers)))
    for row, times in enumerate(sample.weights):
        again = solve(np.tensordot(times, job.parts, 1), model.chosen, model.penalty)
        offset, pairs = job.terms.coefficients(again)
        replicates[row] = [offset, *(value for _, value in pairs)]
    method = f"{METHOD}, {job.options.bootstrap} draws, with the terms as chosen"
    found = {}
    for place, (name, value) in enumerate(numbers.items()):
        ends = data_set_interval(value, replicates[:, place], len(job.datasets))
        found[name] = Estimate(value, ends, method)
    return found


def _shares(job: _Job, without: Sequence[Linear]) -> dict[str, float]:
    if job.options.method == "ridge":
        return {}
    names = [job.terms.names[c] for model in without for c in model.chosen]
    shares = {name: names.count(name) / len(without) for name in names}
    return dict(sorted(shares.items(), key=lambda pair: -pair[1]))


def _held_out(fit: StatisticsFit, kept_out: Sequence[Curve]) -> StatisticsFit:
    """Judge the fit on the data sets that were kept out of it."""
    chosen = np.array([_value(fit.rule, curve.task) for curve in kept_out])
    usable = [c for c, t in zip(kept_out, chosen, strict=True) if not math.isnan(t)]
    if lost := [c.label for c, t in zip(kept_out, chosen, strict=True) if math.isnan(t)]:
        note = f"of the data sets kept out: the rule has no value on {some(lost)}"
        fit = replace(fit, notes=(*fit.notes, note))
    if not usable:
        return fit
    names = [curve.dataset for curve in usable]
    found = {"fitted": chosen[~np.isnan(chosen)], "T = 1": np.ones(len(usable))}
    table = regret_table(usable, fit.objective)
    return replace(fit, held_out=held_out_regrets(table, found, names))


def _value(rule: FittedRule, task: Task) -> float:
    try:
        return rule(task)
    except InvalidInput:  # it lacks a statistic, or n
        return math.nan


def _notes(job: _Job, errors: Mapping[str, Estimate]) -> tuple[str, ...]:
    notes = []
    if job.terms.missing:
        notes.append(f"not measured on every task, so not tried: {some(job.terms.missing)}")
    if job.n_censored:
        what = "left out" if job.options.censored == "drop" else "taken at the edge"
        notes.append(
            f"on {job.n_censored} of {len(job.curves)} tasks the smallest or the largest tried T "
            f"is as good as any: {what}"
        )
    if job.n_unknown:
        notes.append(
            f"on {job.n_unknown} of {len(job.curves)} tasks there is no best T (equal or diverged "
            "at every one): left out"
        )
    notes += notes_on_mix(job.curves) + notes_on_plain(regret_table(job.curves, job.metric))
    if errors["left out"].value >= max(errors["constant"].value, _SMALL):
        notes.append("on left-out data sets no better than one constant T for all tasks")
    return tuple(notes)


def _with_provenance(
    fit: StatisticsFit, options: RegressionOptions, kept_out: Sequence[Curve]
) -> StatisticsFit:
    about: dict[str, Any] = {
        "objective": f"best T by val_{fit.objective}",
        "method": fit.method,
        "penalty": fit.penalty,
        "datasets": list(fit.datasets),
        "held_out": sorted({curve.dataset for curve in kept_out}),
        "intervals": {n: list(e.interval) for n, e in fit.coefficients.items() if e.interval},
        "errors": {name: estimate.value for name, estimate in fit.errors.items()},
        "regret": {name: estimate.value for name, estimate in fit.regret.items()},
        "counts": dict(fit.counts),
        "notes": list(fit.notes),
        "seed": options.seed,
        "versions": {"temperance": __version__, "numpy": np.__version__},
    }
    return replace(fit, rule=replace(fit.rule, fit=about))
