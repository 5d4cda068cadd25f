"""Write the plans of the study from the list of pairs: ``python plans.py FOLDER``.

Every plan is a TOML file for ``temperance sweep``. Data sets that are kept out of every fit are in
plans of their own, so that nothing can be fitted on them by mistake.
"""

from __future__ import annotations

import json
import sys
import tomllib
from pathlib import Path

PAIRS = Path(__file__).parents[1] / "data" / "pairs.toml"
SWEPT = "{{from = {low}, to = {high}, points = {points}}}"

MOST_WEIGHTS = 70_000  # M * C; larger probes would take more than half of all time

SMALL = ("vowel", "german-credit")  # held out, and below the 250 test rows of the shorter list

# Study 1: how the best T depends on M. One data set of every kind, none of them held out.
DIMENSION = ("mnist", "cifar10", "letter", "glyphs-greek", "shuttle", "food-reviews")
WIDTHS = [16, 64, 256, 512, 2048]
REPRESENTED = {"picture": "pca:32", "text": "tfidf-svd:128", "table": "standardized"}
RANDOM = {
    "picture": "pca:32|random-relu:{m}",
    "text": "tfidf-svd:128|random-relu:{m}",
    "table": "standardized|random-relu:{m}",
}


def represented(name: str, kind: str) -> str:
    """What a net takes of a data set; single words have no TF-IDF of words."""
    return "char-svd:128" if name in ("word-lists", "locale-languages") else REPRESENTED[kind]


def pairs(*, held_out: bool) -> list[dict[str, object]]:
    """The pairs of the shorter list, of the data sets that are held out or of the others."""
    listed = tomllib.loads(PAIRS.read_text(encoding="utf-8"))
    held = set(listed["held_out"])
    return [
        p
        for p in listed["pairs"]
        if (p["dataset"] in held) == held_out
        and (p["core"] or (p["dataset"] in SMALL and "pca" not in p["features"]))
        and p["M"] * p["C"] <= MOST_WEIGHTS
    ]


def kinds() -> dict[str, str]:
    """Kind of every data set."""
    listed = tomllib.loads(PAIRS.read_text(encoding="utf-8"))
    return {p["dataset"]: p["kind"] for p in listed["pairs"]}


def swept(low: float, high: float, points: int) -> str:
    """A grid of temperatures, evenly spaced in its logarithm."""
    return SWEPT.format(low=low, high=high, points=points)


def table(header: str, values: dict[str, object]) -> str:
    """One TOML table; a text that begins with a brace is left as it is."""
    lines = [
        f"{k} = {v if isinstance(v, str) and v.startswith('{') else json.dumps(v)}"
        for k, v in values.items()
    ]
    return "\n".join([header, *lines, ""])


def probes(*, held_out: bool) -> str:
    """Study 2: linear probes on frozen features; plain and normalized loss; BN in front."""
    by_set: dict[str, list[str]] = {}
    for pair in pairs(held_out=held_out):
        by_set.setdefault(str(pair["dataset"]), []).append(str(pair["features"]))
    parts = [
        table("[fixed]", {"model": "probe", "steps": 500, "batch_size": 64, "lr": 0.1}),
        table("[grid]", {"seed": "{count = 2}"}),
    ]
    for name, features in by_set.items():
        own = {"dataset": name, "features": features}
        for norm, losses, low, high in (
            ("none", ["plain", "normalized"], 1 / 256, 256.0),
            ("batch", ["plain"], 1 / 16, 64.0),
        ):
            points = 13 if norm == "none" else 8
            setting = {"norm": norm, "loss": losses, "temperature": swept(low, high, points)}
            parts.append(table("[[grids]]", {**own, **setting}))
    return "\n".join([f'name = "probes{"-held-out" if held_out else ""}"\n', *parts])


def dimension() -> str:
    """Study 1: M from 16 to 2048, no norm, LN and BN; probes on random features, and nets."""
    common = {"norm": ["none", "layer", "batch"], "seed": "{count = 2}"}
    parts = [table("[fixed]", {"batch_size": 64}), table("[grid]", common)]
    kind = kinds()
    for name in filter(kind.get, DIMENSION):
        features = [RANDOM[kind[name]].format(m=m) for m in WIDTHS]
        probe = {"dataset": name, "features": features, "model": "probe", "steps": 500, "lr": 0.1}
        parts.append(table("[[grids]]", {**probe, "temperature": swept(1 / 32, 128.0, 9)}))
        net = {
            "dataset": name,
            "features": REPRESENTED[kind[name]],
            "model": "mlp1",
            "feature_dim": WIDTHS,
            "steps": 500,
            "lr": 0.05,
        }
        parts.append(table("[[grids]]", {**net, "temperature": swept(1 / 16, 64.0, 8)}))
    return "\n".join(['name = "temperature-and-dimension"\n', *parts])


def networks(*, held_out: bool) -> str:
    """Study 3: whole networks on every data set, two budgets."""
    parts = [
        table("[fixed]", {"batch_size": 64, "lr": 0.05, "model": "mlp", "feature_dim": 128}),
        table(
            "[grid]",
            {
                "norm": ["none", "batch"],
                "steps": [250, 2000],
                "seed": "{count = 2}",
                "temperature": swept(1 / 4, 64.0, 8),
            },
        ),
    ]
    named = {str(p["dataset"]): str(p["kind"]) for p in pairs(held_out=held_out)}
    for name, kind in named.items():
        own = {"dataset": name, "features": represented(name, kind)}
        parts.append(table("[[grids]]", own))
        # the first runs of the longer budget were often best at the upper end, T = 64
        parts.append(table("[[grids]]", {**own, "steps": 2000, "temperature": [128.0, 256.0]}))
    return "\n".join([f'name = "networks{"-held-out" if held_out else ""}"\n', *parts])


def main(folder: Path) -> None:
    """Write all plans."""
    folder.mkdir(parents=True, exist_ok=True)
    plans = {
        "dimension": dimension(),
        "probes": probes(held_out=False),
        "probes-held-out": probes(held_out=True),
        "networks": networks(held_out=False),
        "networks-held-out": networks(held_out=True),
    }
    for name, text in plans.items():
        (folder / f"{name}.toml").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
