"""Logits of any layout with their labels, walked in blocks of bounded size.

Nothing is copied as a whole: arrays and tensors are cut into pieces, and only a piece is moved to
the CPU, widened to float64, or freed of its ignored rows.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from temperance.arrays import as_numpy
from temperance.errors import InvalidInput
from temperance.evaluation.nll_curve import Block, blocks_of
from temperance.evaluation.predictions import as_ignore, labelled, read_array
from temperance.labels import check_ids

__all__ = ["LogitRows", "Piece", "Rows", "read_logit_rows"]

_PIECE = 1 << 18  # numbers cut out together


class Rows(Protocol):
    """Something that can be walked in blocks, again and again.

    Attributes:
        one_column: whether the logits came as one number per row.
        floating: whether they came as floating-point numbers.
    """

    @property
    def one_column(self) -> bool: ...  # noqa: D102

    @property
    def floating(self) -> bool: ...  # noqa: D102

    def __iter__(self) -> Iterator[Block]: ...


class Piece(NamedTuple):
    """Some rows as they came: logits ``[C, m]``, class ids and weights ``[m]``, their places."""

    z: NDArray[np.generic]
    ids: NDArray[np.int64]
    w: NDArray[np.float64]
    places: Places


class Places(NamedTuple):
    """Where the rows of a piece are in the labels."""

    box: tuple[int | slice, ...]
    kept: NDArray[np.bool_] | None
    shape: tuple[int, ...]
    source: str

    def name(self, row: int) -> str:
        """What errors call a row: ``"row 7"``, or ``"position [0, 3, 5]"`` of dense labels."""
        if self.kept is not None:
            row = int(np.flatnonzero(self.kept)[row])
        starts = [b.start if isinstance(b, slice) else b for b in self.box]
        starts += [0] * (len(self.shape) - len(starts))
        sizes = [
            len(range(*b.indices(n))) if isinstance(b, slice) else 1
            for b, n in zip(self.box, self.shape, strict=False)
        ]
        sizes += self.shape[len(sizes) :]
        at = [s + int(i) for s, i in zip(starts, np.unravel_index(row, sizes), strict=True)]
        return (f"row {at[0]}" if len(at) == 1 else f"position {at}") + self.source


@dataclass(frozen=True, eq=False)
class LogitRows:
    """Logits of one array or tensor, with checked labels.

    Attributes:
        moved: the logits, class axis first; an array or a tensor.
        ids: class ids, int64, in the shape of the labels; 0 where ignored.
        kept: which labels are not ignored; None if all are kept.
        weights: one per label, the largest 1; None if all count the same.
        floating: whether the logits came as floating-point numbers.
        source: what errors add to the name of a row.
    """

    moved: Any
    ids: NDArray[np.int64]
    kept: NDArray[np.bool_] | None
    weights: NDArray[np.float64] | None
    floating: bool
    source: str

    @property
    def one_column(self) -> bool:
        """Whether there is one logit per row, that of class 1 of two."""
        return len(self.moved) == 1

    @property
    def n_classes(self) -> int:
        """C, the number of classes."""
        return max(2, len(self.moved))

    def pieces(self) -> Iterator[Piece]:
        """Cut out some rows at a time, without the ignored ones."""
        for box in _boxes(self.ids.shape, max(1, _PIECE // len(self.moved))):
            kept = None if self.kept is None else self.kept[box].reshape(-1)
            if kept is not None and not kept.any():
                continue
            z = as_numpy(self.moved[(slice(None), *box)]).reshape(len(self.moved), -1)
            ids = self.ids[box].reshape(-1)
            w = np.ones(len(ids)) if self.weights is None else self.weights[box].reshape(-1)
            if kept is not None and not kept.all():
                rows_first = z.strides[0] < z.strides[-1]
                z = z.T[kept].T if rows_first else z[:, kept]
                ids, w = ids[kept], w[kept]
            if self.one_column:
                z = np.concatenate([np.zeros_like(z), z])
            yield Piece(z, ids, w, Places(box, kept, self.ids.shape, self.source))

    def __iter__(self) -> Iterator[Block]:
        for piece in self.pieces():
            yield from blocks_of(piece.z, piece.ids, piece.w, piece.places.name)


def _boxes(shape: tuple[int, ...], most: int) -> Iterator[tuple[int | slice, ...]]:
    """Boxes of at most so many places (about) that cover an array in order."""
    split = 0
    while split < len(shape) - 1 and math.prod(shape[split + 1 :]) > most:
        split += 1
    step = max(1, most // max(1, math.prod(shape[split + 1 :])))
    for lead in np.ndindex(*shape[:split]):
        for start in range(0, shape[split], step):
            yield (*lead, slice(start, min(start + step, shape[split])))


def read_logit_rows(
    logits: ArrayLike,
    labels: ArrayLike,
    *,
    ignore: tuple[object, ...] = (),
    weights: ArrayLike | None = None,
    axis: int | None = None,
    source: str = "",
) -> LogitRows:
    """Check the shapes of logits, and all of their labels and weights.

    The logits themselves are checked when they are walked.

    Args:
        logits: shape ``[n, C]``; for two classes also ``[n]`` or ``[n, 1]``, the logit of class 1;
            any shape with ``axis``.
        labels: class ids ``0 .. C-1``, in the shape of the logits without the class axis.
        ignore: numbers in ``labels`` that mark rows without a label, or one such number.
        weights: one number of 0 or more per label.
        axis: the class axis; needed for more than two axes.
        source: what errors add to the name of a row, such as ``" of chunk 3"``.

    Raises:
        InvalidInput: if they do not go together, or if a label or weight cannot be used.
    """
    moved, floating = _class_axis_first(logits, axis)
    raw = _match(read_array(labels, "labels"), moved, axis)
    kept = labelled(raw, as_ignore(ignore)) if raw.dtype.kind in "fiub" else None
    if kept is not None and kept.all():
        kept = None
    found = raw if kept is None else np.where(kept, raw, np.zeros((), raw.dtype))
    ids = _check_labels(found, max(2, len(moved)), source)
    w = None if weights is None else _read_weights(weights, raw.shape, kept)
    return LogitRows(moved, ids, kept, w, floating, source)


def _class_axis_first(logits: Any, axis: int | None) -> tuple[Any, bool]:
    """The logits with the class axis first, and whether they are floating-point numbers."""
    raw = logits.detach() if hasattr(logits, "detach") else read_array(logits, "logits")
    kind = as_numpy(raw[:0]).dtype.kind if raw.ndim else "f"
    if kind not in "fiu":
        raise InvalidInput(
            "logits",
            expected="numbers",
            found=f"type {raw.dtype}",
            fix="Pass what the model puts out, one row per sample.",
        )
    if raw.ndim == 1:
        raw = raw[:, None]
    if raw.ndim == 0 or 0 in raw.shape[1:]:
        raise InvalidInput(
            "logits",
            expected="a non-empty array of shape [n, C], or [n] for two classes",
            found=f"shape {list(raw.shape)}",
            fix="Pass one row per sample and one column per class.",
        )
    at = _axis(axis, raw.ndim)
    moved = raw.movedim(at, 0) if hasattr(raw, "movedim") else np.moveaxis(raw, at, 0)
    return moved, kind == "f"


def _axis(axis: Any, ndim: int) -> int:
    if axis is None and ndim == 2:
        return 1
    whole = isinstance(axis, (int, np.integer)) and not isinstance(axis, bool)
    if whole and -ndim <= axis < ndim:
        return int(axis)
    raise InvalidInput(
        "axis",
        expected=f"the number of the class axis of logits with {ndim} axes",
        found=repr(axis),
        fix="Pass axis=1 for (B, C, H, W), axis=-1 for (B, T, C).",
    )


def _match(labels: NDArray[Any], moved: Any, axis: int | None) -> NDArray[Any]:
    """Labels in the shape of the logits without the class axis."""
    shape = tuple(moved.shape[1:])
    if labels.shape == shape:
        return labels
    if labels.ndim == len(shape) + 1:
        at = _axis(axis, labels.ndim)
        if labels.shape[at] == 1 and np.squeeze(labels, at).shape == shape:
            return np.squeeze(labels, at)
    raise InvalidInput(
        "logits and labels",
        expected=f"one class id for each of the {math.prod(shape)} rows, shape {list(shape)}",
        found=f"labels of shape {list(labels.shape)}",
        fix="Pass one row of logits and one class id per sample (per pixel or token with axis=).",
    )


def _check_labels(raw: NDArray[Any], n_classes: int, source: str) -> NDArray[np.int64]:
    try:
        return check_ids(raw.reshape(-1), n_classes).reshape(raw.shape)
    except InvalidInput as error:
        bad = ~np.isin(raw, np.arange(n_classes))
        if (raw.ndim == 1 and not source) or not bad.any():
            raise
        box = tuple(slice(0, s) for s in raw.shape)
        name = Places(box, None, raw.shape, source).name(int(np.argmax(bad)))
        found = f"{raw.reshape(-1)[int(np.argmax(bad))]} in {name}"
        raise InvalidInput(
            error.subject, expected=error.expected, found=found, fix=error.fix
        ) from None


def _read_weights(
    weights: Any, shape: tuple[int, ...], kept: NDArray[np.bool_] | None
) -> NDArray[np.float64]:
    w = read_array(weights, "weights")
    if w.shape != shape or w.dtype.kind not in "fiub":
        raise InvalidInput(
            "weights",
            expected=f"{math.prod(shape)} numbers, one per row, shape {list(shape)}",
            found=f"type {w.dtype}, shape {list(w.shape)}",
            fix="Pass one weight per row of the logits.",
        )
    w = w.astype(np.float64)
    bad = ~(np.isfinite(w) & (w >= 0))
    if bad.any():
        row = int(np.argmax(bad))
        raise InvalidInput(
            "weights",
            expected="finite numbers of 0 or more",
            found=f"{w.reshape(-1)[row]} in row {row}",
            fix="Repair the weight of that row.",
        )
    return w if kept is None else np.where(kept, w, 0.0)
