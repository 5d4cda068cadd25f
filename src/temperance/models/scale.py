"""Whether a temperature in the output layers is the same temperature on the model's logits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from temperance.models.probe import evaluating, probe_logits

__all__ = ["after_layers"]

_SPREAD = 4.0  # of the numbers that are added; logits of trained models are about that large


def after_layers(
    model: nn.Module, layers: Sequence[nn.Module], example: Any, *, key: str | int | None
) -> str:
    """Halve what the layers put out, and see what becomes of the logits.

    Drawn numbers are added to the outputs first: those of a layer with weights near zero, as many
    vision transformers start theirs, would be the same after anything that is done to them.

    Args:
        model: the model; left as it was.
        layers: its output layers, all of them together.
        example: one batch.
        key: which entry of the output holds the logits.

    Returns:
        ``"softmax"`` if the model returns probabilities; ``"scaled"`` if the logits are not halved,
        so that a T in the layers is another function than that T on the logits; else ``""``, also
        where logits are not finite, or have no values (on the meta device).
    """
    full = _logits(model, layers, example, key, factor=1.0)
    half = _logits(model, layers, example, key, factor=0.5)
    if full.is_meta or not (torch.isfinite(full).all() and torch.isfinite(half).all()):
        return ""
    rounding = 16 * torch.finfo(full.dtype).eps * max(1.0, float(full.abs().max()))
    allowed = max(1e-4, rounding)
    full, half = full.double(), half.double()
    sums = full.sum(-1)
    probs = bool((full >= 0).all()) and bool(((sums - 1).abs() <= allowed).all())
    roots = full.clamp(min=0).sqrt()  # the softmax of z / 2 is the root of that of z, normalized
    if probs and _close(half, roots / roots.sum(-1, keepdim=True), allowed):
        return "softmax"
    same = _close(half.softmax(-1), (full / 2).softmax(-1), allowed)
    return "" if same else "scaled"


def _logits(
    model: nn.Module,
    layers: Sequence[nn.Module],
    example: Any,
    key: str | int | None,
    *,
    factor: float,
) -> Tensor:
    """The logits of ``factor`` times the moved outputs, which are the same in every call."""

    def hook(number: int) -> Any:
        def moved(_module: nn.Module, _args: Any, output: Tensor) -> Tensor:
            generator = torch.Generator().manual_seed(number)
            drawn = torch.randn(output.shape, generator=generator)
            return factor * (output + _SPREAD * drawn.to(output))

        return moved

    handles = [m.register_forward_hook(hook(i)) for i, m in enumerate(layers)]
    try:
        with evaluating(model), torch.no_grad():  # the same random numbers in every call
            return probe_logits(model, example, key=key)
    finally:
        for handle in handles:
            handle.remove()


def _close(a: Tensor, b: Tensor, allowed: float) -> bool:
    return bool(((a - b).abs() <= allowed).all())
