"""Rows of moving temperatures as one table per setting, and intervals over data sets."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from temperance.study.ledger import read_rows, read_tasks

__all__ = ["METRICS", "Setting", "interval", "read_settings"]

METRICS = ("val_nll_posthoc", "test_accuracy", "test_nll", "test_nll_posthoc")
_OUT = ("temperature", "seed", "path")
DRAWS = 4000


@dataclass(frozen=True, eq=False)
class Setting:
    """All trainings of one setting.

    Attributes:
        dataset: the unit of the bootstrap.
        fields: of its trials, without temperature, seed and path.
        temperatures: that were tried, ascending.
        seeds: of all.
        values: metric by path, ``[temperatures, seeds]``; NaN where nothing was trained. What
            diverged is a model that knows nothing, whose NLL is the highest that counts.
        last: T at the end of the training, likewise.
        seconds: CPU seconds, likewise.
        diverged: whether it did, likewise.
        history: ``[temperature][seed]`` of the constant path: curves by name.
    """

    dataset: str
    fields: Mapping[str, Any]
    temperatures: NDArray[np.float64]
    seeds: tuple[int, ...]
    values: Mapping[str, Mapping[str, NDArray[np.float64]]]
    last: Mapping[str, NDArray[np.float64]]
    seconds: Mapping[str, NDArray[np.float64]]
    diverged: Mapping[str, NDArray[np.float64]]
    history: Mapping[tuple[int, int], Mapping[str, Sequence[float]]]
    classes: int


def read_settings(folder: Path) -> list[Setting]:
    """Read the rows of a sweep, by setting; a part of them is enough."""
    tasks = read_tasks(folder)
    groups: dict[str, list[dict[str, Any]]] = {}
    for row in read_rows(folder):
        trial = {"path": "constant", "augment": "none"} | row["trial"]
        row["trial"] = trial
        if row["outcome"] != "failed":
            key = json.dumps({n: v for n, v in trial.items() if n not in _OUT}, sort_keys=True)
            groups.setdefault(key, []).append(row)
    return [_setting(json.loads(key), rows, tasks) for key, rows in sorted(groups.items())]


def _setting(fields: Mapping[str, Any], rows: Sequence[dict[str, Any]], tasks: Any) -> Setting:
    temperatures = sorted({row["trial"]["temperature"] for row in rows})
    seeds = tuple(sorted({row["trial"]["seed"] for row in rows}))
    paths = sorted({row["trial"]["path"] for row in rows})
    shape = len(temperatures), len(seeds)
    classes = int(tasks[rows[0]["task"]]["task"]["n_classes"])
    known: dict[str, dict[str, NDArray[np.float64]]] = {
        name: {path: np.full(shape, np.nan) for path in paths}
        for name in (*METRICS, "last", "seconds", "diverged")
    }
    history = {}
    for row in rows:
        trial = row["trial"]
        at = temperatures.index(trial["temperature"]), seeds.index(trial["seed"])
        nothing = {n: 1 / classes if "accuracy" in n else math.log(classes) for n in METRICS}
        own = {n: (row["metrics"] or nothing)[n] for n in METRICS}
        own |= {n: min(v, nothing[n]) for n, v in own.items() if "nll" in n}
        moved = row["history"].get("temperature") or [trial["temperature"]]
        own |= {"last": moved[-1], "seconds": row["seconds"]}
        own["diverged"] = float(row["outcome"] == "diverged")
        for name, value in own.items():
            known[name][trial["path"]][at] = value
        if trial["path"] == "constant":
            history[at] = row["history"]
    return Setting(
        dataset=fields["dataset"],
        fields=fields,
        temperatures=np.array(temperatures),
        seeds=seeds,
        values={name: known[name] for name in METRICS},
        last=known["last"],
        seconds=known["seconds"],
        diverged=known["diverged"],
        history=history,
        classes=classes,
    )


def interval(
    datasets: Sequence[str], values: Sequence[float], *, level: float
) -> tuple[float, float, float]:
    """Give a mean in which every data set counts once, and its bootstrap interval over them.

    Args:
        datasets: of every setting.
        values: of every setting.
        level: of the interval, for instance 0.95.

    Returns:
        Mean, lower and upper end.
    """
    by_set: dict[str, list[float]] = {}
    for name, value in zip(datasets, values, strict=True):
        by_set.setdefault(name, []).append(value)
    means = np.array([np.mean(by_set[name]) for name in sorted(by_set)])
    rng = np.random.default_rng(0)
    drawn = means[rng.integers(0, len(means), (DRAWS, len(means)))].mean(axis=1)
    ends = np.percentile(drawn, [50 * (1 - level), 50 * (1 + level)])
    return float(means.mean()), float(ends[0]), float(ends[1])
