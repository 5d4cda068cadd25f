"""``temperance regret``: what the temperatures of rules cost on the tasks of a sweep."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from temperance.cli.output import print_json, print_table
from temperance.errors import Interrupted

if TYPE_CHECKING:
    from temperance.study.regret_records import RegretReport


def regret(
    runs: Annotated[
        list[Path], typer.Argument(help="Folders of temperance sweep, or their ledgers.")
    ],
    rules: Annotated[
        list[str] | None,
        typer.Option(
            help="Names of rules and files of temperance fit, with commas between them; "
            "repeatable. [default: all rules that the runs allow]"
        ),
    ] = None,
    refit: Annotated[
        list[str] | None,
        typer.Option(
            help="Also fit this rule again (or statistics: a new heuristic), without the data set "
            "that is judged; repeatable."
        ),
    ] = None,
    objective: Annotated[
        str, typer.Option(help="What --refit fits: accuracy, nll or nll-posthoc.")
    ] = "accuracy",
    metric: Annotated[
        list[str] | None,
        typer.Option(
            help="accuracy, nll or nll-posthoc, with commas between them; repeatable. "
            "[default: all three]"
        ),
    ] = None,
    norm: Annotated[
        str | None, typer.Option(help="Judge on runs of this norm: none, layer or batch.")
    ] = None,
    loss: Annotated[
        str | None, typer.Option(help="Judge on runs of this loss: plain or normalized.")
    ] = None,
    any_norm: Annotated[
        bool, typer.Option("--any-norm", help="Judge every rule on runs of every norm, together.")
    ] = False,
    out: Annotated[
        Path | None, typer.Option(help="Folder for regret.json, regret.md, regret.png, tasks.csv.")
    ] = None,
    bootstrap: Annotated[int, typer.Option(help="Draws of data sets.", min=1)] = 2000,
    seed: Annotated[int, typer.Option(help="Seed of the draws and of the fits.", min=0)] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Judge rules by what their T costs against the best T in hindsight.

    No rule is judged on a data set that it was fitted on.
    """
    from temperance.cli.calibrate import check_out
    from temperance.study.curves import METRICS
    from temperance.study.fit_objective import objective_name
    from temperance.study.refit import refit_of
    from temperance.study.regret import regret as run
    from temperance.study.regret_table import write_regret
    from temperance.study.runs import read_curves
    from temperance.study.selection import select_curves

    if out is not None:
        check_out(out)
    chosen = None if rules is None else _rules(rules)
    wanted = objective_name(objective)
    metrics = [objective_name(name, what="metric") for name in _names(metric)] or list(METRICS)
    with _stages() as told:
        specs = [refit_of(name, objective=wanted, seed=seed, told=told) for name in _names(refit)]
        told("reading runs")
        curves = select_curves(read_curves(*runs), norm=norm, loss=loss)
        report = run(
            curves,
            chosen,
            norm=norm,
            metrics=metrics,
            any_norm=any_norm,
            fitted=specs,
            bootstrap=bootstrap,
            seed=seed,
        )
    files = () if out is None else write_regret(report, out)
    _print(report, files, as_json=as_json)


def _names(texts: list[str] | None) -> list[str]:
    return [name.strip() for text in texts or () for name in text.split(",") if name.strip()]


def _rules(texts: list[str]) -> dict[str, Any]:
    """Rules by name; a file gives its rule the file's name beside its own."""
    from temperance.records import Task
    from temperance.rules import find_rule
    from temperance.rules.suggestion import rule_name

    found = {}
    if not (names := _names(texts)):
        raise typer.BadParameter("names no rule", param_hint="--rules")
    for name in names:
        rule = find_rule(name, Task(feature_dim=1, n_classes=2))
        own, file = rule_name(rule), name.endswith(".json")
        short = f"{own}, {Path(name).name}" if file else own
        found[f"{own}, {name}" if short in found else short] = rule
    return found


@contextmanager
def _stages() -> Iterator[Callable[[str], None]]:
    """What is being done, on the error stream, where it is a terminal."""
    from rich.console import Console

    console = Console(stderr=True)
    try:
        if not console.is_terminal:
            yield lambda _: None
            return
        with console.status("starting") as status:
            yield status.update
    except KeyboardInterrupt:
        raise Interrupted("regret", resume="Nothing was written; run the command again.") from None


def _print(report: RegretReport, files: tuple[Path, ...], *, as_json: bool) -> None:
    from temperance.records import to_dict
    from temperance.study.regret_table import how_to_read, tables

    if as_json:
        print_json({**to_dict(report), "files": [str(file) for file in files]})
        return
    for table in tables(report):
        print_table(table.title, table.columns, table.rows)
    for name, reason in report.not_judged.items():
        print(f"Not judged: {name}: {reason}")
    for note in report.notes:
        print(f"Note: {note}")
    for line in how_to_read():
        print(line)
    for file in files:
        print(f"Written: {file}")
