"""Small whole networks: every temperature of a seed trained side by side.

Trials of one seed, norm, optimizer and augmentation start at the same weights and see the same
batches. Where one of them leaves a processor idle between its many small operations, they are
trained as one program over stacked parameters (``study.stacked``); where one of them fills the
cache, a stack gains nothing, and they are trained one after the other by the same program.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch

from temperance.errors import InvalidInput, TemperanceWarning
from temperance.head import MIN_TEMPERATURE
from temperance.study.augmentation import check_augment
from temperance.study.networks_checks import check_batch_norm, check_rows, check_trials
from temperance.study.networks_net import Prototype, bytes_of, new_prototype, predict
from temperance.study.networks_train import Run, train
from temperance.study.outcome import Outcome, StudyData
from temperance.study.probe_updates import pace
from temperance.study.trial import Trial

__all__ = ["MEMORY_LIMIT", "train_networks"]

MEMORY_LIMIT = 1 << 30
"""Bytes that weights and working memory of the trials may take at one time; rows not counted."""

_CACHED = 32 << 20  # bytes of a stack, above which it is slower than its members one by one
# Bytes of which one allocation is given back at once, so that glibc keeps what is freed later: its
# free() then returns memory to the system from 64 MB on (malloc/malloc.c: the trim threshold is
# twice the largest mapping that was freed, DEFAULT_MMAP_THRESHOLD_MAX being 32 MB). Else, in a new
# process, the pages of the activations of pictures are new in each step: up to 35 % of the time.
_KEPT = (32 << 20) - (8 << 10)

Progress = Callable[[int, int], None]


def train_networks(
    data: StudyData,
    trials: Sequence[Trial],
    *,
    memory_limit: int = MEMORY_LIMIT,
    progress: Progress | None = None,
) -> Iterator[Outcome]:
    """Train nets side by side where that is faster; each as if it were trained alone.

    Every trial ends at the weights, up to rounding, of ``training.nets.build_net`` under its seed
    with ``temperance.insert`` (its norm and T), trained by ``torch.optim`` over
    ``temperance.parameter_groups`` with ``cross_entropy(logits)`` (times T for the normalized loss)
    on the batches of ``study.batches.batch_rows``. Every net has its own running statistics. Where
    the gradient of a parameter is 0 but for rounding, as that of a bias in front of a BatchNorm,
    AdamW moves it by whole learning rates: what depends on it differs between any two programs.

    Trials of one seed, norm, optimizer and augmentation are trained as one program, as many
    together as stay in a processor's cache: tens of nets of features or of tiny pictures, one net
    of 28 x 28 pictures.
    Models of other libraries, and nets with layers that cannot be stacked, are trained one by one
    in the ordinary way, with a warning.

    A trial whose loss, weights or validation loss become no finite number ends as ``diverged``; its
    message says in which step. The trials beside it go on.

    Args:
        data: rows, ``[n, M]`` or ``[n, channels, height, width]``, float32.
        trials: of one net, task, batch size and number of steps. Temperature, seed, learning rate,
            weight decay, momentum, norm, loss, optimizer, schedule, smoothing, path and
            augmentation may differ.
        memory_limit: bytes that weights and working memory may take at one time.
        progress: called with the optimizer steps done and those to do, over all trials.

    Returns:
        An outcome for each trial, in their order; nets are trained, and logits made, when it is
        asked for.

    Raises:
        InvalidInput: before any work, for trials or rows that do not fit (``networks_checks``), and
            for a memory limit that is too small for one trial.
        NotFound: for a net that no library has.

    Example:
        >>> from temperance.study.data import load
        >>> from temperance.study.networks import train_networks
        >>> from temperance.study.trial import Trial
        >>> trials = [
        ...     Trial("iris", model="mlp", feature_dim=16, norm="batch", temperature=t, steps=50)
        ...     for t in (1, 4, 16)
        ... ]
        >>> outcomes = list(train_networks(load("iris"), trials))
        >>> [outcome.outcome for outcome in outcomes], outcomes[0].logits["test"].shape
        (['done', 'done', 'done'], (30, 3))

    Reference:
        Hasegawa and Sakai, 2025, arXiv 2504.15594 (norm, linear layer, T in training and at
        inference); Chamand et al., 2022, arXiv 2210.09715 (normalized loss).
    """
    trials = tuple(trials)
    if not trials:
        return iter(())
    check_trials(trials)
    check_rows(data)
    check_augment(data, trials)
    prototype = new_prototype(data, trials[0])
    for norm in dict.fromkeys(trial.norm for trial in trials):
        first = next(trial for trial in trials if trial.norm == norm)
        check_batch_norm(data, first, new_prototype(data, first))
    batch = min(len(data.y["train"]), trials[0].batch_size)
    size = max(bytes_of(prototype, trial, rows=batch) for trial in trials)
    if size > memory_limit // 2:
        raise InvalidInput(
            "memory_limit",
            expected=f"{2 * size} bytes or more, for one trial and its weights",
            found=str(memory_limit),
            fix="Raise it, or lower the batch size or the width of the net.",
        )
    _say_why_alone(prototype, trials, fits=2 * size <= memory_limit // 2)
    return _outcomes(data, trials, memory_limit, progress)


def _say_why_alone(prototype: Prototype, trials: Sequence[Trial], *, fits: bool) -> None:
    """Warn where trials could have been stacked but for the net or the memory."""
    reason = prototype.reason or ("" if fits else "the memory limit does not allow two together")
    if reason and len(trials) > 1:
        text = f"{prototype.name}: its {len(trials)} trials are trained one by one, since {reason}"
        warnings.warn(text, TemperanceWarning, stacklevel=3)


def _outcomes(
    data: StudyData, trials: Sequence[Trial], memory_limit: int, progress: Progress | None
) -> Iterator[Outcome]:
    """Train each trial when it is its turn, together with those that can be, and keep those."""
    torch.empty(_KEPT, dtype=torch.uint8)
    total, done = sum(trial.steps for trial in trials), 0

    def on_steps(count: int) -> None:
        nonlocal done
        done += count
        if progress is not None:
            progress(done, total)

    found: dict[int, tuple[Run, int]] = {}
    for place, trial in enumerate(trials):
        if place not in found:
            prototype = new_prototype(data, trial)
            places = _together(data, trials, place, prototype=prototype, memory_limit=memory_limit)
            alike = [trials[p] for p in places]
            run = train(alike, data, prototype=prototype, on_steps=on_steps)
            found |= {p: (run, index) for index, p in enumerate(places)}
        yield _outcome(data, *found.pop(place))


# ------------------------------------------------------------------ who is trained with whom
def _together(
    data: StudyData,
    trials: Sequence[Trial],
    place: int,
    *,
    prototype: Prototype,
    memory_limit: int,
) -> list[int]:
    """Places of the trials that are trained with one: they depend on the trials alone.

    Of as many trials as can wait, with their weights in half of the memory, those that share
    augmented batches, norm and optimizer, in stacks of equal, cached size.
    """
    trial = trials[place]
    window = max(1, memory_limit // 2 // (4 * prototype.parameters))
    start = place // window * window
    alike = [
        p
        for p in range(start, min(start + window, len(trials)))
        if _likeness(trials[p]) == _likeness(trial)
    ]
    batch = min(len(data.y["train"]), trial.batch_size)
    size = bytes_of(prototype, trial, rows=batch)
    most = max(1, min(_CACHED, memory_limit // 2) // size) if prototype.program else 1
    ordered = sorted(alike, key=lambda p: pace(trials[p]))
    parts = np.array_split(ordered, -(-len(ordered) // most))
    return next(part.tolist() for part in parts if place in part)


def _likeness(trial: Trial) -> tuple[object, ...]:
    """What trials of a stack share; hypergradients cost the others a second forward pass."""
    batches = trial.seed, trial.augment
    return *batches, trial.norm, trial.optimizer, trial.path == "hypergradient"


# ------------------------------------------------------------------ what it gave
def _last_temperature(run: Run, index: int) -> float:
    """T at the end of the training, of which float32 may have rounded a bound."""
    trial = run.trials[index]
    if trial.path == "constant":
        return trial.temperature
    return max(run.temperatures[index], MIN_TEMPERATURE)


def _outcome(data: StudyData, run: Run, index: int) -> Outcome:
    """Make the outcome of one trial, with its logits if it did not diverge."""
    begin = time.process_time()
    trial, message, found = run.trials[index], run.ended.get(index, ""), None
    if not message:
        run.prototype.net.load_state_dict(run.states[index], strict=False)
        run.prototype.head.set_temperature(_last_temperature(run, index))
        found = {split: predict(run.prototype, data.x[split]) for split in ("val", "test")}
        if not all(np.isfinite(values).all() for values in found.values()):
            message, found = "a logit was no finite number after the last step", None
    return Outcome(
        trial,
        outcome="diverged" if message else "done",
        message=message,
        logits=found,
        history=run.history_of(index),
        seconds=run.seconds / len(run.trials) + time.process_time() - begin,
        feature_dim=run.prototype.head.in_features,
    )
