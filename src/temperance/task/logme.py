"""LogME: how well a Bayesian linear model of the features explains the classes, per row.

The evidence is a function of one number, ``t = alpha / beta``, once the other is at its best. Here
that function is maximized directly, for every class, from the moments of the features: no fixed
point that could stop early, no [n, M] product, and no damping constants. Features enter as they
are, not centred and without an intercept, as in the paper; the covariance and the mean are kept
apart all the same, so that an offset costs no digit.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from temperance.records import Features
from temperance.task.moments import Moments, moments_of
from temperance.task.statistic_spec import StatisticSpec, UndefinedStatistic

__all__ = ["SPECS", "logme"]

_STEP = 0.5  # of ln t in the first search
_BELOW, _ABOVE = 36.0, 16.0  # of ln t around the eigenvalues: beyond, nothing changes
_REFINEMENTS = 26  # golden sections: ln t to 4e-6, its evidence to the square of that
_GOLDEN = (math.sqrt(5) - 1) / 2
_TOGETHER = 512  # classes, for the sake of memory
_EXACT = 1e-11  # residual, as a share of the variance of the labels, that is rounding

Array = NDArray[np.float64]


def logme(features: Features | Moments) -> float:
    """Give the log maximum evidence of the one-hot labels, mean over classes, per row, in nats.

    ``(1/K) sum_c max_(alpha, beta) (1/n) ln p(1_c | F, alpha, beta)``, where ``1_c = F w + noise``
    with ``w ~ N(0, 1/alpha)`` and noise ``~ N(0, 1/beta)``. With ``t = alpha / beta`` and
    ``R(t) = min_w |F w - 1_c|^2 + t |w|^2`` the maximum over beta is
    ``-(1/2) (ln(R / n) + 1 + ln 2 pi) - (1 / 2n) ln det(I + F F^T / t)``.

    Where it converges, the fixed point of the paper's later version stops at the same maximum. The
    released code adds ``1e-5`` to two denominators, and counts ``ln alpha`` for M instead of
    rank(F) weights where there are fewer rows than features; its values then differ.

    Args:
        features: the rows, or their moments with the scatter matrix.

    Returns:
        Nats per row; higher means that a linear model explains the classes better.

    Raises:
        UndefinedStatistic: if fewer than two classes have rows; or if a class is an exact linear
            function of the features, where the evidence has no upper bound.

    Example:
        >>> import numpy as np
        >>> from temperance import Features
        >>> from temperance.task.logme import logme
        >>> y = np.arange(200) % 2
        >>> x = np.random.default_rng(0).normal(size=(200, 3))
        >>> apart = logme(Features.from_arrays(x + 3 * y[:, None], y))
        >>> apart > logme(Features.from_arrays(x, y))
        True

    Reference:
        K. You, Y. Liu, J. Wang, M. Long: LogME: Practical Assessment of Pre-trained Models for
        Transfer Learning, ICML 2021, arXiv 2102.11005, equations 2 to 4. K. You, Y. Liu, Z. Zhang,
        J. Wang, M. I. Jordan, M. Long: Ranking and Tuning Pre-trained Models, 2022, arXiv
        2110.10545 (the fixed point).
    """
    moments = moments_of(features, scatter=True)
    if len(moments.present) < 2:
        raise UndefinedStatistic(
            "logme",
            expected="two classes or more that have rows",
            found=str(len(moments.present)),
        )
    values: list[Array] = []
    for start in range(0, len(moments.present), _TOGETHER):
        problem = _problem(moments, slice(start, start + _TOGETHER))
        evidence, residual = _evidence(problem, _maximize(problem))
        rank = min(int((problem.eigenvalues > 0).sum()) + 1, len(problem.mean))
        share = problem.counts * (1 - problem.counts / problem.n)
        if rank < problem.n and (residual < _EXACT * share).any():
            raise UndefinedStatistic(
                "logme",
                expected="classes that are no exact linear function of the features",
                found="one that is: the evidence has no upper bound",
            )
        values.append(evidence)
    return float(np.concatenate(values).mean())


@dataclass(frozen=True, eq=False)
class _Problem:
    """The regression of every class on the features, in the axes of their covariance.

    Attributes:
        n: rows.
        counts: rows of every class, ``[K]``.
        eigenvalues: of the centred ``Z^T Z``, ``[M]``, rounding set to 0.
        mean: of the rows, ``[M]``.
        slope: ``Z^T 1_c``, ``[M, K]``.
        outside: part of the centred ``1_c`` that the centred features cannot reach, ``[K]``.
    """

    n: int
    counts: Array
    eigenvalues: Array
    mean: Array
    slope: Array
    outside: Array


def _problem(moments: Moments, part: slice) -> _Problem:
    values, axes = moments.spectrum
    values = values * moments.n
    counts = moments.counts[moments.present[part]].astype(np.float64)
    slope = axes.T @ ((moments.class_means[part] - moments.mean) * counts[:, None]).T
    slope[values == 0] = 0.0
    reached = np.divide(slope**2, values[:, None], out=np.zeros_like(slope), where=slope != 0)
    outside = np.maximum(counts * (1 - counts / moments.n) - reached.sum(axis=0), 0.0)
    mean = axes.T @ (moments.centre.mean + moments.mean)
    return _Problem(moments.n, counts, values, mean, slope, outside)


def _evidence(problem: _Problem, log_t: Array) -> tuple[Array, Array]:
    """Evidence per row and residual R of every class, each at its own t, ``[K]``.

    The mean m adds the row ``sqrt(n) m`` with label ``sqrt(n) n_c / n`` to the centred regression:
    it raises R by ``(label - row w)^2 / (1 + n m^T (Z^T Z + t)^-1 m)``, w being the fit without it.
    """
    n, values = problem.n, problem.eigenvalues[:, None]
    inverse = 1 / (values + np.exp(log_t))
    weights = problem.slope * inverse
    # x^2 t / (t + d) with x^2 = slope^2 / d: what shrinking leaves of the part within reach
    left = np.divide(problem.slope * weights, values, out=np.zeros_like(weights), where=values > 0)
    growth = 1 + n * (problem.mean**2 @ inverse)
    miss = problem.counts / n - problem.mean @ weights
    residual = problem.outside + left.sum(axis=0) * np.exp(log_t) + n * miss**2 / growth
    spread = np.log1p(values * np.exp(-log_t)).sum(axis=0) + np.log(growth)
    value = -0.5 * (np.log(np.maximum(residual, 1e-300) / n) + 1 + math.log(2 * math.pi))
    return value - spread / (2 * n), residual


def _maximize(problem: _Problem) -> Array:
    """The best ln t of every class: a grid, then golden sections around its best point."""
    spread = float(problem.eigenvalues.max())
    largest = problem.n * float(problem.mean @ problem.mean) + spread
    ends = math.log(spread or largest or 1.0) - _BELOW, math.log(largest or 1.0) + _ABOVE
    grid = np.arange(*ends, _STEP)
    centre = grid[_on_grid(problem, grid).argmax(axis=0)]
    low, high = centre - _STEP, centre + _STEP
    left, right = high - _GOLDEN * (high - low), low + _GOLDEN * (high - low)
    at_left, at_right = _evidence(problem, left)[0], _evidence(problem, right)[0]
    for _ in range(_REFINEMENTS):
        better = at_left > at_right
        low, high = np.where(better, low, left), np.where(better, right, high)
        new = np.where(better, high - _GOLDEN * (high - low), low + _GOLDEN * (high - low))
        at_new = _evidence(problem, new)[0]
        left, right = np.where(better, new, right), np.where(better, left, new)
        at_left, at_right = np.where(better, at_new, at_right), np.where(better, at_left, at_new)
    return 0.5 * (low + high)


def _on_grid(problem: _Problem, grid: Array) -> Array:
    """Evidence of every class at the same values of ln t, ``[len(grid), K]``: two products."""
    n, values, t = problem.n, problem.eigenvalues, np.exp(grid)[:, None]
    inverse = 1 / (values + t)
    reached = np.divide(
        problem.slope**2,
        values[:, None],
        out=np.zeros_like(problem.slope),
        where=values[:, None] > 0,
    )
    growth = 1 + n * (inverse @ problem.mean**2)[:, None]
    miss = problem.counts / n - (problem.mean * inverse) @ problem.slope
    residual = problem.outside + (t * inverse) @ reached + n * miss**2 / growth
    spread = np.log1p(values / t).sum(axis=1)[:, None] + np.log(growth)
    return -0.5 * np.log(np.maximum(residual, 1e-300) / n) - spread / (2 * n)


SPECS = (
    StatisticSpec(
        "logme",
        logme,
        title="LogME",
        unit="nats per row",
        formula="(1/K) sum_c max_(alpha, beta) (1/n) ln p(1_c | F, alpha, beta)",
        reference="You et al. 2021, arXiv 2102.11005; 2022, arXiv 2110.10545",
        needs="spectrum",
        translation=False,
        doubling="near",
        remarks=("empty",),
    ),
)
