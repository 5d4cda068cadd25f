"""The facts of a training from its optimizer and its loader, before the first step."""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from temperance.errors import InvalidInput, NotFound
from temperance.rules.schedules import rates_of
from temperance.rules.training import FAMILIES, Training, steps_of

if TYPE_CHECKING:
    from torch.optim import Optimizer

__all__ = ["training_facts"]

_USUAL: Mapping[str, Mapping[str, Any]] = {
    "sgd": {"dampening": 0, "nesterov": False, "maximize": False},
    "adam": {"betas": (0.9, 0.999), "amsgrad": False, "maximize": False},
    "rmsprop": {"alpha": 0.99, "centered": False, "momentum": 0, "maximize": False},
}
"""Settings of the runs that a law was fitted on, PyTorch's defaults; others get a remark."""

_LARGEST_EPS = 1e-6  # Adam's default is 1e-8; a hundred times that still only avoids 0 / 0
_SAME = 1e-3  # relative difference of two learning rates that are the same


def training_facts(
    optimizer: Optimizer,
    loader: Any,
    epochs: float | None = None,
    *,
    scheduler: Any = None,
    steps: int | None = None,
    accumulation: int = 1,
) -> dict[str, Any]:
    """Read what a rule can know of a training, from its optimizer and its loader.

    For ``measure(features, training=training_facts(...))``. Nothing is stepped or changed; the
    scheduler is looked at in a copy.

    Args:
        optimizer: SGD, Adam, AdamW, NAdam, RAdam, RMSprop, or a subclass or wrapper of one. Of
            several parameter groups the largest learning rate counts (not that of a learned T),
            and that they differ is remarked; so is every setting that no law was fitted on. A
            momentum that the scheduler moves counts by how far it lets the training go.
        loader: the training loader, of which data set, sampler and batch size are read; or
            ``(rows, batch size)`` for any other, such as a stream. With a DistributedSampler the
            batches of all processes make up a step.
        epochs: passes over the loader.
        scheduler: None for a constant rate; ``"cosine"``, ``"constant"``; the mean learning rate
            divided by its peak, a number; the learning rates of all steps, a sequence, whose
            largest is that of the optimizer; a torch scheduler that was not stepped yet (also in
            accelerate's wrapper, which steps it once for each process); or ``{"scheduler": ...,
            "interval": "step"}`` (or ``"epoch"``) where it matters and cannot be seen when it is
            stepped.
        steps: optimizer steps, where they are known and not the epochs.
        accumulation: batches whose gradients are summed up for one step; an optimizer that
            accelerate prepared must agree.

    Returns:
        Plain numbers and texts by name: ``optimizer, lr, steps, batch_size, n, epochs, schedule,
        mean_lr_ratio, momentum, weight_decay`` and, if there are any, ``remarks``. Where the rate
        was tuned at T = 1, add it, for another T: ``{**training_facts(...), "tuned_lr": 0.03}``.

    Raises:
        NotFound: for an optimizer that is not known.
        InvalidInput: for a loader without a length or batch size, epochs and steps that are both
            missing or contradict each other, schedulers that cannot be foreseen, and rates that
            are not one for each step.

    Example:
        >>> import torch
        >>> from temperance import Task, training_facts
        >>> layer = torch.nn.Linear(64, 10)
        >>> rows = torch.utils.data.TensorDataset(torch.randn(640, 64), torch.arange(640) % 10)
        >>> loader = torch.utils.data.DataLoader(rows, batch_size=64, shuffle=True)
        >>> optimizer = torch.optim.SGD(layer.parameters(), lr=0.1, momentum=0.9)
        >>> facts = training_facts(optimizer, loader, 20, scheduler="cosine")
        >>> facts["steps"], facts["mean_lr_ratio"], facts["momentum"]
        (200, 0.5025, 0.9)
        >>> task = Task(64, 10, training=facts)  # or measure(features, training=facts)
    """
    inner = _unwrapped(optimizer)
    name = _name_of(inner)
    n, rows, per_epoch = _sizes(loader)
    group = min(_accumulated(optimizer, accumulation), per_epoch)
    per_epoch = math.ceil(per_epoch / group)
    total = steps_of(per_epoch, 1, epochs=epochs, steps=steps)
    rates = rates_of(inner, scheduler, steps=total, per_epoch=per_epoch)
    groups = inner.param_groups
    main = groups[rates.main]
    momentum = main.get("momentum", 0.0) if rates.momentum is None else rates.momentum
    if name == "adam" and main.get("decoupled_weight_decay"):
        name = "adamw"  # the same steps
    training = Training(
        optimizer=name,
        lr=rates.peaks[rates.main],
        steps=total,
        batch_size=rows * group,
        n=n,
        mean_lr_ratio=rates.mean_ratio,
        momentum=float(momentum) if name in FAMILIES["sgd"] else 0.0,
        weight_decay=max(float(g.get("weight_decay", 0.0)) for g in groups),
        schedule=rates.name,
        remarks=(
            *_odd_settings(main, name),
            *([] if rates.momentum is None else ["a momentum that moves"]),
            *_different_rates(groups, rates.peaks),
        ),
    )
    return training.facts()


# ------------------------------------------------------------------ the optimizer
def _unwrapped(optimizer: Any) -> Any:
    """The torch optimizer inside of accelerate's and Lightning's wrappers."""
    for _ in range(4):
        known = {name for names in FAMILIES.values() for name in names}
        if any(cls.__name__.lower() in known for cls in type(optimizer).__mro__[:-1]):
            return optimizer
        inner = getattr(optimizer, "optimizer", None)
        if inner is None or inner is optimizer:
            break
        optimizer = inner
    return optimizer


def _accumulated(optimizer: Any, accumulation: int) -> int:
    """Batches of a step; accelerate's optimizers know them, and skip the steps between."""
    given = _whole("accumulation", accumulation)
    known = getattr(getattr(optimizer, "gradient_state", None), "num_steps", given)
    if isinstance(known, int) and known > 1 and known != given:
        raise InvalidInput(
            "accumulation",
            expected=f"{known}, the gradient_accumulation_steps of the Accelerator",
            found=str(given),
            fix=f"Pass accumulation={known}.",
        )
    return given


def _name_of(optimizer: Any) -> str:
    known = [name for names in FAMILIES.values() for name in names]
    names = [cls.__name__.lower() for cls in type(optimizer).__mro__]
    found = next((name for name in names if name in known), None)
    if found is None or not getattr(optimizer, "param_groups", None):
        raise NotFound(
            "optimizer",
            found=f"a {type(optimizer).__name__} is none that is known",
            candidates=("SGD", "Adam", "AdamW", "NAdam", "RAdam", "RMSprop"),
            fix="Leave the facts of the training out, or write them down yourself under the name "
            "of the optimizer whose steps are of the same kind.",
        )
    return found


def _odd_settings(group: Mapping[str, Any], name: str) -> tuple[str, ...]:
    family = next(family for family, names in FAMILIES.items() if name in names)
    found = []
    for key, usual in _USUAL[family].items():
        value = group.get(key, usual)
        value = tuple(map(float, value)) if isinstance(usual, tuple) else value
        if value != usual:
            found.append(f"{name} with {key} {value}")
    if float(group.get("eps", 0.0)) > _LARGEST_EPS:
        found.append(f"{name} with eps {float(group['eps']):g}")
    return tuple(found)


def _different_rates(
    groups: Sequence[Mapping[str, Any]], peaks: Sequence[float]
) -> tuple[str, ...]:
    """Whether groups of more than one number each (a learned T is one) have rates of their own."""
    sizes = [sum(p.numel() for p in group["params"]) for group in groups]
    rates = [peak for peak, size in zip(peaks, sizes, strict=True) if size > 1]
    if not rates or max(rates) - min(rates) <= _SAME * max(rates):
        return ()
    return (f"learning rates of {min(rates):.3g} to {max(rates):.3g} in different layers",)


# ------------------------------------------------------------------ the loader
def _sizes(loader: Any) -> tuple[int, int, int]:
    """Training rows, rows of a batch over all processes, and batches of an epoch."""
    if isinstance(loader, tuple | list):
        if len(loader) != 2:
            raise _loader(f"{len(loader)} values")
        n, rows = _whole("training rows", loader[0]), _whole("batch size", loader[1])
        return n, min(rows, n), math.ceil(n / rows)
    from torch.utils.data import IterableDataset

    data, batches = getattr(loader, "dataset", None), getattr(loader, "batch_sampler", None)
    if data is None or isinstance(data, IterableDataset) or not hasattr(data, "__len__"):
        what = "a stream" if isinstance(data, IterableDataset) else f"a {type(loader).__name__}"
        raise _loader(f"{what} without a known number of rows")
    size = getattr(loader, "batch_size", None) or getattr(batches, "batch_size", None)
    if not isinstance(size, int) or isinstance(size, bool):
        raise _loader("batches of no stated size")
    sampler = getattr(batches, "sampler", None) or getattr(loader, "sampler", None)
    n, processes = _sampled(sampler, len(data))
    whole = getattr(loader, "total_batch_size", None)  # accelerate's, over all processes
    rows = whole if isinstance(whole, int) else size * processes
    try:
        per_epoch = len(loader)
    except TypeError:
        raise _loader("batches whose number is not known") from None
    if not per_epoch:
        raise _loader("no batch (fewer rows than a batch, and drop_last)")
    return n, min(rows, n), per_epoch


def _sampled(sampler: Any, rows: int) -> tuple[int, int]:
    """Rows that a sampler draws from, and processes that share them."""
    from torch.utils.data import (
        RandomSampler,
        SequentialSampler,
        SubsetRandomSampler,
        WeightedRandomSampler,
    )
    from torch.utils.data.distributed import DistributedSampler

    if isinstance(sampler, SubsetRandomSampler):
        return len(set(map(int, sampler.indices))), 1
    if isinstance(sampler, list | tuple | range):
        return len(set(map(int, sampler))), 1
    if isinstance(sampler, RandomSampler | SequentialSampler):
        return len(sampler.data_source), 1
    if isinstance(sampler, WeightedRandomSampler):
        return int((sampler.weights > 0).sum()), 1
    if isinstance(sampler, DistributedSampler):
        return len(sampler.dataset), sampler.num_replicas  # type: ignore[arg-type]
    return rows, 1


def _loader(found: str) -> InvalidInput:
    return InvalidInput(
        "training loader",
        expected="a loader with a data set of known length and a batch size",
        found=found,
        fix="Pass (rows, batch size) in its place, and steps= where an epoch is not "
        "ceil(rows / batch size) batches.",
    )


def _whole(name: str, value: Any) -> int:
    try:
        whole = 0 if isinstance(value, bool) else operator.index(value)
    except TypeError:
        whole = 0
    if whole < 1:
        raise InvalidInput(
            name, expected="a whole number of 1 or more", found=f"{value!r:.60}", fix="Change it."
        )
    return whole
