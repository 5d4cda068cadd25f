"""The output layer with a temperature: normalization, linear layer, division by T."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, ClassVar, cast

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm as BatchNorm  # BatchNorm1d and SyncBatchNorm

from temperance.errors import InvalidInput
from temperance.head.cosine import cosine_layer
from temperance.head.temperature import (
    MIN_TEMPERATURE,
    LearnedTemperature,
    check_learned,
    check_temperature,
    new_log_temperature,
    scale_gradient,
    temperature_of,
)
from temperance.models.layer import OutputLayer, feature_axis, layer_sizes

__all__ = ["MIN_TEMPERATURE", "NORMS", "BatchNorm", "TemperedHead", "check_temperature"]

NORMS = ("batch", "batch-no-affine", "layer", "none", "cosine")


def check_norm(norm: str) -> str:
    """Check the name of a normalization in front of the linear layer.

    Args:
        norm: one of ``NORMS``.

    Returns:
        The name.

    Raises:
        InvalidInput: if it is another one.
    """
    if norm in NORMS:
        return norm
    raise InvalidInput(
        "norm", expected=" or ".join(NORMS), found=repr(norm), fix="Choose one of them."
    )


class TemperedHead(nn.Module):
    """Normalization, linear layer and temperature in the place of an output layer.

    ``logits = linear(norm(x)).float() / T``

    T is the buffer ``temperature``: float32, saved with the weights, unit "divides the logits", the
    same in training and evaluation. The last axis of ``x`` holds the features (for a convolution
    of size 1: the axis of the channels); all other axes are rows, so that the statistics of
    ``[batch, tokens, M]`` go over batch and tokens, padding included, and those of
    ``[batch, M, height, width]`` over batch and positions. The norm and T stay in float32 when the
    model is cast to half precision, and logits are raised to float32 before the division:
    6e4 / 0.05 has no place in float16.

    Args:
        linear: the output layer, ``nn.Linear`` or a convolution of size 1, at least two outputs;
            kept as the very same object.
        temperature: T.
        norm: ``batch`` (BatchNorm with scale and shift), ``batch-no-affine``, ``layer``, ``none``;
            or ``cosine``: features and weights at length 1 and no bias (``CosineLinear``), where
            T = 1 / s is far below 1.
        gradient_compensation: multiply the gradient of the logits by T. The loss stays in nats; the
            layers below see the gradients that they would see at T = 1. An attribute that can be
            changed at any time and is not saved with the weights.
        momentum: weight of the newest batch in BatchNorm's running statistics.
        learned: bounds within which T is learned, from ``temperature`` on; None for a T that only
            ``set_temperature`` moves.

    Attributes:
        log_temperature: the parameter of a learned T, ``log T``, shape ``[1]``; else None.
        feature_axis: axis of the features, counted from the end.
        notes: what ``insert`` found to be good to know, see ``Head``.

    Raises:
        InvalidInput: if T, the norm, its momentum or the number of outputs cannot be used.

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
    log_temperature: nn.Parameter | None

    def __init__(
        self,
        linear: OutputLayer,
        temperature: float,
        *,
        norm: str = "batch",
        gradient_compensation: bool = False,
        momentum: float = 0.1,
        learned: LearnedTemperature | None = None,
    ) -> None:
        super().__init__()
        learned = check_learned(learned)
        number = (learned.check if learned else check_temperature)(temperature)
        _check_outputs(linear)
        self.norm = _make_norm(check_norm(norm), linear, momentum)
        self.linear = cosine_layer(linear) if norm == "cosine" else linear
        self.norm_kind = norm
        self.feature_axis = feature_axis(linear)
        self.notes: tuple[str, ...] = ()
        self.gradient_compensation = bool(gradient_compensation)
        device = linear.weight.device
        # Not by register_buffer, which wants a name that no property has.
        self._buffers["temperature"] = torch.tensor(number, device=device).float()
        self.learned = learned
        log = new_log_temperature(number, linear.weight) if learned else None
        self.register_parameter("log_temperature", log)
        self.norm.train(linear.training)
        self.training = linear.training

    def normalize(self, x: Tensor) -> Tensor:
        """Give the features after the norm: what the linear layer sees.

        Args:
            x: features before the norm, shape ``[..., M]``, any floating type; ``[..., M, *]``
                with the positions of a convolution.

        Returns:
            The same shape; float32 (float64 in a float64 head), or ``x`` itself without a norm.

        Raises:
            InvalidInput: if M is not ``in_features``, or for BatchNorm in training mode with fewer
                than two rows.
        """
        axis = self.feature_axis
        if x.ndim < -axis or x.shape[axis] != self.in_features:
            raise InvalidInput(
                "features of the output layer",
                expected=f"{self.in_features} on axis {axis}",
                found=f"shape {list(x.shape)}",
                fix="Channels come last, but first for a convolution; pool or flatten in front of "
                "the head.",
            )
        if isinstance(self.norm, nn.Identity):
            return x
        if axis != -1:
            x = x.movedim(axis, -1)
        rows = x.to(self._norm_dtype()).reshape(-1, self.in_features)
        if isinstance(self.norm, nn.BatchNorm1d) and self.norm.training and len(rows) < 2:
            raise InvalidInput(
                "training batch",
                expected="two rows or more for BatchNorm in training mode",
                found=f"{len(rows)}",
                fix="Plan batches with temperance.check_batches, for example drop_last=True; to "
                "predict, call model.eval() first.",
            )
        z: Tensor = self.norm(rows).reshape(x.shape)
        return z if axis == -1 else z.movedim(-1, axis)

    def forward(self, input: Tensor) -> Tensor:
        """Give the logits, divided by T.

        Args:
            input: features (named as in ``nn.Linear``), shape ``[..., M]``; a single vector ``[M]``
                in evaluation mode.

        Returns:
            Logits, shape ``[..., C]``, float32 (float64 in a float64 head); ``[..., C, *]`` of a
            convolution.
        """
        z = self.linear(self.normalize(input).to(self.linear.weight.dtype))
        z, divisor = z if z.dtype == torch.float64 else z.float(), self._divisor()
        if self.gradient_compensation:  # in front of the division: a learned T has its own gradient
            z = scale_gradient(z, divisor.detach())
        return cast(Tensor, z / divisor)

    @property
    def temperature(self) -> Tensor:
        """T that is in effect, a scalar without gradient; of a learned T its value now.

        Where T is fixed this is the buffer itself. ``set_temperature`` moves either kind.
        """
        if self.learned is None or self.log_temperature is None:
            return cast(Tensor, self._buffers["temperature"])
        return temperature_of(self.log_temperature.detach(), self.learned)

    def set_temperature(self, temperature: float) -> None:
        """Set T in place, for instance from a schedule; a bad value raises InvalidInput."""
        if self.learned is None or self.log_temperature is None:
            self.temperature.fill_(check_temperature(temperature))
            return
        number = self.learned.check(temperature)
        with torch.no_grad():
            self.log_temperature.fill_(math.log(number))

    def fix_temperature(self) -> float:
        """Turn a learned T into a fixed one, in place: a number, in the unit of any other T.

        Returns:
            T. Of a head whose T is fixed already, the same, and nothing changes.
        """
        if self.learned is not None:
            self._buffers["temperature"] = self.temperature.clone()
            self.learned = None
            self.register_parameter("log_temperature", None)
        return float(self.temperature)

    @property
    def in_features(self) -> int:
        """M, the number of features."""
        return layer_sizes(self.linear)[0]

    @property
    def out_features(self) -> int:
        """C, the number of outputs."""
        return layer_sizes(self.linear)[1]

    @property
    def weight(self) -> Tensor:
        """Weight of the linear layer, shape ``[C, M]``, ``[C, M, 1, ..]`` of a convolution."""
        return self.linear.weight

    @property
    def bias(self) -> Tensor | None:
        """Bias of the linear layer, shape ``[C]``, or None."""
        return self.linear.bias

    def extra_repr(self) -> str:
        """Show T and the norm in the printed model."""
        shown = "?" if self.temperature.is_meta else f"{float(self.temperature):g}"
        if self.learned is not None:
            shown += f" (learned, {self.learned.minimum:g} to {self.learned.maximum:g})"
        compensation = ", gradient_compensation=True" if self.gradient_compensation else ""
        return f"temperature={shown}, norm={self.norm_kind}{compensation}"

    def _divisor(self) -> Tensor:
        """T for one forward pass; a schedule may move the buffer before the backward pass."""
        if self.learned is not None and self.log_temperature is not None:
            project = self.training and self.log_temperature.requires_grad
            return temperature_of(self.log_temperature, self.learned, project=project)
        return self.temperature.clone() if torch.is_grad_enabled() else self.temperature

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        """Save T itself beside the parameter of a learned one."""
        if self.learned is not None:
            with torch.no_grad():
                cast(Tensor, self._buffers["temperature"]).copy_(self.temperature)
        super()._save_to_state_dict(destination, prefix, keep_vars)

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *rest: Any) -> None:
        """Take T from a head of either kind: learned from fixed, and fixed from learned."""
        log, value = f"{prefix}log_temperature", state_dict.get(f"{prefix}temperature")
        if self.learned is None:
            state_dict.pop(log, None)
        elif value is not None and not value.is_meta and value.numel() == 1:
            try:  # the bounds would change a T beyond them without a word
                number = self.learned.check(float(value))
            except InvalidInput as error:
                rest[-1].append(f"{prefix}{error}")  # messages that load_state_dict raises
                return
            if log not in state_dict:
                state_dict[log] = torch.tensor([math.log(number)], dtype=torch.float64)
        self._refuse_other_norm(set(state_dict), prefix, rest[-1])
        super()._load_from_state_dict(state_dict, prefix, *rest)

    def _refuse_other_norm(self, names: set[str], prefix: str, errors: list[str]) -> None:
        """A head with another norm is another function, also where ``strict=False`` would take it.

        Parameters alone, without T, may lack the buffers.
        """
        start = f"{prefix}norm."
        theirs = {n.removeprefix(start) for n in names if n.startswith(start)}
        ours = {*self.norm.state_dict()}
        missing = ours - theirs if f"{prefix}temperature" in names else set[str]()
        other = (missing | (theirs - ours)) - {"num_batches_tracked"}
        if f"{prefix}linear.weight" in names and other:
            found = ", ".join(sorted(theirs)) or "nothing"
            errors.append(
                f"{prefix.rstrip('.') or 'the head'} has norm={self.norm_kind!r}; the state was "
                f"saved with another norm (it has {found}). Insert with that norm, then load."
            )

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


def _make_norm(norm: str, linear: OutputLayer, momentum: float) -> nn.Module:
    width, device = layer_sizes(linear)[0], linear.weight.device
    dtype = torch.float64 if linear.weight.dtype == torch.float64 else torch.float32
    if norm in ("none", "cosine"):
        return nn.Identity()
    if norm == "layer":
        return nn.LayerNorm(width, device=device, dtype=dtype)
    affine = norm == "batch"
    _check_momentum(momentum)
    return nn.BatchNorm1d(width, momentum=momentum, affine=affine, device=device, dtype=dtype)


def _check_momentum(momentum: Any) -> None:
    """None is a plain mean of all batches in PyTorch; above 1 the statistics run away."""
    if momentum is None or (isinstance(momentum, (int, float)) and 0 < momentum <= 1):
        return
    raise InvalidInput(
        "momentum",
        expected="the weight of the newest batch, above 0 and at most 1",
        found=repr(momentum),
        fix="Leave it at 0.1.",
    )


def _check_outputs(linear: OutputLayer) -> None:
    outputs = layer_sizes(linear)[1]
    if outputs < 2:
        raise InvalidInput(
            "output layer",
            expected="two outputs or more",
            found=f"{outputs}",
            fix="A softmax over one logit is always 1: give a two-class model two outputs.",
        )
