"""From neighbours' classes to the spectrum of the class graph, and the gradient summed over it."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.distance import pdist, squareform
from scipy.special import gammaln

__all__ = [
    "ball_log_volume",
    "cube_log_volume",
    "cumulative_gradient",
    "laplacian_eigenvalues",
    "similarity",
]

Array = NDArray[np.float64]
_BLOCK_BYTES = 1 << 24


def cube_log_volume(x: NDArray[Any], rows: NDArray[np.int64], ids: NDArray[np.int64]) -> Array:
    """Log volume of the box around each row that holds its neighbours (a Parzen window).

    ``log V = sum_d log(2 max_neighbour |x_neighbour,d - x_row,d|)``; ``-inf`` where a side is 0.

    Args:
        x: all rows, shape ``[n, M]``.
        rows: numbers of the rows in the middle, shape ``[q]``.
        ids: numbers of their neighbours, shape ``[q, k]``.

    Returns:
        Float64, shape ``[q]``.
    """
    out = np.empty(len(rows))
    step = max(1, _BLOCK_BYTES // (8 * x.shape[1]))
    for start in range(0, len(rows), step):
        part = slice(start, start + step)
        middle = np.take(x, rows[part], axis=0).astype(np.float64)
        side = np.zeros_like(middle)
        for neighbour in ids[part].T:  # one rank at a time: no [q, k, M] array
            np.maximum(side, np.abs(np.take(x, neighbour, axis=0) - middle), out=side)
        with np.errstate(divide="ignore"):
            out[part] = np.log(2 * side).sum(axis=1)
    return out


def ball_log_volume(radius: Array, dim: int) -> Array:
    """Log volume of balls: ``(M/2) log pi - log Gamma(M/2 + 1) + M log r``; ``-inf`` for r = 0."""
    with np.errstate(divide="ignore"):
        log_radius = np.log(radius)
    return 0.5 * dim * np.log(np.pi) - gammaln(0.5 * dim + 1) + dim * log_radius


def similarity(owner: NDArray[np.int64], labels: NDArray[np.int64], log_weight: Array) -> Array:
    """Share of every class among the weighted neighbours of each class.

    ``S_ij ~ sum_{rows of class i} weight * (share of neighbours in class j)``, rows of sum 1.

    Args:
        owner: class of each drawn row, ``0 .. K-1``, ascending, every class present, shape ``[q]``.
        labels: classes of its neighbours, shape ``[q, k]``.
        log_weight: log of its weight, finite, shape ``[q]``; only differences in a class matter.

    Returns:
        S, float64, shape ``[K, K]``.
    """
    begin = np.flatnonzero(np.diff(owner, prepend=-1))
    n_classes = len(begin)
    weight = np.exp(log_weight - np.maximum.reduceat(log_weight, begin)[owner])
    cell = owner[:, None] * n_classes + labels
    total = np.bincount(cell.ravel(), np.repeat(weight, labels.shape[1]), n_classes**2)
    total = total.reshape(n_classes, n_classes)
    return np.asarray(total / total.sum(axis=1, keepdims=True))


def laplacian_eigenvalues(shares: Array) -> Array:
    """Ascending eigenvalues of the class graph's Laplacian, ``0 .. K``.

    ``W_ij = 1 - BrayCurtis(S_i, S_j)``, ``L = diag(sum_j W_ij) - W``.

    Args:
        shares: S, shape ``[K, K]``, rows not all zero.

    Returns:
        Float64, shape ``[K]``; rounding below 0 is removed.
    """
    # SciPy sums |a - b| and |a + b| in one order: disjoint rows give exactly 1, so csg exactly 0.
    graph = 1 - squareform(pdist(shares, "braycurtis"))
    laplacian = np.diag(graph.sum(axis=1)) - graph
    return np.maximum(np.linalg.eigvalsh(laplacian), 0.0)


def cumulative_gradient(eigenvalues: Array) -> float:
    """Sum of the running maximum of ``(lambda_{i+1} - lambda_i) / (K - i)``, ``i = 0 .. K-2``.

    Args:
        eigenvalues: ascending, shape ``[K]``.

    Returns:
        The cumulative spectral gradient, ``0 .. K-1``.

    Example:
        >>> import numpy as np
        >>> from temperance.task.spectrum import cumulative_gradient
        >>> cumulative_gradient(np.array([0.0, 3.0, 3.0]))  # three classes that overlap fully
        2.0
    """
    gaps = np.diff(eigenvalues) / np.arange(len(eigenvalues), 1, -1)
    return float(np.maximum.accumulate(gaps).sum())
