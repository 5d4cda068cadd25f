"""MIMO: one net that takes M inputs at once and gives the logits of each.

Reference:
    M. Havasi et al., "Training independent subnetworks for robust prediction", ICLR 2021, arXiv
    2010.06610; code of the authors: google/edward2, ``experimental/mimo/cifar.py``.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from temperance.ensemble.rival_layers import (
    check_number,
    check_whole,
    copied,
    first_layer,
    output_layer,
    seeded,
)
from temperance.errors import InvalidInput
from temperance.models.outputs import logits_of, split_batch
from temperance.models.probe import evaluating, probe_logits, registered, replace_module

__all__ = ["Mimo", "draw_pairing", "mimo"]


class Mimo(nn.Module):
    """One net for M inputs, side by side in the channels.

    Args:
        backbone: the model, its first layer M times as wide in front, its output layer behind.
        members: M.
        batch_repetition: how often each row stands in a training batch.
        input_repetition: share of the training rows that all members see together.
        seed: of the pairings.

    Attributes:
        pairing: ``[M, R B]``: which row each member saw in the last training forward.
        output_key: which entry of the model's output holds the logits, see ``logits_of``.
    """

    def __init__(
        self,
        backbone: nn.Module,
        members: int,
        *,
        batch_repetition: int = 1,
        input_repetition: float = 0.0,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.backbone, self.members, self.seed = backbone, members, seed
        self.batch_repetition, self.input_repetition = batch_repetition, input_repetition
        self.pairing: Tensor | None = None
        self.batches = 0
        self.output_key: str | int | None = None
        self.training = backbone.training

    def forward(self, x: Tensor) -> Tensor:
        """Give the logits of all members.

        Args:
            x: ``[B, C, ...]``.

        Returns:
            In training ``[M, R B, K]`` (R: batch repetition), of rows that are paired anew at every
            call; ``targets`` gives their targets. In evaluation every member sees the same row:
            ``[M, B, K]``.

        Raises:
            InvalidInput: for inputs that are no floating numbers, such as token ids; or if the
                model gives another number of rows.
        """
        _check_inputs("inputs of MIMO", x)
        if self.training:
            generator = torch.Generator().manual_seed(self.seed * 1_000_003 + self.batches)
            self.batches += 1
            self.pairing = draw_pairing(
                len(x),
                self.members,
                repetition=self.batch_repetition,
                together=self.input_repetition,
                generator=generator,
            ).to(x.device)
            wide = torch.cat([x[rows] for rows in self.pairing], dim=1)
        else:
            wide = torch.cat([x] * self.members, dim=1)
        logits = logits_of(self.backbone(wide), key=self.output_key)
        if logits.shape[0] != len(wide) or logits.dim() != 2:
            raise InvalidInput(
                "logits of the model",
                expected=f"[{len(wide)}, {self.members} x classes]",
                found=str(list(logits.shape)),
                fix="The model must give one row of logits for every row of its input.",
            )
        return logits.unflatten(1, (self.members, -1)).movedim(1, 0)

    def targets(self, y: Tensor) -> Tensor:
        """Give the targets of the logits of the last forward; call it after the forward.

        Args:
            y: ``[B]``, of the rows of that forward.

        Returns:
            ``[M, R B]`` in training, ``[M, B]`` in evaluation.

        Raises:
            InvalidInput: in training, if no batch of this size went before.
        """
        if not self.training:
            return y.expand(self.members, *y.shape)
        size = 0 if self.pairing is None else self.pairing.shape[1] // self.batch_repetition
        if self.pairing is None or size != len(y):
            raise InvalidInput(
                "targets",
                expected="those of the rows of the last forward in training",
                found=f"{len(y)} after {size} rows",
                fix="Call the ensemble first, then targets.",
            )
        return y[self.pairing.to(y.device)]

    def get_extra_state(self) -> Tensor:
        """Give the number of batches that were paired, so that training can go on."""
        return torch.tensor(self.batches)

    def set_extra_state(self, state: Tensor) -> None:
        """Set the number of batches that were paired."""
        self.batches = int(state)

    def extra_repr(self) -> str:
        """Show the settings in the printed model."""
        return (
            f"members={self.members}, batch_repetition={self.batch_repetition}, "
            f"input_repetition={self.input_repetition}"
        )


def draw_pairing(
    size: int,
    members: int,
    *,
    repetition: int = 1,
    together: float = 0.0,
    generator: torch.Generator,
) -> Tensor:
    """Draw which rows the members see side by side.

    All rows, each ``repetition`` times, are put in one order at random. The first
    ``floor((1 - together) R B)`` places are put in another order for each member; on the others all
    members see the same row.

    Args:
        size: B, rows of the batch.
        members: M.
        repetition: R.
        together: share of places on which members see the same row.
        generator: where the numbers come from.

    Returns:
        ``[M, R B]``, rows from 0 to B - 1, each R times for every member.

    Example:
        >>> import torch
        >>> pairing = draw_pairing(3, 2, generator=torch.Generator().manual_seed(0))
        >>> pairing.sort().values.tolist()
        [[0, 1, 2], [0, 1, 2]]

    Reference:
        google/edward2, ``experimental/mimo/cifar.py``, ``train_step``.
    """
    rows = torch.arange(size).repeat(repetition)
    rows = rows[torch.randperm(len(rows), generator=generator)]
    alone = int(len(rows) * (1 - together) + 1e-9)
    orders = []
    for _ in range(members):
        own = rows[:alone][torch.randperm(alone, generator=generator)]
        orders.append(torch.cat([own, rows[alone:]]))
    return torch.stack(orders)


def mimo(
    model: nn.Module,
    members: int,
    *,
    batch_repetition: int = 4,
    input_repetition: float = 0.0,
    seed: int = 0,
    example: Any = None,
) -> Mimo:
    """Make a MIMO net out of a model; the model stays as it is.

    The first layer takes M inputs, one behind the other in the channels, and the output layer gives
    M times the classes; both are drawn anew. Parameters grow by M - 1 first weights and output
    layers; the work of a row hardly grows.

    Train it by its own protocol: every forward pairs rows at random, ``targets`` gives the targets
    to them; the loss is the SUM over the members of their mean losses in the paper (a mean is the
    same with the learning rate divided by M). A batch of B rows becomes ``R B`` rows: divide the
    loader's batch size by R to keep the work, as the authors do.

    Args:
        model: a model of one tensor ``[B, C, ...]`` whose first layer is linear or a convolution.
        members: M, 1 or more.
        batch_repetition: R, how often each row stands in a training batch; 4 in the authors' code.
        input_repetition: share of rows, 0 to 1, that all members see together; more for small nets.
        seed: of the new layers and of the pairings; the global random state is not touched.
        example: one batch, to find the output layer where the structure does not show it, and to
            try the new net.

    Returns:
        The ensemble; with one member the model itself, trained on shuffled batches.

    Raises:
        NotFound: if the model has no layers with weights, or no output layer is found.
        InvalidInput: if an argument is out of range, the first layer has groups or is the output
            layer, or the model does not take the wider input (with ``example``).

    Example:
        >>> import torch
        >>> from torch import nn
        >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)).eval()
        >>> mimo(model, 4)(torch.zeros(5, 4)).shape
        torch.Size([4, 5, 3])

    Reference:
        M. Havasi et al., ICLR 2021, arXiv 2010.06610, section 2.
    """
    members, seed = check_whole("members", members, 1), check_whole("seed", seed, 0)
    repetition = check_whole("batch_repetition", batch_repetition, 1)
    together = check_number("input_repetition", input_repetition, 0, 1)
    backbone = copied(model)
    if example is not None:
        _check_inputs("example", split_batch(example)[0])
    head = output_layer(backbone, example)
    first, layer = first_layer(backbone)
    if first == head.name or getattr(layer, "groups", 1) != 1:
        raise InvalidInput(
            f"first layer {first!r}",
            expected="a linear layer or convolution without groups, in front of the output layer",
            found=f"{layer}",
            fix="Choose a model that has one.",
        )
    if members > 1:
        old = registered(backbone, head.name)
        assert old is not None
        with seeded(seed):
            replace_module(backbone, layer, _widened(layer, members, inputs=True))
            replace_module(backbone, old, _widened(old, members, inputs=False))
    ensemble = Mimo(
        backbone, members, batch_repetition=repetition, input_repetition=together, seed=seed
    )
    if example is not None:
        _try(ensemble, example, first)
    return ensemble


def _check_inputs(subject: str, inputs: Any) -> None:
    whole = isinstance(inputs, Tensor)
    if not (whole and inputs.is_floating_point()):
        raise InvalidInput(
            subject,
            expected="one tensor of floating numbers, whose channels can be put side by side",
            found=f"a tensor of {inputs.dtype}" if whole else f"a {type(inputs).__name__}",
            fix="MIMO is defined for pictures and features; choose another method for text.",
        )


def _widened(layer: nn.Module, members: int, *, inputs: bool) -> nn.Module:
    """A layer with M times the inputs or outputs, drawn anew as its class draws it."""
    new: Any = copy.deepcopy(layer)
    axis = 1 if inputs else 0
    sizes = list(new.weight.shape)
    sizes[axis] *= members
    new.weight = nn.Parameter(new.weight.new_empty(sizes), new.weight.requires_grad)
    if not inputs and new.bias is not None:
        new.bias = nn.Parameter(new.bias.new_empty(sizes[0]), new.bias.requires_grad)
    name = ("in_" if inputs else "out_") + (
        "features" if isinstance(layer, nn.Linear) else "channels"
    )
    setattr(new, name, sizes[axis])
    device = new.weight.device
    new.to("cpu").reset_parameters()
    return new.to(device)


def _try(ensemble: nn.Module, example: Any, first: str) -> None:
    """Run the example, so that a net that does not take the wider input is refused now."""
    try:
        with evaluating(ensemble), torch.no_grad():
            probe_logits(ensemble, example)
    except RuntimeError as error:
        raise InvalidInput(
            "model",
            expected=f"one whose input goes into layer {first!r} only",
            found=f"{type(error).__name__}: {str(error).splitlines()[0]}",
            fix="Only the first layer may read the input, and the model may not check its shape.",
        ) from error
