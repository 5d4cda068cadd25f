"""Correlations whose unit of evidence is the data set: under redrawn data sets, flipped signs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata

from temperance.study.resample import Resample

__all__ = ["flip_p_values", "pearson", "pearson_draws", "spearman", "spearman_draws"]

Floats = NDArray[np.float64]


def pearson(x: Floats, y: Floats) -> float:
    """Pearson's correlation; NaN where one side does not vary.

    Example:
        >>> import numpy as np
        >>> from temperance.study.cluster_correlation import pearson
        >>> round(pearson(np.array([1.0, 2.0, 3.0]), np.array([2.0, 4.0, 6.5])), 4)
        0.9979
    """
    return float(_correlation(x[None], y[None], np.ones((1, len(x))))[0])


def spearman(x: Floats, y: Floats) -> float:
    """Spearman's rank correlation, ties at their mean rank; NaN where one side does not vary."""
    return pearson(rankdata(x), rankdata(y))


def pearson_draws(x: Floats, y: Floats, draw: Resample) -> Floats:
    """Pearson's correlation in every replicate, ``[replicates]``; NaN where it does not exist."""
    counts = [part[:, draw.place] for part in draw.parts()]
    return np.concatenate([_correlation(x[None], y[None], c) for c in counts])


def spearman_draws(x: Floats, y: Floats, draw: Resample) -> Floats:
    """Spearman's correlation in every replicate; the ranks are those of the redrawn pairs."""
    counts = [part[:, draw.place] for part in draw.parts()]
    return np.concatenate([_correlation(_ranks(x, c), _ranks(y, c), c) for c in counts])


def _correlation(x: Floats, y: Floats, counts: Floats) -> Floats:
    """Correlation of values that are there so often; all ``[replicates or 1, n]``."""
    total = counts.sum(axis=1, keepdims=True)
    dx = x - (counts * x).sum(axis=1, keepdims=True) / total
    dy = y - (counts * y).sum(axis=1, keepdims=True) / total
    xx, yy = (counts * dx * dx).sum(axis=1), (counts * dy * dy).sum(axis=1)
    size = np.sqrt(xx * yy)
    # rounding leaves a little where all drawn values are equal
    flat = size <= 1e-12 * total[:, 0] * (np.ptp(x) or 1.0) * (np.ptp(y) or 1.0)
    with np.errstate(invalid="ignore", divide="ignore"):
        found = (counts * dx * dy).sum(axis=1) / size
    return np.where(flat, np.nan, np.clip(found, -1.0, 1.0))


def _ranks(values: Floats, counts: Floats) -> Floats:
    """Mean rank of each value among all that were drawn, ``[replicates, n]``."""
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    starts = np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]]))
    group = np.empty(len(values), np.intp)
    group[order] = np.cumsum(np.isin(np.arange(len(values)), starts)) - 1
    sizes = np.add.reduceat(counts[:, order], starts, axis=1)
    middle = np.cumsum(sizes, axis=1) - sizes / 2
    return middle[:, group]


def flip_p_values(
    columns: Mapping[str, Floats],
    y: Floats,
    data_sets: Sequence[str],
    *,
    flips: int,
    seed: int,
) -> dict[str, tuple[float, float]]:
    """P-values of rank correlations, from flipping the signs of whole data sets.

    Args:
        columns: statistics by name, ``[n]``, NaN where a pair does not have it.
        y: the target, ``[n]``.
        data_sets: data set of each pair.
        flips: how many random signs.
        seed: of a generator of its own.

    Returns:
        For each statistic its own p and that of the largest of all, see ``correlation.correlate``.
    """
    _, place = np.unique(np.asarray(data_sets, dtype=str), return_inverse=True)
    shares = np.stack([_shares(x, y, place) for x in columns.values()], axis=1)
    scale = np.sqrt((shares**2).sum(axis=0))
    scale[scale == 0] = 1.0
    signs = np.random.default_rng(seed).choice([-1.0, 1.0], size=(flips, len(shares)))
    flipped = np.abs(signs @ shares / scale) * (1 + 1e-12)  # equal up to rounding counts
    seen = np.abs(shares.sum(axis=0) / scale)
    alone = (1 + (flipped >= seen).sum(axis=0)) / (flips + 1)
    most = flipped.max(axis=1, keepdims=True)
    together = (1 + (most >= seen).sum(axis=0)) / (flips + 1)
    pairs = zip(columns, alone.tolist(), together.tolist(), strict=True)
    return {name: (own, adjusted) for name, own, adjusted in pairs}


def _shares(x: Floats, y: Floats, place: NDArray[np.intp]) -> Floats:
    """Share of each data set in the sum of products of centred ranks."""
    there = np.isfinite(x)
    rx, ry = rankdata(x[there]), rankdata(y[there])
    products = (rx - rx.mean()) * (ry - ry.mean())
    return np.asarray(np.bincount(place[there], products, int(place.max()) + 1), np.float64)
