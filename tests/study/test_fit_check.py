"""What is refused or said before a rule is fitted, and rules of other forms than sums."""

import math
import warnings
from dataclasses import dataclass, replace

import numpy as np
import pytest

from temperance.errors import InvalidInput, TemperanceWarning
from temperance.records import Task
from temperance.rules import CosFaceBound, HasegawaSakai, NormFace, load_rule, save_rule
from temperance.study.fit import FitOptions, fit_rule
from temperance.study.fit_check import domain_of
from temperance.study.fit_objective import regret_table, rule_form
from temperance.study.runs import Curve
from temperance.study.trial import Trial

GRID = 2.0 ** np.arange(-2, 6)
QUICK = FitOptions(bootstrap=0, leave_one_out=False)


def curve(dataset, best, *, dim=64, classes=10, statistics=None, grid=GRID, **setting):
    """A curve that is best at a known T."""
    bowl = 0.5 + 0.1 * np.log(grid[:, None] / best) ** 2
    full = Trial(dataset, **{"norm": "batch", "features": f"pca:{dim}", **setting}).setting
    task = Task(dim, classes, n_samples=500, statistics=statistics or {})
    outcomes = np.full(bowl.shape, "done", dtype="<U8")
    metrics = {"val_nll": bowl, "val_accuracy": 1 - bowl / 2}
    return Curve(dataset, full, task, grid, (0,), metrics, outcomes)


def study(n=6, factor=0.25, **more):
    return [
        curve(f"set{d}", factor * m**0.5, dim=m, **more) for d in range(n) for m in (16, 64, 256)
    ]


def fitted(curves, rule="sqrt-dim", **more):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TemperanceWarning)
        return fit_rule(curves, rule, objective="nll", **{"options": QUICK, **more})


# ------------------------------------------------------------------ data sets that are kept out
def test_data_sets_kept_out_are_checked_before_the_search():
    told = []
    inside = study(statistics={"csg": 0.5})
    for statistics, words in (({}, "the statistic csg"), ({"csg": 0.0}, "finite value")):
        curves = [*inside, curve("out", 2.0, statistics=statistics)]
        with pytest.raises(InvalidInput) as caught:
            fitted(
                curves,
                "hasegawa-sakai-csg-cn",
                hold_out=["out"],
                progress=lambda *a: told.append(a),
            )
        assert words in caught.value.expected
    assert told == []


def test_a_curve_kept_out_that_cannot_be_judged_is_named():
    inside = study(statistics={"csg": 0.5})
    out = [curve("out", 2.0, statistics={"csg": csg}, dim=m) for csg, m in ((0.3, 16), (0.0, 64))]
    fit = fitted([*inside, *out], "hasegawa-sakai-csg-cn", hold_out=["OUT"])
    assert set(fit.held_out) == {"out"}
    (note,) = [n for n in fit.notes if n.startswith("of the data sets kept out: left out")]
    assert "M=64" in note
    assert "M=16" not in note
    assert fit.rule.fit["held_out"] == ["out"]


# ------------------------------------------------------------------ what must be said
def test_a_statistic_that_is_no_number_leaves_its_task_out():
    curves = study(statistics={"csg": 0.5})
    for csg in (math.nan, 50.0):  # not measurable, and out of its range
        odd = curve("odd", 2.0, statistics={"csg": csg})
        fit = fitted([*curves, odd], "hasegawa-sakai-csg-cn")
        assert fit.counts["datasets"] == 6
        assert any("left out" in note and "odd/pca:64" in note for note in fit.notes)


def test_mixed_trainings_and_a_baseline_that_was_not_tried_are_said():
    curves = [*study(4), *study(4, optimizer="adamw", lr=0.01)]
    fit = fitted(curves)
    assert "trainings of several settings are fitted together: lr, optimizer" in fit.notes
    assert not any("several settings" in note for note in fitted(study(4)).notes)
    hot = [curve(f"set{d}", 8.0, dim=m, grid=GRID[4:]) for d in range(4) for m in (16, 64)]
    (note,) = [n for n in fitted(hot).notes if n.startswith("T = 1 lies beyond")]
    assert "8 of 8 tasks" in note


def test_as_many_coefficients_as_data_sets_are_too_many_and_have_no_interval():
    statistics = ({"csg": c} for c in (0.1, 0.4, 0.9, 1.7))
    sizes = ((16, 3), (64, 5), (256, 10), (1024, 40))
    curves = [
        curve(f"set{d}", 2.0 + d, dim=m, classes=c, statistics=s)
        for d, ((m, c), s) in enumerate(zip(sizes, statistics, strict=True))
    ]
    options = FitOptions(bootstrap=10, leave_one_out=False)
    fit = fitted(curves, "hasegawa-sakai-csg-cn", options=options)
    assert "4 coefficients were fitted on 4 data sets: too few" in fit.notes
    assert all(e.interval is None for e in fit.coefficients.values())
    assert any(note.startswith("no interval of alpha, beta, gamma, delta") for note in fit.notes)


def test_a_plateau_that_reaches_an_edge_is_censored_there():
    flat_above = curve("a", 2.0)
    flat_above.metrics["val_accuracy"][5:] = flat_above.metrics["val_accuracy"].max()
    flat = curve("b", 2.0)
    flat.metrics["val_accuracy"][:] = 0.5
    table = regret_table([flat_above, flat, curve("c", 2.0)], "accuracy")
    assert table.censored.tolist() == [[False, True], [True, True], [False, False]]


# ------------------------------------------------------------------ other forms
@pytest.mark.parametrize(
    ("rule", "planted"), [("cosface-bound", CosFaceBound(0.6)), ("normface", NormFace(0.3))]
)
def test_rules_that_refuse_some_coefficients(rule, planted):
    sizes = (3, 10, 30, 100)
    tasks = [Task(64, c) for c in sizes]
    curves = [
        curve(f"set{d}", planted(task), classes=task.n_classes, grid=2.0 ** np.arange(-5, 3))
        for d, task in enumerate(tasks)
    ]
    assert rule_form(planted, tasks).design is None
    fit = fitted(curves, rule)
    (found,) = fit.coefficients.values()
    (expected,) = vars(planted).values()
    assert found.value == pytest.approx(expected, rel=0.1)


@dataclass(frozen=True)
class Steep:
    """Overflows, and has no value for some coefficients."""

    power: float = 1.0
    name = "steep"
    norm = "batch"
    needs = ()

    def __call__(self, task):
        return math.sqrt(self.power) * task.feature_dim ** (self.power * 100) / 1e3


def test_a_formula_without_a_number_is_as_bad_as_can_be():
    form = rule_form(Steep(), [Task(64, 2)])
    found = form.temperatures(np.array([[-1.0, 1.0, 10.0]]))
    assert np.isnan(found).tolist() == [[True, False, True]]
    regret = regret_table([curve("a", 2.0)], "nll").regret(np.array([[math.nan, 2.0, math.inf]]))
    assert np.isnan(regret[0, 0])
    assert regret[0, 1] == pytest.approx(0.0, abs=1e-3)


def test_a_rule_without_a_value_anywhere_is_named_without_a_word_of_csg():
    curves = [curve(f"set{d}", 2.0, classes=2) for d in range(3)]
    with pytest.raises(InvalidInput) as caught:
        fitted(curves, "adacos")
    assert caught.value.subject == "rule adacos"
    assert "csg" not in caught.value.found


# ------------------------------------------------------------------ the domain
def test_the_domain_knows_the_temperatures_that_were_tried(tmp_path):
    curves = [curve("a", 2.0, grid=GRID[:5]), curve("b", 2.0, grid=GRID[2:])]
    assert domain_of(curves, ()).temperatures == (0.25, 32.0)
    trained = replace(curves[0].task, training={"momentum": 0.0, "weight_decay": 0.1})
    assert len(domain_of(curves, ()).reasons(trained)) == 2
    fit = fitted(study())
    assert fit.rule.domain.temperatures == (0.25, 32.0)
    save_rule(fit.rule, tmp_path / "rule.json")
    assert load_rule(tmp_path / "rule.json") == fit.rule


def test_the_table_is_vectorized_and_the_same_one_by_one():
    curves = study()
    form = rule_form(HasegawaSakai(), [c.task for c in curves])
    table = regret_table(curves, "nll")
    points = np.random.default_rng(0).normal(size=(2, 30))
    together = table.regret(form.temperatures(points))
    for place, point in enumerate(points.T):
        rule = replace(HasegawaSakai(), alpha=point[0], beta=point[1])
        alone = np.array([min(sum(rule.terms(c.task).values()), 512.0) for c in curves])
        np.testing.assert_allclose(together[:, place], table.regret(alone[:, None])[:, 0])


def test_runs_whose_t_moves_are_not_fitted_with_those_whose_t_does_not():
    moving = [curve("moving", 2.0, model="mlp", path="ramp")]
    with pytest.raises(InvalidInput) as caught:
        fitted([*study(), *moving])
    assert caught.value.found == "constant, ramp"
    assert "path" in caught.value.expected
