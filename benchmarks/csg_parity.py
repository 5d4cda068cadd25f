"""CSG against recorded runs of spectral-metric 0.6.1: a row per run, read from a CSV.

    python benchmarks/csg_parity.py --reference csg_reference.csv --json out.json

Columns used: ``data, N, d, K, data_seed, center_std, scale, distance, M_sample, k_nearest,
sample_seed, csg, warnings``. Two comparisons, for the runs in that code's sound domain (Euclidean,
a finite value, no overflow):

1. *The same rows drawn.* Where ``sample_seed`` is a number, the rows that it drew are known; our
   neighbours, volumes and spectrum of these rows give one value per run, to be equal. Where rows
   are equally far (whole-number features), that code's unstable sort decides who is the k-th
   neighbour; these runs are summed up apart.
2. *The public call.* Where not all rows of each class are drawn, our mean over draws against the
   mean of the runs: ``z = difference / (s sqrt(1/runs + 1/draws))``, ``s``: deviation of our draws.

About two minutes on one core.
"""

from __future__ import annotations

import os

os.environ.update(OMP_NUM_THREADS="1", MKL_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1")

import argparse
import csv
import json
import math
from collections import defaultdict
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from temperance.records import Features
from temperance.task.csg import csg
from temperance.task.neighbours import nearest
from temperance.task.spectrum import (
    cube_log_volume,
    cumulative_gradient,
    laplacian_eigenvalues,
    similarity,
)

DRAWS = 40
RECIPE = ("data", "N", "d", "K", "data_seed", "center_std", "scale")
Key = tuple[str, ...]


@lru_cache(maxsize=1)
def data_of(recipe: Key) -> tuple[np.ndarray, np.ndarray]:
    """The rows of a recipe, in float64."""
    name, n, d, classes, seed, std, scale = recipe
    if name == "digits":
        from sklearn.datasets import load_digits

        x, y = load_digits(return_X_y=True)
        return x * float(scale), y
    rng = np.random.default_rng(int(seed))
    y = np.arange(int(n)) % int(classes)
    centres = rng.normal(0, float(std), (int(classes), int(d)))
    return (centres[y] + rng.normal(0, 1, (int(n), int(d)))) * float(scale), y


def sound(row: dict[str, str]) -> bool:
    finite = not row["error"] and row["csg"] and math.isfinite(float(row["csg"]))
    return bool(finite and row["distance"] == "euclidean" and "overflow" not in row["warnings"])


def their_draw(y: np.ndarray, n_samples: int, seed: int) -> list[np.ndarray]:
    """The rows that spectral-metric's sampling function draws with this seed."""
    rng = np.random.RandomState(seed)
    return [np.sort(rng.permutation(np.flatnonzero(y == c))[:n_samples]) for c in np.unique(y)]


def values_of_draws(
    x: np.ndarray, y: np.ndarray, draws: list[list[np.ndarray]], k: int
) -> list[float]:
    rows = np.unique(np.concatenate([part for draw in draws for part in draw]))
    ids, _ = nearest(x, rows, k)
    weight = -np.maximum(cube_log_volume(x, rows, ids), math.log(1e-4))
    values = []
    for draw in draws:
        owner = np.repeat(np.arange(len(draw)), list(map(len, draw)))
        place = np.searchsorted(rows, np.concatenate(draw))
        shares = similarity(owner, y[ids[place]], weight[place])
        values.append(cumulative_gradient(laplacian_eigenvalues(shares)))
    return values


def compare(recipe: Key, n_samples: int, k: int, runs: list[dict[str, str]]) -> dict[str, Any]:
    x, y = data_of(recipe)
    theirs = np.array([float(run["csg"]) for run in runs])
    out = dict(zip(RECIPE, recipe, strict=True)) | {"n_samples": n_samples, "k": k}
    out |= {"runs": len(runs), "mean_reference": float(theirs.mean())}
    known = [i for i, run in enumerate(runs) if run["sample_seed"].isdigit()]
    if known:
        draws = [their_draw(y, n_samples, int(runs[i]["sample_seed"])) for i in known]
        gaps = np.abs(np.array(values_of_draws(x, y, draws, k)) - theirs[known])
        out |= {"same_rows": len(known), "max_difference": float(gaps.max())}
    ours = csg(Features.from_arrays(x, y), n_samples, k, repeats=DRAWS)
    out |= {"mean": ours.value, "tie_share": ours.settings["tie_share"]}
    if ours.settings["all_rows_drawn"]:
        out["max_difference_all_drawn"] = float(np.abs(theirs - ours.value).max())
    else:
        spread = float(np.std(ours.replicates, ddof=1))
        error = spread * math.sqrt(1 / len(runs) + 1 / DRAWS)
        out["z"] = (ours.value - out["mean_reference"]) / error if error else 0.0
    return out


def table(rows: list[dict[str, Any]]) -> str:
    titles = ["data", "N", "d", "K", "center_std", "scale", "n_samples", "k", "runs", "ties"]
    titles += ["max difference", "reference", "ours", "z"]
    lines = ["| " + " | ".join(titles) + " |", "|---" * len(titles) + "|"]
    for row in rows:
        gap = max(row.get("max_difference", 0.0), row.get("max_difference_all_drawn", 0.0))
        cells = [str(row[key]) for key in ("data", "N", "d", "K", "center_std", "scale")]
        cells += [
            str(row["n_samples"]),
            str(row["k"]),
            str(row["runs"]),
            f"{row['tie_share']:.1%}",
            f"{gap:.1e}",
        ]
        cells += [f"{row['mean_reference']:.4f}", f"{row['mean']:.4f}"]
        cells += [f"{row['z']:+.2f}" if "z" in row else "all drawn"]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def summary(rows: list[dict[str, Any]], n_left_out: int) -> dict[str, Any]:
    z = np.array([row["z"] for row in rows if "z" in row])
    drawn = [row for row in rows if "max_difference_all_drawn" in row]
    plain = [row for row in rows if "max_difference" in row and not row["tie_share"]]
    tied = [row for row in rows if "max_difference" in row and row["tie_share"]]
    return {
        "runs": sum(row["runs"] for row in rows),
        "runs_outside_the_sound_domain": n_left_out,
        "runs_with_the_same_rows": sum(row["same_rows"] for row in plain),
        "max_difference_same_rows": max((row["max_difference"] for row in plain), default=None),
        "runs_with_the_same_rows_and_ties": sum(row["same_rows"] for row in tied),
        "max_difference_same_rows_and_ties": max(
            (row["max_difference"] for row in tied), default=None
        ),
        "runs_with_all_rows_drawn": sum(row["runs"] for row in drawn),
        "max_difference_all_drawn": max(row["max_difference_all_drawn"] for row in drawn),
        "settings_compared_in_the_mean": len(z),
        "largest_abs_z": float(np.abs(z).max()),
        "share_abs_z_above_2": float((np.abs(z) > 2).mean()),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--reference", type=Path, required=True, help="the CSV of recorded runs")
    parser.add_argument("--json", type=Path, help="write the figures to this file, too")
    options = parser.parse_args()
    with options.reference.open(newline="", encoding="utf-8") as file:
        runs = list(csv.DictReader(file))
    groups: dict[tuple[Key, int, int], list[dict[str, str]]] = defaultdict(list)
    for run in filter(sound, runs):
        recipe = tuple(run[name] for name in RECIPE)
        groups[recipe, int(run["M_sample"]), int(run["k_nearest"])].append(run)
    rows = [compare(*key, found) for key, found in groups.items()]
    record = {"benchmark": "csg_parity", "draws": DRAWS}
    record["summary"] = summary(rows, len(runs) - sum(map(len, groups.values())))
    print(table(rows))
    print(json.dumps(record))
    if options.json:
        part = options.json.with_suffix(".part")
        part.write_text(json.dumps(record | {"settings": rows}, indent=1) + "\n", encoding="utf-8")
        os.replace(part, options.json)


if __name__ == "__main__":
    main()
