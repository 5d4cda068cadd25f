"""From a task to a temperature that a trainer can be given, with the reasons beside it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from importlib.metadata import entry_points
from types import MappingProxyType
from typing import Any, Protocol, cast, runtime_checkable

from temperance.errors import InvalidInput, NotFound
from temperance.records import Alternative, Suggestion, Task
from temperance.rules.budget import Budget
from temperance.rules.budget_file import load_coefficients
from temperance.rules.cosine_scale import AdaCos, CosFaceBound, NormFace
from temperance.rules.dimension import Constant, SqrtDim
from temperance.rules.domain import Domain
from temperance.rules.hasegawa_sakai import HasegawaSakai, HasegawaSakaiCsgCn

__all__ = ["MIN_SUGGESTED", "RULES", "Rule", "find_rule", "lacking", "rule_name", "suggest"]

MIN_SUGGESTED = 0.1
"""Smallest T that is handed to a trainer with a norm in front of the head. Measured (64-128-BN-10
net on scikit-learn's digits, SGD lr 0.1): T = 0.05 diverged, T = 1e-8 gave NaN."""

_LEVELS = {"80 %": 0.8, "95 %": 0.95}  # of prediction intervals
_SLACK = 1e-9  # a T that was written and read again is not beyond its own range
_FLOORS = {"none": 0.01, "cosine": 0.0}  # other norms; without one, best T of 0.25 were measured


@runtime_checkable
class Rule(Protocol):
    """What makes a callable a rule: ``rule(task)`` gives T, and it says what it needs.

    Rules may also have ``name``, ``terms(task)``, ``domain``, ``fallback``, ``reference``,
    ``formula``, ``trust`` and an ``upper`` clip; those in ``RULES`` have. One that sees the
    training has ``why_not(task)``, one with several norms ``norm_of(task)``, and one that knows its
    spread ``prediction(task, level)``.
    """

    needs: Any
    norm: Any

    def __call__(self, task: Task) -> float:
        """Give the temperature for a task."""
        ...


_TABLE: tuple[Any, ...] = (
    Constant(),
    SqrtDim(),
    HasegawaSakai(),
    HasegawaSakaiCsgCn(),
    Budget(load_coefficients()),
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
            ``temperance fit --out``, its name ending in ``.json``; a rule itself; or None for
            ``budget`` where the task has all facts of its training that this rule needs and its
            coefficients say that it may be the default, else ``hasegawa-sakai-csg-cn`` where the
            task has a csg and ``hasegawa-sakai`` elsewhere.
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
    if budget.default and not lacking(budget, task):
        return "budget"
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
    fitted rule gives no T beyond those of its runs, but the nearest of them.

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
    _check_needs(chosen, task)
    value = _unclipped(chosen, task)
    reasons = _reasons(chosen, task, value)
    temperature, fallback = value, None
    if reasons:
        temperature, fallback, note = _fall_back(chosen, task, value)
        reasons.append(note)
    spread = _interval(chosen, task)
    return Suggestion(
        temperature=temperature,
        unclipped=value,
        rule=rule_name(chosen),
        norm=str(chosen.norm) if fallback else _norm(chosen, task),
        in_domain=not reasons,
        reasons=tuple(reasons),
        terms=_terms(chosen, task),
        fallback=fallback,
        interval=None if fallback or spread is None else _trainable(chosen, spread),
        unclipped_interval=spread,
        prediction={} if fallback else _predictions(chosen, task),
        expectation="" if fallback else _expectation(chosen, task),
        others={n: _alternative(r, task) for n, r in RULES.items() if n != rule_name(chosen)},
        inputs=_inputs(task),
    )


# ------------------------------------------------------------------ reading a rule
def rule_name(rule: Rule) -> str:
    """Name of a rule: its own, or that of its function or class."""
    return str(
        getattr(rule, "name", None) or getattr(rule, "__name__", None) or type(rule).__name__
    )


def _norm(rule: Rule, task: Task) -> str:
    """Norm that the value is for: the law of the budget has a value for each."""
    return str(rule.norm_of(task) if hasattr(rule, "norm_of") else rule.norm)


def _terms(rule: Rule, task: Task) -> dict[str, float]:
    terms = getattr(rule, "terms", None)
    return {k: float(v) for k, v in terms(task).items()} if callable(terms) else {}


def _unclipped(rule: Rule, task: Task) -> float:
    """Value of the formula before its clips: the sum of the terms where the rule has clips."""
    if hasattr(rule, "upper") and hasattr(rule, "terms"):
        return float(sum(_terms(rule, task).values()))
    value = rule(task)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        try:
            value = float(value)
        except (TypeError, ValueError):
            raise InvalidInput(
                f"rule {rule_name(rule)}",
                expected="a number from rule(task)",
                found=repr(value),
                fix="Return the temperature as a float.",
            ) from None
    return float(value)


def _check_needs(rule: Rule, task: Task) -> None:
    for need in rule.needs:
        if need not in task.statistics:
            raise InvalidInput(
                f"rule {rule_name(rule)}",
                expected=f"the statistic {need}",
                found=", ".join(task.statistics) or "no statistics",
                fix=f"Measure it (temperance.measure(features)), give it ({_option(need)}), or "
                "take a rule that does without, such as hasegawa-sakai.",
            )
        value = float(task.statistics[need])
        if not math.isfinite(value):
            raise InvalidInput(
                need,
                expected="a finite number",
                found=str(value),
                fix="Look at the status of the measurement.",
            )


def _option(need: str) -> str:
    return "--csg" if need == "csg" else f"--statistic {need}=VALUE"


# ------------------------------------------------------------------ domain and fallback
def _bounds(rule: Rule) -> tuple[float, float]:
    """Smallest and largest T of a rule that a trainer may get."""
    floor = _FLOORS.get(str(rule.norm), MIN_SUGGESTED)
    return max(floor, float(getattr(rule, "eps", 0.0))), float(getattr(rule, "upper", math.inf))


def _trainable(rule: Rule, interval: tuple[float, float]) -> tuple[float, float]:
    floor, upper = _bounds(rule)
    low, high = (_nearest_tried(rule, min(max(end, floor), upper)) for end in interval)
    return low, high


def _nearest_tried(rule: Rule, value: float) -> float:
    """The value, or the nearest T that the runs of a fitted rule tried."""
    tried = getattr(getattr(rule, "domain", None), "temperatures", None)
    if tried is None or tried[0] * (1 - _SLACK) <= value <= tried[1] * (1 + _SLACK):
        return value
    return float(min(max(value, tried[0]), tried[1]))


def _who(rule: Rule, nearest: float) -> str:
    return "can train" if nearest == _bounds(rule)[0] else "they tried"


def _unusable(rule: Rule, value: float) -> str | None:
    """Why a value must not reach a trainer, or None."""
    floor, upper = _bounds(rule)
    if math.isnan(value):
        return "the formula gives no number here"
    if value < floor or value <= 0:
        return f"the formula gives {value:.4g}; a trainer needs T of at least {floor:g}"
    if math.isinf(value):
        return "the formula has no finite value here"
    if value >= upper:
        return f"the formula gives {value:.4g}, at or above its upper clip {upper:g}"
    return None


def _reasons(rule: Rule, task: Task, value: float) -> list[str]:
    domain: Any = getattr(rule, "domain", None) or Domain()
    found = domain.reasons(task)
    bad = _unusable(rule, value)
    if bad is None and _nearest_tried(rule, value) != value:
        low, high = domain.temperatures
        found.append(f"the formula gives {value:.4g}, its runs tried T = {low:.4g} to {high:.4g}")
    if bad and "csg" in rule.needs and float(task.statistics["csg"]) == 0:
        bad = "csg = 0: the classes are separable and log(csg) does not exist"
    return [*found, bad] if bad else found


def _fall_back(rule: Rule, task: Task, value: float) -> tuple[float, str | None, str]:
    """Follow the stated fallbacks to a value that can train."""
    name = getattr(rule, "fallback", "constant")
    extrapolates = bool(getattr(rule, "extrapolates", False)) and 0 < value < math.inf
    nearest = _nearest_tried(rule, value)
    if extrapolates:  # a law that leads below what can train says: as low as can be
        nearest = max(nearest, _bounds(rule)[0])
    usable = extrapolates or _unusable(rule, value) is None
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
    while _unusable(current, _unclipped(current, task)) and current.fallback:
        current = RULES[current.fallback]
    result = _unclipped(current, task)
    return result, current.name, f"T = {result:.4g} comes from the fallback {current.name}"


def _alternative(rule: Any, task: Task) -> Alternative:
    if missing := lacking(rule, task):
        return Alternative(None, None, rule.norm, False, missing)
    try:
        value = _unclipped(rule, task)
    except InvalidInput as error:
        return Alternative(None, None, rule.norm, False, str(error))
    reasons = _reasons(rule, task, value)
    usable = None if _unusable(rule, value) else _nearest_tried(rule, value)
    return Alternative(usable, value, rule.norm, not reasons, "; ".join(reasons))


def lacking(rule: Any, task: Task) -> str:
    """Say what a rule needs that a task does not have; "" for nothing."""
    missing = [need for need in rule.needs if need not in task.statistics]
    if missing:
        return f"needs {', '.join(missing)}"
    why_not = getattr(rule, "why_not", None)
    return why_not(task) if callable(why_not) else ""


def _expectation(rule: Rule, task: Task) -> str:
    expectation = getattr(rule, "expectation", None)
    return str(expectation(task)) if callable(expectation) else ""


def _predictions(rule: Rule, task: Task) -> dict[str, tuple[float, float]]:
    """Prediction intervals of a rule that has them, within what a trainer may get."""
    prediction = getattr(rule, "prediction", None)
    if not callable(prediction):
        return {}
    return {name: _trainable(rule, prediction(task, level)) for name, level in _LEVELS.items()}


def _interval(rule: Rule, task: Task) -> tuple[float, float] | None:
    """The rule's own prediction interval, or that of the spread of the needed statistics."""
    if callable(prediction := getattr(rule, "prediction", None)):
        return prediction(task, _LEVELS["95 %"])
    spread = [n for n in rule.needs if task.statistics[n].interval is not None]
    if not spread:
        return None
    values = []  # at the corners of the statistics' intervals
    for corner in range(1 << len(spread)):
        moved = dict(task.statistics)
        for bit, name in enumerate(spread):
            ends = moved[name].interval
            assert ends is not None
            end = ends[corner >> bit & 1]
            if name == "csg":  # an interval may reach beyond what a csg can be
                end = min(max(end, 0.0), task.n_classes - 1.0)
            moved[name] = replace(moved[name], value=end)
        values.append(_unclipped(rule, replace(task, statistics=moved)))
    return min(values), max(values)


def _inputs(task: Task) -> dict[str, Any]:
    statistics = {
        name: {
            "value": s.value,
            "interval": None if s.interval is None else list(s.interval),
            "status": s.status,
            "settings": dict(s.settings),
        }
        for name, s in task.statistics.items()
    }
    return {
        "feature_dim": task.feature_dim,
        "n_classes": task.n_classes,
        "n_samples": task.n_samples,
        "n_nonempty": task.n_nonempty,
        "statistics": statistics,
        "training": {
            name: list(v) if isinstance(v, tuple) else v
            for name, v in task.training.items()
            if _is_plain(v)
        },
    }


def _is_plain(value: Any) -> bool:
    """Whether JSON can hold a fact of a training; others are the caller's own affair."""
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, str | int | float | bool)
