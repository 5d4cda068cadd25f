"""How large a task is: classes, features, rows, and how the rows spread over the classes."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from temperance.labels import check_ids
from temperance.records import Features
from temperance.task.statistic_spec import StatisticSpec, UndefinedStatistic

__all__ = [
    "SPECS",
    "class_balance",
    "class_entropy",
    "feature_dim",
    "n_classes",
    "n_samples",
    "samples_per_class_median",
    "samples_per_class_min",
]


def n_classes(features: Features) -> float:
    """Count the classes that the head has: ``C``, those without rows included.

    Args:
        features: the rows and their classes.

    Returns:
        C, 1 or more.

    Example:
        >>> from temperance import Features
        >>> from temperance.task.class_sizes import n_classes
        >>> n_classes(Features.from_arrays([[1.0], [2.0]], ["a", "b"]))
        2.0
    """
    return float(len(features.class_map))


def feature_dim(features: Features) -> float:
    """Count the features of the rows that are measured: ``M``.

    Args:
        features: the rows and their classes.

    Returns:
        M, 1 or more. It differs from ``Task.feature_dim`` where other rows stand for the task.

    Example:
        >>> from temperance import Features
        >>> from temperance.task.class_sizes import feature_dim
        >>> feature_dim(Features.from_arrays([[1.0, 0.0], [2.0, 0.0]], ["a", "b"]))
        2.0
    """
    return float(features.x.shape[1])


def n_samples(features: Features) -> float:
    """Count the rows: ``n``.

    Args:
        features: the rows and their classes.

    Returns:
        n, 1 or more.

    Example:
        >>> from temperance import Features
        >>> from temperance.task.class_sizes import n_samples
        >>> n_samples(Features.from_arrays([[1.0], [2.0], [3.0]], ["a", "b", "b"]))
        3.0
    """
    return float(len(features))


def samples_per_class_min(features: Features) -> float:
    """Count the rows of the smallest class that has any: ``min n_c over n_c > 0``.

    Args:
        features: the rows and their classes.

    Returns:
        1 or more.

    Example:
        >>> from temperance import Features
        >>> from temperance.task.class_sizes import samples_per_class_min
        >>> samples_per_class_min(Features.from_arrays([[1.0], [2.0], [3.0]], ["a", "b", "b"]))
        1.0
    """
    return float(_counts(features).min())


def samples_per_class_median(features: Features) -> float:
    """Give the middle of the class sizes: ``median n_c over n_c > 0``.

    Args:
        features: the rows and their classes.

    Returns:
        1 or more.

    Example:
        >>> from temperance import Features
        >>> from temperance.task.class_sizes import samples_per_class_median
        >>> samples_per_class_median(Features.from_arrays([[1.0], [2.0], [3.0]], ["a", "b", "b"]))
        1.5
    """
    return float(np.median(_counts(features)))


def class_entropy(features: Features) -> float:
    """Give the entropy of the class shares in nats: ``-sum_c p_c ln p_c, p_c = n_c / n``.

    Args:
        features: the rows and their classes.

    Returns:
        0 (one class) to ``ln C`` (classes of equal size).

    Example:
        >>> from temperance import Features
        >>> from temperance.task.class_sizes import class_entropy
        >>> round(class_entropy(Features.from_arrays([[1.0], [2.0]], ["a", "b"])), 4)  # ln 2
        0.6931

    Reference:
        C. E. Shannon: A mathematical theory of communication, 1948.
    """
    share = _counts(features) / len(features)
    return max(0.0, -float(share @ np.log(share)))


def class_balance(features: Features) -> float:
    """Give the entropy as a share of that of equal classes: ``class_entropy / ln K``.

    ``K`` is the number of classes that have rows.

    Args:
        features: the rows and their classes.

    Returns:
        Above 0 up to 1; 1 for classes of equal size.

    Raises:
        UndefinedStatistic: if only one class has rows.

    Example:
        >>> from temperance import Features
        >>> from temperance.task.class_sizes import class_balance
        >>> class_balance(Features.from_arrays([[1.0], [2.0]], ["a", "b"]))
        1.0

    Reference:
        E. C. Pielou: The measurement of diversity in different types of biological collections,
        1966 (evenness).
    """
    present = len(_counts(features))
    if present < 2:
        raise UndefinedStatistic(
            "class_balance", expected="two classes or more that have rows", found=str(present)
        )
    return min(1.0, class_entropy(features) / math.log(present))


def _counts(features: Features) -> NDArray[np.int64]:
    counts = np.bincount(check_ids(features.y, len(features.class_map)))
    return counts[counts > 0].astype(np.int64)


_FACT = "a count of these rows"
SPECS = (
    StatisticSpec(
        "n_classes",
        n_classes,
        title="classes",
        unit="classes",
        formula="C",
        reference=_FACT,
        range=(1.0, math.inf),
        integer=True,
        interval="none",
        remarks=("empty",),
    ),
    StatisticSpec(
        "feature_dim",
        feature_dim,
        title="features",
        unit="features",
        formula="M",
        reference=_FACT,
        range=(1.0, math.inf),
        integer=True,
        interval="none",
    ),
    StatisticSpec(
        "n_samples",
        n_samples,
        title="rows",
        unit="rows",
        formula="n",
        reference=_FACT,
        doubling="changes",
        range=(1.0, math.inf),
        integer=True,
        interval="none",
    ),
    StatisticSpec(
        "samples_per_class_min",
        samples_per_class_min,
        title="rows of the smallest class",
        unit="rows",
        formula="min n_c over n_c > 0",
        reference=_FACT,
        doubling="changes",
        range=(1.0, math.inf),
        integer=True,
        interval="none",
        remarks=("empty",),
    ),
    StatisticSpec(
        "samples_per_class_median",
        samples_per_class_median,
        title="rows of the middle class",
        unit="rows",
        formula="median n_c over n_c > 0",
        reference=_FACT,
        doubling="changes",
        range=(1.0, math.inf),
        interval="none",
        remarks=("empty",),
    ),
    StatisticSpec(
        "class_entropy",
        class_entropy,
        title="class entropy",
        unit="nats",
        formula="-sum_c p_c ln p_c, p_c = n_c / n",
        reference="Shannon 1948",
        range=(0.0, math.inf),
        interval="none",
        remarks=("empty",),
    ),
    StatisticSpec(
        "class_balance",
        class_balance,
        title="class balance",
        unit="share",
        formula="class_entropy / ln K",
        reference="Pielou 1966 (evenness)",
        range=(0.0, 1.0),
        interval="none",
        remarks=("empty",),
    ),
)
