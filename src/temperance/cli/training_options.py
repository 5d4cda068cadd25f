"""The options that say how a training will be, for verbs that suggest a temperature for it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from temperance.cli.output import number, print_table

if TYPE_CHECKING:
    from temperance.records import Task

_NEEDED = ("optimizer", "lr", "batch_size")
_MOMENTUM = 0.9  # of SGD, as nearly everybody trains
NORMS = ("batch", "layer", "none")
"""Norms in front of the output layer that rules are for; cosine heads have rules of their own."""


def training_of(
    options: Mapping[str, Any], samples: int | None, *, norm: str | None = None
) -> dict[str, Any]:
    """Make the facts of a training of what was given on the command line.

    Args:
        options: values by name, None where an option was not given.
        samples: training rows.
        norm: in front of the output layer, one of ``NORMS``; None where it was not given.

    Returns:
        The facts; empty if no option was given, the norm alone if that was.

    Raises:
        InvalidInput: if some are missing, contradict each other, or are out of range.
        NotFound: for an optimizer or a schedule that is not known.
    """
    given = {name: value for name, value in options.items() if value is not None}
    if not given:
        return {} if norm is None else {"norm": norm}
    from temperance.errors import InvalidInput
    from temperance.rules.training import FAMILIES, Training, ratio_of_schedule, steps_of

    _check_complete(given, samples)
    assert samples is not None
    optimizer = str(given["optimizer"]).lower()
    sgd = optimizer in FAMILIES["sgd"]
    if "momentum" in given and not sgd:
        raise InvalidInput(
            "--momentum",
            expected="the optimizer sgd, whose momentum it is",
            found=optimizer,
            fix="Leave it out; the law was fitted on the defaults of the other optimizers.",
        )
    batch = int(given["batch_size"])
    steps = steps_of(samples, batch, epochs=given.get("epochs"), steps=given.get("steps"))
    schedule = str(given.get("schedule", "cosine"))
    return Training(
        optimizer=optimizer,
        lr=given["lr"],
        steps=steps,
        batch_size=batch,
        n=samples,
        mean_lr_ratio=ratio_of_schedule(schedule, steps),
        momentum=given.get("momentum", _MOMENTUM if sgd else 0.0),
        weight_decay=given.get("weight_decay", 0.0),
        label_noise=given.get("label_noise", 0.0),
        schedule=schedule,
        norm=norm or "",
        tuned_lr=given.get("tuned_lr"),
    ).facts()


def _check_complete(given: Mapping[str, Any], samples: int | None) -> None:
    from temperance.errors import InvalidInput

    lacking = [f"--{name.replace('_', '-')}" for name in _NEEDED if name not in given]
    lacking += [] if "steps" in given or "epochs" in given else ["--steps or --epochs"]
    lacking += [] if samples is not None else ["--n"]
    if lacking:
        raise InvalidInput(
            "training",
            expected=f"all of it: {', '.join(lacking)} too",
            found=", ".join(f"--{name.replace('_', '-')}" for name in given),
            fix="Give them, or none; without them a rule that sees no training answers.",
        )


def print_training(rule: Any, task: Task) -> None:
    """Print each fact that the domain of a rule is about, beside what its runs had."""
    compared = getattr(getattr(rule, "domain", None), "compared", None)
    if not callable(compared):
        return
    rows = [[name, _text(here), _seen(seen)] for name, (here, seen) in compared(task).items()]
    print_table(f"Domain: {rule.domain.source}", ("fact", "here", "fitted on"), rows)


def _text(value: Any) -> str:
    return number(float(value), 6) if isinstance(value, int | float) else str(value)


def _seen(seen: tuple[Any, ...]) -> str:
    numbers = all(isinstance(value, int | float) for value in seen)
    return f"{_text(seen[0])} to {_text(seen[1])}" if numbers else ", ".join(map(str, seen))
