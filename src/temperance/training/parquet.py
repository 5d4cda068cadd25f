"""Read Parquet files as Hugging Face writes them: encoded pictures or features, and labels.

A column of pictures is a struct ``{bytes, path}`` (or plain bytes); features are numeric columns,
or one column of lists of equal length. The names of the classes come from the files' own metadata.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from temperance.errors import InvalidInput, need
from temperance.training.dataset import Found, FoundPart, Picture

__all__ = ["find_parquet"]

_SHOWN = 6
_ROWS = 256  # pictures that are read together


@dataclass(frozen=True, eq=False)
class _EncodedPictures:
    """Pictures in Parquet files, read a few at a time whenever they are walked."""

    files: tuple[Path, ...]
    column: str
    length: int

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[Picture]:
        for path in self.files:
            with _opened(path) as file:
                for batch in file.iter_batches(_ROWS, columns=[self.column], use_threads=False):
                    for value in batch.column(0).to_pylist():
                        yield _picture(path, value)


@dataclass(frozen=True)
class _Columns:
    """Which columns of a file hold what."""

    pictures: str | None
    features: tuple[str, ...]
    unused: tuple[str, ...]


def find_parquet(files: dict[str, list[Path]], *, label: str) -> Found:
    """Read Parquet files.

    Args:
        files: the files of every part, in order.
        label: name of the column with the labels: texts, whole numbers or booleans.

    Returns:
        Pictures (not decoded yet) or features, and labels, of every part.

    Raises:
        MissingPackage: if pyarrow is not installed.
        InvalidInput: naming the file, if it cannot be read, lacks the label column, has other
            columns than the first file, no column that could be pictures or features, or several
            that could be pictures.
    """
    need("pyarrow", "parquet")
    columns: _Columns | None = None
    names: dict[Path, tuple[str, ...] | None] = {}
    for path in (p for paths in files.values() for p in paths):
        with _opened(path) as file:
            here = _columns(path, file.schema_arrow, label)
            names[path] = _class_names(file.schema_arrow, label)
        columns = columns or here
        if (here.pictures, here.features) != (columns.pictures, columns.features):
            raise _bad(path, "the columns of the other files", _told(here))
    assert columns is not None
    first = next(iter(names.values()))
    nameless = [p.name for p, n in names.items() if first and not n]
    used = {path: n or first for path, n in names.items()}
    return Found(
        "images" if columns.pictures else "features",
        {part: _find_part(paths, columns, label, used) for part, paths in files.items()},
        class_names=first,
        feature_names=columns.features or None,
        white=255.0 if columns.pictures else None,
        notices=(_told(columns),),
        warnings=(f"{', '.join(nameless)}: no names of classes; the ids were read as in train",)
        if nameless
        else (),
    )


def _told(columns: _Columns) -> str:
    what = f"pictures from the column {columns.pictures}"
    if columns.features:
        shown = ", ".join(columns.features[:_SHOWN])
        more = ", ..." if len(columns.features) > _SHOWN else ""
        what = f"features from {len(columns.features)} columns ({shown}{more})"
    return what + (f"; not used: {', '.join(columns.unused)}" if columns.unused else "")


def _opened(path: Path) -> Any:
    """Open a Parquet file; a context manager."""
    parquet, arrow = need("pyarrow.parquet", "parquet"), need("pyarrow", "parquet")
    try:
        return parquet.ParquetFile(path)
    except (arrow.ArrowException, OSError) as error:
        raise _bad(path, "a Parquet file that can be read", str(error).strip()) from error


def _columns(path: Path, schema: Any, label: str) -> _Columns:
    if label not in schema.names:
        raise _bad(
            path,
            f"a column {label} with the labels",
            f"the columns {', '.join(schema.names)}",
            'Name the column of the labels with label="..." (--label).',
        )
    names = [n for n in schema.names if n != label and not n.startswith("__index_level_")]
    pictures = [n for n in names if _holds_pictures(schema.field(n).type)]
    if len(pictures) > 1:
        raise _bad(path, "one column of pictures", ", ".join(pictures), "Remove the others.")
    lists = [n for n in names if _holds_lists(schema.field(n).type)]
    numbers = [n for n in names if _is_number(schema.field(n).type)]
    if not pictures and (len(lists) > 1 or not (lists or numbers)):
        raise _bad(
            path,
            "a column of pictures, one column of lists of numbers, or columns of numbers",
            ", ".join(f"{n} ({schema.field(n).type})" for n in names) or "only labels",
            "Keep the one that is to be used.",
        )
    features = tuple([] if pictures else lists or numbers)
    used = {label, *pictures, *features}
    unused = tuple(n for n in schema.names if n not in used)
    return _Columns(pictures[0] if pictures else None, features, unused)


def _holds_pictures(kind: Any) -> bool:
    types = need("pyarrow.types", "parquet")
    if types.is_struct(kind):
        return any(kind.field(i).name == "bytes" for i in range(kind.num_fields))
    return bool(types.is_binary(kind) or types.is_large_binary(kind))


def _holds_lists(kind: Any) -> bool:
    types = need("pyarrow.types", "parquet")
    is_list = types.is_fixed_size_list(kind) or types.is_list(kind) or types.is_large_list(kind)
    return bool(is_list) and _is_number(kind.value_type)


def _is_number(kind: Any) -> bool:
    types = need("pyarrow.types", "parquet")
    return bool(types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind))


def _class_names(schema: Any, label: str) -> tuple[str, ...] | None:
    """Names of the classes by the metadata that ``datasets`` writes; None where there are none."""
    text = (schema.metadata or {}).get(b"huggingface")
    try:
        feature = json.loads(text)["info"]["features"][label] if text else {}
        names = feature.get("names") if feature.get("_type") == "ClassLabel" else None
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
    return tuple(map(str, names)) if names else None


def _find_part(
    paths: Sequence[Path],
    columns: _Columns,
    label: str,
    names: Mapping[Path, tuple[str, ...] | None],
) -> FoundPart:
    arrow = need("pyarrow", "parquet")
    wanted = [label, *columns.features]
    tables = []
    for path in paths:
        try:
            with _opened(path) as file:
                tables.append(file.read(columns=wanted, use_threads=False))
        except (arrow.ArrowException, OSError) as error:
            raise _bad(path, "a Parquet file that can be read", str(error).strip()) from error
    ids = tuple(
        f"{path.name}:{row}"
        for path, table in zip(paths, tables, strict=True)
        for row in range(table.num_rows)
    )
    labels = [
        value
        for path, table in zip(paths, tables, strict=True)
        for value in _named(table.column(label).to_pylist(), names[path])
    ]
    if columns.pictures:
        return FoundPart(_EncodedPictures(tuple(paths), columns.pictures, len(ids)), labels, ids)
    blocks = [_matrix(p, t, columns.features) for p, t in zip(paths, tables, strict=True)]
    if len({block.shape[1] for block in blocks}) > 1:
        raise _bad(paths[-1], "lists of the same length as in the other files", "another length")
    return FoundPart(np.concatenate(blocks), labels, ids)


def _named(labels: list[Any], names: tuple[str, ...] | None) -> list[Any]:
    """Put names for ids: every file by its own names, so that another order does no harm."""
    if names is None:
        return labels
    known = dict(enumerate(names))
    return [
        known.get(v, str(v)) if isinstance(v, int) and not isinstance(v, bool) else v
        for v in labels
    ]


def _matrix(path: Path, table: Any, names: Sequence[str]) -> NDArray[np.float32]:
    """Feature columns of one file as ``[n, M]``."""
    for name in names:
        if table.column(name).null_count:
            row = table.column(name).to_pylist().index(None)
            raise _bad(path, f"a value in row {row}, column {name}", "none", "Fill or remove it.")
    first = table.column(names[0]).combine_chunks()
    if not hasattr(first.type, "value_type"):
        columns = [np.asarray(table.column(n).to_numpy()).astype(np.float32) for n in names]
        return np.stack(columns, axis=1)
    chunks = first.chunks if hasattr(first, "chunks") else [first]
    lengths = {n for c in chunks for n in c.value_lengths().to_pylist()} if chunks else set()
    if len(lengths) > 1:
        raise _bad(path, f"lists of one length in {names[0]}", f"{min(lengths)} to {max(lengths)}")
    flat = np.concatenate([np.asarray(c.flatten()) for c in chunks] or [np.empty(0)])
    return flat.astype(np.float32).reshape(table.num_rows, -1 if table.num_rows else 0)


def _picture(path: Path, value: Any) -> Picture:
    """Bytes of a picture, or the file that stands for them; no bytes at all if there is neither."""
    if isinstance(value, dict):
        if value.get("bytes") is None and value.get("path"):
            return path.parent / value["path"]
        value = value.get("bytes")
    return value or b""


def _bad(path: Path, expected: str, found: str, fix: str = "Check the file.") -> InvalidInput:
    return InvalidInput(str(path), expected=expected, found=found, fix=fix)
