"""Looking at a training loader before the training, and reading it so that nothing shows."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterable, Iterator, Sized
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from temperance.errors import InvalidInput, TemperanceWarning
from temperance.head import check_batches
from temperance.models import evaluating

__all__ = ["Batches", "check_again", "check_rows", "first_batch", "same_order"]


class Batches:
    """A loader, or its first batches.

    Args:
        loader: batches that can be read again.
        limit: how many of them; None for all.

    Raises:
        InvalidInput: for an iterator; without a length and without a limit.
    """

    def __init__(self, loader: Iterable[Any], limit: int | None) -> None:
        check_again(loader)
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


def check_again(loader: Any) -> None:
    """Raise InvalidInput for an iterator: what was measured on would be missing in the training."""
    if isinstance(loader, Iterable) and not isinstance(loader, Iterator):
        return
    raise InvalidInput(
        "training loader",
        expected="batches that can be read again from the start",
        found=f"a {type(loader).__name__}",
        fix="Pass the DataLoader itself, or a list of batches.",
    )


def first_batch(model: nn.Module, loader: Iterable[Any]) -> Any:
    """Give the first batch of a loader; random states stay as they are."""
    with evaluating(model), same_order(loader):  # a loader draws from them
        for batch in loader:
            return batch
    raise InvalidInput(
        "training loader",
        expected="at least one batch",
        found="none",
        fix="Check the data set, and drop_last with fewer rows than a batch.",
    )


@contextmanager
def same_order(loader: Any) -> Iterator[None]:
    """Put the generators of a DataLoader's own back, so that its next order is what it was."""
    while hasattr(loader, "loader"):  # a wrapper of ours
        loader = loader.loader
    batches = getattr(loader, "batch_sampler", None)
    owners = (loader, getattr(loader, "sampler", None), batches, getattr(batches, "sampler", None))
    found = (getattr(owner, "generator", None) for owner in owners)
    states = [(g, g.get_state()) for g in found if isinstance(g, torch.Generator)]
    try:
        yield
    finally:
        for generator, state in states:
            generator.set_state(state)


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
    sampler = getattr(loader, "sampler", None)
    if isinstance(sampler, Sized):  # which may take some rows only, or some twice
        rows = sampler
    if not size or not isinstance(rows, Sized) or not len(rows):
        return
    if isinstance(sampler, torch.utils.data.DistributedSampler):  # has the rows of one process
        processes = 1
    n = -(-len(rows) // processes)
    drop = bool(getattr(loader, "drop_last", False)) and n >= size
    plan = check_batches(n, int(size), drop_last=drop, replicas=replicas)
    if plan.smallest_rows < 2:
        plan.require_safe()
    elif not plan.safe:
        text = f"{plan.message}. {' Or: '.join(plan.advice)}"
        warnings.warn(text, TemperanceWarning, stacklevel=3)
