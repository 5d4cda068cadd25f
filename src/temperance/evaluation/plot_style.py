"""How all pictures look, and how they become files.

The only place that knows fonts, colours and the renderer. Figures are made without pyplot, so that
no global state is touched and nothing has to be closed; they are drawn by Agg, on any machine, the
same each time. Colours are those of Okabe and Ito, which people with any colour vision can tell
apart.
"""

from __future__ import annotations

import io
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from temperance.files import write_bytes

__all__ = [
    "COLOURS",
    "HOUSE",
    "INK",
    "MARKERS",
    "MUTED",
    "new_figure",
    "png_bytes",
    "row_of_axes",
    "save_png",
]

#: Okabe and Ito, Color universal design, 2008; yellow left out, which is too pale for lines.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
INK, MUTED, GRID = "#222222", "#6b6b6b", "#e4e4e4"
_DPI = 150
HOUSE = {
    "font.family": "DejaVu Sans",
    "font.size": 9.0,
    "axes.titlesize": 10.0,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.labelsize": 9.0,
    "axes.edgecolor": MUTED,
    "axes.labelcolor": INK,
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "grid.linewidth": 0.8,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "xtick.labelsize": 8.0,
    "ytick.labelsize": 8.0,
    "legend.frameon": False,
    "legend.fontsize": 8.0,
    "lines.linewidth": 1.6,
    "lines.markersize": 4.0,
    "text.color": INK,
    "figure.facecolor": "white",
    "savefig.facecolor": "white",
}


def new_figure(width: float, height: float) -> Figure:
    """Make an empty figure of a size in inches, drawn by Agg."""
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def row_of_axes(figure: Figure, count: int) -> list[Axes]:
    """Put panels side by side."""
    return list(figure.subplots(1, count, squeeze=False)[0])


def png_bytes(figure: Figure, *, dpi: int = _DPI) -> bytes:
    """Render a figure as PNG; the same figure gives the same bytes.

    Args:
        figure: from a ``plot_*``.
        dpi: dots per inch.

    Returns:
        The content of a PNG file, without date and program name.
    """
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=dpi, metadata={"Software": None})
    return buffer.getvalue()


def save_png(figure: Figure, path: str | Path, *, dpi: int = _DPI) -> Path:
    """Write a figure as a PNG file; the file is whole or not there.

    Args:
        figure: from a ``plot_*``.
        path: where to; its folder exists.
        dpi: dots per inch.

    Returns:
        The path.
    """
    target = Path(path)
    write_bytes(target, png_bytes(figure, dpi=dpi))
    return target
