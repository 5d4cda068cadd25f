"""``temperance predict`` as a function: classes and calibrated probabilities for new inputs."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from temperance.errors import InvalidInput
from temperance.evaluation.calibrators import Calibrator
from temperance.models import logits_of
from temperance.training.bundle import Bundle, load_bundle
from temperance.training.inputs import read_inputs

__all__ = ["Prediction", "predict"]


@dataclass(frozen=True)
class Prediction:
    """What a model says of one input.

    Attributes:
        input: the file, or file and row.
        label: name of the most probable class.
        probability: its probability, after the post-hoc T.
        top: the most probable classes with their probabilities, in falling order.
    """

    input: str
    label: str
    probability: float
    top: tuple[tuple[str, float], ...]


def predict(
    folder: str | os.PathLike[str] | Bundle,
    paths: Sequence[str | os.PathLike[str]],
    *,
    top: int = 5,
    calibrator: Calibrator | None = None,
) -> Iterator[Prediction]:
    """Predict the classes of new inputs with the output of a training.

    Args:
        folder: the output folder, or what ``load_bundle`` gave for it.
        paths: what ``temperance.training.inputs.read_inputs`` reads.
        top: number of classes to name.
        calibrator: what ``temperance calibrate`` fitted on logits of this model; in place of the
            post-hoc T of the folder.

    Returns:
        An iterator over one prediction per input, in order; ``softmax(logits / T)`` with the
        post-hoc T of the folder, or what the calibrator gives.

    Raises:
        InvalidInput: for a folder or an input that cannot be used.
    """
    bundle = folder if isinstance(folder, Bundle) else load_bundle(folder)
    names = bundle.config.get("feature_names")
    inputs = read_inputs(paths, bundle.preprocess, feature_names=names)
    if calibrator is not None and calibrator.n_classes != len(bundle.class_map):
        raise InvalidInput(
            "calibration",
            expected=f"one for {len(bundle.class_map)} classes, as the model has",
            found=f"{calibrator.n_classes}",
            fix="Fit it on logits of this model.",
        )
    batches = _probs(bundle, inputs.chunks, calibrator)
    return _predictions(bundle, inputs.ids, batches, min(top, len(bundle.class_map)))


def _probs(
    bundle: Bundle, chunks: Iterator[NDArray[Any]], calibrator: Calibrator | None
) -> Iterator[Tensor]:
    for rows in chunks:
        with torch.inference_mode():
            logits = logits_of(bundle.model(bundle.preprocess.apply(rows))).double()
        if calibrator is None:
            yield (logits / bundle.posthoc_temperature).softmax(dim=1)
        else:
            yield torch.from_numpy(calibrator.probs(logits.numpy()))


def _predictions(
    bundle: Bundle, ids: Sequence[str], batches: Iterator[Tensor], top: int
) -> Iterator[Prediction]:
    done = 0
    for probs in batches:
        best = probs.topk(top, dim=1)
        for values, places in zip(best.values.tolist(), best.indices.tolist(), strict=True):
            ranked = tuple(
                (bundle.class_map.names[i], p) for i, p in zip(places, values, strict=True)
            )
            yield Prediction(ids[done], ranked[0][0], ranked[0][1], ranked)
            done += 1
