"""The backward pass of a training step with the memory of one member."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from temperance.ensemble.loss import member_loss
from temperance.ensemble.members import Ensemble
from temperance.ensemble.prefix import record_prefix
from temperance.errors import InvalidInput
from temperance.models.outputs import call_model

__all__ = ["backward_each"]


def backward_each(
    ensemble: Ensemble,
    inputs: Any,
    *,
    targets: Tensor,
    loss: Callable[[Tensor, Tensor], Tensor] | None = None,
) -> Tensor:
    """Add up the gradients of ``mean_m loss(logits_m, targets)``, one member after the other.

    It equals the joint step ``member_loss(ensemble(inputs), targets).backward()`` under
    ``repeat``: the same gradients up to rounding, the same running statistics. What comes before
    the first member-specific layer runs once, forward and backward. Only one member's activations
    are in memory; where they are large, on a CPU above all, it is also the faster way.
    Random layers (dropout) draw for each member.

    Gradients go to ``parameter.grad`` as with ``backward``. Inside DistributedDataParallel, which
    counts on one backward pass for each forward pass, use the joint step.

    Args:
        ensemble: what ``convert`` gave, under protocol ``repeat``.
        inputs: of one batch: a tensor, a tuple of several, or a mapping as Hugging Face models take
            it, without labels; on the ensemble's device.
        targets: of all members, as ``member_loss`` takes them: class ids ``[B]`` or probabilities
            ``[B, C]``.
        loss: of one member: logits ``[B, C]`` and targets to a scalar, a mean over the rows;
            None for ``member_loss``, cross entropy. For a GradScaler, scale it here.

    Returns:
        The mean of the members' losses, without a gradient.

    Raises:
        InvalidInput: if it is no Ensemble, is under ``split`` in training (whose joint step is that
            of one model), or the loss is no scalar with a gradient.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> from temperance.ensemble import convert
        >>> from temperance.ensemble.step import backward_each
        >>> model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))
        >>> ensemble = convert(model, 4)
        >>> optimizer = torch.optim.SGD(ensemble.parameters(), lr=0.1)
        >>> y = torch.tensor([0, 1, 2, 0, 1])
        >>> mean = backward_each(ensemble, torch.randn(5, 4), targets=y)
        >>> optimizer.step()
    """
    _check(ensemble)
    with ensemble.member(0):
        prefix = record_prefix(ensemble, lambda: call_model(ensemble, inputs))
    total: Tensor | None = None
    for m in range(ensemble.members):
        with ensemble.member(m):
            if prefix is None:
                logits = call_model(ensemble, inputs)
            else:
                with prefix.serving():
                    logits = call_model(ensemble, inputs)
            own = member_loss(logits, targets) if loss is None else loss(logits[0], targets)
            own = _checked(own) / ensemble.members
            own.backward()  # here, for what a checkpoint computes anew is this member's, too
        total = own.detach() if total is None else total + own.detach()
    if prefix is not None:
        prefix.backward()
    assert total is not None
    return total


def _check(ensemble: Any) -> None:
    if not isinstance(ensemble, Ensemble):
        raise InvalidInput(
            "ensemble",
            expected="an Ensemble",
            found=f"a {type(ensemble).__name__}",
            fix="Convert the model with temperance.convert, or unwrap it.",
        )
    if ensemble.training and ensemble.protocol == "split":
        raise InvalidInput(
            "protocol in backward_each",
            expected="'repeat', where every member sees the whole batch",
            found="'split'",
            fix="Use member_loss(ensemble(x), ensemble.targets(y)).backward(): under 'split' it "
            "needs the memory of one model anyway.",
        )


def _checked(loss: Any) -> Tensor:
    if isinstance(loss, Tensor) and loss.dim() == 0 and loss.requires_grad:
        return loss
    shape = f"shape {list(loss.shape)}" if isinstance(loss, Tensor) else type(loss).__name__
    gradient = getattr(loss, "requires_grad", False) or not torch.is_grad_enabled()
    raise InvalidInput(
        "loss of a member",
        expected="a scalar tensor with a gradient",
        found=shape if gradient else f"{shape}, without a gradient",
        fix="Give a function of logits and targets such as torch.nn.functional.cross_entropy, and "
        "call backward_each with gradients enabled.",
    )
