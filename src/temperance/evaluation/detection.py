"""How well a score tells out-of-distribution rows from others: AUROC, AUPR and FPR95, both ways."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from temperance.errors import InvalidInput
from temperance.evaluation.intervals import percentile_interval, row_weights
from temperance.evaluation.predictions import read_array
from temperance.evaluation.report import EvaluateOptions
from temperance.records import Estimate

__all__ = ["OodMetrics", "ood_metrics"]

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class OodMetrics:
    """How well a score tells out-of-distribution (OOD) rows from in-distribution (ID) rows.

    Attributes:
        auroc: probability that an OOD row scores higher than an ID row (half for equal ones); the
            same for either positive class; 0.5 is chance.
        aupr_in: average precision with ID as the positive class; chance is the share of ID rows.
        aupr_out: average precision with OOD as the positive class; chance is the share of OOD rows.
        fpr95_in: ID positive: share of OOD rows that still pass as ID where the threshold keeps
            95 % of the ID rows. This is the FPR95 of most papers.
        fpr95_out: OOD positive: share of ID rows that are flagged where the threshold catches 95 %
            of the OOD rows.
        n_id: number of ID rows.
        n_ood: number of OOD rows.
        ratio: ``n_ood / n_id``. Both AUPR depend on it: compare them at one ratio only.
        note: what should be looked at, such as a score that seems to be the wrong way round.
        settings: bootstrap, seed, level.
    """

    auroc: Estimate
    aupr_in: Estimate
    aupr_out: Estimate
    fpr95_in: Estimate
    fpr95_out: Estimate
    n_id: int
    n_ood: int
    ratio: float
    note: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)


def ood_metrics(
    *, id_scores: ArrayLike, ood_scores: ArrayLike, bootstrap: int = 1000, seed: int = 0
) -> OodMetrics:
    """Judge a score by AUROC, AUPR both ways and the FPR at 95 % TPR both ways.

    The values are scikit-learn's (``roc_auc_score``, ``average_precision_score``, ``roc_curve``
    without interpolation). Intervals are 95 %, from drawing ID and OOD rows again separately, so
    that their ratio stays.

    Args:
        id_scores: scores of in-distribution rows, shape ``[n_id]``; higher means more OOD.
        ood_scores: scores of out-of-distribution rows, shape ``[n_ood]``.
        bootstrap: replicates; 0 for no intervals.
        seed: of the draws.

    Returns:
        The figures, the numbers of rows and their ratio.

    Raises:
        InvalidInput: if scores are missing, not finite, or not one number per row.

    Example:
        >>> from temperance.evaluation import ood_metrics
        >>> found = ood_metrics(id_scores=[0.1, 0.2, 0.4], ood_scores=[0.3, 0.9], bootstrap=0)
        >>> round(found.auroc.value, 3), found.fpr95_in.value, round(found.fpr95_out.value, 3)
        (0.833, 0.5, 0.333)

    Reference:
        Hendrycks, Gimpel, 2017, arXiv 1610.02136 (AUROC, AUPR); Liang, Li, Srikant, Enhancing the
        reliability of out-of-distribution image detection in neural networks, 2018,
        arXiv 1706.02690 (FPR at 95 % TPR, ID positive).
    """
    EvaluateOptions(bootstrap=bootstrap, seed=seed)  # checks both
    inside, outside = _read_scores(id_scores, "id_scores"), _read_scores(ood_scores, "ood_scores")
    values = _by_sklearn(inside, outside)
    drawn = _replicates(inside, outside, bootstrap, seed) if bootstrap else {}
    how = f"percentile bootstrap, {bootstrap} draws of {len(inside)} ID and {len(outside)} OOD rows"
    estimates = {
        name: Estimate(value, percentile_interval(value, drawn[name]), how)
        if drawn
        else Estimate(value, None, "no interval: bootstrap=0")
        for name, value in values.items()
    }
    wrong_way = values["auroc"] < 0.5
    return OodMetrics(
        **estimates,
        n_id=len(inside),
        n_ood=len(outside),
        ratio=len(outside) / len(inside),
        note="AUROC below 0.5: check that higher scores mean more OOD" if wrong_way else "",
        settings={"bootstrap": bootstrap, "seed": seed, "level": 0.95, "tpr": 0.95},
    )


def _by_sklearn(inside: Floats, outside: Floats) -> dict[str, float]:
    from sklearn.metrics import average_precision_score, roc_auc_score, roc_curve

    scores = np.concatenate([inside, outside])
    is_ood = np.repeat([0, 1], [len(inside), len(outside)])

    def fpr95(positive: NDArray[np.int_], sign: float) -> float:
        fpr, tpr, _ = roc_curve(positive, sign * scores, drop_intermediate=False)
        return float(fpr[np.argmax(tpr >= 0.95)])

    return {
        "auroc": float(roc_auc_score(is_ood, scores)),
        "aupr_in": float(average_precision_score(1 - is_ood, -scores)),
        "aupr_out": float(average_precision_score(is_ood, scores)),
        "fpr95_in": fpr95(1 - is_ood, -1.0),
        "fpr95_out": fpr95(is_ood, 1.0),
    }


def _replicates(inside: Floats, outside: Floats, draws: int, seed: int) -> dict[str, Floats]:
    """The figures of drawn rows, from one sort of the scores."""
    n_id, n_ood = len(inside), len(outside)
    _, group = np.unique(np.concatenate([inside, outside]), return_inverse=True)
    group = group.reshape(-1)
    size = int(group.max()) + 1
    out: dict[str, list[float]] = {}
    first, second = np.random.SeedSequence(seed).generate_state(2).tolist()
    weights = zip(_each(n_id, draws, first), _each(n_ood, draws, second), strict=True)
    for w_id, w_ood in weights:
        negative = np.bincount(group[:n_id], w_id, size).astype(np.float64)
        positive = np.bincount(group[n_id:], w_ood, size).astype(np.float64)
        for name, value in _of_counts(negative, positive).items():
            out.setdefault(name, []).append(value)
    return {name: np.array(values) for name, values in out.items()}


def _each(n: int, draws: int, seed: int) -> Iterator[Floats]:
    for weights in row_weights(n, replicates=draws, seed=seed):
        yield from weights


def _of_counts(inside: Floats, outside: Floats) -> dict[str, float]:
    """The five figures from ID and OOD counts at each distinct score, ascending."""
    below = np.cumsum(inside) - inside
    pairs = float((outside * (below + inside / 2)).sum())
    aupr_out, fpr_out = _one_way(outside[::-1], inside[::-1])
    aupr_in, fpr_in = _one_way(inside, outside)
    return {
        "auroc": pairs / float(inside.sum() * outside.sum()),
        "aupr_in": aupr_in,
        "aupr_out": aupr_out,
        "fpr95_in": fpr_in,
        "fpr95_out": fpr_out,
    }


def _one_way(positive: Floats, negative: Floats) -> tuple[float, float]:
    """Average precision and FPR at 95 % TPR; the scores that look most positive come first."""
    hits, false = np.cumsum(positive), np.cumsum(negative)
    taken = hits + false
    precision = np.divide(hits, taken, out=np.zeros_like(hits), where=taken > 0)
    reached = int(np.argmax(hits / hits[-1] >= 0.95))
    return float((positive * precision).sum() / hits[-1]), float(false[reached] / false[-1])


def _read_scores(values: ArrayLike, subject: str) -> Floats:
    array = read_array(values, subject)
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.ndim != 1 or array.size == 0 or array.dtype.kind not in "fiub":
        raise InvalidInput(
            subject,
            expected="one number per row, at least one row",
            found=f"type {array.dtype}, shape {list(array.shape)}",
            fix="Pass what a function of OOD_SCORES returned.",
        )
    scores = array.astype(np.float64)
    if not np.isfinite(scores).all():
        row = int(np.argmin(np.isfinite(scores)))
        raise InvalidInput(
            subject,
            expected="finite numbers",
            found=f"{scores[row]} in row {row}",
            fix="Remove or repair that row.",
        )
    return scores
