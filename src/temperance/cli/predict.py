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
    top: Annotated[int, typer.Option(help="Number of classes to name.", min=1)] = 3,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Predict classes with calibrated probabilities, from what temperance train wrote."""
    from temperance.training.predict import predict as run

    found = run(folder, inputs, top=top)
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
