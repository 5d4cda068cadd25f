"""Single label values: what people write for a class, brought to texts and whole numbers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from temperance.arrays import as_numpy
from temperance.errors import InvalidInput

__all__ = ["as_label_array", "as_values", "ignored_texts", "text_of"]

_EXACT = 2.0**53  # from here on neighbouring whole numbers are one float
_MISSING = (
    'A table reader may have turned the text "NA" into a missing value: read the column as text '
    "(in pandas: keep_default_na=False)."
)


def text_of(value: object) -> str:
    """Text that stands for one label value: ``3``, ``3.0`` and NumPy's 3 are all ``"3"``."""
    if isinstance(value, bytes):
        return value.decode("utf-8", errors="backslashreplace")
    if isinstance(value, (bool, np.bool_)):
        return str(bool(value))
    if isinstance(value, (float, np.floating)) and float(value).is_integer():
        return str(int(value))
    return str(value)


def _bad_row(split: str, row: int, found: str, fix: str) -> InvalidInput:
    return InvalidInput(split, expected="one label per row", found=f"{found} in row {row}", fix=fix)


def as_values(array: NDArray[Any], split: str) -> tuple[NDArray[Any], bool]:
    """Labels as an array of whole numbers, booleans or texts, and whether they are numbers."""
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.ndim == 2 and array.dtype.kind in "fiub":
        array = _from_one_hot(array, split)
    if array.ndim != 1 or not len(array):
        raise InvalidInput(
            split,
            expected="n labels, or one-hot rows [n, C]",
            found=f"shape {list(array.shape)}",
            fix="Pass one label per row.",
        )
    kind = array.dtype.kind
    if kind == "f":
        _check_whole(array, split)
        return array.astype(np.int64), True
    if kind in "iub":
        return array, kind != "b"
    if kind in "SUO":
        return _from_objects(array.astype(object), split)
    raise _bad_type(split, f"type {array.dtype}")


def _bad_type(split: str, found: str) -> InvalidInput:
    return InvalidInput(
        split,
        expected="texts, whole numbers or booleans",
        found=found,
        fix="Convert the labels to one of these.",
    )


def as_label_array(y: Any, split: str) -> NDArray[Any]:
    """Keep the types of single values: NumPy would turn ``["a", 1]`` into two texts."""
    if hasattr(y, "detach") or isinstance(y, np.ndarray):
        return as_numpy(y)
    if not hasattr(y, "dtype") and isinstance(y, (list, tuple)):
        return _from_list(y, split)
    array = np.asarray(y)
    if array.dtype.kind in "fiub":
        return array
    return np.asarray(y, dtype=object)  # pandas and Arrow: keep missing values visible


def _from_list(y: Any, split: str) -> NDArray[Any]:
    kinds = {type(v) for v in y}
    nested = any(hasattr(k, "__len__") and k not in (str, bytes) for k in kinds)
    if kinds <= {int, float} or nested:
        try:
            return np.asarray([as_numpy(v) for v in y] if nested else y)
        except (ValueError, OverflowError) as error:
            found = "rows of unequal length" if nested else str(error)
            raise _bad_type(split, found) from error
    out = np.empty(len(y), dtype=object)
    out[:] = y
    return out


def _check_whole(array: NDArray[Any], split: str) -> None:
    with np.errstate(invalid="ignore"):
        good = np.isfinite(array) & (array == np.floor(array)) & (np.abs(array) < _EXACT)
    if not good.all():
        row = int(np.argmin(good))
        missing = bool(np.isnan(array[row]))
        raise _bad_row(
            split,
            row,
            "a missing value (NaN)" if missing else f"the number {array[row]}",
            _MISSING
            if missing
            else "Classes are names or whole numbers below 2**53; a regression has no temperature.",
        )


def _from_one_hot(array: NDArray[Any], split: str) -> NDArray[np.int64]:
    with np.errstate(invalid="ignore"):
        good = ((array == 0) | (array == 1)).all(axis=1) & (array.sum(axis=1) == 1)
    if array.shape[1] < 2 or not good.all():
        row = int(np.argmin(good)) if len(good) else 0
        raise InvalidInput(
            split,
            expected="one-hot rows (a single 1 and zeros)",
            found=f"row {row} = {array[row].tolist()[:8]}" if len(array) else "no rows",
            fix="Soft and multiple labels are not classes; pass one label per row.",
        )
    return array.argmax(axis=1).astype(np.int64)


def _from_objects(array: NDArray[Any], split: str) -> tuple[NDArray[Any], bool]:
    """Single values of any type: all texts, all booleans or all numbers."""
    seen: dict[str, int] = {}
    for row, value in enumerate(array):
        if _is_missing(value):
            raise _bad_row(split, row, "a missing value", _MISSING)
        seen.setdefault(_kind(value), row)
    if len(seen) > 1:
        raise InvalidInput(
            split,
            expected="labels of one type",
            found=", ".join(f"{k} (first in row {r})" for k, r in seen.items()),
            fix="Convert all labels to text, or all to whole numbers.",
        )
    if "text" not in seen:
        numbers = np.asarray(array.tolist())
        if numbers.dtype.kind not in "fiub":
            raise _bad_type(split, f"type {type(array[0]).__name__}")
        return as_values(numbers, split)
    texts = np.empty(len(array), dtype=object)  # fixed-width NumPy texts lose a trailing NUL
    texts[:] = [text_of(value) for value in array]
    return texts, False


def _is_missing(value: object) -> bool:
    nan = isinstance(value, (float, np.floating)) and bool(np.isnan(value))
    return value is None or nan or type(value).__name__ in ("NAType", "NaTType")


def _kind(value: object) -> str:
    if isinstance(value, (str, bytes)):
        return "text"
    return "boolean" if isinstance(value, (bool, np.bool_)) else "number"


def ignored_texts(ignore: object) -> set[str]:
    """Texts of the values that mark rows without a label; one value may come by itself."""
    alone = isinstance(ignore, (str, bytes)) or not isinstance(ignore, Iterable)
    values = (ignore,) if alone else ignore
    return {text_of(v) for v in values}  # type: ignore[attr-defined]
