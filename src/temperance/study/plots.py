"""Drawing of studies: each ``plot_*`` takes what the ``prepare_*`` of its name gave.

Nothing is computed here; ``temperance.evaluation.plot_style`` says how all pictures look.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, MaxNLocator

from temperance.evaluation.plot_style import COLOURS, HOUSE, INK, MUTED, new_figure
from temperance.study.regret_records import ORIGINS

__all__ = ["plot_correlations", "plot_dimension", "plot_regret"]

_LOOKS = {
    "baseline": ("#4d4d4d", "s"),
    "published": (COLOURS[0], "o"),
    "given": (COLOURS[3], "v"),
    "elsewhere": (COLOURS[5], "^"),
    "refitted": (COLOURS[2], "D"),
}
_MINUS = "\N{MINUS SIGN}"


# ------------------------------------------------------------------ regret
def plot_regret(groups: Sequence[Mapping[str, Any]]) -> Figure:
    """Draw the regret of rules: a dot for each task, the mean with its interval, by metric.

    Args:
        groups: what ``prepare_regret`` gave.

    Returns:
        A figure; ``save_png`` or ``png_bytes`` of ``plot_style`` renders it.
    """
    sizes = [len(group["rules"]) for group in groups]
    columns = max(len(group["panels"]) for group in groups)
    with matplotlib.rc_context(HOUSE):
        height = 0.8 + sum(1.1 + 0.48 * n for n in sizes)
        figure = new_figure(2.0 + 3.1 * columns, height)
        ratios = [n + 0.2 for n in sizes]
        grid = figure.subplots(len(groups), columns, squeeze=False, height_ratios=ratios)
        for row, group in zip(grid, groups, strict=True):
            _regret_row(row, group)
        _origin_legend(figure, groups, columns)
    return figure


def _regret_row(row: Sequence[Axes], group: Mapping[str, Any]) -> None:
    rules = group["rules"]
    labels = [rule["label"] for rule in rules]
    title = f"{group['title']}: {group['subtitle']}\n"
    for axes, panel in zip(row, group["panels"], strict=False):
        _regret_panel(axes, panel, [rule["origin"] for rule in rules])
        axes.set_ylim(len(rules) - 0.45, -0.55)
        axes.set_yticks(range(len(rules)), labels)
        axes.set_title(title + panel["title"])
        labels, title = [""] * len(rules), ""  # only the first panel carries them
    for axes in row[len(group["panels"]) :]:
        axes.set_axis_off()


def _regret_panel(axes: Axes, panel: Mapping[str, Any], origins: Sequence[str]) -> None:
    axes.axvline(0, color=INK, linewidth=1, zorder=1)
    for place, (row, origin) in enumerate(zip(panel["rows"], origins, strict=True)):
        colour, marker = _LOOKS[origin]
        heights = [place - 0.1 + 0.26 * offset for offset in row["offsets"]]
        axes.scatter(row["points"], heights, 9, color=colour, alpha=0.35, linewidth=0, zorder=2)
        if row["interval"] is not None:
            axes.hlines(place + 0.27, *row["interval"], color=colour, linewidth=2.2, zorder=4)
        axes.plot(
            row["mean"], place + 0.27, marker, color=colour, markersize=6.5, zorder=5, **_EDGE
        )
        right = axes.get_yaxis_transform()
        text = row["text"].replace("-", _MINUS)
        axes.text(1.02, place, text, color=MUTED, transform=right, va="center", fontsize=7.5)
    axes.grid(visible=False, axis="y")
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    _regret_axis(axes, panel["unit"], panel["threshold"])


def _regret_axis(axes: Axes, unit: str, threshold: float | None) -> None:
    note = "\N{LEFTWARDS ARROW} better"
    if threshold is None:
        axes.xaxis.set_major_locator(MaxNLocator(4, steps=[1, 2, 5, 10]))
    else:
        axes.set_xscale("symlog", linthresh=threshold)
        axes.xaxis.set_major_formatter(FuncFormatter(_plain_number))
        note += f"; logarithmic beyond {threshold:g}"
    axes.set_xlabel(f"Regret ({unit})\n{note}", loc="left")


def _plain_number(value: float, _: int) -> str:
    return f"{value:g}".replace("-", _MINUS)


_TASK = "a task; below: the mean with its 95 % interval"
_EDGE: dict[str, Any] = {"markeredgecolor": "white", "markeredgewidth": 1.0}


def _origin_legend(figure: Figure, groups: Sequence[Mapping[str, Any]], columns: int) -> None:
    there = {rule["origin"] for group in groups for rule in group["rules"]}
    handles = [
        Line2D([], [], color=_LOOKS[name][0], marker=_LOOKS[name][1], label=text, **_EDGE)
        for name, text in ORIGINS.items()
        if name in there
    ]
    handles.append(Line2D([], [], color=MUTED, marker="o", alpha=0.5, linestyle="", label=_TASK))
    figure.legend(handles=handles, loc="outside lower left", ncols=columns)


# ------------------------------------------------------------------ correlations
def plot_correlations(content: Mapping[str, Any]) -> Figure:
    """Draw correlations with their intervals, the strongest first; hollow where p is above 0.05.

    Args:
        content: what ``prepare_correlations`` gave.

    Returns:
        A figure.
    """
    rows = content["rows"]
    with matplotlib.rc_context(HOUSE):
        figure = new_figure(6.6, 1.5 + 0.34 * len(rows))
        axes = figure.subplots()
        axes.axvline(0, color=INK, linewidth=1, zorder=1)
        for place, row in enumerate(rows):
            _correlation_row(axes, place, row)
        axes.set_yticks(range(len(rows)), [row["label"] for row in rows])
        axes.set(xlim=(-1.02, 1.02), ylim=(len(rows) - 0.4, -0.6), xlabel=_CORRELATION)
        axes.set_title(f"{content['title']}\n{content['subtitle']}")
        axes.grid(visible=False, axis="y")
        axes.tick_params(axis="y", length=0)
        axes.spines["left"].set_visible(False)
        _correlation_legend(figure)
    return figure


_CORRELATION = "Correlation, with its 95 % interval; p is adjusted for all statistics"
_KINDS = {
    "spearman": ("Spearman (hollow: adjusted p > 0.05)", COLOURS[0], "o", -0.14),
    "pearson": ("Pearson", COLOURS[5], "s", 0.18),
}


def _correlation_row(axes: Axes, place: int, row: Mapping[str, Any]) -> None:
    for kind, (_, colour, marker, shift) in _KINDS.items():
        value, interval = row[kind]
        strong, height = kind == "spearman", place + shift
        if interval is not None:
            axes.hlines(height, *interval, color=colour, linewidth=2.2 if strong else 1.2)
        hollow = strong and not row["shown"]
        axes.plot(
            value,
            height,
            marker,
            markersize=6.5 if strong else 4.5,
            color="white" if hollow else colour,
            markeredgecolor=colour,
            zorder=4,
        )
    right = axes.get_yaxis_transform()
    axes.text(1.02, place, row["text"], color=MUTED, transform=right, va="center", fontsize=7.5)


def _correlation_legend(figure: Figure) -> None:
    handles = [
        Line2D([], [], color=colour, marker=marker, markersize=5, label=text)
        for text, colour, marker, _ in _KINDS.values()
    ]
    figure.legend(handles=handles, loc="outside lower left", ncols=2)


# ------------------------------------------------------------------ dimension
def plot_dimension(content: Mapping[str, Any]) -> Figure:
    """Draw best T over sqrt(M), both logarithmic, a panel for each norm.

    Args:
        content: what ``prepare_dimension`` gave.

    Returns:
        A figure.
    """
    panels = content["panels"]
    with matplotlib.rc_context(HOUSE):
        figure = new_figure(max(4.6, 0.8 + 3.3 * len(panels)), 4.5)
        row = figure.subplots(1, len(panels), squeeze=False, sharex=True, sharey=True)[0]
        for axes, panel in zip(row, panels, strict=True):
            _dimension_panel(axes, panel)
        row[0].set_ylabel(f"Best T ({content['metric']}, validation)")
        _dimension_legend(figure, 4 if len(panels) > 1 else 2)
    return figure


_EDGES = {"inside": ("o", True), "below": ("v", False), "above": ("^", False)}


def _dimension_panel(axes: Axes, panel: Mapping[str, Any]) -> None:
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(FuncFormatter(_plain_number))
    for series in panel["series"]:
        axes.plot(series["x"], series["y"], color=COLOURS[0], alpha=0.25, linewidth=0.9, zorder=2)
        for name, (marker, full) in _EDGES.items():
            x, y = ([series[axis][i] for i in series[name]] for axis in "xy")
            face = COLOURS[0] if full else "white"
            axes.scatter(x, y, 16, marker=marker, facecolor=face, edgecolor=COLOURS[0],
                         linewidth=0.8, alpha=0.65, zorder=3)  # fmt: skip
    if panel["fit"] is not None:
        axes.plot(*panel["fit"], color=COLOURS[1], linewidth=2.4, zorder=5)
    axes.plot(*panel["root"], color=INK, linewidth=1.4, linestyle=(0, (4, 3)), zorder=4)
    axes.set_title(panel["title"], pad=47)
    text = "\n".join(line for line in panel["lines"] if line)
    axes.text(0, 1.02, text, transform=axes.transAxes, va="bottom", fontsize=7.5, color=MUTED)
    axes.set_xlabel("\N{SQUARE ROOT}M")


def _dimension_legend(figure: Figure, columns: int) -> None:
    dot: dict[str, Any] = {"color": COLOURS[0], "linestyle": "", "markersize": 5}
    handles = [
        Line2D([], [], color=COLOURS[1], linewidth=2.4, label="fitted power of M"),
        Line2D(
            [], [], color=INK, linewidth=1.4, linestyle=(0, (4, 3)), label="alpha \N{SQUARE ROOT}M"
        ),
        Line2D([], [], marker="o", label="best T of a task", **dot),
        Line2D([], [], marker="^", fillstyle="none", label="edge of the trained T", **dot),
    ]
    figure.legend(handles=handles, loc="outside lower left", ncols=columns)
