"""The trainings of a comparison: every arm over every seed, kept as soon as they are there.

A finished run is three files in ``runs/`` (record, logits, weights); a run under way is one file in
``state/``. Going on from them gives the same result as never having stopped.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import torch
from torch import nn

from temperance.errors import InvalidInput
from temperance.evaluation import EvaluateOptions, evaluate, fit_temperature
from temperance.files import write_bytes
from temperance.head import HeadOptions, insert, tempered_heads
from temperance.models import read_safetensors
from temperance.records import Run, dumps, loads
from temperance.training import loop, state
from temperance.training.arms import Arm
from temperance.training.loop import Batches
from temperance.training.moving import bounds_of, objective_of
from temperance.training.plan import Prepared, Progress, Scored
from temperance.training.prepare import new_net
from temperance.training.splits import Rows, select

__all__ = [
    "Saver",
    "Tally",
    "batches_of",
    "keep_run",
    "key_of",
    "load_run",
    "new_model",
    "run_arms",
    "run_one",
]

_SAME = 1e-6  # relative difference of a T that went through float32
SAVE_EVERY = 1.0  # seconds between saved states of a run, at least
_SPLITS = ("train", "fit", "test")


def run_arms(prepared: Prepared, out: Path, progress: Progress | None = None) -> list[Scored]:
    """Train every arm over every seed; what is already in ``out`` is not done again.

    Args:
        prepared: what ``prepare`` gave.
        out: output folder; finished runs are kept in ``runs/``, the state of a run in ``state/``.
        progress: told about every epoch.

    Returns:
        All runs, seed by seed, arm by arm.
    """
    tell = progress or Progress()
    for name in ("runs", "state"):
        (out / name).mkdir(exist_ok=True)
    which = [(arm, seed) for seed in range(prepared.plan.seeds) for arm in prepared.arms]
    todo = [(arm, seed) for arm, seed in which if load_run(out, arm, seed) is None]
    epochs = prepared.plan.budget.epochs
    tally = Tally(tell, done=(len(which) - len(todo)) * epochs, total=len(which) * epochs)
    if prepared.plan.workers > 1:
        from temperance.training.workers import run_in_processes

        run_in_processes(prepared, out, todo, tally)
    else:
        for arm, seed in todo:
            run_one(prepared, out, arm, seed, report=partial(tally, arm, seed))
    found = [load_run(out, arm, seed) for arm, seed in which]
    return [one for one in found if one is not None]


class Tally:
    """Adds up the epochs of runs that go on side by side."""

    def __init__(self, tell: Progress, *, done: int, total: int) -> None:
        self.tell, self.done, self.total = tell, done, total
        self.epochs: dict[tuple[str, int], int] = {}
        if done:
            tell.epoch("resumed", 0, done, total)

    def __call__(self, arm: Arm, seed: int, epoch: int) -> None:
        """Take note that a run has done so many epochs."""
        self.epochs[arm.name, seed] = epoch
        self.tell.epoch(arm.title, seed, self.done + sum(self.epochs.values()), self.total)


def batches_of(prepared: Prepared, rows: Rows) -> Batches:
    """Rows of a split, as a model gets them."""
    part = select(prepared.data, rows)
    return Batches(part.x, part.y, prepared.preprocess, prepared.plan.device)


def new_model(prepared: Prepared, arm: Arm, *, seed: int) -> nn.Module:
    """Build the model of one run: the net of the seed, with the arm's head."""
    net = new_net(prepared.plan, prepared.data, seed=seed).module
    example = prepared.preprocess.apply(select(prepared.data, prepared.splits.train).x[:2])
    options = HeadOptions(learned=bounds_of(arm))
    insert(net, arm.temperature, norm=arm.norm, example=example, options=options)
    return net.to(prepared.plan.device)


def run_one(
    prepared: Prepared, out: Path, arm: Arm, seed: int, *, report: Callable[[int], None]
) -> None:
    """Train one arm with one seed, judge it, keep it.

    Args:
        prepared: what ``prepare`` gave.
        out: output folder.
        arm: the arm.
        seed: the seed of weights and data order.
        report: called with the number of epochs done.
    """
    plan, begun = prepared.plan, time.monotonic()
    rows = {name: batches_of(prepared, getattr(prepared.splits, name)) for name in _SPLITS}
    model = new_model(prepared, arm, seed=seed)
    training = loop.start(model, plan.budget, seed=seed, objective=objective_of(arm, model))
    file = out / "state" / f"{key_of(arm, seed)}.safetensors"
    if file.exists():
        state.restore(training, file)
        if not arm.moves:
            (head,) = tempered_heads(model).values()
            _require_same(file, float(head.temperature), arm.temperature, arm)
    loop.train(
        training,
        rows["train"],
        plan.budget,
        held_out=rows["fit"],
        smoothing=arm.smoothing,
        on_epoch=Saver(file, report),
    )
    result = _judged(prepared, rows, training, (arm, seed), time.monotonic() - begun)
    labels = {name: np.asarray(rows[name].y) for name in ("fit", "test")}
    keep_run(out, (arm, seed), result, training.model, labels)
    file.unlink(missing_ok=True)


class Saver:
    """Saves a run's state after an epoch, at most once a second."""

    def __init__(self, path: Path, report: Callable[[int], None]) -> None:
        self.path, self.report, self.last = path, report, time.monotonic()

    def __call__(self, training: loop.Training) -> None:
        """Save where the training stands, if it is time, and report the epoch."""
        if time.monotonic() - self.last >= SAVE_EVERY:
            state.save(training, self.path)
            self.last = time.monotonic()
        self.report(training.epoch)


def _judged(
    prepared: Prepared,
    rows: Mapping[str, Batches],
    training: loop.Training,
    which: tuple[Arm, int],
    seconds: float,
) -> Scored:
    arm, seed = which
    trial = {"arm": arm.name, "seed": seed, **asdict(arm), **prepared.plan.budget.to_dict()}
    history = {k: tuple(v) for k, v in training.history.items()}
    if training.diverged:
        return Scored(Run(trial, "diverged", training.diverged, None, history, seconds))
    fit = loop.logits_of_rows(training.model, rows["fit"])
    test = loop.logits_of_rows(training.model, rows["test"])
    posthoc = fit_temperature(logits=fit, labels=rows["fit"].y)
    report = evaluate(
        logits=test,
        labels=rows["test"].y,
        class_map=prepared.data.class_map,
        posthoc=posthoc,
        options=EvaluateOptions(bins=prepared.plan.bins),
    )
    return Scored(Run(trial, "done", "", report, history, seconds), fit, test)


# ------------------------------------------------------------------ keeping runs
def _require_same(file: Path, found: float, now: float, arm: Arm) -> None:
    if not math.isclose(found, now, rel_tol=_SAME):
        raise InvalidInput(
            str(file),
            expected=f"a run of {arm.name} with T = {now:.6g}",
            found=f"one with T = {found:.6g}: the rule, or what it measured, is another now",
            fix="Go on with the version and the rule that began it, or start into another folder.",
        )


def key_of(arm: Arm, seed: int) -> str:
    """Name of a run's files."""
    return quote(arm.name.replace(":", "-").replace("=", "-"), safe="") + f"-seed{seed}"


def keep_run(
    out: Path, which: tuple[Arm, int], scored: Scored, model: nn.Module, labels: Mapping[str, Any]
) -> None:
    """Write a finished run: weights and logits first, then its record, which makes it count."""
    from safetensors.torch import save

    path = out / "runs" / key_of(*which)
    weights = {k: v.cpu().contiguous().clone() for k, v in model.state_dict().items()}
    write_bytes(path.with_name(path.name + ".weights.safetensors"), save(weights))
    if scored.fit is not None and scored.test is not None:
        logits = {
            "fit": scored.fit.contiguous(),
            "test": scored.test.contiguous(),
            **{f"{name}_labels": torch.from_numpy(y) for name, y in labels.items()},
        }
        write_bytes(path.with_name(path.name + ".logits.safetensors"), save(logits))
    write_bytes(path.with_name(path.name + ".json"), dumps(scored.run).encode())


def load_run(out: Path, arm: Arm, seed: int) -> Scored | None:
    """Read a finished run back, or None if there is none.

    Raises:
        InvalidInput: if it was trained with another T than the arm has now, because the rule or its
            coefficients changed since: seeds of two temperatures must not be averaged.
    """
    path = out / "runs" / key_of(arm, seed)
    record = path.with_name(path.name + ".json")
    if not record.exists():
        return None
    run = loads(record.read_text(encoding="utf-8"), Run)
    for name, now in (("temperature", arm.temperature), ("end", arm.end)):
        if now is not None:
            _require_same(record, run.trial.get(name, now), now, arm)
    if run.outcome != "done":
        return Scored(run)
    logits = read_safetensors(path.with_name(path.name + ".logits.safetensors"))
    return Scored(run, logits["fit"], logits["test"])
