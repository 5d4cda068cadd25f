"""The matrix product that scores rows: float32, the faster of the two libraries at hand."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["BLAS", "ONEDNN", "Product", "choose_product"]

# Importing torch takes about 1.3 s; it saves half of the products' time where oneDNN is the faster
# (measured on AMD Zen 5: 225 against 125 billion operations per second and core).
_WORTH_AN_IMPORT = 5e11

Matrix = NDArray[np.float32]


@dataclass(frozen=True)
class Product:
    """A way to compute ``a @ b.T``: load each block once, multiply pairs of loaded blocks."""

    load: Callable[[Matrix], Any]
    multiply: Callable[[Any, Any], Matrix]


def choose_product(n_operations: float) -> Product:
    """Choose how to compute ``a @ b.T`` for float32 blocks ``a`` and ``b``.

    oneDNN, which torch brings, if it computes in float32 now: torch's settings and the environment
    can make it round to 8 or 11 bits, which the error bound of the search does not allow. Else
    NumPy's BLAS. The choice changes the time, never the neighbours.

    Args:
        n_operations: additions and multiplications to come.

    Returns:
        The product; what it returns may be written to.
    """
    if "torch" in sys.modules or n_operations > _WORTH_AN_IMPORT:
        import torch

        if torch.backends.mkldnn.is_available() and _is_float32(ONEDNN):
            return ONEDNN
    return BLAS


def _load_onednn(block: Matrix) -> Any:
    import torch

    return torch.from_numpy(block).to_mkldnn()


def _multiply_onednn(a: Any, b: Any) -> Matrix:
    import torch

    with torch.no_grad():
        result: Matrix = torch.nn.functional.linear(a, b).to_dense().numpy()
    return result


BLAS = Product(load=lambda block: block, multiply=lambda a, b: a @ b.T)
ONEDNN = Product(_load_onednn, _multiply_onednn)


def _is_float32(product: Product) -> bool:
    """Whether products of 13-bit numbers are exact, as in float32 and in nothing shorter."""
    a = 1 + np.float32(2.0**-12) * (np.arange(256 * 64) % 31).astype(np.float32).reshape(256, 64)
    b = np.ones((256, 64), np.float32)
    return bool((product.multiply(product.load(a), product.load(b)) == a @ b.T).all())
