"""One layer for another: a plain norm or linear layer, and the members' one, both ways, exactly."""

from __future__ import annotations

import copy
import math
from typing import Any

import torch
from torch import Tensor, nn

from temperance.ensemble.member_linear import MemberLinear
from temperance.ensemble.rows import Rows
from temperance.ensemble.sigma_norm import NormFacts, SigmaNorm

__all__ = [
    "SPREAD",
    "START",
    "is_linear",
    "member_linear_of",
    "plain_linear_of",
    "plain_norm_of",
    "sigma_norm_of",
    "stand_in",
]

START = 2.0
"""Where gamma starts: sigmoid(2) = 0.88, so that a feature is let through and the sigmoid is not
flat. The paper states no value; among the best on fit rows in studies/sigma_ensemble."""

SPREAD = 1.0
"""Standard deviation of gamma around its start. Members that start equal get equal gradients and
stay equal. The paper states no value; among the best on fit rows in studies/sigma_ensemble. It
suits training from scratch; a pretrained model is disturbed by it, and recovers in a fine-tune."""

_AFFINE_FLAGS = ("affine", "elementwise_affine")


def sigma_norm_of(
    module: nn.Module,
    facts: NormFacts,
    rows: Rows,
    *,
    keep: bool = True,
    start: float = START,
    noise: Tensor | None = None,
) -> SigmaNorm:
    """Make the members' layer that stands for a plain one.

    Its tensors are float32 or wider, also in half precision models, so that
    ``weight * sigmoid(gamma)`` rounds back to the scale that it came from.

    Args:
        module: the norm; unchanged, its drop and act are shared with the new layer.
        facts: what it computes.
        rows: the pass of the ensemble.
        keep: whether to keep scale and shift (``init="function"``), or drop them (``"paper"``).
        start: of gamma.
        noise: ``[M, C]``, added to the start; None for none.

    Returns:
        The layer, on the same device, in the same mode.
    """
    scale, shift = _tensor(module, "weight"), _tensor(module, "bias")
    trained = keep and isinstance(scale, nn.Parameter)
    new = SigmaNorm(facts, rows, affine=trained, bias=shift is not None)
    reference = next((t for t in (*module.parameters(), *module.buffers())), torch.zeros(0))
    dtype = torch.promote_types(_floating(module), torch.float32)
    new.to(device=reference.device, dtype=dtype)
    with torch.no_grad():
        new.gamma.fill_(start)
        if keep:
            base = 1.0 if scale is None else scale.to(dtype).flatten() + facts.offset
            new.weight.copy_(base / torch.sigmoid(new.gamma[0]))
            if shift is not None:
                new.bias.copy_(shift.flatten())
        if noise is not None:
            new.gamma.add_(noise.to(new.gamma))
        if facts.kind == "batch":
            _copy_statistics(module, new)
    for ours, theirs in ((new.weight, scale), (new.bias, shift)):
        if trained and theirs is not None:
            ours.requires_grad_(theirs.requires_grad)
    for name in ("drop", "act"):
        if isinstance(getattr(module, name, None), nn.Module):
            setattr(new, name, getattr(module, name))
    new.template = (_skeleton(module),)
    return new.train(module.training)


def plain_norm_of(norm: SigmaNorm, member: int) -> nn.Module:
    """Make the plain layer that computes what a SigmaNorm does for one member.

    The scale is ``weight * sigmoid(gamma)``; a layer that had no scale has one then.

    Args:
        norm: made by ``sigma_norm_of``; unchanged. Its drop and act are shared with the new layer.
        member: which one.

    Returns:
        A layer of the class that the model had there.
    """
    (skeleton,) = norm.template
    new, shape = copy.deepcopy(skeleton), norm.facts.shape
    device, dtype = norm.gamma.device, _floating(skeleton)
    with torch.no_grad():
        scale = norm.weight * torch.sigmoid(norm.gamma[member]) - norm.facts.offset
        values = {"weight": scale}
        if _tensor(skeleton, "bias") is not None or norm.facts.kind == "batch":
            values["bias"] = norm.bias
        for name, value in values.items():
            trained = getattr(_tensor(skeleton, name), "requires_grad", True)
            value = value.detach().clone().view(shape).to(device, dtype)
            new.register_parameter(name, nn.Parameter(value, requires_grad=trained))
        for flag in _AFFINE_FLAGS:
            if hasattr(new, flag):
                setattr(new, flag, True)
        if norm.facts.kind == "batch":
            for name in ("running_mean", "running_var", "num_batches_tracked"):
                value = getattr(norm, name)[member].clone()
                old = _tensor(skeleton, name)
                setattr(new, name, value if old is None else value.to(old.dtype))
    for name in ("drop", "act"):
        if getattr(norm, name) is not None:
            setattr(new, name, getattr(norm, name))
    return new.train(norm.training)


def is_linear(module: nn.Module) -> bool:
    """Whether a layer computes ``x W^T + b`` with its weight and bias; over channels for a conv."""
    convs = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
    if not isinstance(module, (nn.Linear, *convs)) or hasattr(module, "parametrizations"):
        return False
    conv, features = isinstance(module, convs), module.weight.shape[1]
    spatial = module.weight.shape[2:]
    x = torch.linspace(-1, 1, 3 * features).reshape(3, features, *(1 for _ in spatial))
    x = x.expand(3, features, *(2 for _ in spatial))
    layer = copy.deepcopy(module).cpu().float()
    try:
        with torch.no_grad():
            ours = member_linear_of(layer, Rows(1))
            return torch.allclose(layer(x), ours(x), rtol=1e-4, atol=1e-5)
    except (RuntimeError, TypeError, ValueError):
        return not conv and type(module).forward is nn.Linear.forward


def member_linear_of(
    linear: nn.Module, rows: Rows, *, generator: torch.Generator | None = None
) -> MemberLinear:
    """Make M output layers of one: copies, or drawn as ``nn.Linear`` draws its weights.

    Args:
        linear: the layer, for which ``is_linear`` holds; unchanged.
        rows: the pass of the ensemble.
        generator: for fresh ones; None for copies.

    Returns:
        The layer, of the same device, type and mode.
    """
    old, shift = _parameter(linear, "weight"), _tensor(linear, "bias")
    m, (c, f) = rows.members, old.shape[:2]
    with torch.no_grad():
        weight = old.detach().reshape(c, f).expand(m, c, f).clone()
        bias = None if shift is None else shift.detach().expand(m, c).clone()
        if generator is not None:
            bound = 1 / math.sqrt(f)  # torch.nn.Linear.reset_parameters
            for t in (weight,) if bias is None else (weight, bias):
                t.copy_(torch.empty(t.shape).uniform_(-bound, bound, generator=generator))
    new = MemberLinear(weight, bias, rows, channel_axis=-1 if old.dim() == 2 else 1)
    new.weight.requires_grad_(old.requires_grad)
    if new.bias is not None and shift is not None:
        new.bias.requires_grad_(shift.requires_grad)
    new.template = (_skeleton(linear),)
    return new.train(linear.training)


def plain_linear_of(heads: MemberLinear, member: int) -> nn.Module:
    """Make the plain output layer of one member, of the class that the model had there."""
    new = copy.deepcopy(heads.template[0])
    for name in ("weight", "bias"):
        old = _tensor(heads, name)
        if old is not None:
            value = old.detach()[member].clone().view(_parameter(new, name).shape)
            new.register_parameter(name, nn.Parameter(value, requires_grad=old.requires_grad))
    return new.train(heads.training)


def stand_in(value: Any, tensors: nn.Module) -> Any:
    """Copy modules and what they know, but not the parameters and buffers of ``tensors``.

    To run in the place of a model: what some models keep of a run, such as LevIT's table of
    attention biases, is then thrown away with the copy.
    """
    shared = (*tensors.parameters(), *tensors.buffers())
    return copy.deepcopy(value, {id(t): t for t in shared})


# ------------------------------------------------------------------ helpers
def _skeleton(module: nn.Module) -> nn.Module:
    """A copy without values (on the meta device) and without what stays in the model."""
    outside = {id(m): nn.Identity() for m in (getattr(module, n, None) for n in ("drop", "act"))
               if isinstance(m, nn.Module)}  # fmt: skip
    return copy.deepcopy(module, dict(outside)).to("meta")


def _tensor(module: nn.Module, name: str) -> Tensor | None:
    value = getattr(module, name, None)
    return value if isinstance(value, Tensor) else None


def _parameter(module: nn.Module, name: str) -> Tensor:
    value = getattr(module, name)
    assert isinstance(value, Tensor)
    return value


def _floating(module: nn.Module) -> torch.dtype:
    tensors = (*module.parameters(), *module.buffers())
    return next((t.dtype for t in tensors if t.is_floating_point()), torch.get_default_dtype())


def _copy_statistics(module: nn.Module, new: SigmaNorm) -> None:
    for name in ("running_mean", "running_var", "num_batches_tracked"):
        old = _tensor(module, name)
        if old is not None:
            getattr(new, name).copy_(old.expand_as(getattr(new, name)))
