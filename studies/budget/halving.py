"""A side-by-side search of T inside one run, replayed: ``python halving.py ROWS [ROWS ..] OUT``.

Successive halving needs no new training: rows of a grid of constant temperatures have their
validation NLL and accuracy at eight points of the training, and the run that is kept is the run
of that T. It starts with all temperatures of a setting; at some points the better half (by the
validation rows, one seed) goes on. Compared with the full search (all of them to the end, chosen
by validation NLL after a post-hoc T), with the law, fitted on the other data sets, and with T = 1.
Test rows judge and choose nothing.

A T that is not on the grid stands for the nearest one that is.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from forms import design
from moving_rows import Setting, interval, read_settings
from tobit import fit, predict

from temperance.files import write_bytes

FORMS = {"sgd": "progress, n", "adamw": "progress, epochs", "rmsprop": "progress, n"}
RUNGS = {"three early rungs": (3, 4, 5), "two late rungs": (5, 6)}  # places in the history
CRITERIA = {"NLL": "val_nll", "accuracy": "val_accuracy"}
JUDGED = ("test_accuracy", "test_nll_posthoc")
FEWEST = 12  # settings of the other data sets for a law


# ------------------------------------------------------------------ the search
def halved(
    setting: Setting, seed: int, *, metric: str, rungs: Sequence[int], arms: Sequence[int]
) -> tuple[int, float]:
    """Give the place of the T that is left of some, and the steps of all over those of one run."""
    whole = steps_of(setting, seed)
    steps, last = [*whole, *[whole[-1]] * (8 - len(whole))], 0
    cost = 0.0
    for rung in rungs:
        cost += len(arms) * max(steps[rung] - last, 0)
        last = steps[rung]
        keep = 1 if rung == rungs[-1] else math.ceil(len(arms) / 2)
        arms = sorted(arms, key=lambda a: loss_at(setting, (a, seed), rung, metric))[:keep]
    return arms[0], (cost + max(whole[-1] - last, 0)) / whole[-1]


def steps_of(setting: Setting, seed: int) -> list[float]:
    """Steps of the entries of the history: those of the run that has most."""
    runs = (setting.history[(a, seed)]["step"] for a in range(len(setting.temperatures)))
    found = [float(step) for step in max(runs, key=len)]
    return found if found and found[-1] == setting.fields["steps"] else [setting.fields["steps"]]


def loss_at(setting: Setting, at: tuple[int, int], rung: int, metric: str) -> tuple[float, float]:
    """What a run showed by then, lower is better; what has diverged comes last."""
    curve = setting.history[at][metric]
    rung = min(rung, 7)
    if len(curve) <= rung:
        return math.inf, 0.0
    return (-curve[rung] if "accuracy" in metric else curve[rung]), at[0]


# ------------------------------------------------------------------ what it is held against
def facts(settings: Sequence[Setting]) -> dict[str, Any]:
    """Facts of settings for ``forms``, with what is known of log T*."""
    rows = []
    for s in settings:
        f = s.fields
        means = s.values["val_nll_posthoc"]["constant"].mean(axis=1)
        best, logs = int(np.argmin(means)), np.log(s.temperatures)
        half = float(np.median(np.diff(logs))) / 2
        at_low, at_high = best == 0, best == len(logs) - 1
        low = -np.inf if at_low else logs[best] - (half if at_high else 0)
        high = np.inf if at_high else logs[best] + (half if at_low else 0)
        rows.append(
            {
                **{n: f[n] for n in ("model", "optimizer", "schedule", "norm", "lr", "momentum")},
                **{n: f[n] for n in ("weight_decay", "label_noise", "steps")},
                **{"dataset": s.dataset, "classes": s.classes, "rows": f["train_rows"]},
                "features": f["feature_dim"],
                "batch": min(f["batch_size"], f["train_rows"]),
                **{"low": low, "high": high, "nn_error": np.nan},
            }
        )
    return {name: np.array([row[name] for row in rows]) for name in rows[0]}


def law_places(settings: Sequence[Setting]) -> list[int | None]:
    """Places of the T of the law, fitted on the other data sets for each optimizer."""
    known = facts(settings)
    found: list[int | None] = []
    for index, s in enumerate(settings):
        family = known["optimizer"] == s.fields["optimizer"]
        other = family & (known["dataset"] != s.dataset)
        if other.sum() < FEWEST:
            found.append(None)
            continue
        mine = {n: v[[index]] for n, v in known.items()}
        rest = {n: v[other] for n, v in known.items()}
        form = FORMS[s.fields["optimizer"]]
        own = fit(design(rest, form)[0], rest["low"], rest["high"])
        log = float(predict(own, design(mine, form, like=rest)[0])[0])
        found.append(int(np.argmin(np.abs(np.log(s.temperatures) - log))))
    return found


def full_place(setting: Setting, seed: int) -> int:
    """Place of the T that all trainings to the end show to be the best."""
    return int(np.argmin(setting.values["val_nll_posthoc"]["constant"][:, seed]))


# ------------------------------------------------------------------ the table
Choose = Callable[[int, int], tuple[int, float] | None]  # of a setting and a seed


def choosers(settings: Sequence[Setting]) -> dict[str, Choose]:
    """Ways to choose, by name: each gives a place and a cost in runs."""
    laws = law_places(settings)

    def of_law(index: int, seed: int) -> tuple[int, float] | None:  # noqa: ARG001
        place = laws[index]
        return None if place is None else (place, 1.0)

    def of_one(index: int, seed: int) -> tuple[int, float]:  # noqa: ARG001
        return int(np.argmin(np.abs(np.log(settings[index].temperatures)))), 1.0

    def near(index: int, far: Sequence[int]) -> list[int] | None:
        place, count = laws[index], len(settings[index].temperatures)
        if place is None:
            return None
        return sorted({min(max(place + k, 0), count - 1) for k in far})

    def three(index: int, seed: int) -> tuple[int, float] | None:
        arms = near(index, (-2, 0, 2))
        loss = settings[index].values["val_nll_posthoc"]["constant"][:, seed]
        return None if arms is None else (min(arms, key=lambda a: loss[a]), float(len(arms)))

    found: dict[str, Choose] = {
        "T = 1": of_one,
        "law, other data sets": of_law,
        "law, a quarter and four times of it, to the end": three,
    }
    for rung, rungs in RUNGS.items():
        for criterion, metric in CRITERIA.items():
            found[f"halving, {rung}, by {criterion}"] = lambda i, s, m=metric, r=rungs: halved(
                settings[i], s, metric=m, rungs=r, arms=range(len(settings[i].temperatures))
            )

    def around(index: int, seed: int, rungs: Sequence[int]) -> tuple[int, float] | None:
        arms = near(index, range(-2, 3))
        if arms is None:
            return None
        return halved(settings[index], seed, metric="val_accuracy", rungs=rungs, arms=arms)

    for rung, rungs in RUNGS.items():
        found[f"halving of five around the law, {rung}, by accuracy"] = lambda i, s, r=rungs: (
            around(i, s, r)
        )
    return found


def judged(settings: Sequence[Setting], choose: Choose, *, law: Choose) -> dict[str, Any] | None:
    """Differences to the full search and to the law, and the cost."""
    names, runs, off, to_law = [], [], [], []
    each: dict[str, list[float]] = {name: [] for name in JUDGED}
    for index, s in enumerate(settings):
        for seed in range(len(s.seeds)):
            chosen, lawful = choose(index, seed), law(index, seed)
            if chosen is None or lawful is None:
                continue
            place, cost = chosen
            nll = s.values["test_nll_posthoc"]["constant"][:, seed]
            to_law.append(float(np.log(nll[place] / nll[lawful[0]])))
            full = full_place(s, seed)
            for name in JUDGED:
                mine, other = (s.values[name]["constant"][p, seed] for p in (place, full))
                each[name].append(
                    100 * (mine - other) if "accuracy" in name else float(np.log(mine / other))
                )
            names.append(s.dataset)
            runs.append(cost)
            off.append(abs(math.log2(s.temperatures[place] / s.temperatures[full])))
    if not names:
        return None
    accuracy = interval(names, each["test_accuracy"], level=0.95)
    ratio = tuple(
        100 * math.expm1(v) for v in interval(names, each["test_nll_posthoc"], level=0.95)
    )
    return {
        "searches": len(names),
        "runs": float(np.mean(runs)),
        "accuracy": accuracy,
        "nll_posthoc": ratio,
        "nll_to_law": tuple(100 * math.expm1(v) for v in interval(names, to_law, level=0.95)),
        "nll_posthoc_median": float(100 * np.expm1(np.median(each["test_nll_posthoc"]))),
        "within_2": float((np.array(off) <= 1 + 1e-9).mean()),
    }


def usable(setting: Setting) -> bool:
    """Whether every T was trained with every seed, with five entries of the history or more."""
    whole = np.isfinite(setting.values["val_nll_posthoc"]["constant"]).all()
    longest = max((len(h["step"]) for h in setting.history.values()), default=0)
    return bool(whole) and len(setting.temperatures) >= 5 and longest == 8


def page(results: Mapping[str, Any]) -> str:
    """The tables."""
    lines = ["# A search of T inside one run, replayed from constant runs\n"]
    for group in results.values():
        lines += [
            f"## {group['name']}: {group['settings']} settings, {group['datasets']} data sets\n",
            f"Against the full search, {group['full']:.1f} runs. Mean of the data sets, with 95 % "
            "intervals; less NLL is better.\n",
            "| choice of T | cost in runs | accuracy, points | NLL after post-hoc T "
            "| its median | the same against the law | within a factor 2 |",
            "|---|---|---|---|---|---|---|",
        ]
        for name, row in group["ways"].items():
            (a, b, c), (d, e, f) = row["accuracy"], row["nll_posthoc"]
            g, h, i = row["nll_to_law"]
            lines.append(
                f"| {name} | {row['runs']:.2f} | {a:+.2f} [{b:+.2f}, {c:+.2f}] | {d:+.1f} % "
                f"[{e:+.1f}, {f:+.1f}] | {row['nll_posthoc_median']:+.1f} % "
                f"| {g:+.1f} % [{h:+.1f}, {i:+.1f}] | {row['within_2']:.0%} |"
            )
        lines.append("")
    return "\n".join(lines)


def main(folders: Sequence[Path], out: Path) -> None:
    """Replay, print and write."""
    out.mkdir(parents=True, exist_ok=True)
    whole = [s for folder in folders for s in read_settings(folder) if usable(s)]
    results: dict[str, Any] = {}
    for key, name in (("all", "All"), ("sgd", "SGD"), ("adamw", "AdamW"), ("rmsprop", "RMSprop")):
        mine = [s for s in whole if key in ("all", s.fields["optimizer"])]
        if not mine:
            continue
        every = choosers(mine)
        law = every["law, other data sets"]
        ways = {n: judged(mine, choose, law=law) for n, choose in every.items()}
        results[key] = {
            "name": name,
            "settings": len(mine),
            "datasets": len({s.dataset for s in mine}),
            "full": float(np.mean([len(s.temperatures) for s in mine])),
            "ways": {n: row for n, row in ways.items() if row is not None},
        }
    write_bytes(out / "halving.json", (json.dumps(results, indent=1) + "\n").encode())
    text = page(results)
    write_bytes(out / "halving.md", text.encode())
    print(text)


if __name__ == "__main__":
    main([Path(folder) for folder in sys.argv[1:-1]], Path(sys.argv[-1]))
