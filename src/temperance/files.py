"""Writing files whole or not at all."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable
from pathlib import Path

from temperance.errors import InvalidInput

__all__ = ["check_writable", "write_bytes", "write_through"]


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file under a temporary name beside it, then rename: never half of it is seen.

    Args:
        path: where to; an older file there is replaced.
        content: all of it.

    Raises:
        OSError: if the disk is full or the folder cannot be written; nothing is left behind.
    """
    write_through(path, [content])


def write_through(path: Path, blocks: Iterable[bytes]) -> None:
    """Write a file from blocks that are made one by one, whole or not at all.

    Args:
        path: where to; an older file there is replaced.
        blocks: its content.

    Raises:
        OSError: if the disk is full or the folder cannot be written; nothing is left behind.
    """
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            for block in blocks:
                file.write(block)
        os.chmod(temporary, 0o666 & ~_umask())
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def check_writable(folder: Path) -> None:
    """Make a folder and try a file in it, before any work is done for it.

    Args:
        folder: the output folder; made if it is not there.

    Raises:
        InvalidInput: if it cannot be made or written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise InvalidInput(
            f"output folder {folder}",
            expected="a folder that can be written",
            found=error.strerror or str(error),
            fix="Choose another with --out.",
        ) from error
