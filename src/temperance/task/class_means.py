"""Where the class means lie: how they are directed, and how well they tell the classes apart."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from temperance.records import Features
from temperance.task.moments import Moments, moments_of
from temperance.task.statistic_spec import StatisticSpec, UndefinedStatistic

__all__ = [
    "SPECS",
    "class_cosine",
    "class_cosine_centred",
    "nearest_mean_accuracy",
    "own_mean_cosine",
    "own_mean_cosine_centred",
]


def class_cosine(features: Features | Moments) -> float:
    """Give the mean cosine between class means as they are: ``mean_(c<d) cos(m_c, m_d)``.

    This is what an output layer without a norm sees: features behind a ReLU share their offset, and
    the value is near 1. Classes count equally; a mean that is 0 has no direction and is left out.

    Args:
        features: the rows, or their moments.

    Returns:
        -1 to 1.

    Raises:
        UndefinedStatistic: if fewer than two class means have a direction.

    Example:
        >>> from temperance import Features
        >>> from temperance.task.class_means import class_cosine
        >>> class_cosine(Features.from_arrays([[1.0, 0.0], [0.0, 2.0]], ["a", "b"]))
        0.0
    """
    moments = moments_of(features)
    offset = moments.centre.mean
    return _mean_cosine("class_cosine", moments.class_means + offset, moments.noise)


def class_cosine_centred(features: Features | Moments) -> float:
    """Give the mean cosine between centred class means: ``mean_(c<d) cos(m_c - m, m_d - m)``.

    ``m`` is the mean of all rows, as a BatchNorm takes it off. -1 for two classes, and
    ``-1 / (K - 1)`` for classes whose means lie evenly around ``m``; more where classes come in
    groups.

    Args:
        features: the rows, or their moments.

    Returns:
        -1 to 1.

    Raises:
        UndefinedStatistic: if fewer than two class means have a direction.

    Example:
        >>> from temperance import Features
        >>> from temperance.task.class_means import class_cosine_centred
        >>> class_cosine_centred(Features.from_arrays([[1.0, 0.0], [0.0, 2.0]], ["a", "b"]))
        -1.0

    Reference:
        V. Papyan, X. Y. Han, D. L. Donoho: Prevalence of neural collapse during the terminal phase
        of deep learning training, PNAS 2020, arXiv 2008.08186 (equiangularity).
    """
    moments = moments_of(features)
    means = moments.class_means - moments.mean
    return _mean_cosine("class_cosine_centred", means, moments.noise)


def own_mean_cosine(features: Features | Moments) -> float:
    """Give the mean cosine between a row and its class mean: ``mean_i cos(x_i, m_(y_i))``.

    The row is part of its mean: of n_c rows without any common direction it is about
    ``1 / sqrt(n_c)``. Rows that are 0 and classes with one row are left out.

    Args:
        features: the rows, or their moments.

    Returns:
        -1 to 1.

    Raises:
        UndefinedStatistic: if no row is left.

    Example:
        >>> from temperance import Features
        >>> from temperance.task.class_means import own_mean_cosine
        >>> x = [[1.0, 0.0], [3.0, 0.0], [0.0, 1.0], [0.0, 3.0]]
        >>> own_mean_cosine(Features.from_arrays(x, list("aabb")))
        1.0
    """
    return _mean_of_rows("own_mean_cosine", moments_of(features).rows.cosine)


def own_mean_cosine_centred(features: Features | Moments) -> float:
    """Give the same with the mean of all rows taken off: ``mean_i cos(x_i - m, m_(y_i) - m)``.

    Args:
        features: the rows, or their moments.

    Returns:
        -1 to 1.

    Raises:
        UndefinedStatistic: if no row is left, for instance with one class.

    Example:
        >>> from temperance import Features
        >>> from temperance.task.class_means import own_mean_cosine_centred
        >>> x = [[1.0, 0.0], [3.0, 0.0], [-1.0, 0.0], [-3.0, 0.0]]
        >>> own_mean_cosine_centred(Features.from_arrays(x, list("aabb")))
        1.0
    """
    return _mean_of_rows("own_mean_cosine_centred", moments_of(features).rows.cosine_centred)


def nearest_mean_accuracy(features: Features | Moments) -> float:
    """Give the accuracy of the nearest class mean, each row left out of its own mean.

    ``mean_i [y_i = argmin_c |x_i - m_c|]`` with ``(n_c m_c - x_i) / (n_c - 1)`` for the mean of its
    own class: the plain mean contains the row, which makes every row of a small class look right.
    A row alone in its class counts as wrong; equally near means share the row.

    Args:
        features: the rows, or their moments.

    Returns:
        0 to 1, a share of the rows.

    Raises:
        UndefinedStatistic: if fewer than two classes have rows.

    Example:
        >>> from temperance import Features
        >>> from temperance.task.class_means import nearest_mean_accuracy
        >>> nearest_mean_accuracy(Features.from_arrays([[0.0], [1.0], [9.0], [8.0]], list("aabb")))
        1.0
    """
    moments = moments_of(features)
    if len(moments.present) < 2:
        raise UndefinedStatistic(
            "nearest_mean_accuracy",
            expected="two classes or more that have rows",
            found=str(len(moments.present)),
        )
    return float(moments.rows.right.mean())


def _mean_cosine(name: str, means: NDArray[np.float64], noise: float) -> float:
    """Mean over all pairs from the sum of the unit vectors: no [K, K] matrix."""
    square = np.square(means).sum(axis=1)
    good = square > noise
    count = int(good.sum())
    if count < 2:
        raise UndefinedStatistic(
            name, expected="two class means or more that are not 0", found=str(count)
        )
    total = (means[good] / np.sqrt(square[good])[:, None]).sum(axis=0)
    mean = (float(total @ total) - count) / (count * (count - 1))
    return float(np.clip(mean, -1.0, 1.0))


def _mean_of_rows(name: str, values: NDArray[np.float64]) -> float:
    values = values[~np.isnan(values)]
    if not len(values):
        raise UndefinedStatistic(
            name,
            expected="rows with a direction, in classes of two rows or more with a direction",
            found="none",
        )
    return float(values.mean())


SPECS = (
    StatisticSpec(
        "class_cosine",
        class_cosine,
        title="mean cosine between class means",
        unit="cosine",
        formula="mean_(c<d) cos(m_c, m_d)",
        reference="means as they are, classes count equally",
        needs="moments",
        translation=False,
        range=(-1.0, 1.0),
        remarks=("empty",),
    ),
    StatisticSpec(
        "class_cosine_centred",
        class_cosine_centred,
        title="mean cosine between centred class means",
        unit="cosine",
        formula="mean_(c<d) cos(m_c - m, m_d - m)",
        reference="Papyan et al. 2020, arXiv 2008.08186",
        needs="moments",
        range=(-1.0, 1.0),
        remarks=("empty",),
    ),
    StatisticSpec(
        "own_mean_cosine",
        own_mean_cosine,
        title="mean cosine to the own class mean",
        unit="cosine",
        formula="mean_i cos(x_i, m_(y_i))",
        reference="means as they are, the row included",
        needs="moments",
        translation=False,
        range=(-1.0, 1.0),
        held="the class means",
        remarks=("undirected",),
    ),
    StatisticSpec(
        "own_mean_cosine_centred",
        own_mean_cosine_centred,
        title="mean cosine to the own class mean, centred",
        unit="cosine",
        formula="mean_i cos(x_i - m, m_(y_i) - m)",
        reference="the mean of all rows taken off",
        needs="moments",
        range=(-1.0, 1.0),
        held="the class means",
        remarks=("undirected_centred",),
    ),
    StatisticSpec(
        "nearest_mean_accuracy",
        nearest_mean_accuracy,
        title="accuracy of the nearest class mean",
        unit="share",
        formula="mean_i [y_i = argmin_c |x_i - m_c|]",
        reference="each row left out of its own mean",
        needs="moments",
        doubling="near",
        range=(0.0, 1.0),
        interval="wilson",
        held="the class means",
        remarks=("empty", "single"),
    ),
)
