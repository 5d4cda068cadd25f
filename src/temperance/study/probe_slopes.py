"""Loss and slopes of a stack of probes by hand: two matrix products a step for all of them.

With normalized rows ``x``, the same for all heads since features are frozen, and
``z = (x * gamma + beta) @ W.T + b``, the slope of the loss in ``z`` is
``g = (softmax(z / T) - target) / (B * T)``, times T for the normalized loss. With ``G = g.T @ x``
and ``s`` the sum of ``g`` over the rows::

    dW = G * gamma + s beta^T        dgamma = sum over classes of W * G
    db = s                           dbeta  = sum over classes of W * s

so that gamma and beta cost no product of their own, and no slope in the features is needed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from temperance.study.probe_head import Heads
from temperance.study.probe_product import Product
from temperance.study.trial import Trial

__all__ = ["Losses", "losses_of", "nll_and_hits", "slope_and_nll", "slopes"]

_BITS = math.log2(math.e)  # exp(x) = 2 ** (_BITS * x); torch's exp2 is the faster by far


@dataclass(frozen=True, eq=False)
class Losses:
    """What tells the losses of R trials apart.

    Attributes:
        smoothing: label smoothing, ``[R, 1, 1]``.
        scale: factor of ``softmax - target`` in the slope, ``[R, 1, 1]``; 0 stops a trial.
        smooths: whether any trial smooths.
    """

    smoothing: Tensor
    scale: Tensor
    smooths: bool


def losses_of(trials: Sequence[Trial], *, batch_size: int) -> Losses:
    """Make the losses of trials: plain or normalized, with their smoothing.

    Args:
        trials: the trials.
        batch_size: rows of a batch.

    Returns:
        The losses.
    """
    factors = [1.0 if t.loss == "normalized" else 1 / t.temperature for t in trials]
    smoothing = [trial.smoothing for trial in trials]
    return Losses(
        smoothing=torch.tensor(smoothing, dtype=torch.float32).view(-1, 1, 1),
        scale=torch.tensor([f / batch_size for f in factors], dtype=torch.float32).view(-1, 1, 1),
        smooths=any(smoothing),
    )


def nll_and_hits(z: Tensor, y: Tensor, *, temperature: Tensor) -> tuple[Tensor, Tensor]:
    """Give the negative log-likelihood of rows in nats, and whether the label scores highest.

    Args:
        z: logits times T, ``[R, C, B]``; used up.
        y: class ids, ``[B]``.
        temperature: T, ``[R, 1, 1]``.

    Returns:
        NLL and hits, each ``[R, B]``.
    """
    at_label = _relative(z, y, temperature)
    nll = z.exp2_().sum(dim=1, keepdim=True).log_().sub_(at_label, alpha=1 / _BITS)
    return nll.squeeze(1), (at_label == 0).squeeze(1)


def slope_and_nll(
    z: Tensor, y: Tensor, *, temperature: Tensor, losses: Losses
) -> tuple[Tensor, Tensor]:
    """Give the slope of the losses in ``z``, and the negative log-likelihood in nats.

    The slope at the label is minus the sum of the other probabilities, which keeps its digits where
    the model is sure; ``p - 1`` would lose them.

    Args:
        z: logits times T, ``[R, C, B]``; becomes the slope.
        y: class ids, ``[B]``.
        temperature: T, ``[R, 1, 1]``.
        losses: the losses.

    Returns:
        Slope ``[R, C, B]`` and NLL ``[R, B]``.
    """
    at_label, place = _relative(z, y, temperature), y.expand(len(z), 1, -1)
    others = z.exp2_().scatter_(1, place, 0.0).sum(dim=1, keepdim=True)
    total = at_label.exp2().add_(others)
    z.mul_(losses.scale / total)
    z.scatter_(1, place, (losses.smoothing - others / total).mul_(losses.scale))
    if losses.smooths:
        z.sub_(losses.smoothing * losses.scale / z.shape[1])
    return z, total.log_().sub_(at_label, alpha=1 / _BITS).squeeze(1)


def _relative(z: Tensor, y: Tensor, temperature: Tensor) -> Tensor:
    """Turn logits times T in place into bits below the largest one; gives those of the label."""
    z.mul_(_BITS / temperature)
    z.sub_(z.amax(dim=1, keepdim=True))
    return z.gather(1, y.expand(len(z), 1, -1))


def slopes(heads: Heads, x: Tensor, g: Tensor, *, multiply: Product) -> tuple[Tensor, ...]:
    """Give the slopes of the losses in ``heads.parameters``, in that order.

    Args:
        heads: the heads.
        x: normalized rows of the batch, ``[B, M]``.
        g: slopes in the logits times T, ``[R, C, B]``.
        multiply: the product of matrices.

    Returns:
        New tensors of the shapes of the parameters.
    """
    weight = heads.weight
    product = multiply(g.view(-1, g.shape[2]), x.t()).view(weight.shape)
    total = g.sum(dim=2, keepdim=True)
    if heads.gamma is None or heads.beta is None:
        return product, total
    d_gamma = (weight * product).sum(dim=1, keepdim=True)
    d_beta = torch.bmm(total.transpose(1, 2), weight)
    d_weight = product.mul_(heads.gamma).addcmul_(total, heads.beta)
    return d_weight, total, d_gamma, d_beta
