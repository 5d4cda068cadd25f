"""Which runs can fit a rule, and the domain that they give it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from temperance.errors import InvalidInput
from temperance.records import Task
from temperance.rules import FittedDomain, FittedRule, Rule, StatisticsRule, find_rule
from temperance.rules.statistics import SIZES, variable_value
from temperance.rules.suggestion import rule_name
from temperance.study.data_set_names import same_data_set
from temperance.study.fit_objective import rule_form
from temperance.study.runs import Curve

__all__ = ["base_rule", "check_alike", "data_set_weights", "domain_of", "some", "usable_curves"]

_FACTS = (
    *("loss", "optimizer", "lr", "momentum", "weight_decay", "schedule", "batch_size", "steps"),
    *("smoothing", "label_noise", "augment"),
)
_SETTINGS = ("k", "weighting", "n_samples")  # of a statistic: what its value depends on
_SHOWN = 5  # names in a message


def some(names: Iterable[str]) -> str:
    """List names in a message, the first few of them.

    Example:
        >>> from temperance.study.fit_check import some
        >>> some("abcdefgh")
        'a, b, c, d, e and 3 more'
    """
    unique = list(dict.fromkeys(names))
    more = f" and {len(unique) - _SHOWN} more" if len(unique) > _SHOWN else ""
    return ", ".join(unique[:_SHOWN]) + more


def data_set_weights(names: Sequence[str]) -> np.ndarray:
    """Give every item a weight so that each data set counts once; they sum to 1.

    Args:
        names: data set of every item.

    Returns:
        Weights, float64 ``[n]``.

    Example:
        >>> from temperance.study.fit_check import data_set_weights
        >>> data_set_weights(["a", "a", "b"]).tolist()
        [0.25, 0.25, 0.5]
    """
    _, place, count = np.unique(np.asarray(names), return_inverse=True, return_counts=True)
    return 1.0 / (len(count) * count[place])


def base_rule(rule: str | Rule, datasets: Sequence[str] = ()) -> Any:
    """Give the rule whose coefficients are to be fitted.

    Args:
        rule: a name, or a rule; a fitted one stands for what was fitted.
        datasets: those of the runs.

    Returns:
        The rule.

    Raises:
        NotFound: if there is no rule of that name.
        InvalidInput: for a statistics rule, whose terms are chosen and not only its numbers; and
            for a rule that was fitted on one of the data sets: a start that has seen it spoils what
            is said of left-out data sets.
    """
    found = find_rule(rule, Task(1, 2))
    if isinstance(found, FittedRule):
        seen = [d for d in datasets if any(same_data_set(d, own) for own in found.fitted_on)]
        if seen:
            raise InvalidInput(
                "rule to fit",
                expected="coefficients that have not seen the data sets of the runs",
                found=f"{found.name}, fitted on {some(seen)}",
                fix=f"Name the rule itself ({found.rule.name}), or bring other data sets.",
            )
        found = found.rule
    if isinstance(found, StatisticsRule):
        raise InvalidInput(
            "rule to fit",
            expected="a rule with a fixed formula",
            found="a statistics rule",
            fix="Fit it with temperance.study.regression.fit_statistics (--rule statistics).",
        )
    return found


def check_alike(curves: Sequence[Curve]) -> None:
    """Refuse runs of several norms, losses or paths: their temperatures mean different things.

    Args:
        curves: the runs.

    Raises:
        InvalidInput: if there are none, or if they differ in norm, loss or path.
    """
    if not curves:
        raise InvalidInput("runs", expected="one or more curves", found="none", fix="Add runs.")
    for name in ("norm", "loss"):
        values = sorted({str(curve.setting[name]) for curve in curves})
        if len(values) > 1:
            raise InvalidInput(
                "runs",
                expected=f"one {name}",
                found=", ".join(values),
                fix=f"Choose one: --{name} {values[0]}, or select_curves(..., {name}=...).",
            )
    moving = sorted({str(curve.setting.get("path", "constant")) for curve in curves})
    if len(moving) > 1:
        raise InvalidInput(
            "runs",
            expected="one path of T in training",
            found=", ".join(moving),
            fix="Fit those whose T is constant; sweep the others into a folder of their own.",
        )


def usable_curves(rule: Any, curves: Sequence[Curve]) -> tuple[list[Curve], list[str]]:
    """Check that the tasks have what a rule needs, and leave out those without a finite value.

    Args:
        rule: the rule.
        curves: the runs.

    Returns:
        The curves that can fit it, and notes on what was left out: tasks whose statistic is no
        number, or has no logarithm.

    Raises:
        InvalidInput: if a needed statistic was not measured, or if no curve is left.
    """
    for need in rule.needs:
        _check_statistic(need, curves)
    form = rule_form(rule, [curve.task for curve in curves])
    finite = np.isfinite(form.offset)
    if form.design is not None:
        finite &= np.isfinite(form.design).all(axis=1)
    lost = [c.label for c, good in zip(curves, finite, strict=True) if not good]
    if not finite.any():
        why = " (a csg of 0 has no logarithm)" if "csg" in rule.needs else ""
        raise InvalidInput(
            f"rule {rule_name(rule)}",
            expected="a finite value on some task",
            found=f"none on {some(lost)}{why}",
            fix="Fit a rule that does without, or add data sets.",
        )
    notes = [f"left out, the formula has no finite value there: {some(lost)}"] if lost else []
    return [c for c, good in zip(curves, finite, strict=True) if good], notes


def _check_statistic(name: str, curves: Sequence[Curve]) -> None:
    """Refuse runs whose tasks lack a statistic.

    Args:
        name: the statistic.
        curves: the runs.

    Raises:
        InvalidInput: naming the tasks.
    """
    missing = [c for c in curves if name not in c.task.statistics]
    if missing:
        where = some(f"{c.dataset}/{c.setting['features']}" for c in missing)
        raise InvalidInput(
            "runs",
            expected=f"the statistic {name} of every task",
            found=f"none for {where}",
            fix="Run the sweep without --no-statistics, or fit a rule that does without.",
        )


def domain_of(curves: Sequence[Curve], names: Sequence[str]) -> FittedDomain:
    """Give the ranges of tasks and trainings that runs span.

    Args:
        curves: the runs of a fit.
        names: statistics, and ``n``, that the rule uses.

    Returns:
        The domain.
    """
    tasks = [curve.task for curve in curves]
    statistics = [name for name in names if name not in SIZES]
    samples = [task.n_samples for task in tasks if task.n_samples is not None]
    uses_n = "n" in names and samples
    return FittedDomain(
        feature_dim=_ends([task.feature_dim for task in tasks]),
        n_classes=_ends([task.n_classes for task in tasks]),
        n_samples=_ends(samples) if uses_n else None,
        statistics=tuple(
            (name, _ends([variable_value(name, task) for task in tasks])) for name in statistics
        ),
        statistic_settings=tuple(
            (name, found) for name in statistics if (found := _settings(name, tasks))
        ),
        training=tuple((name, _seen(curves, name)) for name in _FACTS),
        source=f"{len(curves)} tasks of {len({c.dataset for c in curves})} data sets",
        temperatures=_ends([float(t) for c in curves for t in c.temperatures]),
    )


def _ends(values: Sequence[Any]) -> tuple[Any, Any]:
    return min(values), max(values)


def _seen(curves: Sequence[Curve], name: str) -> tuple[Any, ...]:
    values = sorted({curve.setting[name] for curve in curves})
    number = all(isinstance(value, int | float) for value in values)
    return (values[0], values[-1]) if number and len(values) > 1 else tuple(values)


def _settings(name: str, tasks: Sequence[Task]) -> tuple[tuple[str, Any], ...]:
    """Settings of a statistic that its value depends on: one value, or a range of numbers."""
    found: list[tuple[str, Any]] = []
    for key in _SETTINGS:
        values = {task.statistics[name].settings.get(key) for task in tasks}
        if None in values:
            continue
        if len(values) == 1:
            found.append((key, values.pop()))
        elif all(isinstance(value, int | float) for value in values):
            found.append((key, _ends(sorted(values))))
    return tuple(found)
