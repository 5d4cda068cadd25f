"""Rules fitted again for each data set that they are judged on, on planted runs."""

from dataclasses import replace

import numpy as np
import pytest

from temperance.errors import InvalidInput, NotFound
from temperance.records import Task
from temperance.rules import FittedDomain, FittedRule, SqrtDim
from temperance.study.refit import Refit, refit_of
from temperance.study.regret import regret
from temperance.study.runs import curves_of_rows, example_rows

GRID = tuple(2.0**k for k in range(-3, 6))


def planted(n=4, power=0.5, **statistics):
    """Runs whose best T is ``0.5 M^power`` on every data set."""
    (one,) = curves_of_rows(*example_rows(GRID))
    curves = []
    for d in range(n):
        for m in (16, 64, 256, 1024):
            bowl = 0.3 + 0.1 * np.log(np.array(GRID)[:, None] / (0.5 * m**power)) ** 2
            metrics = {"val_nll": bowl, "test_nll": bowl}
            task = Task(m, 10, n_samples=500, statistics=statistics)
            setting = {**one.setting, "dataset": f"set{d}", "features": f"pca:{m}"}
            curves.append(
                replace(one, dataset=f"set{d}", task=task, metrics=metrics, setting=setting)
            )
    return curves


def means(report):
    return {s.rule: s.mean.value for s in report.summaries}


def judge(curves, *specs):
    return regret(curves, (), metrics=["nll"], fitted=specs, bootstrap=5)


def test_a_refit_finds_what_was_planted():
    said = []
    report = judge(planted(), refit_of("sqrt-dim", objective="nll", told=said.append))
    found = means(report)
    assert found["sqrt-dim, refitted"] < 0.01 < found["best constant"]
    assert said == ["sqrt-dim, refitted: 12 curves, norm none"] * 4
    assert {s.origin for s in report.summaries} == {"baseline", "refitted"}


def test_a_new_heuristic_is_chosen_anew_each_time():
    found = means(judge(planted(5, power=0.3), refit_of("statistics", objective="nll")))
    assert found["statistics, refitted"] < 0.01 < found["best constant"]


def test_curves_of_another_loss_are_fitted_apart():
    other = [replace(c, setting={**c.setting, "loss": "normalized"}) for c in planted(3, power=0.1)]
    report = judge([*planted(3), *other], refit_of("sqrt-dim", objective="nll"))
    temperatures = {
        (report.tasks[r.task].setting["loss"], report.tasks[r.task].feature_dim): r.temperature
        for r in report.rows
        if r.rule == "sqrt-dim, refitted"
    }
    assert temperatures["plain", 256] == pytest.approx(8, rel=0.1)
    assert temperatures["normalized", 1024] < 3


def test_one_data_set_that_cannot_be_left_out_spoils_no_other():
    def picky(curves):
        if len({c.dataset for c in curves}) < 3 or "set0" not in {c.dataset for c in curves}:
            raise InvalidInput("runs", expected="set0", found="none", fix="Add it.")
        return SqrtDim(0.5)

    report = judge(planted(), Refit("picky", picky))
    (found,) = [s for s in report.summaries if s.rule == "picky"]
    assert (found.tasks, found.datasets) == (12, 3)
    assert found.left_out == {"without its data set: set0 are needed, found none": 4}


def test_too_few_data_sets_are_told_apart_from_those_that_are_there():
    with pytest.raises(InvalidInput) as caught:
        judge(planted(4), refit_of("statistics", objective="nll"))
    assert caught.value.subject == "rule statistics, refitted"
    assert caught.value.found.startswith("without its data set: 4 data sets or more")


def test_coefficients_of_a_fit_are_not_fitted_again():
    domain = FittedDomain((16, 64), (2, 10))
    rule = FittedRule(SqrtDim(0.5), domain, "none", fit={"datasets": ["set0"]})
    with pytest.raises(InvalidInput) as caught:
        refit_of(rule)
    assert caught.value.found == "sqrt-dim (fitted)"
    assert "sqrt-dim" in caught.value.fix


def test_rules_that_cannot_be_fitted():
    with pytest.raises(NotFound):
        refit_of("magic")
    with pytest.raises(InvalidInput):
        refit_of(type("Odd", (), {"needs": (), "norm": "batch", "__call__": lambda s, t: 1.0})())
    with pytest.raises(InvalidInput) as caught:
        judge(planted(2), refit_of("hasegawa-sakai-csg-cn"))
    assert caught.value.found == "needs csg"
