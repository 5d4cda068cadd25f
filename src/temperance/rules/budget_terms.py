"""The terms that the law of the budget can be made of: a closed table, and statistics."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from temperance.errors import InvalidInput, NotFound
from temperance.records import Task
from temperance.rules.statistics import parse_term, term_value
from temperance.rules.training import Training

__all__ = [
    "FACTS",
    "TERMS",
    "check_term",
    "fact_value",
    "facts_of",
    "statistics_in",
    "value_of_term",
]

FACTS = (
    "M", "C", "n", "steps", "lr", "mean_lr", "mean_lr_ratio", "progress", "batch_size", "epochs",
    "lr/tuned_lr", "momentum", "weight_decay", "label_noise",
)  # fmt: skip
"""Numbers of a task and its training, by name; the domain of the law is given in them. How far an
optimizer can go is ``progress = mean_lr * steps / (1 - momentum)``; ``lr/tuned_lr`` is NaN where no
tuned rate is known."""

_LOGS = FACTS[: FACTS.index("momentum")]  # these are positive

Facts = Mapping[str, Any]


def facts_of(task: Task, training: Training) -> dict[str, Any]:
    """Give the facts that terms are made of: the numbers of ``FACTS``, and the norm.

    Args:
        task: the task.
        training: its training. One that does not say its norm has that of the rule, batch.

    Returns:
        Values by name.
    """
    computed = ("M", "C", "mean_lr", "progress", "lr/tuned_lr")
    names = [name for name in FACTS if name not in computed]
    mean_lr = training.lr * training.mean_lr_ratio
    return {
        "M": task.feature_dim,
        "C": task.n_classes,
        "mean_lr": mean_lr,
        "progress": mean_lr * training.steps / (1 - training.momentum),
        "lr/tuned_lr": training.lr / (training.tuned_lr or math.nan),
        "norm": training.norm or "batch",
        **{name: getattr(training, name) for name in names},
    }


def _log_of(name: str) -> Callable[[Facts], float]:
    return lambda facts: math.log(facts[name])


def _log_decay(facts: Facts) -> float:
    return math.log(facts["weight_decay"]) if facts["weight_decay"] > 0 else 0.0


TERMS: Mapping[str, Callable[[Facts], float]] = MappingProxyType(
    {f"log({name})": _log_of(name) for name in _LOGS}
    | {
        "-log(1-momentum)": lambda facts: -math.log1p(-facts["momentum"]),
        "decays": lambda facts: float(facts["weight_decay"] > 0),
        "decays * log(weight_decay)": _log_decay,
        "log(1+weight_decay*progress)": lambda facts: math.log1p(
            facts["weight_decay"] * facts["progress"]
        ),
        "label_noise": lambda facts: facts["label_noise"],
        "log(1+label_noise)": lambda facts: math.log1p(facts["label_noise"]),
        "norm=layer": lambda facts: float(facts["norm"] == "layer"),
        "norm=none": lambda facts: float(facts["norm"] == "none"),
    }
)
"""Terms by name; ``decays`` and ``norm=`` are 1 or 0. Besides these a term is

- ``log(progress/(progress+K))``, K a positive number: progress that counts up to a bound,
- a statistic of the task, as ``NAME`` or ``log(NAME)``,
- a product of two terms, written ``A * B``."""

_BOUNDED = re.compile(r"log\(progress/\(progress\+(?P<bound>[0-9.e+-]+)\)\)")


def _bound(name: str) -> float | None:
    """K of a bounded progress; None for another term."""
    found = _BOUNDED.fullmatch(name)
    try:
        bound = float(found["bound"]) if found else 0.0
    except ValueError:
        return None
    return bound if 0 < bound < math.inf else None


def fact_value(name: str, task: Task, training: Training) -> float:
    """Give a number that the domain of the law is about: one of ``FACTS`` or a statistic.

    Args:
        name: its name.
        task: the task.
        training: its training.

    Returns:
        The number.

    Raises:
        InvalidInput: if the task lacks the statistic.

    Example:
        >>> from temperance import Task
        >>> from temperance.rules.budget_terms import fact_value
        >>> from temperance.rules.training import Training
        >>> training = Training("sgd", lr=0.1, steps=50, batch_size=64, n=640)
        >>> fact_value("epochs", Task(64, 10), training)
        5.0
    """
    return float(facts_of(task, training)[name]) if name in FACTS else term_value(name, task)


def value_of_term(name: str, task: Task, training: Training) -> float:
    """Give the value of a term, without its coefficient.

    Args:
        name: a name in ``TERMS``, a statistic, or a product ``A * B``.
        task: the task.
        training: its training.

    Returns:
        The value; minus infinity for the logarithm of a statistic that is 0.

    Raises:
        InvalidInput: if the task lacks the statistic.

    Example:
        >>> from temperance import Task
        >>> from temperance.rules.budget_terms import value_of_term
        >>> from temperance.rules.training import Training
        >>> training = Training("sgd", lr=0.1, steps=50, batch_size=64, n=640)
        >>> round(value_of_term("log(M)", Task(64, 10), training), 4)
        4.1589
    """
    facts = facts_of(task, training)
    if name in TERMS:
        return TERMS[name](facts)
    if " * " in name:
        first, second = name.split(" * ")
        return value_of_term(first, task, training) * value_of_term(second, task, training)
    if bound := _bound(name):
        return -math.log1p(bound / facts["progress"])
    return term_value(name, task)


def check_term(name: str) -> None:
    """Refuse a term that is neither in the table nor a statistic nor a product of two.

    Args:
        name: the term.

    Raises:
        NotFound: for any other text, such as the logarithm of a fact that has none.
    """
    parts = [name] if name in TERMS else name.split(" * ")
    if len(parts) == 2:
        for part in parts:
            check_term(part)
        return
    if len(parts) > 2 or not _is_known(name):
        raise NotFound(
            "term of the law",
            found=f"no {name!r:.60}",
            candidates=tuple(TERMS),
            fix="Name one, a statistic, or a product of two.",
        )


def _is_known(name: str) -> bool:
    if name in TERMS or _bound(name):
        return True
    try:
        return parse_term(name)[0] not in (*FACTS, "")
    except InvalidInput:
        return False


def statistics_in(names: tuple[str, ...]) -> tuple[str, ...]:
    """Name the statistics that terms are made of.

    Args:
        names: terms.

    Returns:
        Statistics, each once.

    Example:
        >>> from temperance.rules.budget_terms import statistics_in
        >>> statistics_in(("log(M)", "log(csg)", "log(steps) * knn_accuracy"))
        ('csg', 'knn_accuracy')
    """
    parts = [part for name in names if name not in TERMS for part in name.split(" * ")]
    own = [part for part in parts if part not in TERMS and not _bound(part)]
    return tuple(dict.fromkeys(parse_term(part)[0] for part in own))
