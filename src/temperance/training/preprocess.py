"""From stored rows to what the net sees: one record, used by training and by prediction alike."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional as nnf

from temperance.errors import InvalidInput
from temperance.training.dataset import DataSet
from temperance.training.decode import BadPicture, decode, quiet
from temperance.training.splits import Rows

__all__ = ["Preprocess", "augment", "decode_image", "make_preprocess"]

_CHUNK = 1 << 17  # numbers that are summed together: 1 MB in float64, which stays in the cache
_CONSTANT = 1e-7  # spread below this share of the mean is rounding of float32, not information


@dataclass(frozen=True)
class Preprocess:
    """How stored rows become the input of a net: ``(x / white - mean) / std``.

    Attributes:
        kind: ``"images"`` or ``"features"``.
        shape: shape of one input of the net: ``(channels, height, width)`` or ``(M,)``.
        mean: one number per channel or feature, in units of ``white``.
        std: likewise; positive.
        white: the value of white in stored pictures, which they are divided by; None: not divided.
        stored_channels: channels of stored pictures: ``channels``, or 1 where gray is replicated.
        dtype: type of stored rows: ``"uint8"`` or ``"float32"``.
    """

    kind: Literal["images", "features"]
    shape: tuple[int, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    white: float | None = None
    stored_channels: int | None = None
    dtype: str = "float32"

    def __post_init__(self) -> None:
        good = (
            self.kind in ("images", "features")
            and len(self.shape) == (3 if self.kind == "images" else 1)
            and len(self.mean) == len(self.std) == self.shape[0]
            and all(map(math.isfinite, self.mean))
            and all(math.isfinite(s) and s > 0 for s in self.std)
            and (self.white is None or self.white > 0)
            and (self.kind == "features" or self.stored_channels in (1, self.shape[0]))
        )
        if not good:
            raise InvalidInput(
                "preprocessing",
                expected="a shape, and a finite mean and a positive std for every channel",
                found=f"shape {self.shape}, {len(self.mean)} means, {len(self.std)} stds",
                fix="Make it with make_preprocess, or read the file that training wrote.",
            )

    @property
    def stored_shape(self) -> tuple[int, ...]:
        """Shape of one stored row: ``(height, width, stored channels)`` or ``(M,)``."""
        if self.kind == "features":
            return self.shape
        return (self.shape[1], self.shape[2], int(self.stored_channels or 0))

    def apply(self, x: NDArray[Any] | torch.Tensor) -> torch.Tensor:
        """Turn stored rows into the input of a net.

        Args:
            x: rows of any numeric type, an array or a tensor (on any device), shape
                ``[B, H, W, C]`` or ``[B, M]``.

        Returns:
            Float32, shape ``[B, C, H, W]`` or ``[B, M]``, on the device of ``x``.

        Raises:
            InvalidInput: if the rows have another shape than those of the training.

        Example:
            >>> p = Preprocess("features", (2,), mean=(1.0, 0.0), std=(2.0, 1.0))
            >>> p.apply(np.array([[3.0, 4.0]])).tolist()
            [[1.0, 4.0]]
        """
        rows = x if isinstance(x, torch.Tensor) else _as_tensor(x)
        if tuple(rows.shape[1:]) != self.stored_shape:
            raise InvalidInput(
                "input rows",
                expected=f"shape [B, {', '.join(map(str, self.stored_shape))}] as in training",
                found=f"shape {list(rows.shape)}",
                fix="Bring them to that shape; what decode_image gives has it.",
            )
        rows = rows.to(torch.float32)
        mean, std = (
            torch.tensor(v, dtype=torch.float32, device=rows.device)
            for v in self._in_stored_units()
        )
        if self.kind == "features":
            return (rows - mean) / std
        rows = rows.permute(0, 3, 1, 2).expand(-1, self.shape[0], -1, -1)
        return ((rows - mean[:, None, None]) / std[:, None, None]).contiguous()

    def _in_stored_units(self) -> tuple[list[float], list[float]]:
        white = self.white or 1.0
        return [m * white for m in self.mean], [s * white for s in self.std]

    def to_dict(self) -> dict[str, Any]:
        """Give the record as plain values, for JSON."""
        return {k: list(v) if isinstance(v, tuple) else v for k, v in asdict(self).items()}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Preprocess:
        """Read what ``to_dict`` gave.

        Raises:
            InvalidInput: if a field is missing or of no use.
        """
        try:
            return cls(
                kind=data["kind"],
                shape=tuple(map(int, data["shape"])),
                mean=tuple(map(float, data["mean"])),
                std=tuple(map(float, data["std"])),
                white=None if data["white"] is None else float(data["white"]),
                stored_channels=data["stored_channels"],
                dtype=data["dtype"],
            )
        except (KeyError, TypeError) as error:
            raise InvalidInput(
                "preprocessing",
                expected="the fields that training wrote",
                found=f"{type(error).__name__}: {error}",
                fix="Use the file as it was written.",
            ) from error


def make_preprocess(
    data: DataSet,
    rows: Rows,
    *,
    channels: int | None = None,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
) -> Preprocess:
    """Make the record of a data set: its scale, and mean and spread of the training rows.

    Mean and standard deviation are those of all pixels of a channel, or of a feature, in float64
    and in one pass. A channel or feature that does not vary gets the standard deviation 1.

    Args:
        data: the data set.
        rows: the rows that are trained on; nothing is measured on any other.
        channels: channels that the net takes: those of the pictures, or 3 for gray ones, which are
            then replicated. Those of the pictures if absent.
        mean: the mean that a pretrained net was trained with, per channel, white = 1; measured if
            absent.
        std: likewise.

    Returns:
        The record.

    Raises:
        InvalidInput: if the pictures cannot have that many channels, or if ``mean`` is given for
            pictures whose white is not known.

    Example:
        >>> from temperance.training.sources import open_data
        >>> from temperance.training.splits import make_splits
        >>> data = open_data("digits")
        >>> p = make_preprocess(data, make_splits(data, seed=0).train)
        >>> p.shape, p.white, p.apply(data.parts["train"].x[:5]).shape
        ((1, 8, 8), 16.0, torch.Size([5, 1, 8, 8]))
    """
    x = data.parts[rows.part].x
    shape = data.input_shape
    stored = shape[0] if data.kind == "images" else None
    if channels is not None and stored is not None and channels != stored:
        if stored != 1:
            raise InvalidInput(
                "pictures",
                expected=f"{channels} channels, as the net takes",
                found=f"{stored}",
                fix="Choose a net that takes them, or convert the pictures.",
            )
        shape = (channels, *shape[1:])
    if mean is None or std is None:
        white = data.white or 1.0
        mean, std = _moments(x, rows.index)
        mean, std = [m / white for m in mean], [s / white for s in std]
        if shape[0] != len(mean):
            mean, std = mean * shape[0], std * shape[0]
    elif data.kind == "images" and data.white is None:
        raise InvalidInput(
            "pictures",
            expected="a known scale, for a net that was trained on pictures of 0 to white",
            found="an array on a scale of its own",
            fix="Store the pictures as whole numbers 0..255 or as fractions 0..1.",
        )
    return Preprocess(
        kind=data.kind,
        shape=shape,
        mean=tuple(map(float, mean)),
        std=tuple(map(float, std)),
        white=data.white,
        stored_channels=stored,
        dtype=str(x.dtype),
    )


def decode_image(picture: str | Path | bytes, preprocess: Preprocess) -> NDArray[Any]:
    """Decode one picture exactly as the pictures of the training were.

    Args:
        picture: a file, or the bytes of one.
        preprocess: the record of the training.

    Returns:
        One stored row, shape ``[H, W, C]``, of the type and scale of the training's rows.

    Raises:
        InvalidInput: naming the file, if it cannot be decoded; or if the net was trained on
            features, or on arrays whose scale no file has.
    """
    height, width, channels = preprocess.stored_shape if preprocess.kind == "images" else (0, 0, 0)
    if preprocess.kind != "images" or preprocess.white is None or channels not in (1, 3):
        raise InvalidInput(
            "picture",
            expected="a net that was trained on gray or RGB pictures with a known white",
            found=f"one trained on {preprocess.kind} of shape {list(preprocess.stored_shape)}",
            fix="Pass arrays like those of the training.",
        )
    try:
        with quiet():
            source = picture if isinstance(picture, bytes) else Path(picture)
            pixels = decode(source, size=(height, width), channels=channels).pixels
    except BadPicture as error:
        raise InvalidInput(
            "picture" if isinstance(picture, bytes) else str(picture),
            expected="a picture that can be decoded",
            found=str(error),
            fix="Repair or remove it.",
        ) from error
    if preprocess.white == 255 and preprocess.dtype == "uint8":
        return pixels
    scaled = pixels * (preprocess.white / 255)
    return (np.rint(scaled) if preprocess.dtype == "uint8" else scaled).astype(preprocess.dtype)


def augment(
    batch: torch.Tensor,
    generator: torch.Generator,
    *,
    flip: bool = True,
    pad: int | None = None,
) -> torch.Tensor:
    """Shift every picture at random, filling with zeros, and mirror half of them.

    Args:
        batch: pictures after ``Preprocess.apply``, shape ``[B, C, H, W]``, on any device.
        generator: the source of all draws, on the CPU.
        flip: whether pictures are mirrored left to right.
        pad: largest shift in pixels; an eighth of the height if absent (4 at 32 pixels).

    Returns:
        New pictures of the same shape and type.

    Reference:
        K. He et al., "Deep residual learning for image recognition", CVPR 2016, section 4.2.

    Example:
        >>> g = torch.Generator().manual_seed(0)
        >>> augment(torch.ones(2, 3, 32, 32), g).shape
        torch.Size([2, 3, 32, 32])
    """
    n, _, height, width = batch.shape
    pad = height // 8 if pad is None else pad
    down, right = (torch.randint(0, 2 * pad + 1, (n, 1), generator=generator) for _ in range(2))
    rows = (down + torch.arange(height)).to(batch.device)
    columns = right + torch.arange(width)
    if flip:
        mirrored = torch.rand(n, 1, generator=generator) < 0.5
        columns = torch.where(mirrored, columns.flip(1), columns)
    columns = columns.to(batch.device)
    padded = nnf.pad(batch, (pad, pad, pad, pad))
    which = torch.arange(n, device=batch.device)[:, None, None]
    moved = padded.permute(0, 2, 3, 1)[which, rows[:, :, None], columns[:, None, :]]
    return moved.permute(0, 3, 1, 2).contiguous()


def _as_tensor(x: NDArray[Any]) -> torch.Tensor:
    """Share an array's memory where torch can; it cannot for read-only and unusual types."""
    if x.dtype.kind == "u" and x.dtype != np.uint8:
        x = x.astype(np.int64)
    if not (x.flags.writeable and x.flags.c_contiguous and x.dtype.isnative):
        x = np.array(x, dtype=x.dtype.newbyteorder("="), order="C")
    return torch.from_numpy(x)


def _moments(x: NDArray[Any], index: NDArray[np.int64]) -> tuple[list[float], list[float]]:
    """Mean and standard deviation over all but the last axis, by merging chunks.

    Reference:
        T. Chan, G. Golub, R. LeVeque, "Algorithms for computing the sample variance", The American
        Statistician 37 (1983), equation 2.1.
    """
    width = x.shape[-1]
    step = max(1, _CHUNK // max(1, math.prod(x.shape[1:])))
    count, mean, squares = 0, np.zeros(width), np.zeros(width)
    for start in range(0, len(index), step):
        block = x[index[start : start + step]].reshape(-1, width).astype(np.float64)
        block_mean = block.mean(axis=0)
        delta, total = block_mean - mean, count + len(block)
        squares += ((block - block_mean) ** 2).sum(axis=0)
        squares += delta**2 * (count * len(block) / total)
        mean += delta * (len(block) / total)
        count = total
    std = np.sqrt(squares / max(1, count))
    constant = std <= _CONSTANT * np.abs(mean)  # also where both are 0
    return mean.tolist(), np.where(constant, 1.0, std).tolist()
