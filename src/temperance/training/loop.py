"""The small, honest training loop behind ``temperance train``.

One run = one model, one seed. The order of the data and the augmentation come from
``(seed, epoch)`` alone, so that all arms of one seed see the same batches, and a run that was
stopped goes on to the same weights.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from temperance.ensemble import disagreement
from temperance.errors import InvalidInput
from temperance.head import check_optimizer, parameter_groups, temperatures, tempered_heads
from temperance.models.outputs import logits_of
from temperance.training.preprocess import Preprocess, augment

__all__ = [
    "MIN_ROWS",
    "OPTIMIZERS",
    "Batches",
    "Budget",
    "Objective",
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


def _cross_entropy(logits: Tensor, y: Tensor, smoothing: float) -> Tensor:
    return nn.functional.cross_entropy(logits, y, label_smoothing=smoothing)


@dataclass(frozen=True)
class Objective:
    """What a training minimizes; by default the cross entropy of one model.

    Attributes:
        loss: gives a scalar in nats from logits, class ids and label smoothing.
        penalty: gives what is added to the loss, from the model; None for nothing.
        multiple: the rows of every step are a multiple of it, as where members share out a batch;
            what is left of an epoch is left out.
        on_step: called before every step with the model, the number of the step from 0, and how
            many there are in all; sets a T that follows a schedule.
        moves: whether T moves, so that the history has the T after every epoch.
    """

    loss: Callable[[Tensor, Tensor, float], Tensor] = _cross_entropy
    penalty: Callable[[nn.Module], Tensor] | None = None
    multiple: int = 1
    on_step: Callable[[nn.Module, int, int], None] | None = None
    moves: bool = False


@dataclass
class Training:
    """Where a run stands: all that is needed to go on to the same result.

    Attributes:
        model: the model, changed in place.
        optimizer: its optimizer.
        seed: seed of the data order and the augmentation.
        epoch: epochs that are done.
        history: per-epoch curves by name: ``train_loss`` (nats, with smoothing), ``held_out_nll``
            (nats), ``held_out_accuracy`` (share); with a penalty ``penalty``, of an ensemble
            ``held_out_disagreement`` (share of the rows, mean over pairs of members); where T
            moves ``temperature``, that of the last step.
        diverged: why the run ended early, or an empty text.
        objective: what is minimized.
    """

    model: nn.Module
    optimizer: torch.optim.Optimizer
    seed: int
    epoch: int = 0
    history: dict[str, list[float]] = field(default_factory=dict)
    diverged: str = ""
    objective: Objective = field(default_factory=Objective)


def plan_steps(n: int, batch_size: int, *, multiple: int = 1) -> list[int]:
    """Give the rows of each step of an epoch.

    A remainder below ``MIN_ROWS`` joins the step before it: a BatchNorm cannot train on one row,
    and on two every feature becomes +1 or -1.

    Args:
        n: training rows.
        batch_size: rows per step.
        multiple: rows of every step are a multiple of it, and ``MIN_ROWS`` of them hold it.

    Returns:
        Batches per step; they add up to ``n``, less a remainder by ``multiple``.

    Example:
        >>> from temperance.training.loop import plan_steps
        >>> plan_steps(129, 64), plan_steps(140, 64)
        ([64, 65], [64, 64, 12])
        >>> plan_steps(130, 66, multiple=4)
        [64, 64]
    """
    size, n = max(multiple, batch_size - batch_size % multiple), n - n % multiple
    sizes = [size] * (n // size)
    rest = n % size
    if rest >= MIN_ROWS * multiple or not sizes:
        return [*sizes, rest] if rest else sizes
    return [*sizes[:-1], sizes[-1] + rest]


def start(
    model: nn.Module,
    budget: Budget,
    *,
    seed: int,
    groups: list[dict[str, Any]] | None = None,
    objective: Objective | None = None,
) -> Training:
    """Put a model and a new optimizer over all its trainable parameters together.

    Args:
        model: the model, changed in place by the training.
        budget: optimizer, learning rate, weight decay.
        seed: of the data order and the augmentation.
        groups: parameter groups, each with the ``lr`` that it starts at or without one; those of
            ``temperance.parameter_groups`` if absent.
        objective: what is minimized; the cross entropy of one model if absent.
    """
    lr, decay = budget.lr, budget.weight_decay
    assert lr is not None
    assert decay is not None
    groups = parameter_groups(model, decay) if groups is None else groups
    optimizer: torch.optim.Optimizer
    if budget.optimizer == "sgd":
        optimizer = torch.optim.SGD(groups, lr=lr, momentum=budget.momentum)
    else:
        optimizer = torch.optim.AdamW(groups, lr=lr)
    for group in optimizer.param_groups:
        group["initial_lr"] = group["lr"]  # as torch's schedulers call it
    if tempered_heads(model):  # rivals of the ensembles have plain layers
        check_optimizer(optimizer, model)
    return Training(model, optimizer, seed, objective=objective or Objective())


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
        row = _epoch(training, rows, budget, smoothing)
        if training.objective.moves:
            row["temperature"] = next(iter(temperatures(training.model).values()))
        row |= _judge(training.model, held_out)
        if not math.isfinite(row["train_loss"]) or not math.isfinite(row["held_out_nll"]):
            training.diverged = f"the loss was {row['train_loss']} in epoch {training.epoch + 1}"
        for name, value in row.items():
            training.history.setdefault(name, []).append(value)
        training.epoch += 1
        on_epoch(training)


def logits_of_rows(model: nn.Module, rows: Batches, *, batch_size: int = 512) -> Tensor:
    """Logits of all rows in eval mode, float32 on the CPU; the mode is restored.

    Args:
        model: a model that gives ``[B, C]``, or an ensemble that gives ``[M, B, C]``.
        rows: the rows.
        batch_size: rows at a time.

    Returns:
        ``[n, C]``, or ``[M, n, C]`` of an ensemble.
    """
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
    return torch.cat(parts, dim=-2)


# ------------------------------------------------------------------ one epoch
def mixed_seed(*parts: object) -> int:
    """Make one 63-bit seed of several parts, so that neighbours do not share streams."""
    digest = hashlib.sha256(json.dumps([str(p) for p in parts]).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def _epoch(training: Training, rows: Batches, budget: Budget, smoothing: float) -> dict[str, float]:
    """Run one epoch; returns the mean training loss over its rows, and the mean penalty."""
    model, optimizer, objective = training.model, training.optimizer, training.objective
    generator = torch.Generator().manual_seed(mixed_seed("order", training.seed, training.epoch))
    sizes = plan_steps(len(rows), budget.batch_size, multiple=objective.multiple)
    order = torch.randperm(len(rows), generator=generator)
    steps = order[: sum(sizes)].split(sizes)
    model.train()
    totals = {"train_loss": 0.0} | ({"penalty": 0.0} if objective.penalty else {})
    devices = [rows.device] if rows.device.startswith("cuda") else []
    with torch.random.fork_rng(devices=devices):  # dropout draws from torch's global state
        torch.manual_seed(mixed_seed("dropout", training.seed, training.epoch))
        for step, index in enumerate(steps):
            number = training.epoch * len(steps) + step
            _set_lr(optimizer, budget, number, len(steps))
            if objective.on_step is not None:
                objective.on_step(model, number, budget.epochs * len(steps))
            x, y = rows.batch(index)
            if budget.augment != "none":
                x = augment(x, generator, flip=budget.augment == "shift-flip")
            loss = objective.loss(logits_of(model(x)), y, smoothing)
            totals["train_loss"] += float(loss.detach()) * len(index)
            if objective.penalty is not None:
                penalty = objective.penalty(model)
                totals["penalty"] += float(penalty.detach()) * len(index)
                loss = loss + penalty
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
    return {name: total / sum(sizes) for name, total in totals.items()}


def _set_lr(optimizer: torch.optim.Optimizer, budget: Budget, step: int, per_epoch: int) -> None:
    """Cosine from the peak at step 0 to 0 after the last step."""
    assert budget.lr is not None
    share = step / (budget.epochs * per_epoch)
    for group in optimizer.param_groups:
        group["lr"] = group.get("initial_lr", budget.lr) * 0.5 * (1 + math.cos(math.pi * share))


def _judge(model: nn.Module, rows: Batches) -> dict[str, float]:
    """Mean NLL in nats and accuracy on held-out rows; an ensemble by its mean probabilities."""
    logits = logits_of_rows(model, rows).double()
    y, more = torch.from_numpy(rows.y), {}
    if logits.dim() == 3:
        if len(logits) > 1 and not bool(torch.isnan(logits).any()):
            more["held_out_disagreement"] = disagreement(logits)
        logits = logits.log_softmax(dim=-1).logsumexp(dim=0) - math.log(len(logits))
    return {
        "held_out_nll": float(nn.functional.cross_entropy(logits, y)),
        "held_out_accuracy": float((logits.argmax(dim=1) == y).double().mean()),
        **more,
    }
