"""Collect the reports of several ``temperance train`` runs into rows, a table and a figure.

    python studies/spine/collect.py RUNS_DIR

reads ``RUNS_DIR/*/report.json`` and writes ``rows.jsonl`` (a row per training), ``table.md`` and
``differences.png`` beside this file.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
KEEP = ("accuracy", "nll", "ece", "brier", "nll_posthoc", "ece_posthoc")


def rows_of(name: str, report: dict[str, Any]) -> list[dict[str, Any]]:
    rows = []
    for run in report["runs"]:
        found = run["report"] or {"metrics": {}, "posthoc_temperature": None}
        rows.append(
            {
                "setting": name,
                "data": report["data"]["name"],
                "model": report["model"],
                "rows": report["data"]["rows"],
                **{k: v for k, v in run["trial"].items() if k != "name"},
                "outcome": run["outcome"],
                "posthoc_temperature": found["posthoc_temperature"],
                **{m: found["metrics"][m]["value"] for m in KEEP if m in found["metrics"]},
                "seconds": round(run["seconds"], 1),
            }
        )
    return rows


def table_of(name: str, report: dict[str, Any]) -> list[str]:
    plan, data, task = report["plan"], report["data"], report["task"]
    budget, csg = plan["budget"], task["statistics"]["csg"]
    suggestion = report["suggestion"]
    lines = [
        f"### {name}",
        "",
        f"{report['model']}, M = {task['feature_dim']}, {task['n_classes']} classes, rows: train "
        f"{data['rows']['train']:,}, fit {data['rows']['fit']:,}, test {data['rows']['test']:,}; "
        f"{budget['epochs']} epochs, {budget['optimizer']}, lr {budget['lr']}, batch "
        f"{budget['batch_size']}, {plan['seeds']} seeds. csg {csg['value']:.3f} "
        f"({csg['settings'].get('embedding', '')}); suggested T = {suggestion['temperature']:.3g} "
        f"({suggestion['fallback'] or suggestion['rule']}, "
        f"{'inside' if suggestion['in_domain'] else 'outside'} its domain).",
        "",
        "| arm | accuracy % | NLL | ECE % | post-hoc T | NLL after | ECE % after "
        "| accuracy against plain | NLL after against plain |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    alone = [
        f"T alone, {arm['title']} against {arm['against_norm']['other']}: accuracy "
        f"{_difference(arm['against_norm'], 'accuracy', 100, 2)}; NLL after "
        f"{_difference(arm['against_norm'], 'nll_posthoc', 1, 4)}."
        for arm in report["arms"]
        if arm["against_norm"] and arm["against_norm"]["other"] != report["baseline"]
    ]
    rows = [_line(arm) for arm in report["arms"]]
    return [*lines, *rows, "", *[f"- {text}" for text in alone], ""]


def _line(arm: dict[str, Any]) -> str:
    m = {k: v["value"] for k, v in arm["metrics"].items()}
    if not m:
        return f"| {arm['title']} | " + " | ".join(arm["outcomes"]) + " |"
    posthoc = sum(arm["posthoc_temperatures"]) / len(arm["posthoc_temperatures"])
    cells = [
        arm["title"],
        f"{100 * m['accuracy']:.2f}",
        f"{m['nll']:.4f}",
        f"{100 * m['ece']:.2f}",
        f"{posthoc:.2f}",
        f"{m['nll_posthoc']:.4f}",
        f"{100 * m['ece_posthoc']:.2f}",
        _difference(arm, "accuracy", 100, 2),
        _difference(arm, "nll_posthoc", 1, 4),
    ]
    return "| " + " | ".join(cells) + " |"


def _difference(arm: dict[str, Any], metric: str, scale: float, digits: int) -> str:
    differences = arm["differences"] if "differences" in arm else arm["metrics"]
    if metric not in differences:
        return "-"
    d = differences[metric]
    low, high = (scale * v for v in d["interval"])
    text = f"{scale * d['value']:+.{digits}f} [{low:+.{digits}f}, {high:+.{digits}f}]"
    return f"{text}, {arm['verdicts'][metric]}"


def figure_of(reports: dict[str, dict[str, Any]], path: Path) -> None:
    """Accuracy and NLL after a post-hoc T, against plain T = 1, for every setting and arm."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 0.5 + 1.25 * len(reports)), layout="constrained")
    FigureCanvasAgg(figure)
    panels = (("accuracy", 100, "accuracy, points"), ("nll_posthoc", 1, "NLL after post-hoc T"))
    for axes, (metric, scale, title) in zip(
        figure.subplots(1, 2, sharey=True), panels, strict=True
    ):
        place, labels = 0.0, []
        for name, report in reports.items():
            for arm in report["arms"]:
                if metric not in arm["differences"]:
                    continue
                d = arm["differences"][metric]
                good = arm["verdicts"][metric]
                colour = {"better": "#009e73", "worse": "#d55e00"}.get(good, "#777777")
                axes.plot([scale * v for v in d["interval"]], [place] * 2, color=colour, lw=2)
                axes.plot(scale * d["value"], place, "o", color=colour, ms=4)
                labels.append((place, f"{name}: {arm['title']}"))
                place -= 1
            place -= 0.7
        axes.axvline(0, color="black", lw=0.8)
        axes.set_title(f"{title}, less plain T = 1", loc="left", fontsize=10)
        axes.set_yticks([p for p, _ in labels], [text for _, text in labels], fontsize=7)
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=110, metadata={"Software": None})


def main(folder: Path) -> None:
    reports = {
        p.parent.name: json.loads(p.read_text(encoding="utf-8"))
        for p in sorted(folder.glob("*/report.json"))
    }
    rows = [row for name, report in reports.items() for row in rows_of(name, report)]
    text = "\n".join(json.dumps(row, sort_keys=True) for row in rows) + "\n"
    (HERE / "rows.jsonl").write_text(text, encoding="utf-8")
    lines = [line for name, report in reports.items() for line in table_of(name, report)]
    (HERE / "table.md").write_text("\n".join(lines), encoding="utf-8")
    figure_of(reports, HERE / "differences.png")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
