"""The closed forms of Hasegawa and Sakai, with and without the correction for the task.

Reference:
    T. Hasegawa, S. Sakai, "Analytical softmax temperature setting from feature dimensions for
    model- and domain-robust classification", 2025, arXiv 2504.15594. The coefficients were found
    there by differential evolution over trainings of ResNet, EfficientNet, RegNet, ConvNeXt, ViT
    and Swin on CIFAR-10, CIFAR-100, STL-10 and Tiny ImageNet, with BatchNorm in front of the
    output layer.

What the paper leaves open is a field here: the base of the logarithm (natural: NumPy's ``log``)
and the lower clip ``eps`` (1e-8). The range of M follows from the families that it names: their
common members have 400 (RegNet-X-400MF) to 2,560 (EfficientNet-B7) features; 10 to 200 classes are
those of the four data sets. With the natural logarithm the corrected form leaves its own range
often: at M = 512 and csg = 1 it is negative from 45 classes on.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from temperance.errors import InvalidInput
from temperance.records import Task
from temperance.rules.domain import Domain, check_field

__all__ = ["HasegawaSakai", "HasegawaSakaiCsgCn"]

_PAPER = "arXiv 2504.15594"
_FITTED_M = (400, 2560)
_FITTED_C = (10, 200)
# The paper does not say how it measured csg. k and weighting: the public code's defaults;
# n_samples: from the 100 of csg's own experiments to the public code's default.
_CSG_SETTINGS = (("k", 3), ("weighting", "parzen"), ("n_samples", (100, 250)))
_WHERE = f"{_PAPER}: families named there (M), CIFAR-10 to Tiny ImageNet (C)"


def _clip(value: float, lower: float, upper: float) -> float:
    return min(max(value, lower), upper)


@dataclass(frozen=True)
class HasegawaSakai:
    """The uncorrected form: ``T = clip(alpha * sqrt(M) + beta, eps, upper)``.

    It is negative for M <= 42.

    Args:
        alpha: factor of ``sqrt(M)``; 0.7239 [arXiv 2504.15594].
        beta: offset; -4.706 [arXiv 2504.15594].
        eps: lower clip, 1e-8 (open in the paper). ``suggest`` never hands it to a trainer.
        upper: upper clip, 512 (stated for the corrected form; taken over here).

    Example:
        >>> from temperance import Task
        >>> from temperance.rules import HasegawaSakai
        >>> round(HasegawaSakai()(Task(feature_dim=512, n_classes=10)), 3)
        11.674
    """

    alpha: float = 0.7239
    beta: float = -4.706
    eps: float = 1e-8
    upper: float = 512.0

    name: ClassVar[str] = "hasegawa-sakai"
    norm: ClassVar[str] = "batch"
    needs: ClassVar[tuple[str, ...]] = ()
    fallback: ClassVar[str | None] = "constant"
    domain: ClassVar[Domain] = Domain(feature_dim=_FITTED_M, n_classes=_FITTED_C, source=_WHERE)
    reference: ClassVar[str] = _PAPER
    formula: ClassVar[str] = "T = 0.7239 sqrt(M) - 4.706"
    trust: ClassVar[str] = "long trainings (tens of epochs) of M = 400 to 2,560 features behind BN"

    def terms(self, task: Task) -> dict[str, float]:
        """Give the terms that add up to the value before the clip."""
        return {"sqrt(M)": self.alpha * math.sqrt(task.feature_dim), "offset": self.beta}

    def __call__(self, task: Task) -> float:
        """Give the clipped temperature for a task, as the paper writes it."""
        return _clip(sum(self.terms(task).values()), self.eps, self.upper)


@dataclass(frozen=True)
class HasegawaSakaiCsgCn:
    """The corrected form, which also sees the difficulty (CSG) and the number of classes.

    ``T = clip(alpha*sqrt(M) + beta + gamma*log(csg) + delta*log(C), eps, upper)``

    Args:
        alpha: factor of ``sqrt(M)``; 0.3191 [arXiv 2504.15594].
        beta: offset; 20.74 [arXiv 2504.15594].
        gamma: factor of ``log(csg)``; 3.746 [arXiv 2504.15594].
        delta: factor of ``log(C)``; -7.380 [arXiv 2504.15594].
        log_base: base of both logarithms; e (open in the paper; NumPy's ``log``).
        eps: lower clip, 1e-8 (open in the paper). ``suggest`` never hands it to a trainer.
        upper: upper clip, 512 [arXiv 2504.15594].

    Example:
        >>> from temperance import Task
        >>> from temperance.records import Statistic
        >>> from temperance.rules import HasegawaSakaiCsgCn
        >>> task = Task(feature_dim=512, n_classes=10, statistics={"csg": Statistic(0.7)})
        >>> round(HasegawaSakaiCsgCn()(task), 3)
        9.631
    """

    alpha: float = 0.3191
    beta: float = 20.74
    gamma: float = 3.746
    delta: float = -7.380
    log_base: float = math.e
    eps: float = 1e-8
    upper: float = 512.0

    name: ClassVar[str] = "hasegawa-sakai-csg-cn"
    norm: ClassVar[str] = "batch"
    needs: ClassVar[tuple[str, ...]] = ("csg",)
    fallback: ClassVar[str | None] = "hasegawa-sakai"
    domain: ClassVar[Domain] = Domain(
        feature_dim=_FITTED_M,
        n_classes=_FITTED_C,
        statistic_settings=(("csg", _CSG_SETTINGS),),
        source=_WHERE,
    )
    reference: ClassVar[str] = _PAPER
    formula: ClassVar[str] = "T = 0.3191 sqrt(M) + 20.74 + 3.746 ln(csg) - 7.380 ln(C)"
    trust: ClassVar[str] = "as above, with 10 to 200 classes and a csg that repeats agree on"

    def __post_init__(self) -> None:
        check_field(self, "log_base", self.log_base > 0 and self.log_base != 1, "positive, not 1")

    def terms(self, task: Task) -> dict[str, float]:
        """Give the terms that add up to the value before the clip; csg = 0 gives ``-inf``."""
        csg = float(task.statistics["csg"])
        if not 0 <= csg <= task.n_classes - 1:
            raise InvalidInput(
                "csg",
                expected=f"a number from 0 to C - 1 = {task.n_classes - 1}",
                found=str(csg),
                fix="Measure it with temperance.csg on this task's features.",
            )
        unit = math.log(self.log_base)
        return {
            "sqrt(M)": self.alpha * math.sqrt(task.feature_dim),
            "offset": self.beta,
            "log(csg)": self.gamma * math.log(csg) / unit if csg > 0 else -math.inf,
            "log(C)": self.delta * math.log(task.n_classes) / unit,
        }

    def __call__(self, task: Task) -> float:
        """Give the clipped temperature for a task, as the paper writes it."""
        return _clip(sum(self.terms(task).values()), self.eps, self.upper)
