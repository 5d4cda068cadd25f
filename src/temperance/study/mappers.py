"""How the work units of a sweep are carried out: one by one, in processes, or by any other map.

A *mapper* is any callable ``mapper(function, units)`` that gives an iterator of results:

- it calls ``function(unit)`` for every unit, anywhere: ``function``, units and results can be
  pickled, and a machine elsewhere needs Temperance and nothing of this process;
- it yields what ``function`` returned, as it is, in any order, as soon as it is there: what has
  been yielded is kept even if everything ends one moment later;
- ``units`` is an iterator. Taking a unit from it claims it for this sweep, so the next one is best
  taken when a worker is free; taking all of them at once is allowed;
- for a unit whose worker died it tries again or yields ``Lost(unit, reason)``, and its trials
  become ``failed``. A unit that it says nothing about is missing, and run by the next sweep;
- one process works on one unit at a time: threads and warnings are set for the whole process;
- when its iterator is closed, it stops its workers.

``multiprocessing.Pool(4).imap_unordered`` is a mapper, and so is the map of most clusters.
"""

from __future__ import annotations

import multiprocessing
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any

from temperance.errors import InvalidInput, TemperanceError
from temperance.training.process import interrupts_held, leave_with_parent, sendable

__all__ = ["Lost", "Mapper", "processes", "serial"]

Function = Callable[[Any], Any]
Mapper = Callable[[Function, Iterable[Any]], Iterable[Any]]


@dataclass(frozen=True)
class Lost:
    """A unit that gave no result.

    Attributes:
        unit: the work unit.
        reason: what became of it, in words.
    """

    unit: Any
    reason: str


def serial(function: Function, units: Iterable[Any]) -> Iterator[Any]:
    """Carry out units one after the other in this process.

    Args:
        function: what to do with a unit.
        units: the units.

    Yields:
        The results, in the order of the units.

    Example:
        >>> list(serial(abs, [-1, 2]))
        [1, 2]
    """
    for unit in units:
        yield function(unit)


def processes(workers: int, *, retries: int = 2) -> Mapper:
    """Make a mapper that carries out units in processes of their own, one thread each.

    The processes are new ones (``spawn``), so a script needs ``if __name__ == "__main__":`` around
    its main part. Ctrl-C reaches only the first process; they end with it, even if it is killed.

    Args:
        workers: units at the same time, 1 or more; no more processes are started than there are
            units.
        retries: how often a unit is tried again after its process died (killed, out of memory);
            after that the mapper yields ``Lost``.

    Returns:
        The mapper.

    Raises:
        InvalidInput: for fewer than one worker or negative retries.

    Example:
        >>> mapper = processes(2)
        >>> sorted(mapper(abs, [-1, 2, -3]))
        [1, 2, 3]
    """
    for subject, value, least in (("workers", workers, 1), ("retries", retries, 0)):
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise InvalidInput(
                subject,
                expected=f"a whole number of {least} or more",
                found=repr(value),
                fix="Change it.",
            )

    def mapper(function: Function, units: Iterable[Any]) -> Iterator[Any]:
        return _map(function, iter(units), workers=workers, retries=retries)

    return mapper


@dataclass
class _Job:
    """A unit on its way, and how many processes have died over it."""

    unit: Any
    deaths: int = 0


@dataclass(eq=False)
class _Worker:
    """A process with a pipe of its own: one that is killed leaves no lock behind for the others."""

    process: Any
    pipe: Connection
    started: bool = False
    job: _Job | None = None


def _map(function: Function, units: Iterator[Any], *, workers: int, retries: int) -> Iterator[Any]:
    crew: list[_Worker] = []
    again: deque[_Job] = deque()
    try:
        while True:
            _hand_out(crew, function, jobs=_jobs(again, units), workers=workers)
            busy = [worker for worker in crew if worker.job is not None]
            if not busy:
                return
            for worker in _with_news(busy):
                try:
                    yield from _listen(worker)
                except EOFError:
                    crew.remove(worker)
                    yield from _bury(worker, again, retries=retries)
    finally:
        for worker in crew:
            worker.process.terminate()
        for worker in crew:
            _end(worker)


def _jobs(again: deque[_Job], units: Iterator[Any]) -> Iterator[_Job]:
    """Give what is to be done, one by one: first what has to be tried again."""
    while again:
        yield again.popleft()
    for unit in units:
        yield _Job(unit)


def _hand_out(
    crew: list[_Worker], function: Function, *, jobs: Iterator[_Job], workers: int
) -> None:
    """Give every free worker a unit, and start workers while there is something for them."""
    while True:
        for worker in [w for w in crew if w.job is None and not w.process.is_alive()]:
            crew.remove(worker)  # killed while it had nothing to do
            _end(worker)
        free = next((worker for worker in crew if worker.job is None), None)
        if free is None and len(crew) >= workers:
            return
        job = next(jobs, None)
        if job is None:
            return
        if free is None:
            free = _start(function)
            crew.append(free)
        free.job = job
        with suppress(OSError):  # it is dead, which is noticed where its news are read
            free.pipe.send(job.unit)


def _with_news(busy: Sequence[_Worker]) -> list[_Worker]:
    """Wait until workers have said something or ended, and give those."""
    ready = wait([thing for w in busy for thing in (w.pipe, w.process.sentinel)])
    return [w for w in busy if w.pipe in ready or w.process.sentinel in ready]


def _listen(worker: _Worker) -> Iterator[Any]:
    """Yield the result if it is there; EOFError says that the worker is dead."""
    try:
        if not worker.pipe.poll():
            raise EOFError
        kind, news = worker.pipe.recv()
    except OSError as error:  # it was killed in the middle of a message
        raise EOFError from error
    if kind == "started":
        worker.started = True
        return
    worker.job = None
    if kind == "error":
        raise news
    yield news


def _bury(worker: _Worker, again: deque[_Job], *, retries: int) -> Iterator[Lost]:
    """Put the unit of a dead worker back, or give it up."""
    job = worker.job
    assert job is not None
    code = _end(worker)
    if not worker.started and (code is None or code >= 0):  # below 0 it was killed, as any other
        raise TemperanceError(
            f"A worker process ended while it started (exit code {code}). A script that starts "
            'workers needs `if __name__ == "__main__":` around its main part. Finished trials are '
            "kept."
        )
    job.deaths += 1
    if job.deaths <= retries:
        again.append(job)
        return
    times = "once" if job.deaths == 1 else f"{job.deaths} times"
    yield Lost(
        job.unit,
        f"the worker died {times} (exit code {code}; the system may have been short of memory)",
    )


def _start(function: Function) -> _Worker:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_work, args=(function, theirs), daemon=True)
    with interrupts_held():
        process.start()
    theirs.close()
    return _Worker(process, ours)


def _end(worker: _Worker) -> int | None:
    """Wait for the end of a process that is dead or told to end; give its exit code."""
    worker.process.join()
    code: int | None = worker.process.exitcode
    worker.process.close()
    worker.pipe.close()
    return code


def _work(function: Function, pipe: Connection) -> None:
    """Carry out what comes through the pipe, for as long as there is somebody at its other end."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=leave_with_parent, daemon=True).start()
    pipe.send(("started", None))
    while True:
        try:
            unit = pipe.recv()
        except EOFError:
            return
        try:
            news = ("result", function(unit))
        except Exception as error:
            news = ("error", sendable(error))
        pipe.send(news)
