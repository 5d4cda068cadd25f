"""Nets of attention for pictures and sequences, and a net of convolutions over letters.

A sequence is a row ``[K, 1, L]``: K channels at L places, letters for instance one-hot
(``one-hot:K`` of ``temperance.study.extractors``). Each net has a body that gives ``[B, M]``.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn

from temperance.errors import InvalidInput

__all__ = ["AttentionEncoder", "SelfAttention", "textcnn_body", "transformer_body", "vit_body"]

_DEPTH = 2  # blocks; a choice of ours, for nets that a CPU trains in minutes
_RATIO = 2  # hidden width of a block in units of M, half of the usual 4, likewise
_HEAD = 32  # width of an attention head where M allows it; half of the usual 64, likewise
_GRID = 4  # patches of a picture along a side, likewise
_LETTERS = 4  # places of a sequence that become one token, likewise
_POSITION = 0.02  # spread of new positions, as in the code of arXiv 2010.11929
_EMBEDDED, _INSIDE, _KERNEL = 32, 64, 5  # of textcnn; choices of ours


class SelfAttention(nn.Module):
    """Multi-head self-attention, softmax(Q K^T / sqrt(d)) V in every head, ``[B, T, M]`` to same.

    There are M / 32 heads, or the next smaller number that divides M.

    Args:
        m: M, 1 or more.

    Example:
        >>> import torch
        >>> from temperance.training.nets_sequence import SelfAttention
        >>> SelfAttention(64)(torch.zeros(2, 5, 64)).shape
        torch.Size([2, 5, 64])

    Reference:
        A. Vaswani et al., "Attention is all you need", NeurIPS 2017, arXiv 1706.03762, section 3.2.
    """

    def __init__(self, m: int) -> None:
        super().__init__()
        most = max(1, m // _HEAD)
        self.heads = next(heads for heads in range(most, 0, -1) if m % heads == 0)
        self.inside = nn.Linear(m, 3 * m)
        self.out = nn.Linear(m, m)

    def forward(self, h: Tensor) -> Tensor:
        """Let every token look at all."""
        rows, tokens, m = h.shape
        parts = self.inside(h).view(rows, tokens, 3, self.heads, m // self.heads)
        q, k, v = parts.permute(2, 0, 3, 1, 4).unbind(0)
        seen = nn.functional.scaled_dot_product_attention(q, k, v)
        return cast(Tensor, self.out(seen.transpose(1, 2).reshape(rows, tokens, m)))


class _Block(nn.Module):
    """Attention, then two layers on every token by itself, each with a way around it."""

    def __init__(self, m: int) -> None:
        super().__init__()
        self.norm1, self.attention = nn.LayerNorm(m), SelfAttention(m)
        self.norm2 = nn.LayerNorm(m)
        self.mlp = nn.Sequential(nn.Linear(m, _RATIO * m), nn.GELU(), nn.Linear(_RATIO * m, m))

    def forward(self, h: Tensor) -> Tensor:
        h = h + self.attention(self.norm1(h))
        return cast(Tensor, h + self.mlp(self.norm2(h)))


class _Positions(nn.Module):
    """What is added to the token of each place: a bias, so that no weight decay reaches it."""

    def __init__(self, tokens: int, m: int) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.empty(tokens, m).normal_(std=_POSITION))

    def forward(self, h: Tensor) -> Tensor:
        return h + self.bias


class AttentionEncoder(nn.Module):
    """Patches, embedded, seen by each other, and their mean: ``[B, C, H, W]`` to ``[B, M]``.

    Pictures are filled up with zeros on the right and below to whole patches.

    Args:
        shape: ``(C, H, W)`` of a row.
        m: M, 1 or more.
        patch: height and width of a patch.
        skip_empty: leave tokens whose patch is all zeros out of the mean, unless all are. The other
            tokens still see them, and learn what they are.

    Example:
        >>> import torch
        >>> from temperance.training.nets_sequence import AttentionEncoder
        >>> AttentionEncoder((1, 8, 8), 6, patch=(2, 2))(torch.zeros(3, 1, 8, 8)).shape
        torch.Size([3, 6])

    Reference:
        A. Dosovitskiy et al., "An image is worth 16x16 words", ICLR 2021, arXiv 2010.11929 (patches
        as tokens, learned positions; the mean over tokens in place of a class token: appendix D.3);
        R. Xiong et al., "On layer normalization in the transformer architecture", ICML 2020, arXiv
        2002.04745 (norm in front of each part and at the end).
    """

    def __init__(
        self,
        shape: tuple[int, ...],
        m: int,
        *,
        patch: tuple[int, int],
        skip_empty: bool = False,
    ) -> None:
        super().__init__()
        channels, height, width = shape
        self.patch, self.skip_empty = patch, skip_empty
        self.grid = -(-height // patch[0]), -(-width // patch[1])
        self.fill = self.grid[0] * patch[0] - height, self.grid[1] * patch[1] - width
        self.embed = nn.Linear(channels * patch[0] * patch[1], m)
        self.positions = _Positions(self.grid[0] * self.grid[1], m)
        self.blocks = nn.Sequential(*(_Block(m) for _ in range(_DEPTH)))
        self.norm = nn.LayerNorm(m)

    def forward(self, x: Tensor) -> Tensor:
        """Give the mean of the tokens."""
        patches = self._patches(x)
        tokens = self.norm(self.blocks(self.positions(self.embed(patches))))
        if not self.skip_empty:
            return cast(Tensor, tokens.mean(1))
        there = patches.abs().amax(2) > 0
        none = ~there.any(1, keepdim=True)
        share = (there | none).to(tokens.dtype)
        share = share / share.sum(1, keepdim=True)
        return cast(Tensor, (tokens * share.unsqueeze(2)).sum(1))

    def _patches(self, x: Tensor) -> Tensor:
        """``[B, T, numbers of a patch]``, channels last: a view of rows that have them last."""
        if any(self.fill):
            x = nn.functional.pad(x, (0, self.fill[1], 0, self.fill[0]))
        rows, channels = x.shape[:2]
        (high, wide), (h, w) = self.grid, self.patch
        cut = x.reshape(rows, channels, high, h, wide, w).permute(0, 2, 4, 3, 5, 1)
        return cut.reshape(rows, high * wide, h * w * channels)


# ------------------------------------------------------------------ bodies
def vit_body(shape: tuple[int, ...], m: int) -> nn.Module:
    """Make a small vision transformer: 4 x 4 patches, two blocks of width M.

    A patch is a quarter of a side, rounded up: three of them cover a side of 5, 6 or 9 pixels.

    Args:
        shape: ``(C, H, W)``, H and W of 4 or more.
        m: M.

    Returns:
        The body; for sources see ``AttentionEncoder``.

    Raises:
        InvalidInput: for other rows.

    Example:
        >>> from temperance.training.nets_sequence import vit_body
        >>> vit_body((1, 28, 28), 64).positions.bias.shape
        torch.Size([16, 64])
    """
    if len(shape) != 3 or min(shape[1:]) < _GRID:
        fix = "Choose mlp; for sequences [K, 1, L], transformer or textcnn."
        raise _refused("vit", f"pictures of {_GRID} x {_GRID} pixels or more", shape, fix=fix)
    return AttentionEncoder(shape, m, patch=(-(-shape[1] // _GRID), -(-shape[2] // _GRID)))


def transformer_body(shape: tuple[int, ...], m: int) -> nn.Module:
    """Make a small transformer of sequences: four places are a token, two blocks of width M.

    Patches of nothing but zeros, which is how short sequences are filled up, are left out of the
    mean.

    Args:
        shape: ``(K, 1, L)``.
        m: M.

    Returns:
        The body; for sources see ``AttentionEncoder``.

    Raises:
        InvalidInput: for other rows.

    Example:
        >>> from temperance.training.nets_sequence import transformer_body
        >>> transformer_body((64, 1, 96), 32).positions.bias.shape
        torch.Size([24, 32])
    """
    _check_sequence("transformer", shape, least=1)
    return AttentionEncoder(shape, m, patch=(1, _LETTERS), skip_empty=True)


def textcnn_body(shape: tuple[int, ...], m: int) -> nn.Module:
    """Make a convolutional net of letters: embedding, two convolutions over five, the maximum.

    K - 32 - 64 - M channels; behind the first convolution the maximum of each two places, behind
    the second that of all.

    Args:
        shape: ``(K, 1, L)``, L of 2 or more.
        m: M.

    Returns:
        The body.

    Raises:
        InvalidInput: for other rows.

    Example:
        >>> import torch
        >>> from temperance.training.nets_sequence import textcnn_body
        >>> textcnn_body((64, 1, 96), 48)(torch.zeros(2, 64, 1, 96)).shape
        torch.Size([2, 48])

    Reference:
        X. Zhang, J. Zhao, Y. LeCun, "Character-level convolutional networks for text
        classification", NeurIPS 2015, arXiv 1509.01626 (letters, convolutions and pooling);
        Y. Kim, "Convolutional neural networks for sentence classification", EMNLP 2014, arXiv
        1408.5882 (the maximum over all places).
    """
    _check_sequence("textcnn", shape, least=2)
    return nn.Sequential(
        nn.Conv2d(shape[0], _EMBEDDED, 1, bias=False),
        *_over_letters(_EMBEDDED, _INSIDE),
        nn.MaxPool2d((1, 2)),
        *_over_letters(_INSIDE, m),
        nn.AdaptiveMaxPool2d(1),
        nn.Flatten(),
    )


def _over_letters(inside: int, outside: int) -> list[nn.Module]:
    conv = nn.Conv2d(inside, outside, (1, _KERNEL), padding=(0, _KERNEL // 2), bias=False)
    return [conv, nn.BatchNorm2d(outside), nn.ReLU()]


def _check_sequence(name: str, shape: tuple[int, ...], *, least: int) -> None:
    if len(shape) != 3 or shape[1] != 1 or shape[2] < least:
        expected = f"sequences [K, 1, L] with L of {least} or more, such as one-hot letters"
        fix = "Choose convnet, resnet or vit for pictures, mlp for rows of numbers."
        raise _refused(name, expected, shape, fix=fix)


def _refused(name: str, expected: str, shape: tuple[int, ...], *, fix: str) -> InvalidInput:
    return InvalidInput(f"net {name}", expected=expected, found=f"rows {list(shape)}", fix=fix)
