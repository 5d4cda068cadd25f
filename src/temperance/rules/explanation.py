"""Why a temperature is what it is: domain, norm, intervals, and what the other rules say."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from temperance.errors import InvalidInput
from temperance.records import Alternative, Task
from temperance.rules.answer import (
    Rule,
    lacking,
    nearest_tried,
    norm_for,
    trainable,
    unclipped,
    unusable,
)
from temperance.rules.domain import Domain

__all__ = [
    "alternative",
    "expectation_of",
    "inputs_of",
    "interval_of",
    "other_norm",
    "predictions_of",
    "reasons_of",
]

_LEVELS = {"80 %": 0.8, "95 %": 0.95}  # of prediction intervals
_PLAIN = "-no-affine"  # the same norm, without a scale and a shift of its own


def reasons_of(rule: Rule, task: Task, value: float) -> list[str]:
    """Say why the task lies outside of the rule's domain or its value cannot be used."""
    domain: Any = getattr(rule, "domain", None) or Domain()
    found = domain.reasons(task)
    bad = unusable(rule, value)
    if bad is None and nearest_tried(rule, value) != value:
        low, high = domain.temperatures
        found.append(f"the formula gives {value:.4g}, its runs tried T = {low:.4g} to {high:.4g}")
    if bad and "csg" in rule.needs and float(task.statistics["csg"]) == 0:
        bad = "csg = 0: the classes are separable and log(csg) does not exist"
    return [*found, bad] if bad else found


def other_norm(norm: str, task: Task, reasons: Sequence[str] = ()) -> list[str]:
    """Say that a T is for another norm than the one that the task is trained with.

    Args:
        norm: that the T is for.
        task: its training may say its norm (``training={"norm": "layer"}``).
        reasons: what the domain of the rule says already.

    Returns:
        One sentence, or none: also where the training does not say its norm.
    """
    asked = str(task.training.get("norm") or "")
    if asked.removesuffix(_PLAIN) in ("", norm.removesuffix(_PLAIN)):
        return []
    if any(reason.startswith("norm is ") for reason in reasons):
        return []
    return [f"T is for norm {norm}; the rule says nothing of norm {asked}"]


def alternative(rule: Any, task: Task) -> Alternative:
    """Give what another rule says to a task, or what it lacks."""
    if missing := lacking(rule, task):
        return Alternative(None, None, rule.norm, False, missing)
    try:
        value = unclipped(rule, task)
    except InvalidInput as error:
        return Alternative(None, None, rule.norm, False, str(error))
    reasons = reasons_of(rule, task, value)
    usable = None if unusable(rule, value) else nearest_tried(rule, value)
    norm = norm_for(rule, task)
    reasons += other_norm(norm, task, reasons)
    return Alternative(usable, value, norm, not reasons, "; ".join(reasons))


def expectation_of(rule: Rule, task: Task) -> str:
    """Say what the rule did for such trainings; "" where it does not know."""
    expectation = getattr(rule, "expectation", None)
    return str(expectation(task)) if callable(expectation) else ""


def predictions_of(rule: Rule, task: Task) -> dict[str, tuple[float, float]]:
    """Prediction intervals of a rule that has them, within what a trainer may get."""
    prediction = getattr(rule, "prediction", None)
    if not callable(prediction):
        return {}
    return {name: trainable(rule, prediction(task, level)) for name, level in _LEVELS.items()}


def interval_of(rule: Rule, task: Task) -> tuple[float, float] | None:
    """The rule's own prediction interval, or that of the spread of the needed statistics."""
    if callable(prediction := getattr(rule, "prediction", None)):
        return prediction(task, _LEVELS["95 %"])
    spread = [n for n in rule.needs if task.statistics[n].interval is not None]
    if not spread:
        return None
    values = []  # at the corners of the statistics' intervals
    for corner in range(1 << len(spread)):
        moved = dict(task.statistics)
        for bit, name in enumerate(spread):
            ends = moved[name].interval
            assert ends is not None
            end = ends[corner >> bit & 1]
            if name == "csg":  # an interval may reach beyond what a csg can be
                end = min(max(end, 0.0), task.n_classes - 1.0)
            moved[name] = replace(moved[name], value=end)
        values.append(unclipped(rule, replace(task, statistics=moved)))
    return min(values), max(values)


def inputs_of(task: Task) -> dict[str, Any]:
    """Give the task as plain numbers and texts."""
    statistics = {
        name: {
            "value": s.value,
            "interval": None if s.interval is None else list(s.interval),
            "status": s.status,
            "settings": dict(s.settings),
        }
        for name, s in task.statistics.items()
    }
    return {
        "feature_dim": task.feature_dim,
        "n_classes": task.n_classes,
        "n_samples": task.n_samples,
        "n_nonempty": task.n_nonempty,
        "statistics": statistics,
        "training": {
            name: list(v) if isinstance(v, tuple) else v
            for name, v in task.training.items()
            if _is_plain(v)
        },
    }


def _is_plain(value: Any) -> bool:
    """Whether JSON can hold a fact of a training; others are the caller's own affair."""
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, str | int | float | bool)
