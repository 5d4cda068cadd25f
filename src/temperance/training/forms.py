"""Find out which of the accepted forms a source has, and hand it to the reader of that form."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from temperance.errors import InvalidInput
from temperance.training.csvfile import find_csv
from temperance.training.dataset import Found, FoundPart, part_name
from temperance.training.folder import find_folder, is_junk
from temperance.training.idx import find_idx, is_idx
from temperance.training.npz import find_npz
from temperance.training.parquet import find_parquet

__all__ = ["FORMS", "find"]

FORMS = (
    "the word digits (scikit-learn's 8x8 digits)",
    "a folder with one folder of pictures per class, or with train/ and val/ or test/ above these",
    "a .parquet file or a folder of train*.parquet, test*.parquet with pictures or features",
    "a .npz file with x and y, and x_val, y_val, x_test, y_test if there",
    "a .csv file of numbers with a column label, or a folder of train*.csv, test*.csv",
    "a folder with the IDX files of MNIST and its relatives (train-images-idx3-ubyte.gz, ...)",
)
_PARQUET = (".parquet", ".pq")
_SHOWN = 8


def find(source: str | Path, *, label: str) -> tuple[str, Found]:
    """Find out what a source is and have it read.

    Args:
        source: a word or a path, see ``FORMS``.
        label: name of the label column in tables.

    Returns:
        A short name, and what the reader of that form found; pictures are not decoded yet.

    Raises:
        InvalidInput: if there is nothing, or nothing of a known form, or it cannot be read.
    """
    if source == "digits":
        found = _find_digits()
        if Path("digits").exists():
            text = "digits are scikit-learn's; the file or folder of that name is ./digits"
            found = replace(found, warnings=(text,))
        return "digits", found
    path = Path(source).expanduser()
    try:
        folder = path.is_dir()
        there = path.exists()
    except OSError as error:
        raise _bad(path, "a path that can be read", error.strerror or str(error)) from error
    if not there or source == "":
        raise _bad(path, "a file or folder", "nothing there", f"Accepted: {'; '.join(FORMS)}.")
    name = path.resolve().name
    if folder:
        return name, _find_in_folder(path, label)
    suffix = path.suffix.lower()
    if suffix == ".npz":
        return name, find_npz(path)
    if suffix == ".csv":
        return name, find_csv({"train": [path]}, label=label)
    if suffix in _PARQUET:
        return name, find_parquet({"train": [path]}, label=label)
    raise _bad(
        path, "; or ".join(FORMS), f"a file of the form {suffix or path.name!r}", _hint(path)
    )


def _hint(path: Path) -> str:
    return "Pass the folder of the file." if is_idx(path.name) else "Convert it to one of these."


def _find_digits() -> Found:
    from sklearn.datasets import load_digits

    bunch = load_digits()
    x = bunch.images.astype(np.uint8)[..., None]
    ids = tuple(f"digits[{i}]" for i in range(len(x)))
    return Found("images", {"train": FoundPart(x, bunch.target, ids)}, white=16.0)


def _find_in_folder(root: Path, label: str) -> Found:
    try:
        entries = sorted(p for p in root.iterdir() if not is_junk(p.name))
        folders = [p for p in entries if p.is_dir()]
        inner = [p for p in folders if p.name == "data" or part_name(p.name)]
        deeper = [q for p in inner for q in sorted(p.iterdir()) if not is_junk(q.name)]
    except OSError as error:
        raise _bad(root, "a folder that can be read", error.strerror or str(error)) from error
    idx = [p.name for p in entries if is_idx(p.name)]
    if idx:
        return find_idx(root, idx)
    parquet = [p for p in (*entries, *deeper) if p.suffix.lower() in _PARQUET]
    if parquet:
        parts, notices = _by_part(root, parquet)
        found = find_parquet(parts, label=label)
        return replace(found, notices=(*found.notices, *notices))
    tables = [p for p in entries if p.suffix.lower() == ".csv"]
    if tables and not folders:
        parts, notices = _by_part(root, tables)
        found = find_csv(parts, label=label)
        return replace(found, notices=(*found.notices, *notices))
    return find_folder(root)


def _part_of(root: Path, path: Path) -> str | None:
    """Part of a table by its name (``train-00000-of-00002``) or by the folders it lies in."""
    folders = path.relative_to(root).parts[:-1]
    words = [re.split(r"[-_.\d]", path.stem, maxsplit=1)[0], *reversed(folders)]
    return next((part for word in words if (part := part_name(word))), None)


def _by_part(root: Path, files: Sequence[Path]) -> tuple[dict[str, list[Path]], list[str]]:
    """Tables by part; files that name none are all train, or beside others are left out."""
    by_part: dict[str | None, list[Path]] = {}
    for path in files:
        by_part.setdefault(_part_of(root, path), []).append(path)
    others = by_part.pop(None, [])
    if not by_part:
        return {"train": list(others)}, []
    if "train" not in by_part:
        names = ", ".join(str(p.relative_to(root)) for p in files[:_SHOWN])
        raise _bad(root, "a file whose name begins with train", names)
    skipped = ", ".join(str(p.relative_to(root)) for p in others[:_SHOWN])
    notices = [f"skipped {len(others)} files of no known part: {skipped}"] if others else []
    return {part: by_part[part] for part in ("train", "val", "test") if part in by_part}, notices


def _bad(path: Path, expected: str, found: str, fix: str = "Check the path.") -> InvalidInput:
    return InvalidInput(str(path), expected=expected, found=found, fix=fix)
