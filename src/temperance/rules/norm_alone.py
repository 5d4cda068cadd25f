"""T = 1 behind a norm: the answer for a known training, where no rule is shown to beat it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from temperance.records import Task
from temperance.rules.domain import Domain

__all__ = ["NormAlone"]


@dataclass(frozen=True)
class NormAlone:
    """The norm with ``T = 1``, for trainings whose optimizer, rate and length are known.

    On data that none of them was fitted on no rule is shown to be better than this by NLL after a
    post-hoc T, so it is the answer where nothing else is asked for. ``expectation`` says what the
    law of the budget, the rule that came nearest, would give, and how it did.

    Example:
        >>> from temperance import Task
        >>> from temperance.rules import NormAlone
        >>> NormAlone()(Task(feature_dim=512, n_classes=10))
        1.0

    Reference:
        Our own finding: docs/evidence, The law of the budget, A second look.
    """

    name: ClassVar[str] = "norm-alone"
    norm: ClassVar[str] = "batch"
    needs: ClassVar[tuple[str, ...]] = ()
    fallback: ClassVar[str | None] = None
    domain: ClassVar[Domain] = Domain(source="no fit: the norm with T = 1")
    reference: ClassVar[str] = "our own comparison, docs/evidence"
    formula: ClassVar[str] = "T = 1"
    trust: ClassVar[str] = "trainings that are known; no rule is shown to beat it on fresh data"

    def norm_of(self, task: Task) -> str:
        """Give the norm of the training, batch where it has none."""
        return str(task.training.get("norm") or self.norm)

    def terms(self, task: Task) -> dict[str, float]:  # noqa: ARG002
        """Give the one term of the rule."""
        return {"constant": 1.0}

    def __call__(self, task: Task) -> float:
        """Give the temperature for a task."""
        return sum(self.terms(task).values())

    def expectation(self, task: Task) -> str:
        """Say what the law of the budget would give, and how it did on unseen data."""
        from temperance.rules.suggestion import RULES  # which imports this module

        law = RULES["budget"]
        if law.why_not(task):
            return ""
        known, temperature = law.expectation(task), law(task)
        if temperature == 1:  # the law itself is T = 1
            return known
        found = "no rule is shown to beat T = 1 on fresh data; over all of them the law of the "
        found += "budget has the smallest mean regret, and it says "
        found += f"T = {temperature:.3g} here (rule budget)"
        return f"{found}: {known}" if known else found
