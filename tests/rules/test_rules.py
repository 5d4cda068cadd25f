"""Rules: published values, domains, fallbacks; and a contract for every row of the table."""

import json
import math
from dataclasses import asdict, dataclass, fields, replace
from types import SimpleNamespace

import numpy as np
import pytest

import temperance.rules.suggestion as suggestion_module
from temperance import RULES, Features, Task, suggest
from temperance.errors import InvalidInput, NotFound
from temperance.records import Statistic, dumps, loads
from temperance.rules import (
    AdaCos,
    Constant,
    CosFaceBound,
    HasegawaSakai,
    HasegawaSakaiCsgCn,
    NormFace,
)
from temperance.rules.suggestion import MIN_SUGGESTED
from temperance.task.csg import csg


def task(m=512, c=10, csg=None, **settings):
    statistics = {} if csg is None else {"csg": Statistic(csg, settings=settings)}
    return Task(feature_dim=m, n_classes=c, statistics=statistics)


# ------------------------------------------------------------------ values
@pytest.mark.parametrize(
    ("m", "expected"), [(512, 11.673987), (2048, 28.053974), (43, 0.0409297), (42, -0.0145918)]
)
def test_uncorrected_form(m, expected):
    assert suggest(task(m), "hasegawa-sakai").unclipped == pytest.approx(expected, abs=1e-6)


def test_corrected_form_and_its_terms():
    result = suggest(task(512, 10, 0.7))
    assert result.rule == "hasegawa-sakai-csg-cn"
    expected = {
        "sqrt(M)": 0.3191 * math.sqrt(512),
        "offset": 20.74,
        "log(csg)": 3.746 * math.log(0.7),
        "log(C)": -7.380 * math.log(10),
    }
    assert result.terms == pytest.approx(expected)
    assert result.temperature == result.unclipped == pytest.approx(sum(expected.values()))
    assert result.in_domain
    assert result.reasons == ()


def test_first_class_count_at_which_the_corrected_form_is_not_positive():
    for m, first in ((64, 24), (512, 45), (2048, 118)):
        rule = HasegawaSakaiCsgCn()
        values = {c: sum(rule.terms(task(m, c, 1.0)).values()) for c in (first - 1, first)}
        assert values[first - 1] > 0 >= values[first]


def test_log_base_is_a_field():
    ten = HasegawaSakaiCsgCn(log_base=10.0)
    assert ten.terms(task(512, 100, 0.1))["log(C)"] == pytest.approx(-7.380 * 2)
    assert ten.terms(task(512, 100, 0.1))["log(csg)"] == pytest.approx(-3.746)


def test_a_rule_itself_clips_as_published():
    assert HasegawaSakaiCsgCn()(task(512, 100, 0.5)) == 1e-8
    assert HasegawaSakai(upper=5.0)(task(2048)) == 5.0


def test_cosine_scales():
    assert 1 / AdaCos()(task(c=1000)) == pytest.approx(math.sqrt(2) * math.log(999))
    bound = 1 / CosFaceBound(0.9)(task(c=10))
    assert bound == pytest.approx(0.9 * math.log(9 * 9))
    reached = math.exp(bound) / (math.exp(bound) + 9 * math.exp(-bound / 9))
    assert reached == pytest.approx(0.9)  # ideal geometry: cos to the other centres is -1/(C-1)
    s = 1 / NormFace(0.01)(task(c=10))
    assert math.log(1 + 9 * math.exp(-s * 10 / 9)) == pytest.approx(0.01)
    assert CosFaceBound(math.exp(-0.01))(task(c=10)) == pytest.approx(NormFace(0.01)(task(c=10)))


# ------------------------------------------------------------------ domain and fallback
@pytest.mark.parametrize("c", [45, 100, 200])
def test_a_value_at_the_clip_never_reaches_a_trainer(c):
    result = suggest(task(512, c, 1.0))
    assert result.unclipped <= 0
    assert result.temperature == pytest.approx(11.673987, abs=1e-6)
    assert (result.fallback, result.in_domain) == ("hasegawa-sakai", False)


def test_csg_zero():
    result = suggest(task(512, 10, 0.0))
    assert result.unclipped == -math.inf
    assert result.fallback == "hasegawa-sakai"
    assert any("csg = 0" in reason for reason in result.reasons)
    assert loads(dumps(result)) == result


@pytest.mark.parametrize(("m", "c"), [(512, 201), (4096, 10), (64, 10), (512, 5)])
def test_outside_the_fitted_range(m, c):
    result = suggest(task(m, c, 2.0))
    assert not result.in_domain
    assert result.fallback == "hasegawa-sakai"
    assert result.temperature == pytest.approx(0.7239 * math.sqrt(m) - 4.706)


@pytest.mark.parametrize("m", [1, 30, 42, 43])
def test_below_the_zero_of_the_uncorrected_form_t_is_one(m):
    for difficulty in (None, 0.5):
        result = suggest(task(m, 10, difficulty))
        assert (result.temperature, result.fallback) == (1.0, "constant")
        assert not result.in_domain


def test_the_upper_clip():
    result = suggest(task(600_000, 10), "hasegawa-sakai")
    assert result.unclipped > 512
    assert result.temperature == 1.0
    assert any("upper clip" in reason for reason in result.reasons)


def test_csg_under_other_settings_is_outside():
    assert suggest(task(512, 10, 1.0, k=3, weighting="parzen")).in_domain
    for settings in ({"k": 20}, {"weighting": "none"}, {"n_samples": 20}):
        result = suggest(task(512, 10, 1.0, **settings))
        assert not result.in_domain
        assert "the rule assumes" in result.reasons[0]


def test_interval_follows_the_spread_of_csg():
    spread = Statistic(1.0, interval=(0.5, 2.0))
    result = suggest(Task(512, 10, statistics={"csg": spread}))
    low, high = result.interval
    assert high - low == pytest.approx(3.746 * math.log(4))
    assert low < result.unclipped < high
    assert result.unclipped_interval == result.interval
    touching_zero = suggest(Task(512, 10, statistics={"csg": Statistic(1.0, (0.0, 2.0))}))
    assert touching_zero.unclipped_interval[0] == -math.inf
    assert touching_zero.interval[0] == MIN_SUGGESTED
    assert loads(dumps(touching_zero)) == touching_zero


def test_an_interval_is_that_of_the_temperature():
    csg = Statistic(1.0, (0.8, 1.2))
    result = suggest(Task(512, 100, statistics={"csg": csg}))
    assert result.fallback == "hasegawa-sakai"
    assert result.interval is None
    low, high = result.unclipped_interval
    assert low < result.unclipped < high < 0


def test_an_interval_that_reaches_beyond_what_a_csg_can_be():
    result = suggest(Task(512, 3, statistics={"csg": Statistic(1.2, (-0.1, 2.9))}))
    assert result.unclipped_interval[0] == -math.inf
    assert result.unclipped_interval[1] == suggest(task(512, 3, 2.0)).unclipped


def test_csg_as_measured_with_two_and_three_classes_is_taken():
    rng = np.random.default_rng(0)
    for trial in range(10):
        y = np.arange(40) % (2 + trial % 2)
        features = Features.from_arrays(rng.normal(size=(40, 4)), y)
        measured = csg(features, 10, repeats=3, seed=trial)
        assert measured.interval[1] <= len(features.class_names) - 1
        suggest(Task(4, len(features.class_names), statistics={"csg": measured}))


def test_adacos_with_two_classes_falls_back_to_the_bound():
    result = suggest(task(c=2), "adacos")
    assert result.unclipped == math.inf
    assert result.fallback == "cosface-bound"
    assert result.temperature == pytest.approx(CosFaceBound()(task(c=2)))


# ------------------------------------------------------------------ bad input
def test_a_rule_that_needs_csg_without_one():
    with pytest.raises(InvalidInput) as caught:
        suggest(task(512, 10), "hasegawa-sakai-csg-cn")
    assert caught.value.expected == "the statistic csg"
    assert suggest(task(512, 10)).rule == "hasegawa-sakai"


@pytest.mark.parametrize("csg", [math.nan, math.inf, -0.1, 9.5])
def test_csg_that_cannot_be(csg):
    with pytest.raises(InvalidInput) as caught:
        suggest(task(512, 10, csg))
    assert caught.value.subject == "csg"


def test_a_csg_that_cannot_be_does_not_disturb_rules_without_it():
    result = suggest(task(512, 10, 50.0), "constant")
    assert result.temperature == 1.0
    assert result.others["hasegawa-sakai-csg-cn"].temperature is None
    assert "csg" in result.others["hasegawa-sakai-csg-cn"].note


@pytest.mark.parametrize(
    "make",
    [
        lambda: CosFaceBound(1.0),
        lambda: CosFaceBound(0.0),
        lambda: NormFace(0.0),
        lambda: NormFace(1000.0),
        lambda: HasegawaSakaiCsgCn(log_base=1.0),
        lambda: Constant(0.0),
    ],
)
def test_coefficients_that_cannot_be_used(make):
    with pytest.raises(InvalidInput):
        make()


def test_unknown_rule_names_the_known():
    with pytest.raises(NotFound) as caught:
        suggest(task(), "nope")
    assert caught.value.candidates == tuple(RULES)


# ------------------------------------------------------------------ a user's own rule
@dataclass(frozen=True)
class ClassCount:
    factor: float = 2.0
    needs = ()
    norm = "layer"

    def __call__(self, task):
        return self.factor * task.n_classes


def test_own_rule():
    result = suggest(task(c=7), ClassCount())
    assert (result.temperature, result.rule, result.norm) == (14.0, "ClassCount", "layer")
    assert set(result.others) == set(RULES)
    bad = suggest(task(c=7), ClassCount(factor=-1.0))
    assert (bad.temperature, bad.fallback) == (1.0, "constant")
    for not_a_rule in (lambda task: 1.0, 3):
        with pytest.raises(InvalidInput):
            suggest(task(), not_a_rule)


def test_own_rule_in_odd_forms():
    assert suggest(task(c=7), ClassCount).temperature == 14.0  # the class stands for its defaults
    with pytest.raises(InvalidInput):
        suggest(task(512, 10, 1.0), own(needs="csg"))
    with pytest.raises(InvalidInput) as caught:
        suggest(task(c=7), own(value=-1.0, fallback="nowhere"))
    assert caught.value.found == "'nowhere'"
    steady = own(value=3.0, needs=("csg",))
    assert suggest(task(512, 10, 0.0), steady).temperature == 3.0
    cosine = suggest(task(c=7), own(value=math.nan, norm="cosine"))
    assert (cosine.fallback, cosine.temperature < 1) == ("cosface-bound", True)
    assert suggest(task(), own(value=0.05, norm="none")).temperature == 0.05


def own(*, value=1.0, needs=(), norm="batch", fallback="constant"):
    def rule(task):
        return value

    rule.needs, rule.norm, rule.fallback = needs, norm, fallback
    return rule


def test_the_lower_clip_of_a_rule_counts():
    result = suggest(task(64, 10), HasegawaSakai(eps=5.0))
    assert (result.temperature, result.fallback) == (1.0, "constant")


def test_bare_numbers_are_statistics():
    given = Task(np.int64(512), np.int64(10), statistics={"csg": 0.7})
    assert suggest(given).temperature == suggest(task(512, 10, 0.7)).temperature
    assert type(given.feature_dim) is int


def test_own_rule_that_returns_no_number():
    def text_rule(task):
        return "warm"

    text_rule.needs, text_rule.norm = (), "batch"
    with pytest.raises(InvalidInput):
        suggest(task(), text_rule)


def test_rule_of_another_package_by_entry_point(monkeypatch):
    point = SimpleNamespace(name="class-count", load=lambda: ClassCount)
    monkeypatch.setattr(suggestion_module, "entry_points", lambda group: [point])
    assert suggest(task(c=3), "class-count").temperature == 6.0


# ------------------------------------------------------------------ the contract of the table
# The coefficients of the budget rule are in a file, and it needs a training: test_budget.
FORMULAS = [name for name in RULES if name != "budget"]


@pytest.mark.parametrize("name", FORMULAS)
def test_contract(name):
    rule = RULES[name]
    assert rule.name == name
    assert rule.norm in ("batch", "layer", "none", "cosine")
    assert set(rule.needs) <= {"csg"}
    assert rule.reference
    assert rule.formula.startswith("T =")
    assert rule.trust
    assert rule.domain.source
    assert rule.fallback is None or rule.fallback in RULES
    assert type(rule).__doc__
    again = type(rule)(**json.loads(json.dumps(asdict(rule))))
    assert again == rule
    assert all(f.type in ("float", float) for f in fields(rule))
    for m in (16, 64, 512, 2048, 8192):
        for c in (2, 10, 100, 1000):
            for difficulty in (0.0, 0.01, 1.0):
                result = suggest(task(m, c, difficulty), name)
                floor = {"cosine": 0.0, "none": 0.009}.get(rule.norm, MIN_SUGGESTED)
                assert floor < result.temperature < 512
                assert math.isfinite(result.temperature)
                assert result.in_domain == (not result.reasons)
                assert loads(dumps(result)) == result


@pytest.mark.parametrize("name", FORMULAS)
def test_coefficients_are_fields(name):
    rule = RULES[name]
    for field in fields(rule):
        if field.name in ("eps", "upper"):
            continue
        moved = replace(rule, **{field.name: getattr(rule, field.name) * 0.8 + 3e-3})
        assert moved.terms(task(512, 10, 0.7)) != rule.terms(task(512, 10, 0.7)), field.name
