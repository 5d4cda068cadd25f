"""Fixed scales of cosine heads, where features and weights have length 1: ``T = 1 / s``.

These are for ``norm="cosine"`` only: there a logit lies in -1..1, so that T is far below 1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from temperance.records import Task
from temperance.rules.domain import Domain, check_field

__all__ = ["AdaCos", "CosFaceBound", "NormFace"]

_MOST_LOSS = 100.0  # exp of more is of no use, and overflows from 710 on
_NO_FIT = Domain(source="no fit: derived for normalized features and weights")


def _inverse(scale: float) -> float:
    return 1.0 / scale if scale > 0 else math.inf


@dataclass(frozen=True)
class AdaCos:
    """The fixed scale of AdaCos: ``s = sqrt(2) * ln(C - 1)``, ``T = 1 / s``; undefined at C = 2.

    Args:
        factor: ``sqrt(2)``.

    Reference:
        X. Zhang et al., "AdaCos: adaptively scaling cosine logits for effectively learning deep
        face representations", CVPR 2019, arXiv 1905.00292, eq. 12.

    Example:
        >>> from temperance import Task
        >>> from temperance.rules import AdaCos
        >>> round(1 / AdaCos()(Task(feature_dim=512, n_classes=1000)), 2)
        9.77
    """

    factor: float = math.sqrt(2.0)

    name: ClassVar[str] = "adacos"
    norm: ClassVar[str] = "cosine"
    needs: ClassVar[tuple[str, ...]] = ()
    fallback: ClassVar[str | None] = "cosface-bound"
    domain: ClassVar[Domain] = _NO_FIT
    reference: ClassVar[str] = "arXiv 1905.00292"
    formula: ClassVar[str] = "T = 1 / (sqrt(2) ln(C - 1))"
    trust: ClassVar[str] = "cosine heads only; C of 3 or more"

    def terms(self, task: Task) -> dict[str, float]:
        """Give the scale ``s``, of which the temperature is the inverse."""
        return {"scale": self.factor * math.log(task.n_classes - 1)}

    def __call__(self, task: Task) -> float:
        """Give the temperature for a task; infinite where the scale is 0."""
        return _inverse(self.terms(task)["scale"])


@dataclass(frozen=True)
class CosFaceBound:
    """The smallest scale that lets a class reach a probability P: ``T = 1 / s``.

    ``s = (C-1)/C * ln((C-1) * P / (1-P))``

    Args:
        probability: P, the posterior that class centres should be able to reach, 0 < P < 1. The
            paper leaves the value to its user; 0.9 here.

    Reference:
        H. Wang et al., "CosFace: large margin cosine loss for deep face recognition", CVPR 2018,
        arXiv 1801.09414, eq. 6.

    Example:
        >>> from temperance import Task
        >>> from temperance.rules import CosFaceBound
        >>> round(1 / CosFaceBound(0.9)(Task(feature_dim=512, n_classes=10)), 3)
        3.955
    """

    probability: float = 0.9

    name: ClassVar[str] = "cosface-bound"
    norm: ClassVar[str] = "cosine"
    needs: ClassVar[tuple[str, ...]] = ()
    fallback: ClassVar[str | None] = None
    domain: ClassVar[Domain] = _NO_FIT
    reference: ClassVar[str] = "arXiv 1801.09414"
    formula: ClassVar[str] = "T = C / ((C - 1) ln((C - 1) P / (1 - P))), P = 0.9"
    trust: ClassVar[str] = "cosine heads only; the largest T that still can reach P"

    def __post_init__(self) -> None:
        check_field(self, "probability", 0 < self.probability < 1, "a share between 0 and 1")

    def terms(self, task: Task) -> dict[str, float]:
        """Give the scale ``s``, of which the temperature is the inverse."""
        others = task.n_classes - 1
        odds = self.probability / (1 - self.probability)
        return {"scale": others / task.n_classes * math.log(others * odds)}

    def __call__(self, task: Task) -> float:
        """Give the temperature for a task."""
        return _inverse(self.terms(task)["scale"])


@dataclass(frozen=True)
class NormFace:
    """The smallest scale that lets the loss fall to a given value: ``T = 1 / s``.

    NormFace bounds the cross entropy of normalized features and weights from below by
    ``ln(1 + (C-1) * exp(-s * C/(C-1)))``; solved for the scale,
    ``s = (C-1)/C * ln((C-1) / (exp(loss) - 1))``. With ``P = exp(-loss)`` this is CosFace's bound.

    Args:
        loss: the loss in nats that training should be able to reach, > 0. The paper leaves the
            value to its user; 0.01 here.

    Reference:
        F. Wang et al., "NormFace: L2 hypersphere embedding for face verification", ACM MM 2017,
        arXiv 1704.06369, proposition 2.

    Example:
        >>> from temperance import Task
        >>> from temperance.rules import NormFace
        >>> round(1 / NormFace()(Task(feature_dim=512, n_classes=10)), 3)
        6.118
    """

    loss: float = 0.01

    name: ClassVar[str] = "normface"
    norm: ClassVar[str] = "cosine"
    needs: ClassVar[tuple[str, ...]] = ()
    fallback: ClassVar[str | None] = None
    domain: ClassVar[Domain] = _NO_FIT
    reference: ClassVar[str] = "arXiv 1704.06369"
    formula: ClassVar[str] = "T = C / ((C - 1) ln((C - 1) / (exp(loss) - 1))), loss = 0.01"
    trust: ClassVar[str] = "cosine heads only; the largest T that still can reach the loss"

    def __post_init__(self) -> None:
        check_field(self, "loss", 0 < self.loss < _MOST_LOSS, f"between 0 and {_MOST_LOSS} nats")

    def terms(self, task: Task) -> dict[str, float]:
        """Give the scale ``s``, of which the temperature is the inverse."""
        others = task.n_classes - 1
        return {"scale": others / task.n_classes * math.log(others / math.expm1(self.loss))}

    def __call__(self, task: Task) -> float:
        """Give the temperature for a task."""
        return _inverse(self.terms(task)["scale"])
