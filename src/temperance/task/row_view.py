"""Rows as a search sees them: centred, scaled, in blocks, with a bound for the rounding error."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from temperance.errors import InvalidInput

__all__ = ["CLAMP", "FOLD", "RowView"]

_BLOCK = 1024  # rows; a tile of scores (4 MB) stays in the last cache level
FOLD = 32  # scores that share one maximum; blocks are multiples of it
_BLOCK_BYTES = 1 << 24  # of one block of rows
CLAMP = 1e10  # in units of the typical row: squares stay far inside float32
_FAR = 1e30  # squared, in the same units
_RANGE = 1e100  # as CLAMP, for float64
_LARGEST = 1e300

Floats = NDArray[np.floating[Any]]
Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class RowView:
    """The rows, seen from their middle and in units of a typical row.

    The scale is a power of two, so that it costs no digit; the middle is a median, so that a few
    wild rows cannot move it.
    """

    x: Floats
    centre: Floats
    scale: float
    norms: NDArray[np.float64]  # squared, of the centred and scaled rows

    @classmethod
    def of(cls, x: Floats) -> RowView:
        """Look at all rows of ``x`` (``[n, M]``) from the median of some of them."""
        largest = max(float(x.max()), -float(x.min()))
        _check_range(largest, largest)
        n_sample = max(16, min(1024, _BLOCK_BYTES // (8 * x.shape[1])))
        sample = np.unique(np.linspace(0, len(x) - 1, n_sample).astype(np.int64))
        few = x[sample].astype(np.float64)
        centre = np.median(few, axis=0).astype(x.dtype)
        with np.errstate(over="ignore"):
            size = np.abs(few - centre).max(axis=1)
        size = size[(size > 0) & np.isfinite(size)]
        typical = float(np.median(size)) if len(size) else largest or 1.0
        most = 120 if x.dtype == np.float32 else 1000  # the scale itself must not overflow
        scale = 2.0 ** -float(np.clip(np.round(np.log2(typical)), -most, most))
        _check_range(largest, typical)
        bare = cls(x, centre, scale, np.empty(0))
        return replace(bare, norms=np.concatenate([(w * w).sum(axis=1) for _, w in bare.blocks()]))

    @property
    def block(self) -> int:
        """Rows per block: fewer in very high dimensions, for the sake of memory."""
        fit = _BLOCK_BYTES // (self.x.shape[1] * 8 * FOLD) * FOLD
        return int(min(_BLOCK, max(FOLD, fit)))

    def blocks(self) -> Iterator[tuple[int, NDArray[np.float64]]]:
        """All rows in float64, block by block, each with the number of its first row."""
        for first in range(0, len(self.x), self.block):
            yield first, self.wide(np.arange(first, min(first + self.block, len(self.x))))

    def wide(self, rows: Ints) -> NDArray[np.float64]:
        """Centred and scaled rows in float64."""
        out = np.take(self.x, rows, axis=0).astype(np.float64, copy=False)
        out -= self.centre
        out *= self.scale
        return out

    def narrow(self, rows: Ints, *, query: bool) -> NDArray[np.float32]:
        """Centred and scaled rows in float32, with two more columns and padded to the fold.

        ``[b, -|b|²/2, 1] · [q, 1, -|q|²/2] = -|q - b|²/2``: no pass over the scores adds norms.
        """
        dim = self.x.shape[1]
        out = np.zeros((-(-len(rows) // FOLD) * FOLD, dim + 2), np.float32)
        values = np.take(self.x, rows, axis=0)
        with np.errstate(over="ignore", under="ignore"):
            values -= self.centre
            values *= values.dtype.type(self.scale)
            np.clip(values, -CLAMP, CLAMP, out=values)
            out[: len(rows), :dim] = values
        half, one = (dim + 1, dim) if query else (dim, dim + 1)
        out[:, half] = -_FAR  # padding is farther away than any row
        out[: len(rows), half] = -0.5 * np.minimum(self.norms[rows], _FAR)
        out[:, one] = 1
        return out

    def squared(self, left: Ints, right: Ints) -> NDArray[np.float64]:
        """Squared distances of pairs of rows, from differences in float64, scaled."""
        out = np.empty(len(left))
        step = max(1, _BLOCK_BYTES // (8 * self.x.shape[1]))
        for start in range(0, len(left), step):
            part = slice(start, start + step)
            gap = self._plain(left[part])
            gap -= self._plain(right[part])
            with np.errstate(under="ignore"):
                out[part] = np.square(gap, out=gap).sum(axis=1)
        return out

    def _plain(self, rows: Ints) -> NDArray[np.float64]:
        out = np.take(self.x, rows, axis=0).astype(np.float64, copy=False)
        out *= self.scale
        return out

    def reach(self, rows: Ints, squared: NDArray[np.float64]) -> NDArray[np.float64]:
        """``|q| + |b|`` at most, for the rows ``b`` that can be as near as ``squared``."""
        norm = np.sqrt(self.norms[rows])
        return norm + np.minimum(norm + np.sqrt(squared), np.sqrt(self.norms.max()))

    def slack(self, reach: NDArray[np.float64], unit: float) -> NDArray[np.float64]:
        """Bound the rounding error of squared distances that come from a matrix product.

        ``c (|q| + |b|)²`` with ``c = g / (1 - g)``, ``g ~ (M + 2) unit``, in whatever order the
        terms are summed (Higham, Accuracy and Stability of Numerical Algorithms, 2002, section
        3.1). Rows with ``|b| > |q| + d_k`` are farther than ``d_k`` and need no bound.
        """
        growth = (self.x.shape[1] + 16) * unit
        if growth >= 0.5:
            return np.full(len(reach), np.inf)
        tiny = 1e-30 if unit > 1e-10 else 1e-280  # products may underflow
        return growth / (1 - growth) * reach**2 + tiny


def _check_range(largest: float, typical: float) -> None:
    if largest > min(_RANGE * typical, _LARGEST):
        raise InvalidInput(
            "features x",
            expected=f"values up to {min(_RANGE * typical, _LARGEST):.0e}, their usual size being "
            f"{typical:.0e}",
            found=f"{largest:.1e}",
            fix="Remove or repair the outliers, or scale the features.",
        )
