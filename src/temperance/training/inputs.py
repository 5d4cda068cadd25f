"""Reading what a trained model is to predict: pictures, arrays and tables without labels."""

from __future__ import annotations

import csv
import os
import warnings
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from temperance.arrays import as_matrix
from temperance.errors import InvalidInput, TemperanceWarning, need
from temperance.training.folder import SUFFIXES, is_junk
from temperance.training.preprocess import Preprocess, decode_image

__all__ = ["Inputs", "read_inputs"]

_CHUNK = 256
_TABLES = (".csv", ".tsv", ".parquet")
_ARRAYS = (".npz", ".npy")


@dataclass(frozen=True, eq=False)
class Inputs:
    """Rows to predict, walked in chunks so that many pictures need little memory.

    Attributes:
        ids: a name for every row: its file, or its file and place.
        chunks: called to walk the rows; gives stored rows ``[B, ...]`` in the order of ``ids``.
    """

    ids: tuple[str, ...]
    chunks: Iterator[NDArray[Any]]


def read_inputs(
    paths: Sequence[str | os.PathLike[str]],
    preprocess: Preprocess,
    *,
    feature_names: Sequence[str] | None = None,
) -> Inputs:
    """Read inputs as the training read its data.

    Args:
        paths: picture files and folders of them; or ``.npz`` (array ``x``) and ``.npy`` arrays; or
            ``.csv`` and ``.parquet`` tables, whose columns are matched by name where the training
            had names. A label column is not looked at.
        preprocess: the record of the training.
        feature_names: names of the feature columns in training, if it had any.

    Returns:
        The rows, in the order of the paths.

    Raises:
        InvalidInput: naming the file, for what is not there, cannot be read, or does not fit.
    """
    skipped: list[Path] = []
    files = [file for path in paths for file in _files(Path(path), preprocess.kind, skipped)]
    if skipped:
        warnings.warn(
            f"{len(skipped)} files that are no pictures were skipped: "
            + ", ".join(map(str, skipped[:5]))
            + (", ..." if len(skipped) > 5 else ""),
            TemperanceWarning,
            stacklevel=2,
        )
    if not files:
        raise InvalidInput(
            "inputs",
            expected="files to predict",
            found="none in " + (", ".join(map(str, paths)) or "nothing"),
            fix="Name pictures, folders of pictures, or arrays and tables like those of training.",
        )
    if preprocess.kind == "images":
        return _pictures(files, preprocess)
    blocks = [_read_rows(f, preprocess, feature_names) for f in files]
    ids = [name for f, b in zip(files, blocks, strict=True) for name in _numbered(f, len(b))]
    return Inputs(tuple(ids), _cut(blocks))


def _numbered(file: Path, count: int) -> list[str]:
    return [f"{file}:{i}" for i in range(count)]


def _pictures(files: Sequence[Path], preprocess: Preprocess) -> Inputs:
    """Picture files, arrays and Parquet files of pictures, in any mixture."""
    ids: list[str] = []
    sources: list[NDArray[Any] | list[Path] | list[bytes]] = []
    for file in files:
        suffix = file.suffix.lower()
        if suffix in _ARRAYS:
            sources.append(_fitted(file, _array(file), preprocess))
        elif suffix == ".parquet":
            sources.append(_parquet_pictures(file))
        else:
            _check_readable(file)
            sources.append([file])
        one = suffix not in (*_ARRAYS, ".parquet")
        ids += [str(file)] if one else _numbered(file, len(sources[-1]))
    return Inputs(tuple(ids), _stored(sources, preprocess))


def _stored(
    sources: Sequence[NDArray[Any] | list[Path] | list[bytes]], preprocess: Preprocess
) -> Iterator[NDArray[Any]]:
    """Stored rows chunk by chunk; single files that follow each other share a chunk."""
    waiting: list[NDArray[Any]] = []
    for source in sources:
        for item in source:
            row = item if isinstance(item, np.ndarray) else decode_image(item, preprocess)
            waiting.append(row)
            if len(waiting) == _CHUNK:
                yield np.stack(waiting)
                waiting = []
    if waiting:
        yield np.stack(waiting)


def _files(path: Path, kind: str, skipped: list[Path]) -> list[Path]:
    """The files that a path stands for; a folder stands for the pictures in and below it."""
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise InvalidInput(
            str(path), expected="a file or a folder", found="nothing", fix="Check the path."
        )
    if kind != "images":
        raise InvalidInput(
            str(path), expected="a file of features", found="a folder", fix="Name its files."
        )
    found: list[Path] = []
    for root, folders, names in os.walk(path):
        folders[:] = sorted(f for f in folders if not is_junk(f))
        for name in sorted(n for n in names if not is_junk(n)):
            known = Path(name).suffix.lower() in (*SUFFIXES, *_ARRAYS, ".parquet")
            (found if known else skipped).append(Path(root) / name)
    return found


def _check_readable(file: Path) -> None:
    if not os.access(file, os.R_OK):
        raise InvalidInput(
            str(file), expected="a file that can be read", found="no permission", fix="Check it."
        )


def _cut(blocks: Sequence[NDArray[Any]]) -> Iterator[NDArray[Any]]:
    for block in blocks:
        for at in range(0, len(block), _CHUNK):
            yield block[at : at + _CHUNK]


# ------------------------------------------------------------------ arrays and tables
def _read_rows(
    file: Path, preprocess: Preprocess, feature_names: Sequence[str] | None
) -> NDArray[Any]:
    suffix = file.suffix.lower()
    if suffix in _ARRAYS:
        return _fitted(file, _array(file), preprocess)
    if suffix not in _TABLES:
        raise InvalidInput(
            str(file),
            expected=f"one of {', '.join((*_ARRAYS, *_TABLES))}",
            found=suffix or "no ending",
            fix="Convert it.",
        )
    names, columns = _parquet(file) if suffix == ".parquet" else _csv(file)
    return _by_name(file, names, columns, feature_names or [], preprocess.shape[0])


def _array(file: Path) -> NDArray[Any]:
    try:
        with file.open("rb") as handle:
            loaded = np.load(handle, allow_pickle=False)
            return loaded if isinstance(loaded, np.ndarray) else loaded["x"]
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise InvalidInput(
            str(file),
            expected="an array, or an .npz with the array x, of plain numbers",
            found=str(error),
            fix="Write it with numpy.savez(FILE, x=...).",
        ) from error


def _fitted(file: Path, x: NDArray[Any], preprocess: Preprocess) -> NDArray[Any]:
    """Bring pictures to the axes of the training, and check the shape of every row."""
    wanted = preprocess.stored_shape
    if preprocess.kind == "images" and x.ndim in (3, 4):
        if x.ndim == 3:
            x = x[..., None]
        elif x.shape[1:] != wanted and (*x.shape[2:], x.shape[1]) == wanted:
            x = np.moveaxis(x, 1, -1)
    if x.ndim != len(wanted) + 1 or x.shape[1:] != wanted or not len(x):
        raise InvalidInput(
            str(file),
            expected=f"rows of shape {list(wanted)} as in training",
            found=f"shape {list(x.shape)}",
            fix="Bring them to that shape.",
        )
    x = as_matrix(x.reshape(len(x), -1), subject=str(file)).reshape(x.shape)
    if preprocess.kind == "images":
        _check_scale(file, x, preprocess)
    return x


def _check_scale(file: Path, x: NDArray[Any], preprocess: Preprocess) -> None:
    """Pictures on another scale than those of the training would be predicted wrongly."""
    low, high, white = float(x.min()), float(x.max()), preprocess.white
    whole = preprocess.dtype != "uint8" or bool((x == np.floor(x)).all())
    if white is None or (low >= 0 and high <= white and whole):
        return
    raise InvalidInput(
        str(file),
        expected=f"pictures from 0 to {white:g}"
        + (", whole numbers" if preprocess.dtype == "uint8" else "")
        + ", as in training",
        found=f"values from {low:.4g} to {high:.4g}" + ("" if whole else ", with fractions"),
        fix="Bring them to the scale of the training pictures.",
    )


def _csv(file: Path) -> tuple[list[str], list[list[str]]]:
    try:
        with file.open(encoding="utf-8-sig", newline="") as handle:
            first = handle.readline()
            handle.seek(0)
            mark = max(",;\t", key=first.count)
            header, *rows = [r for r in csv.reader(handle, delimiter=mark) if r]
    except (OSError, ValueError) as error:
        raise InvalidInput(
            str(file), expected="a UTF-8 table with a header", found=str(error), fix="Check it."
        ) from error
    for place, row in enumerate(rows, 2):
        if len(row) != len(header):
            raise InvalidInput(
                str(file),
                expected=f"{len(header)} cells in every line",
                found=f"{len(row)} in line {place}",
                fix="Repair that line.",
            )
    return header, [list(column) for column in zip(*rows, strict=True)] if rows else []


def _parquet(file: Path) -> tuple[list[str], list[Any]]:
    need("pyarrow", "parquet")
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.read_table(file)
    except (OSError, pa.ArrowInvalid) as error:
        raise InvalidInput(
            str(file), expected="a Parquet file", found=str(error), fix="Copy it again."
        ) from error
    return table.column_names, [column.to_numpy() for column in table.columns]


def _parquet_pictures(file: Path) -> list[bytes]:
    """Bytes of the pictures of a Parquet file, as Hugging Face writes them."""
    names, columns = _parquet(file)
    for values in columns:
        pictures = [v.get("bytes") if isinstance(v, dict) else v for v in values.tolist()]
        encoded = [p for p in pictures if isinstance(p, bytes)]
        if encoded and len(encoded) == len(pictures):
            return encoded
    raise InvalidInput(
        str(file),
        expected="a column with the bytes of pictures",
        found=f"the columns {', '.join(names)}",
        fix="Write one as Hugging Face does: a struct of bytes and path.",
    )


def _by_name(
    file: Path,
    names: Sequence[str],
    columns: Sequence[Any],
    wanted: Sequence[str],
    width: int,
) -> NDArray[Any]:
    """Put the columns in the order of the training; without names, all but a label must fit."""
    chosen = list(wanted) or [n for n in names if n != "label"]
    missing = [n for n in chosen if n not in names]
    if missing or not len(columns) or not len(columns[0]):
        raise _other_columns(file, width, f"no column {missing[0]!r}" if missing else "no rows")
    picked = [columns[names.index(n)] for n in chosen]
    try:
        if len(picked) == 1 and width > 1:  # one column of lists
            x = np.stack([np.asarray(row, dtype=np.float32) for row in picked[0]])
        else:
            x = np.stack([np.asarray(column, dtype=np.float32) for column in picked], axis=1)
    except (ValueError, TypeError) as error:
        raise InvalidInput(
            str(file), expected="numbers in the feature columns", found=str(error), fix="Repair it."
        ) from error
    if x.ndim != 2 or x.shape[1] != width:
        raise _other_columns(file, width, f"{len(chosen)} columns")
    return as_matrix(x, subject=str(file))


def _other_columns(file: Path, width: int, found: str) -> InvalidInput:
    return InvalidInput(
        str(file),
        expected=f"the {width} feature columns of the training, and at least one row",
        found=found,
        fix="Use a table with the columns of the training.",
    )
