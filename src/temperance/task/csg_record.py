"""What ``csg`` returns: the record of a measurement, its interval and its status in words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from temperance.records import Features, Statistic

__all__ = ["Graph", "Settings", "make_statistic"]

Ints = NDArray[np.int64]
Array = NDArray[np.float64]

_FEW_DRAWS = 25  # below it single rows decide a class; the smallest setting that was compared
_MANY_TWINS = _MANY_TIES = 0.01  # share of drawn rows from which the status mentions them


@dataclass(frozen=True)
class Settings:
    """What was asked for, checked."""

    n_samples: int
    k: int
    repeats: int
    seed: int
    weighting: str


@dataclass(frozen=True, eq=False)
class Graph:
    """The class graph of one draw.

    Attributes:
        value: csg.
        eigenvalues: ascending, shape ``[K]``.
        own_share: mean of S_ii, the weighted share of neighbours that are of the own class.
        effective_rows: how many rows count in each class, shape ``[K]``.
    """

    value: float
    eigenvalues: Array
    own_share: float
    effective_rows: Array


def make_statistic(
    features: Features,
    members: list[Ints],
    *,
    settings: Settings,
    graphs: list[Graph],
    shares: Mapping[str, float],
) -> Statistic:
    """Put the measurement into a record.

    Args:
        features: what was measured.
        members: row numbers of every class that has rows.
        settings: what was asked for.
        graphs: one per draw.
        shares: shares of the drawn rows: ``duplicate_share``, ``tie_share``, ``floor_share``.

    Returns:
        The mean over the draws, with interval, status and settings.
    """
    values = np.array([graph.value for graph in graphs])
    value = float(values.mean())
    complete = max(map(len, members)) <= settings.n_samples
    interval, covers = _interval(values, complete, settings, most=len(members) - 1)
    shares = {"own_share": float(np.mean([graph.own_share for graph in graphs])), **shares}
    effective = np.mean([graph.effective_rows for graph in graphs], axis=0)
    return Statistic(
        value=value,
        interval=interval,
        status=_status(features, members, value=value, settings=settings, shares=shares),
        settings={
            "n_samples": settings.n_samples,
            "k": settings.k,
            "repeats": len(graphs),
            "seed": settings.seed,
            "weighting": settings.weighting,
            "distance": "euclidean",
            "embedding": features.source,
            "n_rows": int(sum(map(len, members))),
            "feature_dim": features.feature_dim,
            "n_classes": len(features.class_map),
            "n_nonempty": len(members),
            "rows_per_class": _spread(np.array([len(member) for member in members])),
            "all_rows_drawn": complete,
            "effective_rows": _spread(effective),
            **shares,
            "interval": covers,
        },
        replicates=tuple(map(float, values)),
        eigenvalues=tuple(np.mean([graph.eigenvalues for graph in graphs], axis=0).tolist()),
    )


def _interval(
    values: Array, complete: bool, settings: Settings, *, most: int
) -> tuple[tuple[float, float] | None, str]:
    value = float(values.mean())
    if complete:
        return (value, value), "all rows are drawn: no spread over draws"
    if len(values) == 1:
        return None, "none: one draw has no spread"
    from scipy.stats import t

    error = float(values.std(ddof=1) / np.sqrt(len(values)))
    half = float(t.ppf(0.975, len(values) - 1)) * error
    covers = (
        f"95 % t-interval of the mean over draws of {settings.n_samples} rows per class, "
        f"{len(values)} draws; other data would vary more"
    )
    return (max(0.0, value - half), min(float(most), value + half)), covers


def _spread(values: NDArray[Any]) -> dict[str, float]:
    found = {"min": values.min(), "median": np.median(values), "max": values.max()}
    return {name: number.item() for name, number in found.items()}


def _status(
    features: Features,
    members: list[Ints],
    *,
    value: float,
    settings: Settings,
    shares: Mapping[str, float],
) -> str:
    """What a reader must know about the value, in words."""
    names, n_classes = features.class_names, len(features.class_map)
    size = dict.fromkeys(range(n_classes), 0)
    size |= {int(features.y[member[0]]): len(member) for member in members}
    words = []
    if value == 0:
        words.append(
            "separable: csg is exactly 0"
            if shares["own_share"] > 1 - 1e-9
            else "csg is exactly 0, but not for separable classes: neighbours are of other classes"
        )
    if len(members) < n_classes:
        words.append(
            f"classes without rows are left out, {len(members)} of {n_classes} are measured: "
            + _some([names[c] for c in size if size[c] == 0])
        )
    if single := [names[c] for c in size if size[c] == 1]:
        words.append("classes with one row: " + _some(single))
    if small := [names[c] for c in size if 1 < size[c] <= settings.k]:
        words.append("classes with k rows or fewer: " + _some(small))
    if settings.n_samples < _FEW_DRAWS:
        words.append(f"n_samples below {_FEW_DRAWS}: single rows decide")
    if shares["duplicate_share"] >= _MANY_TWINS:
        words.append(f"duplicates: {shares['duplicate_share']:.1%} of the drawn rows have one")
    if shares["tie_share"] >= _MANY_TIES:
        words.append(
            f"ties: {shares['tie_share']:.1%} of the drawn rows have more than one k-th neighbour, "
            "the value depends on the order of the rows"
        )
    if shares["floor_share"] > 0 and settings.weighting == "parzen":
        words.append(
            f"volume floor: reached by {shares['floor_share']:.1%} of the drawn rows, the value "
            "depends on the unit of the features"
        )
    return "; ".join(words) or "ok"


def _some(names: list[str]) -> str:
    shown = ", ".join(map(repr, names[:5]))
    return shown + (f" and {len(names) - 5} more" if len(names) > 5 else "")
