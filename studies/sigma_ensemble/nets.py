"""The small nets of the study: a ResNet, a vision transformer, a text transformer.

All are of plain torch layers, so that every method can be put into them. Equal arguments give equal
weights; the global random state is not touched.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional as nnf

__all__ = ["NETS", "build"]

HEADS = 4  # of attention


class Block(nn.Module):
    """Two 3 x 3 convolutions with BatchNorm and a way around them (He et al., 2016)."""

    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inside, outside, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outside)
        self.conv2 = nn.Conv2d(outside, outside, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outside)
        self.around: nn.Module = nn.Identity()
        if stride != 1 or inside != outside:
            conv = nn.Conv2d(inside, outside, 1, stride, bias=False)
            self.around = nn.Sequential(conv, nn.BatchNorm2d(outside))

    def forward(self, x: Tensor) -> Tensor:
        """``relu(bn2(conv2(relu(bn1(conv1(x))))) + around(x))``."""
        inner = self.bn2(self.conv2(nnf.relu(self.bn1(self.conv1(x)))))
        return nnf.relu(inner + self.around(x))


class Attention(nn.Module):
    """Self-attention with one linear layer for queries, keys and values."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """``[B, L, W]`` to the same."""
        b, n, w = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, HEADS, w // HEADS).permute(2, 0, 3, 1, 4)
        mixed = nnf.scaled_dot_product_attention(q, k, v)
        return self.out(mixed.transpose(1, 2).reshape(b, n, w))


class Layer(nn.Module):
    """A transformer layer, LayerNorm in front of each part."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1, self.attention = nn.LayerNorm(width), Attention(width)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        """``[B, L, W]`` to the same."""
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Transformer(nn.Module):
    """Tokens, places, layers, the mean over the tokens, and an output layer."""

    def __init__(self, tokens: nn.Module, count: int, width: int, depth: int, classes: int) -> None:
        super().__init__()
        self.tokens = tokens
        self.places = nn.Parameter(0.02 * torch.randn(count, width))
        self.layers = nn.Sequential(*(Layer(width) for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Give logits ``[B, C]``."""
        tokens = self.tokens(x)
        if tokens.dim() == 4:  # patches of a picture, [B, W, h, w]
            tokens = tokens.flatten(2).transpose(1, 2)
        return self.head(self.norm(self.layers(tokens + self.places)).mean(1))


def _resnet(width: int, shape: tuple[int, ...], classes: int, _words: int) -> nn.Module:
    """8 layers with weights: a stem of stride 2, and three blocks of 1, 2 and 4 times the width."""
    return nn.Sequential(
        nn.Conv2d(shape[0], width, 3, 2, 1, bias=False),
        nn.BatchNorm2d(width),
        nn.ReLU(),
        Block(width, width, 1),
        Block(width, 2 * width, 2),
        Block(2 * width, 4 * width, 2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(4 * width, classes),
    )


def _vit(width: int, shape: tuple[int, ...], classes: int, _words: int) -> nn.Module:
    """Patches of 4 x 4, three layers."""
    count = (shape[1] // 4) * (shape[2] // 4)
    return Transformer(nn.Conv2d(shape[0], width, 4, 4), count, width, 3, classes)


def _text(width: int, shape: tuple[int, ...], classes: int, words: int) -> nn.Module:
    """Words, two layers."""
    return Transformer(nn.Embedding(words, width), shape[0], width, 2, classes)


NETS: Mapping[str, Callable[[int, tuple[int, ...], int, int], nn.Module]] = {
    "resnet": _resnet,
    "vit": _vit,
    "text": _text,
}


def build(
    name: str, width: int, *, shape: tuple[int, ...], classes: int, words: int = 0, seed: int = 0
) -> nn.Module:
    """Make a net with weights drawn from the seed.

    Args:
        name: one of ``NETS``.
        width: channels behind the stem, or of a token.
        shape: of one input, ``(C, H, W)`` or ``(L,)``.
        classes: outputs.
        words: of the vocabulary, for texts.
        seed: of the weights.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return NETS[name](width, shape, classes, words)
