"""Write the plans of the temperatures that move: ``python moving.py FOLDER``; ``--costs`` as well.

Settings of the law's data sets, drawn as those of ``design.py`` with seeds of their own: SGD and
AdamW in turn, perceptrons, medium and long budgets, mostly BN. Each is trained with every path of T
(``Trial.path``), with the same seeds, at the law's T and up to three doublings on both sides.
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

import numpy as np
from design import COLUMNS, LAW, Setting, any_net, short
from scipy.stats import qmc

from temperance.study.trial import PATHS

SEEDS = (0, 1, 2)
DOUBLINGS = range(-3, 4)
SETTINGS = 5  # of one plan
PARTS = 6
STEPS, MOST = 300, 80.0
"""Fewest steps of a setting, since what moves needs time; most seconds, as ``design.seconds`` says
(it took a third of that)."""
LOW, HIGH = 1 / 8, 64.0  # of the law's T, so that the grid stays between the bounds of a learned T
PATH_COST = {"hypergradient": 1.6}  # a second forward pass; 1.5 to 2 when timed


def law(setting: Setting) -> float:
    """Give T* by validation NLL after a post-hoc T: the law as the first 128 settings had it.

    Of the forms with at most five terms those that cost least on data sets left out:
    ``progress, n`` for SGD, ``progress, epochs`` for AdamW (``analyse.py`` on ``law-1``).
    """
    mean = setting["lr"] * (0.5 if setting["schedule"] == "cosine" else 1.0)
    progress = mean * setting["steps"] / (1 - setting["momentum"])
    rows = setting["train_rows"]
    if setting["optimizer"] == "sgd":
        log = 0.9075 + 0.8455 * math.log(progress / 61.29) - 0.3847 * math.log(rows / 1000)
    else:
        epochs = setting["steps"] * min(setting["batch_size"], rows) / rows
        log = 1.0803 + 0.6816 * math.log(progress / 0.1208) - 0.5894 * math.log(epochs / 10)
    return short(min(max(math.exp(log), LOW), HIGH))


def settings() -> list[tuple[Setting, float]]:
    """The settings, and the seconds of each with all its trainings."""
    found: list[tuple[Setting, float]] = []
    for part in range(1, PARTS + 1):
        sobol = qmc.Sobol(COLUMNS, scramble=True, rng=np.random.default_rng(500 + part))
        mine: list[tuple[Setting, float]] = []
        while len(mine) < SETTINGS:
            setting, cost = any_net([float(v) for v in sobol.random(1)[0]], LAW, conv=0)
            per_t = sum(PATH_COST.get(path, 1.0) for path in PATHS)
            total = cost * len(SEEDS) * (per_t * len(DOUBLINGS) + 1)
            used = setting["dataset"] in [s["dataset"] for s, _ in [*found, *mine][-15:]]
            number = len(found) + len(mine)
            wanted = setting["optimizer"] == ("sgd", "adamw")[number % 2]
            wanted &= setting["steps"] >= STEPS and (setting["norm"] == "batch" or number % 3 == 0)
            if wanted and total <= MOST and not used:
                mine.append((setting, total))
        found += mine
    return found


def grids(setting: Setting) -> list[Setting]:
    """All paths on the law's grid, and T = 1."""
    grid = [law(setting) * 2.0**k for k in DOUBLINGS]
    common = setting | {"seed": list(SEEDS)}
    ones = [] if 1.0 in grid else [common | {"temperature": [1.0], "path": "constant"}]
    return [common | {"temperature": grid, "path": list(PATHS)}, *ones]


def main(folder: Path, *, costs: bool) -> None:
    """Write all plans, or say what they cost."""
    drawn = settings()
    for part in range(PARTS):
        mine = drawn[part * SETTINGS : (part + 1) * SETTINGS]
        if costs:
            runs = sum(
                len(g["temperature"])
                * len(SEEDS)
                * (len(PATHS) if len(g["temperature"]) > 1 else 1)
                for s, _ in mine
                for g in grids(s)
            )
            total = sum(cost for _, cost in mine)
            print(f"moving-{part + 1} {len(mine)} settings {runs} trainings {total:.0f} s")
            continue
        lines = [f'name = "budget-moving-{part + 1}"', ""]
        for grid in (g for s, _ in mine for g in grids(s)):
            lines += ["[[grids]]", *(f"{k} = {json.dumps(v)}" for k, v in grid.items()), ""]
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"moving-{part + 1}.toml").write_text("\n".join(lines), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), costs="--costs" in sys.argv)
