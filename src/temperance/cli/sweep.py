"""``temperance sweep``: the trials of a plan, on this machine or a cluster, and resumable."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from temperance.cli.output import print_json, print_table
from temperance.errors import Interrupted

if TYPE_CHECKING:
    from temperance.study.cost import CostEstimate
    from temperance.study.mappers import Mapper
    from temperance.study.plan import Plan
    from temperance.study.sweep import SweepProgress, SweepSummary, Tally

_EVERY = 60.0  # seconds between lines in a log
_SHOWN = 5  # messages of failed trials


def sweep(
    plan: Annotated[Path, typer.Argument(help="The plan, a TOML file.")],
    out: Annotated[Path, typer.Option(help="Folder of the ledger; a sweep there goes on.")],
    workers: Annotated[
        int | None,
        typer.Option(help="Processes, one thread each. [default: number of CPUs]", min=1),
    ] = None,
    ray: Annotated[
        str | None,
        typer.Option(
            help="Use Ray: auto, HOST:PORT, or local for one of its own.", metavar="ADDRESS"
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what is left and what it costs; run nothing.")
    ] = False,
    retry_failed: Annotated[
        bool, typer.Option("--retry-failed", help="Do failed trials again.")
    ] = False,
    statistics: Annotated[
        bool, typer.Option(help="Measure the statistics of every task, once.")
    ] = True,
    compact: Annotated[
        bool, typer.Option("--compact", help="Move the finished rows into ledger.parquet.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Train every trial of a plan that is not in the ledger yet; the same call goes on."""
    if workers is not None and ray is not None:
        raise typer.BadParameter("give one of --workers and --ray", param_hint="--ray")
    with _resumable(plan, out):
        from temperance.study.plan import read_plan

        what = read_plan(plan)
        if dry_run:
            _dry_run(what, out, retry_failed=retry_failed, as_json=as_json)
            return
        mapper = _mapper(what, workers, ray)
        # Ray prints what happens to its workers; the output is for the result.
        quiet = nullcontext() if ray is None else redirect_stdout(sys.stderr)
        with quiet:
            summary = _run(
                what,
                out,
                mapper=mapper,
                retry_failed=retry_failed,
                statistics=statistics,
                quiet=as_json,
            )
        table = _compact(out) if compact else None
    _print(summary, table, as_json=as_json)
    if not summary.outcomes["done"]:
        raise typer.Exit(1)


@contextmanager
def _resumable(plan: Path, out: Path) -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        raise Interrupted(f"sweep {plan}", resume="Nothing was under way.") from None
    except Interrupted as error:
        raise Interrupted(
            error.what,
            resume=f"Finished trials are in {out}. Run the same command again to go on.",
        ) from None


def _mapper(plan: Plan, workers: int | None, ray: str | None) -> Mapper:
    from temperance.study.mappers import processes, serial

    share = plan.resources
    if ray is not None:
        from temperance.integrations.ray import ray_mapper

        return ray_mapper(ray, cpus=share.cpus, gpus=share.gpus, retries=share.retries)
    count = _cpus()
    if workers is not None and workers > count:
        print(f"temperance: {workers} workers share {count} CPUs.", file=sys.stderr)
    chosen = workers or max(1, int(count / max(1.0, share.cpus)))
    return serial if chosen == 1 else processes(chosen, retries=share.retries)


def _cpus() -> int:
    import os

    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not everywhere
        return os.cpu_count() or 1


def _run(
    plan: Plan, out: Path, *, mapper: Mapper, retry_failed: bool, statistics: bool, quiet: bool
) -> SweepSummary:
    from temperance.study.sweep import SweepOptions
    from temperance.study.sweep import sweep as run_sweep

    options = SweepOptions(retry_failed=retry_failed, statistics=statistics)
    with _progress(quiet=quiet) as progress:
        return run_sweep(plan, out, mapper=mapper, progress=progress, options=options)


# ------------------------------------------------------------------ while it runs
@contextmanager
def _progress(*, quiet: bool) -> Iterator[SweepProgress]:
    """Progress on the error stream: a bar with the time left, or a line now and then in a log."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    from temperance.study.sweep import SweepProgress

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    last = time.monotonic()
    with Progress(
        *columns,
        TextColumn("{task.fields[more]}"),
        console=console,
        disable=not console.is_terminal,
        redirect_stdout=False,
    ) as bar:
        now = bar.add_task("starting", total=None, more="")

        def stage(text: str) -> None:
            bar.update(now, description=text)
            if not console.is_terminal and not quiet:
                console.print(text)

        def trials(tally: Tally) -> None:
            nonlocal last
            more = _so_far(tally)
            bar.update(now, completed=tally.finished, total=tally.trials, more=more)
            if not console.is_terminal and not quiet and time.monotonic() - last >= _EVERY:
                last = time.monotonic()
                console.print(f"{tally.finished:,} of {tally.trials:,} trials {more}")

        def checked(done: int, total: int) -> None:
            bar.update(now, completed=done, total=total)

        yield SweepProgress(stage=stage, checked=checked, trials=trials)


def _so_far(tally: Tally) -> str:
    bad = [f"{tally.outcomes[k]} {k}" for k in ("diverged", "failed") if tally.outcomes.get(k)]
    left = [] if tally.seconds_left is None else [f"about {_span(tally.seconds_left)} left"]
    return ", ".join([*bad, *left])


def _span(seconds: float) -> str:
    """A time for people, in its two largest units."""
    whole = max(0, round(seconds))
    if seconds < 10:
        return f"{seconds:.1f} s"
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    if whole < 86400:
        return f"{whole // 3600} h {whole % 3600 // 60} min"
    return f"{whole // 86400} d {whole % 86400 // 3600} h"


# ------------------------------------------------------------------ what is printed
def _dry_run(plan: Plan, out: Path, *, retry_failed: bool, as_json: bool) -> None:
    from temperance.study.cost import estimate_cost

    with _progress(quiet=as_json) as progress:
        cost = estimate_cost(plan, out, retry_failed=retry_failed, progress=progress)
    if as_json:
        print_json({"name": plan.name, "out": str(out), **_plain(cost)})
        return
    print(f"{plan.name}: {cost.trials:,} trials, {cost.finished:,} in {out} already")
    print(f"Left: {cost.trials - cost.finished:,} trials in {cost.units:,} units of work")
    print(f"Tasks: {cost.tasks:,}, {cost.tasks_measured:,} measured already")
    for kind, source in cost.basis.items():
        print(f"{kind}: judged by {_SOURCES.get(source, source)}")
    if not cost.units:
        return
    print(f"CPU time: about {_span(cost.cpu_seconds)}, without loading data and measuring tasks")
    if cost.memory_bytes is not None:
        print(f"Memory: about {cost.memory_bytes / 2**20:,.0f} MiB for each worker")
    rows = [[str(n), _span(seconds)] for n, seconds in cost.wall_seconds.items()]
    print_table("Time by the number of workers", ("workers", "time"), rows)


_SOURCES = {"ledger": "its trials in the ledger", "tried": "a few steps that were tried"}


def _plain(record: CostEstimate | SweepSummary) -> dict[str, Any]:
    from dataclasses import asdict

    return asdict(record)


def _compact(out: Path) -> str:
    from temperance.study.ledger import open_ledger

    return str(open_ledger(out).compact())


def _print(summary: SweepSummary, table: str | None, *, as_json: bool) -> None:
    if as_json:
        print_json({**_plain(summary), "table": table})
        return
    counts = ", ".join(f"{n:,} {outcome}" for outcome, n in summary.outcomes.items() if n)
    print(f"{summary.name}: {summary.trials:,} trials: {counts}")
    print(f"New: {summary.new:,}, in {_span(summary.seconds)}")
    for message, count in summary.failures[:_SHOWN]:
        print(f"Failed ({count:,}): {message}")
    if summary.outcomes["failed"]:
        print("Failed trials are done again with --retry-failed.")
    for notice in summary.notices:
        print(f"Note: {notice}")
    print(f"Ledger: {summary.out}" + (f", rows in {table}" if table else ""))
    if summary.outcomes["done"]:
        print(f"Next: temperance fit {summary.out}; temperance regret {summary.out}")
