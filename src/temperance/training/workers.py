"""Runs side by side in processes of their own, one thread each.

Small nets gain nothing from several threads, and lose much where other work shares the machine;
several runs at once use all cores, and give the same results as one after the other on one thread.
"""

from __future__ import annotations

import multiprocessing
import threading
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from queue import Empty
from typing import Any

import torch

from temperance.errors import TemperanceError
from temperance.training.arms import Arm
from temperance.training.plan import Prepared
from temperance.training.process import interrupts_held, leave_with_parent, sendable
from temperance.training.runs import Tally, run_one

__all__ = ["run_in_processes"]

_LOOK = 0.2  # seconds between looks at the workers
Which = tuple[Arm, int]


def run_in_processes(prepared: Prepared, out: Path, todo: Sequence[Which], tally: Tally) -> None:
    """Train runs side by side; every one is kept as soon as it is finished.

    Args:
        prepared: what ``prepare`` gave; goes to every process once.
        out: output folder.
        todo: the runs.
        tally: told about every epoch.

    Raises:
        TemperanceError: if a process ends early or a run raises; finished runs are kept.
    """
    if not todo:
        return
    context = multiprocessing.get_context("spawn")
    # What is large goes through a queue: a process that dies while it starts would leave its
    # arguments unread, and this one waiting for ever.
    tasks, news, given = context.Queue(), context.Queue(), context.Queue()
    count = min(prepared.plan.workers, len(todo))
    for _ in range(count):
        given.put(prepared)
    for which in [*todo, *[None] * count]:
        tasks.put(which)
    workers = [
        context.Process(target=_work, args=(out, given, tasks, news), daemon=True)
        for _ in range(count)
    ]
    try:
        with interrupts_held():
            for worker in workers:
                worker.start()
        _watch(workers, news, tally, expected=len(todo))
    finally:
        started = [worker for worker in workers if worker.pid is not None]
        for worker in started:
            worker.terminate()
        for worker in started:
            worker.join()
        for queue in (tasks, given):
            queue.cancel_join_thread()


def _watch(workers: Sequence[Any], news: Any, tally: Tally, *, expected: int) -> None:
    """Pass on what the workers say until all runs are done, or one of them fails."""
    done = 0
    while done < expected:
        try:
            kind, *facts = news.get(timeout=_LOOK)
        except Empty:
            dead = [w for w in workers if w.exitcode not in (None, 0)]
            if dead:
                raise TemperanceError(
                    f"A training process ended early (exit code {dead[0].exitcode}; the system may "
                    "have been short of memory). Finished runs are kept: go on with --resume, "
                    "perhaps with fewer --workers."
                ) from None
            continue
        if kind == "epoch":
            tally(*facts)
        elif kind == "done":
            done += 1
        else:
            raise facts[0]


def _work(out: Path, given: Any, tasks: Any, news: Any) -> None:
    """Train what comes out of the queue until there is nothing more."""
    threading.Thread(target=leave_with_parent, daemon=True).start()
    torch.set_num_threads(1)
    prepared: Prepared = given.get()
    while (which := tasks.get()) is not None:
        arm, seed = which
        try:
            run_one(
                prepared,
                out,
                arm,
                seed,
                report=partial(_tell, news, arm, seed),
            )
        except Exception as error:
            news.put(("error", sendable(error)))
            return
        news.put(("done",))


def _tell(news: Any, arm: Arm, seed: int, epoch: int) -> None:
    news.put(("epoch", arm, seed, epoch))
