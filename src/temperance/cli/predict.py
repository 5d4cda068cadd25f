"""``temperance predict``: classes and probabilities from a trained folder."""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from temperance.cli.output import print_json

if TYPE_CHECKING:
    from temperance.training.predict import Prediction

_UNCERTAINTY = ("total_entropy", "mutual_information", "disagreement")


def predict(
    folder: Annotated[
        Path, typer.Argument(help="Output folder of temperance train or temperance ensemble.")
    ],
    inputs: Annotated[
        list[str],
        typer.Argument(help="Pictures, folders of them; or .npz, .npy, .csv, .parquet."),
    ],
    calibration: Annotated[
        Path | None,
        typer.Option(help="calibration.json of temperance calibrate, for this model's logits."),
    ] = None,
    top: Annotated[int, typer.Option(help="Number of classes to name.", min=1)] = 3,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV, a line per input.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Predict classes with calibrated probabilities, from what a training wrote.

    Of an ensemble the probabilities are the mean of its members'. Every row then has their
    mutual information (nats) and disagreement, too; in CSV and JSON also the total entropy, of
    which the former is a part. All three are those before any temperature after training.
    """
    from temperance.training.predict import predict as run

    if as_csv and as_json:
        raise typer.BadParameter("one of --csv and --json", param_hint="--csv")
    calibrator = None
    if calibration is not None:
        from temperance.evaluation.calibration_page import read_calibration

        calibrator = read_calibration(calibration)
    found = run(folder, inputs, top=top, calibrator=calibrator)
    if as_json:
        print_json({"predictions": [_record(p) for p in found]})
    elif as_csv:
        _print_csv(found)
    else:
        for p in found:
            print(_line(p))


def _uncertainty(p: Prediction) -> dict[str, float]:
    """What an ensemble says besides; empty for a single model."""
    return {name: v for name in _UNCERTAINTY if (v := getattr(p, name)) is not None}


def _record(p: Prediction) -> dict[str, Any]:
    return {
        "input": p.input,
        "label": p.label,
        "probability": p.probability,
        **_uncertainty(p),
        "top": [{"label": name, "probability": value} for name, value in p.top],
    }


def _print_csv(found: Iterable[Prediction]) -> None:
    """A line per input; the classes behind the first have numbered columns."""
    writer = csv.writer(sys.stdout, lineterminator="\n")
    for number, p in enumerate(found):
        if number == 0:
            more = [f"{n}_{k}" for k in range(2, len(p.top) + 1) for n in ("label", "probability")]
            writer.writerow(["input", "label", "probability", *_uncertainty(p), *more])
        first, rest = p.top[0], p.top[1:]
        behind = [cell for pair in rest for cell in pair]
        writer.writerow([p.input, *first, *_uncertainty(p).values(), *behind])


def _line(p: Prediction) -> str:
    text = f"{p.input}\t" + "  ".join(f"{name} {value:.3f}" for name, value in p.top)
    if p.mutual_information is None or p.disagreement is None:
        return text
    return (
        f"{text}\tmutual information {p.mutual_information:.3f}  disagreement {p.disagreement:.3f}"
    )
