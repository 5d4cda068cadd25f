"""Output layers of many probes in one stack: norm, linear layer, division by T."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from temperance.study.probe_product import Product

__all__ = ["Heads", "blocks", "new_heads", "normalized", "scores"]

_BLOCK = 1 << 21  # numbers of a block of rows or of its logits: 8 MB


@dataclass(frozen=True, eq=False)
class Heads:
    """R heads that saw the same batches; their tensors are changed in place by the training.

    The features are frozen, so that the normalized rows are the same for all of them: statistics of
    a batch do not depend on the weights. Only the affine part of the norm belongs to a head.

    Attributes:
        norm: ``none``, ``layer`` or ``batch``.
        temperature: T, ``[R, 1, 1]``.
        weight: ``[R, C, M]``.
        bias: ``[R, C, 1]``.
        gamma: scale of the norm, ``[R, 1, M]``; None without a norm.
        beta: shift of the norm, ``[R, 1, M]``; None without a norm.
        mean: running mean of the batches, ``[M]``, shared; None but for ``batch``.
        variance: running variance of the batches, ``[M]``, shared; None but for ``batch``.
    """

    norm: str
    temperature: Tensor
    weight: Tensor
    bias: Tensor
    gamma: Tensor | None = None
    beta: Tensor | None = None
    mean: Tensor | None = None
    variance: Tensor | None = None

    @property
    def parameters(self) -> tuple[Tensor, ...]:
        """What is trained, the weight first."""
        found = (self.weight, self.bias, self.gamma, self.beta)
        return tuple(tensor for tensor in found if tensor is not None)

    def one(self, index: int) -> Heads:
        """Give a single head, a view."""
        place = slice(index, index + 1)
        return replace(
            self,
            temperature=self.temperature[place],
            weight=self.weight[place],
            bias=self.bias[place],
            gamma=None if self.gamma is None else self.gamma[place],
            beta=None if self.beta is None else self.beta[place],
        )


def new_heads(temperatures: list[float], *, norm: str, shape: tuple[int, int], seed: int) -> Heads:
    """Make heads that start alike, as ``nn.Linear`` and ``nn.BatchNorm1d`` do under that seed.

    Args:
        temperatures: T of every head.
        norm: ``none``, ``layer`` or ``batch``.
        shape: number of classes C, number of features M.
        seed: seed of the weights; no global random state is read or moved.

    Returns:
        The heads.
    """
    n, (c, m) = len(temperatures), shape
    generator = torch.Generator().manual_seed(seed)
    weight, bias = torch.empty(c, m), torch.empty(c, 1)
    nn.init.kaiming_uniform_(weight, a=math.sqrt(5), generator=generator)
    nn.init.uniform_(bias, -1 / math.sqrt(m), 1 / math.sqrt(m), generator=generator)
    return Heads(
        norm,
        temperature=torch.tensor(temperatures).view(-1, 1, 1),
        weight=weight.repeat(n, 1, 1),
        bias=bias.repeat(n, 1, 1),
        gamma=None if norm == "none" else torch.ones(n, 1, m),
        beta=None if norm == "none" else torch.zeros(n, 1, m),
        mean=torch.zeros(m) if norm == "batch" else None,
        variance=torch.ones(m) if norm == "batch" else None,
    )


def normalized(heads: Heads, x: Tensor, *, training: bool = False) -> Tensor:
    """Normalize rows without the affine part; in training the running statistics move.

    Args:
        heads: the heads.
        x: rows, ``[B, M]``.
        training: whether a BatchNorm takes the statistics of these rows.

    Returns:
        Rows, ``[B, M]``; ``x`` itself without a norm.
    """
    if heads.norm == "layer":
        return functional.layer_norm(x, (x.shape[1],))
    if heads.norm == "batch":
        return functional.batch_norm(x, heads.mean, heads.variance, training=training)
    return x


def scores(heads: Heads, x: Tensor, *, multiply: Product) -> Tensor:
    """Give the logits times T: ``(x * gamma + beta) @ weight.T + bias``.

    The affine part goes into the weights, so that one product serves all heads.

    Args:
        heads: the heads.
        x: normalized rows, ``[B, M]``.
        multiply: the product of matrices.

    Returns:
        A new tensor, ``[R, C, B]``.
    """
    weight, bias = heads.weight, heads.bias
    if heads.gamma is not None and heads.beta is not None:
        bias = torch.bmm(heads.beta, weight.transpose(1, 2)).transpose(1, 2) + bias
        weight = weight * heads.gamma
    z = multiply(weight.view(-1, weight.shape[2]), x).view(*weight.shape[:2], len(x))
    return z.add_(bias)


def blocks(x: NDArray[np.float32], *, logits_per_row: int) -> Iterator[tuple[slice, Tensor]]:
    """Give rows block by block, as tensors that may be changed and are gone with the next one.

    Args:
        x: rows, ``[n, M]``; may be read-only or a memory map.
        logits_per_row: numbers that will be made of each row.

    Yields:
        Which rows they are, and the rows.
    """
    size = max(1, _BLOCK // max(x.shape[1], logits_per_row))
    buffer = np.empty((min(size, len(x)), x.shape[1]), dtype=np.float32)
    for start in range(0, len(x), size):
        place = slice(start, min(start + size, len(x)))
        rows = buffer[: place.stop - start]
        rows[:] = x[place]
        yield place, torch.from_numpy(rows)
