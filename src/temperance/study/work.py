"""How large trials are, and units of work of a sensible size made of them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import torch

from temperance import models
from temperance.study.batches import history_steps
from temperance.study.runner import Runner
from temperance.study.sweep_check import Facts, check_units
from temperance.study.trial import Trial
from temperance.study.units import MAX_TRIALS, Unit, data_key, work_units
from temperance.training.nets import build_net

__all__ = ["fits_in_unit", "multiplied", "multiply_adds", "planned_units", "work_of"]

_UNIT = 3e11  # multiply-adds of a unit at most: from half a minute to minutes on one core
_STEP = 2e5  # multiply-adds that take as long as what a step costs besides, roughly


def work_of(trial: Trial, facts: Facts) -> float:
    """Give the size of a trial in multiply-adds, to compare trials with; no time.

    Args:
        trial: what is planned.
        facts: sizes of its rows.

    Returns:
        ``F * (3 * steps * batch + judged) + steps * what a step costs besides``.

    Example:
        >>> from temperance.study.sweep_check import Facts
        >>> from temperance.study.trial import Trial
        >>> facts = Facts((64,), n_classes=10, n_train=1000, n_val=300, n_test=300)
        >>> work_of(Trial("digits"), facts) > work_of(Trial("digits", steps=500), facts)
        True
    """
    return multiplied(trial, facts) + trial.steps * _STEP


def fits_in_unit(trial: Trial, facts: Facts) -> int:
    """Say how many trials like this one make a unit of work.

    Many small ones are trained side by side; of large ones, which gain nothing by that, a killed
    worker loses little.

    Args:
        trial: what is planned.
        facts: sizes of its rows.

    Returns:
        1 to ``MAX_TRIALS``; it depends on the arguments alone.

    Example:
        >>> from temperance.study.sweep_check import Facts
        >>> from temperance.study.trial import Trial
        >>> facts = Facts((3, 32, 32), n_classes=10, n_train=1000, n_val=300, n_test=300)
        >>> [fits_in_unit(Trial("pictures", model=m), facts) for m in ("mlp", "resnet")]
        [3, 1]
    """
    return int(min(MAX_TRIALS, max(1, _UNIT // work_of(trial, facts))))


def planned_units(
    trials: Sequence[Trial],
    done: Collection[str],
    *,
    runner: Runner,
    progress: Callable[[int, int], None] = lambda *_: None,
) -> tuple[list[Unit], dict[Any, Facts]]:
    """Look at all that is left of a plan, and make units of a sensible size of it.

    Args:
        trials: all trials of the plan.
        done: keys of those that are finished.
        runner: what will carry the units out.
        progress: called with data sets looked at and to look at.

    Returns:
        The units that are left, without finished trials; and the sizes of the rows by ``data_key``.

    Raises:
        InvalidInput, NotFound, MissingPackage: as ``check_units``.

    Example:
        >>> from temperance.study.runner import Runner
        >>> from temperance.study.trial import Trial
        >>> trials = [Trial("iris", seed=seed) for seed in range(2)]
        >>> units, facts = planned_units(trials, done=(), runner=Runner())
        >>> len(units), [sizes.n_classes for sizes in facts.values()]
        (2, [3])
    """
    left = [unit for unit in (u.without(done) for u in work_units(trials)) if unit.trials]
    facts = check_units(left, runner, progress=progress)
    concerned = [trial for trial in trials if data_key(trial) in facts]
    units = work_units(concerned, at_most=lambda t: fits_in_unit(t, facts[data_key(t)]))
    return [unit for unit in (u.without(done) for u in units) if unit.trials], facts


def multiply_adds(
    model: str, *, input_shape: tuple[int, ...], n_classes: int, feature_dim: int | None = None
) -> float:
    """Count the multiply-adds of one row: see ``temperance.models.multiply_adds``.

    Args:
        model: ``probe`` or a net of ``temperance.training.nets``.
        input_shape: shape of a row.
        n_classes: C.
        feature_dim: M, or None for the model's own.

    Returns:
        The count.

    Example:
        >>> multiply_adds("mlp", input_shape=(64,), n_classes=10, feature_dim=32)
        3392.0
    """
    if model == "probe":
        return float(np.prod(input_shape)) * n_classes
    net = build_net(
        model, input_shape=input_shape, n_classes=n_classes, seed=0, feature_dim=feature_dim
    )
    shape = input_shape if net.in_channels is None else (net.in_channels, *input_shape[1:])
    return float(models.multiply_adds(net.module, torch.zeros(1, *shape)))


@lru_cache(maxsize=4096)
def _counted(
    model: str, input_shape: tuple[int, ...], n_classes: int, feature_dim: int | None
) -> float:
    return multiply_adds(
        model, input_shape=input_shape, n_classes=n_classes, feature_dim=feature_dim
    )


def multiplied(trial: Trial, facts: Facts) -> float:
    """Give the multiply-adds of a whole trial: training and judging.

    Args:
        trial: what is planned.
        facts: sizes of its rows.

    Returns:
        ``F * (3 * steps * batch + judged)``: a backward pass takes twice as many as a forward pass;
        validation rows are judged for every entry of the history, then validation and test rows.

    Example:
        >>> from temperance.study.sweep_check import Facts
        >>> from temperance.study.trial import Trial
        >>> facts = Facts((64,), n_classes=10, n_train=1000, n_val=300, n_test=300)
        >>> multiplied(Trial("digits", steps=1, batch_size=100), facts) == 640 * (300 + 600 + 300)
        True
    """
    trained = 3 * trial.steps * min(trial.batch_size, facts.n_train)
    judged = facts.n_val * (len(history_steps(trial.steps)) + 1) + facts.n_test
    one = _counted(trial.model, facts.input_shape, facts.n_classes, trial.feature_dim)
    return one * (trained + judged)
