"""Figures as functions of how often each row counts: what the bootstrap needs, and the plain value.

A ``Measure`` is made once from the rows. It takes weights, shape ``[replicates, n]``, whole numbers
that add up to ``n`` in every replicate, and gives one figure per replicate. The figure of the rows
as they are is that of weights of 1, so that value and interval cannot be two different things.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from temperance.evaluation.calibration import bin_edges, bin_index
from temperance.evaluation.predictions import Predictions

__all__ = [
    "Measure",
    "class_columns",
    "class_edges",
    "class_sums",
    "mean_measure",
    "plain_value",
    "probability_chunks",
    "top_label_sums",
]

Floats = NDArray[np.float64]
Measure = Callable[[Floats], Floats]

_BLOCK = 1 << 24  # numbers of whole columns held together: 128 MB


def plain_value(measure: Measure, n: int) -> float:
    """Figure of the ``n`` rows as they are."""
    return float(measure(np.ones((1, n)))[0])


def mean_measure(column: Floats) -> Measure:
    """Measure of a mean over rows; ``column`` is finite or the value is infinite."""
    if np.isfinite(column).all():
        return lambda weights: weights @ column / len(column)
    return lambda weights: np.full(len(weights), column.mean())


def probability_chunks(predictions: Predictions) -> Iterator[tuple[slice, Floats]]:
    """Walk the rows in chunks of bounded size.

    Args:
        predictions: checked logits or probabilities.

    Yields:
        The rows and their probabilities in float64: the softmax of logits; probabilities as they
        are.
    """
    for part, z, _ in predictions.shifted():
        if predictions.from_logits:
            p = np.exp(z, out=z)
            p /= p.sum(axis=1, keepdims=True)
        else:
            p = predictions.scores[part].astype(np.float64)
        yield part, p


def top_label_sums(
    index: NDArray[np.intp], columns: Sequence[Floats], n_bins: int, weights: Floats
) -> list[Floats]:
    """Sums of some columns in every bin.

    Args:
        index: bin of every row.
        columns: values of every row.
        n_bins: number of bins.
        weights: how often each row counts, shape ``[replicates, n]``.

    Returns:
        For each column its sums, shape ``[replicates, n_bins]``.
    """
    return [_sums(index[:, None], column[:, None], n_bins, weights) for column in columns]


def class_columns(predictions: Predictions) -> Iterator[Floats]:
    """Probabilities of one class after the other, each ``[n]``, made for a block of classes."""
    n, n_classes = predictions.scores.shape
    step = max(1, _BLOCK // n)
    for start in range(0, n_classes, step):
        block = np.empty((n, min(step, n_classes - start)))
        for part, p in probability_chunks(predictions):
            block[part] = p[:, start : start + step]
        yield from block.T


def class_edges(predictions: Predictions, *, bins: int, scheme: str) -> list[Floats]:
    """Edges of the bins of each class's probability.

    Args:
        predictions: checked logits or probabilities.
        bins: number of bins.
        scheme: ``"width"`` or ``"mass"``, as in ``ece``.

    Returns:
        One array for all classes (equal widths), or one for each class (equal mass).
    """
    shared = bin_edges(np.zeros(1), bins=bins, scheme=scheme)
    if scheme == "width":
        return [shared]
    return [bin_edges(p, bins=bins, scheme=scheme) for p in class_columns(predictions)]


def class_sums(
    predictions: Predictions, edges: Sequence[Floats], weights: Floats
) -> tuple[Floats, Floats, Floats]:
    """Count, sum of probabilities and number of labels in every bin of every class.

    Args:
        predictions: checked logits or probabilities.
        edges: from ``class_edges``.
        weights: how often each row counts, shape ``[replicates, n]``.

    Returns:
        Three arrays ``[replicates, C, bins]``.
    """
    n_classes, n_bins = predictions.n_classes, max(len(e) for e in edges) - 1
    shape = (len(weights), n_classes, n_bins)
    count, total, hits = (np.zeros((shape[0], n_classes * n_bins)) for _ in range(3))
    for part, p in probability_chunks(predictions):
        cell = _class_bins(p, edges) + n_bins * np.arange(n_classes)
        w = weights[:, part]
        at = cell[np.arange(len(p)), predictions.ids[part]][:, None]
        count += _sums(cell, np.ones_like(p), count.shape[1], w)
        total += _sums(cell, p, count.shape[1], w)
        hits += _sums(at, np.ones(at.shape), count.shape[1], w)
    return count.reshape(shape), total.reshape(shape), hits.reshape(shape)


# ------------------------------------------------------------------ helpers
def _sums(cell: NDArray[np.intp], values: Floats, n_cells: int, weights: Floats) -> Floats:
    """Weighted sums over rows into cells; ``cell`` and ``values`` are ``[n, k]``."""
    if len(weights) == 1:
        w = np.broadcast_to(weights[0][:, None], cell.shape)
        sums: Floats = np.bincount(cell.ravel(), (values * w).ravel(), n_cells).astype(np.float64)
        return sums[None]
    from scipy.sparse import csr_array

    starts = np.arange(0, cell.size + 1, cell.shape[1])
    matrix = csr_array((values.ravel(), cell.ravel(), starts), shape=(len(cell), n_cells))
    return np.asarray(matrix.T @ np.ascontiguousarray(weights.T)).T


def _class_bins(p: Floats, edges: Sequence[Floats]) -> NDArray[np.intp]:
    if len(edges) == 1:
        return bin_index(p, edges[0])
    return np.stack([bin_index(column, e) for column, e in zip(p.T, edges, strict=True)], axis=1)
