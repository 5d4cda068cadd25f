"""A metric over T: its mean over seeds, its best T, and its value between the tried ones."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from temperance.errors import InvalidInput, NotFound
from temperance.study.runs import LEAST_TEMPERATURES, Curve, judged

__all__ = [
    "METRICS",
    "TIE",
    "BestTemperature",
    "MetricCurve",
    "best_temperature",
    "metric_curve",
    "middle_of",
    "value_at",
]

METRICS = ("accuracy", "nll", "nll_posthoc")
"""What a rule can be judged by; each is there for val and test: ``val_accuracy``, ..."""

TIE = 1e-12
"""Means that differ by less are equal: those of the same shares in another order do."""

_MOST_LOPSIDED = 1e4
"""Excess of one neighbour over the other; a parabola stays below it up to 0.4999 steps off."""

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class MetricCurve:
    """One metric of one curve, mean over seeds, at the temperatures that can be compared.

    Attributes:
        metric: its name, for instance ``val_nll``.
        temperatures: T, ascending, ``[k]``.
        values: mean over the seeds that count (see ``runs.judged``), ``[k]``. A diverged run counts
            as a model that knows nothing: accuracy ``1/C``, NLL ``ln C``.
        diverged: share of the seeds whose run diverged, ``[k]``.
        n_seeds: how many seeds count.
        higher_is_better: True for accuracy.
    """

    metric: str
    temperatures: Array
    values: Array
    diverged: Array
    n_seeds: int
    higher_is_better: bool

    @property
    def log_temperatures(self) -> Array:
        """Natural logarithms of the temperatures."""
        return np.log(self.temperatures)

    @property
    def loss(self) -> Array:
        """The values, turned so that lower is better."""
        return -self.values if self.higher_is_better else self.values


@dataclass(frozen=True)
class BestTemperature:
    """The temperature at which a metric is best.

    Attributes:
        temperature: interpolated in log T; equal to ``grid_temperature`` where ``at_edge`` says
            something or a neighbour diverged.
        value: the metric there, by the same parabola.
        grid_temperature: the best of the tried ones.
        grid_value: the metric there.
        at_edge: ``""``; or ``"lower"`` / ``"upper"``, the best T is, or is as good as, the smallest
            or largest tried: the true one may lie beyond (censored); or ``"both"``, all tried ones
            are equal and nothing is known of the best.
        plateau: smallest and largest tried T with the same best value.
    """

    temperature: float
    value: float
    grid_temperature: float
    grid_value: float
    at_edge: str
    plateau: tuple[float, float]


def metric_curve(curve: Curve, metric: str) -> MetricCurve:
    """Give one metric over T, mean over the seeds that have results at every T that counts.

    Args:
        curve: the runs of one setting.
        metric: ``val_`` or ``test_`` with a name of ``METRICS``.

    Returns:
        The metric at the temperatures that count (``runs.judged``).

    Raises:
        NotFound: if the runs do not have the metric.
        InvalidInput: if fewer than three temperatures can be compared.

    Example:
        >>> from temperance.study.curves import metric_curve
        >>> from temperance.study.runs import example_rows, curves_of_rows
        >>> (curve,) = curves_of_rows(*example_rows((1.0, 2.0, 4.0), (0, 1)))
        >>> metric_curve(curve, "val_nll").values.round(3).tolist()
        [0.348, 0.3, 0.348]
    """
    split, _, name = metric.partition("_")
    if name not in METRICS or split not in ("val", "test"):
        candidates = [f"{s}_{m}" for s in ("val", "test") for m in METRICS]
        raise NotFound("metric", found=f"no {metric!r}", candidates=candidates, fix="Name one.")
    counts = judged(curve)
    rows, seeds = counts.any(axis=1), counts.any(axis=0)
    if rows.sum() < LEAST_TEMPERATURES:
        raise InvalidInput(
            curve.label,
            expected=f"{LEAST_TEMPERATURES} temperatures or more with results",
            found=str(int(rows.sum())),
            fix="Widen the temperatures of the plan, or let the sweep go on.",
        )
    lost = (curve.outcomes == "diverged")[rows][:, seeds]
    table = curve.metrics.get(metric, np.full(counts.shape, np.nan))[rows][:, seeds]
    if not np.isfinite(table[~lost]).all():
        raise NotFound(
            f"metric {metric}",
            found=f"the runs of {curve.label} do not all have it",
            candidates=sorted(curve.metrics),
            fix="Choose another, or sweep again with this release.",
        )
    classes = curve.task.n_classes
    chance = 1 / classes if name == "accuracy" else math.log(classes)
    return MetricCurve(
        metric=metric,
        temperatures=curve.temperatures[rows],
        values=np.where(lost, chance, table).mean(axis=1),
        diverged=lost.mean(axis=1),
        n_seeds=int(seeds.sum()),
        higher_is_better=name == "accuracy",
    )


def best_temperature(curve: Curve, metric: str) -> BestTemperature:
    """Find the T at which a metric is best, on the grid and between its points.

    On the grid: the best mean over seeds, among temperatures without a diverged run; of equal ones
    (accuracy on few rows) the one in the middle of them in log T. Between: the vertex of the
    parabola in log T through that point and its two neighbours. There is none, and the grid's own
    value stands, where the equal ones reach an edge of the grid, and beside a diverged run.

    Args:
        curve: the runs of one setting.
        metric: ``val_`` or ``test_`` with a name of ``METRICS``.

    Returns:
        Best T and value, and whether the grid was too narrow to know (``at_edge``).

    Raises:
        NotFound: if the runs do not have the metric.
        InvalidInput: if fewer than three temperatures can be compared, or all of them diverged.

    Example:
        >>> from temperance.study.curves import best_temperature
        >>> from temperance.study.runs import example_rows, curves_of_rows
        >>> (curve,) = curves_of_rows(*example_rows((1.0, 2.5, 4.0), (0, 1)))
        >>> found = best_temperature(curve, "val_nll")
        >>> found.grid_temperature, round(found.temperature, 3), found.at_edge
        (2.5, 2.0, '')
    """
    means = metric_curve(curve, metric)
    x, y = means.log_temperatures, means.loss
    whole = means.diverged == 0
    if not whole.any():
        raise InvalidInput(
            curve.label,
            expected="a temperature at which no run diverged",
            found="diverged runs at every one",
            fix="Lower the learning rate of the plan.",
        )
    tied = np.flatnonzero(whole & (y <= y[whole].min() + TIE))
    at = middle_of(x, tied)
    lower, upper = tied[0] == 0, tied[-1] == len(x) - 1
    edge = "both" if lower and upper else "lower" if lower else "upper" if upper else ""
    tried = means.temperatures.tolist()
    best, value = tried[at], float(y[at])
    if not edge and whole[at - 1] and whole[at + 1]:
        log_t, value = _vertex(x[at - 1 : at + 2], y[at - 1 : at + 2])
        best = math.exp(log_t)
    sign = -1.0 if means.higher_is_better else 1.0
    return BestTemperature(
        temperature=best,
        value=sign * value,
        grid_temperature=tried[at],
        grid_value=float(means.values[at]),
        at_edge=edge,
        plateau=(tried[tied[0]], tried[tied[-1]]),
    )


def middle_of(log_t: Array, places: NDArray[np.intp]) -> int:
    """Give the place whose log T is nearest to the middle between the first and the last."""
    middle = (log_t[places[0]] + log_t[places[-1]]) / 2
    return int(places[np.abs(log_t[places] - middle).argmin()])


def _vertex(x: Array, y: Array) -> tuple[float, float]:
    """Lowest point of the parabola through three points whose middle one is the lowest.

    Beside a run that all but diverged it is the middle point: a parabola through that one would
    fall below anything.
    """
    excess = np.delete(y - y[1], 1)
    if excess.max() > _MOST_LOPSIDED * max(float(excess.min()), TIE):
        return float(x[1]), float(y[1])
    left, right = (y[1] - y[0]) / (x[1] - x[0]), (y[2] - y[1]) / (x[2] - x[1])
    curvature = (right - left) / (x[2] - x[0])
    if curvature <= 0:  # three equal values
        return float(x[1]), float(y[1])
    slope = left + curvature * (x[1] - x[0])  # at the middle point
    step = -slope / (2 * curvature)
    return float(x[1] + step), float(y[1] + slope * step + curvature * step**2)


def value_at(means: MetricCurve, temperature: ArrayLike) -> tuple[Array, NDArray[np.str_]]:
    """Interpolate a metric at temperatures that were not tried.

    Linear in log T between the tried ones. Outside them nothing is known: the value at the edge is
    given, and said to be so. Between a T that worked and one that diverged the line runs towards
    chance.

    Args:
        means: what ``metric_curve`` gave.
        temperature: one or more temperatures, > 0.

    Returns:
        The values, and for each ``""``, ``"below"`` or ``"above"`` (outside the tried ones), both
        of the shape of ``temperature``.

    Raises:
        InvalidInput: if a temperature is not a positive number.

    Example:
        >>> from temperance.study.curves import metric_curve, value_at
        >>> from temperance.study.runs import example_rows, curves_of_rows
        >>> (curve,) = curves_of_rows(*example_rows((1.0, 2.0, 4.0), (0, 1)))
        >>> values, outside = value_at(metric_curve(curve, "val_nll"), [1.0, 2**0.5, 9.0])
        >>> values.round(3).tolist(), outside.tolist()
        ([0.348, 0.324, 0.348], ['', '', 'above'])
    """
    wanted = np.asarray(temperature, np.float64)
    if not (np.isfinite(wanted) & (wanted > 0)).all():
        raise InvalidInput(
            "temperature",
            expected="positive numbers",
            found=str(temperature),
            fix="Ask for temperatures that a model can be trained at.",
        )
    x, at = means.log_temperatures, np.log(wanted)
    slack = 1e-12 * max(1.0, float(np.abs(x).max()))  # a T of the grid itself is inside
    outside = np.where(at < x[0] - slack, "below", np.where(at > x[-1] + slack, "above", ""))
    return np.interp(at, x, means.values), outside
