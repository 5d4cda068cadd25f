"""The records of the data side: what a reader found, and the data set that a training gets."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from temperance.labels import ClassMap

__all__ = [
    "PART_NAMES",
    "DataSet",
    "Found",
    "FoundPart",
    "Part",
    "Picture",
    "Pictures",
    "fingerprint_of",
    "part_name",
    "row_digests",
]

Kind = Literal["images", "features"]
Picture = Path | bytes | NDArray[Any]

PART_NAMES: Mapping[str, tuple[str, ...]] = {
    "train": ("train", "training"),
    "val": ("val", "valid", "validation", "dev"),
    "test": ("test", "testing", "t10k"),
}


def part_name(text: str) -> str | None:
    """Give ``train``, ``val`` or ``test`` for a name that means one of them, else None."""
    lower = text.lower()
    return next((part for part, names in PART_NAMES.items() if lower in names), None)


class Pictures(Protocol):
    """Pictures that are not decoded yet: files, encoded bytes or arrays; can be walked twice."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[Picture]: ...


@dataclass(frozen=True, eq=False)
class FoundPart:
    """One part of a source as its reader found it.

    Attributes:
        x: an array (pictures ``[n, H, W, C]`` or features ``[n, M]``), or pictures to decode.
        labels: ``n`` labels in any form that ``temperance.labels.read_labels`` reads.
        ids: ``n`` names of the rows, for messages.
    """

    x: NDArray[Any] | Pictures
    labels: Any
    ids: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Found:
    """A source as its reader found it: nothing decoded, no label read.

    Attributes:
        kind: ``"images"`` or ``"features"``.
        parts: the parts by name; ``train`` is always there.
        class_names: names of all classes in the order of their ids, where the source gives them.
        feature_names: names of the feature columns, where the source is a table of columns.
        white: the value of white in arrays of pictures; None where nothing says so.
        notices: what the reader skipped or decided, in words.
        warnings: what should be looked at, in words.
    """

    kind: Kind
    parts: Mapping[str, FoundPart]
    class_names: tuple[str, ...] | None = None
    feature_names: tuple[str, ...] | None = None
    white: float | None = 255.0
    notices: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class Part:
    """The rows of one part of a data set.

    Attributes:
        x: pictures ``[n, H, W, C]`` (uint8; float32 where the source has fractions; a memory map
            where large) or features ``[n, M]``, float32.
        y: class ids, int64, shape ``[n]``.
        ids: a name for every row: the file, or the place in the table.
    """

    x: NDArray[Any]
    y: NDArray[np.int64]
    ids: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.y)


@dataclass(frozen=True, eq=False)
class DataSet:
    """A labelled data set, read, checked and decoded.

    Attributes:
        name: what the user called it: a word, or the last part of the path.
        kind: ``"images"`` or ``"features"``.
        parts: the parts that the source has, by name: ``train``, and ``val`` and ``test`` if there.
        class_map: the classes, made from ``train``; the other parts were matched to it by name.
        feature_names: names of the features, where the source is a table of columns.
        white: the value of white in the pictures (255 for decoded files, 16 for ``digits``); None
            for features and for arrays on an unknown scale.
        notices: what was skipped, converted or decided, in words; the texts in ``warnings`` too.
        warnings: the notices that were also given as ``TemperanceWarning``.
        fingerprint: hash of rows, labels and classes; equal for equal data, to check a resume.
    """

    name: str
    kind: Kind
    parts: Mapping[str, Part]
    class_map: ClassMap
    feature_names: tuple[str, ...] | None = None
    white: float | None = None
    notices: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    fingerprint: str = field(default="", repr=False)

    @property
    def n_classes(self) -> int:
        """C, the number of classes, those without rows included."""
        return len(self.class_map)

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one row as a net sees it: ``(C, H, W)`` for pictures, ``(M,)`` for features."""
        shape = self.parts["train"].x.shape[1:]
        return (shape[2], shape[0], shape[1]) if self.kind == "images" else tuple(shape)

    def counts(self, part: str = "train") -> NDArray[np.int64]:
        """Rows of every class in a part, in the order of the ids, shape ``[C]``."""
        return np.bincount(self.parts[part].y, minlength=self.n_classes).astype(np.int64)


def row_digests(x: NDArray[Any]) -> list[bytes]:
    """Hash of every row (16 bytes each); equal rows have equal hashes.

    Args:
        x: rows, shape ``[n, ...]``; read one at a time, so a memory map stays on disk.

    Returns:
        ``n`` digests.

    Example:
        >>> import numpy as np
        >>> a, b, c = row_digests(np.array([[1, 2], [3, 4], [1, 2]], dtype=np.uint8))
        >>> a == c, a == b
        (True, False)
    """
    return [hashlib.blake2b(np.ascontiguousarray(row).data, digest_size=16).digest() for row in x]


def fingerprint_of(
    kind: str,
    parts: Mapping[str, Part],
    class_names: Sequence[str],
    digests: Mapping[str, list[bytes]],
) -> str:
    """Hash of everything that a training sees of a data set, as 32 hexadecimal digits."""
    total = hashlib.blake2b(digest_size=16)
    total.update(repr((kind, tuple(class_names))).encode())
    for name in sorted(parts):
        part = parts[name]
        total.update(repr((name, part.x.shape, str(part.x.dtype))).encode())
        total.update(b"".join(digests[name]))
        total.update(np.ascontiguousarray(part.y, dtype="<i8").data)
    return total.hexdigest()
