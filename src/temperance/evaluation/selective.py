"""Answering only the rows that a model is sure of: risk, coverage and the area under their curve.

Rows are ranked by the probability of the most probable class. From logits it is ranked by what the
other classes leave, ``sum_c exp(z_c - max z)``, which tells rows apart whose confidences all round
to 1. Rows that are still equal count as if drawn in any order (the mean over all orders), so that
the figures do not depend on the order of the file.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from temperance.errors import InvalidInput
from temperance.evaluation.predictions import Predictions, read_predictions
from temperance.evaluation.weighted import Floats, Measure, plain_value

__all__ = ["aurc", "eaurc", "risk_coverage", "selective_accuracy"]


def aurc(
    *, logits: ArrayLike | None = None, probs: ArrayLike | None = None, labels: ArrayLike
) -> float:
    """Area under the risk-coverage curve.

    ``1 / n * sum_k risk_k``, where ``risk_k`` is the share of errors among the k rows with the
    highest confidence.

    Args:
        logits: numbers before the softmax, shape ``[n, C]``, or ``[n]`` for two classes.
        probs: probabilities, same shapes; exactly one of the two is given.
        labels: class ids, shape ``[n]``.

    Returns:
        The area, 0 to 1 (papers print it times 1000); lower is better. A temperature leaves the
        order of two classes, and so the figure, as it is; with more classes nearly so.

    Raises:
        InvalidInput: if the predictions or labels cannot be used.

    Example:
        >>> from temperance.evaluation import aurc
        >>> aurc(probs=[[0.1, 0.9], [0.4, 0.6]], labels=[1, 0])
        0.25

    Reference:
        Geifman, El-Yaniv, Selective classification for deep neural networks, 2017,
        arXiv 1705.08500. Geifman, Uziel, El-Yaniv, Bias-reduced uncertainty estimation for deep
        neural classifiers, 2018, arXiv 1805.08206.
    """
    predictions = read_predictions(logits=logits, probs=probs, labels=labels)
    return plain_value(aurc_measure(predictions), len(predictions))


def eaurc(
    *, logits: ArrayLike | None = None, probs: ArrayLike | None = None, labels: ArrayLike
) -> float:
    """Excess AURC: what the ranking of the rows adds to the area of the best ranking.

    ``AURC - AURC*``, where ``AURC* = 1 / n * sum_{j=1..m} j / (n - m + j)`` is that of all ``m``
    errors at the end. This is exact; the form ``r + (1 - r) ln(1 - r)`` of the paper is its limit
    for many rows.

    Args:
        logits: numbers before the softmax, shape ``[n, C]``, or ``[n]`` for two classes.
        probs: probabilities, same shapes; exactly one of the two is given.
        labels: class ids, shape ``[n]``.

    Returns:
        The excess, 0 to 1; 0 where every right row is ranked before every wrong one.

    Raises:
        InvalidInput: if the predictions or labels cannot be used.

    Example:
        >>> from temperance.evaluation import eaurc
        >>> eaurc(probs=[[0.1, 0.9], [0.4, 0.6]], labels=[1, 0])
        0.0

    Reference:
        Geifman, Uziel, El-Yaniv, Bias-reduced uncertainty estimation for deep neural classifiers,
        2018, arXiv 1805.08206, section 3.
    """
    predictions = read_predictions(logits=logits, probs=probs, labels=labels)
    return plain_value(eaurc_measure(predictions), len(predictions))


def selective_accuracy(
    *,
    logits: ArrayLike | None = None,
    probs: ArrayLike | None = None,
    labels: ArrayLike,
    coverage: float = 0.8,
) -> float:
    """Accuracy on the share of the rows that the model is most sure of.

    Args:
        logits: numbers before the softmax, shape ``[n, C]``, or ``[n]`` for two classes.
        probs: probabilities, same shapes; exactly one of the two is given.
        labels: class ids, shape ``[n]``.
        coverage: share of the rows to answer, above 0 up to 1; ``ceil(coverage * n)`` rows.

    Returns:
        The accuracy, 0 to 1.

    Raises:
        InvalidInput: if the predictions, labels or coverage cannot be used.

    Example:
        >>> from temperance.evaluation import selective_accuracy
        >>> selective_accuracy(probs=[[0.1, 0.9], [0.4, 0.6]], labels=[1, 0], coverage=0.5)
        1.0

    Reference:
        Geifman, El-Yaniv, Selective classification for deep neural networks, 2017,
        arXiv 1705.08500.
    """
    predictions = read_predictions(logits=logits, probs=probs, labels=labels)
    measure = selective_accuracy_measure(predictions, coverage=coverage)
    return plain_value(measure, len(predictions))


def risk_coverage(
    *, logits: ArrayLike | None = None, probs: ArrayLike | None = None, labels: ArrayLike
) -> dict[str, NDArray[np.float64]]:
    """The risk-coverage curve.

    Args:
        logits: numbers before the softmax, shape ``[n, C]``, or ``[n]`` for two classes.
        probs: probabilities, same shapes; exactly one of the two is given.
        labels: class ids, shape ``[n]``.

    Returns:
        ``coverage`` (``k / n`` for k = 1 .. n), ``risk`` (share of errors among the k surest rows;
        its mean is the AURC) and ``best`` (the same if every right row came before the wrong ones).

    Raises:
        InvalidInput: if the predictions or labels cannot be used.

    Example:
        >>> from temperance.evaluation import risk_coverage
        >>> curve = risk_coverage(probs=[[0.1, 0.9], [0.4, 0.6]], labels=[0, 1])
        >>> curve["risk"].tolist(), curve["best"].tolist()
        ([1.0, 0.5], [0.0, 0.5])
    """
    predictions = read_predictions(logits=logits, probs=probs, labels=labels)
    order, start, wrong = _ranking(predictions)
    n = len(order)
    sizes = np.diff(np.append(start, n))
    each = np.repeat(np.add.reduceat(wrong, start) / sizes, sizes)  # a group's errors, spread
    k = np.arange(1, n + 1)
    best = np.maximum(k - (n - wrong.sum()), 0.0) / k
    return {"coverage": k / n, "risk": np.cumsum(each) / k, "best": best}


# ------------------------------------------------------------------ the measures
def aurc_measure(predictions: Predictions) -> Measure:
    """Measure of ``aurc``."""
    order, start, wrong = _ranking(predictions)
    harmonic = _harmonic(len(order))
    return lambda weights: np.array([_area(w[order], wrong, start, harmonic) for w in weights])


def eaurc_measure(predictions: Predictions) -> Measure:
    """Measure of ``eaurc``."""
    order, start, wrong = _ranking(predictions)
    n, harmonic = len(order), _harmonic(len(order))

    def measure(weights: Floats) -> Floats:
        out = np.empty(len(weights))
        for place, w in enumerate(weights[:, order]):
            errors = round(float(w @ wrong))
            best = (errors - (n - errors) * (harmonic[n] - harmonic[n - errors])) / n
            out[place] = max(0.0, _area(w, wrong, start, harmonic) - best)  # below 0 is rounding
        return out

    return measure


def selective_accuracy_measure(predictions: Predictions, *, coverage: float = 0.8) -> Measure:
    """Measure of ``selective_accuracy``."""
    number = isinstance(coverage, (int, float, np.number)) and not isinstance(coverage, bool)
    if not number or not 0 < coverage <= 1:
        raise InvalidInput(
            "coverage",
            expected="a share above 0 and up to 1",
            found=repr(coverage),
            fix="0.8 answers the surest 80 % of the rows.",
        )
    order, start, wrong = _ranking(predictions)
    n = len(order)
    answered = math.ceil(coverage * n - 1e-9)  # 0.07 * 100 is a little above 7

    def measure(weights: Floats) -> Floats:
        sizes = np.add.reduceat(weights[:, order], start, axis=1)
        errors = np.add.reduceat(weights[:, order] * wrong, start, axis=1)
        before = np.cumsum(sizes, axis=1) - sizes
        taken = np.clip(answered - before, 0.0, sizes)
        share = np.divide(taken, sizes, out=np.zeros_like(sizes), where=sizes > 0)
        return np.asarray(1.0 - (share * errors).sum(axis=1) / answered)

    return measure


def _ranking(predictions: Predictions) -> tuple[NDArray[np.intp], NDArray[np.intp], Floats]:
    """Rows by falling confidence, where groups of equal ones start, and which rows are wrong."""
    doubt, wrong = np.empty(len(predictions)), np.empty(len(predictions))
    for part, z, top in predictions.shifted():
        at = np.arange(len(z))
        wrong[part] = top != predictions.ids[part]
        if predictions.from_logits:
            p = np.exp(z, out=z)
            p[at, top] = 0.0
            doubt[part] = p.sum(axis=1)
        else:
            doubt[part] = -predictions.scores[part][at, top].astype(np.float64)
    order = np.argsort(doubt, kind="stable")
    sorted_doubt = doubt[order]
    new = np.concatenate([[True], sorted_doubt[1:] != sorted_doubt[:-1]])
    return order, np.flatnonzero(new), wrong[order]


def _harmonic(n: int) -> Floats:
    """``H_0 .. H_n``."""
    return np.concatenate([[0.0], np.cumsum(1.0 / np.arange(1, n + 1))])


def _area(w: Floats, wrong: Floats, start: NDArray[np.intp], harmonic: Floats) -> float:
    """AURC of weighted rows in their order.

    A group of t equal rows with e errors, after k rows with E errors, adds
    ``sum_{j=1..t} (E + e j / t) / (k + j) = e + (E - e k / t) (H_{k+t} - H_k)``.
    """
    size = np.add.reduceat(w, start)
    used = size > 0
    t, e = size[used], np.add.reduceat(w * wrong, start)[used]
    k, before = np.cumsum(t) - t, np.cumsum(e) - e
    first = k.astype(np.intp)
    span = harmonic[first + t.astype(np.intp)] - harmonic[first]
    return float((e + (before - e * k / t) * span).sum() / t.sum())
