"""``temperance predict``: classes and probabilities from a trained folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from temperance.cli.output import print_json


def predict(
    folder: Annotated[Path, typer.Argument(help="Output folder of temperance train.")],
    inputs: Annotated[
        list[str],
        typer.Argument(help="Pictures, folders of them; or .npz, .npy, .csv, .parquet."),
    ],
    calibration: Annotated[
        Path | None,
        typer.Option(help="calibration.json of temperance calibrate, for this model's logits."),
    ] = None,
    top: Annotated[int, typer.Option(help="Number of classes to name.", min=1)] = 3,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Predict classes with calibrated probabilities, from what temperance train wrote."""
    from temperance.training.predict import predict as run

    calibrator = None
    if calibration is not None:
        from temperance.evaluation.calibration_page import read_calibration

        calibrator = read_calibration(calibration)
    found = run(folder, inputs, top=top, calibrator=calibrator)
    if as_json:
        rows = [
            {
                "input": p.input,
                "label": p.label,
                "probability": p.probability,
                "top": [{"label": name, "probability": value} for name, value in p.top],
            }
            for p in found
        ]
        print_json({"predictions": rows})
        return
    for p in found:
        print(f"{p.input}\t" + "  ".join(f"{name} {value:.3f}" for name, value in p.top))
