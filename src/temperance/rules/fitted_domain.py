"""The range of tasks and trainings that a fit has seen."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from temperance.errors import InvalidInput
from temperance.records import Task
from temperance.rules.domain import Domain
from temperance.rules.rate_sequence import name_of_shares, plain_value, rates_in
from temperance.rules.statistics import variable_value

__all__ = ["FittedDomain", "is_number"]

_SLACK = 1e-9  # a statistic that was written and read again is not outside of its own range

Range = tuple[float, float]


def is_number(value: object) -> bool:
    """Say whether something is a finite number, and neither True nor False.

    Example:
        >>> from temperance.rules.fitted_domain import is_number
        >>> is_number(3), is_number(True), is_number(10**400), is_number(float("nan"))
        (True, False, False, False)
    """
    try:
        return type(value) in (int, float) and math.isfinite(value)  # type: ignore[arg-type]
    except OverflowError:  # a whole number beyond all floats
        return False


def _is_range(value: Any, *, whole: bool = False) -> bool:
    return (
        isinstance(value, tuple)
        and len(value) == 2
        and all(is_number(end) and not (whole and isinstance(end, float)) for end in value)
        and value[0] <= value[1]
    )


def _is_table(value: Any, good: Callable[[Any], bool]) -> bool:
    """Whether it is pairs of a name and something that is good."""
    return isinstance(value, tuple) and all(
        isinstance(pair, tuple) and len(pair) == 2 and isinstance(pair[0], str) and good(pair[1])
        for pair in value
    )


def _is_setting(value: Any) -> bool:
    return _is_range(value) if isinstance(value, tuple) else isinstance(value, str | int | float)


def _are_facts(value: Any) -> bool:
    return isinstance(value, tuple) and len(value) > 0 and all(map(_is_fact, value))


def _is_fact(value: Any) -> bool:
    return isinstance(value, str) or is_number(value)


@dataclass(frozen=True)
class FittedDomain:
    """The range of tasks and trainings that a rule was fitted on.

    Attributes:
        feature_dim: smallest and largest M.
        n_classes: smallest and largest C.
        n_samples: smallest and largest number of training rows, where the rule uses it.
        statistics: smallest and largest value of each statistic that the rule uses.
        statistic_settings: settings that these were measured with; see ``Domain``.
        training: facts of the trainings: a range of numbers or the texts that occurred, by name.
            A task whose training is not known passes.
        source: where the ranges come from.
        temperatures: smallest and largest T of the runs. Nothing is known of any beyond: where the
            formula leads there, ``suggest`` gives the nearest that was tried, and says so.

    Raises:
        InvalidInput: for ranges that are not two ascending numbers, and names that are no texts.
    """

    feature_dim: tuple[int, int]
    n_classes: tuple[int, int]
    n_samples: tuple[int, int] | None = None
    statistics: tuple[tuple[str, Range], ...] = ()
    statistic_settings: tuple[tuple[str, tuple[tuple[str, Any], ...]], ...] = ()
    training: tuple[tuple[str, tuple[Any, ...]], ...] = ()
    source: str = ""
    temperatures: Range | None = None

    def __post_init__(self) -> None:
        sizes, ends = "two ascending whole numbers", "two ascending numbers"
        _check(self, "feature_dim", _is_range(self.feature_dim, whole=True), sizes)
        _check(self, "n_classes", _is_range(self.n_classes, whole=True), sizes)
        known = self.n_samples is None or _is_range(self.n_samples, whole=True)
        _check(self, "n_samples", known, f"{sizes}, or none")
        _check(self, "statistics", _is_table(self.statistics, _is_range), f"names with {ends}")
        settings = _is_table(self.statistic_settings, lambda found: _is_table(found, _is_setting))
        _check(self, "statistic_settings", settings, "settings by name, for each statistic")
        _check(self, "training", _is_table(self.training, _are_facts), "numbers or texts by name")
        _check(self, "source", isinstance(self.source, str), "a text")
        tried = self.temperatures
        positive = tried is None or (_is_range(tried) and tried[0] > 0)
        _check(self, "temperatures", positive, "two ascending positive numbers, or none")

    def reasons(self, task: Task) -> list[str]:
        """Say in words why a task lies outside; an empty list when it lies inside."""
        sizes = Domain(self.feature_dim, self.n_classes, self.statistic_settings, self.source)
        found = sizes.reasons(task)
        ranges: list[tuple[str, Range]] = list(self.statistics)
        if self.n_samples is not None and task.n_samples is not None:
            ranges.insert(0, ("n", self.n_samples))
        for name, bounds in ranges:
            if name == "n" or name in task.statistics:
                found += _outside(name, variable_value(name, task), bounds)
        for name, seen in self.training:
            if name in task.training:
                found += _other_training(name, task.training[name], seen)
        return found


def _check(domain: FittedDomain, name: str, good: bool, expected: str) -> None:
    if not good:
        raise InvalidInput(
            f"fitted domain, {name}",
            expected=expected,
            found=f"{getattr(domain, name)!r:.80}",
            fix="Take the range of the runs.",
        )


def _outside(name: str, value: float, bounds: Range) -> list[str]:
    slack = _SLACK * max(map(abs, bounds))
    if bounds[0] - slack <= value <= bounds[1] + slack:
        return []
    return [
        f"{name} = {value:.6g} is outside the {bounds[0]:.4g} to {bounds[1]:.4g} that the rule "
        "was fitted on"
    ]


def _other_training(name: str, value: Any, seen: tuple[Any, ...]) -> list[str]:
    if name == "schedule" and (rates := rates_in(value)):
        value = name_of_shares([rate / max(rates) for rate in rates], "as given")
    value = plain_value(value)
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if number and seen and all(isinstance(s, int | float) for s in seen):
        return _outside(name, float(value), (float(min(seen)), float(max(seen))))
    if value in seen:
        return []
    return [f"{name} is {value}, the rule was fitted on {', '.join(map(str, seen))}"]
