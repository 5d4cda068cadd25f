"""The table of figures: which function gives each, its unit, which way is better, its origin."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from temperance.evaluation.brier_decomposition import (
    brier_reliability,
    brier_reliability_measure,
    brier_resolution,
    brier_resolution_measure,
)
from temperance.evaluation.calibration import accuracy, bin_edges, bin_index, brier, ece, nll
from temperance.evaluation.confidence import (
    mean_confidence,
    mean_confidence_measure,
    overconfidence,
    overconfidence_measure,
    sharpness,
    sharpness_measure,
)
from temperance.evaluation.ece_variants import (
    class_ece,
    class_ece_measure,
    debiased_ece,
    debiased_ece_measure,
    max_ece,
    max_ece_measure,
    rms_ece,
    rms_ece_measure,
)
from temperance.evaluation.predictions import Predictions
from temperance.evaluation.scores import score_rows
from temperance.evaluation.selective import (
    aurc,
    aurc_measure,
    eaurc,
    eaurc_measure,
    selective_accuracy,
    selective_accuracy_measure,
)
from temperance.evaluation.smooth_ece import smooth_ece, smooth_ece_measure
from temperance.evaluation.weighted import Measure, mean_measure, top_label_sums

__all__ = ["CENTRED", "FIGURES", "SAMPLED", "WILSON", "FigureOfMerit"]

SAMPLED = "sampled"
CENTRED = "centred"
WILSON = "wilson"


@dataclass(frozen=True)
class FigureOfMerit:
    """A row of the table of figures.

    Attributes:
        function: gives the figure: ``function(logits=... or probs=..., labels=...)``.
        title: its name in words.
        unit: what the number is.
        better: ``"higher"``, ``"lower"``, ``"zero"``, or ``"neither"`` where it does not say.
        most: largest value there is; the least is 0, or ``-most`` for ``"zero"``.
        reference: where it comes from.
        interval: ``"wilson"``; ``"sampled"``, the percentile bootstrap; or ``"centred"``, that less
            the bootstrap's bias, with the lower end moved down by what few rows can add.
        measure: makes the figure's ``Measure`` from checked predictions, with the settings of
            ``function``.
        noise: for ``"centred"`` figures another measure that few rows push up equally and that is 0
            for calibrated probabilities; None where ``measure`` is that itself.
    """

    function: Callable[..., float]
    title: str
    unit: str
    better: str
    most: float
    reference: str
    interval: str
    measure: Callable[..., Measure] = field(repr=False)
    noise: Callable[..., Measure] | None = field(default=None, repr=False)


def _accuracy(predictions: Predictions) -> Measure:
    return mean_measure(score_rows(predictions).correct)


def _nll(predictions: Predictions) -> Measure:
    return mean_measure(score_rows(predictions).nll)


def _brier(predictions: Predictions) -> Measure:
    return mean_measure(score_rows(predictions).brier)


def _ece(predictions: Predictions, *, bins: int = 15, scheme: str = "width") -> Measure:
    scores = score_rows(predictions)
    edges = bin_edges(scores.confidence, bins=bins, scheme=scheme)
    index, gap = bin_index(scores.confidence, edges), scores.confidence - scores.correct
    n, n_bins = len(gap), len(edges) - 1
    return lambda w: np.asarray(np.abs(top_label_sums(index, [gap], n_bins, w)[0]).sum(axis=1) / n)


_CALIBRATION = "calibration error, 0 to 1"
_KUMAR = "Kumar, Liang, Ma, 2019, arXiv 1909.10155"
_MURPHY = "Murphy, 1973; Stephenson, Coelho, Jolliffe, 2008"

#: Every figure by name.
FIGURES: dict[str, FigureOfMerit] = {
    "accuracy": FigureOfMerit(
        accuracy, "Accuracy", "share", "higher", 1.0, "share of right rows", WILSON, _accuracy
    ),
    "nll": FigureOfMerit(
        nll, "NLL", "nats", "lower", math.inf, "Good, Rational decisions, 1952", SAMPLED, _nll
    ),
    "brier": FigureOfMerit(
        brier, "Brier score", "score, 0 to 2", "lower", 2.0, "Brier, 1950", SAMPLED, _brier
    ),
    "brier_reliability": FigureOfMerit(
        brier_reliability,
        "Brier score, reliability part",
        "score, 0 to 2",
        "lower",
        2.0,
        _MURPHY,
        CENTRED,
        brier_reliability_measure,
    ),
    "brier_resolution": FigureOfMerit(
        brier_resolution,
        "Brier score, resolution part",
        "score, 0 to 1",
        "higher",
        1.0,
        _MURPHY,
        CENTRED,
        brier_resolution_measure,
        noise=brier_reliability_measure,
    ),
    "ece": FigureOfMerit(
        ece,
        "ECE",
        _CALIBRATION,
        "lower",
        1.0,
        "Guo, Pleiss, Sun, Weinberger, 2017, arXiv 1706.04599",
        CENTRED,
        _ece,
    ),
    "debiased_ece": FigureOfMerit(
        debiased_ece,
        "ECE, debiased",
        _CALIBRATION,
        "lower",
        1.0,
        _KUMAR,
        CENTRED,
        debiased_ece_measure,
    ),
    "rms_ece": FigureOfMerit(
        rms_ece,
        "Root mean square calibration error, debiased",
        _CALIBRATION,
        "lower",
        1.0,
        _KUMAR,
        CENTRED,
        rms_ece_measure,
    ),
    "class_ece": FigureOfMerit(
        class_ece,
        "Class-wise ECE",
        _CALIBRATION,
        "lower",
        1.0,
        "Kull and others, 2019, arXiv 1910.12656; Nixon and others, 2019, arXiv 1904.01685",
        CENTRED,
        class_ece_measure,
    ),
    "max_ece": FigureOfMerit(
        max_ece,
        "Maximum calibration error",
        _CALIBRATION,
        "lower",
        1.0,
        "Naeini, Cooper, Hauskrecht, 2015",
        CENTRED,
        max_ece_measure,
    ),
    "smooth_ece": FigureOfMerit(
        smooth_ece,
        "Smooth ECE",
        _CALIBRATION,
        "lower",
        1.0,
        "Błasiok, Nakkiran, 2023, arXiv 2309.12236",
        CENTRED,
        smooth_ece_measure,
    ),
    "aurc": FigureOfMerit(
        aurc,
        "AURC",
        "mean risk, 0 to 1",
        "lower",
        1.0,
        "Geifman, El-Yaniv, 2017, arXiv 1705.08500",
        SAMPLED,
        aurc_measure,
    ),
    "eaurc": FigureOfMerit(
        eaurc,
        "E-AURC",
        "mean risk, 0 to 1",
        "lower",
        1.0,
        "Geifman, Uziel, El-Yaniv, 2018, arXiv 1805.08206",
        SAMPLED,
        eaurc_measure,
    ),
    "selective_accuracy": FigureOfMerit(
        selective_accuracy,
        "Accuracy at 80 % coverage",
        "share",
        "higher",
        1.0,
        "Geifman, El-Yaniv, 2017, arXiv 1705.08500",
        SAMPLED,
        selective_accuracy_measure,
    ),
    "mean_confidence": FigureOfMerit(
        mean_confidence,
        "Mean confidence",
        "probability",
        "neither",
        1.0,
        "mean of the largest probability",
        SAMPLED,
        mean_confidence_measure,
    ),
    "overconfidence": FigureOfMerit(
        overconfidence,
        "Confidence less accuracy",
        "probability, -1 to 1",
        "zero",
        1.0,
        "calibration in the large: Murphy, 1973, with one bin",
        SAMPLED,
        overconfidence_measure,
    ),
    "sharpness": FigureOfMerit(
        sharpness,
        "Sharpness",
        "variance, 0 to 1",
        "neither",
        1.0,
        "Murphy, Winkler, 1987; Gneiting, Balabdaoui, Raftery, 2007",
        SAMPLED,
        sharpness_measure,
    ),
}
