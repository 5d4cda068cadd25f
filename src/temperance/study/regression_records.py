"""How a statistics rule is fitted, and what is known of it then."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from temperance.errors import InvalidInput
from temperance.records import Estimate
from temperance.rules import FittedRule

__all__ = ["RegressionOptions", "StatisticsFit"]

_METHODS = ("forward", "ridge")


@dataclass(frozen=True)
class RegressionOptions:
    """How a statistics rule is fitted.

    Attributes:
        method: ``forward``, few terms chosen one by one; or ``ridge``, all terms, shrunk.
        most_terms: terms at most, for ``forward``.
        statistics: names that terms may be made of, among statistics, ``M``, ``C`` and ``n``; None
            for all that every task has.
        censored: what to do with curves whose best T is the smallest or largest tried: ``drop``
            them (the default), or take the ``edge`` for the best T, which pulls the rule inwards.
        bootstrap: draws of data sets for the intervals; 0 for none.
        seed: of these draws.
    """

    method: str = "forward"
    most_terms: int = 4
    statistics: tuple[str, ...] | None = None
    censored: str = "drop"
    bootstrap: int = 1000
    seed: int = 0

    def __post_init__(self) -> None:
        for name, choices in (("method", _METHODS), ("censored", ("drop", "edge"))):
            if getattr(self, name) not in choices:
                raise InvalidInput(
                    f"regression, {name}",
                    expected=" or ".join(choices),
                    found=repr(getattr(self, name)),
                    fix="Name one.",
                )
        for name, least in (("most_terms", 1), ("bootstrap", 0), ("seed", 0)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise InvalidInput(
                    f"regression, {name}",
                    expected=f"a whole number of {least} or more",
                    found=repr(value),
                    fix="Give another value.",
                )


@dataclass(frozen=True)
class StatisticsFit:
    """A statistics rule, and how far it holds.

    Attributes:
        rule: the fitted rule, for ``suggest`` and ``save_rule``.
        coefficients: offset and one number per term, with 95 % intervals (bootstrap over data
            sets, with the terms as they were chosen).
        errors: root mean square of the error in log T, each data set counting once: ``fitted`` (on
            the data sets of the fit itself: too good); and on left-out data sets, with terms and
            penalty chosen anew without them: ``left out``, and the baselines ``constant`` (the
            geometric mean of the others), ``sqrt(M)`` (times a constant of the others), ``T = 1``.
        regret: mean over data sets of the regret in ``objective`` of ``T = 1``, ``fitted``,
            ``left out`` and ``constant`` on all curves, censored ones too.
        held_out: regret of ``fitted`` and ``T = 1`` on each data set that was kept out.
        chosen: share of the left-out fits in which each term was chosen.
        objective: whose best T was fitted, on validation rows.
        method: ``forward`` or ``ridge``.
        penalty: lambda of ridge; 0 for ``forward``.
        datasets: those of the fit.
        counts: ``tasks``, ``datasets``, ``runs``, ``candidates``; ``censored``: tasks whose best T
            is, or is as good as, the smallest or largest tried.
        notes: what must be known before the rule is used.
    """

    rule: FittedRule
    coefficients: Mapping[str, Estimate]
    errors: Mapping[str, Estimate]
    regret: Mapping[str, Estimate]
    held_out: Mapping[str, Mapping[str, float]]
    chosen: Mapping[str, float]
    objective: str
    method: str
    penalty: float
    datasets: tuple[str, ...]
    counts: Mapping[str, int]
    notes: tuple[str, ...] = ()
