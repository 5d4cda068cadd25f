"""Can these trials of a probe be trained on these rows? Said before any work."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from temperance.arrays import first_nonfinite_row
from temperance.errors import InvalidInput
from temperance.head import check_batches
from temperance.study.augmentation import check_augment
from temperance.study.outcome import SPLITS, StudyData
from temperance.study.trial import Trial

__all__ = ["check_data", "check_trials"]


def check_data(data: StudyData) -> None:
    """Refuse rows that are not features of one width, finite, with a class each.

    Args:
        data: the rows.

    Raises:
        InvalidInput: for a split that is absent, empty, not ``[n, M]`` float32, not finite or not
            of the width of the training rows; for labels that are not one class id per row.
    """
    for split in SPLITS:
        name = f"{data.name} ({split})"
        if split not in data.x or split not in data.y or len(data.x[split]) == 0:
            raise InvalidInput(
                name,
                expected="one row or more",
                found="none",
                fix="Give rows for train, val and test.",
            )
        _check_rows(data, split, name)
        _check_labels(data, split, name)


def _check_rows(data: StudyData, split: str, name: str) -> None:
    x, shape = data.x[split], data.x["train"].shape
    if x.ndim != 2 or x.shape[1] == 0:
        raise InvalidInput(
            name,
            expected="features of shape [n, M]",
            found=f"shape {list(x.shape)}",
            fix='Choose an extractor, for instance features="pixels".',
        )
    if x.dtype != np.float32 or x.shape[1] != shape[1]:
        raise InvalidInput(
            name,
            expected=f"float32 rows of {shape[1]} features, as the training rows",
            found=f"{x.dtype} rows of {x.shape[1]}",
            fix="Convert the rows, and represent all splits in the same way.",
        )
    bad = first_nonfinite_row(x)
    if bad is not None:
        column = int(np.argmin(np.isfinite(x[bad])))
        raise InvalidInput(
            name,
            expected="finite numbers",
            found=f"{x[bad, column]} in row {bad}, column {column}",
            fix="Remove or repair that row.",
        )


def _check_labels(data: StudyData, split: str, name: str) -> None:
    y = data.y[split]
    expected = f"a class id from 0 to {data.n_classes - 1} for each of {len(data.x[split])} rows"
    if y.shape != (len(data.x[split]),) or y.dtype != np.int64:
        found = f"{y.dtype} of shape {list(y.shape)}"
    elif y.min() < 0 or y.max() >= data.n_classes:
        bad = int(np.argmax((y < 0) | (y >= data.n_classes)))
        found = f"{y[bad]} in row {bad}"
    else:
        return
    raise InvalidInput(f"labels of {name}", expected=expected, found=found, fix="Correct them.")


def check_trials(data: StudyData, trials: Sequence[Trial]) -> None:
    """Refuse trials that are of another model, do not belong together or do not fit the rows.

    Args:
        data: the rows, checked.
        trials: the trials.

    Raises:
        InvalidInput: for another model than ``probe``, for a T that moves, for trials of several
            tasks, batch sizes or numbers of steps, for another ``feature_dim`` than the rows have,
            for shifts, and for batches that are too small for a BatchNorm.
    """
    n, m = data.x["train"].shape
    for place, trial in enumerate(trials):
        if trial.model != "probe":
            raise InvalidInput(
                f"trial {place}",
                expected="model probe",
                found=trial.model,
                fix="Train networks with temperance.study.networks.train_networks.",
            )
        if trial.path != "constant":
            raise InvalidInput(
                f"trial {place}",
                expected="path constant, which is all that probes have",
                found=trial.path,
                fix="Move T in a net, for instance model mlp.",
            )
        _check_alike(trials[0], trial, place)
    check_augment(data, trials)
    for trial in trials[:1]:
        if trial.feature_dim not in (None, m):
            raise InvalidInput(
                "trial.feature_dim",
                expected=f"{m}, the width of the rows, or none",
                found=str(trial.feature_dim),
                fix="The M of a probe is chosen by its features, for instance pca:64.",
            )
    if any(trial.norm == "batch" for trial in trials):
        check_batches(n, min(n, trials[0].batch_size), drop_last=True).require_safe()


def _check_alike(first: Trial, trial: Trial, place: int) -> None:
    shared = {
        **first.task_content,
        "batch_size": first.batch_size,
        "steps": first.steps,
    }
    for name, value in shared.items():
        if getattr(trial, name) != value:
            raise InvalidInput(
                f"trial {place}",
                expected=f"{name} {value!r}, as in trial 0",
                found=repr(getattr(trial, name)),
                fix="Train trials of different tasks, batch sizes or steps in different calls.",
            )
