"""BatchEnsemble: one weight matrix, and for each member a matrix of rank one to multiply it with.

Reference:
    Y. Wen, D. Tran, J. Ba, "BatchEnsemble: an alternative approach to efficient ensemble and
    lifelong learning", ICLR 2020, arXiv 2002.06715, section 3; code of the authors:
    google/uncertainty-baselines, ``baselines/cifar/batchensemble.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from temperance.ensemble.rival_layers import (
    by_member,
    check_number,
    check_whole,
    copied,
    find_layers,
    gather,
    shaped,
)
from temperance.ensemble.rows import Rows
from temperance.ensemble.rows_ensemble import RowsEnsemble
from temperance.errors import InvalidInput
from temperance.models.probe import replace_module

__all__ = ["RANK_ONE_INITS", "RankOneLayer", "batch_ensemble"]

RANK_ONE_INITS = ("normal", "signs")


class RankOneLayer(nn.Module):
    """A linear layer or convolution for each member: ``y_m = ((x * r_m) W) * s_m + b_m``.

    So member m has the weights ``W * (s_m r_m^T)``.

    Args:
        layer: the layer, which keeps its weight; its bias is taken out.
        rows: the pass of the ensemble.

    Attributes:
        r: ``[M, in]``, starts at 1.
        s: ``[M, out]``, starts at 1.
        bias: ``[M, out]``, copies of the layer's; or None.
    """

    def __init__(self, layer: nn.Module, rows: Rows) -> None:
        super().__init__()
        weight, bias = layer.weight, layer.bias
        assert isinstance(weight, Tensor)
        linear = isinstance(layer, nn.Linear)
        width: Any = getattr(layer, "in_features" if linear else "in_channels")
        self.rows, self.members, self.channel_axis = rows, rows.members, -1 if linear else 1
        self.r = nn.Parameter(weight.new_ones(rows.members, width))
        self.s = nn.Parameter(weight.new_ones(rows.members, weight.shape[0]))
        self.bias = None
        if isinstance(bias, Tensor):
            self.bias = nn.Parameter(bias.detach().repeat(rows.members, 1))
            layer.register_parameter("bias", None)
        self.layer = layer
        self.training = layer.training

    def forward(self, input: Tensor) -> Tensor:
        """Run every member's rows through the shared layer, between its own factors."""
        rows, axis = self.rows, self.channel_axis
        x = gather(by_member(input, rows) * shaped(self.r, input, rows, axis), rows)
        y = self.layer(x)
        s, wide = shaped(self.s, y, rows, axis), by_member(y, rows)
        if self.bias is None:
            return gather(wide * s, rows)
        return gather(torch.addcmul(shaped(self.bias, y, rows, axis), wide, s), rows)

    def extra_repr(self) -> str:
        """Show the members in the printed model."""
        return f"members={self.members}, bias={self.bias is not None}"


def batch_ensemble(
    model: nn.Module,
    members: int,
    *,
    init: str = "normal",
    spread: float = 0.5,
    layers: str | Sequence[str] | None = None,
    seed: int = 0,
) -> RowsEnsemble:
    """Make a BatchEnsemble out of a model; the model stays as it is, its weights are kept.

    Every linear layer and convolution becomes ``y_m = ((x * r_m) W) * s_m + b_m``, the output layer
    too. Norms are shared by the members, statistics included, as in the authors' code. Parameters
    grow by ``M (in + out) + (M - 1) bias`` for each layer.

    Train it by ``repeat``: every member sees the whole batch, the loss is the mean of the members'
    (the authors divide the batch size by M and train for 1.25 times the epochs; r, s and the biases
    have half the learning rate and r and s no weight decay).

    Args:
        model: any model of linear layers and convolutions, nested as it may be.
        members: M, 1 or more.
        init: of r and s: ``normal``: mean 1 and standard deviation ``spread``; ``signs``: +1 or -1,
            evenly, which is the paper's other choice and does not keep what a trained model
            computes.
        spread: 0.5 in the authors' code; 0 keeps the function of the model. No effect for one
            member, or with ``signs``.
        layers: patterns of names of the layers to change, as ``["*", "!head"]``; None for all.
        seed: of r and s; the global random state is not touched.

    Returns:
        The ensemble, with ``protocol="repeat"``; with one member the model itself.

    Raises:
        NotFound: if the model has no such layers.
        InvalidInput: if an argument is out of range, the model was converted or wrapped before, or
            a chosen layer is inside ``nn.MultiheadAttention``.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)).eval()
        >>> batch_ensemble(model, 4)(torch.zeros(5, 4)).shape
        torch.Size([4, 5, 3])

    Reference:
        Y. Wen et al., ICLR 2020, arXiv 2002.06715; ``random_sign_init=-0.5`` and
        ``fast_weight_lr_multiplier=0.5`` from google/uncertainty-baselines.
    """
    members, seed = check_whole("members", members, 1), check_whole("seed", seed, 0)
    spread = check_number("spread", spread, 0)
    if init not in RANK_ONE_INITS:
        raise InvalidInput(
            "init", expected=" or ".join(RANK_ONE_INITS), found=repr(init), fix="Choose one."
        )
    backbone = copied(model)
    if isinstance(backbone, (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)):
        backbone = nn.Sequential(backbone).train(model.training)
    rows, generator = Rows(members), torch.Generator().manual_seed(seed)
    for layer in find_layers(backbone, patterns=layers).values():
        new = RankOneLayer(layer, rows)
        replace_module(backbone, layer, new)
        if members > 1:
            _draw(new, init, spread, generator)
    return RowsEnsemble(backbone, rows)


def _draw(new: RankOneLayer, init: str, spread: float, generator: torch.Generator) -> None:
    for factor in (new.r, new.s):
        noise: Any = torch.randn(factor.shape, generator=generator)
        values = torch.where(noise < 0, -1.0, 1.0) if init == "signs" else 1 + spread * noise
        with torch.no_grad():
            factor.copy_(values)
