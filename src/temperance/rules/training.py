"""What a rule may know of a training: optimizer, learning rate, steps, batches, rows.

The facts are plain numbers and texts under the names below, as ``Task.training`` holds them; a
study's trials use the same names. ``Training`` is these facts, checked.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from temperance.errors import InvalidInput, NotFound
from temperance.records import Task
from temperance.rules.rate_sequence import SCHEDULES, name_of_shares, rates_in

__all__ = [
    "FAMILIES",
    "SCHEDULES",
    "Training",
    "missing_facts",
    "ratio_of_schedule",
    "read_training",
    "steps_of",
]

FAMILIES: Mapping[str, tuple[str, ...]] = {
    "sgd": ("sgd",),
    "adam": ("adamw", "adam", "nadam", "radam"),
    "rmsprop": ("rmsprop",),
}
"""Optimizers by family, class names in lower case: what moves a weight by the same law."""

_LEAST = 1e-15  # a rate that moves no weight; products and quotients of smaller ones may be 0
_LARGEST = 2**63 - 1  # as in the trials of a study
_SAME = 1e-3  # relative difference of two figures that are the same, one of them rounded

_NEEDED = ("optimizer", "lr", "steps", "batch_size", "weight_decay")


@dataclass(frozen=True)
class Training:
    """The facts of one training, checked.

    Attributes:
        optimizer: class name in lower case; one of ``FAMILIES``.
        lr: peak learning rate, > 0.
        steps: optimizer steps of the whole training.
        batch_size: rows of one optimizer step, over all processes; at most ``n`` count.
        n: training rows.
        mean_lr_ratio: mean learning rate over all steps divided by the peak, 0 to 1.
        momentum: of SGD, 0 to below 1; others keep the momentum of their defaults.
        weight_decay: 0 or more.
        label_noise: share of training labels that are wrong, 0 to below 1, where it is known.
        schedule: what gives ``mean_lr_ratio``, in words.
        norm: norm in front of the output layer, where it is known.
        tuned_lr: the peak learning rate that was found to be the best one at T = 1 for this very
            training (same net, data, steps, schedule and momentum), where it is known; else None.
        remarks: what is unusual about the training, in words; no rule knows what it does.

    Raises:
        NotFound: for an optimizer of no family.
        InvalidInput: for numbers out of range.

    Example:
        >>> from temperance.rules.training import Training
        >>> training = Training("sgd", lr=0.1, steps=500, batch_size=64, n=3200, momentum=0.9)
        >>> training.family, training.epochs
        ('sgd', 10.0)
    """

    optimizer: str
    lr: float
    steps: int
    batch_size: int
    n: int
    mean_lr_ratio: float = 1.0
    momentum: float = 0.0
    weight_decay: float = 0.0
    label_noise: float = 0.0
    schedule: str = "constant"
    norm: str = ""
    tuned_lr: float | None = None
    remarks: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        known = [name for names in FAMILIES.values() for name in names]
        if self.optimizer not in known:
            raise NotFound(
                "optimizer",
                found=f"{self.optimizer!r} is none that is known",
                candidates=known,
                fix="Name the one whose steps are of the same kind, or give a rule that does "
                "without the training.",
            )
        for name in ("steps", "batch_size", "n"):
            _set(self, name, _whole(getattr(self, name)), "a whole number from 1 to below 2**63")
        object.__setattr__(self, "batch_size", min(self.batch_size, self.n))
        for name, (expected, good) in _NUMBERS.items():
            value = _number(getattr(self, name))
            _set(self, name, value if good(value) else None, expected)
        if self.tuned_lr is not None:
            tuned = _number(self.tuned_lr)
            expected, good = _NUMBERS["lr"]
            _set(self, "tuned_lr", tuned if good(tuned) else None, f"{expected}, or None")

    @property
    def family(self) -> str:
        """Family of the optimizer."""
        return next(family for family, names in FAMILIES.items() if self.optimizer in names)

    @property
    def epochs(self) -> float:
        """How often each training row is seen."""
        return self.steps * self.batch_size / self.n

    def facts(self) -> dict[str, Any]:
        """Give the facts as ``Task.training`` holds them: plain numbers and texts by name."""
        names = ["optimizer", "lr", "steps", "batch_size", "n", "epochs"]
        names += ["schedule", "mean_lr_ratio", "momentum", "weight_decay"]
        names += [name for name in ("label_noise", "norm", "tuned_lr") if getattr(self, name)]
        facts = {name: getattr(self, name) for name in names}
        return facts | ({"remarks": list(self.remarks)} if self.remarks else {})


_NUMBERS = {
    "lr": ("a positive number, 1e-15 or more", lambda v: v >= _LEAST),
    "mean_lr_ratio": ("a number above 0 (1e-15 or more), at most 1", lambda v: _LEAST <= v <= 1),
    "momentum": ("a number from 0 to below 1", lambda v: 0 <= v < 1),
    "weight_decay": ("a number of 0 or more", lambda v: v >= 0),
    "label_noise": ("a share from 0 to below 1", lambda v: 0 <= v < 1),
}


def _set(training: Training, name: str, value: float | None, expected: str) -> None:
    if value is None:
        raise InvalidInput(
            f"training, {name}",
            expected=expected,
            found=f"{getattr(training, name)!r:.60}",
            fix="Give another value.",
        )
    object.__setattr__(training, name, value)


def _whole(value: Any) -> int | None:
    try:
        whole = 0 if isinstance(value, bool) else operator.index(value)
    except TypeError:
        whole = int(value) if isinstance(value, float) and value.is_integer() else 0
    return whole if 1 <= whole <= _LARGEST else None


def _number(value: Any) -> float:
    """A finite number as a float; NaN, which is in no range, for anything else."""
    try:
        number = math.nan if isinstance(value, bool | str) else float(value)
    except (TypeError, ValueError, OverflowError):
        return math.nan
    return number if math.isfinite(number) else math.nan


# ------------------------------------------------------------------ steps and schedules
def steps_of(
    n: int, batch_size: int, *, epochs: float | None = None, steps: int | None = None
) -> int:
    """Give the optimizer steps of a training, from its epochs where they are not known.

    ``ceil(epochs * ceil(n / batch_size))``: the last batch of an epoch may be smaller.

    Args:
        n: training rows.
        batch_size: rows of one step.
        epochs: passes over the rows.
        steps: optimizer steps.

    Returns:
        Steps.

    Raises:
        InvalidInput: if neither is given, or both are and contradict each other.

    Example:
        >>> from temperance.rules.training import steps_of
        >>> steps_of(1000, 64, epochs=10)
        160
    """
    given = {name: v for name, v in (("epochs", epochs), ("steps", steps)) if v is not None}
    for name, value in {"n": n, "batch_size": batch_size, **given}.items():
        if not _number(value) > 0:
            raise InvalidInput(
                f"training, {name}", expected="above 0", found=f"{value!r:.60}", fix="Change it."
            )
    if epochs is None:
        if steps is None:
            raise InvalidInput(
                "training", expected="epochs or steps", found="neither", fix="Give one of them."
            )
        return steps
    whole = epochs * math.ceil(n / batch_size)
    if not whole <= _LARGEST:
        raise InvalidInput(
            "training, epochs", expected="below 2**63 steps", found=f"{epochs:g}", fix="Change it."
        )
    found = math.ceil(whole - 1e-9)
    if steps is not None and steps != found:
        raise InvalidInput(
            "training, steps",
            expected=f"{found}, which {epochs:g} epochs of {n} rows in batches of {batch_size} are",
            found=str(steps),
            fix="Give epochs or steps, not both.",
        )
    return found


def ratio_of_schedule(schedule: str, steps: int) -> float:
    """Give the mean learning rate of a schedule divided by its peak.

    Args:
        schedule: a name in ``SCHEDULES``. ``cosine`` is ``peak (1 + cos(pi s / steps)) / 2`` in
            step s, from 0; its mean is ``(steps + 1) / (2 steps)`` of the peak.
        steps: optimizer steps.

    Returns:
        The ratio.

    Raises:
        NotFound: for another schedule.

    Example:
        >>> from temperance.rules.training import ratio_of_schedule
        >>> ratio_of_schedule("cosine", 100), ratio_of_schedule("constant", 100)
        (0.505, 1.0)
    """
    if schedule not in SCHEDULES:
        raise NotFound(
            "schedule of the learning rate",
            found=f"{schedule!r:.60}, of which no mean is known",
            candidates=SCHEDULES,
            fix="Name one, or give mean_lr_ratio, the mean learning rate divided by its peak.",
        )
    return 1.0 if schedule == "constant" else (steps + 1) / (2 * steps)


# ------------------------------------------------------------------ reading a task
def missing_facts(task: Task) -> tuple[str, ...]:
    """Name the facts of the training that a task does not have.

    Args:
        task: any task.

    Returns:
        Names; empty when ``read_training`` has all that it needs.

    Example:
        >>> from temperance import Task
        >>> from temperance.rules.training import missing_facts
        >>> missing_facts(Task(64, 10, training={"optimizer": "adamw", "lr": 1e-3}))
        ('steps', 'batch_size', 'weight_decay', 'schedule', 'n')
    """
    facts = task.training
    lacking = [name for name in _NEEDED if facts.get(name) is None]
    schedule = facts.get("schedule")
    named = isinstance(schedule, str)  # what is no text is read, or refused, by read_training
    if facts.get("mean_lr_ratio") is None and (schedule is None or named):
        lacking += ["schedule"] if schedule is None else []
        lacking += ["mean_lr_ratio"] if named and schedule not in SCHEDULES else []
    if _optimizer(facts) in FAMILIES["sgd"] and facts.get("momentum") is None:
        lacking.append("momentum")
    if facts.get("n") is None and task.n_samples is None:
        lacking.append("n")
    return tuple(lacking)


def _texts(value: Any) -> tuple[str, ...]:
    many = isinstance(value, list | tuple)
    return tuple(map(str, value)) if many else () if value is None else (str(value),)


def _optimizer(facts: Mapping[str, Any]) -> str:
    return str(facts.get("optimizer")).lower()


def read_training(task: Task) -> Training:
    """Read the facts of a task's training.

    n is that of the training where it is known there, and else the rows of the task: statistics
    may be measured on fewer rows than are trained on. Momentum counts for SGD only. A schedule is
    a name or the learning rates of all steps, a sequence, an array or a tensor of them.

    Args:
        task: a task whose ``training`` holds the facts.

    Returns:
        The training.

    Raises:
        InvalidInput: if facts are missing or out of range.
        NotFound: for an optimizer that is not known.
    """
    if lacking := missing_facts(task):
        raise InvalidInput(
            "task.training",
            expected=f"the facts of the training: {', '.join(lacking)}",
            found=", ".join(k for k, v in task.training.items() if v is not None) or "none",
            fix="Pass measure(features, training=training_facts(optimizer, loader, epochs)); on "
            "the command line --optimizer, --lr, --steps or --epochs, --batch-size and --n.",
        )
    facts = task.training
    optimizer, steps = _optimizer(facts), facts["steps"]
    schedule, ratio = _schedule(facts)
    return Training(
        optimizer=optimizer,
        lr=facts["lr"],
        steps=steps,
        batch_size=facts["batch_size"],
        n=task.n_samples if facts.get("n") is None else facts["n"],  # type: ignore[arg-type]
        mean_lr_ratio=ratio,
        momentum=facts["momentum"] if optimizer in FAMILIES["sgd"] else 0.0,
        weight_decay=facts["weight_decay"],
        label_noise=facts.get("label_noise") or 0.0,
        schedule=schedule,
        norm=str(facts.get("norm") or ""),
        tuned_lr=facts.get("tuned_lr"),
        remarks=_texts(facts.get("remarks")),
    )


def _schedule(facts: Mapping[str, Any]) -> tuple[str, float]:
    """Name of the schedule, and mean of the learning rate divided by its peak."""
    schedule, ratio = facts.get("schedule"), facts.get("mean_lr_ratio")
    if schedule is not None and not isinstance(schedule, str):
        return _written(schedule, facts)
    schedule = schedule or ""
    if ratio is None:
        # Training refuses bad numbers of steps
        ratio = ratio_of_schedule(schedule, _whole(facts["steps"]) or 1)
    return schedule, ratio


def _written(schedule: Any, facts: Mapping[str, Any]) -> tuple[str, float]:
    """The same of learning rates that are written down: as many as steps, up to the peak."""
    rates = rates_in(schedule)
    steps, peak, ratio = _whole(facts["steps"]), _number(facts["lr"]), facts.get("mean_lr_ratio")
    found = f"a {type(schedule).__name__}"
    if rates is not None:
        mean = sum(rates) / len(rates) / max(rates)
        same = len(rates) == steps and math.isclose(max(rates), peak, rel_tol=_SAME)
        if same and (ratio is None or math.isclose(mean, _number(ratio), rel_tol=_SAME)):
            return name_of_shares([rate / max(rates) for rate in rates], "as given"), mean
        found = f"{len(rates)} rates of up to {max(rates):.4g}, {mean:.4g} of it on average"
    raise InvalidInput(
        "training, schedule",
        expected=f"a name, or {steps} rates of up to {peak:.4g}, as steps and lr"
        f"{'' if ratio is None else ' and mean_lr_ratio'} say",
        found=found,
        fix="Give the learning rate of every step, not shares of one; or a name and mean_lr_ratio, "
        "the mean divided by the peak.",
    )
