"""What processes that work side by side need: a quiet start, an end with their parent, errors."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from temperance.errors import TemperanceError

__all__ = ["interrupts_held", "leave_with_parent", "sendable"]


@contextmanager
def interrupts_held() -> Iterator[None]:
    """Hold Ctrl-C back until the end of the block; processes started inside never see it.

    Starting takes seconds, and an interrupt in the middle of it would leave half a process. The
    mask is for the processes, which inherit it; the handler is for this one, since the system may
    hand the signal to any of its threads.

    Raises:
        KeyboardInterrupt: at the end of the block, if it came in the meantime.
    """
    main = threading.current_thread() is threading.main_thread()
    if not main or not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    held: list[int] = []
    handler = signal.signal(signal.SIGINT, lambda number, _: held.append(number))
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        signal.signal(signal.SIGINT, handler)
    if held:
        raise KeyboardInterrupt


def leave_with_parent() -> None:
    """End this process when the first one is gone, even if it was killed; for a thread."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def sendable(error: Exception) -> TemperanceError:
    """Make an error that survives the way between processes.

    Args:
        error: any error; those of the library have constructors that do not survive it.

    Returns:
        An error that says the same.
    """
    text = str(error) if isinstance(error, TemperanceError) else f"{type(error).__name__}: {error}"
    return TemperanceError(text)
