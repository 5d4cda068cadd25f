"""Judging predictions: figures with intervals, a post-hoc temperature, comparisons, pictures.

``temperance.evaluation.plots`` and ``temperance.evaluation.html`` are imported by those who draw;
nothing here imports matplotlib.
"""

from temperance.evaluation.brier_decomposition import (
    BrierParts,
    brier_parts,
    brier_reliability,
    brier_resolution,
)
from temperance.evaluation.calibration import accuracy, brier, ece, nll, reliability_bins
from temperance.evaluation.calibrator_comparison import CalibratorRow, compare_calibrators
from temperance.evaluation.calibrators import CALIBRATORS, Calibrator, fit_calibrator
from temperance.evaluation.compare import BETTER, ONE_SEED, arm_mean, paired_difference, verdict
from temperance.evaluation.confidence import mean_confidence, overconfidence, sharpness
from temperance.evaluation.corruptions import CORRUPTIONS, corrupt
from temperance.evaluation.detection import OodMetrics, ood_metrics
from temperance.evaluation.ece_variants import class_ece, debiased_ece, max_ece, rms_ece
from temperance.evaluation.figures import FIGURES, FigureOfMerit, with_interval
from temperance.evaluation.logit_files import LogitsFile
from temperance.evaluation.ood import (
    OOD_SCORES,
    energy,
    max_logit,
    msp,
    mutual_information,
    predictive_entropy,
)
from temperance.evaluation.posthoc import TemperatureFit, apply_temperature, fit_temperature
from temperance.evaluation.predict import collect_logits
from temperance.evaluation.report import EvaluateOptions, evaluate
from temperance.evaluation.scores import row_scores
from temperance.evaluation.selective import aurc, eaurc, risk_coverage, selective_accuracy
from temperance.evaluation.smooth_ece import smooth_ece
from temperance.evaluation.stream import fit_temperature_stream
from temperance.evaluation.two_models import McNemar, ModelComparison, compare_models, mcnemar
from temperance.evaluation.uncertainty import (
    MemberUncertainty,
    log_mean_exp,
    member_uncertainty,
    pooled_log_probs,
)

__all__ = [
    "BETTER",
    "CALIBRATORS",
    "CORRUPTIONS",
    "FIGURES",
    "ONE_SEED",
    "OOD_SCORES",
    "BrierParts",
    "Calibrator",
    "CalibratorRow",
    "EvaluateOptions",
    "FigureOfMerit",
    "LogitsFile",
    "McNemar",
    "MemberUncertainty",
    "ModelComparison",
    "OodMetrics",
    "TemperatureFit",
    "accuracy",
    "apply_temperature",
    "arm_mean",
    "aurc",
    "brier",
    "brier_parts",
    "brier_reliability",
    "brier_resolution",
    "class_ece",
    "collect_logits",
    "compare_calibrators",
    "compare_models",
    "corrupt",
    "debiased_ece",
    "eaurc",
    "ece",
    "energy",
    "evaluate",
    "fit_calibrator",
    "fit_temperature",
    "fit_temperature_stream",
    "log_mean_exp",
    "max_ece",
    "max_logit",
    "mcnemar",
    "mean_confidence",
    "member_uncertainty",
    "msp",
    "mutual_information",
    "nll",
    "ood_metrics",
    "overconfidence",
    "paired_difference",
    "pooled_log_probs",
    "predictive_entropy",
    "reliability_bins",
    "risk_coverage",
    "rms_ece",
    "row_scores",
    "selective_accuracy",
    "sharpness",
    "smooth_ece",
    "verdict",
    "with_interval",
]
