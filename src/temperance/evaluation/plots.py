"""Drawing: each ``plot_*`` takes what the ``prepare_*`` of its name gave, and computes nothing.

``plot_curves`` draws what comes after training; ``plot_style`` says how all pictures look.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator, PercentFormatter

from temperance.evaluation.plot_style import (
    COLOURS,
    HOUSE,
    INK,
    MARKERS,
    MUTED,
    new_figure,
    png_bytes,
    row_of_axes,
    save_png,
)

__all__ = [
    "COLOURS",
    "plot_eigenvalues",
    "plot_forest",
    "plot_learning_curves",
    "plot_reliability",
    "png_bytes",
    "save_png",
]

_BEFORE, _AFTER = 1, 0  # places in COLOURS of the two stages of a reliability diagram
_DIAGONAL = (0, (4, 3))  # dashes
_VERDICTS = {"better": (0, "o"), "worse": (1, "X"), "no difference shown": (None, "D")}


# ------------------------------------------------------------------ reliability
def plot_reliability(panels: Sequence[Mapping[str, Any]], *, columns: int = 3) -> Figure:
    """Draw reliability diagrams in small multiples, each over the share of rows per bin.

    The area of a marker grows with the square root of its bin's share of the rows.

    Args:
        panels: what ``prepare_reliability`` gave.
        columns: panels side by side, at most.

    Returns:
        A figure; ``save_png`` or ``png_bytes`` renders it.
    """
    n_rows = -(-len(panels) // columns)
    n_columns = -(-len(panels) // n_rows)
    with matplotlib.rc_context(HOUSE):
        figure = new_figure(max(4.2, 3.3 * n_columns), 4.1 * n_rows)
        grid = figure.add_gridspec(2 * n_rows, n_columns, height_ratios=[4, 1] * n_rows)
        for place, panel in enumerate(panels):
            row, column = divmod(place, n_columns)
            upper = figure.add_subplot(grid[2 * row, column])
            lower = figure.add_subplot(grid[2 * row + 1, column], sharex=upper)
            _diagram(upper, panel)
            _shares(lower, panel)
            if column == 0:
                upper.set_ylabel("Accuracy")
                lower.set_ylabel("Rows")
        _stage_legend(figure, max(len(panel["stages"]) for panel in panels))
    return figure


def _diagram(axes: Axes, panel: Mapping[str, Any]) -> None:
    axes.plot([0, 1], [0, 1], color=MUTED, linewidth=1, linestyle=_DIAGONAL, zorder=1)
    for stage in panel["stages"]:
        colour, marker, style = _stage_look(stage)
        x, y = stage["confidence"], stage["accuracy"]
        sizes = [12 + 110 * share**0.5 for share in stage["share"] if share]
        axes.vlines(x, x, y, color=colour, alpha=0.35, linewidth=2.5, zorder=2)
        axes.plot(x, y, color=colour, linestyle=style, linewidth=1, alpha=0.6, zorder=3)
        axes.scatter(
            x, y, sizes, color=colour, marker=marker, edgecolor="white", clip_on=False, zorder=4
        )
    axes.set(xlim=(0, 1), ylim=(0, 1))
    axes.set_title(textwrap.fill(panel["title"], 34), pad=23)
    axes.text(0, 1.05, _ece_line(panel["stages"]), transform=axes.transAxes, color=MUTED)
    axes.tick_params(labelbottom=False)


def _ece_line(stages: Sequence[Mapping[str, Any]]) -> str:
    """ECE before and after, in words, under the title of a panel."""
    before = f"ECE {100 * stages[0]['ece']:.1f} %"
    if len(stages) == 1:
        return before
    after = stages[1]
    return f"{before}, after T = {after['temperature']:.3g}: {100 * after['ece']:.1f} %"


def _stage_legend(figure: Figure, n_stages: int) -> None:
    names = ("before", "after the post-hoc T") if n_stages > 1 else ("accuracy of a bin",)
    looks = zip(names, (_BEFORE, _AFTER), ("--", "-"), strict=False)
    handles = [
        Line2D([], [], color=COLOURS[p], marker=MARKERS[p], markersize=6, linestyle=s, label=name)
        for name, p, s in looks
    ]
    handles.append(
        Line2D([], [], color=MUTED, linestyle=_DIAGONAL, linewidth=1, label="calibrated")
    )
    figure.legend(handles=handles, loc="outside lower center", ncols=3)


def _shares(axes: Axes, panel: Mapping[str, Any]) -> None:
    for stage in panel["stages"]:
        colour, _, style = _stage_look(stage)
        axes.stairs(stage["share"], stage["edges"], color=colour, linestyle=style, linewidth=1.3)
    axes.set(xlim=(0, 1), ylim=(0, None), xlabel=f"Confidence ({panel['n']:,} rows)")
    axes.yaxis.set_major_locator(MaxNLocator(2, steps=[1, 2, 5, 10]))
    axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0, symbol=" %"))


def _stage_look(stage: Mapping[str, Any]) -> tuple[str, str, str]:
    """Colour, marker and line style of a stage."""
    place = _BEFORE if stage["temperature"] is None else _AFTER
    return COLOURS[place], MARKERS[place], "--" if place == _BEFORE else "-"


# ------------------------------------------------------------------ learning curves
def plot_learning_curves(panels: Sequence[Mapping[str, Any]]) -> Figure:
    """Draw learning curves: a line for the mean of an arm, a band from its least to largest run.

    Args:
        panels: what ``prepare_learning_curves`` gave.

    Returns:
        A figure; ``save_png`` or ``png_bytes`` renders it.
    """
    names = list(dict.fromkeys(arm["name"] for panel in panels for arm in panel["arms"]))
    with matplotlib.rc_context(HOUSE):
        rows = -(-len(names) // 4)
        figure = new_figure(max(4.2, 3.2 * len(panels)), 3.0 + 0.22 * rows)
        lines: dict[str, Any] = {}
        for axes, panel in zip(row_of_axes(figure, len(panels)), panels, strict=True):
            for arm in panel["arms"]:
                lines.setdefault(arm["name"], _curve(axes, arm, names.index(arm["name"])))
            axes.set(title=panel["title"], xlabel="Epoch")
            axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        handles = [lines[name] for name in names]
        figure.legend(handles, names, loc="outside lower center", ncols=min(4, len(names)))
    return figure


def _curve(axes: Axes, arm: Mapping[str, Any], place: int) -> Any:
    colour = COLOURS[place % len(COLOURS)]
    style = ("-", "--", ":", "-.")[place // len(COLOURS) % 4]
    epochs = arm["epochs"]
    mean, low, high = ([float("nan") if v is None else v for v in arm[k]] for k in _BAND)
    if arm["runs"] > 1:
        axes.fill_between(epochs, low, high, color=colour, alpha=0.15, linewidth=0)
    marker = "o" if len(epochs) == 1 else ""
    return axes.plot(epochs, mean, color=colour, linestyle=style, marker=marker)[0]


_BAND = ("mean", "low", "high")


# ------------------------------------------------------------------ eigenvalues
def plot_eigenvalues(spectrum: Mapping[str, Any], *, title: str = "") -> Figure:
    """Draw the eigenvalues of the class graph with their gaps, and how these make up the CSG.

    Args:
        spectrum: what ``prepare_eigenvalues`` gave.
        title: of the whole figure, if any.

    Returns:
        A figure; ``save_png`` or ``png_bytes`` renders it.
    """
    with matplotlib.rc_context(HOUSE):
        figure = new_figure(8.0, 3.5 if title else 3.2)
        left, right = row_of_axes(figure, 2)
        _eigenvalues(left, spectrum)
        _gaps(right, spectrum)
        if title:
            figure.suptitle(title, x=0.01, ha="left", fontsize=11, fontweight="bold")
    return figure


def _eigenvalues(axes: Axes, spectrum: Mapping[str, Any]) -> None:
    values, labelled = spectrum["eigenvalues"], len(spectrum["gaps"]) <= _LABELLED
    pairs = zip(values, values[1:], spectrum["gaps"], spectrum["record"], strict=False)
    for place, (low, high, gap, record) in enumerate(pairs):
        colour = COLOURS[1] if record else MUTED
        axes.vlines(place + 0.5, low, high, color=colour, linewidth=2.5 if record else 1.2)
        if record and labelled:
            axes.text(place + 0.62, low, f"{gap:.2g}", fontsize=8, va="bottom")
    size = 4 if len(values) <= 50 else 2
    places = range(len(values))
    axes.plot(places, values, "o-", color=COLOURS[0], linewidth=1, markersize=size, zorder=3)
    axes.set(title="Eigenvalues and their gaps", xlabel="Index i", ylabel="Eigenvalue")
    axes.xaxis.set_major_locator(MaxNLocator(8, integer=True))
    axes.margins(x=0.04)


def _gaps(axes: Axes, spectrum: Mapping[str, Any]) -> None:
    places = range(len(spectrum["deltas"]))
    colours = [COLOURS[1] if record else "#b5b5b5" for record in spectrum["record"]]
    axes.bar(places, spectrum["deltas"], color=colours, width=0.7, zorder=2)
    axes.step(places, spectrum["running"], where="mid", color=COLOURS[0], zorder=3)
    interval = spectrum["interval"]
    ends = "" if interval is None else f"  [{interval[0]:.3g}, {interval[1]:.3g}]"
    axes.set(title=f"CSG {spectrum['value']:.3g}{ends}", xlabel="Index i", ylabel="Gap / (K - i)")
    axes.xaxis.set_major_locator(MaxNLocator(8, integer=True))
    axes.grid(visible=False, axis="x")
    label = "line: running maximum, which the CSG adds up"
    axes.text(0.02, 0.97, label, transform=axes.transAxes, va="top", fontsize=8, color=MUTED)
    axes.set_ylim(0, (axes.get_ylim()[1] or 1.0) * 1.12)


_LABELLED = 12  # gaps up to which each new maximum gets its figure


# ------------------------------------------------------------------ forest
def plot_forest(forest: Mapping[str, Any]) -> Figure:
    """Draw the differences of all arms to a baseline as a forest plot, a panel for each metric.

    Args:
        forest: what ``prepare_forest`` gave.

    Returns:
        A figure; ``save_png`` or ``png_bytes`` renders it.
    """
    arms, panels = forest["arms"], forest["panels"]
    with matplotlib.rc_context(HOUSE):
        figure = new_figure(max(5.0, 1.1 + 2.9 * len(panels)), 1.7 + 0.36 * len(arms))
        names = arms
        for axes, panel in zip(row_of_axes(figure, len(panels)), panels, strict=True):
            _forest_panel(axes, panel)
            axes.set_yticks(range(len(arms)), names)
            axes.set_ylim(len(arms) - 0.4, -0.6)
            names = [""] * len(arms)  # only the first panel carries them
        handles = [_key(figure.axes[0], word) for word in _VERDICTS]
        title = f"difference to {forest['baseline']}:"
        figure.legend(handles=handles, loc="outside lower center", ncols=3, title=title)
    return figure


def _forest_panel(axes: Axes, panel: Mapping[str, Any]) -> None:
    axes.axvline(0, color=INK, linewidth=1)
    for place, row in enumerate(panel["rows"]):
        text = "no figure" if row is None else _difference(row, panel["digits"])
        right = axes.get_yaxis_transform()  # x in the panel's width, y in rows
        axes.text(1.02, place, text, color=MUTED, transform=right, va="center", fontsize=7.5)
        if row is None:
            continue
        colour, marker = _verdict_look(row["verdict"])
        if row["interval"] is not None:
            axes.hlines(place, *row["interval"], color=colour, linewidth=2)
        axes.plot(row["value"], place, marker=marker, color=colour, markersize=6)
    hint = "better \N{RIGHTWARDS ARROW}" if panel["better"] == "higher" else None
    axes.set(title=panel["title"], xlabel=hint or "\N{LEFTWARDS ARROW} better")
    axes.xaxis.set_major_locator(MaxNLocator(3, steps=[1, 2, 5, 10]))
    axes.grid(visible=False, axis="y")
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    axes.margins(x=0.12)


_LONG = 1e4  # figures from here on are written with an exponent, to leave room for the panels


def _difference(row: Mapping[str, Any], digits: int) -> str:
    figures = [row["value"], *(row["interval"] or ())]
    form = f"+.{digits}f" if max(map(abs, figures)) < _LONG else "+.2e"
    value, *ends = (f"{x:{form}}".replace("-", "\N{MINUS SIGN}") for x in figures)
    return f"{value}  [{ends[0]}, {ends[1]}]" if ends else value


def _verdict_look(word: str) -> tuple[str, str]:
    place, marker = _VERDICTS[word]
    return (MUTED if place is None else COLOURS[place]), marker


def _key(axes: Axes, word: str) -> Any:
    colour, marker = _verdict_look(word)
    return axes.plot([], [], color=colour, marker=marker, linewidth=2, markersize=6, label=word)[0]
