"""Read NumPy archives: ``x``, ``y`` and, if there, ``x_val``, ``y_val``, ``x_test``, ``y_test``."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from temperance.errors import InvalidInput
from temperance.training.dataset import Found, FoundPart

__all__ = ["channels_last", "find_npz", "picture_values"]

_KEYS = {  # of train: the plain name, or the one that Keras writes
    "train": (("x", "y"), ("x_train", "y_train")),
    "val": (("x_val", "y_val"),),
    "test": (("x_test", "y_test"),),
}


def find_npz(path: Path) -> Found:
    """Read a NumPy archive.

    Args:
        path: the file; never unpickled. Pictures are ``[n, H, W]``, ``[n, H, W, C]`` or
            ``[n, C, H, W]``, features ``[n, M]``; labels any that the label reader takes;
            ``class_names`` names the classes in the order of their ids.

    Returns:
        Arrays and labels of every part.

    Raises:
        InvalidInput: if the file is damaged or holds Python objects, lacks ``x`` or ``y``, if a
            part has another shape than ``train``, or if the axis of the channels is not clear.
    """
    arrays = _load(path)
    pairs = _pairs(path, arrays)
    used = {name for pair in pairs.values() for name in pair} | {"class_names"}
    unused = sorted(set(arrays) - used)
    notices = [f"{path.name}: not used: {', '.join(unused)}"] if unused else []
    names = tuple(map(str, arrays["class_names"])) if "class_names" in arrays else None
    x = {part: arrays[pair[0]] for part, pair in pairs.items()}
    y = {part: arrays[pair[1]] for part, pair in pairs.items()}
    for part, pair in pairs.items():
        _check_pair(path, pair, x[part], y[part], x["train"])
    white: float | None = None
    if x["train"].ndim > 2:
        x = channels_last(path, x)
        x, white = picture_values(x)
        notices += _scale_notices(path, x, white)
    ids = {part: tuple(f"{pairs[part][0]}[{i}]" for i in range(len(y[part]))) for part in pairs}
    found = {part: FoundPart(x[part], y[part], ids[part]) for part in pairs}
    return Found(
        "images" if x["train"].ndim == 4 else "features",
        found,
        class_names=names,
        white=white,
        notices=tuple(notices),
    )


def channels_last(path: Path, x: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Bring pictures ``[n, H, W]``, ``[n, H, W, C]`` or ``[n, C, H, W]`` to ``[n, H, W, C]``.

    Args:
        path: the file, for the message.
        x: pictures by part, all of one shape.

    Returns:
        Views with the channels last.

    Raises:
        InvalidInput: if either axis could be the channels, or neither.
    """
    shape = x["train"].shape
    if len(shape) == 3:
        return {part: pictures[..., None] for part, pictures in x.items()}
    first, height, last = shape[1:]
    is_last = last < min(first, height) or (last in (1, 3) and first not in (1, 3))
    is_first = first < min(height, last) or (first in (1, 3) and last not in (1, 3))
    if is_last == is_first:
        raise _bad(
            path,
            "pictures [n, H, W, C] or [n, C, H, W] with fewer channels than rows and columns",
            f"shape {list(shape)}, in which the channels cannot be told",
            "Bring the pictures to the shape [n, H, W] (gray) or to a size that is clear.",
        )
    return {part: p if is_last else p.transpose(0, 2, 3, 1) for part, p in x.items()}


def picture_values(
    x: Mapping[str, NDArray[Any]],
) -> tuple[dict[str, NDArray[Any]], float | None]:
    """Store pictures without loss: uint8 where every value is whole and in 0..255, else float32.

    Args:
        x: pictures by part, any numeric type.

    Returns:
        The pictures, and the value of white: 255 for whole numbers, 1 where nothing is
        above 1, 65535 for 16-bit numbers, None for any other scale.
    """
    kinds = {p.dtype for p in x.values()}
    low = min(float(p.min()) for p in x.values())
    high = max(float(p.max()) for p in x.values())
    if kinds == {np.dtype(np.uint16)} and high > 255:
        return {part: p.astype(np.float32) for part, p in x.items()}, 65535.0
    if low >= 0 and high <= 255 and all(_whole(p) for p in x.values()):
        small = {part: p.astype(np.uint8, copy=False) for part, p in x.items()}
        return small, 1.0 if high <= 1 else 255.0
    white = 1.0 if low >= 0 and high <= 1 else None
    with np.errstate(over="ignore"):  # infinities are refused later, by row
        return {part: p.astype(np.float32) for part, p in x.items()}, white


def _scale_notices(path: Path, x: Mapping[str, NDArray[Any]], white: float | None) -> list[str]:
    if white is None:
        return [f"{path.name}: the pictures are on a scale of their own and were kept as they are"]
    high = max(float(p.max()) for p in x.values())
    if 4 * high < white:
        return [f"{path.name}: no pixel is above {high:g}; white was taken to be {white:g}"]
    return []


def _whole(x: NDArray[Any]) -> bool:
    return x.dtype.kind in "iub" or all(bool((p == np.floor(p)).all()) for p in x)


def _load(path: Path) -> dict[str, NDArray[Any]]:
    try:
        with path.open("rb") as file:
            if not zipfile.is_zipfile(file):
                raise EOFError("something else, or a part of one")
            file.seek(0)
            with np.load(file, allow_pickle=False) as arrays:
                return {name: arrays[name] for name in arrays.files}
    except (ValueError, zipfile.BadZipFile, EOFError, zlib.error) as error:
        pickled = "Object arrays" in str(error)
        raise _bad(
            path,
            "a complete .npz file of plain arrays",
            "Python objects, which are not read as they can run code" if pickled else str(error),
            "Write numbers and texts of fixed length with numpy.savez.",
        ) from error
    except OSError as error:
        raise _bad(
            path, "a file that can be read", error.strerror or str(error), "Check the file."
        ) from error


def _pairs(path: Path, arrays: Mapping[str, object]) -> dict[str, tuple[str, str]]:
    """Names of pictures and labels by part."""
    pairs = {}
    for part, choices in _KEYS.items():
        there = [(a, b) for a, b in choices if a in arrays or b in arrays]
        if len(there) > 1 or (not there and part == "train"):
            raise _bad(
                path, "x and y", ", ".join(sorted(arrays)) or "nothing", "Rename the arrays."
            )
        for a, b in there:
            if a not in arrays or b not in arrays:
                lacking = a if b in arrays else b
                raise _bad(path, f"{a} and {b}", f"no {lacking}", "Add it, or remove the other.")
            pairs[part] = (a, b)
    return pairs


def _check_pair(
    path: Path, names: tuple[str, str], x: NDArray[Any], y: NDArray[Any], train: NDArray[Any]
) -> None:
    if x.ndim not in (2, 3, 4) or 0 in x.shape or x.dtype.kind not in "fiub":
        raise _bad(
            path,
            f"{names[0]} as features [n, M] or pictures [n, H, W], [n, H, W, C], [n, C, H, W]",
            f"type {x.dtype}, shape {list(x.shape)}",
            "Convert it.",
        )
    if x.shape[1:] != train.shape[1:]:
        raise _bad(
            path,
            f"{names[0]} with rows of shape {list(train.shape[1:])} like those of train",
            f"{list(x.shape[1:])}",
            "Bring all parts to one shape.",
        )
    if y.ndim == 0 or len(x) != len(y):
        raise _bad(
            path,
            f"as many {names[1]} as {names[0]}",
            f"shapes {list(y.shape)} and {list(x.shape)}",
            "Check how the file was written.",
        )


def _bad(path: Path, expected: str, found: str, fix: str) -> InvalidInput:
    return InvalidInput(str(path), expected=expected, found=found, fix=fix)
