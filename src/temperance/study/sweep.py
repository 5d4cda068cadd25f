"""Sweeps: a plan's trials, carried out by any mapper, every one a row of the ledger.

What is in the ledger is not done again, so the same call goes on after an interruption, kill -9, a
full disk or a power cut; at most the units under way are lost. Several sweeps may work on one
ledger at the same time.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any

from temperance.errors import Interrupted, InvalidInput
from temperance.study.ledger import OUTCOMES, Ledger, open_ledger, read_rows, task_key
from temperance.study.mappers import Lost, Mapper, serial
from temperance.study.plan import Plan
from temperance.study.runner import Runner, failed_rows, forget_data
from temperance.study.sweep_check import check_tasks
from temperance.study.units import Unit, UnitResult, data_key, measuring_units
from temperance.study.work import planned_units, work_of

__all__ = ["SweepOptions", "SweepProgress", "SweepSummary", "Tally", "sweep"]

_PAUSE = 2.0  # seconds between looks at what another sweep is doing
_MOST_NOTICES = 20


@dataclass(frozen=True)
class Tally:
    """How far a sweep is.

    Attributes:
        trials: of the plan.
        finished: of these, in the ledger.
        outcomes: of the trials that this sweep has finished: ``done``, ``diverged``, ``failed``.
        seconds_left: estimated from the time so far and the size of what is left; None before the
            first unit is finished.
    """

    trials: int
    finished: int
    outcomes: Mapping[str, int] = field(default_factory=dict)
    seconds_left: float | None = None


@dataclass(frozen=True)
class SweepProgress:
    """Called while the work goes on; each may be left out.

    Attributes:
        stage: called with a text when a stage begins.
        checked: called with data sets looked at and to look at.
        trials: called with the tally after every unit.
    """

    stage: Callable[[str], None] = lambda _: None
    checked: Callable[[int, int], None] = lambda *_: None
    trials: Callable[[Tally], None] = lambda _: None


@dataclass(frozen=True)
class SweepOptions:
    """What may be chosen of a sweep beside where it runs.

    Attributes:
        retry_failed: do trials again that failed. Those that diverged have an outcome.
        statistics: measure the statistics of every task, once.
        runner: engines, loader and scores; others in tests.
    """

    retry_failed: bool = False
    statistics: bool = True
    runner: Runner = field(default_factory=Runner)


@dataclass(frozen=True)
class SweepSummary:
    """What is in the ledger of a plan when a sweep returns.

    Attributes:
        name: of the plan.
        out: folder of the ledger.
        trials: of the plan.
        outcomes: trials by outcome: ``done``, ``diverged``, ``failed``, ``missing``.
        new: trials that this sweep has finished.
        tasks: tasks of the plan that are described in ``tasks.jsonl``.
        failures: messages of failed trials, the most frequent first, with their counts.
        notices: what people should know, in words.
        seconds: wall-clock time.
    """

    name: str
    out: str
    trials: int
    outcomes: Mapping[str, int]
    new: int
    tasks: int
    failures: tuple[tuple[str, int], ...]
    notices: tuple[str, ...]
    seconds: float


def sweep(
    plan: Plan,
    out: str | Path,
    *,
    mapper: Mapper = serial,
    progress: SweepProgress | None = None,
    options: SweepOptions | None = None,
) -> SweepSummary:
    """Carry out the trials of a plan that are not in the ledger yet.

    Every data set, representation and model is looked at before the first trial. Then the rows of
    a unit of work are added to the ledger in one piece when it is finished. The figures of a trial
    do not depend on the mapper, nor on interruptions.

    Args:
        plan: what to train.
        out: folder of the ledger; made if it is not there.
        mapper: who carries out the units: ``serial``, ``processes(n)``, ``ray_mapper(...)``, or any
            callable that keeps what ``temperance.study.mappers`` asks.
        progress: told about stages and finished trials.
        options: what else may be chosen.

    Returns:
        What the ledger holds of the plan now. Trials that another sweep on the same folder is
        working on are waited for.

    Raises:
        InvalidInput, NotFound, MissingPackage: before the first trial, for whatever the plan names
            that cannot be used, and for a folder that cannot be written; later for a full disk.
        Interrupted: on Ctrl-C; the ledger holds what was finished, and the same call goes on.

    Example:
        >>> import tempfile
        >>> from temperance.study.plan import parse_plan
        >>> from temperance.study.sweep import sweep
        >>> plan = parse_plan('''
        ... [fixed]
        ... dataset = "iris"
        ... steps = 20
        ... [grid]
        ... temperature = [1, 4]
        ... ''')
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     first, second = (sweep(plan, folder) for _ in range(2))
        >>> first.outcomes["done"], first.new, second.new
        (2, 2, 0)
    """
    start, tell, choice = time.monotonic(), progress or SweepProgress(), options or SweepOptions()
    if not choice.statistics:
        choice = replace(choice, runner=replace(choice.runner, measure=None))
    try:
        tell.stage("reading the ledger")
        job = _Job(plan, open_ledger(out), tell, choice, frozenset(t.key for t in plan.trials))
        job.run(mapper)
        return job.summary(time.monotonic() - start)
    except KeyboardInterrupt:
        raise Interrupted(
            f"sweep {plan.name}",
            resume=f"What was finished is in {out}: the same call goes on with what is missing.",
        ) from None
    finally:
        forget_data()


@dataclass(eq=False)
class _Job:
    """One call of ``sweep``: what it has claimed, kept and heard so far."""

    plan: Plan
    ledger: Ledger
    tell: SweepProgress
    options: SweepOptions
    keys: frozenset[str]  # of all trials of the plan
    mine: set[str] = field(default_factory=set)  # keys of trials and tasks finished by this call
    claims: set[str] = field(default_factory=set)
    outcomes: Counter[str] = field(default_factory=Counter)
    notices: Counter[str] = field(default_factory=Counter)
    work: dict[str, float] = field(default_factory=dict)  # of units that are left
    worked: float = 0.0
    began: float = 0.0

    def run(self, mapper: Mapper) -> None:
        units = self._left(self._planned())
        if units:
            self.tell.stage("training")
        self.tell.trials(self._tally())
        self.began = time.monotonic()
        waiting = False
        while units:
            others: list[Unit] = []
            ours = self._claimed(units, others)
            first = next(ours, None)
            if first is not None:
                self._collect(mapper(self.options.runner, chain([first], ours)))
            units = self._left(others)
            if units and first is None:
                if not waiting:
                    self.tell.stage("waiting for another sweep on this folder")
                waiting = True
                time.sleep(_PAUSE)

    # -------------------------------------------------------------- what is to be done
    def _planned(self) -> list[Unit]:
        """Units of what is left; what is measured comes just before what is trained on it."""
        measuring = {data_key(u.trials[0]): u for u in measuring_units(self.plan.trials)}
        done = self.ledger.keys(retry_failed=self.options.retry_failed)
        if self.keys <= done:
            return list(measuring.values())
        self.tell.stage("checking data and models")
        units, facts = planned_units(
            self.plan.trials, done, runner=self.options.runner, progress=self.tell.checked
        )
        check_tasks(self.plan.trials, facts, self.ledger.tasks())
        found = []
        for unit in units:
            key = data_key(unit.trials[0])
            self.work[unit.name] = sum(work_of(trial, facts[key]) for trial in unit.trials)
            if key in measuring:
                found.append(measuring.pop(key))
            found.append(unit)
        return [*measuring.values(), *found]

    def _left(self, units: Iterable[Unit]) -> list[Unit]:
        """Leave out what is in the ledger by now."""
        units = list(units)
        trials = self.ledger.keys(retry_failed=self.options.retry_failed) | self.mine
        tasks = self._tasks() if any(unit.measure for unit in units) else set()
        left = [unit.without(tasks if unit.measure else trials) for unit in units]
        return [unit for unit in left if unit.trials]

    def _tasks(self) -> set[str]:
        """Keys of tasks that need not be measured."""
        rows = self.ledger.tasks()
        wanted = self.options.statistics
        return self.mine | {k for k, row in rows.items() if row["task"]["statistics"] or not wanted}

    def _claimed(self, units: Iterable[Unit], others: list[Unit]) -> Iterator[Unit]:
        """Give units that nobody else is working on; each is claimed when it is taken."""
        for unit in units:
            if not self.ledger.claim(unit.name):
                others.append(unit)
                continue
            self.claims.add(unit.name)
            left = self._left([unit])  # whoever had it before may have finished it
            if left:
                yield left[0]
            else:
                self._release(unit.name)

    def _release(self, name: str) -> None:
        self.ledger.release(name)
        self.claims.discard(name)

    # -------------------------------------------------------------- what comes back
    def _collect(self, results: Iterable[Any]) -> None:
        try:
            for result in results:
                self._keep(_result_of(result))
        finally:
            if (close := getattr(results, "close", None)) is not None:
                close()
            for name in list(self.claims):
                self._release(name)

    def _keep(self, result: UnitResult) -> None:
        self.ledger.append(result.rows)
        for content, task in result.tasks:
            self.mine.add(self.ledger.append_task(content, task))
        self.mine |= {row["key"] for row in result.rows}
        self.outcomes.update(row["outcome"] for row in result.rows)
        self.notices.update(result.notices)
        self.worked += self.work.pop(result.name, 0.0)
        self._release(result.name)
        self.tell.trials(self._tally())

    def _tally(self) -> Tally:
        finished = len(self.keys & self.ledger.keys(retry_failed=False))
        left = None
        if self.worked:
            left = (time.monotonic() - self.began) * sum(self.work.values()) / self.worked
        return Tally(len(self.keys), finished, dict(self.outcomes), left)

    def summary(self, seconds: float) -> SweepSummary:
        rows = []
        if self.keys & self.ledger.keys(retry_failed=False):
            found = read_rows(self.ledger.folder, history=False)
            rows = [row for row in found if row["key"] in self.keys]
        counts = Counter(row["outcome"] for row in rows)
        failures = Counter(row["message"] for row in rows if row["outcome"] == "failed")
        tasks = {task_key(trial.task_content) for trial in self.plan.trials}
        return SweepSummary(
            name=self.plan.name,
            out=str(self.ledger.folder),
            trials=len(self.keys),
            outcomes={
                **{outcome: counts[outcome] for outcome in OUTCOMES},
                "missing": len(self.keys) - len(rows),
            },
            new=len(self.mine & self.keys),
            tasks=len(tasks & self.ledger.tasks().keys()),
            failures=tuple(failures.most_common()),
            notices=tuple(self._notices()),
            seconds=seconds,
        )

    def _notices(self) -> Iterator[str]:
        for text, count in self.notices.most_common(_MOST_NOTICES):
            yield text if count == 1 else f"{text} ({count} times)"
        if (more := len(self.notices) - _MOST_NOTICES) > 0:
            yield f"and {more} more of the kind"


def _result_of(result: Any) -> UnitResult:
    """Read what a mapper gave."""
    if isinstance(result, Lost):
        unit: Unit = result.unit
        if unit.measure:
            where = unit.trials[0].dataset
            return UnitResult(unit.name, notices=(f"statistics of {where}: {result.reason}",))
        return UnitResult(unit.name, tuple(failed_rows(unit.trials, result.reason)))
    if not isinstance(result, UnitResult):
        raise InvalidInput(
            "mapper",
            expected="an iterator of what its function returned, or Lost",
            found=type(result).__name__,
            fix="See temperance.study.mappers.",
        )
    return result
