"""What an ensemble is trained on: the mean of its members' losses, or the loss of their mean."""

from __future__ import annotations

import math
import numbers
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from temperance.errors import InvalidInput

__all__ = ["LOSSES", "member_loss"]

LOSSES = ("members", "mean")
IGNORED = -100
"""Targets that are left out: the default of ``torch.nn.functional.cross_entropy``."""


def member_loss(
    logits: Tensor,
    targets: Tensor,
    *,
    of: str = "members",
    label_smoothing: float = 0.0,
    weight: Tensor | None = None,
) -> Tensor:
    """Cross entropy of an ensemble, over all its members and rows.

    ``members``: ``mean_m mean_b -log p_mb[y]``, each member has to be right by itself;
    ``mean``: ``mean_b -log mean_m p_mb[y]``, they have to be right together. By Jensen's inequality
    the second is never above the first; it lets members leave rows to each other.

    Args:
        logits: ``[M, B, C]`` or ``[M, B, ..., C]``, as the ensemble gives them; computed in float32
            or wider, whatever they are.
        targets: for all members the same: class ids ``[B, ...]`` or probabilities ``[B, ..., C]``;
            or with an axis of the members in front, as ``ensemble.targets(y)`` gives them under
            either protocol. Class ids are whole numbers (-100: row left out), probabilities are
            floating.
        of: ``members`` or ``mean``. The latter needs members that see the same rows: not ``split``.
        label_smoothing: share of the target that goes to all classes alike, 0 to 1.
        weight: of each class, ``[C]``, as in ``cross_entropy``: class ids give a weighted mean.

    Returns:
        A scalar, in nats. Where each member has rows of its own that differ in weight, the mean is
        over all rows of all members.

    Raises:
        InvalidInput: if a shape, a type or an option does not fit; on the CPU also for class ids
            out of range or all left out, and for rows of targets that are no probabilities (on a
            GPU the check would wait for it).

    Example:
        >>> import torch
        >>> from temperance.ensemble import member_loss
        >>> logits = torch.tensor([[[0.0, 9.0]], [[9.0, 0.0]]])
        >>> y = torch.tensor([1])
        >>> [round(member_loss(logits, y, of=of).item(), 3) for of in ("members", "mean")]
        [4.5, 0.693]

    Reference:
        Mean of the members' losses: the usual one of implicit ensembles, sigmaN-Ens (arXiv
        2607.23860) among them. Loss of the mean against it: Jeffares, Liu, Crabbe, van der Schaar,
        "Joint training of deep ensembles fails due to learner collusion", 2023, arXiv 2301.11323.
    """
    _check_options(of, label_smoothing)
    z = _checked_logits(logits)
    n_classes = z.shape[-1]
    _check_weight(weight, n_classes)
    per_member = _has_members_axis(z, targets)
    targets = targets if targets.is_floating_point() else targets.long()
    _check_values(targets, n_classes)
    if of == "mean":
        _refuse_own_rows(targets, per_member)
        targets = targets[0] if per_member else targets
        z = _log_mean_probs(z)
    elif not per_member:
        targets = targets.expand(len(z), *targets.shape)
    soft = targets.is_floating_point()
    flat = targets.reshape(-1, n_classes).to(z.dtype) if soft else targets.reshape(-1)
    weight = None if weight is None else weight.to(z)
    return F.cross_entropy(
        z.reshape(-1, n_classes), flat, weight, label_smoothing=float(label_smoothing)
    )


def _log_mean_probs(z: Tensor) -> Tensor:
    """``log mean_m p_m``, its own log-softmax; finite where a probability rounds to 0.

    A class that all members exclude (-inf) stays excluded, without the NaN that the gradient of a
    logsumexp has there.
    """
    log_p = torch.log_softmax(z, dim=-1)
    pooled = torch.logsumexp(log_p.clamp(min=-1e30), dim=0) - math.log(len(z))
    return pooled.masked_fill(torch.isneginf(log_p).all(dim=0), -math.inf)


# ------------------------------------------------------------------ checks
def _check_options(of: Any, label_smoothing: Any) -> None:
    if of not in LOSSES:
        raise _invalid("of", " or ".join(LOSSES), repr(of), "Choose one of them.")
    real = isinstance(label_smoothing, numbers.Real) and not isinstance(label_smoothing, bool)
    if not real or not 0 <= float(label_smoothing) <= 1:
        raise _invalid("label_smoothing", "0 to 1", repr(label_smoothing), "0.1 is usual.")


def _checked_logits(logits: Any) -> Tensor:
    """Float32 or wider, with members, rows and classes."""
    if not isinstance(logits, Tensor) or not logits.is_floating_point():
        found = f"{logits.dtype}" if isinstance(logits, Tensor) else f"a {type(logits).__name__}"
        raise _invalid("logits", "a floating tensor", found, "Pass what the ensemble gives.")
    if logits.dim() < 3 or 0 in logits.shape:
        raise _invalid(
            "logits",
            "shape [members, batch, classes]",
            str(list(logits.shape)),
            "Pass what the ensemble gives; logits of one model [B, C] need logits.unsqueeze(0).",
        )
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


def _has_members_axis(z: Tensor, targets: Any) -> bool:
    """Whether targets come with an axis of the members; they fit, or it raises."""
    if not isinstance(targets, Tensor):
        raise _invalid("targets", "a tensor", f"a {type(targets).__name__}", "Convert them.")
    soft = targets.is_floating_point()
    own = z.shape if soft else z.shape[:-1]
    if targets.dtype == torch.bool or targets.is_complex() or targets.shape not in (own, own[1:]):
        kind = "probabilities" if soft else "class ids"
        raise _invalid(
            "targets",
            f"{kind} of shape {list(own[1:])} for all members, or {list(own)} for each, with "
            f"logits {list(z.shape)}",
            f"{targets.dtype} of shape {list(targets.shape)}",
            "ensemble.targets(y) gives them for either protocol; class ids are whole numbers, "
            "probabilities are floating.",
        )
    return targets.shape == own


def _check_values(targets: Tensor, n_classes: int) -> None:
    if targets.device.type != "cpu" or torch.compiler.is_compiling():
        return
    if targets.is_floating_point():
        sums = targets.detach().sum(dim=-1, dtype=torch.float32)
        if not bool(((sums - 1).abs() <= 1e-2).all()) or bool((targets < 0).any()):
            bad = sums.flatten()[(sums - 1).abs().flatten().argmax()].item()
            raise _invalid(
                "targets",
                "probabilities, rows of 0 or more that add up to 1",
                f"a sum of {bad:.4g}, or less than 0",
                "Class ids are whole numbers: use targets.long() if that is what they are.",
            )
        return
    wrong = ((targets < 0) & (targets != IGNORED)) | (targets >= n_classes)
    if bool(wrong.any()):
        found = f"{targets[wrong][0].item()}"
        raise _invalid("targets", f"class ids 0 to {n_classes - 1}", found, "Check the labels.")
    if bool((targets == IGNORED).all()):
        found = f"only {IGNORED}, whose loss would be NaN"
        raise _invalid("targets", "a row that is not left out", found, "Pass over such a batch.")


def _refuse_own_rows(targets: Tensor, per_member: bool) -> None:
    """The mean of members' probabilities is of one row; views that repeat one row are fine."""
    if not per_member or len(targets) == 1 or targets.stride(0) == 0:
        return
    if not torch.equal(targets, targets[:1].expand_as(targets)):
        raise _invalid(
            "targets with of='mean'",
            "the same rows for all members",
            "targets that differ between members, as under protocol 'split'",
            "Use of='members', or protocol='repeat'.",
        )


def _check_weight(weight: Any, n_classes: int) -> None:
    if weight is None:
        return
    if not isinstance(weight, Tensor) or weight.shape != (n_classes,):
        found = str(list(weight.shape)) if isinstance(weight, Tensor) else type(weight).__name__
        raise _invalid("weight", f"a tensor of {n_classes} classes", found, "Give one per class.")


def _invalid(subject: str, expected: str, found: str, fix: str) -> InvalidInput:
    return InvalidInput(subject, expected=expected, found=found, fix=fix)
