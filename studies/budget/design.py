"""Write the plans of the study: ``python design.py FOLDER``; ``--costs`` prints what they cost.

Every setting is one draw of all factors at once from a scrambled Sobol sequence, so that effects
can be told apart; every part is space-filling by itself, so that a study that is stopped early is
a smaller study and not half of one. Data sets that are held out are in plans of their own.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import qmc

# ------------------------------------------------------------------ data
TABLE = (("standardized", None), ("standardized|rff:128", 128))
TEXT = (
    ("tfidf-svd:32", 32),
    ("tfidf-svd:128", 128),
    ("tfidf-svd:512", 512),
    ("char-svd:128", 128),
    ("minilm", 384),
)
WORDS = (("char-svd:32", 32), ("char-svd:128", 128), ("char-svd:512", 512))
GLYPHS = (("pca:64", 64), ("pca:256", 256), ("pixels", 1024))
PHOTOS = (("pca:64", 64), ("pca:256", 256), ("efficientnet-lite0:4", 112))
SMALL = (("pixels", 64), ("pca:32", 32))


@dataclass(frozen=True)
class Data:
    """A data set: classes, training rows, numbers of a raw row, and representations."""

    name: str
    kind: str
    classes: int
    rows: int
    raw: int
    features: tuple[tuple[str, int | None], ...]
    side: int = 0  # of pictures, in pixels
    channels: int = 1


LAW = (
    Data("mnist", "picture", 10, 6000, 784, (("pca:64", 64), ("pixels", 784)), 28),
    Data("cifar10", "picture", 10, 6000, 3072, PHOTOS, 32, 3),
    Data("digits", "picture", 10, 1078, 64, SMALL, 8),
    Data("glyphs-latin", "picture", 62, 4464, 1024, GLYPHS, 32),
    Data("glyphs-greek", "picture", 49, 3528, 1024, GLYPHS, 32),
    Data("glyphs-accents", "picture", 190, 6000, 1024, GLYPHS, 32),
    Data("typefaces", "picture", 150, 5573, 1024, GLYPHS, 32),
    Data("clinc150", "text", 150, 6000, 512, TEXT),
    Data("debian-sections", "text", 54, 6000, 512, TEXT),
    Data("locale-languages", "text", 221, 6000, 512, WORDS),
    Data("fortunes", "text", 36, 6000, 512, TEXT),
    Data("bible-books", "text", 64, 6000, 512, TEXT),
    Data("food-reviews", "text", 2, 2983, 512, TEXT),
    Data("letter", "table", 26, 6000, 16, TABLE),
    Data("shuttle", "table", 7, 6000, 9, TABLE),
    Data("diamonds", "table", 5, 6000, 22, TABLE),
    Data("spam", "table", 2, 2761, 57, TABLE),
    Data("ames-neighborhood", "table", 26, 1756, 283, TABLE[:1]),
    Data("income", "table", 9, 5396, 83, TABLE),
    Data("hpc-jobs", "table", 4, 2599, 26, TABLE),
)
HELD_OUT = (
    Data("fashion-mnist", "picture", 10, 6000, 784, (("pca:64", 64), ("pixels", 784)), 28),
    Data("glyphs-kana", "picture", 176, 6000, 1024, GLYPHS, 32),
    Data("wordnet-fields", "text", 43, 6000, 512, TEXT),
    Data("word-lists", "text", 21, 6000, 512, WORDS),
    Data("satellite", "table", 6, 3861, 36, TABLE),
    Data("vowel", "table", 11, 594, 9, TABLE),
    Data("german-credit", "table", 2, 600, 59, TABLE),
)
TABLES = tuple(data for data in LAW if data.kind == "table" or data.name == "digits")
FROZEN = (
    Data("fashion-mnist", "picture", 10, 6000, 784, (("efficientnet-lite0:7", 1280),)),
    Data("glyphs-kana", "picture", 176, 6000, 1024, (("efficientnet-lite0:7", 1280),)),
    Data("wordnet-fields", "text", 43, 6000, 512, (("minilm", 384),)),
)
PICTURES = HELD_OUT[:2]

# ------------------------------------------------------------------ factors
RATES = {"sgd": (3e-3, 3.0), "adamw": (1e-4, 1e-2), "rmsprop": (1e-4, 1e-2)}
DECAYS = {"sgd": (1e-5, 1e-2), "adamw": (1e-5, 1e-1), "rmsprop": (1e-5, 1e-2)}
BATCHES = (16, 32, 64, 128, 256)
MOMENTA = (0.0, 0.5, 0.9)
Setting = dict[str, Any]
COLUMNS = 15


def log_between(u: float, low: float, high: float) -> float:
    """A number between two, evenly spaced in the logarithm."""
    return math.exp(math.log(low) + u * (math.log(high) - math.log(low)))


def one_of(u: float, values: Sequence[Any], shares: Sequence[float] | None = None) -> Any:
    """One of some values, by shares."""
    ends = np.cumsum(shares or [1 / len(values)] * len(values))
    return values[min(int(np.searchsorted(ends, u, side="right")), len(values) - 1)]


def common(u: Sequence[float], data: Data, *, steps: tuple[float, float]) -> Setting:
    """The factors that all nets have; ``u`` are numbers from 0 to 1."""
    optimizer = one_of(u[0], ("sgd", "adamw", "rmsprop"), (0.4, 0.3, 0.3))
    fewest = max(300, 3 * data.classes)
    decay = 0.0 if u[7] < 0.4 else log_between((u[7] - 0.4) / 0.6, *DECAYS[optimizer])
    return {
        "dataset": data.name,
        "norm": one_of(u[1], ("batch", "layer", "none"), (0.6, 0.2, 0.2)),
        "optimizer": optimizer,
        "lr": short(log_between(u[2], *RATES[optimizer])),
        "weight_decay": short(decay),
        "momentum": one_of(u[8], MOMENTA) if optimizer == "sgd" else 0.0,
        "schedule": one_of(u[6], ("cosine", "constant")),
        "batch_size": one_of(u[5], BATCHES),
        "steps": round(log_between(u[3], *steps)),
        "train_rows": round(log_between(u[4], fewest, data.rows)),
        "label_noise": one_of(u[9], (0.0, 0.1, 0.2, 0.4), (0.5, 0.17, 0.17, 0.16)),
    }


def short(value: float) -> float:
    """Three digits, which plans and tables can show."""
    return float(f"{value:.3g}")


def any_net(
    u: Sequence[float],
    sets: Sequence[Data],
    *,
    conv: float,
    steps: tuple[float, float] = (30, 6000),
) -> tuple[Setting, float]:
    """A perceptron on features, or (a share of pictures) a convolutional net; and its cost."""
    data = one_of(u[10], sets)
    setting = common(u, data, steps=steps)
    width = round(log_between(u[11], 16, 2048))
    if data.side and u[12] > 1 - conv:
        setting |= {"features": "input", "model": "convnet", "feature_dim": min(width, 256)}
        return setting, seconds(setting, data, data.raw)
    features, inside = one_of(u[13], data.features)
    setting |= {"features": features, "feature_dim": width}
    setting["model"] = "mlp" if u[12] / (1 - conv * bool(data.side)) < 0.5 else "mlp1"
    return setting, seconds(setting, data, inside or data.raw)


def resnet(u: Sequence[float], sets: Sequence[Data]) -> tuple[Setting, float]:
    """A kind of net that no fit saw."""
    data = one_of(u[10], sets)
    setting = common(u, data, steps=(40, 400)) | {"features": "input", "model": "resnet"}
    setting |= {
        "batch_size": one_of(u[5], (16, 32)),
        "feature_dim": round(log_between(u[11], 32, 512)),
    }
    return setting, seconds(setting, data, data.raw)


def probe(u: Sequence[float], sets: Sequence[Data]) -> tuple[Setting, float]:
    """A linear probe on features of a pretrained net."""
    data = one_of(u[10], sets)
    features, inside = data.features[0]
    setting = common(u, data, steps=(30, 6000)) | {"features": features, "model": "probe"}
    return setting, seconds(setting, data, inside or data.raw)


def seconds(setting: Setting, data: Data, inside: int) -> float:
    """CPU seconds of one trial, roughly: from a few timed runs on one core."""
    m, c = setting.get("feature_dim") or inside, data.classes
    weights = {
        "probe": inside * c,
        "mlp1": inside * m + m * c,
        "mlp": inside * m + m * m + m * c,
        "convnet": 4608 + 288 * m + m * c,
        "resnet": 180_000 + m * c,
    }[setting["model"]]
    products = float(weights)
    if setting["model"] == "convnet":
        products = 150 * data.side**2 * data.channels + 4608 * (data.side / 2) ** 2
        products = 0.65 * (products + 288 * m * (data.side / 4) ** 2)
    if setting["model"] == "resnet":
        products = 4.2e6
    moved = weights * (4e-9 if setting["optimizer"] == "rmsprop" else 1.5e-9)
    step = 2e-4 + 3 * setting["batch_size"] * products / 2.2e10 + moved
    judged = 8 * 2000 * products / 2.2e10 + 0.01
    return setting["steps"] * step + judged


# ------------------------------------------------------------------ plans
SEEDS = 2
BELOW, ABOVE = 5, 5  # doublings of T on both sides of where the pilot places a grid


def temperatures(setting: Mapping[str, Any]) -> list[float]:
    """The grid of a setting: eleven points, doubling, around a rough guess.

    The guess was read off 64 cheap settings on a wide grid (``pilot.toml``, T = 1/16 to 4,096); it
    says where to look and not what is found: what is best at an end of a grid is counted.
    """
    mean = setting["lr"] * (0.5 if setting["schedule"] == "cosine" else 1.0)
    middle = {"adamw": 1.2, "rmsprop": 2.5}
    guess = middle.get(setting["optimizer"]) or (
        0.25 * (mean * setting["steps"] / (1 - setting["momentum"])) ** 0.6
    )
    guess *= (setting["train_rows"] / 1500) ** -0.4 * math.exp(3 * setting["label_noise"])
    at = min(max(round(math.log2(guess)), -1), 8)
    return [2.0**k for k in range(at - BELOW, at + ABOVE + 1)]


def trainings(setting: Mapping[str, Any]) -> int:
    """How many trainings a setting is: a product of what is listed, and seeds."""
    lists = (values for values in setting.values() if isinstance(values, list))
    return math.prod(map(len, lists)) * (1 if "seed" in setting else SEEDS)


def drawn(
    draw: Callable[[Sequence[float]], tuple[Setting, float]],
    *,
    seed: int,
    count: int,
    most: float,
    grid: Callable[[Mapping[str, Any]], list[float]] = temperatures,
) -> list[tuple[Setting, float]]:
    """The first settings of a sequence that cost no more than ``most`` seconds for all trials."""
    sobol = qmc.Sobol(COLUMNS, scramble=True, rng=np.random.default_rng(seed))
    found: list[tuple[Setting, float]] = []
    while len(found) < count:
        for u in sobol.random(64):
            setting, cost = draw([float(v) for v in u])
            tried = grid(setting)
            total = cost * trainings(setting | {"temperature": tried})
            if total <= most and len(found) < count:
                found.append((setting | {"temperature": tried}, total))
    return found


_SIZES = ((128, 28, 25), (64, 28, 25), (64, 0, 25), (64, 0, 25), (64, 0, 90), (64, 0, 90))
"""Settings of the law and held out, and the most seconds of a setting, by number of the part."""


def plans() -> dict[str, list[tuple[Setting, float]]]:
    """All plans by name, in the order in which they are run."""
    parts: dict[str, list[tuple[Setting, float]]] = {}
    for number, (law, held, most) in enumerate(_SIZES, start=1):
        parts[f"law-{number}"] = drawn(
            lambda u: any_net(u, LAW, conv=0.2), seed=number, count=law, most=most
        )
        if held:
            parts[f"held-out-{number}"] = [
                *drawn(
                    lambda u: any_net(u, HELD_OUT, conv=0), seed=100 + number, count=held, most=25
                ),
                *drawn(lambda u: probe(u, FROZEN), seed=200 + number, count=12, most=25),
                *drawn(lambda u: resnet(u, PICTURES), seed=300 + number, count=4, most=110),
            ]
    parts["small"] = drawn(lambda u: any_net(u, TABLES, conv=0), seed=500, count=64, most=8)
    return parts


def pilot() -> list[tuple[Setting, float]]:
    """A few cheap settings on a wide grid, to place the grids."""
    found = drawn(lambda u: any_net(u, LAW, conv=0), seed=1000, count=64, most=6.6)
    wide = [2.0**k for k in range(-4, 13, 2)]
    return [(s | {"temperature": wide, "seed": [0]}, c * 9 / 22) for s, c in found]


def text(name: str, settings: Sequence[tuple[Setting, float]]) -> str:
    """A plan: one product of temperatures and seeds for every setting."""
    lines = [f'name = "budget-{name}"', ""]
    for setting, _ in settings:
        full = setting | {"seed": setting.get("seed", list(range(SEEDS)))}
        lines += ["[[grids]]", *(f"{k} = {json.dumps(v)}" for k, v in full.items()), ""]
    return "\n".join(lines)


def write(all_plans: Mapping[str, list[tuple[Setting, float]]], folder: Path, costs: bool) -> None:
    """Write all plans, or say what they cost."""
    for name, settings in all_plans.items():
        if costs:
            total = sum(cost for _, cost in settings)
            runs = sum(trainings(s) for s, _ in settings)
            print(f"{name:12} {len(settings):4} settings {runs:6} trainings {total:7.0f} s")
        else:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / f"{name}.toml").write_text(text(name, settings), encoding="utf-8")


if __name__ == "__main__":
    write(plans() | {"pilot": pilot()}, Path(sys.argv[1]), "--costs" in sys.argv)
