"""The training of nets on the same batches: side by side, or one of them in the ordinary way."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from temperance.head import parameter_groups
from temperance.models import logits_of
from temperance.study.batches import batch_rows, history_steps, learning_rate
from temperance.study.networks_net import Prototype
from temperance.study.networks_updates import NetUpdates, new_optimizer
from temperance.study.outcome import StudyData
from temperance.study.probe_slopes import losses_of, nll_and_hits, slope_and_nll
from temperance.study.stacked import stack_net
from temperance.study.trial import Trial
from temperance.training.loop import mixed_seed

__all__ = ["Alone", "Run", "Stack", "Trainer", "train"]

_TOLD_EVERY = 20  # steps between two calls of progress


class Trainer(Protocol):
    """R nets in training."""

    def step(self, x: Tensor, y: Tensor, step: int) -> Tensor:
        """Take a step; gives the plain cross entropy of every net before it, ``[R]``."""

    def logits(self, x: Tensor) -> Tensor:
        """Logits divided by T in eval mode, ``[R, C, B]``."""

    def tensors(self, index: int) -> Mapping[str, Tensor]:
        """Weights and statistics of one net, by name."""

    def stop(self, index: int) -> None:
        """Leave a net out from here on."""


@dataclass(eq=False)
class Run:
    """What the training of some trials on the same batches gave.

    Attributes:
        trials: the trials.
        prototype: their net.
        states: weights and statistics of every trial, by name in the net.
        history: entries by name, each a list of ``[R]`` values.
        ended: message by index, of the trials that diverged.
        seconds: CPU seconds of all of them together.
    """

    trials: Sequence[Trial]
    prototype: Prototype
    states: Sequence[Mapping[str, Tensor]] = ()
    history: dict[str, list[list[float]]] = field(default_factory=dict)
    ended: dict[int, str] = field(default_factory=dict)
    seconds: float = 0.0

    def history_of(self, index: int) -> dict[str, tuple[float, ...]]:
        """Learning curves of one trial, up to where it diverged."""
        curves = {name: [row[index] for row in rows] for name, rows in self.history.items()}
        good = [all(map(math.isfinite, entry)) for entry in zip(*curves.values(), strict=True)]
        count = good.index(False) if False in good else len(good)
        return {name: tuple(values[:count]) for name, values in curves.items()}

    def end(self, index: int, what: str) -> None:
        """Note that a trial diverged; what it is said to have diverged by first counts."""
        self.ended.setdefault(index, f"{what} of {self.trials[index].steps}")


# ------------------------------------------------------------------ side by side
class Stack:
    """Nets that start alike and are trained as one program.

    Args:
        prototype: the net that they start from, with a program.
        trials: their trials, those of one pace next to each other.
        rows: rows of a batch.
    """

    def __init__(self, prototype: Prototype, trials: Sequence[Trial], rows: int) -> None:
        self.stack = stack_net(prototype.net, len(trials), steps=prototype.program)
        self.parameters = list(self.stack.parameters.values())
        self.losses = losses_of(trials, batch_size=rows)
        self.updates = NetUpdates(self.stack, prototype.net, trials)
        self.temperature = torch.tensor([trial.temperature for trial in trials]).view(-1, 1, 1)

    def step(self, x: Tensor, y: Tensor, step: int) -> Tensor:
        """See ``Trainer``."""
        z = self.stack(x, training=True)
        scores = z.detach().permute(1, 2, 0).clone(memory_format=torch.contiguous_format)
        g, nll = slope_and_nll(scores, y, temperature=self.temperature, losses=self.losses)
        g = g.permute(2, 0, 1).contiguous()
        self.updates.apply(torch.autograd.grad(z, self.parameters, g), step)
        return nll.mean(dim=1)

    def logits(self, x: Tensor) -> Tensor:
        """See ``Trainer``."""
        return self.stack(x, training=False).permute(1, 2, 0) / self.temperature

    def tensors(self, index: int) -> Mapping[str, Tensor]:
        """See ``Trainer``."""
        return self.stack.member(index)

    @torch.no_grad()
    def stop(self, index: int) -> None:
        """Set the net to 0, where it stays: numbers that are none would cost time and trust."""
        for tensor in self.stack.member(index).values():
            tensor.zero_()
        self.losses.scale[index] = 0.0
        self.updates.stop(index)


# ------------------------------------------------------------------ in the ordinary way
class Alone:
    """A net that is trained by itself, whatever its layers are.

    Args:
        prototype: the net, changed in place.
        trial: its trial.
    """

    def __init__(self, prototype: Prototype, trial: Trial) -> None:
        self.net, self.trial = prototype.net, trial
        groups = parameter_groups(self.net, trial.weight_decay)
        self.optimizer = new_optimizer(groups, trial)

    def step(self, x: Tensor, y: Tensor, step: int) -> Tensor:
        """See ``Trainer``."""
        trial = self.trial
        with torch.random.fork_rng(devices=[]):  # dropout draws from torch's global state
            torch.default_generator.manual_seed(mixed_seed("dropout", trial.seed, step))
            z = logits_of(self.net(x))
        loss = nn.functional.cross_entropy(z, y, label_smoothing=trial.smoothing)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        rate = learning_rate(step, trial.steps, peak=trial.lr, schedule=trial.schedule)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.step()
        plain = loss if trial.smoothing == 0 else nn.functional.cross_entropy(z, y)
        return plain.detach().view(1)

    def logits(self, x: Tensor) -> Tensor:
        """See ``Trainer``."""
        self.net.eval()
        z = logits_of(self.net(x)).t().unsqueeze(0)
        self.net.train()
        return z

    def tensors(self, index: int) -> Mapping[str, Tensor]:  # noqa: ARG002
        """See ``Trainer``."""
        return self.net.state_dict()

    def stop(self, index: int) -> None:
        """See ``Trainer``; the only net has ended, so that nothing goes on."""


# ------------------------------------------------------------------ the loop
def train(
    trials: Sequence[Trial],
    data: StudyData,
    *,
    prototype: Prototype,
    on_steps: Callable[[int], None] = lambda _: None,
) -> Run:
    """Train trials of one seed, norm and optimizer.

    Args:
        trials: the trials, those of one pace next to each other; a single one if the net has no
            program.
        data: the rows.
        prototype: their net, new; changed in place if it has no program.
        on_steps: called with the steps since the last call, over all trials.

    Returns:
        What it gave.
    """
    begin, first, count = time.process_time(), trials[0], len(trials)
    rows = batch_rows(len(data.y["train"]), first.batch_size, first.steps, first.seed)
    trainer: Trainer = Alone(prototype, first)
    if prototype.program:
        trainer = Stack(prototype, trials, rows.shape[1])
    run = Run(trials, prototype)
    for start, stop in pairwise((0, *history_steps(first.steps))):
        loss, told = torch.zeros(count, dtype=torch.float64), start
        for step in range(start, stop):
            loss += _step(run, trainer, data, rows=rows[step], step=step)
            if step + 1 - told == _TOLD_EVERY or step + 1 == stop:
                on_steps((step + 1 - told) * count)
                told = step + 1
            if len(run.ended) == count:
                break
        else:
            _judge(run, trainer, data, done=stop, train_loss=loss / (stop - start))
        if len(run.ended) == count:
            on_steps((first.steps - told) * count)
            break
    run.states = [trainer.tensors(index) for index in range(count)]
    run.seconds = time.process_time() - begin
    return run


def _step(
    run: Run, trainer: Trainer, data: StudyData, *, rows: NDArray[np.int64], step: int
) -> Tensor:
    """Take a step, and leave out whose loss is no finite number."""
    x = run.prototype.inputs(np.take(data.x["train"], rows, axis=0))
    nll = trainer.step(x, torch.from_numpy(data.y["train"][rows]), step)
    if not bool(nll.isfinite().all()):
        for index in torch.nonzero(~nll.isfinite()).flatten().tolist():
            run.end(index, f"the training loss was {nll[index]} in step {step + 1}")
            trainer.stop(index)
    return nll


@torch.no_grad()
def _judge(run: Run, trainer: Trainer, data: StudyData, *, done: int, train_loss: Tensor) -> None:
    """Write an entry of the history, and leave out whose weights or validation loss are none."""
    nll, accuracy = _validate(run, trainer, data)
    for index in range(len(run.trials)):
        if not all(bool(t.isfinite().all()) for t in trainer.tensors(index).values()):
            run.end(index, f"a weight was no finite number after step {done}")
        elif not math.isfinite(nll[index]):
            run.end(index, f"the validation loss was {nll[index]} after step {done}")
        if index in run.ended:
            nll[index] = math.nan
            trainer.stop(index)
    entry = {
        "step": [float(done)] * len(nll),
        "train_loss": train_loss.tolist(),
        "val_nll": nll.tolist(),
        "val_accuracy": accuracy.tolist(),
    }
    for name, values in entry.items():
        run.history.setdefault(name, []).append(values)


def _validate(run: Run, trainer: Trainer, data: StudyData) -> tuple[Tensor, Tensor]:
    """Mean NLL and accuracy of the validation rows, float64 ``[R]``."""
    x, y = data.x["val"], torch.tensor(data.y["val"])
    nll, hits = torch.zeros(2, len(run.trials), dtype=torch.float64)
    size = run.prototype.rows_together(len(run.trials))
    for start in range(0, len(y), size):
        place = slice(start, start + size)
        z = trainer.logits(run.prototype.inputs(x[place]))
        hits += (z.argmax(dim=1) == y[place]).sum(dim=1)
        row_nll, _ = nll_and_hits(z.clone(), y[place], temperature=torch.ones(1, 1, 1))
        nll += row_nll.sum(dim=1, dtype=torch.float64)
    return nll / len(y), hits / len(y)
