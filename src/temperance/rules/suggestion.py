"""From a task to a temperature that a trainer can be given, with the reasons beside it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from importlib.metadata import entry_points
from types import MappingProxyType
from typing import Any, cast

from temperance.errors import InvalidInput, NotFound
from temperance.records import Suggestion, Task
from temperance.rules.answer import (
    MIN_SUGGESTED,
    Rule,
    bounds_of,
    check_needs,
    lacking,
    nearest_tried,
    norm_for,
    rule_name,
    terms_of,
    trainable,
    unclipped,
    unusable,
)
from temperance.rules.budget import Budget
from temperance.rules.budget_file import load_coefficients
from temperance.rules.cosine_scale import AdaCos, CosFaceBound, NormFace
from temperance.rules.dimension import Constant, SqrtDim
from temperance.rules.explanation import (
    alternative,
    expectation_of,
    inputs_of,
    interval_of,
    other_norm,
    predictions_of,
    reasons_of,
)
from temperance.rules.hasegawa_sakai import HasegawaSakai, HasegawaSakaiCsgCn
from temperance.rules.norm_alone import NormAlone

__all__ = ["MIN_SUGGESTED", "RULES", "Rule", "find_rule", "lacking", "rule_name", "suggest"]

_TABLE: tuple[Any, ...] = (
    Constant(),
    SqrtDim(),
    HasegawaSakai(),
    HasegawaSakaiCsgCn(),
    Budget(load_coefficients()),
    NormAlone(),
    AdaCos(),
    CosFaceBound(),
    NormFace(),
)
RULES: Mapping[str, Any] = MappingProxyType({rule.name: rule for rule in _TABLE})
"""The rules that come with the library, by name."""


def find_rule(rule: str | Rule | None, task: Task) -> Rule:
    """Give the rule that a name, a callable or None stands for.

    Args:
        rule: a name in ``RULES`` or of an entry point ``temperance.rules``; a file of
            ``temperance fit --out``, its name ending in ``.json``; a rule itself; or None. None is,
            where the task has all facts of its training that ``budget`` needs, ``budget`` if its
            coefficients support it there (``Budget.default_for``), else ``norm-alone``; where the
            training is not known, ``hasegawa-sakai-csg-cn`` for a task with a csg and
            ``hasegawa-sakai`` for others.
        task: the task, to choose by.

    Returns:
        The rule.

    Raises:
        NotFound: if there is no rule of that name.
        InvalidInput: if a callable does not say what it needs and which norm it is for, or a file
            is not one of ``temperance fit``.
    """
    if rule is None:
        return RULES[_best_informed(task)]
    if isinstance(rule, str):
        if rule in RULES:
            return RULES[rule]
        if rule.endswith(".json"):
            from temperance.rules.saved import load_rule  # which imports this module

            return cast(Rule, load_rule(rule))
        return _from_entry_point(rule)
    if isinstance(rule, type):  # the class of a rule stands for it with its default coefficients
        rule = cast(Rule, rule())  # type: ignore[call-arg]
    if not callable(rule) or not isinstance(rule, Rule) or isinstance(rule.needs, str):
        raise InvalidInput(
            "rule",
            expected="a name, or a callable with the attributes needs and norm",
            found=f"{rule!r}",
            fix='Give it needs = () and norm = "batch", for instance as a frozen dataclass.',
        )
    return rule


def _best_informed(task: Task) -> str:
    budget = RULES["budget"]
    if not lacking(budget, task):
        return "budget" if budget.default_for(task) else "norm-alone"
    return "hasegawa-sakai-csg-cn" if "csg" in task.statistics else "hasegawa-sakai"


def _from_entry_point(name: str) -> Rule:
    for point in entry_points(group="temperance.rules"):
        if point.name == name:
            loaded = point.load()
            return loaded() if isinstance(loaded, type) else loaded
    raise NotFound(
        "rule", found=f"there is no rule {name!r}", candidates=tuple(RULES), fix="Name one of them."
    )


def suggest(task: Task, rule: str | Rule | None = None) -> Suggestion:
    """Suggest a training temperature for a task.

    The value is the rule's formula, unless the task lies outside the rule's domain or the value is
    at a clip or below 0.1 (``MIN_SUGGESTED``): then the rule's stated fallback answers
    (``hasegawa-sakai-csg-cn`` by ``hasegawa-sakai``, that by T = 1 where its value cannot be used),
    and ``reasons`` says so. A rule whose formula only extrapolates in M keeps its own value. A
    fitted rule gives no T beyond those of its runs, but the nearest of them. Where the task says
    the norm in front of its output layer (``training={"norm": "layer"}``) and the rule is for
    another, ``reasons`` says that, too: the value is the rule's, for the norm that ``norm`` names.

    Args:
        task: M, C, the measured statistics and, where known, the facts of the training
            (``measure(features, training=training_facts(optimizer, loader, epochs))``).
        rule: a name, a file of ``temperance fit --out``, a rule, or None (the best-informed
            form that the task allows, see ``find_rule``).

    Returns:
        The temperature with its terms, domain, interval, and what every other rule says.

    Raises:
        InvalidInput: if the rule needs a statistic or a fact of the training that the task lacks,
            or one that is not a number that the rule can take.
        NotFound: if there is no rule of that name.

    Example:
        >>> from temperance import Task, suggest
        >>> s = suggest(Task(feature_dim=512, n_classes=10))
        >>> round(s.temperature, 2), s.rule, s.norm, s.in_domain
        (11.67, 'hasegawa-sakai', 'batch', True)
    """
    chosen = find_rule(rule, task)
    check_needs(chosen, task)
    value = unclipped(chosen, task)
    reasons = reasons_of(chosen, task, value)
    temperature, fallback = value, None
    if reasons:
        temperature, fallback, note = _fall_back(chosen, task, value)
        reasons.append(note)
    norm = str(chosen.norm) if fallback else norm_for(chosen, task)
    reasons += other_norm(norm, task, reasons)
    spread = interval_of(chosen, task)
    return Suggestion(
        temperature=temperature,
        unclipped=value,
        rule=rule_name(chosen),
        norm=norm,
        in_domain=not reasons,
        reasons=tuple(reasons),
        terms=terms_of(chosen, task),
        fallback=fallback,
        interval=None if fallback or spread is None else trainable(chosen, spread),
        unclipped_interval=spread,
        prediction={} if fallback else predictions_of(chosen, task),
        expectation="" if fallback else expectation_of(chosen, task),
        others={n: alternative(r, task) for n, r in RULES.items() if n != rule_name(chosen)},
        inputs=inputs_of(task),
    )


def _fall_back(rule: Rule, task: Task, value: float) -> tuple[float, str | None, str]:
    """Follow the stated fallbacks to a value that can train."""
    name = getattr(rule, "fallback", "constant")
    extrapolates = bool(getattr(rule, "extrapolates", False)) and 0 < value < math.inf
    nearest = nearest_tried(rule, value)
    if extrapolates:  # a law that leads below what can train says: as low as can be
        nearest = max(nearest, bounds_of(rule)[0])
    usable = extrapolates or unusable(rule, value) is None
    # A formula of M and C alone may extrapolate, too.
    if usable and (name is None or not rule.needs or extrapolates):
        if nearest != value:
            return nearest, None, f"T = {nearest:.4g} is the nearest that {_who(rule, nearest)}"
        return value, None, "the rule's own formula was extrapolated"
    if name is not None and name not in RULES:
        raise InvalidInput(
            f"fallback of rule {rule_name(rule)}",
            expected="None, or one of " + ", ".join(RULES),
            found=repr(name),
            fix="Name one of them.",
        )
    safe = "cosface-bound" if rule.norm == "cosine" else "constant"
    current: Any = RULES[name if name and name != "constant" else safe]
    while unusable(current, unclipped(current, task)) and current.fallback:
        current = RULES[current.fallback]
    result = unclipped(current, task)
    return result, current.name, f"T = {result:.4g} comes from the fallback {current.name}"


def _who(rule: Rule, nearest: float) -> str:
    return "can train" if nearest == bounds_of(rule)[0] else "they tried"
