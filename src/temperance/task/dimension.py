"""How many dimensions the features really fill: two linear counts and a local one."""

from __future__ import annotations

import math

import numpy as np

from temperance.records import Features
from temperance.task.moments import Moments, moments_of
from temperance.task.neighbour_statistics import Neighbours, neighbours_of
from temperance.task.statistic_spec import StatisticSpec, UndefinedStatistic

__all__ = ["DISCARD", "SPECS", "participation_ratio", "pca90_dim", "twonn_dim"]

DISCARD = 0.1
"""Share of the largest ratios that TwoNN leaves out of its fit (Facco et al. 2017, Methods)."""

_EXPLAINED = 0.9
_FEW_RATIOS = 10  # a line through fewer points says nothing


def participation_ratio(features: Features | Moments) -> float:
    """Give the number of dimensions that share the variance: ``(sum_j l_j)^2 / sum_j l_j^2``.

    ``l`` are the eigenvalues of the covariance; none is needed, since ``sum l = tr(S)`` and
    ``sum l^2 = |S|_F^2``.

    Args:
        features: the rows, or their moments with the scatter matrix.

    Returns:
        1 (all rows on a line) to M (equal variance in all directions); at most n - 1.

    Raises:
        UndefinedStatistic: if all rows are equal.

    Example:
        >>> from temperance import Features
        >>> from temperance.task.dimension import participation_ratio
        >>> x = [[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]]
        >>> participation_ratio(Features.from_arrays(x, list("abab")))
        2.0

    Reference:
        P. Gao et al.: A theory of multineuronal dimensionality, dynamics and measurement, 2017,
        bioRxiv 214262 (the participation ratio).
    """
    moments = _varied("participation_ratio", features)
    covariance = moments.covariance
    square = float(np.einsum("ij,ij->", covariance, covariance))
    ratio = float(np.trace(covariance)) ** 2 / square
    return float(np.clip(ratio, 1.0, len(covariance)))


def pca90_dim(features: Features | Moments) -> float:
    """Count the principal components that hold 90 % of the variance.

    ``min k with sum_(j<=k) l_j >= 0.9 tr(S)``, the eigenvalues descending.

    Args:
        features: the rows, or their moments with the scatter matrix.

    Returns:
        A whole number, 1 to M; at most n - 1.

    Raises:
        UndefinedStatistic: if all rows are equal.

    Example:
        >>> from temperance import Features
        >>> from temperance.task.dimension import pca90_dim
        >>> x = [[3.0, 0.0], [-3.0, 0.0], [0.0, 1.0], [0.0, -1.0]]
        >>> pca90_dim(Features.from_arrays(x, list("abab")))
        1.0

    Reference:
        I. T. Jolliffe: Principal Component Analysis, 2nd edition, 2002, section 6.1.1.
    """
    values = _varied("pca90_dim", features).spectrum[0][::-1]
    share = np.cumsum(values) / values.sum()
    return float(np.argmax(share >= _EXPLAINED - 1e-9) + 1)  # rounding in the sum: ties count


def twonn_dim(features: Features | Neighbours, *, seed: int = 0) -> float:
    """Give the intrinsic dimension from the two nearest neighbours of each row (TwoNN).

    ``mu = r_2 / r_1`` follows ``F(mu) = 1 - mu^-d``: d is the slope of the line through the origin
    of ``-ln(1 - F)`` over ``ln mu``, ``F = i / N`` in ascending order, the largest 10 % left out.
    Rows with a duplicate (``r_1 = 0``) say nothing and are left out (the status counts them).

    Args:
        features: the rows, or their neighbours.
        seed: of the rows that are drawn where there are more than 5,000; neighbours are always
            sought among all rows.

    Returns:
        Above 0. In high dimensions it falls short of the truth for lack of rows.

    Raises:
        UndefinedStatistic: if fewer than 10 rows have neighbours at two distances above 0.

    Example:
        >>> import numpy as np
        >>> from temperance import Features
        >>> from temperance.task.dimension import twonn_dim
        >>> x = np.pad(np.random.default_rng(0).random((1000, 2)), ((0, 0), (0, 3)))
        >>> round(twonn_dim(Features.from_arrays(x, np.arange(1000) % 2)), 1)  # a plane
        1.9

    Reference:
        E. Facco, M. d'Errico, A. Rodriguez, A. Laio: Estimating the intrinsic dimension of datasets
        by a minimal neighborhood information, Scientific Reports 7, 12140, 2017.
    """
    distance = neighbours_of(features, seed=seed).distance
    apart = distance[distance[:, 0] > 0]
    if distance.shape[1] < 2 or len(apart) < _FEW_RATIOS:
        raise UndefinedStatistic(
            "twonn_dim",
            expected=f"{_FEW_RATIOS} rows or more without a duplicate, with two neighbours",
            found=str(len(apart) if distance.shape[1] > 1 else 0),
        )
    ratio = np.sort(np.log(apart[:, 1] / apart[:, 0]))
    kept = int(len(ratio) * (1 - DISCARD))
    ratio, rank = ratio[:kept], np.arange(1, kept + 1)
    if not ratio.any():
        raise UndefinedStatistic(
            "twonn_dim",
            expected="rows whose second neighbour is farther than the first",
            found="equal distances, as on a grid",
        )
    return float(ratio @ -np.log1p(-rank / len(apart)) / (ratio @ ratio))


def _varied(name: str, features: Features | Moments) -> Moments:
    moments = moments_of(features, scatter=True)
    if not moments.variance.any():
        raise UndefinedStatistic(name, expected="rows that differ", found="equal rows")
    return moments


SPECS = (
    StatisticSpec(
        "participation_ratio",
        participation_ratio,
        title="participation ratio",
        unit="dimensions",
        formula="(sum_j l_j)^2 / sum_j l_j^2",
        reference="Gao et al. 2017, bioRxiv 214262",
        needs="scatter",
        range=(1.0, math.inf),
    ),
    StatisticSpec(
        "pca90_dim",
        pca90_dim,
        title="principal components for 90 %",
        unit="dimensions",
        formula="min k with sum_(j<=k) l_j >= 0.9 tr(S)",
        reference="Jolliffe 2002, section 6.1.1",
        needs="spectrum",
        range=(1.0, math.inf),
        integer=True,
    ),
    StatisticSpec(
        "twonn_dim",
        twonn_dim,
        title="TwoNN intrinsic dimension",
        unit="dimensions",
        formula="F(mu) = 1 - mu^-d",
        reference="Facco et al. 2017, doi 10.1038/s41598-017-11873-y",
        needs="neighbours",
        doubling="changes",
        range=(0.0, math.inf),
        held="the rows that they are compared with",
        remarks=("twins_out",),
    ),
)
