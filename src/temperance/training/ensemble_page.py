"""The page of ``temperance ensemble`` and its pictures; nothing is computed here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from temperance.ensemble import SharingStatistics
from temperance.evaluation import html, plots
from temperance.evaluation.plot_frontier import plot_frontier
from temperance.evaluation.plot_sharing import plot_sharing
from temperance.evaluation.prepare import (
    CURVES,
    prepare_forest,
    prepare_learning_curves,
    prepare_reliability,
)
from temperance.evaluation.prepare_frontier import prepare_frontier
from temperance.evaluation.prepare_sharing import prepare_sharing
from temperance.files import write_bytes
from temperance.records import Estimate
from temperance.training.ensemble_cost import words_of
from temperance.training.ensemble_table import EnsembleComparison, MethodSummary

__all__ = ["render_ensemble_page", "render_ensemble_plots", "write_ensemble_page"]

_FOREST = ("accuracy", "nll", "ece", "nll_posthoc")
_CURVES = {**CURVES, "held_out_disagreement": "Held-out disagreement (share)"}
_COLUMNS = (
    html.Column("Accuracy %", "percent", 2),
    html.Column("NLL", "number", 4),
    html.Column("ECE %", "percent", 2),
    html.Column("Brier", "number", 4),
)
_METRICS = ("accuracy", "nll", "ece", "brier")


def write_ensemble_page(
    folder: Path, comparison: EnsembleComparison, *, sharing: SharingStatistics | None = None
) -> None:
    """Write ``plots/*.png`` and ``report.html``.

    Args:
        folder: output folder.
        comparison: what the page is about.
        sharing: of the ensemble that is shipped, if it has two members or more.
    """
    pictures = render_ensemble_plots(comparison, sharing=sharing)
    (folder / "plots").mkdir(exist_ok=True)
    for name, png in pictures.items():
        write_bytes(folder / "plots" / f"{name}.png", png)
    html.save_html(render_ensemble_page(comparison, pictures), folder / "report.html")


def render_ensemble_plots(
    comparison: EnsembleComparison, *, sharing: SharingStatistics | None = None
) -> dict[str, bytes]:
    """Draw every picture of a comparison.

    Args:
        comparison: what the pictures show.
        sharing: of the ensemble that is shipped, if there is one.

    Returns:
        PNG contents by name: ``learning_curves`` and, where there is something to show,
        ``reliability``, ``differences``, ``frontier`` (two values of tau or more) and ``sharing``.
    """
    done = [m for m in comparison.methods if m.metrics]
    histories = {
        m.title: list(m.histories) for m in comparison.methods if m.name != "deep" and m.histories
    }
    curves = prepare_learning_curves(histories, curves=_CURVES)
    figures = {"learning_curves": plots.plot_learning_curves(curves)}
    if done:
        reports = {_with_members(m): next(iter(m.reports.values())) for m in done}
        figures["reliability"] = plots.plot_reliability(prepare_reliability(reports))
    compared = {
        metric: {m.title: m.differences[metric] for m in done if m.differences}
        for metric in _FOREST
    }
    if compared["nll"]:
        forest = prepare_forest(compared, baseline=comparison.methods[0].title)
        figures["differences"] = plots.plot_forest(forest)
    points = {m.tau: _frontier_figures(m) for m in done if m.tau is not None}
    if len(points) > 1:
        others = {m.title: _frontier_figures(m) for m in done if m.tau is None}
        figures["frontier"] = plot_frontier(prepare_frontier(points, references=others))
    if sharing is not None:
        figures["sharing"] = plot_sharing(prepare_sharing(sharing))
    return {name: plots.png_bytes(figure) for name, figure in figures.items()}


def _with_members(method: MethodSummary) -> str:
    several = method.members > 1 and method.name != "deep"
    return f"{method.title}, {method.members} members" if several else method.title


def _frontier_figures(method: MethodSummary) -> dict[str, Estimate]:
    found = {name: method.metrics[name] for name in ("accuracy", "ece", "nll")}
    if method.uncertainty:
        found["disagreement"] = Estimate(method.uncertainty["disagreement"])
    return found


# ------------------------------------------------------------------ the page
def render_ensemble_page(comparison: EnsembleComparison, pictures: Mapping[str, bytes]) -> str:
    """Put the page together.

    Args:
        comparison: what the page is about.
        pictures: what ``render_ensemble_plots`` gave.

    Returns:
        One self-contained page of HTML.
    """
    data, plan = comparison.data, comparison.plan
    budget = plan["budget"]
    subtitle = (
        f"{comparison.model}, {plan['members']} members, protocol {plan['protocol']}; "
        f"{data['rows']['train']:,} training rows; {budget['epochs']} epochs of "
        f"{budget['optimizer']}, lr {budget['lr']:g}, batch {budget['batch_size']}; "
        f"{plan['seeds']} seeds; T = {comparison.temperature:.4g} in every member, "
        f"norm in front of it: {comparison.norm}"
    )
    sections: list[html.Section] = [
        html.Heading("How the methods compare"),
        _table(comparison, ""),
        _table(comparison, "_posthoc"),
        *_against(comparison, "single"),
        *_picture(pictures, "differences"),
        *_against(comparison, "deep"),
        *_frontier(pictures),
        html.Heading("Members"),
        _members(comparison),
        html.Heading("Cost"),
        _cost(comparison),
        html.Heading("Calibration"),
        *_picture(pictures, "reliability"),
        html.Heading("Training"),
        *_picture(pictures, "learning_curves"),
        *_picture(pictures, "sharing"),
        *_shipped(comparison),
    ]
    title = f"Ensemble report: {data['name']}"
    footer = f"Made by temperance {comparison.version}. All figures are in report.json."
    return html.render_html(sections, title=title, subtitle=subtitle, footer=footer)


_WORDS = {
    "differences": (
        "Forest plot of the differences of every method to the single model",
        "Paired by seed and row.",
    ),
    "frontier": (
        "Accuracy over ECE for every tau, NLL and disagreement over tau",
        "Before any post-hoc temperature, on the test rows, which chose none of them.",
    ),
    "reliability": (
        "Reliability diagrams of every method before and after the post-hoc temperature",
        "The first seed. Of several post-hoc temperatures the geometric mean is named.",
    ),
    "learning_curves": (
        "Loss, held-out NLL, accuracy and disagreement over the epochs",
        "The training loss is without the diversity term; held-out rows fit the post-hoc T.",
    ),
    "sharing": (
        "Owners per feature and spread of the gates by layer, and their correlation",
        "How the members of the shipped ensemble share the features.",
    ),
}


def _picture(pictures: Mapping[str, bytes], name: str) -> list[html.Section]:
    if name not in pictures:
        return []
    alt, caption = _WORDS[name]
    return [html.Figure(pictures[name], alt=alt, caption=caption)]


def _frontier(pictures: Mapping[str, bytes]) -> list[html.Section]:
    found = _picture(pictures, "frontier")
    return [html.Heading("What tau trades"), *found] if found else []


def _table(comparison: EnsembleComparison, ending: str) -> html.Table:
    rows = []
    for method in comparison.methods:
        cells: list[Any] = [method.metrics.get(m + ending) for m in _METRICS]
        name = method.title if method.metrics else f"{method.title} ({_outcomes(method)})"
        rows.append((name, *cells))
    when = f"with post-hoc temperatures, {comparison.plan['when']} the members are averaged"
    rows_of = comparison.data["rows"]
    return html.Table(
        (html.Column("Method"), *_COLUMNS),
        tuple(rows),
        caption=f"{rows_of['test']:,} test rows, mean over {comparison.plan['seeds']} seeds, "
        f"{when if ending else 'as trained'}",
        highlight=_highlight(comparison),
        note=""
        if not ending
        else f"Fitted on {rows_of['fit']:,} rows that neither trained nor judge.",
    )


def _outcomes(method: MethodSummary) -> str:
    return ", ".join([*method.outcomes, *method.messages[:1]])


def _highlight(comparison: EnsembleComparison) -> tuple[int, ...]:
    tau = None if comparison.choice is None else comparison.choice.tau
    return tuple(i for i, m in enumerate(comparison.methods) if tau is not None and m.tau == tau)


def _against(comparison: EnsembleComparison, other: str) -> list[html.Section]:
    kept, said = ("differences", "verdicts") if other == "single" else (
        "against_deep", "verdicts_deep"
    )  # fmt: skip
    shown = [m for m in comparison.methods if getattr(m, kept)]
    if not shown:
        return []
    columns = [html.Column("Method")]
    for column in _COLUMNS[:3]:
        columns += [replace(column, signed=True), html.Column("Shows")]
    rows = tuple(
        (m.title, *[c for n in _METRICS[:3] for c in (getattr(m, kept)[n], getattr(m, said)[n])])
        for m in shown
    )
    title = next(m.title for m in comparison.methods if m.name == other)
    caption = f"Differences to: {title}, as trained, with 95 % intervals"
    return [html.Table(tuple(columns), rows, caption=caption)]


def _members(comparison: EnsembleComparison) -> html.Table:
    columns = (
        html.Column("Method"),
        html.Column("Members", "number", 0),
        html.Column("Disagreement %", "percent", 2),
        html.Column("Total", "number", 4),
        html.Column("Aleatoric", "number", 4),
        html.Column("Mutual information", "number", 4),
    )
    names = ("disagreement", "total", "aleatoric", "mutual_information")
    rows = tuple(
        (m.title, m.members, *[m.uncertainty.get(n) for n in names]) for m in comparison.methods
    )
    note = (
        "Mean over the test rows, in nats, before any post-hoc temperature; of members that share "
        "their features the mutual information is called modulation uncertainty. Disagreement: "
        "share of the pairs of members whose classes differ."
    )
    return html.Table(columns, rows, caption="Members and their uncertainty", note=note)


def _cost(comparison: EnsembleComparison) -> html.Table:
    columns = (
        html.Column("Method"),
        html.Column("Parameters", "number", 0),
        html.Column("x single", "number", 3),
        html.Column("Multiply-adds, million", "number", 4),
        html.Column("x single", "number", 3),
        html.Column("Training s", "number", 1),
        html.Column("ms per row", "number", 4),
    )
    base = comparison.methods[0]
    rows = tuple(
        (
            m.title,
            *(m.parameters, m.parameters / base.parameters),
            *_multiplied(m, base),
            *(m.seconds, m.milliseconds_per_row),
        )
        for m in comparison.methods
    )  # fmt: skip
    cost = comparison.cost
    note = (
        "All members together. Multiply-adds and milliseconds: of the prediction of one row. "
        "Training: one seed, separate members one after the other."
    )
    if cost := comparison.cost:
        note += (
            f" Counted: {cost['counted']}; not counted: {cost['not_counted']}. Times were measured "
            f"{words_of(cost)}; elsewhere they are others."
        )
    return html.Table(columns, rows, caption="What a method costs", note=note)


def _multiplied(method: MethodSummary, base: MethodSummary) -> tuple[float | None, float | None]:
    """Multiply-adds in millions, and as a multiple of the single model's."""
    ours, single = method.multiply_adds, base.multiply_adds
    if ours is None:
        return None, None
    return ours / 1e6, ours / single if single else None


def _shipped(comparison: EnsembleComparison) -> list[html.Section]:
    choice = comparison.choice
    text = (
        "No ensemble came to an end: see report.json for what each run says."
        if choice is None
        else f"Shipped, seed {choice.seed}. {choice.why[0].upper()}{choice.why[1:]}. Predict with "
        "`temperance predict FOLDER INPUTS`, or load it with "
        "`temperance.training.ensemble_bundle.load_members`."
    )
    sections: list[html.Section] = [html.Heading("What is shipped"), html.Paragraph(text)]
    if comparison.notices:
        sections += [html.Heading("About the data"), html.Steps(tuple(comparison.notices))]
    return sections
