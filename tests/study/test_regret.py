"""Regret against naive loops on synthetic runs, and that nothing leaks."""

import csv
import io
import json
import math
from dataclasses import dataclass, field, replace

import numpy as np
import pytest

from temperance.errors import InvalidInput, NotFound
from temperance.records import Task, dumps, loads
from temperance.rules import FittedDomain, FittedRule, SqrtDim
from temperance.study.refit import Refit
from temperance.study.regret import regret
from temperance.study.regret_records import RegretReport
from temperance.study.regret_rules import given_rules
from temperance.study.regret_table import markdown, tables, tasks_csv, write_regret
from temperance.study.runs import Curve
from temperance.study.trial import Trial

GRID = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0)


def make_curve(dataset, peak, *, noise=None, dim=64, classes=10, csg=0.5, lost=(), **setting):
    """A curve whose NLL is a parabola in log T around a known peak, three seeds."""
    rng = np.random.default_rng(0) if noise is None else noise
    full = Trial(dataset=dataset, **{"norm": "batch", "features": f"pca:{dim}", **setting}).setting
    bowl = 0.1 * np.log(np.array(GRID)[:, None] / peak) ** 2
    size = 0.0 if noise is None else 0.01
    metrics = {}
    for split in ("val", "test"):
        for name, sign, base in (("accuracy", -1, 0.9), ("nll", 1, 0.5), ("nll_posthoc", 0.5, 0.4)):
            values = base + sign * bowl + size * rng.normal(size=(len(GRID), 3))
            metrics[f"{split}_{name}"] = values
    outcomes = np.full((len(GRID), 3), "done", dtype="<U8")
    for place in lost:
        outcomes[place] = "diverged"
        for values in metrics.values():
            values[place] = np.nan
    statistics = {} if csg is None else {"csg": csg}
    task = Task(dim, classes, n_samples=1000, statistics=statistics)
    return Curve(dataset, full, task, np.array(GRID), (0, 1, 2), metrics, outcomes)


def study(n=6, per=3, seed=0, **setting):
    rng = np.random.default_rng(seed)
    return [
        make_curve(
            f"set{d}",
            float(np.exp(rng.normal(1.0, 0.8))),
            noise=rng,
            dim=int(2 ** rng.integers(4, 11)),
            csg=float(rng.uniform(0.1, 0.9)),
            **setting,
        )
        for d in range(n)
        for _ in range(per)
    ]


def summary(report, rule, metric="nll"):
    (found,) = [s for s in report.summaries if (s.rule, s.metric) == (rule, metric)]
    return found


@dataclass(frozen=True)
class Fixed:
    """A rule that gives T by a table from M."""

    table: dict = field(default_factory=dict)
    default: float = 4.0
    name: str = "fixed"
    norm: str = "batch"
    needs: tuple = ()
    fallback: None = None
    fitted_on: tuple = ()

    def __call__(self, task):
        return self.table.get(task.feature_dim, self.default)


# ------------------------------------------------------------------ the oracle
def naive(curve, temperature, metric):
    """Regret, gain and best T by plain loops."""
    sign, scale = (1, 100) if metric == "accuracy" else (-1, 1)
    val = [np.mean(row) for row in curve.metrics[f"val_{metric}"]]
    test = [float(np.mean(row)) for row in curve.metrics[f"test_{metric}"]]
    best = max(range(len(val)), key=lambda i: sign * val[i])

    def at(t):
        if t <= GRID[0]:
            return test[0]
        for i in range(len(GRID) - 1):
            if t <= GRID[i + 1]:
                share = (math.log(t) - math.log(GRID[i])) / (
                    math.log(GRID[i + 1]) - math.log(GRID[i])
                )
                return (1 - share) * test[i] + share * test[i + 1]
        return test[-1]

    loss = sign * scale * (test[best] - at(temperature))
    return loss, sign * scale * (at(temperature) - at(1.0)), GRID[best]


def test_every_task_as_by_naive_loops():
    curves = study()
    report = regret(curves, ["sqrt-dim", "hasegawa-sakai"], bootstrap=20)
    assert len(report.rows) == 18 * 3 * 4
    for row in report.rows:
        curve = curves[row.task]
        loss, gain, best = naive(curve, row.temperature, row.metric)
        assert row.regret == pytest.approx(loss, abs=1e-9)
        assert row.gain == pytest.approx(gain, abs=1e-9)
        assert row.best_temperature == best
        assert row.best_at_edge == (best in (GRID[0], GRID[-1]))
        if row.rule == "sqrt-dim":
            assert row.temperature == math.sqrt(curve.task.feature_dim)
        if row.metric == "accuracy":
            assert row.relative is None
        else:
            assert row.relative == pytest.approx(100 * loss / row.best)


def test_summaries_are_those_of_the_rows():
    report = regret(study(), bootstrap=20)
    for s in report.summaries:
        rows = [r for r in report.rows if (r.rule, r.metric) == (s.rule, s.metric)]
        losses, gains = [r.regret for r in rows], [r.gain for r in rows]
        assert (s.tasks, s.datasets) == (18, 6)
        assert s.mean.value == pytest.approx(np.mean(losses))
        assert s.median.value == pytest.approx(np.median(losses))
        assert s.worst == max(losses)
        assert s.worst_task == report.tasks[rows[int(np.argmax(losses))].task].label
        assert s.better.value == sum(g > 1e-9 for g in gains) / 18
        assert s.ties == sum(abs(g) <= 1e-9 for g in gains) / 18
        assert s.mean.interval[0] <= s.mean.value <= s.mean.interval[1]
    order = [s.mean.value for s in report.summaries if s.metric == "nll"]
    assert order == sorted(order)


def test_a_rule_that_hits_the_peak_has_no_regret_and_ties_are_no_wins():
    peaks = {16: 1.0, 64: 4.0, 256: 8.0}
    curves = [make_curve(f"set{d}", p, dim=m) for d in range(3) for m, p in peaks.items()]
    report = regret(curves, {"oracle": Fixed(peaks)}, bootstrap=20)
    s = summary(report, "oracle")
    assert s.mean.value == pytest.approx(0, abs=1e-12)
    assert s.better.value == pytest.approx(2 / 3)
    assert s.ties == pytest.approx(1 / 3)  # where the peak is T = 1
    assert s.verdict == "better"
    assert s.gain.value == pytest.approx(0.1 * np.mean([np.log(p) ** 2 for p in peaks.values()]))
    plain = summary(report, "T = 1")
    assert (plain.better.value, plain.ties, plain.gain.value) == (0.0, 1.0, 0.0)
    assert plain.verdict == "no difference shown"


def test_test_rows_choose_nothing():
    curves, rng = study(), np.random.default_rng(1)
    moved = [
        Curve(**{**vars(c), "metrics": {
            name: rng.permutation(values) if name.startswith("test") else values
            for name, values in c.metrics.items()
        }})
        for c in curves
    ]  # fmt: skip
    specs = [Refit("spy", lambda cs: SqrtDim(len(cs) / 40))]
    before, after = (regret(cs, fitted=specs, bootstrap=5).rows for cs in (curves, moved))
    chosen = [[(r.rule, r.task, r.temperature, r.best_temperature) for r in rs]
              for rs in (before, after)]  # fmt: skip
    assert chosen[0] == chosen[1]
    assert [r.regret for r in before] != [r.regret for r in after]


def test_regret_can_be_negative():
    curve = make_curve("a", 4.0)
    curve.metrics["test_nll"][:] += 0.1 * np.log(np.array(GRID)[:, None])  # test prefers small T
    report = regret([curve], {"fixed": Fixed(default=2.0)}, metrics=["nll"], bootstrap=5)
    assert summary(report, "fixed").mean.value < 0


# ------------------------------------------------------------------ nothing leaks
def test_a_refit_never_sees_the_data_set_that_it_is_judged_on():
    curves = study(norm="batch") + study(norm="none", seed=1)
    seen = []

    def spy(given):
        seen.append(({c.dataset for c in given}, {c.setting["norm"] for c in given}))
        return SqrtDim(alpha=len(seen))

    report = regret(curves, (), fitted=[Refit("spy", spy)], any_norm=True, bootstrap=5)
    names = {f"set{d}" for d in range(6)}
    assert len(seen) == 12  # one fit for each data set and norm, for all metrics
    rows = [r for r in report.rows if r.rule == "spy" and r.metric == "nll"]
    assert len(rows) == 36
    for row in rows:
        task = report.tasks[row.task]
        alpha = row.temperature / math.sqrt(task.feature_dim)
        assert seen[round(alpha) - 1] == (names - {task.dataset}, {task.norm})


def test_the_best_constant_is_chosen_on_the_other_data_sets_by_validation():
    curves = study()
    report = regret(curves, (), metrics=["nll", "accuracy"], bootstrap=5)
    for row in report.rows:
        if row.rule != "best constant":
            continue
        sign = 1 if row.metric == "accuracy" else -1
        others = [c for c in curves if c.dataset != report.tasks[row.task].dataset]
        totals = [
            sign * sum(c.metrics[f"val_{row.metric}"][i].mean() for c in others)
            for i in range(len(GRID))
        ]
        assert row.temperature == GRID[int(np.argmax(totals))]


def test_one_data_set_has_no_best_constant_and_no_interval():
    report = regret([make_curve("a", 2.0), make_curve("a", 3.0, lr=0.5)], bootstrap=5)
    assert report.not_judged["best constant"] == "no other data set to choose it on"
    assert summary(report, "T = 1").mean.interval is None
    assert any("one data set" in note or "1 data set" in note for note in report.notes)
    with pytest.raises(InvalidInput) as caught:
        regret([make_curve("a", 2.0)], (), fitted=[Refit("mine", lambda cs: SqrtDim())])
    assert caught.value.subject == "rule mine"
    assert "no other data set" in caught.value.found


def test_published_rules_are_not_judged_on_the_data_of_their_fit():
    curves = [make_curve(name, 4.0, dim=512) for name in ("CIFAR-10", "digits", "x/cifar100.npz")]
    report = regret(curves, bootstrap=5)
    judged = {r.rule: set() for r in report.rows}
    for row in report.rows:
        judged[row.rule].add(report.tasks[row.task].dataset)
    assert judged["hasegawa-sakai"] == judged["hasegawa-sakai-csg-cn"] == {"digits"}
    assert len(judged["sqrt-dim"]) == len(judged["T = 1"]) == 3
    assert summary(report, "hasegawa-sakai").left_out == {"the rule was fitted on this data set": 2}
    assert any(n.startswith("hasegawa-sakai: 2 tasks") for n in report.notes)
    assert any("same tasks" in n for n in report.notes)


def test_a_saved_rule_is_judged_on_other_data_sets_only(tmp_path):
    domain = FittedDomain(feature_dim=(16, 1024), n_classes=(2, 100))
    fit = {"datasets": ["set0", "set1"]}
    rule = FittedRule(SqrtDim(0.5), domain, norm="batch", fit=fit)
    report = regret(study(), [rule], bootstrap=5)
    s = summary(report, "sqrt-dim (fitted)")
    assert (s.origin, s.datasets, s.tasks) == ("elsewhere", 4, 12)
    assert sum(s.left_out.values()) == 6
    everything = FittedRule(
        SqrtDim(0.5), domain, norm="batch", fit={"datasets": [f"set{d}" for d in range(6)]}
    )
    with pytest.raises(InvalidInput) as caught:
        regret(study(), [everything], bootstrap=5)
    assert "fitted on" in caught.value.found


# ------------------------------------------------------------------ edges of the grid, divergence
def test_t_outside_the_grid_is_judged_at_the_edge_and_counted():
    curves = [make_curve(f"set{d}", 4.0, dim=m) for d in range(2) for m in (16, 64, 256)]
    rule = Fixed({16: 0.12, 256: 500.0})
    report = regret(curves, {"far": rule}, metrics=["nll"], bootstrap=5)
    rows = {report.tasks[r.task].feature_dim: r for r in report.rows if r.rule == "far"}
    assert (rows[16].outside, rows[16].judged_at, rows[16].temperature) == ("below", 0.25, 0.12)
    assert (rows[256].outside, rows[256].judged_at) == ("above", 32.0)
    assert (rows[64].outside, rows[64].judged_at) == ("", 4.0)
    assert rows[16].value == pytest.approx(curves[0].metrics["test_nll"][0].mean())
    assert summary(report, "far").outside == 4


def test_a_best_t_at_the_edge_is_counted():
    report = regret([make_curve("a", 200.0), make_curve("b", 4.0)], (), bootstrap=5)
    assert summary(report, "T = 1").best_at_edge == 1
    assert any("on 1 of 2 tasks an edge" in note for note in report.notes)


def test_diverged_runs_count_as_chance():
    curves = [make_curve(name, 4.0, lost=(6, 7)) for name in "ab"]
    report = regret(curves, {"hot": Fixed(default=32.0)}, bootstrap=5)
    row = next(r for r in report.rows if (r.rule, r.metric) == ("hot", "nll"))
    assert row.value == pytest.approx(math.log(10))
    row = next(r for r in report.rows if (r.rule, r.metric) == ("hot", "accuracy"))
    assert row.value == pytest.approx(0.1)


def test_a_task_where_everything_diverged_is_left_out_with_a_note():
    lost = make_curve("lost", 4.0, lost=tuple(range(len(GRID))))
    report = regret([lost, make_curve("a", 4.0), make_curve("b", 4.0)], (), bootstrap=5)
    assert {t.dataset for t in report.tasks} == {"a", "b"}
    assert any(note.startswith("1 of 3 tasks are left out") for note in report.notes)
    with pytest.raises(InvalidInput) as caught:
        regret([lost], ())
    assert "diverged" in caught.value.found


def test_mixed_trainings_and_a_plain_t_outside_are_said():
    curves = [*study(n=2), *study(n=2, loss="normalized", optimizer="adamw", lr=0.01)]
    report = regret(curves, (), metrics=["nll"], bootstrap=5)
    assert "Trainings of several settings are judged together: loss, lr, optimizer." in report.notes
    assert not any("several settings" in n for n in regret(study(n=2), (), bootstrap=5).notes)
    hot = [replace(c, temperatures=c.temperatures * 100) for c in study(n=2, per=1)]
    notes = regret(hot, (), metrics=["nll"], bootstrap=5).notes
    assert any("T = 1 lies outside" in note and "nearest" in note for note in notes)


def test_no_gain_is_no_negative_zero():
    report = regret(study(n=2), (), bootstrap=5)
    assert not {str(x) for r in report.rows for x in (r.gain, r.regret)} & {"-0.0"}


def test_fallbacks_are_what_a_user_would_get():
    curves = [make_curve(f"set{d}", 2.0, dim=16) for d in range(2)]  # there the formula is negative
    report = regret(curves, ["hasegawa-sakai", "hasegawa-sakai-csg-cn"], bootstrap=5)
    rows = [r for r in report.rows if r.rule == "hasegawa-sakai"]
    assert {(r.temperature, r.fallback) for r in rows} == {(1.0, "constant")}
    s = summary(report, "hasegawa-sakai")
    assert (s.fallbacks, s.ties) == (2, 1.0)
    assert any("in 2 of 2 tasks of norm batch its fallback answered" in n for n in report.notes)


# ------------------------------------------------------------------ norms, needs, bad input
def test_rules_are_judged_within_their_norm():
    curves = study(norm="batch") + study(norm="none", seed=1)
    report = regret(curves, bootstrap=5)
    assert list(dict.fromkeys(s.group for s in report.summaries)) == ["none", "batch"]
    groups = {(s.rule, s.group) for s in report.summaries}
    assert ("sqrt-dim", "batch") in groups
    assert ("sqrt-dim", "none") not in groups
    assert {("T = 1", "none"), ("best constant", "none")} < groups
    assert "cosine" in report.not_judged["adacos"]
    pooled = regret(curves, any_norm=True, bootstrap=5)
    assert {s.group for s in pooled.summaries} == {"any"}
    assert summary(pooled, "sqrt-dim").tasks == 36
    assert set(pooled.not_judged) <= {"budget"}  # which needs a training
    assert any("sqrt-dim (norm batch)" in row[0] for t in tables(pooled) for row in t.rows)
    only = regret(curves, norm="none", bootstrap=5)
    assert {s.group for s in only.summaries} == {"none"}
    assert "sqrt-dim" in only.not_judged


def test_a_rule_whose_statistic_is_missing():
    curves = [make_curve(name, 4.0, csg=None) for name in "ab"]
    assert regret(curves, bootstrap=5).not_judged["hasegawa-sakai-csg-cn"] == "needs csg"
    with pytest.raises(InvalidInput) as caught:
        regret(curves, ["hasegawa-sakai-csg-cn"])
    assert caught.value.subject == "rule hasegawa-sakai-csg-cn"
    assert caught.value.found == "needs csg"
    mixed = regret([make_curve("c", 4.0), *curves], ["hasegawa-sakai-csg-cn"], bootstrap=5)
    assert summary(mixed, "hasegawa-sakai-csg-cn").left_out == {"needs csg": 2}


def test_bad_input():
    curves = study(n=2, per=1)
    with pytest.raises(NotFound) as missing:
        regret(curves, ["magic"])
    assert "sqrt-dim" in missing.value.candidates
    for bad in ({"metrics": ["f1"]}, {"metrics": []}, {"norm": "layer"}, {"bootstrap": 0}):
        with pytest.raises(InvalidInput):
            regret(curves, (), **bad)
    with pytest.raises(InvalidInput):
        regret([], ())
    with pytest.raises(InvalidInput) as caught:
        regret(study(norm="none"), ["sqrt-dim"])
    assert "norm batch" in caught.value.found
    with pytest.raises(InvalidInput):
        regret(curves, [Fixed(), Fixed(default=2.0)])  # one name
    with pytest.raises(InvalidInput):
        given_rules([lambda task: 1.0])
    few = Curve(**{**vars(curves[0]), "temperatures": np.array(GRID[:2]),
                   "metrics": {k: v[:2] for k, v in curves[0].metrics.items()},
                   "outcomes": curves[0].outcomes[:2]})  # fmt: skip
    with pytest.raises(InvalidInput) as caught:
        regret([few], ())
    assert "temperatures" in caught.value.expected
    bare = Curve(**{**vars(curves[0]), "metrics": {}})
    with pytest.raises(NotFound):
        regret([bare], ())


def test_the_bootstrap_is_seeded_and_touches_no_global_state(rng_guard):
    curves = study()
    with rng_guard():
        first = regret(curves, ["sqrt-dim"], bootstrap=50, seed=1)
        again = regret(curves, ["sqrt-dim"], bootstrap=50, seed=1)
        other = regret(curves, ["sqrt-dim"], bootstrap=50, seed=2)
    assert dumps(first) == dumps(again)
    assert first.summaries[0].mean.value == other.summaries[0].mean.value
    assert first.summaries[0].mean.interval != other.summaries[0].mean.interval


# ------------------------------------------------------------------ records and tables
def test_json_markdown_csv(tmp_path):
    report = regret(study(n=3, per=2), bootstrap=10)
    assert json.loads(dumps(loads(dumps(report), RegretReport))) == json.loads(dumps(report))
    text = markdown(report)
    assert "hasegawa-sakai-csg-cn" in text
    assert "## Not judged" in text
    assert "-0.00 " not in text
    rows = list(csv.DictReader(io.StringIO(tasks_csv(report))))
    assert len(rows) == len(report.rows)
    assert rows[0]["dataset"] == report.tasks[report.rows[0].task].dataset
    assert float(rows[0]["regret"]) == report.rows[0].regret
    assert rows[0]["lr"] == "0.1"
    files = write_regret(report, tmp_path / "out")
    assert {f.name for f in files} == {"regret.json", "regret.md", "tasks.csv", "regret.png"}
    assert {p.name for p in (tmp_path / "out").iterdir()} == {f.name for f in files}


def test_tables_say_what_was_judged():
    (table,) = tables(regret(study(n=3, per=2), ["sqrt-dim"], metrics=["nll"], bootstrap=10))
    assert table.title.endswith("regret in nats (6 tasks, 3 data sets)")
    assert len({len(row) for row in table.rows} | {len(table.columns)}) == 1
    by_rule = {row[0]: dict(zip(table.columns, row, strict=True)) for row in table.rows}
    assert by_rule["T = 1"]["gain over T = 1"] == "-"
    assert by_rule["sqrt-dim"]["coefficients"] == "published"
    assert by_rule["sqrt-dim"]["better than T = 1"].endswith("]")
