"""The training of nets on the same batches, judged on the way."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from temperance.study.augmentation import Augmentation, new_augmentation
from temperance.study.batches import batch_rows, history_steps
from temperance.study.networks_net import Prototype
from temperance.study.networks_paths import validation_batches
from temperance.study.networks_trainers import Alone, Rows, Stack, Trainer
from temperance.study.outcome import StudyData
from temperance.study.probe_slopes import nll_and_hits
from temperance.study.trial import Trial

__all__ = ["Run", "train"]

_TOLD_EVERY = 20  # steps between two calls of progress


@dataclass(eq=False)
class Run:
    """What the training of some trials on the same batches gave.

    Attributes:
        trials: the trials.
        prototype: their net.
        augmentation: changes the training rows of a step.
        states: weights and statistics of every trial, by name in the net.
        history: entries by name, each a list of ``[R]`` values.
        ended: message by index, of the trials that diverged.
        temperatures: T of every trial at the end of its training.
        seconds: CPU seconds of all of them together.
    """

    trials: Sequence[Trial]
    prototype: Prototype
    augmentation: Augmentation
    states: Sequence[Mapping[str, Tensor]] = ()
    history: dict[str, list[list[float]]] = field(default_factory=dict)
    ended: dict[int, str] = field(default_factory=dict)
    temperatures: Sequence[float] = ()
    seconds: float = 0.0

    def history_of(self, index: int) -> dict[str, tuple[float, ...]]:
        """Learning curves of one trial, up to where it diverged."""
        shown = {n: rows for n, rows in self.history.items() if n != "temperature"}
        if self.trials[index].path != "constant":
            shown = self.history
        curves = {name: [row[index] for row in rows] for name, rows in shown.items()}
        good = [all(map(math.isfinite, entry)) for entry in zip(*curves.values(), strict=True)]
        count = good.index(False) if False in good else len(good)
        return {name: tuple(values[:count]) for name, values in curves.items()}

    def end(self, index: int, what: str) -> None:
        """Note that a trial diverged; what it is said to have diverged by first counts."""
        self.ended.setdefault(index, f"{what} of {self.trials[index].steps}")


def train(
    trials: Sequence[Trial],
    data: StudyData,
    *,
    prototype: Prototype,
    on_steps: Callable[[int], None] = lambda _: None,
) -> Run:
    """Train trials of one seed, norm, optimizer and augmentation.

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
    trainer: Trainer
    if prototype.program:
        trainer = Stack(prototype, trials, rows.shape[1], judges=_judges(prototype, data, first))
    else:
        trainer = Alone(prototype, first, judges=_judges(prototype, data, first))
    run = Run(trials, prototype, new_augmentation(data, first))
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
    run.temperatures = trainer.temperature.flatten().tolist()
    run.seconds = time.process_time() - begin
    return run


def _judges(prototype: Prototype, data: StudyData, trial: Trial) -> Rows:
    """Give the validation rows of the steps; they are drawn when the first is asked for."""
    drawn: list[NDArray[np.int64]] = []

    def rows_of(step: int) -> tuple[Tensor, Tensor]:
        if not drawn:
            drawn.append(validation_batches(data, trial))
        rows = drawn[0][step]
        x = prototype.inputs(np.take(data.x["val"], rows, axis=0))
        return x, torch.from_numpy(data.y["val"][rows])

    return rows_of


def _step(
    run: Run, trainer: Trainer, data: StudyData, *, rows: NDArray[np.int64], step: int
) -> Tensor:
    """Take a step, and leave out whose loss is no finite number."""
    changed = run.augmentation(np.take(data.x["train"], rows, axis=0), step)
    x = run.prototype.inputs(changed)
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
        "temperature": trainer.temperature.flatten().tolist(),
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
