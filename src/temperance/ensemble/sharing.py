"""Who owns which features, how alike the members' gates are, and how often members disagree."""

from __future__ import annotations

import numbers
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from temperance.ensemble.diversity import checked_norms
from temperance.ensemble.sigma_norm import SigmaNorm, sigma_norms
from temperance.errors import InvalidInput

__all__ = ["LayerSharing", "SharingStatistics", "disagreement", "sharing_statistics"]

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class LayerSharing:
    """How one layer's features are shared among M members, by their gates ``sigmoid(gamma)``.

    Attributes:
        name: dotted name of the layer.
        effective_owners: ``[C]``, ``exp(entropy)`` of a feature's gates over their sum: 1 if one
            member has it, M if all let it through alike. It does not see how far gates are open.
        owners_above: ``[C]``, number of members whose gate is above the threshold, 0 to M.
        correlation: ``[M, M]``, Pearson correlation of two members' gates over the features; NaN
            where a member's gates are all equal.
        spread: standard deviation of the gates over the members, root mean square over the
            features: 0 if all members are alike, 0.5 if half of the gates are open, half shut.
    """

    name: str
    effective_owners: Floats
    owners_above: NDArray[np.int64]
    correlation: Floats
    spread: float


@dataclass(frozen=True, eq=False)
class SharingStatistics:
    """How an ensemble's features are shared.

    Attributes:
        members: M.
        threshold: of ``owners_above``.
        layers: one record per layer, in the order of registration.
        effective_owners: mean over all features of all layers, 1 to M.
        owners_above: likewise, 0 to M.
        correlation: mean over all pairs of members and all layers, each by its features; NaN if it
            is defined nowhere.
        spread: root mean square over all features.
    """

    members: int
    threshold: float
    layers: tuple[LayerSharing, ...]
    effective_owners: float
    owners_above: float
    correlation: float
    spread: float


def sharing_statistics(model: nn.Module, *, threshold: float = 0.5) -> SharingStatistics:
    """Measure how the members of an ensemble share the features.

    Args:
        model: an Ensemble, or a module that holds one, of two members or more; unchanged.
        threshold: gate from which on a member counts as an owner in ``owners_above``, between 0 and
            1; 0.5 is the gate of gamma = 0.

    Returns:
        The statistics of every layer and of all together.

    Raises:
        InvalidInput: if the threshold is out of range, or the model is no ensemble of two members
            or more.

    Example:
        >>> from torch import nn
        >>> from temperance.ensemble import convert, sharing_statistics
        >>> model = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.Linear(8, 3))
        >>> found = sharing_statistics(convert(model, 4, spread=0.0))
        >>> round(found.effective_owners, 3), found.owners_above, round(found.spread, 3)
        (4.0, 4.0, 0.0)

    Reference:
        Effective number: Hill, "Diversity and evenness: a unifying notation and its consequences",
        1973, of order 1.
    """
    threshold = _share(threshold)
    members = checked_norms(model)[0].members
    layers = tuple(_layer(name, norm, threshold) for name, norm in sigma_norms(model).items())
    sizes = np.array([len(layer.owners_above) for layer in layers], dtype=np.float64)
    return SharingStatistics(
        members=members,
        threshold=threshold,
        layers=layers,
        effective_owners=float(np.concatenate([x.effective_owners for x in layers]).mean()),
        owners_above=float(np.concatenate([x.owners_above for x in layers]).mean()),
        correlation=_mean_correlation(layers, sizes),
        spread=float(np.sqrt(np.average([x.spread**2 for x in layers], weights=sizes))),
    )


def disagreement(predictions: Tensor | ArrayLike) -> float:
    """Share of the rows where two members predict different classes, mean over all pairs.

    The most probable class of two is compared; of equal ones the first. Per row there is
    ``temperance.evaluation.member_uncertainty``.

    Args:
        predictions: logits or probabilities ``[M, B, C]`` or ``[M, B, ..., C]``, M at least 2.

    Returns:
        0 to 1.

    Raises:
        InvalidInput: if the shape does not fit, there is one member only, or there are NaNs.

    Example:
        >>> from temperance.ensemble import disagreement
        >>> disagreement([[[0.9, 0.1], [0.2, 0.8]], [[0.6, 0.4], [0.7, 0.3]]])
        0.5
    """
    stack = predictions.detach() if isinstance(predictions, Tensor) else torch.as_tensor(
        np.asarray(predictions)
    )  # fmt: skip
    if stack.dim() < 3 or 0 in stack.shape or len(stack) < 2:
        raise InvalidInput(
            "predictions",
            expected="shape [members, batch, classes] with two members or more",
            found=f"shape {list(stack.shape)}",
            fix="Stack the members along a new first axis.",
        )
    if bool(torch.isnan(stack).any()):
        raise InvalidInput(
            "predictions", expected="numbers", found="NaN", fix="Look for a diverged member."
        )
    votes = stack.argmax(dim=-1)
    pairs = [(votes[a] != votes[b]).double().mean() for a, b in combinations(range(len(votes)), 2)]
    return float(torch.stack(pairs).mean())


# ------------------------------------------------------------------ pieces
def _share(value: Any) -> float:
    real = isinstance(value, numbers.Real) and not isinstance(value, bool)
    if not real or not 0 < float(value) < 1:
        raise InvalidInput(
            "threshold", expected="between 0 and 1", found=repr(value), fix="0.5 is usual."
        )
    return float(value)


def _layer(name: str, norm: SigmaNorm, threshold: float) -> LayerSharing:
    gamma = norm.gamma.detach().double().cpu()
    # by logarithms: gates of gamma = -800 are 0 in float64, and still have shares
    log_share = torch.log_softmax(F.logsigmoid(gamma), dim=0)
    entropy = -(log_share.exp() * log_share).sum(dim=0)
    gates = torch.sigmoid(gamma).numpy()
    return LayerSharing(
        name=name,
        effective_owners=np.asarray(entropy.exp()),
        owners_above=(gates > threshold).sum(axis=0).astype(np.int64),
        correlation=_correlation(gates),
        spread=float(np.sqrt(gates.var(axis=0).mean())),
    )


def _correlation(gates: Floats) -> Floats:
    """Pearson over the features, ``[M, M]``; NaN, not rounding noise, for a constant member."""
    constant = np.ptp(gates, axis=1) <= 1e-9  # far below what a gate of a float32 gamma resolves
    centred = gates - gates.mean(axis=1, keepdims=True)
    length = np.sqrt((centred**2).sum(axis=1, keepdims=True))
    unit = centred / np.where(constant[:, None], np.nan, length)
    out: Floats = np.clip(unit @ unit.T, -1.0, 1.0)
    np.fill_diagonal(out, np.where(constant, np.nan, 1.0))
    return out


def _mean_correlation(layers: Sequence[LayerSharing], sizes: Floats) -> float:
    members = len(layers[0].correlation)
    pairs: Any = np.triu_indices(members, 1)
    values = np.array([layer.correlation[pairs] for layer in layers])
    weights = np.broadcast_to(sizes[:, None], values.shape)
    known = ~np.isnan(values)
    return float(np.average(values[known], weights=weights[known])) if known.any() else float("nan")
