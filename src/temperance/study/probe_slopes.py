"""Loss and slopes of a stack of probes by hand: two matrix products a step for all of them.

With normalized rows ``x``, the same for all heads since features are frozen, and
``z = ((x * gamma + beta) @ W.T + b) / T``, the slope of the loss in ``z * T`` is
``g = (softmax(z) - target) / (B * T)``, times T for the normalized loss. With ``G = g.T @ x`` and
``s`` the sum of ``g`` over the rows::

    dW = G * gamma + s beta^T        dgamma = sum over classes of W * G
    db = s                           dbeta  = sum over classes of W * s

so that gamma and beta cost no product of their own, and no slope in the features is needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from temperance.study.probe_head import Heads
from temperance.study.probe_product import Product
from temperance.study.trial import Trial

__all__ = ["Losses", "losses_of", "probs_and_nll", "slope", "slopes"]

_SAFE = 1e-30  # probabilities above it have all digits; float32 loses them below 1.2e-38


@dataclass(frozen=True, eq=False)
class Losses:
    """What tells the losses of R trials apart.

    The target of a class is ``1 - smoothing + spread`` for the label, ``spread`` for the others.

    Attributes:
        minus_keep: smoothing - 1, ``[R, 1, 1]``.
        spread: smoothing / C, ``[R, 1, 1]``; None if no trial smooths.
        scale: factor of the slope in ``z * T``, ``[R, 1, 1]``; 0 stops a trial.
    """

    minus_keep: Tensor
    spread: Tensor | None
    scale: Tensor


def losses_of(trials: Sequence[Trial], *, n_classes: int, batch_size: int) -> Losses:
    """Make the losses of trials: plain or normalized, with their smoothing.

    Args:
        trials: the trials.
        n_classes: C.
        batch_size: rows of a batch.

    Returns:
        The losses.
    """
    smoothing = torch.tensor([trial.smoothing for trial in trials], dtype=torch.float64)
    temperature = torch.tensor([trial.temperature for trial in trials], dtype=torch.float64)
    plain = torch.tensor([trial.loss == "plain" for trial in trials])
    scale = torch.where(plain, 1 / temperature, 1.0) / batch_size
    return Losses(
        minus_keep=(smoothing - 1).float().view(-1, 1, 1),
        spread=(smoothing / n_classes).float().view(-1, 1, 1) if smoothing.any() else None,
        scale=scale.float().view(-1, 1, 1),
    )


def probs_and_nll(z: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Give softmax and negative log-likelihood in nats, from one pass of exponentials.

    ``-log p[y]``, or where that is not safe ``max(z) - log(max p) - z[y]``: the largest probability
    is at least 1/C, however small T is.

    Args:
        z: logits divided by T, ``[R, C, B]``.
        y: class ids, ``[B]``.

    Returns:
        Probabilities ``[R, C, B]`` and NLL ``[R, B]``.
    """
    p = torch.softmax(z, dim=1)
    place = y.expand(z.shape[0], 1, -1)
    at_label = p.gather(1, place).squeeze(1)
    if float(at_label.min()) > _SAFE:
        return p, at_label.log_().neg_()
    log_top = p.amax(dim=1).log_()
    return p, (z.amax(dim=1) - z.gather(1, place).squeeze(1)).sub_(log_top)


def slope(p: Tensor, y: Tensor, *, losses: Losses) -> Tensor:
    """Turn probabilities into the slope of the losses in ``z * T``, in place.

    Args:
        p: probabilities, ``[R, C, B]``.
        y: class ids, ``[B]``.
        losses: the losses.

    Returns:
        ``[R, C, B]``.
    """
    p.scatter_add_(1, y.expand(len(p), 1, -1), losses.minus_keep.expand(-1, 1, len(y)))
    if losses.spread is not None:
        p.sub_(losses.spread)
    return p.mul_(losses.scale)


def slopes(heads: Heads, x: Tensor, g: Tensor, *, multiply: Product) -> tuple[Tensor, ...]:
    """Give the slopes of the losses in ``heads.parameters``, in that order.

    Args:
        heads: the heads.
        x: normalized rows of the batch, ``[B, M]``.
        g: slopes in ``z * T``, ``[R, C, B]``.
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
