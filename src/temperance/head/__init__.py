"""The temperature in the model: put it in, train with it, fold it away."""

from temperance.head.checks import MIN_ROWS, BatchPlan, check_batches
from temperance.head.fold import TOLERANCE, FoldReport, fold
from temperance.head.groups import check_optimizer, parameter_groups
from temperance.head.statistics import NormStatistics, set_norm_statistics
from temperance.head.surgery import HeadOptions, insert, remove, tempered_heads
from temperance.head.tempered import MIN_TEMPERATURE, NORMS, TemperedHead, check_temperature

__all__ = [
    "MIN_ROWS",
    "MIN_TEMPERATURE",
    "NORMS",
    "TOLERANCE",
    "BatchPlan",
    "FoldReport",
    "HeadOptions",
    "NormStatistics",
    "TemperedHead",
    "check_batches",
    "check_optimizer",
    "check_temperature",
    "fold",
    "insert",
    "parameter_groups",
    "remove",
    "set_norm_statistics",
    "tempered_heads",
]
