"""How good probabilities are: accuracy, NLL, Brier score, top-label ECE and its bins.

Functions take ``logits=`` or ``probs=`` by name. Two classes may come as one number per row: it is
the logit (or the probability) of class 1, the row stands for two columns, and the ECE is that of
the more probable class, as for any number of classes; it is *not* the reliability of class 1.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from temperance.errors import InvalidInput
from temperance.evaluation.predictions import read_predictions
from temperance.evaluation.scores import RowScores, score_rows

__all__ = ["accuracy", "bin_edges", "brier", "ece", "nll", "reliability_bins"]

SCHEMES = ("width", "mass")


def accuracy(
    *, logits: ArrayLike | None = None, probs: ArrayLike | None = None, labels: ArrayLike
) -> float:
    """Share of rows whose most probable class is the label.

    ``mean(argmax_c p_ic == y_i)``; of equal probabilities the first class counts.

    Args:
        logits: numbers before the softmax, shape ``[n, C]``, or ``[n]`` for two classes.
        probs: probabilities, shape ``[n, C]``, or ``[n]`` for two classes; one of the two is given.
        labels: class ids, shape ``[n]``.

    Returns:
        The accuracy, 0 to 1.

    Raises:
        InvalidInput: if the predictions or labels cannot be used; the row is named.

    Example:
        >>> from temperance.evaluation import accuracy
        >>> accuracy(logits=[[2.0, 0.0], [0.0, 1.0]], labels=[0, 0])
        0.5
    """
    return float(
        score_rows(read_predictions(logits=logits, probs=probs, labels=labels)).correct.mean()
    )


def nll(
    *, logits: ArrayLike | None = None, probs: ArrayLike | None = None, labels: ArrayLike
) -> float:
    """Mean negative log-likelihood (cross entropy), in nats.

    ``mean(logsumexp(z_i) - z_i[y_i])`` from logits, ``mean(-log p_i[y_i])`` from probabilities.

    Args:
        logits: numbers before the softmax, shape ``[n, C]``, or ``[n]`` for two classes.
        probs: probabilities, shape ``[n, C]``, or ``[n]`` for two classes; one of the two is given.
        labels: class ids, shape ``[n]``.

    Returns:
        The NLL, 0 or more. It is ``inf`` if a label has probability 0 (or the logit -inf): there is
        no floor. Logits avoid the zeros that a softmax in single precision makes.

    Raises:
        InvalidInput: if the predictions or labels cannot be used; the row is named.

    Example:
        >>> from temperance.evaluation import nll
        >>> round(nll(probs=[[0.5, 0.5], [0.25, 0.75]], labels=[0, 1]), 4)
        0.4904
    """
    return float(score_rows(read_predictions(logits=logits, probs=probs, labels=labels)).nll.mean())


def brier(
    *, logits: ArrayLike | None = None, probs: ArrayLike | None = None, labels: ArrayLike
) -> float:
    """Brier score in its multi-class sum form.

    ``mean(sum_c (p_ic - [c == y_i])^2)``, from 0 to 2. For two classes this is twice the form that
    looks at class 1 alone.

    Args:
        logits: numbers before the softmax, shape ``[n, C]``, or ``[n]`` for two classes.
        probs: probabilities, shape ``[n, C]``, or ``[n]`` for two classes; one of the two is given.
        labels: class ids, shape ``[n]``.

    Returns:
        The score; lower is better.

    Raises:
        InvalidInput: if the predictions or labels cannot be used; the row is named.

    Example:
        >>> from temperance.evaluation import brier
        >>> brier(probs=[[0.5, 0.5]], labels=[1])
        0.5

    Reference:
        Brier, Verification of forecasts expressed in terms of probability, 1950.
    """
    return float(
        score_rows(read_predictions(logits=logits, probs=probs, labels=labels)).brier.mean()
    )


def ece(
    *,
    probs: ArrayLike | None = None,
    logits: ArrayLike | None = None,
    labels: ArrayLike,
    bins: int = 15,
    scheme: str = "width",
) -> float:
    """Expected calibration error of the most probable class.

    ``sum_b n_b / n * |accuracy_b - confidence_b|`` over bins of the confidence. Bins are open below
    and closed above, ``(a, b]``; the first is closed below too, so that every row counts once.

    Args:
        probs: probabilities, shape ``[n, C]``, or ``[n]`` (of class 1) for two classes.
        logits: numbers before the softmax, same shapes; exactly one of the two is given.
        labels: class ids, shape ``[n]``.
        bins: number of bins, 1 or more.
        scheme: ``"width"``: equal widths on [0, 1]; ``"mass"``: edges at quantiles of the
            confidences, so that bins hold about equally many rows (rows of equal confidence stay
            together).

    Returns:
        The ECE, 0 to 1. Few rows push it up: an exactly calibrated model does not get 0.

    Raises:
        InvalidInput: if the predictions, labels, ``bins`` or ``scheme`` cannot be used.

    Example:
        >>> from temperance import ece
        >>> round(ece(probs=[[0.05, 0.95], [0.0, 1.0]], labels=[1, 0]), 6)
        0.475

    Reference:
        Guo, Pleiss, Sun, Weinberger, On calibration of modern neural networks, 2017,
        arXiv 1706.04599, section 2. Mass: Nguyen, O'Connor, 2015, arXiv 1508.05154.
    """
    table = reliability_bins(probs=probs, logits=logits, labels=labels, bins=bins, scheme=scheme)
    return ece_of_bins(table)


def reliability_bins(
    *,
    probs: ArrayLike | None = None,
    logits: ArrayLike | None = None,
    labels: ArrayLike,
    bins: int = 15,
    scheme: str = "width",
) -> dict[str, list[Any]]:
    """Bins of the reliability diagram.

    Args:
        probs: probabilities, shape ``[n, C]``, or ``[n]`` (of class 1) for two classes.
        logits: numbers before the softmax, same shapes; exactly one of the two is given.
        labels: class ids, shape ``[n]``.
        bins: number of bins, 1 or more.
        scheme: ``"width"`` or ``"mass"``, as in ``ece``.

    Returns:
        ``edges`` (one more than bins), and for every bin ``count``, and the mean ``confidence`` and
        ``accuracy`` of its rows, both None where it has none. Plain lists, ready for JSON.

    Raises:
        InvalidInput: if the predictions, labels, ``bins`` or ``scheme`` cannot be used.

    Example:
        >>> from temperance.evaluation import reliability_bins
        >>> reliability_bins(probs=[[0.2, 0.8], [0.4, 0.6]], labels=[1, 1], bins=2)["count"]
        [0, 2]
    """
    scores = score_rows(read_predictions(logits=logits, probs=probs, labels=labels))
    edges = bin_edges(scores.confidence, bins=bins, scheme=scheme)
    return table_of_bins(scores, edges)


# ------------------------------------------------------------------ bins
def bin_edges(
    confidence: NDArray[np.float64], *, bins: int = 15, scheme: str = "width"
) -> NDArray[np.float64]:
    """Edges of the bins of confidence, ascending, one more than bins."""
    if isinstance(bins, bool) or not isinstance(bins, (int, np.integer)) or bins < 1:
        raise InvalidInput(
            "bins",
            expected="a whole number of at least 1",
            found=repr(bins),
            fix="15 is what most papers use.",
        )
    if scheme not in SCHEMES:
        raise InvalidInput(
            "scheme", expected="'width' or 'mass'", found=repr(scheme), fix="Choose one."
        )
    if scheme == "width":
        return np.linspace(0.0, 1.0, int(bins) + 1)
    edges = np.unique(np.quantile(confidence, np.linspace(0.0, 1.0, int(bins) + 1)))
    return edges if len(edges) > 1 else np.repeat(edges, 2)


def bin_index(confidence: NDArray[np.float64], edges: NDArray[np.float64]) -> NDArray[np.intp]:
    """Bin of every row: ``(a, b]``, the first ``[a, b]``."""
    index = np.searchsorted(edges, confidence, side="left") - 1
    return np.clip(index, 0, len(edges) - 2)


def table_of_bins(scores: RowScores, edges: NDArray[np.float64]) -> dict[str, list[Any]]:
    """Count, mean confidence and accuracy of every bin, as plain lists."""
    index, n_bins = bin_index(scores.confidence, edges), len(edges) - 1
    count = np.bincount(index, minlength=n_bins)
    means: dict[str, list[float | None]] = {}
    for name, values in (("confidence", scores.confidence), ("accuracy", scores.correct)):
        total = np.bincount(index, weights=values, minlength=n_bins)
        means[name] = [float(t / c) if c else None for t, c in zip(total, count, strict=True)]
    return {"edges": edges.tolist(), "count": count.tolist(), **means}


def ece_of_bins(table: dict[str, list[Any]]) -> float:
    """ECE from the bins of ``reliability_bins``."""
    triples = zip(table["count"], table["confidence"], table["accuracy"], strict=True)
    gaps = [count * abs(mean - hits) for count, mean, hits in triples if count]
    return float(sum(gaps) / sum(table["count"]))
