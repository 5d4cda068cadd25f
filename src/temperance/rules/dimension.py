"""Rules that need no more than the feature dimension, or nothing at all."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from temperance.records import Task
from temperance.rules.domain import Domain, check_field

__all__ = ["Constant", "SqrtDim"]


@dataclass(frozen=True)
class Constant:
    """The same temperature for every task: ``T = value``.

    At ``value = 1`` this is what nearly everybody trains with.

    Args:
        value: the temperature, > 0.

    Example:
        >>> from temperance import Task
        >>> from temperance.rules import Constant
        >>> Constant(4.0)(Task(feature_dim=512, n_classes=10))
        4.0
    """

    value: float = 1.0

    name: ClassVar[str] = "constant"
    norm: ClassVar[str] = "none"
    needs: ClassVar[tuple[str, ...]] = ()
    fallback: ClassVar[str | None] = None
    domain: ClassVar[Domain] = Domain(source="no fit: the common default")
    reference: ClassVar[str] = "the default of every framework"
    formula: ClassVar[str] = "T = 1"
    trust: ClassVar[str] = "the baseline to beat; safe for short training budgets"

    def __post_init__(self) -> None:
        check_field(self, "value", self.value > 0, "a positive temperature")

    def terms(self, task: Task) -> dict[str, float]:  # noqa: ARG002
        """Give the one term of the rule."""
        return {"constant": self.value}

    def __call__(self, task: Task) -> float:
        """Give the temperature for a task."""
        return sum(self.terms(task).values())


@dataclass(frozen=True)
class SqrtDim:
    """The scale of attention, carried over to the output layer: ``T = alpha * sqrt(M) + beta``.

    Args:
        alpha: factor of ``sqrt(M)``; 1 as in attention's ``sqrt(d)``.
        beta: offset; 0.

    Reference:
        A. Vaswani et al., "Attention is all you need", 2017, arXiv 1706.03762, section 3.2.1 (the
        scale ``sqrt(d_k)``). As a classifier temperature it is a baseline of T. Hasegawa and
        S. Sakai, arXiv 2504.15594.

    Example:
        >>> from temperance import Task
        >>> from temperance.rules import SqrtDim
        >>> SqrtDim()(Task(feature_dim=256, n_classes=10))
        16.0
    """

    alpha: float = 1.0
    beta: float = 0.0

    name: ClassVar[str] = "sqrt-dim"
    norm: ClassVar[str] = "batch"
    needs: ClassVar[tuple[str, ...]] = ()
    fallback: ClassVar[str | None] = "constant"
    domain: ClassVar[Domain] = Domain(source="no fit: the scale of attention")
    reference: ClassVar[str] = "arXiv 1706.03762; a baseline in arXiv 2504.15594"
    formula: ClassVar[str] = "T = sqrt(M)"
    trust: ClassVar[str] = "long trainings of wide features; costs accuracy when training is short"

    def terms(self, task: Task) -> dict[str, float]:
        """Give the terms that add up to the temperature."""
        return {"sqrt(M)": self.alpha * math.sqrt(task.feature_dim), "offset": self.beta}

    def __call__(self, task: Task) -> float:
        """Give the temperature for a task."""
        return sum(self.terms(task).values())
