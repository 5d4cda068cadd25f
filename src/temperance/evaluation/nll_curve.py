"""The NLL of ``softmax(b z)`` along ``b = 1/T``: its value and derivatives, and its minimum.

The NLL is convex in b. The search looks for the zero of its slope on a bracket: Halley steps on
``log b``, and bisection wherever such a step is not safe. Rows come as ``Block``s, which need not
be in memory together: a pass over them gives the NLL and three derivatives at one b.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from temperance.errors import InvalidInput
from temperance.evaluation.predictions import FLOOR, Predictions, refuse_logits

__all__ = ["Block", "Sample", "Slope", "blocks_of", "minimize", "search", "slope_at", "slope_of"]

_BLOCK = 1 << 16  # numbers worked on together: half a megabyte of float64, inside a core's cache
_NARROW = 64  # classes up to which a block is laid out class by class: NumPy then works on vectors
_SAMPLE = 1 << 19  # numbers kept in memory from all rows, for the first steps of the search
_THIN = 8  # the search on kept rows begins on every 8th of them, and so on down to ..
_LEAST = 1 << 14  # .. this many numbers
_TOLERANCE = 5e-5  # size of the last step in log T; the error after it is about its cube


class Block(NamedTuple):
    """Some rows made ready; class axis first, in either memory order.

    Attributes:
        d: logits less the largest of the row, float64, shape ``[C, m]``; ``FLOOR`` for -inf.
        top: class with the largest logit, shape ``[m]``.
        largest: that logit.
        ids: class of the label.
        w: weight of 0 or more.
        masked: whether some class of some row is masked.
    """

    d: NDArray[np.float64]
    top: NDArray[np.intp]
    largest: NDArray[np.float64]
    ids: NDArray[np.int64]
    w: NDArray[np.float64]
    masked: bool

    def every(self, stride: int, start: int) -> Block:
        """Every so many rows, copied."""
        part = slice(start, None, stride)
        d = self.d[:, part].copy(order="K")
        top, largest, ids, w = self.top[part], self.largest[part], self.ids[part], self.w[part]
        return Block(d, top.copy(), largest.copy(), ids.copy(), w.copy(), self.masked)


class Slope(NamedTuple):
    """The NLL at one b, its first three derivatives in b, and what the rows are like."""

    nll: float
    slope: float
    curvature: float
    third: float
    spread: bool  # some row has two different finite logits
    wrong: float  # weighted share of rows whose label lacks the largest logit; ties are right


def blocks_of(
    z: NDArray[np.generic],
    ids: NDArray[np.int64],
    w: NDArray[np.float64],
    name: Callable[[int], str],
) -> Iterator[Block]:
    """Make rows ready, and refuse those that cannot be used.

    Args:
        z: logits, class axis first, shape ``[C, m]``, any precision and memory order.
        ids: checked class ids, shape ``[m]``.
        w: weights, shape ``[m]``.
        name: what errors call a row, by its place here.

    Yields:
        Blocks of bounded size.

    Raises:
        InvalidInput: for a row with a NaN, +inf or nothing but -inf, or whose label is masked.
    """
    step = max(1, _BLOCK // len(z))
    for start in range(0, z.shape[1], step):
        part = slice(start, start + step)
        d = z[:, part].astype(np.float64, order="C" if len(z) <= _NARROW else "K")
        at = np.arange(d.shape[1])
        top = d.argmax(axis=0)  # of the first NaN, if there is one
        largest = d[top, at]
        good = np.isfinite(largest)
        if not good.all():
            row = int(np.argmin(good))
            refuse_logits(d[:, row], name(start + row))
        with np.errstate(over="ignore"):
            d -= largest
        masked = bool(d.min() <= FLOOR)
        if masked:
            np.maximum(d, FLOOR, out=d)
            bad = d[ids[part], at] <= FLOOR
            if bad.any():
                row = int(np.argmax(bad))
                _refuse_masked(name(start + row), int(ids[start + row]))
        yield Block(d, top, largest, ids[part], w[part], masked)


def slope_of(blocks: Iterable[Block], b: float, *, derivatives: bool = True) -> Slope:
    """One pass over the rows; sums in float64, block by block.

    Args:
        blocks: the rows.
        b: 1/T.
        derivatives: without them they are NaN, and a third of the work is saved.
    """
    total, sums, spread = 0.0, np.zeros(5), False
    for block in blocks:
        d = block.d
        spread = spread or bool(((d < 0) & (d > FLOOR)).any())
        sums += _moments(block, b, derivatives) @ block.w
        total += float(block.w.sum())
    nll, slope, curvature, third, wrong = (sums / total).tolist() if total else (0.0,) * 5
    curvature = curvature if math.isnan(curvature) else max(curvature, 0.0)
    return Slope(nll, slope, curvature, third, spread, wrong)


def _moments(block: Block, b: float, derivatives: bool) -> NDArray[np.float64]:
    """Value, three derivatives in b, and whether it is wrong, of every row: shape ``[5, m]``."""
    d, at = block.d, np.arange(block.d.shape[1])
    label_d = d[block.ids, at]
    p = d * b
    np.exp(p, out=p)
    p[block.top, at] = 0.0
    tail = p.sum(axis=0)  # summed without the largest, which is 1: log1p keeps tiny NLLs
    out = np.full((5, len(at)), np.nan)
    out[0] = np.log1p(tail) - b * label_d
    out[4] = label_d < 0
    if derivatives:
        for power in (1, 2, 3):
            p *= d
            p.sum(axis=0, out=out[power])
        out[1:4] /= 1.0 + tail
        mean, square, cube = out[1:4]
        cube += mean * (2 * mean**2 - 3 * square)
        square -= mean**2
        mean -= label_d
    return out


# ------------------------------------------------------------------ the search
class Sample:
    """Every so many rows of a walk, kept in memory; all of them if they are few.

    Args:
        most: numbers to keep at most (about).
    """

    def __init__(self, most: int | None = None) -> None:
        self.blocks: list[Block] = []
        self.stride = 1
        self._most = _SAMPLE if most is None else most
        self._seen = self._kept = 0

    def add(self, block: Block) -> None:
        """Keep the rows of a block whose turn it is."""
        m = block.d.shape[1]
        self._keep(block, -self._seen % self.stride)
        self._seen += m
        while self._kept > self._most:
            kept, self.blocks, self._kept, place = self.blocks, [], 0, 0
            self.stride *= 2
            for old in kept:
                self._keep(old, place % 2, stride=2)
                place += old.d.shape[1]
            self.blocks = _merged(self.blocks)

    def _keep(self, block: Block, start: int, stride: int | None = None) -> None:
        stride = self.stride if stride is None else stride
        part = block if stride == 1 else block.every(stride, start)
        if part.d.shape[1]:
            self.blocks.append(part)
            self._kept += part.d.size

    @property
    def complete(self) -> bool:
        """Whether all rows are here."""
        return self.stride == 1


def search(
    rows: Iterable[Block], sample: Sample, bounds: tuple[float, float], before: Slope
) -> tuple[float, str, Slope]:
    """Find the T at which the slope is zero.

    Args:
        rows: all rows, walked once per step.
        sample: what was kept of them.
        bounds: of T.
        before: all rows at b = 1.

    Returns:
        T, the status, and the NLL there.
    """
    if sample.complete:
        rows = sample.blocks
    if before.wrong == 0.0:  # the slope is negative for every b, down to underflow
        return bounds[0], "at lower bound", slope_of(rows, 1.0 / bounds[0])
    thin = _thinned(sample.blocks) if sample.complete else _merged(sample.blocks)
    return _descend(rows, bounds, _start(thin, bounds))


def _start(blocks: list[Block], bounds: tuple[float, float]) -> float:
    """Log b at which to begin: the minimum of some rows, found from that of fewer rows."""
    size = sum(block.d.size for block in blocks)
    guess = _scale(blocks)
    if size == 0 or slope_of(blocks, 1.0).wrong == 0.0:
        return guess
    start = _start(_thinned(blocks), bounds) if size > _LEAST else guess
    temperature, status, _ = _descend(blocks, bounds, start)
    return -math.log(temperature) if status == "converged" else guess


def _thinned(blocks: list[Block]) -> list[Block]:
    """Every 8th row; none if there are few."""
    if sum(block.d.size for block in blocks) <= _LEAST:
        return blocks
    thin, place = [], 0
    for block in blocks:
        thin.append(block.every(_THIN, -place % _THIN))
        place += block.d.shape[1]
    return _merged(thin)


def _merged(blocks: list[Block]) -> list[Block]:
    """The same rows in fewer blocks, since every block costs some time of its own."""
    out: list[Block] = []
    group: list[Block] = []
    for block in blocks:
        if group and sum(b.d.size for b in group) + block.d.size > _BLOCK:
            out.append(_joined(group))
            group = []
        group.append(block)
    return [*out, _joined(group)] if group else out


def _joined(blocks: list[Block]) -> Block:
    if len(blocks) == 1:
        return blocks[0]
    return Block(
        np.concatenate([block.d for block in blocks], axis=1),
        np.concatenate([block.top for block in blocks]),
        np.concatenate([block.largest for block in blocks]),
        np.concatenate([block.ids for block in blocks]),
        np.concatenate([block.w for block in blocks]),
        any(block.masked for block in blocks),
    )


def _scale(blocks: list[Block]) -> float:
    """Log b that brings the mean distance to the largest logit to 2: the scale does not matter."""
    total, count = 0.0, 0
    for block in blocks:
        d = block.d[block.d > FLOOR] if block.masked else block.d
        total, count = total - float(d.sum()), count + d.size
    return math.log(2.0 * count / total) if 0.0 < total < math.inf else 0.0


def _descend(
    rows: Iterable[Block], bounds: tuple[float, float], start: float
) -> tuple[float, str, Slope]:
    low, high = ends = -math.log(bounds[1]), -math.log(bounds[0])  # of u = log b
    unseen = set(ends)
    u, last = min(max(start, low), high), math.inf
    for _ in range(200):  # bisection alone needs fewer
        at = slope_of(rows, math.exp(u))
        unseen.discard(u)
        if u == ends[0] and at.slope >= 0:
            return bounds[1], "at upper bound", at
        if u == ends[1] and at.slope <= 0:
            return bounds[0], "at lower bound", at
        low, high = (low, u) if at.slope > 0 else (u, high)
        step = _step(at, math.exp(u))
        target = min(max(u + step, low), high)
        if abs(step) > _TOLERANCE:
            target = _next(u, step, (low, high), unseen, last)
        last = target - u
        if abs(last) <= _TOLERANCE:
            return math.exp(-target), "converged", _moved(at, math.exp(target) - math.exp(u))
        u = target
    return math.exp(-u), "converged", at


def _step(at: Slope, b: float) -> float:
    """Halley step in log b; infinite where the curvature has underflowed."""
    if at.slope == 0.0:
        return 0.0
    scaled = b * at.curvature
    if not scaled > abs(at.slope) * 1e-300:
        return -math.copysign(math.inf, at.slope)
    newton = -at.slope / scaled
    bend = 1 + newton * (1 + b * at.third / at.curvature) / 2
    return newton / bend if 0.5 < bend < 2 else newton


def _next(
    u: float, step: float, bracket: tuple[float, float], unseen: set[float], last: float
) -> float:
    """Where to look next: the point stepped to, a bound not yet seen, or the bracket's middle."""
    low, high = bracket
    middle = (low + high) / 2
    if not low < u + step < high:
        end = low if step < 0 else high
        return end if end in unseen else middle
    slow = abs(step) > abs(last) / 2 and low not in unseen and high not in unseen
    return middle if slow else u + step


def _moved(at: Slope, by: float) -> Slope:
    """The NLL a small step in b further on, by its Taylor series."""
    nll = at.nll + by * (at.slope + by * (at.curvature / 2 + by * at.third / 6))
    slope = at.slope + by * (at.curvature + by * at.third / 2)
    return at._replace(nll=nll, slope=slope, curvature=max(at.curvature + by * at.third, 0.0))


# ------------------------------------------------------------------ rows in memory
@dataclass(frozen=True, eq=False)
class _Rows:
    """Checked predictions as a walk."""

    data: Predictions
    w: NDArray[np.float64]

    def __iter__(self) -> Iterator[Block]:
        return blocks_of(self.data.scores.T, self.data.ids, self.w, self._name)

    def _name(self, row: int) -> str:
        return f"row {int(np.flatnonzero(self.data.kept)[row])}"


def slope_at(rows: Predictions, w: NDArray[np.float64], b: float) -> Slope:
    """One pass over checked logits with weights."""
    return slope_of(_Rows(rows, w), b)


def minimize(
    rows: Predictions, w: NDArray[np.float64], bounds: tuple[float, float], before: Slope
) -> tuple[float, str, Slope]:
    """Find the T at which the slope is zero; returns T, the status, and the NLL there."""
    walk, sample = _Rows(rows, w), Sample()
    for block in walk:
        sample.add(block)
    return search(walk, sample, bounds, before)


def _refuse_masked(row: str, label: int) -> None:
    raise InvalidInput(
        "logits and labels",
        expected="a finite logit for the class of the label",
        found=f"-inf in {row}, whose label is {label}",
        fix="Unmask the class or leave the row out: its NLL is infinite at every T.",
    )
