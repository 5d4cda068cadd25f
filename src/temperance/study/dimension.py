"""Does the best temperature grow like the square root of the feature dimension?

Hasegawa and Sakai (arXiv 2504.15594) state ``T* = alpha sqrt(M)``, and that the spread of the
fitted alpha falls from 2.17 to 1.86 with BatchNorm in front of the output layer. Here the exponent
of M is fitted, and alpha with its spread is worked out for each norm.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from temperance.errors import InvalidInput
from temperance.records import Estimate
from temperance.study.correlation import best_pairs
from temperance.study.regret_records import short_labels
from temperance.study.resample import (
    FEW,
    METHOD,
    Resample,
    data_set_interval,
    resample_data_sets,
)
from temperance.study.runs import Curve
from temperance.study.trial import NORMS

__all__ = ["CENSORED", "DimensionReport", "DimensionSeries", "NormDimension", "dimension_exponent"]

CENSORED = ("drop", "keep")
"""Best T at an edge of the trained ones: left out, or taken as if it were the best."""

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class DimensionSeries:
    """Best temperatures of one data set under one setting, over M.

    Attributes:
        dataset: the data set.
        norm: in front of the output layer.
        label: data set and what varies of the setting.
        feature_dims: M, ascending.
        temperatures: best T on validation, interpolated.
        edges: ``lower`` or ``upper`` where it is an edge of the trained ones, else nothing.
        alpha: least squares of ``T = alpha sqrt(M)``: ``sum(T sqrt(M)) / sum(M)``; None where
            every T is at an edge and these are left out.
        exponent: slope of log T over log M; None with fewer than two M that count.
    """

    dataset: str
    norm: str
    label: str
    feature_dims: tuple[int, ...]
    temperatures: tuple[float, ...]
    edges: tuple[str, ...]
    alpha: float | None
    exponent: float | None


@dataclass(frozen=True)
class NormDimension:
    """What holds for the series of one norm; intervals by data sets, 95 %.

    Attributes:
        norm: in front of the output layer.
        exponent: slope of log T over log M within the series, pooled; 0.5 is the square root. None
            where no series has two M.
        scale: T of the line at M = 1, ``exp(mean log T - exponent * mean log M)``.
        alpha: mean over the series of their alpha.
        alpha_std: standard deviation of alpha over the series, the paper's spread.
        alpha_log_std: that of log alpha, which does not grow with alpha itself.
        series: how many there are with an alpha.
        datasets: of how many data sets.
        points: best temperatures that count.
        at_edge: best temperatures at an edge of the trained ones.
    """

    norm: str
    exponent: Estimate | None
    scale: float | None
    alpha: Estimate
    alpha_std: Estimate | None
    alpha_log_std: Estimate | None
    series: int
    datasets: int
    points: int
    at_edge: int


@dataclass(frozen=True)
class DimensionReport:
    """Best temperature against dimension.

    Attributes:
        norms: a record for each norm of the runs.
        series: all series.
        spread_ratio: for each norm but ``none``, its ``alpha_std`` over that without a norm; the
            same data sets are drawn for both. The paper's figures give 1.86 / 2.17 = 0.86.
        log_spread_ratio: the same of ``alpha_log_std``.
        metric: the metric whose best T it is.
        notes: what a reader should know.
        settings: censored, bootstrap, seed, methods.
    """

    norms: tuple[NormDimension, ...]
    series: tuple[DimensionSeries, ...]
    spread_ratio: Mapping[str, Estimate]
    log_spread_ratio: Mapping[str, Estimate]
    metric: str
    notes: tuple[str, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)


def dimension_exponent(
    curves: Sequence[Curve],
    metric: str = "nll",
    *,
    censored: str = "drop",
    bootstrap: int = 2000,
    seed: int = 0,
) -> DimensionReport:
    """Fit how the best T grows with M, within each data set and setting.

    A series is all curves that differ in M only: in ``feature_dim`` or in the size of their
    representation, the number at its end that is M (``pca:16``, ``pca:32|rff:64``). The exponent
    is the slope of log T over log M after the mean of each series is taken off both: differences
    between data sets do not enter.

    Args:
        curves: the runs.
        metric: whose best T: ``accuracy``, ``nll`` or ``nll_posthoc``, on validation rows.
        censored: a name of ``CENSORED``. Both bend the exponent where many best T are at the upper
            edge for large M; widen the grid then.
        bootstrap: draws of data sets.
        seed: of these draws.

    Returns:
        Exponent, alpha and its spread for each norm, and all series.

    Raises:
        InvalidInput: for another ``censored``, or if no best T counts.
        NotFound: for another metric, or one that the runs lack.

    Example:
        >>> from dataclasses import replace
        >>> from temperance import Task
        >>> from temperance.study.dimension import dimension_exponent
        >>> from temperance.study.runs import curves_of_rows, example_rows
        >>> (one,) = curves_of_rows(*example_rows((0.5, 1.0, 2.0, 4.0, 8.0)))
        >>> curves = [  # the best T is 2 sqrt(M)
        ...     replace(
        ...         one,
        ...         setting={**one.setting, "features": f"pca:{m}"},
        ...         task=Task(m, 10),
        ...         temperatures=one.temperatures * m**0.5,
        ...     )
        ...     for m in (16, 64, 256)
        ... ]
        >>> found = dimension_exponent(curves, bootstrap=9).norms[0]
        >>> round(found.exponent.value, 6), round(found.alpha.value, 6)
        (0.5, 2.0)

    Reference:
        T. Hasegawa, S. Sakai, 2025, arXiv 2504.15594.
    """
    if censored not in CENSORED:
        raise InvalidInput(
            "censored", expected=" or ".join(CENSORED), found=repr(censored), fix="Name one."
        )
    pairs = best_pairs(curves, metric)
    series = _series(pairs.curves, np.exp(pairs.log_t), pairs.edge, drop=censored == "drop")
    counting = [s for s in series if s.alpha is not None]
    if not counting:
        raise InvalidInput(
            "curves",
            expected="a best T inside the trained ones",
            found=f"{len(series)} series whose best T are all at an edge",
            fix='Widen the temperatures, or pass censored="keep".',
        )
    draw = resample_data_sets([s.dataset for s in counting], replicates=bootstrap, seed=seed)
    norms = [n for n in NORMS if any(s.norm == n for s in counting)]
    found = tuple(_norm(n, series, counting, draw=draw, drop=censored == "drop") for n in norms)
    lost = [f"{len(pairs.left_out)} curves have no best T"] if pairs.left_out else []
    few = [f"{len(draw.names)} data sets: intervals are too short"] if len(draw.names) < FEW else []
    return DimensionReport(
        norms=found,
        series=tuple(series),
        spread_ratio=_ratios(found, counting, draw=draw, logs=False),
        log_spread_ratio=_ratios(found, counting, draw=draw, logs=True),
        metric=metric,
        notes=(*lost, *few, *_unpaired(counting)),
        settings={"censored": censored, "bootstrap": bootstrap, "seed": seed, "intervals": METHOD},
    )


def _unpaired(counting: Sequence[DimensionSeries]) -> list[str]:
    """Say which spreads are not of the same series, so that their ratio says less."""
    labels = {n: {s.label for s in counting if s.norm == n} for n in NORMS}
    return [
        f"the spread of alpha with norm {norm} is of other series than that without a norm "
        f"({len(found - labels['none'])} only there, {len(labels['none'] - found)} only without)"
        for norm, found in labels.items()
        if norm != "none" and found and labels["none"] and found != labels["none"]
    ]


# ------------------------------------------------------------------ series
def _series(
    curves: Sequence[Curve], temperatures: Floats, edge: NDArray[np.int64], *, drop: bool
) -> list[DimensionSeries]:
    groups: dict[str, list[int]] = {}
    for place, curve in enumerate(curves):
        groups.setdefault(str(sorted(_without_size(curve).items(), key=str)), []).append(place)
    settings = [_without_size(curves[places[0]]) for places in groups.values()]
    labels = short_labels(settings, without=("norm",))
    series = []
    for label, places in zip(labels, groups.values(), strict=True):
        order = sorted(places, key=lambda p: (curves[p].task.feature_dim, p))
        dims = np.array([curves[p].task.feature_dim for p in order], np.float64)
        counts = (edge[order] == 0) if drop else np.ones(len(order), bool)
        first = curves[order[0]]
        series.append(
            DimensionSeries(
                dataset=first.dataset,
                norm=str(first.setting["norm"]),
                label=label,
                feature_dims=tuple(map(int, dims)),
                temperatures=tuple(map(float, temperatures[order])),
                edges=tuple(("lower", "", "upper")[edge[p] + 1] for p in order),
                alpha=_alpha(dims[counts], temperatures[order][counts]),
                exponent=_slope(np.log(dims[counts]), np.log(temperatures[order][counts])),
            )
        )
    return series


def _without_size(curve: Curve) -> dict[str, Any]:
    """The setting without what makes M: the width of a net, the size of a representation.

    A number at the end that is not M, such as the stage of a network, tells representations apart.
    """
    kept = {name: value for name, value in curve.setting.items() if name != "feature_dim"}
    if curve.setting["model"] == "probe":  # of a net, M is the width
        kept["features"] = curve.setting["features"].removesuffix(f":{curve.task.feature_dim}")
    return kept


def _alpha(dims: Floats, temperatures: Floats) -> float | None:
    return float(temperatures @ np.sqrt(dims) / dims.sum()) if len(dims) else None


def _slope(x: Floats, y: Floats) -> float | None:
    dx = x - x.mean() if len(x) else x
    return float(dx @ y / (dx @ dx)) if len(x) and np.ptp(x) > 0 else None


def _points(series: DimensionSeries, drop: bool) -> tuple[Floats, Floats]:
    """Log M and log T of the best temperatures that count."""
    counts = [not (drop and edge) for edge in series.edges]
    x, y = np.log(np.array(series.feature_dims, np.float64)), np.log(series.temperatures)
    return x[counts], y[counts]


# ------------------------------------------------------------------ norms
def _norm(
    norm: str,
    every: Sequence[DimensionSeries],
    counting: Sequence[DimensionSeries],
    *,
    draw: Resample,
    drop: bool,
) -> NormDimension:
    mine = np.array([s.norm == norm for s in counting], np.float64)
    points = [_points(s, drop) for s in counting]
    x, y = (np.concatenate([p[i] for p, m in zip(points, mine, strict=True) if m]) for i in (0, 1))
    exponent = _exponent(points, mine, draw)
    slope = None if exponent is None else exponent.value
    alpha = _alphas(counting)
    size = len({s.dataset for s in counting if s.norm == norm})
    mean = float(alpha[mine > 0].mean())
    with np.errstate(invalid="ignore", divide="ignore"):  # a draw may hold none of this norm
        means = draw.sums(alpha * mine) / draw.sums(mine)
    return NormDimension(
        norm=norm,
        exponent=exponent,
        scale=None if slope is None else float(np.exp(y.mean() - slope * x.mean())),
        alpha=Estimate(mean, data_set_interval(mean, means, size), METHOD),
        alpha_std=_spread(alpha, mine, draw, size),
        alpha_log_std=_spread(np.log(alpha), mine, draw, size),
        series=int(mine.sum()),
        datasets=size,
        points=len(x),
        at_edge=sum(bool(edge) for s in every if s.norm == norm for edge in s.edges),
    )


def _alphas(series: Sequence[DimensionSeries]) -> Floats:
    return np.array([np.nan if s.alpha is None else s.alpha for s in series])


def _exponent(
    points: Sequence[tuple[Floats, Floats]], mine: Floats, draw: Resample
) -> Estimate | None:
    centred = [(x - x.mean(), y) for x, y in points]
    sxx = np.array([x @ x for x, _ in centred]) * mine
    sxy = np.array([x @ y for x, y in centred]) * mine
    if not sxx.sum() > 0:
        return None
    value = float(sxy.sum() / sxx.sum())
    with np.errstate(invalid="ignore", divide="ignore"):
        replicates = draw.sums(sxy) / draw.sums(sxx)
    size = len({draw.names[p] for p, s in zip(draw.place, sxx, strict=True) if s > 0})
    return Estimate(value, data_set_interval(value, replicates, size), METHOD)


def _spread(values: Floats, mine: Floats, draw: Resample, size: int) -> Estimate | None:
    """Standard deviation over the series, one degree of freedom for the mean."""
    if mine.sum() < 2:
        return None
    value = float(values[mine > 0].std(ddof=1))
    interval = data_set_interval(value, _spreads(values, mine, draw), size)
    return Estimate(value, interval, METHOD)


def _spreads(values: Floats, mine: Floats, draw: Resample) -> Floats:
    middle = values[mine > 0].mean()  # near 0, the squares lose no digits
    n = draw.sums(mine)
    first, second = (draw.sums((values - middle) ** p * mine) for p in (1, 2))
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.sqrt(np.maximum(second - first**2 / n, 0.0) / (n - 1))


def _ratios(
    norms: Sequence[NormDimension],
    counting: Sequence[DimensionSeries],
    *,
    draw: Resample,
    logs: bool,
) -> dict[str, Estimate]:
    values = np.log(_alphas(counting)) if logs else _alphas(counting)
    masks = {n.norm: np.array([s.norm == n.norm for s in counting], np.float64) for n in norms}
    spreads = {n.norm: n.alpha_log_std if logs else n.alpha_std for n in norms}
    base = spreads.get("none")
    found = {}
    for norm in masks:
        own = spreads[norm]
        if norm == "none" or own is None or base is None or base.value == 0:
            continue
        with np.errstate(invalid="ignore", divide="ignore"):
            replicates = _spreads(values, masks[norm], draw) / _spreads(values, masks["none"], draw)
        value = own.value / base.value
        found[norm] = Estimate(value, data_set_interval(value, replicates, len(draw.names)), METHOD)
    return found
