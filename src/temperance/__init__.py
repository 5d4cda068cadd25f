"""Temperance sets the softmax temperature of classifiers: before, during and after training.

The names below are the public surface; everything else is imported from its room. They are loaded
when first used, so that ``import temperance`` is quick and pulls in neither torch nor scikit-learn.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from temperance.version import __version__ as __version__

_HOMES = {
    # records
    "Features": "records",
    "Report": "records",
    "Suggestion": "records",
    "Task": "records",
    # measure and suggest
    "RULES": "rules",
    "collect": "task",
    "csg": "task",
    "measure": "task",
    "suggest": "rules",
    "training_facts": "rules",
    # the head
    "check_batches": "head",
    "find_head": "models",
    "fold": "head",
    "insert": "head",
    "parameter_groups": "head",
    "remove": "head",
    "set_norm_statistics": "head",
    # one backbone, many members
    "convert": "ensemble",
    "diversity_loss": "ensemble",
    "member_loss": "ensemble",
    "predict_members": "ensemble",
    "revert": "ensemble",
    # after training
    "ece": "evaluation",
    "evaluate": "evaluation",
    "fit_temperature": "evaluation",
}

__all__ = [  # noqa: RUF022 - in the sections of the guide
    # records
    "Features",
    "Report",
    "Suggestion",
    "Task",
    # measure and suggest
    "RULES",
    "collect",
    "csg",
    "measure",
    "suggest",
    "training_facts",
    # the head
    "check_batches",
    "find_head",
    "fold",
    "insert",
    "parameter_groups",
    "remove",
    "set_norm_statistics",
    # one backbone, many members
    "convert",
    "diversity_loss",
    "member_loss",
    "predict_members",
    "revert",
    # after training
    "ece",
    "evaluate",
    "fit_temperature",
]

if TYPE_CHECKING:
    from temperance.ensemble import (
        convert,
        diversity_loss,
        member_loss,
        predict_members,
        revert,
    )
    from temperance.evaluation import ece, evaluate, fit_temperature
    from temperance.head import (
        check_batches,
        insert,
        parameter_groups,
        remove,
        set_norm_statistics,
    )
    from temperance.head.fold import fold
    from temperance.models import find_head
    from temperance.records import Features, Report, Suggestion, Task
    from temperance.rules import RULES, suggest, training_facts
    from temperance.task import collect, measure
    from temperance.task.csg import csg


def __getattr__(name: str) -> Any:
    """Load a public name from its room on first use (PEP 562)."""
    if name not in _HOMES:
        raise AttributeError(f"module 'temperance' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"temperance.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
