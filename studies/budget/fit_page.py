"""What fit_law.py found, as a page and a picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from fit_law import FAMILIES, TARGETS, settings

from temperance.rules.budget_terms import value_of_term
from temperance.rules.training import read_training
from temperance.study.runs import Curve

Report = Mapping[str, Mapping[str, Sequence[Mapping[str, Any]]]]
COLUMNS = ("form", "cost", "error", "median", "better than T = 1", "taken")


def page(report: Report, targets: Mapping[str, Any]) -> str:
    """Every form with its left-out cost, and the laws that were taken with their intervals."""
    lines = [
        "# The law of the budget: forms, costs, coefficients",
        "",
        "Made by `fit_law.py`. Cost on validation rows of data sets that a fit did not see: share",
        "above the lowest NLL of the setting (capped at 2), or points below its highest accuracy",
        "(capped at 20); mean over settings, with the standard error over data sets. `progress` is",
        "mean rate * steps / (1 - momentum); every form but T = 1 also has a constant and one for",
        "LayerNorm and no norm. Intervals: 95 %, data sets drawn again.",
        "",
    ]
    for target, families in report.items():
        for family, table in families.items():
            law = targets[target][family]
            lines += [f"## {target}, {family}: {law['n_settings']} settings", ""]
            names = ("intercept", *law["terms"])
            found = dict(zip(names, (law["intercept"], *law["terms"].values()), strict=True))
            for name, ends in table[-1]["interval"].items():
                text = f"{found[name]:+.3f} [{ends[0]:+.3f}, {ends[1]:+.3f}]"
                lines.append(f"- {name}: {text}")
            lines += ["", f"| {' | '.join(COLUMNS)} |", "|---" * len(COLUMNS) + "|"]
            for row in table[:-1]:
                cells = (row["form"], *(f"{row[c]:.3f}" for c in COLUMNS[1:5]))
                lines.append(f"| {' | '.join(cells)} | {'x' if row['taken'] else ''} |")
            lines.append("")
    return "\n".join(lines)


def draw(report: Report, curves: Sequence[Curve], targets: Mapping[str, Any], file: Path) -> None:
    """Best T against that of the law (not left out), and the cost of the forms."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    target = "nll_posthoc"
    figure = Figure(figsize=(13, 8), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(2, 3)
    for column, (family, optimizers) in enumerate(FAMILIES.items()):
        own = [c for c in curves if c.setting["optimizer"] in optimizers]
        data, law = settings(own, TARGETS[target]), targets[target][family]
        predicted = [law["intercept"] + _total(law, curve) for curve in own]
        weight = np.array([c.max() for c in data.cost])  # how much hangs on T
        top = axes[0, column]
        x, y = np.exp(predicted), np.exp(data.best)
        marks = top.scatter(x, y, c=np.minimum(weight, 1), cmap="viridis", s=18)
        ends = [min(x.min(), y.min()) / 1.5, max(x.max(), y.max()) * 1.5]
        top.plot(ends, ends, color="0.6", linewidth=1)
        top.set(xscale="log", yscale="log", xlabel="T of the law", ylabel="best trained T")
        top.set_title(f"{family}: {len(own)} settings")
        rows = report[target][family][:-1]
        bottom = axes[1, column]
        place = np.arange(len(rows))
        bottom.barh(
            place,
            [r["cost"] for r in rows],
            xerr=[r["error"] for r in rows],
            color=["C1" if r["taken"] else "0.7" for r in rows],
        )
        bottom.set_yticks(place, [r["form"] for r in rows], fontsize=8)
        bottom.invert_yaxis()
        bottom.set_xlabel("cost on data sets not fitted (share of NLL)")
    figure.colorbar(marks, ax=axes[0, :], label="highest cost of a trained T, capped at 1")
    figure.savefig(file, dpi=110)


def _total(law: Mapping[str, Any], curve: Curve) -> float:
    training = read_training(curve.task)
    return sum(v * value_of_term(name, curve.task, training) for name, v in law["terms"].items())
