"""From the trainings of ``temperance ensemble`` to a table: every method, judged on the test rows.

An ensemble is judged by the mean of its members' probabilities. The post-hoc temperatures and the
choice of what is shipped come from the rows that neither train nor judge.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from temperance.evaluation import EvaluateOptions, evaluate, row_scores
from temperance.evaluation.compare import BETTER, arm_mean, paired_difference, verdict
from temperance.evaluation.member_temperature import MemberTemperature, fit_member_temperature
from temperance.evaluation.uncertainty import member_uncertainty, pooled_log_probs
from temperance.records import Estimate, Report, Suggestion, Task
from temperance.training.ensemble_cost import MethodCost, conditions_of
from temperance.training.ensemble_plan import EnsemblePlan, Method
from temperance.training.ensemble_runs import MethodRun
from temperance.training.plan import Prepared
from temperance.training.splits import select
from temperance.training.table import data_facts
from temperance.version import __version__

__all__ = ["METRICS", "EnsembleChoice", "EnsembleComparison", "MethodSummary", "summarize_methods"]

METRICS = ("accuracy", "nll", "ece", "brier")
UNCERTAINTY = ("total", "aleatoric", "mutual_information", "disagreement")
_AFTER = "_posthoc"


@dataclass(frozen=True)
class MethodSummary:
    """One method over its seeds.

    Attributes:
        name: ``single``, ``deep`` or ``sigma:tau=0.2``.
        title: its name for people.
        members: number of members.
        tau: of the diversity term, or None.
        outcomes: outcome of every seed.
        messages: why, of the seeds that are not done.
        metrics: ``accuracy``, ``nll``, ``ece``, ``brier``, and each with the ending ``_posthoc``:
            mean over the finished seeds, with its interval.
        differences: each less that of the single model, paired by seed and row.
        verdicts: what each difference shows: better, worse, or no difference shown.
        against_deep: the same against the deep ensemble, where there is one; ``verdicts_deep``
            likewise.
        uncertainty: mean over rows and seeds, before the post-hoc temperature: ``total``,
            ``aleatoric`` and ``mutual_information`` in nats, ``disagreement`` as a share of the
            pairs of members; empty for one member.
        posthoc_temperatures: of every finished seed: one T, or one for each member; 1 where the fit
            did not converge.
        posthoc_statuses: status of every such fit.
        held_out_nll: mean over the seeds of the NLL of the fit rows after their temperatures.
        parameters: how many it has, all members together.
        multiply_adds: of the prediction of one row, likewise; what is counted is in ``cost`` of the
            comparison.
        milliseconds_per_row: of a prediction, wall-clock, as measured under the conditions there.
        seconds: mean wall-clock time of a seed's trainings, one after the other.
        histories: curves of every training.
        reports: of every finished seed, by seed: the figures of its test rows alone.
    """

    name: str
    title: str
    members: int
    tau: float | None
    outcomes: tuple[str, ...]
    messages: tuple[str, ...] = ()
    metrics: Mapping[str, Estimate] = field(default_factory=dict)
    differences: Mapping[str, Estimate] = field(default_factory=dict)
    verdicts: Mapping[str, str] = field(default_factory=dict)
    against_deep: Mapping[str, Estimate] = field(default_factory=dict)
    verdicts_deep: Mapping[str, str] = field(default_factory=dict)
    uncertainty: Mapping[str, float] = field(default_factory=dict)
    posthoc_temperatures: tuple[tuple[float, ...], ...] = ()
    posthoc_statuses: tuple[tuple[str, ...], ...] = ()
    held_out_nll: float | None = None
    parameters: int = 0
    multiply_adds: int | None = None
    milliseconds_per_row: float | None = None
    seconds: float = 0.0
    histories: tuple[Mapping[str, tuple[float, ...]], ...] = ()
    reports: Mapping[str, Report] = field(default_factory=dict)


@dataclass(frozen=True)
class EnsembleChoice:
    """Which ensemble is shipped.

    Attributes:
        tau: of its diversity term.
        seed: its seed.
        why: how it was chosen, in words.
    """

    tau: float
    seed: int
    why: str


@dataclass(frozen=True)
class EnsembleComparison:
    """The whole outcome; written to ``report.json``.

    Attributes:
        plan: what was asked for.
        data: name, kind, classes, rows and fingerprint of the data.
        model: full name of the net.
        task: the measured task.
        suggestion: what the rule suggests for it.
        temperature: T of every member's output layer.
        norm: the norm in front of it, or ``none``.
        methods: the table, the single model first.
        choice: what is shipped; None if no ensemble came to an end.
        notices: what people should know, in words.
        cost: what was counted and what was not, and on what the predictions were timed: ``device``,
            ``threads``, ``batch_rows``.
        version: of temperance.
    """

    plan: Mapping[str, Any]
    data: Mapping[str, Any]
    model: str
    task: Task
    suggestion: Suggestion
    temperature: float
    norm: str
    methods: tuple[MethodSummary, ...]
    choice: EnsembleChoice | None = None
    notices: tuple[str, ...] = ()
    cost: Mapping[str, Any] = field(default_factory=dict)
    version: str = __version__


@dataclass(frozen=True, eq=False)
class _Judged:
    """One method with one seed: scores of every test row before and after the temperatures."""

    before: Mapping[str, NDArray[Any]]
    after: Mapping[str, NDArray[Any]]
    fit: MemberTemperature
    uncertainty: Mapping[str, float]
    report: Report


def summarize_methods(
    prepared: Prepared,
    plan: EnsemblePlan,
    found: Mapping[str, Mapping[int, MethodRun]],
    *,
    costs: Mapping[str, MethodCost],
) -> EnsembleComparison:
    """Judge every method on the test rows, and choose what is shipped by the fit rows.

    Args:
        prepared: what ``prepare_ensemble`` gave.
        plan: the plan.
        found: what ``run_methods`` gave.
        costs: of every method, by name.

    Returns:
        The comparison. The shipped tau is that of the lowest mean NLL on the fit rows, among those
        whose runs all came to an end; the shipped seed is the best of it by the same figure.
    """
    judged = {
        name: {s: j for s, run in runs.items() if (j := _judge(prepared, plan, run)) is not None}
        for name, runs in found.items()
    }
    methods = tuple(
        _summary(m, found[m.name], judged, plan.training.bins, costs[m.name]) for m in plan.methods
    )
    head = prepared.arms[0]
    return EnsembleComparison(
        plan=plan.to_dict(),
        data=data_facts(prepared),
        model=prepared.model_name,
        task=prepared.task,
        suggestion=prepared.suggestion,
        temperature=head.temperature,
        norm=head.norm,
        methods=methods,
        choice=_choose(methods, judged),
        notices=prepared.notices,
        cost=conditions_of(prepared, plan),
    )


def _judge(prepared: Prepared, plan: EnsemblePlan, run: MethodRun) -> _Judged | None:
    if run.fit is None or run.test is None:
        return None
    fit_labels, labels = (
        select(prepared.data, getattr(prepared.splits, name)).y for name in ("fit", "test")
    )
    fit = fit_member_temperature(run.fit, fit_labels, when=plan.when)
    raw, after = pooled_log_probs(logits=run.test), fit.log_probs(run.test)
    split = member_uncertainty(logits=run.test)
    return _Judged(
        row_scores(logits=raw, labels=labels),
        row_scores(logits=after, labels=labels),
        fit,
        {name: float(getattr(split, name).mean()) for name in UNCERTAINTY},
        _report(prepared, plan, fit, stages=(raw, after), labels=labels),
    )


def _report(
    prepared: Prepared,
    plan: EnsemblePlan,
    fit: MemberTemperature,
    *,
    stages: tuple[NDArray[Any], NDArray[Any]],
    labels: NDArray[Any],
) -> Report:
    """The figures of one seed before and after its temperatures, as one report."""
    options = EvaluateOptions(bins=plan.training.bins)
    names = prepared.data.class_map
    before, after = (
        evaluate(logits=z, labels=labels, class_map=names, options=options) for z in stages
    )
    applied = [one.applied for one in fit.fits]
    statuses = sorted({one.status for one in fit.fits})
    return replace(
        before,
        metrics={**before.metrics, **{k + _AFTER: v for k, v in after.metrics.items()}},
        # of several T the geometric mean, which stands for them where there is room for one
        posthoc_temperature=math.exp(sum(map(math.log, applied)) / len(applied)),
        posthoc_status=", ".join(statuses),
        reliability={**before.reliability, "posthoc": after.reliability},
        settings={**before.settings, "posthoc_temperatures": applied, "pooling": fit.when},
    )


def _summary(
    method: Method,
    runs: Mapping[int, MethodRun],
    judged: Mapping[str, Mapping[int, _Judged]],
    bins: int,
    cost: MethodCost,
) -> MethodSummary:
    ours = judged[method.name]
    summary = MethodSummary(
        method.name,
        method.title,
        method.members,
        method.tau,
        tuple(run.outcome for run in runs.values()),
        tuple(run.message for run in runs.values() if run.message),
        parameters=cost.parameters,
        multiply_adds=cost.multiply_adds,
        milliseconds_per_row=cost.milliseconds,
        seconds=float(np.mean([run.seconds for run in runs.values()])),
        histories=tuple(h for run in runs.values() for h in run.histories),
    )
    if not ours:
        return summary
    differences, against_deep = (
        _differences(method.name, other, judged, bins) for other in ("single", "deep")
    )
    return replace(
        summary,
        metrics={
            m + ending: arm_mean(
                {s: getattr(j, stage) for s, j in ours.items()}, metric=m, bins=bins
            )
            for stage, ending in _STAGES
            for m in METRICS
        },
        differences=differences,
        verdicts=_verdicts(differences),
        against_deep=against_deep,
        verdicts_deep=_verdicts(against_deep),
        uncertainty={}
        if method.members == 1
        else {
            name: float(np.mean([j.uncertainty[name] for j in ours.values()]))
            for name in UNCERTAINTY
        },
        posthoc_temperatures=tuple(tuple(f.applied for f in j.fit.fits) for j in ours.values()),
        posthoc_statuses=tuple(tuple(f.status for f in j.fit.fits) for j in ours.values()),
        held_out_nll=math.fsum(j.fit.nll_after for j in ours.values()) / len(ours),
        reports={str(s): j.report for s, j in ours.items()},
    )


_STAGES = (("before", ""), ("after", _AFTER))


def _means(ours: Mapping[int, _Judged], bins: int) -> dict[str, Estimate]:
    return {
        m + ending: arm_mean([getattr(j, stage) for j in ours.values()], metric=m, bins=bins)
        for stage, ending in _STAGES
        for m in METRICS
    }


def _differences(
    name: str, other: str, judged: Mapping[str, Mapping[int, _Judged]], bins: int
) -> dict[str, Estimate]:
    """This method's figures less another one's, over the seeds that both have."""
    a, b = judged[name], judged.get(other, {})
    common = [s for s in a if s in b]
    if not common or name in ("single", other):
        return {}
    return {
        m + ending: paired_difference(
            {s: getattr(a[s], stage) for s in common},
            {s: getattr(b[s], stage) for s in common},
            metric=m,
            bins=bins,
        )
        for stage, ending in _STAGES
        for m in METRICS
    }


def _verdicts(differences: Mapping[str, Estimate]) -> dict[str, str]:
    return {m: verdict(d, better=BETTER[m.removesuffix(_AFTER)]) for m, d in differences.items()}


def _choose(
    methods: tuple[MethodSummary, ...], judged: Mapping[str, Mapping[int, _Judged]]
) -> EnsembleChoice | None:
    whole = [m for m in methods if m.name.startswith("sigma") and set(m.outcomes) == {"done"}]
    if not whole:
        return None
    best = min(whole, key=_held_out)
    seeds = judged[best.name]
    seed = min(seeds, key=lambda s: seeds[s].fit.nll_after)
    tau = best.tau
    assert tau is not None
    why = (
        f"tau {tau:g}: the lowest mean NLL on the rows held out for fitting, after the post-hoc "
        f"temperature ({_held_out(best):.4f} nats); of its seeds the one with the lowest "
        f"({seeds[seed].fit.nll_after:.4f}); the test rows chose nothing"
    )
    return EnsembleChoice(tau, seed, why)


def _held_out(summary: MethodSummary) -> float:
    return math.inf if summary.held_out_nll is None else summary.held_out_nll
