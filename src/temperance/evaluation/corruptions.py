"""Image corruptions of five severities, for curves of a figure over a growing shift.

They are this library's own, made for any size from 8 pixels on and for gray or colour; they are
*not* ImageNet-C (Hendrycks, Dietterich, 2019), whose figures cannot be compared with these. They
need NumPy and Pillow only. What is drawn at random depends on the seed, the name and the number of
the picture, and is the same at every severity, so that a curve shows the severity and not the draw.
JPEG files are those of the machine's libjpeg.
"""

from __future__ import annotations

import io
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from temperance.arrays import as_numpy
from temperance.errors import InvalidInput, NotFound

__all__ = ["CORRUPTIONS", "SEVERITIES", "Corruption", "corrupt"]

#: Severities; 0 leaves the pictures as they are.
SEVERITIES = (0, 1, 2, 3, 4, 5)

Floats = NDArray[np.float64]
Rng = np.random.Generator
_LEAST_SIDE = 8


@dataclass(frozen=True)
class Corruption:
    """A row of the table of corruptions.

    Attributes:
        apply: ``apply(picture, strength, rng)``: one picture ``[H, W, C]``, float64, 0 to 255.
        strengths: one for each of the severities 1 to 5.
        unit: what a strength is.
    """

    apply: Callable[[Floats, float, Rng], Floats]
    strengths: tuple[float, float, float, float, float]
    unit: str


def corrupt(
    images: NDArray[np.uint8], name: str, *, severity: int, seed: int = 0, start: int = 0
) -> NDArray[np.uint8]:
    """Corrupt pictures.

    Args:
        images: uint8, shape ``[n, H, W]`` (gray) or ``[n, H, W, C]`` with 1 or 3 channels, sides of
            8 or more.
        name: a key of ``CORRUPTIONS``.
        severity: 1 to 5; 0 gives the pictures back.
        seed: of the noise, the directions and the places; 0 or more.
        start: number of the first picture, where a larger set is corrupted in parts: the parts are
            then those of the whole.

    Returns:
        New pictures of the same shape and type.

    Raises:
        NotFound: if there is no corruption of that name.
        InvalidInput: if the pictures are of another form, or severity, seed or start is no whole
            number in its range.

    Example:
        >>> import numpy as np
        >>> from temperance.evaluation import corrupt
        >>> gray = np.full((1, 8, 8), 100, dtype=np.uint8)
        >>> corrupt(gray, "brightness", severity=1)[0, 0, 0]
        np.uint8(120)
    """
    if not isinstance(name, str) or name not in CORRUPTIONS:
        raise NotFound(
            "corruption",
            found=f"none called {name!r}",
            candidates=tuple(CORRUPTIONS),
            fix="Choose one of these.",
        )
    array = _check_images(images)
    for subject, value, most in (("severity", severity, 5), ("seed", seed, None)):
        _check_whole(subject, value, most)
    _check_whole("start", start, None)
    out = array.copy()
    if severity == 0:
        return out
    corruption = CORRUPTIONS[name]
    strength, key = corruption.strengths[severity - 1], zlib.crc32(name.encode())
    for place, picture in enumerate(array):
        rng = np.random.default_rng([seed, key, start + place])
        pixels = picture.reshape(*picture.shape[:2], -1).astype(np.float64)
        changed = np.rint(np.clip(corruption.apply(pixels, strength, rng), 0, 255))
        out[place] = changed.astype(np.uint8).reshape(picture.shape)
    return out


# ------------------------------------------------------------------ the corruptions
def _noise(x: Floats, strength: float, rng: Rng) -> Floats:
    return x + 255 * strength * rng.standard_normal(x.shape)


def _blur(x: Floats, strength: float, _: Rng) -> Floats:
    """Gaussian blur, wider with the root of the shorter side beyond 32 pixels."""
    width = strength * (max(32, min(x.shape[:2])) / 32) ** 0.5
    rows, columns = (_gaussian(side, width) for side in x.shape[:2])
    return _by_axes(rows, columns, x)


def _contrast(x: Floats, strength: float, _: Rng) -> Floats:
    mean = x.mean()
    return mean + (1 - strength) * (x - mean)


def _brightness(x: Floats, strength: float, _: Rng) -> Floats:
    return x + 255 * strength


def _pixelate(x: Floats, strength: float, _: Rng) -> Floats:
    """Means over equal blocks: a side becomes ``round(side * (1 - strength))`` blocks."""
    rows, columns = (_blocks(side, max(1, round(side * (1 - strength)))) for side in x.shape[:2])
    return _by_axes(rows, columns, x)


def _jpeg(x: Floats, strength: float, _: Rng) -> Floats:
    buffer = io.BytesIO()
    _picture(x).save(buffer, format="JPEG", quality=int(strength))
    with Image.open(io.BytesIO(buffer.getvalue())) as decoded:
        return np.asarray(decoded, dtype=np.float64).reshape(x.shape)


def _rotation(x: Floats, strength: float, rng: Rng) -> Floats:
    """Turn to either side; what turns in is the picture mirrored at its edge."""
    height, width = x.shape[:2]
    pad = (height + width) // 2
    wide = np.pad(x, ((pad, pad), (pad, pad), (0, 0)), mode="symmetric")
    angle = strength * (1 if rng.random() < 0.5 else -1)
    turned = _picture(wide).rotate(angle, resample=Image.Resampling.BILINEAR)
    pixels = np.asarray(turned, dtype=np.float64).reshape(wide.shape)
    return pixels[pad : pad + height, pad : pad + width]


def _occlusion(x: Floats, strength: float, rng: Rng) -> Floats:
    """A gray square; at a higher severity it covers what it covered before."""
    side = max(1, round(strength * min(x.shape[:2])))
    down, right = rng.random(2)
    top, left = int(down * (x.shape[0] - side)), int(right * (x.shape[1] - side))
    out = x.copy()
    out[top : top + side, left : left + side] = 128
    return out


#: Every corruption by name.
CORRUPTIONS: Mapping[str, Corruption] = {
    "noise": Corruption(_noise, (0.04, 0.08, 0.13, 0.2, 0.3), "standard deviation, of 255"),
    "blur": Corruption(
        _blur, (0.5, 0.8, 1.3, 1.9, 2.9), "standard deviation in pixels, of sides up to 32"
    ),
    "contrast": Corruption(_contrast, (0.25, 0.45, 0.6, 0.75, 0.87), "share taken off"),
    "brightness": Corruption(_brightness, (0.08, 0.16, 0.24, 0.34, 0.45), "added, of 255"),
    "pixelate": Corruption(_pixelate, (0.25, 0.5, 0.62, 0.75, 0.87), "share of blocks taken off"),
    "jpeg": Corruption(_jpeg, (50.0, 25.0, 15.0, 8.0, 4.0), "quality of Pillow"),
    "rotation": Corruption(_rotation, (4.0, 8.0, 14.0, 21.0, 30.0), "degrees, to either side"),
    "occlusion": Corruption(_occlusion, (0.13, 0.25, 0.38, 0.5, 0.65), "side, of the shorter side"),
}


# ------------------------------------------------------------------ helpers
def _by_axes(rows: Floats, columns: Floats, x: Floats) -> Floats:
    """Apply a matrix along the height and one along the width of every channel."""
    return np.moveaxis(rows @ np.moveaxis(x, 2, 0) @ columns.T, 0, 2)


def _gaussian(side: int, width: float) -> Floats:
    """Gaussian smoothing of a line of pixels that is mirrored at both ends."""
    place, matrix = np.arange(side), np.zeros((side, side))
    turns = int(np.ceil(4 * width / (2 * side))) + 1
    for turn in range(-turns, turns + 1):
        for image in (place + 2 * side * turn, 2 * side * turn - 1 - place):
            matrix += np.exp(-0.5 * ((place[:, None] - image) / width) ** 2)
    return np.asarray(matrix / matrix.sum(axis=1, keepdims=True))


def _blocks(side: int, count: int) -> Floats:
    """Mean over each of ``count`` blocks of a line of pixels, put back to its pixels."""
    block = np.arange(side) * count // side
    same = (block[:, None] == block).astype(np.float64)
    return np.asarray(same / same.sum(axis=1, keepdims=True))


def _picture(x: Floats) -> Image.Image:
    pixels = np.rint(x).astype(np.uint8)
    return Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels)


def _check_images(images: NDArray[np.uint8]) -> NDArray[np.uint8]:
    array = as_numpy(images)
    channels = array.shape[3] if array.ndim == 4 else 1
    shaped = array.ndim in (3, 4) and channels in (1, 3) and min(array.shape[1:3]) >= _LEAST_SIDE
    if array.dtype == np.uint8 and shaped and len(array):
        return array
    raise InvalidInput(
        "images",
        expected="uint8, shape [n, H, W] or [n, H, W, C], C of 1 or 3, sides of 8 or more",
        found=f"type {array.dtype}, shape {list(array.shape)}",
        fix="Corrupt pictures before they are scaled: floats in [0, 1] are (255 * x).round() as "
        "uint8; channels come last.",
    )


def _check_whole(subject: str, value: int, most: int | None) -> None:
    whole = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
    if whole and value >= 0 and (most is None or value <= most):
        return
    raise InvalidInput(
        subject,
        expected=f"a whole number from 0 to {most}" if most else "a whole number of at least 0",
        found=repr(value),
        fix="0 is the default of seed and start; severity 0 leaves the pictures as they are.",
    )
