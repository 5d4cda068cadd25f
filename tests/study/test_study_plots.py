"""What the pictures of a study show is computed apart; drawing draws just that, and legibly."""

import re
from pathlib import Path

import numpy as np
import pytest

import temperance.study.plots
from temperance.errors import InvalidInput
from temperance.evaluation.plot_style import png_bytes
from temperance.records import Estimate
from temperance.study.correlation import Correlation, CorrelationTable
from temperance.study.dimension import DimensionReport, DimensionSeries, NormDimension
from temperance.study.plots import plot_correlations, plot_dimension, plot_regret
from temperance.study.prepare import prepare_correlations, prepare_dimension, prepare_regret
from temperance.study.regret_records import JudgedTask, RegretReport, RuleSummary, TaskRegret

METRICS = ("accuracy", "nll", "nll_posthoc")
RULES = {"T = 1": "baseline", "hasegawa-sakai-csg-cn": "published", "mine, refitted": "refitted"}


def report(groups=("none", "batch"), metrics=METRICS, tasks=40, heavy=False):
    rng = np.random.default_rng(0)
    judged = tuple(JudgedTask(f"set{t % 8}", "batch", f"set{t}", 64, 10, (0.25, 32.0), {})
                   for t in range(tasks))  # fmt: skip
    rows, summaries = [], []
    for group in groups:
        for metric in metrics:
            for place, rule in enumerate(RULES):
                losses = (3 - place) * np.exp(
                    rng.normal(size=tasks) * (1.8 if heavy else 0.3)
                ) - 0.1
                rows += [
                    TaskRegret(rule, group, metric, t, 2.0, 2.0, None, True, 4.0, False,
                               0.5, 0.4, 0.6, float(loss), None, 0.1)
                    for t, loss in enumerate(losses)
                ]  # fmt: skip
                mean = float(losses.mean())
                summaries.append(RuleSummary(
                    rule, group, metric, RULES[rule], "batch", tasks, 8,
                    Estimate(mean, (mean * 0.7, mean * 1.4)), Estimate(mean), float(losses.max()),
                    "set0", None, Estimate(0.1), Estimate(0.5), 0.0, "better", (2.0, 2.0, 2.0),
                    0, 0, 0,
                ))  # fmt: skip
    order = {m: i for i, m in enumerate(metrics)}
    summaries.sort(key=lambda s: (groups.index(s.group), order[s.metric], s.mean.value))
    return RegretReport(tuple(summaries), tuple(rows), judged)


def overlaps(figure):
    """Pairs of texts that lie over each other, and texts outside the figure."""
    figure.canvas.draw()
    boxes = [
        (text.get_text(), text.get_window_extent())
        for axes in figure.axes
        for text in [*axes.texts, axes._left_title, axes.xaxis.label, axes.yaxis.label,
                     *axes.get_yticklabels(), *axes.get_xticklabels()]
        if text.get_text() and text.get_visible() and _shown(axes, text)
    ]  # fmt: skip
    boxes += [(t.get_text(), t.get_window_extent()) for leg in figure.legends for t in leg.texts]
    width, height = figure.bbox.width + 1, figure.bbox.height + 1
    outside = [t for t, b in boxes if b.x0 < -1 or b.y0 < -1 or b.x1 > width or b.y1 > height]
    over = [
        (t, u)
        for i, (t, b) in enumerate(boxes)
        for u, c in boxes[i + 1 :]
        if b.padded(-1).overlaps(c.padded(-1))
        # the upper line of the first title may reach over its neighbours, which have one line
        and not (t.startswith("Runs with") and u in ("NLL", "NLL after post-hoc T"))
    ]
    return outside, over


def _shown(axes, text):
    """Tick labels beyond the limits of an axis are not drawn."""
    if text not in [*axes.get_yticklabels(), *axes.get_xticklabels()]:
        return True
    box, frame = text.get_window_extent(), axes.get_window_extent()
    x, y = (box.x0 + box.x1) / 2, (box.y0 + box.y1) / 2
    return frame.x0 - 1 <= x <= frame.x1 + 1 or frame.y0 - 1 <= y <= frame.y1 + 1


# ------------------------------------------------------------------ regret
def test_regret_shows_every_task_in_one_order():
    made = report()
    groups = prepare_regret(made)
    assert [g["title"] for g in groups] == ["Runs with no norm", "Runs with BatchNorm"]
    assert groups[0]["subtitle"] == "40 tasks, 8 data sets"
    for group, name in zip(groups, ("none", "batch"), strict=True):
        order = [s.rule for s in made.summaries if (s.group, s.metric) == (name, "nll")]
        assert [r["label"] for r in group["rules"]] == order
        assert [r["origin"] for r in group["rules"]] == [RULES[rule] for rule in order]
        for panel, metric in zip(group["panels"], METRICS, strict=True):
            for row, rule in zip(panel["rows"], order, strict=True):
                (s,) = [
                    s for s in made.summaries if (s.rule, s.group, s.metric) == (rule, name, metric)
                ]
                assert (row["mean"], row["interval"]) == (s.mean.value, s.mean.interval)
                key = (rule, name, metric)
                losses = [r.regret for r in made.rows if (r.rule, r.group, r.metric) == key]
                assert row["points"] == losses
                assert len(row["offsets"]) == len(losses)
                assert max(map(abs, row["offsets"])) <= 1


def test_a_wide_range_is_drawn_logarithmically():
    assert all(p["threshold"] is None for g in prepare_regret(report()) for p in g["panels"])
    heavy = prepare_regret(report(heavy=True))
    thresholds = [p["threshold"] for g in heavy for p in g["panels"]]
    assert all(t in (0.1, 1.0, 10.0) for t in thresholds)
    axes = plot_regret(heavy).axes[0]
    assert axes.get_xscale() == "symlog"
    assert f"logarithmic beyond {thresholds[0]:g}" in axes.get_xlabel()
    flat = report(tasks=3)
    same = RegretReport(flat.summaries, tuple(_without_loss(r) for r in flat.rows), flat.tasks)
    assert prepare_regret(same)[0]["panels"][0]["threshold"] is None
    png_bytes(plot_regret(prepare_regret(same)), dpi=40)


def _without_loss(row):
    return TaskRegret(**{**vars(row), "regret": 0.0})


@pytest.mark.parametrize("heavy", [False, True])
@pytest.mark.parametrize(("groups", "metrics"), [
    (("none", "layer", "batch"), METRICS), (("any",), ("accuracy",)),
])  # fmt: skip
def test_regret_is_drawn(groups, metrics, heavy):
    content = prepare_regret(report(groups, metrics, heavy=heavy))
    figure = plot_regret(content)
    assert len(figure.axes) == len(groups) * len(metrics)
    first = figure.axes[0]
    assert [t.get_text() for t in first.get_yticklabels()] == [
        r["label"] for r in content[0]["rules"]
    ]
    drawn = first.collections[0].get_offsets()
    np.testing.assert_allclose(drawn[:, 0], content[0]["panels"][0]["rows"][0]["points"])
    assert first.get_ylim()[0] > first.get_ylim()[1]  # the best rule on top
    assert overlaps(figure) == ([], [])


def test_nothing_judged_is_refused():
    with pytest.raises(InvalidInput):
        prepare_regret(RegretReport((), (), ()))


# ------------------------------------------------------------------ correlations
def table(count=6):
    rows = tuple(
        Correlation(
            f"statistic_{i}", 100, 20, Estimate(0.9 - 0.1 * i, (0.7 - 0.1 * i, 0.95 - 0.1 * i)),
            Estimate(0.5 - 0.05 * i, (0.3, 0.6)), None, 0.0001, (0.0004, 0.012, 0.2)[i % 3],
        )
        for i in range(count)
    )  # fmt: skip
    return CorrelationTable(rows, "log best T", "nll", 100, 20, 0, 0)


def test_correlations_are_drawn():
    content = prepare_correlations(table())
    assert content["title"] == "Correlation with the best T (NLL)"
    assert [r["text"] for r in content["rows"][:3]] == ["p < 0.001", "p = 0.012", "p = 0.20"]
    assert [r["shown"] for r in content["rows"][:3]] == [True, True, False]
    figure = plot_correlations(content)
    (axes,) = figure.axes
    assert [t.get_text() for t in axes.get_yticklabels()] == [f"statistic_{i}" for i in range(6)]
    np.testing.assert_allclose(axes.lines[1].get_xdata(), [0.9])
    assert axes.lines[1].get_markerfacecolor() != "white"
    assert axes.lines[5].get_markerfacecolor() == "white"  # not shown to be there
    assert overlaps(figure) == ([], [])


def test_only_the_strongest_statistics_are_drawn():
    content = prepare_correlations(table(9), most=4)
    assert len(content["rows"]) == 4
    assert content["subtitle"].endswith("5 weaker statistics are not shown")


# ------------------------------------------------------------------ dimension
def dimension(norms=("none", "batch")):
    series = tuple(
        DimensionSeries(f"set{d}", norm, f"set{d}", (16, 64, 256), (0.5 * (d + 1), 1.0, 4.0),
                        ("lower", "", "upper"), 0.25, 0.4)
        for norm in norms for d in range(3)
    )  # fmt: skip
    found = tuple(
        NormDimension(norm, Estimate(0.4, (0.3, 0.5)), 0.3, Estimate(0.25, (0.2, 0.3)),
                      Estimate(0.1), None, 3, 3, 3, 6)
        for norm in norms
    )  # fmt: skip
    return DimensionReport(found, series, {}, {}, "nll")


@pytest.mark.parametrize("norms", [("batch",), ("none", "layer", "batch")])
def test_dimension_is_drawn(norms):
    content = prepare_dimension(dimension(norms))
    panel = content["panels"][0]
    assert panel["lines"][0] == "T grows like M^0.4 [0.3, 0.5]"
    assert "6 best T at an edge" in panel["lines"][-1]
    np.testing.assert_allclose(panel["fit"][0], [4, 16])
    np.testing.assert_allclose(panel["fit"][1], [0.3 * 16**0.4, 0.3 * 256**0.4])
    np.testing.assert_allclose(panel["root"][1], [1.0, 4.0])
    first = panel["series"][0]
    assert (first["inside"], first["below"], first["above"]) == ([1], [0], [2])
    figure = plot_dimension(content)
    np.testing.assert_allclose(figure.axes[0].lines[0].get_xdata(), [4, 8, 16])
    assert figure.axes[0].get_yscale() == "log"
    assert overlaps(figure) == ([], [])


def test_one_dimension_has_no_line():
    norm = NormDimension("batch", None, None, Estimate(0.25), None, None, 1, 1, 1, 0)
    series = DimensionSeries("a", "batch", "a", (64,), (2.0,), ("",), 0.25, None)
    content = prepare_dimension(DimensionReport((norm,), (series,), {}, {}, "accuracy"))
    assert content["panels"][0]["fit"] is None
    assert content["panels"][0]["lines"][-1] == "1 series, 1 data set"
    png_bytes(plot_dimension(content), dpi=40)


def test_plots_compute_nothing():
    text = Path(temperance.study.plots.__file__).read_text(encoding="utf-8")
    assert "numpy" not in text
    imports = re.findall(r"^from (temperance\S+)", text, re.MULTILINE)
    assert imports == ["temperance.evaluation.plot_style", "temperance.study.regret_records"]
