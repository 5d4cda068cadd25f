"""Nets to train: small ones of our own, whose M is an argument, and any of timm or torchvision."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor, nn

from temperance.errors import InvalidInput
from temperance.training.nets_sequence import textcnn_body, transformer_body, vit_body
from temperance.training.zoo import ZooModel, build_zoo, find_zoo, load_weights

__all__ = ["NETS", "BuiltNet", "build_net"]

DEFAULT_FEATURE_DIM = 128
_OF_NUMBERS, _OF_SEQUENCES = ("mlp", "mlp1", "probe"), ("transformer", "textcnn")


@dataclass(frozen=True, eq=False)
class BuiltNet:
    """A new net, and what its input has to look like.

    Attributes:
        module: the net, on the CPU, in training mode.
        name: its full name: ``"convnet"``, ``"timm:resnet18"``.
        in_channels: channels that its input must have (3 where gray is to be replicated); None for
            features.
        mean: the mean per channel that its loaded weights were trained with, white = 1; else None.
        std: likewise.
        notices: what was loaded and what was left new, in words.
    """

    module: nn.Module
    name: str
    in_channels: int | None = None
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    notices: tuple[str, ...] = ()


def build_net(
    name: str,
    *,
    input_shape: tuple[int, ...],
    n_classes: int,
    seed: int,
    feature_dim: int | None = None,
    weights: str | Path | None = None,
) -> BuiltNet:
    """Build a net; equal arguments give equal weights, and no global random state is touched.

    Args:
        name: one of ``NETS``; or a model of an installed library, as ``timm:NAME``,
            ``torchvision:NAME``, or plain where only one of the two has it. Nothing is downloaded.
        input_shape: ``(C, H, W)`` for pictures, ``(M,)`` for features; see ``DataSet.input_shape``.
        n_classes: outputs of the net.
        seed: seed of the initial weights.
        feature_dim: M, the ``in_features`` of the output layer, for our own nets (128 if absent);
            ``probe`` and the libraries' models have their own.
        weights: safetensors file with weights to start from. All of the net must be in it; only the
            output layer may be there with another number of classes, and is then left new.

    Returns:
        The net, and what its input has to look like.

    Raises:
        NotFound: for a name that no library has, or that both have.
        MissingPackage: for ``timm:`` or ``torchvision:`` without the package.
        InvalidInput: if the net does not take such an input, M cannot be set, or the weights do
            not fit.

    Example:
        >>> net = build_net("convnet", input_shape=(1, 28, 28), n_classes=10, seed=0)
        >>> net.module.head
        Linear(in_features=128, out_features=10, bias=True)
    """
    _check_arguments(input_shape, n_classes, feature_dim)
    zoo = None if name in NETS else find_zoo(name, own=tuple(NETS))
    with _seeded(seed):
        net = (
            _build_own(name, input_shape, n_classes, feature_dim)
            if zoo is None
            else _build_zoo(
                zoo, input_shape, n_classes, feature_dim, pretrained=weights is not None
            )
        )
    if weights is None:
        return replace(net, mean=None, std=None)
    shape = input_shape if net.in_channels is None else (net.in_channels, *input_shape[1:])
    notices = load_weights(net.module, weights, torch.zeros(2, *shape))
    return replace(net, notices=(*net.notices, *notices))


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Draw initial weights on the CPU from ``seed``, and put the generator back.

    ``torch.manual_seed`` would also move the generators of every accelerator.
    """
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        torch.default_generator.manual_seed(seed)
        yield


def _check_arguments(input_shape: tuple[int, ...], n_classes: int, feature_dim: int | None) -> None:
    for subject, value, least in (
        ("n_classes", n_classes, 2),
        ("feature_dim", 1 if feature_dim is None else feature_dim, 1),
        ("input_shape", min(input_shape, default=0), 1),
        ("input_shape, numbers", len(input_shape), 1),
    ):
        if value < least:
            raise InvalidInput(
                subject, expected=f"{least} or more", found=str(value), fix="Check the data."
            )


def _build_own(
    name: str, input_shape: tuple[int, ...], n_classes: int, feature_dim: int | None
) -> BuiltNet:
    if name == "probe":
        size = int(torch.Size(input_shape).numel())
        if feature_dim not in (None, size):
            raise InvalidInput(
                "feature_dim",
                expected=f"{size}, the number of inputs, which is the M of a linear probe",
                found=str(feature_dim),
                fix="Leave it out, or choose the net mlp.",
            )
        feature_dim = size
    if len(input_shape) == 1 and name not in (*_OF_NUMBERS, *_OF_SEQUENCES):
        raise InvalidInput(
            f"net {name}", expected="pictures", found="features", fix="Choose mlp, mlp1 or probe."
        )
    m = DEFAULT_FEATURE_DIM if feature_dim is None else feature_dim
    channels = input_shape[0] if len(input_shape) == 3 else None
    return BuiltNet(NETS[name](input_shape, n_classes, m), name, channels)


def _build_zoo(
    zoo: ZooModel,
    input_shape: tuple[int, ...],
    n_classes: int,
    feature_dim: int | None,
    *,
    pretrained: bool,
) -> BuiltNet:
    if feature_dim is not None:
        raise InvalidInput(
            "feature_dim",
            expected=f"none, since {zoo.full_name} has its own",
            found=str(feature_dim),
            fix=f"Leave it out, or choose one of our nets: {', '.join(NETS)}.",
        )
    module, channels = build_zoo(zoo, input_shape, n_classes, pretrained=pretrained)
    notices = ("gray pictures are given to the net as three equal channels",)
    replicated = channels != input_shape[0]
    mean, std = zoo.normalization(module)
    return BuiltNet(module, zoo.full_name, channels, mean, std, notices if replicated else ())


# ------------------------------------------------------------------ our own nets
class _Net(nn.Module):
    """A body that gives ``[B, M]``, and ``head``, the output layer."""

    def __init__(self, body: nn.Module, feature_dim: int, n_classes: int) -> None:
        super().__init__()
        self.body = body
        self.head = nn.Linear(feature_dim, n_classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x))


def _conv(inside: int, outside: int, stride: int = 1) -> list[nn.Module]:
    conv = nn.Conv2d(inside, outside, 3, stride, padding=1, bias=False)
    return [conv, nn.BatchNorm2d(outside)]


def _convnet(shape: tuple[int, ...], n_classes: int, m: int) -> nn.Module:
    """Three convolutions, 16-32-M, halved after the first two where 4 pixels or more are left."""
    layers: list[nn.Module] = []
    channels, side = shape[0], min(shape[1:])
    for width in (16, 32):
        layers += [*_conv(channels, width), nn.ReLU()]
        if side >= 8:
            layers.append(nn.MaxPool2d(2))
            side //= 2
        channels = width
    layers += [*_conv(channels, m), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return _Net(nn.Sequential(*layers), m, n_classes)


class _Block(nn.Module):
    """Two convolutions and a way around them (a 1x1 convolution where the shape changes)."""

    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        self.conv = nn.Sequential(
            *_conv(inside, outside, stride), nn.ReLU(), *_conv(outside, outside)
        )
        self.around: nn.Module = nn.Identity()
        if stride != 1 or inside != outside:
            self.around = nn.Sequential(
                nn.Conv2d(inside, outside, 1, stride, bias=False), nn.BatchNorm2d(outside)
            )

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.conv(x) + self.around(x))


def _resnet(shape: tuple[int, ...], n_classes: int, m: int, *, blocks: int = 1) -> nn.Module:
    """A ResNet for small pictures: three stages of widths M/4, M/2 and M, 6 * blocks + 2 layers.

    Reference:
        K. He et al., "Deep residual learning for image recognition", CVPR 2016, section 4.2.
    """
    widths = (max(4, m // 4), max(4, m // 2), m)
    layers: list[nn.Module] = [*_conv(shape[0], widths[0]), nn.ReLU()]
    inside = widths[0]
    for stage, width in enumerate(widths):
        for block in range(blocks):
            stride = 2 if stage and not block else 1
            layers.append(_Block(inside, width, stride))
            inside = width
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return _Net(nn.Sequential(*layers), m, n_classes)


def _resnet14(shape: tuple[int, ...], n_classes: int, m: int) -> nn.Module:
    return _resnet(shape, n_classes, m, blocks=2)


def _mlp(shape: tuple[int, ...], n_classes: int, m: int, *, hidden: int = 2) -> nn.Module:
    """Hidden layers of width M, two by default."""
    layers: list[nn.Module] = [nn.Flatten()]
    inside = int(torch.Size(shape).numel())
    for _ in range(hidden):
        layers += [nn.Linear(inside, m), nn.BatchNorm1d(m), nn.ReLU()]
        inside = m
    return _Net(nn.Sequential(*layers), m, n_classes)


def _mlp1(shape: tuple[int, ...], n_classes: int, m: int) -> nn.Module:
    """One hidden layer, which keeps a large M cheap."""
    return _mlp(shape, n_classes, m, hidden=1)


def _probe(shape: tuple[int, ...], n_classes: int, m: int) -> nn.Module:  # noqa: ARG001
    """A linear probe: nothing but the output layer."""
    return _Net(nn.Flatten(), m, n_classes)


def _vit(shape: tuple[int, ...], n_classes: int, m: int) -> nn.Module:
    """Attention over 4 x 4 patches of a picture."""
    return _Net(vit_body(shape, m), m, n_classes)


def _transformer(shape: tuple[int, ...], n_classes: int, m: int) -> nn.Module:
    """Attention over a sequence ``[K, 1, L]``, four places to a token."""
    return _Net(transformer_body(shape, m), m, n_classes)


def _textcnn(shape: tuple[int, ...], n_classes: int, m: int) -> nn.Module:
    """Convolutions over a sequence ``[K, 1, L]``, and the maximum over its places."""
    return _Net(textcnn_body(shape, m), m, n_classes)


NETS: dict[str, Callable[[tuple[int, ...], int, int], nn.Module]] = {
    "convnet": _convnet,
    "resnet": _resnet,
    "resnet14": _resnet14,
    "mlp": _mlp,
    "mlp1": _mlp1,
    "probe": _probe,
    "vit": _vit,
    "transformer": _transformer,
    "textcnn": _textcnn,
}
