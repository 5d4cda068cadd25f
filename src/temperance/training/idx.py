"""Read IDX files, the form of MNIST and its relatives, plain or packed with gzip.

The form: two zero bytes, a byte for the type, a byte for the number of dimensions, the dimensions
as big-endian 32-bit numbers, then the values, big-endian.

Reference: Y. LeCun, C. Cortes, C. Burges, "The MNIST database of handwritten digits", 1998.
"""

from __future__ import annotations

import gzip
import math
import re
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from temperance.errors import InvalidInput
from temperance.training.dataset import Found, FoundPart, part_name

__all__ = ["find_idx", "is_idx", "read_idx"]

_TYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
_NAME = re.compile(
    r"^(?P<prefix>.*-)?(?P<part>train|t10k|test|valid|validation|val)-(?P<what>images|labels)"
    r"[-.]idx\d-ubyte(\.gz)?$",
    re.IGNORECASE,
)


def is_idx(name: str) -> bool:
    """Whether a file name is that of an IDX file, such as ``train-images-idx3-ubyte.gz``."""
    return _NAME.match(name) is not None


def read_idx(path: Path) -> NDArray[Any]:
    """Read one IDX file.

    Args:
        path: the file; packed with gzip if its name ends in ``.gz``.

    Returns:
        The values with the file's dimensions, in the machine's byte order.

    Raises:
        InvalidInput: naming the file, if it cannot be read, is truncated or damaged, has no IDX
            header, or holds more or fewer values than its header says.
    """
    data = _read_bytes(path)
    if len(data) < 4 or data[:2] != b"\0\0" or data[2] not in _TYPES or not data[3]:
        raise _bad(path, "an IDX file (two zero bytes, type, dimensions)", f"{data[:4].hex(' ')!r}")
    dtype, dims = np.dtype(_TYPES[data[2]]), data[3]
    start = 4 + 4 * dims
    shape = tuple(int.from_bytes(data[i : i + 4], "big") for i in range(4, start, 4))
    expected = start + math.prod(shape) * dtype.itemsize
    if len(data) != expected:
        raise _bad(
            path,
            f"{expected} bytes for the shape {list(shape)} of its header",
            f"{len(data)} bytes",
        )
    values = np.frombuffer(data, dtype, offset=start).reshape(shape)
    return values.astype(dtype.newbyteorder("="), copy=False)


def find_idx(root: Path, names: Sequence[str]) -> Found:
    """Read the IDX files of a folder.

    Args:
        root: the folder.
        names: the names of its IDX files.

    Returns:
        The pictures and labels of every part; of a file that is there twice, the unpacked one.

    Raises:
        InvalidInput: if there are files of several data sets, a pair is not complete or not of the
            same length, or a file cannot be read.
    """
    pairs: dict[str, dict[str, Path]] = {}
    prefixes = set()
    for name in sorted(names, reverse=True):  # the plain file after its .gz
        match = _NAME.match(name)
        assert match is not None
        prefixes.add(match["prefix"] or "")
        part = part_name(match["part"]) or "train"
        pairs.setdefault(part, {})[match["what"].lower()] = root / name
    if len(prefixes) > 1:
        raise _bad(root, "the IDX files of one data set", ", ".join(map(repr, sorted(prefixes))))
    if "train" not in pairs:
        raise _bad(root, "train-images and train-labels", ", ".join(sorted(names)))
    order = [part for part in ("train", "val", "test") if part in pairs]
    return Found("images", {part: _find_pair(root, part, pairs[part]) for part in order})


def _find_pair(root: Path, part: str, files: dict[str, Path]) -> FoundPart:
    if set(files) != {"images", "labels"}:
        raise _bad(root, f"images and labels of {part}", f"only {next(iter(files.values())).name}")
    x, y = read_idx(files["images"]), read_idx(files["labels"])
    if x.ndim != 3 or y.ndim != 1 or len(x) != len(y):
        raise _bad(
            files["images"],
            f"pictures [n, H, W], and n labels in {files['labels'].name}",
            f"shapes {list(x.shape)} and {list(y.shape)}",
        )
    return FoundPart(x, y, tuple(f"{part}[{i}]" for i in range(len(x))))


def _read_bytes(path: Path) -> bytes:
    try:
        if path.suffix.lower() == ".gz":
            with gzip.open(path) as file:
                return file.read()
        return path.read_bytes()
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise _bad(path, "a complete gzip file", str(error)) from error
    except OSError as error:
        raise _bad(path, "a file that can be read", error.strerror or str(error)) from error


def _bad(path: Path, expected: str, found: str) -> InvalidInput:
    return InvalidInput(
        str(path),
        expected=expected,
        found=found,
        fix="Download the file again or check the folder.",
    )
