"""Does a T that moves beat the constant? ``python moving_table.py ROWS [ROWS ..] OUT``.

Paired by setting and seed: each path at the law's T and at its own best T (by validation NLL after
a post-hoc T, mean of the seeds) against the constant at the law's T, the constant at its best, and
T = 1. NLL as ratios (none above ln C), accuracy in points. Every data set counts once; intervals
by bootstrap over data sets, at the level that leaves 5 % for all four paths together (by optimizer:
for the eight pairs). Test rows choose nothing.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from moving import law
from moving_rows import Setting, interval, read_settings
from numpy.typing import NDArray

from temperance.files import write_bytes
from temperance.study.trial import PATHS

MOVING = PATHS[1:]
LEVEL = 1 - 0.05 / len(MOVING)
BY_OPTIMIZER = 1 - 0.05 / (2 * len(MOVING))
JUDGED = ("test_accuracy", "test_nll_posthoc", "test_nll")
Picked = Mapping[str, NDArray[np.float64]]  # metric -> [seeds]


# ------------------------------------------------------------------ which T
def at(setting: Setting, path: str, place: int) -> Picked:
    """Figures of a path at one of the temperatures."""
    return {name: values[path][place] for name, values in setting.values.items()}


def place_of(setting: Setting, temperature: float) -> int:
    """Place of a T among those tried."""
    return int(np.argmin(np.abs(np.log(setting.temperatures / temperature))))


def on_grid(setting: Setting) -> NDArray[np.int64]:
    """Places of the temperatures that all paths have."""
    whole = [np.isfinite(v).all(axis=1) for v in setting.values["val_nll_posthoc"].values()]
    return np.flatnonzero(np.all(whole, axis=0))


def best_place(setting: Setting, path: str) -> int:
    """Place of the T that is best by validation NLL after a post-hoc T."""
    grid = on_grid(setting)
    means = setting.values["val_nll_posthoc"][path][grid].mean(axis=1)
    return int(grid[np.argmin(means)])


def lawful(setting: Setting, path: str) -> Picked:
    """A path at the law's T."""
    return at(setting, path, place_of(setting, law(dict(setting.fields))))


def best(setting: Setting, path: str) -> Picked:
    """A path at its own best T."""
    return at(setting, path, best_place(setting, path))


def one(setting: Setting, path: str) -> Picked:  # noqa: ARG001
    """The constant T = 1."""
    return at(setting, "constant", place_of(setting, 1.0))


def anywhere(setting: Setting, path: str) -> Picked:
    """A path at all temperatures of the grid: what it costs not to know T."""
    grid = on_grid(setting)
    return {n: np.exp(np.log(v[path][grid]).mean(axis=0)) if "nll" in n else v[path][grid].mean(0)
            for n, v in setting.values.items()}  # fmt: skip


# ------------------------------------------------------------------ differences
Pick = Callable[[Setting, str], Picked]
COMPARED: tuple[tuple[str, Pick, Pick], ...] = (
    ("at the law's T, against the constant at the law's T", lawful, lawful),
    ("at its best T, against the constant at its best T", best, best),
    ("at the law's T, against the constant at its best T", lawful, best),
    ("at the law's T, against T = 1", lawful, one),
    ("at its best T, against T = 1", best, one),
    ("mean of seven T, against the constant's mean", anywhere, anywhere),
)


def difference(mine: Picked, other: Picked, metric: str) -> float:
    """Mean over seeds: points of accuracy, or the logarithm of the ratio of two NLLs."""
    if "accuracy" in metric:
        return float((mine[metric] - other[metric]).mean() * 100)
    return float((np.log(mine[metric]) - np.log(other[metric])).mean())


def compared(
    settings: Sequence[Setting], path: str, mine: Pick, other: Pick, *, level: float
) -> dict[str, Any]:
    """One row of the table."""
    names = [s.dataset for s in settings]
    found: dict[str, Any] = {}
    for metric in JUDGED:
        each = [difference(mine(s, path), other(s, "constant"), metric) for s in settings]
        mean, low, high = interval(names, each, level=level)
        signed = np.array(each) if "accuracy" in metric else -np.array(each)
        if "nll" in metric:  # percent
            mean, low, high = (100 * float(np.expm1(v)) for v in (mean, low, high))
        found[metric] = {
            "mean": mean,
            "interval": [low, high],
            "median": float(np.median(each if "accuracy" in metric else 100 * np.expm1(each))),
            "better": float((signed > 1e-9).mean()),
            "worse": float((signed < -1e-9).mean()),
        }
    return found


def ends(settings: Sequence[Setting], path: str) -> dict[str, float]:
    """Where T goes: its last value over ``temperature``, and how much that decides.

    Of settings with three temperatures or more that did not diverge.
    """
    first, last, names = [], [], []
    for s in settings:
        grid = on_grid(s)
        value = s.last[path][grid]
        start = np.broadcast_to(s.temperatures[grid][:, None], value.shape)
        done = s.diverged[path][grid] == 0
        a, b = np.log2(start), np.log2(value)
        if len(np.unique(a[done])) < 3:
            continue
        first.append(float((b - a)[done].mean()))
        last.append(float(np.polyfit(a[done], b[done], 1)[0]))
        names.append(s.dataset)
    kept, lo, hi = interval(names, last, level=0.95)
    return {"doublings": float(np.median(first)), "slope": kept, "slope low": lo, "slope high": hi}


def costs(settings: Sequence[Setting], path: str) -> dict[str, float]:
    """Seconds of a path over those of the constant in the same place, and what diverged."""
    ratios, lost = [], []
    for s in settings:
        grid = on_grid(s)
        ratios.append(s.seconds[path][grid].sum() / s.seconds["constant"][grid].sum())
        lost.append(s.diverged[path][grid].mean())
    return {"time": float(np.median(ratios)), "diverged": float(np.mean(lost))}


def is_clear(found: Mapping[str, Any]) -> bool:
    """Clearly better: less NLL after a post-hoc T and no less accuracy, at both choices of T."""
    rows = [found[name] for name, _, _ in COMPARED[:2]]
    return all(
        r["test_nll_posthoc"]["interval"][1] < 0 and r["test_accuracy"]["interval"][0] >= 0
        for r in rows
    )


# ------------------------------------------------------------------ the page
def shown(cell: Mapping[str, Any], digits: int, unit: str) -> str:
    """A mean with its interval; bold where 0 is outside."""
    low, high = cell["interval"]
    mark = "**" if low * high > 0 else ""
    numbers = f"{cell['mean']:+.{digits}f}{unit} [{low:+.{digits}f}, {high:+.{digits}f}]"
    return f"{mark}{numbers}{mark}; {cell['better']:.0%} / {cell['worse']:.0%}"


def page(results: Mapping[str, Any]) -> str:
    """The tables."""
    lines = [
        "# Temperatures that move\n",
        f"{results['settings']} settings of {results['datasets']} data sets, three seeds. A cell: "
        "mean difference, with its interval (95 % for all paths together); share of settings "
        "where it is better / worse. Less NLL is better; none counts as more than that of a model "
        "that knows nothing.\n",
    ]
    for group in results["groups"].values():
        lines += [f"## {group['name']} ({group['settings']} settings)\n"]
        for name, _, _ in COMPARED:
            lines += [
                f"### {name}\n",
                "| path | accuracy, points | NLL after post-hoc T | NLL |",
                "|---|---|---|---|",
            ]
            for path, found in group["paths"].items():
                row = found.get(name)
                if row:
                    lines.append(
                        f"| {path} | {shown(row['test_accuracy'], 2, '')} "
                        f"| {shown(row['test_nll_posthoc'], 1, ' %')} "
                        f"| {shown(row['test_nll'], 1, ' %')} |"
                    )
            lines.append("")
    lines += [
        "## Where T goes, and what it takes\n",
        "| path | last T over `temperature`, doublings | slope of log last T on log first T "
        "| CPU time of the others (they share one program) | diverged |",
        "|---|---|---|---|---|",
    ]
    for path in PATHS:
        e, c = results["ends"][path], results["costs"][path]
        lines.append(
            f"| {path} | {e['doublings']:+.2f} | {e['slope']:.2f} [{e['slope low']:.2f}, "
            f"{e['slope high']:.2f}] | x {c['time']:.2f} | {c['diverged']:.1%} |"
        )
    found = {
        g["name"]: ", ".join(g["clearly better"]) or "none" for g in results["groups"].values()
    }
    verdict = "; ".join(f"{name}: {paths}" for name, paths in found.items())
    rule = (
        "Clearly better than the constant (NLL after post-hoc T below it and accuracy not below "
        "it, both at the law's T and each at its best T)"
    )
    lines += ["", f"{rule}: {verdict}.", ""]
    return "\n".join(lines)


def main(folders: Sequence[Path], out: Path) -> None:
    """Compare, print and write."""
    out.mkdir(parents=True, exist_ok=True)
    whole = [s for folder in folders for s in read_settings(folder) if complete(s)]
    groups: dict[str, Any] = {}
    kinds = {"all": "All", "sgd": "SGD", "adamw": "AdamW"}
    for key, name in kinds.items():
        mine = [s for s in whole if key in ("all", s.fields["optimizer"])]
        level = LEVEL if key == "all" else BY_OPTIMIZER
        paths: dict[str, Any] = {
            path: {n: compared(mine, path, a, b, level=level) for n, a, b in COMPARED}
            for path in MOVING
        }
        own = {n: compared(mine, "constant", a, b, level=0.95) for n, a, b in COMPARED[2:5]}
        groups[key] = {
            "name": name,
            "settings": len(mine),
            "level": level,
            "paths": {"constant": own} | paths,
            "clearly better": [path for path in MOVING if is_clear(paths[path])],
        }
    results = {
        "settings": len(whole),
        "datasets": len({s.dataset for s in whole}),
        "groups": groups,
        "ends": {path: ends(whole, path) for path in PATHS},
        "costs": {path: costs(whole, path) for path in PATHS},
    }
    write_bytes(out / "moving.json", (json.dumps(results, indent=1) + "\n").encode())
    text = page(results)
    write_bytes(out / "moving.md", text.encode())
    print(text)
    from moving_picture import draw

    draw(results, out / "moving.png")


def complete(setting: Setting) -> bool:
    """Whether every path and T was trained with every seed."""
    paths = setting.values["val_nll_posthoc"]
    return len(paths) == len(PATHS) and len(on_grid(setting)) >= 7 and len(setting.seeds) == 3


if __name__ == "__main__":
    main([Path(folder) for folder in sys.argv[1:-1]], Path(sys.argv[-1]))
