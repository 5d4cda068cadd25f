"""``temperance measure``: every statistic of a labelled data set, with its spread."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from temperance.cli.calibrate import check_out
from temperance.cli.output import print_json, print_table
from temperance.errors import Interrupted

if TYPE_CHECKING:
    from temperance.records import Statistic
    from temperance.training.task_features import MeasuredData


def measure(
    data: Annotated[
        str,
        typer.Argument(
            help="digits; a folder with a folder per class; Parquet; .npz; .csv; or IDX files."
        ),
    ],
    model: Annotated[
        str | None,
        typer.Option(help="Net that the task is for, as train takes it: it gives M."),
    ] = None,
    feature_dim: Annotated[
        int | None, typer.Option("--features", "-M", help="M of the library's own nets.")
    ] = None,
    weights: Annotated[
        Path | None,
        typer.Option(help="Local safetensors file of the net; its features are measured."),
    ] = None,
    statistics: Annotated[
        str | None, typer.Option(help="Names of statistics, with commas. [default: all]")
    ] = None,
    as_given: Annotated[
        bool, typer.Option("--as-given", help="Measure a table as it is, not standardized.")
    ] = False,
    rows: Annotated[
        int | None, typer.Option(help="Measure that many rows, drawn by class. [default: all]")
    ] = None,
    repeats: Annotated[
        int, typer.Option(help="Groups of rows for the spread, draws of the csg.", min=1)
    ] = 5,
    seed: Annotated[int, typer.Option(help="Seed of all draws.", min=0)] = 0,
    image_size: Annotated[int | None, typer.Option(help="Side of the pictures.")] = None,
    on_bad: Annotated[
        str, typer.Option(help="Pictures that cannot be read: error (list them) or skip.")
    ] = "error",
    label: Annotated[str, typer.Option(help="Label column of a table.")] = "label",
    ignore: Annotated[
        list[str] | None, typer.Option(help="Label whose rows are left out, repeatable.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder for task.json and the eigenvalues of the csg, PNG.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Measure a task before its training: sizes, scatter, dimensions, neighbours, LogME, csg."""
    if on_bad not in ("error", "skip"):
        raise typer.BadParameter("error or skip", param_hint="--on-bad")
    if out is not None:
        check_out(out)
    from temperance.training.plan import Plan
    from temperance.training.task_features import measure_data

    plan = Plan(
        source=data,
        feature_dim=feature_dim,
        weights=None if weights is None else str(weights),
        train_rows=rows,
        image_size=image_size,
        on_bad="skip" if on_bad == "skip" else "error",
        label=label,
        ignore=tuple(ignore or ()),
        split_seed=seed,
    )
    names = None if statistics is None else tuple(s.strip() for s in statistics.split(","))
    with _progress() as progress:
        found = measure_data(
            plan,
            model=model,
            statistics=names,
            repeats=repeats,
            as_given=as_given,
            progress=progress,
        )
    if out is not None:
        _write(found, out)
    _print(found, out, as_json=as_json)


@contextmanager
def _progress() -> Iterator[Callable[[str, int, int], None]]:
    """What is done now and how much of it, on the error stream, where it is a terminal."""
    from rich.console import Console

    console = Console(stderr=True)
    try:
        if not console.is_terminal:
            yield lambda *_: None
            return
        with console.status("reading and scanning the data") as status:
            yield lambda what, done, total: status.update(f"{what}: {done:,} of {total:,}")
    except KeyboardInterrupt:
        raise Interrupted("measuring", resume="Nothing was written; run it again.") from None


def _write(found: MeasuredData, out: Path) -> None:
    from temperance.files import check_writable, write_bytes
    from temperance.records import dumps

    check_writable(out)
    csg = found.task.statistics.get("csg")
    if csg is not None:
        from temperance.evaluation.plots import plot_eigenvalues, save_png
        from temperance.evaluation.prepare import prepare_eigenvalues

        title = f"{found.name}: {found.embedding}"
        save_png(plot_eigenvalues(prepare_eigenvalues(csg), title=title), out / "eigenvalues.png")
    write_bytes(out / "task.json", dumps(found.task).encode())


def _print(found: MeasuredData, out: Path | None, *, as_json: bool) -> None:
    from temperance.serial import to_dict
    from temperance.task.statistics import find_statistics

    task = found.task
    if as_json:
        facts: dict[str, Any] = {
            "data": found.name,
            "embedding": found.embedding,
            "undefined": found.undefined,
            "notices": list(found.notices),
        }
        print_json({**to_dict(task), **facts, "out": None if out is None else str(out)})
        return
    for notice in found.notices:
        print(f"Note: {notice}")
    print(f"{found.name}: {found.embedding}, {task.n_samples:,} rows")
    print(f"M = {task.feature_dim}, {task.n_classes} classes")
    specs = find_statistics(tuple(task.statistics))
    rows = [[s.name, *_cells(task.statistics[s.name]), s.unit] for s in specs]
    print_table("Statistics", ("statistic", "value", "95 % interval", "unit"), rows)
    for name, statistic in task.statistics.items():
        if statistic.status != "ok":
            print(f"Note: {name}: {statistic.status}")
    for name, reason in found.undefined.items():
        print(f"Not defined here: {name} ({reason})")
    if out is not None:
        print(f"Written: {', '.join(str(p) for p in sorted(out.iterdir()))}")


def _cells(statistic: Statistic) -> list[str]:
    value, interval = statistic.value, statistic.interval
    digits = 6 if value == int(value) else 4
    ends = "" if interval is None else f"{interval[0]:.4g} to {interval[1]:.4g}"
    if statistic.settings.get("all_rows_drawn"):
        ends = "none: all rows drawn"  # its interval is over draws, of which there is one
    return [f"{value:.{digits}g}", ends]
