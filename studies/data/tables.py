"""Tables of real measurements from R packages of Debian.

Categories become one column each, a missing one is a category too; rows with a missing number are
left out. Columns that name the row, or that tell the class, are dropped.
"""

from __future__ import annotations

import bz2
import functools
import lzma
import struct
import warnings
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import fetch
import numpy as np
from prepared import Raw

Maker = Callable[[Path], Raw]


def _site(raw: Path, package: str) -> Path:
    fetch.reader_of_r(raw)
    tree = fetch.debian(raw, [f"r-cran-{package}"])
    return tree / "usr/lib/R/site-library" / package / "data"


def read_object(raw: Path, package: str, name: str) -> Any:
    """One object of an R package, from its own file or from the package's lazy-load file."""
    folder = _site(raw, package)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of encodings and R classes that tables do not need
        return _read_in(folder, name)


def _read_in(folder: Path, name: str) -> Any:
    import rdata

    for path in folder.glob("*.[rR][dD]a*"):
        if path.suffix.lower() in (".rda", ".rdata") and name in path.stem:
            return rdata.read_rda(path)[name]
    if not (folder / "Rdata.rdx").exists():
        found = {k: v for p in folder.glob("*.RData") for k, v in rdata.read_rda(p).items()}
        return found[name]
    start, length = rdata.read_rds(folder / "Rdata.rdx")["variables"][name]
    block = (folder / "Rdata.rdb").read_bytes()[start : start + length]
    return rdata.conversion.convert(rdata.parser.parse_data(_unpack(block)))


def _unpack(block: bytes) -> bytes:
    """A block of R's lazy-load files: its length, then zlib; or a letter, then bzip2 or LZMA."""
    (length,) = struct.unpack(">I", block[:4])
    if block[4:5] == b"2":
        content = bz2.decompress(block[5:])
    elif block[4:5] == b"Z":
        filters = [{"id": lzma.FILTER_LZMA2, "preset": 6}]
        content = lzma.decompress(block[5:], format=lzma.FORMAT_RAW, filters=filters)
    else:
        content = zlib.decompress(block[4:])
    assert len(content) == length
    return content


def _numbers(frame: Any, *, nominal: bool) -> np.ndarray:
    """Columns of numbers, NaN where a number is missing."""
    blocks = []
    for column in frame.columns:
        values = frame[column]
        numeric = values.dtype.kind in "fiub" if hasattr(values.dtype, "kind") else False
        if not numeric and not nominal:
            numeric = _all_numbers(values)
        if numeric:
            blocks.append(np.array(values.tolist(), dtype=object)[:, None])
            continue
        texts = np.array(["missing" if _missing(v) else str(v) for v in values.tolist()])
        levels = np.unique(texts)
        levels = levels[1:] if len(levels) == 2 else levels
        blocks.append((texts[:, None] == levels).astype(object))
    wide = np.concatenate(blocks, axis=1)
    return np.array([[np.nan if _missing(v) else float(v) for v in row] for row in wide])


def _missing(value: Any) -> bool:
    """None, NaN, or the NA of pandas, which is neither equal nor unequal to itself."""
    return value is None or type(value).__name__ == "NAType" or value != value


def _all_numbers(values: Any) -> bool:
    levels = {str(v) for v in values.tolist() if not _missing(v)}
    try:
        return bool([float(level) for level in levels])
    except ValueError:
        return False


def _table(
    raw: Path, package: str, name: str, *, label: str, drop: Sequence[str], nominal: bool
) -> Raw:
    frame = read_object(raw, package, name)
    y = np.array([str(v) for v in frame[label].tolist()])
    x = _numbers(frame.drop(columns=[label, *drop]), nominal=nominal)
    whole = np.isfinite(x).all(axis=1)
    x, y = x[whole], y[whole]
    return Raw(x[:, x.std(axis=0) > 0].astype(np.float32), y)


def _described(raw: Path, descriptors: str, classes: str) -> Raw:
    """A table and its labels that caret keeps as two objects."""
    frame, y = read_object(raw, "caret", descriptors), read_object(raw, "caret", classes)
    x = _numbers(frame, nominal=False)
    return Raw(x[:, x.std(axis=0) > 0].astype(np.float32), np.array([str(v) for v in y.tolist()]))


# name: (package, object, label, dropped columns, whether numbers in factors are only names)
_TABLES: Mapping[str, tuple[str, str, str, tuple[str, ...], bool]] = {
    "letter": ("mlbench", "LetterRecognition", "lettr", (), False),
    "satellite": ("mlbench", "Satellite", "classes", (), False),
    "shuttle": ("mlbench", "Shuttle", "Class", (), False),
    "soybean": ("mlbench", "Soybean", "Class", (), True),
    "vehicle": ("mlbench", "Vehicle", "Class", (), False),
    "vowel": ("mlbench", "Vowel", "Class", ("V1",), False),
    "glass": ("mlbench", "Glass", "Type", (), False),
    "dna": ("mlbench", "DNA", "Class", (), False),
    "sonar": ("mlbench", "Sonar", "Class", (), False),
    "ionosphere": ("mlbench", "Ionosphere", "Class", (), False),
    "breast-cancer-wisconsin": ("mlbench", "BreastCancer", "Class", ("Id",), False),
    "pima": ("mlbench", "PimaIndiansDiabetes", "diabetes", (), False),
    "house-votes": ("mlbench", "HouseVotes84", "Class", (), True),
    "spam": ("kernlab", "spam", "type", (), False),
    "musk": ("kernlab", "musk", "Class", (), False),
    "income": ("kernlab", "income", "INCOME", (), True),
    "caravan": ("kernlab", "ticdata", "CARAVAN", (), True),
    "german-credit": ("caret", "GermanCredit", "Class", (), False),
    "cells": ("caret", "segmentationData", "Class", ("Cell", "Case"), False),
    "hpc-jobs": ("modeldata", "hpc_data", "class", (), False),
    "credit": ("modeldata", "credit_data", "Status", (), False),
    "stackoverflow": ("modeldata", "stackoverflow", "Remote", (), False),
    "ames-neighborhood": ("modeldata", "ames", "Neighborhood", ("Longitude", "Latitude"), False),
    "diamonds": ("ggplot2", "diamonds", "cut", (), False),
}

MAKERS: Mapping[str, Maker] = {
    **{
        name: functools.partial(
            lambda raw, row: _table(raw, row[0], row[1], label=row[2], drop=row[3], nominal=row[4]),
            row=row,
        )
        for name, row in _TABLES.items()
    },
    "mdrr": lambda raw: _described(raw, "mdrrDescr", "mdrrClass"),
}
