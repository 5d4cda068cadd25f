"""What the picture of an accuracy-calibration frontier shows; ``plot_frontier`` draws it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from temperance.errors import InvalidInput
from temperance.records import Estimate

__all__ = ["prepare_frontier"]

_FIGURES = {"accuracy": 100.0, "ece": 100.0, "nll": 1.0, "disagreement": 100.0}
_NEEDED = ("accuracy", "ece", "nll")

Figures = Mapping[str, Estimate]


def prepare_frontier(
    points: Mapping[float, Figures], *, references: Mapping[str, Figures] | None = None
) -> dict[str, Any]:
    """Bring the settings of a sweep over tau to what a picture shows.

    A setting is on the frontier if no other one has at least its accuracy and at most its ECE, and
    is better in one of the two.

    Args:
        points: for each tau its figures: ``accuracy``, ``ece``, ``nll`` and, if there is one,
            ``disagreement``.
        references: the same for what tau does not touch, by name, such as a single model.

    Returns:
        ``points``, by rising tau, each with ``tau`` and ``on_frontier``, and ``references``, each
        with ``name``; both have, by figure, ``value``, ``low`` and ``high`` (None without an
        interval); shares in percent, NLL in nats.

    Raises:
        InvalidInput: if there are no points, a tau is not positive, or a figure is missing or not
            finite.

    Example:
        >>> from temperance.evaluation.prepare_frontier import prepare_frontier
        >>> from temperance.records import Estimate
        >>> def figures(accuracy, ece):
        ...     return {"accuracy": Estimate(accuracy), "ece": Estimate(ece), "nll": Estimate(0.5)}
        >>> found = prepare_frontier({0.1: figures(0.8, 0.01), 1.0: figures(0.9, 0.05),
        ...                           0.3: figures(0.79, 0.02)})
        >>> [(p["tau"], p["on_frontier"]) for p in found["points"]]
        [(0.1, True), (0.3, False), (1.0, True)]
    """
    if not points:
        raise InvalidInput("points", expected="at least one tau", found="none", fix="Add some.")
    for tau in points:
        if not 0 < tau < math.inf:
            raise InvalidInput(
                "tau", expected="a finite number above 0", found=repr(tau), fix="Leave it out."
            )
    shown = [{"tau": tau, **_figures(f"tau {tau:g}", points[tau])} for tau in sorted(points)]
    for point in shown:
        point["on_frontier"] = not any(_better(other, point) for other in shown)
    others = [{"name": name, **_figures(name, of)} for name, of in (references or {}).items()]
    return {"points": shown, "references": others}


def _figures(name: str, figures: Figures) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for figure, scale in _FIGURES.items():
        estimate = figures.get(figure)
        if estimate is None and figure not in _NEEDED:
            continue
        if estimate is None or not math.isfinite(estimate.value):
            raise InvalidInput(
                f"{figure} of {name}",
                expected="a finite figure",
                found="none" if estimate is None else repr(estimate.value),
                fix="Leave out what did not come to an end.",
            )
        low, high = estimate.interval or (None, None)
        found[figure] = {
            "value": scale * estimate.value,
            "low": None if low is None else scale * low,
            "high": None if high is None else scale * high,
        }
    return found


def _better(other: Mapping[str, Any], point: Mapping[str, Any]) -> bool:
    """Whether another setting is nowhere worse, and better in accuracy or ECE."""
    more = other["accuracy"]["value"] - point["accuracy"]["value"]
    less = point["ece"]["value"] - other["ece"]["value"]
    return bool(more >= 0 and less >= 0 and (more > 0 or less > 0))
