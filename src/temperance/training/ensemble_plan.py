"""What ``temperance ensemble`` is asked to do, checked before any work."""

from __future__ import annotations

import json
import math
import numbers
import operator
from dataclasses import asdict, dataclass
from typing import Any

from temperance.ensemble import (
    FORMS,
    GAMMA_RATE,
    HEADS,
    INITS,
    LOSSES,
    PROTOCOLS,
    SPREAD,
    START,
)
from temperance.errors import InvalidInput
from temperance.evaluation.member_temperature import POOLING
from temperance.head import check_temperature
from temperance.training.plan import Plan

__all__ = ["STRENGTHS", "SUGGESTED", "TAU", "EnsemblePlan", "Method"]

TAU = 0.2
"""Default tau: that of the settings that studies/sigma_ensemble compared; the paper states none."""

STRENGTHS = {"paper": 1e-3, "range": 5.0}
"""Default strength of the diversity term by its form. ``paper``: among the best on fit rows in
studies/sigma_ensemble. ``range``: what that is there, for 336 to 672 features of ResNets at tau 0.2
(3.2 to 6.4 nats)."""

SUGGESTED = "suggested"


@dataclass(frozen=True)
class Method:
    """One way to predict, trained over all seeds.

    Attributes:
        name: ``single``, ``deep``, or ``sigma:tau=0.2``.
        title: its name for tables and plots.
        members: how many members it has.
        tau: of the diversity term; None where there is none.
    """

    name: str
    title: str
    members: int = 1
    tau: float | None = None

    @property
    def shared(self) -> bool:
        """Whether its members share one backbone."""
        return self.name.startswith("sigma")


@dataclass(frozen=True)
class EnsemblePlan:
    """All that is asked for; written to ``plan.json``.

    Attributes:
        training: data, net, weights, seeds and budget, as for ``temperance train``; its arms are
            not used.
        members: M, 1 or more.
        taus: of the diversity term, each trained by itself; the term is left out for one member.
        strength: of the diversity term, 0 or more; None for that of ``STRENGTHS``.
        form: ``paper`` or ``range``, see ``diversity_loss``.
        gamma_rate: how much faster gamma learns.
        protocol: ``repeat`` or ``split``, see ``Ensemble``.
        of: ``members`` or ``mean``, see ``member_loss``.
        init: ``function`` or ``paper``, see ``convert``.
        heads: ``copy`` or ``fresh``; None for copies of loaded weights, and fresh ones else.
        start: where gamma starts.
        spread: of gamma around its start.
        temperature: T of every member's output layer, of the single model's, too: ``suggested`` (by
            the rule of the plan, with its norm), ``1`` (the plain layer), or a number (with the
            rule's norm).
        when: post-hoc temperatures ``after`` or ``before`` the members are averaged.
        deep: train a deep ensemble of as many members, too.

    Raises:
        InvalidInput: for whatever is out of range or does not go together.

    Example:
        >>> from temperance.training.ensemble_plan import EnsemblePlan
        >>> from temperance.training.plan import Plan
        >>> plan = EnsemblePlan(Plan("digits"), members=4, taus=(0.1, 0.5), deep=True)
        >>> [method.name for method in plan.methods]
        ['single', 'deep', 'sigma:tau=0.1', 'sigma:tau=0.5']

    Reference:
        "Controllable diversity in normalization-based implicit ensembles via softmax-temperature
        modulation" (sigmaN-Ens), arXiv 2607.23860.
    """

    training: Plan
    members: int = 4
    taus: tuple[float, ...] = (TAU,)
    strength: float | None = None
    form: str = "paper"
    gamma_rate: float = GAMMA_RATE
    protocol: str = "repeat"
    of: str = "members"
    init: str = "function"
    heads: str | None = None
    start: float = START
    spread: float = SPREAD
    temperature: str | float = "1"
    when: str = "after"
    deep: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "members", _whole("members", self.members))
        if self.strength is None:
            object.__setattr__(self, "strength", STRENGTHS.get(self.form, 0.0))
        object.__setattr__(self, "taus", tuple(self.taus))
        _check_taus(self.taus, self.members)
        _number("strength", self.strength, least=0.0, open_=False)
        _number("start", self.start, least=-math.inf, open_=True)
        _number("spread", self.spread, least=0.0, open_=False)
        _number("gamma_rate", self.gamma_rate, least=0.0, open_=True)
        for name, known in _CHOICES.items():
            value = getattr(self, name)
            if value not in known and not (name == "heads" and value is None):
                subject = _SAID.get(name, name)
                raise _invalid(subject, " or ".join(known), repr(value), "Choose one of them.")
        _fixed_temperature(self.temperature)
        self._check_split()

    @property
    def fixed_temperature(self) -> float | None:
        """T as a number; None where a rule suggests it."""
        return _fixed_temperature(self.temperature)

    @property
    def member_heads(self) -> str:
        """How the members' output layers start."""
        return self.heads or ("fresh" if self.training.weights is None else "copy")

    @property
    def methods(self) -> tuple[Method, ...]:
        """What is trained, the single model first."""
        deep = Method("deep", f"Deep ensemble of {self.members}", self.members)
        one = len(self.taus) == 1
        sigma = [
            Method(f"sigma:tau={t!r}", "sigmaN" if one else f"sigmaN, tau {t:g}", self.members, t)
            for t in self.taus
        ]
        return (Method("single", "Single model"), *([deep] if self.deep else []), *sigma)

    def to_dict(self) -> dict[str, Any]:
        """Give the plan as one plain mapping, that of the training included."""
        own = {k: v for k, v in asdict(self).items() if k != "training"}
        rest = {k: v for k, v in self.training.to_dict().items() if k != "arms"}
        return json.loads(json.dumps({**rest, **own}))

    def _check_split(self) -> None:
        """Under ``split`` every member needs rows of every batch, and sees none of the others'."""
        if self.protocol != "split":
            return
        if self.training.budget.batch_size < self.members:
            raise _invalid(
                "batch_size under protocol 'split'",
                f"at least the {self.members} members",
                str(self.training.budget.batch_size),
                "Choose a larger one, or the protocol 'repeat'.",
            )
        if self.of == "mean":
            raise _invalid(
                "loss under protocol 'split'",
                "'members'",
                "'mean', which needs members that see the same rows",
                "Choose the loss 'members', or the protocol 'repeat'.",
            )


_CHOICES = {
    "form": FORMS,
    "protocol": PROTOCOLS,
    "of": LOSSES,
    "init": INITS,
    "heads": HEADS,
    "when": POOLING,
}
_SAID = {"of": "loss", "when": "posthoc"}  # as the command line calls them


def _whole(name: str, value: Any) -> int:
    try:
        number = 0 if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = 0
    if number < 1:
        raise _invalid(name, "a whole number of at least 1", repr(value), "4 is usual.")
    return number


def _check_taus(taus: tuple[float, ...], members: int) -> None:
    if not taus or len(set(taus)) < len(taus):
        found = "none" if not taus else ", ".join(f"{t:g}" for t in taus)
        raise _invalid("tau", "one or more, each once", found, "Name every tau once.")
    if len(taus) > 1 and members == 1:
        fix = "Ask for two members or more: one shares with nobody."
        raise _invalid("tau", "one of them for one member", f"{len(taus)}", fix)
    for tau in taus:
        _number("tau", tau, least=0.0, open_=True)


def _number(name: str, value: Any, *, least: float, open_: bool) -> None:
    real = isinstance(value, numbers.Real) and not isinstance(value, bool)
    number = float(value) if real else math.nan
    if not math.isfinite(number) or number < least or (open_ and number == least):
        expected = f"a finite number {'above' if open_ else 'of at least'} {least:g}"
        raise _invalid(name, expected, repr(value), "Give another value.")


def _fixed_temperature(value: str | float) -> float | None:
    if value == SUGGESTED:
        return None
    try:
        number = float(value)
    except ValueError:
        raise _invalid(
            "temperature", f"'{SUGGESTED}' or a number", repr(value), "1 leaves the logits alone."
        ) from None
    return check_temperature(number)


def _invalid(subject: str, expected: str, found: str, fix: str) -> InvalidInput:
    return InvalidInput(subject, expected=expected, found=found, fix=fix)
