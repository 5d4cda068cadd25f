"""The law from a tuned rate: ``python fit_tuned.py RUNS BUDGET.json OUT [--fresh]``.

Where a rate was tuned at T = 1, it tells what the task asks for, and theory says the rest: T grows
like the square root of the rate under SGD and like the rate under Adam and RMSprop (docs/theory).
So one number is left for each family, T at the tuned rate. It is fitted to RUNS/tuned by what its
temperatures cost (as in ``fit_law.py``), beside a form with a free power, judged by leaving out
each data set; the free power is taken where theory's costs more by a standard error. What is
taken goes into BUDGET.json as families "sgd, tuned" and so on, for each target. With ``--fresh``
nothing is fitted: RUNS/fresh-tuned, test rows, once.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from fit_law import FAMILIES, FLOOR, GRID, OUTSIDE, TARGETS, looked_up, read
from fit_law import fit as least_cost
from judge import LeftOut, left_out
from numpy.typing import NDArray
from tuned import Grid, best_rate, grids, interval, shown

from temperance.files import write_bytes
from temperance.rules.budget import Budget
from temperance.rules.budget_file import load_coefficients, save_coefficients
from temperance.study.resample import FEW

Array = NDArray[np.float64]
POWERS = {"sgd": 0.5, "adam": 1.0, "rmsprop": 1.0}
"""Of the rate, derived in docs/theory: what a training does depends on P / T^2, or on P / T."""
STEPS = range(-2, 5)  # threefold steps of the rate around the tuned one
TERM = "log(lr/tuned_lr)"
FORMS = ("T of theory", "free power", "free power, T = 1 at the tuned rate", "the law", "T = 1")
TAKEN = FORMS[:2]  # the shorter first
DRAWS = 200


@dataclass(frozen=True)
class Rows:
    """A setting at one rate is a row."""

    x: Array  # [n, 2]: 1 and log(rate / tuned rate)
    cost: Array  # [n, len(GRID)]
    best: Array  # [n], log T
    law: Array  # [n], log T of the law
    step: NDArray[np.int64]
    dataset: NDArray[Any]

    def of(self, which: NDArray[Any]) -> Rows:
        """Some of the rows, by a mask or by places."""
        return Rows(*(getattr(self, name)[which] for name in self.__dataclass_fields__))


def rows_of(found: Sequence[Grid], split: str, metric: str) -> Rows:
    """Rates within ``STEPS`` of the one that is best at T = 1 on validation rows."""
    parts: list[tuple[Any, ...]] = []
    for grid in found:
        tuned = best_rate(grid, 0.0)
        for step in STEPS:
            if 0 <= tuned + step < len(grid.rates):
                place = tuned + step
                cost = cost_of(getattr(grid, split)[metric][place], metric)
                outside = np.maximum(grid.log_t[0] - GRID, 0) + np.maximum(GRID - grid.log_t[-1], 0)
                parts.append((
                    [1.0, np.log(grid.rates[place] / grid.rates[tuned])],
                    np.interp(GRID, grid.log_t, cost) + OUTSIDE * outside,
                    grid.log_t[cost.argmin()], grid.law[place], step, grid.dataset,
                ))  # fmt: skip
    return Rows(*map(np.array, zip(*parts, strict=True)))


def cost_of(values: Array, metric: str) -> Array:
    """As in ``fit_law.py``: a share of the lowest NLL, or points of accuracy."""
    if metric == "accuracy":
        return np.minimum(values.max() - values, 20.0)
    return np.minimum((values - values.min()) / max(values.min(), FLOOR), 2.0)


def fitted(form: str, rows: Rows, family: str, scale: float) -> Array:
    """Log T at the tuned rate, and the power of the rate."""
    if form == "T of theory":
        power = POWERS[family]
        tried = np.arange(-2.0, 4.0, 0.02)
        lost = [looked_up(rows.cost, a + power * rows.x[:, 1]).mean() for a in tried]
        return np.array([tried[int(np.argmin(lost))], power])
    if form == "free power":
        return least_cost(rows.x, rows.cost, rows.best, scale)
    tried = np.arange(0.0, 2.0, 0.02)
    lost = [looked_up(rows.cost, b * rows.x[:, 1]).mean() for b in tried]
    return np.array([0.0, tried[int(np.argmin(lost))]])


def left_out_rows(form: str, rows: Rows, family: str, scale: float) -> Array:
    """Log T of each row by a fit to the other data sets."""
    if form == "the law":
        return rows.law
    log_t = np.zeros(len(rows.x))
    for name in sorted(set(rows.dataset)) if form != "T = 1" else ():
        out = rows.dataset == name
        log_t[out] = rows.x[out] @ fitted(form, rows.of(~out), family, scale)
    return log_t


def taken(rows: Rows, family: str, scale: float) -> str:
    """The form of theory, unless the free power costs less by a standard error over data sets."""
    sets = sorted(set(rows.dataset))
    lost = [looked_up(rows.cost, left_out_rows(f, rows, family, scale)) for f in TAKEN]
    by_set = np.array([lost[1][rows.dataset == name].mean() for name in sets])
    error = by_set.std(ddof=1) / np.sqrt(len(sets))
    return TAKEN[1] if lost[0].mean() > lost[1].mean() + error else TAKEN[0]


def family_of(rows: Rows, family: str, target: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The law of a family as BUDGET.json has it, and the table of forms."""
    scale = 10.0 if target == "accuracy" else 1.0
    table = {}
    for form in FORMS:
        log_t = left_out_rows(form, rows, family, scale)
        lost = looked_up(rows.cost, log_t)
        table[form] = {
            "cost": interval(lost, list(rows.dataset)),
            "typically off by": float(np.exp(np.median(np.abs(log_t - rows.best)))),
            "by step": {
                str(s): float(lost[rows.step == s].mean()) for s in STEPS if (rows.step == s).any()
            },
        }
    form = taken(rows, family, scale)
    a, power = fitted(form, rows, family, scale)
    rng, sets = np.random.default_rng(0), sorted(set(rows.dataset))
    draws = []
    for _ in range(DRAWS):
        drawn = np.concatenate(
            [np.flatnonzero(rows.dataset == n) for n in rng.choice(sets, len(sets))]
        )
        draws.append(fitted(form, rows.of(drawn), family, scale))
    free = fitted("free power", rows, family, scale)
    around = left_out_rows(form, rows, family, scale) - rows.best
    law = {
        "intercept": round(float(a), 4),
        "terms": {TERM: round(float(power), 4)},
        "covariance": np.round(np.cov(np.array(draws).T), 8).tolist(),
        "residual_sd": round(float(np.sqrt(np.mean(around**2))), 4),
        "degrees_of_freedom": max(1, len(sets) - 1),
        "n_settings": len(rows.x),
    }
    ends = np.quantile(np.array(draws)[:, 0], (0.025, 0.975))
    return law, {
        "taken": form, "power": float(power),
        "rows": len(rows.x), "data sets": len(sets), "forms": table,
        "T at the tuned rate": [float(np.exp(v)) for v in (a, *ends)],
        "free": [float(np.exp(free[0])), float(free[1])],
    }  # fmt: skip


def domain_of(curves: Sequence[Any], optimizers: Sequence[str]) -> dict[str, list[Any]]:
    from fit_law import domain_of as of_curves

    own = of_curves([c for c in curves if c.setting["optimizer"] in optimizers])
    names = ("M", "C", "n", "steps", "lr", "batch_size", "label_noise")
    names += ("optimizer", "norm", "schedule")
    ends = [float(f"{3.0 ** (s - 0.5 if s < 0 else s + 0.5):.4g}") for s in (STEPS[0], STEPS[-1])]
    return {name: own[name] for name in names} | {"lr/tuned_lr": ends}


# ------------------------------------------------------------------ fresh data
def fresh(found: Sequence[Grid], laws: Mapping[str, Array], *, level: float) -> dict[str, Any]:
    """What the law from a tuned rate costs on test rows, beside the law and T = 1."""
    report: dict[str, Any] = {}
    for family in laws:
        own = [g for g in found if g.family == family]
        if len({g.dataset for g in own}) < 2:
            continue
        report[family] = {"settings": len(own), "data sets": len({g.dataset for g in own})}
        for metric in ("nll_posthoc", "accuracy"):
            rows = rows_of(own, "test", metric)
            names = list(rows.dataset)
            at = {"tuned": rows.x @ laws[family], "law": rows.law, "T = 1": 0 * rows.law}
            lost = {name: looked_up(rows.cost, log_t) for name, log_t in at.items()}
            won = (lost["tuned"] < lost["T = 1"] - 1e-9).astype(float)
            report[family][metric] = {
                "rows": len(names),
                "cost": {name: interval(v, names) for name, v in lost.items()},
                "gain over T = 1": interval(lost["T = 1"] - lost["tuned"], names, level=level),
                "gain over the law": interval(lost["law"] - lost["tuned"], names, level=level),
                "better than T = 1": interval(won, names),
                "by step": {
                    str(s): {n: float(v[rows.step == s].mean()) for n, v in lost.items()}
                    for s in STEPS
                    if (rows.step == s).any()
                },
            }
        report[family]["gain in nats"] = gain_in_nats(own, laws[family])
        report[family]["recipes"] = recipes(own, laws[family])
    return report


def gain_in_nats(own: Sequence[Grid], law: Array) -> dict[str, Any]:
    """NLL after at T = 1 less that at T of the law from a tuned rate; mean and middle."""
    gains, names = [], []
    for grid in own:
        tuned = best_rate(grid, 0.0)
        at = law[0] + law[1] * np.log(grid.rates / grid.rates[tuned])
        values = grid.test["nll_posthoc"]
        gain = grid.at(values, 0.0) - grid.at(values, at)
        places = [tuned + s for s in STEPS if 0 <= tuned + s < len(grid.rates)]
        gains += [float(gain[p]) for p in places]
        names += [grid.dataset] * len(places)
    return {"mean": interval(np.array(gains), names), "median": float(np.median(gains))}


def kept(found: Mapping[str, Any]) -> bool:
    """What README.md asked for before: cheaper than both, and shown to be better than T = 1."""
    own = found["nll_posthoc"]
    cost = {name: value[0] for name, value in own["cost"].items()}
    cheaper = cost["tuned"] < min(cost["law"], cost["T = 1"])
    enough = found["data sets"] >= FEW  # intervals over fewer are not to be trusted
    return bool(enough and cheaper and own["gain over T = 1"][1] > 0)


def recipes(own: Sequence[Grid], law: Array) -> list[dict[str, Any]]:
    """One more run: the tuned rate times 1, 3, 9, 27, at T of the law from a tuned rate."""
    table = []
    for step in range(4):
        gains: dict[str, list[float]] = {"accuracy": [], "nll_posthoc": []}
        names = []
        for grid in own:
            tuned = best_rate(grid, 0.0)
            if tuned + step >= len(grid.rates):
                continue
            names.append(grid.dataset)
            t = float(law @ [1.0, np.log(grid.rates[tuned + step] / grid.rates[tuned])])
            for metric, into in gains.items():
                values = grid.test[metric]
                here = grid.at(values, t)[tuned + step] - grid.at(values, 0.0)[tuned]
                into.append(float(here if metric == "accuracy" else -here))
        if len(set(names)) > 1:
            row = {m: interval(np.array(v), names) for m, v in gains.items()}
            table.append({"rate times": 3**step, "settings": len(names), **row})
    return table


# ------------------------------------------------------------------ what is written
def page(report: Mapping[str, Any]) -> str:
    lines = [
        "# The law from a tuned rate",
        "",
        "Made by `fit_tuned.py`. Rates within -2 to 4 threefold steps of the one that is best at",
        "T = 1. Cost: share of NLL that is lost against the best T at the rate (accuracy: points),",
        "validation rows, every data set by a fit to the others; 95 % over data sets.",
    ]
    for target, families in report.items():
        for family, found in families.items():
            t = found["T at the tuned rate"]
            ends = f"[{t[1]:.2f}, {t[2]:.2f}]"
            head = f"T at the tuned rate {t[0]:.2f} {ends}, power {found['power']:.2f}"
            head += f" ({found['taken']})"
            free = f"with a free power: {found['free'][0]:.2f}, {found['free'][1]:.2f}"
            lines += ["", f"## {family}, by {target}: {head}", ""]
            lines += [f"{found['rows']} rows of {found['data sets']} data sets; {free}.", ""]
            steps = list(found["forms"]["T = 1"]["by step"])
            lines += [f"| form | cost | typically off by | {' | '.join(steps)} |"]
            lines += ["|---" * (3 + len(steps)) + "|"]
            for form, own in found["forms"].items():
                cells = [form, shown(own["cost"], 4, sign=False), f"{own['typically off by']:.1f}"]
                cells += [f"{v:.3f}" for v in own["by step"].values()]
                lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def fresh_page(draws: Mapping[str, Mapping[str, Any]]) -> str:
    lines = ["# The law from a tuned rate, on fresh data", ""]
    lines += ["Made by `fit_tuned.py --fresh`. Test rows; cost as in `fit-tuned.md`; gains of the"]
    lines += ["second draw with 97.5 % intervals, all others 95 %, over data sets.", ""]
    names = ("draw", "family, by", "settings (rows, sets)", "tuned", "law", "T = 1")
    lines += [f"| {' | '.join(names)} | gain over T = 1 | over law | kept |", "|---" * 9 + "|"]
    for draw, report in draws.items():
        for family, found in report.items():
            for metric, digits in (("nll_posthoc", 3), ("accuracy", 2)):
                own = found[metric]
                cells = [draw, f"{family}, {metric}"]
                cells += [f"{found['settings']} ({own['rows']}, {found['data sets']})"]
                cells += [shown(v, digits, sign=False) for v in own["cost"].values()]
                cells += [shown(own[f"gain over {name}"], digits) for name in ("T = 1", "the law")]
                cells += [("yes" if kept(found) else "no") if metric == "nll_posthoc" else ""]
                lines.append(f"| {' | '.join(cells)} |")
    lines += ["", "NLL after, cost by threefold steps of the rate: tuned / law / T = 1:", ""]
    lines += [f"| draw | family | {' | '.join(map(str, STEPS))} |", "|---" * (2 + len(STEPS)) + "|"]
    for draw, report in draws.items():
        for family, found in report.items():
            steps = found["nll_posthoc"]["by step"]
            cells = [draw, family]
            for step in map(str, STEPS):
                cells.append(" / ".join(f"{v:.3f}" for v in steps.get(step, {}).values()))
            lines.append(f"| {' | '.join(cells)} |")
    lines += [
        "",
        "One more run, against the tuned rate at T = 1 (accuracy in points, NLL in nats):",
    ]
    lines += ["", "| draw | family | rate times | settings | accuracy | NLL after |"]
    lines += ["|---" * 6 + "|"]
    for draw, report in draws.items():
        for family, found in report.items():
            for row in found["recipes"]:
                cells = [draw, family, str(row["rate times"]), str(row["settings"])]
                cells += [shown(row["accuracy"], 2), shown(row["nll_posthoc"], 3)]
                lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def write(report: Mapping[str, Any], text: str, out: Path, name: str) -> None:
    out.mkdir(parents=True, exist_ok=True)
    write_bytes(out / f"{name}.json", (json.dumps(report, indent=1) + "\n").encode())
    write_bytes(out / f"{name}.md", text.encode())
    print(text)


def main(runs: Path, file: Path, out: Path) -> None:
    content = json.loads(file.read_text())
    for family in FAMILIES:  # what was judged was another fit
        content["fit"].get("held_out", {}).pop(f"{family}, tuned", None)
    parts_there = [runs / name for name in ("tuned", "tuned-rmsprop") if (runs / name).exists()]
    curves = [c for folder in parts_there for c in read(folder)]
    law: LeftOut = left_out(read(runs / "law"), load_coefficients(file))
    found = grids(curves, law)
    report: dict[str, Any] = {}
    for target in TARGETS:
        report[target] = {}
        for family, optimizers in FAMILIES.items():
            own = [g for g in found if g.family == family]
            if own:
                parts, report[target][family] = family_of(
                    rows_of(own, "val", target), family, target
                )
                parts["domain"] = domain_of(curves, optimizers)
                content["targets"][target][f"{family}, tuned"] = parts
    save_coefficients(content, file)
    write(report, page(report), out, "fit-tuned")


LEVELS = {"fresh-tuned": 0.95, "fresh-tuned-2": 0.975, "fresh-tuned-3": 0.975}
"""Draws of fresh data and the level of what they are to show; 2 (AdamW) and 3 (SGD) are second
tries."""


def main_fresh(runs: Path, file: Path, out: Path) -> None:
    coefficients = load_coefficients(file)
    families = coefficients.families(coefficients.target)
    laws = {
        family: np.array([law.intercept, dict(law.terms)[TERM]])
        for family in FAMILIES
        if (law := families.get(f"{family}, tuned"))
    }
    own = {
        name: grids(read(runs / name), Budget(coefficients))
        for name in LEVELS
        if (runs / name).exists()
    }
    draws = {name: fresh(found, laws, level=LEVELS[name]) for name, found in own.items()}
    pooled = fresh([grid for found in own.values() for grid in found], laws, level=0.95)
    text = fresh_page(draws)
    write(draws, text, out, "fresh-tuned")
    keep(file, draws, pooled)


def keep(
    file: Path, draws: Mapping[str, Mapping[str, Any]], pooled: Mapping[str, Mapping[str, Any]]
) -> None:
    """Leave only the laws that fresh data support, and write for users what to expect of them.

    Only the law by NLL after is judged, so only that is kept; and what to expect is of all draws.
    """
    content = json.loads(file.read_text())
    held = content["fit"].setdefault("held_out", {})
    for family in FAMILIES:
        name = f"{family}, tuned"
        supported = any(kept(r[family]) for r in draws.values() if family in r)
        for target, families in content["targets"].items():
            if not supported or target != content["target"]:
                families.pop(name, None)
        if not supported:
            held.pop(name, None)
            continue
        found = pooled[family]
        held[name] = {
            "tasks": found["nll_posthoc"]["rows"],
            "datasets": found["data sets"],
            "gain": [round(v, 4) for v in found["gain in nats"]["mean"]],
            "median_gain": round(found["gain in nats"]["median"], 4),
            "better": [round(v, 3) for v in found["nll_posthoc"]["better than T = 1"]],
        }
    save_coefficients(content, file)


if __name__ == "__main__":
    (main_fresh if "--fresh" in sys.argv else main)(*(Path(a) for a in sys.argv[1:4]))
