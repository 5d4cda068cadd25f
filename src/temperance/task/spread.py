"""Intervals of statistics: rows in groups that are left out in turn, and shares of rows."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

__all__ = ["deal", "jackknife", "wilson"]

Z95 = 1.959963984540054  # 97.5 % point of the normal distribution


def deal(y: NDArray[np.int64], groups: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Deal rows into groups at random, every class evenly.

    Args:
        y: class ids of the rows, shape ``[n]``.
        groups: number of groups, 1 or more.
        rng: where chance comes from.

    Returns:
        Number of the group of every row, ``0 .. groups - 1``; sizes of groups, in all and of every
        class, differ by one row at most.

    Example:
        >>> import numpy as np
        >>> from temperance.task.spread import deal
        >>> group = deal(np.array([0, 0, 0, 1, 1, 1]), 3, np.random.default_rng(0))
        >>> sorted(group[:3].tolist()), sorted(group[3:].tolist())
        ([0, 1, 2], [0, 1, 2])
    """
    order = rng.permutation(len(y))
    order = order[np.argsort(y[order], kind="stable")]
    out = np.empty(len(y), np.int64)
    out[order] = np.arange(len(y)) % groups
    return out


def jackknife(
    value: float, without: Sequence[float], *, bounds: tuple[float, float]
) -> tuple[tuple[float, float], float]:
    """Give a 95 % interval from values with one group of rows left out each.

    ``se^2 = (G - 1) / G * sum_g (v_g - mean)^2``; ``value -+ t_(0.975, G - 1) se``.

    Args:
        value: of all rows.
        without: values without group g, ``G >= 2`` of them.
        bounds: smallest and largest value that the statistic can have.

    Returns:
        The interval, and the standard error.

    Example:
        >>> from temperance.task.spread import jackknife
        >>> interval, error = jackknife(2.0, [2.1, 1.9, 2.0], bounds=(0.0, 3.0))
        >>> [round(end, 3) for end in interval], round(error, 4)
        ([1.503, 2.497], 0.1155)

    Reference:
        J. Shao, D. Tu: The Jackknife and Bootstrap, 1995, section 2.3 (groups of rows left out).
    """
    from scipy.stats import t

    values = np.asarray(without, dtype=np.float64)
    groups = len(values)
    error = math.sqrt((groups - 1) / groups * float(np.square(values - values.mean()).sum()))
    half = float(t.ppf(0.975, groups - 1)) * error
    return (max(bounds[0], value - half), min(bounds[1], value + half)), error


def wilson(share: float, n: int) -> tuple[float, float]:
    """Give Wilson's 95 % interval of a share of ``n`` rows, inside [0, 1].

    Args:
        share: the share, 0 to 1.
        n: number of rows, 1 or more.

    Returns:
        Lower and upper end.

    Example:
        >>> from temperance.task.spread import wilson
        >>> [round(end, 4) for end in wilson(0.9, 10)]
        [0.5958, 0.9821]

    Reference:
        E. B. Wilson: Probable inference, the law of succession, and statistical inference, 1927.
    """
    z2 = Z95**2
    centre = (share + z2 / (2 * n)) / (1 + z2 / n)
    half = Z95 / (1 + z2 / n) * math.sqrt(share * (1 - share) / n + z2 / (4 * n * n))
    low = 0.0 if share == 0 else max(0.0, centre - half)
    return low, 1.0 if share == 1 else min(1.0, centre + half)
