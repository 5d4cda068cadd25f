"""Runs as curves over T: what rules are fitted on and judged by.

A curve is all runs of one setting (a trial without its temperature and its seed): data set,
representation, model, norm, optimizer, learning rate, steps, ... Its values are tables
``[temperatures, seeds]``.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from temperance.errors import InvalidInput, NotFound, TemperanceWarning
from temperance.records import Task, from_dict
from temperance.study.data_set_names import plain_name
from temperance.study.trial import trial_from_dict

__all__ = [
    "LEAST_TEMPERATURES",
    "Curve",
    "curves_of_rows",
    "example_rows",
    "judged",
    "read_curves",
]

LEAST_TEMPERATURES = 3
"""Fewer temperatures with results make no curve: a best T inside needs a neighbour on each side."""

_SCHEMA = 1  # of ledger rows
_FACTS = ("norm", "loss", "optimizer", "lr", "weight_decay", "momentum", "schedule", "batch_size")
_MORE_FACTS = ("steps", "smoothing", "label_noise", "features", "model")


@dataclass(frozen=True, eq=False)
class Curve:
    """All runs of one setting, over temperatures and seeds.

    Attributes:
        dataset: the data set: the unit of bootstrap and of leave-one-data-set-out. One name where
            the runs have several for it (``setting`` keeps each curve's own).
        setting: the fields of ``Trial`` without temperature and seed.
        task: M, C, n and statistics; ``training`` holds norm, loss, optimizer, lr, steps, ... and
            ``augment`` where there is any.
        temperatures: ascending, float64 ``[k]``.
        seeds: ascending, ``s`` of them.
        metrics: values by name, float64 ``[k, s]``; NaN where the run is not ``done``.
        outcomes: ``done``, ``diverged``, ``failed`` or ``missing``, texts ``[k, s]``.
    """

    dataset: str
    setting: Mapping[str, Any]
    task: Task
    temperatures: NDArray[np.float64]
    seeds: tuple[int, ...]
    metrics: Mapping[str, NDArray[np.float64]]
    outcomes: NDArray[np.str_]

    @property
    def label(self) -> str:
        """The setting in a few words, for tables and messages."""
        s = self.setting
        name = s["dataset"]
        words = [name if s["features"] == "input" else f"{name}/{s['features']}"]
        words += [s["model"], f"M={self.task.feature_dim}", f"norm {s['norm']}"]
        words += ["normalized loss"] if s["loss"] == "normalized" else []
        words += [s["optimizer"], f"lr {s['lr']:g}", f"{s['steps']} steps"]
        words += [f"{s['train_rows']} rows"] if s["train_rows"] else []
        words += [f"smoothing {s['smoothing']:g}"] if s["smoothing"] else []
        words += [f"label noise {s['label_noise']:g}"] if s["label_noise"] else []
        words += [f"path {s['path']}"] if s.get("path", "constant") != "constant" else []
        words += [f"augment {s['augment']}"] if s.get("augment", "none") != "none" else []
        return " ".join(words)


def judged(curve: Curve) -> NDArray[np.bool_]:
    """Say which temperatures have results that can be compared.

    A run has a result if it is ``done`` or ``diverged``. The seeds that count are those with a
    result at more than half of the temperatures; a temperature counts if all of these seeds have
    one there. So means over seeds compare the same seeds at every T, also in a sweep that was
    stopped half-way.

    Args:
        curve: the runs.

    Returns:
        Boolean ``[k, s]``: rows of counting temperatures are True at the counting seeds.

    Example:
        >>> from temperance.study.runs import curves_of_rows, example_rows, judged
        >>> rows, tasks = example_rows((1.0, 2.0, 4.0, 8.0), seeds=(0, 1))
        >>> (curve,) = curves_of_rows(rows[:-1], tasks)  # seed 1 has not come to T = 8
        >>> judged(curve).astype(int).tolist()
        [[1, 1], [1, 1], [1, 1], [0, 0]]
    """
    result = np.isin(curve.outcomes, ("done", "diverged"))
    seeds = result.sum(axis=0) * 2 > len(curve.temperatures)
    counts = result[:, seeds].all(axis=1) & seeds.any()
    return counts[:, None] & seeds[None, :]


# ------------------------------------------------------------------ reading
def read_curves(*paths: str | Path) -> list[Curve]:
    """Read the runs of sweeps as curves.

    Args:
        paths: folders of ``temperance sweep``, or ledgers (``.jsonl``, ``.parquet``) with their
            ``tasks.jsonl`` beside them; folders of ``temperance train``. Runs of one setting are
            joined over all paths.

    Returns:
        The curves, by data set and setting. Settings with fewer than three temperatures that can
        be compared, or whose task is not described yet, are left out with a warning.

    Raises:
        NotFound: if there is nothing at a path.
        InvalidInput: if there are no runs, if no setting has three temperatures, if a task is not
            described or is another one at another path, or if the rows are of another schema
            version.

    Warns:
        TemperanceWarning: for settings that are left out, and for names that are taken for one data
            set.

    Example:
        >>> from temperance.study.runs import read_curves
        >>> curves = read_curves("runs/first", "runs/second")  # doctest: +SKIP
    """
    from temperance.study.ledger import read_rows, read_tasks
    from temperance.study.train_runs import is_training, rows_of_training

    rows: list[Mapping[str, Any]] = []
    tasks: dict[str, Task] = {}
    for path in map(Path, paths):
        if not path.exists():
            raise NotFound(f"runs {path}", found="nothing is there", fix="Check the path.")
        if is_training(path):
            trained, described = rows_of_training(path)
        else:
            trained = read_rows(path, history=False)
            described = _tasks(read_tasks(path if path.is_dir() else path.parent))
        rows += trained
        for key, task in described.items():
            tasks[key] = _joined(tasks[key], task, path) if key in tasks else task
    if not rows:
        where = ", ".join(map(str, paths)) or "no paths"
        raise InvalidInput(
            "runs",
            expected="rows of a sweep",
            found=f"none in {where}",
            fix="Name the --out folder of temperance sweep.",
        )
    return curves_of_rows(rows, tasks)


def _tasks(described: Mapping[str, Mapping[str, Any]]) -> dict[str, Task]:
    return {key: from_dict(row["task"], Task) for key, row in described.items()}


def _joined(task: Task, other: Task, path: Path) -> Task:
    """One task as two sweeps describe it: all statistics that either of them measured."""
    sizes = [(t.feature_dim, t.n_classes, t.n_samples) for t in (task, other)]
    if sizes[0] != sizes[1]:
        first, second = ("M, C, n = {}, {}, {}".format(*size) for size in sizes)
        raise InvalidInput(
            f"runs {path}",
            expected=f"the task as at the other paths, {first}",
            found=second,
            fix="The data changed between the sweeps; read them apart.",
        )
    return replace(other, statistics={**task.statistics, **other.statistics})


def _check_schema(row: Mapping[str, Any], where: str) -> None:
    if row.get("schema") != _SCHEMA:
        raise InvalidInput(
            where,
            expected=f"schema version {_SCHEMA}",
            found=repr(row.get("schema")),
            fix="Read it with the release that wrote it; versions cannot be mixed.",
        )


# ------------------------------------------------------------------ grouping
def curves_of_rows(rows: Iterable[Mapping[str, Any]], tasks: Mapping[str, Task]) -> list[Curve]:
    """Group ledger rows into curves.

    Args:
        rows: rows as ``study.ledger.read_rows`` gives them. Of two rows of one trial one that came
            to an end (done, diverged) counts, of two such the last.
        tasks: tasks by key.

    Returns:
        The curves, sorted by data set and setting.

    Raises:
        InvalidInput: as ``read_curves``.
    """
    groups: dict[str, dict[tuple[float, int], Mapping[str, Any]]] = {}
    for row in rows:
        _check_schema(row, f"run {row.get('key')}")
        trial = trial_from_dict(row["trial"])
        group = groups.setdefault(json.dumps(trial.setting, sort_keys=True), {})
        place = trial.temperature, trial.seed
        if place not in group or row["outcome"] != "failed" or group[place]["outcome"] == "failed":
            group[place] = row
    described = _described(groups, tasks)
    found = [_curve(json.loads(text), groups[text], tasks) for text in described]
    return _with_variation(_one_name_each(found))


def _described(
    groups: Mapping[str, Mapping[tuple[float, int], Mapping[str, Any]]], tasks: Mapping[str, Task]
) -> list[str]:
    """Settings whose task is known; a sweep that goes on may have trained before it measured."""
    known = [
        text
        for text in sorted(groups)
        if any(row["task"] in tasks for row in groups[text].values())
    ]
    if known and len(known) < len(groups):
        warnings.warn(
            f"left out, task not described yet: {len(groups) - len(known)} of {len(groups)} "
            "settings; let the sweep go on",
            TemperanceWarning,
            stacklevel=4,
        )
    return known or sorted(groups)


def _curve(
    setting: dict[str, Any],
    group: Mapping[tuple[float, int], Mapping[str, Any]],
    tasks: Mapping[str, Task],
) -> Curve:
    temperatures = sorted({t for t, _ in group})
    seeds = sorted({seed for _, seed in group})
    shape = len(temperatures), len(seeds)
    outcomes = np.full(shape, "missing", dtype="<U8")
    names = sorted({name for row in group.values() for name in row["metrics"]})
    metrics = {name: np.full(shape, np.nan) for name in names}
    for (temperature, seed), row in group.items():
        place = temperatures.index(temperature), seeds.index(seed)
        outcomes[place] = row["outcome"]
        if row["outcome"] == "done":
            for name, value in row["metrics"].items():
                metrics[name][place] = np.nan if value is None else value
    return Curve(
        dataset=setting["dataset"],
        setting=setting,
        task=_task(setting, list(group.values()), tasks),
        temperatures=np.array(temperatures, np.float64),
        seeds=tuple(seeds),
        metrics=metrics,
        outcomes=outcomes,
    )


def _task(
    setting: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], tasks: Mapping[str, Task]
) -> Task:
    keys = {row["task"] for row in rows}
    known = [tasks[key] for key in sorted(keys) if key in tasks]
    if not known:
        raise InvalidInput(
            f"runs of {setting['dataset']}",
            expected="their task (M, C, statistics) in tasks.jsonl beside the ledger",
            found=f"no task {', '.join(sorted(keys))}",
            fix="Keep tasks.jsonl with the ledger; temperance sweep writes it.",
        )
    dims = {row["feature_dim"] for row in rows if row.get("feature_dim")} | {
        task.feature_dim for task in known
    }
    if len(dims) > 1:
        raise InvalidInput(
            f"runs of {setting['dataset']}",
            expected="one feature dimension per setting",
            found=f"M = {', '.join(map(str, sorted(dims)))}",
            fix="The data or the model changed between sweeps; fit them apart.",
        )
    facts = {name: setting[name] for name in (*_FACTS, *_MORE_FACTS)}
    facts |= {} if setting["augment"] == "none" else {"augment": setting["augment"]}
    return replace(known[0], training={**known[0].training, **facts})


def _one_name_each(curves: list[Curve]) -> list[Curve]:
    """Give a data set that has several names, such as a path and a name, the first of them."""
    names: dict[str, dict[str, None]] = {}
    for curve in curves:
        names.setdefault(plain_name(curve.dataset), {})[curve.dataset] = None
    several = ["/".join(found) for found in names.values() if len(found) > 1]
    if not several:
        return curves
    warnings.warn(
        f"taken for one data set each, by their names: {'; '.join(several)}",
        TemperanceWarning,
        stacklevel=4,
    )
    return [replace(c, dataset=next(iter(names[plain_name(c.dataset)]))) for c in curves]


def _with_variation(curves: list[Curve]) -> list[Curve]:
    enough = [int(judged(c).any(axis=1).sum()) >= LEAST_TEMPERATURES for c in curves]
    poor = [c.label for c, good in zip(curves, enough, strict=True) if not good]
    some = "; ".join(poor[:3]) + (f"; and {len(poor) - 3} more" if len(poor) > 3 else "")
    if curves and not any(enough):
        raise InvalidInput(
            "runs",
            expected=f"{LEAST_TEMPERATURES} temperatures or more with results per setting",
            found=f"fewer for {some}",
            fix="Widen the temperatures of the plan, or let the sweep go on.",
        )
    if poor:
        warnings.warn(
            f"left out, fewer than {LEAST_TEMPERATURES} temperatures with results: {some}",
            TemperanceWarning,
            stacklevel=3,
        )
    return [c for c, good in zip(curves, enough, strict=True) if good]


def example_rows(
    temperatures: Sequence[float],
    seeds: Sequence[int] = (0,),
    *,
    datasets: Sequence[str] = ("digits",),
) -> tuple[list[dict[str, Any]], dict[str, Task]]:
    """Make rows and tasks as a sweep keeps them, for examples; NLL is lowest at T = 2.

    Args:
        temperatures: T of the runs.
        seeds: their seeds.
        datasets: their data sets.

    Returns:
        Rows and tasks, as ``curves_of_rows`` takes them.
    """
    rows = [
        {
            "schema": 1,
            "key": f"{dataset}-{seed}-{t}",
            "trial": {"dataset": dataset, "temperature": t, "seed": seed},
            "task": dataset,
            "outcome": "done",
            "metrics": {"val_nll": float(0.3 + 0.1 * np.log(t / 2) ** 2)},
            "feature_dim": 64,
        }
        for dataset in datasets
        for seed in seeds
        for t in temperatures
    ]
    return rows, {dataset: Task(64, 10, n_samples=1000) for dataset in datasets}
