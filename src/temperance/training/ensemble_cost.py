"""What the methods of ``temperance ensemble`` cost: counted for one row, and timed here.

Weights change neither, so models of the first seed are built anew for it, one method at a time.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from temperance.ensemble import predict_members
from temperance.ensemble.deep_ensemble import DeepEnsemble
from temperance.models import COUNTED, NOT_COUNTED, multiply_adds
from temperance.training.ensemble_plan import EnsemblePlan, Method
from temperance.training.ensemble_runs import new_ensemble
from temperance.training.plan import Prepared
from temperance.training.runs import new_model
from temperance.training.splits import select

__all__ = ["ROWS", "MethodCost", "conditions_of", "costs_of", "words_of"]

ROWS = 256
"""Rows of a batch that is timed, at most; ``temperance predict`` takes as many at a time."""

_ENOUGH = 0.2  # seconds of timed passes
_PASSES = 3  # of them, at least
_SLOW = 2.0  # seconds of a pass that nothing is gained by repeating


@dataclass(frozen=True)
class MethodCost:
    """What a method costs, all members together.

    Attributes:
        parameters: how many it has.
        multiply_adds: of the prediction of one row, see ``temperance.models.multiply_adds``.
        milliseconds: of the prediction of one row in a batch, wall-clock, on this machine; of the
            fastest of some passes.
    """

    parameters: int
    multiply_adds: int
    milliseconds: float


def costs_of(prepared: Prepared, plan: EnsemblePlan) -> dict[str, MethodCost]:
    """Count and time a prediction of every method.

    All go the way of ``predict_members``, from rows that are ready for the net to members' logits
    on the CPU; separate members run one after the other. Values of tau have one cost.

    Args:
        prepared: what ``prepare_ensemble`` gave.
        plan: the plan.

    Returns:
        Costs by name of the method.
    """
    part = select(prepared.data, prepared.splits.test)
    rows = prepared.preprocess.apply(part.x[:ROWS])
    found: dict[str, MethodCost] = {}
    for method in plan.methods:
        same = next((m.name for m in plan.methods if m.shared and m.name in found), None)
        if method.shared and same is not None:
            found[method.name] = found[same]
        else:
            found[method.name] = _cost(_built(prepared, plan, method), rows)
    return found


def conditions_of(prepared: Prepared, plan: EnsemblePlan) -> dict[str, Any]:
    """Say under which conditions ``costs_of`` counts and times, for a report."""
    return {
        "device": plan.training.device,
        "threads": torch.get_num_threads(),
        "batch_rows": min(ROWS, len(prepared.splits.test)),
        "counted": COUNTED,
        "not_counted": NOT_COUNTED,
    }


def words_of(conditions: Mapping[str, Any]) -> str:
    """Write the conditions of a timing as a few words."""
    threads = conditions["threads"]
    return (
        f"on the machine that made this report ({conditions['device']}, {threads} "
        f"thread{'s' if threads != 1 else ''}, {conditions['batch_rows']} rows at a time)"
    )


def _built(prepared: Prepared, plan: EnsemblePlan, method: Method) -> nn.Module:
    """The method with M members, of models as they start."""
    if method.shared:
        return new_ensemble(prepared, plan, seed=0)
    arm = prepared.arms[0]
    return DeepEnsemble([new_model(prepared, arm, seed=m) for m in range(method.members)])


def _cost(model: nn.Module, rows: Tensor) -> MethodCost:
    parameters = sum(p.numel() for p in model.parameters())
    return MethodCost(parameters, multiply_adds(model, rows[:1]), _milliseconds(model, rows))


def _milliseconds(model: nn.Module, rows: Tensor) -> float:
    """Of the fastest of some passes, which other work on the machine disturbs least.

    The first pass, which has things to set up, counts only if it takes long.
    """
    first = _seconds(model, rows)
    passes = [first] if first >= _SLOW else []
    while first < _SLOW and (len(passes) < _PASSES or sum(passes) < _ENOUGH):
        passes.append(_seconds(model, rows))
    return 1000 * min(passes) / len(rows)


def _seconds(model: nn.Module, rows: Tensor) -> float:
    begun = time.perf_counter()
    predict_members(model, rows)  # gives logits on the CPU: work on a GPU is done by then
    return time.perf_counter() - begun
