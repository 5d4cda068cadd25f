"""What goes into the engines of a study, and what comes out of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from numpy.typing import NDArray

from temperance.study.trial import Trial

__all__ = ["SPLITS", "Outcome", "StudyData"]

SPLITS = ("train", "val", "test")


@dataclass(frozen=True, eq=False)
class StudyData:
    """The rows of one task, in the form that a model takes.

    Attributes:
        name: the data set.
        x: rows by split (``train``, ``val``, ``test``): float32, ``[n, M]`` for features or
            ``[n, channels, height, width]`` for pictures; C-contiguous, finite.
        y: class ids by split, int64, ``0 .. n_classes - 1``.
        n_classes: C.
        source: what the rows are, in words.
    """

    name: str
    x: Mapping[str, NDArray[Any]]
    y: Mapping[str, NDArray[Any]]
    n_classes: int
    source: str = "input"

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one row."""
        return tuple(self.x["train"].shape[1:])


@dataclass(frozen=True, eq=False)
class Outcome:
    """What one trial gave.

    Attributes:
        trial: what was planned.
        outcome: ``done``; ``diverged``, the loss or a weight became no finite number; or
            ``failed``, an error.
        message: why, for the last two.
        logits: logits *divided by T*, so that softmax of them is what the model says, float32
            ``[n, C]`` for ``val`` and ``test``; None unless done.
        history: curves by name, each a tuple over ``history["step"]``: ``train_loss`` (nats, of
            the plain cross entropy of rows as they are trained on, mean over the steps since the
            last entry), ``val_nll`` (nats), ``val_accuracy`` (share); ``temperature`` where T
            moves, whose last entry is the T of inference.
        seconds: CPU seconds of this trial; its share where trials ran side by side.
        feature_dim: the true M, in_features of the output layer.
    """

    trial: Trial
    outcome: str
    message: str = ""
    logits: Mapping[str, NDArray[Any]] | None = None
    history: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    seconds: float = 0.0
    feature_dim: int = 0
