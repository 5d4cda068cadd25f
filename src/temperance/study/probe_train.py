"""Training a stack of probes: trials of one seed, norm, optimizer and augmentation."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from temperance.study.augmentation import Augmentation, new_augmentation
from temperance.study.batches import batch_rows, history_steps
from temperance.study.outcome import StudyData
from temperance.study.probe_head import Heads, blocks, new_heads, normalized, scores
from temperance.study.probe_product import Product
from temperance.study.probe_slopes import Losses, losses_of, nll_and_hits, slope_and_nll, slopes
from temperance.study.probe_updates import Updates
from temperance.study.trial import Trial

__all__ = ["Stack", "train_stack"]

_TOLD_EVERY = 100  # steps between two calls of progress


@dataclass(eq=False)
class Stack:
    """Trials of one seed, norm, optimizer and augmentation, trained side by side.

    Attributes:
        trials: the trials.
        heads: their heads.
        multiply: the product of matrices.
        history: entries by name, each a list of ``[R]`` values.
        ended: message by index, of the trials that diverged.
        seconds: CPU seconds of all of them together.
    """

    trials: Sequence[Trial]
    heads: Heads
    multiply: Product
    history: dict[str, list[list[float]]] = field(default_factory=dict)
    ended: dict[int, str] = field(default_factory=dict)
    seconds: float = 0.0

    def history_of(self, index: int) -> dict[str, tuple[float, ...]]:
        """Learning curves of one trial, up to where it diverged."""
        curves = {name: [row[index] for row in rows] for name, rows in self.history.items()}
        good = [all(map(math.isfinite, entry)) for entry in zip(*curves.values(), strict=True)]
        count = good.index(False) if False in good else len(good)
        return {name: tuple(values[:count]) for name, values in curves.items()}


def train_stack(
    data: StudyData,
    trials: Sequence[Trial],
    *,
    multiply: Product,
    on_steps: Callable[[int], None] = lambda _: None,
) -> Stack:
    """Train the trials of one seed, norm, optimizer and augmentation side by side.

    Args:
        data: the rows.
        trials: the trials, those of one ``pace`` next to each other.
        multiply: the product of matrices.
        on_steps: called with the steps since the last call, over all trials.

    Returns:
        The stack after its last step.
    """
    begin = time.process_time()
    first = trials[0]
    heads = new_heads(
        [trial.temperature for trial in trials],
        norm=first.norm,
        shape=(data.n_classes, data.x["train"].shape[1]),
        seed=first.seed,
    )
    stack = Stack(trials, heads, multiply)
    _train(stack, data, on_steps)
    stack.seconds = time.process_time() - begin
    return stack


@torch.no_grad()
def _train(stack: Stack, data: StudyData, on_steps: Callable[[int], None]) -> None:
    """Run all steps; at each entry of the history, judge and stop what diverged."""
    trials, heads = stack.trials, stack.heads
    steps = trials[0].steps
    rows = batch_rows(len(data.y["train"]), trials[0].batch_size, steps, trials[0].seed)
    losses = losses_of(trials, batch_size=rows.shape[1])
    updates = Updates(heads, trials)
    batches = _Batches(data, rows, augmentation=new_augmentation(data, trials[0]))
    nll = torch.empty(steps, len(trials))
    for start, stop in pairwise((0, *history_steps(steps))):
        for step in range(start, stop):
            g, nll[step] = _slope(stack, batches.batch(step), losses=losses)
            updates.apply(g, step)
            del g  # the next slopes take its place in the cache
            if (step + 1 - start) % _TOLD_EVERY == 0:
                on_steps(_TOLD_EVERY * len(trials))
        on_steps((stop - start) % _TOLD_EVERY * len(trials))
        _judge(stack, data, nll[start:stop].numpy(), stop)
        for index in stack.ended:
            losses.scale[index] = 0.0
            updates.stop(index)
        if len(stack.ended) == len(trials):
            on_steps((steps - stop) * len(trials))
            break


def _slope(
    stack: Stack, batch: tuple[Tensor, Tensor], *, losses: Losses
) -> tuple[tuple[Tensor, ...], Tensor]:
    """Slopes in the parameters, and the mean NLL of the batch, ``[R]``."""
    heads, (x, y) = stack.heads, batch
    x = normalized(heads, x, training=True)
    z = scores(heads, x, multiply=stack.multiply)
    g, nll = slope_and_nll(z, y, temperature=heads.temperature, losses=losses)
    return slopes(heads, x, g, multiply=stack.multiply), nll.mean(dim=1)


class _Batches:
    """The rows of each step in one buffer that is filled anew."""

    def __init__(
        self, data: StudyData, rows: NDArray[np.int64], *, augmentation: Augmentation
    ) -> None:
        self.x, self.y, self.rows = data.x["train"], data.y["train"], rows
        self.augmentation = augmentation
        self.buffer = np.empty((rows.shape[1], self.x.shape[1]), dtype=np.float32)

    def batch(self, step: int) -> tuple[Tensor, Tensor]:
        """Give rows and class ids; they last until the next call."""
        place = self.rows[step]
        np.take(self.x, place, axis=0, out=self.buffer, mode="clip")  # "raise" would copy twice
        x = self.augmentation(self.buffer, step)
        return torch.from_numpy(x), torch.from_numpy(self.y[place])


# ------------------------------------------------------------------ how the trials stand
def _judge(stack: Stack, data: StudyData, train_nll: NDArray[np.float32], done: int) -> None:
    """Write an entry of the history, and note who diverged since the last one.

    A loss that is no finite number is found with its step, since the loss of each step is kept;
    weights and validation loss are looked at here only.
    """
    bad_step = np.where(np.isfinite(train_nll), len(train_nll), np.arange(len(train_nll))[:, None])
    for index, step in enumerate(bad_step.min(axis=0)):
        if step < len(train_nll):
            at = done - len(train_nll) + step + 1
            _end(stack, index, f"the training loss was {train_nll[step, index]} in step {at}")
    for tensor in stack.heads.parameters:
        for index in torch.nonzero(~tensor.isfinite().flatten(1).all(dim=1)).flatten().tolist():
            _end(stack, index, f"a weight was no finite number after step {done}")
    nll, accuracy = _validate(stack, data)
    for index in torch.nonzero(~nll.isfinite()).flatten().tolist():
        _end(stack, index, f"the validation loss was {nll[index]} after step {done}")
    entry = {
        "step": [done] * len(stack.trials),
        "train_loss": train_nll.mean(axis=0, dtype=np.float64).tolist(),
        "val_nll": nll.tolist(),
        "val_accuracy": accuracy.tolist(),
    }
    for index in stack.ended:
        entry["val_nll"][index] = math.nan
    for name, values in entry.items():
        stack.history.setdefault(name, []).append(values)


def _end(stack: Stack, index: int, what: str) -> None:
    stack.ended.setdefault(index, f"{what} of {stack.trials[index].steps}")


def _validate(stack: Stack, data: StudyData) -> tuple[Tensor, Tensor]:
    """Mean NLL and accuracy of the validation rows, float64 ``[R]``."""
    heads, y = stack.heads, torch.tensor(data.y["val"])
    nll, hits = torch.zeros(2, len(stack.trials), dtype=torch.float64)
    width = heads.weight.shape[0] * heads.weight.shape[1]
    for place, x in blocks(data.x["val"], logits_per_row=width):
        z = scores(heads, normalized(heads, x), multiply=stack.multiply)
        row_nll, row_hits = nll_and_hits(z, y[place], temperature=heads.temperature)
        nll += row_nll.sum(dim=1, dtype=torch.float64)
        hits += row_hits.sum(dim=1)
    return nll / len(y), hits / len(y)
