"""The picture of the table of moving temperatures: prepared figures are drawn, nothing computed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

__all__ = ["draw"]

_PANELS = (("test_accuracy", "accuracy, points"), ("test_nll_posthoc", "NLL after post-hoc T, %"))
_ROWS = (
    ("at the law's T, against the constant at the law's T", "at the law's T"),
    ("at its best T, against the constant at its best T", "each at its best T"),
    ("mean of seven T, against the constant's mean", "mean of seven T"),
)
_COLORS = {"ramp": "#1b6ca8", "spent": "#2f9e6e", "learned": "#c9622b", "hypergradient": "#7a4fa3"}


def draw(results: Mapping[str, Any], path: Path) -> None:
    """Draw the differences to the constant with their intervals."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context({"font.size": 9}):
        figure = Figure(figsize=(8, 3.6), layout="constrained")
        axes = figure.subplots(1, 2, sharey=True)
        paths = results["groups"]["all"]["paths"]
        for axis, (metric, label) in zip(axes, _PANELS, strict=True):
            for row, (name, _) in enumerate(_ROWS):
                for place, (moving, color) in enumerate(_COLORS.items()):
                    cell = paths[moving][name][metric]
                    y = row + (place - 1.5) * 0.18
                    axis.plot(cell["interval"], [y, y], color=color, linewidth=1.5)
                    axis.plot([cell["mean"]], [y], "o", color=color, markersize=4,
                              label=moving if row == 0 else None)  # fmt: skip
            axis.axvline(0, color="0.5", linewidth=0.8)
            axis.set_xlabel(f"{label}: difference to the constant")
            axis.set_yticks(range(len(_ROWS)), [label for _, label in _ROWS])
        axes[0].invert_yaxis()
        axes[0].set_title("right is better", loc="left", fontsize=9)
        axes[1].set_title("left is better", loc="left", fontsize=9)
        handles, labels = axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False)
        figure.savefig(path, dpi=150)
