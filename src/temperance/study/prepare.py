"""What the pictures of a study show: from records to plain mappings, which ``plots`` draws.

Nothing here imports matplotlib, and nothing in ``plots`` computes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from temperance.errors import InvalidInput
from temperance.records import Estimate
from temperance.study.correlation import Correlation, CorrelationTable
from temperance.study.dimension import DimensionReport, DimensionSeries, NormDimension
from temperance.study.regret_records import METRIC_SPECS, RegretReport, RuleSummary
from temperance.study.regret_table import GROUPS, blocks, count, estimate

__all__ = ["prepare_correlations", "prepare_dimension", "prepare_regret"]

Floats = NDArray[np.float64]

_WIDE = 12.0  # largest regret over the typical one, from which an axis becomes logarithmic
_BINS = 70  # places along an axis where points are set beside each other


# ------------------------------------------------------------------ regret
def prepare_regret(report: RegretReport) -> list[dict[str, Any]]:
    """What ``plot_regret`` draws: for each group the rules, and a panel for each metric.

    Args:
        report: what ``regret`` gave.

    Returns:
        For each group ``title``, ``subtitle``, ``rules`` (``label`` and ``origin``, in one order
        for all its panels: by mean regret in NLL, or in the first metric) and ``panels`` with
        ``title``, ``unit``, ``threshold`` (None, or where the axis turns from linear to
        logarithmic) and ``rows``: ``text``, ``mean``, ``interval``, and the single tasks as
        ``points`` with ``offsets`` (-1 to 1, so that they do not cover each other).

    Raises:
        InvalidInput: if nothing was judged.
    """
    found = blocks(report)
    if not found:
        raise InvalidInput("report", expected="judged rules", found="none", fix="Judge some.")
    groups = []
    for group in dict.fromkeys(block[0].group for block in found):
        mine = [block for block in found if block[0].group == group]
        order = next((block for block in mine if block[0].metric == "nll"), mine[0])
        most = max(order, key=lambda s: s.tasks)
        groups.append(
            {
                "title": f"Runs with {GROUPS[group]}",
                "subtitle": f"{count(most.tasks, 'task')}, {count(most.datasets, 'data set')}",
                "rules": [{"label": s.rule, "origin": s.origin} for s in order],
                "panels": [_panel(report, block, [s.rule for s in order]) for block in mine],
            }
        )
    return groups


def _panel(
    report: RegretReport, block: Sequence[RuleSummary], order: Sequence[str]
) -> dict[str, Any]:
    group, metric = block[0].group, block[0].metric
    spec, by_rule = METRIC_SPECS[metric], {s.rule: s for s in block}
    points: dict[str, list[float]] = {rule: [] for rule in order}
    for row in report.rows:
        if (row.group, row.metric) == (group, metric):
            points[row.rule].append(row.regret)
    everything = np.concatenate([np.asarray(p) for p in points.values()])
    threshold = _threshold(everything)
    bins = np.linspace(*_ends(_drawn(everything, threshold)), _BINS)
    return {
        "title": spec.title,
        "unit": spec.unit,
        "threshold": threshold,
        "rows": [
            {
                "text": estimate(by_rule[rule].mean, spec.digits),
                "mean": by_rule[rule].mean.value,
                "interval": by_rule[rule].mean.interval,
                "points": points[rule],
                "offsets": _offsets(_drawn(np.asarray(points[rule]), threshold), bins),
            }
            for rule in order
        ],
    }


def _threshold(points: Floats) -> float | None:
    """Where an axis becomes logarithmic: a round number above the median loss."""
    size = np.abs(points[np.abs(points) > 1e-9])
    if len(size) == 0 or size.max() <= _WIDE * np.median(size):
        return None
    return float(10.0 ** np.round(np.log10(np.median(size))))


def _drawn(points: Floats, threshold: float | None) -> Floats:
    """Where points come to lie on their axis, up to a factor."""
    if threshold is None:
        return points
    inside = np.abs(points) <= threshold
    far = np.sign(points) * (1 + np.log10(np.maximum(np.abs(points) / threshold, 1)))
    return np.where(inside, points / threshold, far)


def _ends(points: Floats) -> tuple[float, float]:
    return float(points.min()), float(points.max()) + 1e-12


def _offsets(points: Floats, bins: Floats) -> list[float]:
    """Set points of one place beside each other: in the middle, then on both sides in turn."""
    place = np.searchsorted(bins, points)
    seen: dict[int, int] = {}
    steps = []
    for at in place.tolist():
        number = seen.get(at, 0)
        seen[at] = number + 1
        steps.append((number + 1) // 2 * (1 if number % 2 else -1))
    most = max(4, max(map(abs, steps), default=0))
    return [step / most for step in steps]


# ------------------------------------------------------------------ correlations
def prepare_correlations(table: CorrelationTable, *, most: int = 25) -> dict[str, Any]:
    """What ``plot_correlations`` draws: the strongest statistics with their intervals.

    Args:
        table: what ``correlate`` gave.
        most: statistics that are shown at most.

    Returns:
        ``title``, ``subtitle`` and ``rows`` of ``label``, ``shown`` (whether the adjusted p is at
        most 0.05), ``text`` (that p), and ``spearman`` and ``pearson`` as value and interval.
    """
    target = {"log best T": "the best T", "log alpha": "best T / sqrt(M)"}[table.target]
    left = len(table.rows) - most
    more = f"; {left} weaker statistics are not shown" if left > 0 else ""
    return {
        "title": f"Correlation with {target} ({METRIC_SPECS[table.metric].title})",
        "subtitle": f"{count(table.pairs, 'pair')}, {count(table.datasets, 'data set')}{more}",
        "rows": [_statistic(row) for row in table.rows[:most]],
    }


def _statistic(row: Correlation) -> dict[str, Any]:
    p = row.p_adjusted
    return {
        "label": row.statistic,
        "shown": p <= 0.05,
        "text": "p < 0.001" if p < 0.001 else f"p = {p:.3f}" if p < 0.1 else f"p = {p:.2f}",
        "spearman": (row.spearman.value, row.spearman.interval),
        "pearson": (row.pearson.value, row.pearson.interval),
    }


# ------------------------------------------------------------------ dimension
def prepare_dimension(report: DimensionReport) -> dict[str, Any]:
    """What ``plot_dimension`` draws: best T over sqrt(M), a panel for each norm.

    Args:
        report: what ``dimension_exponent`` gave.

    Returns:
        ``metric`` and ``panels`` with ``title``, ``lines`` of text, ``series`` (``x`` = sqrt(M),
        ``y`` = best T, ``inside``, ``below``, ``above``: which of them are no edge, the smallest or
        the largest trained T) and ``fit`` and ``root`` (``x`` and ``y`` of the fitted line and of
        that with T = alpha sqrt(M); None where there is none).
    """
    panels = [
        _dimension_panel(norm, [s for s in report.series if s.norm == norm.norm])
        for norm in report.norms
    ]
    return {"metric": METRIC_SPECS[report.metric].title, "panels": panels}


def _dimension_panel(norm: NormDimension, series: Sequence[DimensionSeries]) -> dict[str, Any]:
    dims = np.array([m for s in series for m in s.feature_dims], np.float64)
    ends = np.array([dims.min(), dims.max()])
    power = None if norm.exponent is None else norm.exponent.value
    fit = None
    if power is not None and norm.scale is not None and np.ptp(ends) > 0:
        fit = (np.sqrt(ends).tolist(), (norm.scale * ends**power).tolist())
    return {
        "title": GROUPS[norm.norm][0].upper() + GROUPS[norm.norm][1:],
        "lines": [
            "" if norm.exponent is None else f"T grows like M^{_plain(norm.exponent)}",
            f"alpha {_plain(norm.alpha)}",
            "" if norm.alpha_std is None else f"spread of alpha {_plain(norm.alpha_std)}",
            f"{count(norm.series, 'series', many='series')}, {count(norm.datasets, 'data set')}"
            + (f"; {norm.at_edge} best T at an edge" if norm.at_edge else ""),
        ],
        "series": [_series_points(s) for s in series],
        "fit": fit,
        "root": (np.sqrt(ends).tolist(), (norm.alpha.value * np.sqrt(ends)).tolist()),
    }


def _plain(found: Estimate) -> str:
    """A figure with three digits, and its interval."""
    value, *ends = (f"{x:.3g}" for x in (found.value, *(found.interval or ())))
    return f"{value} [{', '.join(ends)}]" if ends else value


def _series_points(series: DimensionSeries) -> dict[str, Any]:
    return {
        "x": np.sqrt(series.feature_dims).tolist(),
        "y": list(series.temperatures),
        "inside": [i for i, edge in enumerate(series.edges) if not edge],
        "below": [i for i, edge in enumerate(series.edges) if edge == "lower"],
        "above": [i for i, edge in enumerate(series.edges) if edge == "upper"],
    }
