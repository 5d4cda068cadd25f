"""Intervals: Wilson for shares, the bootstrap over rows for everything else. All are 95 %."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["bootstrap", "percentile_interval", "row_weights", "wilson"]

Z95 = 1.959963984540054  # 97.5 % point of the normal distribution
_CHUNK = 1 << 22  # row weights made together: 32 MB

#: Bin of every row and confidence less correctness of every row: all that the ECE needs.
Gaps = tuple[NDArray[np.intp], NDArray[np.float64]]


def wilson(successes: float, n: int) -> tuple[float, float]:
    """Wilson's score interval of a share.

    Args:
        successes: how many of the ``n`` rows count.
        n: number of rows, 1 or more.

    Returns:
        Lower and upper end, inside [0, 1].

    Example:
        >>> from temperance.evaluation.intervals import wilson
        >>> [round(end, 4) for end in wilson(9, 10)]
        [0.5958, 0.9821]

    Reference:
        Wilson, Probable inference, the law of succession, and statistical inference, 1927.
    """
    share, z2 = successes / n, Z95**2
    centre = (share + z2 / (2 * n)) / (1 + z2 / n)
    half = Z95 / (1 + z2 / n) * math.sqrt(share * (1 - share) / n + z2 / (4 * n * n))
    low = 0.0 if successes == 0 else max(0.0, centre - half)
    return low, 1.0 if successes == n else min(1.0, centre + half)


def bootstrap(
    columns: NDArray[np.float64], gaps: Sequence[Gaps], *, replicates: int, seed: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Draw the rows again and again, with replacement, and work out means and ECEs.

    Every replicate is a vector of row weights (how often a row was drawn), so that means are
    products of these weights with the rows' values, and an ECE is one with the rows' gaps, bin by
    bin. The bins stay those of the rows that were given.

    Args:
        columns: values to average, shape ``[n, k]``, finite.
        gaps: for every ECE the bin of each row, and its confidence less its correctness.
        replicates: how many times.
        seed: of a generator of its own.

    Returns:
        Means ``[replicates, k]`` and ECEs ``[replicates, len(gaps)]``. The same rows are drawn for
        all of them, so that differences of columns are paired.
    """
    n = len(columns)
    matrix, owner = _bin_matrix(gaps, n)
    means, eces = [np.empty((0, columns.shape[1]))], [np.empty((0, len(gaps)))]
    for weights in row_weights(n, replicates=replicates, seed=seed):
        means.append(weights @ columns / n)
        if gaps:
            sums = np.abs(np.asarray((matrix.T @ weights.T).T)) / n
            parts = [sums[:, owner == g].sum(axis=1) for g in range(len(gaps))]
            eces.append(np.stack(parts, axis=1))
    return np.concatenate(means), np.concatenate(eces)


def _bin_matrix(gaps: Sequence[Gaps], n: int) -> tuple[Any, NDArray[np.intp]]:
    """Gaps of all rows as one sparse matrix with a column for each bin of each ECE."""
    from scipy.sparse import csr_array

    sizes = [int(index.max()) + 1 for index, _ in gaps]
    starts = np.concatenate([[0], np.cumsum(sizes)]).astype(np.intp)
    owner = np.repeat(np.arange(len(gaps)), sizes)
    if not gaps:
        return csr_array((n, 0)), owner
    column = np.concatenate(
        [index + start for (index, _), start in zip(gaps, starts, strict=False)]
    )
    values = np.concatenate([gap for _, gap in gaps])
    row = np.tile(np.arange(n), len(gaps))
    return csr_array((values, (row, column)), shape=(n, int(starts[-1]))), owner


def row_weights(n: int, *, replicates: int, seed: int) -> Iterator[NDArray[np.float64]]:
    """How often each of ``n`` rows is drawn, shape ``[some replicates, n]``."""
    rng = np.random.default_rng(seed)
    step = max(1, _CHUNK // n)
    for start in range(0, replicates, step):
        count = min(step, replicates - start)
        drawn = rng.integers(0, n, size=(count, n)) + n * np.arange(count)[:, None]
        yield np.bincount(drawn.ravel(), minlength=count * n).reshape(count, n).astype(np.float64)


def percentile_interval(
    value: float, replicates: NDArray[np.float64], *, centred: bool = False
) -> tuple[float, float]:
    """95 % of the replicates, by their percentiles; it always holds the value.

    Args:
        value: the figure of the rows that were given.
        replicates: the figure of the rows drawn again.
        centred: first take the bootstrap's own bias (mean of the replicates less ``value``) off.
            For the ECE, which grows with noise: drawing rows again adds noise, so that the plain
            percentiles lie too high and can miss the value itself.

    Returns:
        Lower and upper end.
    """
    bias = float(replicates.mean()) - value if centred else 0.0
    low, high = np.quantile(replicates, [0.025, 0.975]) - bias
    return min(float(low), value), max(float(high), value)
