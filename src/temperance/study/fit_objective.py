"""What a fit minimizes: the regret of a rule's temperatures on curves, looked up in a table."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.interpolate import Akima1DInterpolator

from temperance.errors import InvalidInput, NotFound
from temperance.records import Task
from temperance.study.curves import METRICS, TIE, metric_curve
from temperance.study.runs import Curve

__all__ = [
    "FIXED",
    "SCALES",
    "RegretTable",
    "RuleForm",
    "coefficient_names",
    "objective_name",
    "regret_table",
    "rule_form",
]

FIXED = ("eps", "upper", "log_base")
"""Fields of a rule that are no coefficients: clips, and a base that only rescales others."""

SCALES = ("regret", "relative")
"""``regret``: in the metric's own unit; ``relative``: as a share of the curve's largest regret."""

_POINTS = 513  # of a curve in the table: steps of 1 % in T where T spans 7 doublings
_HINT = 1e-3  # slope beyond an edge where the curve still improves, as a share of its mean slope

Array = NDArray[np.float64]


def objective_name(text: str, *, what: str = "objective") -> str:
    """Give the metric that an objective stands for: ``nll-posthoc`` is ``nll_posthoc``.

    Args:
        text: ``accuracy``, ``nll`` or ``nll_posthoc``.
        what: what to call it in an error.

    Returns:
        The name in ``curves.METRICS``.

    Raises:
        NotFound: for any other text.
    """
    name = text.replace("-", "_")
    if name not in METRICS:
        raise NotFound(what, found=f"no {text!r}", candidates=METRICS, fix="Name one.")
    return name


# ------------------------------------------------------------------ the curves as a table
@dataclass(frozen=True, eq=False)
class RegretTable:
    """Regret of every curve on an even grid of log T.

    Attributes:
        low: log of the smallest tried T, ``[n]``.
        high: log of the largest, ``[n]``.
        values: regret on the even grid between them, ``[n, points]``.
        slopes: how regret grows per unit of log T below ``low`` and above ``high``, ``[n, 2]``.
        censored: whether the smallest or the largest tried T is as good as the best, ``[n, 2]``.
    """

    low: Array
    high: Array
    values: Array
    slopes: Array
    censored: NDArray[np.bool_]

    def regret(self, temperatures: Array) -> Array:
        """Look up the regret at temperatures, ``[n, s]``; also beyond the grid, and at T <= 0.

        Below half of the smallest tried T, the distance counts in T and no longer in log T, so that
        a formula that gives negative values is led back by how negative it is. NaN stays NaN.
        """
        floor = np.exp(self.low)[:, None] / 2
        with np.errstate(invalid="ignore"):
            log_t = np.log(np.maximum(temperatures, floor)) - np.maximum(
                1 - temperatures / floor, 0.0
            )
        low, high = self.low[:, None], self.high[:, None]
        last = self.values.shape[1] - 1
        place = np.nan_to_num(np.clip((log_t - low) / (high - low) * last, 0, last))
        left = np.minimum(place.astype(np.intp), last - 1)
        rows = np.arange(len(self.values))[:, None]
        inside = self.values[rows, left] * (1 - (place - left))
        inside += self.values[rows, left + 1] * (place - left)
        inside += self.slopes[:, :1] * np.maximum(low - log_t, 0.0)
        inside += self.slopes[:, 1:] * np.maximum(log_t - high, 0.0)
        return inside

    def outside(self, temperatures: Array) -> NDArray[np.bool_]:
        """Say which temperatures, ``[n]``, lie outside those that were tried."""
        slack = 1e-9
        low, high = np.exp(self.low - slack), np.exp(self.high + slack)
        return (temperatures < low) | (temperatures > high)


def regret_table(curves: Sequence[Curve], objective: str, *, scale: str = "regret") -> RegretTable:
    """Turn curves into regrets against the best T in hindsight, by validation rows.

    Between the tried temperatures the metric is interpolated by Akima's local cubic in log T, which
    has its peak between grid points and does not overshoot beside a cliff (a diverged run counts as
    chance). Beyond them it is not known; there the regret grows with the distance, by the curve's
    mean slope or that of its last step if that is steeper; and by a thousandth of the mean slope
    where the curve is still best at that edge: such a (censored) curve only says that its best T
    lies there or beyond.

    Args:
        curves: the runs.
        objective: ``accuracy``, ``nll`` or ``nll_posthoc``.
        scale: a name in ``SCALES``.

    Returns:
        The table.

    Raises:
        InvalidInput: for another scale, or a curve with fewer than three temperatures.
        NotFound: if the runs lack the metric.

    Reference:
        H. Akima, "A new method of interpolation and smooth curve fitting based on local
        procedures", Journal of the ACM 17, 1970.
    """
    if scale not in SCALES:
        raise InvalidInput(
            "scale", expected=" or ".join(SCALES), found=repr(scale), fix="Name one."
        )
    rows = [_row(curve, f"val_{objective_name(objective)}", scale) for curve in curves]
    low, high, values, slopes, censored = zip(*rows, strict=True)
    return RegretTable(*map(np.array, (low, high, values, slopes, censored)))


def _row(curve: Curve, metric: str, scale: str) -> tuple[float, float, Array, Any, Any]:
    means = metric_curve(curve, metric)
    x, y = means.log_temperatures, means.loss
    with np.errstate(invalid="ignore", divide="ignore"):  # of straight pieces
        grid = np.linspace(x[0], x[-1], _POINTS)
        values = Akima1DInterpolator(x, y)(grid)
    values = np.maximum(values - values.min(), 0.0)
    whole = np.interp(grid, x, means.diverged) == 0
    largest = float(values[whole].max(initial=0.0))
    if scale == "relative":
        values = values / largest if largest > 0 else np.zeros_like(values)
        largest = float(largest > 0)
    mean_slope = largest / (x[-1] - x[0])
    lowest = y.min() + TIE
    censored = bool(y[0] <= lowest), bool(y[-1] <= lowest)
    last = max(1, _POINTS // (4 * len(x)))  # a quarter of the mean distance of two tried T
    run = grid[last] - grid[0]
    ends = (values[0] - values[last]) / run, (values[-1] - values[-1 - last]) / run
    slopes = [
        _HINT * mean_slope if edge else max(float(end), mean_slope)
        for edge, end in zip(censored, ends, strict=True)
    ]
    return float(x[0]), float(x[-1]), values, slopes, censored


# ------------------------------------------------------------------ a rule as a function
@dataclass(frozen=True, eq=False)
class RuleForm:
    """A rule on fixed tasks, as a function of its coefficients.

    Attributes:
        rule: the rule that it is made of.
        names: the coefficients, ``p`` of them.
        start: their values in ``rule``, ``[p]``.
        design: what each coefficient is multiplied with, ``[n, p]``; None if the rule is not
            linear in them.
        offset: the share without a coefficient, ``[n]``.
        call: coefficients ``[p, s]`` to unclipped temperatures ``[n, s]``.
    """

    rule: Any
    names: tuple[str, ...]
    start: Array
    design: Array | None
    offset: Array
    call: Callable[[Array], Array]

    def temperatures(self, coefficients: Array) -> Array:
        """Give the temperatures of coefficients ``[p, s]``, at most the rule's upper clip."""
        return np.minimum(self.call(coefficients), float(getattr(self.rule, "upper", np.inf)))

    def with_coefficients(self, coefficients: Array) -> Any:
        """Give the rule with other coefficients."""
        return replace(self.rule, **dict(zip(self.names, map(float, coefficients), strict=True)))


def coefficient_names(rule: Any) -> tuple[str, ...]:
    """Give the fields of a rule that a fit may change.

    Args:
        rule: a frozen dataclass whose numeric fields are its coefficients.

    Returns:
        Names of the numeric fields without those in ``FIXED``.

    Raises:
        InvalidInput: if there are none.

    Example:
        >>> from temperance.rules import HasegawaSakai
        >>> from temperance.study.fit_objective import coefficient_names
        >>> coefficient_names(HasegawaSakai())
        ('alpha', 'beta')
    """
    if is_dataclass(rule) and not isinstance(rule, type):
        values = {f.name: getattr(rule, f.name) for f in fields(rule) if f.name not in FIXED}
        if values and all(type(v) in (int, float) for v in values.values()):
            return tuple(values)
    raise InvalidInput(
        "rule to fit",
        expected="a frozen dataclass whose fields are numbers, its coefficients",
        found=repr(rule),
        fix="Take a rule of temperance rules, or make your own such a dataclass.",
    )


def rule_form(rule: Any, tasks: Sequence[Task]) -> RuleForm:
    """Make a rule a function of its coefficients on given tasks.

    A rule with ``terms(task)`` that are linear in the coefficients becomes a matrix; whether they
    are is tried out at two random points. Any other rule is called for every task.

    Args:
        rule: a frozen dataclass of numbers.
        tasks: the tasks, ``n`` of them.

    Returns:
        The form. Rows of ``offset`` and ``design`` are not finite where the rule has no finite
        value (``log(csg)`` at csg = 0).

    Raises:
        InvalidInput: if the rule has no coefficients.

    Example:
        >>> from temperance import Task
        >>> from temperance.rules import HasegawaSakai
        >>> from temperance.study.fit_objective import rule_form
        >>> rule_form(HasegawaSakai(), [Task(16, 2), Task(64, 2)]).design.round(6).tolist()
        [[4.0, 1.0], [8.0, 1.0]]
    """
    names = coefficient_names(rule)
    start = np.array([float(getattr(rule, name)) for name in names])

    def sums(coefficients: Array) -> Array:
        try:
            other = replace(rule, **dict(zip(names, map(float, coefficients), strict=True)))
        except InvalidInput:  # of coefficients that the rule refuses
            return np.full(len(tasks), np.nan)
        return np.array([_value(other, task) for task in tasks], np.float64)

    def one_by_one(coefficients: Array) -> Array:
        return np.stack([sums(column) for column in coefficients.T], axis=1)

    with np.errstate(invalid="ignore"):
        base = sums(start)
        unit = np.maximum(np.abs(start), 1.0)
        design = np.stack([(sums(start + s) - base) / s.sum() for s in np.diag(unit)], axis=1)
        offset = base - design @ start
        if hasattr(rule, "terms") and _is_linear(sums, start, design, offset):
            return RuleForm(
                rule, names, start, design, offset, lambda c: design @ c + offset[:, None]
            )
    return RuleForm(rule, names, start, None, np.where(np.isfinite(base), 0.0, base), one_by_one)


def _is_linear(sums: Callable[[Array], Array], start: Array, design: Array, offset: Array) -> bool:
    known = np.isfinite(design).all(axis=1) & np.isfinite(offset)
    if not known.any():
        return False
    rng = np.random.default_rng(0)
    for _ in range(2):
        point = start + np.maximum(np.abs(start), 1.0) * rng.normal(size=len(start))
        expected = design @ point + offset
        size = np.abs(design) @ np.abs(point) + np.abs(offset)
        if not (np.abs(sums(point) - expected)[known] <= 1e-9 * size[known]).all():
            return False
    return True


def _value(rule: Any, task: Task) -> float:
    """Value of the formula before its clips, where the rule says its terms; NaN for none."""
    try:
        if hasattr(rule, "upper") and hasattr(rule, "terms"):
            return float(sum(rule.terms(task).values()))
        return float(rule(task))
    except (ValueError, ArithmeticError):  # a statistic out of its range, a number too large
        return math.nan
