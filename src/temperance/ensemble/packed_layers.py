"""Layers of torch for features that lie in groups, one behind the other."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

__all__ = ["GroupedLayerNorm", "GroupedLinear"]


class GroupedLinear(nn.Module):
    """A linear layer for each group of features: its matrix is block-diagonal.

    Args:
        in_features: of all groups together; a multiple of ``groups``.
        out_features: likewise.
        groups: how many there are.
        bias: whether there is one.

    Attributes:
        weight: ``[groups, out / groups, in / groups]``, drawn as ``nn.Linear`` draws it.
        bias: ``[out]``, or None.

    Example:
        >>> import torch
        >>> GroupedLinear(8, 4, groups=2)(torch.zeros(5, 8)).shape
        torch.Size([5, 4])
    """

    def __init__(
        self, in_features: int, out_features: int, *, groups: int, bias: bool = True
    ) -> None:
        super().__init__()
        self.in_features, self.out_features, self.groups = in_features, out_features, groups
        size = (groups, out_features // groups, in_features // groups)
        self.weight = nn.Parameter(torch.empty(size))
        self.bias = nn.Parameter(torch.empty(out_features)) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the weights anew: U(-1/sqrt(f), 1/sqrt(f)) for f inputs of a group."""
        bound = 1 / math.sqrt(self.weight.shape[2])
        nn.init.uniform_(self.weight, -bound, bound)
        if self.bias is not None:
            nn.init.uniform_(self.bias, -bound, bound)

    def forward(self, input: Tensor) -> Tensor:
        """Give ``[..., out]`` for ``[..., in]``."""
        x = input.unflatten(-1, (self.groups, -1))
        y = torch.einsum("...gi,goi->...go", x, self.weight).flatten(-2)
        return y if self.bias is None else y + self.bias.to(y.dtype)  # autocast makes y narrower

    def extra_repr(self) -> str:
        """Show the sizes in the printed model."""
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, "
            f"groups={self.groups}, bias={self.bias is not None}"
        )


class GroupedLayerNorm(nn.Module):
    """A LayerNorm over the last axis for each group of features by itself.

    Args:
        features: of all groups together; a multiple of ``groups``.
        groups: how many there are.
        eps: added to the variance.
        affine: whether there are a scale and a shift.

    Example:
        >>> import torch
        >>> GroupedLayerNorm(8, groups=2)(torch.zeros(5, 8)).shape
        torch.Size([5, 8])
    """

    def __init__(
        self, features: int, *, groups: int, eps: float = 1e-5, affine: bool = True
    ) -> None:
        super().__init__()
        self.groups, self.eps = groups, eps
        self.weight = nn.Parameter(torch.ones(features)) if affine else None
        self.bias = nn.Parameter(torch.zeros(features)) if affine else None

    def forward(self, input: Tensor) -> Tensor:
        """Normalize each group."""
        x = input.unflatten(-1, (self.groups, -1))
        y = F.layer_norm(x, x.shape[-1:], None, None, self.eps).flatten(-2)
        if self.weight is None or self.bias is None:
            return y
        return torch.addcmul(self.bias, y, self.weight)
