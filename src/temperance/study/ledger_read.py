"""Reading what a sweep has left, while it runs or after; nothing is written.

A finished row (done or diverged) beats a failed one; among equals the last one counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Any

from temperance.errors import InvalidInput, NotFound
from temperance.study.ledger_lines import (
    FINISHED,
    ROW_FIELDS,
    TASK_FIELDS,
    Line,
    decode,
    lines_of,
    warn_of_damage,
    warn_of_torn,
)
from temperance.study.ledger_lock import LOCK_NAME, exclusive
from temperance.study.ledger_parquet import TABLE_NAME, table_lines
from temperance.study.ledger_write import plain_disk_errors

__all__ = [
    "LEDGER_NAME",
    "TASKS_NAME",
    "Row",
    "choose",
    "parsed_lines",
    "read_lines",
    "read_rows",
    "read_tasks",
]

LEDGER_NAME = "ledger.jsonl"
TASKS_NAME = "tasks.jsonl"
Row = dict[str, Any]


def read_rows(path: Path | str, *, history: bool = True) -> list[Row]:
    """Read the rows of a sweep, each key once; may be done while the sweep runs.

    Args:
        path: folder of a sweep, or a ``.jsonl`` or ``.parquet`` file of one.
        history: whether to keep the curves, which are most of the memory.

    Returns:
        Rows in the order in which they were added.

    Raises:
        NotFound: if there is no such ledger.
        InvalidInput: for another kind of file, a damaged table or another schema version.
        MissingPackage: for a table without pyarrow.

    Warns:
        TemperanceWarning: for an unfinished last line, and for damaged lines by their numbers.

    Example:
        >>> import tempfile
        >>> from temperance.study.ledger import open_ledger, read_rows, row_of, task_key
        >>> from temperance.study.outcome import Outcome
        >>> from temperance.study.trial import Trial
        >>> trial = Trial("digits", temperature=4)
        >>> row = row_of(Outcome(trial, "done"), {"test_nll": 0.5}, task_key(trial.task_content))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     added = open_ledger(folder).append([row])
        ...     [found] = read_rows(folder)
        >>> found["trial"]["temperature"], found["metrics"]
        (4.0, {'test_nll': 0.5})
    """
    table, lines = _parts(Path(path))
    # Lines before the table: a compaction in between then shows rows twice and hides none.
    fresh = [] if lines is None else read_lines(lines, history=history)[0]
    rows: dict[str, Row] = {}
    for row in chain(_older(table, history=history), fresh):
        known = rows.get(row["key"])
        if known is None or known["outcome"] not in FINISHED or row["outcome"] in FINISHED:
            rows.pop(row["key"], None)
            rows[row["key"]] = row
    return list(rows.values())


def read_tasks(path: Path | str) -> dict[str, Row]:
    """Read what the tasks of a sweep are.

    Args:
        path: folder of a sweep, or its ``tasks.jsonl``.

    Returns:
        By key: ``content``, ``feature_dim`` and ``task`` (``records.from_dict`` makes the record
        of it); the last one of every key.

    Raises:
        InvalidInput: for another schema version.
    """
    path = Path(path)
    file = path / TASKS_NAME if path.is_dir() else path
    found = read_lines(file, fields=TASK_FIELDS)[0]
    return {row["key"]: row for row in found}


def _parts(path: Path) -> tuple[Path | None, Path | None]:
    """The table and the lines that a path stands for."""
    if path.is_dir():
        table, lines = path / TABLE_NAME, path / LEDGER_NAME
        if not table.exists() and not lines.exists():
            raise NotFound(
                f"ledger in {path}",
                found=f"neither {LEDGER_NAME} nor {TABLE_NAME}",
                fix="Name the output folder of a sweep.",
            )
        return table, lines
    if not path.exists():
        raise NotFound(f"ledger {path}", found="no such file", fix="Check the name.")
    kind = path.suffix.lower()
    if kind not in (".jsonl", ".parquet"):
        raise InvalidInput(
            f"ledger {path}",
            expected="a folder of a sweep, a .jsonl or a .parquet file",
            found=f"a {kind or 'nameless'} file",
            fix="Name the output folder of a sweep.",
        )
    return (path, None) if kind == ".parquet" else (None, path)


def _older(table: Path | None, *, history: bool) -> Iterator[Row]:
    if table is not None:
        for line in table_lines(table):
            row = decode(line, str(table))
            if row is None:
                raise InvalidInput(
                    f"ledger {table}",
                    expected="whole rows",
                    found="a row that is not what its check sum says",
                    fix="Get the file from a backup, or remove it: its trials are done again.",
                )
            yield _slim(row, history=history)


def read_lines(
    path: Path,
    *,
    fields: Mapping[str, type] = ROW_FIELDS,
    history: bool = True,
    locked: bool = False,
) -> tuple[list[Row], Line | None]:
    """Read a file of lines and say what is wrong with it.

    Args:
        path: the file; one that is not there has no lines.
        fields: what every line must have.
        history: whether to keep the curves.
        locked: whether the caller holds the writing lock.

    Returns:
        The rows in their order, and the torn last line if there is one.

    Raises:
        InvalidInput: if it cannot be read, or for another schema version.
    """
    rows: list[Row] = []
    damaged: list[int] = []
    torn = None
    with plain_disk_errors(path):
        for line in lines_of(path) if locked else _settled_lines(path):
            if line.torn:
                torn = line
                continue
            row = decode(line.body, f"{path} line {line.number}", fields=fields)
            if row is None:
                damaged.append(line.number)
            else:
                rows.append(_slim(row, history=history))
    warn_of_damage(path, damaged)
    if torn is not None:
        warn_of_torn(torn, path)
    return rows, torn


def _settled_lines(path: Path) -> Iterator[Line]:
    """Give the lines of a file; a torn one is looked at again once nobody writes."""
    for line in lines_of(path):
        if line.torn and (path.parent / LOCK_NAME).exists():
            with exclusive(path.parent):
                pass  # whoever was writing has finished
            yield from lines_of(path, line.start, number=line.number)
            return
        yield line


def _slim(row: Row, *, history: bool) -> Row:
    if not history:
        row["history"] = {}
    return row


# ------------------------------------------------------------------ for a compaction
def parsed_lines(folder: Path) -> Iterator[tuple[bytes, Row]]:
    """Give every readable line of a folder with its row, older ones first; under the lock."""
    fresh = (line.body for line in lines_of(folder / LEDGER_NAME) if not line.torn)
    for body in chain(table_lines(folder / TABLE_NAME), fresh):
        if (row := decode(body, str(folder))) is not None:
            yield body, row


def choose(rows: Iterable[Row]) -> tuple[dict[str, int], set[str]]:
    """Find which row counts for every key, and the names of all metrics.

    Args:
        rows: all rows, older ones first.

    Returns:
        The position of the row by key; names.
    """
    last: dict[str, int] = {}
    finished: set[str] = set()
    metrics: set[str] = set()
    for at, row in enumerate(rows):
        metrics.update(row["metrics"])
        if row["outcome"] in FINISHED:
            finished.add(row["key"])
        elif row["key"] in finished:
            continue
        last[row["key"]] = at
    return last, metrics
