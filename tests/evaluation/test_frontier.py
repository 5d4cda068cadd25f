"""The accuracy-calibration frontier: which settings are on it, and that it can be drawn."""

import pytest

from temperance.errors import InvalidInput
from temperance.evaluation.plot_frontier import plot_frontier
from temperance.evaluation.plot_style import png_bytes
from temperance.evaluation.prepare_frontier import prepare_frontier
from temperance.records import Estimate


def figures(accuracy, ece, **more):
    found = {"accuracy": Estimate(accuracy, (0.0, 1.0)), "ece": Estimate(ece), **more}
    return {"nll": Estimate(0.5, (0.4, 0.6)), **found}


def test_points_that_another_one_beats_are_off_the_frontier():
    points = {1.0: figures(0.9, 0.05), 0.1: figures(0.8, 0.01), 0.2: figures(0.8, 0.02)}
    points[5.0] = figures(0.9, 0.05)  # an equal does not beat
    found = prepare_frontier(points)["points"]
    assert [(p["tau"], p["on_frontier"]) for p in found] == [
        (0.1, True), (0.2, False), (1.0, True), (5.0, True),
    ]  # fmt: skip
    assert found[0]["accuracy"] == {"value": 80.0, "low": 0.0, "high": 100.0}
    assert found[0]["ece"] == {"value": 1.0, "low": None, "high": None}


@pytest.mark.parametrize(
    "points",
    [{}, {0.0: figures(0.8, 0.1)}, {1.0: {}}, {1.0: figures(0.8, float("nan"))}],
)
def test_bad_points(points):
    with pytest.raises(InvalidInput):
        prepare_frontier(points)


@pytest.mark.parametrize("more", [{}, {"disagreement": Estimate(0.1)}])
def test_it_draws(more):
    points = {t: figures(0.8 + t / 100, t / 10, **more) for t in (0.1, 0.2, 1.0)}
    prepared = prepare_frontier(points, references={"Single model": figures(0.8, 0.2)})
    figure = plot_frontier(prepared)
    assert len(figure.axes) == 2 + bool(more)
    assert png_bytes(figure, dpi=40).startswith(b"\x89PNG")
