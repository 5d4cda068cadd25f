"""Folding norm, output layer and T into one plain layer of the same kind, exactly."""

from __future__ import annotations

import copy
import math
import warnings
from collections import OrderedDict
from dataclasses import dataclass, replace
from typing import Any, cast, overload

import torch
from torch import Tensor, nn

from temperance.errors import InvalidInput, NotFound, TemperanceWarning
from temperance.head.cosine import CosineLinear, UnitLength
from temperance.head.surgery import shared_names, tempered_heads
from temperance.head.tempered import BatchNorm, TemperedHead
from temperance.models.adapters import refuse_adapted
from temperance.models.layer import OutputLayer, empty_like, is_layer
from temperance.models.probe import (
    evaluating,
    probe_logits,
    refuse_compiled,
    registered,
    replace_module,
    unwrap,
)

__all__ = ["TOLERANCE", "FoldReport", "fold"]

# Largest error relative to the largest logit. Float32 errs by about 1e-6 for a few thousand
# features; half precision by its rounding of every folded weight (2^-11 and 2^-8), times a few.
TOLERANCE = {
    torch.float64: 1e-10,
    torch.float32: 1e-5,
    torch.float16: 1e-2,
    torch.bfloat16: 5e-2,
}
_PROBE_ROWS = 256
_MERGE = "Fold the result of merge_and_unload(), which is the plain model again."


@dataclass(frozen=True)
class FoldReport:
    """How close a folded layer is to the head that it replaces.

    Attributes:
        max_abs_error: largest difference of a logit.
        max_rel_error: the same, divided by the largest absolute logit of the probe.
        n_probe: rows of the probe.
        dtype: type of the folded weights, such as ``"float32"``.
        example_rel_error: the relative error of the whole model on the example, if one was given.
    """

    max_abs_error: float
    max_rel_error: float
    n_probe: int
    dtype: str
    example_rel_error: float | None = None


@overload
def fold(
    model: TemperedHead,
    example: Any = None,
    *,
    inplace: bool = False,
    output_key: str | int | None = None,
) -> OutputLayer | nn.Sequential: ...
@overload
def fold(
    model: nn.Module,
    example: Any = None,
    *,
    inplace: bool = False,
    output_key: str | int | None = None,
) -> nn.Module: ...
def fold(
    model: nn.Module,
    example: Any = None,
    *,
    inplace: bool = False,
    output_key: str | int | None = None,
) -> nn.Module:
    """Give a model whose tempered heads are plain output layers with the same logits.

    ``W' = W diag(g) / T`` and ``b' = (b + W (beta - g mean)) / T``, where
    ``g = gamma / sqrt(var + eps)``, computed in float64 and cast to the layer's type. Each folded
    layer is compared with its head (in float64) on features drawn from the running statistics,
    and the whole model on ``example``; the figures are the layer's attribute ``fold_report``.

    A cosine head divides each row by its own length, which no linear layer does. Its weights are
    brought to length 1 and divided by T; the layer becomes ``Sequential(unit, linear)``, where
    ``unit`` has no parameters and ``linear`` is plain.

    A T that is learned or follows a schedule goes in with the value that is in effect now.

    The logits of a tempered head are float32; those of the folded layer have the type of its
    weights. Folding a folded model changes nothing more.

    Args:
        model: a model in evaluation mode with one or more tempered heads, or a TemperedHead.
        example: one batch to compare the whole model on, before and after.
        inplace: change the model itself instead of a copy. For a TemperedHead it has no effect.
        output_key: which entry of the model's output holds the logits, see ``logits_of``.

    Returns:
        The folded copy (or the model itself); for a TemperedHead the new layer.

    Raises:
        InvalidInput: in training mode; for LayerNorm, whose scale depends on each row; for a norm
            in front of a cosine layer; for BatchNorm without running statistics or with negative
            variances; for weights that are shared or not finite; for a head in a compiled part, or
            in PEFT's adapters; or if the error on a probe is above ``TOLERANCE`` (then nothing is
            changed).
        NotFound: if there is no tempered head and none was folded before.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> from temperance import fold, insert
        >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
        >>> _ = insert(model, 4.0, norm="none")
        >>> fold(model.eval())[2]
        Linear(in_features=8, out_features=3, bias=True)
    """
    if isinstance(model, TemperedHead):
        return _fold_head(model, "head", shared=())
    if unwrap(model) is not model:
        raise _cannot(
            "model", "the plain model", f"a {type(model).__name__}", "Fold what it wraps."
        )
    heads = tempered_heads(model)
    if not heads:
        _require_folded(model)
        return model if inplace else copy.deepcopy(model)
    if model.training:
        raise _in_training("model")
    for head in heads.values():
        refuse_compiled(model, head)
        refuse_adapted(model, head, fix=_MERGE)
    folded = {n: _fold_head(h, n, shared=shared_names(model, h)) for n, h in heads.items()}
    before = None if example is None else _logits(model, example, output_key)
    result = model if inplace else copy.deepcopy(model)
    olds = {n: cast(nn.Module, registered(result, n)) for n in heads}
    for name, old in olds.items():
        replace_module(result, old, folded[name])
    if before is None:
        return result
    try:
        _check_example(before, _logits(result, example, output_key), folded)
    except BaseException:
        for name, old in olds.items():
            replace_module(result, folded[name], old)
        raise
    return result


# ------------------------------------------------------------------ one head
def _fold_head(
    head: TemperedHead, name: str, *, shared: tuple[str, ...]
) -> OutputLayer | nn.Sequential:
    _check_foldable(head, name, shared)
    weight, bias = _folded_weights(head)
    new = empty_like(head.linear, bias=bias is not None)
    with torch.no_grad():
        new.weight.copy_(weight.view_as(new.weight))
        if bias is not None and new.bias is not None:
            new.bias.copy_(bias)
    weights = [p for n, p in head.linear.named_parameters() if n != "bias"]
    new.requires_grad_(any(p.requires_grad for p in weights)).train(head.training)
    whole = new if not isinstance(head.linear, CosineLinear) else _on_unit_length(head.linear, new)
    cast(Any, new).fold_report = _compare(head, whole, name)
    return whole


def _on_unit_length(old: CosineLinear, new: OutputLayer) -> nn.Sequential:
    """The length of each row is no linear function: it stays in front of the folded weights."""
    unit = UnitLength(float(old.eps)).to(new.weight.device)
    return nn.Sequential(OrderedDict(unit=unit, linear=new)).train(new.training)


def _layer_of(folded: nn.Module) -> Any:
    return folded[-1] if isinstance(folded, nn.Sequential) else folded


def _folded_weights(head: TemperedHead) -> tuple[Tensor, Tensor | None]:
    """The exact weights in float64; no bias where there is nothing to put into it."""
    temperature = head.temperature.double().cpu()
    weight = head.linear.weight.detach().double().cpu().flatten(1)
    if isinstance(head.linear, CosineLinear):
        floor = head.linear.eps.double().cpu()
        return weight / weight.norm(dim=1, keepdim=True).clamp_min(floor) / temperature, None
    bias = None if head.linear.bias is None else head.linear.bias.detach().double().cpu()
    if isinstance(head.norm, BatchNorm):
        scale, shift = _scale_and_shift(head.norm)
        moved = weight @ shift
        bias = moved if bias is None else bias + moved
        weight = weight * scale
    return weight / temperature, None if bias is None else bias / temperature


def _scale_and_shift(norm: BatchNorm) -> tuple[Tensor, Tensor]:
    """BatchNorm in evaluation mode as ``x * scale + shift``, in float64."""
    mean = cast(Tensor, norm.running_mean).double().cpu()
    scale = (cast(Tensor, norm.running_var).double().cpu() + norm.eps).rsqrt()
    if not norm.affine:
        return scale, -mean * scale
    scale = scale * norm.weight.detach().double().cpu()
    return scale, norm.bias.detach().double().cpu() - mean * scale


def _compare(head: TemperedHead, new: nn.Module, name: str) -> FoldReport:
    weight = head.linear.weight
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(_PROBE_ROWS, head.in_features, generator=generator, dtype=torch.float64)
    if isinstance(head.norm, BatchNorm):
        std = (cast(Tensor, head.norm.running_var).double().cpu() + head.norm.eps).sqrt()
        x = x * std + cast(Tensor, head.norm.running_mean).double().cpu()
    x = x.reshape(*x.shape, *(1,) * (-1 - head.feature_axis))  # one position for a convolution
    exact = copy.deepcopy(head).cpu().double()
    x = x.to(weight.dtype)  # features come in the layer's own type
    with torch.no_grad():
        expected = exact(x.double())
        found = new(x.to(weight.device)).double().cpu()
    absolute, relative = _errors(expected, found)
    _check_error(relative, weight.dtype, f"folded layer {name!r}")
    dtype = str(weight.dtype).removeprefix("torch.")
    return FoldReport(absolute, relative, _PROBE_ROWS, dtype)


def _errors(expected: Tensor, found: Tensor) -> tuple[float, float]:
    absolute = float((expected - found).abs().max())
    largest = float(expected.abs().max())
    if absolute == 0:
        return 0.0, 0.0
    return absolute, absolute / largest if largest > 0 else math.inf


# ------------------------------------------------------------------ checks
def _check_foldable(head: TemperedHead, name: str, shared: tuple[str, ...]) -> None:
    subject = f"tempered head {name!r}"
    if head.training or head.norm.training:
        raise _in_training(subject)
    if any(p.is_meta for p in head.parameters()):
        fix = "Load the weights first (to_empty, load_state)."
        raise _cannot(subject, "weights with values", "those of the meta device", fix)
    if shared:
        fix = "A folded weight would change the other use: untie the weights first."
        raise _cannot(subject, "weights of its own", f"weights shared with {shared[0]}", fix)
    if isinstance(head.norm, nn.LayerNorm):
        fix = "Deploy the head as it is, or train with norm='batch'."
        raise _cannot(subject, "BatchNorm or no norm", "LayerNorm, whose scale is each row's", fix)
    if isinstance(head.linear, CosineLinear) and not isinstance(head.norm, nn.Identity):
        fix = "Deploy the head as it is, or train with norm='cosine' alone."
        found = "a norm in front of a cosine, whose length is each row's"
        raise _cannot(subject, "no norm in front of a cosine layer", found, fix)
    if isinstance(head.norm, BatchNorm):
        _check_statistics(head.norm, subject)
    elif not isinstance(head.norm, nn.Identity):
        fix = "Only the norms that insert offers can be folded."
        raise _cannot(subject, "BatchNorm or no norm", f"a {type(head.norm).__name__}", fix)
    if not is_layer(head.linear):
        fix = "Merge adapters (merge_and_unload), or fold before other layers take its place."
        kind = type(head.linear)
        found = f"{kind.__module__}.{kind.__qualname__}"
        raise _cannot(subject, "a plain output layer", found, fix)
    if "weight" in head.linear.__dict__:  # it may be that of an earlier step
        fix = "Make it plain first: remove_weight_norm, remove_spectral_norm or prune.remove."
        raise _cannot(subject, "a weight that is a parameter", "one that a hook computes", fix)
    tensors = {**dict(head.named_parameters()), **dict(head.named_buffers())}
    bad = [n for n, t in tensors.items() if not bool(torch.isfinite(t).all())]
    if bad:
        raise _cannot(subject, "finite weights", f"NaN or infinity in {bad[0]}", "Retrain it.")


def _check_statistics(norm: BatchNorm, subject: str) -> None:
    if norm.running_mean is None or norm.running_var is None:
        fix = "Train with track_running_stats=True."
        raise _cannot(subject, "running statistics", "a BatchNorm without them", fix)
    if bool((norm.running_var < 0).any()):
        fix = "Set them with set_norm_statistics, or load the checkpoint again."
        raise _cannot(subject, "running variances of 0 or more", "a negative one", fix)
    if norm.num_batches_tracked is not None and int(norm.num_batches_tracked) == 0:
        warnings.warn(
            f"{subject}: its running statistics were never set. The fold is exact, but of a head "
            "that saw no data; set_norm_statistics or training sets them.",
            TemperanceWarning,
            stacklevel=5,
        )


def _check_error(relative: float, dtype: torch.dtype, subject: str) -> None:
    tolerance = TOLERANCE.get(dtype, 1e-5)
    if relative <= tolerance:  # False for NaN
        return
    raise _cannot(
        subject,
        f"the logits of the head up to {tolerance:g} of the largest",
        f"a relative error of {relative:.2g}",
        "Feature means far above their spread do not survive one "
        f"{str(dtype).removeprefix('torch.')} layer: fold in a wider type, or keep the head.",
    )


def _check_example(before: Tensor, after: Tensor, folded: dict[str, Any]) -> None:
    _, relative = _errors(before.double(), after.double())
    for name, whole in folded.items():
        layer = _layer_of(whole)
        _check_error(relative, layer.weight.dtype, f"model with the folded layer {name!r}")
        layer.fold_report = replace(layer.fold_report, example_rel_error=relative)


def _logits(model: nn.Module, example: Any, key: str | int | None) -> Tensor:
    with evaluating(model), torch.no_grad():
        return probe_logits(model, example, key=key).cpu()


def _require_folded(model: nn.Module) -> None:
    if not any(isinstance(getattr(m, "fold_report", None), FoldReport) for m in model.modules()):
        raise NotFound(
            "tempered head",
            found="the model has none, and none that was folded",
            fix="Call insert before training, then fold.",
        )


def _in_training(subject: str) -> InvalidInput:
    fix = "Call model.eval() first: BatchNorm in training mode is another function."
    return _cannot(subject, "evaluation mode", "training mode", fix)


def _cannot(subject: str, expected: str, found: str, fix: str) -> InvalidInput:
    return InvalidInput(subject, expected=expected, found=found, fix=fix)
