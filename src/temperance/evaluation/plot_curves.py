"""Drawing what comes after training: risk-coverage curves, OOD histograms, curves over a shift.

Each ``plot_*`` takes what the ``prepare_*`` of its name (in ``prepare_curves``) gave, and computes
nothing.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, MaxNLocator

from temperance.evaluation.plot_style import (
    COLOURS,
    HOUSE,
    MARKERS,
    MUTED,
    new_figure,
    row_of_axes,
)

__all__ = ["plot_ood", "plot_risk_coverage", "plot_shift"]

_DASHES = (0, (4, 3))
_STYLES = ("-", "--", ":", "-.")


# ------------------------------------------------------------------ risk and coverage
def plot_risk_coverage(curves: Sequence[Mapping[str, Any]]) -> Figure:
    """Draw risk-coverage curves: the share of errors among the rows that are answered.

    Thin dashes show the best ranking of the same errors.

    Args:
        curves: what ``prepare_risk_coverage`` gave.

    Returns:
        A figure; ``save_png`` or ``png_bytes`` renders it.
    """
    with matplotlib.rc_context(HOUSE):
        figure = new_figure(4.8, 3.7 + 0.2 * len(curves))
        axes = figure.subplots()
        for place, curve in enumerate(curves):
            colour, style = _line(place)
            accuracy = _percent(curve["accuracy"])
            label = f"{curve['name']}: AURC {curve['aurc']:.4f}, accuracy {accuracy}"
            axes.plot(curve["coverage"], curve["risk"], color=colour, linestyle=style, label=label)
            axes.plot(
                curve["coverage"], curve["best"], color=colour, linestyle=_DASHES, linewidth=0.8
            )
        axes.plot([], [], color=MUTED, linestyle=_DASHES, linewidth=0.8, label="best ranking")
        axes.set(title="Errors among the surest rows", xlabel="Coverage", ylabel="Risk")
        axes.set(xlim=(0, 1), ylim=(0, None))
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_formatter(FuncFormatter(_percent))
        figure.legend(loc="outside lower left")
    return figure


# ------------------------------------------------------------------ OOD scores
def plot_ood(panels: Sequence[Mapping[str, Any]], *, columns: int = 3) -> Figure:
    """Draw histograms of OOD scores: rows right of the line are flagged.

    Args:
        panels: what ``prepare_ood`` gave.
        columns: panels side by side, at most.

    Returns:
        A figure; ``save_png`` or ``png_bytes`` renders it.
    """
    n_rows = -(-len(panels) // columns)
    n_columns = -(-len(panels) // n_rows)
    with matplotlib.rc_context(HOUSE):
        figure = new_figure(max(4.2, 3.3 * n_columns), 0.9 + 2.9 * n_rows)
        grid = figure.subplots(n_rows, n_columns, squeeze=False).ravel()
        for axes, panel in zip(grid, panels, strict=False):
            _histogram(axes, panel)
        for axes in grid[len(panels) :]:
            axes.set_visible(False)
        handles, _ = grid[0].get_legend_handles_labels()
        label = "95 % of the ID rows lie left of it; FPR95: share of OOD rows that do"
        line = Line2D([], [], color=MUTED, linestyle=_DASHES, linewidth=1, label=label)
        figure.legend(handles=[*handles, line], loc="outside lower center", ncols=1)
    return figure


def _histogram(axes: Axes, panel: Mapping[str, Any]) -> None:
    sides = (("id", "in distribution (ID)", 0), ("ood", "out of distribution (OOD)", 1))
    for key, label, place in sides:
        axes.stairs(
            panel[key], panel["edges"], fill=True, color=COLOURS[place], alpha=0.3, label=label
        )
        axes.stairs(panel[key], panel["edges"], color=COLOURS[place], linewidth=1.3)
    axes.axvline(panel["threshold"], color=MUTED, linestyle=_DASHES, linewidth=1)
    axes.set_title(textwrap.fill(panel["title"], 34), pad=20)
    figures = f"AUROC {panel['auroc']:.3f}, FPR95 {100 * panel['fpr95']:.1f} %"
    axes.text(0, 1.03, figures, transform=axes.transAxes, color=MUTED)
    axes.set(xlabel=f"Score ({panel['n_id']:,} ID, {panel['n_ood']:,} OOD rows)", ylim=(0, None))
    axes.yaxis.set_major_formatter(FuncFormatter(_percent))
    axes.yaxis.set_major_locator(MaxNLocator(5))


def _percent(value: float, _: int | None = None) -> str:
    return f"{100 * value:.3g} %"


# ------------------------------------------------------------------ shift
def plot_shift(panels: Sequence[Mapping[str, Any]]) -> Figure:
    """Draw figures over the severity of a shift: a line for each model, a band for its interval.

    Args:
        panels: what ``prepare_shift`` gave.

    Returns:
        A figure; ``save_png`` or ``png_bytes`` renders it.
    """
    names = list(dict.fromkeys(model["name"] for panel in panels for model in panel["models"]))
    with matplotlib.rc_context(HOUSE):
        rows = -(-len(names) // 4)
        figure = new_figure(max(4.2, 3.2 * len(panels)), 3.0 + 0.22 * rows)
        lines: dict[str, Any] = {}
        for axes, panel in zip(row_of_axes(figure, len(panels)), panels, strict=True):
            for model in panel["models"]:
                place = names.index(model["name"])
                lines.setdefault(model["name"], _shift_line(axes, model, place))
            axes.set(title=textwrap.fill(panel["title"], 32), xlabel="Severity of the shift")
            axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        handles = [lines[name] for name in names]
        figure.legend(handles, names, loc="outside lower center", ncols=min(4, len(names)))
    return figure


def _shift_line(axes: Axes, model: Mapping[str, Any], place: int) -> Any:
    colour, style = _line(place)
    low, high = ([float("nan") if v is None else v for v in model[k]] for k in ("low", "high"))
    axes.fill_between(model["severity"], low, high, color=colour, alpha=0.15, linewidth=0)
    marker = MARKERS[place % len(MARKERS)]
    return axes.plot(
        model["severity"], model["value"], color=colour, linestyle=style, marker=marker
    )[0]


def _line(place: int) -> tuple[str, str]:
    """Colour and style of a line: different for each of 28."""
    return COLOURS[place % len(COLOURS)], _STYLES[place // len(COLOURS) % len(_STYLES)]
