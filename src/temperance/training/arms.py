"""Arms: the settings that a comparison trains side by side.

An arm is a norm, a temperature and a label smoothing. All arms of a comparison share their seeds:
the same initial weights, the same order of the data, the same budget.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from temperance.errors import InvalidInput
from temperance.records import Suggestion

__all__ = ["BASELINE", "DEFAULT_ARMS", "Arm", "merge_arms", "parse_arm"]

NORMS = {"plain": "none", "bn": "batch", "ln": "layer"}
BASELINE = "plain"
DEFAULT_ARMS = ("plain", "bn", "ln", "bn:T=sqrt", "bn:T=suggested", "plain:smoothing=0.1")
_GRAMMAR = (
    "NORM[:T=VALUE][:smoothing=VALUE], NORM one of plain, bn, ln; T a number, sqrt or suggested"
)


@dataclass(frozen=True)
class Arm:
    """One setting of a comparison.

    Attributes:
        name: how it was asked for, for instance ``bn:T=suggested``.
        norm: ``none``, ``batch`` or ``layer``.
        temperature: T in training and in the model.
        smoothing: label smoothing of the training loss, 0 to below 1.
        aliases: other names of the same setting, which is trained once.
    """

    name: str
    norm: str
    temperature: float
    smoothing: float = 0.0
    aliases: tuple[str, ...] = ()

    @property
    def setting(self) -> tuple[str, float, float]:
        """What makes two arms the same training."""
        return self.norm, self.temperature, self.smoothing

    @property
    def suggested(self) -> bool:
        """Whether this arm trains with the suggested temperature."""
        return any("T=suggested" in name for name in (self.name, *self.aliases))

    @property
    def prefix(self) -> str:
        """The word for its norm in the grammar: ``plain``, ``bn`` or ``ln``."""
        return next(word for word, norm in NORMS.items() if norm == self.norm)

    @property
    def title(self) -> str:
        """Name for tables and plots, for instance ``BN, T = 3.48 (suggested)``."""
        norm = {"none": "plain", "batch": "BN", "layer": "LN"}[self.norm]
        number = f"{self.temperature:.3g}"
        if float(number) != self.temperature and not self.suggested and "sqrt" not in self.name:
            number = f"{self.temperature:g}"
        text = f"{norm}, T = {number}" + (" (suggested)" if self.suggested else "")
        return f"{text}, smoothing {self.smoothing:g}" if self.smoothing else text


def merge_arms(arms: Sequence[Arm]) -> tuple[Arm, ...]:
    """Join arms that are the same training under two names; the first name stays.

    Args:
        arms: arms in the order in which they were asked for.

    Returns:
        Arms with different settings; what was joined is in ``aliases``.

    Example:
        >>> from temperance.training.arms import Arm, merge_arms
        >>> one = merge_arms([Arm("bn", "batch", 1.0), Arm("bn:T=suggested", "batch", 1.0)])
        >>> [(arm.name, arm.title) for arm in one]
        [('bn', 'BN, T = 1 (suggested)')]
    """
    found: dict[tuple[str, float, float], Arm] = {}
    for arm in arms:
        first = found.get(arm.setting)
        found[arm.setting] = (
            arm if first is None else replace(first, aliases=(*first.aliases, arm.name))
        )
    return tuple(found.values())


def parse_arm(text: str, *, feature_dim: int, suggestion: Suggestion) -> Arm:
    """Read an arm such as ``bn:T=suggested`` or ``plain:smoothing=0.1``.

    Args:
        text: ``NORM[:T=VALUE][:smoothing=VALUE]``; NORM is plain, bn or ln; T (1 if absent) is a
            number, ``sqrt`` for ``sqrt(M)``, or ``suggested``.
        feature_dim: M, for ``T=sqrt``.
        suggestion: what ``T=suggested`` stands for.

    Returns:
        The arm.

    Raises:
        InvalidInput: if the text does not follow the grammar.

    Example:
        >>> from temperance import Task, suggest
        >>> from temperance.training.arms import parse_arm
        >>> s = suggest(Task(feature_dim=64, n_classes=10))
        >>> parse_arm("bn:T=sqrt", feature_dim=64, suggestion=s).title
        'BN, T = 8'
    """
    norm, *options = text.split(":")
    if norm not in NORMS:
        raise _bad_arm(text)
    temperature, smoothing = 1.0, 0.0
    for option in options:
        key, _, value = option.partition("=")
        if key == "T":
            temperature = _temperature(text, value, feature_dim, suggestion)
        elif key == "smoothing":
            smoothing = _number(text, value)
        else:
            raise _bad_arm(text)
    if not (math.isfinite(temperature) and temperature > 0 and 0 <= smoothing < 1):
        raise _bad_arm(text)
    return Arm(text, NORMS[norm], temperature, smoothing)


def _temperature(text: str, value: str, feature_dim: int, suggestion: Suggestion) -> float:
    if value == "sqrt":
        return math.sqrt(feature_dim)
    if value == "suggested":
        return suggestion.temperature
    return _number(text, value)


def _number(text: str, value: str) -> float:
    try:
        return float(value)
    except ValueError:
        raise _bad_arm(text) from None


def _bad_arm(text: str) -> InvalidInput:
    return InvalidInput(
        "arm",
        expected=_GRAMMAR,
        found=repr(text),
        fix="For instance --arm bn:T=4 --arm plain:smoothing=0.1.",
    )
