"""The trial: one planned training of a study, and the key that it is known by."""

from __future__ import annotations

import hashlib
import json
import math
import operator
from collections.abc import Mapping
from dataclasses import dataclass, fields
from numbers import Real
from typing import Any

from temperance.errors import InvalidInput

__all__ = [
    "AUGMENTS",
    "LOSSES",
    "NORMS",
    "OPTIMIZERS",
    "PATHS",
    "SCHEDULES",
    "Trial",
    "trial_from_dict",
]

NORMS = ("none", "layer", "batch")
LOSSES = ("plain", "normalized")
OPTIMIZERS = ("sgd", "adamw", "rmsprop")
SCHEDULES = ("cosine", "constant")
PATHS = ("constant", "ramp", "spent", "learned", "hypergradient")
AUGMENTS = ("none", "shift", "shift-flip", "noise")
_CHOICES = {
    "norm": NORMS,
    "loss": LOSSES,
    "optimizer": OPTIMIZERS,
    "schedule": SCHEDULES,
    "path": PATHS,
    "augment": AUGMENTS,
}
_POSITIVE = ("temperature", "lr")
_COUNTS = {"batch_size": 1, "steps": 1, "seed": 0, "train_rows": 2, "feature_dim": 1}
_SHARES = ("momentum", "smoothing", "label_noise")
_LARGEST = 2**63 - 1  # what seeds of torch and columns of Parquet can hold


@dataclass(frozen=True)
class Trial:
    """One planned training. What is equal in every field is the same trial, everywhere.

    Attributes:
        dataset: name of a data set of ``temperance.study.data``, or a path.
        features: how its rows are represented: ``input`` (as they are), or an extractor of
            ``temperance.study.data``, for instance ``pca:64``.
        model: ``probe`` (norm, linear layer, T on frozen features), or a net of
            ``temperance.training.nets``.
        feature_dim: M, for nets whose width can be chosen; None for the model's own.
        norm: in front of the output layer: ``none``, ``layer`` or ``batch``.
        temperature: T in training and at inference; where T moves (``path``), its end or start.
        loss: ``plain`` cross entropy of ``logits / T``, or ``normalized``: that times T, so that T
            changes the shape of the distribution and not the size of the gradient.
        optimizer: ``sgd`` (with momentum, no Nesterov), ``adamw`` or ``rmsprop`` (no momentum).
        lr: peak learning rate, reached at the first step.
        weight_decay: decay of weight matrices; none on norms and biases.
        momentum: for ``sgd``.
        schedule: ``cosine`` (to 0 over all steps) or ``constant``.
        batch_size: rows per step; at most all training rows.
        steps: optimizer steps.
        train_rows: training rows that are used, drawn by class shares; None for all.
        smoothing: label smoothing of the loss, 0 to below 1.
        label_noise: share of training labels that are replaced by another class, 0 to below 1.
        seed: seed of initial weights, batch order and augmentation.
        path: how T moves in training (``temperance.study.networks_paths``): ``constant``; a
            ``ramp`` or by the budget ``spent``, which both end at ``temperature``; ``learned`` or
            by the ``hypergradient``, which both start there. The T at the end is that of inference.
        augment: how training rows are changed at random in each step
            (``temperance.study.augmentation``): ``none``; ``shift`` or ``shift-flip`` for pictures,
            ``noise`` for features.
    """

    dataset: str
    features: str = "input"
    model: str = "probe"
    feature_dim: int | None = None
    norm: str = "none"
    temperature: float = 1.0
    loss: str = "plain"
    optimizer: str = "sgd"
    lr: float = 0.1
    weight_decay: float = 0.0
    momentum: float = 0.9
    schedule: str = "cosine"
    batch_size: int = 64
    steps: int = 1000
    train_rows: int | None = None
    smoothing: float = 0.0
    label_noise: float = 0.0
    seed: int = 0
    path: str = "constant"
    augment: str = "none"

    def __post_init__(self) -> None:
        for name in ("dataset", "features", "model"):
            value = getattr(self, name)
            self._check(name, isinstance(value, str) and value.strip() != "", "a name")
        for name, choices in _CHOICES.items():
            value = getattr(self, name)
            self._check(name, isinstance(value, str) and value in choices, " or ".join(choices))
        for name in ("temperature", "lr", "weight_decay", *_SHARES):
            self._set(name, _number(getattr(self, name)), "a finite number")
        for name in _POSITIVE:
            self._check(name, getattr(self, name) > 0, "a positive number")
        self._check("weight_decay", self.weight_decay >= 0, "0 or more")
        for name in _SHARES:
            self._check(name, 0 <= getattr(self, name) < 1, "a share from 0 to below 1")
        for name, least in _COUNTS.items():
            if getattr(self, name) is None and name in ("train_rows", "feature_dim"):
                continue
            whole = _whole(getattr(self, name), least)
            self._set(name, whole, f"a whole number of {least} or more, below 2**63")

    def _set(self, name: str, value: float | None, expected: str) -> None:
        """Keep a plain Python number, so that equal content has an equal key."""
        self._check(name, value is not None, expected)
        object.__setattr__(self, name, value)

    def _check(self, name: str, good: bool, expected: str) -> None:
        if not good:
            raise InvalidInput(
                f"trial.{name}",
                expected=expected,
                found=_shown(getattr(self, name)),
                fix="Change it in the plan.",
            )

    def to_dict(self) -> dict[str, Any]:
        """Give all fields as a plain mapping."""
        return {f.name: getattr(self, f.name) for f in fields(self)}

    @property
    def key(self) -> str:
        """Digest of the fields that are not at their default: a later field changes no key."""
        content = {
            f.name: getattr(self, f.name)
            for f in fields(self)
            if getattr(self, f.name) != f.default
        }
        text = json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)
        return hashlib.sha256(text.encode()).hexdigest()[:20]

    @property
    def task_content(self) -> dict[str, Any]:
        """The fields that say which task this is: data, representation, size."""
        names = ("dataset", "features", "model", "feature_dim", "train_rows", "label_noise")
        return {name: getattr(self, name) for name in names}

    @property
    def setting(self) -> dict[str, Any]:
        """All fields except temperature and seed: one curve over T in a study."""
        left_out = ("temperature", "seed")
        return {k: v for k, v in self.to_dict().items() if k not in left_out}


def _number(value: object) -> float | None:
    """Give a finite number as a float, without a negative zero; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, Real):
        return None
    try:
        number = float(value)
    except OverflowError:  # a whole number beyond all floats
        return None
    return number + 0.0 if math.isfinite(number) else None


def _whole(value: Any, least: int) -> int | None:
    """Give a whole number as an int; None for anything else and what is out of range."""
    if isinstance(value, bool):
        return None
    if isinstance(value, float) and value.is_integer():
        value = int(value)  # 1e3 in a plan, and what tables make of columns with gaps
    try:
        whole = operator.index(value)  # NumPy's whole numbers too
    except TypeError:
        return None
    return whole if least <= whole <= _LARGEST else None


def _shown(value: object) -> str:
    """Show a value in a sentence; Python refuses to print integers of thousands of digits."""
    try:
        text = repr(value)
    except ValueError:
        return "a number of thousands of digits"
    return text if len(text) <= 60 else text[:57] + "..."


def trial_from_dict(content: Mapping[str, Any]) -> Trial:
    """Make a trial of a mapping; unknown names are refused by name.

    Args:
        content: fields of ``Trial`` by name.

    Returns:
        The trial.

    Raises:
        InvalidInput: for unknown or missing fields, and for values that are out of range.

    Example:
        >>> from temperance.study.trial import trial_from_dict
        >>> trial_from_dict({"dataset": "digits", "temperature": 4}).temperature
        4.0
    """
    known = [f.name for f in fields(Trial)]
    if not isinstance(content, Mapping):
        raise InvalidInput(
            "trial", expected="fields by name", found=_shown(content), fix="Check the file."
        )
    if unknown := sorted(set(content) - set(known), key=str):
        raise InvalidInput(
            "trial",
            expected=f"fields among {', '.join(known)}",
            found=", ".join(map(repr, unknown)),
            fix="Correct the name.",
        )
    if "dataset" not in content:
        raise InvalidInput(
            "trial", expected="a dataset", found="none", fix='Name one, for instance "digits".'
        )
    return Trial(**content)
