"""Cosine layers of any making, known by what they compute, not by what they are called."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, normalize

from temperance.models.probe import evaluating

__all__ = ["CosineFacts", "cosine_facts"]

_ROWS, _SEED = 8, 0
_TOLERANCE = 1e-3  # of the scale, in float32


@dataclass(frozen=True)
class CosineFacts:
    """What a cosine layer computes: ``scale * cos(angle between x and each class's weights)``.

    Attributes:
        in_features: M.
        out_features: C.
        scale: s; the temperature of its softmax is 1 / s.
    """

    in_features: int
    out_features: int
    scale: float


def cosine_facts(module: nn.Module) -> CosineFacts | None:
    """Say whether a layer computes scaled cosines of its input with its weights.

    A few rows of different lengths are run through it in evaluation mode. Both places of the
    classes are known, ``[C, M]`` and ``[M, C]``, and weights that are normalized or not.

    Args:
        module: a layer that holds one matrix; it is left as it was.

    Returns:
        The facts, or None for any other layer, also one that needs labels to run.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> class Cosine(nn.Module):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.w = nn.Parameter(torch.randn(3, 8))
        ...     def forward(self, x):
        ...         unit = nn.functional.normalize
        ...         return 30 * unit(x) @ unit(self.w).T
        >>> facts = cosine_facts(Cosine())
        >>> facts.in_features, facts.out_features, round(facts.scale, 2)
        (8, 3, 30.0)
        >>> cosine_facts(nn.Linear(8, 3)) is None
        True
    """
    matrices = [p for p in module.parameters() if p.ndim == 2 and p.is_floating_point()]
    if len(matrices) != 1 or matrices[0].is_meta or 0 in matrices[0].shape:
        return None
    weight = matrices[0].detach()
    return _as_cosine(module, weight) or _as_cosine(module, weight.T)


def _as_cosine(module: nn.Module, weight: Tensor) -> CosineFacts | None:
    """The facts, if the module does so with these weights, ``[C, M]``."""
    (classes, width), eps = weight.shape, torch.finfo(weight.dtype).eps
    generator = torch.Generator().manual_seed(_SEED)
    x = torch.randn(_ROWS, width, generator=generator)
    x = (x * torch.logspace(-1, 1, _ROWS)[:, None]).to(weight)
    try:
        with evaluating(module), torch.no_grad():
            z = module(x)
    except Exception:  # another width, labels wanted, anything: no layer that could be used here
        return None
    if not isinstance(z, Tensor) or z.shape != (_ROWS, classes):
        return None
    z, x, weight = (t.cpu().double() for t in (z, x, weight))  # some devices have no float64
    cosines = linear(normalize(x), normalize(weight))
    scale = float((z * cosines).sum() / (cosines**2).sum().clamp_min(1e-30))
    allowed = max(_TOLERANCE, 4 * eps) * scale
    if not scale > 0 or float((z - scale * cosines).abs().max()) > allowed:
        return None
    return CosineFacts(width, classes, scale)
