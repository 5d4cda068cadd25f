"""Many copies of a small net as one program, their channels side by side.

Every parameter and buffer of R members is one tensor with the members along its first axis, and
every activation has the channels of all members along its second: ``[B, R * C, H, W]`` or
``[B, R * F]``. In this layout R convolutions are one grouped convolution, R BatchNorms are one
BatchNorm with the statistics of each member for itself, and what works channel by channel (ReLU,
pooling, adding) is left as it is. Only linear layers become batched products. The layers in front
of the first weights see the rows once for all members.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn

from temperance.study.probe_product import Product, choose_product

__all__ = ["StackedNet", "Step", "stack_net"]


@dataclass(frozen=True, eq=False)
class Step:
    """One layer of the program.

    Attributes:
        run: what it does; gets the net, the step, whether it trains, and its inputs.
        inputs: places of its inputs among the values; 0 is the input of the net, k the result of
            step k - 1.
        name: dotted name of the layer, by which its tensors are known.
        layer: the layer of one member, for its settings; None for functions.
        shared: whether its (first) input is still the same for all members.
    """

    run: Callable[..., Tensor]
    inputs: tuple[int, ...]
    name: str = ""
    layer: nn.Module | None = None
    shared: bool = False


@dataclass(frozen=True, eq=False)
class StackedNet:
    """R members of one architecture.

    Attributes:
        members: R.
        tensors: parameters and buffers by their names in a member, ``[R * first axis, ...]``;
            parameters require gradients.
        steps: the program; the last one gives the logits before the division by T.
    """

    members: int
    tensors: Mapping[str, Tensor]
    steps: tuple[Step, ...]
    multiply: Product

    def __call__(self, x: Tensor, *, training: bool) -> Tensor:
        """Run all members.

        Args:
            x: rows that all members see, ``[B, ...]``.
            training: whether BatchNorms use, and add to their statistics, those of these rows.

        Returns:
            Logits before the division by T, ``[B, R, C]``.
        """
        if x.ndim == 4:
            x = x.contiguous(memory_format=torch.channels_last)
        values: list[Tensor | None] = [x]
        last_use = {place: k for k, step in enumerate(self.steps) for place in step.inputs}
        for k, step in enumerate(self.steps):
            inputs = [values[place] for place in step.inputs]
            values.append(step.run(self, step, training, *inputs))
            for place in step.inputs:  # so that nothing is kept longer than needed
                if last_use[place] == k:
                    values[place] = None
        z = cast(Tensor, values[-1])
        return z.view(len(z), self.members, -1)

    @property
    def parameters(self) -> dict[str, Tensor]:
        """What is trained, by name."""
        return {name: t for name, t in self.tensors.items() if t.requires_grad}

    def member(self, index: int) -> dict[str, Tensor]:
        """Give the tensors of one member, views, by name."""
        return {name: _part(tensor, self.members, index) for name, tensor in self.tensors.items()}

    def own(self, step: Step, name: str) -> Tensor | None:
        """Give a tensor of a layer of all members, or None where the layer has none."""
        return self.tensors.get(f"{step.name}.{name}")


def _part(tensor: Tensor, members: int, index: int) -> Tensor:
    size = len(tensor) // members
    return tensor.detach().narrow(0, index * size, size)


def stack_net(net: nn.Module, members: int, *, steps: tuple[Step, ...]) -> StackedNet:
    """Make R members that start at the weights of a net.

    Args:
        net: the net, with a ``TemperedHead``; left as it is.
        members: R.
        steps: its program, of ``stacked_trace.trace_steps``.

    Returns:
        The members.

    Example:
        >>> import torch
        >>> from temperance.head import insert
        >>> from temperance.study.stacked import stack_net
        >>> from temperance.study.stacked_trace import trace_steps
        >>> from temperance.training.nets import build_net
        >>> net = build_net("mlp", input_shape=(4,), n_classes=3, seed=0, feature_dim=8).module
        >>> _ = insert(net, 2.0, name="head")
        >>> stack = stack_net(net, 5, steps=trace_steps(net))
        >>> stack(torch.zeros(6, 4), training=False).shape
        torch.Size([6, 5, 3])
        >>> stack.parameters["head.linear.weight"].shape
        torch.Size([15, 8])
    """
    tensors = {}
    trained = {name for name, p in net.named_parameters() if p.requires_grad}
    for name, tensor in net.state_dict().items():
        if tensor.ndim:
            copies = tensor.detach().repeat(members, *(1,) * (tensor.ndim - 1))
            if copies.ndim == 4:  # not .contiguous: with one channel it would leave the strides
                last = torch.empty_like(copies, memory_format=torch.channels_last)
                copies = last.copy_(copies)
            tensors[name] = copies.requires_grad_(name in trained)
    return StackedNet(members, tensors, steps, choose_product())
