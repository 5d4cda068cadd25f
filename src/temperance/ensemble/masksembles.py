"""Masksembles: fixed binary masks on the features, one for each member.

Reference:
    N. Durasov, T. Bagautdinov, P. Baque, P. Fua, "Masksembles for uncertainty estimation", CVPR
    2021, arXiv 2012.08334, section 3 and its supplement.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from temperance.ensemble.rival_layers import (
    by_member,
    check_number,
    check_whole,
    copied,
    gather,
    hidden_layers,
    shaped,
)
from temperance.ensemble.rows import Rows
from temperance.ensemble.rows_ensemble import RowsEnsemble
from temperance.errors import InvalidInput
from temperance.models.probe import replace_module

__all__ = ["MemberMask", "make_masks", "masksembles"]

PLACES = ("before", "after")
_TRIES = 400  # a set of masks has the wanted width about once in ten draws
_MOST_SCALE = 6.0  # the authors' limits: above this scale, or below ten features, no set is found
_LEAST_FEATURES = 10


class MemberMask(nn.Module):
    """Multiply every member's rows by its own mask of zeros and ones.

    Args:
        masks: ``[M, C]``.
        rows: the pass of the ensemble.
        channel_axis: of the features: 1 or -1.
    """

    masks: Tensor

    def __init__(self, masks: Tensor, rows: Rows, *, channel_axis: int) -> None:
        super().__init__()
        self.rows, self.channel_axis = rows, channel_axis
        self.register_buffer("masks", masks)

    def forward(self, input: Tensor) -> Tensor:
        """Leave each member its own features; those that are left are not scaled up."""
        masks = shaped(self.masks, input, self.rows, self.channel_axis)
        return gather(by_member(input, self.rows) * masks, self.rows)

    def extra_repr(self) -> str:
        """Show the masks in the printed model."""
        members, size = self.masks.shape
        return f"members={members}, {size} features, {int(self.masks[0].sum())} for each"


def make_masks(features: int, members: int, scale: float, *, seed: int = 0) -> Tensor:
    """Draw masks of which each has the same number of ones and every feature is used.

    Each member has ``K`` ones at random among ``N`` positions, ``N / K`` about ``scale``; positions
    that no member uses are dropped, and ``features`` are left:
    ``K = floor(C / (scale (1 - (1 - 1 / scale)^M)))``. Two masks share ``K^2 / N`` ones on average.

    Args:
        features: C, 10 or more (any number for one member or scale 1).
        members: M.
        scale: 1 for equal masks, up to 6 for almost separate ones.
        seed: of the masks.

    Returns:
        ``[M, C]``, zeros and ones.

    Raises:
        InvalidInput: if an argument is out of range, or no such set is found.

    Example:
        >>> masks = make_masks(64, 4, 2.0)
        >>> masks.shape, masks.sum(1).tolist()
        (torch.Size([4, 64]), [34.0, 34.0, 34.0, 34.0])

    Reference:
        N. Durasov et al., supplement, and nikitadurasov/masksembles, ``common.py``. Theirs searches
        over the scale with the global random state; this one over N, which is whole.
    """
    features, members = check_whole("features", features, 1), check_whole("members", members, 1)
    scale = check_number("scale", scale, 1, _MOST_SCALE)
    if members == 1 or scale == 1:
        return torch.ones(members, features)
    if features < _LEAST_FEATURES:
        raise _impossible(f"{features} features", f"{_LEAST_FEATURES} or more")
    generator = torch.Generator().manual_seed(check_whole("seed", seed, 0))
    ones = int(features / (scale * (1 - (1 - 1 / scale) ** members)) + 1e-9)
    first = next(
        (n for n in range(features, 8 * features) if _used(n, ones, members) >= features - 0.5),
        features,
    )
    for positions in sorted(range(features, 2 * first + 1), key=lambda n: abs(n - first))[:9]:
        for _ in range(_TRIES):
            order = torch.rand(members, positions, generator=generator).argsort(1)
            masks = (order < ones).float()
            masks = masks[:, masks.any(0)]
            if masks.shape[1] == features:
                return masks
    raise _impossible(f"none for {features} features at scale {scale}", "a set of masks")


def masksembles(
    model: nn.Module,
    members: int,
    *,
    scale: float = 2.0,
    layers: str | Sequence[str] | None = None,
    place: str = "before",
    seed: int = 0,
) -> RowsEnsemble:
    """Make Masksembles out of a model; the model stays as it is, its weights are kept.

    Masks are put where dropout would be: in front of the layers. They have no parameters; the model
    keeps its number of them.

    Train it by ``split``: each member sees its share of the batch, as in the paper. In evaluation
    every member sees every row.

    Args:
        model: any model of linear layers and convolutions.
        members: M, 1 or more.
        scale: overlap of the masks, see ``make_masks``: 1 gives members that are equal, larger ones
            give each less of the net. 2 in the examples of the authors' code.
        layers: patterns of names of the layers with masks; None for all linear layers and
            convolutions but the first, whose input is the data (or an embedding: then all).
        place: ``before`` or ``after`` these layers.
        seed: of the masks; each layer has its own.

    Returns:
        The ensemble, with ``protocol="split"``; with one member the model itself.

    Raises:
        NotFound: if the model has no such layers.
        InvalidInput: if an argument is out of range, or a layer has too few features (named).

    Example:
        >>> import torch
        >>> from torch import nn
        >>> model = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 3)).eval()
        >>> masksembles(model, 4)(torch.zeros(5, 4)).shape
        torch.Size([4, 5, 3])

    Reference:
        N. Durasov et al., CVPR 2021, arXiv 2012.08334.
    """
    members, seed = check_whole("members", members, 1), check_whole("seed", seed, 0)
    if place not in PLACES:
        raise InvalidInput("place", expected="before or after", found=repr(place), fix="Choose.")
    backbone, rows = copied(model), Rows(members)
    found = hidden_layers(backbone, layers)
    for number, (name, layer) in enumerate(found.items()):
        linear = isinstance(layer, nn.Linear)
        width = _width(layer, before=place == "before")
        try:
            masks = make_masks(width, members, scale, seed=seed * len(found) + number)
        except InvalidInput as error:
            error.add_note(f"for the masks {place} layer {name!r}")
            if error.subject != "masks":
                raise
            raise _impossible(f"{error.found} {place} layer {name!r}", error.expected) from error
        mask = MemberMask(
            masks.to(next(layer.parameters())), rows, channel_axis=-1 if linear else 1
        )
        parts: list[tuple[str, nn.Module]] = [("mask", mask), ("layer", layer)]
        pair = nn.Sequential(OrderedDict(parts if place == "before" else parts[::-1]))
        replace_module(backbone, layer, pair.train(layer.training))
    return RowsEnsemble(backbone, rows, protocol="split")


def _width(layer: nn.Module, *, before: bool) -> int:
    linear = isinstance(layer, nn.Linear)
    name = ("in_" if before else "out_") + ("features" if linear else "channels")
    return int(getattr(layer, name))


def _used(positions: int, ones: int, members: int) -> float:
    """Positions that some member uses, on average."""
    return positions * (1 - (1 - ones / positions) ** members)


def _impossible(found: str, expected: str) -> InvalidInput:
    return InvalidInput(
        "masks",
        expected=expected,
        found=found,
        fix="Choose a smaller scale, or leave narrow layers out: layers=['*', '!NAME'].",
    )
