"""The records of a judgement of rules: what was judged, the loss on each task, their summaries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from temperance.errors import InvalidInput
from temperance.records import Estimate

__all__ = [
    "ANY",
    "METRIC_SPECS",
    "ORIGINS",
    "JudgedTask",
    "MetricSpec",
    "RegretReport",
    "RuleSummary",
    "TaskRegret",
    "check_metrics",
    "short_labels",
]

ANY = "any"
"""Group of the curves where rules are judged whatever norm they are for."""


@dataclass(frozen=True)
class MetricSpec:
    """How a metric is read and shown.

    Attributes:
        title: its name for people.
        unit: of a regret.
        sign: 1 where more is better, -1 where less is.
        scale: from the metric's own unit to that of a regret.
        digits: after the point, in tables.
    """

    title: str
    unit: str
    sign: int
    scale: float
    digits: int


#: Metrics that runs hold for validation and for test rows (``val_`` and ``test_`` in front).
METRIC_SPECS: Mapping[str, MetricSpec] = {
    "accuracy": MetricSpec("Accuracy", "percentage points", 1, 100.0, 2),
    "nll": MetricSpec("NLL", "nats", -1, 1.0, 3),
    "nll_posthoc": MetricSpec("NLL after post-hoc T", "nats", -1, 1.0, 3),
}
#: Where a rule's coefficients come from, and how it is marked.
ORIGINS: Mapping[str, str] = {
    "baseline": "a baseline",
    "published": "as published",
    "given": "coefficients given",
    "elsewhere": "fitted on other data sets than those it is judged on",
    "refitted": "refitted without the data set that is judged",
}


@dataclass(frozen=True)
class JudgedTask:
    """One task of the judgement: a data set under one setting, over a grid of T.

    Attributes:
        dataset: the data set; the unit of the bootstrap and of leaving out.
        norm: in front of the output layer.
        label: the data set and the parts of the setting that vary between the tasks.
        feature_dim: M.
        n_classes: C.
        grid: smallest and largest T that was trained.
        setting: fields of the trials, without temperature and seed.
    """

    dataset: str
    norm: str
    label: str
    feature_dim: int
    n_classes: int
    grid: tuple[float, float]
    setting: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class TaskRegret:
    """What one rule lost on one task, in one metric.

    Attributes:
        rule: name of the rule.
        group: norm of the curves that are compared, or ``any``.
        metric: a key of ``METRIC_SPECS``.
        task: place of the task in ``RegretReport.tasks``.
        temperature: T that the rule's user would have got.
        judged_at: that T, or the edge of the grid where it lies outside.
        fallback: name of the rule that answered in its stead, if one did.
        in_domain: whether the task lies where the rule was fitted, and its value could be used.
        best_temperature: best T in hindsight: of the trained ones that with the best validation.
        best_at_edge: whether an end of the grid is as good on validation: the true best may lie
            beyond, so that the regret is a lower bound.
        value: the metric at ``judged_at`` on the test rows, mean over the seeds: share or nats.
        best: the same at ``best_temperature``.
        plain: the same at T = 1.
        regret: loss against ``best``: percentage points or nats. Negative where the T that
            validation chose is not the best on the test rows.
        relative: regret in percent of ``best``, for NLL; None where that is 0.
        gain: what was won over T = 1, in the unit of the regret; positive is better.
    """

    rule: str
    group: str
    metric: str
    task: int
    temperature: float
    judged_at: float
    fallback: str | None
    in_domain: bool
    best_temperature: float
    best_at_edge: bool
    value: float
    best: float
    plain: float
    regret: float
    relative: float | None
    gain: float

    @property
    def outside(self) -> str:
        """``below`` or ``above`` the grid, or nothing."""
        if self.temperature == self.judged_at:
            return ""
        return "below" if self.temperature < self.judged_at else "above"


@dataclass(frozen=True)
class RuleSummary:
    """The loss of one rule over its tasks, in one metric; intervals by data sets, 95 %.

    Attributes:
        rule: name of the rule.
        group: norm of the curves that are compared, or ``any``.
        metric: a key of ``METRIC_SPECS``.
        origin: a key of ``ORIGINS``.
        rule_norm: norm that the rule is for; ``any`` for baselines.
        tasks: how many tasks it was judged on.
        datasets: of how many data sets.
        mean: mean regret (points or nats); each task counts the same.
        median: median regret.
        worst: largest regret; it has no interval, which resampling cannot give for a maximum.
        worst_task: label of that task.
        relative: mean of the regrets in percent of the best NLL; None for accuracy.
        gain: mean of what was won over T = 1 on the same tasks, paired.
        better: share of the tasks strictly better than at T = 1.
        ties: share exactly as good as T = 1, for instance because the rule fell back to it.
        verdict: what ``gain`` shows: ``better``, ``worse`` or ``no difference shown``.
        temperatures: smallest, median and largest T of the rule.
        outside: tasks whose T lies outside the grid; they are judged at its edge.
        fallbacks: tasks where a fallback answered in the rule's stead.
        best_at_edge: tasks on which an end of the grid is as good as any on validation.
        left_out: tasks of the group that it was not judged on, by reason.
    """

    rule: str
    group: str
    metric: str
    origin: str
    rule_norm: str
    tasks: int
    datasets: int
    mean: Estimate
    median: Estimate
    worst: float
    worst_task: str
    relative: Estimate | None
    gain: Estimate
    better: Estimate
    ties: float
    verdict: str
    temperatures: tuple[float, float, float]
    outside: int
    fallbacks: int
    best_at_edge: int
    left_out: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class RegretReport:
    """Rules judged on the tasks of a study.

    Attributes:
        summaries: by group and metric, the smallest mean regret first.
        rows: every rule on every task in every metric.
        tasks: the tasks, which the rows point to.
        not_judged: rules that were judged nowhere, with the reason.
        notes: what a reader should know, in words.
        settings: metrics, bootstrap, seed, and how intervals were made.
    """

    summaries: tuple[RuleSummary, ...]
    rows: tuple[TaskRegret, ...]
    tasks: tuple[JudgedTask, ...]
    not_judged: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)


def check_metrics(metrics: Sequence[str]) -> tuple[str, ...]:
    """Refuse names that are not in ``METRIC_SPECS``, names given twice, and none at all."""
    unknown = [name for name in metrics if name not in METRIC_SPECS]
    if unknown or not metrics or len(set(metrics)) < len(metrics):
        raise InvalidInput(
            "metrics",
            expected="one or more of " + ", ".join(METRIC_SPECS),
            found=", ".join(map(repr, unknown or metrics)) or "none",
            fix="Name each of them once.",
        )
    return tuple(metrics)


def short_labels(
    settings: Sequence[Mapping[str, Any]], *, without: Sequence[str] = ()
) -> list[str]:
    """Data set and representation of each setting, and what else varies between them.

    Args:
        settings: fields of the trials, of those that are told apart.
        without: fields that are said elsewhere.

    Returns:
        A text for each.
    """
    always = ("dataset", "features")
    names = sorted({name for setting in settings for name in setting} - {*always, *without})
    varying = [n for n in names if len({str(setting.get(n)) for setting in settings}) > 1]
    labels = []
    for setting in settings:
        words = [str(setting.get(name)) for name in always]
        words = words[:1] if words[1] == "input" else ["/".join(words)]
        labels.append(" ".join([*words, *(f"{n}={setting.get(n)}" for n in varying)]))
    return labels
