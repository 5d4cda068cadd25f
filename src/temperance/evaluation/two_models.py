"""Two models judged on the same rows: is one of them shown to be better?

Both models are taken as they are; what is left to chance is the choice of rows. (Arms of several
trainings are compared in ``compare``.)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from temperance.arrays import as_numpy
from temperance.errors import InvalidInput
from temperance.evaluation.calibration import bin_edges, bin_index
from temperance.evaluation.compare import BETTER, ONE_SEED, paired_difference, verdict
from temperance.evaluation.intervals import bootstrap, percentile_interval
from temperance.evaluation.predictions import read_predictions
from temperance.evaluation.report import EvaluateOptions
from temperance.evaluation.scores import score_rows
from temperance.records import Estimate

__all__ = ["McNemar", "ModelComparison", "compare_models", "mcnemar"]

LEVEL = 0.05  # McNemar's p below which a difference counts as shown, that of 95 % intervals


@dataclass(frozen=True)
class McNemar:
    """McNemar's test of two models' accuracies on the same rows.

    Attributes:
        both: rows that both get right.
        only_a: rows that only the first gets right.
        only_b: rows that only the second gets right.
        neither: rows that both get wrong.
        p_exact: two-sided exact binomial p; never too small, and too large for few rows.
        p_mid: two-sided mid-p, the one to go by.
    """

    both: int
    only_a: int
    only_b: int
    neither: int
    p_exact: float
    p_mid: float


@dataclass(frozen=True)
class ModelComparison:
    """What the same rows say about two models.

    Attributes:
        n: number of rows.
        a: figures of the first model: ``accuracy, nll, brier, ece``.
        b: figures of the second.
        differences: first less second, each with its paired 95 % interval.
        verdicts: of the first model, by figure: ``"better"``, ``"worse"`` or ``"no difference
            shown"``. That of the accuracy goes by McNemar's mid-p, the others by their interval.
        mcnemar: the test of the accuracies.
        settings: bins, bootstrap, seed, level.
    """

    n: int
    a: Mapping[str, float]
    b: Mapping[str, float]
    differences: Mapping[str, Estimate]
    verdicts: Mapping[str, str]
    mcnemar: McNemar
    settings: Mapping[str, Any] = field(default_factory=dict)


def mcnemar(correct_a: ArrayLike, correct_b: ArrayLike) -> McNemar:
    """Test whether two models are right equally often, on the same rows.

    Of the rows on which only one is right, each model should have half, if they are alike:
    ``p_exact = min(1, 2 P(X <= min(only_a, only_b)))`` with X binomial(only_a + only_b, 1/2), and
    ``p_mid`` is ``2 P(X <= min) - P(X = min)``.

    Args:
        correct_a: for every row whether the first model is right: booleans, 0 or 1, shape ``[n]``.
        correct_b: the same for the second model, on the same rows in the same order.

    Returns:
        The four counts and both p; 1 where the models are never right on different rows.

    Raises:
        InvalidInput: if the two are not of one length, or hold other numbers.

    Example:
        >>> from temperance.evaluation import mcnemar
        >>> found = mcnemar([1] * 6 + [0] * 3, [0] * 5 + [1] * 2 + [0] * 2)
        >>> found.only_a, found.only_b, round(found.p_exact, 4), round(found.p_mid, 4)
        (5, 1, 0.2188, 0.125)

    Reference:
        McNemar, Note on the sampling error of the difference between correlated proportions or
        percentages, 1947. Fagerland, Lydersen, Laake, The McNemar test for binary matched-pairs
        data: mid-p and asymptotic are better than exact conditional, 2013.
    """
    from scipy.stats import binom

    a, b = _flags(correct_a, "correct_a"), _flags(correct_b, "correct_b")
    if a.shape != b.shape:
        raise InvalidInput(
            "correct_a and correct_b",
            expected="the same rows",
            found=f"{len(a)} and {len(b)} rows",
            fix="Judge both models on one test set.",
        )
    only_a, only_b = int((a & ~b).sum()), int((b & ~a).sum())
    fewer, differ = min(only_a, only_b), only_a + only_b
    tail, point = float(binom.cdf(fewer, differ, 0.5)), float(binom.pmf(fewer, differ, 0.5))
    return McNemar(
        both=int((a & b).sum()),
        only_a=only_a,
        only_b=only_b,
        neither=int((~a & ~b).sum()),
        p_exact=min(1.0, 2 * tail),
        p_mid=min(1.0, 2 * tail - point),
    )


def compare_models(
    a: Mapping[str, ArrayLike],
    b: Mapping[str, ArrayLike],
    *,
    labels: ArrayLike,
    options: EvaluateOptions | None = None,
) -> ModelComparison:
    """Compare two models on the same rows: accuracy, NLL, Brier score and ECE.

    Rows are drawn again in pairs, so that what the models have in common cancels. The ECE is
    compared as in ``paired_difference``: its interval also takes off the bias of few rows. Four
    figures are looked at; nothing is corrected for that.

    Args:
        a: ``{"logits": array}`` or ``{"probs": array}`` of the first model.
        b: the same of the second; the two may be of different kinds.
        labels: class ids, shape ``[n]``, of the rows of both.
        options: ``bins``, ``bootstrap`` (2 or more), ``seed`` and ``ignore``.

    Returns:
        Figures of both, their differences with intervals, and what they show.

    Raises:
        InvalidInput: if one of the two cannot be used, if they differ in rows or classes, or if
            there are to be no replicates.

    Example:
        >>> from temperance.evaluation import compare_models
        >>> a, b = [[0.9, 0.1], [0.2, 0.8], [0.7, 0.3]], [[0.8, 0.2], [0.4, 0.6], [0.6, 0.4]]
        >>> found = compare_models({"probs": a}, {"probs": b}, labels=[0, 1, 1])
        >>> round(found.differences["nll"].value, 3), found.verdicts["accuracy"]
        (-0.039, 'no difference shown')
    """
    options = options or EvaluateOptions()
    _check_options(options)
    columns = [_columns(model, name, labels, options) for name, model in (("a", a), ("b", b))]
    if columns[0]["classes"] != columns[1]["classes"]:
        raise InvalidInput(
            "a and b",
            expected="predictions over the same classes",
            found=f"{columns[0]['classes']} and {columns[1]['classes']} classes",
            fix="Bring both to one class map, in the same order.",
        )
    first, second = ({k: v for k, v in c.items() if k != "classes"} for c in columns)
    test = mcnemar(first["correct"], second["correct"])
    differences = _mean_differences(first, second, options)
    differences["ece"] = _ece_difference(first, second, options)
    verdicts = {name: verdict(e, better=BETTER[name]) for name, e in differences.items()}
    verdicts["accuracy"] = _accuracy_verdict(test)
    gaps = {"bins": options.bins, "bootstrap": options.bootstrap, "seed": options.seed}
    return ModelComparison(
        n=len(first["label"]),
        a=_figures(first, options),
        b=_figures(second, options),
        differences=differences,
        verdicts=verdicts,
        mcnemar=test,
        settings={**gaps, "scheme": "width", "level": 0.95, "ignore": list(options.ignore)},
    )


# ------------------------------------------------------------------ the parts
Columns = dict[str, Any]


def _columns(
    model: Mapping[str, ArrayLike], name: str, labels: ArrayLike, options: EvaluateOptions
) -> Columns:
    """Scores of every row of one model, and its number of classes."""
    if not isinstance(model, Mapping) or len(model) != 1 or not set(model) <= {"logits", "probs"}:
        found = f"keys {list(model)}" if isinstance(model, Mapping) else type(model).__name__
        raise InvalidInput(
            f"model {name}",
            expected="{'logits': array} or {'probs': array}",
            found=found,
            fix="Name what the numbers are; the values do not tell.",
        )
    kind, values = next(iter(model.items()))
    given = {"logits": values} if kind == "logits" else {"probs": values}
    try:
        predictions = read_predictions(**given, labels=labels, ignore=options.ignore)
    except InvalidInput as error:
        raise InvalidInput(
            f"model {name}, {error.subject}",
            expected=error.expected,
            found=error.found,
            fix=error.fix,
        ) from error
    scores = vars(score_rows(predictions))
    return {"label": predictions.ids, "classes": predictions.n_classes, **scores}


_MEANS = {"accuracy": "correct", "nll": "nll", "brier": "brier"}


def _mean_differences(
    first: Columns, second: Columns, options: EvaluateOptions
) -> dict[str, Estimate]:
    n = len(first["label"])
    with np.errstate(invalid="ignore"):  # infinite less infinite
        rows = {name: first[column] - second[column] for name, column in _MEANS.items()}
    finite = [name for name, d in rows.items() if np.isfinite(d).all() and n > 1]
    table = np.stack([rows[name] for name in finite], axis=1) if finite else np.empty((n, 0))
    drawn, _ = bootstrap(table, [], replicates=options.bootstrap, seed=options.seed)
    how = f"paired percentile bootstrap, {options.bootstrap} draws of {n} rows"
    why = "no interval: one row" if n < 2 else "no interval: a row has an infinite score"
    out = {}
    for name, d in rows.items():
        value = float(d.mean())
        if name in finite:
            interval = percentile_interval(value, drawn[:, finite.index(name)])
            out[name] = Estimate(value, interval, how)
        else:
            out[name] = Estimate(value, None, why)
    return out


def _ece_difference(first: Columns, second: Columns, options: EvaluateOptions) -> Estimate:
    """The rows' interval of ``paired_difference``; both models are fixed, so that it is all."""
    found = paired_difference(
        [first], [second], metric="ece", bins=options.bins, bootstrap_seed=options.seed
    )
    if not found.method.startswith(ONE_SEED):
        return found
    n = len(first["label"])
    return Estimate(found.value, found.interval, f"paired bootstrap, {n} rows, less bias")


def _accuracy_verdict(test: McNemar) -> str:
    if test.p_mid >= LEVEL:
        return "no difference shown"
    return "better" if test.only_a > test.only_b else "worse"


def _figures(columns: Columns, options: EvaluateOptions) -> dict[str, float]:
    index = bin_index(columns["confidence"], bin_edges(columns["confidence"], bins=options.bins))
    gaps = np.bincount(index, columns["confidence"] - columns["correct"])
    means = {name: float(columns[column].mean()) for name, column in _MEANS.items()}
    return {**means, "ece": float(np.abs(gaps).sum() / len(index))}


# ------------------------------------------------------------------ the checks
def _flags(values: ArrayLike, subject: str) -> NDArray[np.bool_]:
    array = as_numpy(values)
    if array.ndim != 1 or array.size == 0 or not np.isin(array, (0, 1)).all():
        raise InvalidInput(
            subject,
            expected="one 0 or 1 per row, at least one row",
            found=f"type {array.dtype}, shape {list(array.shape)}",
            fix="Pass row_scores(...)['correct'].",
        )
    return array.astype(bool)


def _check_options(options: EvaluateOptions) -> None:
    if options.bootstrap < 2 or options.scheme != "width":
        raise InvalidInput(
            "options",
            expected="bootstrap of 2 or more and scheme 'width'",
            found=f"bootstrap={options.bootstrap}, scheme={options.scheme!r}",
            fix="A comparison needs intervals, and bins that both models share.",
        )
