"""The layers that can make logits: ``nn.Linear``, and the convolution of size 1 over channels."""

from __future__ import annotations

from typing import Any, cast

from torch import nn

__all__ = [
    "CONVS",
    "OutputLayer",
    "empty_like",
    "feature_axis",
    "is_layer",
    "layer_kind",
    "layer_sizes",
]

CONVS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
OutputLayer = nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d


def is_layer(module: Any) -> bool:
    """Whether a module is a linear layer or a convolution of any size."""
    return isinstance(module, (nn.Linear, *CONVS))


def layer_kind(module: OutputLayer) -> str:
    """Say what an output layer is.

    Args:
        module: a layer for which ``is_layer`` holds.

    Returns:
        ``"linear"``; ``"conv1x1"`` for a convolution that is a linear layer over the channels of
        each position by itself (size and stride 1, one group, no padding); ``"conv"`` for others.

    Example:
        >>> from torch import nn
        >>> layer_kind(nn.Conv2d(8, 3, 1)), layer_kind(nn.Conv2d(8, 3, 3))
        ('conv1x1', 'conv')
    """
    if isinstance(module, nn.Linear):
        return "linear"
    ones = {*module.kernel_size, *module.stride}
    padded = not isinstance(module.padding, str) and any(module.padding)  # "same" adds none
    return "conv1x1" if ones == {1} and module.groups == 1 and not padded else "conv"


def layer_sizes(module: Any) -> tuple[int, int]:
    """Give M and C: features that go in (channels of a convolution), and outputs."""
    if isinstance(module, CONVS):
        return int(module.in_channels), int(module.out_channels)
    return int(module.in_features), int(module.out_features)


def feature_axis(module: nn.Module) -> int:
    """Give the axis of the features, counted from the end: -1, or that of a convolution's channels.

    Example:
        >>> from torch import nn
        >>> feature_axis(nn.Linear(8, 3)), feature_axis(nn.Conv2d(8, 3, 1))
        (-1, -3)
    """
    return -1 - len(module.kernel_size) if isinstance(module, CONVS) else -1


def empty_like(old: OutputLayer, *, bias: bool) -> OutputLayer:
    """Make a layer of the same kind, size, type and device without values.

    Args:
        old: an ``nn.Linear`` or a convolution of size 1.
        bias: whether to give it a bias.
    """
    kind: Any = nn.Linear
    sizes: tuple[int, ...] = layer_sizes(old)
    if not isinstance(old, nn.Linear):
        kind, sizes = next(c for c in CONVS if isinstance(old, c)), (*sizes, 1)
    empty: Any = nn.utils.skip_init(kind, *sizes, bias=bias)
    return cast(OutputLayer, empty.to(old.weight.device, old.weight.dtype))
