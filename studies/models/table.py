"""Try the verbs on every model of the table, one process for each, and write rows and table.

python studies/models/table.py                      # all that is not in rows.jsonl yet
python studies/models/table.py --library timm
python studies/models/table.py --again failed       # or the name of a model
python studies/models/table.py --page-only          # table.md from rows.jsonl
"""

from __future__ import annotations

import argparse
import importlib
import json
import multiprocessing
import multiprocessing.connection
import os
import resource
import sys
import time
import traceback
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import torch  # noqa: E402
from page import write_page  # noqa: E402
from rich.progress import Progress  # noqa: E402
from sources import LIBRARIES, Case, cases  # noqa: E402
from verbs import Row, examine  # noqa: E402

ROWS = HERE / "rows.jsonl"
MEMORY_GB = 20.0  # a model that wants more is a failure, not the end of the machine
ROOM_GB = 4.0
SECONDS = 3600


@dataclass(frozen=True)
class Started:
    """A process that examines one model."""

    case: Case
    process: Any
    pipe: Any
    when: float


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--library", choices=LIBRARIES, action="append")
    parser.add_argument("--again", default="", help="'failed', 'refused', 'all' or a model's name")
    parser.add_argument("--only", default="", help="one model's name")
    parser.add_argument("--workers", type=int, default=1, help="models at a time")
    parser.add_argument("--page-only", action="store_true")
    chosen = parser.parse_args(argv)
    if not chosen.page_only:
        torch.set_num_threads(1)
        known = read_rows(ROWS)
        again = chosen.again
        done = {k for k, row in known.items() if not _wanted_again(row, again)}
        todo = [
            case
            for library in chosen.library or LIBRARIES
            for case in cases(library)
            if (case.library, case.family, case.name) not in done and chosen.only in ("", case.name)
        ]
        run_all(todo, ROWS, workers=chosen.workers)
    write_page(read_rows(ROWS).values(), HERE / "table.md")


def read_rows(path: Path) -> dict[tuple[str, str, str], dict[str, Any]]:
    """Give the last row of every model; a torn last line is left out."""
    rows: dict[tuple[str, str, str], dict[str, Any]] = {}
    if not path.exists():
        return rows
    for line in path.read_text(encoding="utf-8").split("\n")[:-1]:
        row = json.loads(line)
        rows[row["library"], row["family"], row["name"]] = row
    return rows


def append_row(path: Path, row: dict[str, Any]) -> None:
    """Write one line at the end of a file, whole or not at all."""
    line = json.dumps(row, allow_nan=False) + "\n"
    number = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        os.write(number, line.encode())
        os.fsync(number)
    finally:
        os.close(number)


def run_all(todo: Sequence[Case], path: Path, *, workers: int = 1) -> None:
    """Run the cases, each in a process of its own, so that memory is given back."""
    _import(todo)
    waiting, running = list(todo), dict[Any, Started]()
    with Progress() as progress:
        task = progress.add_task("models", total=len(waiting))
        while waiting or running:
            while waiting and len(running) < workers and (not running or _room()):
                started = _start(waiting.pop(0))
                running[started.pipe] = started
            for row in _finished(running):
                append_row(path, row)
                progress.update(task, advance=1, description=row["name"])
                if row["outcome"] != "passed":
                    told = f"{row['name']}: {row['outcome']}: {' | '.join(row['note'])}"
                    progress.console.print(told[:400], markup=False)


def _start(case: Case) -> Started:
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_child, args=(case, theirs))
    process.start()
    theirs.close()
    return Started(case, process, ours, time.monotonic())


def _finished(running: dict[Any, Started]) -> Iterator[dict[str, Any]]:
    """Rows of the processes that have an answer, died, or ran out of time."""
    ready = set(multiprocessing.connection.wait(list(running), timeout=1.0))
    for pipe, started in list(running.items()):
        late = time.monotonic() - started.when > SECONDS
        if pipe not in ready and not late:
            continue
        row = Row(started.case.library, started.case.family, started.case.name).to_dict()
        row["note"] = [f"no answer within {SECONDS} s"]
        if pipe in ready:
            try:
                row = pipe.recv()
            except EOFError:
                row["note"] = ["the process ended without an answer (memory?)"]
        started.process.kill()
        started.process.join()
        del running[pipe]
        yield row


def _room() -> bool:
    """Whether there is memory for one more model beside those that run."""
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30
    return free > ROOM_GB


def _child(case: Case, pipe: Any) -> None:
    limit = int(MEMORY_GB * 2**30)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    pipe.send(run_case(case))
    pipe.close()


def run_case(case: Case) -> dict[str, Any]:
    """Build a model and examine it; whatever goes wrong becomes a note."""
    row, start = Row(case.library, case.family, case.name), time.process_time()
    torch.manual_seed(0)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model, batch, row.size = case.build()
            examine(row, model, batch)
    except Exception as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        row.note.append(f"{type(error).__name__}: {error} ({place.name})")
    row.seconds = round(time.process_time() - start, 1)
    row.memory_gb = round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20, 2)
    return row.to_dict()


def _wanted_again(row: dict[str, Any], again: str) -> bool:
    return again == "all" or again in (row["outcome"], row["name"])


def _import(todo: Sequence[Case]) -> None:
    """Once, in front of all forks."""
    for case in todo:
        library = importlib.import_module(case.library)
        if case.library == "transformers":  # its models are imported when they are first used
            getattr(library, case.name)


if __name__ == "__main__":
    main()
