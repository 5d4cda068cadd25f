"""Correlations with the best T, and its growth with the dimension, on planted relations."""

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import pearsonr, spearmanr

from temperance.errors import InvalidInput, NotFound
from temperance.records import Task, dumps, loads
from temperance.study.cluster_correlation import (
    flip_p_values,
    pearson,
    pearson_draws,
    spearman,
    spearman_draws,
)
from temperance.study.correlation import CorrelationTable, best_pairs, correlate
from temperance.study.dimension import DimensionReport, dimension_exponent
from temperance.study.resample import resample_data_sets
from temperance.study.runs import Curve
from temperance.study.trial import Trial

GRID = tuple(2.0 ** (k / 2) for k in range(-8, 13))


def make_curve(dataset, peak, *, dim=64, classes=10, statistics=None, n=1000, **setting):
    """A curve whose NLL is a parabola in log T: its best T is known exactly."""
    full = Trial(dataset=dataset, **{"norm": "batch", "features": f"pca:{dim}", **setting}).setting
    bowl = 0.5 + 0.1 * np.log(np.array(GRID)[:, None] / peak) ** 2
    metrics = {"val_nll": bowl, "test_nll": 2 * bowl, "val_accuracy": 1 - bowl}
    task = Task(dim, classes, n_samples=n, statistics=statistics or {})
    outcomes = np.full((len(GRID), 1), "done", dtype="<U8")
    return Curve(dataset, full, task, np.array(GRID), (0,), metrics, outcomes)


def planted(n=10, per=4, seed=0):
    """``good`` goes with T, ``bad`` does not, ``same`` is constant."""
    rng = np.random.default_rng(seed)
    curves = []
    for d in range(n):
        level = rng.normal()
        for e in range(per):
            log_t = 0.5 * level + 0.3 * rng.normal()
            statistics = {
                "good": math.exp(log_t + 0.2 * rng.normal()),
                "bad": rng.normal(),
                "same": 2.0,
            }
            curves.append(
                make_curve(f"set{d}", math.exp(log_t), dim=2 ** (4 + e), statistics=statistics)
            )
    return curves


def row(table, name):
    (found,) = [r for r in table.rows if r.statistic == name]
    return found


# ------------------------------------------------------------------ the pieces
def test_best_temperatures_are_those_that_were_planted():
    curves = [make_curve("a", 3.3), make_curve("b", 1e-9), make_curve("c", 1e9)]
    pairs = best_pairs(curves, "nll")
    assert np.exp(pairs.log_t[0]) == pytest.approx(3.3)
    assert pairs.edge.tolist() == [0, -1, 1]
    with pytest.raises(NotFound):
        best_pairs(curves, "f1")
    with pytest.raises(NotFound):
        best_pairs(curves, "nll_posthoc")  # the runs lack it
    lost = make_curve("d", 1.0)
    lost.outcomes[:] = "diverged"
    assert len(best_pairs([*curves, lost], "nll").left_out) == 1
    for none in ([], [lost]):
        with pytest.raises(InvalidInput):
            best_pairs(none, "nll")


def test_correlations_are_those_of_scipy_in_every_draw():
    rng = np.random.default_rng(0)
    names = [f"s{i}" for i in rng.integers(0, 5, 30)]
    x, y = rng.integers(0, 6, 30).astype(float), rng.normal(size=30)  # x with ties
    assert pearson(x, y) == pytest.approx(pearsonr(x, y).statistic)
    assert spearman(x, y) == pytest.approx(spearmanr(x, y).statistic)
    draw = resample_data_sets(names, replicates=25, seed=1)
    p, s = pearson_draws(x, y, draw), spearman_draws(x, y, draw)
    for place, weights in enumerate(draw.weights):
        times = weights[draw.place].astype(int)
        a, b = np.repeat(x, times), np.repeat(y, times)
        assert p[place] == pytest.approx(pearsonr(a, b).statistic)
        assert s[place] == pytest.approx(spearmanr(a, b).statistic)


def test_no_correlation_without_variation():
    draw = resample_data_sets(["a", "a", "b", "b"], replicates=30, seed=0)
    x, y = np.array([0.1, 0.1, 0.7, 0.7]), np.array([1.0, 2.0, 3.0, 4.0])
    assert math.isnan(pearson(np.full(4, 0.1), y))
    found = pearson_draws(x, y, draw)
    once = (draw.weights == 2).any(axis=1)  # one data set drawn twice: x does not vary
    assert np.isnan(found[once]).all()
    assert np.isfinite(found[~once]).all()


def test_p_values_by_naive_loops():
    rng = np.random.default_rng(0)
    names = [f"s{i}" for i in rng.integers(0, 8, 40)]
    y = rng.normal(size=40)
    columns = {"a": y + rng.normal(size=40), "b": rng.normal(size=40)}
    columns["b"][3] = np.nan
    found = flip_p_values(columns, y, names, flips=200, seed=5)
    order = sorted(set(names))
    signs = np.random.default_rng(5).choice([-1.0, 1.0], size=(200, len(order)))

    def statistic(x, flips):
        there = np.isfinite(x)
        rx, ry = (np.argsort(np.argsort(v[there])) - (there.sum() - 1) / 2 for v in (x, y))
        share = [
            sum(a * b for a, b, n in zip(rx, ry, np.array(names)[there], strict=True) if n == s)
            for s in order
        ]
        return abs(sum(f * u for f, u in zip(flips, share, strict=True))) / math.sqrt(
            sum(u * u for u in share)
        )

    seen = {name: statistic(x, [1.0] * len(order)) for name, x in columns.items()}
    drawn = [{name: statistic(x, f) for name, x in columns.items()} for f in signs]
    for name in columns:
        alone = sum(d[name] >= seen[name] - 1e-12 for d in drawn)
        most = sum(max(d.values()) >= seen[name] - 1e-12 for d in drawn)
        assert found[name] == pytest.approx(((1 + alone) / 201, (1 + most) / 201))


# ------------------------------------------------------------------ the table
def test_planted_relations_are_found():
    table = correlate(planted(14), bootstrap=500)
    good, bad = row(table, "good"), row(table, "bad")
    assert table.rows[0].statistic == "good"
    assert good.spearman.interval[0] > 0.5
    assert good.p_value <= good.p_adjusted < 0.05
    assert bad.p_adjusted > 0.2
    assert bad.pearson_log is None  # it is negative in places
    assert good.pearson_log.value > good.pearson.value > 0.5
    assert (good.pairs, good.datasets, table.pairs, table.datasets) == (56, 14, 56, 14)
    assert table.left_out["same"] == "it is 2 everywhere"
    assert table.left_out["C"] == "it is 10 everywhere"
    values = [(c.task.statistics["good"].value, math.log(b)) for c, b in _peaks(planted(14))]
    assert good.spearman.value == pytest.approx(spearmanr(*zip(*values, strict=True)).statistic)
    assert good.pearson.value == pytest.approx(pearsonr(*zip(*values, strict=True)).statistic)


def _peaks(curves):
    return zip(curves, np.exp(best_pairs(curves, "nll").log_t), strict=True)


def test_log_alpha_takes_the_dimension_off():
    curves = [
        make_curve(f"set{d}", 0.2 * m**0.5 * math.exp(0.1 * d), dim=m, statistics={"d": d})
        for d in range(6)
        for m in (16, 64, 256)
    ]
    assert row(correlate(curves, bootstrap=50), "M").spearman.value > 0.8
    table = correlate(curves, "log alpha", bootstrap=50)
    assert row(table, "d").spearman.value == pytest.approx(1)
    assert abs(row(table, "M").pearson.value) < 1e-6


def test_censored_temperatures_are_counted_and_kept_or_left_out():
    curves = [*planted(6), make_curve("set0", 1e9, statistics={"good": 9.0, "bad": 0.0})]
    kept = correlate(curves, bootstrap=20)
    assert (kept.at_upper_edge, kept.at_lower_edge) == (1, 0)
    assert row(kept, "good").pairs == 25
    dropped = correlate(curves, censored="drop", bootstrap=20)
    assert row(dropped, "good").pairs == 24
    assert row(dropped, "good").pearson == row(kept, "good").pearson  # Pearson never takes it
    assert row(dropped, "good").spearman.value != row(kept, "good").spearman.value
    assert any("1 of 25 pairs is an edge" in note for note in kept.notes)


def test_a_statistic_that_some_pairs_lack():
    curves = planted(6)
    poor = [make_curve("other", 1.0, statistics={"bad": 0.5}), *curves]
    table = correlate(poor, bootstrap=20)
    assert (row(table, "good").pairs, row(table, "bad").pairs) == (24, 25)
    assert row(table, "good").datasets == 6


def test_mixed_settings_and_few_data_sets_are_said():
    table = correlate([*planted(3), make_curve("set0", 2.0, lr=0.5)], bootstrap=20)
    assert any("lr vary" in note for note in table.notes)
    assert any("3 data sets" in note for note in table.notes)
    assert not any("mixed" in note for note in correlate(planted(3), bootstrap=20).notes)


def test_draws_are_seeded_and_the_record_goes_to_json_and_back(rng_guard):
    with rng_guard():
        first, again = (correlate(planted(5), bootstrap=50, seed=1) for _ in range(2))
    assert dumps(first) == dumps(again)
    assert dumps(loads(dumps(first), CorrelationTable)) == dumps(first)
    other = correlate(planted(5), bootstrap=50, seed=2)
    assert other.rows[0].spearman.value == first.rows[0].spearman.value
    assert other.rows[0].spearman.interval != first.rows[0].spearman.interval


def test_bad_input_of_correlate():
    for bad in ({"target": "T"}, {"censored": "maybe"}, {"bootstrap": 0}, {"bootstrap": -1},
                {"seed": -1}):  # fmt: skip
        with pytest.raises(InvalidInput):
            correlate(planted(4), **bad)
    with pytest.raises(InvalidInput) as caught:
        correlate(planted(1, per=3))
    assert "3 pairs" in caught.value.found


def test_curves_that_are_equal_everywhere_have_no_best_t():
    """Else the middle of a grid that follows sqrt(M) would make T follow it."""
    flat = []
    for d, dim in enumerate((16, 64, 256, 1024, 4096)):
        made = make_curve(f"set{d}", 1.0, dim=dim)
        made.metrics["val_accuracy"][:] = 1.0
        flat.append(replace(made, temperatures=made.temperatures * dim**0.5))
    with pytest.raises(InvalidInput) as caught:
        correlate(flat, metric="accuracy")
    assert caught.value.found == "5 that have none"
    with pytest.raises(InvalidInput):
        dimension_exponent(flat, "accuracy")
    pairs = best_pairs([flat[0], make_curve("a", 2.0)], "accuracy")
    assert pairs.left_out == (flat[0].label,)


# ------------------------------------------------------------------ the dimension
def over_dimensions(power=0.5, spread=0.4, n=8, norms=("batch",), dims=(16, 64, 256, 1024)):
    rng = np.random.default_rng(0)
    levels = {norm: rng.normal(size=n) for norm in norms}
    return [
        make_curve(f"set{d}", 0.3 * math.exp(spread * levels[norm][d]) * m**power, dim=m, norm=norm)
        for norm in norms
        for d in range(n)
        for m in dims
    ]


@pytest.mark.parametrize("power", [0.5, 0.2])
def test_the_exponent_is_the_planted_one(power):
    report = dimension_exponent(over_dimensions(power), bootstrap=100)
    (norm,) = report.norms
    assert norm.exponent.value == pytest.approx(power, abs=1e-6)
    assert (norm.series, norm.datasets, norm.points, norm.at_edge) == (8, 8, 32, 0)
    assert all(s.exponent == pytest.approx(power, abs=1e-6) for s in report.series)
    assert report.series[0].feature_dims == (16, 64, 256, 1024)
    assert report.series[0].label == "set0/pca"


def test_alpha_and_its_spread_by_norm():
    curves = over_dimensions(norms=("none", "batch"))
    report = dimension_exponent(curves, bootstrap=300)
    assert [n.norm for n in report.norms] == ["none", "batch"]
    for norm in report.norms:
        alphas = []
        for d in range(8):
            peaks = [
                (c.task.feature_dim, t)
                for c, t in _peaks(curves)
                if c.dataset == f"set{d}" and c.setting["norm"] == norm.norm
            ]
            alphas.append(sum(t * m**0.5 for m, t in peaks) / sum(m for m, _ in peaks))
        assert norm.alpha.value == pytest.approx(np.mean(alphas))
        assert norm.alpha_std.value == pytest.approx(np.std(alphas, ddof=1))
        assert norm.alpha_log_std.value == pytest.approx(np.std(np.log(alphas), ddof=1))
        low, high = norm.alpha_std.interval
        assert 0 < low <= norm.alpha_std.value <= high
    none, batch = report.norms
    ratio = report.spread_ratio["batch"]
    assert ratio.value == pytest.approx(batch.alpha_std.value / none.alpha_std.value)
    assert ratio.interval is not None
    assert set(report.log_spread_ratio) == {"batch"}


def test_spread_in_every_draw_is_that_of_the_drawn_series():
    from temperance.study.dimension import _spreads

    values = np.array([1.0, 2.0, 4.0, 8.0, 5.0])
    mine = np.array([1.0, 1.0, 0.0, 1.0, 1.0])
    draw = resample_data_sets(["a", "b", "b", "c", "d"], replicates=30, seed=0)
    for weights, found in zip(draw.weights, _spreads(values, mine, draw), strict=True):
        drawn = np.repeat(values, (weights[draw.place] * mine).astype(int))
        if len(drawn) > 1:
            assert found == pytest.approx(np.std(drawn, ddof=1))


def test_differences_between_data_sets_do_not_make_an_exponent():
    curves = [make_curve(f"set{d}", 4.0 ** (d + 1) / 4, dim=4 ** (d + 2)) for d in range(4)]
    report = dimension_exponent(curves, bootstrap=20)  # T rises with M, but only between them
    assert report.norms[0].exponent is None
    assert report.norms[0].scale is None
    assert report.norms[0].alpha_std is not None


def test_nets_of_several_widths_are_a_series():
    curves = [
        make_curve("a", 0.2 * m**0.5, dim=m, model="mlp", features="input", feature_dim=m)
        for m in (32, 128, 512)
    ]
    (series,) = dimension_exponent(curves, bootstrap=20).series
    assert series.feature_dims == (32, 128, 512)
    assert series.label == "a"
    more = [*curves, make_curve("a", 3.0, dim=64, model="mlp", features="input", lr=0.5)]
    assert len(dimension_exponent(more, bootstrap=20).series) == 2


def test_only_a_size_that_is_m_makes_a_series():
    stages = [
        make_curve("a", 2.0, dim=m, features=f"efficientnet-lite0:{stage}")
        for stage, m in ((1, 24), (4, 112), (7, 1280))
    ]
    found = dimension_exponent(stages, bootstrap=20)
    assert [s.feature_dims for s in found.series] == [(24,), (112,), (1280,)]
    assert found.norms[0].exponent is None
    random = [
        make_curve("a", 2.0, dim=m, features=f"pca:{first}|rff:{m}")
        for first in (16, 64)
        for m in (64, 128)
    ]
    assert [s.label for s in dimension_exponent(random, bootstrap=20).series] == [
        "a/pca:16|rff",
        "a/pca:64|rff",
    ]


def test_the_size_of_what_a_net_sees_is_not_its_m():
    curves = [
        make_curve("a", 0.2 * m**0.5, dim=m, model="mlp", features="pca:128", feature_dim=m)
        for m in (32, 128, 512)
    ]
    (series,) = dimension_exponent(curves, bootstrap=20).series
    assert series.feature_dims == (32, 128, 512)
    assert series.label == "a/pca:128"


def test_spreads_of_other_series_are_not_held_against_each_other_in_silence():
    curves = over_dimensions(n=6, norms=("none", "batch"))
    assert not any("other series" in note for note in dimension_exponent(curves).notes)
    fewer = [c for c in curves if (c.dataset, c.setting["norm"]) != ("set2", "batch")]
    (note,) = [n for n in dimension_exponent(fewer).notes if "other series" in n]
    assert "norm batch" in note
    assert "(0 only there, 1 only without)" in note


def test_censored_best_t_are_left_out_of_the_fit_and_counted():
    curves = over_dimensions(n=3)
    curves[3] = make_curve("set0", 1e6, dim=1024)  # beyond the grid
    (dropped,) = dimension_exponent(curves, bootstrap=20).norms
    assert dropped.exponent.value == pytest.approx(0.5, abs=1e-6)
    assert (dropped.points, dropped.at_edge) == (11, 1)
    kept = dimension_exponent(curves, censored="keep", bootstrap=20)
    assert kept.norms[0].exponent.value > 0.55
    assert kept.series[0].edges == ("", "", "", "upper")
    for bad in ({"censored": "rank"}, {"metric": "f1"}):
        with pytest.raises((InvalidInput, NotFound)):
            dimension_exponent(curves, **bad)
    with pytest.raises(InvalidInput) as caught:
        dimension_exponent([make_curve("a", 1e9)])
    assert "at an edge" in caught.value.found


def test_the_dimension_report_is_seeded_and_goes_to_json():
    first, again = (dimension_exponent(over_dimensions(n=4), bootstrap=30) for _ in range(2))
    assert dumps(first) == dumps(again)
    assert dumps(loads(dumps(first), DimensionReport)) == dumps(first)
    assert any("4 data sets" in note for note in first.notes)


def test_a_statistic_that_is_a_size_again_is_counted_once():
    curves = [
        make_curve(
            f"set{k}", 1 + k, dim=2 ** (k + 2), classes=2 + k, statistics={"n_classes": 2 + k}
        )
        for k in range(6)
    ]
    table = correlate(curves, bootstrap=20)
    assert table.left_out["n_classes"] == "it is C"
    assert "n_classes" not in {r.statistic for r in table.rows}
