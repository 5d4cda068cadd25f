"""Two passes over the rows, in blocks of float64: means first, then sums of centred rows.

So an offset of the features costs no digit, and no more than a few blocks are alive at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from temperance.errors import InvalidInput

__all__ = ["EPS", "Centre", "Rows", "Sums", "add_class_sums", "blocks", "centre_of", "sums_of"]

EPS = float(np.finfo(np.float64).eps)
_BLOCK_BYTES = 1 << 24  # of one block of rows; a handful of such blocks are alive
_LARGEST, _SMALLEST = 1e70, 1e-70  # fourth powers and their sums stay inside float64

Array = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Centre:
    """Means of all rows, which the sums are taken about.

    Attributes:
        mean: of all rows, shape ``[M]``.
        classes: mean of every class less ``mean``, shape ``[C, M]``; 0 for classes without rows.
        counts: rows of every class, shape ``[C]``.
    """

    mean: Array
    classes: Array
    counts: Ints


@dataclass(frozen=True, eq=False)
class Rows:
    """One number for every row; NaN where it does not exist.

    Attributes:
        norm: ``|x|``, shape ``[n]``.
        cosine: between the row and the mean of its class.
        cosine_centred: the same with the mean of all rows taken off both.
        right: 1 where the nearest class mean is that of its class (the row itself left out of it),
            a share where several are equally near, else 0.
    """

    norm: Array
    cosine: Array
    cosine_centred: Array
    right: Array


@dataclass(frozen=True, eq=False)
class Sums:
    """Sums over some rows; ``z = x - centre.mean``.

    Attributes:
        counts: rows of every class, shape ``[C]``.
        drift: sum of ``z`` less the mean of its class, by class, ``[C, M]``; 0 for all rows.
        within: sum of the squares of the same, by class, ``[C]``.
        powers: sums of ``z^2, z^3, z^4`` of every feature, ``[3, M]``.
        scatter: sum of ``z z^T``, ``[M, M]``, where asked for.
    """

    counts: Ints
    drift: Array
    within: Array
    powers: Array
    scatter: Array | None

    def __sub__(self, part: Sums) -> Sums:
        """Take the sums of some of the rows out; the memory of ``part`` is used for the result."""
        scatter = None
        if self.scatter is not None and part.scatter is not None:
            scatter = np.subtract(self.scatter, part.scatter, out=part.scatter)
        return Sums(
            self.counts - part.counts,
            self.drift - part.drift,
            self.within - part.within,
            self.powers - part.powers,
            scatter,
        )


def blocks(x: NDArray[Any], rows: Ints | None, *, width: int) -> Iterator[tuple[Any, Array]]:
    """Give rows in float64, block by block, a new array each.

    Args:
        x: all rows, ``[n, M]``.
        rows: numbers of those wanted, ascending; None for all.
        width: numbers per row that the caller makes, at most; it sets the length of a block.

    Yields:
        What selects the block's rows, and the block.
    """
    step = max(16, _BLOCK_BYTES // (8 * width))
    for start in range(0, len(x) if rows is None else len(rows), step):
        part = slice(start, start + step) if rows is None else rows[start : start + step]
        yield part, x[part].astype(np.float64)


def add_class_sums(total: Array, block: Array, y: Ints) -> None:
    """Add the rows of a block to the sums of their classes, ``[C, M]``, in place."""
    order = np.argsort(y, kind="stable")
    begin = np.flatnonzero(np.diff(y[order], prepend=-1))
    total[y[order[begin]]] += np.add.reduceat(block[order], begin, axis=0)


def centre_of(x: NDArray[Any], y: Ints, n_classes: int) -> Centre:
    """Make the means of all rows and of every class.

    From differences to the first row, so that the mean of a constant feature is exact.

    Args:
        x: rows, ``[n, M]``, finite.
        y: class ids, ``[n]``.
        n_classes: C.

    Returns:
        The means.

    Raises:
        InvalidInput: if values are above 1e70, or all differences below 1e-70 but not 0.
    """
    first = x[0].astype(np.float64)
    total, reach = np.zeros((n_classes, x.shape[1])), 0.0
    for part, block in blocks(x, None, width=x.shape[1]):
        block -= first
        reach = max(reach, float(block.max()), -float(block.min()))
        add_class_sums(total, block, y[part])
    largest = max(reach, float(np.abs(first).max()))
    if largest > _LARGEST or 0 < reach < _SMALLEST:
        raise InvalidInput(
            "features x",
            expected=f"values up to {_LARGEST:.0e} whose differences are above {_SMALLEST:.0e}",
            found=f"{largest:.1e}" if largest > _LARGEST else f"differences up to {reach:.1e}",
            fix="Scale the features.",
        )
    counts = np.bincount(y, minlength=n_classes).astype(np.int64)
    shift = total.sum(axis=0) / len(y)
    total /= np.maximum(counts, 1)[:, None]
    total[counts > 0] -= shift
    return Centre(first + shift, total, counts)


def sums_of(
    x: NDArray[Any],
    y: Ints,
    *,
    centre: Centre,
    rows: Ints | None = None,
    scatter: bool = False,
    per_row: Rows | None = None,
) -> Sums:
    """Make the sums of some rows.

    Args:
        x: all rows, ``[n, M]``.
        y: their class ids.
        centre: what the sums are about.
        rows: numbers of the rows, ascending; None for all.
        scatter: whether the ``[M, M]`` matrix is wanted.
        per_row: filled in where given.

    Returns:
        The sums.
    """
    n_classes, dim = centre.classes.shape
    counts = np.bincount(y if rows is None else y[rows], minlength=n_classes).astype(np.int64)
    drift, within = np.zeros((n_classes, dim)), np.zeros(n_classes)
    powers, products = np.zeros((3, dim)), np.zeros((dim, dim)) if scatter else None
    for part, z in blocks(x, rows, width=max(dim, n_classes)):
        labels = y[part]
        if per_row is not None:
            per_row.norm[part] = np.sqrt(np.square(z).sum(axis=1))
        z -= centre.mean
        _add_powers(powers, z)
        if products is not None:
            products += z.T @ z
        gap = z - centre.classes[labels]
        add_class_sums(drift, gap, labels)
        own = np.square(gap, out=gap).sum(axis=1)
        within += np.bincount(labels, own, minlength=n_classes)
        if per_row is not None:
            _add_cosines(per_row, part, z, labels=labels, centre=centre)
            per_row.right[part] = _right(z, labels, own, centre=centre)
    return Sums(counts, drift, within, powers, products)


def _add_powers(powers: Array, z: Array) -> None:
    square = z * z
    powers[0] += square.sum(axis=0)
    powers[1] += np.einsum("ij,ij->j", square, z)
    powers[2] += np.einsum("ij,ij->j", square, square)


# ------------------------------------------------------------------ single rows
def _add_cosines(rows: Rows, part: Any, z: Array, *, labels: Ints, centre: Centre) -> None:
    """Cosines between rows and the means of their classes, as they are and centred."""
    mean, own = centre.mean, centre.classes
    dot = np.einsum("ij,ij->i", z, own[labels])
    square, own_square = np.square(z).sum(axis=1), np.square(own).sum(axis=1)
    noise = (16 * EPS) ** 2 * (mean @ mean + square)
    noise[centre.counts[labels] == 1] = np.inf  # alone, a row is its own class mean
    rows.cosine_centred[part] = _cosine(dot, square, own_square[labels], noise=noise)
    raw_dot = dot + z @ mean + (own @ mean)[labels] + mean @ mean
    raw_square = np.square(own + mean).sum(axis=1)
    rows.cosine[part] = _cosine(raw_dot, rows.norm[part] ** 2, raw_square[labels], noise=noise)


def _cosine(dot: Array, left: Array, right: Array, *, noise: Array) -> Array:
    good = (left > noise) & (right > noise)
    size = np.sqrt(np.where(good, left, 1.0)) * np.sqrt(np.where(good, right, 1.0))
    return np.where(good, np.clip(dot / size, -1.0, 1.0), np.nan)


def _right(z: Array, labels: Ints, own: Array, *, centre: Centre) -> Array:
    """Whether the own class mean, made without the row, is nearer than all others."""
    present = np.flatnonzero(centre.counts)
    others = centre.classes[present]
    distance = np.square(z).sum(axis=1)[:, None] - 2 * (z @ others.T)
    distance += np.square(others).sum(axis=1)
    np.maximum(distance, 0.0, out=distance)
    distance[np.arange(len(z)), np.searchsorted(present, labels)] = np.inf
    nearest = distance.min(axis=1)
    count = centre.counts[labels]
    several = count > 1
    # x - (mean without x) = (x - mean) * n / (n - 1)
    without = own * (count / np.maximum(count - 1, 1)) ** 2
    tied = (distance == without[:, None]).sum(axis=1)
    hit = np.where(without < nearest, 1.0, np.where(tied > 0, 1.0 / (1 + tied), 0.0))
    return np.where(several & (without <= nearest), hit, 0.0)
