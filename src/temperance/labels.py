"""The one reader of labels, used by every part of the library.

Labels come as names, as ids that are not 0..C-1, as texts such as "NA" and "007", one-hot, as
floats or as booleans. They are read once; the map from label to id is made from the training split,
saved, and every later split is matched to it by name, never by position.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from temperance.arrays import as_numpy
from temperance.errors import InvalidInput, TemperanceWarning
from temperance.label_values import as_label_array, as_values, ignored_texts, text_of

__all__ = ["ClassMap", "Labels", "check_ids", "labelled_rows", "read_labels"]


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

    def ids_of(self, labels: Iterable[str], *, numeric: bool) -> list[int | None]:
        """Ids of labels written as text; None where unknown.

        Numbers are keys before they are names, texts the other way round: with the names ``"1"``,
        ``"2"``, ``"3"`` for the ids 0, 1, 2, the number 1 is the second class, the text "1" the
        first.
        """
        by_key = {k: i for i, k in enumerate(self.keys)}
        by_name = {n: i for i, n in enumerate(self.names)}
        first, second = (by_key, by_name) if numeric else (by_name, by_key)
        return [first.get(text, second.get(text)) for text in labels]


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
    ignore: object = (),
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
        ignore: value or values that mark rows without a label, such as ``-100``; their rows are
            left out. Nothing is ignored that is not named here.
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
    array = as_label_array(y, split)
    values, numeric = as_values(array, split)
    unique, inverse = np.unique(values, return_inverse=True)
    texts = [text_of(u) for u in unique]
    ignored = ignored_texts(ignore)
    used = [text not in ignored for text in texts]
    if not any(used):
        raise InvalidInput(
            split,
            expected="at least one labelled row",
            found=f"{len(values)} rows, none with a label that is not ignored",
            fix="This split cannot be used for training or judging; choose another.",
        )
    columns = array.shape[1] if array.ndim == 2 and array.shape[1] > 1 else 0
    if columns:
        class_map = _map_of_columns(columns, class_map, class_names, split)
    elif class_map is None:
        wanted = [t for t, u in zip(texts, used, strict=True) if u]
        class_map = _make_map(wanted, numeric, class_names, split)
    found = [int(t) for t in texts] if columns else class_map.ids_of(texts, numeric=numeric)
    ids = [i if u else -1 for i, u in zip(found, used, strict=True)]
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


def labelled_rows(y: ArrayLike, *, ignore: object = ()) -> NDArray[np.bool_]:
    """Say which rows have a label, without reading the labels themselves.

    Args:
        y: ``n`` labels, or one-hot rows ``[n, C]`` (all of which have one).
        ignore: value or values that mark rows without a label.

    Returns:
        A mask of shape ``[n]``.

    Example:
        >>> from temperance.labels import labelled_rows
        >>> labelled_rows([3, -100, 4], ignore=-100).tolist()
        [True, False, True]
    """
    array = as_label_array(y, "labels")
    wanted = ignored_texts(ignore)
    if not wanted or array.ndim != 1:
        return np.ones(len(array), dtype=bool)
    unique, inverse = np.unique(array, return_inverse=True)
    return np.array([text_of(u) not in wanted for u in unique])[inverse.reshape(-1)]


# ------------------------------------------------------------------ the map
def _map_of_columns(
    columns: int, class_map: ClassMap | None, class_names: Sequence[str] | None, split: str
) -> ClassMap:
    """One-hot rows name their classes by column: all of them, used or not."""
    if class_map is None:
        names = class_names if class_names is not None else map(str, range(columns))
        class_map = ClassMap(tuple(map(str, names)), tuple(map(str, range(columns))))
    if len(class_map) != columns:
        raise InvalidInput(
            split,
            expected=f"one-hot rows with a column for each of {len(class_map)} classes",
            found=f"{columns} columns",
            fix="Encode all splits over the same classes, or pass class ids or names.",
        )
    return class_map


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
