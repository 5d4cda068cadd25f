"""What a normalization layer computes.

Layers of torch are known by their class. Any other is known by what it does: its class gives a few
candidates, and the one that agrees on random numbers with random scales is taken. So timm's norms
with an activation, channels-first LayerNorms, and RMSNorms that add 1 to their weight are all read
rightly, or not at all.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm as BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm as InstanceNorm

from temperance.ensemble.rows import Rows
from temperance.ensemble.sigma_norm import NormFacts, SigmaNorm
from temperance.ensemble.swap import sigma_norm_of

__all__ = ["is_norm_like", "recognize"]

_TORCH = (
    nn.BatchNorm1d,
    nn.BatchNorm2d,
    nn.BatchNorm3d,
    nn.SyncBatchNorm,
    nn.LayerNorm,
    nn.GroupNorm,
    nn.RMSNorm,
)
_OTHERS = (InstanceNorm, nn.LocalResponseNorm, nn.CrossMapLRN2d)
_EPS_NAMES = ("eps", "variance_epsilon", "epsilon")


def is_norm_like(module: nn.Module) -> bool:
    """Whether a module is a norm, or a leaf that calls itself one."""
    if isinstance(module, (*_TORCH, *_OTHERS, BatchNorm)):
        return True
    kind = type(module)
    name = kind.__name__.lower()
    if "norm" not in name or name.startswith("normaliz") or kind.__module__.startswith("torch."):
        return False
    inside = [m for n, m in module.named_children() if n not in ("drop", "act")]
    return not any(any(True for _ in m.parameters()) or is_norm_like(m) for m in inside)


def recognize(module: nn.Module) -> NormFacts | None:
    """Read what one normalization layer computes.

    Args:
        module: the layer; unchanged.

    Returns:
        Its facts, or None if it computes something else.

    Example:
        >>> from torch import nn
        >>> recognize(nn.GroupNorm(2, 8)).num_groups
        2
        >>> recognize(nn.InstanceNorm1d(8)) is None
        True
    """
    if hasattr(module, "parametrizations"):  # what is trained there is no scale or shift
        return None
    candidates = list(_candidates(module))
    if type(module) in _TORCH:
        return candidates[0]
    return next((c for c in candidates if _agrees(module, c)), None)


# ------------------------------------------------------------------ what a layer may be
def _candidates(module: nn.Module) -> Iterator[NormFacts]:
    eps: Any = next((getattr(module, n) for n in _EPS_NAMES if hasattr(module, n)), None)
    if isinstance(module, BatchNorm):
        sync = isinstance(module, nn.SyncBatchNorm)
        group = getattr(module, "process_group", None)
        size, momentum = (module.num_features,), module.momentum
        yield NormFacts("batch", size, eps, momentum=momentum, sync=sync, process_group=group)
    elif isinstance(module, nn.GroupNorm):
        yield NormFacts("group", (module.num_channels,), eps, num_groups=module.num_groups)
    elif isinstance(module, (nn.LayerNorm, nn.RMSNorm)):
        kind = "layer" if isinstance(module, nn.LayerNorm) else "rms"
        for axis in (-1, 1):
            yield NormFacts(kind, tuple(module.normalized_shape), eps, channel_axis=axis)
    elif not isinstance(module, _OTHERS):
        shape = _shape_of(module)
        for kind in ("layer", "rms") if shape else ():
            for axis in (-1, 1):
                yield NormFacts(kind, shape, eps, channel_axis=axis)
                if isinstance(getattr(module, "weight", None), Tensor):
                    yield NormFacts(kind, shape, eps, channel_axis=axis, offset=1.0)


def _shape_of(module: nn.Module) -> tuple[int, ...]:
    shape: Any = getattr(module, "normalized_shape", None)
    if shape is None:
        shape = getattr(getattr(module, "weight", None), "shape", ())
    return (shape,) if isinstance(shape, int) else tuple(shape)


@torch.no_grad()
def _agrees(module: nn.Module, facts: NormFacts) -> bool:
    """Whether the layer computes what the facts say, on random numbers with random scales."""
    generator = torch.Generator().manual_seed(0)
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        try:
            layer = copy.deepcopy(module).cpu().float().eval()
            _randomize(layer, generator)
            ours = sigma_norm_of(layer, facts, Rows(1))
            return _same(layer, ours, facts, generator)
        except Exception:  # whatever an unknown module raises: it is not this
            return False


def _same(layer: nn.Module, ours: SigmaNorm, facts: NormFacts, generator: torch.Generator) -> bool:
    agreed = False
    for shape in _shapes(facts):
        x = torch.randn(shape, generator=generator) * 0.01  # small, so that eps counts
        layer.training = ours.training = False
        try:
            expected = layer(x.clone())
        except Exception:  # a norm for pictures is not made for tokens
            continue
        if expected.shape != x.shape:  # nor is it made for others that it does not refuse
            continue
        results = [(expected, ours(x.clone()))]
        if facts.kind == "batch":
            layer.training = ours.training = True  # not train(): dropout behind it stays off
            results += [(layer(x.clone()), ours(x.clone())), _statistics(layer, ours)]
        if not all(_close(a, b) for a, b in results):
            return False
        agreed = True
    return agreed


def _statistics(layer: Any, ours: Any) -> tuple[Tensor, Tensor]:
    names = ("running_mean", "running_var")
    both = [torch.cat([getattr(n, k).flatten() for k in names]) for n in (layer, ours)]
    return both[0], both[1]


def _shapes(facts: NormFacts) -> Iterator[tuple[int, ...]]:
    """Shapes of inputs, the channels first and last; their other sizes differ from the channels'.

    Of both, since a layer that takes either by the number of axes is neither.
    """
    a, b = [n for n in (3, 5, 7, 2) if n not in facts.shape][:2]
    yield from ((a, *facts.shape), (2, a, *facts.shape), (2, a, b, *facts.shape))
    if len(facts.shape) == 1:
        c = facts.shape[0]
        yield from ((2, c, a), (2, c, a, b), (2, c, 2, a, b))


def _randomize(layer: nn.Module, generator: torch.Generator) -> None:
    for name, tensor in (*layer.named_parameters(), *layer.named_buffers()):
        if tensor.is_floating_point():
            values = torch.rand(tensor.shape, generator=generator) + 0.5
            sign = -1.0 if name.rpartition(".")[2] in ("weight", "bias") else 1.0
            tensor.copy_(values * sign)


def _close(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and torch.allclose(a, b, rtol=1e-4, atol=1e-5)
