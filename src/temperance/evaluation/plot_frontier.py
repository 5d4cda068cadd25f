"""The frontier that tau draws between accuracy and calibration; it draws, and computes nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, NullLocator

from temperance.evaluation.plot_style import COLOURS, HOUSE, INK, MARKERS, MUTED, new_figure

__all__ = ["plot_frontier"]

_STYLES = ("--", ":", "-.", (0, (5, 1, 1, 1)))
_LABELS = ((0, 9), (0, -17), (0, 18), (0, -26))  # points above and below a marker
_WITH_TICKS = 8  # settings up to which each tau has its tick


def plot_frontier(prepared: Mapping[str, Any]) -> Figure:
    """Draw accuracy over ECE for every tau, then NLL and the members' disagreement over tau.

    Args:
        prepared: what ``prepare_frontier`` gave.

    Returns:
        A figure; ``save_png`` or ``png_bytes`` renders it.
    """
    points, references = prepared["points"], prepared["references"]
    over_tau = [("nll", "NLL (nats)")]
    if all("disagreement" in point for point in points):
        over_tau.append(("disagreement", "Members that disagree (%)"))
    with matplotlib.rc_context(HOUSE):
        figure = new_figure(4.4 + 3.1 * len(over_tau), 3.9)
        axes = list(figure.subplots(1, 1 + len(over_tau), width_ratios=[1.3, *[1] * len(over_tau)]))
        _frontier(axes[0], points, references)
        for place, (name, title) in zip(axes[1:], over_tau, strict=True):
            _over_tau(place, points, references, name=name, title=title)
        figure.legend(handles=_handles(references), loc="outside lower center", ncols=3)
    return figure


def _frontier(
    axes: Axes, points: Sequence[Mapping[str, Any]], references: Sequence[Mapping[str, Any]]
) -> None:
    best = sorted((p for p in points if p["on_frontier"]), key=lambda p: p["ece"]["value"])
    xs, ys = ([p[name]["value"] for p in best] for name in ("ece", "accuracy"))
    axes.plot(xs, ys, color=COLOURS[0], linewidth=1.2, zorder=2)
    for place, point in enumerate(sorted(points, key=lambda p: p["ece"]["value"])):
        filled = COLOURS[0] if point["on_frontier"] else "white"
        _cross(axes, point, colour=COLOURS[0], marker=MARKERS[0], fill=filled)
        axes.annotate(
            f"{point['tau']:g}",
            (point["ece"]["value"], point["accuracy"]["value"]),
            xytext=_LABELS[place % len(_LABELS)],  # neighbours may be close
            textcoords="offset points",
            ha="center",
            fontsize=8,
            color=INK,
        )
    for place, reference in enumerate(references):
        colour, marker = _look(place)
        _cross(axes, reference, colour=colour, marker=marker, fill=colour)
    axes.set(title="Accuracy and calibration, by tau", xlabel="ECE (%)", ylabel="Accuracy (%)")
    axes.margins(0.08)


def _cross(axes: Axes, point: Mapping[str, Any], *, colour: str, marker: str, fill: str) -> None:
    """A point, with its two intervals as thin lines."""
    x, y = point["ece"], point["accuracy"]
    if x["low"] is not None:
        axes.hlines(y["value"], x["low"], x["high"], color=colour, alpha=0.3, linewidth=1)
    if y["low"] is not None:
        axes.vlines(x["value"], y["low"], y["high"], color=colour, alpha=0.3, linewidth=1)
    axes.plot(
        x["value"], y["value"], marker=marker, color=colour, markerfacecolor=fill, markersize=6,
        linestyle="", zorder=3,
    )  # fmt: skip


def _over_tau(
    axes: Axes,
    points: Sequence[Mapping[str, Any]],
    references: Sequence[Mapping[str, Any]],
    *,
    name: str,
    title: str,
) -> None:
    tau = [point["tau"] for point in points]
    value, low, high = ([p[name][k] for p in points] for k in ("value", "low", "high"))
    if None not in low:
        axes.fill_between(tau, low, high, color=COLOURS[0], alpha=0.15, linewidth=0)
    axes.plot(tau, value, color=COLOURS[0], marker=MARKERS[0])
    for place, reference in enumerate(references):
        if name in reference:
            style = _STYLES[place % len(_STYLES)]
            axes.axhline(reference[name]["value"], color=_look(place)[0], linestyle=style)
    axes.set(title=title, xlabel="tau", xscale="log")
    if len(tau) <= _WITH_TICKS:
        axes.xaxis.set_major_locator(FixedLocator(tau))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.set_xticklabels([f"{t:g}" for t in tau])


def _look(place: int) -> tuple[str, str]:
    """Colour and marker of a reference."""
    return COLOURS[1 + place % (len(COLOURS) - 1)], MARKERS[1 + place % (len(MARKERS) - 1)]


def _handles(references: Sequence[Mapping[str, Any]]) -> list[Line2D]:
    first: dict[str, Any] = {"color": COLOURS[0], "marker": MARKERS[0], "markersize": 6}
    handles = [
        Line2D([], [], label="a tau on the frontier", **first),
        Line2D([], [], label="another tau", linestyle="", markerfacecolor="white", **first),
    ]
    for place, reference in enumerate(references):
        colour, marker = _look(place)
        style = _STYLES[place % len(_STYLES)]
        handles.append(
            Line2D([], [], color=colour, marker=marker, linestyle=style, label=reference["name"])
        )
    handles.append(Line2D([], [], color=MUTED, alpha=0.5, linewidth=1, label="95 % interval"))
    return handles
