"""Find the data set or the file of features that a study names, and read it."""

from __future__ import annotations

import os
import zipfile
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from temperance.arrays import first_nonfinite_row
from temperance.errors import InvalidInput, NotFound
from temperance.labels import ClassMap, check_ids
from temperance.training.dataset import DataSet, Part
from temperance.training.sources import open_data

__all__ = ["BUILT_IN", "ROOT_VARIABLE", "feature_file", "file_name", "find_source", "read_source"]

ROOT_VARIABLE = "TEMPERANCE_DATA"
_MOST_CHANNELS = 4
_CHUNK = 1 << 22  # numbers looked at together
_ROUNDING = 1e-12  # a range below this share of the numbers is rounding of float64: a constant
_BLUR = 0.05  # root mean square of what float32 rounds away, as a share of the spread
_PREPARE = "Prepare it: python studies/data/prepare.py CACHE, then set TEMPERANCE_DATA=CACHE."


def find_source(dataset: str, data_root: str | os.PathLike[str] | None) -> str | Path:
    """Find what a name stands for: a built-in, ``ROOT/NAME.npz``, or a path, in this order.

    Args:
        dataset: the name or path.
        data_root: folder of prepared data sets; ``$TEMPERANCE_DATA`` if absent.

    Returns:
        The name of a built-in data set, or the path of what is there.

    Raises:
        NotFound: with the names that there are.
    """
    if dataset in BUILT_IN:
        return dataset
    root = root_of(data_root)
    prepared = root / f"{dataset}.npz" if root else None
    if prepared is not None and prepared.is_file():
        return prepared
    path = Path(dataset).expanduser()
    if dataset and path.exists():
        return path
    if ready := [n for n in _stems(root) if n.startswith(f"{dataset}+")]:
        raise NotFound(
            f"rows of data set {dataset!r}",
            found=f"no {dataset}.npz in {root}, only features that are ready",
            candidates=[n.partition("+")[2] for n in ready],
            fix="Name one of these as the features.",
        )
    raise NotFound(
        f"data set {dataset!r}",
        found="no built-in data set, nothing at that path, and "
        + (f"no {dataset}.npz in {root}" if root else f"no folder in ${ROOT_VARIABLE}"),
        candidates=(*BUILT_IN, *_names(root)),
        fix=_PREPARE,
    )


def feature_file(
    dataset: str, step: str, *, data_root: str | os.PathLike[str] | None, known: tuple[str, ...]
) -> Path:
    """Find a file of ready features: ``NAME+STEP.npz`` in the root, or beside the data.

    Args:
        dataset: name or path of the data set.
        step: what the rows went through, for instance ``efficientnet-lite0:3``.
        data_root: folder of prepared data sets; ``$TEMPERANCE_DATA`` if absent.
        known: names of the extractors that need no file, for the message.

    Returns:
        The file.

    Raises:
        NotFound: with the representations that there are.
    """
    root, path = root_of(data_root), Path(dataset).expanduser()
    folders = [root] if root else []
    if path.suffix or len(path.parts) > 1:
        folders.insert(0, path.parent)
    stem = path.stem if path.suffix == ".npz" else path.name
    wanted = file_name(stem, step)
    for folder in folders:
        if (folder / wanted).is_file():
            return folder / wanted
    names = [n for folder in folders for n in _stems(folder) if n.startswith(f"{stem}+")]
    if not names:
        find_source(dataset, data_root)  # the data set itself may be what is not there
    raise NotFound(
        f"features {step!r} of {dataset}",
        found=f"no such extractor, and no {wanted} in "
        + (", ".join(map(str, folders)) or f"${ROOT_VARIABLE}, which is not set"),
        candidates=(*known, *(n.partition("+")[2] for n in names)),
        fix=f"Correct the name. {_PREPARE}",
    )


def file_name(dataset: str, step: str) -> str:
    """Name of the file that holds ready features: ``:`` of the step becomes ``-``."""
    return f"{dataset}+{step.replace(':', '-')}.npz"


def root_of(data_root: str | os.PathLike[str] | None) -> Path | None:
    """Folder of prepared data sets, or None where none is named."""
    named = data_root if data_root is not None else os.environ.get(ROOT_VARIABLE)
    return Path(named).expanduser() if named else None


def _names(folder: Path | None) -> list[str]:
    return sorted({stem.partition("+")[0] for stem in _stems(folder)} - set(BUILT_IN))


def _stems(folder: Path | None) -> list[str]:
    return sorted(p.stem for p in folder.glob("*.npz")) if folder else []


# ------------------------------------------------------------------ reading
def read_source(source: str | Path) -> DataSet:
    """Read a built-in data set, a prepared ``.npz``, or anything that ``open_data`` reads.

    A prepared file holds ``x`` (features float ``[n, M]``, or pictures uint8 ``[n, H, W]`` or
    ``[n, H, W, C]``), ``y`` (class ids), ``classes`` (names) and, where the rows have a split of
    their own, ``split`` (0 train, 1 val, 2 test).

    Args:
        source: what ``find_source`` gave.

    Returns:
        The data set, with the parts that it has.

    Raises:
        InvalidInput: if it cannot be read, is not finite, has fewer than two classes, or has a
            column whose differences float32 cannot hold.
    """
    if isinstance(source, str):
        return BUILT_IN[source]()
    if source.suffix == ".npz":
        arrays = _load(source)
        if arrays.keys() & {"classes", "split"}:
            return _prepared(source, arrays)
        for name in arrays.keys() & {"x", "x_val", "x_test"}:
            _check_precision(source, name, arrays[name])
    return open_data(source)


def _load(path: Path) -> dict[str, NDArray[Any]]:
    try:
        with path.open("rb") as file:
            if not zipfile.is_zipfile(file):
                raise EOFError("something else, or a part of one")
            file.seek(0)
            with np.load(file, allow_pickle=False) as arrays:
                return {name: arrays[name] for name in arrays.files}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise _bad(path, "a complete .npz file of plain arrays", str(error)) from error


def _prepared(path: Path, arrays: Mapping[str, NDArray[Any]]) -> DataSet:
    if lacking := sorted({"x", "y", "classes"} - arrays.keys()):
        raise _bad(path, "x, y and classes", f"no {', '.join(lacking)}")
    x, classes = arrays["x"], ClassMap(tuple(map(str, arrays["classes"])))
    y = check_ids(arrays["y"], len(classes), subject=f"{path}: y")
    _check_rows(path, x, len(y))
    pictures = x.ndim > 2
    split = arrays.get("split", np.zeros(len(y), dtype=np.int64))
    if split.shape != y.shape or not np.isin(split, (0, 1, 2)).all():
        raise _bad(path, "split with 0, 1 or 2 for every row", f"shape {list(split.shape)}")
    parts = {}
    for code, name in enumerate(("train", "val", "test")):
        index = np.flatnonzero(split == code)
        if len(index) or name == "train":
            rows = x[index] if pictures else x[index].astype(np.float32)
            rows = rows[..., None] if rows.ndim == 3 else rows
            parts[name] = Part(rows, y[index], tuple(f"x[{i}]" for i in index))
    kind, white = ("images", 255.0) if pictures else ("features", None)
    return DataSet(path.stem, kind, parts, classes, white=white)  # type: ignore[arg-type]


def _check_rows(path: Path, x: NDArray[Any], n: int) -> None:
    good = (x.ndim == 2 and x.dtype.kind in "fiub") or (x.ndim in (3, 4) and x.dtype == np.uint8)
    if not good or 0 in x.shape or len(x) != n:
        raise _bad(
            path,
            f"x of {n} rows: numbers [n, M], or pictures of bytes [n, H, W] or [n, H, W, C]",
            f"type {x.dtype}, shape {list(x.shape)}",
        )
    if (bad := first_nonfinite_row(x)) is not None:
        raise _bad(path, "finite numbers", f"NaN or infinity in row {bad} of x")
    if x.ndim == 4 and x.shape[1] <= _MOST_CHANNELS < min(x.shape[2:]):
        found = f"shape {list(x.shape)}, where the channels seem to come first"
        raise _bad(path, "pictures [n, H, W, C], the channels last", found)
    _check_precision(path, "x", x)


def _check_precision(path: Path, name: str, x: NDArray[Any]) -> None:
    """Refuse numbers of which float32, in which everything is trained, would leave nothing.

    Seconds since 1970, for instance, would become values 128 seconds apart.
    """
    exact = x.dtype.itemsize <= (4 if x.dtype.kind == "f" else 2)
    if exact or x.ndim != 2 or x.dtype.kind not in "fiu" or 0 in x.shape:
        return
    step = max(1, _CHUNK // len(x))
    for start in range(0, x.shape[1], step):
        block = x[:, start : start + step].astype(np.float64)
        low, high = block.min(axis=0), block.max(axis=0)
        largest = np.maximum(np.abs(low), np.abs(high))
        if (largest > np.finfo(np.float32).max).any():
            found = f"{largest.max():.3g} in {name}"
            raise _bad(path, "finite numbers that float32 can hold", found)
        error = np.sqrt(np.square(block - block.astype(np.float32)).mean(axis=0))
        varies = high - low > _ROUNDING * largest
        if (blurred := varies & (error > _BLUR * block.std(axis=0))).any():
            at = int(blurred.argmax())
            raise InvalidInput(
                f"{path}: column {start + at} of {name}",
                expected="numbers whose differences float32 can hold",
                found=f"{low[at]:.10g} to {high[at]:.10g}: most of the differences would be lost",
                fix="Subtract the mean of that column, or standardize it, and write the file "
                "again.",
            )


def _table(name: str) -> DataSet:
    from sklearn import datasets

    bunch = getattr(datasets, f"load_{name}")()
    y = bunch.target.astype(np.int64)
    part = Part(bunch.data.astype(np.float32), y, tuple(f"{name}[{i}]" for i in range(len(y))))
    classes = ClassMap(tuple(map(str, bunch.target_names)))
    return DataSet(name, "features", {"train": part}, classes)


BUILT_IN: Mapping[str, Callable[[], DataSet]] = {
    "digits": lambda: open_data("digits"),
    "wine": lambda: _table("wine"),
    "breast_cancer": lambda: _table("breast_cancer"),
    "iris": lambda: _table("iris"),
}
"""Data sets that scikit-learn ships. ``digits`` are pictures, the others tables."""


def _bad(path: Path, expected: str, found: str) -> InvalidInput:
    return InvalidInput(
        str(path), expected=expected, found=found, fix="Write the file again, see study.data."
    )
