"""The report page and its pictures, put together from a comparison; nothing is computed here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from temperance.evaluation import html, plots
from temperance.evaluation.prepare import (
    CURVES,
    prepare_eigenvalues,
    prepare_forest,
    prepare_learning_curves,
    prepare_reliability,
)
from temperance.files import write_bytes
from temperance.records import Estimate, Report, Statistic, Suggestion
from temperance.training.advice import finding, next_steps
from temperance.training.table import ArmSummary, Comparison

__all__ = ["render_page", "render_plots", "write_page"]

_NORMS = {"batch": "with a BatchNorm", "layer": "with a LayerNorm", "none": "without a norm"}
_SHOWN = (
    ("accuracy", "Accuracy, points", 2),
    ("nll", "NLL", 4),
    ("nll_posthoc", "NLL after", 4),
)
_MOVING = {"temperature": "Training T, where it moves"}
_FOREST = ("accuracy", "nll", "nll_posthoc")


def write_page(folder: Path, comparison: Comparison) -> None:
    """Write ``plots/*.png`` and ``report.html``.

    Args:
        folder: output folder.
        comparison: what the page is about.
    """
    pictures = render_plots(comparison)
    (folder / "plots").mkdir(exist_ok=True)
    for name, png in pictures.items():
        write_bytes(folder / "plots" / f"{name}.png", png)
    html.save_html(render_page(comparison, pictures), folder / "report.html")


def render_plots(comparison: Comparison) -> dict[str, bytes]:
    """Draw every picture of a comparison.

    Args:
        comparison: what the pictures show.

    Returns:
        PNG contents by name: ``eigenvalues`` and, where runs came to an end, ``differences``,
        ``reliability``, ``learning_curves``.
    """
    csg = comparison.task.statistics["csg"]
    figures = {"eigenvalues": plots.plot_eigenvalues(prepare_eigenvalues(csg))}
    compared = {
        metric: {a.title: a.differences[metric] for a in comparison.arms if a.differences}
        for metric in _FOREST
    }
    if compared["nll"]:
        forest = prepare_forest(compared, baseline=_baseline(comparison).title)
        figures["differences"] = plots.plot_forest(forest)
    reports = _first_reports(comparison)
    if reports:
        figures["reliability"] = plots.plot_reliability(prepare_reliability(reports))
    histories = _histories(comparison)
    figures["learning_curves"] = plots.plot_learning_curves(
        prepare_learning_curves(histories, curves={**CURVES, **_MOVING})
    )
    return {name: plots.png_bytes(figure) for name, figure in figures.items()}


def _baseline(comparison: Comparison) -> ArmSummary:
    return next(a for a in comparison.arms if a.arm.name == comparison.baseline)


def _first_reports(comparison: Comparison) -> dict[str, Report]:
    """Report of the first finished seed of every arm, by title."""
    titles = {a.arm.name: a.title for a in comparison.arms}
    found: dict[str, Report] = {}
    for run in comparison.runs:
        if run.report is not None:
            title = titles[str(run.trial["arm"])]
            found.setdefault(title, run.report)
    return found


def _histories(comparison: Comparison) -> dict[str, list[Mapping[str, Any]]]:
    found: dict[str, list[Mapping[str, Any]]] = {}
    for arm in comparison.arms:
        runs = [r for r in comparison.runs if r.trial["arm"] == arm.arm.name]
        found[arm.title] = [run.history for run in runs]
    return found


# ------------------------------------------------------------------ the page
def render_page(comparison: Comparison, pictures: Mapping[str, bytes]) -> str:
    """Put the page together.

    Args:
        comparison: what the page is about.
        pictures: what ``render_plots`` gave.

    Returns:
        One self-contained page of HTML.
    """
    data, budget = comparison.data, comparison.plan["budget"]
    subtitle = (
        f"{comparison.model}, M = {comparison.task.feature_dim}, {comparison.task.n_classes} "
        f"classes; {data['rows']['train']:,} training rows; {budget['epochs']} epochs of "
        f"{budget['optimizer']}, lr {budget['lr']:g}, batch {budget['batch_size']}; "
        f"{comparison.plan['seeds']} seeds"
    )
    sections = [
        html.Callout(" ".join(finding(comparison)), title="What the suggested T did", kind="note"),
        *_suggested(comparison),
        *_arms(comparison, pictures),
        *_figures(pictures),
        html.Heading("What to do next"),
        html.Steps(tuple(next_steps(comparison))),
        *_data_notes(comparison),
    ]
    title = f"Temperature report: {data['name']}"
    footer = f"Made by temperance {comparison.version}. All figures are in report.json."
    return html.render_html(sections, title=title, subtitle=subtitle, footer=footer)


def _suggested(comparison: Comparison) -> list[html.Section]:
    suggestion, csg = comparison.suggestion, comparison.task.statistics["csg"]
    by = suggestion.rule
    if suggestion.fallback:
        by = f"{suggestion.fallback}, the fallback of {by}"
    where = "inside" if suggestion.in_domain else "outside"
    lines: list[html.Section] = [
        html.Heading("What was suggested, and why"),
        html.Paragraph(
            f"T = {suggestion.temperature:.4g}, {_NORMS[suggestion.norm]} in front of the output "
            f"layer (rule: {by}). The task lies {where} the rule's domain. {_csg(csg)}"
        ),
    ]
    if suggestion.expectation:
        text = suggestion.expectation
        lines.append(html.Paragraph(text[0].upper() + text[1:] + "."))
    if suggestion.reasons:
        text = "; ".join(suggestion.reasons)
        lines.append(html.Callout(text[0].upper() + text[1:] + ".", title="Outside the domain"))
    terms = tuple((name, value) for name, value in suggestion.terms.items())
    factors = bool(suggestion.prediction)  # rules that know their spread are products
    total = "Product" if factors else "Sum"
    lines.append(
        html.Table(
            (html.Column("Term"), html.Column("Factor" if factors else "Share", "number", 4)),
            (*terms, (f"{total}, before any bound", suggestion.unclipped)),
            caption=f"Terms of {suggestion.rule}",
            highlight=(len(terms),),
            note=_spread(suggestion),
        )
    )
    lines.append(_others(comparison))
    return lines


def _spread(suggestion: Suggestion) -> str:
    if suggestion.prediction:
        ranges = [
            f"{lo:.3g} to {hi:.3g} ({name})" for name, (lo, hi) in suggestion.prediction.items()
        ]
        return f"The best T of one training like those of the fit: {', '.join(ranges)}."
    if suggestion.unclipped_interval is None:
        return ""
    low, high = suggestion.unclipped_interval
    return f"The spread of the csg implies {low:.3g} to {high:.3g}."


def _csg(csg: Statistic) -> str:
    ends = "" if csg.interval is None else f" [{csg.interval[0]:.3g}, {csg.interval[1]:.3g}]"
    settings = csg.settings
    return (
        f"Difficulty: csg {csg.value:.4g}{ends}, measured on {settings.get('embedding')}, "
        f"k = {settings.get('k')}, {settings.get('n_samples')} rows per class, "
        f"{settings.get('weighting')} weighting; status: {csg.status}."
    )


def _others(comparison: Comparison) -> html.Table:
    rows = tuple(
        (name, o.temperature, o.unclipped, o.norm, o.note or None)
        for name, o in comparison.suggestion.others.items()
    )
    columns = (
        html.Column("Rule"),
        html.Column("T", "number", 3),
        html.Column("Before bounds", "number", 3),
        html.Column("Norm"),
        html.Column("Note"),
    )
    return html.Table(columns, rows, caption="What the other rules say")


def _arms(comparison: Comparison, pictures: Mapping[str, bytes]) -> list[html.Section]:
    rows = tuple(_row(arm) for arm in comparison.arms)
    columns = (
        html.Column("Arm"),
        html.Column("Accuracy %", "percent", 2),
        html.Column("NLL", "number", 4),
        html.Column("ECE %", "percent", 2),
        html.Column("Post-hoc T", "number", 2),
        html.Column("NLL after", "number", 4),
        html.Column("ECE % after", "percent", 2),
    )
    chosen = comparison.choice.arm if comparison.choice else None
    highlight = tuple(i for i, a in enumerate(comparison.arms) if a.arm.name == chosen)
    sections: list[html.Section] = [
        html.Heading("How the arms compare"),
        html.Table(
            columns,
            rows,
            caption=f"Mean over {comparison.plan['seeds']} seeds on "
            f"{comparison.data['rows']['test']:,} test rows, with 95 % intervals",
            highlight=highlight,
            note="After: with a post-hoc T fitted on "
            f"{comparison.data['rows']['fit']:,} rows that neither trained nor judge. "
            "Highlighted: the arm that is shipped. Intervals of two arms may overlap although "
            "their paired difference is clear.",
        ),
    ]
    if "differences" in pictures:
        sections += [
            _differences(comparison),
            *_alone(comparison),
            html.Figure(
                pictures["differences"],
                alt="Forest plot of the differences of every arm to the baseline",
                caption="Paired by seed and row; the interval joins the spread of the seeds and "
                "that of the rows."
                if int(comparison.plan["seeds"]) > 1
                else "Paired by row. One seed: the interval covers the rows only.",
            ),
        ]
    if comparison.choice is not None:
        sections.append(
            html.Paragraph(
                f"Shipped: {comparison.choice.arm}, seed {comparison.choice.seed}: "
                f"{comparison.choice.why}."
            )
        )
    return sections


def _row(arm: ArmSummary) -> tuple[Any, ...]:
    if not arm.metrics:
        return (f"{arm.title} ({', '.join(arm.outcomes)})", *[None] * 6)
    m = arm.metrics
    posthoc = sum(arm.posthoc_temperatures) / len(arm.posthoc_temperatures)
    return (
        arm.title,
        m["accuracy"],
        m["nll"],
        m["ece"],
        posthoc,
        m["nll_posthoc"],
        m["ece_posthoc"],
    )


def _difference_columns() -> tuple[html.Column, ...]:
    columns = [html.Column("Arm")]
    for name, title, digits in _SHOWN:
        kind = "percent" if name == "accuracy" else "number"
        columns += [html.Column(title, kind, digits, signed=True), html.Column("Shows")]
    return tuple(columns)


def _differences(comparison: Comparison) -> html.Table:
    rows = [
        _cells(arm.title, arm.differences, arm.verdicts, _SHOWN)
        for arm in comparison.arms
        if arm.differences
    ]
    caption = f"Differences to {_baseline(comparison).title}, with 95 % intervals"
    return html.Table(_difference_columns(), tuple(rows), caption=caption)


def _cells(
    title: str,
    differences: Mapping[str, Estimate],
    verdicts: Mapping[str, str],
    names: Sequence[tuple[str, str, int]],
) -> tuple[Any, ...]:
    cells: list[str | Estimate] = [title]
    for name, _, _ in names:
        cells += [differences[name], verdicts[name]]
    return tuple(cells)


def _alone(comparison: Comparison) -> list[html.Section]:
    """What T did by itself: every arm against the same norm at T = 1."""
    titles = {a.arm.name: a.title for a in comparison.arms}
    rows = [
        _cells(f"{a.title} less {titles[d.other]}", d.metrics, d.verdicts, _SHOWN)
        for a in comparison.arms
        if (d := a.against_norm) is not None and d.other != comparison.baseline
    ]
    if not rows:
        return []
    caption = "What T did by itself: against the same norm at T = 1"
    return [html.Table(_difference_columns(), tuple(rows), caption=caption)]


def _figures(pictures: Mapping[str, bytes]) -> list[html.Section]:
    words = {
        "reliability": (
            "Reliability",
            "Reliability diagrams of every arm before and after a post-hoc temperature",
            "Seed 0. On the diagonal, confidence is accuracy.",
        ),
        "learning_curves": (
            "Learning curves",
            "Training loss, held-out NLL and held-out accuracy over the epochs for every arm",
            "Line: mean over the seeds; band: least to largest. Held-out: the rows that fit the "
            "post-hoc T. The training loss of an arm with label smoothing is on another scale.",
        ),
        "eigenvalues": (
            "Difficulty of the task",
            "Eigenvalues of the class graph and the running maximum of their gaps",
            "The CSG sums the running maximum of the normalized gaps (CVPR 2019).",
        ),
    }
    sections: list[html.Section] = []
    for name, (heading, alt, caption) in words.items():
        if name in pictures:
            picture = html.Figure(pictures[name], alt=alt, caption=caption)
            sections += [html.Heading(heading), picture]
    return sections


def _data_notes(comparison: Comparison) -> list[html.Section]:
    rows = comparison.data["rows"]
    text = (
        f"{rows['train']:,} rows trained, {rows['fit']:,} were held out for the post-hoc T, the "
        f"curves and the choice, {rows['test']:,} judged."
    )
    notes = tuple(comparison.notices)
    head: list[html.Section] = [html.Heading("About the data"), html.Paragraph(text)]
    return [*head, html.Steps(notes)] if notes else head
