"""The optimizers of a stack of nets: torch's own, one parameter group for trials of one pace."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby

import torch
from torch import Tensor, nn
from torch.optim import SGD, AdamW, Optimizer, RMSprop

from temperance.head import parameter_groups
from temperance.study.batches import learning_rate
from temperance.study.probe_updates import pace
from temperance.study.stacked import StackedNet
from temperance.study.trial import Trial

__all__ = ["NetUpdates", "new_optimizer"]


class NetUpdates:
    """Applies gradients to the parameters of a stack.

    torch's optimizers work element by element, so that one of them over stacked parameters does
    what R of them do. Their fused form reads and writes every number once per step.

    Args:
        stack: the nets, changed in place by every update.
        net: one of them, which says what weight decay acts on.
        trials: their trials, those of one pace next to each other.
    """

    def __init__(self, stack: StackedNet, net: nn.Module, trials: Sequence[Trial]) -> None:
        self._steps = trials[0].steps
        decayed = _decayed(net)
        groups = []
        self._parts: list[tuple[slice, Trial, list[Tensor]]] = []
        for _, alike in groupby(range(stack.members), lambda index: pace(trials[index])):
            places = list(alike)
            members = slice(places[0], places[-1] + 1)
            parts = {name: _part(t, members, stack) for name, t in stack.parameters.items()}
            self._parts.append((members, trials[places[0]], list(parts.values())))
            groups += _groups(parts, decayed, trials[places[0]])
        self._members = stack.members
        self.optimizer = new_optimizer(groups, trials[0], fused=True)

    def apply(self, gradients: Sequence[Tensor], step: int) -> None:
        """Take one step.

        Args:
            gradients: one for each of ``stack.parameters``.
            step: number of the step, from 0.
        """
        groups = iter(self.optimizer.param_groups)
        for members, trial, parameters in self._parts:
            rate = learning_rate(step, self._steps, peak=trial.lr, schedule=trial.schedule)
            next(groups)["lr"] = next(groups)["lr"] = rate
            for parameter, gradient in zip(parameters, gradients, strict=True):
                size = len(gradient) // self._members
                own = gradient[members.start * size : members.stop * size]
                # The fused optimizers walk through memory: both must be laid out alike.
                parameter.grad = (
                    own if own.stride() == parameter.stride() else _like(parameter, own)
                )
        self.optimizer.step()

    def stop(self, index: int) -> None:
        """Set all that the optimizer remembers of a trial to 0.

        Args:
            index: of the trial.
        """
        for members, _, parameters in self._parts:
            if members.start <= index < members.stop:
                count, place = members.stop - members.start, index - members.start
                for parameter in parameters:
                    for tensor in self.optimizer.state[parameter].values():
                        if isinstance(tensor, Tensor) and tensor.shape == parameter.shape:
                            tensor.unflatten(0, (count, -1))[place] = 0.0


def new_optimizer(
    groups: Sequence[dict[str, object]], trial: Trial, *, fused: bool = False
) -> Optimizer:
    """Make the optimizer of a trial over parameter groups.

    Args:
        groups: parameter groups.
        trial: says which optimizer, and its learning rate and momentum where a group does not.
        fused: take the fused form, for float32 on the CPU.

    Returns:
        ``torch.optim.SGD``, ``torch.optim.AdamW`` or ``torch.optim.RMSprop``, which has no fused
        form and is taken without momentum.
    """
    if trial.optimizer == "sgd":
        return SGD(list(groups), lr=trial.lr, momentum=trial.momentum, fused=fused or None)
    if trial.optimizer == "rmsprop":
        return RMSprop(list(groups), lr=trial.lr)
    return AdamW(list(groups), lr=trial.lr, fused=fused or None)


def _decayed(net: nn.Module) -> set[str]:
    """Names of the parameters that weight decay acts on."""
    decayed = {id(p) for g in parameter_groups(net, 1.0) if g["weight_decay"] for p in g["params"]}
    return {name for name, p in net.named_parameters() if id(p) in decayed}


def _groups(
    parts: Mapping[str, Tensor], decayed: set[str], trial: Trial
) -> list[dict[str, object]]:
    own = {"lr": trial.lr} | ({"momentum": trial.momentum} if trial.optimizer == "sgd" else {})
    return [
        {"params": [p for name, p in parts.items() if (name in decayed) == wanted], **own}
        | {"weight_decay": trial.weight_decay if wanted else 0.0}
        for wanted in (True, False)
    ]


def _part(tensor: Tensor, members: slice, stack: StackedNet) -> Tensor:
    size = len(tensor) // stack.members
    return tensor.detach()[members.start * size : members.stop * size]


def _like(parameter: Tensor, gradient: Tensor) -> Tensor:
    return torch.empty_like(parameter).copy_(gradient)
