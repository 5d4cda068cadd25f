"""Running statistics under gradient accumulation."""

from __future__ import annotations

import operator
from typing import Any

from torch import nn

from temperance.errors import InvalidInput
from temperance.head.running import momentum_of, require_running_norms, set_momentum
from temperance.models.probe import unwrap

__all__ = ["accumulate_statistics"]

_PER_STEP = "_momentum_per_step"


def accumulate_statistics(model: nn.Module, accumulation: int) -> dict[str, float | None]:
    """Let the running statistics remember as many optimizer steps as without accumulation.

    ``momentum' = 1 - (1 - momentum)^(1 / k)`` for k batches per optimizer step.

    The rule for BatchNorm when gradients are accumulated:

    1. Each batch is normalized by itself. Accumulation does not make BatchNorm's batches larger;
       ``check_batches`` counts accordingly.
    2. The running statistics move with every batch, k times per optimizer step. At an unchanged
       momentum m they forget ``1 - (1 - m)^k`` per step (0.57 instead of 0.1 for k = 8), and are as
       noisy as k times smaller batches make them. With this momentum k batches together weigh m.
    3. Then they estimate what one k times larger batch would give: the mean of the batches' means,
       and the mean of their unbiased variances.

    Args:
        model: the model, changed in place. The momentum before the first call is kept with each
            layer, so that a later call with another k, or 1, starts from it; one that was set since
            then counts instead.
        accumulation: k, batches per optimizer step, at least 1.

    Returns:
        The new momentum of every layer by name; None for layers that keep a plain mean of all
        batches (``momentum=None``), which needs no change.

    Raises:
        NotFound: if there is no layer with running statistics.
        InvalidInput: if k is no whole number of at least 1.

    Example:
        >>> from torch import nn
        >>> from temperance.head import accumulate_statistics
        >>> model = nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 3))
        >>> round(accumulate_statistics(model, 8)["0"], 4)
        0.0131
        >>> accumulate_statistics(model, 1)
        {'0': 0.1}
    """
    k = _checked(accumulation)
    fix = "Only BatchNorm and its like have a momentum; leave this call out."
    norms = require_running_norms(unwrap(model), fix)
    found: dict[str, float | None] = {}
    for name, norm in norms.items():
        momentum = _per_step(norm)
        found[name] = None if momentum is None else _per_batch(momentum, k)
        set_momentum(norm, found[name])
        norm.__dict__[_PER_STEP] = (momentum, found[name])
    return found


def _per_step(norm: nn.Module) -> float | None:
    """The momentum before the first call, unless someone has set another one since."""
    now = momentum_of(norm)
    before, set_then = norm.__dict__.get(_PER_STEP, (now, now))
    return before if now == set_then else now


def _per_batch(momentum: float, k: int) -> float:
    return momentum if k == 1 else float(1 - (1 - momentum) ** (1 / k))


def _checked(value: Any) -> int:
    if not isinstance(value, bool) and hasattr(value, "__index__") and value >= 1:
        return operator.index(value)
    raise InvalidInput(
        "accumulation",
        expected="a whole number of at least 1: batches per optimizer step",
        found=repr(value),
        fix="Set it.",
    )
