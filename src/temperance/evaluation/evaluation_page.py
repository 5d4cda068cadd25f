"""What ``temperance evaluate`` leaves behind: a report, a page, pictures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from temperance import serial
from temperance.evaluation import html, plots
from temperance.evaluation.evaluate_file import SHIFT, FileEvaluation
from temperance.evaluation.figures import FIGURES
from temperance.evaluation.plot_curves import plot_shift
from temperance.evaluation.prepare import prepare_reliability
from temperance.evaluation.prepare_curves import prepare_shift
from temperance.files import write_bytes

__all__ = ["write_evaluation"]

_OOD = ("auroc", "fpr95_in", "aupr_in", "aupr_out")


def write_evaluation(folder: Path, found: FileEvaluation) -> None:
    """Write ``report.json``, ``report.html`` and ``plots/*.png``.

    Args:
        folder: output folder, which is there.
        found: what ``evaluate_file`` gave.
    """
    panels = prepare_reliability({"Reliability": found.report})
    pictures = {"reliability": plots.png_bytes(plots.plot_reliability(panels))}
    if found.shift:
        pictures["shift"] = plots.png_bytes(plot_shift(prepare_shift(_curves(found))))
    (folder / "plots").mkdir(exist_ok=True)
    for name, png in pictures.items():
        write_bytes(folder / "plots" / f"{name}.png", png)
    write_bytes(folder / "report.json", serial.dumps(found).encode())
    html.save_html(_page(found, pictures), folder / "report.html")


def _curves(found: FileEvaluation) -> dict[str, Any]:
    """Estimates by figure and severity: 0 for the file itself, then the files in their order."""
    return {
        name: {
            "model": {
                0: found.figures[name],
                **{i: f[name] for i, f in enumerate(found.shift.values(), 1)},
            }
        }
        for name in SHIFT
    }


def _page(found: FileEvaluation, pictures: dict[str, bytes]) -> str:
    sections: list[html.Section] = [html.Heading("Figures"), _figures(found)]
    sections.append(html.Figure(pictures["reliability"], alt="Reliability diagram"))
    if found.uncertainty:
        rows = tuple((k.replace("_", " "), v) for k, v in found.uncertainty.items())
        columns = (html.Column("Mean over the rows"), html.Column("Value", "number", 4))
        note = "In nats; disagreement: share of member pairs that differ in their class."
        sections += [
            html.Heading("Uncertainty of the members"),
            html.Table(columns, rows, note=note),
        ]
    if found.ood:
        sections += [html.Heading("Out of distribution"), _ood(found)]
    if found.shift:
        figure = html.Figure(pictures["shift"], alt="Figures over the severity of the shift")
        sections += [html.Heading("Under shift"), _shift(found), figure]
    for note in found.notes:
        sections.append(html.Paragraph(f"{note}."))
    subtitle = f"{found.plan['file']}; {found.rows['judged']:,} rows judged"
    footer = "All figures are in report.json."
    return html.render_html(sections, title="Evaluation report", subtitle=subtitle, footer=footer)


def _figures(found: FileEvaluation) -> html.Table:
    columns = (
        html.Column("Figure"),
        html.Column("Value", "number", 4),
        html.Column("Unit"),
        html.Column("Better"),
    )
    rows = tuple(
        (FIGURES[name].title, estimate, FIGURES[name].unit, FIGURES[name].better or None)
        for name, estimate in found.figures.items()
    )
    return html.Table(columns, rows, caption="With 95 % intervals over the rows")


def _ood(found: FileEvaluation) -> html.Table:
    first = next(iter(found.ood.values()))
    columns = (html.Column("Score"), *(html.Column(n, "number", 4) for n in _OOD))
    rows = tuple((s, *(getattr(m, n) for n in _OOD)) for s, m in found.ood.items())
    return html.Table(
        columns,
        rows,
        caption=f"{first.n_id:,} rows in and {first.n_ood:,} out of distribution "
        f"(ratio {first.ratio:.3g})",
        note="Higher scores mean more OOD. fpr95_in: share of OOD rows that pass where 95 % of the "
        "rows in distribution are kept. Both AUPR depend on the ratio.",
    )


def _shift(found: FileEvaluation) -> html.Table:
    columns = (html.Column("File"), *(html.Column(FIGURES[n].title, "number", 4) for n in SHIFT))
    rows: list[tuple[Any, ...]] = [(str(found.plan["file"]), *(found.figures[n] for n in SHIFT))]
    rows += [(file, *(figures[n] for n in SHIFT)) for file, figures in found.shift.items()]
    return html.Table(columns, tuple(rows))
