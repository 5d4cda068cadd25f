"""Open a data set: find out what a path is, read it, check it, decode it once."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import compress
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from temperance.arrays import as_matrix, first_nonfinite_row
from temperance.errors import InvalidInput, TemperanceWarning
from temperance.labels import ClassMap, Labels, read_labels
from temperance.training.dataset import (
    DataSet,
    Found,
    Part,
    fingerprint_of,
    row_digests,
)
from temperance.training.forms import FORMS, find
from temperance.training.scan import resize_arrays, scan

__all__ = ["FORMS", "open_data"]

Progress = Callable[[int, int], None]

_SHOWN = 8


def open_data(
    source: str | Path,
    *,
    label: str = "label",
    image_size: int | None = None,
    on_bad: Literal["error", "skip"] = "error",
    ignore: tuple[object, ...] = (),
    progress: Progress | None = None,
) -> DataSet:
    """Read a labelled data set of pictures or features, check it, and decode it once.

    The classes come from ``train``; all other parts are matched to them by name. Everything that is
    skipped, converted or decided is said in ``notices``; what should be looked at (a class without
    rows, rows that are in two parts) also comes as a ``TemperanceWarning``.

    Args:
        source: one of the forms in ``FORMS``.
        label: name of the label column in Parquet and CSV files.
        image_size: side in pixels that pictures are resized to (shorter side first, then the
            centre). If absent: the native size where all pictures have one and no side is above
            96, or that of the array; else 64.
        on_bad: what to do with pictures that cannot be decoded: ``"error"`` lists them and stops,
            ``"skip"`` leaves them out and says so.
        ignore: label values that mark rows without a label, such as ``-1``; they are left out.
        progress: called with the number of pictures decoded and in all.

    Returns:
        The data set. More than 1 GiB of pictures lies in an unnamed file in the folder for
        temporary files (``TMPDIR``), which vanishes with the process.

    Raises:
        InvalidInput: if there is nothing at ``source``, its form is none of these, a file cannot
            be read, fewer than two classes have rows, or a part has a class that ``train`` lacks.
        BadPictures: (an ``InvalidInput`` with ``files``) if pictures cannot be decoded.
        MissingPackage: for Parquet without pyarrow.

    Example:
        >>> data = open_data("digits")
        >>> data.kind, data.parts["train"].x.shape, data.n_classes, data.white
        ('images', (1797, 8, 8, 1), 10, 16.0)
    """
    _check_arguments(image_size, on_bad)
    name, found = find(source, label=label)
    said = _Said(list(found.notices), list(found.warnings))
    labels = _read_labels(found, ignore, said)
    x, good = _read_rows(found, labels, (image_size, on_bad, progress), said)
    parts = {}
    for part, read in labels.items():
        ids = compress(compress(found.parts[part].ids, read.kept.tolist()), good[part].tolist())
        parts[part] = Part(x[part], read.ids[good[part]], tuple(ids))
    class_map = labels["train"].class_map
    _check_names([*class_map.names, *(i for p in parts.values() for i in p.ids)])
    _check_classes(name, parts, class_map, said)
    digests = {part: row_digests(p.x) for part, p in parts.items()}
    _find_duplicates(parts, digests, said)
    for text in said.warnings:
        warnings.warn(f"{name}: {text}", TemperanceWarning, stacklevel=2)
    return DataSet(
        name=name,
        kind=found.kind,
        parts=parts,
        class_map=class_map,
        feature_names=found.feature_names,
        white=found.white if found.kind == "images" else None,
        notices=(*said.warnings, *said.notices),
        warnings=tuple(said.warnings),
        fingerprint=fingerprint_of(found.kind, parts, class_map.names, digests),
    )


def _check_names(names: Sequence[str]) -> None:
    """Names of classes and files are written into reports, which are UTF-8."""
    for name in names:
        try:
            name.encode("utf-8")
        except UnicodeEncodeError as error:
            raise InvalidInput(
                "names of classes and files",
                expected="names in UTF-8",
                found=ascii(name),
                fix="Rename it.",
            ) from error


@dataclass
class _Said:
    """Notices and warnings while they are gathered."""

    notices: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


def _check_arguments(image_size: int | None, on_bad: str) -> None:
    if image_size is not None and not 4 <= image_size <= 4096:
        raise InvalidInput(
            "image_size",
            expected="4 to 4096 pixels",
            found=str(image_size),
            fix="Pass the side that the net expects, such as 224.",
        )
    if on_bad not in ("error", "skip"):
        raise InvalidInput(
            "on_bad", expected="error or skip", found=repr(on_bad), fix="Choose one."
        )


# ------------------------------------------------------------------ labels and rows
def _read_labels(found: Found, ignore: tuple[object, ...], said: _Said) -> dict[str, Labels]:
    """Labels of all parts, by the classes of train; a part without any label is left out."""
    read: dict[str, Labels] = {}
    class_map: ClassMap | None = None
    for part, rows in found.parts.items():
        if part != "train" and not _any_label(rows.labels, ignore):
            said.warnings.append(f"{part} has no row with a label and was left out")
            continue
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            read[part] = read_labels(
                rows.labels,
                class_map=class_map,
                class_names=found.class_names if class_map is None else None,
                ignore=ignore,
                split=f"labels of {part}",
            )
        said.warnings += [str(w.message) for w in caught]
        class_map = class_map or read[part].class_map
        if left_out := int((~read[part].kept).sum()):
            said.notices.append(f"{part}: {left_out} rows without a label were left out")
    return read


def _any_label(labels: Any, ignore: tuple[object, ...]) -> bool:
    found = set(map(str, np.asarray(labels, dtype=object).ravel().tolist()))
    return bool(found - set(map(str, ignore)))


def _read_rows(
    found: Found,
    labels: Mapping[str, Labels],
    options: tuple[int | None, Literal["error", "skip"], Progress | None],
    said: _Said,
) -> tuple[Mapping[str, NDArray[Any]], Mapping[str, NDArray[np.bool_]]]:
    """Rows with a label as arrays, and which of them are good."""
    image_size, on_bad, progress = options
    kept = {part: read.kept for part, read in labels.items()}
    encoded = {
        part: (rows.x, rows.ids)
        for part, rows in found.parts.items()
        if part in kept and not isinstance(rows.x, np.ndarray)
    }
    if encoded:
        result = scan(encoded, kept, image_size=image_size, on_bad=on_bad, progress=progress)
        said.notices += result.notices
        return result.pixels, result.good
    x = {}
    for part, mask in kept.items():
        rows = found.parts[part]
        array, ids = np.asarray(rows.x), rows.ids
        if not mask.all():
            array, ids = array[mask], tuple(compress(ids, mask.tolist()))
        x[part] = _check_array(found.kind, part, array, ids)
    _check_shapes(x)
    if image_size is not None and found.kind == "images":
        x = {part: _resized(part, p, image_size, progress, said) for part, p in x.items()}
    return x, {part: np.ones(len(p), dtype=bool) for part, p in x.items()}


def _check_array(kind: str, part: str, x: NDArray[Any], ids: tuple[str, ...]) -> NDArray[Any]:
    """Features as a finite float32 matrix; pictures finite and with an axis for the channels."""
    what = "pictures" if kind == "images" else "features"
    bad = first_nonfinite_row(x)
    if kind == "features" and bad is None:
        with np.errstate(over="ignore"):
            x = as_matrix(x, subject=f"{what} of {part}").astype(np.float32, copy=False)
        bad = first_nonfinite_row(x)
    if bad is not None:
        raise InvalidInput(
            f"{what} of {part}",
            expected="finite numbers that float32 can hold",
            found=f"NaN or infinity in {ids[bad]} (row {bad})",
            fix="Remove or repair that row.",
        )
    return x[..., None] if kind == "images" and x.ndim == 3 else x


def _check_shapes(x: Mapping[str, NDArray[Any]]) -> None:
    expected = x["train"].shape[1:]
    for part, rows in x.items():
        if rows.shape[1:] != expected:
            raise InvalidInput(
                f"rows of {part}",
                expected=f"shape {list(expected)} like those of train",
                found=f"{list(rows.shape[1:])}",
                fix="Bring all parts to one shape.",
            )


def _resized(
    part: str, x: NDArray[Any], image_size: int, progress: Progress | None, said: _Said
) -> NDArray[Any]:
    height, width = x.shape[1:3]
    if (height, width) != (image_size, image_size):
        said.notices.append(
            f"{part}: pictures of {width}x{height} pixels were resized to {image_size}x{image_size}"
        )
    return resize_arrays(x, image_size, progress=progress)


# ------------------------------------------------------------------ checks of the whole
def _check_classes(name: str, parts: Mapping[str, Part], class_map: ClassMap, said: _Said) -> None:
    counts = {part: np.bincount(p.y, minlength=len(class_map)) for part, p in parts.items()}
    names = np.asarray(class_map.names, dtype=object)
    if (counts["train"] > 0).sum() < 2:
        raise InvalidInput(
            name,
            expected="two classes or more with rows in train",
            found=f"{int((counts['train'] > 0).sum())} of {len(class_map)} classes",
            fix="Check the labels, and the pictures that were skipped.",
        )
    empty = names[counts["train"] == 0]
    if len(empty):
        said.warnings.append(
            f"train has no rows of the classes {_shown(empty)}; they keep their places among the "
            f"{len(class_map)} classes"
        )
    for part in set(parts) - {"train"}:
        missing = names[(counts[part] == 0) & (counts["train"] > 0)]
        if len(missing):
            said.warnings.append(f"{part} has no rows of the classes {_shown(missing)}")


def _find_duplicates(
    parts: Mapping[str, Part], digests: Mapping[str, list[bytes]], said: _Said
) -> None:
    """Say which rows are there twice: copies in a part that judges make its figures too good."""
    train = dict(zip(digests["train"], parts["train"].y.tolist(), strict=True))
    copies = len(digests["train"]) - len(train)
    if copies:
        said.notices.append(f"train: {copies} rows are copies of others")
    for part in ("val", "test"):
        if part in parts:
            shared = [d in train for d in digests[part]]
            if any(shared):
                first = parts[part].ids[shared.index(True)]
                said.warnings.append(
                    f"{sum(shared)} of {len(shared)} rows of {part} are also in train ({first})"
                )


def _shown(names: Sequence[str] | NDArray[Any]) -> str:
    rest = len(names) - _SHOWN
    return ", ".join(map(str, names[:_SHOWN])) + (f" and {rest} more" if rest > 0 else "")
