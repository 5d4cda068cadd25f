"""``temperance predict`` as a function: classes and calibrated probabilities for new inputs."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from temperance.ensemble import predict_members
from temperance.errors import InvalidInput
from temperance.evaluation.calibrators import Calibrator
from temperance.evaluation.uncertainty import (
    MemberUncertainty,
    member_uncertainty,
    pooled_log_probs,
)
from temperance.labels import ClassMap
from temperance.models import logits_of
from temperance.training.bundle import Bundle, load_bundle
from temperance.training.bundle_config import MEMBERS, kind_of
from temperance.training.ensemble_bundle import MemberBundle, load_members
from temperance.training.inputs import read_inputs

__all__ = ["Prediction", "open_bundle", "predict"]


@dataclass(frozen=True)
class Prediction:
    """What a model or an ensemble says of one input.

    Attributes:
        input: the file, or file and row.
        label: name of the most probable class.
        probability: its probability, after the post-hoc temperatures.
        top: the most probable classes with their probabilities, in falling order.
        total_entropy: of an ensemble: entropy of the mean of its members' probabilities, in nats;
            as in its report before any post-hoc temperature. None of a single model, as are both
            that follow.
        mutual_information: the part of it that the members disagree on, in nats, 0 to ``log M``;
            the rest is the mean entropy of the members.
        disagreement: share of the pairs of members whose most probable classes differ, 0 to 1.
    """

    input: str
    label: str
    probability: float
    top: tuple[tuple[str, float], ...]
    total_entropy: float | None = None
    mutual_information: float | None = None
    disagreement: float | None = None


def open_bundle(folder: str | os.PathLike[str]) -> Bundle | MemberBundle:
    """Load the model or the ensemble of an output folder, whichever is in it.

    Args:
        folder: of ``temperance train`` or ``temperance ensemble``.

    Returns:
        What ``load_bundle`` or ``load_members`` gives.

    Raises:
        InvalidInput: if it is no finished folder of either, or something in it is not whole.
    """
    path = Path(folder)
    return load_members(path) if kind_of(path) == MEMBERS else load_bundle(path)


def predict(
    folder: str | os.PathLike[str] | Bundle | MemberBundle,
    paths: Sequence[str | os.PathLike[str]],
    *,
    top: int = 5,
    calibrator: Calibrator | None = None,
) -> Iterator[Prediction]:
    """Predict the classes of new inputs with the output of a training.

    A model gives ``softmax(logits / T)`` with the post-hoc T of its folder. An ensemble gives the
    mean of its members' probabilities, with the post-hoc temperatures of its folder before or
    after that mean, as they were fitted.

    Args:
        folder: the output folder of a model or an ensemble, or what ``open_bundle`` gave for it.
        paths: what ``temperance.training.inputs.read_inputs`` reads.
        top: number of classes to name.
        calibrator: what ``temperance calibrate`` fitted on logits of this model, or on the
            logarithms of this ensemble's mean probabilities; in place of the post-hoc temperatures
            of the folder.

    Returns:
        An iterator over one prediction per input, in order. How the inputs fall into batches does
        not matter.

    Raises:
        InvalidInput: for a folder or an input that cannot be used.
    """
    bundle = folder if isinstance(folder, (Bundle, MemberBundle)) else open_bundle(folder)
    names = bundle.config.get("feature_names")
    inputs = read_inputs(paths, bundle.preprocess, feature_names=names)
    if calibrator is not None and calibrator.n_classes != len(bundle.class_map):
        raise InvalidInput(
            "calibration",
            expected=f"one for {len(bundle.class_map)} classes, as the model has",
            found=f"{calibrator.n_classes}",
            fix="Fit it on logits of this model.",
        )
    chunks = (bundle.preprocess.apply(rows) for rows in inputs.chunks)
    batches = (_judged(bundle, x, calibrator) for x in chunks)
    return _predictions(bundle.class_map, inputs.ids, batches, min(top, len(bundle.class_map)))


# ------------------------------------------------------------------ one batch
_Judged = tuple[Tensor, MemberUncertainty | None]


def _judged(bundle: Bundle | MemberBundle, x: Tensor, calibrator: Calibrator | None) -> _Judged:
    """Probabilities, and of an ensemble what its members say apart."""
    if isinstance(bundle, MemberBundle):
        return _of_members(bundle, x, calibrator)
    return _of_model(bundle, x, calibrator)


def _of_model(bundle: Bundle, x: Tensor, calibrator: Calibrator | None) -> _Judged:
    with torch.inference_mode():
        logits = logits_of(bundle.model(x)).double()
    if calibrator is None:
        return (logits / bundle.posthoc_temperature).softmax(dim=1), None
    return torch.from_numpy(calibrator.probs(logits.numpy())), None


def _of_members(bundle: MemberBundle, x: Tensor, calibrator: Calibrator | None) -> _Judged:
    logits = predict_members(bundle.ensemble, x).numpy()
    parts = member_uncertainty(logits=logits)
    if calibrator is None:
        return torch.from_numpy(bundle.log_probs(logits)).exp(), parts
    return torch.from_numpy(calibrator.probs(pooled_log_probs(logits=logits))), parts


def _predictions(
    classes: ClassMap, ids: Sequence[str], batches: Iterator[_Judged], top: int
) -> Iterator[Prediction]:
    done = 0
    for probs, parts in batches:
        best = probs.topk(top, dim=1)
        rows = zip(best.values.tolist(), best.indices.tolist(), strict=True)
        for row, (values, places) in enumerate(rows):
            ranked = tuple((classes.names[i], p) for i, p in zip(places, values, strict=True))
            said = Prediction(ids[done + row], ranked[0][0], ranked[0][1], ranked)
            yield said if parts is None else _with_parts(said, parts, row)
        done += len(probs)


def _with_parts(said: Prediction, parts: MemberUncertainty, row: int) -> Prediction:
    return replace(
        said,
        total_entropy=float(parts.total[row]),
        mutual_information=float(parts.mutual_information[row]),
        disagreement=float(parts.disagreement[row]),
    )
