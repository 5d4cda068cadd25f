"""Many statistics of the same rows: what they share is made once, then values, then spread."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from temperance.records import Features, Statistic
from temperance.task.moments import MAX_FEATURES, Moments, moments_of
from temperance.task.neighbour_statistics import neighbours_of, silhouettes_of
from temperance.task.remarks import remarks_on_classes, remarks_on_moments, remarks_on_neighbours
from temperance.task.spread import deal, jackknife, wilson
from temperance.task.statistic_spec import StatisticSpec, UndefinedStatistic

__all__ = ["MAX_SCATTER_SPREAD", "MAX_SPECTRUM_SPREAD", "Progress", "Request", "measure_all"]

MAX_SCATTER_SPREAD = 4096
"""Features up to which groups of rows are left out of the scatter matrix, for intervals."""

MAX_SPECTRUM_SPREAD = 3072
"""The same where its eigenvalues are needed: 4 s for each group on one core."""

Ints = NDArray[np.int64]
Progress = Callable[[str, int, int], None]
_MOMENTS = ("moments", "scatter", "spectrum")
_DRAWN = ("neighbours", "silhouettes")


@dataclass(frozen=True, eq=False)
class Request:
    """What is to be measured.

    Attributes:
        features: the rows, checked.
        specs: the statistics.
        repeats: groups of rows, and draws where a statistic has draws of its own.
        seed: of groups and draws.
        progress: called with (what, steps done, steps in all).
    """

    features: Features
    specs: Sequence[StatisticSpec]
    repeats: int
    seed: int
    progress: Progress | None = None

    @property
    def groups(self) -> int:
        """Groups that no group is empty of."""
        return min(self.repeats, len(self.features))

    def needing(self, *kinds: str) -> list[StatisticSpec]:
        """Give the statistics that need one of these."""
        return [spec for spec in self.specs if spec.needs in kinds]

    def step(self, what: str) -> Callable[[int, int], None] | None:
        """Give the progress of one part of the work."""
        tell = self.progress
        return None if tell is None else lambda done, total: tell(what, done, total)


@dataclass(frozen=True)
class _Spread:
    """An interval, what it covers, and the standard error behind it."""

    interval: tuple[float, float] | None
    covers: str
    error: float | None = None


def measure_all(request: Request) -> tuple[dict[str, Statistic], dict[str, str]]:
    """Measure the statistics of a request.

    Args:
        request: rows, statistics, groups and seed.

    Returns:
        The statistics by name, in the order of the request; and why the others do not exist.
    """
    sources, undefined = _sources(request)
    values: dict[str, float] = {}
    own: dict[str, Statistic] = {}
    for spec in request.specs:
        if spec.name in undefined:
            continue
        try:
            if spec.record is not None:
                own[spec.name] = _own(request, spec)
            else:
                source = sources.get(spec.needs, request.features)
                values[spec.name] = _finite(spec, spec.function(source))
        except UndefinedStatistic as error:
            undefined[spec.name] = error.reason
    left_out = _leave_out(request, sources, [s for s in request.specs if s.name in values])
    remarks = _remarks(request, sources)
    found = {}
    for spec in request.specs:
        if spec.name in own:
            found[spec.name] = own[spec.name]
        elif spec.name in values:
            drawn, value = _n_judged(request, spec, sources), values[spec.name]
            spread = _spread(request, spec, value=value, left_out=left_out, drawn=drawn)
            found[spec.name] = _record(
                request, spec, value=value, spread=spread, remarks=remarks, drawn=drawn
            )
    return found, undefined


# ------------------------------------------------------------------ values
def _sources(request: Request) -> tuple[dict[str, Any], dict[str, str]]:
    """What the statistics are computed from, each made once; and what cannot be."""
    features, dim = request.features, request.features.feature_dim
    sources: dict[str, Any] = {"features": features}
    undefined: dict[str, str] = {}
    products = request.needing("scatter", "spectrum")
    if dim > MAX_FEATURES:
        reason = f"expected at most {MAX_FEATURES} features for a covariance, found {dim}"
        undefined, products = {spec.name: reason for spec in products}, []
    if products or request.needing("moments"):
        _tell(request, "moments", 0, 1)
        moments = moments_of(features, scatter=bool(products))
        sources |= dict.fromkeys(_MOMENTS, moments)
    settings = {"seed": request.seed, "groups": request.groups}
    if request.needing("neighbours") and len(features) > 1:
        step = request.step("nearest neighbours")
        sources["neighbours"] = neighbours_of(features, progress=step, **settings)
    if request.needing("silhouettes"):
        step = request.step("silhouettes")
        sources["silhouettes"] = silhouettes_of(features, progress=step, **settings)
    return sources, undefined


def _own(request: Request, spec: StatisticSpec) -> Statistic:
    assert spec.record is not None
    step = request.step(spec.title)
    return spec.record(request.features, repeats=request.repeats, seed=request.seed, progress=step)


def _finite(spec: StatisticSpec, value: float) -> float:
    if not math.isfinite(value):
        raise UndefinedStatistic(spec.name, expected="a finite value", found=str(value))
    return float(value)


def _tell(request: Request, what: str, done: int, total: int) -> None:
    if request.progress:
        request.progress(what, done, total)


# ------------------------------------------------------------------ groups of rows left out
def _leave_out(
    request: Request, sources: Mapping[str, Any], specs: Sequence[StatisticSpec]
) -> dict[str, list[float]]:
    """Values without each group of rows; fewer than groups where one does not exist."""
    wanted = [
        spec for spec in specs if spec.interval == "jackknife" and not _too_wide(request, spec)
    ]
    out: dict[str, list[float]] = {spec.name: [] for spec in wanted}
    if request.groups < 2 or not wanted:
        return out
    rng = np.random.default_rng(np.random.SeedSequence(request.seed))
    group = deal(request.features.y, request.groups, rng)
    needs = {str(spec.needs) for spec in wanted}
    for place in range(request.groups):
        _tell(request, "groups left out", place, request.groups)
        rows = np.flatnonzero(group == place)
        reduced = _reduced(request, sources, needs=needs, rows=rows, place=place)
        for spec in wanted:
            source = reduced.get(spec.needs)
            if source is not None:
                out[spec.name] += _or_nothing(spec, source)
    return out


def _too_wide(request: Request, spec: StatisticSpec) -> bool:
    most = {"scatter": MAX_SCATTER_SPREAD, "spectrum": MAX_SPECTRUM_SPREAD}
    return request.features.feature_dim > most.get(spec.needs, math.inf)


def _reduced(
    request: Request, sources: Mapping[str, Any], *, needs: set[str], rows: Ints, place: int
) -> dict[str, Any]:
    """The sources without one group of rows."""
    features = request.features
    out: dict[str, Any] = {k: sources[k].without(place) for k in _DRAWN if k in sources}
    if needs & set(_MOMENTS):
        moments: Moments = sources["moments"]
        scatter = bool(needs & {"scatter", "spectrum"})
        out |= dict.fromkeys(_MOMENTS, moments.without(features, rows, scatter=scatter))
    if "features" in needs:
        keep = np.ones(len(features), bool)
        keep[rows] = False
        x, y = features.x[keep], features.y[keep]
        out["features"] = Features(x, y, features.class_map, features.source)
    return out


def _or_nothing(spec: StatisticSpec, source: Any) -> list[float]:
    try:
        return [_finite(spec, spec.function(source))]
    except UndefinedStatistic:
        return []


# ------------------------------------------------------------------ records
def _spread(
    request: Request,
    spec: StatisticSpec,
    *,
    value: float,
    left_out: Mapping[str, Sequence[float]],
    drawn: int,
) -> _Spread:
    held = f"; {spec.held} held fixed" if spec.held else ""
    if spec.interval == "none":
        return _Spread(None, "none: a fact of these rows")
    if spec.interval == "wilson":
        covers = f"95 % Wilson interval, {drawn} rows taken as independent{held}"
        return _Spread(wilson(value, drawn), covers)
    if request.groups < 2:
        return _Spread(None, "none: one group of rows has no spread")
    if _too_wide(request, spec):
        return _Spread(None, f"none: {request.features.feature_dim} features, too many to repeat")
    values = left_out[spec.name]
    if len(values) < request.groups:
        return _Spread(None, "none: without some group of rows it does not exist")
    interval, error = jackknife(value, values, bounds=spec.range)
    if spec.integer:
        interval = float(math.floor(interval[0])), float(math.ceil(interval[1]))
    covers = f"95 % t-interval for other rows of these classes: {request.groups} groups of rows "
    return _Spread(interval, f"{covers}left out in turn{held}", error)


def _n_judged(request: Request, spec: StatisticSpec, sources: Mapping[str, Any]) -> int:
    drawn = sources.get(spec.needs) if spec.needs in _DRAWN else None
    return len(request.features) if drawn is None else len(drawn.group)


def _remarks(request: Request, sources: Mapping[str, Any]) -> dict[str, str]:
    said = remarks_on_classes(request.features)
    if "moments" in sources:
        said |= remarks_on_moments(sources["moments"])
    if "neighbours" in sources:
        said |= remarks_on_neighbours(sources["neighbours"])
    return said


def _record(
    request: Request,
    spec: StatisticSpec,
    *,
    value: float,
    spread: _Spread,
    remarks: Mapping[str, str],
    drawn: int,
) -> Statistic:
    features = request.features
    settings: dict[str, Any] = {
        "embedding": features.source,
        "n_rows": len(features),
        "feature_dim": features.feature_dim,
        "n_classes": len(features.class_map),
        "n_nonempty": len(np.unique(features.y)),
        "interval": spread.covers,
    }
    if spec.interval == "jackknife":
        settings |= {"groups": request.groups, "standard_error": spread.error}
    if spec.needs in _DRAWN:
        settings["drawn_rows"] = drawn
    if spec.interval == "jackknife" or spec.needs in _DRAWN:
        settings["seed"] = request.seed
    said = [remarks[kind] for kind in spec.remarks if kind in remarks]
    return Statistic(value, spread.interval, status="; ".join(said) or "ok", settings=settings)
