"""Adding lines to a file that others add to as well, on a disk that may fill up.

Called under the writing lock. Lines go out in one piece behind a clean line end and are synced to
the disk before the call returns; if that fails, the file is cut back to what it was.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from temperance.errors import InvalidInput
from temperance.study.ledger_lines import Line

__all__ = ["add_lines", "plain_disk_errors", "sync_folder"]

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@contextmanager
def plain_disk_errors(path: Path) -> Iterator[None]:
    """Turn what the operating system says about a file into a sentence that says what to do."""
    try:
        yield
    except OSError as error:
        full = error.errno in _FULL
        raise InvalidInput(
            f"ledger {path}",
            expected="room on the disk" if full else "a file that can be read and written",
            found=error.strerror or str(error),
            fix="Free some space and run this again: the rows before are whole, and only what is "
            "missing is done."
            if full
            else "Give yourself the rights to it, or choose another output folder.",
        ) from error


def add_lines(path: Path, lines: bytes, *, torn: Line | None, locked: bool) -> None:
    """Add finished lines to a file, all of them or none, and sync them to the disk.

    Args:
        path: the file; made if it is not there.
        lines: the lines with their ends.
        torn: the torn last line of the file, if there is one; it is cut off.
        locked: whether other processes are kept out; if not, nothing of theirs is cut off, and a
            torn line is only ended.

    Raises:
        InvalidInput: if the disk is full or the file cannot be written. The file is as before.
    """
    with plain_disk_errors(path):
        new = not path.exists()
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | _BINARY, 0o666)
        try:
            if torn is not None and locked:
                os.ftruncate(handle, torn.start)
            _write(handle, _line_end(handle) + lines, locked=locked)
        finally:
            os.close(handle)
        if new:
            sync_folder(path.parent)


_BINARY = getattr(os, "O_BINARY", 0)  # Windows


def _line_end(handle: int) -> bytes:
    """The line end that the file lacks, or nothing."""
    size = os.fstat(handle).st_size
    if size == 0:
        return b""
    os.lseek(handle, size - 1, os.SEEK_SET)
    return b"" if os.read(handle, 1) == b"\n" else b"\n"


def _write(handle: int, content: bytes, *, locked: bool) -> None:
    """Write all and sync; on any failure, also an interrupt, take back what went out."""
    before = os.fstat(handle).st_size
    rest = memoryview(content)
    try:
        while rest:
            rest = rest[os.write(handle, rest) :]
        os.fsync(handle)
    except BaseException:
        if locked:
            with suppress(OSError):  # then it is torn, and the next writer cuts it off
                os.ftruncate(handle, before)
        raise


def sync_folder(folder: Path) -> None:
    """Make the names in a folder last through a power cut, where the system can do that."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
