"""The net that trials of one seed and norm start from, and what it needs in memory."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from temperance.errors import InvalidInput
from temperance.head import HeadOptions, TemperedHead, insert
from temperance.models import logits_of
from temperance.study.outcome import StudyData
from temperance.study.stacked import Step
from temperance.study.stacked_trace import trace_steps
from temperance.study.trial import Trial
from temperance.training.nets import NETS, build_net

__all__ = ["Prototype", "bytes_of", "new_prototype", "predict"]

_BLOCK = 1 << 22  # numbers that a block of rows makes on its way through a net: 16 MB


@dataclass(frozen=True, eq=False)
class Prototype:
    """A net with its tempered head, and how it is used.

    Attributes:
        net: the net, at the initial weights of its seed.
        head: its head.
        name: full name of the architecture.
        channels: channels of its input, to which gray pictures are replicated; None for features.
        program: its steps, of which stacks are made; empty if it is trained one by one.
        reason: why it has no program.
        parameters: numbers that are trained.
        activations: numbers that one row makes on its way.
    """

    net: nn.Module
    head: TemperedHead
    name: str
    channels: int | None
    program: tuple[Step, ...]
    reason: str
    parameters: int
    activations: int

    def inputs(self, x: NDArray[np.float32]) -> Tensor:
        """Turn rows into the input of the net; they are copied only where it needs that."""
        rows = torch.from_numpy(np.require(x, requirements=["C", "W"]))
        if self.channels is None:
            return rows
        if rows.shape[1] != self.channels:
            rows = rows.expand(-1, self.channels, -1, -1)
        return rows.contiguous(memory_format=torch.channels_last)

    def rows_together(self, members: int = 1) -> int:
        """Rows of one block, so that what they make on their way stays small."""
        return max(16, _BLOCK // (members * self.activations))


def new_prototype(data: StudyData, trial: Trial) -> Prototype:
    """Build the net of a trial; equal seeds give equal weights.

    Args:
        data: the rows.
        trial: the trial.

    Returns:
        The net, with the trial's norm and temperature.

    Raises:
        InvalidInput: if the net does not take such rows.
        NotFound: if there is no such net.
    """
    built = build_net(
        trial.model,
        input_shape=data.input_shape,
        n_classes=data.n_classes,
        seed=trial.seed,
        feature_dim=trial.feature_dim,
    )
    net, shape = built.module, data.input_shape
    shape = shape if built.in_channels is None else (built.in_channels, *shape[1:])
    options = HeadOptions(gradient_compensation=trial.loss == "normalized")
    example = torch.zeros(2, *shape)
    head = insert(net, trial.temperature, norm=trial.norm, example=example, options=options)
    if built.in_channels is not None:
        net.to(memory_format=torch.channels_last)  # a third faster on a CPU
    program, reason = _program(net, trial.model)
    return Prototype(
        net=net,
        head=head,
        name=built.name,
        channels=built.in_channels,
        program=program,
        reason=reason,
        parameters=sum(p.numel() for p in net.parameters()),
        activations=_activations(net, example[:1]),
    )


def _program(net: nn.Module, name: str) -> tuple[tuple[Step, ...], str]:
    if name not in NETS:
        return (), "it is not one of our nets"
    try:
        return trace_steps(net), ""
    except InvalidInput as error:
        return (), f"it has {error.found}"


def _activations(net: nn.Module, row: Tensor) -> int:
    """Numbers that the layers of a net put out for one row."""
    total = row.numel()

    def count(module: nn.Module, inputs: object, output: object) -> None:  # noqa: ARG001
        nonlocal total
        total += output.numel() if isinstance(output, Tensor) else 0

    leaves = [m for m in net.modules() if not any(m.children())]
    handles = [m.register_forward_hook(count) for m in leaves]
    net.eval()
    try:
        with torch.no_grad():
            net(row)
    finally:
        net.train()
        for handle in handles:
            handle.remove()
    return total


def bytes_of(prototype: Prototype, trial: Trial, *, rows: int) -> int:
    """Bytes that one trial takes in training.

    Args:
        prototype: its net.
        trial: says which optimizer, and so how many numbers it keeps for each parameter.
        rows: rows of a batch.

    Returns:
        Bytes of parameters, their gradients and the optimizer's memory, and of activations and
        their gradients.
    """
    kept = 3 if trial.optimizer == "sgd" else 4
    return 4 * (kept * prototype.parameters + 2 * rows * prototype.activations)


@torch.no_grad()
def predict(prototype: Prototype, x: NDArray[np.float32]) -> NDArray[np.float32]:
    """Logits of the net as it is now, divided by its T, float32 ``[n, C]``; in bounded memory."""
    out = np.empty((len(x), prototype.head.out_features), dtype=np.float32)
    step = prototype.rows_together()
    prototype.net.eval()
    for start in range(0, len(x), step):
        place = slice(start, min(start + step, len(x)))
        out[place] = logits_of(prototype.net(prototype.inputs(x[place]))).numpy()
    prototype.net.train()
    return out
