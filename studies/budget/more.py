"""The law beyond its fit: ``python more.py RUNS BUDGET.json OUT``.

Of RUNS/long (more steps than any of the fit), RUNS/kinds (attention nets, convolutions over
letters) and RUNS/augment (pairs of settings, with and without). For each group: best T by
validation NLL after a post-hoc T against that of the law (fitted to RUNS/law without the data
set), the power of progress, and what the law costs on test rows, beside T = 1 and the closed form.
"""

from __future__ import annotations

import json
import math
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from fit_law import FAMILIES, TARGETS, cost_of, read
from judge import left_out
from numpy.typing import NDArray
from tuned import interval, mean_of, shown, with_name

from temperance.files import write_bytes
from temperance.rules import HasegawaSakai
from temperance.rules.budget_file import load_coefficients
from temperance.rules.budget_terms import value_of_term
from temperance.rules.training import read_training
from temperance.study.curves import middle_of
from temperance.study.runs import Curve

Array = NDArray[np.float64]
RULES = ("law", "T = 1", "hasegawa-sakai")
COSTS = {"accuracy": "test_accuracy", "nll_posthoc": "test_nll_posthoc"}
LEAST_SETS = 3


@dataclass(frozen=True)
class Found:
    """One setting: its best T, that of the rules, and what each costs."""

    curve: Curve
    family: str
    best: dict[str, float]  # log T by target
    edge: bool
    law: float
    progress: float  # logarithm
    regret: dict[str, dict[str, float]]  # metric, rule: points; percent of the lowest NLL


def found_of(curve: Curve, law: Any) -> Found:
    x = np.log(curve.temperatures)
    best = {target: best_of(x, cost_of(curve, m)) for target, m in TARGETS.items()}
    training = read_training(curve.task)
    at = {
        "law": math.log(law(with_name(curve))),
        "T = 1": 0.0,
        "hasegawa-sakai": math.log(max(HasegawaSakai()(curve.task), 0.1)),
    }
    regret: dict[str, dict[str, float]] = {}
    for name, metric in COSTS.items():
        y = mean_of(curve, metric)
        got = {rule: float(np.interp(t, x, y)) for rule, t in at.items()}
        if name == "accuracy":
            regret[name] = {rule: float(y.max()) - v for rule, v in got.items()}
        else:
            regret[name] = {rule: v - float(y.min()) for rule, v in got.items()}
    edge = best["nll_posthoc"] in (x[0], x[-1])
    progress = value_of_term("log(progress)", curve.task, training)
    family = next(f for f, names in FAMILIES.items() if curve.setting["optimizer"] in names)
    return Found(curve, family, best, edge, at["law"], progress, regret)


def best_of(x: Array, cost: Array) -> float:
    """The log T of least cost; of equal ones the one in their middle."""
    return float(x[middle_of(x, np.flatnonzero(cost <= cost.min() + 1e-12))])


def geometric(log_ratios: Sequence[float]) -> float | None:
    """Geometric mean of ratios; None of none."""
    return float(np.exp(np.mean(log_ratios))) if log_ratios else None


def summary(found: Sequence[Found]) -> dict[str, Any]:
    """What a table has of a group."""
    names = [f.curve.dataset for f in found]
    ratio = np.array([f.best["nll_posthoc"] - f.law for f in found])
    normed = [f for f in found if f.curve.setting["norm"] == "batch"]  # which the rules are for
    sets = [f.curve.dataset for f in normed]
    at = [(f, np.log(f.curve.temperatures)) for f in found]
    inside = [f for f in found if not f.edge]
    report: dict[str, Any] = {
        "settings": len(found),
        "data sets": len(set(names)),
        "at the lower end": sum(bool(f.best["nll_posthoc"] == x[0]) for f, x in at),
        "at the upper end": sum(bool(f.best["nll_posthoc"] == x[-1]) for f, x in at),
        "inside over law": geometric([f.best["nll_posthoc"] - f.law for f in inside]),
        "best over law": interval(ratio, names, factor=True),
        "off by a factor of": float(np.exp(np.median(np.abs(ratio)))),
        "power of progress": power(found),
        "with BN": len(normed),
    }
    for name in COSTS if len(set(sets)) >= LEAST_SETS else ():
        values = {r: np.array([f.regret[name][r] for f in normed]) for r in RULES}
        report[name] = {r: interval(v, sets) for r, v in values.items()}
        report[name]["gain over T = 1"] = interval(values["T = 1"] - values["law"], sets)
        report[name]["better"] = float((values["law"] < values["T = 1"] - 1e-9).mean())
    return report


def power(found: Sequence[Found], draws: int = 500) -> list[float] | None:
    """Slope of log best T on log progress; settings at an end of their grid are left out."""
    inside = [f for f in found if not f.edge]
    if len({f.family for f in found}) > 1:  # whose progress is in different units
        return None
    sets = sorted({f.curve.dataset for f in inside})
    if len(inside) < 8 or len(sets) < LEAST_SETS:
        return None
    x = np.array([f.progress for f in inside])
    y = np.array([f.best["nll_posthoc"] for f in inside])
    rows = {n: [i for i, f in enumerate(inside) if f.curve.dataset == n] for n in sets}
    rng = np.random.default_rng(0)
    slopes = []
    for _ in range(draws):
        drawn = [i for n in rng.choice(sets, len(sets)) for i in rows[n]]
        if np.ptp(x[drawn]) > 1:
            slopes.append(np.polyfit(x[drawn], y[drawn], 1)[0])
    ends = np.quantile(slopes, (0.025, 0.975))
    return [float(np.polyfit(x, y, 1)[0]), *map(float, ends)]


def groups(part: str, found: Sequence[Found]) -> dict[str, list[Found]]:
    """Groups of a part, in the order in which they are shown."""
    own: dict[str, list[Found]] = defaultdict(list)
    for f in found:
        own[f"{part}: {f.family}"].append(f)
    for f in found if part == "kinds" else ():
        own[f"kinds: {f.curve.setting['model']}"].append(f)
        own[f"kinds: {f.curve.setting['model']}, {f.family}"].append(f)
    if part == "augment":
        own = defaultdict(list)
        for f in found:
            kind = f.curve.setting["augment"]
            own[f"augment: {f.family}, {'without' if kind == 'none' else 'with'}"].append(f)
    return {name: own[name] for name in sorted(own) if len(own[name]) >= 3}


def pairs(found: Sequence[Found]) -> dict[str, Any]:
    """Best T with augmentation over that without, of the same setting."""
    both: dict[str, dict[str, Found]] = defaultdict(dict)
    for f in found:
        content = {k: v for k, v in f.curve.setting.items() if k != "augment"}
        both[json.dumps(content)][f.curve.setting["augment"]] = f
    report = {}
    for kind in ("shift", "noise"):
        for family in (*FAMILIES, "all"):
            own = [
                (v["none"], v[kind])
                for v in both.values()
                if len(v) == 2 and kind in v and family in ("all", v["none"].family)
            ]
            names = [a.curve.dataset for a, _ in own]
            if len(own) < 2:
                continue
            report[f"{kind}, {family}"] = {
                "pairs": len(own),
                "data sets": len(set(names)),
                **{
                    target: interval(
                        np.array([b.best[target] - a.best[target] for a, b in own]),
                        names,
                        factor=True,
                    )
                    for target in TARGETS
                },
            }
    return report


# ------------------------------------------------------------------ what is written
def page(report: Mapping[str, Any]) -> str:
    lines = [
        "# The law beyond its fit",
        "",
        "Made by `more.py`. Best T by validation NLL after a post-hoc T, over that of the law,",
        "which was fitted to the other data sets; 95 % intervals, data sets drawn again. Regret on",
        "test rows, against the best T in hindsight, BN in front of the head: accuracy in points,",
        "NLL after in nats.",
        "",
        "| group | settings (sets) | at lower, upper end | best T over law | those inside "
        "| typically off by | power of P |",
        "|---" * 7 + "|",
    ]
    for name, found in report["groups"].items():
        slope = found["power of progress"]
        cells = [
            name,
            f"{found['settings']} ({found['data sets']})",
            f"{found['at the lower end']}, {found['at the upper end']}",
            shown(found["best over law"], 2, sign=False),
            "" if found["inside over law"] is None else f"{found['inside over law']:.2f}",
            f"{found['off by a factor of']:.1f}",
            shown(slope, 2, sign=False) if slope else "",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    for metric, digits in (("accuracy", 2), ("nll_posthoc", 3)):
        lines += ["", f"Regret, {metric}:", ""]
        lines += ["| group | settings | law | T = 1 | closed form | gain | better |"]
        lines += ["|---" * 7 + "|"]
        for name, found in report["groups"].items():
            if metric in found:
                own = found[metric]
                cells = [name, str(found["with BN"])]
                cells += [shown(own[rule], digits, sign=False) for rule in RULES]
                cells += [shown(own["gain over T = 1"], digits), f"{100 * own['better']:.0f} %"]
                lines.append(f"| {' | '.join(cells)} |")
    if report["pairs"]:
        lines += ["", "Best T with augmentation over that without, same setting:", ""]
        lines += ["| augmentation | pairs (sets) | by NLL after | by NLL | by accuracy |"]
        lines += ["|---" * 5 + "|"]
        for name, found in report["pairs"].items():
            cells = [name, f"{found['pairs']} ({found['data sets']})"]
            cells += [shown(found[target], 2, sign=False) for target in TARGETS]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def draw(found: Mapping[str, Sequence[Found]], file: Path) -> None:
    """Best T against that of the law, SGD, one panel for each part."""
    import io

    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.2 * len(found), 4.2), layout="constrained")
    axes = figure.subplots(1, len(found), squeeze=False)[0]
    colors = ("#1f5f8b", "#b3541e", "#4c8c4a", "#7a5195")
    for axis, (part, everything) in zip(axes, found.items(), strict=True):
        own = [f for f in everything if f.family == "sgd"]
        field = {"kinds": "model", "augment": "augment"}.get(part, "norm")
        kinds = sorted({f.curve.setting[field] for f in own})
        for color, kind in zip(colors, kinds, strict=False):
            points = [f for f in own if f.curve.setting[field] == kind]
            for edge in (False, True):
                x = [math.exp(f.law) for f in points if f.edge == edge]
                y = [math.exp(f.best["nll_posthoc"]) for f in points if f.edge == edge]
                face = "none" if edge else color
                label = None if edge else f"{field} {kind}"
                axis.scatter(x, y, s=24, facecolor=face, edgecolor=color, label=label)
        ends = [0.05, 1000.0]
        axis.plot(ends, ends, color="#777777", linewidth=0.8)
        axis.set_xscale("log")
        axis.set_yscale("log")
        axis.set_title(f"{part}, SGD", fontsize=10)
        axis.set_xlabel("T of the law")
        axis.legend(frameon=False, fontsize=8)
        axis.grid(alpha=0.25)
    axes[0].set_ylabel("best T (NLL after); open: at an end of its grid")
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=130, metadata={"Software": None})
    write_bytes(file, buffer.getvalue())


def main(runs: Path, file: Path, out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    law = left_out(read(runs / "law"), load_coefficients(file))
    found = {
        part: [found_of(c, law) for c in read(runs / part)]
        for part in ("long", "kinds", "augment")
        if (runs / part).exists()
    }
    report = {
        "groups": {
            name: summary(own)
            for part, everything in found.items()
            for name, own in groups(part, everything).items()
        },
        "pairs": pairs(found.get("augment", [])),
    }
    write_bytes(out / "more.json", (json.dumps(report, indent=1) + "\n").encode())
    write_bytes(out / "more.md", page(report).encode())
    draw(found, out / "more.png")
    print(page(report))


if __name__ == "__main__":
    main(*(Path(a) for a in sys.argv[1:4]))
