"""Reading arrays of numbers from whatever people have: lists, NumPy, tensors, half precision."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from temperance.errors import InvalidInput

__all__ = ["as_matrix", "as_numpy", "first_nonfinite_row"]

_CHUNK = 1 << 22  # numbers looked at together: 16 to 32 MB of working memory


def as_numpy(values: Any) -> NDArray[Any]:
    """Give the NumPy array behind a list, an array or a tensor on any device (bfloat16 too)."""
    if isinstance(values, np.ma.MaskedArray) and np.ma.getmaskarray(values).any():
        raise InvalidInput(
            "masked array",
            expected="no masked values",
            found=f"{int(np.ma.getmaskarray(values).sum())} of them",
            fix="Leave the masked rows out, or fill them with a value that you name in ignore.",
        )
    if hasattr(values, "detach"):
        tensor = values.detach().cpu()
        if str(tensor.dtype) == "torch.bfloat16":  # NumPy has no bfloat16; float32 holds it exactly
            tensor = tensor.float()
        return np.asarray(tensor)
    return np.asarray(values)


def first_nonfinite_row(x: NDArray[Any]) -> int | None:
    """Index of the first row of ``x`` with a NaN or an infinity, or None; bounded memory."""
    if x.dtype.kind != "f":
        return None
    width = max(1, int(np.prod(x.shape[1:])))
    step = max(1, _CHUNK // width)
    for start in range(0, len(x), step):
        good = np.isfinite(x[start : start + step]).reshape(-1, width).all(axis=1)
        if not good.all():
            return start + int(np.argmin(good))
    return None


def as_matrix(x: ArrayLike, *, subject: str) -> NDArray[Any]:
    """Check that ``x`` is a finite ``[n, M]`` array of numbers, and give it as floats.

    Args:
        x: numbers of any type; float32 and float64 pass without a copy.
        subject: how the error should call it.

    Returns:
        Float32 or float64, shape ``[n, M]``; integers of 64 bits become float64, all else float32.

    Raises:
        InvalidInput: if it is not two-dimensional, empty, not numeric, or not finite (by row).
    """
    array = as_numpy(x)
    if array.ndim != 2 or 0 in array.shape:
        raise InvalidInput(
            subject,
            expected="a non-empty array of shape [n, M]",
            found=f"shape {list(array.shape)}",
            fix="Pass one row per sample; flatten pictures first.",
        )
    if array.dtype.kind not in "fiub":
        raise InvalidInput(
            subject,
            expected="numbers",
            found=f"type {array.dtype}",
            fix="Convert text columns to numbers first.",
        )
    if array.dtype not in (np.float32, np.float64):
        wide = array.dtype.kind in "iu" and array.dtype.itemsize > 2
        wide = wide or (array.dtype.kind == "f" and array.dtype.itemsize > 4)
        array = array.astype(np.float64 if wide else np.float32)
    bad = first_nonfinite_row(array)
    if bad is not None:
        column = int(np.argmin(np.isfinite(array[bad])))
        raise InvalidInput(
            subject,
            expected="finite numbers",
            found=f"{array[bad, column]} in row {bad}, column {column}",
            fix="Remove or repair that row.",
        )
    return array
