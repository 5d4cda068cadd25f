"""One lock file per ledger: who writes now, and who works on what.

Both are locks on single bytes of ``ledger.lock``: byte 0 for writing, and one byte, chosen by a
digest, for every claimed unit of work. The operating system gives them up when their process ends,
also by kill -9, so that a claim never outlives its owner; a forked child does not inherit them.
The file stays empty and is never removed.

Where a file system has no such locks (some network folders), the work goes on without and a
warning says so: rows are still written in one piece each, and what was done twice counts once.
"""

from __future__ import annotations

import errno
import hashlib
import os
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from temperance.errors import InvalidInput, TemperanceWarning

__all__ = ["LOCK_NAME", "claim", "exclusive", "release"]

LOCK_NAME = "ledger.lock"
PATIENCE = 600.0  # seconds to wait for another writer; a compaction of millions of rows is shorter
_WAITS = (0.001, 0.05)  # seconds between two tries, at first and at most
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL, errno.EOVERFLOW)
_READ_ONLY = (errno.EACCES, errno.EPERM, errno.EROFS)
_WRITING = 0


@dataclass(eq=False)
class _Door:
    """The open lock file of one folder in this process.

    It is opened once only: closing any second handle would give up all locks of the process.
    """

    path: Path
    handle: int = -1
    able: bool = True
    writing: threading.Lock = field(default_factory=threading.Lock)
    opening: threading.Lock = field(default_factory=threading.Lock)
    units: set[str] = field(default_factory=set)


_DOORS: dict[tuple[int, str], _Door] = {}  # by process, as a forked child must open its own


@contextmanager
def exclusive(folder: Path, *, patience: float = PATIENCE) -> Iterator[bool]:
    """Hold the writing lock of a ledger, against other processes and other threads.

    Args:
        folder: the folder of the ledger; it exists.
        patience: seconds to wait for another writer.

    Yields:
        Whether other processes are kept out; False where the folder is read-only or its file
        system has no locks.

    Raises:
        InvalidInput: if another process holds the lock for longer than ``patience``.
    """
    door = _door(folder)
    with door.writing:
        locked = _wait(door, patience)
        try:
            yield locked
        finally:
            if locked:
                _unlock_byte(door.handle, _WRITING)


def claim(folder: Path, unit: str) -> bool:
    """Claim a unit of work, unless another process or thread has it.

    Args:
        folder: the folder of the ledger.
        unit: any name of the unit, the same in every process.

    Returns:
        True if it is ours now, until ``release`` or the end of this process.
    """
    door = _door(folder)
    with door.opening:
        if unit in door.units:
            return False
        if _try(door, _place(unit)) is False:
            return False
        door.units.add(unit)
        return True


def release(folder: Path, unit: str) -> None:
    """Give up a claim; one that is not held is no error."""
    door = _door(folder)
    with door.opening:
        if unit in door.units:
            door.units.remove(unit)
            if door.able and door.handle >= 0:
                _unlock_byte(door.handle, _place(unit))


def _door(folder: Path) -> _Door:
    path = folder.resolve() / LOCK_NAME
    return _DOORS.setdefault((os.getpid(), str(path)), _Door(path))


def _wait(door: _Door, patience: float) -> bool:
    """Try again and again: a wait that can be interrupted, and that ends."""
    wait, longest = _WAITS
    end = time.monotonic() + patience
    while True:
        with door.opening:
            got = _try(door, _WRITING)
        if got is not False:
            return got is True
        if time.monotonic() > end:
            raise InvalidInput(
                f"lock {door.path}",
                expected=f"to get it within {patience:.0f} seconds",
                found="that another process holds it",
                fix="Look for a sweep or a compaction that hangs, end it, and run this again.",
            )
        time.sleep(wait)
        wait = min(2 * wait, longest)


def _try(door: _Door, place: int) -> bool | None:
    """True: locked; False: another process has it; None: no locks are to be had here."""
    if not door.able or not _opened(door):
        return None
    try:
        return _lock_byte(door.handle, place)
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        door.able = False
        warnings.warn(
            f"{door.path}: this file system has no locks ({error.strerror}); two sweeps at once "
            "on this folder may do the same trial twice, which then counts once.",
            TemperanceWarning,
            stacklevel=4,
        )
        return None


def _opened(door: _Door) -> bool:
    """Have the lock file open, and the one that is in the folder now; False if read-only."""
    if door.handle >= 0:
        try:
            if os.path.samestat(os.stat(door.path), os.fstat(door.handle)):
                return True
        except FileNotFoundError:
            pass
        os.close(door.handle)  # the folder was removed or replaced meanwhile
        door.handle = -1
    try:
        door.handle = os.open(door.path, os.O_RDWR | os.O_CREAT, 0o666)
    except OSError as error:
        if error.errno in _READ_ONLY:
            return False
        raise InvalidInput(
            f"lock {door.path}",
            expected="to be able to make this file",
            found=error.strerror or str(error),
            fix="Check the folder and the room on its disk.",
        ) from error
    return True


# ------------------------------------------------------------------ one byte of the file
if sys.platform == "win32":
    import msvcrt

    _PLACES = 2**31 - 2

    def _lock_byte(handle: int, place: int) -> bool:
        os.lseek(handle, place, os.SEEK_SET)
        try:
            msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
        except OSError as error:
            if error.errno in (errno.EACCES, errno.EDEADLK):
                return False
            raise
        return True

    def _unlock_byte(handle: int, place: int) -> None:
        os.lseek(handle, place, os.SEEK_SET)
        with suppress(OSError):  # it was not locked
            msvcrt.locking(handle, msvcrt.LK_UNLCK, 1)

else:
    import fcntl

    _PLACES = 2**56

    def _lock_byte(handle: int, place: int) -> bool:
        try:
            fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, place)
        except OSError as error:
            if error.errno in (errno.EACCES, errno.EAGAIN):
                return False
            raise
        return True

    def _unlock_byte(handle: int, place: int) -> None:
        fcntl.lockf(handle, fcntl.LOCK_UN, 1, place)


def _place(unit: str) -> int:
    """Byte of a unit: after byte 0, the same in every process."""
    digest = hashlib.sha256(unit.encode()).digest()
    return 1 + int.from_bytes(digest[:8], "big") % _PLACES
