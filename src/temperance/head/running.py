"""Layers that keep running statistics: which ones a model has, and how fast theirs move."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from torch import Tensor, nn
from torch.nn.modules.instancenorm import _InstanceNorm as InstanceNorm
from torch.nn.parameter import is_lazy

from temperance.errors import InvalidInput, NotFound

__all__ = [
    "check_finite",
    "is_synchronized",
    "momentum_of",
    "names_of",
    "pools_rows",
    "require_running_norms",
    "require_values",
    "running_norms",
    "set_momentum",
    "statistics_of",
]


def running_norms(model: nn.Module) -> dict[str, nn.Module]:
    """Give every layer that moves running statistics in training, by dotted name, in order.

    That is any BatchNorm, SyncBatchNorm, InstanceNorm with ``track_running_stats``, and the layers
    of ensembles whose members have statistics of their own. Layers whose statistics are constants
    (torchvision's FrozenBatchNorm2d) have no momentum and are no such layers.
    """
    return {
        name: module
        for name, module in model.named_modules()
        if isinstance(module._buffers.get("running_mean"), Tensor)
        and isinstance(module._buffers.get("running_var"), Tensor)
        and (hasattr(module, "momentum") or hasattr(_facts(module), "momentum"))
    }


def require_running_norms(model: nn.Module, fix: str) -> dict[str, nn.Module]:
    """Give them, or raise NotFound where there are none."""
    norms = running_norms(model)
    if not norms:
        found = f"{type(model).__name__} has no layer that keeps any"
        raise NotFound("running statistics", found=found, fix=fix)
    return norms


def names_of(value: Any, subject: str) -> list[str]:
    """Give names or patterns of modules as a list; one alone is a string."""
    names = [value] if isinstance(value, str) else value
    if isinstance(names, Iterable) and not isinstance(names, nn.Module):
        names = list(names)
        if all(isinstance(name, str) for name in names):
            return names
    raise InvalidInput(
        subject,
        expected="names of modules, or patterns",
        found=f"a {type(value).__name__}",
        fix="Take names from model.named_modules(); * stands for anything.",
    )


def require_values(tensors: Mapping[str, Tensor]) -> None:
    """Raise InvalidInput for lazy and meta tensors, which have no values; the first is named."""
    for name, tensor in tensors.items():
        if is_lazy(tensor) or tensor.is_meta:
            raise InvalidInput(
                f"tensor {name!r}",
                expected="one with values",
                found="one of a lazy module" if is_lazy(tensor) else "one on the meta device",
                fix="Load the weights, or run one batch of data, first.",
            )


def statistics_of(norm: nn.Module) -> tuple[Tensor, Tensor]:
    """Give the running mean and the running variance, the buffers themselves."""
    mean, variance = norm._buffers["running_mean"], norm._buffers["running_var"]
    assert mean is not None
    assert variance is not None
    return mean, variance


def momentum_of(norm: nn.Module) -> float | None:
    """Give the share of the newest batch in the running statistics; None for a plain mean."""
    facts = _facts(norm)
    value: Any = norm.momentum if facts is None else facts.momentum
    return None if value is None else float(value)


def set_momentum(norm: nn.Module, value: float | None) -> None:
    """Set it, also where a layer of an ensemble keeps it among its facts."""
    facts = _facts(norm)
    if facts is None:
        norm.__dict__["momentum"] = value
    else:
        norm.__dict__["facts"] = replace(facts, momentum=value)


def pools_rows(norm: nn.Module) -> bool:
    """Whether a statistic is over all rows of a batch, and not a mean over rows (InstanceNorm)."""
    return not isinstance(norm, InstanceNorm)


def is_synchronized(norm: nn.Module) -> bool:
    """Whether processes share the statistics of a batch, as in SyncBatchNorm."""
    return isinstance(norm, nn.SyncBatchNorm) or bool(getattr(_facts(norm), "sync", False))


def check_finite(statistics: Mapping[str, tuple[Tensor, Tensor]], fix: str) -> None:
    """Raise InvalidInput for statistics that are no numbers; the first layer is named."""
    for name, pair in statistics.items():
        if not all(bool(t.isfinite().all()) for t in pair):
            raise InvalidInput(
                f"statistics of {name!r}",
                expected="finite numbers",
                found="NaN or infinity",
                fix=fix,
            )


def _facts(module: nn.Module) -> Any:
    """What a layer of an ensemble computes (these live in a later room, so by attribute)."""
    return module.__dict__.get("facts")
