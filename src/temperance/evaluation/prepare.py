"""What the pictures show: pure functions from records to plain mappings, which ``plots`` draws.

Nothing here imports matplotlib, and nothing in ``plots`` computes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from temperance.errors import InvalidInput
from temperance.evaluation.compare import BETTER, verdict
from temperance.records import Estimate, Report, Statistic

__all__ = [
    "CURVES",
    "prepare_eigenvalues",
    "prepare_forest",
    "prepare_learning_curves",
    "prepare_reliability",
]

#: Curves of a training by their name in ``Run.history``: the title of each panel.
CURVES = {
    "train_loss": "Training loss (nats)",
    "held_out_nll": "Held-out NLL (nats)",
    "held_out_accuracy": "Held-out accuracy (%)",
}
_TITLES = {
    "accuracy": "Accuracy (points)",
    "nll": "NLL (nats)",
    "nll_posthoc": "NLL after post-hoc T (nats)",
    "brier": "Brier score",
    "brier_posthoc": "Brier score after post-hoc T",
    "ece": "ECE (points)",
    "ece_posthoc": "ECE after post-hoc T (points)",
}
_PERCENT = ("accuracy", "ece", "ece_posthoc", "held_out_accuracy")


def prepare_reliability(reports: Mapping[str, Report]) -> list[dict[str, Any]]:
    """Reliability diagrams, before and after the post-hoc temperature, a panel for each report.

    Args:
        reports: by the title of their panel; they hold their bins.

    Returns:
        For each panel ``title``, ``n`` and ``stages``, one or two of: ``name``, ``ece`` (share),
        ``temperature`` (None before), and for the bins with rows ``confidence``, ``accuracy``; for
        all bins ``edges`` and ``share`` of the rows.

    Raises:
        InvalidInput: if there are no reports, or one without bins.
    """
    _some(reports, "reports")
    panels = []
    for title, report in reports.items():
        if "edges" not in report.reliability:
            raise InvalidInput(
                f"report {title!r}",
                expected="bins of the reliability diagram",
                found="none",
                fix="Make it with temperance.evaluate.",
            )
        stages = [_stage("before", report.reliability, report.metrics["ece"].value, None)]
        after = report.reliability.get("posthoc")
        if after is not None:
            figure = report.metrics["ece_posthoc"].value
            stages.append(_stage("after", after, figure, report.posthoc_temperature))
        panels.append({"title": title, "n": report.n, "stages": stages})
    return panels


def _stage(
    name: str, bins: Mapping[str, Any], ece: float, temperature: float | None
) -> dict[str, Any]:
    filled = [i for i, count in enumerate(bins["count"]) if count]
    total = sum(bins["count"])
    return {
        "name": name,
        "ece": ece,
        "temperature": temperature,
        "confidence": [bins["confidence"][i] for i in filled],
        "accuracy": [bins["accuracy"][i] for i in filled],
        "edges": list(bins["edges"]),
        "share": [count / total for count in bins["count"]],
    }


def prepare_learning_curves(
    histories: Mapping[str, Sequence[Mapping[str, Sequence[float]]]],
    *,
    curves: Mapping[str, str] | None = None,
) -> list[dict[str, Any]]:
    """Curves per epoch: the mean over the runs of an arm, with the band from least to largest.

    Args:
        histories: for each arm the ``history`` of each of its runs.
        curves: names of the curves and the titles of their panels; ``CURVES`` if absent.

    Returns:
        For each curve that some run has: ``title`` and ``arms``, each with ``name``, ``epochs``
        (from 1), ``mean``, ``low``, ``high`` (None where no run has a finite value) and ``runs``.
        Shares come in percent. After a run has stopped, the others make up the mean.

    Raises:
        InvalidInput: if no run has any of the curves.
    """
    _some(histories, "histories")
    panels = []
    for name, title in (curves or CURVES).items():
        arms = [
            _arm(arm, [h[name] for h in runs if name in h], 100.0 if name in _PERCENT else 1.0)
            for arm, runs in histories.items()
        ]
        arms = [arm for arm in arms if arm["epochs"]]
        if arms:
            panels.append({"title": title, "arms": arms})
    if not panels:
        raise InvalidInput(
            "histories",
            expected=f"one of the curves {', '.join(curves or CURVES)}",
            found="none of them",
            fix="Pass the history of finished runs.",
        )
    return panels


def _arm(name: str, curves: list[Sequence[float]], scale: float) -> dict[str, Any]:
    longest = max((len(curve) for curve in curves), default=0)
    table = np.full((len(curves), longest), np.nan)
    for row, curve in zip(table, curves, strict=True):
        row[: len(curve)] = np.asarray(curve, dtype=np.float64) * scale
    columns = [column[np.isfinite(column)] for column in table.T]
    return {
        "name": name,
        "runs": len(curves),
        "epochs": list(range(1, longest + 1)),
        "mean": [float(c.mean()) if len(c) else None for c in columns],
        "low": [float(c.min()) if len(c) else None for c in columns],
        "high": [float(c.max()) if len(c) else None for c in columns],
    }


def prepare_eigenvalues(statistic: Statistic) -> dict[str, Any]:
    """Eigenvalues of the class graph, their gaps, and how the gaps add up to the CSG.

    ``delta_i = (lambda_{i+1} - lambda_i) / (K - i)``; the CSG is the sum of their running maximum.

    Args:
        statistic: what ``temperance.csg`` gave: the mean eigenvalues over its repeats, ascending.

    Returns:
        ``eigenvalues``, ``gaps`` (not normalized), ``deltas``, ``running`` (their running maximum),
        ``record`` (which gaps set a new maximum), ``value``, ``interval``.

    Raises:
        InvalidInput: if there are fewer than two eigenvalues.

    Reference:
        Branchaud-Charron, Achkar, Jodoin, Spectral metric for dataset complexity assessment, 2019,
        arXiv 1905.07299, figure 2 and equation 6.
    """
    values = np.asarray(statistic.eigenvalues, dtype=np.float64)
    if len(values) < 2:
        raise InvalidInput(
            "statistic",
            expected="two eigenvalues or more",
            found=str(len(values)),
            fix="Pass what temperance.csg returned.",
        )
    gaps = np.diff(values)
    deltas = gaps / (len(values) - np.arange(len(gaps)))
    running = np.maximum.accumulate(deltas)
    new = np.concatenate([[True], deltas[1:] > running[:-1]])
    return {
        "eigenvalues": values.tolist(),
        "gaps": gaps.tolist(),
        "deltas": deltas.tolist(),
        "running": running.tolist(),
        "record": (new & (deltas > 0)).tolist(),
        "value": statistic.value,
        "interval": statistic.interval,
    }


def prepare_forest(
    differences: Mapping[str, Mapping[str, Estimate]], *, baseline: str
) -> dict[str, Any]:
    """Differences of all arms to a baseline, with their intervals, a panel for each metric.

    Args:
        differences: for each metric (a key of ``BETTER``) the paired difference of each arm.
        baseline: name of the arm that they are differences to.

    Returns:
        ``baseline``, ``arms`` (the names, in order) and ``panels``: ``title``, ``better``,
        ``digits`` after the point, and ``rows`` (None where an arm has no figure) of ``value``,
        ``interval``, ``verdict``. Shares come in percentage points.

    Raises:
        InvalidInput: if there is nothing to show, or if a metric is unknown.
    """
    _some(differences, "differences")
    unknown = [metric for metric in differences if metric not in BETTER]
    if unknown:
        raise InvalidInput(
            "differences", expected=", ".join(BETTER), found=repr(unknown[0]), fix="Rename it."
        )
    arms = list(dict.fromkeys(arm for found in differences.values() for arm in found))
    _some(arms, "differences")
    panels = [
        {
            "title": _TITLES[metric],
            "better": BETTER[metric],
            "digits": 2 if metric in _PERCENT else 3,
            "rows": [_row(found.get(arm), metric) for arm in arms],
        }
        for metric, found in differences.items()
    ]
    return {"baseline": baseline, "arms": arms, "panels": panels}


def _row(estimate: Estimate | None, metric: str) -> dict[str, Any] | None:
    if estimate is None or not math.isfinite(estimate.value):
        return None
    scale = 100.0 if metric in _PERCENT else 1.0
    ends = estimate.interval
    return {
        "value": estimate.value * scale,
        "interval": None if ends is None else (ends[0] * scale, ends[1] * scale),
        "verdict": verdict(estimate, better=BETTER[metric]),
    }


def _some(values: Mapping[str, Any] | Sequence[Any], subject: str) -> None:
    if not values:
        raise InvalidInput(subject, expected="at least one", found="none", fix="Add what to show.")
