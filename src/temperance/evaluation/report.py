"""Judging one model on one set of rows: ``evaluate`` gives a ``Report`` with intervals."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray
from torch import nn

from temperance.errors import InvalidInput
from temperance.evaluation.calibration import bin_edges, bin_index, ece_of_bins, table_of_bins
from temperance.evaluation.ece_bias import bias_range
from temperance.evaluation.intervals import Gaps, bootstrap, percentile_interval, wilson
from temperance.evaluation.posthoc import TemperatureFit, fit_temperature
from temperance.evaluation.predict import collect_logits
from temperance.evaluation.predictions import Predictions, as_ignore, read_predictions
from temperance.evaluation.scores import RowScores, score_rows
from temperance.labels import ClassMap
from temperance.records import Estimate, Report, to_dict

__all__ = ["EvaluateOptions", "evaluate"]


@dataclass(frozen=True)
class EvaluateOptions:
    """How ``evaluate`` works; all of it is written into the report.

    Attributes:
        bins: number of bins of the ECE.
        scheme: ``"width"`` or ``"mass"``, see ``ece``.
        bootstrap: replicates of the intervals of NLL, Brier score and ECE; 0 for no intervals.
        seed: of the bootstrap.
        ignore: numbers in the labels that mark rows without one, or one such number; these rows are
            left out.
        logits_key: which entry of the model's output holds the logits, if it is not clear.
    """

    bins: int = 15
    scheme: str = "width"
    bootstrap: int = 1000
    seed: int = 0
    ignore: tuple[object, ...] = ()
    logits_key: str | int | None = None

    def __post_init__(self) -> None:
        bin_edges(np.zeros(1), bins=self.bins, scheme=self.scheme)
        if not _whole(self.bootstrap) or self.bootstrap == 1:
            raise InvalidInput(
                "bootstrap",
                expected="0, or a whole number of 2 and more replicates",
                found=repr(self.bootstrap),
                fix="The default is 1000.",
            )
        if not _whole(self.seed):
            raise InvalidInput(
                "seed",
                expected="a whole number of at least 0",
                found=repr(self.seed),
                fix="The default is 0.",
            )
        object.__setattr__(self, "ignore", as_ignore(self.ignore))


def _whole(value: object) -> bool:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool) and bool(value >= 0)


@overload
def evaluate(
    model: nn.Module,
    loader: Iterable[Any],
    *,
    fit_loader: Iterable[Any] | None = None,
    class_map: ClassMap | Sequence[str] | None = None,
    posthoc: TemperatureFit | None = None,
    options: EvaluateOptions | None = None,
) -> Report: ...


@overload
def evaluate(
    *,
    logits: ArrayLike | None = None,
    probs: ArrayLike | None = None,
    labels: ArrayLike,
    class_map: ClassMap | Sequence[str] | None = None,
    posthoc: TemperatureFit | None = None,
    options: EvaluateOptions | None = None,
) -> Report: ...


def evaluate(
    model: nn.Module | None = None,
    loader: Iterable[Any] | None = None,
    *,
    fit_loader: Iterable[Any] | None = None,
    logits: ArrayLike | None = None,
    probs: ArrayLike | None = None,
    labels: ArrayLike | None = None,
    class_map: ClassMap | Sequence[str] | None = None,
    posthoc: TemperatureFit | None = None,
    options: EvaluateOptions | None = None,
) -> Report:
    """Judge predictions: accuracy, NLL, Brier score and ECE, also after a post-hoc temperature.

    Two forms: ``evaluate(model, loader, fit_loader=...)`` runs a model, and
    ``evaluate(logits=..., labels=...)`` takes what it put out. Intervals are 95 %: Wilson's for
    accuracies, the percentile bootstrap over rows for the others (for the ECE less the bootstrap's
    bias, its lower end moved down by the most that few rows can add to it). They cover the choice
    of rows, not another training of the model.

    Args:
        model: runs in evaluation mode, and is left as it was.
        loader: batches with labels, of the rows to judge.
        fit_loader: batches of other held-out rows; the post-hoc temperature is fitted on them.
        logits: numbers before the softmax, shape ``[n, C]``, or ``[n]`` for two classes.
        probs: probabilities, same shapes; exactly one of the two is given.
        labels: class ids ``0 .. C-1``, shape ``[n]``.
        class_map: names of the classes, in the order of the ids; their numbers if absent.
        posthoc: a temperature that ``fit_temperature`` found on other rows. Unless it has converged
            it is not applied: the figures after it are then those of T = 1, as the report says
            (``posthoc_temperature`` is the T that was applied, ``posthoc_status`` and
            ``settings["posthoc_use"]`` tell why).
        options: bins, bootstrap, seed and the like.

    Returns:
        A report with the metrics ``accuracy, nll, brier, ece`` and, with a post-hoc temperature,
        ``nll_posthoc, brier_posthoc, ece_posthoc``; the accuracy of each class (None without rows);
        and the bins of the reliability diagram.

    Raises:
        InvalidInput: if it is not one of the two forms, or if the input cannot be used.

    Example:
        >>> from temperance import evaluate
        >>> report = evaluate(logits=[[2.0, 0.0], [0.0, 1.0], [3.0, 0.0]], labels=[0, 1, 1])
        >>> round(report.metrics["accuracy"].value, 3), round(report.metrics["nll"].value, 3)
        (0.667, 1.163)
    """
    options = options or EvaluateOptions()
    if model is not None and loader is not None:
        _check_model_form((logits, probs, labels), loader, fit_loader, posthoc)
        key = options.logits_key
        if fit_loader is not None:
            fit_logits, fit_labels = collect_logits(model, fit_loader, key=key)
            posthoc = fit_temperature(logits=fit_logits, labels=fit_labels, ignore=options.ignore)
        logits, labels = collect_logits(model, loader, key=key)
    elif model is not None or loader is not None or fit_loader is not None or labels is None:
        raise _wrong_form("a part of one form, or of both")
    predictions = read_predictions(logits=logits, probs=probs, labels=labels, ignore=options.ignore)
    return _report(predictions, _names(class_map, predictions.n_classes), posthoc, options)


# ------------------------------------------------------------------ the report
def _report(
    predictions: Predictions,
    names: tuple[str, ...],
    posthoc: TemperatureFit | None,
    options: EvaluateOptions,
) -> Report:
    stages = {"": score_rows(predictions)}
    if posthoc is not None:
        stages["_posthoc"] = score_rows(predictions, temperature=posthoc.applied)
    tables = {
        ending: table_of_bins(
            scores, bin_edges(scores.confidence, bins=options.bins, scheme=options.scheme)
        )
        for ending, scores in stages.items()
    }
    correct = stages[""].correct
    metrics = {"accuracy": _share(correct), **_bootstrapped(stages, tables, options)}
    reliability: dict[str, Any] = dict(tables[""])
    if posthoc is not None:
        reliability["posthoc"] = tables["_posthoc"]
    return Report(
        n=len(predictions),
        n_classes=predictions.n_classes,
        metrics=metrics,
        per_class=_per_class(correct, predictions.ids, names),
        posthoc_temperature=None if posthoc is None else posthoc.applied,
        posthoc_status=None if posthoc is None else posthoc.status,
        reliability=reliability,
        settings=_settings(predictions, posthoc, options),
    )


def _share(correct: NDArray[np.float64]) -> Estimate:
    interval = wilson(float(correct.sum()), len(correct))
    return Estimate(float(correct.mean()), interval, f"Wilson, {len(correct)} rows")


def _per_class(
    correct: NDArray[np.float64], ids: NDArray[np.int64], names: tuple[str, ...]
) -> dict[str, Estimate | None]:
    counts = np.bincount(ids, minlength=len(names))
    return {name: _share(correct[ids == k]) if counts[k] else None for k, name in enumerate(names)}


def _bootstrapped(
    stages: dict[str, RowScores], tables: dict[str, dict[str, Any]], options: EvaluateOptions
) -> dict[str, Estimate]:
    """NLL, Brier score and ECE of every stage, all from the same drawn rows."""
    means, values = {}, {}
    for ending, scores in stages.items():
        for name, column in ((f"nll{ending}", scores.nll), (f"brier{ending}", scores.brier)):
            means[name], values[name] = column, float(column.mean())
        values[f"ece{ending}"] = ece_of_bins(tables[ending])
    finite = {name: column for name, column in means.items() if np.isfinite(column).all()}
    n = len(stages[""].correct)
    if options.bootstrap == 0 or n < 2:
        why = "no interval: " + ("one row" if n < 2 else "bootstrap=0")
        return {name: Estimate(value, None, why) for name, value in values.items()}
    gaps = [
        gaps_of(scores, np.asarray(tables[ending]["edges"])) for ending, scores in stages.items()
    ]
    columns = np.stack(list(finite.values()), axis=1)
    drawn, eces = bootstrap(columns, gaps, replicates=options.bootstrap, seed=options.seed)
    how = f"percentile bootstrap, {options.bootstrap} draws of {n} rows"
    out = {name: Estimate(values[name], None, "no interval: it is infinite") for name in means}
    for place, name in enumerate(finite):
        out[name] = Estimate(values[name], percentile_interval(values[name], drawn[:, place]), how)
    for place, ending in enumerate(tables):
        value = values[f"ece{ending}"]
        low, high = percentile_interval(value, eces[:, place], centred=True)
        low -= bias_range([gaps[place]], bins=options.bins)[1]  # few rows make an ECE too large
        out[f"ece{ending}"] = Estimate(value, (max(0.0, low), min(1.0, high)), f"{how}, less bias")
    return {name: out[name] for name in values}


def gaps_of(scores: RowScores, edges: NDArray[np.float64]) -> Gaps:
    """Bin of every row, and confidence less correctness: what the bootstrap of an ECE needs."""
    return bin_index(scores.confidence, edges), scores.confidence - scores.correct


def _settings(
    predictions: Predictions, posthoc: TemperatureFit | None, options: EvaluateOptions
) -> dict[str, Any]:
    return {
        "bins": options.bins,
        "scheme": options.scheme,
        "bootstrap": options.bootstrap,
        "seed": options.seed,
        "ignore": list(options.ignore),
        "ignored_rows": int((~predictions.kept).sum()),
        "input": "logits" if predictions.from_logits else "probs",
        "level": 0.95,
        "posthoc": None if posthoc is None else to_dict(posthoc),
        "posthoc_use": None if posthoc is None else _use(posthoc),
        "n_fit": None if posthoc is None else posthoc.n,
    }


def _use(posthoc: TemperatureFit) -> str:
    if posthoc.status == "converged":
        return "applied"
    return f"not applied: status {posthoc.status!r}, so that T = 1"


# ------------------------------------------------------------------ the checks
def _names(class_map: ClassMap | Sequence[str] | None, n_classes: int) -> tuple[str, ...]:
    if class_map is None:
        return tuple(map(str, range(n_classes)))
    names = class_map.names if isinstance(class_map, ClassMap) else ClassMap(tuple(class_map)).names
    if len(names) != n_classes:
        raise InvalidInput(
            "class_map",
            expected=f"{n_classes} names, one per output",
            found=f"{len(names)}",
            fix="Pass the class map that the model was trained with.",
        )
    return names


def _check_model_form(
    arrays: tuple[Any, ...],
    loader: Iterable[Any],
    fit_loader: Iterable[Any] | None,
    posthoc: TemperatureFit | None,
) -> None:
    if any(a is not None for a in arrays):
        raise _wrong_form("parts of both")
    if fit_loader is not None and posthoc is not None:
        raise InvalidInput(
            "evaluate",
            expected="fit_loader= or posthoc=",
            found="both",
            fix="Pass the rows to fit on, or the fit.",
        )
    if fit_loader is loader:
        raise InvalidInput(
            "fit_loader",
            expected="other rows than those that are judged",
            found="the same loader",
            fix="Split the held-out rows: fit the temperature on one part, judge on the other.",
        )


def _wrong_form(found: str) -> InvalidInput:
    return InvalidInput(
        "evaluate",
        expected="evaluate(model, loader) or evaluate(logits=..., labels=...)",
        found=found,
        fix="Pass a model with a loader, or arrays with labels.",
    )
