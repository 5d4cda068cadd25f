"""Tables and pictures of the study from its rows; nothing is trained here.

    cd studies/sigma_ensemble && python analyse.py rows results

Means are over seeds; ``+-`` is half the range over seeds. A difference counts as shown where all
seeds agree on its sign and its paired 95 % interval (t, seeds as pairs) leaves out 0; where only
the signs agree it is called ``likely``.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from plans import L9, LEVELS, REFINED, TASKS
from scipy.stats import t as student

from temperance.evaluation.plot_frontier import plot_frontier
from temperance.evaluation.plot_style import (
    COLOURS,
    HOUSE,
    MARKERS,
    new_figure,
    row_of_axes,
    save_png,
)
from temperance.evaluation.prepare_frontier import prepare_frontier
from temperance.files import write_bytes
from temperance.records import Estimate

Row = Mapping[str, Any]
Figure = Callable[[Row], float]

TITLES = {
    "single": "Single model",
    "deep_ensemble": "Deep ensemble",
    "sigma": "sigmaN, with diversity term",
    "sigma_plain": "sigmaN, without it",
    "sigma_split": "sigmaN, rows split",
    "sigma_paper": "sigmaN, init of the paper",
    "batch_ensemble": "BatchEnsemble",
    "packed": "Packed-Ensembles",
    "film_ensemble": "FiLM-Ensemble",
    "mimo": "MIMO",
    "masksembles": "Masksembles",
    "mc_dropout": "MC dropout",
}
FIGURES = {
    "accuracy": ("Accuracy %", 100.0, "{:.1f}"),
    "nll": ("NLL", 1.0, "{:.3f}"),
    "ece": ("ECE %", 100.0, "{:.1f}"),
    "brier": ("Brier", 1.0, "{:.3f}"),
    "nll_posthoc": ("NLL behind T", 1.0, "{:.3f}"),
    "ece_posthoc": ("ECE behind T %", 100.0, "{:.1f}"),
    "disagreement": ("Disagree %", 100.0, "{:.1f}"),
}


# ------------------------------------------------------------------ reading
def read(folder: Path, name: str) -> list[dict[str, Any]]:
    """Rows of one plan; none if it was not run."""
    file = folder / f"{name}.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def where(rows: Iterable[Row], **wanted: Any) -> list[Row]:
    """Rows whose cells have these values, and that came to an end, by seed."""
    found = [
        r
        for r in rows
        if r["outcome"] == "done" and all(r["cell"][k] == v for k, v in wanted.items())
    ]
    return sorted(found, key=lambda r: r["cell"]["seed"])


def metric(name: str) -> Figure:
    return lambda row: float(row["metrics"][name])


def values(rows: Sequence[Row], name: str) -> np.ndarray:
    return np.array([metric(name)(r) for r in rows])


def shown(found: np.ndarray, name: str) -> str:
    """Mean and half the range over seeds."""
    _, scale, form = FIGURES[name]
    text = form.format(found.mean() * scale)
    if len(found) > 1:
        text += " ±" + form.format((found.max() - found.min()) / 2 * scale)
    return text


def difference(a: np.ndarray, b: np.ndarray) -> dict[str, Any]:
    """Mean of ``a - b`` over seeds, with a paired t interval, and what it shows."""
    d = a - b
    n, mean = len(d), float(d.mean())
    if n < 2:
        return {"mean": mean, "low": math.nan, "high": math.nan, "shows": "one seed"}
    half = float(student.ppf(0.975, n - 1) * d.std(ddof=1) / math.sqrt(n))
    same = bool(np.all(d > 0) or np.all(d < 0))
    shows = "shown" if same and abs(mean) > half else "likely" if same else "not shown"
    return {"mean": mean, "low": mean - half, "high": mean + half, "shows": shows}


def table_of(header: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """A table in Markdown."""
    rule = ["---", *["---:"] * (len(header) - 1)]
    return "\n".join("| " + " | ".join(line) + " |" for line in (header, rule, *lines)) + "\n"


# ------------------------------------------------------------------ learning rates
def rate(rows: list[dict[str, Any]]) -> str:
    """NLL of the fit rows over the learning rate, by task."""
    rates = sorted({r["cell"]["lr"] for r in rows})
    lines = []
    for name, task in TASKS.items():
        found = {r["cell"]["lr"]: r for r in where(rows, dataset=task.dataset, net=task.net)}
        cells = [_fit_figures(found.get(lr)) for lr in rates]
        lines.append([name, *cells, f"{task.lr:g}"])
    head = ["NLL / accuracy % on fit rows", *(f"{lr:g}" for lr in rates), "taken"]
    return "## Learning rate of the single model\n\n" + table_of(head, lines)


def _fit_figures(row: Row | None) -> str:
    if row is None:
        return "-"
    m = row["metrics"]
    return f"{m['fit_nll']:.3f} / {100 * m['fit_accuracy']:.1f}"


# ------------------------------------------------------------------ the regime
def regime(rows: list[dict[str, Any]], more: list[dict[str, Any]]) -> str:
    """Settings of gamma and the term beside single model and deep ensemble."""
    text = ["## The regime\n"]
    groups = [(16, "adamw"), (32, "adamw"), (64, "adamw"), (16, "sgd")]
    for width, optimizer in groups:
        part = where((*rows, *more), width=width, optimizer=optimizer)
        if part:
            text += [
                f"### Width {width}, {optimizer}\n",
                _settings(part),
                _effects(where(rows, width=width, optimizer=optimizer)),
            ]
    return "\n".join(text)


def _key(row: Row) -> tuple[float, ...]:
    return tuple(row["cell"][k] for k in LEVELS)


def _settings(part: list[Row]) -> str:
    names = ("accuracy", "nll", "ece", "nll_posthoc", "disagreement")
    lines = []
    for method in ("single", "deep_ensemble"):
        found = where(part, method=method)
        if method == "single":
            found = [r for r in found if r["cell"]["seed"] % 100 == 0]
        if found:
            lines.append([TITLES[method], *(shown(values(found, n), n) for n in names), ""])
    nine = [{k: LEVELS[k][i] for k, i in zip(LEVELS, p, strict=True)} for p in L9]
    for wanted in (*nine, *REFINED):
        found = where(part, method="sigma", **wanted)
        if found:
            name = ", ".join(f"{k} {v:g}" for k, v in wanted.items())
            owners = np.mean([r["sharing"]["effective_owners"] for r in found])
            lines.append([name, *(shown(values(found, n), n) for n in names), f"{owners:.2f}"])
    return table_of(["Setting", *(FIGURES[n][0] for n in names), "Owners"], lines)


def _effects(part: list[Row]) -> str:
    """Mean over the settings of each level (each other level is in it equally often)."""
    sigma = where(part, method="sigma")
    lines = []
    for factor, levels in LEVELS.items():
        for level in levels:
            found = [r for r in sigma if r["cell"][factor] == level]
            if found:
                cells = [
                    FIGURES[n][2].format(values(found, n).mean() * FIGURES[n][1])
                    for n in ("accuracy", "nll", "ece", "nll_posthoc", "disagreement")
                ]
                lines.append([f"{factor} {level:g}", *cells])
    names = ("accuracy", "nll", "ece", "nll_posthoc", "disagreement")
    return table_of(["Level, mean of its settings", *(FIGURES[n][0] for n in names)], lines)


# ------------------------------------------------------------------ all methods
def tables(rows: list[dict[str, Any]]) -> tuple[str, dict[str, Any]]:
    """Every method on every task, and its paired difference to single model and deep ensemble."""
    text, facts = ["## All methods, M = 4\n"], {}
    for name, task in TASKS.items():
        part = [
            r for r in rows if all(r["cell"][k] == getattr(task, k) for k in ("dataset", "net"))
        ]
        if not part:
            continue
        text += [f"### {name}\n", _methods(part), _refused(part)]
        facts[name] = _differences(part)
    return "\n".join(text), facts


def _singles(part: Sequence[Row], seeds: Iterable[int]) -> list[Row]:
    """The single model of each seed, which is the first member of its deep ensemble."""
    by_seed = {r["cell"]["seed"]: r for r in where(part, method="single")}
    return [by_seed[100 * s] for s in seeds if 100 * s in by_seed]


def _of_method(part: Sequence[Row], method: str) -> list[Row]:
    if method != "single":
        return where(part, method=method)
    return _singles(part, sorted({r["cell"]["seed"] // 100 for r in where(part, method="single")}))


def _methods(part: list[Row]) -> str:
    single = _of_method(part, "single")
    size, seconds = single[0]["parameters"], np.mean([r["train_seconds"] for r in single])
    lines = []
    for method, title in TITLES.items():
        found = _of_method(part, method)
        if found:
            cost = np.mean([r["train_seconds"] for r in found]) / seconds
            more = [f"{found[0]['parameters'] / size:.2f}", f"{cost:.1f}"]
            lines.append([title, *(shown(values(found, n), n) for n in FIGURES), *more])
    heads = [FIGURES[n][0] for n in FIGURES]
    return table_of(["Method", *heads, "Parameters", "Training CPU time"], lines)


def _refused(part: list[Row]) -> str:
    seen: dict[str, str] = {}
    for r in part:
        if r["outcome"] != "done":
            message = r.get("message", "").splitlines()[0]
            seen.setdefault(r["cell"]["method"], f"{r['outcome']}: {message}")
    return "\n".join(f"- {TITLES[m]}: {why}" for m, why in seen.items()) + "\n"


def _differences(part: list[Row]) -> dict[str, Any]:
    facts: dict[str, Any] = {}
    for method in TITLES:
        found = _of_method(part, method)
        for reference in ("single", "deep_ensemble"):
            other = _of_method(part, reference)
            n = min(len(found), len(other))
            if method != reference and n:
                facts[f"{method} - {reference}"] = {
                    k: difference(values(found[:n], k), values(other[:n], k))
                    for k in ("accuracy", "nll", "ece", "brier", "nll_posthoc", "ece_posthoc")
                }
    return facts


def difference_text(facts: Mapping[str, Any]) -> str:
    """The differences that matter most, one table."""
    lines = []
    for task, found in facts.items():
        for pair in ("sigma - single", "sigma - deep_ensemble", "sigma_plain - single",
                     "sigma_plain - deep_ensemble"):  # fmt: skip
            if pair in found:
                cells = [
                    _said(found[pair][k], k) for k in ("accuracy", "nll", "ece", "nll_posthoc")
                ]
                lines.append([task, pair.replace("_", " "), *cells])
    head = ["Task", "Difference", "Accuracy, points", "NLL", "ECE, points", "NLL behind T"]
    return "### Differences, paired by seed, 95 %\n\n" + table_of(head, lines)


def _said(d: Mapping[str, Any], name: str) -> str:
    _, scale, form = FIGURES[name]
    low, mean, high = (form.format(scale * d[k]) for k in ("low", "mean", "high"))
    return f"{mean} [{low}, {high}] {d['shows']}"


# ------------------------------------------------------------------ corruption and other things
def corruption(rows: list[dict[str, Any]], out: Path) -> str:
    """Figures over severity, means over eight kinds."""
    text = ["## Corrupted pictures\n"]
    for net in ("resnet", "vit"):
        part = [r for r in rows if r["cell"]["net"] == net and "corrupted" in r]
        if not part:
            continue
        curves = {m: _of_method(part, m) for m in TITLES}
        curves = {m: found for m, found in curves.items() if found}
        _plot_corruption(curves, out / f"corruption-{net}.png")
        lines = []
        for method, found in curves.items():
            cells = [
                "{:.1f} / {:.1f}".format(
                    *(
                        100 * np.mean([r["corrupted"][str(s)][k] for r in found])
                        for k in ("accuracy", "ece")
                    )
                )
                for s in range(6)
            ]
            rise = _rise(found)
            lines.append([TITLES[method], *cells, f"{100 * rise.mean():+.1f}"])
        head = ["Accuracy % / ECE %", *(f"severity {s}" for s in range(6)), "ECE, 0 to 5"]
        text += [f"### CIFAR-10, {net}\n", table_of(head, lines)]
        text.append(f"![curves](corruption-{net}.png)\n")
    return "\n".join(text)


def _rise(found: Sequence[Row]) -> np.ndarray:
    return np.array([r["corrupted"]["5"]["ece"] - r["corrupted"]["0"]["ece"] for r in found])


def _plot_corruption(curves: Mapping[str, Sequence[Row]], file: Path) -> None:
    names = {"accuracy": "Accuracy (%)", "ece": "ECE (%)", "nll": "NLL (nats)"}
    with matplotlib.rc_context(HOUSE):
        figure = new_figure(10.5, 4.4)
        for axes, (name, title) in zip(row_of_axes(figure, 3), names.items(), strict=True):
            scale = 1 if name == "nll" else 100
            for place, (method, found) in enumerate(curves.items()):
                y = [
                    scale * np.mean([r["corrupted"][str(s)][name] for r in found]) for s in range(6)
                ]
                _line(axes, range(6), y, place, method)
            axes.set(title=title, xlabel="Severity")
        _legend(figure, axes)
    save_png(figure, file)


def _line(axes: Axes, x: Iterable[float], y: Iterable[float], place: int, method: str) -> None:
    axes.plot(
        list(x),
        list(y),
        color=COLOURS[place % len(COLOURS)],
        marker=MARKERS[place % len(MARKERS)],
        linestyle=("-", "--")[place // len(COLOURS)],
        label=TITLES[method],
    )


def _legend(figure: Any, axes: Axes) -> None:
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4)


def ood(rows: list[dict[str, Any]]) -> str:
    """AUROC of rows of other things."""
    text = ["## Rows of other things (AUROC)\n"]
    for name, task in TASKS.items():
        part = [
            r
            for r in rows
            if "ood" in r and (r["cell"]["dataset"], r["cell"]["net"]) == (task.dataset, task.net)
        ]
        if not part:
            continue
        sets = list(part[0]["ood"])
        lines = []
        for method, title in TITLES.items():
            found = _of_method(part, method)
            if found:
                cells = [_auroc(found, s, k) for s in sets for k in ("msp", "entropy")]
                cells += [_auroc(found, s, "mutual_information") for s in sets]
                lines.append([title, *cells])
        head = [f"{s}, {k}" for s in sets for k in ("top probability", "entropy")]
        head += [f"{s}, mutual information" for s in sets]
        text += [f"### {name}\n", table_of(["Method", *head], lines)]
    return "\n".join(text)


def _auroc(found: Sequence[Row], name: str, score: str) -> str:
    v = np.array([r["ood"][name][score] for r in found])
    if score == "mutual_information" and np.allclose(v, 0.5):
        return "-"
    return f"{v.mean():.3f} ±{(v.max() - v.min()) / 2:.3f}"


# ------------------------------------------------------------------ how many members
def members(rows: list[dict[str, Any]], out: Path) -> str:
    """Figures over M."""
    sizes = sorted({r["cell"]["members"] for r in rows})
    methods = ("deep_ensemble", "sigma", "batch_ensemble", "packed", "mimo", "masksembles")
    curves: dict[str, dict[int, list[Row]]] = {}
    for method in methods:
        found = {m: where(rows, method=method, members=m) for m in sizes}
        if method == "deep_ensemble":
            found[1] = _singles(rows, (0, 1, 2))
        curves[method] = {m: r for m, r in found.items() if r}
    if not any(curves.values()):
        return ""
    with matplotlib.rc_context(HOUSE):
        figure = new_figure(10.5, 4.2)
        names = {"accuracy": "Accuracy (%)", "nll": "NLL (nats)", "ece": "ECE (%)"}
        for axes, (name, title) in zip(row_of_axes(figure, 3), names.items(), strict=True):
            scale = 1 if name == "nll" else 100
            for place, (method, found) in enumerate(curves.items()):
                y = [scale * values(r, name).mean() for r in found.values()]
                _line(axes, found, y, place, method)
            axes.set(title=title, xlabel="Members", xscale="log")
            axes.set_xticks(sizes, [str(m) for m in sizes])
            axes.minorticks_off()
        _legend(figure, axes)
    save_png(figure, out / "members.png")
    text = ["## How many members\n"]
    for name in ("accuracy", "nll", "ece"):
        lines = [
            [TITLES[m], *(shown(values(f[k], name), name) if k in f else "-" for k in sizes)]
            for m, f in curves.items()
        ]
        text.append(table_of([FIGURES[name][0], *(f"M = {m}" for m in sizes)], lines))
    return "\n".join([*text, "![curves](members.png)\n"])


# ------------------------------------------------------------------ tau
def tau(rows: list[dict[str, Any]], out: Path) -> str:
    """The frontier at three strengths."""
    text = ["## tau at three strengths\n"]
    plain = where(rows, strength=0.0)
    lines = [["no term", "", *_tau_cells(plain)]] if plain else []
    for strength in sorted({r["cell"]["strength"] for r in rows} - {0.0}):
        points = {}
        for value in sorted({r["cell"]["tau"] for r in where(rows, strength=strength)}):
            found = where(rows, strength=strength, tau=value)
            lines.append([f"{strength:g}", f"{value:g}", *_tau_cells(found)])
            points[value] = _estimates(found)
        references = {"without the term": _estimates(plain)} if plain else {}
        figure = plot_frontier(prepare_frontier(points, references=references))
        save_png(figure, out / f"tau-{strength:g}.png")
        text.append(f"![frontier](tau-{strength:g}.png)\n")
    names = ("accuracy", "nll", "ece", "disagreement")
    head = ["Strength", "tau", *(FIGURES[n][0] for n in names), "Owners", "Gates' correlation"]
    return "\n".join([text[0], table_of(head, lines), *text[1:]])


def _tau_cells(found: Sequence[Row]) -> list[str]:
    cells = [shown(values(found, n), n) for n in ("accuracy", "nll", "ece", "disagreement")]
    inside = ("effective_owners", "correlation")
    return cells + [f"{np.mean([r['sharing'][name] for r in found]):.2f}" for name in inside]


def _estimates(found: Sequence[Row]) -> dict[str, Estimate]:
    out = {}
    for name in ("accuracy", "nll", "ece", "disagreement"):
        v = values(found, name)
        half, mean = 0.0, float(v.mean())
        if len(v) > 1:
            half = float(student.ppf(0.975, len(v) - 1) * v.std(ddof=1) / math.sqrt(len(v)))
        out[name] = Estimate(mean, (mean - half, mean + half), "t interval over seeds")
    return out


# ------------------------------------------------------------------ pretrained
def pretrained(folder: Path) -> str:
    """EfficientNet-lite0, before and after the short fine-tune."""
    rows = [
        json.loads(line)
        for file in sorted(folder.glob("pretrained-*.jsonl"))
        for line in file.read_text().splitlines()
    ]
    if not rows:
        return ""
    lines = []
    for method in dict.fromkeys(r["method"] for r in rows):
        found = [r for r in rows if r["method"] == method]
        cells = []
        for when in ("before", "after"):
            for name in ("accuracy", "nll", "ece"):
                have = [{"metrics": r[when]} for r in found if when in r]
                cells.append(shown(values(have, name), name) if have else "-")
        size = found[0].get("parameters")
        single = next(r["parameters"] for r in rows if r["method"] == "single")
        lines.append([method, *cells, "-" if size is None else f"{size / single:.3f}"])
    head = [
        f"{w}: {FIGURES[n][0]}" for w in ("before", "after") for n in ("accuracy", "nll", "ece")
    ]
    count = len({r["seed"] for r in rows})
    return f"## A pretrained net becomes an ensemble ({count} seeds)\n\n" + table_of(
        ["Method", *head, "Parameters"], lines
    )


# ------------------------------------------------------------------ cost
def cost(folder: Path) -> str:
    """Parameters, multiply-adds, times and memory of every method, in those of the single model."""
    file = folder / "cost.json"
    if not file.exists():
        return ""
    record = json.loads(file.read_text())
    text = ["## What it costs, M = 4, in single models\n"]
    for task, methods in record["tasks"].items():
        single, lines = methods["single"], []
        for method in (m for m in TITLES if m in methods):
            found = methods[method]
            ratios = [found[k] / single[k] for k in ("parameters", "multiply_adds")]
            ratios += [found["step_ratio"], found["predict_ratio"]]
            ratios.append(found["memory_mb"] / single["memory_mb"])
            lines.append([TITLES[method], *(f"{r:.2f}" for r in ratios)])
        said = (
            f"The single model: {single['parameters']:,} parameters, "
            f"{single['multiply_adds'] / 1e6:.2f} M multiply-adds a row, "
            f"{1000 * single['step_seconds']:.0f} ms a step of 64 rows, "
            f"{1000 * single['predict_seconds']:.0f} ms a prediction of 200, "
            f"{single['memory_mb']:.0f} MB; one thread.\n"
        )
        head = ["Method", "Parameters", "Multiply-adds", "Step", "Prediction", "Peak memory"]
        text += [f"### {task}\n", said, table_of(head, lines)]
    return "\n".join(text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rows", type=Path)
    parser.add_argument("out", type=Path)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    part = {
        n: read(options.rows, n) for n in ("rate", "regime", "refine", "table", "members", "tau")
    }
    text = ["# What the rows say\n", "Made by `analyse.py`; see the README beside it.\n"]
    text += [rate(part["rate"]), regime(part["regime"], part["refine"])]
    if part["table"]:
        tabled, facts = tables(part["table"])
        text += [tabled, difference_text(facts)]
        text += [corruption(part["table"], options.out), ood(part["table"])]
        content = json.dumps(facts, indent=1) + "\n"
        write_bytes(options.out / "differences.json", content.encode())
    text += [members(part["members"], options.out)] if part["members"] else []
    text += [tau(part["tau"], options.out)] if part["tau"] else []
    text += [pretrained(options.rows), cost(options.rows)]
    write_bytes(options.out / "tables.md", "\n".join(text).encode())
    print(f"{options.out / 'tables.md'}")


if __name__ == "__main__":
    main()
