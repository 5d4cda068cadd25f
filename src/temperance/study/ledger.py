"""The ledger of a sweep: one row per trial, added and never changed, that survives what happens.

A folder holds ``ledger.jsonl`` (rows, one JSON object per line), ``ledger.parquet`` (older rows,
after ``compact``), ``tasks.jsonl`` (what the trials' tasks are) and ``ledger.lock``.

What is promised, on a local disk:

- When ``append`` returns, its rows are synced to the disk: no kill and no power cut loses them.
  That is one sync per call, so add the rows of a unit of work together.
- A row is there as a whole or not at all; the next writer starts on a clean line.
- A key is counted once. A row that is finished (``done`` or ``diverged``) beats a ``failed`` one;
  among equals the last one counts. Rows of keys that are finished already are not added again,
  also when it was another process that finished them.
- A full disk is an error that says so; the rows before are whole, and the same call works once
  there is room.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from temperance.errors import InvalidInput, need
from temperance.files import check_writable, write_bytes
from temperance.records import Task, to_dict
from temperance.study import ledger_lock
from temperance.study.ledger_lines import (
    FINISHED,
    OUTCOMES,
    SCHEMA,
    TASK_FIELDS,
    Line,
    Scan,
    decode,
    encode,
    lines_of,
    warn_of_torn,
)
from temperance.study.ledger_lock import exclusive
from temperance.study.ledger_parquet import TABLE_NAME, key_outcomes, write_table
from temperance.study.ledger_read import (
    LEDGER_NAME,
    TASKS_NAME,
    Row,
    choose,
    parsed_lines,
    read_lines,
    read_rows,
    read_tasks,
)
from temperance.study.ledger_rows import check_row, row_of, task_key
from temperance.study.ledger_write import add_lines, plain_disk_errors, sync_folder

__all__ = [
    "FINISHED",
    "LEDGER_NAME",
    "OUTCOMES",
    "SCHEMA",
    "TABLE_NAME",
    "TASKS_NAME",
    "Ledger",
    "open_ledger",
    "read_rows",
    "read_tasks",
    "row_of",
    "task_key",
]


def open_ledger(folder: Path | str) -> Ledger:
    """Open the ledger of a sweep for writing; the folder is made if it is not there.

    Args:
        folder: output folder of the sweep.

    Returns:
        The ledger. What is in it has been looked at once.

    Raises:
        InvalidInput: if the folder is a file or cannot be written, or if its rows are of another
            schema version.

    Example:
        >>> import tempfile
        >>> from temperance.study.ledger import open_ledger, row_of, task_key
        >>> from temperance.study.outcome import Outcome
        >>> from temperance.study.trial import Trial
        >>> trial = Trial("digits")
        >>> row = row_of(Outcome(trial, "done"), {"test_nll": 0.5}, task_key(trial.task_content))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     ledger = open_ledger(folder)
        ...     ledger.append([row]), ledger.append([row]), trial.key in ledger.keys()
        (1, 0, True)
    """
    folder = Path(folder)
    check_writable(folder)
    ledger = Ledger(folder)
    ledger.keys()
    return ledger


class Ledger:
    """The rows in a folder, shared with every other process that has it open.

    Args:
        folder: an existing folder; see ``open_ledger``.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = Path(folder)
        self._file = self.folder / LEDGER_NAME
        self._table = self.folder / TABLE_NAME
        self._scan = Scan(self._file)
        self._seen: object = None
        self._noticed = -1

    def __reduce__(self) -> tuple[type[Ledger], tuple[Path]]:
        return Ledger, (self.folder,)

    def keys(self, *, retry_failed: bool = True) -> set[str]:
        """Give the keys of all trials that need not be done.

        Args:
            retry_failed: whether trials that failed are to be done again; then their keys are not
                among them.

        Returns:
            Keys whose trials are done or diverged, or failed if these are not to be done again.

        Raises:
            InvalidInput: for rows of another schema version.
        """
        with exclusive(self.folder):
            self._update()
            found = self._scan.outcomes.items()
            return {key for key, outcome in found if not retry_failed or outcome in FINISHED}

    def append(self, rows: Iterable[Mapping[str, Any]]) -> int:
        """Add rows in one piece, and sync them to the disk.

        Args:
            rows: what ``row_of`` gives, for instance those of one unit of work.

        Returns:
            How many were added: rows of keys that are finished already are left out.

        Raises:
            InvalidInput: for a row that is not whole or holds a number that is not finite; if the
                disk is full or cannot be written. Then none of them was added.
        """
        made = [_line(row) for row in rows]
        with exclusive(self.folder) as locked:
            torn = self._update()
            finished = {k for k, _, _ in made if self._scan.outcomes.get(k) in FINISHED}
            new = []
            for key, outcome, line in made:
                if key not in finished:
                    new.append(line)
                if outcome in FINISHED:
                    finished.add(key)
            if new:
                add_lines(self._file, b"".join(new), torn=torn, locked=locked)
                self._update()
        return len(new)

    def rows(self) -> list[Row]:
        """Give all rows, each key once; see ``read_rows``."""
        return read_rows(self.folder)

    def tasks(self) -> dict[str, Row]:
        """Give all tasks by key; see ``read_tasks``."""
        return read_tasks(self.folder)

    def append_task(self, content: Mapping[str, Any], task: Task) -> str:
        """Add what a task is, unless the same is there; a later record of a task replaces it.

        Args:
            content: ``Trial.task_content``.
            task: M, C, rows and measured statistics.

        Returns:
            The key of the task.

        Raises:
            InvalidInput: if the disk is full or cannot be written.
        """
        key = task_key(content)
        row = {
            "schema": SCHEMA,
            "key": key,
            "content": dict(content),
            "feature_dim": task.feature_dim,
            "task": to_dict(task),
        }
        line = encode(row, f"task {key}")
        path = self.folder / TASKS_NAME
        with exclusive(self.folder) as locked:
            found, torn = read_lines(path, fields=TASK_FIELDS, locked=True)
            if {known["key"]: known for known in found}.get(key) != json.loads(json.dumps(row)):
                add_lines(path, line, torn=torn, locked=locked)
        return key

    def compact(self) -> Path:
        """Move all rows into ``ledger.parquet``, each key once.

        The new table is written beside the old, synced, read back and renamed before
        ``ledger.jsonl`` is emptied: a kill in between leaves rows in both, which count once.
        Damaged lines stay in ``ledger.jsonl``. Other writers wait meanwhile.

        Returns:
            The Parquet file.

        Raises:
            MissingPackage: without pyarrow.
            InvalidInput: if the disk is full or cannot be written, or if the file system has no
                locks. Nothing was changed then.
        """
        need("pyarrow", "parquet")
        with exclusive(self.folder) as locked, plain_disk_errors(self._table):
            if not locked:
                raise InvalidInput(
                    f"ledger {self.folder}",
                    expected="a folder that can be written and has file locks",
                    found="one without",
                    fix="Copy it to a local disk and compact it there.",
                )
            self._update()
            last, metrics = choose(row for _, row in parsed_lines(self.folder))
            chosen = (
                (line, row)
                for at, (line, row) in enumerate(parsed_lines(self.folder))
                if last[row["key"]] == at
            )
            write_table(self._table, chosen, count=len(last), metrics=sorted(metrics))
            sync_folder(self.folder)
            write_bytes(self._file, b"".join(_damaged(self._file)))
            sync_folder(self.folder)
        return self._table

    def claim(self, unit: str) -> bool:
        """Claim a unit of work, so that another sweep on this folder does not do it as well.

        A claim ends with ``release`` or with this process, however it ends. After a claim look at
        ``keys`` again: the last owner may have finished the unit just before.

        Args:
            unit: any name, the same for the same unit in every process.

        Returns:
            Whether it is ours; False if another process or thread has it.
        """
        return ledger_lock.claim(self.folder, unit)

    def release(self, unit: str) -> None:
        """Give up a claim; one that is not held is no error."""
        ledger_lock.release(self.folder, unit)

    @contextmanager
    def claimed(self, unit: str) -> Iterator[bool]:
        """Claim a unit for the length of a block; gives whether it is ours."""
        ours = self.claim(unit)
        try:
            yield ours
        finally:
            if ours:
                self.release(unit)

    def _update(self) -> Line | None:
        """Read what is new, under the lock; all of it after a compaction."""
        with plain_disk_errors(self._file):
            return self._read_on()

    def _read_on(self) -> Line | None:
        file = _stamp(self._file) or (0, 0, 0)
        seen = _stamp(self._table), file[0]
        if seen != self._seen or file[1] < self._scan.end:
            self._scan = Scan(self._file)
            for key, outcome in key_outcomes(self._table):
                self._scan.add(key, outcome)
        torn = self._scan.update()
        self._seen = seen
        noticed, self._noticed = self._noticed, -1 if torn is None else torn.start
        if torn is not None and torn.start != noticed:
            warn_of_torn(torn, self._file)
        return torn


def _line(row: Mapping[str, Any]) -> tuple[str, str, bytes]:
    check_row(row)
    return row["key"], row["outcome"], encode(row, f"ledger row {row['key']}: ")


def _damaged(path: Path) -> Iterator[bytes]:
    """Lines that cannot be compacted; they stay, with their warning, until someone looks."""
    for line in lines_of(path):
        if not line.torn and decode(line.body, str(path)) is None:
            yield line.body + b"\n"


def _stamp(path: Path) -> tuple[int, int, int] | None:
    """What changes when a file is replaced by another: inode, size, time."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns
