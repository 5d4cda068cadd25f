"""Measure, suggest, insert and set the statistics in one call: what all trainers' callbacks share.

The four lines of a training script (``collect`` and ``measure``, ``suggest``, ``insert``,
``set_norm_statistics``) with one pass over the training data, the same T on all processes, and the
checks that have to come before the first step.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from temperance.errors import InvalidInput, NotFound, TemperanceWarning
from temperance.head import insert, remove, set_norm_statistics, tempered_heads
from temperance.head.statistics import checked_max_batches
from temperance.head.surgery import shared_names
from temperance.head.tempered import TemperedHead
from temperance.integrations.known_training import Told
from temperance.integrations.loaders import Batches, first_batch, same_order
from temperance.models import find_head
from temperance.records import Features, Suggestion, Task
from temperance.rules import find_rule, suggest
from temperance.rules.suggestion import rule_name
from temperance.serial import dumps, loads
from temperance.task import collect, measure

__all__ = [
    "PlaceOptions",
    "Placement",
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

    Raises:
        InvalidInput: if ``max_batches`` is no whole number of at least 1.
    """

    norm: str | None = None
    head: str | None = None
    keep_function: bool = False
    max_batches: int | None = None
    ignore: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "max_batches", checked_max_batches(self.max_batches))


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
        task: what was measured, and the facts of the training; None where T was given.
        training_note: why a trainer's callback could not know these facts; empty where it did, and
            where nobody asked.
    """

    head: str
    temperature: float
    norm: str
    feature_dim: int
    n_classes: int
    suggestion: Suggestion | None = None
    task: Task | None = None
    training_note: str = ""

    def __str__(self) -> str:
        rule = f"rule {self.suggestion.rule}" if self.suggestion else "given"
        note = f"; the training is not known ({self.training_note})" if self.training_note else ""
        return (
            f"T = {self.temperature:.4g} ({rule}, norm {self.norm}) in layer {self.head!r}, "
            f"M = {self.feature_dim}, C = {self.n_classes}{note}"
        )


def place(
    model: nn.Module,
    loader: Iterable[Any],
    temperature: float | str | None = None,
    *,
    options: PlaceOptions | None = None,
    progress: Progress | None = None,
    training: Mapping[str, Any] | None = None,
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
        loader: batches of training data, in any form that ``split_batch`` reads; something that
            can be read again from the start, such as a DataLoader or a list.
        temperature: T; or the name of a rule, or of a file of ``temperance fit``; None for the
            best-informed rule: that of the budget where the facts of the training are given.
        options: rarely changed settings.
        progress: called after every batch with batches done and their number (None if unknown).
        training: facts of the training, as ``training_facts`` gives them or written down: the
            optimizer that will train is built after the head is in, but its class and numbers are
            known before.

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
    example = first_batch(model, Batches(loader, chosen.max_batches))
    head = put_in(model, temperature, options=chosen, example=example)
    try:
        return settle(
            model, loader, temperature, options=chosen, progress=progress, training=training
        )
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
    training: Told | None = None,
) -> Placement:
    """Do the second half of ``place``, before the first step: measure, set T and the statistics.

    Args:
        model: a model with one tempered head that was just put in.
        loader: as in ``place``.
        temperature: as in ``place``.
        options: rarely changed settings.
        progress: as in ``place``.
        training: as in ``place``; or, in words, why the facts are not known. Where the
            best-informed rule was asked for, these are told by a TemperanceWarning.

    Returns:
        The placement.

    Raises:
        InvalidInput, NotFound: as ``place``; also if another layer makes the logits, and for a rule
            that needs the facts of a training that are not known.
    """
    batches = Batches(loader, options.max_batches)
    name, head = _only_head(model)
    _check_makes_logits(model, head, name, example=first_batch(model, batches))
    suggestion, task, features, note = None, None, None, ""
    with same_order(batches):
        if temperature is None or isinstance(temperature, str):
            note = training if isinstance(training, str) else ""
            bare = _bare_task(head, options, training=training)
            _check_training(temperature, bare, note)
            ignore = () if options.ignore is None else options.ignore
            features = collect(model, batches, name=name, ignore=ignore, progress=progress)
            task = _measured(features, temperature, bare.training)
            suggestion = suggest(task, temperature)
            head.set_temperature(suggestion.temperature)
        _set_statistics(model, head, batches, features=features, options=options, progress=progress)
    suggestion = _agreed(suggestion, head)
    _warn_outside(suggestion)
    if note and temperature is None:
        _warn_unknown(suggestion, note)
    m, c = head.in_features, head.out_features
    return Placement(name, float(head.temperature), head.norm_kind, m, c, suggestion, task, note)


# ------------------------------------------------------------------ measuring
def name_of(model: nn.Module, head: TemperedHead) -> str:
    """Give the dotted name of a head."""
    return next(n for n, h in tempered_heads(model).items() if h is head)


def _only_head(model: nn.Module) -> tuple[str, TemperedHead]:
    heads = tempered_heads(model)
    if len(heads) == 1:
        return next(iter(heads.items()))
    raise NotFound(
        "tempered head",
        found=f"{len(heads)} of them in the model",
        candidates=tuple(heads),
        fix="Several heads are for insert_all, with a T of your own.",
    )


def _check_makes_logits(model: nn.Module, head: TemperedHead, name: str, *, example: Any) -> None:
    found = None if example is None else find_head(model, example)
    if found is not None and found.module is not head:
        raise InvalidInput(
            f"tempered head {name!r}",
            expected="the layer that makes the logits",
            found=f"that {found.name!r} makes them",
            fix=f"Name that one: head={found.name!r}.",
        )


def _bare_task(head: TemperedHead, options: PlaceOptions, *, training: Told | None) -> Task:
    """The task before it is measured: sizes and training, with the norm where that matters."""
    facts = {} if training is None or isinstance(training, str) else dict(training)
    if facts or options.norm is not None:
        facts["norm"] = head.norm_kind
    return Task(head.in_features, max(2, head.out_features), training=facts)


def _check_training(rule: str | None, bare: Task, note: str) -> None:
    """Refuse a rule that needs a training which is not known, before anything is measured."""
    found = find_rule(rule, bare)
    why_not = getattr(found, "why_not", None)
    lacking = why_not(bare) if callable(why_not) else ""
    if lacking:
        raise InvalidInput(
            f"rule {rule_name(found)}",
            expected="a training that it can know",
            found=note or lacking,
            fix="Give a T, or a rule that does without the training, such as hasegawa-sakai"
            + ("." if note else "; or pass training=training_facts(...)."),
        )


def _measured(features: Features, rule: str | None, training: Mapping[str, Any]) -> Task:
    """M, C, the csg, what else the rule needs, and the facts of the training."""
    more: tuple[str, ...] = ()
    if rule is not None:
        bare = Task(feature_dim=features.feature_dim, n_classes=len(features.class_names))
        more = tuple(name for name in find_rule(rule, bare).needs if name != "csg")
    return measure(features, statistics=more, training=training)


def _agreed(suggestion: Suggestion | None, head: TemperedHead) -> Suggestion | None:
    """What process 0 has, where there are several: they rounded differently, if at all."""
    dist = torch.distributed
    if not (dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1):
        return suggestion
    tensors = [t.detach() for t in (*head.parameters(), *head.buffers())]
    told = None if suggestion is None else dumps(suggestion)
    # As objects: NCCL sends no tensors that are on the CPU, where the model may still be.
    box: list[Any] = [told, [t.cpu() for t in tensors]]
    dist.broadcast_object_list(box, src=0)
    for tensor, first in zip(tensors, box[1], strict=True):
        tensor.copy_(first)
    return None if box[0] is None else loads(box[0], Suggestion)


def _set_statistics(
    model: nn.Module,
    head: TemperedHead,
    batches: Batches,
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


def _warn_unknown(suggestion: Suggestion | None, note: str) -> None:
    rule = "another rule" if suggestion is None else f"rule {suggestion.rule}"
    text = f"the training is not known ({note}): T is that of {rule}, which sees none of it"
    warnings.warn(text, TemperanceWarning, stacklevel=3)
