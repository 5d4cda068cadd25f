"""Will every training step meet enough rows for BatchNorm? Said before the training, not in it."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any

from temperance.errors import InvalidInput

__all__ = ["MIN_ROWS", "BatchPlan", "check_batches"]

# BatchNorm takes mean and variance out of a batch, so of n values of a feature n - 2 degrees of
# freedom are left. One row has no variance (an error in PyTorch); two rows train but tell nothing,
# since every feature becomes +1 or -1; with four rows half of what they say is left.
MIN_ROWS = 4


@dataclass(frozen=True)
class BatchPlan:
    """The batches of one epoch as BatchNorm will see them.

    Attributes:
        batches: batches per epoch; each is one BatchNorm batch per replica.
        optimizer_steps: optimizer steps per epoch; the last may have fewer batches.
        last_rows: rows of the last batch.
        smallest_rows: fewest rows that a BatchNorm layer meets, on one replica.
        first_unsafe: number (from 1) of the first batch of the epoch with too few rows, or None.
        minimum: rows that are enough.
        advice: what to do, empty if safe.
        first_unsafe_rows: fewest rows on a replica in that first batch, or None.
    """

    batches: int
    optimizer_steps: int
    last_rows: int
    smallest_rows: int
    first_unsafe: int | None
    minimum: int
    advice: tuple[str, ...] = ()
    first_unsafe_rows: int | None = None

    @property
    def safe(self) -> bool:
        """Whether every batch has enough rows on every replica."""
        return self.first_unsafe is None

    @property
    def message(self) -> str:
        """The plan in one sentence."""
        text = f"{self.batches} batches an epoch, the last of {self.last_rows} rows"
        if self.first_unsafe_rows is None:
            return f"{text}; BatchNorm meets at least {self.smallest_rows} rows"
        rows, fewest = self.first_unsafe_rows, self.smallest_rows
        last = f", and the last one with {fewest}" if fewest < rows else ""
        return (
            f"batch {self.first_unsafe} of {self.batches} leaves BatchNorm with "
            f"{rows} row{'s' * (rows > 1)}, fewer than {self.minimum}{last}"
        )

    def require_safe(self) -> None:
        """Raise InvalidInput, with the step and what to do, unless the plan is safe."""
        if not self.safe:
            raise InvalidInput(
                "batches for BatchNorm",
                expected=f"at least {self.minimum} rows on every replica in every batch",
                found=self.message,
                fix=" Or: ".join(self.advice),
            )


def check_batches(
    n: int,
    batch_size: int,
    *,
    drop_last: bool = False,
    replicas: int = 1,
    accumulation: int = 1,
    minimum: int = MIN_ROWS,
) -> BatchPlan:
    """Say before a training which of its batches would be too small for BatchNorm.

    DataParallel cuts a batch into chunks of ``ceil(rows / replicas)``, and the last chunk gets what
    is left. Accumulating gradients does not help: BatchNorm sees each batch by itself.

    Args:
        n: rows of the training set.
        batch_size: rows per batch of the loader, over all replicas.
        drop_last: whether the loader drops an incomplete last batch.
        replicas: devices that share a batch. With one process per device (DistributedDataParallel)
            pass 1, and the rows and batch size of one process.
        accumulation: batches per optimizer step.
        minimum: rows that a BatchNorm batch should have, at least 2, the least that runs.

    Returns:
        The plan; ``.safe``, ``.message`` and ``.advice``, or ``.require_safe()`` to raise.

    Raises:
        InvalidInput: if a count is no whole number of at least 1 (of 2 for ``minimum``), or if no
            batch is left.

    Example:
        >>> from temperance import check_batches
        >>> plan = check_batches(65, 64)
        >>> plan.safe, plan.first_unsafe, plan.smallest_rows
        (False, 2, 1)
        >>> check_batches(65, 64, drop_last=True).safe
        True
    """
    n, batch_size = _count("n", n), _count("batch_size", batch_size)
    replicas, accumulation = _count("replicas", replicas), _count("accumulation", accumulation)
    minimum = _count("minimum", minimum, least=2)
    full, rest = divmod(n, batch_size)
    sizes = [batch_size] * min(full, 1) + ([rest] if rest and not drop_last else [])
    if not sizes:
        raise InvalidInput(
            "batches",
            expected="one batch or more",
            found=f"{n} rows in batches of {batch_size}, and drop_last drops them all",
            fix=f"Lower the batch size to {n} or less, or pass drop_last=False.",
        )
    batches = full + (1 if rest and not drop_last else 0)
    smallest = [_smallest_share(rows, replicas) for rows in sizes]
    unsafe = [i for i, share in enumerate(smallest) if share < minimum]
    first_unsafe = None if not unsafe else 1 if full and unsafe[0] == 0 else batches
    advice: tuple[str, ...] = ()
    if first_unsafe == 1:
        advice = _for_all(minimum, replicas, room=full > 0 and n >= minimum * replicas)
    elif first_unsafe:
        merged = _smallest_share(batch_size + rest, replicas)
        advice = _for_the_last(merge=merged >= minimum)
    return BatchPlan(
        batches=batches,
        optimizer_steps=-(-batches // accumulation),
        last_rows=sizes[-1],
        smallest_rows=min(smallest),
        first_unsafe=first_unsafe,
        minimum=minimum,
        advice=advice,
        first_unsafe_rows=smallest[unsafe[0]] if unsafe else None,
    )


def _smallest_share(rows: int, replicas: int) -> int:
    """Rows of the smallest chunk that torch.chunk makes."""
    size = -(-rows // replicas)
    return rows % size or size


def _for_the_last(*, merge: bool) -> tuple[str, ...]:
    """Advice where only the last batch is too small."""
    drop = "Drop it (drop_last=True)."
    return ("Merge the remainder into the batch before it.", drop) if merge else (drop,)


def _for_all(minimum: int, replicas: int, *, room: bool) -> tuple[str, ...]:
    """Advice where already the first batch is too small."""
    several = f", a multiple of the {replicas} replicas" if replicas > 1 else ""
    larger = f"Set the batch size to {minimum * replicas} or more{several}, and plan again."
    data = "Add data" + (" or use fewer replicas." if replicas > 1 else ".")
    return (larger if room else data, "Use norm='layer' or 'none', which see one row at a time.")


def _count(name: str, value: Any, *, least: int = 1) -> int:
    """A whole number of any type (NumPy's too), as an int."""
    if not isinstance(value, bool):
        try:
            number = operator.index(value)
        except TypeError:
            number = least - 1
        if number >= least:
            return number
    expected = f"a whole number of at least {least}"
    raise InvalidInput(name, expected=expected, found=repr(value), fix="Set it.")
