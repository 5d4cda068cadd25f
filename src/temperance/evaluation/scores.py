"""What every row contributes to the figures: the one place where probabilities are worked out."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from temperance.evaluation.posthoc import TemperatureFit
from temperance.evaluation.predictions import FLOOR, Predictions, read_predictions

__all__ = ["RowScores", "row_scores", "score_rows"]


@dataclass(frozen=True, eq=False)
class RowScores:
    """What every row contributes to the figures; all arrays have shape ``[n]``.

    Attributes:
        correct: 1.0 where the most probable class (the first of equals) is the label, else 0.0.
        confidence: probability of that class.
        nll: minus the log of the label's probability, in nats; inf where that is 0.
        brier: squared distance of the probabilities to the one-hot label, 0 to 2.
    """

    correct: NDArray[np.float64]
    confidence: NDArray[np.float64]
    nll: NDArray[np.float64]
    brier: NDArray[np.float64]


def score_rows(predictions: Predictions, *, temperature: float = 1.0) -> RowScores:
    """Score every row of ``softmax(z / temperature)``, in float64 and bounded memory.

    Args:
        predictions: checked logits, or probabilities, whose logarithms are the logits ``z``.
        temperature: positive number that divides the logits.

    Returns:
        The scores of the rows. Probabilities at temperature 1 are taken as they are.
    """
    out = RowScores(*(np.empty(len(predictions)) for _ in range(4)))
    if not predictions.from_logits and temperature == 1.0:
        return _fill_from_probs(predictions, out)
    for part, z, top in predictions.shifted():
        at = np.arange(len(z))
        ids = predictions.ids[part]
        z /= temperature
        label_z = z[at, ids]
        p = np.exp(z, out=z)
        p[at, top] = 0.0
        tail = p.sum(axis=1)  # summed without the largest, which is 1: log1p then keeps tiny NLLs
        p[at, top] = 1.0
        p /= (1.0 + tail)[:, None]
        out.correct[part] = top == ids
        out.confidence[part] = p[at, top]
        out.nll[part] = np.where(label_z <= FLOOR / temperature, np.inf, np.log1p(tail) - label_z)
        p[at, ids] -= 1.0
        out.brier[part] = np.einsum("nc,nc->n", p, p)
    return out


def _fill_from_probs(predictions: Predictions, out: RowScores) -> RowScores:
    for part, _, top in predictions.shifted():
        p = predictions.scores[part].astype(np.float64)
        at = np.arange(len(p))
        ids = predictions.ids[part]
        with np.errstate(divide="ignore"):
            out.nll[part] = -np.log(p[at, ids])
        out.correct[part] = top == ids
        out.confidence[part] = p[at, top]
        p[at, ids] -= 1.0
        out.brier[part] = np.einsum("nc,nc->n", p, p)
    return out


def row_scores(
    *,
    logits: ArrayLike | None = None,
    probs: ArrayLike | None = None,
    labels: ArrayLike,
    posthoc: TemperatureFit | None = None,
    ignore: tuple[object, ...] = (),
) -> dict[str, NDArray[np.generic]]:
    """Scores of every row, before and after a post-hoc temperature, for paired comparisons.

    Args:
        logits: numbers before the softmax, shape ``[n, C]``, or ``[n]`` for two classes.
        probs: probabilities, same shapes; exactly one of the two is given.
        labels: class ids, shape ``[n]``.
        posthoc: a temperature fitted on other rows; its ``applied`` divides the logits, which is 1
            unless the fit has converged.
        ignore: numbers in ``labels`` that mark rows without a label, or one such number; these rows
            are left out.

    Returns:
        Arrays of shape ``[n]``: ``label`` (int64), ``correct`` (0 or 1), ``confidence``, ``nll``
        (nats), ``brier`` (0 to 2) and, with ``posthoc``, the last three again with the ending
        ``_posthoc`` (a temperature does not change ``correct``).

    Raises:
        InvalidInput: if the predictions or labels cannot be used; the row is named.

    Example:
        >>> from temperance.evaluation import row_scores
        >>> scores = row_scores(logits=[[2.0, 0.0], [0.0, 1.0]], labels=[0, 0])
        >>> scores["correct"].tolist(), scores["nll"].round(3).tolist()
        ([1.0, 0.0], [0.127, 1.313])
    """
    predictions = read_predictions(logits=logits, probs=probs, labels=labels, ignore=ignore)
    out: dict[str, NDArray[np.generic]] = {"label": predictions.ids}
    out.update(vars(score_rows(predictions)))
    if posthoc is not None:
        after = score_rows(predictions, temperature=posthoc.applied)
        out.update({f"{k}_posthoc": v for k, v in vars(after).items() if k != "correct"})
    return out
