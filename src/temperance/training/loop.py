"""The small, honest training loop behind ``temperance train``.

One run = one model, one seed. The order of the data and the augmentation come from
``(seed, epoch)`` alone, so that all arms of one seed see the same batches, and a run that was
stopped goes on to the same weights.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from temperance.errors import InvalidInput
from temperance.head import check_optimizer, parameter_groups
from temperance.models.outputs import logits_of
from temperance.training.preprocess import Preprocess, augment

__all__ = [
    "MIN_ROWS",
    "OPTIMIZERS",
    "Batches",
    "Budget",
    "Training",
    "logits_of_rows",
    "plan_steps",
    "start",
    "train",
]

MIN_ROWS = 8
"""Smallest training batch behind a BatchNorm; a smaller remainder joins the batch before it."""

OPTIMIZERS = {
    "sgd": {"lr": 0.05, "weight_decay": 5e-4},
    "adamw": {"lr": 1e-3, "weight_decay": 1e-2},
}
"""Defaults: the usual ones for small nets trained with a cosine schedule."""

_AUGMENTS = ("none", "shift", "shift-flip")


@dataclass(frozen=True)
class Budget:
    """What one training may spend, and how.

    Attributes:
        epochs: passes over the training rows.
        batch_size: rows per step.
        optimizer: ``sgd`` (momentum 0.9, Nesterov off) or ``adamw``.
        lr: peak learning rate, reached at the start; cosine to 0 over all steps.
        weight_decay: decay of weight matrices; none on norms, biases and T.
        momentum: for ``sgd``.
        augment: ``none``; ``shift``, pictures are shifted at random in training; or
            ``shift-flip``, and half of them mirrored.
    """

    epochs: int = 20
    batch_size: int = 64
    optimizer: str = "sgd"
    lr: float | None = None
    weight_decay: float | None = None
    momentum: float = 0.9
    augment: str = "none"

    def __post_init__(self) -> None:
        if self.optimizer not in OPTIMIZERS:
            raise InvalidInput(
                "optimizer",
                expected=" or ".join(OPTIMIZERS),
                found=repr(self.optimizer),
                fix="Name one of them.",
            )
        if self.augment not in _AUGMENTS:
            raise InvalidInput(
                "augment",
                expected=" or ".join(_AUGMENTS),
                found=repr(self.augment),
                fix="Name one of them.",
            )
        for name, value in OPTIMIZERS[self.optimizer].items():
            if getattr(self, name) is None:
                object.__setattr__(self, name, value)
        for name in ("epochs", "batch_size", "lr"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value > 0):
                raise InvalidInput(
                    name, expected="a positive number", found=repr(value), fix="Give another value."
                )
        if not (math.isfinite(self.weight_decay or 0.0) and (self.weight_decay or 0.0) >= 0):
            raise InvalidInput(
                "weight_decay",
                expected="0 or more",
                found=repr(self.weight_decay),
                fix="Give another value.",
            )

    def to_dict(self) -> dict[str, Any]:
        """Give the budget as a plain mapping."""
        return asdict(self)


@dataclass(frozen=True, eq=False)
class Batches:
    """Batches of one split, kept small in memory and made ready batch by batch.

    Attributes:
        x: pictures ``[n, H, W, C]`` (uint8) or features ``[n, M]``; may be a memory map.
        y: class ids, int64, ``[n]``.
        preprocess: what turns rows of ``x`` into the input of a model.
        device: where the batches go.
    """

    x: NDArray[Any]
    y: NDArray[Any]
    preprocess: Preprocess
    device: str = "cpu"

    def __len__(self) -> int:
        return len(self.y)

    def batch(self, index: Tensor | slice) -> tuple[Tensor, Tensor]:
        """Give inputs (float32) and class ids of some rows."""
        place = index.numpy() if isinstance(index, Tensor) else index
        inputs = self.preprocess.apply(self.x[place])
        return inputs.to(self.device), torch.from_numpy(self.y[place]).to(self.device)


@dataclass
class Training:
    """Where a run stands: all that is needed to go on to the same result.

    Attributes:
        model: the model, changed in place.
        optimizer: its optimizer.
        seed: seed of the data order and the augmentation.
        epoch: epochs that are done.
        history: per-epoch curves by name: ``train_loss`` (nats, with smoothing), ``held_out_nll``
            (nats), ``held_out_accuracy`` (share).
        diverged: why the run ended early, or an empty text.
    """

    model: nn.Module
    optimizer: torch.optim.Optimizer
    seed: int
    epoch: int = 0
    history: dict[str, list[float]] = field(default_factory=dict)
    diverged: str = ""


def plan_steps(n: int, batch_size: int) -> list[int]:
    """Give the rows of each step of an epoch.

    A remainder below ``MIN_ROWS`` joins the step before it: a BatchNorm cannot train on one row,
    and on two every feature becomes +1 or -1.

    Args:
        n: training rows.
        batch_size: rows per step.

    Returns:
        Batches per step; they add up to ``n``.

    Example:
        >>> from temperance.training.loop import plan_steps
        >>> plan_steps(129, 64), plan_steps(140, 64)
        ([64, 65], [64, 64, 12])
    """
    sizes = [batch_size] * (n // batch_size)
    rest = n % batch_size
    if rest >= MIN_ROWS or not sizes:
        return [*sizes, rest] if rest else sizes
    return [*sizes[:-1], sizes[-1] + rest]


def start(model: nn.Module, budget: Budget, *, seed: int) -> Training:
    """Put a model and a new optimizer over all its trainable parameters together."""
    lr, decay = budget.lr, budget.weight_decay
    assert lr is not None
    assert decay is not None
    groups = parameter_groups(model, decay)
    optimizer: torch.optim.Optimizer
    if budget.optimizer == "sgd":
        optimizer = torch.optim.SGD(groups, lr=lr, momentum=budget.momentum)
    else:
        optimizer = torch.optim.AdamW(groups, lr=lr)
    check_optimizer(optimizer, model)
    return Training(model, optimizer, seed)


def train(
    training: Training,
    rows: Batches,
    budget: Budget,
    *,
    held_out: Batches,
    smoothing: float = 0.0,
    on_epoch: Callable[[Training], None] = lambda _: None,
) -> None:
    """Train in place until the budget is spent or the loss is no number any more.

    Args:
        training: where the run stands; goes on from its epoch.
        rows: training rows.
        budget: epochs, batch size, optimizer.
        held_out: rows for the learning curves; nothing is chosen by them here.
        smoothing: label smoothing of the loss.
        on_epoch: called after every epoch, for progress and for saving.
    """
    while training.epoch < budget.epochs and not training.diverged:
        loss = _epoch(training, rows, budget, smoothing)
        nll, accuracy = _judge(training.model, held_out)
        if not math.isfinite(loss) or not math.isfinite(nll):
            training.diverged = f"the loss was {loss} in epoch {training.epoch + 1}"
        row = {"train_loss": loss, "held_out_nll": nll, "held_out_accuracy": accuracy}
        for name, value in row.items():
            training.history.setdefault(name, []).append(value)
        training.epoch += 1
        on_epoch(training)


def logits_of_rows(model: nn.Module, rows: Batches, *, batch_size: int = 512) -> Tensor:
    """Logits of all rows in eval mode, float32 on the CPU, ``[n, C]``; the mode is restored."""
    was_training = model.training
    model.eval()
    try:
        with torch.inference_mode():
            parts = [
                logits_of(model(rows.batch(slice(at, at + batch_size))[0])).float().cpu()
                for at in range(0, len(rows), batch_size)
            ]
    finally:
        model.train(was_training)
    return torch.cat(parts)


# ------------------------------------------------------------------ one epoch
def mixed_seed(*parts: object) -> int:
    """Make one 63-bit seed of several parts, so that neighbours do not share streams."""
    digest = hashlib.sha256(json.dumps([str(p) for p in parts]).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def _epoch(training: Training, rows: Batches, budget: Budget, smoothing: float) -> float:
    """Run one epoch; returns the mean training loss over its rows."""
    model, optimizer = training.model, training.optimizer
    generator = torch.Generator().manual_seed(mixed_seed("order", training.seed, training.epoch))
    steps = list(_batches(len(rows), budget.batch_size, generator))
    model.train()
    total = 0.0
    devices = [rows.device] if rows.device.startswith("cuda") else []
    with torch.random.fork_rng(devices=devices):  # dropout draws from torch's global state
        torch.manual_seed(mixed_seed("dropout", training.seed, training.epoch))
        for step, index in enumerate(steps):
            _set_lr(optimizer, budget, training.epoch * len(steps) + step, len(steps))
            x, y = rows.batch(index)
            if budget.augment != "none":
                x = augment(x, generator, flip=budget.augment == "shift-flip")
            loss = nn.functional.cross_entropy(logits_of(model(x)), y, label_smoothing=smoothing)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            total += float(loss.detach()) * len(index)
    return total / len(rows)


def _batches(n: int, batch_size: int, generator: torch.Generator) -> Iterator[Tensor]:
    return iter(torch.randperm(n, generator=generator).split(plan_steps(n, batch_size)))


def _set_lr(optimizer: torch.optim.Optimizer, budget: Budget, step: int, per_epoch: int) -> None:
    """Cosine from the peak at step 0 to 0 after the last step."""
    assert budget.lr is not None
    share = step / (budget.epochs * per_epoch)
    for group in optimizer.param_groups:
        group["lr"] = budget.lr * 0.5 * (1 + math.cos(math.pi * share))


def _judge(model: nn.Module, rows: Batches) -> tuple[float, float]:
    """Mean NLL in nats and accuracy on held-out rows."""
    logits = logits_of_rows(model, rows).double()
    y = torch.from_numpy(rows.y)
    nll = float(nn.functional.cross_entropy(logits, y))
    return nll, float((logits.argmax(dim=1) == y).double().mean())
