"""Logits in files larger than memory: ``.npy``, ``.npz`` and Parquet, read some rows at a time."""

from __future__ import annotations

import re
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from temperance.errors import InvalidInput, need
from temperance.evaluation.predictions import read_array

__all__ = ["DAMAGED", "LogitsFile", "logit_columns"]

_ROWS_OF = 1 << 20  # numbers read together
DAMAGED = (OSError, ValueError, EOFError, KeyError, zipfile.BadZipFile, zlib.error)


@dataclass(frozen=True, eq=False)
class LogitsFile:
    """Logits and labels of a file, as chunks for ``fit_temperature_stream``.

    The file is read from its beginning on every pass; only the labels of an array are held in
    memory.

    Attributes:
        path: ``.npy`` (logits ``[n, C]``); ``.npz``, compressed or not (an array of logits and one
            of labels); ``.parquet`` (a column per class and one of class ids, or one column of
            lists).
        labels: where the labels are: an array or another ``.npy`` file for ``.npy``; else the name
            of an array or column.
        columns: names of the logits, in the order of the class ids: the array in ``.npz``
            (``"logits"`` if absent), the columns of Parquet (if absent: ``logits``, or columns
            named alike but for the numbers 0, 1, .. C-1).

    Example:
        >>> import numpy as np, tempfile
        >>> from pathlib import Path
        >>> from temperance.evaluation import LogitsFile, fit_temperature_stream
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder) / "val.npz"
        ...     np.savez(path, logits=[[8.0, 0.0]] * 3 + [[0.0, 8.0]], labels=[0, 0, 0, 0])
        ...     round(fit_temperature_stream(LogitsFile(path)).temperature, 4)
        7.2819
    """

    path: str | Path
    labels: ArrayLike | str | Path = "labels"
    columns: Sequence[str] | str | None = None

    def __post_init__(self) -> None:
        path = Path(self.path)
        object.__setattr__(self, "path", path)
        if path.suffix.lower() not in _READERS:
            raise InvalidInput(
                f"file {path}",
                expected=f"one of {', '.join(_READERS)}",
                found="a folder" if path.is_dir() else path.suffix or "no ending",
                fix="Name the file of logits in it."
                if path.is_dir()
                else "Save the logits with numpy.save or numpy.savez, or as Parquet.",
            )
        files = [path]
        if path.suffix.lower() == ".npy" and isinstance(self.labels, (str, Path)):
            files.append(Path(self.labels))
        for file in files:
            if not file.is_file():
                raise InvalidInput(
                    f"file {file}",
                    expected="a file that is there",
                    found="a folder" if file.is_dir() else "none",
                    fix="Check the path; a .npy file of logits needs labels=, an array or another "
                    ".npy file.",
                )

    def __iter__(self) -> Iterator[tuple[NDArray[Any], NDArray[Any]]]:
        path = Path(self.path)
        try:
            yield from _READERS[path.suffix.lower()](self, path)
        except DAMAGED as error:
            if isinstance(error, InvalidInput):
                raise
            raise InvalidInput(
                f"file {path}",
                expected="a complete file of plain numbers",
                found=str(error) or type(error).__name__,
                fix="Write it again.",
            ) from error


# ------------------------------------------------------------------ NumPy
def _npy(source: LogitsFile, path: Path) -> Iterator[tuple[NDArray[Any], NDArray[Any]]]:
    labels = source.labels
    if isinstance(labels, (str, Path)):
        with open(labels, "rb") as file:
            labels = _whole(file, Path(labels))
    ids = read_array(labels, "labels")
    with open(path, "rb") as file:
        yield from _with_labels(_Array(file, f"file {path}"), ids)


def _npz(source: LogitsFile, path: Path) -> Iterator[tuple[NDArray[Any], NDArray[Any]]]:
    array = source.columns or "logits"
    if not isinstance(array, str) and len(array) == 1:
        array = array[0]
    names = (array, source.labels)
    with zipfile.ZipFile(path) as archive:
        inside = [name.removesuffix(".npy") for name in archive.namelist()]
        for name in names:
            if not isinstance(name, str) or name not in inside:
                raise InvalidInput(
                    f"file {path}",
                    expected=f"the array {name!r}" if isinstance(name, str) else "names of arrays",
                    found=f"the arrays {', '.join(inside) or '(none)'}",
                    fix="Name the arrays with columns= and labels=.",
                )
        with archive.open(f"{names[1]}.npy") as file:
            ids = _whole(file, path)
        with archive.open(f"{names[0]}.npy") as file:
            yield from _with_labels(_Array(file, f"file {path}, array {names[0]!r}"), ids)


def _whole(file: IO[bytes], path: Path) -> NDArray[Any]:
    array = np.lib.format.read_array(file, allow_pickle=False)
    return array[:, 0] if array.ndim == 2 and array.shape[1] == 1 else read_array(array, str(path))


class _Array:
    """An array in a file, of which some rows are read at a time."""

    def __init__(self, file: IO[bytes], subject: str) -> None:
        version = np.lib.format.read_magic(file)
        read = {1: np.lib.format.read_array_header_1_0, 2: np.lib.format.read_array_header_2_0}
        if version[0] not in read:
            raise ValueError(f"version {version} of the .npy format")
        self.shape, fortran, self.dtype = read[version[0]](file)
        self.file, self.subject = file, subject
        one_column = len(self.shape) == 2 and 1 in self.shape
        if (fortran and not one_column) or len(self.shape) not in (1, 2) or 0 in self.shape:
            raise InvalidInput(
                subject,
                expected="rows of logits one after the other, shape [n, C] or [n]",
                found=f"shape {list(self.shape)}" + (", column by column" if fortran else ""),
                fix="Save numpy.ascontiguousarray(logits), flattened if dense.",
            )
        if self.dtype.kind not in "fiu":
            raise InvalidInput(
                subject, expected="numbers", found=f"type {self.dtype}", fix="Save plain numbers."
            )

    def rows(self) -> Iterator[NDArray[Any]]:
        """The rows, some at a time."""
        width = int(np.prod(self.shape[1:]))
        step = max(1, _ROWS_OF // width)
        for start in range(0, self.shape[0], step):
            m = min(step, self.shape[0] - start)
            data = self.file.read(m * width * self.dtype.itemsize)
            if len(data) < m * width * self.dtype.itemsize:
                raise ValueError(f"the file ends within row {start} to {start + m}")
            yield np.frombuffer(data, self.dtype).reshape(m, *self.shape[1:])


def _with_labels(array: _Array, ids: NDArray[Any]) -> Iterator[tuple[NDArray[Any], NDArray[Any]]]:
    if ids.ndim != 1 or len(ids) != array.shape[0]:
        raise InvalidInput(
            f"{array.subject} and labels",
            expected=f"{array.shape[0]} labels, one per row",
            found=f"labels of shape {list(ids.shape)}",
            fix="Pass one class id per row.",
        )
    start = 0
    for z in array.rows():
        yield z, ids[start : start + len(z)]
        start += len(z)


# ------------------------------------------------------------------ Parquet
def _parquet(source: LogitsFile, path: Path) -> Iterator[tuple[NDArray[Any], NDArray[Any]]]:
    parquet, arrow = need("pyarrow.parquet", "parquet"), need("pyarrow", "parquet")
    with ExitStack() as stack:
        stack.enter_context(_arrow_errors(arrow, path))
        file = stack.enter_context(parquet.ParquetFile(path))
        names = list(file.schema_arrow.names)
        label = source.labels if isinstance(source.labels, str) else ""
        columns = logit_columns(source.columns, names, label, path)
        step = max(1, _ROWS_OF // max(1, len(columns)))
        for batch in file.iter_batches(batch_size=step, columns=[*columns, label]):
            yield _matrix(batch, columns, path), _column(batch, label, path)


@contextmanager
def _arrow_errors(arrow: Any, path: Path) -> Iterator[None]:
    try:
        yield
    except arrow.ArrowException as error:
        raise InvalidInput(
            f"file {path}",
            expected="a Parquet file of plain numbers",
            found=str(error).splitlines()[0],
            fix="Write it again.",
        ) from error


def logit_columns(
    wanted: Sequence[str] | str | None, names: list[str], label: str, path: Path
) -> list[str]:
    """Names of the columns with the logits: those given, or the only ones that they can be."""
    columns = [wanted] if isinstance(wanted, str) else list(wanted or _numbered(names, label))
    _refuse_repeats(columns, names, label, path)
    missing = [name for name in (*columns, label) if name not in names]
    if columns and not missing:
        return columns
    shown = ", ".join(names[:8]) + (", .." if len(names) > 8 else "")
    raise InvalidInput(
        f"file {path}",
        expected=f"the column {missing[0]!r}" if missing else "logits in columns numbered 0 to C-1",
        found=f"the columns {shown}",
        fix="Name them with columns=, in the order of the class ids, and labels=.",
    )


def _refuse_repeats(columns: list[str], names: list[str], label: str, path: Path) -> None:
    """A column that stands for two classes, or for a class and the label, is a mistake."""
    twice = [n for n in columns if columns.count(n) > 1] or [
        n for n in (*columns, label) if names.count(n) > 1
    ]
    if twice or label in columns:
        raise InvalidInput(
            f"file {path}",
            expected="a column of its own for every class, and another for the labels",
            found=f"{(twice or [label])[0]!r} more than once",
            fix="Name every column once.",
        )


def _numbered(names: list[str], label: str) -> list[str]:
    """``logits``, or the columns that differ in the numbers 0 to C-1 only, in their order."""
    if "logits" in names:
        return ["logits"]
    groups: dict[str, dict[int, str]] = {}
    for name in names:
        match = re.fullmatch(r"(.*?)(\d+)", name)
        if match and name != label and str(int(match[2])) == match[2]:
            groups.setdefault(match[1], {})[int(match[2])] = name
    whole = [g for g in groups.values() if len(g) > 1 and set(g) == set(range(len(g)))]
    return [whole[0][i] for i in range(len(whole[0]))] if len(groups) == len(whole) == 1 else []


def _matrix(batch: Any, columns: list[str], path: Path) -> NDArray[Any]:
    arrays = [_column(batch, name, path) for name in columns]
    if len(arrays) == 1:
        return arrays[0]
    return np.stack(arrays).T  # class by class, as the file has it; the fit takes it as it is


def _column(batch: Any, name: str, path: Path) -> NDArray[Any]:
    column = batch.column(name)
    if column.null_count:
        raise InvalidInput(
            f"file {path}",
            expected="no missing values",
            found=f"{column.null_count} in some rows of column {name!r}",
            fix="Leave those rows out.",
        )
    if hasattr(column, "flatten") and "list" in str(column.type):
        return _numbers_of(column.flatten(), name, path).reshape(len(column), _width(column, path))
    return _numbers_of(column, name, path)


def _width(column: Any, path: Path) -> int:
    """Length of the lists of a column, which must be one."""
    ends = [0, *np.cumsum([len(row) for row in column.to_pylist()]).tolist()]
    lengths = np.diff(ends)
    if len(set(lengths.tolist())) > 1:
        row = int(np.argmax(lengths != lengths[0]))
        raise InvalidInput(
            f"file {path}",
            expected=f"lists of {lengths[0]} logits",
            found=f"{lengths[row]} in row {row} of a group of rows",
            fix="Write one logit per class in every row.",
        )
    return int(lengths[0])


def _numbers_of(column: Any, name: str, path: Path) -> NDArray[Any]:
    values = column.to_numpy(zero_copy_only=False)
    if values.dtype.kind not in "fiub":
        raise InvalidInput(
            f"file {path}",
            expected="numbers: logits and class ids",
            found=f"type {column.type} in column {name!r}",
            fix="Names of classes have to become ids first.",
        )
    return np.asarray(values)


_READERS = {".npy": _npy, ".npz": _npz, ".parquet": _parquet}
