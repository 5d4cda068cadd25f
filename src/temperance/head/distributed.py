"""Running statistics that are the same on all ranks, and are those of all data."""

from __future__ import annotations

import operator
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from temperance.errors import InvalidInput, TemperanceWarning
from temperance.head.running import (
    is_synchronized,
    pools_rows,
    require_running_norms,
    running_norms,
    statistics_of,
)
from temperance.head.surgery import tempered_heads
from temperance.models.probe import unwrap

__all__ = ["WAYS", "EqualizedStatistics", "equalize_statistics"]

WAYS = ("pool", "broadcast")
_NONE = "Only BatchNorm and its like have statistics of the data; leave this call out."


@dataclass(frozen=True)
class EqualizedStatistics:
    """How far the ranks were from each other before.

    Attributes:
        norms: names of the layers whose statistics were set.
        world_size: processes that took part; 1 if there is no process group, and nothing changed.
        mean_spread: largest distance of a rank's running mean from the common one, in units of std.
        variance_ratio: largest factor between two ranks' running variances, >= 1.
    """

    norms: tuple[str, ...]
    world_size: int
    mean_spread: float
    variance_ratio: float


def equalize_statistics(
    model: nn.Module,
    *,
    how: str = "pool",
    rows: int | None = None,
    source: int = 0,
    group: Any = None,
) -> EqualizedStatistics:
    """Give all ranks the same running statistics, in place: before evaluation and before saving.

    Under DistributedDataParallel the weights agree and the running statistics do not: each rank
    follows its own rows. ``pool`` makes them those of all rows,

    ``mean = sum_r w_r mean_r`` and ``var = sum_r w_r (var_r + (mean_r - mean)^2)``,

    with ``w_r`` the share of rank r in the rows. Pass ``forward_sync_buffers=False`` to
    DistributedDataParallel with it (``broadcast_buffers=False`` in former versions of PyTorch). Its
    default hands rank 0's statistics to all ranks in front of each forward: what the other ranks
    saw is lost, and this function warns of it.

    Every rank has to call it, outside of ``join``. A second call changes nothing. Statistics of
    SyncBatchNorm are equal anyway. ``num_batches_tracked`` becomes the largest one.

    Args:
        model: the model, wrapped or not; the same on every rank.
        how: ``pool``, or ``broadcast`` for those of rank ``source``, and its T, which only heads
            that adapt it to their batches (AdaCos) may hold differently on the ranks.
        rows: training rows that this rank saw, 0 or more: the weight of its statistics. None on all
            ranks for equal weights.
        source: for ``broadcast``, a rank within the group.
        group: the process group; None for all processes.

    Returns:
        How far the ranks were from each other.

    Raises:
        NotFound: if there is no layer with running statistics.
        InvalidInput: on every rank alike, if an argument is out of range on any, if the ranks hold
            different layers or temperatures, or if statistics are not finite. Nothing is changed.

    Example:
        >>> from torch import nn
        >>> from temperance.head import equalize_statistics
        >>> model = nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 3))
        >>> equalize_statistics(model).world_size  # one process: nothing to do
        1

    Reference:
        The variance of a mixture (law of total variance). Statistics per process and what to do
        about them: PyTorch's documentation of DistributedDataParallel.
    """
    plain, norms = unwrap(model), running_norms(unwrap(model))
    if not dist.is_available() or not dist.is_initialized() or dist.get_world_size(group) < 2:
        _refuse(_wrong_arguments(how, rows, 0, 1), "")
        return EqualizedStatistics(tuple(require_running_norms(plain, _NONE)), 1, 0.0, 1.0)
    weights = _agree(plain, norms, how=how, rows=rows, source=source, group=group)
    require_running_norms(plain, _NONE)  # now that no rank waits for the others
    if how == "pool":
        _warn_broadcasting(model, norms)
    mean, var, counts = _flat(norms)
    share = weights[dist.get_rank(group)] / sum(weights)
    common = _pooled(norms, mean, var, share=share, group=group)
    spread, ratio = _spread(mean, var, common, group)
    if how == "pool":
        dist.all_reduce(counts, dist.ReduceOp.MAX, group=group)
        mean, var = common
    for tensor in (mean, var, counts):  # bit for bit the same, whatever the backend sums
        dist.broadcast(tensor, group_src=source if how == "broadcast" else 0, group=group)
    _write(norms, mean, var, counts)
    if how == "broadcast":
        for head in tempered_heads(plain).values():  # T of AdaCos follows each rank's own angles
            dist.broadcast(head.temperature, group_src=source, group=group)
    return EqualizedStatistics(tuple(norms), len(weights), spread, ratio)


# ------------------------------------------------------------------ the numbers
def _flat(norms: Mapping[str, nn.Module]) -> tuple[Tensor, Tensor, Tensor]:
    """All means, variances and counters as three vectors, float64, on one device."""
    pairs = [statistics_of(norm) for norm in norms.values()]
    device = pairs[0][0].device
    mean, var = (
        torch.cat([pair[i].detach().to(device, torch.float64).flatten() for pair in pairs])
        for i in (0, 1)
    )
    counters = [c.detach().to(device, torch.float64).flatten() for c in _counters(norms)]
    return mean, var, torch.cat([*counters, mean.new_zeros(1)])


def _counters(norms: Mapping[str, nn.Module]) -> list[Tensor]:
    found = (norm._buffers.get("num_batches_tracked") for norm in norms.values())
    return [c for c in found if c is not None]


def _pooled(
    norms: Mapping[str, nn.Module], mean: Tensor, var: Tensor, *, share: float, group: Any
) -> tuple[Tensor, Tensor]:
    pooled = torch.cat(
        [
            mean.new_full((statistics_of(m)[0].numel(),), float(pools_rows(m)))
            for m in norms.values()
        ]
    )
    common = mean * share
    dist.all_reduce(common, group=group)
    second = (var + pooled * (mean - common) ** 2) * share
    dist.all_reduce(second, group=group)
    return common, second


def _spread(
    mean: Tensor, var: Tensor, common: tuple[Tensor, Tensor], group: Any
) -> tuple[float, float]:
    live = common[1] > 0
    away = torch.where(live, (mean - common[0]).abs() / common[1].clamp_min(1e-300).sqrt(), 0.0)
    tiny = torch.finfo(torch.float64).tiny
    logs = var.clamp_min(tiny).log()
    extremes = torch.cat([away, logs, -logs])
    dist.all_reduce(extremes, dist.ReduceOp.MAX, group=group)
    furthest, high, low = extremes.chunk(3)
    return float(furthest.max()), float(torch.where(live, (high + low).exp(), 1.0).max())


def _write(norms: Mapping[str, nn.Module], mean: Tensor, var: Tensor, counts: Tensor) -> None:
    at = 0
    with torch.no_grad():
        for norm in norms.values():
            for old, new in zip(statistics_of(norm), (mean, var), strict=True):
                old.copy_(new[at : at + old.numel()].view(old.shape))
            at += statistics_of(norm)[0].numel()
        at = 0
        for counter in _counters(norms):
            counter.copy_(counts[at : at + counter.numel()].view(counter.shape))
            at += counter.numel()


# ------------------------------------------------------------------ before the numbers
def _agree(
    model: nn.Module,
    norms: Mapping[str, nn.Module],
    *,
    how: Any,
    rows: Any,
    source: Any,
    group: Any,
) -> list[int]:
    """Check all ranks' arguments and layers on all ranks: an error on one would hang the others.

    Returns:
        The weights of the ranks.
    """
    world = dist.get_world_size(group)
    wrong = _wrong_arguments(how, rows, source, world) or _not_finite(norms)
    shapes = [(name, tuple(statistics_of(norm)[0].shape)) for name, norm in norms.items()]
    temperatures = {n: float(h.temperature) for n, h in tempered_heads(model).items()}
    alike = (how, source, shapes, tuple(temperatures))
    mine = (wrong, None if wrong else alike, temperatures, None if wrong else rows)
    everyone: list[Any] = [None] * world
    dist.all_gather_object(everyone, mine, group=group)
    for rank, (error, *_) in enumerate(everyone):
        _refuse(error, f" on rank {rank}")
    first = everyone[0]
    for rank, (_, layers, theirs, given) in enumerate(everyone):
        hotter = how == "pool" and layers == first[1] and theirs != first[2]
        if layers != first[1] or hotter or (given is None) != (first[3] is None):
            what = "temperatures" if hotter else "layers or arguments"
            raise InvalidInput(
                f"model on rank {rank}",
                expected=f"the {what} of rank 0",
                found=f"{theirs} for {first[2]}" if what == "temperatures" else "others",
                fix="Build the model, and set T, alike on every rank; how='broadcast' gives all "
                "ranks the statistics and the T of one.",
            )
    weights = [1 if given is None else given for *_, given in everyone]
    if sum(weights) == 0:
        raise InvalidInput(
            "rows", expected="a rank that saw rows", found="0 on all", fix="Count the rows."
        )
    return weights


def _refuse(wrong: tuple[str, str, str] | None, where: str) -> None:
    if wrong:
        subject, expected, found = wrong
        raise InvalidInput(f"{subject}{where}", expected=expected, found=found,
                           fix="Call it alike on every rank.")  # fmt: skip


def _wrong_arguments(how: Any, rows: Any, source: Any, world: int) -> tuple[str, str, str] | None:
    if how not in WAYS:
        return "how", " or ".join(WAYS), repr(how)
    if not _whole(source) or not operator.index(source) < world:
        return "source", f"a rank from 0 to {world - 1}", repr(source)
    if rows is not None and not _whole(rows):
        return "rows", "a whole number of 0 or more, or None", repr(rows)
    return None


def _whole(value: Any) -> bool:
    try:
        return not isinstance(value, bool) and operator.index(value) >= 0
    except TypeError:  # also of arrays
        return False


def _not_finite(norms: Mapping[str, nn.Module]) -> tuple[str, str, str] | None:
    for name, norm in norms.items():
        if not all(bool(t.isfinite().all()) for t in statistics_of(norm)):
            return f"statistics of {name!r}", "finite numbers", "NaN or infinity"
    return None


def _warn_broadcasting(model: nn.Module, norms: Mapping[str, nn.Module]) -> None:
    parallel = nn.parallel.DistributedDataParallel
    broadcasting = any(isinstance(m, parallel) and m.broadcast_buffers for m in model.modules())
    if broadcasting and not all(is_synchronized(norm) for norm in norms.values()):
        warnings.warn(
            "DistributedDataParallel hands out rank 0's buffers before each forward, so that the "
            "running statistics are those of rank 0's rows alone. Pass forward_sync_buffers=False "
            "to it (broadcast_buffers=False in former versions), then they are those of all rows.",
            TemperanceWarning,
            stacklevel=3,
        )
