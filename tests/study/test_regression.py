"""Statistics rules: planted terms are found, chance finds nothing, the error is honest."""

import math
import warnings
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from temperance import Task, suggest
from temperance.errors import InvalidInput, NotFound, TemperanceWarning
from temperance.records import dumps
from temperance.rules import StatisticsRule, load_rule, save_rule
from temperance.study.moments import forward, moments, ridge, solve, squared_error
from temperance.study.regression import RegressionOptions, fit_statistics
from temperance.study.regression_terms import candidate_terms
from temperance.study.runs import Curve
from temperance.study.trial import Trial

GRID = 2.0 ** np.arange(-3, 9)
PLANTED = StatisticsRule(0.4, (("log(M)", 0.35), ("log(C)", -0.3), ("s3", 0.5)))
OPTIONS = RegressionOptions(bootstrap=50)


def study(rule, *, n=16, per=3, spread=0.1, seed=0, statistics=8, grid=GRID, peak=0.3):
    """Curves that are parabolas in log T, best at the rule's T times a random factor."""
    rng = np.random.default_rng(seed)
    curves = []
    for d in range(n):
        classes = round(math.exp(rng.uniform(math.log(2), math.log(100))))
        for _ in range(per):
            m = int(2 ** rng.uniform(4, 11))
            found = {f"s{i}": float(rng.normal()) for i in range(statistics)}
            found |= {f"p{i}": float(math.exp(rng.normal())) for i in range(statistics // 2)}
            task = Task(m, classes, n_samples=int(rng.integers(100, 9999)), statistics=found)
            u = np.log(grid) - math.log(rule(task)) - rng.normal(0, spread)
            bowl = np.tile(0.05 * u[:, None] ** 2, (1, 2))
            metrics = {"val_nll": peak + bowl, "val_accuracy": 0.9 - 0.2 * bowl}
            setting = Trial(f"set{d:02}", norm="layer", features=f"pca:{m}").setting
            outcomes = np.full(bowl.shape, "done", dtype="<U8")
            curves.append(Curve(f"set{d:02}", setting, task, grid, (0, 1), metrics, outcomes))
    return curves


def quiet(*arguments, **named):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TemperanceWarning)
        return fit_statistics(*arguments, **named)


# ------------------------------------------------------------------ least squares by moments
def naive(x, y, names, columns):
    """Weighted least squares, each data set counting once."""
    counts = {name: list(names).count(name) for name in names}
    root = np.sqrt([1 / counts[name] for name in names])[:, None]
    design = np.column_stack([np.ones(len(y)), x[:, list(columns)]])
    return np.linalg.lstsq(design * root, y * root[:, 0], rcond=None)[0]


def naive_left_out(x, y, names, columns):
    names, errors = np.array(names), []
    for name in sorted(set(names)):
        inside = names != name
        weights = naive(x[inside], y[inside], names[inside], columns)
        design = np.column_stack([np.ones(len(y)), x[:, list(columns)]])
        errors.append(np.mean((y - design @ weights)[~inside] ** 2))
    return errors


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 3))
def test_fits_and_errors_are_those_of_the_loops(seed, k):
    rng = np.random.default_rng(seed)
    names = [f"d{i}" for i in rng.permutation([0, 0, 0, 1, 1, 2, 2, 3, 3, 3, 3, 4, 4, 5, 5, 6])]
    x, y = rng.normal(size=(16, 4)), rng.normal(size=16)
    columns = tuple(rng.choice(4, size=k, replace=False).tolist())
    datasets, parts = moments(x, y, names)
    assert datasets == tuple(f"d{i}" for i in range(7))
    model = solve(parts.sum(axis=0), columns)
    np.testing.assert_allclose(model.weights, naive(x, y, names, columns), rtol=1e-5, atol=1e-6)
    found = [squared_error(part, solve(parts.sum(axis=0) - part, columns)) for part in parts]
    expected = naive_left_out(x, y, names, columns)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_the_first_column_chosen_is_that_of_the_loop():
    rng = np.random.default_rng(1)
    names = [f"d{i % 7}" for i in range(28)]
    x = rng.normal(size=(28, 6))
    y = 1.5 * x[:, 4] + 0.2 * rng.normal(size=28)
    _, parts = moments(x, y, names)
    errors = [np.mean(naive_left_out(x, y, names, (c,))) for c in range(6)]
    assert forward(parts, most=1).chosen == (int(np.argmin(errors)),) == (4,)
    assert forward(parts, most=5).chosen == (4,)


def test_ridge_is_the_penalized_normal_equations():
    rng = np.random.default_rng(2)
    x, names = rng.normal(size=(40, 3)), [f"d{i % 8}" for i in range(40)]
    y = x @ [1.0, -1.0, 0.0] + rng.normal(size=40)
    _, parts = moments(x, y, names)
    found = solve(parts.sum(axis=0), range(3), 2.0)
    centred, target = x - x.mean(axis=0), y - y.mean()
    gram = centred.T @ centred
    expected = np.linalg.solve(gram + 2.0 * 40 * np.eye(3), centred.T @ target)
    np.testing.assert_allclose(found.weights[1:], expected, rtol=1e-6)
    assert found.weights[0] == pytest.approx(y.mean() - x.mean(axis=0) @ expected)
    assert ridge(parts).penalty > 0


# ------------------------------------------------------------------ planted terms
def test_planted_terms_come_back():
    fit = quiet(study(PLANTED), options=OPTIONS)
    found = {name: e.value for name, e in fit.coefficients.items()}
    assert set(found) == {"offset", "log(M)", "log(C)", "s3"}
    expected = {"offset": 0.4, "log(M)": 0.35, "log(C)": -0.3, "s3": 0.5}
    assert found == pytest.approx(expected, abs=0.08)
    for name, estimate in fit.coefficients.items():
        assert estimate.interval[0] < found[name] < estimate.interval[1]
    errors = {name: e.value for name, e in fit.errors.items()}
    assert errors["fitted"] <= errors["left out"] < 0.15
    assert errors["left out"] < 0.5 * min(errors["constant"], errors["sqrt(M)"])
    assert fit.chosen["s3"] == 1.0
    regret = {name: e.value for name, e in fit.regret.items()}
    assert regret["left out"] < 0.1 * min(regret["constant"], regret["T = 1"])
    assert fit.rule.norm == "layer"


def test_chance_finds_nothing_and_is_not_hidden():
    fit = quiet(study(StatisticsRule(1.0), n=10, spread=0.5), options=OPTIONS)
    assert fit.errors["fitted"].value < fit.errors["left out"].value
    assert fit.errors["left out"].value > 0.9 * fit.errors["constant"].value
    assert any("no better than one constant" in note for note in fit.notes)


def test_ridge_finds_them_too():
    fit = quiet(study(PLANTED), options=replace(OPTIONS, method="ridge"))
    assert fit.penalty > 0
    assert fit.counts["candidates"] == len(fit.coefficients) - 1
    assert fit.errors["left out"].value < 0.6 * fit.errors["constant"].value
    assert fit.chosen == {}


def test_the_baselines_are_the_loops():
    curves = study(PLANTED, n=6)
    fit = quiet(curves, options=OPTIONS)
    best = {}
    for curve in curves:  # parabolas: the best T is where the rule and the factor put it
        log_t, y = np.log(GRID), curve.metrics["val_nll"][:, 0]
        a, b, _ = np.polyfit(log_t, y, 2)
        best.setdefault(curve.dataset, []).append((-b / (2 * a), math.log(curve.task.feature_dim)))
    constant, root = [], []
    for name, mine in best.items():
        others = [v for n, v in best.items() if n != name]
        level = np.mean([np.mean([y for y, _ in v]) for v in others])
        shift = np.mean([np.mean([y - 0.5 * m for y, m in v]) for v in others])
        constant.append(np.mean([(y - level) ** 2 for y, _ in mine]))
        root.append(np.mean([(y - 0.5 * m - shift) ** 2 for y, m in mine]))
    one = [np.mean([y**2 for y, _ in mine]) for mine in best.values()]
    for title, values in (("constant", constant), ("sqrt(M)", root), ("T = 1", one)):
        assert fit.errors[title].value == pytest.approx(math.sqrt(np.mean(values)), rel=1e-6)


def test_a_left_out_data_set_does_not_choose_for_itself():
    curves = study(PLANTED, n=6, per=2)
    fits = []
    for factor in (1.0, 8.0):  # the same curves, one data set's best T moved
        moved = [
            replace(c, temperatures=c.temperatures * factor) if c.dataset == "set05" else c
            for c in curves
        ]
        kept = [c for c in moved if c.dataset != "set05"]
        fits.append(quiet(kept, options=OPTIONS).rule.rule)
        held = quiet(moved, hold_out=["set05"], options=OPTIONS)
        assert held.rule.rule == fits[-1]
        assert set(held.held_out) == {"set05"}
        assert held.rule.fitted_on == ("set00", "set01", "set02", "set03", "set04")
    assert fits[0] == fits[1]


# ------------------------------------------------------------------ terms
def test_candidates():
    curves = [
        replace(
            c, task=replace(c.task, statistics={**c.task.statistics, "width": c.task.feature_dim})
        )
        for c in study(StatisticsRule(1.0), n=4, statistics=2)
    ]
    terms = candidate_terms(curves)  # without width, which is M
    assert terms.names == ("log(M)", "log(C)", "log(n)", "log(p0)", "p0", "s0", "s1")
    np.testing.assert_allclose(terms.standard.mean(axis=0), 0, atol=1e-9)
    np.testing.assert_allclose(terms.standard.std(axis=0), 1)
    assert candidate_terms(curves, ["M", "p0"]).names == ("log(M)", "log(p0)", "p0")
    with pytest.raises(NotFound) as caught:
        candidate_terms(curves, ["M", "nothing"])
    assert "p0" in caught.value.candidates


def test_statistics_that_some_task_lacks_are_named_and_not_tried():
    curves = study(PLANTED, n=8)
    task = curves[0].task
    lacking = {k: v for k, v in task.statistics.items() if k != "s3"} | {"s1": math.nan}
    curves[0] = replace(curves[0], task=replace(task, statistics=lacking, n_samples=None))
    fit = quiet(curves, options=OPTIONS)
    assert not {"s1", "s3", "n"} & set(fit.rule.needs)
    assert "not measured on every task, so not tried: n, s1, s3" in fit.notes


def test_constant_columns_are_no_terms():
    curves = [
        replace(c, task=Task(64, 10, 500, statistics={"s": 1.0})) for c in study(PLANTED, n=6)
    ]
    assert candidate_terms(curves).names == ()
    fit = quiet(curves, options=OPTIONS)
    assert fit.rule.rule.coefficients == ()
    assert fit.errors["left out"].value == pytest.approx(fit.errors["constant"].value)


# ------------------------------------------------------------------ censored curves
def test_censored_curves_are_left_out_and_counted():
    curves = study(PLANTED, grid=2.0 ** np.arange(0, 5))
    dropped = quiet(curves, options=OPTIONS)
    edge = quiet(curves, options=replace(OPTIONS, censored="edge"))
    n = dropped.counts["censored"]
    assert 0 < n < len(curves)
    assert any(f"on {n} of 48 tasks" in note and "left out" in note for note in dropped.notes)
    assert any("taken at the edge" in note for note in edge.notes)
    slope = dict(dropped.rule.rule.coefficients)["log(M)"]
    assert abs(slope - 0.35) < 0.1
    assert edge.errors["T = 1"].value != dropped.errors["T = 1"].value
    assert edge.counts["tasks"] == dropped.counts["tasks"] == 48
    with pytest.raises(InvalidInput) as caught:
        quiet(study(StatisticsRule(9.0), n=6), options=OPTIONS)
    assert caught.value.found == "0 of 6"


def test_curves_that_know_no_best_t_are_left_out_and_counted():
    curves = study(PLANTED, n=8)
    flat = np.full_like(curves[0].metrics["val_nll"], 0.5)
    lost = np.full(flat.shape, "diverged")
    odd = [
        replace(curves[0], metrics={**curves[0].metrics, "val_nll": flat}),
        replace(curves[1], metrics={"val_nll": flat * np.nan}, outcomes=lost),
    ]
    for censored in ("drop", "edge"):
        options = replace(OPTIONS, censored=censored)
        fit = quiet([*odd, *curves[2:]], options=options)
        assert any(note.startswith("on 2 of 24 tasks there is no best T") for note in fit.notes)
        same = quiet(curves[2:], options=options)
        assert fit.errors["T = 1"].value == pytest.approx(same.errors["T = 1"].value)


def test_data_sets_kept_out_that_cannot_be_judged_are_named_and_remembered():
    curves = study(PLANTED, n=8)
    bare = replace(curves[0], task=replace(curves[0].task, statistics={}, n_samples=None))
    fit = quiet([bare, *curves[1:]], hold_out=["set00"], options=OPTIONS)
    (note,) = [n for n in fit.notes if n.startswith("of the data sets kept out")]
    assert bare.label in note
    assert len(curves[1].label) > 0
    assert fit.rule.fit["held_out"] == ["set00"]
    assert set(fit.held_out) == {"set00"}  # its other two curves
    alone = [c for c in (bare, *curves[1:]) if c is bare or c.dataset != "set00"]
    assert quiet(alone, hold_out=["set00"], options=OPTIONS).held_out == {}


def test_ridge_does_not_run_away_on_a_column_that_hardly_varies_elsewhere():
    """What tells the last data set apart from all others says nothing about T there."""
    rng = np.random.default_rng(0)
    x = np.column_stack([[1e-5, -1e-5, 1e-5, -1e-5, 1e-5, 2.4], rng.normal(size=6)])
    y = np.array([0.3, -0.3, 0.3, -0.3, 0.3, 0.0]) + 0.01 * rng.normal(size=6)
    _, parts = moments((x - x.mean(axis=0)) / x.std(axis=0), y, [f"d{i}" for i in range(6)])
    assert squared_error(parts[5], ridge(parts[:5])) < 0.1


def test_mixed_trainings_are_said():
    curves = study(PLANTED, n=6)
    odd = replace(curves[0], setting={**curves[0].setting, "optimizer": "adamw"})
    fit = quiet([odd, *curves[1:]], options=OPTIONS)
    assert "trainings of several settings are fitted together: optimizer" in fit.notes


# ------------------------------------------------------------------ the way to a suggestion
def test_saved_and_suggested(tmp_path, rng_guard):
    curves = study(PLANTED)
    with rng_guard():
        fit, again = (quiet(curves, objective="accuracy", options=OPTIONS) for _ in range(2))
    assert dumps(fit) == dumps(again)
    save_rule(fit.rule, tmp_path / "rule.json")
    rule = load_rule(tmp_path / "rule.json")
    assert rule == fit.rule
    found = suggest(curves[0].task, rule)
    assert found.in_domain
    assert found.temperature == pytest.approx(PLANTED(curves[0].task), rel=0.3)
    assert rule.fit["errors"]["left out"] == fit.errors["left out"].value
    assert dict(rule.domain.statistics).keys() == set(rule.needs)


@pytest.mark.parametrize(
    "bad",
    [
        {"method": "lasso"},
        {"censored": "keep"},
        {"most_terms": 0},
        {"bootstrap": -1},
        {"seed": 0.5},
    ],
)
def test_bad_options(bad):
    with pytest.raises(InvalidInput) as caught:
        RegressionOptions(**bad)
    assert next(iter(bad)) in caught.value.subject


def test_too_few_data_sets():
    with pytest.raises(InvalidInput) as caught:
        fit_statistics(study(PLANTED, n=3))
    assert caught.value.found == "3 of 3"
    with pytest.raises(NotFound):
        fit_statistics(study(PLANTED, n=6), objective="f1")
