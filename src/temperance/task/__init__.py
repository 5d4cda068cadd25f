"""Data to task: collect the features of an output layer, and measure what a rule wants to know."""

from temperance.task.csg import csg
from temperance.task.features import collect, measure
from temperance.task.statistic_spec import StatisticSpec
from temperance.task.statistics import STATISTICS, measure_statistics, try_statistics

__all__ = [
    "STATISTICS",
    "StatisticSpec",
    "collect",
    "csg",
    "measure",
    "measure_statistics",
    "try_statistics",
]
