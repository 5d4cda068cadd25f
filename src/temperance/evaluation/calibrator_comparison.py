"""Which calibrator for these rows: every method judged on rows that it was not fitted on."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from temperance.errors import InvalidInput
from temperance.evaluation.calibrators import (
    CALIBRATORS,
    Calibrator,
    find_method,
    fit_on_rows,
)
from temperance.evaluation.compare import BETTER, arm_mean, paired_difference, verdict
from temperance.evaluation.fit_rows import FitRows, fold_of_rows, read_fit_rows
from temperance.evaluation.predictions import Predictions
from temperance.evaluation.scores import score_rows
from temperance.records import Estimate

__all__ = ["NONE", "CalibratorRow", "compare_calibrators"]

#: Name of the row of the logits as they are.
NONE = "none"
_METRICS = ("nll", "ece", "brier", "accuracy")
_BASE = "temperature"
_HOW = "rows drawn out of fold, one model; covers the rows, not the spread between fits"


@dataclass(frozen=True)
class CalibratorRow:
    """A row of the comparison table.

    Attributes:
        method: a name in ``CALIBRATORS``, or ``"none"``.
        metrics: out-of-fold ``nll`` (nats), ``ece``, ``brier`` and ``accuracy``.
        change: the same less those of the plain temperature, on the same rows; empty for it itself.
        verdict: for every metric ``"better"``, ``"worse"`` or ``"no difference shown"`` than the
            plain temperature; empty for it itself.
        statuses: status of the fit of every fold, and how often.
        seconds: wall-clock time of all fits.
    """

    method: str
    metrics: Mapping[str, Estimate]
    change: Mapping[str, Estimate] = field(default_factory=dict)
    verdict: Mapping[str, str] = field(default_factory=dict)
    statuses: Mapping[str, int] = field(default_factory=dict)
    seconds: float = 0.0


def compare_calibrators(
    *,
    logits: ArrayLike,
    labels: ArrayLike,
    methods: Sequence[str] | None = None,
    folds: int = 5,
    seed: int = 0,
) -> tuple[CalibratorRow, ...]:
    """Compare calibration methods by cross-validation on the same held-out logits.

    Every method is fitted on all folds but one and judged on that one; what it chooses by held-out
    rows of its own, it chooses inside. Differences are paired by rows. Eight methods at 95 % make a
    false "better" somewhere rather likely: look for clear ones.

    Args:
        logits: numbers before the softmax, shape ``[n, C]``; for two classes also ``[n]`` or
            ``[n, 1]``. Of rows that the model was not trained on.
        labels: class ids, shape ``[n]``.
        methods: names in ``CALIBRATORS``; all that take the logits, if absent (matrix and Dirichlet
            scaling take no masked classes). The plain temperature is always there.
        folds: number of parts, 2 or more.
        seed: of the folds, of the inner ones, and of the bootstrap for the ECE.

    Returns:
        One row for the logits as they are (``"none"``), one for the plain temperature, and one for
        each other method.

    Raises:
        NotFound: if there is no method of a name.
        InvalidInput: if the rows cannot be used, or there are too few for the folds.

    Example:
        >>> import numpy as np
        >>> from temperance.evaluation import compare_calibrators
        >>> rng = np.random.default_rng(0)
        >>> z = rng.normal(size=(600, 3)) * 2
        >>> y = (z + rng.gumbel(size=z.shape)).argmax(axis=1)
        >>> rows = compare_calibrators(logits=z * 9, labels=y, methods=["vector"])
        >>> [(row.method, row.verdict.get("nll")) for row in rows]  # doctest: +NORMALIZE_WHITESPACE
        [('none', 'worse'), ('temperature', None), ('vector', 'no difference shown')]
    """
    data = read_fit_rows(logits=logits, labels=labels, ignore=(), weights=None)
    fold = fold_of_rows(data.rows.ids, folds=_check_folds(folds, data), seed=seed)
    raw = _scores(data.rows, data.rows.scores)
    scores = {NONE: raw}
    made: dict[str, tuple[list[Calibrator], float]] = {NONE: ([], 0.0)}
    for name in _names(methods, data):
        start = time.perf_counter()
        fits = _fits(name, data, fold, seed)
        log_p = np.empty(data.rows.scores.shape)
        for f, fit in enumerate(fits):
            log_p[fold == f] = fit.log_probs_of(data.rows.scores[fold == f])
        scores[name] = _scores(data.rows, log_p)
        made[name] = (fits, time.perf_counter() - start)
    return tuple(_row(name, scores, *made[name], seed) for name in scores)


def _check_folds(folds: Any, data: FitRows) -> int:
    n = len(data.rows)
    whole = isinstance(folds, (int, np.integer)) and not isinstance(folds, bool)
    if not whole or not 2 <= folds <= n:
        raise InvalidInput(
            "folds",
            expected=f"a whole number from 2 to the {n} rows",
            found=repr(folds),
            fix="Five is common; the rows should be some hundreds at least.",
        )
    return int(folds)


def _names(methods: Sequence[str] | None, data: FitRows) -> list[str]:
    if methods is None:
        masked = bool((data.rows.scores == -np.inf).any())
        methods = [name for name, row in CALIBRATORS.items() if row.masks or not masked]
    elif isinstance(methods, str):
        methods = [methods]
    names = [find_method(name).name for name in methods if name != NONE]
    return list(dict.fromkeys([_BASE, *names]))


def _fits(name: str, data: FitRows, fold: NDArray[np.intp], seed: int) -> list[Calibrator]:
    row = CALIBRATORS[name]
    options = row.read_options({"seed": seed} if "seed" in row.options else None)
    parts = [data.part(fold != f) for f in range(int(fold.max()) + 1)]
    return [fit_on_rows(row, part, options) for part in parts if part is not None]


def _scores(rows: Predictions, logits: NDArray[np.generic]) -> dict[str, NDArray[np.generic]]:
    scored = score_rows(Predictions(logits, True, rows.ids, rows.kept))
    return {"label": rows.ids, **vars(scored)}


def _row(
    name: str,
    scores: Mapping[str, Mapping[str, Any]],
    fits: Sequence[Calibrator],
    seconds: float,
    seed: int,
) -> CalibratorRow:
    metrics = {m: _said(arm_mean([scores[name]], metric=m, bootstrap_seed=seed)) for m in _METRICS}
    found = [fit.status for fit in fits]
    statuses = {status: found.count(status) for status in dict.fromkeys(found)}
    if name == _BASE:
        return CalibratorRow(name, metrics, statuses=statuses, seconds=seconds)
    ours, base = [scores[name]], [scores[_BASE]]
    change = {
        m: _said(paired_difference(ours, base, metric=m, bootstrap_seed=seed)) for m in _METRICS
    }
    words = {m: verdict(change[m], better=BETTER[m]) for m in _METRICS}
    return CalibratorRow(name, metrics, change, words, statuses, seconds)


def _said(estimate: Estimate) -> Estimate:
    """The question here is about this one model: the rows are all that varies."""
    return estimate if estimate.interval is None else replace(estimate, method=_HOW)
