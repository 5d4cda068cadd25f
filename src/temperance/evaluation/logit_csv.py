"""Logits in CSV files, read some lines at a time."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from temperance.errors import InvalidInput
from temperance.evaluation.logit_files import LogitsFile, logit_columns

__all__ = ["CsvLogits", "open_logits"]

_NUMBERS = 1 << 20  # numbers read together


@dataclass(frozen=True)
class CsvLogits:
    r"""Logits and labels of a CSV file, as chunks for ``fit_temperature_stream``.

    UTF-8, a header, separated by comma, semicolon or tab; a column per class and one of class ids.

    Attributes:
        path: the file.
        labels: name of the column of class ids.
        columns: names of the logits, in the order of the class ids; if absent, columns named alike
            but for the numbers 0, 1, .. C-1.

    Example:
        >>> import tempfile
        >>> from temperance.evaluation import fit_temperature_stream
        >>> from temperance.evaluation.logit_csv import CsvLogits
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder) / "val.csv"
        ...     _ = path.write_text("z0,z1,labels\n8,0,0\n8,0,0\n8,0,0\n0,8,0\n")
        ...     round(fit_temperature_stream(CsvLogits(path)).temperature, 4)
        7.2819
    """

    path: str | Path
    labels: str = "labels"
    columns: Sequence[str] | None = None

    def __iter__(self) -> Iterator[tuple[NDArray[Any], NDArray[Any]]]:
        path = Path(self.path)
        try:
            with path.open(encoding="utf-8-sig", newline="") as file:
                yield from self._chunks(file, path)
        except (OSError, UnicodeDecodeError, csv.Error) as error:
            raise InvalidInput(
                f"file {path}",
                expected="a CSV file in UTF-8 that can be read",
                found=getattr(error, "strerror", None) or str(error),
                fix="Check the file.",
            ) from error

    def _chunks(self, file: Any, path: Path) -> Iterator[tuple[NDArray[Any], NDArray[Any]]]:
        first = file.readline()
        if not first.strip():
            raise InvalidInput(
                f"file {path}", expected="a header", found="nothing", fix="Check the file."
            )
        mark = max(",;\t", key=first.count)
        header = [name.strip() for name in next(csv.reader([first], delimiter=mark), [])]
        names = logit_columns(self.columns, header, self.labels, path)
        places = [header.index(name) for name in (*names, self.labels)]
        reader, line = csv.reader(file, delimiter=mark), 2
        while rows := list(islice(reader, max(1, _NUMBERS // len(places)))):
            table = _numbers(rows, places, (path, line, header))
            line += len(rows)
            if len(table):
                yield table[:, :-1], table[:, -1]


def _numbers(
    rows: list[list[str]], places: list[int], where: tuple[Path, int, list[str]]
) -> NDArray[np.float64]:
    path, line, header = where
    try:
        if all(len(row) in (0, len(header)) for row in rows):
            return np.array([[float(row[i]) for i in places] for row in rows if row])
    except ValueError:
        pass
    for number, row in enumerate(rows, line):
        if row and len(row) > len(header):
            raise InvalidInput(
                f"file {path}",
                expected=f"{len(header)} cells in every line",
                found=f"{len(row)} in line {number}",
                fix="Repair that line.",
            )
        for i in places if row else ():
            try:
                float(row[i])
            except (ValueError, IndexError):
                found = repr(row[i]) if i < len(row) else "no cell"
                raise InvalidInput(
                    f"file {path}",
                    expected="numbers: logits and class ids",
                    found=f"{found} in line {number}, column {header[i]}",
                    fix="Repair that line; names of classes have to become ids first.",
                ) from None
    raise AssertionError("a row that cannot be read was read")


def open_logits(
    path: str | Path, *, labels: str = "labels", columns: Sequence[str] | None = None
) -> LogitsFile | CsvLogits:
    """Open a file of logits and labels by its ending.

    Args:
        path: ``.csv`` or ``.tsv``; or what ``LogitsFile`` reads.
        labels: name of the label array or column; for ``.npy`` another file.
        columns: names of the logits, in the order of the class ids.

    Returns:
        The file as chunks of logits and labels, to be run through any number of times.

    Raises:
        InvalidInput: for another ending.
    """
    if Path(path).suffix.lower() in (".csv", ".tsv"):
        return CsvLogits(path, labels, columns or None)
    return LogitsFile(path, labels=labels, columns=columns or None)
