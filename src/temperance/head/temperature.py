"""T itself: which values are taken, how it is learned, what a gradient meets on its way past it."""

from __future__ import annotations

import math
import numbers
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

from temperance.errors import InvalidInput

__all__ = [
    "MAX_LEARNED",
    "MIN_TEMPERATURE",
    "LearnedTemperature",
    "check_temperature",
    "new_log_temperature",
    "scale_gradient",
    "temperature_of",
]

# Lowest T that is taken. A 64-128-10 net on scikit-learn's digits (SGD, learning rate 0.1) diverged
# at T = 0.05 and was NaN at 1e-8; gentler settings bear 0.05, and no setting that
# we know of needs less than 0.01. CLIP clamps its learned scale at 100, which is the same bound.
MIN_TEMPERATURE = 0.01
# Upper clip of the published rules (Hasegawa & Sakai, see docs/methods): no T beyond it is in use.
MAX_LEARNED = 512.0
_ROUNDING = 1e-5  # of a T at a bound, which is stored as float32


def check_temperature(value: Any) -> float:
    """Check a temperature that divides logits.

    Args:
        value: a real number.

    Returns:
        The value as a float.

    Raises:
        InvalidInput: if it is not a finite number of at least ``MIN_TEMPERATURE``.

    Example:
        >>> from temperance.head import check_temperature
        >>> check_temperature(4)
        4.0
    """
    real = isinstance(value, numbers.Real) and not isinstance(value, bool)
    number = float(value) if real else math.nan
    if math.isfinite(number) and MIN_TEMPERATURE <= number <= torch.finfo(torch.float32).max:
        return number
    raise InvalidInput(
        "temperature",
        expected=f"a finite number of at least {MIN_TEMPERATURE} that divides the logits",
        found=repr(value),
        fix="Pass T as in softmax(logits / T); for a scale or inverse temperature s, pass 1 / s.",
    )


@dataclass(frozen=True)
class LearnedTemperature:
    """Let T be learned, as ``log T`` between two bounds.

    In training every forward pass first puts the parameter back between the bounds, so that no
    step, however large, makes T collapse or run away; at a bound it still gets its gradient, and
    comes back when the loss wants it to. Give it no weight decay (``parameter_groups`` does not):
    decay would pull T towards 1.

    A learned T ends where optimizer, learning rate and steps leave it. It is no answer to which T
    is right: hold it against fixed ones.

    Attributes:
        minimum: least T, ``MIN_TEMPERATURE`` or more.
        maximum: largest T.

    Raises:
        InvalidInput: if the bounds are no temperatures or not in order.

    Example:
        >>> from torch import nn
        >>> from temperance.head import LearnedTemperature, TemperedHead
        >>> head = TemperedHead(nn.Linear(8, 3), 4.0, learned=LearnedTemperature(1.0, 16.0))
        >>> round(float(head.temperature), 4), tuple(head.log_temperature.shape)
        (4.0, (1,))

    Reference:
        A. Radford et al., "Learning transferable visual models from natural language supervision"
        (CLIP), 2021, arXiv 2103.00020: a log-parametrized scale, clipped at 100. The lower bound is
        that clip; the upper one is the largest T of the published rules.
    """

    minimum: float = MIN_TEMPERATURE
    maximum: float = MAX_LEARNED

    def __post_init__(self) -> None:
        low, high = check_temperature(self.minimum), check_temperature(self.maximum)
        if not low < high:
            raise InvalidInput(
                "bounds of a learned temperature",
                expected="a minimum below the maximum",
                found=f"{low:g} and {high:g}",
                fix="Swap them, or train with a fixed T.",
            )

    def check(self, temperature: float) -> float:
        """Give the value as a float if it lies between the bounds; else raise InvalidInput."""
        number = check_temperature(temperature)
        nearest = min(max(number, self.minimum), self.maximum)
        if math.isclose(number, nearest, rel_tol=_ROUNDING):
            return nearest
        raise InvalidInput(
            "temperature",
            expected=f"a T between the bounds {self.minimum:g} and {self.maximum:g} of a learned T",
            found=repr(temperature),
            fix="Move the bounds (LearnedTemperature), or start inside them.",
        )


def check_learned(learned: Any) -> LearnedTemperature | None:
    """Check the bounds of a learned T; None stands for a T that is not learned."""
    if learned is None or isinstance(learned, LearnedTemperature):
        return learned
    raise InvalidInput(
        "learned",
        expected="bounds, LearnedTemperature(minimum, maximum), or None",
        found=repr(learned),
        fix="LearnedTemperature() has bounds that suit most.",
    )


def new_log_temperature(temperature: float, like: Tensor) -> nn.Parameter:
    """Make the parameter of a learned T: ``log T``, float32 or wider, shape ``[1]``.

    One axis, since fully sharded training takes no scalars.
    """
    dtype = torch.promote_types(like.dtype, torch.float32)
    return nn.Parameter(torch.full((1,), math.log(temperature), dtype=dtype, device=like.device))


def temperature_of(log: Tensor, bounds: LearnedTemperature, *, project: bool = False) -> Tensor:
    """Give T, a scalar with a gradient: ``exp(clamp(log T))``.

    The gradient passes the clamp as it is, also at and beyond a bound: T would never come back
    from there otherwise.

    Args:
        log: ``log T``, shape ``[1]``.
        bounds: bounds of T.
        project: whether to put ``log`` itself back between the bounds first, in place.
    """
    low, high = math.log(bounds.minimum), math.log(bounds.maximum)
    if project and log.is_leaf:  # copies of parallel replicas are not, and are dropped anyway
        with torch.no_grad():
            log.clamp_(low, high)
    return cast(Tensor, _Clamped.apply(log, low, high))[0].exp()


def scale_gradient(x: Tensor, scale: Tensor) -> Tensor:
    """Give ``x`` as it is; its gradient is multiplied by ``scale`` on the way back."""
    return cast(Tensor, _ScaledGradient.apply(x, scale))


class _Clamped(torch.autograd.Function):
    """Clamp forward; the gradient as it is backward."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, low: float, high: float) -> Tensor:
        return x.clamp(low, high)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:  # noqa: ARG004
        return gradient, None, None


class _ScaledGradient(torch.autograd.Function):
    """Identity forward; the gradient times a scale backward."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, scale: Tensor) -> Tensor:  # noqa: ARG004
        return x.view_as(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:  # noqa: ARG004
        ctx.save_for_backward(inputs[1])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (scale,) = ctx.saved_tensors
        return gradient * scale.to(gradient.dtype), None
