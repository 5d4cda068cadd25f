"""What a sweep looks at before it starts: every data set, representation and model, once."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from temperance.errors import InvalidInput, TemperanceWarning
from temperance.study.ledger import task_key
from temperance.study.outcome import SPLITS, StudyData
from temperance.study.runner import Runner, feature_dim_of
from temperance.study.trial import Trial
from temperance.study.units import Unit, data_key

__all__ = ["Facts", "check_tasks", "check_units"]


@dataclass(frozen=True)
class Facts:
    """The sizes of one task's rows.

    Attributes:
        input_shape: shape of one row.
        n_classes: C.
        n_train: training rows.
        n_val: validation rows.
        n_test: test rows.
    """

    input_shape: tuple[int, ...]
    n_classes: int
    n_train: int
    n_val: int
    n_test: int


def check_units(
    units: Sequence[Unit],
    runner: Runner,
    *,
    progress: Callable[[int, int], None] = lambda *_: None,
) -> dict[tuple[Any, ...], Facts]:
    """Load every data set once, build every model once, and let the engines look at their trials.

    Args:
        units: units that train.
        runner: what will carry them out.
        progress: called with data sets looked at and to look at.

    Returns:
        The sizes of the rows, by ``data_key``.

    Raises:
        NotFound: for a data set, extractor or model that is not there.
        InvalidInput: for data that cannot be read, and trials that do not fit them.
        MissingPackage: for a model of a package that is not installed.

    Example:
        >>> from temperance.study.runner import Runner
        >>> from temperance.study.trial import Trial
        >>> from temperance.study.units import work_units
        >>> (facts,) = check_units(work_units([Trial("iris")]), Runner()).values()
        >>> facts.input_shape, facts.n_classes
        ((4,), 3)
    """
    by_data: dict[tuple[Any, ...], list[Unit]] = {}
    for unit in units:
        by_data.setdefault(data_key(unit.trials[0]), []).append(unit)
    found = {}
    for number, (key, group) in enumerate(by_data.items()):
        progress(number, len(by_data))
        data = runner.data_of(group[0])
        with warnings.catch_warnings():  # they come again with the work, as notices
            warnings.simplefilter("ignore", TemperanceWarning)
            _check_group(group, runner, data)
        found[key] = _facts(data)
    progress(len(by_data), len(by_data))
    return found


def check_tasks(
    trials: Sequence[Trial],
    facts: Mapping[tuple[Any, ...], Facts],
    tasks: Mapping[str, Mapping[str, Any]],
) -> None:
    """Refuse rows that are not those of the trials in the ledger, though their name is.

    A data set is known by its name, and a relative path is another file in another folder. Two
    sets of rows in one curve would be no curve; rows of equal size are not told apart.

    Args:
        trials: of the plan.
        facts: sizes of the rows that were looked at, by ``data_key``.
        tasks: what ``Ledger.tasks`` gives.

    Raises:
        InvalidInput: for other classes, training rows or M than the ledger says.

    Example:
        >>> from temperance.study.sweep_check import Facts, check_tasks
        >>> check_tasks([], {}, {})
    """
    for trial in {task_key(t.task_content): t for t in trials}.values():
        row = tasks.get(task_key(trial.task_content))
        sizes = facts.get(data_key(trial))
        if row is None or sizes is None:
            continue
        there, now = row["task"], [sizes.n_train, sizes.n_classes]
        known = [there["n_samples"], there["n_classes"]]
        if trial.model == "probe":
            now, known = [*now, math.prod(sizes.input_shape)], [*known, there["feature_dim"]]
        if now != known:
            raise InvalidInput(
                f"data set {trial.dataset}, features {trial.features}",
                expected=f"{_sizes(known)}, as of its trials in the ledger",
                found=_sizes(now),
                fix="There are other rows behind this name now (a changed file, or a relative path "
                "in another folder). Bring the old ones back, or choose another --out.",
            )


def _sizes(numbers: Sequence[int]) -> str:
    names = ("training rows", "classes", "features")
    return ", ".join(f"{n:,} {name}" for n, name in zip(numbers, names, strict=False))


def _facts(data: StudyData) -> Facts:
    train, val, test = (len(data.y[split]) for split in SPLITS)
    return Facts(data.input_shape, data.n_classes, train, val, test)


def _check_group(group: Sequence[Unit], runner: Runner, data: StudyData) -> None:
    seen = set()
    for unit in group:
        first = unit.trials[0]
        kinds = frozenset((trial.norm, trial.path, trial.augment) for trial in unit.trials)
        kind = first.model, first.feature_dim, first.batch_size, kinds
        if kind in seen:
            continue
        seen.add(kind)
        try:
            if first.model != "probe":
                feature_dim_of(first, data)
            engine = runner.engine_of(first)
            engine(data, unit.trials)  # an engine checks first, and trains when it is iterated
        except InvalidInput as error:
            raise InvalidInput(
                f"{_named(first)}: {error.subject}",
                expected=error.expected,
                found=error.found,
                fix=error.fix,
            ) from error


def _named(trial: Trial) -> str:
    return f"trial of {trial.model} on {trial.dataset}, features {trial.features}"
