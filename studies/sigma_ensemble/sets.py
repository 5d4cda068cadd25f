"""Rows of the study: CIFAR-10, Fashion-MNIST, CLINC150, and what they are tested against.

Pictures come from the cache of ``studies/data/prepare.py`` (6,000 rows to train, 2,000 to validate
and 2,000 to test, drawn there once), texts from the CSV files of CLINC150. ``fit`` rows choose
temperatures, learning rates and defaults; ``test`` rows choose nothing.
"""

from __future__ import annotations

import csv
import os
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from temperance.study.data_splits import nested_rows
from temperance.training.preprocess import Preprocess

__all__ = ["SETS", "Rows", "load"]

SETS = ("cifar10", "fashion-mnist", "clinc150")
CLINC = Path(__file__).parents[3] / "shared" / "data" / "clinc150"  # of the checkout that has one
TOKENS, LEAST_COUNT = 20, 2
"""Words of a text that are read; how often a word stands in the training rows to be known."""


@dataclass(frozen=True)
class Ids:
    """What ``Preprocess`` is for pictures: word ids become the input of a net as they are."""

    def apply(self, x: NDArray[Any]) -> torch.Tensor:
        """Give int64 ``[B, L]``."""
        return torch.from_numpy(np.ascontiguousarray(x))


@dataclass(frozen=True, eq=False)
class Rows:
    """One data set, cut to the size of a cell.

    Attributes:
        x: stored rows by split ``train``, ``fit``, ``test``: uint8 pictures ``[n, H, W, C]`` or
            int64 word ids ``[n, L]``, 0 behind the end.
        y: class ids by split.
        ood: stored rows of other things by name.
        n_classes: C.
        words: size of the vocabulary, texts only.
        preprocess: what makes the input of a net.
    """

    x: Mapping[str, NDArray[Any]]
    y: Mapping[str, NDArray[np.int64]]
    n_classes: int
    preprocess: Any
    words: int = 0
    ood: Mapping[str, NDArray[Any]] = field(default_factory=dict)

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one input: ``(C, H, W)`` or ``(L,)``."""
        shape = self.x["train"].shape[1:]
        return (shape[2], *shape[:2]) if len(shape) == 3 else shape


def load(name: str, train_rows: int) -> Rows:
    """Read a set; the training rows of a smaller cell are among those of a larger one."""
    rows = _clinc() if name == "clinc150" else _pictures(name)
    keep = nested_rows(rows.y["train"], train_rows, rows.n_classes)
    x = {**rows.x, "train": rows.x["train"][keep]}
    y = {**rows.y, "train": rows.y["train"][keep]}
    preprocess = rows.preprocess if rows.words else _standardized(x["train"])
    return Rows(x, y, rows.n_classes, preprocess, rows.words, rows.ood)


# ------------------------------------------------------------------ pictures
def _pictures(name: str) -> Rows:
    x, y, n_classes = _cached(name)
    ood = {}
    if name == "fashion-mnist":
        ood = {"mnist": _cached("mnist")[0]["test"], "digits": _digits()}
    return Rows(x, y, n_classes, None, ood=ood)


def _cached(name: str) -> tuple[dict[str, NDArray[Any]], dict[str, NDArray[Any]], int]:
    with np.load(Path(os.environ["TEMPERANCE_DATA"]) / f"{name}.npz") as file:
        x, y, split, classes = (file[k] for k in ("x", "y", "split", "classes"))
    codes = {"train": 0, "fit": 1, "test": 2}
    return (
        {part: x[split == code] for part, code in codes.items()},
        {part: y[split == code].astype(np.int64) for part, code in codes.items()},
        len(classes),
    )


def _digits() -> NDArray[np.uint8]:
    """scikit-learn's digits, 8 x 8, made 24 x 24 and framed to 28 x 28."""
    from sklearn.datasets import load_digits

    small = np.round(load_digits().images * (255 / 16)).astype(np.uint8)
    large = small.repeat(3, axis=1).repeat(3, axis=2)
    return np.pad(large, ((0, 0), (2, 2), (2, 2)))[..., None]


def _standardized(train: NDArray[np.uint8]) -> Preprocess:
    values = train.reshape(-1, train.shape[-1]) / 255
    c, h, w = train.shape[-1], *train.shape[1:3]
    mean, std = (tuple(map(float, f(values, axis=0))) for f in (np.mean, np.std))
    return Preprocess("images", (c, h, w), mean, std, 255.0, c, "uint8")


# ------------------------------------------------------------------ texts
def _clinc() -> Rows:
    texts = {part: _csv(CLINC / f"{part}.csv") for part in ("train", "val", "test", "oos_test")}
    classes = {label: i for i, label in enumerate(sorted({label for _, label in texts["train"]}))}
    counts = Counter(w for text, _ in texts["train"] for w in _words(text))
    known = sorted(w for w, n in counts.items() if n >= LEAST_COUNT)
    ids = {w: i + 2 for i, w in enumerate(known)}  # 0: behind the end; 1: unknown
    x = {part: _encoded(rows, ids) for part, rows in texts.items()}
    y = {
        part: np.array([classes[label] for _, label in texts[part]], dtype=np.int64)
        for part in ("train", "val", "test")
    }
    return Rows(
        {"train": x["train"], "fit": x["val"], "test": x["test"]},
        {"train": y["train"], "fit": y["val"], "test": y["test"]},
        len(classes),
        Ids(),
        words=len(ids) + 2,
        ood={"oos": x["oos_test"]},
    )


def _csv(file: Path) -> list[tuple[str, str]]:
    with file.open(encoding="utf-8", newline="") as handle:
        return [(row["text"], row["label"]) for row in csv.DictReader(handle)]


def _words(text: str) -> list[str]:
    return re.findall(r"[a-z0-9']+", text.lower())[:TOKENS]


def _encoded(rows: list[tuple[str, str]], ids: Mapping[str, int]) -> NDArray[np.int64]:
    out = np.zeros((len(rows), TOKENS), dtype=np.int64)
    for place, (text, _) in enumerate(rows):
        found = [ids.get(word, 1) for word in _words(text)]
        out[place, : len(found)] = found
    return out
