"""Rules fitted again on runs: the same formula, with the coefficients of these trainings."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from temperance.errors import InvalidInput, TemperanceWarning
from temperance.records import Estimate
from temperance.rules import FittedRule, Rule
from temperance.study.fit_check import (
    base_rule,
    check_alike,
    data_set_weights,
    domain_of,
    some,
    usable_curves,
)
from temperance.study.fit_judge import (
    Progress,
    coefficient_intervals,
    held_out_regrets,
    left_out_temperatures,
    mean_regrets,
    notes_on,
    notes_on_mix,
)
from temperance.study.fit_objective import objective_name, regret_table, rule_form
from temperance.study.fit_search import Problem, default_bounds, inseparable, search
from temperance.study.resample import METHOD
from temperance.study.runs import Curve, judged
from temperance.study.selection import split_curves
from temperance.version import __version__

__all__ = ["FitOptions", "RuleFit", "fit_rule"]

Array = NDArray[np.float64]


@dataclass(frozen=True)
class FitOptions:
    """How a rule is fitted.

    Attributes:
        seed: of the evolution and of the draws of data sets, 0 or more.
        bootstrap: draws of data sets for the intervals; 0 for none.
        scale: ``regret``, in the metric's unit; or ``relative``, as a share of the largest regret
            of each curve, so that curves on which T matters little count as much as others.
        bounds: ranges of coefficients that replace the default ones (``fit_search``).
        leave_one_out: whether to fit again without each data set, to judge the fit by it.
    """

    seed: int = 0
    bootstrap: int = 200
    scale: str = "regret"
    bounds: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    leave_one_out: bool = True

    def __post_init__(self) -> None:
        for name in ("seed", "bootstrap"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 0:
                raise InvalidInput(
                    f"fit, {name}",
                    expected="a whole number of 0 or more",
                    found=repr(value),
                    fix="Give another value.",
                )


@dataclass(frozen=True)
class RuleFit:
    """A rule with new coefficients, and what is known about them.

    Attributes:
        rule: the fitted rule, for ``suggest`` and ``save_rule``.
        before: the coefficients that the rule came with.
        coefficients: the new ones, with 95 % intervals (bootstrap over data sets).
        objective: ``accuracy``, ``nll`` or ``nll_posthoc``, on validation rows.
        scale: ``regret`` or ``relative``.
        regret: mean over data sets of the regret against the best T in hindsight: of the rule as
            it came (``before``), of ``T = 1``, ``fitted`` (on the very data sets of the fit: too
            good) and ``left out`` (each data set judged by the coefficients of the others).
        held_out: regret of ``before``, ``T = 1`` and ``fitted`` on each data set that was kept out.
        datasets: those of the fit.
        counts: ``tasks`` (curves), ``datasets``, ``runs``, and ``censored``: curves whose best T
            is the smallest or the largest tried.
        notes: what must be known before the coefficients are used.
    """

    rule: FittedRule
    before: Mapping[str, float]
    coefficients: Mapping[str, Estimate]
    objective: str
    scale: str
    regret: Mapping[str, Estimate]
    held_out: Mapping[str, Mapping[str, float]]
    datasets: tuple[str, ...]
    counts: Mapping[str, int]
    notes: tuple[str, ...] = ()


def fit_rule(
    curves: Sequence[Curve],
    rule: str | Rule = "hasegawa-sakai-csg-cn",
    *,
    objective: str = "accuracy",
    hold_out: Sequence[str] = (),
    options: FitOptions | None = None,
    progress: Progress | None = None,
) -> RuleFit:
    """Fit the coefficients of a rule on runs, by differential evolution.

    Minimized is the mean over data sets of the mean over their curves of the regret::

        regret(T) = metric(best T in hindsight) - metric(T)        (NLL: the other way round)

    on the validation rows, mean over seeds, interpolated in log T (``fit_objective``): each data
    set counts once, however many settings it was trained under. That the coefficients were found by
    differential evolution is the paper's; what it minimized there is not stated, so this objective
    is ours. Clips and the base of logarithms stay as they are.

    The intervals are those of a bootstrap over data sets; each draw is fitted again by a short
    evolution around the optimum.

    Args:
        curves: the runs, of one norm and one loss (``selection.select_curves``).
        rule: a name, or a frozen dataclass of numbers; its own values are the start.
        objective: ``accuracy``, ``nll``, or ``nll_posthoc`` (after a fitted post-hoc T).
        hold_out: data sets that are kept out of the fit and only judged.
        options: seed, bootstrap, scale, bounds.
        progress: told about the stages: what, how much is done, how much there is.

    Returns:
        The rule with its new coefficients.

    Raises:
        InvalidInput: for curves of several norms or losses, curves that lack what the rule needs,
            a rule without numeric coefficients, or one that was fitted on these data sets.
        NotFound: if there is no such rule, metric or data set.

    Warns:
        TemperanceWarning: where coefficients cannot be told apart, for fewer data sets than
            coefficients, and for whatever else is in ``notes``.

    Example:
        >>> from temperance.study.fit import FitOptions, fit_rule
        >>> from temperance.study.runs import curves_of_rows, example_rows
        >>> rows, tasks = example_rows((0.5, 1.0, 2.0, 4.0, 8.0), datasets=tuple("abcdef"))
        >>> options = FitOptions(bootstrap=20)
        >>> curves = curves_of_rows(rows, tasks)
        >>> fit = fit_rule(curves, "constant", objective="nll", options=options)
        >>> round(fit.rule.rule.value, 2), fit.before, fit.counts["tasks"]
        (2.0, {'value': 1.0}, 6)

    Reference:
        T. Hasegawa, S. Sakai, 2025, arXiv 2504.15594 (coefficients by differential evolution).
    """
    chosen, metric = options or FitOptions(), objective_name(objective)
    tell = progress or (lambda stage, done, total: None)  # noqa: ARG005
    base = base_rule(rule, sorted({curve.dataset for curve in curves}))
    check_alike(curves)
    inside, kept_out = split_curves(curves, hold_out)
    used, notes = usable_curves(base, inside)
    outside, lost = usable_curves(base, kept_out) if kept_out else ([], [])
    job = _job(base, used, metric, options=chosen)
    there = _job(base, outside, metric, options=chosen) if outside else None
    tell("searching coefficients", 0, 1)
    found = search(job.problem, seed=chosen.seed)
    notes += [f"of the data sets kept out: {note}" for note in lost]
    notes += notes_on_mix(used) + notes_on(job.problem, found, job.names)
    fit = _report(job, found, there, notes=notes, tell=tell)
    about = _provenance(fit, held_out=sorted({c.dataset for c in kept_out}), seed=chosen.seed)
    fit = replace(fit, rule=replace(fit.rule, fit=about))
    for note in fit.notes:
        warnings.warn(note, TemperanceWarning, stacklevel=2)
    return fit


@dataclass(frozen=True, eq=False)
class _Job:
    """What is fitted on what, and how."""

    base: Any
    curves: list[Curve]
    problem: Problem
    metric: str
    options: FitOptions

    @property
    def names(self) -> list[str]:
        return [curve.dataset for curve in self.curves]

    def temperatures(self, found: Array) -> dict[str, Array]:
        """The temperatures of the rule as it came, of T = 1 and of the fitted rule."""
        form = self.problem.form
        return {
            "before": form.temperatures(form.start[:, None])[:, 0],
            "T = 1": np.ones(len(self.curves)),
            "fitted": form.temperatures(found[:, None])[:, 0],
        }


def _job(base: Any, curves: list[Curve], metric: str, *, options: FitOptions) -> _Job:
    form = rule_form(base, [curve.task for curve in curves])
    table = regret_table(curves, metric, scale=options.scale)
    weights = data_set_weights([curve.dataset for curve in curves])
    problem = Problem(form, table, weights, default_bounds(form, table, options.bounds))
    return _Job(base, curves, problem, metric, options)


def _report(
    job: _Job, found: Array, there: _Job | None, *, notes: list[str], tell: Progress
) -> RuleFit:
    problem, names, options = job.problem, job.names, job.options
    coefficients = _estimates(job, found, tell)
    temperatures = job.temperatures(found)
    if options.leave_one_out:
        left_out = left_out_temperatures(problem, names, seed=options.seed, tell=tell)
        temperatures |= {} if left_out is None else {"left out": left_out}
    regret = mean_regrets(problem.table, temperatures, names, seed=options.seed)
    if "left out" in regret and regret["left out"].value > regret["T = 1"].value:
        notes = [*notes, "on left-out data sets worse than T = 1"]
    notes = [*notes, *_without_interval(job, coefficients)]
    return RuleFit(
        rule=FittedRule(
            problem.form.with_coefficients(found),
            domain_of(job.curves, tuple(job.base.needs)),
            norm=str(job.curves[0].setting["norm"]),
        ),
        before=dict(zip(problem.form.names, problem.form.start.tolist(), strict=True)),
        coefficients=coefficients,
        objective=job.metric,
        scale=options.scale,
        regret=regret,
        held_out={}
        if there is None
        else held_out_regrets(there.problem.table, there.temperatures(found), there.names),
        datasets=tuple(sorted(set(names))),
        counts=_counts(job),
        notes=tuple(notes),
    )


def _without_interval(job: _Job, coefficients: Mapping[str, Estimate]) -> list[str]:
    """Say why there is no interval where one was asked for and nothing else says why."""
    blind = inseparable(job.problem)
    lost = [n for n, e in coefficients.items() if e.interval is None and n not in blind]
    if not lost or not job.options.bootstrap or len(set(job.names)) < 2:
        return []
    return [f"no interval of {some(lost)}: many draws of data sets cannot tell them apart"]


def _estimates(job: _Job, found: Array, tell: Progress) -> dict[str, Estimate]:
    options = job.options
    intervals = coefficient_intervals(
        job.problem, found, job.names, draws=options.bootstrap, seed=options.seed, tell=tell
    )
    pairs = zip(job.problem.form.names, found.tolist(), strict=True)
    method = f"{METHOD}, {options.bootstrap} draws"
    return {
        name: Estimate(value, intervals.get(name), method if name in intervals else "")
        for name, value in pairs
    }


def _counts(job: _Job) -> dict[str, int]:
    return {
        "tasks": len(job.curves),
        "datasets": len(set(job.names)),
        "runs": sum(int(judged(curve).sum()) for curve in job.curves),
        "censored": int(job.problem.table.censored.any(axis=1).sum()),
    }


def _provenance(fit: RuleFit, *, held_out: Sequence[str], seed: int) -> dict[str, Any]:
    """Give what a saved rule says about its fit, as plain JSON values."""
    return {
        "objective": f"val_{fit.objective}",
        "scale": fit.scale,
        "datasets": list(fit.datasets),
        "held_out": list(held_out),
        "before": dict(fit.before),
        "intervals": {n: list(e.interval) for n, e in fit.coefficients.items() if e.interval},
        "regret": {name: estimate.value for name, estimate in fit.regret.items()},
        "counts": dict(fit.counts),
        "notes": list(fit.notes),
        "seed": seed,
        "versions": {"temperance": __version__, "numpy": np.__version__},
    }
