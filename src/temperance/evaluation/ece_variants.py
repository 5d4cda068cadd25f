"""Calibration errors beside the ECE: of every class, without the bias of few rows, and the worst.

All of them are worked out from bins, which are those of ``ece``: ``(a, b]``, the first closed below
too, so that every row counts once, a confidence of exactly 0 or 1 as well. The bin-free error is in
``smooth_ece``.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from temperance.evaluation.calibration import bin_edges, bin_index
from temperance.evaluation.ece_bias import folded_bias
from temperance.evaluation.predictions import Predictions, read_predictions
from temperance.evaluation.scores import score_rows
from temperance.evaluation.weighted import (
    Floats,
    Measure,
    class_edges,
    class_sums,
    plain_value,
    top_label_sums,
)

__all__ = ["class_ece", "debiased_ece", "max_ece", "rms_ece"]


def class_ece(
    *,
    logits: ArrayLike | None = None,
    probs: ArrayLike | None = None,
    labels: ArrayLike,
    bins: int = 15,
    scheme: str = "width",
) -> float:
    """Class-wise ECE: the mean over classes of the calibration error of their probability.

    ``1 / C * sum_c sum_b n_cb / n * |share of label c in bin b - mean p_c in bin b|``. All
    probabilities count, not only the largest, and all classes alike, those without rows too. With
    many classes nearly all probabilities are close to 0 and so is this figure: compare it between
    models on the same classes only. For two classes it is the reliability of class 1.

    Args:
        logits: numbers before the softmax, shape ``[n, C]``, or ``[n]`` for two classes.
        probs: probabilities, same shapes; exactly one of the two is given.
        labels: class ids, shape ``[n]``.
        bins: number of bins, 1 or more.
        scheme: ``"width"`` (static: SCE) or ``"mass"``, quantiles of each class's probability
            (adaptive: ACE).

    Returns:
        The error, 0 to 1, a mean over classes (some papers print the sum). Few rows push it up.

    Raises:
        InvalidInput: if the predictions, labels, ``bins`` or ``scheme`` cannot be used.

    Example:
        >>> from temperance.evaluation import class_ece
        >>> round(class_ece(probs=[[0.8, 0.2], [0.8, 0.2]], labels=[0, 1]), 6)
        0.3

    Reference:
        Kull, Perello-Nieto, Kängsepp, Silva Filho, Song, Flach, Beyond temperature scaling:
        obtaining well-calibrated multi-class probabilities with Dirichlet calibration, 2019,
        arXiv 1910.12656. Nixon, Dusenberry, Jerfel, Nguyen, Liu, Zhang, Tran, Measuring calibration
        in deep learning, 2019, arXiv 1904.01685.
    """
    predictions = read_predictions(logits=logits, probs=probs, labels=labels)
    return plain_value(class_ece_measure(predictions, bins=bins, scheme=scheme), len(predictions))


def max_ece(
    *,
    logits: ArrayLike | None = None,
    probs: ArrayLike | None = None,
    labels: ArrayLike,
    bins: int = 15,
    scheme: str = "width",
) -> float:
    """Maximum calibration error: the largest gap of any bin of the confidence.

    ``max_b |accuracy_b - confidence_b|`` over the bins that have rows. A bin with one row can give
    nearly 1: with ``scheme="mass"`` all bins hold about equally many rows.

    Args:
        logits: numbers before the softmax, shape ``[n, C]``, or ``[n]`` for two classes.
        probs: probabilities, same shapes; exactly one of the two is given.
        labels: class ids, shape ``[n]``.
        bins: number of bins, 1 or more.
        scheme: ``"width"`` or ``"mass"``, as in ``ece``.

    Returns:
        The error, 0 to 1. Few rows push it up, more than the ECE.

    Raises:
        InvalidInput: if the predictions, labels, ``bins`` or ``scheme`` cannot be used.

    Example:
        >>> from temperance.evaluation import max_ece
        >>> round(max_ece(probs=[[0.05, 0.95], [0.0, 1.0], [0.4, 0.6]], labels=[1, 0, 1]), 6)
        0.475

    Reference:
        Naeini, Cooper, Hauskrecht, Obtaining well calibrated probabilities using Bayesian binning,
        2015.
    """
    predictions = read_predictions(logits=logits, probs=probs, labels=labels)
    return plain_value(max_ece_measure(predictions, bins=bins, scheme=scheme), len(predictions))


def debiased_ece(
    *,
    logits: ArrayLike | None = None,
    probs: ArrayLike | None = None,
    labels: ArrayLike,
    bins: int = 15,
    scheme: str = "width",
) -> float:
    """ECE less the part that few rows bring.

    ``max(0, ECE - sum_b n_b / n * bias_b)``, with ``bias_b = E|x| - |g_b|`` for a normal x around
    the gap ``g_b = confidence_b - accuracy_b`` of standard deviation ``sqrt(accuracy_b *
    (1 - accuracy_b) / n_b)``. The authors draw x; here the mean is the closed form of
    ``folded_bias``. It is no cure: a calibrated bin is too large by 0.80 standard errors on
    average, and what is taken off is 0.33 of one, because the gap at hand stands for the true one.

    Args:
        logits: numbers before the softmax, shape ``[n, C]``, or ``[n]`` for two classes.
        probs: probabilities, same shapes; exactly one of the two is given.
        labels: class ids, shape ``[n]``.
        bins: number of bins, 1 or more.
        scheme: ``"width"`` or ``"mass"``, as in ``ece``.

    Returns:
        The error, 0 to 1; never more than ``ece`` with the same bins. A bin whose rows are all
        right or all wrong (also one of a single row) has no spread and is left as it is.

    Raises:
        InvalidInput: if the predictions, labels, ``bins`` or ``scheme`` cannot be used.

    Example:
        >>> from temperance.evaluation import debiased_ece, ece
        >>> rows = {"probs": [[0.3, 0.7]] * 4, "labels": [1, 1, 1, 0]}
        >>> round(ece(**rows), 6), debiased_ece(**rows)
        (0.05, 0.0)

    Reference:
        Kumar, Liang, Ma, Verified uncertainty calibration, 2019, arXiv 1909.10155, section 4 and
        their code for norm 1.
    """
    predictions = read_predictions(logits=logits, probs=probs, labels=labels)
    measure = debiased_ece_measure(predictions, bins=bins, scheme=scheme)
    return plain_value(measure, len(predictions))


def rms_ece(
    *,
    logits: ArrayLike | None = None,
    probs: ArrayLike | None = None,
    labels: ArrayLike,
    bins: int = 15,
    scheme: str = "mass",
) -> float:
    """Root mean square calibration error of the most probable class, debiased.

    ``sqrt(max(0, sum_b n_b / n * (g_b^2 - accuracy_b * (1 - accuracy_b) / (n_b - 1))))`` with the
    gap ``g_b = confidence_b - accuracy_b``. Its square is free of bias for the given bins (before
    the maximum with 0). A bin of one row has no spread and is not debiased.

    Args:
        logits: numbers before the softmax, shape ``[n, C]``, or ``[n]`` for two classes.
        probs: probabilities, same shapes; exactly one of the two is given.
        labels: class ids, shape ``[n]``.
        bins: number of bins, 1 or more.
        scheme: ``"mass"``, as the authors have it, or ``"width"``.

    Returns:
        The error, 0 to 1.

    Raises:
        InvalidInput: if the predictions, labels, ``bins`` or ``scheme`` cannot be used.

    Example:
        >>> from temperance.evaluation import rms_ece
        >>> round(rms_ece(probs=[[0.1, 0.9]] * 4, labels=[1, 1, 0, 0]), 4)
        0.2769

    Reference:
        Kumar, Liang, Ma, Verified uncertainty calibration, 2019, arXiv 1909.10155, definition 2.3
        and section 4.
    """
    predictions = read_predictions(logits=logits, probs=probs, labels=labels)
    return plain_value(rms_ece_measure(predictions, bins=bins, scheme=scheme), len(predictions))


# ------------------------------------------------------------------ the measures
def class_ece_measure(
    predictions: Predictions, *, bins: int = 15, scheme: str = "width"
) -> Measure:
    """Measure of ``class_ece``."""
    edges = class_edges(predictions, bins=bins, scheme=scheme)
    scale = len(predictions) * predictions.n_classes

    def measure(weights: Floats) -> Floats:
        _, total, hits = class_sums(predictions, edges, weights)
        return np.asarray(np.abs(total - hits).sum(axis=(1, 2)) / scale)

    return measure


def max_ece_measure(predictions: Predictions, *, bins: int = 15, scheme: str = "width") -> Measure:
    """Measure of ``max_ece``."""
    sums = _top_label(predictions, bins, scheme)

    def measure(weights: Floats) -> Floats:
        count, confidence, hits = sums(weights)
        gap = np.divide(np.abs(confidence - hits), count, out=np.zeros_like(hits), where=count > 0)
        return np.asarray(gap.max(axis=1))

    return measure


def debiased_ece_measure(
    predictions: Predictions, *, bins: int = 15, scheme: str = "width"
) -> Measure:
    """Measure of ``debiased_ece``."""
    sums, n = _top_label(predictions, bins, scheme), len(predictions)

    def measure(weights: Floats) -> Floats:
        count, confidence, hits = sums(weights)
        share = np.divide(hits, count, out=np.zeros_like(hits), where=count > 0)
        gap = (confidence - hits) / n
        # the share of a bin has a standard error; the bin's part of the ECE is n_b / n of it
        error = np.sqrt(np.maximum(share * (1 - share), 0.0) * count) / n
        rest = np.abs(gap) - folded_bias(gap, error)
        return np.maximum(rest.sum(axis=1), 0.0)

    return measure


def rms_ece_measure(predictions: Predictions, *, bins: int = 15, scheme: str = "mass") -> Measure:
    """Measure of ``rms_ece``."""
    sums, n = _top_label(predictions, bins, scheme), len(predictions)

    def measure(weights: Floats) -> Floats:
        count, confidence, hits = sums(weights)
        rows = np.maximum(count, 1.0)
        share, gap = hits / rows, (confidence - hits) / rows
        spread = share * (1 - share) / np.maximum(count - 1, 1.0)
        square = (count / n * (gap**2 - spread)).sum(axis=1)
        return np.sqrt(np.maximum(square, 0.0))

    return measure


def _top_label(
    predictions: Predictions, bins: int, scheme: str
) -> Callable[[Floats], tuple[Floats, Floats, Floats]]:
    """Count, sum of confidences and number of right rows in every bin, for any weights."""
    scores = score_rows(predictions)
    edges = bin_edges(scores.confidence, bins=bins, scheme=scheme)
    index: NDArray[np.intp] = bin_index(scores.confidence, edges)
    columns = (np.ones(len(predictions)), scores.confidence, scores.correct)

    def sums(weights: Floats) -> tuple[Floats, Floats, Floats]:
        count, confidence, hits = top_label_sums(index, columns, len(edges) - 1, weights)
        return count, confidence, hits

    return sums
