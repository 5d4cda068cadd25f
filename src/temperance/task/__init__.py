"""Data to task: collect the features of an output layer, and measure what a rule wants to know."""

from temperance.task.csg import csg
from temperance.task.features import collect, measure

__all__ = ["collect", "csg", "measure"]
