"""What the pictures after training show is computed apart, and drawing draws just that."""

import numpy as np
import pytest

from temperance.errors import InvalidInput
from temperance.evaluation import aurc, msp, ood_metrics, risk_coverage
from temperance.evaluation.plot_curves import plot_ood, plot_risk_coverage, plot_shift
from temperance.evaluation.plots import png_bytes
from temperance.evaluation.prepare_curves import prepare_ood, prepare_risk_coverage, prepare_shift
from temperance.records import Estimate


def rows(n=1000):
    rng = np.random.default_rng(0)
    z = rng.normal(size=(n, 4)) * 2
    return z, (z + rng.gumbel(size=z.shape)).argmax(axis=1)


def curves():
    z, y = rows()
    return {
        "one": risk_coverage(logits=z, labels=y),
        "two": risk_coverage(logits=z[:50] * 0.1 + 1, labels=y[:50]),
    }


def outside(figure):
    """Texts that stick out of the figure, and titles that lie over each other."""
    figure.canvas.draw()
    texts = [
        text
        for axes in figure.axes
        if axes.get_visible()
        for text in [*axes.texts, axes._left_title, axes.xaxis.label, axes.yaxis.label]
        if text.get_text()
    ]
    boxes = [t.get_window_extent() for t in [*texts, *figure.legends]]
    inside = figure.bbox.padded(1)
    out = [b for b in boxes if not (inside.contains(b.x0, b.y0) and inside.contains(b.x1, b.y1))]
    pairs = [(a, b) for i, a in enumerate(boxes) for b in boxes[i + 1 :]]
    return out + [a for a, b in pairs if a.padded(-1).overlaps(b.padded(-1))]


# ------------------------------------------------------------------ risk and coverage
def test_risk_coverage_is_thinned_out():
    one, two = prepare_risk_coverage(curves())
    z, y = rows()
    assert (one["name"], one["n"]) == ("one", 1000)
    assert one["aurc"] == pytest.approx(aurc(logits=z, labels=y))
    assert len(one["risk"]) == len(one["coverage"]) == len(one["best"]) == 200
    assert len(two["risk"]) == 50
    assert (one["coverage"][0], one["coverage"][-1]) == (0.001, 1.0)
    assert one["risk"][-1] == one["best"][-1] == pytest.approx(1 - one["accuracy"])


def test_risk_coverage_is_drawn():
    prepared = prepare_risk_coverage(curves())
    figure = plot_risk_coverage(prepared)
    lines = figure.axes[0].lines
    np.testing.assert_array_equal(lines[0].get_ydata(), prepared[0]["risk"])
    np.testing.assert_array_equal(lines[1].get_ydata(), prepared[0]["best"])
    assert outside(figure) == []
    assert png_bytes(figure, dpi=40).startswith(b"\x89PNG")


# ------------------------------------------------------------------ OOD
def test_histograms_hold_all_rows():
    rng = np.random.default_rng(0)
    inside, far = rng.normal(size=200), rng.normal(size=50) + 2
    far[0] = 1e6  # one row far out does not squeeze all others into one bin
    (panel,) = prepare_ood({"energy": (inside, far)}, bins=10)
    assert len(panel["edges"]) == 11
    assert sum(panel["id"]) == pytest.approx(1)
    assert sum(panel["ood"]) == pytest.approx(1)
    assert max(panel["id"]) < 0.5
    figures = ood_metrics(id_scores=inside, ood_scores=far, bootstrap=0)
    assert (panel["auroc"], panel["fpr95"]) == (figures.auroc.value, figures.fpr95_in.value)
    # the line of the picture is where the FPR is counted
    assert np.mean(inside <= panel["threshold"]) >= 0.95
    assert np.mean(far <= panel["threshold"]) == panel["fpr95"]


def test_equal_scores_have_a_histogram():
    (panel,) = prepare_ood({"msp": ([0.5] * 4, [0.5] * 2)})
    assert sum(panel["id"]) == sum(panel["ood"]) == 1.0
    assert panel["auroc"] == 0.5


@pytest.mark.parametrize("count", [1, 2, 4, 5])
def test_histograms_are_drawn(count):
    z, _ = rows()
    pair = msp(logits=z), msp(logits=z / 4)
    panels = prepare_ood({f"score {k}": pair for k in range(count)})
    figure = plot_ood(panels)
    assert sum(axes.get_visible() for axes in figure.axes) == count
    assert figure.axes[0].lines[0].get_xdata()[0] == panels[0]["threshold"]
    np.testing.assert_allclose(figure.axes[0].patches[0].get_data().values, panels[0]["id"])
    assert outside(figure) == []


def test_what_cannot_be_shown_is_refused():
    for call in (
        lambda: prepare_ood({}),
        lambda: prepare_ood({"a": ([1.0], [2.0])}, bins=1),
        lambda: prepare_ood({"a": ([np.nan], [2.0])}),
        lambda: prepare_risk_coverage({}),
        lambda: prepare_risk_coverage({"a": {"risk": np.zeros(3)}}),
        lambda: prepare_shift({}),
        lambda: prepare_shift({"ece": {}}),
        lambda: prepare_shift({"beauty": {"a": {0: Estimate(1.0)}}}),
    ):
        with pytest.raises(InvalidInput):
            call()


# ------------------------------------------------------------------ shift
SHIFT = {
    "accuracy": {
        "single": {1: Estimate(0.8, (0.7, 0.9)), 0: Estimate(0.9, (0.85, 0.95))},
        "ensemble": {0: Estimate(0.92), 1: Estimate(0.85)},
    },
    "nll_posthoc": {"single": {0: Estimate(0.3, (0.2, 0.4)), 2: Estimate(float("inf"))}},
}


def test_shift_curves_are_sorted_and_in_percent():
    first, second = prepare_shift(SHIFT)
    assert (first["title"], first["better"]) == ("Accuracy (%)", "higher")
    single, ensemble = first["models"]
    assert single["severity"] == [0, 1]
    assert single["value"] == pytest.approx([90, 80])
    assert single["low"] == pytest.approx([85, 70])
    assert ensemble["low"] == [None, None]
    assert second["title"] == "NLL after post-hoc calibration (nats)"
    assert second["models"][0]["value"] == [0.3]  # the infinite one is left out


def test_shift_curves_are_drawn():
    figure = plot_shift(prepare_shift(SHIFT))
    np.testing.assert_allclose(figure.axes[0].lines[0].get_ydata(), [90, 80])
    assert [t.get_text() for t in figure.legends[0].get_texts()] == ["single", "ensemble"]
    assert outside(figure) == []
