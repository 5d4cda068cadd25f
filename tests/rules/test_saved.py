"""Fitted rules as records and as files, and the statistics rule."""

import json
import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from temperance import Task, suggest
from temperance.errors import InvalidInput, NotFound
from temperance.records import Statistic, dumps, loads
from temperance.rules import (
    FittedDomain,
    FittedRule,
    HasegawaSakai,
    HasegawaSakaiCsgCn,
    SqrtDim,
    StatisticsRule,
    load_rule,
    save_rule,
)
from temperance.rules.statistics import parse_term

DOMAIN = FittedDomain(
    feature_dim=(16, 1024),
    n_classes=(2, 100),
    statistics=(("csg", (0.01, 3.0)),),
    statistic_settings=(("csg", (("k", 3), ("n_samples", (100, 250)))),),
    training=(("optimizer", ("sgd",)), ("lr", (0.01, 0.3)), ("steps", (1000,))),
    source="24 tasks of 6 data sets",
)
CORRECTED = FittedRule(
    HasegawaSakaiCsgCn(alpha=0.4, beta=8.0, gamma=1.5, delta=-2.0),
    DOMAIN,
    norm="batch",
    fit={"datasets": ["digits", "wine"], "intervals": {"alpha": [0.3, 0.5]}},
)
HEURISTIC = FittedRule(
    StatisticsRule(0.3, (("log(M)", 0.4), ("silhouette", -1.0), ("log(n)", 0.1))),
    FittedDomain((16, 1024), (2, 100), n_samples=(100, 5000), statistics=(("silhouette", (0, 1)),)),
    norm="none",
)


def task(m=256, c=10, csg=0.7, **training):
    return Task(m, c, n_samples=1000, statistics={"csg": csg}, training=training)


# ------------------------------------------------------------------ as a rule
def test_a_fitted_rule_is_a_rule():
    found = suggest(task(), CORRECTED)
    expected = 0.4 * 16 + 8.0 + 1.5 * math.log(0.7) - 2.0 * math.log(10)
    assert found.temperature == found.unclipped == pytest.approx(expected)
    assert sum(found.terms.values()) == pytest.approx(expected)
    assert (found.rule, found.norm) == ("hasegawa-sakai-csg-cn (fitted)", "batch")
    assert found.in_domain
    assert "hasegawa-sakai-csg-cn" in found.others  # the published one is another rule
    assert loads(dumps(found)) == found
    assert CORRECTED.fitted_on == ("digits", "wine")
    assert len({CORRECTED, replace(CORRECTED)}) == 1


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (task(m=2048), "M = 2048 is outside the 16 to 1024"),
        (task(c=101), "C = 101"),
        (task(csg=5.0), "csg = 5 is outside the 0.01 to 3"),
        (task(lr=1.0), "lr = 1 is outside the 0.01 to 0.3"),
        (task(optimizer="adamw"), "optimizer is adamw, the rule was fitted on sgd"),
        (task(steps=2000), "steps = 2000"),
    ],
)
def test_outside_its_own_domain_it_extrapolates_and_says_so(other, words):
    found = suggest(other, CORRECTED)
    assert not found.in_domain
    assert any(words in reason for reason in found.reasons)
    assert "extrapolated" in found.reasons[-1]
    assert found.temperature == found.unclipped
    assert found.fallback is None


def test_inside_and_unknown_trainings_pass():
    assert suggest(task(lr=0.1, steps=1000, optimizer="sgd", momentum=0.5), CORRECTED).in_domain
    other = Statistic(0.7, settings={"k": 20})
    assert not suggest(Task(256, 10, statistics={"csg": other}), CORRECTED).in_domain


def test_a_named_fallback_answers_and_values_that_cannot_train_never_get_out():
    careful = replace(CORRECTED, fallback="hasegawa-sakai")
    found = suggest(task(m=2048), careful)
    assert found.fallback == "hasegawa-sakai"
    cold = replace(CORRECTED, rule=HasegawaSakaiCsgCn(alpha=0.0, beta=-5.0, gamma=0.0, delta=0.0))
    assert suggest(task(), cold).temperature == 1.0
    assert suggest(task(), replace(CORRECTED, rule=HasegawaSakai(upper=5.0))).temperature == 1.0


def test_rules_that_cannot_be():
    with pytest.raises(InvalidInput):
        replace(CORRECTED, norm="bn")
    with pytest.raises(NotFound):
        replace(CORRECTED, fallback="nowhere")


def test_a_rule_without_clips_has_none():
    rule = FittedRule(SqrtDim(0.5), FittedDomain((16, 512), (2, 10)), norm="layer")
    assert not hasattr(rule, "upper")
    assert suggest(Task(64, 5), rule).temperature == 4.0
    assert suggest(Task(64, 5), rule).norm == "layer"


# ------------------------------------------------------------------ files
@pytest.mark.parametrize("rule", [CORRECTED, HEURISTIC], ids=["formula", "statistics"])
def test_round_trip(rule, tmp_path):
    file = tmp_path / "rule.json"
    save_rule(rule, file)
    again = load_rule(file)
    assert again == rule
    described = Task(64, 5, 200, statistics={"csg": 0.5, "silhouette": 0.25})
    assert again(described) == rule(described)
    assert suggest(described, str(file)) == suggest(described, rule)


@given(st.lists(st.floats(-1e3, 1e3), min_size=4, max_size=4))
def test_coefficients_survive_to_the_last_bit(tmp_path_factory, values):
    file = tmp_path_factory.mktemp("rules") / "rule.json"
    rule = replace(CORRECTED, rule=HasegawaSakaiCsgCn(*values))
    save_rule(rule, file)
    assert load_rule(file).rule == rule.rule


def test_nothing_half_written(tmp_path):
    file = tmp_path / "rule.json"
    save_rule(CORRECTED, file)
    before = file.read_bytes()
    with pytest.raises(InvalidInput):
        save_rule(replace(CORRECTED, fit={"value": math.nan}), file)
    assert file.read_bytes() == before
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ({"kind": "report"}, "JSON of another kind"),
        ({"schema": 2}, "2"),
        ({"coefficients": {"alpha": 1.0}}, "beta, delta, eps, gamma, log_base, upper"),
        ({"coefficients": {"zeta": 1.0}}, "zeta"),
        ({"coefficients": {"alpha": "one"}}, "'one'"),
        ({"coefficients": {"alpha": True}}, "True"),
        ({"coefficients": [1.0]}, "AttributeError"),
        ({"norm": "bn"}, "'bn'"),
        ({"domain": {"feature_dim": [1, 2], "classes": [2, 3]}}, "classes"),
        ({"domain": None}, "AttributeError"),
        ({"schema": True}, "True"),
        ({"rule": "rule.json"}, "rule.json"),
        ({"fit": {"objective": "val_nll"}}, "does not name its datasets"),
        ({"fit": {"datasets": "digits"}}, "digits"),
        ({"fit": {"datasets": [1]}}, "[1]"),
        ({"fit": None}, "None"),
        ({"norm": ["batch"]}, "batch"),
    ],
)
def test_files_that_cannot_be_read(change, found, tmp_path):
    file = tmp_path / "rule.json"
    save_rule(CORRECTED, file)
    file.write_text(json.dumps({**json.loads(file.read_text()), **change}))
    with pytest.raises(InvalidInput) as caught:
        load_rule(file)
    assert found in caught.value.found


@pytest.mark.parametrize(
    "change",
    [
        {"feature_dim": None},
        {"feature_dim": []},
        {"feature_dim": [512]},
        {"feature_dim": [512, 16]},
        {"feature_dim": [16.5, 512]},
        {"n_classes": ["2", "10"]},
        {"n_classes": [2, 10**400]},
        {"n_samples": [None, 5]},
        {"statistics": [["csg", 0.5]]},
        {"statistics": [["csg", [0.5, "high"]]]},
        {"statistic_settings": [["csg", [["k"]]]]},
        {"training": [["lr", []]]},
        {"training": [["lr", [None]]]},
        {"source": 3},
        {"temperatures": [0, 8]},
        {"temperatures": [8, 1]},
    ],
    ids=str,
)
def test_a_damaged_domain_is_named_and_never_just_dropped(change, tmp_path):
    file = tmp_path / "rule.json"
    save_rule(CORRECTED, file)
    content = json.loads(file.read_text())
    file.write_text(json.dumps({**content, "domain": {**content["domain"], **change}}))
    with pytest.raises(InvalidInput) as caught:
        load_rule(file)
    assert caught.value.subject == f"rule file {file}, fitted domain, {next(iter(change))}"


def test_numbers_that_json_does_not_have_and_clips_that_leave_nothing(tmp_path):
    file = tmp_path / "rule.json"
    save_rule(CORRECTED, file)
    text = file.read_text()
    file.write_bytes(b"\xef\xbb\xbf" + text.encode())  # what some editors put in front
    assert load_rule(file) == CORRECTED
    for old, new in (
        ("0.4,", "NaN,"),
        ("8.0", "1e999"),
        ("512.0", "0"),
        ("0.4,", f"1{'0' * 400},"),
    ):
        assert old in text
        file.write_text(text.replace(old, new, 1))
        with pytest.raises(InvalidInput):
            load_rule(file)


def test_no_temperature_beyond_those_of_the_runs(tmp_path):
    tried = replace(DOMAIN, temperatures=(0.5, 10.0))
    file = tmp_path / "rule.json"
    save_rule(replace(CORRECTED, domain=tried), file)
    rule = load_rule(file)
    assert rule.domain == tried
    assert suggest(task(m=64), rule).temperature == pytest.approx(rule(task(m=64)))
    hot = suggest(task(m=1024, csg=Statistic(2.0, (1.0, 3.0))), rule)
    assert (hot.temperature, hot.in_domain, hot.fallback) == (10.0, False, None)
    assert hot.unclipped > 10
    assert "its runs tried T = 0.5 to 10" in hot.reasons[0]
    assert hot.interval[1] == 10.0
    huge = replace(HEURISTIC, rule=StatisticsRule(40.0), domain=tried)  # e^40
    assert suggest(task(), huge).temperature == 10.0


def test_files_that_are_no_rules(tmp_path):
    file = tmp_path / "rule.json"
    for text in ("{", "[]", "", '{"kind": "temperance rule", "schema": 1}'):
        file.write_text(text)
        with pytest.raises(InvalidInput):
            suggest(task(), str(file))
    save_rule(CORRECTED, file)
    file.write_text(file.read_text().replace("hasegawa-sakai-csg-cn", "nobody"))
    with pytest.raises(NotFound):
        load_rule(file)
    with pytest.raises(NotFound) as caught:
        load_rule(tmp_path / "other.json")
    assert "no such file" in caught.value.found


# ------------------------------------------------------------------ the statistics rule
@given(st.floats(-2, 2), st.floats(-1, 1), st.floats(-1, 1), st.integers(1, 4096))
def test_log_t_is_the_sum(offset, by_m, by_overlap, m):
    rule = StatisticsRule(offset, (("log(M)", by_m), ("overlap", by_overlap)))
    there = Task(m, 10, statistics={"overlap": 0.3})
    expected = offset + by_m * math.log(m) + by_overlap * 0.3
    assert math.log(rule(there)) == pytest.approx(expected, abs=1e-9)
    assert math.prod(rule.terms(there).values()) == pytest.approx(rule(there))
    assert rule.needs == ("overlap",)


def test_values_without_a_logarithm():
    rule = StatisticsRule(0.0, (("log(s)", 1.0),))
    assert rule(Task(8, 2, statistics={"s": 0.0})) == 0.0
    assert StatisticsRule(0.0, (("log(s)", -1.0),))(Task(8, 2, statistics={"s": 0})) == math.inf
    assert math.isnan(rule(Task(8, 2, statistics={"s": -1.0})))
    assert StatisticsRule(1e5)(Task(8, 2)) == math.inf
    for value in (0.0, -1.0):
        assert suggest(Task(8, 2, statistics={"s": value}), rule).temperature == 1.0


def test_what_a_task_lacks_is_named():
    with pytest.raises(InvalidInput) as caught:
        suggest(Task(8, 2, 100), HEURISTIC)
    assert caught.value.expected == "the statistic silhouette"
    assert "--statistic silhouette=VALUE" in caught.value.fix
    with pytest.raises(InvalidInput) as caught:
        suggest(Task(8, 2, statistics={"silhouette": 0.1}), HEURISTIC)
    assert "n" in caught.value.expected
    outside = suggest(Task(16, 2, 10, statistics={"silhouette": 0.1}), HEURISTIC)
    assert outside.reasons[0].startswith("n = 10 is outside the 100 to 5000")


@pytest.mark.parametrize(
    "make",
    [
        lambda: StatisticsRule(math.nan),
        lambda: StatisticsRule(0.0, (("log(M)", math.inf),)),
        lambda: StatisticsRule(0.0, (("M", 1.0), ("M", 2.0))),
        lambda: StatisticsRule(0.0, (("log(M", 1.0),)),
        lambda: parse_term("sqrt(M)"),
        lambda: parse_term(""),
    ],
)
def test_terms_that_cannot_be(make):
    with pytest.raises(InvalidInput):
        make()
