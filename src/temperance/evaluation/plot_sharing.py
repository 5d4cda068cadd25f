"""How an ensemble shares its features, as a picture; it draws, and computes nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from temperance.evaluation.plot_style import COLOURS, HOUSE, INK, MUTED, new_figure

__all__ = ["plot_sharing"]

_CELLS = 8  # members up to which a cell is large enough for its number


def plot_sharing(prepared: Mapping[str, Any]) -> Figure:
    """Draw owners per feature, spread by layer, and how alike the members' gates are.

    Args:
        prepared: what ``prepare_sharing`` gave.

    Returns:
        A figure; ``save_png`` or ``png_bytes`` renders it.
    """
    with matplotlib.rc_context(HOUSE):
        figure = new_figure(10.8, 3.6)
        axes = list(figure.subplots(1, 3, width_ratios=(1.15, 1.15, 1)))
        _owners(axes[0], prepared)
        _spread(axes[1], prepared)
        _correlation(axes[2], prepared)
    return figure


def _owners(axes: Axes, prepared: Mapping[str, Any]) -> None:
    place = prepared["places"]
    quantiles = prepared["owners"]
    label = "effective: median, 5 to 95 % of features"
    axes.fill_between(place, quantiles[0], quantiles[2], color=COLOURS[0], alpha=0.2, linewidth=0)
    axes.plot(place, quantiles[1], color=COLOURS[0], marker="o", label=label)
    label = f"gate above {prepared['threshold']:g}: mean"
    axes.plot(place, prepared["above"], color=COLOURS[1], marker="s", linestyle="--", label=label)
    axes.axhline(prepared["members"], color=MUTED, linestyle=":", linewidth=1)
    axes.set(title="Owners per feature", ylabel="Members", ylim=(0, 1.3 * prepared["members"]))
    axes.yaxis.set_major_locator(MaxNLocator(5, integer=True))
    axes.legend(loc="upper left")
    _by_layer(axes)


def _spread(axes: Axes, prepared: Mapping[str, Any]) -> None:
    axes.plot(prepared["places"], prepared["spread"], color=COLOURS[2], marker="^", clip_on=False)
    axes.set(title="Spread over members", ylabel="Standard deviation of the gates")
    axes.set_ylim(0, max(0.05, 1.1 * max(prepared["spread"])))
    _by_layer(axes)


def _by_layer(axes: Axes) -> None:
    axes.set_xlabel("Layer, in the order of the model")
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))


def _correlation(axes: Axes, prepared: Mapping[str, Any]) -> None:
    values, members = prepared["correlation"], prepared["members"]
    shown = [[float("nan") if v is None else v for v in line] for line in values]
    image = axes.imshow(shown, cmap="RdBu_r", vmin=-1, vmax=1)
    axes.grid(visible=False)
    axes.set(title="Correlation of gates", xlabel="Member", ylabel="Member")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MaxNLocator(min(members, 8), integer=True))
    for row, line in enumerate(values):
        for column, value in enumerate(line if members <= _CELLS else ()):
            known = value is not None
            text = f"{value:.2f}" if known else "undefined"
            colour = "white" if known and abs(value) > 0.6 else INK
            axes.text(column, row, text, ha="center", va="center", color=colour, fontsize=7)
    axes.figure.colorbar(image, ax=axes, shrink=0.8)
