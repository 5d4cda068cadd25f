"""The work units of a sweep: trials that one call of an engine trains side by side.

Units are made from the whole plan, and what is finished is left out of them afterwards. So a trial
stands in the same company, and its figures come out the same to the last bit, in a sweep that was
interrupted and in one that was not, and with any number of workers.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from temperance.records import Task
from temperance.study.ledger import task_key
from temperance.study.trial import Trial

__all__ = ["MAX_TRIALS", "Unit", "UnitResult", "data_key", "measuring_units", "work_units"]

MAX_TRIALS = 64
"""Trials side by side. More gains nothing on one core, and loses more where a worker is killed."""


@dataclass(frozen=True)
class Unit:
    """What one worker does in one go.

    Attributes:
        name: the same in every sweep of the same trials, also where some are left out.
        trials: trials of one task with the same batch size and steps; for a unit that measures,
            one trial of every task on the same rows.
        measure: measure the statistics of the tasks; no training.
    """

    name: str
    trials: tuple[Trial, ...]
    measure: bool = False

    def without(self, done: Collection[str]) -> Unit:
        """Leave out trials by key; for a unit that measures, tasks by key."""
        key = _task_of if self.measure else _key_of
        return replace(self, trials=tuple(t for t in self.trials if key(t) not in done))


@dataclass(frozen=True)
class UnitResult:
    """What became of a unit.

    Attributes:
        name: of the unit.
        rows: a row of the ledger for every trial.
        tasks: for a unit that measures: content of the task, and the task.
        notices: warnings that came up, in words.
    """

    name: str
    rows: tuple[Mapping[str, Any], ...] = ()
    tasks: tuple[tuple[Mapping[str, Any], Task], ...] = ()
    notices: tuple[str, ...] = ()


def data_key(trial: Trial) -> tuple[Any, ...]:
    """Give what says which rows a trial is trained on: the arguments of ``study.data.load``."""
    return trial.dataset, trial.features, trial.train_rows, trial.label_noise


def work_units(
    trials: Sequence[Trial], *, at_most: Callable[[Trial], int] = lambda _: MAX_TRIALS
) -> list[Unit]:
    """Group trials into units: equal trials give equal units.

    A unit holds trials of one task, batch size, number of steps and seed: those that can share
    their batches. More than are allowed are split into parts.

    Args:
        trials: all trials of the plan, done or not.
        at_most: how many trials like this one a unit may hold.

    Returns:
        The units; those on the same rows stand together, the order of the plan otherwise.

    Example:
        >>> from temperance.study.trial import Trial
        >>> trials = [Trial("digits", temperature=t, seed=s) for t in (1, 2, 4) for s in (0, 1)]
        >>> first, second = work_units(trials)
        >>> len(first.trials), len(second.without({trials[-1].key}).trials)
        (3, 2)
    """
    groups: dict[tuple[Any, ...], list[Trial]] = {}
    for trial in dict.fromkeys(trials):
        group = trial.model, trial.feature_dim, trial.batch_size, trial.steps, trial.seed
        groups.setdefault((*data_key(trial), *group), []).append(trial)
    places = {key: place for place, key in enumerate(dict.fromkeys(map(data_key, trials)))}
    found = []
    for alike in sorted(groups.values(), key=lambda group: places[data_key(group[0])]):
        ordered = sorted(alike, key=_likeness)
        found += [_unit(part) for part in _parts(ordered, at_most(alike[0]))]
    return found


def measuring_units(trials: Sequence[Trial]) -> list[Unit]:
    """Make the units that measure statistics: one for all tasks on the same rows.

    Args:
        trials: all trials of the plan, done or not.

    Returns:
        The units; ``without`` leaves out tasks by key.

    Example:
        >>> from temperance.study.trial import Trial
        >>> trials = [Trial("iris", temperature=2), Trial("iris"), Trial("iris", model="mlp")]
        >>> [[trial.model for trial in unit.trials] for unit in measuring_units(trials)]
        [['probe', 'mlp']]
    """
    tasks: dict[tuple[Any, ...], dict[str, Trial]] = {}
    for trial in trials:
        tasks.setdefault(data_key(trial), {}).setdefault(_task_of(trial), trial)
    return [_unit(list(group.values()), measure=True) for group in tasks.values()]


def _key_of(trial: Trial) -> str:
    return trial.key


def _task_of(trial: Trial) -> str:
    return task_key(trial.task_content)


def _likeness(trial: Trial) -> tuple[Any, ...]:
    """Put together what an engine can train as one program."""
    alike = trial.norm, trial.optimizer, trial.loss, trial.schedule, trial.smoothing
    return (trial.augment, trial.path == "hypergradient", *alike)


def _parts(trials: Sequence[Trial], size: int) -> Iterator[Sequence[Trial]]:
    """Split into the fewest parts of at most ``size``, all nearly equally long."""
    count = -(-len(trials) // size)
    for part in range(count):
        yield trials[part * len(trials) // count : (part + 1) * len(trials) // count]


def _unit(trials: Sequence[Trial], *, measure: bool = False) -> Unit:
    keys = "".join(map(_task_of if measure else _key_of, trials))
    digest = hashlib.sha256(keys.encode()).hexdigest()[:20]
    return Unit(f"{'measure' if measure else 'train'} {digest}", tuple(trials), measure)
