"""What one rule says to one task: name, norm, terms and value, and what a trainer can take."""

from __future__ import annotations

import math
from typing import Any, Protocol, runtime_checkable

from temperance.errors import InvalidInput
from temperance.records import Task

__all__ = [
    "MIN_SUGGESTED",
    "Rule",
    "bounds_of",
    "check_needs",
    "lacking",
    "nearest_tried",
    "norm_for",
    "rule_name",
    "terms_of",
    "trainable",
    "unclipped",
    "unusable",
]

MIN_SUGGESTED = 0.1
"""Smallest T that is handed to a trainer with a norm in front of the head. Measured (64-128-BN-10
net on scikit-learn's digits, SGD lr 0.1): T = 0.05 diverged, T = 1e-8 gave NaN."""

_SLACK = 1e-9  # a T that was written and read again is not beyond its own range
_FLOORS = {"none": 0.01, "cosine": 0.0}  # other norms; without one, best T of 0.25 were measured


@runtime_checkable
class Rule(Protocol):
    """What makes a callable a rule: ``rule(task)`` gives T, and it says what it needs.

    Rules may also have ``name``, ``terms(task)``, ``domain``, ``fallback``, ``reference``,
    ``formula``, ``trust`` and an ``upper`` clip; those in ``RULES`` have. One that sees the
    training has ``why_not(task)``, one with several norms ``norm_of(task)``, and one that knows its
    spread ``prediction(task, level)``.
    """

    needs: Any
    norm: Any

    def __call__(self, task: Task) -> float:
        """Give the temperature for a task."""
        ...


def rule_name(rule: Rule) -> str:
    """Name of a rule: its own, or that of its function or class."""
    return str(
        getattr(rule, "name", None) or getattr(rule, "__name__", None) or type(rule).__name__
    )


def norm_for(rule: Rule, task: Task) -> str:
    """Norm that the value is for: the law of the budget has a value for each."""
    return str(rule.norm_of(task) if hasattr(rule, "norm_of") else rule.norm)


def terms_of(rule: Rule, task: Task) -> dict[str, float]:
    """Give the terms of a rule by name; none where it has none."""
    terms = getattr(rule, "terms", None)
    return {k: float(v) for k, v in terms(task).items()} if callable(terms) else {}


def unclipped(rule: Rule, task: Task) -> float:
    """Value of the formula before its clips: the sum of the terms where the rule has clips."""
    if hasattr(rule, "upper") and hasattr(rule, "terms"):
        return float(sum(terms_of(rule, task).values()))
    value = rule(task)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        try:
            value = float(value)
        except (TypeError, ValueError):
            raise InvalidInput(
                f"rule {rule_name(rule)}",
                expected="a number from rule(task)",
                found=repr(value),
                fix="Return the temperature as a float.",
            ) from None
    return float(value)


def check_needs(rule: Rule, task: Task) -> None:
    """Raise InvalidInput where a statistic that the rule needs is missing or no finite number."""
    for need in rule.needs:
        if need not in task.statistics:
            raise InvalidInput(
                f"rule {rule_name(rule)}",
                expected=f"the statistic {need}",
                found=", ".join(task.statistics) or "no statistics",
                fix=f"Measure it (temperance.measure(features)), give it ({_option(need)}), or "
                "take a rule that does without, such as hasegawa-sakai.",
            )
        value = float(task.statistics[need])
        if not math.isfinite(value):
            raise InvalidInput(
                need,
                expected="a finite number",
                found=str(value),
                fix="Look at the status of the measurement.",
            )


def _option(need: str) -> str:
    return "--csg" if need == "csg" else f"--statistic {need}=VALUE"


def lacking(rule: Any, task: Task) -> str:
    """Say what a rule needs that a task does not have; "" for nothing."""
    missing = [need for need in rule.needs if need not in task.statistics]
    if missing:
        return f"needs {', '.join(missing)}"
    why_not = getattr(rule, "why_not", None)
    return why_not(task) if callable(why_not) else ""


# ------------------------------------------------------------------ what can train
def bounds_of(rule: Rule) -> tuple[float, float]:
    """Smallest and largest T of a rule that a trainer may get."""
    floor = _FLOORS.get(str(rule.norm), MIN_SUGGESTED)
    return max(floor, float(getattr(rule, "eps", 0.0))), float(getattr(rule, "upper", math.inf))


def trainable(rule: Rule, interval: tuple[float, float]) -> tuple[float, float]:
    """Give the part of an interval that a trainer may get."""
    floor, upper = bounds_of(rule)
    low, high = (nearest_tried(rule, min(max(end, floor), upper)) for end in interval)
    return low, high


def nearest_tried(rule: Rule, value: float) -> float:
    """The value, or the nearest T that the runs of a fitted rule tried."""
    tried = getattr(getattr(rule, "domain", None), "temperatures", None)
    if tried is None or tried[0] * (1 - _SLACK) <= value <= tried[1] * (1 + _SLACK):
        return value
    return float(min(max(value, tried[0]), tried[1]))


def unusable(rule: Rule, value: float) -> str | None:
    """Why a value must not reach a trainer, or None."""
    floor, upper = bounds_of(rule)
    if math.isnan(value):
        return "the formula gives no number here"
    if value < floor or value <= 0:
        return f"the formula gives {value:.4g}; a trainer needs T of at least {floor:g}"
    if math.isinf(value):
        return "the formula has no finite value here"
    if value >= upper:
        return f"the formula gives {value:.4g}, at or above its upper clip {upper:g}"
    return None
