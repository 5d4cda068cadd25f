"""The table of statistics, and how all of them are measured together, with their spread."""

from __future__ import annotations

import math
import operator
import warnings
from collections.abc import Iterable, Mapping
from importlib.metadata import entry_points
from types import MappingProxyType
from typing import Any

import numpy as np

from temperance.errors import InvalidInput, NotFound, TemperanceWarning
from temperance.records import Features, Statistic
from temperance.task import (
    class_means,
    class_sizes,
    dimension,
    feature_scale,
    logme,
    neighbour_statistics,
    scatter,
)
from temperance.task.csg import csg
from temperance.task.measurement import Progress, Request, measure_all
from temperance.task.moments import checked
from temperance.task.statistic_spec import StatisticSpec, UndefinedStatistic

__all__ = [
    "STATISTICS",
    "StatisticSpec",
    "UndefinedStatistic",
    "csg_value",
    "find_statistics",
    "measure_statistics",
    "try_statistics",
]


def csg_value(features: Features, *, seed: int = 0) -> float:
    """Give the cumulative spectral gradient: ``sum_i max_(l<=i) (L_(l+1) - L_l) / (K - l)``.

    The mean over 5 draws of 250 rows per class; ``temperance.csg`` gives its spread and settings.

    Args:
        features: the rows and their classes.
        seed: of the draws.

    Returns:
        0 to K - 1.

    Raises:
        UndefinedStatistic: if fewer than two classes have rows, or if there are fewer than 4 rows.

    Example:
        >>> from temperance import Features
        >>> from temperance.task.statistics import csg_value
        >>> x = [[0.0], [1.0], [2.1], [3.3], [9.0], [10.0], [11.1], [12.3]]
        >>> csg_value(Features.from_arrays(x, list("aaaabbbb")))
        0.0

    Reference:
        F. Branchaud-Charron, A. Achkar, P.-M. Jodoin: Spectral Metric for Dataset Complexity
        Assessment, CVPR 2019, arXiv 1905.07299.
    """
    return _csg(features, repeats=5, seed=seed, progress=None).value


def _csg(features: Features, *, repeats: int, seed: int, progress: Any) -> Statistic:
    present = len(np.unique(features.y))
    if present < 2:
        raise UndefinedStatistic(
            "csg", expected="two classes or more that have rows", found=str(present)
        )
    if len(features) <= 3:
        raise UndefinedStatistic(
            "csg", expected="more rows than 3 neighbours", found=str(len(features))
        )
    return csg(features, repeats=repeats, seed=seed, progress=progress)


_CSG = StatisticSpec(
    "csg",
    csg_value,
    title="cumulative spectral gradient",
    unit="csg",
    formula="sum_i max_(l<=i) (L_(l+1) - L_l) / (K - l)",
    reference="Branchaud-Charron et al. 2019, arXiv 1905.07299",
    scale=None,
    rotation=False,
    doubling="changes",
    range=(0.0, math.inf),
    record=_csg,
)
STATISTICS: Mapping[str, StatisticSpec] = MappingProxyType(
    {
        spec.name: spec
        for spec in (
            *class_sizes.SPECS,
            *feature_scale.SPECS,
            *scatter.SPECS,
            *class_means.SPECS,
            *dimension.SPECS,
            *neighbour_statistics.SPECS,
            *logme.SPECS,
            _CSG,
        )
    }
)
"""The statistics that come with the library, by name."""


def measure_statistics(
    features: Features,
    names: str | Iterable[str | StatisticSpec] | None = None,
    *,
    repeats: int = 5,
    seed: int = 0,
    progress: Progress | None = None,
) -> dict[str, Statistic]:
    """Measure statistics of features, with their spread.

    Values are of all rows; of up to 5,000 drawn rows (against all rows) for the statistics of
    neighbours. For the spread the rows are dealt into ``repeats`` groups, evenly by class, and each
    group is left out in turn (delete-a-group jackknife); shares of rows have Wilson's interval; csg
    has its own. What is shared (sums, covariance and its eigenvalues, neighbours) is computed once.

    Args:
        features: the rows and their classes.
        names: of ``STATISTICS``, or of an entry point ``temperance.statistics``; or specs of your
            own; all of the table, if absent.
        repeats: groups of rows, and draws of the csg; 1 gives no intervals.
        seed: of the groups and of all draws; no global random state is used.
        progress: called with (what is done now, steps done, steps in all).

    Returns:
        For each statistic that exists on these rows its record. ``settings["interval"]`` says what
        the interval covers. Those that do not exist (a ratio to nothing, one class) are left out:
        a ``TemperanceWarning`` names them with the reason, ``try_statistics`` gives them as data.

    Raises:
        NotFound: for a name that is not there.
        InvalidInput: if the features are not finite or beyond 1e70, or a setting is out of range.

    Example:
        >>> from sklearn.datasets import load_digits
        >>> from temperance import Features
        >>> from temperance.task.statistics import measure_statistics
        >>> digits = Features.from_arrays(*load_digits(return_X_y=True))
        >>> found = measure_statistics(digits, ["fisher_ratio", "nn_accuracy", "pca90_dim"])
        >>> {name: round(s.value, 3) for name, s in found.items()}
        {'fisher_ratio': 0.726, 'nn_accuracy': 0.988, 'pca90_dim': 21.0}
        >>> [round(end, 3) for end in found["fisher_ratio"].interval]
        [0.712, 0.741]
    """
    found, undefined = try_statistics(
        features, names, repeats=repeats, seed=seed, progress=progress
    )
    if undefined:
        reasons = "; ".join(f"{name} ({reason})" for name, reason in undefined.items())
        warnings.warn(
            f"statistics that do not exist on these rows are left out: {reasons}",
            TemperanceWarning,
            stacklevel=2,
        )
    return found


def try_statistics(
    features: Features,
    names: str | Iterable[str | StatisticSpec] | None = None,
    *,
    repeats: int = 5,
    seed: int = 0,
    progress: Progress | None = None,
) -> tuple[dict[str, Statistic], dict[str, str]]:
    """Measure statistics as ``measure_statistics`` does, and say why some do not exist.

    Args:
        features: the rows and their classes.
        names: as there.
        repeats: as there.
        seed: as there.
        progress: as there.

    Returns:
        The statistics by name, and for those that do not exist on these rows the reason, in words.

    Raises:
        NotFound, InvalidInput: as there.

    Example:
        >>> from temperance import Features
        >>> from temperance.task.statistics import try_statistics
        >>> narrow = Features.from_arrays([[1.0], [2.0]], ["a", "b"])
        >>> try_statistics(narrow, ["fisher_ratio"])[1]
        {'fisher_ratio': 'expected classes of some width, found rows equal to their class mean'}
    """
    specs = find_statistics(names)
    groups, start = _whole("repeats", repeats, 1), _whole("seed", seed, 0)
    x, y = checked(features)
    clean = Features(x, y, features.class_map, features.source)
    return measure_all(Request(clean, tuple(specs), groups, start, progress))


def find_statistics(names: str | Iterable[str | StatisticSpec] | None) -> list[StatisticSpec]:
    """Give the specs that names stand for.

    Args:
        names: names, specs, or None for the whole table.

    Returns:
        The specs, each once.

    Raises:
        NotFound: for a name that neither the table nor an installed package has.
    """
    if names is None:
        return list(STATISTICS.values())
    wanted = [names] if isinstance(names, str) else list(names)
    specs = [name if isinstance(name, StatisticSpec) else _named(name) for name in wanted]
    return list({spec.name: spec for spec in specs}.values())


def _named(name: str) -> StatisticSpec:
    if name in STATISTICS:
        return STATISTICS[name]
    for point in entry_points(group="temperance.statistics"):
        if point.name == name:
            spec = point.load()
            if isinstance(spec, StatisticSpec):
                return spec
    raise NotFound(
        "statistic",
        found=f"there is no statistic {name!r}",
        candidates=tuple(STATISTICS),
        fix="Name one of them.",
    )


def _whole(name: str, value: Any, least: int) -> int:
    try:
        whole = -1 if isinstance(value, bool) else operator.index(value)
    except TypeError:
        whole = -1
    if whole < least:
        raise InvalidInput(
            f"statistics {name}",
            expected=f"a whole number of at least {least}",
            found=repr(value),
            fix="Leave it out for the default.",
        )
    return whole
