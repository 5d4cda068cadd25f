"""Linear layers of many members at once, forward and backward by hand.

torch's own batched product would lay out members first, and its gradients transposed: the copies
between the layouts cost as much as the products of a small net.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor

from temperance.study.probe_product import Product

__all__ = ["linears"]

# Numbers of one weight from which the faster library wins: its calls are one for each member. On
# AMD Zen 5, products of 64 rows with a square weight: 128 equal, 256 1.6 and 512 2 times as fast.
_WIDE = 1 << 16


def linears(
    x: Tensor, weight: Tensor, bias: Tensor | None, *, members: int, multiply: Product
) -> Tensor:
    """Apply the linear layer of each member to its own features: ``x_r @ weight_r.T + bias_r``.

    Args:
        x: features of all members side by side, ``[B, R * I]``.
        weight: weights, one member below the other, ``[R * O, I]``.
        bias: biases, ``[R * O]``, or None.
        members: R.
        multiply: a product of matrices.

    Returns:
        ``[B, R * O]``.

    Example:
        >>> import torch
        >>> from temperance.study.probe_product import choose_product
        >>> from temperance.study.stacked_linear import linears
        >>> x, weight = torch.tensor([[1.0, 2.0]]), torch.tensor([[10.0], [100.0]])
        >>> linears(x, weight, None, members=2, multiply=choose_product()).tolist()
        [[10.0, 200.0]]
    """
    return cast(Tensor, _Linears.apply(x, weight, bias, members, multiply))


class _Linears(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        members: int,
        multiply: Product,
    ) -> Tensor:
        w = weight.view(members, -1, weight.shape[1])
        wide = w[0].numel() >= _WIDE
        x = _by_member(x, members, whole=wide)
        z = x.new_empty(x.shape[1], members, w.shape[1])
        if wide:
            for r in range(members):
                z[:, r] = multiply(x[r], w[r])
        else:
            torch.bmm(x, w.transpose(1, 2), out=z.transpose(0, 1))
        z = z.view(len(z), -1)
        ctx.save_for_backward(x, w)
        ctx.wide, ctx.multiply, ctx.with_bias = wide, multiply, bias is not None
        return z if bias is None else z.add_(bias)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, w = ctx.saved_tensors
        g = _by_member(gradient, len(w), whole=ctx.wide)
        d_x = _slope_in_x(g, w, ctx) if ctx.needs_input_grad[0] else None
        if not ctx.wide:
            d_w = torch.bmm(g.transpose(1, 2), x)
        elif len(w) == 1:
            d_w = ctx.multiply(g[0].t(), x[0].t())
        else:
            d_w = torch.stack([ctx.multiply(a.t(), b.t()) for a, b in zip(g, x, strict=True)])
        d_bias = gradient.sum(0) if ctx.with_bias else None
        return d_x, d_w.view(-1, w.shape[2]), d_bias, None, None


def _slope_in_x(g: Tensor, w: Tensor, ctx: Any) -> Tensor:
    d_x = g.new_empty(g.shape[1], len(w), w.shape[2])
    if ctx.wide:
        for r in range(len(w)):
            d_x[:, r] = ctx.multiply(g[r], w[r].t())
    else:
        torch.bmm(g, w, out=d_x.transpose(0, 1))
    return d_x.view(len(d_x), -1)


def _by_member(x: Tensor, members: int, *, whole: bool) -> Tensor:
    """View ``[B, R * I]`` as ``[R, B, I]``; copied where each member has to be in one piece."""
    rows = x.view(len(x), members, -1).transpose(0, 1)
    return rows.contiguous() if whole else rows
