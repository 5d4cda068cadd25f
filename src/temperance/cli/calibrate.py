"""``temperance calibrate``: honest probabilities from logits of a trained classifier."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from temperance.cli.output import print_json, print_table
from temperance.errors import InvalidInput

if TYPE_CHECKING:
    from temperance.evaluation.calibrate_file import Calibration, Progress


def calibrate(
    file: Annotated[str, typer.Argument(help="Logits with labels: .npz, .npy, .csv or .parquet.")],
    out: Annotated[Path, typer.Option(help="Output folder.")],
    labels: Annotated[
        str | None,
        typer.Option(help="Name of the label array or column; for .npy a file. [default: labels]"),
    ] = None,
    columns: Annotated[
        list[str] | None,
        typer.Option(help="Name of the logits, in the order of the classes; repeatable."),
    ] = None,
    test: Annotated[
        str | None, typer.Option(help="Other rows to judge on, in the same form.")
    ] = None,
    method: Annotated[
        str,
        typer.Option(
            help="temperature, vector, matrix, dirichlet, class-temperature, "
            "ensemble-temperature, isotonic, isotonic-joint, sample-temperature."
        ),
    ] = "temperature",
    fit_share: Annotated[
        float, typer.Option(help="Share of the rows that fit; the others judge.")
    ] = 0.5,
    seed: Annotated[int, typer.Option(help="Seed of that draw.", min=0)] = 0,
    bins: Annotated[int, typer.Option(help="Bins of the ECE.", min=1)] = 15,
    apply: Annotated[
        Path | None, typer.Option(help="Write calibrated probabilities of all rows, .npy.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Fit a temperature, or more, on held-out logits, and judge it on rows it has not seen."""
    from temperance.evaluation.calibrate_file import (
        CalibrationPlan,
        apply_to_file,
        calibrate_file,
    )
    from temperance.evaluation.calibration_page import write_calibration
    from temperance.evaluation.logit_csv import open_logits
    from temperance.files import check_writable

    plan = CalibrationPlan(
        file=file,
        labels=labels or "labels",
        columns=tuple(columns or ()),
        test_file=test,
        method=method,
        fit_share=fit_share,
        seed=seed,
        bins=bins,
    )
    check_out(out)
    if apply is not None:
        _check_apply(apply)
    with rows_progress() as progress:
        found = calibrate_file(plan, progress=progress)
        check_writable(out)
        write_calibration(out, found)
        if apply is not None:
            source = open_logits(file, labels=plan.labels, columns=list(plan.columns) or None)
            apply_to_file(found.calibrator, source, apply, progress=progress)
    _print(found, out, as_json=as_json)


def check_out(out: Path) -> None:
    """Refuse an output folder with something in it."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise InvalidInput(
            f"output folder {out}",
            expected="a new or empty folder",
            found="something in it",
            fix="Choose another folder; nothing in this one was touched.",
        )


def _check_apply(target: Path) -> None:
    """Refuse a target that exists, could be an input, or cannot be written, before any work."""
    if target.suffix.lower() != ".npy" or target.exists() or not os.access(target.parent, os.W_OK):
        raise InvalidInput(
            f"file {target}",
            expected="a new .npy file in a folder that can be written",
            found="a file that is there"
            if target.exists()
            else "another ending, or no such folder",
            fix="Name another with --apply; nothing was touched.",
        )


@contextmanager
def rows_progress() -> Iterator[Progress]:
    """Stage and rows on the error stream, where it is a terminal."""
    from rich.console import Console

    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda *_: None
        return
    with console.status("starting") as status:
        yield lambda stage, rows: status.update(f"{stage}: {rows:,} rows")


def _print(found: Calibration, out: Path, *, as_json: bool) -> None:
    from temperance.evaluation.calibration_page import finding
    from temperance.serial import to_dict

    if as_json:
        print_json({**to_dict(found), "out": str(out)})
        return
    calibrator = found.calibrator
    print(f"{calibrator.method}: {calibrator.status}, {found.rows['fit_used']:,} fit rows")
    if "temperature" in calibrator.parameters:
        ends = ""
        if found.interval is not None:
            ends = f" [{found.interval[0]:.5g}, {found.interval[1]:.5g}]"
        print(f"T = {calibrator.parameters['temperature']:.6g}{ends}")
    print_table(
        f"{found.rows['judged']:,} rows that were not fitted on",
        ("figure", "before", "after", "after less before", "shows"),
        [_row(found, name) for name in ("accuracy", "nll", "brier", "ece")],
    )
    for line in finding(found)[1:]:
        print(f"Note: {line}")
    print(f"Report: {out / 'report.html'}")


def _row(found: Calibration, name: str) -> list[str]:
    before, after = (r.metrics[name].value for r in (found.before, found.after))
    difference = found.comparison.differences[name]
    text = "not defined" if difference.value != difference.value else f"{difference.value:+.4f}"
    if difference.interval is not None:
        text += f" [{difference.interval[0]:+.4f}, {difference.interval[1]:+.4f}]"
    return [name, f"{before:.4f}", f"{after:.4f}", text, found.comparison.verdicts[name]]
