"""The output layers of all members as one module."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from temperance.ensemble.rows import Layout, Rows, unfold

__all__ = ["MemberLinear"]


class MemberLinear(nn.Module):
    """A linear layer for each member: ``y_m = x_m W_m^T + b_m``, by one batched product.

    Args:
        weight: ``[M, C, F]``.
        bias: ``[M, C]``, or None.
        rows: the pass of the ensemble.
        channel_axis: axis of the features: -1, or 1 where a convolution of size 1 stood.

    Shapes:
        Input ``[B * M, ..., F]``, rows ``b * M + m``, gives ``[B * M, ..., C]``; over channels
        ``[B * M, F, ...]`` gives ``[B * M, C, ...]``. With ``rows.active = m`` the rows are
        member m's.

    Attributes:
        layout: where the rows are in its input.
        template: the layer that this one stands for, without its values; None if there is none.

    Example:
        >>> import torch
        >>> heads = MemberLinear(torch.randn(4, 3, 8), None, Rows(4))
        >>> heads(torch.randn(10 * 4, 8)).shape
        torch.Size([40, 3])
    """

    def __init__(
        self, weight: Tensor, bias: Tensor | None, rows: Rows, *, channel_axis: int = -1
    ) -> None:
        super().__init__()
        self.rows, self.layout, self.channel_axis = rows, Layout(), channel_axis
        self.members, self.out_features, self.in_features = weight.shape
        self.template: tuple[nn.Module, ...] = ()
        self.weight = nn.Parameter(weight)
        self.bias = None if bias is None else nn.Parameter(bias)

    def forward(self, input: Tensor) -> Tensor:
        """Give every member's rows to its own layer."""
        if self.channel_axis != -1:
            return self._linear(input.movedim(self.channel_axis, -1)).movedim(-1, self.channel_axis)
        return self._linear(input)

    def _linear(self, x: Tensor) -> Tensor:
        if self.rows.active is not None or self.members == 1:
            m = self.rows.active or 0
            return F.linear(x, self.weight[m], None if self.bias is None else self.bias[m])
        axis = self.layout.axis
        x = unfold(x, self.rows, self.layout).movedim(axis + 1, 0)  # [M, .., B, k, .., F]
        flat = x.flatten(1, -2)
        weight = self.weight.transpose(1, 2)
        if self.bias is None:
            y = torch.bmm(flat, weight)
        else:
            y = torch.baddbmm(self.bias.unsqueeze(1), flat, weight)
        return y.unflatten(1, x.shape[1:-1]).movedim(0, axis + 1).flatten(axis, axis + 2)

    def extra_repr(self) -> str:
        """Show the sizes in the printed model."""
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, "
            f"members={self.members}, bias={self.bias is not None}"
        )
