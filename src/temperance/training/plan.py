"""The nouns of the main job: what is planned, what is ready before training, what came out."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from torch import Tensor

from temperance.errors import InvalidInput
from temperance.records import Run, Suggestion, Task
from temperance.training.arms import DEFAULT_ARMS, Arm
from temperance.training.dataset import DataSet
from temperance.training.loop import Budget
from temperance.training.preprocess import Preprocess
from temperance.training.splits import Splits

__all__ = ["Plan", "Prepared", "Progress", "Scored"]


@dataclass(frozen=True)
class Plan:
    """All that a comparison is asked to do; written to ``plan.json``.

    Attributes:
        source: the data, see ``temperance.training.sources.open_data``.
        model: ``convnet``, ``resnet``, ``vit``, ``mlp``, ``probe``, or a timm or torchvision name.
        feature_dim: M of the library's own nets; None for their default and for other models.
        weights: local safetensors file to start from, or None.
        arms: texts that ``temperance.training.arms.parse_arm`` reads.
        seeds: number of seeds, ``0 .. seeds - 1``.
        budget: what each training may spend.
        rule: name of the rule that ``T=suggested`` follows; None for the default.
        tuned_lr: the peak learning rate that was best at T = 1 for this very training, where it was
            tuned; rules that use it (``budget``) give another T than for a rate that was not.
        train_rows: train on a stratified subset of that many rows.
        image_size: side of the pictures; None for the default of data and model.
        on_bad: ``error`` or ``skip``, for pictures that cannot be read.
        label: name of the label column in tables.
        ignore: labels whose rows are left out.
        split_seed: seed of the splits and of the measurements.
        bins: bins of the ECE.
        device: where to train.
        workers: runs side by side, each in a process of its own on one thread; 1 trains in this
            process, on PyTorch's threads.
    """

    source: str
    model: str = "auto"
    feature_dim: int | None = None
    weights: str | None = None
    arms: tuple[str, ...] = DEFAULT_ARMS
    seeds: int = 3
    budget: Budget = field(default_factory=Budget)
    rule: str | None = None
    tuned_lr: float | None = None
    train_rows: int | None = None
    image_size: int | None = None
    on_bad: Literal["error", "skip"] = "error"
    label: str = "label"
    ignore: tuple[str, ...] = ()
    split_seed: int = 0
    bins: int = 15
    device: str = "cpu"
    workers: int = 1

    def __post_init__(self) -> None:
        given = self.tuned_lr
        number = isinstance(given, int | float) and not isinstance(given, bool)
        if given is not None and not (number and 0 < given < math.inf):
            raise InvalidInput(
                "plan, tuned_lr",
                expected="a positive number: the learning rate that was best at T = 1",
                found=f"{given!r:.60}",
                fix="Give another, or leave it out.",
            )

    def to_dict(self) -> dict[str, Any]:
        """Give the plan as a plain mapping."""
        return json.loads(json.dumps(asdict(self)))


@dataclass(frozen=True, eq=False)
class Prepared:
    """What is there before the first training step.

    Attributes:
        plan: the plan.
        data: the data set, scanned.
        splits: which rows train, fit and judge.
        preprocess: how rows become inputs.
        model_name: full name of the net that was chosen.
        task: the measured task.
        suggestion: the suggested temperature.
        arms: the arms, with their temperatures.
        notices: what people should know, in words.
    """

    plan: Plan
    data: DataSet
    splits: Splits
    preprocess: Preprocess
    model_name: str
    task: Task
    suggestion: Suggestion
    arms: tuple[Arm, ...]
    notices: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Scored:
    """One run with its logits.

    Attributes:
        run: the run's record.
        fit: logits of the fit rows, float32, ``[n_fit, C]``; None unless the run is done.
        test: logits of the test rows.
    """

    run: Run
    fit: Tensor | None = None
    test: Tensor | None = None


@dataclass(frozen=True)
class Progress:
    """Called while the work goes on; every one may be left out.

    Attributes:
        stage: called with a text when a stage begins.
        scan: called with pictures done of all.
        epoch: called with arm title, seed, and epochs done of all and in all.
    """

    stage: Callable[[str], None] = lambda _: None
    scan: Callable[[int, int], None] = lambda *_: None
    epoch: Callable[[str, int, int, int], None] = lambda *_: None
