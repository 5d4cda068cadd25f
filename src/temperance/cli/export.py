"""``temperance export``: a trained folder becomes a file that a server runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from temperance.cli.output import print_json, print_table
from temperance.errors import InvalidInput

if TYPE_CHECKING:
    from temperance.export.records import ExportReport


def export(
    folder: Annotated[
        Path, typer.Argument(help="Output folder of temperance train or temperance ensemble.")
    ],
    format: Annotated[str, typer.Option(help="onnx, torch-export, torchscript or int8.")] = "onnx",
    out: Annotated[
        Path | None, typer.Option(help="File to write. [default: model.onnx, .. in the folder]")
    ] = None,
    output: Annotated[
        str,
        typer.Option(help="logits, or probs (of an ensemble the mean of its members')."),
    ] = "logits",
    posthoc: Annotated[
        bool, typer.Option("--posthoc", help="Put the folder's post-hoc T into the graph.")
    ] = False,
    calibration: Annotated[
        Path | None,
        typer.Option(help="Put the T of this calibration.json of temperance calibrate into it."),
    ] = None,
    fixed_batch: Annotated[
        bool, typer.Option("--fixed-batch", help="Batches of one row only, instead of any size.")
    ] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace a file that is there.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Export what a training wrote, and compare the file with the model before it is kept.

    The file holds a folded copy, and in its metadata the classes, the temperatures and how inputs
    are prepared. Of an ensemble the logits are [members, batch, classes].
    """
    from temperance.export.folder import export_folder
    from temperance.export.formats import find_format

    if posthoc and calibration is not None:
        raise typer.BadParameter("one of --posthoc and --calibration", param_hint="--posthoc")
    row = find_format(format)
    target = folder / row.file if out is None else out
    _check_new(target, overwrite=overwrite)
    calibrator = None
    if calibration is not None:
        from temperance.evaluation.calibration_page import read_calibration

        calibrator = read_calibration(calibration)
    report = export_folder(
        folder,
        format,
        path=target,
        output=output,
        posthoc=posthoc if calibrator is None else calibrator,
        dynamic_batch=not fixed_batch,
    )
    _print(report, as_json=as_json, read_with=row.read_with)


def _check_new(target: Path, *, overwrite: bool) -> None:
    if target.is_file() and not overwrite:
        raise InvalidInput(
            f"file {target}",
            expected="a new file",
            found="one that is there",
            fix="Pass --overwrite, or name another with --out.",
        )


def _print(report: ExportReport, *, as_json: bool, read_with: str) -> None:
    from temperance.serial import to_dict

    if as_json:
        print_json(to_dict(report))
        return
    print(f"{report.path}: {report.format}, {report.bytes:,} bytes, for {read_with}")
    rows = [[f"input {name}", _shape(shape)] for name, shape in report.inputs.items()]
    rows.append([f"output {report.output}", _shape(report.output_shape)])
    print_table("Tensors", ("name", "shape"), rows)
    print(
        f"Compared with the model on batches of {', '.join(map(str, report.batch_sizes))} rows: "
        f"largest difference {report.max_abs_error:.2g} ({report.max_rel_error:.2g} of the largest "
        f"output, {report.tolerance:g} allowed), the same top class in "
        f"{100 * report.agreement:.4g} %."
    )
    inside = ", ".join(f"{t:.5g}" for t in report.posthoc_temperatures)
    if inside:
        print(f"Post-hoc T in the graph: {inside}.")
    else:
        print("No post-hoc T in the graph; --posthoc puts the folder's into it.")
    for note in report.notes:
        print(f"Note: {note}.")


def _shape(shape: tuple[int | str, ...]) -> str:
    return f"[{', '.join(map(str, shape))}]"
