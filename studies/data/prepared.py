"""A data set before it is cut to size, the cut itself, and the files of the cache."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from temperance.files import write_bytes
from temperance.labels import ClassMap
from temperance.study.data_sources import file_name
from temperance.study.data_splits import nested_rows
from temperance.training.dataset import DataSet, Part
from temperance.training.splits import make_splits

MOST = {"train": 6000, "val": 2000, "test": 2000}  # rows kept, so that a study is quick
LEAST_PER_CLASS = 8  # a class of fewer rows is left out


@dataclass(frozen=True, eq=False)
class Raw:
    """Rows as they come.

    Attributes:
        x: numbers ``[n, d]``, pictures uint8 ``[n, H, W(, C)]``, or ``n`` texts.
        y: names of classes, ``n`` of them.
        split: 0 train, 1 val, 2 test, where the source has a split; None otherwise. Without val
            (or test) that part is drawn from train.
    """

    x: NDArray[Any]
    y: NDArray[Any]
    split: NDArray[Any] | None = None

    @property
    def kind(self) -> str:
        """``text``, ``picture`` or ``table``."""
        if self.x.dtype.kind in "UO":
            return "text"
        return "picture" if self.x.ndim > 2 else "table"


@dataclass(frozen=True, eq=False)
class Cut:
    """Rows that the studies use: x, class ids, names of classes, split codes."""

    x: NDArray[Any]
    y: NDArray[np.int64]
    classes: tuple[str, ...]
    split: NDArray[np.int64]

    def part(self, code: int) -> NDArray[np.bool_]:
        """Mask of the rows of one split."""
        return self.split == code


def cut(name: str, raw: Raw) -> Cut:
    """Keep classes with rows enough, then rows of each split by class shares, always the same."""
    labels = np.asarray(raw.y).astype(str)
    names, ids, counts = np.unique(labels, return_inverse=True, return_counts=True)
    kept = np.flatnonzero(counts[ids] >= LEAST_PER_CLASS)
    names, ids = np.unique(labels[kept], return_inverse=True)
    codes = np.zeros(len(kept), np.int64) if raw.split is None else raw.split[kept]
    places = {part: np.flatnonzero(codes == c) for c, part in enumerate(MOST)}
    parts = {
        part: Part(index[:, None], ids[index], tuple(map(str, index)))
        for part, index in places.items()
        if len(index)
    }
    data = DataSet(name, "features", parts, ClassMap(tuple(names)))
    splits = make_splits(data, seed=0)
    chosen, code = [], []
    for c, (part, rows) in enumerate(
        zip(MOST, (splits.train, splits.fit, splits.test), strict=True)
    ):
        index = places[rows.part][rows.index]
        if len(index) > MOST[part]:
            index = index[nested_rows(ids[index], MOST[part], len(names))]
        chosen.append(kept[index])
        code.append(np.full(len(index), c, np.int64))
    rows = np.concatenate(chosen)
    order = {n: i for i, n in enumerate(names)}
    y = np.array([order[label] for label in labels[rows]], dtype=np.int64)
    return Cut(raw.x[rows], y, tuple(map(str, names)), np.concatenate(code))


def save(cache: Path, name: str, cut_: Cut, x: NDArray[Any], *, features: str = "") -> Path:
    """Write ``NAME.npz`` or ``NAME+FEATURES.npz``, whole or not at all."""
    path = cache / (file_name(name, features) if features else f"{name}.npz")
    arrays: Mapping[str, NDArray[Any]] = {
        "x": x if x.dtype == np.uint8 else np.ascontiguousarray(x, dtype=np.float32),
        "y": cut_.y,
        "classes": np.array(cut_.classes),
        "split": cut_.split.astype(np.int8),
    }
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for key, array in arrays.items():
            content = io.BytesIO()
            np.lib.format.write_array(content, array, allow_pickle=False)
            # A fixed date: the same data give the same file.
            info = zipfile.ZipInfo(f"{key}.npy", date_time=(1980, 1, 1, 0, 0, 0))
            archive.writestr(info, content.getvalue())
    write_bytes(path, buffer.getvalue())
    return path
