"""Who is judged: what T each rule gives for a task, without having seen its data set.

A candidate answers for one curve at a time. What is fitted here (the best constant, and the rules
of ``refit``) is fitted once for each data set, on the curves of the others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import Any

import numpy as np

from temperance.errors import InvalidInput, NotFound
from temperance.rules import RULES, Rule, find_rule, suggest
from temperance.rules.suggestion import lacking, rule_name
from temperance.study.curves import TIE, MetricCurve, middle_of, value_at
from temperance.study.data_set_names import same_data_set
from temperance.study.regret_records import METRIC_SPECS
from temperance.study.runs import Curve

__all__ = [
    "BEST_CONSTANT",
    "PLAIN",
    "PUBLISHED_FITS",
    "Candidate",
    "Choice",
    "baselines",
    "best_constant",
    "check_names",
    "given_rules",
    "kind_of",
    "suggested",
]

Reader = Callable[[Curve, str], MetricCurve]

PLAIN = "T = 1"
BEST_CONSTANT = "best constant"

_PAPER_FIT = ("cifar10", "cifar100", "stl10", "tiny-imagenet")
#: Data sets that published coefficients were fitted on.
#: T. Hasegawa, S. Sakai, 2025, arXiv 2504.15594: CIFAR-10, CIFAR-100, STL-10, Tiny ImageNet.
PUBLISHED_FITS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {"hasegawa-sakai": _PAPER_FIT, "hasegawa-sakai-csg-cn": _PAPER_FIT}
)


@dataclass(frozen=True)
class Choice:
    """The T that a rule's user gets for a task.

    Attributes:
        temperature: positive.
        fallback: name of the rule that answered in its stead, if one did.
        in_domain: whether the task lies where the rule was fitted and its value could be used.
    """

    temperature: float
    fallback: str | None = None
    in_domain: bool = True


@dataclass(frozen=True, eq=False)
class Candidate:
    """A rule that is judged.

    Attributes:
        name: in the report.
        origin: a key of ``regret_records.ORIGINS``.
        norm: norm that the rule is for; None for any.
        choose: from a curve and a metric to the choice, or to the reason why there is none.
        asked: whether the caller named it, so that judging it nowhere is an error.
    """

    name: str
    origin: str
    norm: str | None
    choose: Callable[[Curve, str], Choice | str]
    asked: bool = False


def baselines(curves: Sequence[Curve], read: Reader) -> list[Candidate]:
    """``T = 1``, and one T for all tasks that is chosen on the other data sets.

    As the rules that are fitted again, the constant is chosen anew for each norm and loss.

    Args:
        curves: those of one group; the constant is chosen among their temperatures.
        read: gives a metric of a curve; ``curves.metric_curve``, or a cache of it.

    Returns:
        Two candidates for any norm.
    """

    @cache
    def constant(dataset: str, kind: tuple[Any, ...], metric: str) -> Choice | str:
        others = [c for c in curves if c.dataset != dataset and kind_of(c) == kind]
        if not others:
            return "no other data set to choose it on"
        return Choice(best_constant(others, metric, read=read))

    def choose(curve: Curve, metric: str) -> Choice | str:
        return constant(curve.dataset, kind_of(curve), metric)

    return [
        Candidate(PLAIN, "baseline", None, lambda curve, metric: Choice(1.0)),  # noqa: ARG005
        Candidate(BEST_CONSTANT, "baseline", None, choose),
    ]


def kind_of(curve: Curve) -> tuple[Any, ...]:
    """Norm and loss: temperatures under one of these say nothing about another."""
    return curve.setting.get("norm"), curve.setting.get("loss"), curve.setting.get("path")


def best_constant(curves: Sequence[Curve], metric: str, *, read: Reader) -> float:
    """The one T with the best mean of a metric on the validation rows of all curves.

    Curves are straight between their temperatures (in log T) and level outside, so that the best
    T is one of these temperatures; of equals the one in the middle of them in log T.

    Args:
        curves: one or more.
        metric: a key of ``METRIC_SPECS``.
        read: as for ``baselines``.

    Returns:
        T.
    """
    grid = np.unique(np.concatenate([c.temperatures for c in curves]))
    values = np.mean([value_at(read(c, f"val_{metric}"), grid)[0] for c in curves], axis=0)
    good = METRIC_SPECS[metric].sign * values
    return float(grid[middle_of(np.log(grid), np.flatnonzero(good >= good.max() - TIE))])


# ------------------------------------------------------------------ rules with their coefficients
def given_rules(rules: Sequence[str | Rule] | Mapping[str, Rule] | None) -> list[Candidate]:
    """Rules as they are; on data sets that a rule names as its own fit it is not judged.

    Args:
        rules: names, rules, or rules by the name that they get; None for all in ``RULES``.

    Returns:
        A candidate for each but ``constant`` and ``norm-alone``, the baseline ``T = 1``.

    Raises:
        NotFound: if there is no rule of a name.
        InvalidInput: if a thing is no rule.
    """
    asked = rules is not None
    pairs: list[tuple[str, Any]]
    if isinstance(rules, Mapping):
        pairs = [(name, _rule(rule)) for name, rule in rules.items()]
    else:
        found = [_rule(rule) for rule in (RULES if rules is None else rules)]
        pairs = [(rule_name(rule), rule) for rule in found]
    plain = (RULES["constant"], RULES["norm-alone"])
    pairs = [(name, rule) for name, rule in pairs if rule not in plain]
    return [_given(name, rule, asked) for name, rule in pairs]


def _rule(rule: str | Rule) -> Any:
    """The rule that a name or a thing stands for; both are checked without a task."""
    if isinstance(rule, str) and not rule:
        raise NotFound("rule", found="an empty name", candidates=tuple(RULES), fix="Name one.")
    from temperance.records import Task

    return find_rule(rule, Task(feature_dim=1, n_classes=2))


def check_names(names: Sequence[str]) -> None:
    """Refuse two rules of one name."""
    taken = [PLAIN, BEST_CONSTANT, *names]
    double = sorted({name for name in taken if taken.count(name) > 1})
    if double:
        raise InvalidInput(
            "rules",
            expected="a name of its own for each",
            found=f"{double[0]!r} more than once",
            fix="Pass a mapping from names to rules.",
        )


def _given(name: str, rule: Any, asked: bool) -> Candidate:
    own = tuple(getattr(rule, "fitted_on", ()))
    published = rule == RULES.get(rule_name(rule))
    origin = "elsewhere" if own else "published" if published else "given"
    known = own or (PUBLISHED_FITS.get(rule_name(rule), ()) if published else ())

    def choose(curve: Curve, metric: str) -> Choice | str:  # noqa: ARG001
        if any(same_data_set(curve.dataset, d) for d in known):
            return "the rule was fitted on this data set"
        return suggested(rule, curve)

    return Candidate(name, origin, str(rule.norm), choose, asked)


def suggested(rule: Any, curve: Curve) -> Choice | str:
    """What ``temperance.suggest`` gives, with its fallbacks; or why there is nothing."""
    if missing := lacking(rule, curve.task):
        return missing
    try:
        found = suggest(curve.task, rule)
    except InvalidInput as error:  # a statistic that is no number, or out of its range
        return f"{error.subject}: {error.found} instead of {error.expected}"
    return Choice(found.temperature, found.fallback, found.in_domain)
