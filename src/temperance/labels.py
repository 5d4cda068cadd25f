"""The one reader of labels, used by every part of the library.

Labels come as names, as ids that are not 0..C-1, as texts such as "NA" and "007", one-hot, as
floats or as booleans. They are read once; the map from label to id is made from the training split,
saved, and every later split is matched to it by name, never by position.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from temperance.arrays import as_numpy
from temperance.errors import InvalidInput, TemperanceWarning

__all__ = ["ClassMap", "Labels", "check_ids", "read_labels"]


@dataclass(frozen=True)
class ClassMap:
    """Names of the classes in the order of their ids.

    Attributes:
        names: one name per class; the id of a class is its place here.
        keys: the value that stands for each class in the data, as text (``"3"`` for the id 3);
            the same as ``names`` unless ids came with names.
    """

    names: tuple[str, ...]
    keys: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "names", tuple(self.names))
        object.__setattr__(self, "keys", tuple(self.keys) or self.names)
        for what, values in (("names", self.names), ("keys", self.keys)):
            twice = (
                {v for v in values if values.count(v) > 1} if len(set(values)) < len(values) else ()
            )
            if twice:
                raise InvalidInput(
                    f"class {what}",
                    expected="each one once",
                    found=f"{sorted(twice)[0]!r} more than once",
                    fix="Give every class a name of its own.",
                )
        if len(self.names) < 2:
            raise InvalidInput(
                "labels",
                expected="two classes or more",
                found=f"{len(self.names)} ({', '.join(map(repr, self.names)) or 'none'})",
                fix="Check that the labels were read from the right column or folder, and that "
                "they are not all the mark for unlabelled rows.",
            )
        if len(self.keys) != len(self.names):
            raise InvalidInput(
                "class map",
                expected="as many keys as names",
                found=f"{len(self.keys)} keys and {len(self.names)} names",
                fix="Give one key per name.",
            )

    def __len__(self) -> int:
        return len(self.names)

    def to_dict(self) -> dict[str, list[str]]:
        """Give the map as plain lists, for JSON."""
        return {"names": list(self.names), "keys": list(self.keys)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Sequence[str]]) -> ClassMap:
        """Read what ``to_dict`` gave."""
        return cls(tuple(data["names"]), tuple(data.get("keys", ())))

    def ids_of(self, labels: Iterable[str]) -> list[int | None]:
        """Ids of labels written as text: by name first, then by key; None where unknown."""
        by_key = {k: i for i, k in enumerate(self.keys)}
        by_name = {n: i for i, n in enumerate(self.names)}
        return [by_name.get(text, by_key.get(text)) for text in labels]


@dataclass(frozen=True, eq=False)
class Labels:
    """Labels that were read.

    Attributes:
        ids: class ids of the kept rows, int64, ``0 .. C-1``.
        class_map: the map that gave them.
        kept: for every row that came in, whether it is kept (not ignored).
    """

    ids: NDArray[np.int64]
    class_map: ClassMap
    kept: NDArray[np.bool_]

    @property
    def counts(self) -> NDArray[np.int64]:
        """Rows of each class, in the order of the ids."""
        return np.bincount(self.ids, minlength=len(self.class_map)).astype(np.int64)


def read_labels(
    y: ArrayLike,
    *,
    class_map: ClassMap | None = None,
    class_names: Sequence[str] | None = None,
    ignore: tuple[object, ...] = (),
    split: str = "labels",
) -> Labels:
    """Read labels of any form into ids ``0 .. C-1``.

    Args:
        y: ``n`` labels: texts (kept as they are: ``"007"`` and ``"NA"`` are names), whole numbers
            (any ids; also as floats), booleans, or one-hot rows ``[n, C]``.
        class_map: the map of the training split; ``y`` is matched to it by name. Made from ``y``
            if absent: whole numbers in numeric order, texts in plain character order.
        class_names: for whole numbers ``0 .. C-1`` or one-hot rows, the names of all ``C`` classes
            (a class may be without rows).
        ignore: values that mark rows without a label, such as ``-100``; their rows are left out.
            Nothing is ignored that is not named here.
        split: how errors call this set of labels.

    Returns:
        Ids of the kept rows, the class map, and which rows were kept.

    Raises:
        InvalidInput: by row and value, for missing, fractional or mixed labels, for a class that
            the map lacks, for negative ids that nobody named, and for fewer than two classes.

    Example:
        >>> from temperance.labels import read_labels
        >>> train = read_labels(["NA", "007", "yes", "NA"])
        >>> train.class_map.names, train.ids.tolist()
        (('007', 'NA', 'yes'), [1, 0, 2, 1])
        >>> read_labels(["yes", "NA"], class_map=train.class_map).ids.tolist()
        [2, 1]
    """
    values, numeric = _as_values(y, split)
    unique, inverse = np.unique(values, return_inverse=True)
    texts = [_text(u) for u in unique]
    ignored = {_text(v) for v in ignore}
    used = [text not in ignored for text in texts]
    if not any(used):
        raise InvalidInput(
            split,
            expected="at least one labelled row",
            found=f"{len(values)} rows, none with a label that is not ignored",
            fix="This split cannot be used for training or judging; choose another.",
        )
    if class_map is None:
        wanted = [t for t, u in zip(texts, used, strict=True) if u]
        class_map = _make_map(wanted, numeric, class_names, split)
    ids = [i if u else -1 for i, u in zip(class_map.ids_of(texts), used, strict=True)]
    if None in ids:
        place = ids.index(None)
        _refuse_unknown(texts[place], int(np.argmax(inverse == place)), class_map, split)
    all_ids = np.asarray(ids, dtype=np.int64)[inverse.reshape(-1)]
    kept = all_ids >= 0
    return Labels(all_ids[kept], class_map, kept)


def check_ids(y: ArrayLike, n_classes: int, *, subject: str = "labels") -> NDArray[np.int64]:
    """Check that labels are class ids of ``n_classes`` outputs.

    Args:
        y: whole numbers (also as floats or booleans), shape ``[n]`` or ``[n, 1]``.
        n_classes: C, the number of outputs.
        subject: how the error should call them.

    Returns:
        The ids as int64, shape ``[n]``.

    Raises:
        InvalidInput: naming the first row that is not a whole number in ``0 .. C-1``.

    Example:
        >>> from temperance.labels import check_ids
        >>> check_ids([0.0, 2.0], 3).tolist()
        [0, 2]
    """
    array = as_numpy(y)
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.ndim != 1 or array.dtype.kind not in "fiub":
        raise InvalidInput(
            subject,
            expected=f"class ids 0..{n_classes - 1}, shape [n]",
            found=f"type {array.dtype}, shape {list(array.shape)}",
            fix="Read names with temperance.labels.read_labels first.",
        )
    with np.errstate(invalid="ignore"):
        good = (array >= 0) & (array < n_classes) & (array == np.floor(array.astype(np.float64)))
    if not good.all():
        row = int(np.argmin(good))
        raise InvalidInput(
            subject,
            expected=f"class ids 0..{n_classes - 1}",
            found=f"{array[row]} in row {row}",
            fix="Map labels to the model's classes with temperance.labels.read_labels, or leave "
            "out the rows that have none.",
        )
    return array.astype(np.int64)


_MISSING = (
    'A table reader may have turned the text "NA" into a missing value: read the column as text '
    "(in pandas: keep_default_na=False)."
)


# ------------------------------------------------------------------ reading one label
def _text(value: object) -> str:
    """Text that stands for one label value: ``3``, ``3.0`` and NumPy's 3 are all ``"3"``."""
    if isinstance(value, bytes):
        return value.decode("utf-8")
    if isinstance(value, (bool, np.bool_)):
        return str(bool(value))
    if isinstance(value, (float, np.floating)) and float(value).is_integer():
        return str(int(value))
    return str(value)


def _bad_row(split: str, row: int, found: str, fix: str) -> InvalidInput:
    return InvalidInput(split, expected="one label per row", found=f"{found} in row {row}", fix=fix)


def _as_values(y: ArrayLike, split: str) -> tuple[NDArray[Any], bool]:
    """Labels as an array of whole numbers, booleans or texts, and whether they are numbers."""
    array = _as_label_array(y)
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
    raise InvalidInput(
        split,
        expected="texts, whole numbers or booleans",
        found=f"type {array.dtype}",
        fix="Convert the labels to one of these.",
    )


def _as_label_array(y: Any) -> NDArray[Any]:
    """Keep the types of single values: NumPy would turn ``["a", 1]`` into two texts."""
    if hasattr(y, "detach") or isinstance(y, np.ndarray):
        return as_numpy(y)
    if not hasattr(y, "dtype") and isinstance(y, (list, tuple)):
        kinds = {type(v) for v in y}
        if kinds <= {int, float} or any(
            hasattr(k, "__len__") and k not in (str, bytes) for k in kinds
        ):
            return np.asarray(y)
        out = np.empty(len(y), dtype=object)
        out[:] = y
        return out
    array = np.asarray(y)
    if array.dtype.kind in "fiub":
        return array
    return np.asarray(y, dtype=object)  # pandas and Arrow: keep missing values visible


def _check_whole(array: NDArray[Any], split: str) -> None:
    with np.errstate(invalid="ignore"):
        good = np.isfinite(array) & (array == np.floor(array))
    if not good.all():
        row = int(np.argmin(good))
        missing = bool(np.isnan(array[row]))
        raise _bad_row(
            split,
            row,
            "a missing value (NaN)" if missing else f"the fraction {array[row]}",
            _MISSING
            if missing
            else "Classes are names or whole numbers; a regression has no temperature.",
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
        return _as_values(np.asarray(array.tolist()), split)
    texts = np.empty(len(array), dtype=object)  # fixed-width NumPy texts lose a trailing NUL
    texts[:] = [_text(value) for value in array]
    return texts, False


def _is_missing(value: object) -> bool:
    nan = isinstance(value, (float, np.floating)) and bool(np.isnan(value))
    return value is None or nan or type(value).__name__ in ("NAType", "NaTType")


def _kind(value: object) -> str:
    if isinstance(value, (str, bytes)):
        return "text"
    return "boolean" if isinstance(value, (bool, np.bool_)) else "number"


# ------------------------------------------------------------------ the map
def _make_map(
    unique: list[str], numeric: bool, class_names: Sequence[str] | None, split: str
) -> ClassMap:
    if class_names is not None:
        return _map_of_names(unique, numeric, tuple(map(str, class_names)), split)
    if not numeric:
        return ClassMap(tuple(sorted(unique)))
    ids = sorted(int(u) for u in unique)
    if ids[0] < 0 and ids != [-1, 1] and len(ids) > 1:
        raise InvalidInput(
            split,
            expected="class ids of 0 or more",
            found=f"the id {ids[0]}",
            fix=f"If it marks rows without a label, pass ignore=({ids[0]},); if it is a class, "
            "pass the labels as text.",
        )
    if ids != list(range(len(ids))) and len(ids) > 1:
        shown = ", ".join(map(str, ids[:6])) + (", ..." if len(ids) > 6 else "")
        warnings.warn(
            f"{split}: class ids {shown} are not 0..{len(ids) - 1}; they were mapped to "
            f"0..{len(ids) - 1} in numeric order and keep their numbers as names.",
            TemperanceWarning,
            stacklevel=4,
        )
    return ClassMap(tuple(map(str, ids)))


def _map_of_names(unique: list[str], numeric: bool, names: tuple[str, ...], split: str) -> ClassMap:
    keys = tuple(map(str, range(len(names)))) if numeric else names
    result = ClassMap(names, keys)
    unknown = [u for u in unique if u not in keys]
    if unknown:
        raise InvalidInput(
            split,
            expected=f"labels among the {len(names)} class names given",
            found=repr(unknown[0]),
            fix="Give the names of all classes, in the order of the ids.",
        )
    return result


def _refuse_unknown(label: str, row: int, class_map: ClassMap, split: str) -> None:
    shown = ", ".join(class_map.names[:8]) + (", ..." if len(class_map) > 8 else "")
    raise InvalidInput(
        split,
        expected=f"classes of the training split ({shown})",
        found=f"the class {label!r} in row {row}",
        fix="Add the class to the training split, or leave its rows out by naming it in ignore.",
    )
