"""Which rules are judged, and on what T the baselines settle."""

import numpy as np
import pytest

from temperance.errors import NotFound
from temperance.rules import RULES
from temperance.study.curves import metric_curve
from temperance.study.regret_rules import baselines, best_constant, given_rules
from temperance.study.runs import curves_of_rows, example_rows


def test_the_named_constant_is_the_baseline():
    assert [c.name for c in given_rules(["constant", "sqrt-dim"])] == ["sqrt-dim"]
    assert {c.name for c in given_rules(None)} == set(RULES) - {"constant", "norm-alone"}
    with pytest.raises(NotFound):
        given_rules([""])


def test_best_constant_of_equals_is_the_middle():
    (flat,) = curves_of_rows(*example_rows((0.25, 0.5, 1.0, 2.0, 4.0)))
    assert best_constant([flat], "nll", read=metric_curve) == 2.0
    flat.metrics["val_nll"][:] = 1.0
    assert best_constant([flat], "nll", read=metric_curve) == 1.0
    flat.metrics["val_nll"][0] = 2.0
    flat.metrics["val_nll"][2] += 1e-15  # rounding chooses nothing
    assert best_constant([flat], "nll", read=metric_curve) == 1.0


def test_the_best_constant_is_one_for_each_norm_and_loss():
    curves = []
    for loss, grid in (("plain", (0.5, 1.0, 2.0, 4.0)), ("normalized", (4.0, 8.0, 16.0, 32.0))):
        rows, tasks = example_rows(grid, datasets=("a", "b", "c"))
        for row in rows:
            row["trial"]["loss"] = loss
        curves += curves_of_rows(rows, tasks)
    _, constant = baselines(curves, metric_curve)
    found = {c.setting["loss"]: constant.choose(c, "nll").temperature for c in curves}
    assert found == {"plain": 2.0, "normalized": 4.0}
    alone = [c for c in curves if c.setting["loss"] == "plain" or c.dataset == "a"]
    _, constant = baselines(alone, metric_curve)
    assert constant.choose(alone[-1], "nll") == "no other data set to choose it on"


def test_the_best_constant_lies_on_one_of_the_grids():
    (low,) = curves_of_rows(*example_rows((0.5, 1.5, 2.5)))
    (high,) = curves_of_rows(*example_rows((1.0, 2.0, 8.0)))
    found = best_constant([low, high], "nll", read=metric_curve)
    fine = np.exp(np.linspace(np.log(0.5), np.log(8), 4001))
    total = sum(
        np.interp(np.log(fine), np.log(c.temperatures), c.metrics["val_nll"][:, 0])
        for c in (low, high)
    )
    assert found == pytest.approx(fine[total.argmin()], rel=2e-3)
