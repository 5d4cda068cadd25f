"""Which rows each step sees, and how large the step is: the same for every engine of a study."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from temperance.errors import InvalidInput
from temperance.study.trial import SCHEDULES

__all__ = ["HISTORY_POINTS", "batch_rows", "history_steps", "learning_rate"]

HISTORY_POINTS = 8
"""Entries of a learning curve, at most: enough to see its bends, few enough to cost little."""


def batch_rows(n: int, batch_size: int, steps: int, seed: int) -> NDArray[np.int64]:
    """Give the rows of every step: a new permutation in each epoch, batches of equal size.

    The rows of an epoch that do not fill a batch are left out of that epoch; the next permutation
    leaves out others. Epoch e is drawn from ``(seed, e)`` alone, so more steps change no earlier
    batch, and no global random state is read or moved.

    Args:
        n: training rows.
        batch_size: rows per step; more than ``n`` means all of them.
        steps: optimizer steps.
        seed: seed of the order, 0 or more.

    Returns:
        Row numbers, int64, ``[steps, min(batch_size, n)]``.

    Raises:
        InvalidInput: if ``n``, ``batch_size`` or ``steps`` is below 1, or ``seed`` below 0.

    Example:
        >>> from temperance.study.batches import batch_rows
        >>> rows = batch_rows(10, 4, 5, 0)
        >>> rows.shape, sorted(rows[:2].ravel()) == sorted(set(rows[:2].ravel()))
        ((5, 4), True)
    """
    for name, value, least in (
        ("n", n, 1),
        ("batch_size", batch_size, 1),
        ("steps", steps, 1),
        ("seed", seed, 0),
    ):
        if value < least:
            raise InvalidInput(
                name, expected=f"{least} or more", found=str(value), fix="Give another number."
            )
    size = min(batch_size, n)
    per_epoch = n // size
    rows = np.empty((steps, size), dtype=np.int64)
    for epoch, start in enumerate(range(0, steps, per_epoch)):
        count = min(per_epoch, steps - start)
        order = np.random.default_rng((seed, epoch)).permutation(n)
        rows[start : start + count] = order[: count * size].reshape(count, size)
    return rows


def learning_rate(step: int, steps: int, *, peak: float, schedule: str) -> float:
    """Give the learning rate of one step.

    ``cosine``: ``peak * (1 + cos(pi * step / steps)) / 2``; ``constant``: ``peak``.

    Args:
        step: number of the step, from 0.
        steps: steps of the whole training.
        peak: the learning rate at step 0.
        schedule: ``cosine`` or ``constant``.

    Returns:
        The learning rate; above 0 at every step before ``steps``.

    Raises:
        InvalidInput: for another schedule, or a step that is not within the training.

    Example:
        >>> from temperance.study.batches import learning_rate
        >>> [learning_rate(step, 2, peak=0.5, schedule="cosine") for step in range(2)]
        [0.5, 0.25]

    Reference:
        Loshchilov and Hutter, SGDR: Stochastic Gradient Descent with Warm Restarts, 2017,
        arXiv 1608.03983, equation 5 with a least rate of 0 and no restart.
    """
    if not 0 <= step < steps:
        raise InvalidInput(
            "step",
            expected=f"0 to {steps - 1}",
            found=str(step),
            fix="Count steps from 0 within the training.",
        )
    if schedule not in SCHEDULES:
        raise InvalidInput(
            "schedule",
            expected=" or ".join(SCHEDULES),
            found=repr(schedule),
            fix="Name one of them.",
        )
    return peak if schedule == "constant" else peak * (1 + math.cos(math.pi * step / steps)) / 2


def history_steps(steps: int) -> tuple[int, ...]:
    """Give the steps after which a learning curve has an entry: log-spaced, with the last one.

    Args:
        steps: optimizer steps of the whole training.

    Returns:
        Numbers of steps done, ascending, from 1 to ``steps``, at most ``HISTORY_POINTS``.

    Example:
        >>> from temperance.study.batches import history_steps
        >>> history_steps(1000)
        (1, 3, 7, 19, 52, 139, 373, 1000)
        >>> history_steps(3)
        (1, 2, 3)
    """
    last = HISTORY_POINTS - 1
    return tuple(sorted({round(steps ** (point / last)) for point in range(HISTORY_POINTS)}))
