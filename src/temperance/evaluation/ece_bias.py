"""How much few rows push an ECE up, and with it the difference of two.

A bin adds ``|g|`` to the ECE, ``g`` being its mean gap (confidence less correctness, summed over
its rows, over all rows). Of ``g = mu + noise`` with standard error ``s``, the absolute value is
too large on average, by ``s sqrt(2 / pi) exp(-(mu/s)^2 / 2) - 2 |mu| Phi(-|mu| / s)``: by 0.8 s
where the bin is calibrated, by next to nothing where its gap is clear. ``mu`` is not known, so that
the bias is not either. It is bounded: from below at ``|mu| = |g|``, from above at the lower 95 %
end of ``|mu|``, ``max(0, |g| - 1.96 s)``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from temperance.evaluation.intervals import Z95, Gaps

__all__ = ["bias_range", "folded_bias"]

_MEAN_ABS = math.sqrt(2 / math.pi)  # E|x| of a standard normal x


def folded_bias(gap: NDArray[np.float64], error: NDArray[np.float64]) -> NDArray[np.float64]:
    """``E|x| - |mu|`` for a normal x of mean ``gap`` and standard deviation ``error``.

    Args:
        gap: mu, any shape.
        error: s, 0 or more, same shape.

    Returns:
        The bias, 0 or more: ``0.8 s`` at mu = 0, falling to 0 with ``|mu| / s``.

    Example:
        >>> import numpy as np
        >>> from temperance.evaluation.ece_bias import folded_bias
        >>> folded_bias(np.array([0.0, 1.0, 9.0]), np.ones(3)).round(3).tolist()
        [0.798, 0.167, 0.0]

    Reference:
        Leone, Nelson, Nottingham, The folded normal distribution, 1961.
    """
    from scipy.special import ndtr

    size = np.abs(gap)
    ratio = np.divide(size, error, out=np.full_like(size, np.inf), where=error > 0)
    tail = np.where(error > 0, ndtr(-ratio), 0.0)
    bias: NDArray[np.float64] = error * _MEAN_ABS * np.exp(-(ratio**2) / 2) - 2 * size * tail
    return np.maximum(bias, 0.0)


def bias_range(
    ours: Sequence[Gaps], theirs: Sequence[Gaps] = (), *, bins: int
) -> tuple[float, float]:
    """Least and largest bias of the mean ECE of some runs, or of its difference to others.

    Args:
        ours: bin, and confidence less correctness, of every row, for each run.
        theirs: the same for the runs to compare with, paired with ``ours``; none for the mean.
        bins: number of bins.

    Returns:
        The two ends, in units of the ECE. For a difference bins of the same place are compared:
        arms that are alike there are biased alike, and an arm against itself is not at all.
    """
    ends = []
    for place, run in enumerate(ours):
        gap, error = _moments(run, bins)
        low, high = _bounds(gap, error)
        if theirs:
            other = theirs[place]
            gap_b, error_b = _moments(other, bins)
            low_b, high_b = _bounds(gap_b, error_b)
            # the bias has slopes of at most 1 in |mu| and of sqrt(2 / pi) in s
            most = _MEAN_ABS * np.abs(error - error_b) + np.abs(gap - gap_b)
            most += Z95 * _error_of_difference(run, other, gap - gap_b, bins)
            low, high = np.maximum(low - high_b, -most), np.minimum(high - low_b, most)
        ends.append((low.sum(), high.sum()))
    low, high = np.mean(ends, axis=0).tolist()
    return low, high


def _bounds(
    gap: NDArray[np.float64], error: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Least and largest bias of every bin."""
    least = np.maximum(np.abs(gap) - Z95 * error, 0.0)
    return folded_bias(gap, error), folded_bias(least, error)


def _moments(run: Gaps, bins: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Mean gap of every bin, over all rows, and its standard error."""
    index, gaps = run
    n = len(gaps)
    gap = np.bincount(index, weights=gaps, minlength=bins) / n
    square = np.bincount(index, weights=gaps**2, minlength=bins) / n
    return gap, np.sqrt(np.maximum(square - gap**2, 0.0) / n)


def _error_of_difference(
    run: Gaps, other: Gaps, gap: NDArray[np.float64], bins: int
) -> NDArray[np.float64]:
    """Standard error of the difference of two runs' gaps, bin by bin, rows in pairs."""
    (index, gaps), (index_b, gaps_b) = run, other
    same = index == index_b
    one = np.where(same, (gaps - gaps_b) ** 2, gaps**2)
    square = np.bincount(index, weights=one, minlength=bins)
    square += np.bincount(index_b, weights=np.where(same, 0.0, gaps_b**2), minlength=bins)
    n = len(gaps)
    return np.sqrt(np.maximum(square / n - gap**2, 0.0) / n)
