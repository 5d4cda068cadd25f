"""The temperature in the model: put it in, train with it, fold it away."""

from temperance.head.accumulation import accumulate_statistics
from temperance.head.adacos import SCALE_BOUNDS, adacos_scale, adapt_scale
from temperance.head.checkpointing import update_once
from temperance.head.checks import MIN_ROWS, BatchPlan, check_batches
from temperance.head.cosine import CLIP_TEMPERATURE, CosineLinear, UnitLength
from temperance.head.distributed import EqualizedStatistics, equalize_statistics
from temperance.head.fold import TOLERANCE, FoldReport, fold
from temperance.head.freezing import Frozen, check_frozen, freeze, unfreeze
from temperance.head.groups import check_optimizer, parameter_groups
from temperance.head.recompute import RecomputedStatistics, recompute_statistics
from temperance.head.schedule import (
    SHAPES,
    Constant,
    Piecewise,
    Ramp,
    Schedule,
    set_scheduled,
    temperature_at,
    temperatures,
)
from temperance.head.statistics import NormStatistics, set_norm_statistics
from temperance.head.surgery import HeadOptions, insert, insert_all, remove, tempered_heads
from temperance.head.temperature import (
    MAX_LEARNED,
    MIN_TEMPERATURE,
    LearnedTemperature,
    check_temperature,
)
from temperance.head.tempered import NORMS, TemperedHead

__all__ = [
    "CLIP_TEMPERATURE",
    "MAX_LEARNED",
    "MIN_ROWS",
    "MIN_TEMPERATURE",
    "NORMS",
    "SCALE_BOUNDS",
    "SHAPES",
    "TOLERANCE",
    "BatchPlan",
    "Constant",
    "CosineLinear",
    "EqualizedStatistics",
    "FoldReport",
    "Frozen",
    "HeadOptions",
    "LearnedTemperature",
    "NormStatistics",
    "Piecewise",
    "Ramp",
    "RecomputedStatistics",
    "Schedule",
    "TemperedHead",
    "UnitLength",
    "accumulate_statistics",
    "adacos_scale",
    "adapt_scale",
    "check_batches",
    "check_frozen",
    "check_optimizer",
    "check_temperature",
    "equalize_statistics",
    "fold",
    "freeze",
    "insert",
    "insert_all",
    "parameter_groups",
    "recompute_statistics",
    "remove",
    "set_norm_statistics",
    "set_scheduled",
    "temperature_at",
    "temperatures",
    "tempered_heads",
    "unfreeze",
    "update_once",
]
