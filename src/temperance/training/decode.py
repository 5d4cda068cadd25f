"""One picture, from a file or from bytes, to an array of 8-bit numbers.

The same function decodes for training and for prediction. Its policy: the whole picture is loaded,
so that a truncated file is found; the first frame counts; the EXIF orientation is applied;
transparent pixels are laid over white; 16-bit gray is scaled to 8 bits; colours of any kind become
RGB, or gray by ITU-R 601 luma where one channel is wanted.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

__all__ = ["BadPicture", "Decoded", "Header", "decode", "quiet", "read_header", "resize"]

Size = tuple[int, int]  # height, width

_GRAY = frozenset({"1", "L", "LA", "La", "I", "I;16", "I;16L", "I;16B", "I;16N"})
_ALPHA = frozenset({"LA", "La", "PA", "RGBA", "RGBa"})
_ORIENTATION = 0x0112  # EXIF 2.3, table 4
_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


class BadPicture(Exception):
    """A picture that cannot be decoded; the text is the reason."""


@dataclass(frozen=True)
class Header:
    """What the first bytes of a picture say.

    Attributes:
        size: height and width as they are seen, orientation applied.
        gray: whether it has no colour.
    """

    size: Size
    gray: bool


@dataclass(frozen=True, eq=False)
class Decoded:
    """A decoded picture.

    Attributes:
        pixels: uint8, shape ``[H, W, C]``.
        traits: what was done to it: ``gray``, ``transparent``, ``16-bit``, ``turned``, ``resized``.
    """

    pixels: NDArray[np.uint8]
    traits: frozenset[str]


@contextmanager
def quiet() -> Iterator[None]:
    """Keep the decoder's warnings away from the user; a decompression bomb becomes an error."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        yield


def read_header(picture: Path | bytes) -> Header:
    """Read size and kind of a picture without decoding it.

    Args:
        picture: a file, or the bytes of one.

    Returns:
        What its header says.

    Raises:
        BadPicture: if it is empty, cannot be read, is no picture, or is implausibly large.
    """
    with _opened(picture) as image:
        width, height = image.size
        if image.format != "TIFF" and _orientation(image) >= 5:  # TIFF sizes are turned already
            width, height = height, width
        return Header((height, width), image.mode in _GRAY)


def decode(picture: Path | bytes, *, size: Size | None, channels: int) -> Decoded:
    """Decode a picture fully, bring it to ``channels`` and to ``size``.

    Args:
        picture: a file, or the bytes of one.
        size: height and width to resize to (shorter side first, then the centre); its own if None.
        channels: 1 or 3.

    Returns:
        The pixels, and what was done.

    Raises:
        BadPicture: if it cannot be decoded completely; the text says why.
    """
    with _opened(picture) as image:
        image.load()
        traits = {"gray"} if image.mode in _GRAY else set()
        turn = _TURNS.get(_orientation(image))
        plain = _to_eight_bits(image, "L" if channels == 1 else "RGB", traits)
        if turn is not None:
            plain = plain.transpose(turn)
            traits.add("turned")
        if size is not None and (plain.height, plain.width) != size:
            plain = _cover(plain, size)
            traits.add("resized")
        pixels = np.asarray(plain)
    return Decoded(pixels.reshape(*pixels.shape[:2], channels), frozenset(traits))


def resize(pixels: NDArray[Any], size: Size) -> NDArray[Any]:
    """Resize an array ``[H, W, C]`` of uint8 or float32 as ``decode`` resizes pictures."""
    if pixels.shape[:2] == size:
        return pixels
    planes = [
        np.asarray(_cover(Image.fromarray(np.ascontiguousarray(pixels[..., c])), size))
        for c in range(pixels.shape[2])
    ]
    return np.stack(planes, axis=-1)


@contextmanager
def _opened(picture: Path | bytes) -> Iterator[Image.Image]:
    """Open a picture; whatever goes wrong inside the block becomes a BadPicture with a reason."""
    try:
        empty = not picture if isinstance(picture, bytes) else picture.stat().st_size == 0
        if empty:
            raise BadPicture("empty (0 bytes)")
        with Image.open(io.BytesIO(picture) if isinstance(picture, bytes) else picture) as image:
            yield image
    except BadPicture:
        raise
    except UnidentifiedImageError:
        raise BadPicture("not a picture of a known format") from None
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise BadPicture(f"too large to be safe: {error}") from error
    except OSError as error:
        raise BadPicture(error.strerror or str(error)) from error
    except Exception as error:  # decoders raise SyntaxError, struct.error, ValueError and others
        raise BadPicture(f"damaged ({type(error).__name__}: {error})") from error


def _orientation(image: Image.Image) -> int:
    """EXIF orientation 1..8; 1 where there is none or the EXIF block is damaged."""
    if image.format == "PNG" and "exif" not in image.info:
        return 1  # asking would decode the picture
    try:
        value = image.getexif().get(_ORIENTATION, 1)
    except Exception:  # a damaged EXIF block does not make the pixels unusable
        return 1
    return value if isinstance(value, int) else 1


def _to_eight_bits(image: Image.Image, mode: str, traits: set[str]) -> Image.Image:
    if image.mode.startswith("I"):
        traits.add("16-bit")
        image = _from_sixteen_bits(image)
    if image.mode == "F":
        raise BadPicture("floating-point pixels, whose white is not known; convert it to 8 bits")
    if image.mode in _ALPHA or "transparency" in image.info:
        rgba = image.convert("RGBA")
        if np.asarray(rgba)[..., 3].min() < 255:
            traits.add("transparent")
            white = Image.new("RGBA", rgba.size, (255, 255, 255, 255))
            image = Image.alpha_composite(white, rgba).convert("RGB")
    return image if image.mode == mode else image.convert(mode)


def _from_sixteen_bits(image: Image.Image) -> Image.Image:
    """Scale 0..65535 to 0..255; the decoder's own conversion would clip at 255."""
    values = np.asarray(image).astype(np.int64)
    if values.min() < 0 or values.max() > 65535:
        raise BadPicture("32-bit pixels beyond 0..65535, whose white is not known")
    return Image.fromarray(((values + 128) // 257).astype(np.uint8))


def _cover(image: Image.Image, size: Size) -> Image.Image:
    """Scale until ``size`` is just covered, bilinear with antialiasing, and cut the centre out."""
    height, width = size
    scale = min(image.width / width, image.height / height)
    box_w, box_h = min(width * scale, image.width), min(height * scale, image.height)
    left, top = (image.width - box_w) / 2, (image.height - box_h) / 2
    return image.resize(
        (width, height),
        Image.Resampling.BILINEAR,
        box=(left, top, left + box_w, top + box_h),
    )
