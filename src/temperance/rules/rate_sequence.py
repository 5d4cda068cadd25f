"""Learning rates that are written down one by one: a list, an array or a tensor of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from temperance.errors import InvalidInput

__all__ = ["SCHEDULES", "name_of_shares", "plain_value", "rates_in"]

SCHEDULES = ("cosine", "constant")
"""Schedules whose mean is known by their name; of others it must be said."""

_NEAR = 0.1  # mean distance, as a share of the peak, at which a schedule is called by a name


def plain_value(value: Any) -> Any:
    """Give the number, or the list, that an array, a tensor or a number of NumPy holds.

    Args:
        value: anything.

    Returns:
        Python's own form of it; other things as they are.
    """
    tolist = getattr(value, "tolist", None)
    return tolist() if callable(tolist) else value


def rates_in(value: Any) -> tuple[float, ...] | None:
    """Read the learning rates of a sequence.

    Args:
        value: anything; a list, a tuple, an array, a tensor or a series is a sequence.

    Returns:
        The rates; None for what is no sequence.

    Raises:
        InvalidInput: for a sequence of something else, such as a table, or of nothing.

    Example:
        >>> from temperance.rules.rate_sequence import rates_in
        >>> rates_in([0.1, 0.05]), rates_in("cosine")
        ((0.1, 0.05), None)
    """
    items = plain_value(value)
    if not isinstance(items, list | tuple):
        return None
    good = [
        isinstance(item, int | float) and not isinstance(item, bool) and 0 <= item < math.inf
        for item in map(plain_value, items)
    ]
    if not items or not all(good) or not any(map(plain_value, items)):
        odd = next((item for item, fits in zip(items, good, strict=True) if not fits), items)
        raise InvalidInput(
            "schedule of the learning rate",
            expected="rates in a row, each a number of 0 or more, one at least above 0",
            found=f"{odd!r:.60} among {len(items)} of them",
            fix="Give one learning rate for each optimizer step.",
        )
    return tuple(float(plain_value(item)) for item in items)


def name_of_shares(shares: Sequence[float], name: str) -> str:
    """Name a schedule by its curve where it is near to one that has a name.

    Args:
        shares: rate divided by peak, step by step.
        name: what to call it where it is near to none.

    Returns:
        A name in ``SCHEDULES`` (a tenth of the peak away, on average), or ``name``.

    Example:
        >>> from temperance.rules.rate_sequence import name_of_shares
        >>> name_of_shares([1.0, 0.97, 0.95], "mine"), name_of_shares([1.0, 0.1, 0.1], "mine")
        ('constant', 'mine')
    """
    return next((known for known in SCHEDULES if _is_near(shares, known)), name)


def _is_near(shares: Sequence[float], name: str) -> bool:
    count = len(shares)
    wanted = [
        1.0 if name == "constant" else (1 + math.cos(math.pi * s / count)) / 2 for s in range(count)
    ]
    return sum(abs(a - b) for a, b in zip(shares, wanted, strict=True)) <= _NEAR * count
