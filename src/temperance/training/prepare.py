"""Everything before the first training step: read, scan, split, measure, suggest."""

from __future__ import annotations

import warnings
from dataclasses import replace

from torch import nn

from temperance.errors import InvalidInput, TemperanceWarning
from temperance.head import check_batches, check_temperature
from temperance.models import find_head
from temperance.records import Suggestion, Task
from temperance.rules import suggest
from temperance.task import measure
from temperance.training.arms import Arm, merge_arms, parse_arm
from temperance.training.dataset import DataSet, row_digests
from temperance.training.loop import Batches, plan_steps
from temperance.training.moving import bounds_of
from temperance.training.nets import BuiltNet
from temperance.training.plan import Plan, Prepared, Progress
from temperance.training.preprocess import make_preprocess
from temperance.training.sources import open_data
from temperance.training.splits import Splits, make_splits, select
from temperance.training.task_features import input_side, new_net, task_features

__all__ = ["new_net", "prepare"]

_BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


def prepare(plan: Plan, progress: Progress | None = None) -> Prepared:
    """Read and scan the data, measure the task and suggest a temperature.

    Args:
        plan: what to do.
        progress: told about the stages.

    Returns:
        Everything that the trainings need.

    Raises:
        InvalidInput, NotFound, MissingPackage: for whatever cannot be used, before any training.
    """
    tell = progress or Progress()
    tell.stage("reading and scanning the data")
    data = open_data(
        plan.source,
        label=plan.label,
        image_size=plan.image_size or input_side(plan),
        on_bad=plan.on_bad,
        ignore=plan.ignore,
        progress=tell.scan,
    )
    splits = make_splits(data, seed=plan.split_seed, train_rows=plan.train_rows)
    net = new_net(plan, data, seed=0)
    preprocess = make_preprocess(
        data, splits.train, channels=net.in_channels, mean=net.mean, std=net.std
    )
    part = select(data, splits.train)
    head = find_head(net.module, preprocess.apply(part.x[:2]))
    tell.stage("measuring the task")
    task = _measured(plan, net, Batches(part.x, part.y, preprocess), data, head.in_features)
    suggestion = suggest(task, plan.rule)
    arms = _arms(plan, head.in_features, suggestion)
    own = any(isinstance(m, _BATCH_NORMS) for m in net.module.modules())
    if own or any(arm.norm == "batch" for arm in arms):
        _check_batch_size(len(part), plan.budget.batch_size)
    notices = (*data.notices, *splits.notices, *_copies(data, splits), *net.notices, *head.notes)
    notices += _unused(plan, suggestion)
    return Prepared(plan, data, splits, preprocess, net.name, task, suggestion, arms, notices)


def _unused(plan: Plan, suggestion: Suggestion) -> tuple[str, ...]:
    """Say that a tuned rate was given to a rule that makes nothing of it."""
    if plan.tuned_lr is None or any("tuned_lr" in term for term in suggestion.terms):
        return ()
    return (f"tuned_lr = {plan.tuned_lr:g} is not used: rule {suggestion.rule} knows no such rate",)


def _copies(data: DataSet, splits: Splits) -> list[str]:
    """Name the held-out rows that the net is trained on, too: their figures are too good."""
    trained = set(row_digests(select(data, splits.train).x))
    found = []
    for name in ("fit", "test"):
        rows = select(data, getattr(splits, name)).x
        count = sum(digest in trained for digest in row_digests(rows))
        if count:
            found.append(f"{count} of the {len(rows)} {name} rows are copies of training rows")
    for text in found:
        warnings.warn(f"{data.name}: {text}", TemperanceWarning, stacklevel=3)
    return found


def _check_batch_size(n: int, batch_size: int) -> None:
    """Refuse batches that are too small for a BatchNorm; a small remainder is merged."""
    check_batches(n if n < batch_size else n - n % batch_size, batch_size).require_safe()


def _arms(plan: Plan, feature_dim: int, suggestion: Suggestion) -> tuple[Arm, ...]:
    if suggestion.norm == "cosine":
        raise InvalidInput(
            "rule",
            expected="a rule for heads with norm batch, layer or none",
            found=f"{suggestion.rule}, a scale for cosine heads",
            fix="Name another rule (see: temperance rules).",
        )
    arms = [parse_arm(t, feature_dim=feature_dim, suggestion=suggestion) for t in plan.arms]
    for arm in arms:
        for value in (arm.temperature, arm.temperature if arm.end is None else arm.end):
            check_temperature(value)
        _check_start(arm)
    names = [arm.name for arm in arms]
    if len(set(names)) < len(names) or not names:
        raise InvalidInput(
            "arms",
            expected="one arm or more, each once",
            found=", ".join(names) or "none",
            fix="Name every arm once.",
        )
    return merge_arms(arms)


def _check_start(arm: Arm) -> None:
    """Refuse a learned T that starts outside of its bounds, before any arm is trained."""
    bounds = bounds_of(arm)
    if bounds is not None and not bounds.minimum <= arm.temperature <= bounds.maximum:
        raise InvalidInput(
            "arm",
            expected=f"a learned T that starts between {bounds.minimum:g} and {bounds.maximum:g}",
            found=f"{arm.name!r}, which starts at {arm.temperature:g}",
            fix="Start it elsewhere with T=learned@START.",
        )


def _measured(plan: Plan, net: BuiltNet, rows: Batches, data: DataSet, feature_dim: int) -> Task:
    """Measure on the features that stand for the task before training."""
    features = task_features(plan, net, rows, data)
    steps = len(plan_steps(len(rows), plan.budget.batch_size)) * plan.budget.epochs
    facts = {**plan.budget.to_dict(), "schedule": "cosine", "steps": steps, "n": len(rows)}
    facts |= {} if plan.tuned_lr is None else {"tuned_lr": plan.tuned_lr}
    task = measure(features, seed=plan.split_seed, training=facts)
    return replace(task, feature_dim=feature_dim)
