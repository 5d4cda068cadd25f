"""From the losses on single tasks to what can be said of a rule: means, shares, intervals."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from temperance.evaluation.compare import verdict
from temperance.records import Estimate
from temperance.study.regret_records import (
    METRIC_SPECS,
    JudgedTask,
    RuleSummary,
    TaskRegret,
)
from temperance.study.regret_rules import PLAIN, Candidate
from temperance.study.resample import (
    FEW,
    METHOD,
    Resample,
    data_set_interval,
    resample_data_sets,
)

__all__ = ["Judged", "notes_of", "summarize"]

_TIE = 1e-9  # points or nats: below this two values are the same up to rounding


@dataclass(frozen=True)
class Judged:
    """One rule on the tasks of one group.

    Attributes:
        candidate: the rule.
        group: norm of the curves, or ``any``.
        rows: its losses, by task and metric.
        left_out: tasks that it was not judged on, by reason.
    """

    candidate: Candidate
    group: str
    rows: tuple[TaskRegret, ...]
    left_out: Mapping[str, int] = field(default_factory=dict)


def summarize(
    found: Sequence[Judged], tasks: Sequence[JudgedTask], *, bootstrap: int, seed: int
) -> tuple[RuleSummary, ...]:
    """Summarize every rule in every group and metric.

    Args:
        found: what was judged.
        tasks: the tasks that the rows point to.
        bootstrap: draws of data sets.
        seed: of these draws; the same for every rule.

    Returns:
        The summaries by group and metric, the smallest mean regret first.
    """
    summaries = []
    for judged in found:
        names = [tasks[p].dataset for p in dict.fromkeys(row.task for row in judged.rows)]
        if not names:
            continue
        draw = resample_data_sets(names, replicates=bootstrap, seed=seed)
        for metric in dict.fromkeys(row.metric for row in judged.rows):
            rows = [row for row in judged.rows if row.metric == metric]
            summaries.append(_summary(judged, rows, tasks=tasks, draw=draw))
    groups, metrics = (list(dict.fromkeys(getattr(s, n) for s in summaries)) for n in _KEYS)
    order = [(groups.index(s.group), metrics.index(s.metric), s.mean.value) for s in summaries]
    return tuple(summaries[i] for i in sorted(range(len(order)), key=order.__getitem__))


_KEYS = ("group", "metric")


def _summary(
    judged: Judged,
    rows: Sequence[TaskRegret],
    *,
    tasks: Sequence[JudgedTask],
    draw: Resample,
) -> RuleSummary:
    regrets = np.array([row.regret for row in rows])
    gains = np.array([row.gain for row in rows])
    given = np.array([row.temperature for row in rows])
    relative = np.array([np.nan if r.relative is None else r.relative for r in rows])
    gain = _mean(gains, draw)
    worst = int(regrets.argmax())
    return RuleSummary(
        rule=rows[0].rule,
        group=judged.group,
        metric=rows[0].metric,
        origin=judged.candidate.origin,
        rule_norm=judged.candidate.norm or "any",
        tasks=len(rows),
        datasets=len(draw.names),
        mean=_mean(regrets, draw),
        median=_estimate(float(np.median(regrets)), draw.median(regrets), draw),
        worst=float(regrets[worst]),
        worst_task=tasks[rows[worst].task].label,
        relative=_mean(relative, draw) if np.isfinite(relative).all() else None,
        gain=gain,
        better=_mean(gains > _TIE, draw),
        ties=float((np.abs(gains) <= _TIE).mean()),
        verdict=verdict(gain, better="higher"),
        temperatures=(float(given.min()), float(np.median(given)), float(given.max())),
        outside=sum(row.outside != "" for row in rows),
        fallbacks=sum(row.fallback is not None for row in rows),
        best_at_edge=sum(row.best_at_edge for row in rows),
        left_out=judged.left_out,
    )


def _mean(values: NDArray[Any], draw: Resample) -> Estimate:
    return _estimate(float(np.mean(values)), draw.mean(values), draw)


def _estimate(value: float, replicates: NDArray[np.float64], draw: Resample) -> Estimate:
    return Estimate(value, data_set_interval(value, replicates, len(draw.names)), METHOD)


# ------------------------------------------------------------------ what a reader should know
def notes_of(summaries: Sequence[RuleSummary], tasks: Sequence[JudgedTask]) -> tuple[str, ...]:
    """Say what a reader of the summaries should know.

    Args:
        summaries: what ``summarize`` gave.
        tasks: the tasks.

    Returns:
        Sentences.
    """
    notes = [*_edges(summaries), *_left_out(summaries), *_fallbacks(summaries)]
    groups: dict[str, set[int]] = {}
    for s in summaries:
        groups.setdefault(s.group, set()).add(s.tasks)
    if any(len(counts) > 1 for counts in groups.values()):
        notes.append(
            "Not every rule was judged on the same tasks: compare the gains over T = 1, which are "
            "paired, rather than the mean regrets."
        )
    few = len({task.dataset for task in tasks})
    if few < FEW:
        notes.append(
            f"Intervals rest on {few} data set{'s' * (few > 1)}: with fewer than {FEW} they are "
            "too short, with one there is none."
        )
    return tuple(dict.fromkeys(notes))


def _edges(summaries: Iterable[RuleSummary]) -> Iterable[str]:
    for s in summaries:
        where = f"norm {s.group}" if s.group != "any" else "all norms"
        if s.rule == PLAIN and s.best_at_edge:
            yield (
                f"{METRIC_SPECS[s.metric].title}, {where}: on {s.best_at_edge} of {s.tasks} tasks "
                "an edge of the trained T is as good as any; their regrets are lower bounds."
            )
        if s.rule == PLAIN and s.outside:
            yield (
                f"{where}: T = 1 lies outside the trained ones in {s.outside} tasks; the gain "
                "there is over the nearest."
            )


def _left_out(summaries: Iterable[RuleSummary]) -> Iterable[str]:
    reasons: dict[tuple[str, str], Counter[str]] = {}
    for s in summaries:
        reasons.setdefault((s.rule, s.group), Counter(s.left_out))
    for (rule, group), counts in reasons.items():
        where = "" if group == "any" else f" of norm {group}"
        for reason, count in counts.items():
            yield f"{rule}: {count} tasks{where} left out: {reason}."


def _fallbacks(summaries: Iterable[RuleSummary]) -> Iterable[str]:
    for s in summaries:
        if s.fallbacks * 2 > s.tasks:
            where = "" if s.group == "any" else f" of norm {s.group}"
            yield (
                f"{s.rule}: in {s.fallbacks} of {s.tasks} tasks{where} its fallback answered; the "
                "figures are mostly those of the fallback."
            )
