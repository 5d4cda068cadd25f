"""What many statistics share: moments of all rows, from which a part can be taken out again."""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from temperance.arrays import as_matrix, as_numpy
from temperance.errors import InvalidInput
from temperance.labels import check_ids
from temperance.records import Features
from temperance.task.moment_sums import EPS, Centre, Rows, Sums, centre_of, sums_of

__all__ = ["MAX_FEATURES", "Moments", "checked", "moments_of"]

MAX_FEATURES = 8192
"""Features up to which the [M, M] scatter matrix is made: 0.5 GB of float64, held twice."""

Array = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Moments:
    """Moments of rows, from sums about fixed centres.

    Attributes:
        centre: the centres, made of all rows.
        sums: the sums of these rows.
        rows: one number for each of these rows.
    """

    centre: Centre
    sums: Sums
    rows: Rows

    @property
    def counts(self) -> Ints:
        """Rows of every class, shape ``[C]``."""
        return self.sums.counts

    @cached_property
    def n(self) -> int:
        """Number of rows."""
        return int(self.counts.sum())

    @cached_property
    def present(self) -> Ints:
        """Ids of the classes that have rows, shape ``[K]``."""
        return np.flatnonzero(self.counts)

    @cached_property
    def class_means(self) -> Array:
        """Means of the classes that have rows, less ``centre.mean``, shape ``[K, M]``."""
        k = self.present
        return self.centre.classes[k] + self.sums.drift[k] / self.counts[k, None]

    @cached_property
    def mean(self) -> Array:
        """Mean of these rows, less ``centre.mean``, shape ``[M]``."""
        return np.asarray(self.counts[self.present] @ self.class_means / self.n)

    @cached_property
    def noise(self) -> float:
        """Squared distance up to which a difference can be rounding alone."""
        spread = float(self.sums.powers[0].sum()) / self.n
        return (16 * EPS) ** 2 * (float(self.centre.mean @ self.centre.mean) + spread)

    @cached_property
    def trace_within(self) -> float:
        """Mean squared distance of a row to the mean of its class; 0 where it is rounding."""
        k = self.present
        shift = np.square(self.sums.drift[k]).sum(axis=1) / self.counts[k]
        trace = float((self.sums.within[k] - shift).sum()) / self.n
        return trace if trace > self.noise else 0.0

    @cached_property
    def trace_between(self) -> float:
        """Mean squared distance of the own class mean to the mean of all rows; 0 as above."""
        gap = np.square(self.class_means - self.mean).sum(axis=1)
        trace = float(self.counts[self.present] @ gap) / self.n
        return trace if trace > self.noise else 0.0

    @cached_property
    def variance(self) -> Array:
        """Variance of every feature (divided by n), exactly 0 where it is constant, ``[M]``."""
        square = self.sums.powers[0] / self.n
        variance = square - self.mean**2
        return np.where(variance > 1e-13 * square, variance, 0.0)

    @cached_property
    def covariance(self) -> Array:
        """Covariance of the features (divided by n), ``[M, M]``."""
        if self.sums.scatter is None:
            raise InvalidInput(
                "moments",
                expected="the scatter matrix",
                found="none",
                fix="Make them with moments_of(features, scatter=True).",
            )
        out = self.sums.scatter / self.n
        out -= self.mean[:, None] * self.mean
        return np.asarray(out)

    @cached_property
    def spectrum(self) -> tuple[Array, Array]:
        """Eigenvalues of the covariance, ascending, rounding set to 0; and its eigenvectors."""
        values, vectors = np.linalg.eigh(self.covariance)
        least = len(values) * EPS * max(float(values[-1]), 0.0)
        return np.where(values > least, values, 0.0), vectors

    def without(self, features: Features, rows: Ints, *, scatter: bool) -> Moments:
        """Leave some rows out, with a look at these rows only.

        Args:
            features: what the moments were made of.
            rows: numbers of the rows to leave out, ascending.
            scatter: whether the scatter matrix is needed.

        Returns:
            The moments of the others, about the same centres.
        """
        x, y = as_numpy(features.x), as_numpy(features.y)
        part = sums_of(x, y, centre=self.centre, rows=rows, scatter=scatter)
        keep = np.ones(len(y), bool)
        keep[rows] = False
        kept: Any = (getattr(self.rows, f.name)[keep] for f in fields(Rows))
        return Moments(self.centre, self.sums - part, Rows(*kept))


def moments_of(given: Features | Moments, *, scatter: bool = False) -> Moments:
    """Make the moments of features, or pass on those that are there.

    Args:
        given: features, or moments.
        scatter: whether the ``[M, M]`` scatter matrix is needed.

    Returns:
        The moments of all rows.

    Raises:
        InvalidInput: if the features are not finite, have values above 1e70 or differences all
            below 1e-70, or if M is above 8192 and the scatter matrix is needed.

    Example:
        >>> from temperance import Features
        >>> from temperance.task.moments import moments_of
        >>> m = moments_of(Features.from_arrays([[0.0], [2.0], [4.0]], ["a", "a", "b"]))
        >>> m.counts.tolist(), m.variance.round(3).tolist()
        ([2, 1], [2.667])
    """
    if isinstance(given, Moments):
        return given
    x, y = checked(given)
    if scatter and x.shape[1] > MAX_FEATURES:
        raise InvalidInput(
            "features x",
            expected=f"at most {MAX_FEATURES} features for a covariance",
            found=str(x.shape[1]),
            fix="Reduce them first (PCA, random projection), or leave these statistics out.",
        )
    centre = centre_of(x, y, len(given.class_map))
    rows = Rows(*(np.full(len(y), np.nan) for _ in fields(Rows)))
    return Moments(centre, sums_of(x, y, centre=centre, scatter=scatter, per_row=rows), rows)


def checked(features: Features) -> tuple[NDArray[Any], Ints]:
    """Give the rows as finite floats and the class ids, both checked.

    Raises:
        InvalidInput: if the rows are not a finite matrix, if the ids are not ``0 .. C-1``, or if
            their numbers differ.
    """
    x = as_matrix(features.x, subject="features x")
    y = check_ids(features.y, len(features.class_map))
    if len(y) != len(x):
        raise InvalidInput(
            "features x and labels y",
            expected="as many rows as labels",
            found=f"{len(x)} rows and {len(y)} labels",
            fix="Pass arrays of the same length.",
        )
    return x, y
