"""What stands for a task before its training: a pretrained net's own features, or the net's input.

The features of a net that starts from nothing say nothing of the task, so its input stands for
them: pictures as shares of white, at most 32 x 32; tables standardized.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from temperance.errors import InvalidInput
from temperance.models import find_head
from temperance.records import Features, Task
from temperance.task import collect
from temperance.task.statistics import find_statistics, try_statistics
from temperance.training.dataset import DataSet
from temperance.training.loop import Batches
from temperance.training.nets import NETS, BuiltNet, build_net
from temperance.training.plan import Plan
from temperance.training.preprocess import make_preprocess
from temperance.training.sources import open_data
from temperance.training.splits import Rows, select
from temperance.training.zoo import find_zoo

__all__ = ["MeasuredData", "input_side", "measure_data", "new_net", "task_features"]

_TORCHVISION_SIDE = 224  # what torchvision's classification weights were trained with
_MAX_INPUTS = 4096  # numbers per picture that stand for the task; larger ones are averaged down

Progress = Callable[[str, int, int], None]


# ------------------------------------------------------------------ the net, and what it sees
def new_net(plan: Plan, data: DataSet, *, seed: int) -> BuiltNet:
    """Build the plan's net for a data set.

    Args:
        plan: names the net, its M and its weights.
        data: gives the shape of the input and the classes.
        seed: seed of the initial weights.

    Returns:
        The net, on the CPU.

    Raises:
        NotFound, MissingPackage, InvalidInput: as ``temperance.training.nets.build_net``.
    """
    name = plan.model
    if name == "auto":
        name = "convnet" if data.kind == "images" else "mlp"
    return build_net(
        name,
        input_shape=data.input_shape,
        n_classes=data.n_classes,
        seed=seed,
        feature_dim=plan.feature_dim,
        weights=plan.weights,
    )


def input_side(plan: Plan) -> int | None:
    """Side of the pictures that pretrained weights expect; None where nothing is loaded."""
    if plan.weights is None or plan.model in ("auto", *NETS):
        return None
    zoo = find_zoo(plan.model, own=tuple(NETS))
    if zoo.library == "torchvision":
        return _TORCHVISION_SIDE
    from timm.models import get_pretrained_cfg

    return int(get_pretrained_cfg(zoo.name).input_size[-1])


def task_features(plan: Plan, net: BuiltNet | None, rows: Batches, data: DataSet) -> Features:
    """Give the features that stand for a task.

    Args:
        plan: says whether weights are loaded.
        net: the net of the plan; only looked at where weights are loaded.
        rows: the rows, as the net gets them.
        data: the data set that they are from.

    Returns:
        Features of the net (in front of its head) where weights are loaded, else its input;
        ``source`` says which.
    """
    if net is None or plan.weights is None:
        x, source = _inputs(rows, data)
        return Features(x, rows.y, data.class_map, source)
    walk = (rows.batch(slice(at, at + 256)) for at in range(0, len(rows), 256))
    collected = collect(net.module, walk)
    return Features(collected.x, rows.y, data.class_map, collected.source)


def _inputs(rows: Batches, data: DataSet) -> tuple[NDArray[Any], str]:
    """Inputs of the net as features: pictures as shares of white, at most 32 x 32."""
    if data.kind == "features":
        return rows.preprocess.apply(rows.x).numpy(), "standardized input features"
    white = float(data.white or 1.0)
    parts, small = [], np.prod(rows.x.shape[1:]) > _MAX_INPUTS
    for at in range(0, len(rows), 256):
        block = torch.from_numpy(np.array(rows.x[at : at + 256])).float().permute(0, 3, 1, 2)
        if small:
            block = nn.functional.adaptive_avg_pool2d(block, 32)
        parts.append((block / white).flatten(1))
    source = "pixels as shares of white" + (", averaged to 32 x 32" if small else "")
    return torch.cat(parts).numpy(), source


# ------------------------------------------------------------------ measuring a data set
@dataclass(frozen=True)
class MeasuredData:
    """Statistics of a data set.

    Attributes:
        name: what the user called the data.
        embedding: what was measured, in words.
        task: M, C, rows and the statistics.
        undefined: why the other statistics do not exist on these rows, by name.
        notices: what was decided about the data, in words.
    """

    name: str
    embedding: str
    task: Task
    undefined: dict[str, str] = field(default_factory=dict)
    notices: tuple[str, ...] = ()


def measure_data(
    plan: Plan,
    *,
    model: str | None = None,
    statistics: tuple[str, ...] | None = None,
    repeats: int = 5,
    as_given: bool = False,
    progress: Progress | None = None,
) -> MeasuredData:
    """Measure the training part of a data set, before any training.

    Args:
        plan: the data (``source``, ``label``, ``ignore``, ``on_bad``, ``image_size``), ``weights``
            and M of the net, ``train_rows`` (that many rows, drawn by class; all if absent) and
            ``split_seed``, which seeds all draws.
        model: the net that the task is for: it gives M and, with weights, the features. Without
            one M is the number of features that are measured.
        statistics: names of statistics; all if absent.
        repeats: groups of rows for the spread, and draws of the csg.
        as_given: measure the features of a table as they are, not standardized.
        progress: called with (what is done now, steps done, steps in all).

    Returns:
        The task with its statistics.

    Raises:
        InvalidInput, NotFound, MissingPackage: for whatever cannot be used.

    Example:
        >>> from temperance.training.plan import Plan
        >>> from temperance.training.task_features import measure_data
        >>> found = measure_data(Plan("digits"), statistics=("n_samples", "class_balance"))
        >>> found.embedding, found.task.feature_dim, found.task.statistics["n_samples"].value
        ('pixels as shares of white', 64, 1797.0)
    """
    specs = find_statistics(statistics)
    if model is None and plan.weights is not None:
        raise InvalidInput(
            "weights",
            expected="the name of their net",
            found="none",
            fix="Name it with --model.",
        )
    if model is None and plan.feature_dim is not None:
        raise InvalidInput(
            "feature_dim",
            expected="the name of the net that has it",
            found="none",
            fix="Name it with --model; without a net M is the number of features.",
        )
    plan = replace(plan, model=model or "auto")
    scan = None if progress is None else (lambda d, t: progress("reading pictures", d, t))
    data = open_data(
        plan.source,
        label=plan.label,
        image_size=plan.image_size or input_side(plan),
        on_bad=plan.on_bad,
        ignore=plan.ignore,
        progress=scan,
    )
    rows, notices = _rows(plan, data)
    net = None if model is None else new_net(plan, data, seed=0)
    features, feature_dim = _features(plan, net, data, rows=rows, as_given=as_given)
    found, undefined = try_statistics(
        features, specs, repeats=repeats, seed=plan.split_seed, progress=progress
    )
    task = Task(
        feature_dim=feature_dim,
        n_classes=len(features.class_map),
        n_samples=len(features),
        n_nonempty=len(np.unique(features.y)),
        statistics=found,
    )
    notices = (*data.notices, *notices, *(() if net is None else net.notices))
    return MeasuredData(data.name, features.source, task, undefined, notices)


def _features(
    plan: Plan, net: BuiltNet | None, data: DataSet, *, rows: Rows, as_given: bool
) -> tuple[Features, int]:
    """The features, and M of the output layer."""
    part = select(data, rows)
    if as_given:
        if data.kind != "features" or net is not None:
            raise InvalidInput(
                "features as given",
                expected="a table of features, and no net",
                found="pictures" if net is None else f"the net {net.name}",
                fix="Leave --as-given out.",
            )
        features = Features(part.x, part.y, data.class_map, "input features as given")
        return features, features.feature_dim
    channels, mean, std = (None,) * 3 if net is None else (net.in_channels, net.mean, net.std)
    preprocess = make_preprocess(data, rows, channels=channels, mean=mean, std=std)
    features = task_features(plan, net, Batches(part.x, part.y, preprocess), data)
    if net is None:
        return features, features.feature_dim
    return features, find_head(net.module, preprocess.apply(part.x[:2])).in_features


def _rows(plan: Plan, data: DataSet) -> tuple[Rows, tuple[str, ...]]:
    """All rows of the training part, or some drawn by class."""
    total, wanted = len(data.parts["train"]), plan.train_rows
    notices: list[str] = []
    if others := [f"{len(p)} of {name}" for name, p in data.parts.items() if name != "train"]:
        notices.append(f"the rows of train are measured; {', '.join(others)} are not looked at")
    if wanted is None:
        return Rows("train", np.arange(total)), tuple(notices)
    if not 2 <= wanted <= total:
        raise InvalidInput(
            "rows",
            expected=f"2 to {total} rows",
            found=str(wanted),
            fix="Ask for another number, or leave it out to measure all rows.",
        )
    rng, y = np.random.default_rng(plan.split_seed), data.parts["train"].y
    order = rng.permutation(total)
    order = order[np.argsort(y[order], kind="stable")]
    # every n-th row of the rows in the order of their classes: shares to within one row
    places = ((np.arange(wanted) + rng.random()) * (total / wanted)).astype(np.int64)
    notices.append(f"{wanted} of {total} rows are measured, drawn by class")
    return Rows("train", np.sort(order[places])), tuple(notices)
