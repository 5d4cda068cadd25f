"""From runs to a table: every arm over its seeds, the difference to the baseline, what to ship."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from temperance.evaluation import fit_temperature, row_scores
from temperance.evaluation.compare import BETTER, arm_mean, paired_difference, verdict
from temperance.records import Estimate, Run, Suggestion, Task
from temperance.training.arms import BASELINE, Arm
from temperance.training.plan import Prepared, Scored
from temperance.training.splits import select
from temperance.version import __version__

__all__ = [
    "METRICS",
    "ArmSummary",
    "Choice",
    "Comparison",
    "Difference",
    "data_facts",
    "summarize",
]

METRICS = ("accuracy", "nll", "ece", "nll_posthoc", "ece_posthoc", "brier")


@dataclass(frozen=True)
class Difference:
    """An arm against another one, paired by seed and row.

    Attributes:
        other: name of the other arm.
        metrics: this arm's metric less the other's, by metric.
        verdicts: what each difference shows: better, worse, or no difference shown.
    """

    other: str
    metrics: Mapping[str, Estimate]
    verdicts: Mapping[str, str]


@dataclass(frozen=True)
class ArmSummary:
    """One arm over its seeds.

    Attributes:
        arm: the arm.
        title: its name for people.
        outcomes: outcome of every seed's run.
        metrics: mean over the finished seeds, with its interval.
        differences: metric less that of the baseline, paired by seed and row.
        verdicts: what each difference shows: better, worse, or no difference shown.
        against_norm: the difference to the arm with the same norm at T = 1, which is what T alone
            did; None for that arm itself, and where it was not trained.
        posthoc_temperatures: post-hoc T of every finished seed; 1 where its fit did not converge.
        posthoc_statuses: status of every such fit.
        held_out_nll: mean NLL of the fit rows after their post-hoc T; what the choice goes by.
        seconds: mean wall-clock time of a training.
    """

    arm: Arm
    title: str
    outcomes: tuple[str, ...]
    metrics: Mapping[str, Estimate] = field(default_factory=dict)
    differences: Mapping[str, Estimate] = field(default_factory=dict)
    verdicts: Mapping[str, str] = field(default_factory=dict)
    against_norm: Difference | None = None
    posthoc_temperatures: tuple[float, ...] = ()
    posthoc_statuses: tuple[str, ...] = ()
    held_out_nll: float | None = None
    seconds: float = 0.0


@dataclass(frozen=True)
class Choice:
    """Which run is shipped.

    Attributes:
        arm: name of the arm.
        seed: the seed.
        why: how it was chosen, in words.
    """

    arm: str
    seed: int
    why: str


@dataclass(frozen=True)
class Comparison:
    """The whole outcome of the main job; written to ``report.json``.

    Attributes:
        plan: what was asked for.
        data: name, kind, classes, rows of every split, fingerprint.
        model: full name of the net.
        task: the measured task.
        suggestion: the suggested temperature.
        baseline: name of the arm that differences refer to.
        arms: the table.
        runs: every run.
        choice: what is shipped; None if no run came to an end.
        notices: what people should know about the data, in words.
        version: version of the library.
    """

    plan: Mapping[str, Any]
    data: Mapping[str, Any]
    model: str
    task: Task
    suggestion: Suggestion
    baseline: str
    arms: tuple[ArmSummary, ...]
    runs: tuple[Run, ...]
    choice: Choice | None
    notices: tuple[str, ...] = ()
    version: str = __version__


@dataclass(frozen=True, eq=False)
class _Judged:
    """A finished run in the form that the comparison needs."""

    scores: Mapping[str, Any]
    posthoc: float
    held_out_nll: float
    status: str


def summarize(prepared: Prepared, scored: Sequence[Scored]) -> Comparison:
    """Put the runs of a comparison together.

    Args:
        prepared: what was there before the trainings.
        scored: all runs, seed by seed, arm by arm, as ``run_arms`` gives them.

    Returns:
        The table, the differences and the choice. Test rows choose nothing: the shipped arm has the
        lowest mean NLL on the fit rows after a post-hoc T, among the arms that fold into one linear
        layer and whose runs all came to an end; the shipped seed is the best of that arm by the
        same figure.
    """
    runs = _by_arm(prepared, scored)
    judged = {name: {s: _judge(prepared, r) for s, r in of.items()} for name, of in runs.items()}
    done = {n: {s: j for s, j in of.items() if j is not None} for n, of in judged.items()}
    named = (a.name for a in prepared.arms if BASELINE in (a.name, *a.aliases))
    baseline = next(named, prepared.arms[0].name)
    arms = tuple(
        _summary(arm, runs[arm.name], done, (baseline, _at_one(arm, prepared)), prepared.plan.bins)
        for arm in prepared.arms
    )
    arms = _told_apart(arms)
    return Comparison(
        plan=prepared.plan.to_dict(),
        data=data_facts(prepared),
        model=prepared.model_name,
        task=prepared.task,
        suggestion=prepared.suggestion,
        baseline=baseline,
        arms=arms,
        runs=tuple(s.run for s in scored),
        choice=_choose(arms, done),
        notices=prepared.notices,
    )


def _told_apart(arms: tuple[ArmSummary, ...]) -> tuple[ArmSummary, ...]:
    """Plots go by titles: those that rounding made equal get the name that was asked for."""
    counts = Counter(a.title for a in arms)
    return tuple(
        replace(a, title=f"{a.title} ({a.arm.name})") if counts[a.title] > 1 else a for a in arms
    )


def _by_arm(prepared: Prepared, scored: Sequence[Scored]) -> dict[str, dict[int, Scored]]:
    found: dict[str, dict[int, Scored]] = {arm.name: {} for arm in prepared.arms}
    for one in scored:
        found[str(one.run.trial["arm"])][int(one.run.trial["seed"])] = one
    return found


def _judge(prepared: Prepared, scored: Scored) -> _Judged | None:
    if scored.fit is None or scored.test is None:
        return None
    fit = fit_temperature(logits=scored.fit, labels=_labels(prepared, "fit"))
    scores = row_scores(logits=scored.test, labels=_labels(prepared, "test"), posthoc=fit)
    held_out = fit.nll_after if fit.status == "converged" else fit.nll_before
    return _Judged(scores, fit.applied, held_out, fit.status)


def _labels(prepared: Prepared, split: str) -> Any:
    return select(prepared.data, getattr(prepared.splits, split)).y


def _summary(
    arm: Arm,
    runs: Mapping[int, Scored],
    done: Mapping[str, Mapping[int, _Judged]],
    others: tuple[str, str | None],
    bins: int,
) -> ArmSummary:
    ours = done[arm.name]
    outcomes = tuple(one.run.outcome for one in runs.values())
    seconds = float(np.mean([one.run.seconds for one in runs.values()]))
    if not ours:
        return ArmSummary(arm, arm.title, outcomes, seconds=seconds)
    scores = {s: j.scores for s, j in ours.items()}
    against, against_norm = (_against(arm.name, other, done, bins) for other in others)
    return ArmSummary(
        arm,
        arm.title,
        outcomes,
        metrics={m: arm_mean(scores, metric=m, bins=bins) for m in METRICS},
        differences={} if against is None else against.metrics,
        verdicts={} if against is None else against.verdicts,
        against_norm=against_norm,
        posthoc_temperatures=tuple(j.posthoc for j in ours.values()),
        posthoc_statuses=tuple(j.status for j in ours.values()),
        held_out_nll=math.fsum(j.held_out_nll for j in ours.values()) / len(ours),
        seconds=seconds,
    )


def _at_one(arm: Arm, prepared: Prepared) -> str | None:
    """Name of the arm that differs from this one in T only, and has T = 1."""
    wanted = (arm.norm, 1.0, arm.smoothing, "")
    return next((a.name for a in prepared.arms if a.setting == wanted), None)


def _against(
    name: str, other: str | None, done: Mapping[str, Mapping[int, _Judged]], bins: int
) -> Difference | None:
    common = [] if other in (None, name) else [s for s in done[name] if s in done[str(other)]]
    if other is None or not common:
        return None
    a, b = ({s: done[n][s].scores for s in common} for n in (name, other))
    metrics = {m: paired_difference(a, b, metric=m, bins=bins) for m in METRICS}
    verdicts = {m: verdict(d, better=BETTER[m]) for m, d in metrics.items()}
    return Difference(other, metrics, verdicts)


def _choose(arms: Sequence[ArmSummary], done: Mapping[str, Mapping[int, _Judged]]) -> Choice | None:
    whole = [a for a in arms if a.held_out_nll is not None and set(a.outcomes) == {"done"}]
    candidates = [a for a in whole if a.arm.folds] or whole
    if not candidates:
        return None
    best = min(candidates, key=_held_out)
    seeds = done[best.arm.name]
    seed = min(seeds, key=lambda s: seeds[s].held_out_nll)
    among = "of the arms that fold into one linear layer, the"
    why = (
        f"{among if candidates != whole else 'the'} lowest mean NLL on the rows held out for "
        f"fitting, after a post-hoc T ({best.held_out_nll:.4f} nats), and of its seeds the one "
        f"with the lowest ({seeds[seed].held_out_nll:.4f}); the test rows chose nothing"
    )
    first = min(whole, key=_held_out)
    if _held_out(first) < _held_out(best):
        why += f". {first.title}, which does not fold, has {first.held_out_nll:.4f}"
    return Choice(best.arm.name, seed, why)


def _held_out(summary: ArmSummary) -> float:
    return math.inf if summary.held_out_nll is None else summary.held_out_nll


def data_facts(prepared: Prepared) -> dict[str, Any]:
    """Name, kind, shape, classes, rows and fingerprint of the data, as plain values."""
    data, splits = prepared.data, prepared.splits
    return {
        "name": data.name,
        "kind": data.kind,
        "input_shape": list(data.input_shape),
        "class_names": list(data.class_map.names),
        "rows": {n: len(getattr(splits, n)) for n in ("train", "fit", "test")},
        "train_counts": np.bincount(
            select(data, splits.train).y, minlength=data.n_classes
        ).tolist(),
        "fingerprint": data.fingerprint,
    }
