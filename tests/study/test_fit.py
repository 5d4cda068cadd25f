"""Fitting rules: planted coefficients come back, and what cannot be known is said."""

import math
import warnings
from dataclasses import dataclass, replace

import numpy as np
import pytest

from temperance import Task, suggest
from temperance.errors import InvalidInput, NotFound, TemperanceWarning
from temperance.records import dumps
from temperance.rules import (
    Constant,
    FittedRule,
    HasegawaSakai,
    HasegawaSakaiCsgCn,
    SqrtDim,
    StatisticsRule,
    load_rule,
    save_rule,
)
from temperance.study.curves import metric_curve
from temperance.study.fit import FitOptions, fit_rule
from temperance.study.fit_check import data_set_weights
from temperance.study.fit_objective import coefficient_names, regret_table, rule_form
from temperance.study.fit_search import Problem, default_bounds, search
from temperance.study.runs import Curve
from temperance.study.trial import Trial

GRID = 2.0 ** np.arange(-1, 7)
PLANTED = HasegawaSakaiCsgCn(alpha=0.5, beta=10.0, gamma=2.0, delta=-2.0)
QUICK = FitOptions(bootstrap=0, leave_one_out=False)


def make_curve(dataset, task, best, *, rng, noise=0.0, grid=GRID):
    """A curve whose metrics are best at a known T, steeper above it than below, two seeds."""
    u = np.log(grid) - math.log(max(best, 1e-3))
    shape = math.exp(rng.normal(0, 0.5)) * np.where(u > 0, 1.0, 0.6) * u**2 / (1 + 0.3 * abs(u))
    metrics = {}
    for name, base, size in (
        ("accuracy", 0.9, -0.03),
        ("nll", 0.5, 0.1),
        ("nll_posthoc", 0.4, 0.05),
    ):
        wobble = noise * abs(size) * rng.normal(size=(len(grid), 2))
        metrics[f"val_{name}"] = base + size * shape[:, None] + wobble
    setting = Trial(dataset, norm="batch", features=f"pca:{task.feature_dim}").setting
    outcomes = np.full((len(grid), 2), "done", dtype="<U8")
    return Curve(dataset, setting, task, grid, (0, 1), metrics, outcomes)


def study(rule=PLANTED, *, n=20, per=4, noise=0.0, grid=GRID, seed=0, feature_dim=None):
    """Tasks of n data sets, each with its own C, per curves of other M and csg."""
    rng = np.random.default_rng(seed)
    curves = []
    for d in range(n):
        classes = round(math.exp(rng.uniform(math.log(2), math.log(100))))
        for _ in range(per):
            csg = float(min(math.exp(rng.normal(-0.5, 1.0)), classes - 1))
            m = feature_dim or int(2 ** rng.uniform(4, 11))
            task = Task(m, classes, n_samples=1000, statistics={"csg": csg})
            made = make_curve(f"set{d}", task, rule(task), rng=rng, noise=noise, grid=grid)
            curves.append(made)
    return curves


def quiet(*arguments, **named):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TemperanceWarning)
        return fit_rule(*arguments, **named)


def loud(*arguments, **named):
    """The fit, and the texts of its warnings."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fit = fit_rule(*arguments, **named)
    assert all(w.category is TemperanceWarning for w in caught)
    return fit, [str(w.message) for w in caught]


def values(fit):
    return np.array([e.value for e in fit.coefficients.values()])


# ------------------------------------------------------------------ planted coefficients
@pytest.mark.parametrize("objective", ["accuracy", "nll", "nll-posthoc"])
def test_planted_coefficients_come_back(objective):
    fit = quiet(study(noise=0.1), objective=objective, options=QUICK)
    np.testing.assert_allclose(values(fit), [0.5, 10.0, 2.0, -2.0], rtol=0.12)
    assert fit.regret["fitted"].value < 0.05 * fit.regret["before"].value
    assert fit.objective == objective.replace("-", "_")
    assert fit.counts == {"tasks": 80, "datasets": 20, "runs": 1280, "censored": 0}
    assert fit.notes == ()


def test_with_many_best_temperatures_beyond_the_grid():
    curves = study(noise=0.1, grid=2.0 ** np.arange(-1, 5), n=25)
    fit, warned = loud(curves, objective="nll", options=QUICK)
    assert any("wider grid" in text for text in warned)
    assert fit.counts["censored"] > 25
    np.testing.assert_allclose(values(fit), [0.5, 10.0, 2.0, -2.0], rtol=0.15)
    assert any("was not tried" in note for note in fit.notes)
    assert warned == list(fit.notes)


def test_with_best_temperatures_at_the_clip():
    clipped = replace(PLANTED, upper=16.0)
    fit = quiet(
        study(clipped, noise=0.1), HasegawaSakaiCsgCn(upper=16.0), objective="nll", options=QUICK
    )
    np.testing.assert_allclose(values(fit), [0.5, 10.0, 2.0, -2.0], rtol=0.12)
    assert fit.rule.rule.upper == 16.0


def test_where_the_formula_is_negative_for_many_tasks():
    low = replace(PLANTED, beta=3.0)
    curves = study(low, noise=0.1)
    assert (
        sum(low.terms(c.task)["offset"] + sum(low.terms(c.task).values()) - 3 <= 0 for c in curves)
        > 5
    )
    fit = quiet(curves, objective="nll", options=QUICK)
    np.testing.assert_allclose(values(fit), [0.5, 3.0, 2.0, -2.0], rtol=0.2)


def test_the_uncorrected_form_the_constant_and_a_start_far_away():
    fit = quiet(study(HasegawaSakai(0.3, 2.0)), "hasegawa-sakai", objective="nll", options=QUICK)
    np.testing.assert_allclose(values(fit), [0.3, 2.0], rtol=0.1)
    fit = quiet(study(Constant(6.0)), Constant(500.0), objective="nll", options=QUICK)
    np.testing.assert_allclose(values(fit), [6.0], rtol=0.05)


@dataclass(frozen=True)
class Power:
    """Not linear in its coefficients."""

    factor: float = 1.0
    power: float = 0.2
    name = "power"
    norm = "batch"
    needs = ()

    def __call__(self, task):
        return self.factor * task.feature_dim**self.power


def test_a_rule_that_is_not_linear_and_not_ours():
    curves = study(Power(0.7, 0.4), n=6, per=3)
    assert rule_form(Power(), [c.task for c in curves]).design is None
    options = replace(QUICK, bounds={"factor": (0.01, 5.0), "power": (0.0, 1.0)})
    fit = quiet(curves, Power(), objective="nll", options=options)
    task = Task(256, 10)
    assert fit.rule(task) == pytest.approx(0.7 * 256**0.4, rel=0.1)
    assert suggest(task, fit.rule).temperature == fit.rule(task)


# ------------------------------------------------------------------ the objective
def test_each_data_set_counts_once():
    names = ["a", "b", "a", "a", "c", "b"]
    weights = data_set_weights(names)
    for name in "abc":
        mine = sum(w for w, n in zip(weights, names, strict=True) if n == name)
        assert mine == pytest.approx(1 / 3)
    few, many = study(Constant(2.0), n=1), study(Constant(16.0), n=1, per=1)
    both = [*few, *(replace(c, dataset="other") for c in many)]
    thrice = [*both, *(c for c in few for _ in range(2))]
    once, more = (quiet(c, "constant", objective="nll", options=QUICK) for c in (both, thrice))
    np.testing.assert_allclose(values(once), values(more), rtol=1e-4)


def test_the_table_is_the_metric_at_the_tried_temperatures_and_grows_beyond():
    curves = study(noise=0.3, n=3)
    for objective, sign in (("nll", 1), ("accuracy", -1)):
        table = regret_table(curves, objective)
        found = table.regret(np.tile(GRID, (len(curves), 1)))
        for row, curve in zip(found, curves, strict=True):
            expected = sign * metric_curve(curve, f"val_{objective}").values
            np.testing.assert_allclose(np.diff(row), np.diff(expected), atol=2e-3)
        assert (table.values >= 0).all()
        assert (table.values.min(axis=1) == 0).all()
        far = np.tile([-50.0, -1.0, 0.0, 0.1, 0.5], (len(curves), 1))
        assert (np.diff(table.regret(far), axis=1) <= 0).all()
        hot = np.tile([64.0, 100.0, 1e3], (len(curves), 1))
        assert (np.diff(table.regret(hot), axis=1) >= 0).all()
    relative = regret_table(curves, "nll", scale="relative")
    np.testing.assert_allclose(relative.values.max(axis=1), 1.0)


def test_a_flat_curve_and_a_cliff_do_no_harm():
    (curve, other) = study(n=2, per=1)
    flat = replace(curve, metrics={"val_nll": np.full((len(GRID), 2), 0.5)})
    outcomes = other.outcomes.copy()
    outcomes[:2] = "diverged"
    metrics = {"val_nll": np.where(outcomes == "done", other.metrics["val_nll"], np.nan)}
    for scale in ("regret", "relative"):
        table = regret_table(
            [flat, replace(other, outcomes=outcomes, metrics=metrics)], "nll", scale=scale
        )
        assert np.isfinite(table.values).all()
        assert (table.values[0] == 0).all()
        assert np.isfinite(table.regret(np.full((2, 1), -3.0))).all()
    chance = math.log(other.task.n_classes)
    assert table.values.shape[1] > 100
    again = regret_table([replace(other, outcomes=outcomes, metrics=metrics)], "nll")
    assert again.values.max() <= max(chance, 3.0)


def test_the_form_is_the_rule():
    tasks = [c.task for c in study(n=5)]
    rng = np.random.default_rng(0)
    for rule in (HasegawaSakaiCsgCn(), HasegawaSakaiCsgCn(log_base=10.0), SqrtDim(), Power()):
        form = rule_form(rule, tasks)
        points = form.start[:, None] * rng.uniform(0.5, 2.0, size=(len(form.names), 3))
        found = form.temperatures(points)
        for column, point in zip(found.T, points.T, strict=True):
            other = form.with_coefficients(point)
            unclipped = [
                min(sum(other.terms(t).values()), other.upper)
                if hasattr(other, "upper")
                else other(t)
                for t in tasks
            ]
            np.testing.assert_allclose(column, unclipped, rtol=1e-9)
    assert coefficient_names(HasegawaSakaiCsgCn()) == ("alpha", "beta", "gamma", "delta")


def test_no_grid_search_finds_better():
    curves = study(HasegawaSakai(0.3, 2.0), noise=1.0, n=8, seed=3)
    form = rule_form(HasegawaSakai(), [c.task for c in curves])
    table = regret_table(curves, "accuracy")
    weights = data_set_weights([c.dataset for c in curves])
    problem = Problem(form, table, weights, default_bounds(form, table))
    found = problem.value(search(problem, seed=0))
    mesh = np.meshgrid(np.linspace(-0.5, 1.5, 201), np.linspace(-15, 15, 201))
    assert found <= problem.value(np.stack([m.ravel() for m in mesh])).min() + 1e-9


# ------------------------------------------------------------------ what is known of it
def test_intervals_left_out_and_held_out():
    curves = study(noise=0.3, n=12)
    fit = quiet(
        curves, objective="nll", hold_out=("set3", "set7"), options=FitOptions(bootstrap=30)
    )
    assert fit.datasets == tuple(sorted(f"set{d}" for d in range(12) if d not in (3, 7)))
    for name, estimate in fit.coefficients.items():
        low, high = estimate.interval
        assert low <= estimate.value <= high, name
        assert low < high
    assert set(fit.held_out) == {"set3", "set7"}
    for found in fit.held_out.values():
        assert found["fitted"] < min(found["T = 1"], found["before"])
    regret = {name: e.value for name, e in fit.regret.items()}
    assert regret["fitted"] <= regret["left out"] < regret["before"]
    assert fit.rule.fit["held_out"] == ["set3", "set7"]
    assert fit.rule.fitted_on == fit.datasets


def test_held_out_data_sets_change_nothing():
    curves = study(noise=0.3, n=8)
    spoiled = [
        replace(c, metrics={k: v[::-1] for k, v in c.metrics.items()}) if c.dataset == "set2" else c
        for c in curves
    ]
    fits = [quiet(c, objective="nll", hold_out=["set2"], options=QUICK) for c in (curves, spoiled)]
    assert fits[0].coefficients == fits[1].coefficients
    assert fits[0].held_out != fits[1].held_out
    without = [c for c in curves if c.dataset != "set2"]
    assert quiet(without, objective="nll", options=QUICK).coefficients == fits[0].coefficients


def test_the_same_seed_gives_the_same_and_no_global_state_moves(rng_guard):
    curves = study(noise=0.3, n=6)
    options = FitOptions(bootstrap=5)
    with rng_guard():
        first, second = (quiet(curves, objective="nll", options=options) for _ in range(2))
    assert dumps(first) == dumps(second)


def test_progress_is_told():
    told = []
    options = FitOptions(bootstrap=3)
    quiet(study(n=3), "constant", options=options, progress=lambda *a: told.append(a))
    assert [what for what, *_ in told] == [
        "searching coefficients",
        *["bootstrap over data sets"] * 3,
        *["leaving out one data set"] * 3,
    ]
    assert all(0 <= done < total for _, done, total in told)


# ------------------------------------------------------------------ what cannot be known
def test_one_width_cannot_tell_alpha_from_beta():
    curves = study(feature_dim=256, noise=0.1)
    with pytest.warns(TemperanceWarning, match="alpha and beta cannot be told apart"):
        fit = fit_rule(
            curves, objective="nll", options=FitOptions(bootstrap=20, leave_one_out=False)
        )
    found = {name: e.value for name, e in fit.coefficients.items()}
    assert found["alpha"] * 16 + found["beta"] == pytest.approx(18.0, rel=0.06)
    assert found["gamma"] == pytest.approx(2.0, rel=0.15)
    assert fit.coefficients["alpha"].interval is None
    assert fit.coefficients["beta"].interval is None
    assert fit.coefficients["gamma"].interval is not None
    assert fit.rule.domain.feature_dim == (256, 256)


def test_few_data_sets():
    _, warned = loud(study(n=3), options=QUICK)
    assert "4 coefficients were fitted on 3 data sets: too few" in warned
    assert "3 data sets: intervals are too short to be trusted" in warned
    fit, warned = loud(study(n=1, per=8), objective="nll", options=FitOptions(bootstrap=10))
    assert any(text.startswith("one data set: no bootstrap") for text in warned)
    assert all(e.interval is None for e in fit.coefficients.values())
    assert "left out" not in fit.regret
    assert fit.regret["fitted"].interval is None


def test_a_rule_that_does_not_carry_over_says_so():
    curves = []
    for d, peak in enumerate((0.6, 1.0, 1.0, 1.0, 1.0, 30.0)):  # chance decides for five of six
        curves += [replace(c, dataset=f"set{d}") for c in study(Constant(peak), n=1, per=1, seed=d)]
    fit = quiet(curves, "hasegawa-sakai", objective="nll", options=FitOptions(bootstrap=0))
    assert fit.regret["left out"].value > fit.regret["T = 1"].value
    assert "on left-out data sets worse than T = 1" in fit.notes
    assert fit.rule.fit["notes"] == list(fit.notes)


def test_coefficients_at_the_bounds_are_named():
    options = replace(QUICK, bounds={"alpha": (0.0, 0.2)})
    with pytest.warns(TemperanceWarning, match="at the bounds of the search: alpha"):
        fit = fit_rule(study(n=8), objective="nll", options=options)
    assert fit.coefficients["alpha"].value == pytest.approx(0.2, abs=1e-3)


def test_tasks_without_a_finite_value_are_left_out_and_named():
    curves = study(n=8)
    separable = Task(64, 10, n_samples=100, statistics={"csg": 0.0})
    with pytest.warns(TemperanceWarning, match="left out, the formula has no finite value"):
        fit = fit_rule([*curves, replace(curves[0], dataset="easy", task=separable)], options=QUICK)
    assert fit.counts["datasets"] == 8
    with pytest.raises(InvalidInput) as caught:
        fit_rule([replace(c, task=separable) for c in curves], options=QUICK)
    assert "csg of 0" in caught.value.found


# ------------------------------------------------------------------ bad input
def test_runs_that_lack_what_the_rule_needs():
    curves = study(n=3)
    bare = [
        replace(c, task=replace(c.task, statistics={})) if c.dataset == "set1" else c
        for c in curves
    ]
    with pytest.raises(InvalidInput) as caught:
        fit_rule(bare, options=QUICK)
    assert caught.value.expected == "the statistic csg of every task"
    assert "set1/pca:" in caught.value.found
    assert "--no-statistics" in caught.value.fix
    quiet(bare, "hasegawa-sakai", options=QUICK)


@pytest.mark.parametrize(("name", "other"), [("norm", "none"), ("loss", "normalized")])
def test_mixed_runs(name, other):
    curves = study(n=2)
    mixed = [*curves, replace(curves[0], setting={**curves[0].setting, name: other})]
    with pytest.raises(InvalidInput) as caught:
        fit_rule(mixed, options=QUICK)
    assert caught.value.expected == f"one {name}"


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"rule": "nobody"}, NotFound),
        ({"objective": "brier"}, NotFound),
        ({"hold_out": ["nowhere"]}, NotFound),
        ({"hold_out": ["set0", "set1"]}, InvalidInput),
        ({"rule": StatisticsRule(0.0)}, InvalidInput),
        ({"options": replace(QUICK, scale="log")}, InvalidInput),
        ({"options": replace(QUICK, bounds={"zeta": (0, 1)})}, InvalidInput),
        ({"options": replace(QUICK, bounds={"alpha": (1, 0)})}, InvalidInput),
    ],
)
def test_bad_arguments(arguments, error):
    with pytest.raises(error):
        fit_rule(study(n=2), **arguments)


def test_bad_options_and_no_runs():
    for bad in ({"seed": -1}, {"bootstrap": 1.5}, {"bootstrap": True}):
        with pytest.raises(InvalidInput):
            FitOptions(**bad)
    with pytest.raises(InvalidInput):
        fit_rule([])


def test_a_rule_without_coefficients():
    def half(task):
        return 0.5

    half.needs, half.norm = (), "batch"
    with pytest.raises(InvalidInput) as caught:
        fit_rule(study(n=2), half)
    assert "frozen dataclass" in caught.value.expected


# ------------------------------------------------------------------ the way to a suggestion
def test_saved_read_and_suggested(tmp_path):
    curves = study(n=8, noise=0.1)
    fit = quiet(curves, objective="nll", options=FitOptions(bootstrap=10, leave_one_out=False))
    assert isinstance(fit.rule, FittedRule)
    dims = [c.task.feature_dim for c in curves]
    assert fit.rule.domain.feature_dim == (min(dims), max(dims))
    csg = [float(c.task.statistics["csg"]) for c in curves]
    assert dict(fit.rule.domain.statistics)["csg"] == (min(csg), max(csg))
    save_rule(fit.rule, tmp_path / "rule.json")
    again = load_rule(tmp_path / "rule.json")
    inside = replace(curves[0].task, training={"lr": 0.1, "steps": 1000})
    found = suggest(inside, again)
    assert found == suggest(inside, fit.rule)
    assert found.temperature == pytest.approx(PLANTED(inside), rel=0.1)
    assert found.in_domain
    assert not suggest(replace(inside, training={"steps": 9}), again).in_domain
    assert again.fit["intervals"]["alpha"] == list(fit.coefficients["alpha"].interval)
    refitted = quiet(curves, again.rule, objective="nll", options=QUICK)
    np.testing.assert_allclose(values(refitted), values(fit), rtol=0.02)


def test_a_start_that_has_seen_the_data_sets_is_refused():
    curves = study(n=6, noise=0.1)
    fit = quiet(curves, "sqrt-dim", objective="nll", options=QUICK)
    for seen in (curves[-4:], [replace(c, dataset="data/SET-3.npz") for c in curves]):
        with pytest.raises(InvalidInput) as caught:
            fit_rule(seen, fit.rule, objective="nll", options=QUICK)
        assert "sqrt-dim (fitted), fitted on" in caught.value.found
        assert "sqrt-dim" in caught.value.fix
    with pytest.raises(InvalidInput):  # nor by way of those that are only judged
        fit_rule(curves, fit.rule, objective="nll", hold_out=["set5"], options=QUICK)
    others = [replace(c, dataset=f"new{c.dataset}") for c in curves]
    again = quiet(others, fit.rule, objective="nll", options=QUICK)
    assert again.before == pytest.approx(fit.rule.coefficients)
