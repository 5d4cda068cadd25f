"""Measure, suggest, insert and set the statistics in one call: what all trainers' callbacks share.

The four lines of a training script (``collect`` and ``measure``, ``suggest``, ``insert``,
``set_norm_statistics``) with one pass over the training data, the same T on all processes, and the
checks that have to come before the first step.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Iterable, Iterator, Sized
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from temperance.errors import InvalidInput, TemperanceWarning
from temperance.head import check_batches, insert, remove, set_norm_statistics, tempered_heads
from temperance.head.surgery import shared_names
from temperance.head.tempered import TemperedHead
from temperance.models import evaluating, find_head
from temperance.records import Features, Suggestion, Task
from temperance.rules import find_rule, suggest
from temperance.serial import dumps, loads
from temperance.task import collect, measure

__all__ = [
    "PlaceOptions",
    "Placement",
    "check_rows",
    "first_batch",
    "name_of",
    "place",
    "put_in",
    "settle",
]

_CHUNK = 4096  # rows of features that become a tensor together
Progress = Callable[[int, int | None], None]


@dataclass(frozen=True)
class PlaceOptions:
    """Rarely changed settings of ``place``.

    Attributes:
        norm: in front of the layer, as in ``insert``; None for the rule's.
        head: dotted name of the output layer in the model, where it cannot be found by itself.
        keep_function: start where the pretrained head was, see ``set_norm_statistics``.
        max_batches: measure on no more than this many batches; needed for loaders without length.
        ignore: label whose rows are left out of the measurement, such as -100.
    """

    norm: str | None = None
    head: str | None = None
    keep_function: bool = False
    max_batches: int | None = None
    ignore: int | None = None


@dataclass(frozen=True)
class Placement:
    """What was put into a model; a record for ``temperance.serial``.

    Attributes:
        head: dotted name of the tempered head in the model.
        temperature: T at the start.
        norm: in front of the layer.
        feature_dim: M.
        n_classes: outputs of the head.
        suggestion: where T comes from; None where it was given.
        task: what was measured; None where T was given.
    """

    head: str
    temperature: float
    norm: str
    feature_dim: int
    n_classes: int
    suggestion: Suggestion | None = None
    task: Task | None = None

    def __str__(self) -> str:
        rule = f"rule {self.suggestion.rule}" if self.suggestion else "given"
        return (
            f"T = {self.temperature:.4g} ({rule}, norm {self.norm}) in layer {self.head!r}, "
            f"M = {self.feature_dim}, C = {self.n_classes}"
        )


def place(
    model: nn.Module,
    loader: Iterable[Any],
    temperature: float | str | None = None,
    *,
    options: PlaceOptions | None = None,
    progress: Progress | None = None,
) -> Placement:
    """Put a tempered head into a model, in place, with a T that the training data asks for.

    The loader is read once (its first batch twice more, to find the layer and to check it): its
    features in front of the head give the task, so the T, and the statistics of the BatchNorm. With
    a number for T nothing is measured, and the loader is read for the statistics only. Call it
    before the optimizer is built, and before parallel wrappers.

    In distributed training every process calls it with all of the data (an unsharded loader); what
    process 0 found is used by all.

    Args:
        model: the classifier; the logits are what it returns, see ``logits_of``.
        loader: batches of training data, in any form that ``split_batch`` reads.
        temperature: T; or the name of a rule, or of a file of ``temperance fit``; None for the
            best-informed published rule.
        options: rarely changed settings.
        progress: called after every batch with batches done and their number (None if unknown).

    Returns:
        What was put in. A T from outside of the rule's domain is told by a TemperanceWarning.

    Raises:
        InvalidInput, NotFound: as ``collect``, ``suggest``, ``insert`` and ``set_norm_statistics``
            do; the model then has no new head.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> from temperance.integrations.placement import place
        >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
        >>> loader = [(torch.randn(30, 4), torch.arange(30) % 3)]
        >>> print(place(model, loader, "sqrt-dim"))
        T = 2.828 (rule sqrt-dim, norm batch) in layer '2', M = 8, C = 3
    """
    chosen = options or PlaceOptions()
    example = first_batch(model, loader)
    head = put_in(model, temperature, options=chosen, example=example)
    try:
        return settle(model, loader, temperature, options=chosen, progress=progress)
    except BaseException:
        remove(model, name=name_of(model, head))
        raise


def put_in(
    model: nn.Module,
    temperature: float | str | None,
    *,
    options: PlaceOptions,
    example: Any = None,
) -> TemperedHead:
    """Do the first half of ``place``, before the optimizer: the head with its norm, T still 1.

    Args:
        model: the classifier, changed in place.
        temperature: as in ``place``; a number is set at once.
        options: rarely changed settings.
        example: a batch to find the layer with; without one, as ``find_head``.

    Returns:
        The head; ``settle`` gives it T and statistics, whenever there is data.
    """
    number, norm = 1.0, options.norm
    if temperature is None or isinstance(temperature, str):
        norm = norm or str(find_rule(temperature, Task(feature_dim=1, n_classes=2)).norm)
    else:
        number = temperature
    return insert(model, number, norm=norm, example=example, name=options.head)


def settle(
    model: nn.Module,
    loader: Iterable[Any],
    temperature: float | str | None,
    *,
    options: PlaceOptions,
    progress: Progress | None = None,
) -> Placement:
    """Do the second half of ``place``, before the first step: measure, set T and the statistics.

    Args:
        model: a model with one tempered head that was just put in.
        loader: as in ``place``.
        temperature: as in ``place``.
        options: rarely changed settings.
        progress: as in ``place``.

    Returns:
        The placement.

    Raises:
        InvalidInput, NotFound: as ``place``; also if another layer makes the logits.
    """
    batches = _Batches(loader, options.max_batches)
    ((name, head),) = tempered_heads(model).items()
    _check_makes_logits(model, head, name, example=first_batch(model, batches))
    suggestion, task, features = None, None, None
    if temperature is None or isinstance(temperature, str):
        ignore = () if options.ignore is None else options.ignore
        features = collect(model, batches, name=name, ignore=ignore, progress=progress)
        task = _measured(features, temperature)
        suggestion = suggest(task, temperature)
        head.set_temperature(suggestion.temperature)
    _set_statistics(model, head, batches, features=features, options=options, progress=progress)
    suggestion = _agreed(suggestion, head)
    _warn_outside(suggestion)
    m, c = head.in_features, head.out_features
    return Placement(name, float(head.temperature), head.norm_kind, m, c, suggestion, task)


def check_rows(loader: Any, *, replicas: int = 1, processes: int = 1) -> None:
    """Look before a training whether each of its batches has enough rows for BatchNorm.

    Args:
        loader: the training loader; only a DataLoader with a batch size and a sized data set can be
            looked at, others are taken as they are.
        replicas: devices that share a batch (DataParallel).
        processes: processes that share the data set, each with batches of its own.

    Raises:
        InvalidInput: if a training step would meet fewer than two rows, which raises in it. Fewer
            than four are a TemperanceWarning: BatchNorm learns next to nothing from them.
    """
    size, rows = getattr(loader, "batch_size", None), getattr(loader, "dataset", None)
    if not size or not isinstance(rows, Sized) or not len(rows):
        return
    n = -(-len(rows) // processes)
    drop = bool(getattr(loader, "drop_last", False)) and n >= size
    plan = check_batches(n, int(size), drop_last=drop, replicas=replicas)
    if plan.smallest_rows < 2:
        plan.require_safe()
    elif not plan.safe:
        text = f"{plan.message}. {' Or: '.join(plan.advice)}"
        warnings.warn(text, TemperanceWarning, stacklevel=3)


# ------------------------------------------------------------------ measuring
class _Batches:
    """A loader, or its first batches."""

    def __init__(self, loader: Iterable[Any], limit: int | None) -> None:
        try:
            whole: int | None = len(loader)  # type: ignore[arg-type]
        except TypeError:
            whole = None
        if whole is None and limit is None:
            raise InvalidInput(
                "training loader",
                expected="a loader with a length, or a number of batches to measure on",
                found=f"a {type(loader).__name__} that may never end",
                fix="Set max_batches.",
            )
        self.loader, self.limit = loader, limit
        self.length = min(n for n in (whole, limit) if n is not None)

    def __iter__(self) -> Iterator[Any]:
        return itertools.islice(self.loader, self.limit)

    def __len__(self) -> int:
        return self.length


def first_batch(model: nn.Module, loader: Iterable[Any]) -> Any:
    """Give the first batch of a loader; the global random state stays as it is."""
    with evaluating(model):  # a loader draws from it
        return next(iter(loader), None)


def name_of(model: nn.Module, head: TemperedHead) -> str:
    """Give the dotted name of a head."""
    return next(n for n, h in tempered_heads(model).items() if h is head)


def _check_makes_logits(model: nn.Module, head: TemperedHead, name: str, *, example: Any) -> None:
    found = None if example is None else find_head(model, example)
    if found is not None and found.module is not head:
        raise InvalidInput(
            f"tempered head {name!r}",
            expected="the layer that makes the logits",
            found=f"that {found.name!r} makes them",
            fix=f"Name that one: head={found.name!r}.",
        )


def _measured(features: Features, rule: str | None) -> Task:
    """M, C, the csg, and what else the rule needs."""
    more: tuple[str, ...] = ()
    if rule is not None:
        bare = Task(feature_dim=features.feature_dim, n_classes=len(features.class_names))
        more = tuple(name for name in find_rule(rule, bare).needs if name != "csg")
    return measure(features, statistics=more)


def _agreed(suggestion: Suggestion | None, head: TemperedHead) -> Suggestion | None:
    """What process 0 has, where there are several: they rounded differently, if at all."""
    dist = torch.distributed
    if not (dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1):
        return suggestion
    for tensor in (*head.parameters(), *head.buffers()):
        dist.broadcast(tensor.detach(), src=0)
    if suggestion is None:
        return None
    box = [dumps(suggestion)]
    dist.broadcast_object_list(box, src=0)
    return loads(box[0], Suggestion)


def _set_statistics(
    model: nn.Module,
    head: TemperedHead,
    batches: _Batches,
    *,
    features: Features | None,
    options: PlaceOptions,
    progress: Progress | None,
) -> None:
    """From the features that were collected, or from a pass of its own."""
    if not head.norm_kind.startswith("batch"):
        return
    if features is None:
        told = None if progress is None else lambda done: progress(done, batches.length)
        keep = options.keep_function
        set_norm_statistics(model, batches, keep_function=keep, progress=told)
        return
    shared = shared_names(model, head) if options.keep_function else ()
    if shared:
        raise InvalidInput(
            "keep_function",
            expected="an output layer with weights of its own",
            found=f"weights shared with {shared[0]}",
            fix="Untie them first, or pass keep_function=False.",
        )
    if head.feature_axis != -1:  # a convolution wants its rows with positions
        set_norm_statistics(model, batches, keep_function=options.keep_function)
        return
    rows = (torch.from_numpy(np.array(x)) for x in _chunks(features.x))
    set_norm_statistics(nn.Sequential(head), rows, keep_function=options.keep_function)


def _chunks(x: np.ndarray) -> Iterator[np.ndarray]:
    for at in range(0, len(x), _CHUNK):
        yield x[at : at + _CHUNK]


def _warn_outside(suggestion: Suggestion | None) -> None:
    if suggestion is not None and not suggestion.in_domain:
        reasons = "; ".join(suggestion.reasons)
        text = f"the T of rule {suggestion.rule} is a guess here: {reasons}"
        warnings.warn(text, TemperanceWarning, stacklevel=3)
