"""A T that moves in training: a function of how much of the training is done, set from any loop."""

from __future__ import annotations

import itertools
import math
import numbers
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from temperance.errors import InvalidInput, NotFound
from temperance.head.surgery import tempered_heads
from temperance.head.temperature import check_temperature

__all__ = [
    "SHAPES",
    "Constant",
    "Piecewise",
    "Ramp",
    "Schedule",
    "set_scheduled",
    "temperature_at",
    "temperatures",
]

Schedule = Callable[[float], float]
"""Gives T for the share of the training that is done, 0 at the first step and 1 at the last."""

SHAPES = ("linear", "cosine", "exponential")


@dataclass(frozen=True)
class Constant:
    """The same T throughout.

    Attributes:
        temperature: T.

    Example:
        >>> from temperance.head import Constant
        >>> Constant(4.0)(0.5)
        4.0
    """

    temperature: float

    def __post_init__(self) -> None:
        check_temperature(self.temperature)

    def __call__(self, progress: float) -> float:  # noqa: ARG002
        """Give T."""
        return float(self.temperature)


@dataclass(frozen=True)
class Ramp:
    """From one T to another: linear in T, along half a cosine, or linear in log T (exponential).

    With ``u`` the share of the ramp that is done: ``a + (b - a) u``;
    ``b + (a - b) (1 + cos(pi u)) / 2``; ``a (b / a)^u``.

    Attributes:
        start: T up to ``begin``.
        end: T from ``until`` on, exactly.
        shape: one of ``SHAPES``.
        begin: share of the training at which the ramp begins.
        until: share at which it ends.

    Raises:
        InvalidInput: if a T, the shape or the shares cannot be used.

    Example:
        >>> from temperance.head import Ramp
        >>> [Ramp(16.0, 1.0, "exponential")(p) for p in (0.0, 0.5, 1.0)]
        [16.0, 4.0, 1.0]

    Reference:
        X. Zhang et al., "Heated-up softmax embedding", 2018, arXiv 1809.04157, raises T in
        training. What ramps did in our own trials is in docs/moving-temperature.
    """

    start: float
    end: float
    shape: str = "linear"
    begin: float = 0.0
    until: float = 1.0

    def __post_init__(self) -> None:
        check_temperature(self.start)
        check_temperature(self.end)
        if self.shape not in SHAPES:
            raise _invalid("shape of the ramp", " or ".join(SHAPES), repr(self.shape))
        real = _is_real(self.begin) and _is_real(self.until)
        if not real or not 0 <= self.begin < self.until <= 1:
            found = f"{self.begin!r} and {self.until!r}"
            raise _invalid("ramp", "shares with 0 <= begin < until <= 1", found)

    def __call__(self, progress: float) -> float:
        """Give T for a share of the training."""
        share = (progress - self.begin) / (self.until - self.begin)
        if share <= 0:
            return float(self.start)
        if share >= 1:
            return float(self.end)
        if self.shape == "exponential":
            return float(self.start * (self.end / self.start) ** share)
        if self.shape == "cosine":
            share = (1 - math.cos(math.pi * share)) / 2
        return float(self.start + (self.end - self.start) * share)


@dataclass(frozen=True)
class Piecewise:
    """T by stages: each value holds from its share of the training on, until the next.

    Attributes:
        points: ``(share, T)`` in ascending order, the first at share 0.
        interpolate: go from point to point in straight lines instead of steps.

    Raises:
        InvalidInput: if the shares are not ascending from 0 to at most 1, or a T cannot be used.

    Example:
        >>> from temperance.head import Piecewise
        >>> [Piecewise(((0, 16.0), (0.5, 4.0)))(p) for p in (0.0, 0.49, 0.5, 1.0)]
        [16.0, 16.0, 4.0, 4.0]
    """

    points: Sequence[tuple[float, float]]
    interpolate: bool = False

    def __post_init__(self) -> None:
        points = _points(self.points)
        object.__setattr__(self, "points", points)
        shares = [share for share, _ in points]
        ascending = all(a < b for a, b in itertools.pairwise(shares))
        if shares[0] != 0 or not ascending or shares[-1] > 1:
            raise _invalid("points", "ascending shares from 0 to at most 1", repr(shares))

    def __call__(self, progress: float) -> float:
        """Give T for a share of the training."""
        passed = sum(share <= progress for share, _ in self.points)
        share, value = self.points[max(passed - 1, 0)]
        if not self.interpolate or passed in (0, len(self.points)):
            return float(value)
        later, other = self.points[passed]
        return float(value + (other - value) * (progress - share) / (later - share))


def temperature_at(schedule: Schedule, step: int, steps: int) -> float:
    """Give the T of a step (or an epoch).

    Args:
        schedule: any function of the share of the training that is done, for instance a ``Ramp``.
        step: number of the step, from 0.
        steps: how many there are. Step 0 has share 0, the last one share 1; a training of one step
            has share 1. Steps beyond the last keep its T.

    Returns:
        T, checked.

    Raises:
        InvalidInput: if the step is negative, there are none, or the schedule gives no temperature.

    Example:
        >>> from temperance.head import Ramp, temperature_at
        >>> [temperature_at(Ramp(4.0, 1.0), step, 4) for step in range(4)]
        [4.0, 3.0, 2.0, 1.0]
    """
    step, steps = _whole("step", step, least=0), _whole("steps", steps, least=1)
    given: Any = schedule
    if not callable(given):
        expected = "a function of the share of the training, such as Ramp or Constant"
        raise _invalid("schedule", expected, repr(given))
    share = min(1.0, step / (steps - 1)) if steps > 1 else 1.0
    try:
        return check_temperature(schedule(share))
    except InvalidInput as error:
        error.add_note(f"given by the schedule at step {step} of {steps} (share {share:.4g})")
        raise


def set_scheduled(
    model: nn.Module, schedule: Schedule, step: int, steps: int, *, name: str | None = None
) -> float:
    """Set the T of a step (or an epoch) in a model, and give it for the log.

    Call it before the forward pass of a step, or at the start of an epoch with epochs for steps;
    every loop, callback and trainer knows both numbers. T is a buffer of the head: it is saved with
    the weights, moved in place (compiled and wrapped models see it), and ``fold`` takes the value
    that is in effect. Going on from a checkpoint needs nothing but the number of the step.

    Args:
        model: a model with tempered heads, also compiled or wrapped; all of them get the same T.
        schedule: any function of the share of the training that is done.
        step: number of the step, from 0.
        steps: how many there are.
        name: dotted name of the one head to set.

    Returns:
        The T that is in effect now.

    Raises:
        NotFound: if there is no (such) head.
        InvalidInput: as ``temperature_at``, and for a head whose T is learned.

    Example:
        >>> from torch import nn
        >>> from temperance.head import Ramp, insert, set_scheduled
        >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
        >>> head = insert(model, 4.0)
        >>> [set_scheduled(model, Ramp(4.0, 1.0), step, 3) for step in range(3)]
        [4.0, 2.5, 1.0]
        >>> float(head.temperature)
        1.0
    """
    value = temperature_at(schedule, step, steps)
    heads = tempered_heads(model)
    chosen = heads if name is None else {n: h for n, h in heads.items() if n == name}
    if not chosen:
        raise NotFound(
            "tempered head",
            found="the model has none" if not heads else f"none is called {name!r}",
            candidates=tuple(heads),
            fix="Call insert first, or check the name.",
        )
    learned = [n for n, head in chosen.items() if head.learned is not None]
    if learned:
        raise InvalidInput(
            f"tempered head {learned[0]!r}",
            expected="a fixed T for a schedule",
            found="one that is learned",
            fix="Insert without HeadOptions(learned=...), or call its fix_temperature() first.",
        )
    for head in chosen.values():
        head.set_temperature(value)
    return value


def temperatures(model: nn.Module) -> dict[str, float]:
    """Give the T in effect of every tempered head, by dotted name: what a log should show.

    Args:
        model: any model, also compiled or wrapped.

    Returns:
        T by name; learned, scheduled and fixed ones alike.

    Example:
        >>> from torch import nn
        >>> from temperance.head import insert, temperatures
        >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
        >>> _ = insert(model, 4.0)
        >>> temperatures(model)
        {'2': 4.0}
    """
    return {name: float(head.temperature) for name, head in tempered_heads(model).items()}


def _is_real(value: Any) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def _points(given: Any) -> tuple[tuple[float, float], ...]:
    try:
        pairs = [(share, temperature) for share, temperature in given]
    except (TypeError, ValueError):  # no sequence, or not of pairs
        pairs = []
    if not pairs or not all(_is_real(share) for share, _ in pairs):
        raise _invalid("points", "pairs of a share and a T", repr(given))
    return tuple((float(share), check_temperature(t)) for share, t in pairs)


def _whole(subject: str, value: Any, *, least: int) -> int:
    try:
        number = least - 1 if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = least - 1
    if number < least:
        raise _invalid(subject, f"a whole number of {least} or more", repr(value))
    return number


def _invalid(subject: str, expected: str, found: str) -> InvalidInput:
    fix = "Shares and steps count from 0; a schedule is Ramp, Piecewise, Constant or your function."
    return InvalidInput(subject, expected=expected, found=found, fix=fix)
