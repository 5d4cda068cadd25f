"""What a sweep costs before it is run: from trials in the ledger, or from trying a few steps.

The CPU time of one trial is taken to be

``seconds = a + b * steps + c * F * (3 * steps * batch + judged)``

with F the multiply-adds of one row in a forward pass (counted), of which a backward pass takes
twice as many, and the rows that are judged: validation rows for every entry of the history, then
validation and test rows. a, b, c of 0 or more are fitted for every kind of model, with equal weight
for relative errors, to trials that have been run.
"""

from __future__ import annotations

import heapq
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from temperance.errors import NotFound
from temperance.study.ledger import read_rows, read_tasks, task_key
from temperance.study.plan import Plan
from temperance.study.runner import Runner, forget_data
from temperance.study.sweep import SweepProgress
from temperance.study.sweep_check import Facts, check_tasks
from temperance.study.trial import Trial, trial_from_dict
from temperance.study.units import Unit, data_key
from temperance.study.work import multiplied, planned_units, work_of

__all__ = ["CostEstimate", "estimate_cost", "wall_seconds"]

_ENOUGH, _TOO_MUCH = 0.5, 20.0  # CPU seconds that the longest trial run of a unit should take
_RUNS = 3  # trial runs of a unit, so that steps and judging can be told apart
_FIRST, _GROWTH = 4, 4  # steps of the first trial run, and how much longer the next one is
_WORKERS = (1, 2, 4, 8, 16, 32, 64, 128)


@dataclass(frozen=True)
class CostEstimate:
    """What is left of a sweep, and what it will take.

    Attributes:
        trials: of the plan.
        finished: of these, in the ledger.
        units: units of work that are left.
        tasks: tasks of the plan.
        tasks_measured: of these, in the ledger with their statistics.
        cpu_seconds: of all trials that are left: training, scoring and fitting the post-hoc T;
            without loading data and measuring statistics.
        wall_seconds: by number of workers, as far as more of them help.
        memory_bytes: largest memory of this process so far, with the largest data set loaded and
            the tried units trained: about what one worker takes; None where the system does not
            say.
        basis: by kind of model, where its figures come from: ``ledger``, ``tried``, or ``unknown``
            with the reason; the last are not in the sums.
    """

    trials: int
    finished: int
    units: int
    tasks: int
    tasks_measured: int
    cpu_seconds: float
    wall_seconds: Mapping[int, float]
    memory_bytes: int | None
    basis: Mapping[str, str]


def estimate_cost(
    plan: Plan,
    out: str | Path,
    *,
    retry_failed: bool = False,
    runner: Runner | None = None,
    progress: SweepProgress | None = None,
) -> CostEstimate:
    """Estimate what is left of a sweep; every data set is loaded, and nothing is written.

    Kinds of models that the ledger has trials of, on data of this plan, are judged by these; of the
    others the smallest and the largest unit are trained for a few steps.

    Args:
        plan: what to train.
        out: folder of the ledger; need not be there.
        retry_failed: count trials that failed as left.
        runner: engines and loader; others in tests.
        progress: told about stages.

    Returns:
        The estimate. Expect it to be right within a factor of two.

    Raises:
        InvalidInput, NotFound, MissingPackage: as ``sweep`` does before its first trial.

    Example:
        >>> from temperance.study.cost import estimate_cost
        >>> from temperance.study.plan import read_plan
        >>> estimate_cost(read_plan("plan.toml"), "runs/first").cpu_seconds  # doctest: +SKIP
        412.8
    """
    runner, tell = runner or Runner(), progress or SweepProgress()
    folder = Path(out)
    rows = _rows(folder)
    tasks = read_tasks(folder) if folder.exists() else {}
    again = ("failed",) if retry_failed else ()
    done = {row["key"] for row in rows if row["outcome"] not in again}
    tell.stage("checking data and models")
    try:
        units, facts = planned_units(plan.trials, done, runner=runner, progress=tell.checked)
        check_tasks(plan.trials, facts, tasks)
        costs, basis = _unit_costs(units, rows, facts=facts, runner=runner, stage=tell.stage)
    finally:
        forget_data()
    keys = {trial.key for trial in plan.trials}
    task_keys = {task_key(trial.task_content) for trial in plan.trials}
    measured = {key for key, row in tasks.items() if row["task"]["statistics"]}
    return CostEstimate(
        trials=len(keys),
        finished=len(keys & done),
        units=len(units),
        tasks=len(task_keys),
        tasks_measured=len(task_keys & measured),
        cpu_seconds=sum(costs),
        wall_seconds={n: wall_seconds(costs, n) for n in _WORKERS if n == 1 or n < 2 * len(units)},
        memory_bytes=_peak_memory(),
        basis=basis,
    )


def _rows(folder: Path) -> list[dict[str, Any]]:
    try:
        return read_rows(folder, history=False)
    except NotFound:  # nothing has been run
        return []


def wall_seconds(costs: Sequence[float], workers: int) -> float:
    """Give the time until all units are done, each taken by the first worker that is free.

    Args:
        costs: seconds of every unit, in the order in which they are taken.
        workers: 1 or more.

    Returns:
        Seconds.

    Example:
        >>> wall_seconds([3.0, 1.0, 1.0], 2)
        3.0
    """
    free = [0.0] * min(workers, max(1, len(costs)))
    for cost in costs:
        heapq.heapreplace(free, free[0] + cost)
    return max(free)


# ------------------------------------------------------------------ seconds
def _unit_costs(
    units: Sequence[Unit],
    rows: Sequence[Mapping[str, Any]],
    *,
    facts: Mapping[Any, Facts],
    runner: Runner,
    stage: Callable[[str], None],
) -> tuple[list[float], dict[str, str]]:
    """CPU seconds of every unit, and what they are known from."""
    known = _from_ledger(rows, facts)
    fits, basis = {}, {}
    for kind in dict.fromkeys(unit.trials[0].model for unit in units):
        basis[kind] = "ledger" if kind in known else "tried"
        if kind not in known:
            stage(f"trying a few steps of {kind}")
            mine = [unit for unit in units if unit.trials[0].model == kind]
            known[kind], reason = _tried(mine, facts, runner)
            if not known[kind]:
                basis[kind] = f"unknown: {reason}"
        fits[kind] = _fit(known[kind])
    costs = [
        sum(
            float(fits[trial.model] @ _terms(trial, facts[data_key(trial)]))
            for trial in unit.trials
        )
        for unit in units
    ]
    return costs, basis


def _terms(trial: Trial, facts: Facts) -> np.ndarray:
    return np.array([1.0, trial.steps, multiplied(trial, facts)])


Samples = list[tuple[np.ndarray, float]]


def _from_ledger(
    rows: Sequence[Mapping[str, Any]], facts: Mapping[Any, Facts]
) -> dict[str, Samples]:
    found: dict[str, Samples] = {}
    for row in rows:
        trial = trial_from_dict(row["trial"])
        if row["outcome"] == "done" and data_key(trial) in facts and row["seconds"] > 0:
            sample = _terms(trial, facts[data_key(trial)]), row["seconds"]
            found.setdefault(trial.model, []).append(sample)
    return found


def _tried(
    units: Sequence[Unit], facts: Mapping[Any, Facts], runner: Runner
) -> tuple[Samples, str]:
    """Train the smallest and the largest unit for a few steps, then for more, until it shows."""

    def size(unit: Unit) -> float:
        first = unit.trials[0]
        return work_of(replace(first, steps=1), facts[data_key(first)])

    found: Samples = []
    reason = ""
    for unit in dict.fromkeys((min(units, key=size), max(units, key=size))):
        runner(_shortened(unit, 1))  # what is done only once
        steps = _FIRST
        while True:
            short = _shortened(unit, steps)
            rows = runner(short).rows
            reason = next((row["message"] for row in rows if row["outcome"] == "failed"), reason)
            spent = sum(row["seconds"] for row in rows)
            if spent > 0:
                terms = _terms(short.trials[0], facts[data_key(short.trials[0])])
                found.append((terms, spent / len(rows)))
            enough = spent >= _TOO_MUCH or (
                spent >= _ENOUGH and steps >= _FIRST * _GROWTH ** (_RUNS - 1)
            )
            if spent <= 0 or enough or steps >= unit.trials[0].steps:
                break
            steps *= _GROWTH
    return found, reason


def _shortened(unit: Unit, steps: int) -> Unit:
    return replace(unit, trials=tuple(replace(t, steps=min(steps, t.steps)) for t in unit.trials))


def _fit(samples: Samples) -> np.ndarray:
    """Coefficients of 0 or more with the least squared relative error; zeros for no samples."""
    from scipy.optimize import nnls

    if not samples:
        return np.zeros(3)
    terms = np.array([t for t, _ in samples]) / np.array([[s] for _, s in samples])
    terms[:, : max(0, 3 - len(samples))] = 0  # of few samples the last terms explain all
    scale = np.maximum(np.abs(terms).max(axis=0), 1e-300)
    solution, _ = nnls(terms / scale, np.ones(len(terms)))
    return solution / scale


def _peak_memory() -> int | None:
    try:
        import resource
    except ImportError:  # Windows
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
