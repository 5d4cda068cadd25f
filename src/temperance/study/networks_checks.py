"""Can these trials of a net be trained on these rows? Said before any work."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from torch import nn

from temperance.errors import InvalidInput
from temperance.head import LearnedTemperature, check_batches, check_temperature
from temperance.study.networks_net import Prototype
from temperance.study.networks_paths import FREE
from temperance.study.outcome import SPLITS, StudyData
from temperance.study.probe_checks import check_data
from temperance.study.trial import Trial

__all__ = ["check_batch_norm", "check_rows", "check_trials"]


def check_rows(data: StudyData) -> None:
    """Refuse rows that are not features or pictures of one shape, finite, with a class each.

    Args:
        data: the rows.

    Raises:
        InvalidInput: naming the split, and the row where there is one.
    """
    if "train" not in data.x:
        check_data(data)  # says so
    for split in (split for split in SPLITS if split in data.x):
        x = data.x[split]
        if x.ndim not in (2, 4) or x.shape[1:] != data.input_shape:
            raise InvalidInput(
                f"{data.name} ({split})",
                expected="rows [n, M], or pictures [n, channels, height, width], of one shape",
                found=f"shape {list(x.shape)}, and training rows of {list(data.input_shape)}",
                fix="Represent all splits in the same way.",
            )
    flat = {split: x.reshape(len(x), -1) for split, x in data.x.items() if len(x)}
    check_data(replace(data, x=flat))


def check_trials(trials: Sequence[Trial]) -> None:
    """Refuse trials that do not belong together, or whose T no head takes.

    Args:
        trials: the trials.

    Raises:
        InvalidInput: for trials of several architectures, tasks, batch sizes or numbers of steps,
            for a T that is too low, and for a start of a free path beyond the bounds of its T.
    """
    first = {
        **trials[0].task_content,
        "batch_size": trials[0].batch_size,
        "steps": trials[0].steps,
    }
    for place, trial in enumerate(trials):
        check_temperature(trial.temperature)
        if trial.path in FREE:
            LearnedTemperature().check(trial.temperature)
        for name, value in first.items():
            if getattr(trial, name) != value:
                raise InvalidInput(
                    f"trial {place}",
                    expected=f"{name} {value!r}, as in trial 0",
                    found=repr(getattr(trial, name)),
                    fix="Train different nets, tasks, batch sizes or steps in different calls.",
                )


def check_batch_norm(data: StudyData, trial: Trial, prototype: Prototype) -> None:
    """Refuse batches that are too small for a BatchNorm, in the head or in the body.

    Args:
        data: the rows.
        trial: the trial.
        prototype: its net.

    Raises:
        InvalidInput: if there is a BatchNorm and a batch has fewer rows than
            ``temperance.check_batches`` asks for.
    """
    norms = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
    if any(isinstance(module, norms) for module in prototype.net.modules()):
        n = len(data.y["train"])
        check_batches(n, min(n, trial.batch_size), drop_last=True).require_safe()
