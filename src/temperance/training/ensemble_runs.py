"""The trainings of ``temperance ensemble``: single models and ensembles in one backbone.

They go through the loop and the files of ``temperance train``. Member m of seed s is the model of
the training seed ``s * M + m``; the single model and the ensemble of that seed start from m = 0, so
that all three see the same first batches from the same first weights.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from temperance.ensemble import (
    Ensemble,
    convert,
    diversity_loss,
    member_loss,
    parameter_groups,
    require_distinct,
    sigma_norms,
)
from temperance.errors import InvalidInput
from temperance.head import check_batches
from temperance.records import Run
from temperance.training import loop, state
from temperance.training.arms import NORMS, Arm, parse_arm
from temperance.training.ensemble_plan import SUGGESTED, EnsemblePlan, Method
from temperance.training.loop import Objective
from temperance.training.plan import Prepared, Progress, Scored
from temperance.training.prepare import prepare
from temperance.training.runs import (
    Saver,
    batches_of,
    keep_run,
    key_of,
    load_run,
    new_model,
    run_one,
)
from temperance.training.splits import select

__all__ = [
    "MethodRun",
    "new_ensemble",
    "prepare_ensemble",
    "retrain",
    "run_methods",
    "weights_of",
]

_SPLITS = ("train", "fit", "test")
_SAME_START = (
    "the members of the deep ensemble start from the same loaded weights: they differ in the order "
    "of the data, and in what was left new, only"
)


@dataclass(frozen=True, eq=False)
class MethodRun:
    """One method with one seed.

    Attributes:
        outcome: ``done`` or ``diverged``; a deep ensemble is done if all its members are.
        message: why, for the latter.
        seconds: wall-clock time of its trainings, one after the other.
        histories: curves of its trainings, one for each.
        fit: logits of the members for the fit rows, ``[M, n, C]``; None unless it is done.
        test: likewise for the test rows.
    """

    outcome: str
    message: str
    seconds: float
    histories: tuple[Mapping[str, Any], ...] = field(default_factory=tuple)
    fit: Tensor | None = None
    test: Tensor | None = None


# ------------------------------------------------------------------ before the first step
def prepare_ensemble(plan: EnsemblePlan, progress: Progress | None = None) -> Prepared:
    """Read the data, measure the task, suggest a T, and try everything that a training needs.

    Args:
        plan: what to do.
        progress: told about the stages.

    Returns:
        What the trainings need; its one arm is the output layer of every member.

    Raises:
        InvalidInput, NotFound, MissingPackage: for whatever cannot be used: data, net, weights, a
            net without norms, members that start equal, batches too small for BatchNorm.
    """
    training = replace(plan.training, arms=("plain",), workers=1)
    prepared = prepare(training, progress)
    notices = prepared.notices
    if plan.deep and plan.members > 1 and training.weights is not None:
        notices = (*notices, _SAME_START)
    prepared = replace(prepared, arms=(_head_arm(plan, prepared),), notices=notices)
    ensemble = new_ensemble(prepared, plan, seed=0)
    if plan.members > 1:
        require_distinct(ensemble)
    _check_batches(prepared, plan, ensemble)
    return prepared


def _head_arm(plan: EnsemblePlan, prepared: Prepared) -> Arm:
    """The output layer: plain at T = 1, else with T and the norm of the rule."""
    word = next((w for w, norm in NORMS.items() if norm == prepared.suggestion.norm), "plain")
    fixed = plan.fixed_temperature
    asked = SUGGESTED if fixed is None else repr(fixed)
    text = "plain" if fixed == 1.0 else f"{word}:T={asked}"
    dim = prepared.task.feature_dim
    return parse_arm(text, feature_dim=dim, suggestion=prepared.suggestion)


def _check_batches(prepared: Prepared, plan: EnsemblePlan, ensemble: Ensemble) -> None:
    """A BatchNorm sees the rows of one member only, which ``split`` makes few."""
    batch = any(m.facts.kind == "batch" for m in sigma_norms(ensemble).values())
    share = plan.members if plan.protocol == "split" else 1
    n = len(prepared.splits.train)
    if n < share:
        raise InvalidInput(
            "training rows under protocol 'split'",
            expected=f"at least the {share} members",
            found=str(n),
            fix="Bring more data, or choose the protocol 'repeat'.",
        )
    if batch:
        sizes = loop.plan_steps(n, plan.training.budget.batch_size, multiple=share)
        check_batches(min(sizes) // share, min(sizes) // share).require_safe()


def new_ensemble(prepared: Prepared, plan: EnsemblePlan, *, seed: int) -> Ensemble:
    """Build the ensemble of one seed: the single model of that seed, converted.

    Args:
        prepared: what ``prepare_ensemble`` gave.
        plan: the plan.
        seed: one of the plan's seeds.

    Returns:
        The ensemble, on the plan's device, in training mode.
    """
    model = new_model(prepared, prepared.arms[0], seed=seed * plan.members)
    part = select(prepared.data, prepared.splits.train)
    return convert(
        model,
        plan.members,
        init=plan.init,
        start=plan.start,
        spread=plan.spread,
        heads=plan.member_heads,
        seed=seed,
        example=prepared.preprocess.apply(part.x[:2]),
        protocol=plan.protocol,
    )


# ------------------------------------------------------------------ training
def run_methods(
    prepared: Prepared, plan: EnsemblePlan, out: Path, progress: Progress | None = None
) -> dict[str, dict[int, MethodRun]]:
    """Train every method over every seed; what is already in ``out`` is not done again.

    Args:
        prepared: what ``prepare_ensemble`` gave.
        plan: the plan.
        out: output folder; finished runs are kept in ``runs/``, the state of a run in ``state/``.
        progress: told about every epoch.

    Returns:
        By method and seed what came out.
    """
    tell = progress or Progress()
    for name in ("runs", "state"):
        (out / name).mkdir(exist_ok=True)
    todo = _trainings(prepared, plan)
    epochs, done = plan.training.budget.epochs, 0
    for method, arm, seed in todo:
        if load_run(out, arm, seed) is None:
            report = partial(_report, tell, method.title, seed, done, epochs * len(todo))
            if method.shared:
                which = method, arm, seed
                _train_shared(prepared, plan, out, which=which, report=report)
            else:
                run_one(prepared, out, arm, seed, report=report)
        done += epochs
    tell.epoch("all trainings", plan.training.seeds - 1, done, done)
    seeds = range(plan.training.seeds)
    return {m.name: {s: _gather(prepared, plan, out, m, s) for s in seeds} for m in plan.methods}


def retrain(prepared: Prepared, plan: EnsemblePlan, out: Path, *, tau: float, seed: int) -> None:
    """Train one ensemble again, whose weights are no longer there."""
    which = next((m, arm, seed) for m, arm in _arms(prepared, plan) if m.tau == tau)
    _train_shared(prepared, plan, out, which=which, report=lambda _: None)


def weights_of(plan: EnsemblePlan, prepared: Prepared, out: Path, tau: float, seed: int) -> Path:
    """Where the weights of an ensemble are, once it is trained and until the job is done."""
    arm = next(a for m, a in _arms(prepared, plan) if m.tau == tau)
    return out / "runs" / f"{key_of(arm, seed)}.weights.safetensors"


def _report(tell: Progress, title: str, seed: int, done: int, total: int, epoch: int) -> None:
    tell.epoch(title, seed, done + epoch, total)


def _arms(prepared: Prepared, plan: EnsemblePlan) -> list[tuple[Method, Arm]]:
    """The methods that are trained as such, each with an arm of its own name."""
    head = prepared.arms[0]
    return [(m, replace(head, name=m.name)) for m in plan.methods if m.name != "deep"]


def _trainings(prepared: Prepared, plan: EnsemblePlan) -> list[tuple[Method, Arm, int]]:
    """All trainings, seed by seed; the members of deep ensembles are single models."""
    alone = plan.members if plan.deep else 1
    return [
        (method, arm, seed if method.shared else seed * plan.members + member)
        for seed in range(plan.training.seeds)
        for method, arm in _arms(prepared, plan)
        for member in range(1 if method.shared else alone)
    ]


def _train_shared(
    prepared: Prepared,
    plan: EnsemblePlan,
    out: Path,
    *,
    which: tuple[Method, Arm, int],
    report: Callable[[int], None],
) -> None:
    method, arm, seed = which
    budget, begun = plan.training.budget, time.monotonic()
    rows = {name: batches_of(prepared, getattr(prepared.splits, name)) for name in _SPLITS}
    ensemble = new_ensemble(prepared, plan, seed=seed)
    assert budget.lr is not None
    groups = parameter_groups(
        ensemble, budget.weight_decay or 0.0, lr=budget.lr, gamma_rate=plan.gamma_rate
    )
    training = loop.start(
        ensemble,
        budget,
        seed=seed * plan.members,
        groups=groups,
        objective=_objective(plan, ensemble, method),
    )
    file = out / "state" / f"{key_of(arm, seed)}.safetensors"
    if file.exists():
        state.restore(training, file)
    saver = Saver(file, report)
    loop.train(training, rows["train"], budget, held_out=rows["fit"], on_epoch=saver)
    trial = {**asdict(method), **asdict(arm), "seed": seed, **budget.to_dict()}
    history = {k: tuple(v) for k, v in training.history.items()}
    outcome = "diverged" if training.diverged else "done"
    run = Run(trial, outcome, training.diverged, None, history, time.monotonic() - begun)
    scored = Scored(run)
    if outcome == "done":
        fit, test = (loop.logits_of_rows(ensemble, rows[name]) for name in ("fit", "test"))
        scored = Scored(run, fit, test)
    labels = {name: np.asarray(rows[name].y) for name in ("fit", "test")}
    keep_run(out, (arm, seed), scored, ensemble, labels)
    file.unlink(missing_ok=True)


def _objective(plan: EnsemblePlan, ensemble: Ensemble, method: Method) -> Objective:
    """The members' loss and the diversity term, which one member has not."""

    def loss(logits: Tensor, y: Tensor, smoothing: float) -> Tensor:
        return member_loss(logits, ensemble.targets(y), of=plan.of, label_smoothing=smoothing)

    penalty, strength = None, plan.strength or 0.0
    if plan.members > 1 and strength > 0 and method.tau is not None:
        penalty = partial(diversity_loss, tau=method.tau, strength=strength, form=plan.form)
    return Objective(loss, penalty, plan.members if plan.protocol == "split" else 1)


# ------------------------------------------------------------------ reading the runs back
def _gather(
    prepared: Prepared, plan: EnsemblePlan, out: Path, method: Method, seed: int
) -> MethodRun:
    arms = {m.name: arm for m, arm in _arms(prepared, plan)}
    if method.shared:
        parts = [load_run(out, arms[method.name], seed)]
    else:
        numbers = range(seed * plan.members, seed * plan.members + method.members)
        parts = [load_run(out, arms["single"], number) for number in numbers]
    runs = [part for part in parts if part is not None]
    bad = [r.run for r in runs if r.run.outcome != "done"]
    seconds = sum(r.run.seconds for r in runs)
    histories = tuple(r.run.history for r in runs)
    if bad:
        return MethodRun(bad[0].outcome, bad[0].message, seconds, histories)
    fit, test = (_stack([getattr(r, name) for r in runs]) for name in ("fit", "test"))
    return MethodRun("done", "", seconds, histories, fit, test)


def _stack(logits: list[Tensor]) -> Tensor:
    """Members first: ``[M, n, C]``."""
    return logits[0] if logits[0].dim() == 3 else torch.stack(logits)
