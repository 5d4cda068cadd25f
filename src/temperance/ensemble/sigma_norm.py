"""A normalization layer whose scale, and for BatchNorm whose statistics, are a member's own.

``y_m = weight * sigmoid(gamma_m) * norm_m(x) + bias``, with ``weight`` and ``bias`` shared by all
members. The paper has neither (1 and 0); they are there so that a trained layer can be turned into
this one without changing what it computes, whatever the sign of its scale.

Reference:
    "Controllable diversity in normalization-based implicit ensembles via softmax-temperature
    modulation" (sigmaN-Ens), arXiv 2607.23860; predecessor TS-sigma-BN, arXiv 2512.20420. The
    shared ``weight`` and ``bias`` are our own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch.nn.modules._functions import SyncBatchNorm as SyncFunction

from temperance.ensemble.rows import Layout, Rows, unfold
from temperance.errors import InvalidInput

__all__ = ["KINDS", "NormFacts", "SigmaNorm", "sigma_norms"]

KINDS = ("batch", "layer", "group", "rms")


@dataclass(frozen=True)
class NormFacts:
    """What a normalization layer computes, apart from its affine part.

    Attributes:
        kind: ``batch``, ``layer``, ``group`` or ``rms``.
        shape: of its scale; ``(C,)``, or several axes for a LayerNorm over several.
        eps: added to the variance; None for RMSNorm's own default (the smallest of the dtype).
        channel_axis: of the input: 1, or -1 for the last (as many as ``shape`` has).
        num_groups: for ``group``.
        momentum: for ``batch``: share of the newest batch in the running statistics; None for the
            plain mean of all batches.
        sync: for ``batch``: whether processes share their batch statistics, as in SyncBatchNorm.
        process_group: for ``sync``; None for all processes.
        offset: what the plain layer adds to its weight: 1 in Gemma's RMSNorm, else 0.
    """

    kind: str
    shape: tuple[int, ...]
    eps: float | None = 1e-5
    channel_axis: int = 1
    num_groups: int = 1
    momentum: float | None = 0.1
    sync: bool = False
    process_group: Any = None
    offset: float = 0.0

    @property
    def num_features(self) -> int:
        """C, the number of scales."""
        return torch.Size(self.shape).numel()


class SigmaNorm(nn.Module):
    """Member-specific normalization: ``y_m = weight * sigmoid(gamma_m) * norm_m(x) + bias``.

    Args:
        facts: what is normalized, and how.
        rows: the pass, one object for all layers of an ensemble; or M for a layer of its own.
        affine: whether ``weight`` and ``bias`` are trained (they were in the layer that this one
            stands for), or stay as they are (the paper's form: 1 and 0).
        bias: with ``affine``: whether the shift is trained, too; else it stays 0.

    Shapes:
        Input ``[B * M, ...]``, rows ``b * M + m``; where ``expands`` is set and the pass expands,
        ``[B, ...]``, which becomes ``[B * M, ...]`` here. With ``rows.active = m`` the rows are
        member m's: ``[B, ...]`` gives ``[B, ...]``.

    Attributes:
        gamma: ``[M, C]``; the importance of a feature for a member is ``sigmoid(gamma)``.
        weight: ``[C]``, shared.
        bias: ``[C]``, shared.
        running_mean: ``[M, C]``, for ``batch``; ``running_var`` likewise.
        num_batches_tracked: ``[M]``, for ``batch``.
        expands: whether this layer is where one copy of the rows becomes M.
        layout: where the rows are in its input.
        drop: what timm's layers do behind the norm, or None; ``act`` likewise.
        template: the layer that this one stands for, without its values; None if there is none.

    Raises:
        InvalidInput: for fewer than one member, or an unknown kind.

    Example:
        >>> import torch
        >>> norm = SigmaNorm(NormFacts("batch", (8,)), 4)
        >>> norm(torch.randn(10 * 4, 8)).shape, norm.importance().shape
        (torch.Size([40, 8]), torch.Size([4, 8]))
    """

    gamma: nn.Parameter
    weight: Tensor
    bias: Tensor
    running_mean: Tensor | None
    running_var: Tensor | None
    num_batches_tracked: Tensor | None
    drop: nn.Module | None
    act: nn.Module | None

    def __init__(
        self, facts: NormFacts, rows: Rows | int, *, affine: bool = False, bias: bool = True
    ) -> None:
        super().__init__()
        rows = Rows(rows) if isinstance(rows, int) else rows
        if rows.members < 1 or facts.kind not in KINDS:
            raise InvalidInput(
                "SigmaNorm",
                expected=f"one member or more, and a kind among {', '.join(KINDS)}",
                found=f"{rows.members} members, kind {facts.kind!r}",
                fix="Use temperance.convert on a whole model.",
            )
        self.facts, self.rows, self.members = facts, rows, rows.members
        self.expands, self.layout = False, Layout()
        self.template: tuple[nn.Module, ...] = ()
        self.drop = self.act = None  # a module that is put there is registered
        size, members = facts.num_features, rows.members
        self.gamma = nn.Parameter(torch.zeros(members, size))
        for name, start, trained in (
            ("weight", torch.ones(size), affine),
            ("bias", torch.zeros(size), affine and bias),
        ):
            if trained:
                self.register_parameter(name, nn.Parameter(start))
            else:
                self.register_buffer(name, start)
        batch = facts.kind == "batch"
        self.register_buffer("running_mean", torch.zeros(members, size) if batch else None)
        self.register_buffer("running_var", torch.ones(members, size) if batch else None)
        counts = torch.zeros(members, dtype=torch.long) if batch else None
        self.register_buffer("num_batches_tracked", counts)

    def importance(self) -> Tensor:
        """Give ``sigmoid(gamma)``, ``[M, C]``: how much of a feature a member lets through."""
        return torch.sigmoid(self.gamma)

    def scales(self) -> Tensor:
        """Give ``weight * sigmoid(gamma)``, ``[M, C]``."""
        return self.weight * self.importance()

    def forward(self, input: Tensor) -> Tensor:
        """Normalize every member's rows by its own statistics and scale."""
        if self.rows.active is not None or self.members == 1:
            y = self._alone(input, self.rows.active or 0)
        elif self.expands and self.rows.expanding:
            y = self._expanded(input)
        else:
            y = self._together(input)
        y = y if self.drop is None else self.drop(y)
        return y if self.act is None else self.act(y)

    def extra_repr(self) -> str:
        """Say what is normalized in one line."""
        f = self.facts
        return f"{f.kind}, {f.num_features} features, members={self.members}, eps={f.eps}"

    # ---------------------------------------------------------------- the three ways
    def _alone(self, x: Tensor, member: int) -> Tensor:
        """One member: the plain layer with that member's scale and statistics."""
        f, scale = self.facts, self.weight * torch.sigmoid(self.gamma[member])
        if f.kind == "batch":
            return self._batch_norm(x, scale, self.bias, slice(member, member + 1))
        scale, bias = scale.to(x.dtype), self.bias.to(x.dtype)
        if f.kind == "group":
            return F.group_norm(x, f.num_groups, scale, bias, f.eps or 0.0)
        return self._over_features(x, scale.view(f.shape), bias.view(f.shape))

    def _together(self, x: Tensor) -> Tensor:
        """All members on rows of their own."""
        f, m = self.facts, self.members
        if f.kind in ("layer", "rms"):
            return self._over_features(x, single=False)
        wide = unfold(x, self.rows, self.layout)  # [B, M, k, C, ...]
        batch, _, each = wide.shape[:3]
        if each > 1:
            wide = wide.movedim(2, 1).flatten(0, 1)
            wide = wide.flatten(1, 2)
        else:
            wide = wide.flatten(1, 3)
        scale, bias = self.scales().reshape(-1), self.bias.repeat(m)
        if f.kind == "batch":
            y = self._batch_norm(wide, scale, bias, slice(None))
        else:
            scale, bias = scale.to(x.dtype), bias.to(x.dtype)
            y = F.group_norm(wide, m * f.num_groups, scale, bias, f.eps or 0.0)
        if each == 1:
            return _reshaped(y, x.shape)
        y = y.unflatten(1, (m, -1))
        y = y.unflatten(0, (batch, each)).movedim(1, 2).flatten(1, 2)
        return y.flatten(0, 1)

    def _expanded(self, x: Tensor) -> Tensor:
        """One copy of the rows: normalized once where all members share it, scaled M times."""
        f = self.facts
        if f.kind in ("layer", "rms"):
            return self._over_features(x, single=True)
        if f.kind == "group":
            return self._scaled(F.group_norm(x, f.num_groups, None, None, f.eps or 0.0))
        if self.training and _world(f) == 1:
            return self._scaled(self._by_shared_statistics(x))
        if self.training:
            wide = unfold(x, self.rows, self.layout, single=True)
            return self._together(wide.repeat_interleave(self.members, 1).flatten(0, 2))
        assert self.running_mean is not None
        assert self.running_var is not None
        mean = self.running_mean
        if x.dtype in (torch.float16, torch.bfloat16):  # too coarse to take a large mean away later
            centre = mean.mean(0)
            x = (x - centre.view(-1, *(1,) * (x.dim() - 2))).to(x.dtype)
            mean = mean - centre
        scale = self.scales() * torch.rsqrt(self.running_var + (f.eps or 0.0))
        return self._affine(x, scale, self.bias - mean * scale, last=False)

    # ---------------------------------------------------------------- LayerNorm, RMSNorm
    def _over_features(
        self,
        x: Tensor,
        scale: Tensor | None = None,
        bias: Tensor | None = None,
        *,
        single: bool = False,
    ) -> Tensor:
        """Normalize over the feature axes, moved to the end; with one scale, or the members'."""
        f = self.facts
        moved = x if f.channel_axis == -1 else x.movedim(f.channel_axis, -1)
        if f.kind == "layer":
            y = F.layer_norm(moved, f.shape, scale, bias, f.eps or 0.0)
        else:
            y = F.rms_norm(moved, f.shape, scale, f.eps)
            y = y if bias is None else y + bias
        if scale is None:
            y = self._affine(y, self.scales(), self.bias, last=True, single=single)
        return y if f.channel_axis == -1 else y.movedim(-1, f.channel_axis)

    def _scaled(self, x: Tensor) -> Tensor:
        return self._affine(x, self.scales(), self.bias, last=False)

    def _affine(
        self, x: Tensor, scale: Tensor, bias: Tensor, *, last: bool, single: bool = True
    ) -> Tensor:
        """Scale and shift each member's rows; ``x`` has all rows, or one copy to expand."""
        axis, shape = self.layout.axis, self.facts.shape
        wide = unfold(x, self.rows, self.layout, single=single)
        ones = (1,) * (x.dim() - axis - 1 - len(shape))
        tail = (*ones, *shape) if last else (*shape, *ones)
        scale = scale.to(x.dtype).view(-1, 1, *tail)
        bias = bias.to(x.dtype).view(-1, 1, *tail)
        y = torch.addcmul(bias, wide, scale)
        return _reshaped(y, (*x.shape[:axis], -1, *x.shape[axis + 1 :]))

    # ---------------------------------------------------------------- BatchNorm
    def _batch_norm(self, x: Tensor, scale: Tensor, bias: Tensor, part: slice) -> Tensor:
        """The native BatchNorm over the channels of the members in ``part``."""
        mean, var = self._running(part)
        if not self.training:
            return F.batch_norm(x, mean, var, scale, bias, False, 0.0, self.facts.eps or 0.0)
        step = self._step(part)
        if not isinstance(step, Tensor):
            return self._with_batch_statistics(x, mean, var, scale, bias, step)
        new_mean, new_var = torch.zeros_like(mean), torch.ones_like(var)
        y = self._with_batch_statistics(x, new_mean, new_var, scale, bias, 1.0)
        step = step.to(mean.dtype).repeat_interleave(self.facts.num_features)
        mean.lerp_(new_mean, step)
        var.lerp_(new_var, step)
        return y

    def _with_batch_statistics(
        self,
        x: Tensor,
        mean: Tensor,
        var: Tensor,
        scale: Tensor | None,
        bias: Tensor | None,
        step: float,
    ) -> Tensor:
        f, eps, world = self.facts, self.facts.eps or 0.0, _world(self.facts)
        if world == 1:
            return F.batch_norm(x, mean, var, scale, bias, True, step, eps)
        group = f.process_group or torch.distributed.group.WORLD
        y: Tensor = SyncFunction.apply(x, scale, bias, mean, var, eps, step, group, world)
        return y

    def _by_shared_statistics(self, x: Tensor) -> Tensor:
        """Normalize one copy of the rows: all members see the same ones here."""
        mean, var = self._running(slice(None))
        size = self.facts.num_features
        new_mean, new_var = mean.new_zeros(size), var.new_ones(size)
        y = F.batch_norm(x, new_mean, new_var, None, None, True, 1.0, self.facts.eps or 0.0)
        step = self._step(slice(None))
        if isinstance(step, Tensor):
            step = step.to(mean.dtype).repeat_interleave(size)
        mean.lerp_(new_mean.repeat(self.members), step)
        var.lerp_(new_var.repeat(self.members), step)
        return y

    def _running(self, part: slice) -> tuple[Tensor, Tensor]:
        """Flat views of the running statistics of some members."""
        assert self.running_mean is not None
        assert self.running_var is not None
        return self.running_mean[part].view(-1), self.running_var[part].view(-1)

    def _step(self, part: slice) -> float | Tensor:
        """Count the batch; give its share in the running statistics (of each member, if a mean)."""
        assert self.num_batches_tracked is not None
        counts = self.num_batches_tracked[part]
        counts.add_(1)
        return 1.0 / counts if self.facts.momentum is None else self.facts.momentum


def sigma_norms(model: nn.Module) -> dict[str, SigmaNorm]:
    """Every SigmaNorm of a model, by dotted name, in the order of registration."""
    return {n: m for n, m in model.named_modules() if isinstance(m, SigmaNorm)}


def _reshaped(y: Tensor, shape: Sequence[int]) -> Tensor:
    """A result that nobody else holds, in another shape.

    No view for autograd: what a model does in place to it (ReLU, the sum of a residual branch)
    would otherwise cost three copies of the gradient each.
    """
    if not y.is_contiguous():
        return y.reshape(shape)
    result: Tensor = torch.ops.aten._unsafe_view(y, shape)
    return result


def _world(facts: NormFacts) -> int:
    """Processes that share batch statistics."""
    distributed = torch.distributed
    if not facts.sync or not distributed.is_available() or not distributed.is_initialized():
        return 1
    return int(distributed.get_world_size(facts.process_group or distributed.group.WORLD))
