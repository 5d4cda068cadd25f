"""Read CSV files of features: one row per sample, one column of labels, texts kept as texts."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from temperance.errors import InvalidInput
from temperance.training.dataset import Found, FoundPart

__all__ = ["find_csv"]

_SHOWN = 6


def find_csv(files: dict[str, list[Path]], *, label: str) -> Found:
    """Read CSV files: UTF-8, a header, separated by comma, semicolon or tab.

    Args:
        files: the files of every part.
        label: name of the column with the labels; all others are features. Labels are texts:
            ``NA`` and ``007`` are names. Only if all of them are whole numbers as Python writes
            them are the classes in numeric order.

    Returns:
        Features and labels of every part.

    Raises:
        InvalidInput: naming file, line and column, for a missing column, a feature that is no
            number, a missing label, or a row of another length.
    """
    columns: list[str] | None = None
    parts, texts = {}, {}
    for part, paths in files.items():
        rows, labels, ids = list[NDArray[np.float32]](), list[str](), list[str]()
        for path in paths:
            columns = _read(path, label, columns, (rows, labels, ids))
        parts[part] = (np.stack(rows) if rows else np.empty((0, 0), np.float32), tuple(ids))
        texts[part] = labels
    whole = all(_is_whole(text) for labels in texts.values() for text in labels)
    found = {}
    for part, (x, ids_) in parts.items():
        y: Any = np.array([int(t) for t in texts[part]]) if whole else texts[part]
        found[part] = FoundPart(x, y, ids_)
    shown = ", ".join((columns or [])[:_SHOWN]) + (", ..." if len(columns or []) > _SHOWN else "")
    return Found(
        "features",
        found,
        feature_names=tuple(columns or ()),
        white=None,
        notices=(f"{len(columns or [])} features: {shown}",),
    )


Store = tuple[list[NDArray[np.float32]], list[str], list[str]]


def _read(path: Path, label: str, expected: list[str] | None, store: Store) -> list[str]:
    """Add the rows of one file to ``store``; give the names of the feature columns."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            first = file.readline()
            file.seek(0)
            lines = csv.reader(file, delimiter=_delimiter(path, first, label), strict=True)
            header = next(lines)
            place = _check_header(path, header, label, expected)
            for line in lines:
                if line:  # an empty line at the end of the file
                    _add(path, header, place, (line, lines.line_num), store)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise _bad(path, "a CSV file in UTF-8 that can be read", str(error)) from error
    return [name for i, name in enumerate(header) if i != place]


def _delimiter(path: Path, first: str, label: str) -> str:
    for delimiter in ",;\t":
        if label in next(csv.reader([first], delimiter=delimiter), []):
            return delimiter
    raise _bad(path, f"a column {label} in the first line", first.strip()[:200] or "nothing")


def _check_header(path: Path, header: Sequence[str], label: str, expected: list[str] | None) -> int:
    place = header.index(label)
    features = [name for i, name in enumerate(header) if i != place]
    if len(set(header)) < len(header) or not features:
        raise _bad(path, "feature columns, each name once", ", ".join(header[:20]))
    if expected is not None and features != expected:
        lacking = sorted(set(expected) ^ set(features)) or ["another order"]
        raise _bad(
            path, "the columns of the other files", f"a difference: {', '.join(lacking[:8])}"
        )
    return place


def _add(
    path: Path, header: Sequence[str], place: int, line: tuple[list[str], int], store: Store
) -> None:
    values, number = line
    if len(values) != len(header):
        raise _bad(path, f"{len(header)} values in line {number}", str(len(values)))
    text = values.pop(place)
    if not text:
        raise _bad(path, f"a label in line {number}", "nothing")
    try:
        row = np.fromiter(map(float, values), np.float32, len(values))
    except ValueError:
        names = [name for i, name in enumerate(header) if i != place]
        column = next(i for i, value in enumerate(values) if not _is_number(value))
        raise _bad(
            path,
            f"a number in line {number}, column {names[column]}",
            repr(values[column]),
            "Encode texts as numbers, fill what is missing, or remove the column.",
        ) from None
    store[0].append(row)
    store[1].append(text)
    store[2].append(f"{path.name}:{number}")


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _is_whole(text: str) -> bool:
    return text.isascii() and text.removeprefix("-").isdecimal() and str(int(text)) == text


def _bad(path: Path, expected: str, found: str, fix: str = "Check the file.") -> InvalidInput:
    return InvalidInput(str(path), expected=expected, found=found, fix=fix)
