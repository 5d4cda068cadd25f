"""Packed-Ensembles: M narrow nets side by side, as one net of grouped layers.

Reference:
    O. Laurent et al., "Packed-Ensembles for efficient uncertainty estimation", ICLR 2023, arXiv
    2210.09184, section 3 and appendix; the authors' code is torch-uncertainty's
    ``layers/packed.py``.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from temperance.ensemble.measure import run_call
from temperance.ensemble.packed_layers import GroupedLayerNorm, GroupedLinear
from temperance.ensemble.rival_layers import (
    check_number,
    check_whole,
    copied,
    first_layer,
    output_layer,
    seeded,
)
from temperance.ensemble.rows import walk
from temperance.errors import InvalidInput
from temperance.models.outputs import logits_of
from temperance.models.probe import evaluating, probe_logits, replace_module

__all__ = ["Packed", "packed", "packed_width"]

# Allowed difference, of the largest logit; without mixing there is none but rounding (TF32).
_TOLERANCE = {torch.float64: 1e-8, torch.float32: 1e-3}
_FEW = 3  # rows


class Packed(nn.Module):
    """M subnets in one net of grouped layers; member m owns the m-th part of every layer.

    Args:
        backbone: the packed net, which gives ``[B, M K]``.
        members: M.

    Attributes:
        output_key: which entry of the model's output holds the logits, see ``logits_of``.
    """

    def __init__(self, backbone: nn.Module, members: int) -> None:
        super().__init__()
        self.backbone, self.members = backbone, members
        self.output_key: str | int | None = None
        self._checked = members == 1
        self.training = backbone.training

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        """Give logits ``[M, B, K]``.

        Raises:
            InvalidInput: if the model gives another number of rows; or, at the first call, if the
                logits of a member depend on the weights of the others.
        """
        if not self._checked:
            if torch.compiler.is_compiling():  # no decorator: it would import the compiler at once
                torch.compiler.disable(self._check)(args, kwargs)
            else:
                self._check(args, kwargs)
        logits = logits_of(run_call(self.backbone, (args, kwargs)), key=self.output_key)
        rows = len(args[0]) if args else len(next(iter(kwargs.values())))
        if len(logits) != rows:
            raise InvalidInput(
                "logits of the model",
                expected=f"{rows} rows",
                found=f"{len(logits)}",
                fix="The model may not reshape by numbers of its own: its layers are wider now.",
            )
        return logits.unflatten(-1, (self.members, -1)).movedim(-2, 0)

    def targets(self, y: Tensor) -> Tensor:
        """Give the targets ``[M, B, ...]`` that belong to the logits of a forward."""
        return y.expand(self.members, *y.shape)

    def extra_repr(self) -> str:
        """Show the members in the printed model."""
        return f"members={self.members}"

    def _check(self, args: Any, kwargs: Any) -> None:
        """Change the weights of the others, on a few rows: a member's logits must stay."""

        def few(_path: str, x: Tensor) -> Tensor:
            return x.detach()[:_FEW] if x.dim() > 0 and len(x) == rows else x

        rows = len(args[0]) if args else len(next(iter(kwargs.values())))
        args, kwargs = walk(args, few, "args"), walk(kwargs, few, "kwargs")
        self._checked = True  # so that the runs below are not checked themselves
        try:
            with evaluating(self), torch.no_grad():
                logits = self(*args, **kwargs)
                for m in range(self.members):
                    weights = {
                        name: _others_changed(weight, m, self.members)
                        for name, weight in self.named_parameters()
                    }
                    changed = functional_call(self, weights, args, kwargs)
                    worst = float((changed[m] - logits[m]).abs().max())
                    if worst > _TOLERANCE.get(logits.dtype, 1e-2) * float(logits[m].abs().max()):
                        raise _mixed(m, worst)
        except Exception:
            self._checked = False
            raise


def packed_width(width: int, members: int, *, alpha: float = 2.0, gamma: int = 1) -> int:
    """Give the width of a packed layer: ``alpha * width``, up to the next multiple of M gamma.

    Args:
        width: of the model's layer.
        members: M.
        alpha: how much wider all members together are than the model.
        gamma: groups inside of each member.

    Returns:
        The width, so that every member and every group has the same share.

    Example:
        >>> packed_width(64, 4), packed_width(10, 4)
        (128, 20)
        >>> packed_width(64, 4, alpha=1.5, gamma=2), packed_width(9, 4)
        (96, 20)
    """
    step = members * gamma
    return math.ceil(alpha * width / step - 1e-9) * step


def packed(
    model: nn.Module,
    members: int,
    *,
    alpha: float = 2.0,
    gamma: int = 1,
    seed: int = 0,
    example: Any = None,
) -> Packed:
    """Make Packed-Ensembles out of a model; the model stays as it is, its weights are NOT kept.

    Every layer of D features gets ``packed_width(D)`` ones: ``alpha D``, rounded up to a multiple
    of ``M gamma``. Convolutions and linear layers have ``M gamma`` groups; the first layer has one
    (all members read the whole input), the output layer M. BatchNorm is widened; GroupNorm has M
    times the groups; LayerNorm becomes each member's own. An inner layer has
    ``alpha^2 / (M gamma)`` times the parameters and the work of the model's.

    Train it by ``repeat``, which costs nothing more here: every member sees the whole batch, the
    loss is the mean of the members'.

    Args:
        model: a model of Linear, Conv, BatchNorm, GroupNorm and LayerNorm; parameters anywhere else
            are refused. Only these layers may mix features: attention, whose heads would be cut
            out of several members, is refused by the run with ``example``, or the first forward.
        members: M, 1 or more.
        alpha: how much wider all members together are than the model; 2 in the authors' code.
        gamma: groups inside of each member; 1 in the authors' code.
        seed: of the new weights, which are drawn as the classes of the layers draw them.
        example: one batch, to find the output layer where the structure does not show it, and to
            try the new net.

    Returns:
        The ensemble; with ``members``, ``alpha`` and ``gamma`` of 1 the model itself, with its
        weights.

    Raises:
        NotFound: if the model has no layers with weights, or no output layer is found.
        InvalidInput: if an argument is out of range; for layers that cannot be packed (named); if
            the packed net does not run, or mixes the members (with ``example``).

    Example:
        >>> import torch
        >>> from torch import nn
        >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)).eval()
        >>> packed(model, 4)(torch.zeros(5, 4)).shape
        torch.Size([4, 5, 3])

    Reference:
        O. Laurent et al., ICLR 2023, arXiv 2210.09184, section 3. The authors' code
        refuses widths that do not divide (older releases rounded them up, as here), and lowers
        gamma where a group would have fewer than 64 channels; here gamma is what it says.
    """
    members, gamma = check_whole("members", members, 1), check_whole("gamma", gamma, 1)
    alpha, seed = check_number("alpha", alpha, 0), check_whole("seed", seed, 0)
    if alpha == 0:
        raise _cannot("alpha", "0", expected="more than 0", fix="The paper takes 2.")
    backbone = copied(model)
    head = output_layer(backbone, example).name
    first = first_layer(backbone)[0]
    if first == head:
        raise _cannot("model", "its output layer alone", expected="a hidden layer", fix="Add one.")
    if (members, alpha, gamma) != (1, 1.0, 1):
        packing = _Packing(members, alpha, gamma, first, head)
        parts = _parts(backbone)
        with seeded(seed):
            made = [(old, _packed_layer(name, old, packing)) for name, old in parts.items()]
        for old, new in made:
            replace_module(backbone, old, _like(new, old))
    ensemble = Packed(backbone, members)
    if example is not None:
        _try(ensemble, example)
        ensemble._checked = members == 1  # zeros may show nothing: again on the first batch
    return ensemble


# ------------------------------------------------------------------ one layer for another
class _Packing:
    """The settings, and the widths that follow."""

    def __init__(self, members: int, alpha: float, gamma: int, first: str, head: str) -> None:
        self.members, self.alpha, self.gamma = members, alpha, gamma
        self.first, self.head = first, head

    def width(self, features: int) -> int:
        return packed_width(features, self.members, alpha=self.alpha, gamma=self.gamma)


_CONVS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
_PACKED = (nn.Linear, *_CONVS, *_BATCH_NORMS, nn.GroupNorm, nn.LayerNorm)


def _parts(model: nn.Module) -> dict[str, nn.Module]:
    """The layers to pack; everything else must have no parameters or buffers."""
    parts, others = {}, []
    for name, module in model.named_modules():
        own = [k for k, v in (*module._parameters.items(), *module._buffers.items())
               if v is not None]  # fmt: skip
        if type(module) in _PACKED:
            parts[name] = module
        elif own or isinstance(module, _PACKED):
            kind = ": ".join([type(module).__name__, *own[:2]])
            others.append(f"{name or 'the model'} ({kind})")
    if others:
        raise _cannot(
            "model",
            ", ".join(others[:4]),
            expected="parameters in Linear, Conv, BatchNorm, GroupNorm and LayerNorm only",
            fix="Choose a model of these layers.",
        )
    return parts


def _packed_layer(name: str, old: nn.Module, packing: _Packing) -> nn.Module:
    """The packed layer, new weights, on the CPU."""
    m, width = packing.members, packing.width
    if isinstance(old, nn.Linear):
        return _packed_linear(name, old, packing)
    if isinstance(old, _CONVS):
        return _packed_conv(name, old, packing)
    if isinstance(old, _BATCH_NORMS):
        return type(old)(
            width(old.num_features),
            eps=old.eps,
            momentum=old.momentum,
            affine=old.affine,
            track_running_stats=old.track_running_stats,
        )
    if isinstance(old, nn.GroupNorm):
        channels = width(old.num_channels)
        if channels % (m * old.num_groups):
            raise _cannot(
                f"norm {name!r}",
                f"{channels} packed channels, {m} members with {old.num_groups} groups",
                expected="channels that divide among the groups of all members",
                fix="Choose another alpha, or fewer groups in the model.",
            )
        return nn.GroupNorm(m * old.num_groups, channels, eps=old.eps, affine=old.affine)
    assert isinstance(old, nn.LayerNorm)
    if len(old.normalized_shape) > 1 or (old.elementwise_affine and old.bias is None):
        raise _cannot(
            f"norm {name!r}",
            f"{old}",
            expected="a LayerNorm over one axis, with scale and shift or neither",
            fix="Choose a model that has such ones.",
        )
    return GroupedLayerNorm(
        width(old.normalized_shape[0]), groups=m, eps=old.eps, affine=old.elementwise_affine
    )


def _packed_linear(name: str, old: nn.Linear, packing: _Packing) -> nn.Module:
    bias = old.bias is not None
    if name == packing.head:
        outside = old.out_features * packing.members
        inside = packing.width(old.in_features)
        return GroupedLinear(inside, outside, groups=packing.members, bias=bias)
    outside = packing.width(old.out_features)
    if name == packing.first:
        return nn.Linear(old.in_features, outside, bias=bias)
    inside, groups = packing.width(old.in_features), packing.members * packing.gamma
    return GroupedLinear(inside, outside, groups=groups, bias=bias)


def _packed_conv(name: str, old: Any, packing: _Packing) -> nn.Module:
    inside, outside = packing.width(old.in_channels), packing.width(old.out_channels)
    groups = packing.members * packing.gamma * old.groups
    if old.groups == old.in_channels and old.groups > 1:  # depthwise stays depthwise
        groups = inside
    if name == packing.first:
        inside, groups = old.in_channels, 1
    if inside % groups or outside % groups or (name == packing.first and old.groups > 1):
        raise _cannot(
            f"layer {name!r}",
            f"{inside} to {outside} packed channels, {groups} groups",
            expected="channels that divide among the groups of all members",
            fix="Choose another alpha or gamma; the first layer may have no groups.",
        )
    return type(old)(
        inside,
        outside,
        old.kernel_size,
        stride=old.stride,
        padding=old.padding,
        dilation=old.dilation,
        groups=groups,
        bias=old.bias is not None,
        padding_mode=old.padding_mode,
    )


def _like(new: nn.Module, old: nn.Module) -> nn.Module:
    """On the device, of the type and in the mode of the layer before."""
    for tensor in (*old.parameters(), *old.buffers()):
        if tensor.is_floating_point():
            new = new.to(tensor)
            break
    return new.train(old.training)


def _try(ensemble: nn.Module, example: Any) -> None:
    """Run the example, so that a net that does not run packed is refused now."""
    try:
        with evaluating(ensemble), torch.no_grad():
            probe_logits(ensemble, example)
    except RuntimeError as error:
        raise _cannot(
            "model",
            f"{type(error).__name__}: {str(error).splitlines()[0]}",
            expected="one that runs with wider layers",
            fix="Where maps are flattened into a linear layer, pool them to one pixel first, or "
            "choose alpha so that no width is rounded; only the first layer may read the input.",
        ) from error


def _others_changed(weight: Tensor, member: int, members: int) -> Tensor:
    """Noise on what is not the member's; packed tensors have the members on the first axis."""
    noise = torch.randn(weight.shape, generator=torch.Generator().manual_seed(member))
    noise = noise.to(weight) * (0.1 + weight.abs().mean())
    noise.unflatten(0, (members, -1))[member] = 0
    return weight + noise


def _mixed(member: int, worst: float) -> InvalidInput:
    return _cannot(
        "model",
        f"logits of member {member} that change by {worst:.2g} with the weights of the others",
        expected="members that share nothing but the input",
        fix="Attention, a softmax over features, gates and concatenated features mix the members: "
        "choose a model without them, or another method.",
    )


def _cannot(subject: str, found: str, *, expected: str, fix: str) -> InvalidInput:
    return InvalidInput(subject, expected=expected, found=found, fix=fix)
