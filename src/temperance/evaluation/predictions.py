"""Reading predictions: logits or probabilities, said by name, with their labels.

Every function of this room reads its input here, so that all of them take the same forms and refuse
the same mistakes: lists, NumPy arrays and tensors of any precision; two classes as one number per
row or as two columns; labels as class ids. Nothing is guessed from the values.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from temperance.arrays import as_numpy
from temperance.errors import InvalidInput
from temperance.labels import check_ids

__all__ = [
    "Predictions",
    "as_ignore",
    "labelled",
    "read_array",
    "read_logits",
    "read_predictions",
    "read_probs",
    "refuse_logits",
    "refuse_probs_as_logits",
]

_CHUNK = 1 << 18  # numbers worked on together: 2 MB of float64, about a core's cache
_SUM_TOLERANCE, _SUM_TOLERANCE_HALF = 1e-3, 1e-2  # a row of probabilities, by its precision
_LOOKS_LIKE_PROBS = 5e-3  # logits whose rows all sum to 1 this closely are probabilities
FLOOR = -1e200  # stands for -inf in float64, so that 0 * FLOOR is 0 and not NaN


@dataclass(frozen=True, eq=False)
class Predictions:
    """Checked predictions of ``n`` rows with their labels.

    Attributes:
        scores: logits or probabilities, shape ``[n, C]``, in the precision they came in.
        from_logits: whether ``scores`` are logits.
        ids: class ids of the rows, int64, ``0 .. C-1``.
        kept: for every row that came in, whether it is here (its label is not ignored).
    """

    scores: NDArray[np.generic]
    from_logits: bool
    ids: NDArray[np.int64]
    kept: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def n_classes(self) -> int:
        """C, the number of classes."""
        return int(self.scores.shape[1])

    def shifted(self) -> Iterator[tuple[slice, NDArray[np.float64], NDArray[np.intp]]]:
        """Walk the rows in chunks of bounded size.

        Yields:
            The rows, their logits in float64 less the largest of the row (``FLOOR`` for -inf), and
            the place of the largest. Probabilities come as their logarithms.
        """
        for rows in row_chunks(*self.scores.shape):
            z = self.scores[rows].astype(np.float64)
            if not self.from_logits:
                with np.errstate(divide="ignore"):
                    z = np.log(z)
            top = z.argmax(axis=1)
            with np.errstate(over="ignore"):
                z -= np.take_along_axis(z, top[:, None], axis=1)
            yield rows, np.maximum(z, FLOOR, out=z), top


def row_chunks(n: int, width: int) -> Iterator[slice]:
    """Slices over ``n`` rows of ``width`` numbers that keep the working memory small."""
    step = max(1, _CHUNK // max(1, width))
    for start in range(0, n, step):
        yield slice(start, min(n, start + step))


def read_predictions(
    *,
    logits: ArrayLike | None = None,
    probs: ArrayLike | None = None,
    labels: ArrayLike,
    ignore: tuple[object, ...] = (),
) -> Predictions:
    """Check logits or probabilities together with their labels.

    Args:
        logits: shape ``[n, C]``; for two classes also ``[n]`` or ``[n, 1]``, the logit of class 1.
            -inf marks a class that a row cannot have.
        probs: shape ``[n, C]``; for two classes also ``[n]`` or ``[n, 1]``, the probability of
            class 1. Exactly one of ``logits`` and ``probs`` is given.
        labels: class ids ``0 .. C-1``, shape ``[n]``.
        ignore: numbers in ``labels`` that mark rows without a label, or one such number; these rows
            are left out.

    Returns:
        The rows that are not ignored.

    Raises:
        InvalidInput: if both or none of the two are given, if a row cannot be used (named by its
            number), if the lengths differ, or if no row is left.

    Example:
        >>> from temperance.evaluation.predictions import read_predictions
        >>> read_predictions(logits=[0.3, -2.0], labels=[1, 0]).scores.tolist()
        [[0.0, 0.3], [0.0, -2.0]]
    """
    if (logits is None) == (probs is None):
        raise InvalidInput(
            "predictions",
            expected="exactly one of logits= and probs=",
            found="none" if logits is None else "both",
            fix="Name the one that the numbers are; the values do not tell.",
        )
    from_logits = logits is not None
    subject = "logits" if from_logits else "probs"
    raw = read_array(logits if from_logits else probs, subject)
    ids = read_array(labels, "labels")
    if ids.ndim == 2 and ids.shape[1] == 1:
        ids = ids[:, 0]
    _check_lengths(raw, ids, subject)
    kept = _kept(ids, as_ignore(ignore))
    if not kept.all():
        raw, ids = raw[kept], ids[kept]
    half = "float16" in str(getattr(probs, "dtype", ""))
    scores = read_logits(raw, rows=kept) if from_logits else read_probs(raw, rows=kept, half=half)
    return Predictions(scores, from_logits, _check_ids(ids, scores.shape[1], kept), kept)


def read_logits(logits: ArrayLike, *, rows: NDArray[np.bool_] | None = None) -> NDArray[np.generic]:
    """Check logits, and give them as ``[n, C]``.

    Args:
        logits: shape ``[n, C]``; for two classes also ``[n]`` or ``[n, 1]``, the logit of class 1.
        rows: which rows of the caller's array these are, for the error messages.

    Returns:
        The same numbers, not copied; two columns ``0, z`` where there was one number per row.

    Raises:
        InvalidInput: naming the first row with a NaN, a +inf or nothing but -inf; or if all rows
            are probabilities (in [0, 1], sum 1).
    """
    array = _two_columns(read_array(logits, "logits"), "logits", complement=False)
    looks_like_probs = len(array) >= 2 and array.dtype.kind == "f"
    for part in row_chunks(*array.shape):
        z = array[part].astype(np.float64)
        bad = ~np.isfinite(z.max(axis=1)) | np.isnan(z).any(axis=1)
        if bad.any():
            row = int(np.argmax(bad))
            refuse_logits(z[row], f"row {_name(part.start + row, rows)}")
        looks_like_probs = looks_like_probs and _all_probs(z)
    if looks_like_probs:
        refuse_probs_as_logits(len(array))
    return array


def read_probs(
    probs: ArrayLike, *, rows: NDArray[np.bool_] | None = None, half: bool = False
) -> NDArray[np.generic]:
    """Check probabilities, and give them as ``[n, C]``.

    Args:
        probs: shape ``[n, C]``; for two classes also ``[n]`` or ``[n, 1]``, the probability of
            class 1.
        rows: which rows of the caller's array these are, for the error messages.
        half: whether they come from half precision (rows then sum to 1 within 1e-2, else 1e-3).

    Returns:
        The same numbers, not copied; two columns ``1 - p, p`` where there was one number per row.

    Raises:
        InvalidInput: naming the first row that is not a distribution.
    """
    array = _two_columns(read_array(probs, "probs"), "probs", complement=True)
    half = half or array.dtype == np.float16
    tolerance = _SUM_TOLERANCE_HALF if half else _SUM_TOLERANCE
    for part in row_chunks(*array.shape):
        p = array[part].astype(np.float64)
        with np.errstate(invalid="ignore"):
            good = (p >= 0).all(axis=1) & (p <= 1).all(axis=1)
            good &= np.abs(p.sum(axis=1) - 1) <= tolerance
        if not good.all():
            row = int(np.argmin(good))
            _refuse_probs(p[row], _name(part.start + row, rows), tolerance)
    return array


def read_array(values: Any, subject: str) -> NDArray[Any]:
    """Give the NumPy array behind lists, an array or a tensor; rows of one length only.

    Args:
        values: what the caller passed.
        subject: how the error should call it.

    Returns:
        The array, of any type and shape.

    Raises:
        InvalidInput: if NumPy cannot make an array of it, as of rows of different lengths.
    """
    try:
        return as_numpy(values)
    except (ValueError, TypeError, RuntimeError) as error:
        raise InvalidInput(
            subject,
            expected="an array, a tensor, or lists whose rows have one length",
            found=f"a {type(values).__name__} that NumPy cannot read",
            fix="Give every row as many numbers as the others.",
        ) from error


def as_ignore(ignore: Any) -> tuple[object, ...]:
    """Give the values that mark rows without a label as a tuple; a single value stands alone."""
    values = ignore.tolist() if hasattr(ignore, "tolist") else ignore
    if values is None:
        return ()
    if isinstance(values, (str, bytes)) or not isinstance(values, Iterable):
        return (values,)
    return tuple(values)


# ------------------------------------------------------------------ the checks
def _two_columns(
    array: NDArray[np.generic], subject: str, *, complement: bool
) -> NDArray[np.generic]:
    """Give ``[n, C]`` with C >= 2; one number per row speaks of class 1."""
    if array.dtype.kind not in "fiu":
        raise InvalidInput(
            subject,
            expected="numbers",
            found=f"type {array.dtype}",
            fix="Pass what the model puts out, one row per sample.",
        )
    if array.ndim not in (1, 2) or 0 in array.shape:
        raise InvalidInput(
            subject,
            expected="a non-empty array of shape [n, C], or [n] for two classes",
            found=f"shape {list(array.shape)}",
            fix="Pass one row per sample and one column per class; flatten dense outputs first.",
        )
    column = array[:, None] if array.ndim == 1 else array
    if column.shape[1] > 1:
        return column
    first = 1 - column.astype(np.float64) if complement else np.zeros_like(column)
    return np.concatenate([first, column], axis=1)


def _check_lengths(raw: NDArray[np.generic], ids: NDArray[np.generic], subject: str) -> None:
    n = raw.shape[0] if raw.ndim else 0
    if ids.ndim == 1 and n == len(ids) and n > 0:
        return
    raise InvalidInput(
        f"{subject} and labels",
        expected="the same number of rows, at least one, and one class id per row",
        found=f"shapes {list(raw.shape)} and {list(ids.shape)}",
        fix="Pass one row of predictions and one class id per sample.",
    )


def labelled(ids: NDArray[np.generic], ignore: tuple[object, ...]) -> NDArray[np.bool_]:
    """Say which labels are not ignored, for labels of any shape."""
    wrong = [v for v in ignore if isinstance(v, (str, bytes)) or not np.isscalar(v)]
    if wrong:
        raise InvalidInput(
            "ignore",
            expected="numbers that stand for 'no label', such as (-100,)",
            found=repr(wrong[0]),
            fix="Map names to ids with temperance.labels.read_labels first.",
        )
    return ~np.isin(ids, np.asarray(ignore)) if ignore else np.ones(ids.shape, dtype=bool)


def _kept(ids: NDArray[np.generic], ignore: tuple[object, ...]) -> NDArray[np.bool_]:
    """Which rows have a label that is not ignored: at least one."""
    kept = labelled(ids, ignore)
    if not kept.any():
        raise InvalidInput(
            "labels",
            expected="at least one row with a label",
            found=f"{len(ids)} rows, all with a label that is ignored",
            fix="Choose a split with labels.",
        )
    return kept


def _check_ids(
    ids: NDArray[np.generic], n_classes: int, kept: NDArray[np.bool_]
) -> NDArray[np.int64]:
    """Check class ids; the row that an error names is the caller's, not the kept one's."""
    if kept.all() or ids.dtype.kind not in "fiub":
        return check_ids(ids, n_classes)
    whole = np.zeros(len(kept), dtype=ids.dtype)
    whole[kept] = ids
    return check_ids(whole, n_classes)[kept]


def _name(row: int, rows: NDArray[np.bool_] | None) -> int:
    """Number of a row in the caller's array."""
    return row if rows is None else int(np.flatnonzero(rows)[row])


def _all_probs(z: NDArray[np.float64]) -> bool:
    in_range = bool(((z >= 0) & (z <= 1)).all())
    return in_range and bool((np.abs(z.sum(axis=1) - 1) <= _LOOKS_LIKE_PROBS).all())


def refuse_logits(row: NDArray[np.float64], name: str) -> None:
    """Raise InvalidInput for a row of logits that cannot be used.

    Args:
        row: its numbers, shape ``[C]``.
        name: what the error calls it, such as ``"row 7"``.
    """
    if np.isnan(row).any():
        found = f"a NaN in {name}, column {int(np.argmax(np.isnan(row)))}"
    elif np.isposinf(row).any():
        found = f"+inf in {name}, column {int(np.argmax(row))}"
    else:
        found = f"nothing but -inf in {name}"
    raise InvalidInput(
        "logits",
        expected="finite numbers (-inf for a class that cannot be)",
        found=found,
        fix="Remove the row or repair the model; half precision overflows above 65504, so convert "
        "to float32 before the output layer.",
    )


def refuse_probs_as_logits(n: int) -> None:
    """Raise InvalidInput for ``n`` rows of logits that are probabilities, all of them."""
    raise InvalidInput(
        "logits",
        expected="numbers before the softmax",
        found=f"probabilities: all {n} rows lie in [0, 1] and sum to 1",
        fix="Pass the logits, or the logarithms of the probabilities, which are valid logits; "
        "where probs= is taken, name them so.",
    )


def _refuse_probs(row: NDArray[np.float64], number: int, tolerance: float) -> None:
    if np.isnan(row).any():
        found = f"a NaN in row {number}, column {int(np.argmax(np.isnan(row)))}"
    elif (row < 0).any() or (row > 1).any():
        column = int(np.argmax((row < 0) | (row > 1)))
        found = f"{row[column]:.6g} in row {number}, column {column}"
    else:
        found = f"a sum of {row.sum():.6g} in row {number}"
    raise InvalidInput(
        "probs",
        expected=f"rows in [0, 1] that sum to 1 within {tolerance:g}",
        found=found,
        fix="Numbers before the softmax go in as logits=; scores of several labels per row are "
        "not a classification.",
    )
