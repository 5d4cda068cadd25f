"""How far rows lie from the mean of their class, and class means from each other."""

from __future__ import annotations

import math

from temperance.records import Features
from temperance.task.moments import Moments, moments_of
from temperance.task.statistic_spec import StatisticSpec, UndefinedStatistic

__all__ = ["SPECS", "fisher_ratio", "trace_between", "trace_total", "trace_within"]


def trace_within(features: Features | Moments) -> float:
    """Give the scatter inside the classes: ``tr(S_W) = (1/n) sum_i |x_i - m_(y_i)|^2``.

    Args:
        features: the rows, or their moments.

    Returns:
        0 or more, in squares of the unit of the features.

    Example:
        >>> from temperance import Features
        >>> from temperance.task.scatter import trace_within
        >>> trace_within(Features.from_arrays([[0.0], [2.0], [9.0], [9.0]], list("aabb")))
        0.5

    Reference:
        R. A. Fisher: The use of multiple measurements in taxonomic problems, 1936; divided by n.
    """
    return moments_of(features).trace_within


def trace_between(features: Features | Moments) -> float:
    """Give the scatter of the class means: ``tr(S_B) = (1/n) sum_c n_c |m_c - m|^2``.

    Args:
        features: the rows, or their moments.

    Returns:
        0 or more, in squares of the unit of the features.

    Example:
        >>> from temperance import Features
        >>> from temperance.task.scatter import trace_between
        >>> trace_between(Features.from_arrays([[0.0], [2.0], [9.0], [9.0]], list("aabb")))
        16.0

    Reference:
        R. A. Fisher: The use of multiple measurements in taxonomic problems, 1936; divided by n.
    """
    return moments_of(features).trace_between


def trace_total(features: Features | Moments) -> float:
    """Give the scatter of all rows: ``tr(S_T) = tr(S_W) + tr(S_B) = (1/n) sum_i |x_i - m|^2``.

    Args:
        features: the rows, or their moments.

    Returns:
        0 or more, in squares of the unit of the features.

    Example:
        >>> from temperance import Features
        >>> from temperance.task.scatter import trace_total
        >>> trace_total(Features.from_arrays([[0.0], [2.0], [9.0], [9.0]], list("aabb")))
        16.5

    Reference:
        R. A. Fisher: The use of multiple measurements in taxonomic problems, 1936; divided by n.
    """
    moments = moments_of(features)
    return moments.trace_within + moments.trace_between


def fisher_ratio(features: Features | Moments) -> float:
    """Give how far classes lie apart for their width: ``tr(S_B) / tr(S_W)``.

    Args:
        features: the rows, or their moments.

    Returns:
        0 (equal class means) or more.

    Raises:
        UndefinedStatistic: if fewer than two classes have rows, or if no class has any width.

    Example:
        >>> from temperance import Features
        >>> from temperance.task.scatter import fisher_ratio
        >>> fisher_ratio(Features.from_arrays([[0.0], [2.0], [9.0], [9.0]], list("aabb")))
        32.0

    Reference:
        R. A. Fisher: The use of multiple measurements in taxonomic problems, 1936; K. Fukunaga:
        Introduction to Statistical Pattern Recognition, 1990, section 10.2 (criterion of traces).
    """
    moments = moments_of(features)
    if len(moments.present) < 2 or moments.trace_within == 0:
        wide = len(moments.present) >= 2
        raise UndefinedStatistic(
            "fisher_ratio",
            expected="classes of some width" if wide else "two classes or more that have rows",
            found="rows equal to their class mean" if wide else str(len(moments.present)),
        )
    return moments.trace_between / moments.trace_within


_FISHER = "Fisher 1936, divided by n"
SPECS = (
    StatisticSpec(
        "trace_within",
        trace_within,
        title="trace of the within-class scatter",
        unit="x^2",
        formula="tr(S_W) = (1/n) sum_i |x_i - m_(y_i)|^2",
        reference=_FISHER,
        needs="moments",
        scale=2,
        range=(0.0, math.inf),
        remarks=("single",),
    ),
    StatisticSpec(
        "trace_between",
        trace_between,
        title="trace of the between-class scatter",
        unit="x^2",
        formula="tr(S_B) = (1/n) sum_c n_c |m_c - m|^2",
        reference=_FISHER,
        needs="moments",
        scale=2,
        range=(0.0, math.inf),
        remarks=("empty",),
    ),
    StatisticSpec(
        "trace_total",
        trace_total,
        title="trace of the total scatter",
        unit="x^2",
        formula="tr(S_T) = tr(S_W) + tr(S_B)",
        reference=_FISHER,
        needs="moments",
        scale=2,
        range=(0.0, math.inf),
    ),
    StatisticSpec(
        "fisher_ratio",
        fisher_ratio,
        title="Fisher ratio",
        unit="ratio",
        formula="tr(S_B) / tr(S_W)",
        reference="Fisher 1936; Fukunaga 1990, section 10.2",
        needs="moments",
        range=(0.0, math.inf),
        remarks=("empty", "single"),
    ),
)
