"""Rules with coefficients of your own runs: the rule, where it was fitted, and how."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from temperance.errors import InvalidInput, NotFound
from temperance.records import Task
from temperance.rules.fitted_domain import FittedDomain
from temperance.rules.statistics import StatisticsRule
from temperance.rules.suggestion import RULES

__all__ = ["FittedRule"]

_NORMS = ("none", "layer", "batch", "cosine")


@dataclass(frozen=True)
class FittedRule:
    """A rule with the coefficients of a fit, and with the domain of that fit as its own.

    It is a rule like any other: ``rule(task)`` gives T, ``suggest(task, rule)`` a suggestion.

    Attributes:
        rule: the rule with its new coefficients.
        domain: the tasks it was fitted on.
        norm: normalization of the runs: ``none``, ``layer`` or ``batch``.
        fallback: rule of ``RULES`` that answers outside the domain; None, the default, lets the
            rule's own formula answer where its value can be used (``suggest`` says that it was
            extrapolated) and T = 1 elsewhere. A published rule would speak of other trainings.
        fit: how it was fitted: objective, data sets, intervals, versions, ... Its ``datasets`` are
            those that the rule must not be judged on.

    Example:
        >>> from temperance import Task, suggest
        >>> from temperance.rules import FittedDomain, FittedRule, HasegawaSakai
        >>> domain = FittedDomain(feature_dim=(16, 1024), n_classes=(2, 100), source="my runs")
        >>> rule = FittedRule(HasegawaSakai(alpha=0.2, beta=1.0), domain, norm="batch")
        >>> s = suggest(Task(feature_dim=256, n_classes=10), rule)
        >>> round(s.temperature, 2), s.rule, s.in_domain
        (4.2, 'hasegawa-sakai (fitted)', True)
    """

    rule: Any
    domain: FittedDomain
    norm: str
    fallback: str | None = None
    fit: Mapping[str, Any] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        if not isinstance(self.norm, str) or self.norm not in _NORMS:
            raise InvalidInput(
                "fitted rule, norm",
                expected=" or ".join(_NORMS),
                found=repr(self.norm),
                fix="Name the norm of the runs.",
            )
        if self.fallback is not None and self.fallback not in tuple(RULES):
            raise NotFound(
                "fitted rule, fallback",
                found=f"there is no rule {self.fallback!r}",
                candidates=tuple(RULES),
                fix="Name one of them, or none.",
            )
        names = self.fit.get("datasets", ()) if isinstance(self.fit, Mapping) else None
        if not isinstance(names, list | tuple) or not all(isinstance(n, str) for n in names):
            raise InvalidInput(
                "fitted rule, fit",
                expected="facts by name, its datasets as a list of names",
                found=f"{self.fit!r:.80}",
                fix="Name the data sets of the fit; the rule must not be judged on them.",
            )

    @property
    def name(self) -> str:
        """Name of the rule, marked as fitted: it is another than the published one."""
        return f"{self.rule.name} (fitted)"

    @property
    def needs(self) -> tuple[str, ...]:
        """Statistics that the rule needs."""
        return tuple(self.rule.needs)

    @property
    def fitted_on(self) -> tuple[str, ...]:
        """Data sets of the fit: the rule must not be judged on them."""
        return tuple(self.fit.get("datasets", ()))

    @property
    def upper(self) -> float:
        """Upper clip of the rule; not there where the rule has none."""
        return float(self.rule.upper)

    @property
    def eps(self) -> float:
        """Lower clip of the rule; not there where the rule has none."""
        return float(self.rule.eps)

    @property
    def coefficients(self) -> dict[str, float]:
        """All numbers of the rule by name."""
        return _coefficients(self.rule)

    def terms(self, task: Task) -> dict[str, float]:
        """Give the terms of the rule, where it has any."""
        terms = getattr(self.rule, "terms", None)
        return dict(terms(task)) if callable(terms) else {}

    def __call__(self, task: Task) -> float:
        """Give the temperature for a task."""
        return float(self.rule(task))


def _coefficients(rule: Any) -> dict[str, float]:
    if isinstance(rule, StatisticsRule):
        return {"offset": rule.offset, **dict(rule.coefficients)}
    return {f.name: float(getattr(rule, f.name)) for f in fields(rule)}
