"""``temperance fit``: the coefficients of a rule, fitted on the runs of a sweep."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from temperance.cli.output import number, print_json, print_table
from temperance.errors import Interrupted, InvalidInput, TemperanceWarning

if TYPE_CHECKING:
    from temperance.records import Estimate
    from temperance.study.fit import RuleFit
    from temperance.study.fit_judge import Progress
    from temperance.study.regression import StatisticsFit
    from temperance.study.runs import Curve

_UNITS = {"accuracy": (100.0, "points"), "nll": (1.0, "nats"), "nll_posthoc": (1.0, "nats")}


def fit(
    runs: Annotated[list[Path], typer.Argument(help="Folders of temperance sweep, or ledgers.")],
    rule: Annotated[
        str,
        typer.Option(
            help="Name of a rule (see: temperance rules), or statistics: a new heuristic."
        ),
    ] = "hasegawa-sakai-csg-cn",
    objective: Annotated[
        str, typer.Option(help="On validation rows: accuracy, nll or nll-posthoc.")
    ] = "accuracy",
    norm: Annotated[
        str | None,
        typer.Option(help="Fit on runs of this norm: none, layer, batch. [default: the rule's]"),
    ] = None,
    loss: Annotated[
        str | None, typer.Option(help="Fit on runs of this loss: plain or normalized.")
    ] = None,
    scale: Annotated[
        str | None,
        typer.Option(
            help="Of a rule with a fixed formula: regret as it is (regret), or relative to each "
            "task (relative). [default: regret]"
        ),
    ] = None,
    method: Annotated[
        str | None,
        typer.Option(
            help="Of --rule statistics: forward (few terms) or ridge (all). [default: forward]"
        ),
    ] = None,
    terms: Annotated[
        int | None,
        typer.Option(help="Of --rule statistics with forward: terms at most. [default: 4]", min=1),
    ] = None,
    hold_out: Annotated[
        str | None, typer.Option(help="Data sets to keep out, with commas between them.")
    ] = None,
    bootstrap: Annotated[
        int, typer.Option(help="Draws of data sets for the intervals.", min=0)
    ] = 200,
    seed: Annotated[int, typer.Option(help="Seed of search and draws.", min=0)] = 0,
    out: Annotated[
        Path | None, typer.Option(help="Write the rule, .json, for suggest --rule FILE.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Fit the coefficients of a temperature rule on runs, and judge them on left-out data sets."""
    from temperance.records import to_dict
    from temperance.rules import save_rule
    from temperance.study.fit import FitOptions, fit_rule
    from temperance.study.regression import RegressionOptions, fit_statistics
    from temperance.study.runs import read_curves

    if out is not None:
        _check_out(out)
    _check_apply(rule, method, scale=scale, terms=terms)
    names = tuple(filter(None, map(str.strip, (hold_out or "").split(","))))
    found: RuleFit | StatisticsFit
    with _progress() as progress:
        progress("reading runs", 0, 1)
        curves = _chosen(read_curves(*runs), rule, norm, loss=loss)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", TemperanceWarning)  # they are the notes of the result
            if rule == "statistics":
                found = fit_statistics(
                    curves,
                    objective=objective,
                    hold_out=names,
                    options=RegressionOptions(
                        method or "forward", terms or 4, bootstrap=bootstrap, seed=seed
                    ),
                    progress=progress,
                )
            else:
                found = fit_rule(
                    curves,
                    rule,
                    objective=objective,
                    hold_out=names,
                    options=FitOptions(seed, bootstrap, scale or "regret"),
                    progress=progress,
                )
    if out is not None:
        save_rule(found.rule, out)
    if as_json:
        said = {"name": found.rule.name, "out": None if out is None else str(out)}
        print_json({**to_dict(found), **said})
        return
    _print(found)
    if out is not None:
        print(f"Rule: {out}   (temperance suggest --rule {out} ...)")


def _check_out(out: Path) -> None:
    """Refuse a file that is there, or cannot be written, before any work."""
    folder = out.parent
    if out.suffix == ".json" and not out.exists() and os.access(folder, os.W_OK):
        return
    if out.exists():
        found = "something there"
    elif out.suffix != ".json":
        found = f"the ending {out.suffix!r}"
    else:
        found = f"no folder {folder} that can be written"
    raise InvalidInput(
        f"file {out}",
        expected="a new .json file in a folder that can be written",
        found=found,
        fix="Name another with --out; nothing was touched.",
    )


def _check_apply(rule: str, method: str | None, *, scale: str | None, terms: int | None) -> None:
    """Refuse options that would change nothing."""
    chosen = rule == "statistics"
    idle = {
        "--scale": chosen and scale is not None,
        "--method": not chosen and method is not None,
        "--terms": (not chosen or method == "ridge") and terms is not None,
    }
    for name, given in idle.items():
        if given:
            what = f"--rule {rule} --method ridge" if chosen and method else f"--rule {rule}"
            raise typer.BadParameter(f"says nothing about {what}", param_hint=name)


def _chosen(curves: list[Curve], rule: str, norm: str | None, *, loss: str | None) -> list[Curve]:
    """Curves of the norm that was asked for; else of the rule's, where it was made for one."""
    from temperance.records import Task
    from temperance.rules import find_rule
    from temperance.study.selection import select_curves

    if norm is None and rule not in ("statistics", "constant"):
        norm = str(find_rule(rule, Task(1, 2)).norm)
    return select_curves(curves, norm=norm, loss=loss)


@contextmanager
def _progress() -> Iterator[Progress]:
    """A bar on the error stream, where it is a terminal; an interruption says what is left."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
    from rich.progress import Progress as Bar

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    try:
        with Bar(*columns, console=console, disable=not console.is_terminal, transient=True) as bar:
            now = bar.add_task("starting", total=1)
            yield lambda what, done, total: bar.update(
                now, description=what, completed=done, total=total
            )
    except KeyboardInterrupt:
        raise Interrupted("fit", resume="Nothing was written; run the command again.") from None


# ------------------------------------------------------------------ the tables
def _print(found: RuleFit | StatisticsFit) -> None:
    from temperance.study.fit import RuleFit

    counts, scale = found.counts, _scale(found)
    print(
        f"{found.rule.rule.name}, best by val {found.objective}, norm {found.rule.norm}: "
        f"{counts['tasks']} tasks of {counts['datasets']} data sets, {counts['runs']:,} runs"
    )
    before = found.before if isinstance(found, RuleFit) else {}
    rows = [
        [name, number(before.get(name)), number(e.value), *_ends(e)]
        for name, e in found.coefficients.items()
    ]
    print_table("Coefficients", ("coefficient", "before", "after", "95 % interval"), rows)
    if not isinstance(found, RuleFit):
        errors = [[name, number(e.value), *_ends(e)] for name, e in found.errors.items()]
        print_table("Error in log T (root mean square)", ("T by", "error", "95 % interval"), errors)
    regrets = [
        [name, _figure(scale[0] * e.value), *_ends(e, scale[0])] for name, e in found.regret.items()
    ]
    title = f"Mean regret in {found.objective} of validation rows, {scale[1]}"
    print_table(title, ("T by", "regret", "95 % interval"), regrets)
    _print_held_out(found.held_out, scale)
    for note in found.notes:
        print(f"Note: {note}.")


def _print_held_out(held_out: Mapping[str, Mapping[str, float]], scale: tuple[float, str]) -> None:
    if not held_out:
        return
    titles = list(next(iter(held_out.values())))
    rows = [[name, *(_figure(scale[0] * v[t]) for t in titles)] for name, v in held_out.items()]
    print_table(f"Regret on data sets kept out, {scale[1]}", ("data set", *titles), rows)


def _scale(found: RuleFit | StatisticsFit) -> tuple[float, str]:
    if getattr(found, "scale", "regret") == "relative":
        return 100.0, "% of the largest of the task"
    return _UNITS[found.objective]


def _ends(estimate: Estimate, factor: float = 1.0) -> list[str]:
    if estimate.interval is None:
        return ["-"]
    return [" to ".join(_figure(factor * end) for end in estimate.interval)]


def _figure(value: float) -> str:
    """A number without what rounding leaves where there is nothing."""
    return number(round(value, 9) + 0.0)
