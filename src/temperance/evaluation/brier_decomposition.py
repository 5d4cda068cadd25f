"""The Brier score taken apart: how reliable the probabilities are, and how much they tell apart."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from temperance.errors import InvalidInput
from temperance.evaluation.calibration import SCHEMES, bin_edges
from temperance.evaluation.predictions import Predictions, read_predictions
from temperance.evaluation.scores import score_rows
from temperance.evaluation.weighted import (
    Floats,
    Measure,
    class_columns,
    class_edges,
    class_sums,
    plain_value,
)

__all__ = ["BrierParts", "brier_parts", "brier_reliability", "brier_resolution"]

ISOTONIC = "isotonic"


@dataclass(frozen=True)
class BrierParts:
    """The parts of a Brier score: ``score = reliability - resolution + uncertainty + residual``.

    Attributes:
        score: the Brier score in its sum form, 0 to 2.
        reliability: squared distance of the probabilities to the shares of the labels; 0 is best.
        resolution: how far these shares lie from the overall ones; higher is better.
        uncertainty: the score of the overall shares, ``1 - sum_c share_c^2``: of the data alone.
        residual: what the bins leave over, the spread of the probabilities inside them; 0 for
            ``scheme="isotonic"``.
        bins: number of bins for each class; None for ``"isotonic"``.
        scheme: how the bins were made.
    """

    score: float
    reliability: float
    resolution: float
    uncertainty: float
    residual: float
    bins: int | None
    scheme: str

    @property
    def refinement(self) -> float:
        """The other form, ``score = reliability + refinement + residual``; lower is better."""
        return self.uncertainty - self.resolution


def brier_parts(
    *,
    logits: ArrayLike | None = None,
    probs: ArrayLike | None = None,
    labels: ArrayLike,
    bins: int = 15,
    scheme: str = "width",
) -> BrierParts:
    """Take the Brier score apart, class by class, and add the parts up.

    With ``n_cb`` rows in bin b of class c, their mean probability ``p_cb``, the share ``o_cb`` of
    them that have the label c and the share ``o_c`` of all rows:
    ``reliability = sum_cb n_cb / n (p_cb - o_cb)^2``,
    ``resolution = sum_cb n_cb / n (o_cb - o_c)^2``, ``uncertainty = sum_c o_c (1 - o_c)``.
    These add up to the score exactly where all probabilities in a bin are equal, as in Murphy's
    paper; otherwise the ``residual`` is the variance inside the bins less twice the covariance with
    the labels. ``scheme="isotonic"`` needs no bins and leaves no residual: ``o`` is then the
    monotone curve that fits the labels best, and the two parts are differences of scores.

    Args:
        logits: numbers before the softmax, shape ``[n, C]``, or ``[n]`` for two classes.
        probs: probabilities, same shapes; exactly one of the two is given.
        labels: class ids, shape ``[n]``.
        bins: number of bins for each class, 1 or more; not used by ``"isotonic"``.
        scheme: ``"width"``, ``"mass"`` (as in ``ece``, of each class's probability), or
            ``"isotonic"`` (a sort for every class).

    Returns:
        The parts. Few rows push reliability and resolution up, by about the same amount.

    Raises:
        InvalidInput: if the predictions, labels, ``bins`` or ``scheme`` cannot be used.

    Example:
        >>> from temperance.evaluation import brier_parts
        >>> parts = brier_parts(probs=[[0.8, 0.2], [0.8, 0.2], [0.2, 0.8]], labels=[0, 1, 1])
        >>> round(parts.reliability, 4), round(parts.resolution, 4), round(parts.uncertainty, 4)
        (0.1467, 0.1111, 0.4444)

    Reference:
        Murphy, A new vector partition of the probability score, 1973. Stephenson, Coelho, Jolliffe,
        Two extra components in the Brier score decomposition, 2008. Isotonic: Dimitriadis,
        Gneiting, Jordan, Stable reliability diagrams for probabilistic classifiers, 2021,
        arXiv 2008.03033.
    """
    predictions = read_predictions(logits=logits, probs=probs, labels=labels)
    parts = _parts(predictions, bins, scheme)(np.ones((1, len(predictions))))
    score = float(score_rows(predictions).brier.mean())
    reliability, resolution, uncertainty = (float(part[0]) for part in parts)
    isotonic = scheme == ISOTONIC
    residual = 0.0 if isotonic else score - reliability + resolution - uncertainty
    return BrierParts(
        score=score,
        reliability=reliability,
        resolution=resolution,
        uncertainty=uncertainty,
        residual=residual,
        bins=None if isotonic else int(bins),
        scheme=scheme,
    )


def brier_reliability(
    *,
    logits: ArrayLike | None = None,
    probs: ArrayLike | None = None,
    labels: ArrayLike,
    bins: int = 15,
    scheme: str = "width",
) -> float:
    """Reliability part of the Brier score, see ``brier_parts``; lower is better.

    Args:
        logits: numbers before the softmax, shape ``[n, C]``, or ``[n]`` for two classes.
        probs: probabilities, same shapes; exactly one of the two is given.
        labels: class ids, shape ``[n]``.
        bins: number of bins for each class.
        scheme: ``"width"``, ``"mass"`` or ``"isotonic"``.

    Returns:
        The part, 0 to 2.

    Raises:
        InvalidInput: if the predictions, labels, ``bins`` or ``scheme`` cannot be used.

    Example:
        >>> from temperance.evaluation import brier_reliability
        >>> round(brier_reliability(probs=[[0.8, 0.2], [0.8, 0.2]], labels=[0, 1]), 4)
        0.18
    """
    predictions = read_predictions(logits=logits, probs=probs, labels=labels)
    measure = brier_reliability_measure(predictions, bins=bins, scheme=scheme)
    return plain_value(measure, len(predictions))


def brier_resolution(
    *,
    logits: ArrayLike | None = None,
    probs: ArrayLike | None = None,
    labels: ArrayLike,
    bins: int = 15,
    scheme: str = "width",
) -> float:
    """Resolution part of the Brier score, see ``brier_parts``; higher is better.

    Args:
        logits: numbers before the softmax, shape ``[n, C]``, or ``[n]`` for two classes.
        probs: probabilities, same shapes; exactly one of the two is given.
        labels: class ids, shape ``[n]``.
        bins: number of bins for each class.
        scheme: ``"width"``, ``"mass"`` or ``"isotonic"``.

    Returns:
        The part, 0 to 1.

    Raises:
        InvalidInput: if the predictions, labels, ``bins`` or ``scheme`` cannot be used.

    Example:
        >>> from temperance.evaluation import brier_resolution
        >>> brier_resolution(probs=[[0.8, 0.2], [0.2, 0.8]], labels=[0, 1])
        0.5
    """
    predictions = read_predictions(logits=logits, probs=probs, labels=labels)
    measure = brier_resolution_measure(predictions, bins=bins, scheme=scheme)
    return plain_value(measure, len(predictions))


# ------------------------------------------------------------------ the measures
def brier_reliability_measure(
    predictions: Predictions, *, bins: int = 15, scheme: str = "width"
) -> Measure:
    """Measure of ``brier_reliability``."""
    parts = _parts(predictions, bins, scheme)
    return lambda weights: parts(weights)[0]


def brier_resolution_measure(
    predictions: Predictions, *, bins: int = 15, scheme: str = "width"
) -> Measure:
    """Measure of ``brier_resolution``."""
    parts = _parts(predictions, bins, scheme)
    return lambda weights: parts(weights)[1]


Parts = Callable[[Floats], tuple[Floats, Floats, Floats]]


def _parts(predictions: Predictions, bins: int, scheme: str) -> Parts:
    """Reliability, resolution and uncertainty for any weights."""
    if scheme == ISOTONIC:
        bin_edges(np.zeros(1), bins=bins)
        return _isotonic_parts(predictions)
    if scheme not in SCHEMES:
        raise InvalidInput(
            "scheme",
            expected="'width', 'mass' or 'isotonic'",
            found=repr(scheme),
            fix="Choose one.",
        )
    edges, n = class_edges(predictions, bins=bins, scheme=scheme), len(predictions)

    def parts(weights: Floats) -> tuple[Floats, Floats, Floats]:
        count, total, hits = class_sums(predictions, edges, weights)
        rows = np.maximum(count, 1.0)
        overall = hits.sum(axis=2, keepdims=True) / n
        reliability = ((total - hits) ** 2 / rows).sum(axis=(1, 2)) / n
        resolution = (count * (hits / rows - overall) ** 2).sum(axis=(1, 2)) / n
        return reliability, resolution, (overall * (1 - overall)).sum(axis=(1, 2))

    return parts


def _isotonic_parts(predictions: Predictions) -> Parts:
    n = len(predictions)

    def parts(weights: Floats) -> tuple[Floats, Floats, Floats]:
        reliability, resolution, uncertainty = (np.zeros(len(weights)) for _ in range(3))
        for label, p in enumerate(class_columns(predictions)):
            order = np.argsort(p)
            hit = (predictions.ids[order] == label).astype(np.float64)
            _, start = np.unique(p[order], return_index=True)
            for place, row in enumerate(weights):
                w = row[order]
                fitted = _monotone(w, hit, start)
                score = float(w @ (p[order] - hit) ** 2)
                best, share = float(w @ (fitted - hit) ** 2), float(w @ hit) / n
                reliability[place] += (score - best) / n
                resolution[place] += share * (1 - share) - best / n
                uncertainty[place] += share * (1 - share)
        # both are sums of squares: less than 0 is rounding
        return np.maximum(reliability, 0.0), np.maximum(resolution, 0.0), uncertainty

    return parts


def _monotone(w: Floats, hit: Floats, start: NDArray[np.intp]) -> Floats:
    """Best non-decreasing fit to the labels; rows of equal probability (``start``) stay together.

    Rows of weight 0 take the value of the group before them, which is of no account.
    """
    from sklearn.isotonic import isotonic_regression

    weight = np.add.reduceat(w, start)
    used = weight > 0
    share = np.add.reduceat(w * hit, start)[used] / weight[used]
    values = np.zeros(len(start))
    values[used] = isotonic_regression(share, sample_weight=weight[used])
    sizes = np.diff(np.append(start, len(hit)))
    return np.repeat(values, sizes)
