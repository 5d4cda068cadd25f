"""AdaCos with a running scale: the T of a cosine head follows the angles of each training batch."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import torch
from torch import Tensor

from temperance.errors import InvalidInput
from temperance.head.cosine import CosineLinear
from temperance.head.temperature import MIN_TEMPERATURE, scale_gradient
from temperance.head.tempered import TemperedHead

__all__ = ["SCALE_BOUNDS", "adacos_scale", "adapt_scale"]

SCALE_BOUNDS = (0.1, 1 / MIN_TEMPERATURE)
"""Where the running scale is kept. The paper has no bounds; its formula falls below 0 where the
angles to the other classes are wide and the scale was large."""

_ID_TYPES = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


def adacos_scale(cosines: Tensor, targets: Tensor, scale: Tensor | float) -> Tensor:
    """Give the scale of the next step from the angles of a batch.

    ``s' = log(B_avg) / cos(min(pi / 4, theta_med))``, where ``B_avg`` is the mean over the rows of
    ``sum over the other classes j of exp(s cos_j)``, and ``theta_med`` the median angle between the
    rows and their own class. The paper starts at ``s = sqrt(2) ln(C - 1)``.

    Args:
        cosines: ``[n, C]``, between -1 and 1.
        targets: class ids, ``[n]``.
        scale: ``s`` of the step before.

    Returns:
        ``s'``, a scalar in float64 (float32 on devices without), not bounded; of an even number of
        rows, the median is the mean of the middle two.

    Raises:
        InvalidInput: if there are no rows, shapes differ, or a class id is out of range.

    Example:
        >>> import math, torch
        >>> from temperance.head import adacos_scale
        >>> cosines = torch.tensor([[0.9, 0.1, 0.0], [0.1, 0.8, -0.1]])
        >>> round(float(adacos_scale(cosines, torch.tensor([0, 1]), math.sqrt(2) * math.log(2))), 4)
        0.8442

    Reference:
        X. Zhang et al., "AdaCos: adaptively scaling cosine logits for effectively learning deep
        face representations", CVPR 2019, arXiv 1905.00292, section 4.3.
    """
    rows, own = _checked(cosines, targets, None)
    if not len(rows) or cosines.ndim != 2:
        raise _invalid("cosines", "one row or more, [n, C]", f"shape {list(cosines.shape)}")
    wide, own = _wide(rows).clamp(-1, 1), own[:, None]
    others = (wide * torch.as_tensor(scale, dtype=wide.dtype, device=wide.device)).scatter(
        1, own, -math.inf
    )
    log_b = others.flatten().logsumexp(0) - math.log(len(wide))
    angles = wide.gather(1, own).flatten().acos().sort().values
    median = (angles[(len(angles) - 1) // 2] + angles[len(angles) // 2]) / 2
    return log_b / median.clamp(max=math.pi / 4).cos()


def adapt_scale(
    head: TemperedHead, logits: Tensor, targets: Tensor, *, ignore_index: int = -100
) -> Tensor:
    """Move the T of a cosine head by a training batch, and give the batch's logits at the new T.

    One line between the model and the loss::

        logits = adapt_scale(head, model(x), y)
        loss = cross_entropy(logits, y)

    The head takes the new T at the end of the backward pass (at once where there will be none):
    until then it is part of a graph that may compute parts of the model again, as compiled and
    checkpointed ones do. In evaluation mode T stays and the logits come back as they are, so that
    one function can serve training and validation. T is the head's buffer: it is saved
    with the weights and logged by ``temperatures``. Under DistributedDataParallel each process
    measures its own rows, and the first one's T goes to all with the next forward pass; where
    buffers are not handed around, call ``equalize_statistics(model, how="broadcast")`` before
    evaluation.

    Args:
        head: a TemperedHead with ``norm="cosine"`` and a fixed T, started at
            ``1 / (sqrt(2) ln(C - 1))`` (the rule ``adacos``).
        logits: what the model gave for the batch with the head's T, ``[..., C]``.
        targets: class ids, ``[...]``.
        ignore_index: rows with this target are left out of the measurement.

    Returns:
        The logits at the new T; the gradient flows through them, not through T.

    Raises:
        InvalidInput: if the head is no cosine head, its T is learned, there are two classes (the
            formula is undefined there), shapes differ, or a class id is out of range.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> from temperance.head import adapt_scale, insert
        >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
        >>> head = insert(model, 1.02, norm="cosine")
        >>> x, y = torch.randn(6, 4), torch.tensor([0, 1, 2, 0, 1, 2])
        >>> before = model(x)
        >>> logits = adapt_scale(head, before, y)
        >>> nn.functional.cross_entropy(logits, y).backward()
        >>> torch.testing.assert_close(logits * head.temperature, before * 1.02)

    Reference:
        arXiv 1905.00292, as ``adacos_scale``. T is kept within 1 / ``SCALE_BOUNDS``.
    """
    _check_head(head)
    if not head.training:
        return logits
    rows, own = _checked(logits, targets, ignore_index, classes=head.out_features)
    if not len(rows):
        return logits
    before = head.temperature.detach().clone()
    with torch.no_grad():
        now = 1 / _wide(before)
        scale = adacos_scale(_wide(rows) / now, own, now)
        scale = torch.where(torch.isfinite(scale), scale.clamp(*SCALE_BOUNDS), now)
        ratio = (scale / now).to(logits.dtype)
    if head.gradient_compensation:  # it was made for the T before
        logits = scale_gradient(logits, 1 / ratio)
    logits = logits * ratio
    if logits.requires_grad:
        logits.register_hook(partial(_after_backward, head, 1 / scale))
    else:
        _move(head, 1 / scale)
    return logits


def _after_backward(head: TemperedHead, temperature: Tensor, _gradient: Tensor) -> None:
    """Within the backward pass: move T when it is through (DistributedDataParallel's own way)."""
    done = partial(_move, head, temperature)
    torch.autograd.Variable._execution_engine.queue_callback(done)


def _move(head: TemperedHead, temperature: Tensor) -> None:
    with torch.no_grad():
        head.temperature.copy_(temperature)


def _check_head(head: Any) -> None:
    cosine = isinstance(head, TemperedHead) and isinstance(head.linear, CosineLinear)
    found = (
        f"a {type(head).__name__}" if not isinstance(head, TemperedHead)
        else f"norm={head.norm_kind!r}" if not cosine
        else "a learned T" if head.learned is not None
        else "two classes, for which its formula is undefined" if head.out_features == 2
        else None
    )  # fmt: skip
    if found is not None:
        raise InvalidInput(
            "head for AdaCos",
            expected="a TemperedHead with norm='cosine', a fixed T and three classes or more",
            found=found,
            fix="Pass what insert(model, T, norm='cosine') returned.",
        )


def _wide(x: Tensor) -> Tensor:
    return x.float() if x.device.type == "mps" else x.double()


def _checked(
    logits: Any, targets: Any, ignore_index: int | None, *, classes: int | None = None
) -> tuple[Tensor, Tensor]:
    """Rows and their class ids, without the ignored ones."""
    floats = isinstance(logits, Tensor) and logits.ndim > 0 and logits.is_floating_point()
    if not floats or classes not in (None, logits.shape[-1]):
        wanted = f"a tensor of floating type, [..., {classes or 'C'}]"
        raise _invalid("logits", wanted, _kind(logits))
    shape, ids = list(logits.shape[:-1]), isinstance(targets, Tensor)
    if not ids or list(targets.shape) != shape or targets.dtype not in _ID_TYPES:
        raise _invalid("targets", f"class ids of shape {shape}", _kind(targets))
    rows, own = logits.detach().reshape(-1, logits.shape[-1]), targets.reshape(-1).long()
    if ignore_index is not None:
        kept = own != ignore_index
        rows, own = rows[kept], own[kept]
    bad = (own < 0) | (own >= rows.shape[1])
    if bool(bad.any()):
        raise InvalidInput(
            "targets",
            expected=f"class ids from 0 to {rows.shape[1] - 1}",
            found=str(int(own[bad][0])),
            fix="Map labels to ids, or pass ignore_index for those to leave out.",
        )
    return rows, own


def _kind(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"{value.dtype} of shape {list(value.shape)}"
    return f"a {type(value).__name__}"


def _invalid(subject: str, expected: str, found: str) -> InvalidInput:
    fix = "Give logits of one row, and one class id, for each example of the batch."
    return InvalidInput(subject, expected=expected, found=found, fix=fix)
