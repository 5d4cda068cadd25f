"""What each layer of a small net is for many members at once.

Every function gets the stack, the step, whether it trains, and its inputs.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor, nn

from temperance.study.stacked import StackedNet, Step
from temperance.study.stacked_linear import linears

__all__ = ["ALIKE", "FUNCTIONS", "LAYERS"]


def _spread(net: StackedNet, h: Tensor) -> Tensor:
    """Give every member its own copy of what was shared."""
    return h.repeat(1, net.members, *(1,) * (h.ndim - 2))


def _linear(net: StackedNet, step: Step, training: bool, h: Tensor) -> Tensor:  # noqa: ARG001
    weight, bias = net.own(step, "weight"), net.own(step, "bias")
    assert weight is not None
    members = 1 if step.shared else net.members
    return linears(h, weight, bias, members=members, multiply=net.multiply)


def _conv(net: StackedNet, step: Step, training: bool, h: Tensor) -> Tensor:  # noqa: ARG001
    layer = cast(nn.Conv2d, step.layer)
    weight, bias = net.own(step, "weight"), net.own(step, "bias")
    assert weight is not None
    if step.shared and layer.groups > 1:
        h = _spread(net, h)
    groups = layer.groups if step.shared and layer.groups == 1 else net.members * layer.groups
    return nn.functional.conv2d(
        h, weight, bias, layer.stride, layer.padding, layer.dilation, groups
    )


def _batch_norm(net: StackedNet, step: Step, training: bool, h: Tensor) -> Tensor:
    layer = cast(nn.BatchNorm1d, step.layer)
    h = _spread(net, h) if step.shared else h
    assert layer.momentum is not None
    return nn.functional.batch_norm(
        h,
        net.own(step, "running_mean"),
        net.own(step, "running_var"),
        net.own(step, "weight"),
        net.own(step, "bias"),
        training,
        layer.momentum,
        layer.eps,
    )


def _layer_norm(net: StackedNet, step: Step, training: bool, h: Tensor) -> Tensor:  # noqa: ARG001
    layer = cast(nn.LayerNorm, step.layer)
    weight, bias = net.own(step, "weight"), net.own(step, "bias")
    rows = h.view(len(h), 1 if step.shared else net.members, -1)
    rows = nn.functional.layer_norm(rows, rows.shape[-1:], eps=layer.eps)
    if weight is not None:
        rows = rows * weight.view(net.members, -1)
    if bias is not None:
        rows = rows + bias.view(net.members, -1)
    return rows.reshape(len(h), -1)


def _as_it_is(net: StackedNet, step: Step, training: bool, h: Tensor) -> Tensor:  # noqa: ARG001
    assert step.layer is not None
    return step.layer(h)


def _relu(net: StackedNet, step: Step, training: bool, h: Tensor) -> Tensor:  # noqa: ARG001
    return torch.relu(h)


def _flatten(net: StackedNet, step: Step, training: bool, h: Tensor) -> Tensor:  # noqa: ARG001
    return h.flatten(1)


def _mean_pool(net: StackedNet, step: Step, training: bool, h: Tensor) -> Tensor:  # noqa: ARG001
    return cast(Tensor, _MeanPool.apply(h))


def _add(net: StackedNet, step: Step, training: bool, a: Tensor, b: Tensor) -> Tensor:  # noqa: ARG001
    wide = max(a.shape[1], b.shape[1])
    a, b = (h if h.shape[1] == wide else _spread(net, h) for h in (a, b))
    return a + b


class _MeanPool(torch.autograd.Function):
    """Mean over height and width, whose gradient has the layout of its input.

    torch's own gives a gradient with channels first, and the ReLU in front of it then takes four
    times as long (measured on ``[64, 128, 7, 7]``).
    """

    @staticmethod
    def forward(ctx: Any, h: Tensor) -> Tensor:
        ctx.size = h.shape[2:]
        return h.mean((2, 3), keepdim=True)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        height, width = ctx.size
        rows = (gradient / (height * width)).expand(-1, -1, height, width)
        return rows.contiguous(memory_format=torch.channels_last)


LAYERS: dict[type[nn.Module], Callable[..., Tensor]] = {
    nn.Linear: _linear,
    nn.Conv2d: _conv,
    nn.BatchNorm1d: _batch_norm,
    nn.BatchNorm2d: _batch_norm,
    nn.LayerNorm: _layer_norm,
    nn.AdaptiveAvgPool2d: _mean_pool,
    nn.ReLU: _relu,
    nn.Flatten: _flatten,
    nn.Identity: _as_it_is,
    nn.MaxPool2d: _as_it_is,
    nn.AdaptiveMaxPool2d: _as_it_is,
}
FUNCTIONS: dict[Any, Callable[..., Tensor]] = {
    torch.relu: _relu,
    nn.functional.relu: _relu,
    operator.add: _add,
    torch.add: _add,
}
# What gives the same for all members from what is the same for all members.
ALIKE = (_relu, _flatten, _as_it_is, _mean_pool, _add)
