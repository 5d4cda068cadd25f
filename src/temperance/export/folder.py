"""``temperance export`` as a function: from a finished folder to a file that a server runs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch

from temperance.errors import InvalidInput
from temperance.evaluation.calibrators import Calibrator
from temperance.export.formats import find_format
from temperance.export.records import BATCH, ExportOptions, ExportReport
from temperance.training.bundle import Bundle
from temperance.training.ensemble_bundle import MemberBundle
from temperance.training.predict import open_bundle

__all__ = ["export_folder"]

_ROWS = 16  # of the example: drawn, since a folder holds no data, on the scale of prepared inputs


def export_folder(
    folder: str | os.PathLike[str] | Bundle | MemberBundle,
    format: str = "onnx",
    *,
    path: str | os.PathLike[str] | None = None,
    output: str = "logits",
    posthoc: bool | Calibrator = False,
    dynamic_batch: bool = True,
) -> ExportReport:
    """Export the model or the ensemble that a training wrote.

    The inputs of the graph are prepared rows; how to prepare them is in the metadata of the file
    (``preprocess``), with the names of the classes and all temperatures.

    Args:
        folder: of ``temperance train`` or ``temperance ensemble``, or what ``open_bundle`` gave.
        format: a name in ``FORMATS``.
        path: the file; in the folder, under the usual name, if absent.
        output: ``logits`` or ``probs``, see ``ExportOptions``.
        posthoc: put temperatures after training into the graph: True for those of the folder, or
            what ``temperance calibrate`` fitted on logits of this model.
        dynamic_batch: let the batch have any size; else it is 1.

    Returns:
        What was written, and the largest difference to the model of the folder.

    Raises:
        NotFound: for an unknown format.
        InvalidInput: if it is no finished folder, or whatever the format's function refuses.
        MissingPackage: as the format's function.
    """
    row = find_format(format)
    bundle = folder if isinstance(folder, Bundle | MemberBundle) else open_bundle(folder)
    if path is None:
        if isinstance(folder, Bundle | MemberBundle):
            raise InvalidInput(
                "path", expected="a file to write", found="None", fix=f"Pass path={row.file!r}."
            )
        path = Path(folder) / row.file
    generator = torch.Generator().manual_seed(0)
    rows = _ROWS if dynamic_batch else 1
    example = torch.randn(rows, *bundle.preprocess.shape, generator=generator)
    options = ExportOptions(
        output=output,
        posthoc=_posthoc(bundle, posthoc),
        axes=BATCH if dynamic_batch else {},
        metadata=_metadata(bundle),
    )
    model = bundle.ensemble if isinstance(bundle, MemberBundle) else bundle.model
    return row.export(model, path, example, options=options)


def _posthoc(bundle: Bundle | MemberBundle, wanted: bool | Calibrator) -> Any:
    """The temperatures as ``ExportOptions`` takes them."""
    if isinstance(wanted, Calibrator):
        return wanted
    if not wanted:
        return None
    if isinstance(bundle, Bundle):
        return bundle.posthoc_temperature
    values = bundle.posthoc_temperatures
    return values if bundle.when == "before" else values[0]


def _metadata(bundle: Bundle | MemberBundle) -> dict[str, Any]:
    """Facts of the folder that a server needs."""
    if isinstance(bundle, Bundle):
        posthoc = {"temperatures": [bundle.posthoc_temperature], "when": "after"}
    else:
        posthoc = {"temperatures": list(bundle.posthoc_temperatures), "when": bundle.when}
    return {
        "classes": list(bundle.class_map.names),
        "preprocess": bundle.preprocess.to_dict(),
        "feature_names": bundle.config.get("feature_names"),
        "model": bundle.config["model"]["name"],
        "temperature": dict(bundle.config["temperature"]),
        "posthoc_of_folder": posthoc,
        "weights_sha256": bundle.config["sha256"],
    }
