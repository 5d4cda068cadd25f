"""Make the data of the studies: python studies/data/prepare.py CACHE [--only NAME ...] [--pairs].

What is in the cache already is kept. ``--pairs`` afterwards loads every pair of data set and
representation, and writes the list ``studies/data/pairs.toml``.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import glyphs
import heavy
import numpy as np
import pictures
import tables
import texts
from prepared import Cut, cut, save

from temperance.study.data_sources import BUILT_IN, file_name

MAKERS = {**tables.MAKERS, **pictures.MAKERS, **glyphs.MAKERS, **texts.MAKERS}
NET_WIDTH = {"picture": 128, "text": 128, "table": 64}
NET_ROWS = 400  # training rows that a set needs for features of a trained net
LARGE = ("cifar10", "fashion-mnist")  # seen by EfficientNet at 96 pixels, all others at 64
LONG = ("bible-books", "food-reviews", "fortunes")  # MiniLM sees 32 tokens of these, 64 of others


def wanted_files(name: str, kind: str, n_train: int) -> list[str]:
    """Representations that are kept in files for a data set."""
    net = [f"net:{NET_WIDTH[kind]}"] if n_train >= NET_ROWS else []
    if kind == "picture":
        return [*net, *(f"efficientnet-lite0:{stage}" for stage in heavy.STAGES)]
    if kind == "table":
        return net
    letters = [*(f"char-svd:{w}" for w in heavy.SVD_WIDTHS), f"letters:{heavy.LETTERS}"]
    if name in texts.SINGLE_WORDS:
        return [*letters, *net]
    return [*(f"tfidf-svd:{w}" for w in heavy.SVD_WIDTHS), *letters, *net, "minilm"]


def prepare(cache: Path, name: str) -> None:
    """Make the files of one data set that are not there."""
    raw = MAKERS[name](cache / "raw")
    data = cut(name, raw)
    if raw.kind != "text" and name not in BUILT_IN and not (cache / f"{name}.npz").exists():
        save(cache, name, data, data.x)
    wanted = wanted_files(name, raw.kind, int(data.part(0).sum()))
    missing = [w for w in wanted if not (cache / file_name(name, w)).exists()]
    for family in dict.fromkeys(w.partition(":")[0] for w in missing):
        start = time.perf_counter()
        for features, x in _compute(cache, name, data, family).items():
            save(cache, name, data, x, features=features)
        print(f"{name} {family}: {time.perf_counter() - start:.0f} s", flush=True)


def _compute(cache: Path, name: str, data: Cut, family: str) -> heavy.Features:
    if family == "efficientnet-lite0":
        side = 96 if name in LARGE else 64
        return heavy.efficientnet_lite0(cache / "raw", data, side=side)
    if family == "minilm":
        return heavy.minilm(cache / "raw", data, tokens=32 if name in LONG else 64)
    if family in ("tfidf-svd", "char-svd"):
        return heavy.text_svd(data, letters=family == "char-svd")
    if family == "letters":
        return heavy.letters(data)
    if data.x.ndim == 4:
        return heavy.trained_net(data, data.x, width=NET_WIDTH["picture"], epochs=6)
    if data.x.dtype == object:
        letters = name in texts.SINGLE_WORDS
        x = heavy.text_svd(data, letters=letters, widths=(512,)).popitem()[1]
        return heavy.trained_net(data, x, width=NET_WIDTH["text"], epochs=8)
    return heavy.trained_net(data, data.x.astype(np.float32), width=NET_WIDTH["table"], epochs=20)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cache", type=Path)
    parser.add_argument("--only", nargs="*", default=list(MAKERS), choices=list(MAKERS))
    parser.add_argument("--pairs", action="store_true", help="write pairs.toml from the cache")
    arguments = parser.parse_args()
    cache = arguments.cache.expanduser().resolve()
    cache.mkdir(parents=True, exist_ok=True)
    if arguments.pairs:
        from pairs import write_pairs

        write_pairs(cache, Path(__file__).with_name("pairs.toml"))
        return
    for name in arguments.only:
        prepare(cache, name)


if __name__ == "__main__":
    main()
