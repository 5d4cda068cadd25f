"""Carrying out a work unit: load, train, score, and make rows of it, whatever happens."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import torch
from threadpoolctl import threadpool_limits

from temperance.errors import TemperanceError
from temperance.models import find_head
from temperance.records import Statistic, Task
from temperance.study import data as study_data
from temperance.study.ledger import row_of, task_key
from temperance.study.networks import train_networks
from temperance.study.outcome import Outcome, StudyData
from temperance.study.probe import train_probes
from temperance.study.score import score
from temperance.study.trial import Trial
from temperance.study.units import Unit, UnitResult, data_key
from temperance.task.statistics import measure_statistics
from temperance.training.dataset import row_digests
from temperance.training.nets import build_net

__all__ = ["Runner", "failed_rows", "feature_dim_of", "forget_data", "measured"]

Row = Mapping[str, Any]
Engine = Callable[[StudyData, Sequence[Trial]], Iterable[Outcome]]


def measured(data: StudyData) -> Mapping[str, Statistic]:
    """Measure all statistics of the training rows.

    Args:
        data: the rows.

    Returns:
        The statistics by name.

    Example:
        >>> from temperance.study.data import load
        >>> "csg" in measured(load("iris"))
        True
    """
    return measure_statistics(study_data.features_of(data))


@dataclass(frozen=True)
class Runner:
    """Carries out units; what a mapper calls, here or on another machine.

    Attributes:
        load: gives the data, as ``study.data.load``.
        probe: the engine of probes, as ``study.probe.train_probes``.
        networks: the engine of nets, as ``study.networks.train_networks``.
        score: gives the metrics of an outcome, as ``study.score.score``.
        measure: gives the statistics of data by name; None measures nothing.

    Example:
        >>> from temperance.study.trial import Trial
        >>> from temperance.study.units import work_units
        >>> (unit,) = work_units([Trial("iris", temperature=t, steps=10) for t in (1, 4)])
        >>> [row["outcome"] for row in Runner()(unit).rows]
        ['done', 'done']
    """

    load: Callable[..., StudyData] = study_data.load
    probe: Engine = train_probes
    networks: Engine = train_networks
    score: Callable[[Outcome, StudyData], Mapping[str, float]] = score
    measure: Callable[[StudyData], Mapping[str, Statistic]] | None = measured

    def __call__(self, unit: Unit, data: StudyData | None = None) -> UnitResult:
        """Train and score the trials of a unit, or measure its tasks; on one thread.

        Args:
            unit: what to do.
            data: its rows; loaded here if absent, and kept for the next unit.

        Returns:
            What became of it. An error is a ``failed`` row, or a notice, and never raised.
        """
        with _one_thread(), _kept_warnings() as notices:
            result = self._tasks(unit, data) if unit.measure else self._rows(unit, data)
        return replace(result, notices=tuple(dict.fromkeys((*result.notices, *notices))))

    def data_of(self, unit: Unit) -> StudyData:
        """Give the rows that a unit is trained on; the last ones are kept in memory."""
        return _loaded(self.load, *data_key(unit.trials[0]))

    def engine_of(self, trial: Trial) -> Engine:
        """Give the engine that trains a trial."""
        return self.probe if trial.model == "probe" else self.networks

    def _rows(self, unit: Unit, data: StudyData | None) -> UnitResult:
        try:
            data = self.data_of(unit) if data is None else data
        except Exception as error:
            return UnitResult(unit.name, tuple(failed_rows(unit.trials, _sentence(error))))
        rows, reason = self._trained(data, unit.trials)
        left = unit.trials[len(rows) :]
        if len(unit.trials) == 1:
            return UnitResult(unit.name, (*rows, *failed_rows(left, reason)))
        for trial in left:  # one of them may have taken the others with it: each by itself
            alone, reason = self._trained(data, [trial])
            rows += alone or failed_rows([trial], reason)
        return UnitResult(unit.name, tuple(rows))

    def _trained(self, data: StudyData, trials: Sequence[Trial]) -> tuple[list[Row], str]:
        """Rows of the trials, up to an error, and what the error says."""
        key = task_key(trials[0].task_content)
        rows: list[Row] = []
        try:
            for outcome in self.engine_of(trials[0])(data, trials):
                start = time.process_time()
                metrics = self.score(outcome, data) if outcome.outcome == "done" else {}
                seconds = outcome.seconds + time.process_time() - start
                rows.append(row_of(replace(outcome, seconds=seconds), metrics, key))
        except Exception as error:
            return rows, _sentence(error)
        return rows, "the engine gave no outcome"

    def _tasks(self, unit: Unit, data: StudyData | None) -> UnitResult:
        """Describe tasks; where measuring fails, without statistics, to be measured next time."""
        try:
            data = self.data_of(unit) if data is None else data
            dims = [feature_dim_of(trial, data) for trial in unit.trials]
            notices = _copies(data)
        except Exception as error:
            notice = f"task {unit.trials[0].dataset}: {_sentence(error)}"
            return UnitResult(unit.name, notices=(notice,))
        statistics: Mapping[str, Statistic] = {}
        try:
            statistics = {} if self.measure is None else self.measure(data)
        except Exception as error:
            notices.append(f"statistics of {unit.trials[0].dataset}: {_sentence(error)}")
        task = Task(
            feature_dim=1,
            n_classes=data.n_classes,
            n_samples=len(data.y["train"]),
            n_nonempty=len(set(data.y["train"].tolist())),
            statistics=statistics,
        )
        tasks = [
            (trial.task_content, replace(task, feature_dim=dim))
            for trial, dim in zip(unit.trials, dims, strict=True)
        ]
        return UnitResult(unit.name, tasks=tuple(tasks), notices=tuple(notices))


def _copies(data: StudyData) -> list[str]:
    """Name the rows that are trained on and judge, too: their figures are too good."""
    trained = set(row_digests(data.x["train"]))
    found = []
    for split in ("val", "test"):
        count = sum(digest in trained for digest in row_digests(data.x[split]))
        if count:
            rows = f"{count} of the {len(data.x[split])} {split} rows are copies of training rows"
            found.append(f"{data.name}, {data.source}: {rows}")
    return found


def failed_rows(trials: Iterable[Trial], reason: str) -> list[Row]:
    """Make rows of trials that came to nothing.

    Args:
        trials: the trials.
        reason: why, in words.

    Returns:
        A row of outcome ``failed`` for each.

    Example:
        >>> from temperance.study.trial import Trial
        >>> [row["message"] for row in failed_rows([Trial("iris")], "the worker died")]
        ['the worker died']
    """
    return [
        row_of(Outcome(trial, "failed", message=reason), {}, task_key(trial.task_content))
        for trial in trials
    ]


def feature_dim_of(trial: Trial, data: StudyData) -> int:
    """Give the true M of a trial: in_features of its output layer.

    Args:
        trial: what is planned.
        data: its rows.

    Returns:
        M.

    Raises:
        InvalidInput, NotFound, MissingPackage: if there is no such model, or none for such rows.

    Example:
        >>> from temperance.study.data import load
        >>> from temperance.study.trial import Trial
        >>> feature_dim_of(Trial("iris", model="mlp", feature_dim=8), load("iris"))
        8
    """
    net = build_net(
        trial.model,
        input_shape=data.input_shape,
        n_classes=data.n_classes,
        seed=0,
        feature_dim=trial.feature_dim,
    )
    shape = data.input_shape
    if net.in_channels is not None:
        shape = (net.in_channels, *shape[1:])
    return find_head(net.module.eval(), torch.zeros(2, *shape)).in_features


@lru_cache(maxsize=1)  # units on the same rows stand together
def _loaded(
    load: Callable[..., StudyData],
    dataset: str,
    features: str,
    train_rows: int | None,
    label_noise: float,
) -> StudyData:
    return load(dataset, features, train_rows=train_rows, label_noise=label_noise)


def forget_data() -> None:
    """Free the data that this process has kept."""
    _loaded.cache_clear()


# ------------------------------------------------------------------ the same everywhere
@contextmanager
def _one_thread() -> Iterator[None]:
    """Work on one thread: figures do not depend on the machine, and small nets are no slower."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with threadpool_limits(1):
            yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def _kept_warnings() -> Iterator[list[str]]:
    """Turn warnings into texts, which travel with the result, also from another machine."""
    texts: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        # Rows that come out of a shared memory are read-only; the engines do not write on them.
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        yield texts
    texts += [str(warning.message) for warning in caught]


def _sentence(error: Exception) -> str:
    if isinstance(error, TemperanceError):
        return str(error)
    return f"{type(error).__name__}: {error}"
