"""The matrix product of the probes: float32, the faster of the two libraries that torch has."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

__all__ = ["Product", "choose_product"]

Product = Callable[[Tensor, Tensor], Tensor]
"""Gives ``a @ b.T`` for float32 matrices ``[m, k]`` and ``[n, k]``, newly allocated."""


def choose_product() -> Product:
    """Choose how to compute ``a @ b.T`` for float32 matrices.

    oneDNN where torch has it and it computes in float32, else ``torch.mm``. On AMD Zen 5 it does
    215 to 240 billion operations per second and core at the sizes of stacked probes, and
    ``torch.mm`` (MKL) does 100. Settings of torch can make it round to 8 or 11 bits; then it is not
    taken. The choice changes the time, and results by rounding in float32.

    Returns:
        The product.

    Example:
        >>> import torch
        >>> from temperance.study.probe_product import choose_product
        >>> choose_product()(torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0, 4.0]])).tolist()
        [[11.0]]
    """
    if torch.backends.mkldnn.is_available() and torch.backends.mkldnn.enabled:
        try:
            if _is_float32(_onednn):
                return _onednn
        except (AttributeError, RuntimeError):  # a build of torch without this operator
            return _mm
    return _mm


def _onednn(a: Tensor, b: Tensor) -> Tensor:
    product: Tensor = torch.ops.mkldnn._linear_pointwise(a, b, None, "none", [], "")
    return product


def _mm(a: Tensor, b: Tensor) -> Tensor:
    return torch.mm(a, b.t())


def _is_float32(product: Product) -> bool:
    """Whether products of 13-bit numbers are exact, as in float32 and in nothing shorter."""
    a = 1 + 2.0**-12 * (torch.arange(128 * 64) % 31).to(torch.float32).view(128, 64)
    b = torch.ones(96, 64)
    return torch.equal(product(a, b), (a.double() @ b.double().t()).float())
