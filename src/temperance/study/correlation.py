"""Which statistics of a task go with its best temperature.

A pair is one curve: the statistics of its training rows, and the T that its validation rows chose.
Pairs of one data set resemble each other, so intervals and p-values take the data set as the unit.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from temperance.errors import InvalidInput, NotFound
from temperance.records import Estimate
from temperance.study.cluster_correlation import (
    flip_p_values,
    pearson,
    pearson_draws,
    spearman,
    spearman_draws,
)
from temperance.study.curves import METRICS, best_temperature
from temperance.study.resample import (
    FEW,
    METHOD,
    Resample,
    check_draws,
    data_set_interval,
    resample_data_sets,
)
from temperance.study.runs import Curve
from temperance.study.selection import mixed_settings

__all__ = [
    "CENSORED",
    "TARGETS",
    "Correlation",
    "CorrelationTable",
    "Pairs",
    "best_pairs",
    "correlate",
]

TARGETS = ("log best T", "log alpha")
"""``log T*``; or ``log(T* / sqrt(M))``, what remains of it beside the dimension."""
CENSORED = ("rank", "drop")
"""Best T at an edge of the trained ones: ``rank``: Spearman's correlation keeps it where it is,
Pearson's leaves it out; ``drop``: both leave it out."""

_SIZES = ("M", "C", "n")
_LEAST = 4  # pairs below which no correlation is given
_FEW_FLIPS = 12  # data sets below which the p-values are too small, see correlate
_P_METHOD = "signs of data sets flipped"
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Correlation:
    """How one statistic goes with the target.

    Attributes:
        statistic: its name; ``M``, ``C`` and ``n`` are the sizes of the task.
        pairs: how many pairs have it.
        datasets: of how many data sets.
        spearman: rank correlation.
        pearson: linear correlation of the statistic itself with the (logarithmic) target.
        pearson_log: of its logarithm; None where it is not positive everywhere.
        p_value: of Spearman's correlation, for this statistic alone.
        p_adjusted: that at least one of all statistics comes as far from 0 by chance.
    """

    statistic: str
    pairs: int
    datasets: int
    spearman: Estimate
    pearson: Estimate
    pearson_log: Estimate | None
    p_value: float
    p_adjusted: float


@dataclass(frozen=True)
class CorrelationTable:
    """All statistics, the strongest rank correlation first.

    Attributes:
        rows: the correlations.
        target: a name of ``TARGETS``.
        metric: the metric whose best T it is.
        pairs: how many pairs there are.
        datasets: of how many data sets.
        at_lower_edge: pairs whose best T is, or is as good as, the smallest trained.
        at_upper_edge: pairs whose best T is, or is as good as, the largest trained.
        left_out: statistics without a correlation, with the reason.
        notes: what a reader should know.
        settings: censored, bootstrap, seed, methods.
    """

    rows: tuple[Correlation, ...]
    target: str
    metric: str
    pairs: int
    datasets: int
    at_lower_edge: int
    at_upper_edge: int
    left_out: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Pairs:
    """Best temperatures beside the statistics of their tasks.

    Attributes:
        curves: those with a best T.
        log_t: natural logarithm of the best T on validation, interpolated, ``[n]``.
        edge: -1 where the smallest trained is as good, 1 the largest, 0 inside, ``[n]``.
        left_out: labels of the curves without a best T (diverged or equal everywhere).
    """

    curves: tuple[Curve, ...]
    log_t: Floats
    edge: NDArray[np.int64]
    left_out: tuple[str, ...] = ()

    @property
    def datasets(self) -> list[str]:
        """Data set of each pair."""
        return [c.dataset for c in self.curves]


def best_pairs(curves: Sequence[Curve], metric: str) -> Pairs:
    """Find the best T of each curve, on its validation rows.

    Args:
        curves: the runs of a study.
        metric: ``accuracy``, ``nll`` or ``nll_posthoc``.

    Returns:
        The best temperatures; curves that diverged at every T, or are equally good at every T, are
        left out and named.

    Raises:
        NotFound: if there is no such metric, or the runs lack it.
        InvalidInput: if no curve has a best T.
    """
    if metric not in METRICS:
        raise NotFound("metric", found=f"no {metric!r}", candidates=METRICS, fix="Name one.")
    kept, log_t, edge, lost = [], [], [], []
    for curve in curves:
        try:
            best = best_temperature(curve, f"val_{metric}")
        except InvalidInput:  # diverged everywhere, or hardly any T
            best = None
        if best is None or best.at_edge == "both":  # its T would say how the grid was made
            lost.append(curve.label)
            continue
        kept.append(curve)
        log_t.append(math.log(best.temperature))
        edge.append({"": 0, "lower": -1, "upper": 1}[best.at_edge])
    if not kept:
        raise InvalidInput(
            "curves",
            expected="curves with a best temperature",
            found=f"{len(lost)} that have none" if lost else "no curves",
            fix="Add runs at three temperatures or more that do not diverge and are not all equal.",
        )
    return Pairs(tuple(kept), np.array(log_t), np.array(edge), tuple(lost))


def correlate(
    curves: Sequence[Curve],
    target: str = "log best T",
    *,
    metric: str = "nll",
    censored: str = "rank",
    bootstrap: int = 2000,
    seed: int = 0,
) -> CorrelationTable:
    """Correlate every statistic of the tasks with their best temperature.

    Intervals: bootstrap over data sets, each drawn with all of its pairs. P-values: under the
    hypothesis that a statistic says nothing about T, the share ``u_d = sum_i r(x_i) r(y_i)`` (of
    centred ranks, over the pairs of data set d) is as likely as ``-u_d``. The signs of the data
    sets are flipped at random, the same for all statistics, and ``t = sum_d u_d / sqrt(sum_d
    u_d^2)`` is worked out again. ``p_value`` is the share of flips with a ``|t|`` as large;
    ``p_adjusted`` that of flips whose largest ``|t|`` over *all* statistics is: it holds for the
    whole table. In 800 simulations without any relation, 12 statistics and 1 to 8 pairs per data
    set, the table had an adjusted p of at most 0.05 in 7 to 10 % of cases with 8 data sets and in
    5 to 8 % with 25; SciPy's p of one statistic, which takes pairs for independent, in 15 to 37 %.

    The pairs should differ by their tasks only: pass the curves of one norm, loss, optimizer, ...;
    else ``notes`` says how many settings are mixed. Extractors are as they are chosen: nothing is
    said about other ones.

    Args:
        curves: the runs, one curve for each pair of data set and representation.
        target: a name of ``TARGETS``.
        metric: whose best T: ``accuracy``, ``nll`` or ``nll_posthoc``, on validation rows.
        censored: a name of ``CENSORED``.
        bootstrap: draws of data sets, and flips of signs.
        seed: of both.

    Returns:
        The table.

    Raises:
        InvalidInput: for another target or ``censored``, fewer than four pairs, or no draws.
        NotFound: for another metric, or one that the runs lack.

    Example:
        >>> from dataclasses import replace
        >>> from temperance import Task
        >>> from temperance.study.correlation import correlate
        >>> from temperance.study.runs import curves_of_rows, example_rows
        >>> (one,) = curves_of_rows(*example_rows((0.5, 1.0, 2.0, 4.0, 8.0)))
        >>> curves = [  # the best T is 2 sqrt(M)
        ...     replace(
        ...         one,
        ...         dataset=f"set{m}",
        ...         task=Task(m, 10),
        ...         temperatures=one.temperatures * m**0.5,
        ...     )
        ...     for m in (16, 25, 36, 64, 100, 144)
        ... ]
        >>> row = correlate(curves, bootstrap=99).rows[0]
        >>> row.statistic, row.spearman.value, row.pairs
        ('M', 1.0, 6)

    Reference:
        Correlation of statistics with best T: R. Chamand et al., arXiv 2210.09715. Largest
        statistic: P. Westfall, S. Young, "Resampling-based multiple testing", 1993. Flipped
        signs of clusters: P. Kline, A. Santos, "A score based approach to wild bootstrap
        inference", Journal of Econometric Methods 1(1), 2012.
    """
    _check_choice("target", target, TARGETS)
    _check_choice("censored", censored, CENSORED)
    pairs = best_pairs(curves, metric)
    y = pairs.log_t.copy()
    if target == "log alpha":
        y -= 0.5 * np.log([c.task.feature_dim for c in pairs.curves])
    y = np.round(y, 9)  # what differs by rounding only is a tie
    kept = np.ones(len(y), bool) if censored == "rank" else pairs.edge == 0
    found, left_out = _columns(pairs.curves, kept)
    if kept.sum() < _LEAST or not found:
        raise InvalidInput(
            "curves",
            expected=f"{_LEAST} pairs or more with a statistic that varies",
            found=f"{int(kept.sum())} pairs, {len(found)} such statistics",
            fix="Add data sets or representations, or widen the temperatures.",
        )
    check_draws(bootstrap, seed)
    tests = flip_p_values(found, y, pairs.datasets, flips=bootstrap, seed=seed)
    rows = [
        _correlation(name, x, y, pairs=pairs, draws=(bootstrap, seed), p=tests[name])
        for name, x in found.items()
    ]
    return CorrelationTable(
        rows=tuple(sorted(rows, key=lambda row: -abs(row.spearman.value))),
        target=target,
        metric=metric,
        pairs=len(y),
        datasets=len(set(pairs.datasets)),
        at_lower_edge=int((pairs.edge < 0).sum()),
        at_upper_edge=int((pairs.edge > 0).sum()),
        left_out=left_out,
        notes=_notes(pairs),
        settings={"censored": censored, "bootstrap": bootstrap, "seed": seed,
                  "intervals": METHOD, "p_values": _P_METHOD},
    )  # fmt: skip


def _check_choice(name: str, value: str, choices: Sequence[str]) -> None:
    if value not in choices:
        raise InvalidInput(name, expected=" or ".join(choices), found=repr(value), fix="Name one.")


def _columns(
    curves: Sequence[Curve], kept: NDArray[np.bool_]
) -> tuple[dict[str, Floats], dict[str, str]]:
    """Statistics by name, NaN where a pair does not have them; and those that cannot be used."""
    names = sorted({name for c in curves for name in c.task.statistics})
    columns: dict[str, list[float]] = {
        "M": [c.task.feature_dim for c in curves],
        "C": [c.task.n_classes for c in curves],
    }
    columns["n"] = [np.nan if c.task.n_samples is None else c.task.n_samples for c in curves]
    for name in names:
        statistics = [c.task.statistics.get(name) for c in curves]
        columns[name] = [np.nan if s is None else float(s) for s in statistics]
    found: dict[str, Floats] = {}
    left_out: dict[str, str] = {}
    for name, values in columns.items():
        x = np.where(kept, np.asarray(values, np.float64), np.nan)
        x[~np.isfinite(x)] = np.nan
        there = x[np.isfinite(x)]
        if len(there) < _LEAST:
            left_out[name] = f"{len(there)} pairs have it"
        elif np.ptp(there) == 0:
            left_out[name] = f"it is {there[0]:g} everywhere"
        elif same := [
            s for s in _SIZES if s in found and np.array_equal(found[s], x, equal_nan=True)
        ]:
            left_out[name] = f"it is {same[0]}"
        else:
            found[name] = x
    return found, left_out


def _correlation(
    name: str,
    x: Floats,
    y: Floats,
    *,
    pairs: Pairs,
    draws: tuple[int, int],
    p: tuple[float, float],
) -> Correlation:
    there = np.isfinite(x)
    inside = there & (pairs.edge == 0)  # Pearson's takes no value for more than it is
    positive = bool((x[there] > 0).all())
    logs = np.log(np.where(x > 0, x, 1.0))
    return Correlation(
        statistic=name,
        pairs=int(there.sum()),
        datasets=len({d for d, t in zip(pairs.datasets, there, strict=True) if t}),
        spearman=_estimate(x, y, there, ranks=True, pairs=pairs, draws=draws),
        pearson=_estimate(x, y, inside, ranks=False, pairs=pairs, draws=draws),
        pearson_log=_estimate(logs, y, inside, ranks=False, pairs=pairs, draws=draws)
        if positive
        else None,
        p_value=p[0],
        p_adjusted=p[1],
    )


def _estimate(
    x: Floats,
    y: Floats,
    which: NDArray[np.bool_],
    *,
    ranks: bool,
    pairs: Pairs,
    draws: tuple[int, int],
) -> Estimate:
    if which.sum() < _LEAST:
        return Estimate(math.nan, None, f"fewer than {_LEAST} pairs")
    names = [name for name, there in zip(pairs.datasets, which, strict=True) if there]
    draw: Resample = resample_data_sets(names, replicates=draws[0], seed=draws[1])
    once, again = (spearman, spearman_draws) if ranks else (pearson, pearson_draws)
    value = once(x[which], y[which])
    replicates = again(x[which], y[which], draw)
    return Estimate(value, data_set_interval(value, replicates, len(draw.names)), METHOD)


def _notes(pairs: Pairs) -> tuple[str, ...]:
    notes, data_sets = [], len(set(pairs.datasets))
    if pairs.left_out:
        notes.append(f"{len(pairs.left_out)} curves without a best T, such as {pairs.left_out[0]}")
    edge = int((pairs.edge != 0).sum())
    if edge:
        notes.append(
            f"the best T of {edge} of {len(pairs.edge)} pairs is an edge of the trained ones"
        )
    if varying := mixed_settings(pairs.curves):
        notes.append(f"pairs of several settings are mixed: {', '.join(varying)} vary")
    if data_sets < FEW:
        notes.append(f"{data_sets} data sets: the intervals are too short, with one there is none")
    if data_sets < _FEW_FLIPS:
        notes.append(f"{data_sets} data sets: the p-values are up to twice too small")
    return tuple(notes)
