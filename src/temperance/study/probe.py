"""Linear probes on frozen features: every temperature of a grid trained side by side.

A probe is norm, linear layer and division by T on features that do not change. So all that does not
depend on the weights is done once for all trials of a seed: gathering a batch, its normalization,
the running statistics of a BatchNorm. What is left are two products of stacked weights with the
batch, written by hand (``study.probe_slopes``), and one pass of torch's optimizer.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from temperance.errors import InvalidInput
from temperance.study.outcome import Outcome, StudyData
from temperance.study.probe_checks import check_data, check_trials
from temperance.study.probe_head import Heads, blocks, normalized, scores
from temperance.study.probe_product import Product, choose_product
from temperance.study.probe_train import Stack, train_stack
from temperance.study.probe_updates import pace
from temperance.study.trial import Trial

__all__ = ["MEMORY_LIMIT", "train_probes"]

MEMORY_LIMIT = 1 << 30
"""Bytes that weights and working memory of the trials may take at one time; rows not counted."""

_CACHED = 16 << 20  # bytes of a stack: what a step touches should stay in the processor's cache

Progress = Callable[[int, int], None]


def train_probes(
    data: StudyData,
    trials: Sequence[Trial],
    *,
    memory_limit: int = MEMORY_LIMIT,
    progress: Progress | None = None,
) -> Iterator[Outcome]:
    """Train linear probes side by side; each as if it were trained alone.

    Every trial ends at the weights, up to rounding, of ``nn.BatchNorm1d``, ``nn.LayerNorm`` or
    nothing, then ``nn.Linear``, made under its seed and trained by ``torch.optim`` with
    ``cross_entropy(z / T)`` (times T for the normalized loss) on the batches of
    ``study.batches.batch_rows``. Weight decay acts on the weight of the linear layer only.

    A trial whose loss or weights become no finite number ends as ``diverged``; its message says in
    which step. The loss is known for each step; weights and validation loss are looked at whenever
    the history has an entry (``study.batches.history_steps``). The trials beside it go on.

    Trials are trained in the order given, as many together as the memory limit allows; put all
    temperatures of a seed next to each other if they are too many for one.

    Args:
        data: rows, ``[n, M]`` float32.
        trials: of model ``probe``, of one task, batch size and number of steps. Temperature, seed,
            learning rate, weight decay, momentum, norm, loss, optimizer, schedule, smoothing and
            augmentation (``noise``) may differ.
        memory_limit: bytes that weights and working memory may take at one time.
        progress: called with the optimizer steps done and those to do, over all trials.

    Returns:
        An outcome for each trial, in their order; logits are made when it is asked for.

    Raises:
        InvalidInput: before any work, for trials or rows that do not fit (``probe_checks``), and
            for a memory limit that is too small for one trial.

    Example:
        >>> from temperance.study.data import load
        >>> from temperance.study.probe import train_probes
        >>> from temperance.study.trial import Trial
        >>> trials = [Trial("iris", temperature=t, steps=100) for t in (1, 4, 16)]
        >>> outcomes = list(train_probes(load("iris"), trials))
        >>> [outcome.outcome for outcome in outcomes]
        ['done', 'done', 'done']
        >>> outcomes[0].logits["test"].shape, outcomes[0].history["step"][-1]
        ((30, 3), 100)

    Reference:
        Hasegawa and Sakai, 2025, arXiv 2504.15594 (norm, linear layer, T in training and at
        inference); Chamand et al., 2022, arXiv 2210.09715 (frozen features, normalized loss).
    """
    trials = tuple(trials)
    if trials:
        check_data(data)
        check_trials(data, trials)
    sizes = [_bytes_of(data, trial) for trial in trials]
    if max(sizes, default=0) > memory_limit // 2:
        raise InvalidInput(
            "memory_limit",
            expected=f"{2 * max(sizes)} bytes or more, for one trial and its logits",
            found=str(memory_limit),
            fix="Raise it, or lower the batch size.",
        )
    return _outcomes(data, trials, memory_limit, progress)


def _outcomes(
    data: StudyData, trials: Sequence[Trial], memory_limit: int, progress: Progress | None
) -> Iterator[Outcome]:
    """Train as many trials together as fit, and give their outcomes in order."""
    multiply, total, done = choose_product(), sum(trial.steps for trial in trials), 0

    def on_steps(count: int) -> None:
        nonlocal done
        done += count
        if progress is not None:
            progress(done, total)

    for window in _windows(data, trials, memory_limit):
        found: dict[int, tuple[Stack, int]] = {}
        for places in _stacks(data, window, memory_limit):
            chosen = [window[place] for place in places]
            stack = train_stack(data, chosen, multiply=multiply, on_steps=on_steps)
            found |= {place: (stack, index) for index, place in enumerate(places)}
        for place in range(len(window)):
            yield _outcome(data, *found.pop(place))


# ------------------------------------------------------------------ who is trained with whom
def _windows(
    data: StudyData, trials: Sequence[Trial], memory_limit: int
) -> Iterator[Sequence[Trial]]:
    """Cut the trials into parts whose weights take half of the memory; the rest is for training."""
    c, m = data.n_classes, data.x["train"].shape[1]
    count = max(1, memory_limit // 2 // (4 * (c * (m + 1) + 2 * m)))
    for start in range(0, len(trials), count):
        yield trials[start : start + count]


def _stacks(data: StudyData, trials: Sequence[Trial], memory_limit: int) -> Iterator[Sequence[int]]:
    """Group trials of the same batches, norm and optimizer, in stacks of equal, cached size."""
    alike: dict[tuple[object, ...], list[int]] = {}
    for place, trial in enumerate(trials):
        kind = trial.seed, trial.augment, trial.norm, trial.optimizer
        alike.setdefault(kind, []).append(place)
    for places in alike.values():
        size = _bytes_of(data, trials[places[0]])
        most = max(1, min(_CACHED, memory_limit // 2) // size)
        ordered = sorted(places, key=lambda place: pace(trials[place]))
        for part in np.array_split(ordered, -(-len(ordered) // most)):
            yield part.tolist()


def _bytes_of(data: StudyData, trial: Trial) -> int:
    """Bytes of one trial in training: arrays of the size of its weight, and of its logits."""
    n, m = data.x["train"].shape
    weights = (3 if trial.optimizer == "sgd" else 4) + (0 if trial.norm == "none" else 1)
    return 4 * data.n_classes * (weights * m + 4 * min(n, trial.batch_size))


# ------------------------------------------------------------------ what it gave
def _outcome(data: StudyData, stack: Stack, index: int) -> Outcome:
    """Make the outcome of one trial of a stack, with its logits if it did not diverge."""
    begin = time.process_time()
    heads, message, found = stack.heads.one(index), stack.ended.get(index, ""), None
    if not message:
        found = {split: _logits(heads, data.x[split], stack.multiply) for split in ("val", "test")}
        if not all(np.isfinite(values).all() for values in found.values()):
            message, found = "a logit was no finite number after the last step", None
    return Outcome(
        stack.trials[index],
        outcome="diverged" if message else "done",
        message=message,
        logits=found,
        history=stack.history_of(index),
        seconds=stack.seconds / len(stack.trials) + time.process_time() - begin,
        feature_dim=heads.weight.shape[2],
    )


@torch.no_grad()
def _logits(heads: Heads, x: NDArray[np.float32], multiply: Product) -> NDArray[np.float32]:
    """Logits of one head divided by T, float32 ``[n, C]``."""
    c = heads.weight.shape[1]
    out = np.empty((len(x), c), dtype=np.float32)
    for place, rows in blocks(x, logits_per_row=c):
        z = scores(heads, normalized(heads, rows), multiply=multiply).div_(heads.temperature)
        out[place] = z[0].t().numpy()
    return out
