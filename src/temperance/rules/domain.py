"""Where a rule may be trusted: the range of tasks that it was fitted on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from temperance.errors import InvalidInput
from temperance.records import Task

__all__ = ["Domain", "check_field"]


def check_field(rule: object, name: str, good: bool, expected: str) -> None:
    """Refuse a rule whose coefficient cannot be used, when it is made."""
    if not good:
        raise InvalidInput(
            f"{type(rule).__name__}.{name}",
            expected=expected,
            found=repr(getattr(rule, name)),
            fix="Give another value.",
        )


@dataclass(frozen=True)
class Domain:
    """The range of tasks on which a rule was fitted.

    Attributes:
        feature_dim: smallest and largest M, or None where M does not matter.
        n_classes: smallest and largest C, or None where C does not matter.
        statistic_settings: settings that a measured statistic must have been made with, by
            statistic, for instance ``(("csg", (("k", 3), ("n_samples", (100, 250)))),)``; a pair
            is a range. A bare number, whose settings are not known, passes.
        source: where the ranges come from.
    """

    feature_dim: tuple[int, int] | None = None
    n_classes: tuple[int, int] | None = None
    statistic_settings: tuple[tuple[str, tuple[tuple[str, Any], ...]], ...] = ()
    source: str = ""

    def reasons(self, task: Task) -> list[str]:
        """Say in words why a task lies outside; an empty list when it lies inside."""
        found = []
        for letter, name in (("M", "feature_dim"), ("C", "n_classes")):
            bounds, value = getattr(self, name), getattr(task, name)
            if bounds and not bounds[0] <= value <= bounds[1]:
                found.append(
                    f"{letter} = {value} is outside the {bounds[0]} to {bounds[1]} that the rule "
                    f"was fitted on"
                )
        for statistic, wanted in self.statistic_settings:
            found += _other_settings(statistic, dict(wanted), task)
        return found


def _other_settings(name: str, wanted: dict[str, Any], task: Task) -> list[str]:
    """Settings of a measured statistic that differ from those of the fit."""
    if name not in task.statistics:
        return []
    settings = task.statistics[name].settings
    return [
        f"{name} was measured with {key} = {settings[key]}, the rule assumes {_words(value)}"
        for key, value in wanted.items()
        if key in settings and not _fits(settings[key], value)
    ]


def _fits(found: Any, wanted: Any) -> bool:
    if isinstance(wanted, tuple):
        return isinstance(found, int | float) and bool(wanted[0] <= found <= wanted[1])
    return bool(found == wanted)


def _words(wanted: Any) -> str:
    return f"{wanted[0]} to {wanted[1]}" if isinstance(wanted, tuple) else str(wanted)
