"""The lines of a ledger: how a row becomes a line, and what a file of lines holds.

A line is one JSON object that ends with a check sum of itself, so that a damaged figure is seen,
and begins with version, key and outcome, so that a resume need not parse what it does not use. A
line without a check sum, from another program, is taken as it is.

What a crash left of a line that was never finished is *torn*: readers pass over it with a notice.
Anything else that is no row is *damaged*: it is reported by its line number, and its trial counts
as missing.
"""

from __future__ import annotations

import json
import math
import re
import warnings
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from temperance.errors import InvalidInput, TemperanceWarning

__all__ = [
    "FINISHED",
    "OUTCOMES",
    "ROW_FIELDS",
    "SCHEMA",
    "TASK_FIELDS",
    "Line",
    "Scan",
    "decode",
    "encode",
    "lines_of",
    "warn_of_damage",
    "warn_of_torn",
]

SCHEMA = 1
OUTCOMES = ("done", "diverged", "failed")
FINISHED = ("done", "diverged")
ROW_FIELDS = {"key": str, "outcome": str, "trial": dict, "metrics": dict}
TASK_FIELDS = {"key": str, "content": dict, "task": dict}
_CHECK = b',"check":"'
_TAIL = len(_CHECK) + 8 + 2  # eight digits, a quote, a brace
_HEAD = re.compile(rb'\{"schema":%d,"key":"([^"\\]+)","outcome":"(done|diverged|failed)",' % SCHEMA)


# ------------------------------------------------------------------ one line
def encode(row: Mapping[str, Any], subject: str) -> bytes:
    """Make the line of a row: compact JSON, its check sum last.

    Args:
        row: texts, numbers, lists and mappings.
        subject: what to call the row in an error.

    Returns:
        The line with its end.

    Raises:
        InvalidInput: for a number that is not finite, named by its place, or what is not JSON.
    """
    head = {name: row[name] for name in ("schema", "key", "outcome") if name in row}
    try:
        text = json.dumps({**head, **row}, separators=(",", ":"), allow_nan=False)
    except (ValueError, TypeError) as error:
        place, found = next(_unfit(row), ("", str(error)))
        raise InvalidInput(
            f"{subject}{place}",
            expected="finite numbers, texts, and lists or mappings of them",
            found=found,
            fix="What gave no finite number is recorded as diverged, without metrics.",
        ) from error
    body = text[:-1].encode()
    return body + _CHECK + b'%08x"}\n' % zlib.crc32(body)


def _unfit(value: Any, place: str = "") -> Iterator[tuple[str, str]]:
    """Walk to what JSON cannot hold."""
    if isinstance(value, Mapping):
        for name, part in value.items():
            yield from _unfit(part, f"{place}.{name}")
    elif isinstance(value, list | tuple):
        for at, part in enumerate(value):
            yield from _unfit(part, f"{place}[{at}]")
    elif isinstance(value, float) and not math.isfinite(value):
        yield place, str(value)
    elif not (value is None or isinstance(value, str | int | float)):
        yield place, f"a {type(value).__name__}"


def decode(
    line: bytes, where: str, *, fields: Mapping[str, type] = ROW_FIELDS
) -> dict[str, Any] | None:
    """Read a line.

    Args:
        line: without its end.
        where: file and line, for an error.
        fields: what it must have.

    Returns:
        The row without its check sum; None if the line is damaged.

    Raises:
        InvalidInput: for a row of another schema version.
    """
    row = _parsed(line)
    if row is None or "schema" not in row:
        return None
    if row["schema"] != SCHEMA:
        raise InvalidInput(
            where,
            expected=f"a row of schema version {SCHEMA}",
            found=f"version {row['schema']!r}",
            fix="Read it with the release that wrote it, or choose another output folder.",
        )
    row.pop("check", None)
    return row if all(isinstance(row.get(name), kind) for name, kind in fields.items()) else None


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON")


_DECODER = json.JSONDecoder(parse_constant=_refuse)  # Python alone would read NaN


def _parsed(line: bytes) -> dict[str, Any] | None:
    """Parse an object and compare it with its check sum, if it has one."""
    try:
        row = _DECODER.decode(line.decode())
    except (ValueError, RecursionError):
        return None
    if not isinstance(row, dict) or ("check" in row and not _sound(line)):
        return None
    return row


def _sound(line: bytes) -> bool:
    body, tail = line[:-_TAIL], line[-_TAIL:]
    return tail == _CHECK + b'%08x"}' % zlib.crc32(body)


def _key_and_outcome(line: bytes, where: str) -> tuple[str, str] | None:
    """Read only what a resume asks for; an unharmed line of our own making is not parsed."""
    head = _HEAD.match(line)
    if head and _sound(line):
        return head[1].decode(), head[2].decode()
    row = decode(line, where)
    return None if row is None else (row["key"], row["outcome"])


# ------------------------------------------------------------------ a file of lines
class Line(NamedTuple):
    """A line of a file.

    Attributes:
        number: counted from 1.
        start: position of its first byte.
        end: position behind its end.
        body: its bytes without the end.
        torn: whether it is the unfinished last line.
    """

    number: int
    start: int
    end: int
    body: bytes
    torn: bool


def lines_of(path: Path, start: int = 0, *, number: int = 1) -> Iterator[Line]:
    """Give the lines of a file that are not empty.

    Args:
        path: the file; one that is not there has no lines.
        start: where to begin, the start of a line.
        number: the number of that line.

    Yields:
        Line by line; a last one without an end is torn unless it is a whole object.
    """
    try:
        file = path.open("rb")
    except FileNotFoundError:
        return
    with file:
        file.seek(start)
        for line in file:
            body = line.rstrip(b"\r\n")
            torn = not line.endswith(b"\n") and _parsed(body) is None
            if body:
                yield Line(number, start, start + len(line), body, torn)
            start, number = start + len(line), number + 1


def warn_of_torn(line: Line, path: Path) -> None:
    """Say that a last line was never finished."""
    warnings.warn(
        f"{path} line {line.number} is unfinished ({line.end - line.start} bytes): its writer was "
        "stopped on the way. The rows before are whole; its trials count as missing.",
        TemperanceWarning,
        stacklevel=3,
    )


def warn_of_damage(path: Path, numbers: Sequence[int]) -> None:
    """Say which lines are no rows, if any."""
    if not numbers:
        return
    shown = ", ".join(map(str, numbers[:10])) + (", ..." if len(numbers) > 10 else "")
    warnings.warn(
        f"{path}: {len(numbers)} damaged line(s), no row or not what its check sum says: "
        f"{shown}. Their trials count as missing; all other rows are used.",
        TemperanceWarning,
        stacklevel=3,
    )


@dataclass(eq=False)
class Scan:
    """The outcome of every key in a file of rows, kept up to date by reading only what is new."""

    path: Path
    outcomes: dict[str, str] = field(default_factory=dict)
    end: int = 0
    number: int = 1

    def update(self) -> Line | None:
        """Read on from where the last reading stopped; to be called under the writing lock.

        Returns:
            The torn last line, if there is one.

        Raises:
            InvalidInput: for rows of another schema version.
        """
        damaged = []
        torn = None
        for line in lines_of(self.path, self.end, number=self.number):
            if line.torn:
                torn = line
                break
            found = _key_and_outcome(line.body, f"{self.path} line {line.number}")
            if found is None:
                damaged.append(line.number)
            else:
                self.add(*found)
            if line.end > line.start + len(line.body):  # one that lacks its end is read again
                self.end, self.number = line.end, line.number + 1
        warn_of_damage(self.path, damaged)
        return torn

    def add(self, key: str, outcome: str) -> None:
        """Take note of a row: what is finished stays finished."""
        if self.outcomes.get(key) not in FINISHED:
            self.outcomes[key] = outcome
