"""``temperance evaluate``: every figure of a file of logits, with OOD and shift beside it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from temperance.cli.calibrate import check_out, rows_progress
from temperance.cli.output import print_json, print_table

if TYPE_CHECKING:
    from temperance.evaluation.evaluate_file import FileEvaluation
    from temperance.records import Estimate


def evaluate(
    file: Annotated[
        str,
        typer.Argument(help="Logits with labels: .npz (also of members), .npy, .csv, .parquet."),
    ],
    out: Annotated[Path, typer.Option(help="Output folder.")],
    labels: Annotated[
        str | None,
        typer.Option(help="Name of the label array or column; for .npy a file. [default: labels]"),
    ] = None,
    columns: Annotated[
        list[str] | None,
        typer.Option(help="Name of the logits, in the order of the classes; repeatable."),
    ] = None,
    calibration: Annotated[
        Path | None, typer.Option(help="calibration.json to apply first.")
    ] = None,
    ood: Annotated[
        str | None, typer.Option(help="Logits of out-of-distribution rows, .npz or .npy.")
    ] = None,
    shift: Annotated[
        list[str] | None, typer.Option(help="The same under a shift, mildest first; repeatable.")
    ] = None,
    bins: Annotated[int, typer.Option(help="Bins of the calibration errors.", min=1)] = 15,
    bootstrap: Annotated[int, typer.Option(help="Replicates of the intervals.", min=2)] = 300,
    seed: Annotated[int, typer.Option(help="Seed of all draws.", min=0)] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Judge logits by accuracy, proper scores, calibration errors, selection, OOD and shift."""
    from temperance.evaluation.calibration_page import read_calibration
    from temperance.evaluation.evaluate_file import EvaluationPlan, evaluate_file
    from temperance.evaluation.evaluation_page import write_evaluation
    from temperance.files import check_writable

    plan = EvaluationPlan(
        file=file,
        labels=labels or "labels",
        columns=tuple(columns or ()),
        ood=ood,
        shift=tuple(shift or ()),
        bins=bins,
        bootstrap=bootstrap,
        seed=seed,
    )
    calibrator = None if calibration is None else read_calibration(calibration)
    check_out(out)
    with rows_progress() as progress:
        found = evaluate_file(plan, calibrator=calibrator, progress=progress)
        check_writable(out)
        write_evaluation(out, found)
    _print(found, out, as_json=as_json)


def _print(found: FileEvaluation, out: Path, *, as_json: bool) -> None:
    from temperance.evaluation.figures import FIGURES
    from temperance.serial import to_dict

    if as_json:
        print_json({**to_dict(found), "out": str(out)})
        return
    rows = [[FIGURES[n].title, _cell(e), FIGURES[n].unit] for n, e in found.figures.items()]
    print_table(f"{found.rows['judged']:,} rows", ("figure", "value", "unit"), rows)
    if found.uncertainty:
        parts = [[name, f"{value:.4f}"] for name, value in found.uncertainty.items()]
        print_table("Uncertainty of the members", ("mean over the rows", "value"), parts)
    if found.ood:
        names = ("auroc", "fpr95_in", "aupr_in", "aupr_out")
        scores = [[s, *(_cell(getattr(m, n)) for n in names)] for s, m in found.ood.items()]
        print_table("Out of distribution (higher = more OOD)", ("score", *names), scores)
    if found.shift:
        table = [[f, *(_cell(e) for e in figures.values())] for f, figures in found.shift.items()]
        print_table("Under shift", ("file", "accuracy", "NLL", "ECE"), table)
    for note in found.notes:
        print(f"Note: {note}")
    print(f"Report: {out / 'report.html'}")


def _cell(estimate: Estimate) -> str:
    if estimate.interval is None:
        return f"{estimate.value:.4f}"
    return f"{estimate.value:.4f} [{estimate.interval[0]:.4f}, {estimate.interval[1]:.4f}]"
