"""How bold the probabilities are, whether or not they are right: properties of them alone."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from temperance.evaluation.predictions import Predictions, read_predictions
from temperance.evaluation.scores import score_rows
from temperance.evaluation.weighted import (
    Floats,
    Measure,
    mean_measure,
    plain_value,
    probability_chunks,
)

__all__ = ["mean_confidence", "overconfidence", "sharpness"]


def mean_confidence(
    *, logits: ArrayLike | None = None, probs: ArrayLike | None = None, labels: ArrayLike
) -> float:
    """Mean probability of the most probable class, ``mean(max_c p_ic)``.

    Args:
        logits: numbers before the softmax, shape ``[n, C]``, or ``[n]`` for two classes.
        probs: probabilities, same shapes; exactly one of the two is given.
        labels: class ids, shape ``[n]``; they are checked and do not matter.

    Returns:
        The mean, ``1 / C`` to 1.

    Raises:
        InvalidInput: if the predictions or labels cannot be used.

    Example:
        >>> from temperance.evaluation import mean_confidence
        >>> mean_confidence(probs=[[0.5, 0.5], [0.0, 1.0]], labels=[0, 0])
        0.75
    """
    predictions = read_predictions(logits=logits, probs=probs, labels=labels)
    return plain_value(mean_confidence_measure(predictions), len(predictions))


def overconfidence(
    *, logits: ArrayLike | None = None, probs: ArrayLike | None = None, labels: ArrayLike
) -> float:
    """Mean confidence less accuracy: which way a model is wrong about itself.

    Args:
        logits: numbers before the softmax, shape ``[n, C]``, or ``[n]`` for two classes.
        probs: probabilities, same shapes; exactly one of the two is given.
        labels: class ids, shape ``[n]``.

    Returns:
        The difference, -1 to 1: above 0 where the model is too sure, below 0 where it is not sure
        enough. Its size is the ECE of a single bin, so that 0 does not mean calibrated.

    Raises:
        InvalidInput: if the predictions or labels cannot be used.

    Example:
        >>> from temperance.evaluation import overconfidence
        >>> overconfidence(probs=[[0.5, 0.5], [0.0, 1.0]], labels=[0, 0])
        0.25
    """
    predictions = read_predictions(logits=logits, probs=probs, labels=labels)
    return plain_value(overconfidence_measure(predictions), len(predictions))


def sharpness(
    *, logits: ArrayLike | None = None, probs: ArrayLike | None = None, labels: ArrayLike
) -> float:
    """Spread of the probabilities around their mean, summed over the classes.

    ``mean_i sum_c (p_ic - mean_i p_ic)^2``: 0 for a model that says the same for every row. Of
    calibrated probabilities it is the resolution, and ``Brier score = uncertainty - sharpness``.
    For two classes it is twice the variance of the probability of class 1.

    Args:
        logits: numbers before the softmax, shape ``[n, C]``, or ``[n]`` for two classes.
        probs: probabilities, same shapes; exactly one of the two is given.
        labels: class ids, shape ``[n]``; they are checked and do not matter.

    Returns:
        The spread, 0 to 1. Sharper is better only among models that are equally reliable.

    Raises:
        InvalidInput: if the predictions or labels cannot be used.

    Example:
        >>> from temperance.evaluation import sharpness
        >>> sharpness(probs=[[1.0, 0.0], [0.0, 1.0]], labels=[0, 1])
        0.5

    Reference:
        Gneiting, Balabdaoui, Raftery, Probabilistic forecasts, calibration and sharpness, 2007, for
        the notion; Murphy, Winkler, A general framework for forecast verification, 1987, for the
        variance as its measure.
    """
    predictions = read_predictions(logits=logits, probs=probs, labels=labels)
    return plain_value(sharpness_measure(predictions), len(predictions))


# ------------------------------------------------------------------ the measures
def mean_confidence_measure(predictions: Predictions) -> Measure:
    """Measure of ``mean_confidence``."""
    return mean_measure(score_rows(predictions).confidence)


def overconfidence_measure(predictions: Predictions) -> Measure:
    """Measure of ``overconfidence``."""
    scores = score_rows(predictions)
    return mean_measure(scores.confidence - scores.correct)


def sharpness_measure(predictions: Predictions) -> Measure:
    """Measure of ``sharpness``."""
    n, centre = len(predictions), np.zeros(predictions.n_classes)
    for _, p in probability_chunks(predictions):
        centre += p.sum(axis=0) / n

    def measure(weights: Floats) -> Floats:
        first = np.zeros((len(weights), predictions.n_classes))
        second = np.zeros(len(weights))
        for part, p in probability_chunks(predictions):
            p -= centre  # around the mean of all rows, so that a small spread is not lost
            first += weights[:, part] @ p / n
            second += weights[:, part] @ np.einsum("nc,nc->n", p, p) / n
        return np.maximum(second - (first**2).sum(axis=1), 0.0)

    return measure
