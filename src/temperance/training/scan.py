"""Decode all pictures of a data set once, before any training, and list the bad ones.

The scan is the decoding: what it returns is what is trained on. A picture that would stop a
training after hours stops it here, with its name.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import compress, islice
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from temperance.errors import InvalidInput
from temperance.training.dataset import Pictures
from temperance.training.decode import (
    BadPicture,
    Decoded,
    Header,
    Size,
    decode,
    quiet,
    read_header,
    resize,
)

__all__ = ["BadPictures", "Scan", "resize_arrays", "scan"]

Progress = Callable[[int, int], None]
OnBad = Literal["error", "skip"]

NATIVE_UP_TO = 96  # pictures of one size, no side above this, keep it
DEFAULT_SIZE = 64  # side where sizes differ or are larger and nobody says
_MEMORY_LIMIT = 1 << 30  # bytes of pictures that are kept in memory
_CHUNK = 64
_THREAD_PIXELS = 128 * 128  # smaller pictures decode faster without threads
_SHOWN = 20


class BadPictures(InvalidInput):
    """Pictures that cannot be decoded.

    Args:
        files: name and reason of each.
        total: how many pictures were looked at.
    """

    def __init__(self, files: Sequence[tuple[str, str]], total: int) -> None:
        self.files, self.total = tuple(files), total
        super().__init__(
            "pictures",
            expected="files that can be decoded",
            found=f"{len(files)} of {total} that cannot be: {_listed(files)}",
            fix='Repair or remove them, or leave them out with on_bad="skip" (--on-bad skip).',
        )


@dataclass(frozen=True, eq=False)
class Scan:
    """Decoded pictures.

    Attributes:
        pixels: uint8 ``[n, H, W, C]`` by part, bad pictures left out.
        good: for every wanted picture of a part, whether it is in ``pixels``.
        notices: size, channels, conversions and skipped files, in words.
    """

    pixels: Mapping[str, NDArray[np.uint8]]
    good: Mapping[str, NDArray[np.bool_]]
    notices: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class _Wanted:
    """The pictures of one part that have a label; walked once for headers, once to decode."""

    pictures: Pictures
    kept: NDArray[np.bool_]
    ids: list[str]

    def __iter__(self) -> Iterator[Any]:
        return compress(self.pictures, self.kept.tolist())


@dataclass(frozen=True)
class _Plan:
    size: Size
    channels: int
    threads: int


@dataclass
class _Tally:
    """Counts while pictures are decoded, and tells the caller."""

    total: int
    progress: Progress | None
    done: int = 0
    decoded: int = 0
    traits: Counter[str] = field(default_factory=Counter)

    def add(self, result: Decoded | str) -> None:
        self.done += 1
        if isinstance(result, Decoded):
            self.decoded += 1
            self.traits.update(result.traits)
        if self.progress is not None and (self.done % _CHUNK == 0 or self.done == self.total):
            self.progress(self.done, self.total)


def scan(
    parts: Mapping[str, tuple[Pictures, Sequence[str]]],
    kept: Mapping[str, NDArray[np.bool_]],
    *,
    image_size: int | None = None,
    on_bad: OnBad = "error",
    progress: Progress | None = None,
) -> Scan:
    """Decode every picture once.

    One size and one number of channels serve all parts: ``image_size``, or the native size where
    all are equal and no side is above 96, or else 64; one channel if every picture is gray, else
    three.

    Args:
        parts: pictures and their names by part.
        kept: which pictures of a part are wanted.
        image_size: side of the square in pixels.
        on_bad: ``"error"`` lists all bad pictures and stops; ``"skip"`` leaves them out and says
            so.
        progress: called with the number of pictures done and in all.

    Returns:
        The pixels and what was done. Above 1 GiB they are a memory map of an unnamed file in the
        folder for temporary files (``TMPDIR``), which vanishes with the process.

    Raises:
        BadPictures: for bad pictures under ``"error"``, or if none is good.
        InvalidInput: if the disk has no room for the memory map.
    """
    wanted = {
        name: _Wanted(pictures, kept[name], list(compress(ids, kept[name].tolist())))
        for name, (pictures, ids) in parts.items()
    }
    tally = _Tally(sum(len(w.ids) for w in wanted.values()), progress)
    pixels, reasons = {}, {}
    with quiet():
        headers = {name: [_try(read_header, p) for p in w] for name, w in wanted.items()}
        seen = [h for hs in headers.values() for h in hs if isinstance(h, Header)]
        if not seen:
            raise BadPictures(_bad_of(wanted, headers), tally.total)
        plan = _plan(seen, image_size)
        for name, part in wanted.items():
            pixels[name], reasons[name] = _decode_part(part, headers[name], plan, tally)
    bad = _bad_of(wanted, reasons)
    if bad and (on_bad == "error" or len(bad) == tally.total):
        raise BadPictures(bad, tally.total)
    good = {n: np.array([r is None for r in rs], dtype=bool) for n, rs in reasons.items()}
    notices = _notices(plan, seen, tally, image_size)
    if bad:
        notices += (
            f"{len(bad)} of {tally.total} pictures cannot be decoded and were skipped: "
            + _listed(bad),
        )
    return Scan(pixels, good, notices)


def resize_arrays(
    x: NDArray[Any], image_size: int, *, progress: Progress | None = None
) -> NDArray[Any]:
    """Resize pictures that came as arrays, as decoded files are.

    Args:
        x: pictures, uint8 or float32, shape ``[n, H, W, C]``.
        image_size: side of the square in pixels.
        progress: called with the number of pictures done and in all.

    Returns:
        Shape ``[n, image_size, image_size, C]``; ``x`` itself if it has that shape.
    """
    size = (image_size, image_size)
    if x.shape[1:3] == size:
        return x
    out = _allocate((len(x), *size, x.shape[3]), x.dtype)
    for row, picture in enumerate(x):
        out[row] = resize(picture, size)
        if progress is not None and ((row + 1) % _CHUNK == 0 or row + 1 == len(x)):
            progress(row + 1, len(x))
    return out


# ------------------------------------------------------------------ decoding
def _try(function: Callable[[Any], Header], picture: Any) -> Header | str:
    """Give the header, or the reason why there is none."""
    try:
        return function(picture)
    except BadPicture as error:
        return str(error)


def _plan(headers: Sequence[Header], image_size: int | None) -> _Plan:
    sizes = {h.size for h in headers}
    largest = max(max(s) for s in sizes)
    if image_size is not None:
        size = (image_size, image_size)
    elif len(sizes) == 1 and largest <= NATIVE_UP_TO:
        size = next(iter(sizes))
    else:
        size = (DEFAULT_SIZE, DEFAULT_SIZE)
    channels = 1 if all(h.gray for h in headers) else 3
    small = max(h * w for h, w in sizes) <= _THREAD_PIXELS
    return _Plan(size, channels, 1 if small else min(8, _cpus()))


def _cpus() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _decode_part(
    part: _Wanted, headers: Sequence[Header | str], plan: _Plan, tally: _Tally
) -> tuple[NDArray[np.uint8], list[str | None]]:
    """Pixels of the good pictures, and for every picture None or why it is bad."""
    count = sum(isinstance(h, Header) for h in headers)
    store = _allocate((count, *plan.size, plan.channels), np.uint8)
    filled, reasons = 0, list[str | None]()
    for result in _decoded(zip(part, headers, strict=True), plan):
        if isinstance(result, Decoded):
            store[filled] = result.pixels
            filled += 1
        reasons.append(None if isinstance(result, Decoded) else result)
        tally.add(result)
    return store[:filled], reasons


def _decoded(
    jobs: Iterable[tuple[Path | bytes, Header | str]], plan: _Plan
) -> Iterator[Decoded | str]:
    """Decode in order; the pictures in flight are few, however many there are."""

    def one(job: tuple[Path | bytes, Header | str]) -> Decoded | str:
        picture, header = job
        if isinstance(header, str):
            return header
        try:
            return decode(picture, size=plan.size, channels=plan.channels)
        except BadPicture as error:
            return str(error)

    if plan.threads == 1:
        yield from map(one, jobs)
        return
    jobs = iter(jobs)
    with ThreadPoolExecutor(plan.threads) as pool:
        while block := list(islice(jobs, 4 * plan.threads)):
            yield from pool.map(one, block)


def _allocate(shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
    """Room for pictures: memory, or above 1 GiB a file without a name, which is never left over."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    if size <= _MEMORY_LIMIT:
        return np.empty(shape, dtype)
    folder = tempfile.gettempdir()
    free = shutil.disk_usage(folder).free
    if free < size:
        raise InvalidInput(
            f"the folder for temporary files ({folder})",
            expected=f"room for {size / 1e9:.1f} GB of decoded pictures",
            found=f"{free / 1e9:.1f} GB",
            fix="Pass a smaller image_size, or name a roomier folder in the variable TMPDIR.",
        )
    with tempfile.TemporaryFile(dir=folder) as file:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(file.fileno(), 0, size)  # a full disk is found now, not by a crash
        return np.memmap(file, dtype=dtype, mode="r+", shape=shape)


# ------------------------------------------------------------------ words
def _bad_of(
    wanted: Mapping[str, _Wanted], results: Mapping[str, Sequence[object]]
) -> list[tuple[str, str]]:
    """Name and reason of every picture whose result is a reason."""
    return [
        (name, result)
        for part, w in wanted.items()
        for name, result in zip(w.ids, results[part], strict=True)
        if isinstance(result, str)
    ]


def _listed(files: Sequence[tuple[str, str]]) -> str:
    shown = "; ".join(f"{name} ({reason})" for name, reason in files[:_SHOWN])
    rest = len(files) - _SHOWN
    return shown + (f"; and {rest} more" if rest > 0 else "")


def _notices(
    plan: _Plan, headers: Sequence[Header], tally: _Tally, image_size: int | None
) -> tuple[str, ...]:
    sizes = sorted({h.size for h in headers})
    height, width = plan.size
    notices = []
    if tally.traits["resized"]:
        span = f"{sizes[0][1]}x{sizes[0][0]}"
        if len(sizes) > 1:
            span = f"{len(sizes)} sizes, {span} to {sizes[-1][1]}x{sizes[-1][0]}"
        choice = "" if image_size is not None else "; image_size chooses another size"
        notices.append(
            f"pictures of {span} pixels were resized to {width}x{height} (shorter side first, "
            f"then the centre){choice}"
        )
    gray, n = tally.traits["gray"], tally.decoded
    if plan.channels == 1:
        notices.append("all pictures are gray: one channel")
    elif gray:
        notices.append(f"{gray} of {n} pictures are gray and became RGB like the others")
    for trait, what in (
        ("transparent", "are transparent in places, which were laid over white"),
        ("16-bit", "have 16 bits per pixel, which were scaled to 8"),
        ("turned", "were turned as their EXIF orientation says"),
    ):
        if tally.traits[trait]:
            notices.append(f"{tally.traits[trait]} of {n} pictures {what}")
    return tuple(notices)
