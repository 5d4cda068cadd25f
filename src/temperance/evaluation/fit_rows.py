"""The rows that a calibrator is fitted on, and the few steps that all fits share.

Every fit begins at the plain temperature T: logits are divided by it first, so that logits of any
scale give the same problem, and what is fitted says how far the data lead away from T.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from temperance.evaluation.nll_curve import minimize, slope_at
from temperance.evaluation.posthoc import BOUNDS, TemperatureFit, fit_temperature
from temperance.evaluation.predictions import FLOOR, Predictions, read_array, read_predictions

__all__ = [
    "Apply",
    "Chunk",
    "Descent",
    "FitRows",
    "centred",
    "descend",
    "held_out_nll",
    "log_softmax",
    "mean_nll",
    "read_fit_rows",
    "softmax_loss",
    "too_few",
]

Array = NDArray[np.float64]
#: Shifted logits ``[m, C]`` (largest 0, ``FLOOR`` where masked) to log-probabilities ``[m, C]``.
Apply = Callable[[Array], Array]

_KEEP = 1 << 22  # numbers up to which prepared chunks are kept between the passes of a fit: 32 MB
_PER_FOLD = 2  # rows per fold below which held-out rows choose nothing
_FLAT = 1e-5  # largest slope, in nats per unit of a parameter, that counts as the minimum


class Chunk(NamedTuple):
    """Some rows made ready: inputs ``[m, C]``, where they are masked, ids and weights ``[m]``."""

    x: Array
    mask: NDArray[np.bool_] | None
    ids: NDArray[np.int64]
    w: Array


@dataclass(frozen=True, eq=False)
class FitRows:
    """Checked rows with weights that sum to 1, and the plain temperature fitted on them.

    Attributes:
        rows: logits ``[n, C]`` and class ids.
        w: weights, shape ``[n]``, sum 1.
        fit: the plain temperature.
        fallback: T where that fit has not converged.
    """

    rows: Predictions
    w: Array
    fit: TemperatureFit
    fallback: float = 1.0

    @property
    def temperature(self) -> float:
        """The plain T that is applied to other rows."""
        return self.fit.applied if self.fit.status == "converged" else self.fallback

    @property
    def n_effective(self) -> float:
        """Number of rows of equal weight that carry as much information."""
        return float(1.0 / np.square(self.w).sum())

    def part(self, index: NDArray[Any], *, fallback: float = 1.0) -> FitRows | None:
        """The rows of an index or a mask with a temperature of their own; None if none counts."""
        ids, w = self.rows.ids[index], self.w[index]
        if not w.any():
            return None
        rows = Predictions(self.rows.scores[index], True, ids, np.ones(len(ids), dtype=bool))
        w = w / w.sum()
        return FitRows(rows, w, _plain_fit(rows, w), fallback)

    def walk(self, prepare: Callable[[Array], Array]) -> Iterable[Chunk]:
        """Chunks of ``prepare(shifted logits)``, to be walked again and again."""
        steps = _Steps(self, prepare)
        return list(steps) if self.rows.scores.size <= _KEEP else steps


@dataclass(frozen=True, eq=False)
class _Steps:
    data: FitRows
    prepare: Callable[[Array], Array]

    def __iter__(self) -> Iterator[Chunk]:
        for part, d, _ in self.data.rows.shifted():
            mask = d <= FLOOR
            x = self.prepare(d)
            found = mask if mask.any() else None
            if found is not None:
                x[found] = 0.0
            yield Chunk(x, found, self.data.rows.ids[part], self.data.w[part])


def read_fit_rows(
    *, logits: ArrayLike, labels: ArrayLike, ignore: tuple[object, ...], weights: ArrayLike | None
) -> FitRows:
    """Check what a caller gave, as ``fit_temperature`` does, and fit the plain temperature."""
    fit = fit_temperature(logits=logits, labels=labels, ignore=ignore, weights=weights)
    rows = read_predictions(logits=logits, labels=labels, ignore=ignore)
    w = np.ones(len(rows))
    if weights is not None:  # checked by fit_temperature
        w = read_array(weights, "weights").astype(np.float64)[rows.kept]
        w = w / w.max()
    return FitRows(rows, w / w.sum(), fit)


def _plain_fit(rows: Predictions, w: Array) -> TemperatureFit:
    """The plain temperature of rows that were checked as a part of more rows."""
    before = slope_at(rows, w, 1.0)
    if not before.spread:
        return TemperatureFit(1.0, "not identifiable", None, before.nll, before.nll, len(rows))
    temperature, status, at = minimize(rows, w, BOUNDS, before)
    if at.nll > before.nll:
        temperature, at = 1.0, before
    return TemperatureFit(temperature, status, None, before.nll, at.nll, len(rows))


# ------------------------------------------------------------------ softmax and its loss
def log_softmax(u: Array) -> Array:
    """``u - logsumexp(u)`` by rows; exact also where one probability is next to 1."""
    at, top = np.arange(len(u)), u.argmax(axis=1)
    out = u - u[at, top][:, None]
    p = np.exp(out)
    p[at, top] = 0.0
    out -= np.log1p(p.sum(axis=1))[:, None]
    return out


def centred(d: Array) -> Array:
    """Logits less the mean of the row over its possible classes; what is masked stays so."""
    masked = d <= FLOOR
    if not masked.any():
        return d - d.mean(axis=1, keepdims=True)
    total = np.where(masked, 0.0, d).sum(axis=1, keepdims=True)
    return np.where(masked, FLOOR, d - total / (~masked).sum(axis=1, keepdims=True))


def softmax_loss(u: Array, chunk: Chunk) -> tuple[float, Array]:
    """Weighted NLL of ``softmax(u)`` over a chunk, and its derivative in ``u``."""
    if chunk.mask is not None:
        u[chunk.mask] = FLOOR
    at = np.arange(len(u))
    log_p = log_softmax(u)
    loss = -float(chunk.w @ log_p[at, chunk.ids])
    residual = np.exp(log_p, out=log_p)
    residual[at, chunk.ids] -= 1.0
    residual *= chunk.w[:, None]
    return loss, residual


# ------------------------------------------------------------------ minimizing
class Descent(NamedTuple):
    """Where a minimization ended, and ``"converged"``, ``"at a bound"`` or ``"not converged"``."""

    x: Array
    status: str


def descend(
    loss: Callable[[Array], tuple[float, Array]],
    start: Array,
    bounds: tuple[Array, Array],
    *,
    rough: bool = False,
) -> Descent:
    """Minimize a smooth function in a box with SciPy's L-BFGS-B, from ``start`` downhill.

    The status does not trust the flags of the minimizer: it looks at the slope where it stopped.

    Args:
        loss: gives the value and the gradient.
        start: inside the box.
        bounds: lower and upper ends.
        rough: stop where a step gains less than 1e-6 of the loss; enough to choose by.

    Returns:
        The lowest point seen (``start`` itself if nothing was lower), and the status.
    """
    from scipy.optimize import minimize as scipy_minimize

    low, high = bounds
    if not len(start):
        return Descent(start, "converged")
    found = scipy_minimize(
        loss,
        start,
        jac=True,
        method="L-BFGS-B",
        bounds=np.stack([low, high], axis=1),
        options={
            "maxiter": 1000,
            "maxfun": 2000,
            "ftol": 1e-6 if rough else 1e-15,
            "gtol": 1e-9,
            "maxcor": 20,
        },
    )
    x = np.clip(found.x, low, high)
    value, slope = loss(x)
    if not value <= loss(start)[0]:
        return Descent(start, "not converged")
    downhill = np.clip(x - slope, low, high) - x  # zero at a minimum, also at one on the box
    if np.abs(downhill).max() > _FLAT:
        return Descent(x, "not converged")
    return Descent(x, "at a bound" if ((x <= low) | (x >= high)).any() else "converged")


# ------------------------------------------------------------------ held-out rows
def too_few(data: FitRows, folds: int) -> bool:
    """Whether there are too few rows to choose anything by held-out rows."""
    return len(data.rows) < _PER_FOLD * folds


def fold_of_rows(ids: NDArray[np.int64], *, folds: int, seed: int) -> NDArray[np.intp]:
    """Fold of every row, by a seeded shuffle that spreads every class over the folds."""
    order = np.lexsort((np.random.default_rng(seed).random(len(ids)), ids))
    fold = np.empty(len(ids), dtype=np.intp)
    fold[order] = np.arange(len(ids)) % folds
    return fold


def held_out_nll(
    data: FitRows, path: Callable[[FitRows], list[Apply]], *, folds: int, seed: int
) -> Array:
    """NLL of every row by calibrators that were fitted without its fold.

    Args:
        data: all rows.
        path: fits the candidates on some rows, and gives what maps shifted logits to
            log-probabilities, for each.
        folds: number of parts.
        seed: of the shuffle.

    Returns:
        Shape ``[1 + candidates, n]``; the first is the plain temperature of the same rows.
    """
    fold = fold_of_rows(data.rows.ids, folds=folds, seed=seed)
    out: Array | None = None
    for f in range(folds):
        test = fold == f
        train = data.part(~test, fallback=data.temperature)
        if train is None:
            continue
        applies: list[Apply] = [partial(_plain_log_probs, train.temperature), *path(train)]
        out = np.zeros((len(applies), len(fold))) if out is None else out
        rows = Predictions(data.rows.scores[test], True, data.rows.ids[test], np.ones(test.sum()))
        out[:, test] = [row_nll(rows, apply) for apply in applies]
    assert out is not None  # the weights sum to 1, so that some fold has a row that counts
    return out


def _plain_log_probs(temperature: float, d: Array) -> Array:
    return log_softmax(d / temperature)


def row_nll(rows: Predictions, apply: Apply) -> Array:
    """NLL of every row, in nats."""
    out = np.empty(len(rows))
    for part, d, _ in rows.shifted():
        out[part] = -apply(d)[np.arange(len(d)), rows.ids[part]]
    return out


def mean_nll(data: FitRows, apply: Apply) -> float:
    """Weighted mean NLL, in nats; inf where a label has no probability."""
    value = float(data.w @ row_nll(data.rows, apply))
    return value if not math.isnan(value) else math.inf
