"""What is left of the law where the rate is tuned: ``python tuned.py RUNS BUDGET.json OUT``.

RUNS/tuned has every setting at seven rates and eleven T. Rates (and T, where it says so) are chosen
by validation NLL after a post-hoc T, the mean over seeds; figures are of test rows. The law of a
data set is fitted to RUNS/law without it. OUT gets ``tuned.md``, ``tuned.json`` and ``tuned.png``.
"""

from __future__ import annotations

import json
import math
import sys
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from fit_law import FAMILIES, read
from judge import LeftOut, left_out
from numpy.typing import NDArray

from temperance.files import write_bytes
from temperance.records import Task
from temperance.rules.budget_file import load_coefficients
from temperance.study.resample import data_set_interval
from temperance.study.runs import Curve

Array = NDArray[np.float64]
METRICS = ("accuracy", "nll", "nll_posthoc")
CHOSEN_BY = "nll_posthoc"
DRAWS = 2000
FACTORS = (
    *("best T at the rate tuned at T = 1", "T of the law there", "best over law"),
    "best pair's rate over tuned",
)
PARTS = ("tuned", "tuned-third")  # two seeds, and one more that came after the law of a tuned rate
LEAST_SETS = 3  # for a mean to be shown


@dataclass(frozen=True)
class Grid:
    """One setting: rates, temperatures, and what each pair gave; NaN is chance."""

    dataset: str
    family: str
    rates: Array
    log_t: Array
    val: Mapping[str, Array]  # [rate, T]
    test: Mapping[str, Array]
    law: Array  # log T that the law gives at each rate

    def at(self, values: Array, log_t: Array | float) -> Array:
        """Values at one log T for each rate, between those of the grid."""
        wanted = np.broadcast_to(log_t, len(self.rates))
        return np.array(
            [np.interp(t, self.log_t, row) for t, row in zip(wanted, values, strict=True)]
        )


def mean_of(curve: Curve, metric: str) -> Array:
    """Mean over seeds; what diverged is a model that knows nothing, and NLL is capped."""
    found, c = np.asarray(curve.metrics[metric]), curve.task.n_classes
    if metric.endswith("accuracy"):
        return 100 * np.where(np.isnan(found), 1 / c, found).mean(axis=1)
    return np.where(np.isnan(found), math.log(c), np.minimum(found, 3 * math.log(c))).mean(axis=1)


def grids(curves: Sequence[Curve], law: LeftOut) -> list[Grid]:
    """Curves of one setting but for the rate, together."""
    found = defaultdict(list)
    for curve in curves:
        found[json.dumps({k: v for k, v in curve.setting.items() if k != "lr"})].append(curve)
    made = []
    for own in found.values():
        own.sort(key=lambda c: c.setting["lr"])
        if len({len(c.temperatures) for c in own}) > 1 or len(own) < 7:
            continue  # a sweep that was stopped in this setting
        family = next(f for f, names in FAMILIES.items() if own[0].setting["optimizer"] in names)
        tables = {
            split: {m: np.array([mean_of(c, f"{split}_{m}") for c in own]) for m in METRICS}
            for split in ("val", "test")
        }
        made.append(
            Grid(
                own[0].dataset,
                family,
                np.array([c.setting["lr"] for c in own]),
                np.log(own[0].temperatures),
                tables["val"],
                tables["test"],
                np.log([law(with_name(c)) for c in own]),
            )
        )
    return made


def with_name(curve: Curve) -> Task:
    return replace(curve.task, training={**curve.task.training, "dataset": curve.dataset})


# ------------------------------------------------------------------ ways to choose
def best_rate(grid: Grid, log_t: Array | float) -> int:
    """The rate of least validation NLL after a post-hoc T, where T is given for each rate."""
    return int(grid.at(grid.val[CHOSEN_BY], log_t).argmin())


def tuned_at_one(grid: Grid) -> tuple[int, float]:
    return best_rate(grid, 0.0), 0.0


def law_then_rate(grid: Grid) -> tuple[int, float]:
    rate = best_rate(grid, grid.law)
    return rate, float(grid.law[rate])


def rate_then_law(grid: Grid) -> tuple[int, float]:
    rate = best_rate(grid, 0.0)
    return rate, float(grid.law[rate])


def rate_then_sweep(grid: Grid) -> tuple[int, float]:
    rate = best_rate(grid, 0.0)
    return rate, float(grid.log_t[grid.val[CHOSEN_BY][rate].argmin()])


def full_grid(grid: Grid) -> tuple[int, float]:
    rate, t = np.unravel_index(grid.val[CHOSEN_BY].argmin(), grid.val[CHOSEN_BY].shape)
    return int(rate), float(grid.log_t[t])


WAYS: Mapping[str, tuple[int, Callable[[Grid], tuple[int, float]]]] = {
    "T = 1, rate tuned": (7, tuned_at_one),
    "T of the law at each rate, rate tuned": (7, law_then_rate),
    "rate tuned at T = 1, then T of the law": (8, rate_then_law),
    "rate tuned at T = 1, then T swept": (17, rate_then_sweep),
    "rate and T, all pairs": (77, full_grid),
}


# ------------------------------------------------------------------ figures
def interval(
    values: Array, names: Sequence[str], *, factor: bool = False, level: float = 0.95
) -> list[float]:
    """Mean and interval, data sets drawn again."""
    rng, sets = np.random.default_rng(0), sorted(set(names))
    rows = {name: np.flatnonzero(np.array(names) == name) for name in sets}
    drawn = [
        values[np.concatenate([rows[n] for n in rng.choice(sets, len(sets))])].mean()
        for _ in range(DRAWS)
    ]
    mean = float(values.mean())
    ends = data_set_interval(mean, np.array(drawn), len(sets), level=level)
    if ends is None:
        raise SystemExit(f"no interval over {len(sets)} data sets: leave this group out")
    found = (mean, *ends)
    return [float(np.exp(v) if factor else v) for v in found]


def results(found: Sequence[Grid]) -> dict[str, Any]:
    """The table of ways, what T is best at the tuned rate, and what a rate off it costs."""
    names = [g.dataset for g in found]
    chosen = {way: [choose(g) for g in found] for way, (_, choose) in WAYS.items()}
    table = {}
    for metric in METRICS:
        got = {
            way: np.array(
                [g.at(g.test[metric], t)[r] for g, (r, t) in zip(found, pairs, strict=True)]
            )
            for way, pairs in chosen.items()
        }
        one = got["T = 1, rate tuned"]
        sign = 1 if metric == "accuracy" else -1
        table[metric] = {
            way: {
                "trainings": WAYS[way][0],
                "mean": float(values.mean()),
                "gain": interval(sign * (values - one), names),
                "median gain": float(np.median(sign * (values - one))),
                "better": float((sign * (values - one) > 1e-9).mean()),
            }
            for way, values in got.items()
        }
    tuned = [best_rate(g, 0.0) for g in found]
    best = np.array([t for _, t in chosen["rate tuned at T = 1, then T swept"]])
    given = np.array([g.law[r] for g, r in zip(found, tuned, strict=True)])
    return {
        "settings": len(found),
        "data sets": len(set(names)),
        "ways": table,
        "best T at the rate tuned at T = 1": interval(best, names, factor=True),
        "T of the law there": interval(given, names, factor=True),
        "best over law": interval(best - given, names, factor=True),
        "best pair's rate over tuned": interval(
            np.array(
                [
                    math.log(g.rates[pair[0]] / g.rates[r])
                    for g, pair, r in zip(
                        found, chosen["rate and T, all pairs"], tuned, strict=True
                    )
                ]
            ),
            names,
            factor=True,
        ),
        "best pair at the largest rate": sum(r == 6 for r, _ in chosen["rate and T, all pairs"]),
        "tuned rate at an end": float(np.mean([r in (0, 6) for r in tuned])),
        "off": off_the_rate(found, tuned),
    }


def off_the_rate(found: Sequence[Grid], tuned: Sequence[int]) -> list[dict[str, Any]]:
    """Loss against the best pair in hindsight, by steps of the rate from the tuned one."""
    rows = []
    for off in range(-4, 5):
        lost: dict[str, list[float]] = {"T = 1": [], "law": [], "best T": []}
        names = []
        for g, r in zip(found, tuned, strict=True):
            if 0 <= r + off < len(g.rates):
                nll = g.test[CHOSEN_BY]
                names.append(g.dataset)
                lost["T = 1"].append(float(g.at(nll, 0.0)[r + off] - nll.min()))
                lost["law"].append(float(g.at(nll, g.law)[r + off] - nll.min()))
                lost["best T"].append(float(nll[r + off].min() - nll.min()))
        if len(set(names)) >= LEAST_SETS:
            rows.append(
                {"off": off, "settings": len(names)}
                | {k: interval(np.array(v), names) for k, v in lost.items()}
            )
    return rows


# ------------------------------------------------------------------ what is written
def page(report: Mapping[str, Any]) -> str:
    lines = [
        "# Where the learning rate is tuned",
        "",
        "Made by `tuned.py`. BN in front of the head; seven rates, threefold steps; eleven T;",
        "chosen by validation NLL after a post-hoc T; figures of test rows; 95 % over data sets.",
        "Gain: over T = 1 with its own tuned rate. NLL in nats, accuracy in points.",
    ]
    for family, found in report.items():
        lines += [
            "",
            f"## {family}: {found['settings']} settings, {found['data sets']} data sets",
            "",
        ]
        lines += [
            "| way | runs | accuracy | gain | NLL | gain | NLL after | gain | middle | better |"
        ]
        lines += ["|---" * 10 + "|"]
        ways = found["ways"]
        for way in WAYS:
            cells = [way, str(ways["nll"][way]["trainings"])]
            for metric in METRICS:
                digits = 2 if metric == "accuracy" else 3
                own = ways[metric][way]
                cells += [f"{own['mean']:.{digits}f}", shown(own["gain"], digits)]
            own = ways[CHOSEN_BY][way]
            cells += [f"{own['median gain']:+.3f}", f"{100 * own['better']:.0f} %"]
            lines.append(f"| {' | '.join(cells)} |")
        lines += [""]
        for name in FACTORS:
            value, low, high = found[name]
            lines.append(f"- {name}: {value:.2f} [{low:.2f}, {high:.2f}] (geometric mean)")
        lines.append(
            f"- tuned rate at an end of its grid: {100 * found['tuned rate at an end']:.0f} %"
        )
        largest = found["best pair at the largest rate"]
        lines.append(f"- best pair at the largest rate: {largest} of {found['settings']}")
        lines += [
            "",
            "NLL after above that of the best pair (in hindsight on these rows, like best T), by",
            "steps of the rate from the tuned one:",
        ]
        lines += ["", "| rate | settings | T = 1 | law | best T |", "|---" * 5 + "|"]
        for row in found["off"]:
            cells = [f"{row['off']:+d}", str(row["settings"])]
            cells += [shown(row[name], 3, sign=False) for name in ("T = 1", "law", "best T")]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def shown(value: Sequence[float], digits: int, *, sign: bool = True) -> str:
    plus = "+" if sign else ""
    return f"{value[0]:{plus}.{digits}f} [{value[1]:.{digits}f}, {value[2]:.{digits}f}]"


def draw(report: Mapping[str, Any], file: Path) -> None:
    """Loss by rate, T = 1 beside the law."""
    import io

    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.6 * len(report), 3.6), layout="constrained")
    axes = figure.subplots(1, len(report), sharey=True, squeeze=False)[0]
    for axis, (family, found) in zip(axes, report.items(), strict=True):
        for name, color in (("T = 1", "#b3541e"), ("law", "#1f5f8b"), ("best T", "#777777")):
            x = [row["off"] for row in found["off"]]
            y = np.array([row[name] for row in found["off"]])
            axis.plot(x, y[:, 0], "o-", color=color, label=name, markersize=4)
            axis.fill_between(x, y[:, 1], y[:, 2], color=color, alpha=0.12, linewidth=0)
        names = {"sgd": "SGD", "adam": "AdamW"}
        axis.set_title(f"{names.get(family, family)}: {found['settings']} settings", fontsize=10)
        axis.set_xlabel("learning rate, threefold steps from the one tuned at T = 1")
        axis.set_yscale("log")
        axis.grid(alpha=0.25)
    axes[0].set_ylabel("NLL after, above the best pair (nats)")
    axes[0].legend(frameon=False)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=130, metadata={"Software": None})
    write_bytes(file, buffer.getvalue())


def main(runs: Path, file: Path, out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    law = left_out(read(runs / "law"), load_coefficients(file))
    found = grids(read(*(runs / name for name in PARTS if (runs / name).exists())), law)
    report = {
        family: results(own)
        for family in FAMILIES
        if len(own := [g for g in found if g.family == family]) > 1
    }
    write_bytes(out / "tuned.json", (json.dumps(report, indent=1) + "\n").encode())
    write_bytes(out / "tuned.md", page(report).encode())
    draw(report, out / "tuned.png")
    print(page(report))


if __name__ == "__main__":
    main(*(Path(a) for a in sys.argv[1:4]))
