"""What pictures show is computed apart and checked here; drawing is checked to draw just that."""

import subprocess
import sys

import numpy as np
import pytest

from temperance.errors import InvalidInput
from temperance.evaluation import evaluate, fit_temperature
from temperance.evaluation.plots import (
    plot_eigenvalues,
    plot_forest,
    plot_learning_curves,
    plot_reliability,
    png_bytes,
    save_png,
)
from temperance.evaluation.prepare import (
    prepare_eigenvalues,
    prepare_forest,
    prepare_learning_curves,
    prepare_reliability,
)
from temperance.records import Estimate, Features, Report, Statistic
from temperance.task import csg


def reports(names=("T = 1", "T = 16")):
    rng = np.random.default_rng(0)
    z = rng.normal(size=(600, 4)) * 2
    y = (z + rng.gumbel(size=z.shape)).argmax(axis=1)
    fit = fit_temperature(logits=z[:200] * 3, labels=y[:200])
    return {n: evaluate(logits=z[200:] * 3, labels=y[200:], posthoc=fit) for n in names}


HISTORIES = {
    "T = 1": [
        {"train_loss": (2.0, 1.0, 0.5), "held_out_accuracy": (0.1, 0.5, 0.6)},
        {"train_loss": (4.0, 2.0), "held_out_accuracy": (0.3, float("nan"), 0.8)},
    ],
    "T = 4": [{"train_loss": (3.0, 2.0, 1.0), "held_out_accuracy": (float("nan"),) * 3}],
}
DIFFERENCES = {
    "accuracy": {"a": Estimate(0.012, (0.004, 0.02)), "b": Estimate(0.001, (-0.01, 0.012))},
    "nll": {"a": Estimate(-0.1, (-0.2, -0.05)), "b": Estimate(float("inf")), "c": Estimate(0.1)},
}


def overlaps(figure):
    """Pairs of texts that lie over each other, and texts outside the figure."""
    figure.canvas.draw()
    boxes = [
        (text.get_text(), text.get_window_extent())
        for axes in figure.axes
        for text in [*axes.texts, axes.title, axes._left_title, axes.xaxis.label, axes.yaxis.label]
        if text.get_text()
    ]
    size = figure.bbox
    outside = [
        t
        for t, b in boxes
        if b.x0 < -1 or b.y0 < -1 or b.x1 > size.width + 1 or b.y1 > size.height + 1
    ]
    over = [
        (t, u)
        for i, (t, b) in enumerate(boxes)
        for u, c in boxes[i + 1 :]
        if b.padded(-1).overlaps(c.padded(-1))
    ]
    return outside, over


# ------------------------------------------------------------------ reliability
def test_reliability_panels():
    found = prepare_reliability(reports())
    assert [p["title"] for p in found] == ["T = 1", "T = 16"]
    report = reports()["T = 1"]
    before, after = found[0]["stages"]
    assert before["ece"] == report.metrics["ece"].value
    assert after["ece"] == report.metrics["ece_posthoc"].value
    assert (before["temperature"], after["temperature"]) == (None, report.posthoc_temperature)
    assert sum(before["share"]) == pytest.approx(1)
    assert len(before["edges"]) == 16
    assert None not in before["confidence"]
    assert len(before["confidence"]) == sum(s > 0 for s in before["share"])
    # the gaps of the picture add up to the ECE
    filled = [s for s in before["share"] if s > 0]
    gaps = np.abs(np.subtract(before["confidence"], before["accuracy"]))
    assert gaps @ filled == pytest.approx(before["ece"])


def test_reliability_is_drawn():
    figure = plot_reliability(prepare_reliability(reports()))
    assert len(figure.axes) == 4
    lines = figure.axes[0].lines
    stage = prepare_reliability(reports())[0]["stages"][1]
    np.testing.assert_array_equal(lines[2].get_xdata(), stage["confidence"])
    np.testing.assert_array_equal(lines[2].get_ydata(), stage["accuracy"])
    assert overlaps(figure) == ([], [])


def test_reliability_without_bins_is_refused():
    with pytest.raises(InvalidInput):
        prepare_reliability({"a": Report(1, 2, {"ece": Estimate(0.0)})})
    with pytest.raises(InvalidInput):
        prepare_reliability({})


# ------------------------------------------------------------------ learning curves
def test_curves_are_means_and_bands():
    loss, accuracy = prepare_learning_curves(HISTORIES)
    assert loss["title"] == "Training loss (nats)"
    first = loss["arms"][0]
    assert first["mean"] == [3.0, 1.5, 0.5]
    assert first["low"] == [2.0, 1.0, 0.5]
    assert first["high"] == [4.0, 2.0, 0.5]
    assert first["epochs"] == [1, 2, 3]
    assert first["runs"] == 2
    assert accuracy["arms"][0]["mean"] == pytest.approx([20.0, 50.0, 70.0])
    assert accuracy["arms"][1]["mean"] == [None, None, None]
    own = prepare_learning_curves(HISTORIES, curves={"train_loss": "Loss"})
    assert [p["title"] for p in own] == ["Loss"]


def test_curves_are_drawn():
    figure = plot_learning_curves(prepare_learning_curves(HISTORIES))
    assert len(figure.axes) == 2
    np.testing.assert_array_equal(figure.axes[0].lines[0].get_ydata(), [3.0, 1.5, 0.5])
    assert len(figure.axes[0].collections) == 1  # a band for two runs, none for one
    assert [t.get_text() for t in figure.legends[0].get_texts()] == ["T = 1", "T = 4"]
    assert overlaps(figure) == ([], [])


def test_more_arms_than_colours_can_be_told_apart():
    many = {f"arm {i}": [{"train_loss": (1.0 + i, 0.5)}] for i in range(20)}
    lines = plot_learning_curves(prepare_learning_curves(many)).axes[0].lines
    assert len({(line.get_color(), line.get_linestyle()) for line in lines}) == 20


def test_no_curves_are_refused():
    for histories in ({}, {"a": []}, {"a": [{"other": (1.0,)}]}):
        with pytest.raises(InvalidInput):
            prepare_learning_curves(histories)


# ------------------------------------------------------------------ eigenvalues
def test_eigenvalues_add_up_to_the_csg():
    values = (0.0, 0.4, 0.5, 1.3, 1.5)
    found = prepare_eigenvalues(Statistic(0.0, eigenvalues=values))
    deltas = [(values[i + 1] - values[i]) / (5 - i) for i in range(4)]
    assert found["deltas"] == pytest.approx(deltas)
    assert found["running"] == pytest.approx([max(deltas[: i + 1]) for i in range(4)])
    assert found["record"] == [True, False, True, False]
    assert found["gaps"] == pytest.approx([0.4, 0.1, 0.8, 0.2])


def test_eigenvalues_agree_with_csg():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(300, 5)) + 2 * np.eye(5)[np.arange(300) % 5]
    result = csg(Features.from_arrays(x, np.arange(300) % 5), repeats=1)
    found = prepare_eigenvalues(result)
    assert sum(found["running"]) == pytest.approx(result.value, rel=1e-9)


@pytest.mark.parametrize("values", [(0.0, 1.0), (0.0, 0.0, 0.0), tuple(np.linspace(0, 9, 200))])
def test_eigenvalues_are_drawn(values):
    statistic = Statistic(0.5, (0.4, 0.6), eigenvalues=values)
    figure = plot_eigenvalues(prepare_eigenvalues(statistic), title="digits")
    assert "[0.4, 0.6]" in figure.axes[1]._left_title.get_text()
    np.testing.assert_array_equal(figure.axes[0].lines[0].get_ydata(), values)
    assert overlaps(figure) == ([], [])


def test_one_eigenvalue_is_refused():
    with pytest.raises(InvalidInput):
        prepare_eigenvalues(Statistic(0.0, eigenvalues=(0.0,)))


# ------------------------------------------------------------------ forest
def test_forest_rows():
    found = prepare_forest(DIFFERENCES, baseline="T = 1")
    assert found["arms"] == ["a", "b", "c"]
    accuracy, nll = found["panels"]
    assert accuracy["rows"][0]["value"] == pytest.approx(1.2)
    assert accuracy["rows"][0]["interval"] == pytest.approx((0.4, 2.0))
    assert [r and r["verdict"] for r in accuracy["rows"]] == ["better", "no difference shown", None]
    assert nll["rows"][0]["verdict"] == "better"
    assert nll["rows"][1] is None
    assert nll["rows"][2]["interval"] is None
    assert (accuracy["better"], nll["better"]) == ("higher", "lower")


def test_forest_is_drawn():
    figure = plot_forest(prepare_forest(DIFFERENCES, baseline="T = 1"))
    left, right = figure.axes
    assert [t.get_text() for t in left.get_yticklabels()] == ["a", "b", "c"]
    assert [t.get_text() for t in left.texts][2] == "no figure"
    assert "+1.20  [+0.40, +2.00]" in left.texts[0].get_text()
    assert left.get_ylim()[0] > left.get_ylim()[1]  # the first arm on top
    assert overlaps(figure) == ([], [])
    assert right.get_xlabel().endswith("better")


def test_forest_is_checked():
    for differences in ({}, {"accuracy": {}}, {"f1": {"a": Estimate(0.1)}}):
        with pytest.raises(InvalidInput):
            prepare_forest(differences, baseline="T = 1")


# ------------------------------------------------------------------ files
def test_png_files_are_whole_and_the_same_each_time(tmp_path):
    forest = prepare_forest(DIFFERENCES, baseline="T = 1")
    path = save_png(plot_forest(forest), tmp_path / "forest.png", dpi=60)
    assert path.read_bytes().startswith(b"\x89PNG")
    assert path.read_bytes() == png_bytes(plot_forest(forest), dpi=60)
    assert b"Software" not in path.read_bytes()
    assert [p.name for p in tmp_path.iterdir()] == ["forest.png"]


def test_no_global_state_of_matplotlib_moves():
    code = (
        "import matplotlib, sys\n"
        "names = [n for n in matplotlib.rcParams if n != 'backend']\n"  # asking loads pyplot
        "before = [matplotlib.rcParams[n] for n in names]\n"
        "from temperance.evaluation.plots import *\n"
        "from temperance.evaluation.prepare import *\n"
        "from temperance.records import Statistic\n"
        "png_bytes(plot_eigenvalues(prepare_eigenvalues(Statistic(1.0, eigenvalues=(0.0, 1.0)))))\n"
        "assert [matplotlib.rcParams[n] for n in names] == before\n"
        "assert 'matplotlib.pyplot' not in sys.modules\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], check=False, capture_output=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
