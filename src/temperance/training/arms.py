"""Arms: the settings that a comparison trains side by side.

An arm is a norm, a temperature and a label smoothing. All arms of a comparison share their seeds:
the same initial weights, the same order of the data, the same budget.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from temperance.errors import InvalidInput
from temperance.records import Suggestion

__all__ = ["BASELINE", "DEFAULT_ARMS", "Arm", "parse_arm"]

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
    """

    name: str
    norm: str
    temperature: float
    smoothing: float = 0.0

    @property
    def title(self) -> str:
        """Name for tables and plots, for instance ``BN, T = 3.48``."""
        norm = {"none": "plain", "batch": "BN", "layer": "LN"}[self.norm]
        text = f"{norm}, T = {self.temperature:.3g}"
        return f"{text}, smoothing {self.smoothing:g}" if self.smoothing else text


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
