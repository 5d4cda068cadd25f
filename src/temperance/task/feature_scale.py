"""How large, how correlated and how heavy-tailed the features are, whatever the classes."""

from __future__ import annotations

import math

import numpy as np

from temperance.records import Features
from temperance.task.moments import Moments, moments_of
from temperance.task.statistic_spec import StatisticSpec, UndefinedStatistic

__all__ = [
    "SPECS",
    "feature_std",
    "kurtosis",
    "mean_abs_correlation",
    "norm_cv",
    "norm_mean",
    "norm_std",
]


def norm_mean(features: Features | Moments) -> float:
    """Give the mean length of a row: ``(1/n) sum_i |x_i|``.

    Args:
        features: the rows, or their moments.

    Returns:
        0 or more, in the unit of the features.

    Example:
        >>> from temperance import Features
        >>> from temperance.task.feature_scale import norm_mean
        >>> norm_mean(Features.from_arrays([[3.0, 4.0], [0.0, 1.0]], ["a", "b"]))
        3.0
    """
    return float(moments_of(features).rows.norm.mean())


def norm_std(features: Features | Moments) -> float:
    """Give the standard deviation of the length of a row: ``sqrt((1/n) sum_i (|x_i| - mean)^2)``.

    Args:
        features: the rows, or their moments.

    Returns:
        0 or more, in the unit of the features.

    Example:
        >>> from temperance import Features
        >>> from temperance.task.feature_scale import norm_std
        >>> norm_std(Features.from_arrays([[3.0, 4.0], [0.0, 1.0]], ["a", "b"]))
        2.0
    """
    return float(moments_of(features).rows.norm.std())


def norm_cv(features: Features | Moments) -> float:
    """Give the coefficient of variation of the length of a row: ``norm_std / norm_mean``.

    Args:
        features: the rows, or their moments.

    Returns:
        0 or more; 0 where all rows have the same length.

    Raises:
        UndefinedStatistic: if all rows are 0.

    Example:
        >>> from temperance import Features
        >>> from temperance.task.feature_scale import norm_cv
        >>> round(norm_cv(Features.from_arrays([[3.0, 4.0], [0.0, 1.0]], ["a", "b"])), 4)
        0.6667
    """
    moments = moments_of(features)
    mean = norm_mean(moments)
    if mean == 0:
        raise UndefinedStatistic("norm_cv", expected="a row that is not 0", found="none")
    return norm_std(moments) / mean


def feature_std(features: Features | Moments) -> float:
    """Give the size of a typical feature: ``sqrt(tr(S_T) / M)``, 1 behind a BatchNorm.

    Args:
        features: the rows, or their moments.

    Returns:
        0 or more, in the unit of the features: the root of the mean variance of a feature.

    Example:
        >>> from temperance import Features
        >>> from temperance.task.feature_scale import feature_std
        >>> feature_std(Features.from_arrays([[0.0, 1.0], [2.0, 3.0]], ["a", "b"]))
        1.0
    """
    return float(np.sqrt(moments_of(features).variance.mean()))


def mean_abs_correlation(features: Features | Moments) -> float:
    """Give the mean size of the correlation of two features: ``mean_(j<k) |corr(x_j, x_k)|``.

    Constant features have no correlation and are left out (the status counts them). Of independent
    features of n rows it is about ``sqrt(2 / (pi n))``, not 0.

    Args:
        features: the rows, or their moments with the scatter matrix.

    Returns:
        0 to 1.

    Raises:
        UndefinedStatistic: if fewer than two features vary.

    Example:
        >>> from temperance import Features
        >>> from temperance.task.feature_scale import mean_abs_correlation
        >>> x = [[0.0, 1.0], [1.0, -1.0], [2.0, -3.0]]
        >>> round(mean_abs_correlation(Features.from_arrays(x, ["a", "b", "b"])), 6)
        1.0
    """
    moments = moments_of(features, scatter=True)
    varies = np.flatnonzero(moments.variance)
    if len(varies) < 2:
        raise UndefinedStatistic(
            "mean_abs_correlation",
            expected="two features or more that vary",
            found=str(len(varies)),
        )
    size = np.abs(moments.covariance)
    inverse = np.zeros(len(size))
    inverse[varies] = 1 / np.sqrt(moments.variance[varies])
    size *= inverse[:, None]
    size *= inverse
    np.fill_diagonal(size, 0.0)
    return min(1.0, float(size.sum() / (len(varies) * (len(varies) - 1))))


def kurtosis(features: Features | Moments) -> float:
    """Give the mean excess kurtosis of a feature: ``mean_j m4_j / m2_j^2 - 3``.

    ``m2`` and ``m4`` are central moments divided by n (not corrected for their bias). Constant
    features are left out (the status counts them). 0 for normal features; large where few rows have
    large values, as behind a ReLU.

    Args:
        features: the rows, or their moments.

    Returns:
        -2 or more.

    Raises:
        UndefinedStatistic: if no feature varies.

    Example:
        >>> from temperance import Features
        >>> from temperance.task.feature_scale import kurtosis
        >>> kurtosis(Features.from_arrays([[-1.0], [1.0]], ["a", "b"]))
        -2.0
    """
    moments = moments_of(features)
    varies = moments.variance > 0
    if not varies.any():
        raise UndefinedStatistic("kurtosis", expected="a feature that varies", found="none")
    mean, variance = moments.mean[varies], moments.variance[varies]
    second, third, fourth = moments.sums.powers[:, varies] / moments.n
    fourth = fourth - 4 * mean * third + 6 * mean**2 * second - 3 * mean**4
    return max(-2.0, float((fourth / variance**2).mean()) - 3)


SPECS = (
    StatisticSpec(
        "norm_mean",
        norm_mean,
        title="mean feature norm",
        unit="x",
        formula="(1/n) sum_i |x_i|",
        reference="mean of Euclidean norms",
        needs="moments",
        scale=1,
        translation=False,
        range=(0.0, math.inf),
    ),
    StatisticSpec(
        "norm_std",
        norm_std,
        title="standard deviation of feature norms",
        unit="x",
        formula="sqrt((1/n) sum_i (|x_i| - mean)^2)",
        reference="spread of Euclidean norms",
        needs="moments",
        scale=1,
        translation=False,
        range=(0.0, math.inf),
    ),
    StatisticSpec(
        "norm_cv",
        norm_cv,
        title="coefficient of variation of feature norms",
        unit="ratio",
        formula="norm_std / norm_mean",
        reference="spread of Euclidean norms",
        needs="moments",
        translation=False,
        range=(0.0, math.inf),
    ),
    StatisticSpec(
        "feature_std",
        feature_std,
        title="typical size of a feature",
        unit="x",
        formula="sqrt(tr(S_T) / M)",
        reference="root of the mean variance",
        needs="moments",
        scale=1,
        range=(0.0, math.inf),
    ),
    StatisticSpec(
        "mean_abs_correlation",
        mean_abs_correlation,
        title="mean absolute feature correlation",
        unit="correlation",
        formula="mean_(j<k) |corr(x_j, x_k)|",
        reference="Pearson 1895; features that vary",
        needs="scatter",
        rotation=False,
        range=(0.0, 1.0),
        remarks=("constant",),
    ),
    StatisticSpec(
        "kurtosis",
        kurtosis,
        title="mean excess kurtosis",
        unit="excess",
        formula="mean_j m4_j / m2_j^2 - 3",
        reference="Pearson 1905; biased moments; features that vary",
        needs="moments",
        rotation=False,
        range=(-2.0, math.inf),
        remarks=("constant",),
    ),
)
