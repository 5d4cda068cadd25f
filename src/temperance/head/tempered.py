"""The output layer with a temperature: normalization, linear layer, division by T."""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable
from typing import Any, ClassVar, cast

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm as BatchNorm  # BatchNorm1d and SyncBatchNorm

from temperance.errors import InvalidInput

__all__ = ["MIN_TEMPERATURE", "NORMS", "BatchNorm", "TemperedHead", "check_temperature"]

# Lowest T that is taken. A 64-128-10 net on scikit-learn's digits (SGD, learning rate 0.1) diverged
# at T = 0.05 and was NaN at 1e-8; gentler settings bear 0.05, and no setting that
# we know of needs less than 0.01.
MIN_TEMPERATURE = 0.01
NORMS = ("batch", "batch-no-affine", "layer", "none")


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


def check_norm(norm: str) -> str:
    """Check the name of a normalization in front of the linear layer.

    Args:
        norm: one of ``NORMS``.

    Returns:
        The name.

    Raises:
        InvalidInput: if it is another one; ``"cosine"`` is told what to do instead.
    """
    if norm in NORMS:
        return norm
    cosine = (
        "Cosine heads are not offered: normalize features and weights in a layer of your own and "
        "divide its logits by T, or choose a norm from the list."
    )
    raise InvalidInput(
        "norm",
        expected=" or ".join(NORMS),
        found=repr(norm),
        fix=cosine if norm == "cosine" else "Choose one of them.",
    )


class TemperedHead(nn.Module):
    """Normalization, linear layer and temperature in the place of an output layer.

    ``logits = linear(norm(x)).float() / T``

    T is the buffer ``temperature``: float32, saved with the weights, unit "divides the logits", the
    same in training and evaluation. The last axis of ``x`` holds the features; all other axes are
    rows, so that the statistics of ``[batch, tokens, M]`` go over batch and tokens, padding
    included. The norm and T stay in float32 when the model is cast to half precision, and logits
    are raised to float32 before the division: 6e4 / 0.05 has no place in float16.

    Args:
        linear: the output layer, at least two outputs; kept as the very same object.
        temperature: T.
        norm: ``batch`` (BatchNorm with scale and shift), ``batch-no-affine``, ``layer``, ``none``.
        gradient_compensation: multiply the gradient of the logits by T. The loss stays in nats; the
            layers below see the gradients that they would see at T = 1. An attribute that can be
            changed at any time and is not saved with the weights.
        momentum: weight of the newest batch in BatchNorm's running statistics.

    Raises:
        InvalidInput: if T, the norm or the number of outputs cannot be used.

    Example:
        >>> import torch
        >>> from temperance.head import TemperedHead
        >>> head = TemperedHead(torch.nn.Linear(8, 3), 4.0).eval()
        >>> head(torch.zeros(5, 8)).shape, float(head.temperature)
        (torch.Size([5, 3]), 4.0)

    Reference:
        Hasegawa & Sakai (2025), arXiv 2504.15594: BatchNorm in front of the output layer, and a T
        that divides the logits in training and inference.
    """

    is_tempered_head: ClassVar[bool] = True
    temperature: Tensor

    def __init__(
        self,
        linear: nn.Linear,
        temperature: float,
        *,
        norm: str = "batch",
        gradient_compensation: bool = False,
        momentum: float = 0.1,
    ) -> None:
        super().__init__()
        number = check_temperature(temperature)
        _check_outputs(linear)
        self.norm = _make_norm(check_norm(norm), linear, momentum)
        self.linear = linear
        self.norm_kind = norm
        self.gradient_compensation = bool(gradient_compensation)
        device = linear.weight.device
        self.register_buffer("temperature", torch.tensor(number, device=device).float())
        self.norm.train(linear.training)
        self.training = linear.training

    def normalize(self, x: Tensor) -> Tensor:
        """Give the features after the norm: what the linear layer sees.

        Args:
            x: features before the norm, shape ``[..., M]``, any floating type.

        Returns:
            The same shape; float32 (float64 in a float64 head), or ``x`` itself without a norm.

        Raises:
            InvalidInput: if M is not ``in_features``, or for BatchNorm in training mode with fewer
                than two rows.
        """
        if x.shape[-1] != self.in_features:
            raise InvalidInput(
                "features of the output layer",
                expected=f"a last axis of {self.in_features}",
                found=f"shape {list(x.shape)}",
                fix="Channels come last; pool or flatten in front of the head.",
            )
        if isinstance(self.norm, nn.Identity):
            return x
        rows = x.to(self._norm_dtype()).reshape(-1, self.in_features)
        if isinstance(self.norm, nn.BatchNorm1d) and self.norm.training and len(rows) < 2:
            raise InvalidInput(
                "training batch",
                expected="two rows or more for BatchNorm in training mode",
                found=f"{len(rows)}",
                fix="Plan batches with temperance.check_batches, for example drop_last=True; to "
                "predict, call model.eval() first.",
            )
        return self.norm(rows).reshape(x.shape)

    def forward(self, input: Tensor) -> Tensor:
        """Give the logits, divided by T.

        Args:
            input: features (named as in ``nn.Linear``), shape ``[..., M]``; a single vector ``[M]``
                in evaluation mode.

        Returns:
            Logits, shape ``[..., C]``, float32 (float64 in a float64 head).
        """
        z = self.linear(self.normalize(input).to(self.linear.weight.dtype))
        logits = (z if z.dtype == torch.float64 else z.float()) / self.temperature
        if self.gradient_compensation:
            return cast(Tensor, _ScaledGradient.apply(logits, self.temperature))
        return logits

    def set_temperature(self, temperature: float) -> None:
        """Set T in place, for instance from a schedule; a bad value raises InvalidInput."""
        self.temperature.fill_(check_temperature(temperature))

    @property
    def in_features(self) -> int:
        """M, the number of features."""
        return int(self.linear.in_features)

    @property
    def out_features(self) -> int:
        """C, the number of outputs."""
        return int(self.linear.out_features)

    @property
    def weight(self) -> Tensor:
        """Weight of the linear layer, shape ``[C, M]``."""
        return self.linear.weight

    @property
    def bias(self) -> Tensor | None:
        """Bias of the linear layer, shape ``[C]``, or None."""
        return cast("Tensor | None", self.linear.bias)

    def extra_repr(self) -> str:
        """Show T and the norm in the printed model."""
        shown = "?" if self.temperature.is_meta else f"{float(self.temperature):g}"
        compensation = ", gradient_compensation=True" if self.gradient_compensation else ""
        return f"temperature={shown}, norm={self.norm_kind}{compensation}"

    def _norm_dtype(self) -> torch.dtype:
        tensors = (*self.norm.parameters(), *self.norm.buffers())
        return next((t.dtype for t in tensors if t.is_floating_point()), torch.float32)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> TemperedHead:
        """Move and cast like any module, but keep the norm and T at float32 or wider."""
        kept = [
            (owner, name, tensor.detach())
            for owner in (self, self.norm)
            for name, tensor in (*owner._parameters.items(), *owner._buffers.items())
            if tensor is not None and tensor.dtype in (torch.float32, torch.float64)
        ]
        super()._apply(fn, recurse)
        for owner, name, before in kept:
            now = owner._parameters.get(name, owner._buffers.get(name))
            if now is None or now.dtype not in (torch.float16, torch.bfloat16):
                continue
            wide = before.to(now.device, torch.float32)
            if name in owner._buffers:
                owner._buffers[name] = wide
            else:
                now.data, now.grad = wide, None if now.grad is None else now.grad.float()
        return self


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


def _make_norm(norm: str, linear: nn.Linear, momentum: float) -> nn.Module:
    width, device = linear.in_features, linear.weight.device
    dtype = torch.float64 if linear.weight.dtype == torch.float64 else torch.float32
    if norm == "none":
        return nn.Identity()
    if norm == "layer":
        return nn.LayerNorm(width, device=device, dtype=dtype)
    affine = norm == "batch"
    return nn.BatchNorm1d(width, momentum=momentum, affine=affine, device=device, dtype=dtype)


def _check_outputs(linear: nn.Linear) -> None:
    if linear.out_features < 2:
        raise InvalidInput(
            "output layer",
            expected="two outputs or more",
            found=f"{linear.out_features}",
            fix="A softmax over one logit is always 1: give a two-class model two outputs.",
        )
