"""What the pictures after training show: curves of risk and of shift, histograms of OOD scores.

Like ``prepare``: pure functions to plain mappings, which ``plot_curves`` draws. Nothing here
imports matplotlib.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from temperance.errors import InvalidInput
from temperance.evaluation.detection import ood_metrics
from temperance.evaluation.figure_table import FIGURES
from temperance.evaluation.predictions import read_array
from temperance.records import Estimate

__all__ = ["prepare_ood", "prepare_risk_coverage", "prepare_shift"]

_POINTS = 200  # of a risk-coverage curve: more cannot be seen
_TAIL = 0.005  # share of the scores at each end that go into the outermost bins
_IN_PERCENT = ("share", "calibration error, 0 to 1")


def prepare_risk_coverage(
    curves: Mapping[str, Mapping[str, NDArray[np.float64]]],
) -> list[dict[str, Any]]:
    """Risk-coverage curves of some models, thinned out to what can be seen.

    Args:
        curves: for each model what ``risk_coverage`` gave.

    Returns:
        For each model ``name``, ``n``, ``aurc``, ``accuracy`` at full coverage, and ``coverage``,
        ``risk`` and ``best`` (the curve of the best ranking) at up to 200 points.

    Raises:
        InvalidInput: if there are no curves, or one lacks its columns.
    """
    _some(curves, "curves")
    out = []
    for name, curve in curves.items():
        if not {"coverage", "risk", "best"} <= set(curve):
            raise InvalidInput(
                f"curve {name!r}",
                expected="coverage, risk and best",
                found=", ".join(curve) or "nothing",
                fix="Make it with risk_coverage.",
            )
        n = len(curve["risk"])
        places = np.unique(np.linspace(0, n - 1, min(n, _POINTS)).round().astype(np.intp))
        points = {key: curve[key][places].tolist() for key in ("coverage", "risk", "best")}
        aurc, risk = float(curve["risk"].mean()), float(curve["risk"][-1])
        out.append({"name": name, "n": n, "aurc": aurc, "accuracy": 1 - risk, **points})
    return out


def prepare_ood(
    scores: Mapping[str, tuple[ArrayLike, ArrayLike]], *, bins: int = 40
) -> list[dict[str, Any]]:
    """Histograms of OOD scores, in-distribution (ID) rows against out-of-distribution (OOD) rows.

    Args:
        scores: for each score its name and its values for ID rows and for OOD rows; higher means
            more OOD.
        bins: number of bins, 2 or more.

    Returns:
        For each score ``title``, ``edges``, ``id`` and ``ood`` (share of the rows in each bin; half
        a percent of the scores at each end may be in the outermost bins), ``threshold`` (at or
        below it lie at least 95 % of the ID rows), ``auroc``, ``fpr95`` (ID positive), ``n_id``,
        ``n_ood``.

    Raises:
        InvalidInput: if there are no scores, or if they or ``bins`` cannot be used.
    """
    _some(scores, "scores")
    if isinstance(bins, bool) or not isinstance(bins, (int, np.integer)) or bins < 2:
        raise InvalidInput(
            "bins", expected="a whole number of at least 2", found=repr(bins), fix="40 is usual."
        )
    panels = []
    for title, (inside, outside) in scores.items():
        found = ood_metrics(id_scores=inside, ood_scores=outside, bootstrap=0)
        sides = [read_array(side, title).astype(np.float64).ravel() for side in (inside, outside)]
        both = np.concatenate(sides)
        low, high = np.quantile(both, [_TAIL, 1 - _TAIL])
        edges = np.linspace(low, high if high > low else low + 1, int(bins) + 1)
        shares = [np.histogram(np.clip(s, edges[0], edges[-1]), edges)[0] / len(s) for s in sides]
        ranked = np.sort(sides[0])
        panels.append(
            {
                "title": title,
                "edges": edges.tolist(),
                "id": shares[0].tolist(),
                "ood": shares[1].tolist(),
                "threshold": float(ranked[math.ceil(0.95 * len(ranked) - 1e-9) - 1]),
                "auroc": found.auroc.value,
                "fpr95": found.fpr95_in.value,
                "n_id": found.n_id,
                "n_ood": found.n_ood,
            }
        )
    return panels


def prepare_shift(
    curves: Mapping[str, Mapping[str, Mapping[int, Estimate]]],
) -> list[dict[str, Any]]:
    """Curves of some figures over the severity of a shift, a panel for each figure.

    Args:
        curves: for each figure (a key of ``FIGURES``, with or without the ending ``_posthoc``) and
            each model its estimate at each severity; 0 stands for the rows as they are.

    Returns:
        For each figure ``title``, ``better`` and ``models``, each with ``name``, ``severity``
        (ascending), ``value``, ``low`` and ``high`` (the interval; None where there is none). Not
        finite values are left out. Shares come in percent.

    Raises:
        InvalidInput: if there is nothing to show, or if a figure is unknown.
    """
    _some(curves, "curves")
    panels = []
    for metric, models in curves.items():
        figure = FIGURES.get(metric.removesuffix("_posthoc"))
        if figure is None:
            raise InvalidInput(
                "curves",
                expected=f"figures among {', '.join(FIGURES)}",
                found=repr(metric),
                fix="Rename it.",
            )
        _some(models, f"curves of {metric}")
        percent = figure.unit in _IN_PERCENT
        after = " after post-hoc calibration" if metric.endswith("_posthoc") else ""
        unit = "%" if percent else figure.unit.split(",")[0]
        title = figure.title + after + ("" if unit == "score" else f" ({unit})")
        found = [_model(name, points, 100.0 if percent else 1.0) for name, points in models.items()]
        panels.append({"title": title, "better": figure.better, "models": found})
    return panels


def _model(name: str, points: Mapping[int, Estimate], scale: float) -> dict[str, Any]:
    kept = [(s, points[s]) for s in sorted(points) if math.isfinite(points[s].value)]
    ends = [e.interval or (None, None) for _, e in kept]
    return {
        "name": name,
        "severity": [s for s, _ in kept],
        "value": [scale * e.value for _, e in kept],
        "low": [None if low is None else scale * low for low, _ in ends],
        "high": [None if high is None else scale * high for _, high in ends],
    }


def _some(values: Mapping[str, Any], subject: str) -> None:
    if not values:
        raise InvalidInput(subject, expected="at least one", found="none", fix="Add what to show.")
