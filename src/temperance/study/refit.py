"""Rules that are fitted again for each data set that they are judged on, without it."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, cast

from temperance.errors import InvalidInput, TemperanceWarning
from temperance.records import Task
from temperance.rules import FittedRule, Rule, find_rule
from temperance.rules.suggestion import rule_name
from temperance.study.regret_rules import Candidate, Choice, kind_of, suggested
from temperance.study.runs import Curve

__all__ = ["Refit", "refit_of", "refitted"]


@dataclass(frozen=True)
class Refit:
    """A rule to be fitted again for each data set, on the curves of the others.

    Attributes:
        name: in the report.
        fit: from curves to a rule; all have one norm and one loss, those of the curve that is
            judged, and none is of its data set. Where it raises ``InvalidInput`` the curve is not
            judged, for that reason.
        norm: norm of the curves that it is judged on; None for every norm.
        needs: statistics without which a curve can neither fit nor be judged.
    """

    name: str
    fit: Callable[[Sequence[Curve]], Rule]
    norm: str | None = None
    needs: tuple[str, ...] = ()


def refit_of(
    rule: str | Rule,
    *,
    objective: str = "accuracy",
    seed: int = 0,
    told: Callable[[str], None] | None = None,
) -> Refit:
    """Fit a rule's coefficients again, on runs of whatever norm they are.

    Args:
        rule: a name, or a frozen dataclass of numbers whose own values are the start of
            ``fit_rule``; or ``statistics``, a new heuristic by ``fit_statistics``, its terms chosen
            anew each time.
        objective: ``accuracy``, ``nll`` or ``nll_posthoc``, on validation rows.
        seed: of the search.
        told: called before each fit with what is fitted.

    Returns:
        What ``regret(fitted=[...])`` takes. Notes of the single fits are not passed on; look at
        them with ``fit_rule`` or ``fit_statistics`` on all curves.

    Raises:
        NotFound: if there is no rule of that name.
        InvalidInput: if the rule has no coefficients, or if they come from a fit: that may have
            seen the data sets which they are to be judged on.

    Example:
        >>> from temperance.study.refit import refit_of
        >>> refit_of("hasegawa-sakai-csg-cn").needs
        ('csg',)
    """
    name, needs, fit = _fitter(rule, objective, seed)

    def quietly(curves: Sequence[Curve]) -> Rule:
        if told is not None:
            told(f"{name}: {len(curves)} curves, norm {curves[0].setting['norm']}")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", TemperanceWarning)
            return fit(curves)

    return Refit(name, quietly, None, needs)


def _fitter(
    rule: str | Rule, objective: str, seed: int
) -> tuple[str, tuple[str, ...], Callable[[Sequence[Curve]], Rule]]:
    """Name, needs and the fit itself; SciPy's optimizers are loaded here."""
    if rule == "statistics":
        from temperance.study.regression import RegressionOptions, fit_statistics

        terms = RegressionOptions(bootstrap=0, seed=seed)
        return (
            "statistics, refitted",
            (),
            lambda curves: cast(
                Rule, fit_statistics(curves, objective=objective, options=terms).rule
            ),
        )
    from temperance.study.fit import FitOptions, fit_rule
    from temperance.study.fit_objective import coefficient_names

    base: Any = find_rule(rule, Task(feature_dim=1, n_classes=2))
    if isinstance(base, FittedRule):
        raise InvalidInput(
            "rule to fit again",
            expected="a rule whose coefficients come from no fit of your own",
            found=base.name,
            fix=f"Name the rule itself ({base.rule.name}); judge this one as it is (--rules).",
        )
    coefficient_names(base)
    options = FitOptions(seed=seed, bootstrap=0, leave_one_out=False)
    return (
        f"{rule_name(base)}, refitted",
        tuple(base.needs),
        lambda curves: cast(
            Rule, fit_rule(curves, base, objective=objective, options=options).rule
        ),
    )


def refitted(specs: Sequence[Refit], curves: Sequence[Curve]) -> list[Candidate]:
    """Rules that are fitted again for each data set, on the curves of all others.

    Args:
        specs: what to fit.
        curves: those of one group.

    Returns:
        A candidate for each; fits are made when they are asked for, each once.
    """
    return [_refitted(spec, curves) for spec in specs]


def _refitted(spec: Refit, curves: Sequence[Curve]) -> Candidate:
    usable = [c for c in curves if all(need in c.task.statistics for need in spec.needs)]

    @cache
    def rule_without(dataset: str, kind: tuple[Any, ...]) -> Any:
        others = [c for c in usable if c.dataset != dataset and kind_of(c) == kind]
        if not others:
            return "no other data set to fit it on"
        try:
            return spec.fit(others)
        except InvalidInput as error:
            return f"without its data set: {error.expected} are needed, found {error.found}"

    def choose(curve: Curve, metric: str) -> Choice | str:  # noqa: ARG001
        missing = [need for need in spec.needs if need not in curve.task.statistics]
        if missing:
            return f"needs {', '.join(missing)}"
        rule = rule_without(curve.dataset, kind_of(curve))
        return rule if isinstance(rule, str) else suggested(rule, curve)

    return Candidate(spec.name, "refitted", spec.norm, choose, asked=True)
