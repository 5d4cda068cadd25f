"""Gradient checkpointing: a batch that is computed twice and counted once."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from temperance.head.running import require_running_norms
from temperance.models.probe import unwrap

__all__ = ["update_once"]

_NAMES = ("running_mean", "running_var", "num_batches_tracked")
_HELD = "_held_statistics"
_ON = "_updates_once"


def update_once(model: nn.Module) -> tuple[str, ...]:
    """Let running statistics move once per batch also where gradient checkpointing is on, in place.

    Checkpointing runs a part of the model a second time in the backward pass, and a BatchNorm in it
    moves its running statistics a second time: momentum 0.1 becomes 0.19, and
    ``num_batches_tracked`` doubles. After this call, what runs inside a backward pass writes into
    copies, which are dropped. Outputs and gradients stay as they are.

    It works for ``torch.utils.checkpoint`` in both variants, however it is switched on
    (``set_grad_checkpointing`` of timm, ``gradient_checkpointing_enable`` of transformers). Under
    ``torch.compile`` it does nothing, and nothing is needed: there the graph counts once. Copies of
    the model keep it; calling it twice is the same as once.

    Args:
        model: the model.

    Returns:
        Names of the layers.

    Raises:
        NotFound: if there is no layer with running statistics.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> from torch.utils.checkpoint import checkpoint
        >>> from temperance.head import update_once
        >>> norm = nn.BatchNorm1d(4)
        >>> update_once(nn.Sequential(norm))
        ('0',)
        >>> checkpoint(norm, torch.randn(8, 4), use_reentrant=False).sum().backward()
        >>> norm.num_batches_tracked
        tensor(1)
    """
    fix = "Only BatchNorm and its like have any; leave this call out."
    norms = require_running_norms(unwrap(model), fix)
    for norm in norms.values():
        if not norm.__dict__.get(_ON):
            norm.register_forward_pre_hook(_hold)
            norm.register_forward_hook(_give_back, always_call=True)
            norm.__dict__[_ON] = True
    return tuple(norms)


# Functions of the module and no closures, so that copies of the model have hooks of their own.
def _hold(norm: nn.Module, _args: Any) -> None:
    """Inside a backward pass: put copies in the place of the statistics."""
    if torch.compiler.is_compiling() or torch._C._current_graph_task_id() == -1:
        return
    held = {n: b for n in _NAMES if (b := norm._buffers.get(n)) is not None}
    norm.__dict__[_HELD] = held
    norm._buffers.update({n: b.clone() for n, b in held.items()})


def _give_back(norm: nn.Module, _args: Any, _output: Any) -> None:
    """Put the statistics back, also where checkpointing breaks the second run off."""
    if not torch.compiler.is_compiling():
        norm._buffers.update(norm.__dict__.pop(_HELD, {}))
