"""What drawn rows see of all other rows: their nearest neighbours, and how near each class is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from temperance.records import Features
from temperance.task.moment_sums import EPS, blocks
from temperance.task.moments import checked
from temperance.task.neighbours import nearest
from temperance.task.spread import deal
from temperance.task.statistic_spec import StatisticSpec, UndefinedStatistic

__all__ = [
    "NEIGHBOUR_ROWS",
    "SILHOUETTE_ROWS",
    "SPECS",
    "Neighbours",
    "Silhouettes",
    "neighbours_of",
    "nn_accuracy",
    "silhouette",
    "silhouettes_of",
]

NEIGHBOUR_ROWS = 5000
"""Rows whose neighbours are sought, all rows where there are fewer: an accuracy is then known to
0.7 points (standard error), a TwoNN dimension to 1.5 %."""

SILHOUETTE_ROWS = 2500
"""The same for silhouettes, whose distances are computed in float64."""

_CHUNK_BYTES = 1 << 25  # of the drawn rows that are compared together

Array = NDArray[np.float64]
Ints = NDArray[np.int64]
Progress = Callable[[int, int], None]


@dataclass(frozen=True, eq=False)
class Neighbours:
    """The two nearest other rows of drawn rows, sought among all rows.

    Attributes:
        labels: classes of the drawn rows, shape ``[q]``.
        near_labels: classes of their nearest row, ``[q]``.
        distance: to the nearest and to the second row, ``[q, 2]`` (``[q, 1]`` of two rows in all).
        group: which group each drawn row is in, for intervals, ``[q]``.
        n_present: classes that have rows, K.
    """

    labels: Ints
    near_labels: Ints
    distance: Array
    group: Ints
    n_present: int

    def without(self, group: int) -> Neighbours:
        """Leave one group of drawn rows out; the neighbours of the others stay."""
        keep = self.group != group
        labels, near = self.labels[keep], self.near_labels[keep]
        return Neighbours(labels, near, self.distance[keep], self.group[keep], self.n_present)


@dataclass(frozen=True, eq=False)
class Silhouettes:
    """Silhouettes of drawn rows against all rows: ``values`` and ``group`` as above, ``[q]``."""

    values: Array
    group: Ints
    n_present: int

    def without(self, group: int) -> Silhouettes:
        """Leave one group of drawn rows out."""
        keep = self.group != group
        return Silhouettes(self.values[keep], self.group[keep], self.n_present)


def neighbours_of(
    given: Features | Neighbours,
    *,
    seed: int = 0,
    groups: int = 5,
    progress: Progress | None = None,
) -> Neighbours:
    """Seek the neighbours of up to 5,000 drawn rows, or pass on those that are there.

    Args:
        given: features, or neighbours.
        seed: of the draw and of the groups.
        groups: number of groups that the drawn rows are dealt into, by class.
        progress: called with (steps done, steps in all).

    Returns:
        The neighbours: exact, whatever the number of rows.

    Raises:
        InvalidInput: if the features are not finite or reach too far, or for fewer than two rows.
    """
    if isinstance(given, Neighbours):
        return given
    x, y = checked(given)
    if len(x) < 2:
        raise UndefinedStatistic("nearest neighbours", expected="two rows or more", found="1")
    rows, group = _draw(y, NEIGHBOUR_ROWS, groups=groups, seed=seed)
    ids, distance = nearest(x, rows, min(2, len(x) - 1), progress=progress)
    return Neighbours(y[rows], y[ids[:, 0]], distance, group, len(np.unique(y)))


def silhouettes_of(
    given: Features | Silhouettes,
    *,
    seed: int = 0,
    groups: int = 5,
    progress: Progress | None = None,
) -> Silhouettes:
    """Work out the silhouettes of up to 2,500 drawn rows, or pass on those that are there.

    Args:
        given: features, or silhouettes.
        seed: of the draw and of the groups.
        groups: number of groups that the drawn rows are dealt into, by class.
        progress: called with (steps done, steps in all).

    Returns:
        Each drawn row's ``(b - a) / max(a, b)``: a, its mean distance to the other rows of its
        class; b, the least of its mean distances to other classes. 0 for a row alone in its class.

    Raises:
        InvalidInput: if the features are not finite.
    """
    if isinstance(given, Silhouettes):
        return given
    x, y = checked(given)
    counts = np.bincount(y)
    present = np.flatnonzero(counts)
    if len(present) < 2:
        return Silhouettes(np.zeros(0), np.zeros(0, np.int64), len(present))
    rows, group = _draw(y, SILHOUETTE_ROWS, groups=groups, seed=seed)
    own = np.searchsorted(present, y)
    total = _distance_sums(x, own, rows, n_classes=len(present), progress=progress)
    count, place = counts[present], (np.arange(len(rows)), own[rows])
    near = total[place] / np.maximum(count[own[rows]] - 1, 1)
    total /= count
    total[place] = np.inf
    other = total.min(axis=1)
    far = np.maximum(near, other)
    alone = (count[own[rows]] == 1) | (far == 0)
    return Silhouettes(
        np.where(alone, 0.0, (other - near) / np.where(far > 0, far, 1.0)), group, len(present)
    )


def nn_accuracy(features: Features | Neighbours, *, seed: int = 0) -> float:
    """Give the accuracy of the nearest other row: ``mean_i [y_i = y_(nearest of i)]``.

    The rows that are judged are drawn where there are more than 5,000; each is left out of the
    rows that it is compared with (all others, exactly, Euclidean).

    Args:
        features: the rows, or their neighbours.
        seed: of the draw.

    Returns:
        0 to 1, a share of the drawn rows. Duplicates raise it; of equally near rows the one with
        the higher number counts.

    Raises:
        UndefinedStatistic: if fewer than two classes have rows.

    Example:
        >>> from temperance import Features
        >>> from temperance.task.neighbour_statistics import nn_accuracy
        >>> nn_accuracy(Features.from_arrays([[0.0], [1.0], [9.0], [7.0]], list("aabb")))
        1.0

    Reference:
        T. M. Cover, P. E. Hart: Nearest neighbor pattern classification, 1967.
    """
    found = neighbours_of(features, seed=seed)
    _check_classes("nn_accuracy", found.n_present)
    return float((found.labels == found.near_labels).mean())


def silhouette(features: Features | Silhouettes, *, seed: int = 0) -> float:
    """Give the mean silhouette: ``mean_i (b_i - a_i) / max(a_i, b_i)``.

    a: mean distance to the other rows of the own class; b: least mean distance to another class.
    Up to 2,500 drawn rows are compared with *all* rows: the mean estimates that of all rows without
    bias, which the silhouette of a subsample alone (few rows per class) does not.

    Args:
        features: the rows, or their silhouettes.
        seed: of the draw.

    Returns:
        -1 to 1.

    Raises:
        UndefinedStatistic: if fewer than two classes have rows.

    Example:
        >>> from temperance import Features
        >>> from temperance.task.neighbour_statistics import silhouette
        >>> round(silhouette(Features.from_arrays([[0.0], [1.0], [9.0], [8.0]], list("aabb"))), 4)
        0.8745

    Reference:
        P. J. Rousseeuw: Silhouettes, a graphical aid to the interpretation and validation of
        cluster analysis, 1987.
    """
    found = silhouettes_of(features, seed=seed)
    _check_classes("silhouette", found.n_present)
    return float(found.values.mean())


def _check_classes(name: str, present: int) -> None:
    if present < 2:
        raise UndefinedStatistic(
            name, expected="two classes or more that have rows", found=str(present)
        )


def _draw(y: Ints, most: int, *, groups: int, seed: int) -> tuple[Ints, Ints]:
    """Rows, ascending, without replacement; and the group of each."""
    rng = np.random.default_rng(np.random.SeedSequence(seed))
    rows = np.arange(len(y))
    if len(y) > most:
        rows = np.sort(rng.choice(len(y), most, replace=False, shuffle=False))
    return rows, deal(y[rows], groups, rng)


# ------------------------------------------------------------------ distances to whole classes
def _distance_sums(
    x: NDArray[Any], own: Ints, rows: Ints, *, n_classes: int, progress: Progress | None
) -> Array:
    """Sum of the distances of drawn rows to all rows of each class, ``[q, K]``."""
    few = np.unique(np.linspace(0, len(x) - 1, 256).astype(np.int64))
    centre = x[few].astype(np.float64).mean(axis=0)  # an offset would cost digits
    total = np.zeros((len(rows), n_classes))
    step = max(64, _CHUNK_BYTES // (8 * x.shape[1]))
    for start in range(0, len(rows), step):
        part = rows[start : start + step]
        query = x[part].astype(np.float64) - centre
        for span, block in blocks(x, None, width=max(x.shape[1], len(part))):
            block -= centre
            first, labels = span.start, own[span]
            order = np.argsort(labels, kind="stable")
            distance = _distances(query, block[order])
            lo, hi = np.searchsorted(part, [first, first + len(block)])
            place = np.argsort(order)[part[lo:hi] - first]
            distance[np.arange(lo, hi), place] = 0.0  # a row to itself
            begin = np.flatnonzero(np.diff(labels[order], prepend=-1))
            sums = np.add.reduceat(distance, begin, axis=1)
            total[start : start + step, labels[order[begin]]] += sums
            if progress:
                progress(start + len(part) * (first + len(block)) // len(x), len(rows))
    return total


def _distances(query: Array, block: Array) -> Array:
    """Distances of centred rows, ``[q, b]``; those within rounding of 0 are 0."""
    size = np.square(query).sum(axis=1)[:, None] + np.square(block).sum(axis=1)
    squared = -2 * (query @ block.T)
    squared += size
    size *= 8 * EPS
    squared[squared < size] = 0.0
    return np.sqrt(squared, out=squared)


SPECS = (
    StatisticSpec(
        "silhouette",
        silhouette,
        title="silhouette",
        unit="silhouette",
        formula="mean_i (b_i - a_i) / max(a_i, b_i)",
        reference="Rousseeuw 1987; drawn rows against all rows",
        needs="silhouettes",
        doubling="near",
        range=(-1.0, 1.0),
        held="the rows that they are compared with",
        remarks=("empty", "single"),
    ),
    StatisticSpec(
        "nn_accuracy",
        nn_accuracy,
        title="accuracy of the nearest neighbour",
        unit="share",
        formula="mean_i [y_i = y_(nearest of i)]",
        reference="Cover and Hart 1967; leave one out, exact",
        needs="neighbours",
        doubling="changes",
        range=(0.0, 1.0),
        interval="wilson",
        held="the rows that they are compared with",
        remarks=("twins", "ties"),
    ),
)
