"""A heuristic of statistics of the task: the logarithm of T as a sum of few terms."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import ClassVar

from temperance.errors import InvalidInput
from temperance.records import Task
from temperance.rules.domain import Domain, check_field

__all__ = ["SIZES", "StatisticsRule", "parse_term", "term_value", "variable_value"]

SIZES = ("M", "C", "n")
"""What a term can be made of besides statistics: feature dimension, classes, training rows."""

_TERM = re.compile(r"log\((?P<inner>[^()]+)\)|(?P<plain>[^()]+)")


def parse_term(text: str) -> tuple[str, bool]:
    """Read a term: ``"log(NAME)"`` or ``"NAME"``.

    Args:
        text: NAME is ``M``, ``C``, ``n`` or the name of a statistic.

    Returns:
        The name, and whether its logarithm is meant.

    Raises:
        InvalidInput: if the text is of another form.

    Example:
        >>> from temperance.rules.statistics import parse_term
        >>> parse_term("log(M)"), parse_term("silhouette")
        (('M', True), ('silhouette', False))
    """
    found = _TERM.fullmatch(text) if isinstance(text, str) else None
    if found is None:
        raise InvalidInput(
            "term of a rule",
            expected="NAME or log(NAME), NAME a statistic, M, C or n",
            found=repr(text),
            fix='For instance "log(M)".',
        )
    return (found["inner"] or found["plain"]).strip(), found["inner"] is not None


def variable_value(name: str, task: Task) -> float:
    """Give M, C, n or a statistic of a task.

    Args:
        name: ``M``, ``C``, ``n`` or the name of a statistic.
        task: the task.

    Returns:
        The number.

    Raises:
        InvalidInput: if the task does not have it.
    """
    sizes = {"M": task.feature_dim, "C": task.n_classes, "n": task.n_samples}
    value = sizes[name] if name in sizes else task.statistics.get(name)
    if value is None:
        raise InvalidInput(
            "task",
            expected="the number of training rows, n" if name == "n" else f"the statistic {name}",
            found="none",
            fix="Pass n_samples (--samples)." if name == "n" else "Measure or give it.",
        )
    return float(value)


@dataclass(frozen=True)
class StatisticsRule:
    """The logarithm of T as a weighted sum: ``log T = offset + sum_i coefficient_i * term_i``.

    A term is a statistic of the task, or M, C or n, as it is or as its natural logarithm.

    Args:
        offset: log T where all terms are 0.
        coefficients: pairs of term and coefficient, such as ``(("log(M)", 0.5),)``.

    Example:
        >>> from temperance import Task
        >>> from temperance.rules import StatisticsRule
        >>> rule = StatisticsRule(0.0, (("log(M)", 0.5),))  # the same as sqrt(M)
        >>> round(rule(Task(feature_dim=256, n_classes=10)), 6)
        16.0

    Reference:
        The idea, temperature from statistics of frozen features: R. Chamand et al.,
        arXiv 2210.09715. The form, a sum of logarithms, is ours: best temperatures vary by factors.
    """

    offset: float
    coefficients: tuple[tuple[str, float], ...] = ()

    name: ClassVar[str] = "statistics"
    norm: ClassVar[str] = "none"
    fallback: ClassVar[str | None] = "constant"
    domain: ClassVar[Domain] = Domain(source="no fit: coefficients as given")
    reference: ClassVar[str] = "after arXiv 2210.09715; coefficients from a fit"
    formula: ClassVar[str] = "T = exp(offset + sum of coefficient * term)"
    trust: ClassVar[str] = "tasks and trainings like those of its fit"

    def __post_init__(self) -> None:
        pairs = tuple((str(term), float(value)) for term, value in self.coefficients)
        object.__setattr__(self, "coefficients", pairs)
        for term, _ in pairs:
            parse_term(term)
        numbers = (self.offset, *(value for _, value in pairs))
        check_field(self, "coefficients", all(map(math.isfinite, numbers)), "finite numbers")
        unique = len({term for term, _ in pairs}) == len(pairs)
        check_field(self, "coefficients", unique, "every term once")

    @property
    def needs(self) -> tuple[str, ...]:
        """The statistics that the terms are made of."""
        names = (parse_term(term)[0] for term, _ in self.coefficients)
        return tuple(dict.fromkeys(name for name in names if name not in SIZES))

    def log_terms(self, task: Task) -> dict[str, float]:
        """Give the shares that add up to log T; a logarithm of 0 is minus infinity."""
        return {
            "offset": self.offset,
            **{term: value * term_value(term, task) for term, value in self.coefficients},
        }

    def terms(self, task: Task) -> dict[str, float]:
        """Give the factors whose product is T."""
        return {name: _exp(share) for name, share in self.log_terms(task).items()}

    def __call__(self, task: Task) -> float:
        """Give the temperature for a task; NaN where a term does not exist."""
        return _exp(sum(self.log_terms(task).values()))


def term_value(term: str, task: Task) -> float:
    """Give the value of a term for a task.

    Args:
        term: ``"log(NAME)"`` or ``"NAME"``.
        task: the task.

    Returns:
        The number; minus infinity for the logarithm of 0, NaN for that of a negative number.

    Raises:
        InvalidInput: if the task does not have it.

    Example:
        >>> from temperance import Task
        >>> from temperance.rules.statistics import term_value
        >>> round(term_value("log(M)", Task(64, 10)), 4)
        4.1589
    """
    name, logarithm = parse_term(term)
    value = variable_value(name, task)
    if not logarithm:
        return value
    if value == 0:
        return -math.inf
    return math.log(value) if value > 0 else math.nan


def _exp(value: float) -> float:
    try:
        return math.exp(value)
    except OverflowError:
        return math.inf
