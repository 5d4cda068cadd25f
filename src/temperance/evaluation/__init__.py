"""Judging predictions: figures with intervals, a post-hoc temperature, comparisons, pictures.

``temperance.evaluation.plots`` and ``temperance.evaluation.html`` are imported by those who draw;
nothing here imports matplotlib.
"""

from temperance.evaluation.calibration import accuracy, brier, ece, nll, reliability_bins
from temperance.evaluation.compare import BETTER, ONE_SEED, arm_mean, paired_difference, verdict
from temperance.evaluation.posthoc import TemperatureFit, apply_temperature, fit_temperature
from temperance.evaluation.predict import collect_logits
from temperance.evaluation.report import EvaluateOptions, evaluate
from temperance.evaluation.scores import row_scores

__all__ = [
    "BETTER",
    "ONE_SEED",
    "EvaluateOptions",
    "TemperatureFit",
    "accuracy",
    "apply_temperature",
    "arm_mean",
    "brier",
    "collect_logits",
    "ece",
    "evaluate",
    "fit_temperature",
    "nll",
    "paired_difference",
    "reliability_bins",
    "row_scores",
    "verdict",
]
