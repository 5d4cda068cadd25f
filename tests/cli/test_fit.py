"""``temperance fit``, and ``temperance suggest`` with what it wrote."""

import json
import math
import re

import numpy as np
import pytest

from temperance.cli.fit import _figure
from temperance.cli.output import number
from temperance.records import Task
from temperance.rules import HasegawaSakaiCsgCn, load_rule
from temperance.study.ledger import open_ledger, row_of
from temperance.study.outcome import Outcome
from temperance.study.trial import Trial

PLANTED = HasegawaSakaiCsgCn(alpha=0.5, beta=10.0, gamma=2.0, delta=-2.0)
GRID = 2.0 ** np.arange(-1, 7)


def sweep(folder, *, n=8, norm="batch", loss="plain", statistics=True):
    """A folder as a sweep leaves it, with curves that are best at the planted rule's T."""
    rng = np.random.default_rng(0)
    ledger = open_ledger(folder)
    for d in range(n):
        classes = int(rng.integers(2, 80))
        for m in (32, 128, 512):
            csg = float(rng.uniform(0.1, min(3.0, classes - 1)))
            task = Task(m, classes, 1000, statistics={"csg": csg, "spread": float(rng.normal())})
            trials = [
                Trial(f"set{d}", features=f"pca:{m}", norm=norm, loss=loss, temperature=t)
                for t in GRID
            ]
            shown = task if statistics else Task(m, classes, 1000)
            key = ledger.append_task(trials[0].task_content, shown)
            ledger.append([row(trial, PLANTED(task), m, key) for trial in trials])
    return folder


def row(trial, best, m, key):
    u = math.log(trial.temperature / best)
    metrics = {
        f"{split}_{name}": base + size * u**2
        for split in ("val", "test")
        for name, base, size in (
            ("accuracy", 0.9, -0.03),
            ("nll", 0.5, 0.1),
            ("nll_posthoc", 0.4, 0.1),
        )
    }
    return row_of(Outcome(trial, "done", feature_dim=m), metrics, key)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    return sweep(tmp_path_factory.mktemp("runs") / "sweep")


# ------------------------------------------------------------------ a rule
def test_fit_and_suggest(run, runs, tmp_path):
    out = tmp_path / "rule.json"
    fitted = run("fit", runs, "--objective", "nll", "--bootstrap", 20, "--out", out, "--json")
    assert fitted.code == 0
    found = {name: e["value"] for name, e in fitted.json["coefficients"].items()}
    assert found == pytest.approx({"alpha": 0.5, "beta": 10, "gamma": 2, "delta": -2}, rel=0.05)
    assert fitted.json["before"]["alpha"] == 0.3191
    assert all(e["interval"] for e in fitted.json["coefficients"].values())
    assert fitted.json["out"] == str(out)
    assert fitted.json["name"] == "hasegawa-sakai-csg-cn (fitted)"
    assert load_rule(out).coefficients["alpha"] == found["alpha"]
    asked = run("suggest", "-M", 128, "-C", 20, "--csg", 0.8, "--rule", out, "--json")
    expected = PLANTED(Task(128, 20, statistics={"csg": 0.8}))
    assert asked.json["temperature"] == pytest.approx(expected, rel=0.05)
    text = run("suggest", "-M", 4096, "-C", 20, "--csg", 0.8, "--rule", out).out
    assert "M = 4096 is outside the 32 to 512" in text
    assert "The rule was fitted on 24 tasks of 8 data sets, trained with" in text
    assert "optimizer sgd" in text


def test_the_tables(run, runs):
    result = run("fit", runs, "--bootstrap", 0, "--hold-out", "set1, set4")
    assert result.code == 0
    assert result.out.startswith(
        "hasegawa-sakai-csg-cn, best by val accuracy, norm batch: 18 tasks"
    )
    for words in ("alpha", "0.3191", "T = 1", "left out", "Mean regret", "points", "set1", "set4"):
        assert words in result.out


def test_a_statistics_rule(run, runs, tmp_path):
    out = tmp_path / "heuristic.json"
    arguments = ("fit", runs, "--rule", "statistics", "--objective", "nll-posthoc", "--out", out)
    fitted = run(*arguments, "--terms", 2, "--json")
    assert fitted.code == 0
    assert 2 <= len(fitted.json["coefficients"]) <= 3
    assert "log(M)" in fitted.json["coefficients"]
    errors = {name: e["value"] for name, e in fitted.json["errors"].items()}
    assert errors["left out"] < errors["constant"]
    needs = load_rule(out).needs
    given = [a for name in needs for a in ("--statistic", f"{name}=0.5")]
    asked = run("suggest", "-M", 128, "-C", 20, "--samples", 1000, *given, "--rule", out, "--json")
    task = Task(128, 20, 1000, statistics=dict.fromkeys(needs, 0.5))
    assert asked.json["temperature"] == pytest.approx(load_rule(out)(task))
    out.unlink()
    text = run(*arguments, "--method", "ridge").out
    assert "Error in log T" in text
    assert "sqrt(M)" in text


def test_what_rounding_leaves_is_not_shown(run, runs):
    result = run("fit", runs, "--objective", "nll", "--rule", "sqrt-dim", "--bootstrap", 0)
    assert not re.search(r"\de-1\d", result.out)
    assert number(3e-17) != "0"  # it would be
    assert "e-1" not in _figure(3e-17)


def test_one_data_set_has_no_intervals(run, tmp_path):
    folder = sweep(tmp_path / "one", n=1)
    result = run("fit", folder, "--rule", "hasegawa-sakai", "--json")
    assert result.code == 0
    assert all(e["interval"] is None for e in result.json["coefficients"].values())
    assert any("one data set: no bootstrap" in note for note in result.json["notes"])
    text = run("fit", folder, "--rule", "hasegawa-sakai").out
    assert "Note: one data set: no bootstrap over data sets" in text


# ------------------------------------------------------------------ bad input
def test_statistics_that_were_not_measured(run, tmp_path):
    folder = sweep(tmp_path / "bare", n=2, statistics=False)
    result = run("fit", folder)
    assert result.code == 3
    assert "the statistic csg" in result.err
    assert "set0/pca:128" in result.err
    assert "--no-statistics" in result.err
    assert run("fit", folder, "--rule", "hasegawa-sakai", "--bootstrap", 0).code == 0


def test_norms_and_losses_are_chosen(run, tmp_path):
    folder = sweep(tmp_path / "plain", n=2, norm="none")
    sweep(folder, n=2, norm="none", loss="normalized")
    result = run("fit", folder, "--bootstrap", 0)
    assert result.code == 3
    assert "expected norm batch" in result.err
    result = run("fit", folder, "--norm", "none", "--bootstrap", 0)
    assert result.code == 3
    assert "--loss normalized" in result.err
    result = run("fit", folder, "--norm", "none", "--loss", "plain", "--bootstrap", 0, "--json")
    assert result.code == 0
    assert result.json["rule"]["norm"] == "none"


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("--rule", "nobody"), 4),
        (("--rule", "adacos"), 3),
        (("--objective", "brier"), 4),
        (("--hold-out", "nowhere"), 4),
        (("--scale", "log"), 3),
        (("--rule", "statistics", "--method", "lasso"), 3),
        (("--bootstrap", "-1"), 2),
        (("--seed", "-1"), 2),
        (("--rule", "statistics", "--scale", "relative"), 2),
        (("--rule", "statistics", "--method", "ridge", "--terms", "2"), 2),
        (("--method", "ridge"), 2),
        (("--terms", "3"), 2),
        (("--hold-out", "set0,set1,set2,set3,set4,set5,set6,set7"), 3),
    ],
)
def test_bad_arguments(run, runs, arguments, code):
    result = run("fit", runs, *arguments)
    assert result.code == code
    assert result.out == ""
    assert "Traceback" not in result.err


def test_bad_paths(run, runs, tmp_path):
    assert run("fit", tmp_path / "nowhere").code == 4
    there = tmp_path / "there.json"
    there.write_text("mine")
    for out in (there, tmp_path / "rule.txt", tmp_path / "no" / "rule.json"):
        result = run("fit", runs, "--out", out)
        assert result.code == 3
        assert "nothing was touched" in result.err
    assert there.read_text() == "mine"
    broken = run("suggest", "-M", 128, "-C", 20, "--rule", there, "--json")
    assert broken.code == 3
    assert json.loads(broken.out)["error"]["subject"] == f"rule file {there}"
    assert run("suggest", "-M", 9, "-C", 2, "--rule", tmp_path / "no.json").code == 4
    assert run("suggest", "-M", 9, "-C", 2, "--statistic", "spread").code == 2


def test_help(run):
    result = run("fit", "--help")
    assert result.code == 0
    assert "Example: temperance fit" in result.out
