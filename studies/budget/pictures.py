"""Pictures of the laws: best T against predicted T, and the exponents with their intervals."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from forms import ALL_TERMS

mpl.use("Agg")
import matplotlib.pyplot as plt

from temperance.files import write_bytes

__all__ = ["draw"]

_KINDS = {"sgd": "tab:blue", "adamw": "tab:orange", "rmsprop": "tab:green"}
_LEFT_OUT = ("constant", "one hidden layer", "convolutions")
_ORDER = [name for name in ALL_TERMS if name not in _LEFT_OUT]


def draw(points: dict[str, Any], found: dict[str, Any], out: Path, *, target: str) -> None:
    """Draw both pictures of a target.

    Args:
        points: by family: ``best`` and ``left_out`` (log T), and ``edge``.
        found: the fitted laws by family.
        out: folder of the pictures.
        target: the metric that says which T is best.
    """
    families = [f for f in _KINDS if f in points]
    figure, axes = plt.subplots(
        1, max(1, len(families)), figsize=(4 * max(1, len(families)), 4), squeeze=False
    )
    for axis, family in zip(axes[0], families, strict=False):
        own = points[family]
        for edge, mark in (("", "o"), ("lower", "v"), ("upper", "^")):
            at = own["edge"] == edge
            axis.loglog(
                np.exp(own["left_out"][at]),
                np.exp(own["best"][at]),
                mark,
                color=_KINDS[family] if not edge else "0.6",
                ms=4,
                label=edge or "inside the grid",
            )
        ends = [*axis.get_xlim(), *axis.get_ylim()]
        axis.plot([min(ends), max(ends)], [min(ends), max(ends)], "k-", lw=0.6)
        axis.set(title=family, xlabel="T of the law (data set left out)", ylabel="best T")
    axes[0][0].legend(fontsize=7)
    _save(figure, out / f"best-{target}.png", target)

    figure, axis = plt.subplots(figsize=(7, 6))
    for offset, family in zip((-0.22, 0.0, 0.22), _KINDS, strict=True):
        if family not in found:
            continue
        full = next(one for one in found[family] if one["form"] == "full")["coefficients"]
        names = [n for n in full if n not in _LEFT_OUT]
        value = np.array([full[n]["value"] for n in names])
        ends = np.array([full[n]["interval"] for n in names])
        place = np.array([_ORDER.index(n) for n in names]) + offset
        axis.hlines(place, ends[:, 0], ends[:, 1], color=_KINDS[family])
        axis.plot(value, place, "o", ms=4, color=_KINDS[family], label=family)
    axis.axvline(0, color="k", lw=0.6)
    axis.set_yticks(range(len(_ORDER)), _ORDER)
    axis.invert_yaxis()
    axis.set_xlabel("exponent of T, or change of log T; 95 % interval over data sets")
    axis.legend()
    _save(figure, out / f"exponents-{target}.png", target)


def _save(figure: Any, path: Path, target: str) -> None:
    figure.suptitle(target)
    figure.tight_layout()
    file = io.BytesIO()
    figure.savefig(file, dpi=110, format="png")
    plt.close(figure)
    write_bytes(path, file.getvalue())
