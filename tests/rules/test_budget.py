"""The law of the budget: its value, interval, domain, file, and when suggest takes it."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from temperance import RULES, Features, Task, measure, suggest
from temperance.errors import InvalidInput, NotFound
from temperance.records import dumps, loads
from temperance.rules import Budget, Training, find_rule, load_coefficients, save_coefficients
from temperance.rules.budget import t_quantile
from temperance.rules.budget_file import PACKAGED, coefficients_of
from temperance.rules.budget_terms import TERMS, statistics_in, value_of_term
from temperance.rules.suggestion import MIN_SUGGESTED
from temperance.rules.training import FAMILIES, missing_facts, ratio_of_schedule, steps_of
from temperance.task import STATISTICS

FACTS = {
    "optimizer": "sgd", "lr": 0.05, "steps": 564, "batch_size": 64, "n": 3000, "momentum": 0.9,
    "weight_decay": 0.0, "schedule": "cosine",
}  # fmt: skip


def task(m=128, c=10, csg=None, **facts):
    statistics = {} if csg is None else {"csg": csg}
    return Task(m, c, statistics=statistics, training={**FACTS, **facts})


# ------------------------------------------------------------------ values
@pytest.mark.parametrize(
    ("m", "n", "steps", "lr", "best"),
    [(128, 1000, 564, 0.05, 7.0), (128, 3000, 2256, 0.05, 15.5), (512, 3000, 564, 0.05, 4.8)],
)
def test_the_law_gives_what_was_measured(with_law, m, n, steps, lr, best):
    suggestion = suggest(task(m, n=n, steps=steps, lr=lr), with_law())
    assert suggestion.in_domain, suggestion.reasons
    assert suggestion.temperature == pytest.approx(best, rel=0.4)
    assert math.prod(suggestion.terms.values()) == pytest.approx(suggestion.temperature)


def test_the_value_is_the_sum_over_terms(with_law):
    rule = with_law()
    values = dict(rule.coefficients.families("nll")["sgd"].terms)
    by_hand = (
        0.6715 + values["log(M)"] * math.log(128) + values["log(n)"] * math.log(3000)
        + values["log(steps)"] * math.log(564) + values["log(lr)"] * math.log(0.05)
    )  # fmt: skip
    assert rule(task()) == pytest.approx(math.exp(by_hand))


def test_each_family_has_its_own_law_and_adam_is_adamw_without_decay(with_law):
    rule = with_law()
    for optimizer in FAMILIES["adam"]:
        given = task(optimizer=optimizer, lr=1e-3, steps=640, n=4096, schedule="constant")
        expected = -2.0 + 0.5 * math.log(10) + 0.1 * math.log(1e-3) * math.log(10)
        assert rule(given) == pytest.approx(math.exp(expected))
    outside = [
        suggest(task(optimizer=name, lr=1e-3, weight_decay=wd), rule).reasons
        for name, wd in (("adamw", 0.1), ("adam", 0.0), ("adam", 0.1), ("radam", 0.0))
    ]
    assert [any("optimizer is" in text for text in found) for found in outside] == [
        False, False, True, True,
    ]  # fmt: skip


def test_the_interval_is_that_of_a_regression(with_law):
    """Against the textbook: b x +- t sqrt(s^2 + x' S x), with NumPy and SciPy."""
    rule, given = with_law(), task()
    law = rule.coefficients.families("nll")["sgd"]
    x = np.array([1, *np.log([128, 3000, 564, 0.05])])
    spread = np.sqrt(law.residual_sd**2 + x @ np.array(law.covariance) @ x)
    for level in (0.5, 0.8, 0.95):
        half = stats.t.ppf((1 + level) / 2, 8) * spread
        expected = rule(given) * np.exp([-half, half])
        np.testing.assert_allclose(rule.prediction(given, level), expected, rtol=3e-3)
    wide, narrow = suggest(given, rule).prediction["95 %"], suggest(given, rule).prediction["80 %"]
    assert wide[0] < narrow[0] < rule(given) < narrow[1] < wide[1]
    assert suggest(given, rule).interval == wide
    far = rule.prediction(task(lr=2.0))
    assert far[1] / far[0] > wide[1] / wide[0]  # less is known far from the runs


def test_quantiles_of_t():
    for degrees in (3, 5, 10, 30, 1000):
        for level in (0.5, 0.8, 0.9, 0.975, 0.995):
            expected = stats.t.ppf(level, degrees)
            assert t_quantile(level, degrees) == pytest.approx(expected, rel=0.02, abs=1e-9)
    for level in (0.4, 1.0):
        with pytest.raises(InvalidInput):
            t_quantile(level, 5)


@settings(max_examples=50, deadline=None)
@given(
    st.integers(1, 10**5), st.integers(2, 1000), st.integers(2, 10**7), st.integers(1, 10**7),
    st.floats(1e-6, 10), st.integers(1, 4096), st.sampled_from(["sgd", "adam", "adamw"]),
)  # fmt: skip
def test_whatever_is_asked_t_is_one_that_was_tried(m, c, n, steps, lr, batch, optimizer):
    rule = Budget(coefficients_of(_LAW))
    facts = {"n": n, "steps": steps, "lr": lr, "batch_size": batch, "optimizer": optimizer}
    suggestion = suggest(task(m, c, **facts), rule)
    assert 1.0 <= suggestion.temperature <= 32.0
    assert suggestion.in_domain == (not suggestion.reasons)
    low, high = suggestion.interval
    assert 1.0 <= low <= high <= 32.0
    assert loads(dumps(suggestion)) == suggestion


def test_the_contract_of_the_table(with_law):
    rule = with_law()
    assert (rule.name, rule.norm, rule.needs) == ("budget", "batch", ())
    assert rule.fallback in RULES
    assert rule.formula.startswith("T =")
    assert all((rule.reference, rule.trust, rule.domain.source))


# ------------------------------------------------------------------ domain and fallback
def test_outside_the_domain_each_fact_is_named_with_its_range(with_law):
    suggestion = suggest(task(m=2048, c=4, n=500, steps=9000, momentum=0.5), with_law())
    assert not suggestion.in_domain
    text = "; ".join(suggestion.reasons)
    for part in (
        "M = 2048 is outside the 32 to 512", "C = 4", "n = 500 is outside the 1000 to 9000",
        "steps = 9000 is outside the 188 to 2256", "momentum = 0.5",
        "its runs tried T = 1 to 32", "T = 32 is the nearest",
    ):  # fmt: skip
        assert part in text
    assert (suggestion.temperature, suggestion.fallback) == (32.0, None)
    assert suggestion.unclipped > 32


def test_below_the_smallest_t_the_nearest_answers_and_no_fallback(with_law):
    suggestion = suggest(task(steps=1, lr=1e-4), with_law())
    assert suggestion.unclipped < 0.1
    assert (suggestion.temperature, suggestion.fallback) == (1.0, None)


def test_below_what_can_train_the_smallest_that_can_answers(with_law):
    suggestion = suggest(task(steps=1, lr=1e-4), with_law(temperatures=[0.01, 32.0]))
    assert suggestion.unclipped < 0.1
    assert (suggestion.temperature, suggestion.fallback) == (MIN_SUGGESTED, None)
    assert suggestion.reasons[-1] == "T = 0.1 is the nearest that can train"


def test_remarks_of_a_training_are_reasons(with_law):
    suggestion = suggest(task(remarks=["sgd with nesterov True"]), with_law())
    assert suggestion.reasons[0].startswith("sgd with nesterov True")
    assert suggestion.fallback is None


def test_a_law_of_statistics_falls_back_where_one_has_no_logarithm(law_content, with_law):
    law = law_content["targets"]["nll"]["adam"]
    law["terms"] = {"log(csg)": 0.5, "steps_of": 0.0} | {"log(csg) * log(steps)": 0.1}
    law["terms"].pop("steps_of")
    law["covariance"] = [[0.0] * 3] * 3
    law["domain"]["csg"] = [0.1, 2.0]
    rule = with_law()
    assert rule.needs == ("csg",)
    adam = {"optimizer": "adamw", "lr": 1e-3}
    assert suggest(task(csg=1.0, **adam), rule).temperature == pytest.approx(1.0)  # exp(-2) < 1
    assert any("csg = 5" in r for r in suggest(task(csg=5.0, **adam), rule).reasons)
    zero = suggest(task(m=512, csg=0.0, **adam), rule)
    assert zero.fallback == "hasegawa-sakai"
    assert zero.prediction == {}
    with pytest.raises(InvalidInput) as caught:
        suggest(task(**adam), rule)
    assert caught.value.expected == "the statistic csg"


# ------------------------------------------------------------------ who answers by itself
def test_suggest_takes_the_law_if_the_file_says_so_and_the_facts_are_there(with_law):
    rule = with_law(default=True)
    assert suggest(task()).rule == "budget"
    assert find_rule("budget", task()) == rule
    for name in ("optimizer", "lr", "steps", "batch_size", "momentum", "weight_decay", "n"):
        lacking = task()
        lacking = replace(lacking, training={k: v for k, v in FACTS.items() if k != name})
        assert missing_facts(lacking) == (name,)
        found = suggest(lacking)
        assert found.rule == "hasegawa-sakai"
        assert found.others["budget"].note == f"needs of the training: {name}"
    assert suggest(task(optimizer="lion")).rule == "hasegawa-sakai"
    assert suggest(task(optimizer="rmsprop")).rule == "hasegawa-sakai"  # a family without a law
    assert suggest(task(csg=1.0)).rule == "budget"
    with_law(default=False)
    found = suggest(task(m=512))
    assert (found.rule, found.temperature, found.norm) == ("norm-alone", 1.0, "batch")
    assert suggest(Task(512, 10)).rule == "hasegawa-sakai"  # where the training is not known
    assert suggest(task()).others["budget"].temperature == pytest.approx(rule(task()))
    assert suggest(task(), "budget").rule == "budget"


def test_asked_without_the_facts_it_says_which(with_law):
    with_law()
    with pytest.raises(InvalidInput) as caught:
        suggest(Task(128, 10, training={"optimizer": "sgd", "lr": 0.1}), "budget")
    assert "steps, batch_size, weight_decay, schedule, momentum, n" in caught.value.expected
    with pytest.raises(NotFound) as unknown:
        suggest(task(optimizer="lion"), "budget")
    assert "adamw" in unknown.value.candidates
    with pytest.raises(InvalidInput) as other:
        suggest(task(optimizer="rmsprop"), "budget")
    assert other.value.found == "rmsprop"
    for name, bad in (("lr", -1), ("steps", 0), ("momentum", 1.0), ("lr", math.nan), ("n", 1.5)):
        with pytest.raises(InvalidInput) as range_error:
            suggest(task(**{name: bad}), "budget")
        assert range_error.value.subject == f"training, {name}"
    with pytest.raises(InvalidInput) as shape:
        suggest(task(schedule="one-cycle"), "budget")
    assert shape.value.expected.endswith(": mean_lr_ratio")
    assert suggest(task(schedule="one-cycle", mean_lr_ratio=0.5), "budget").rule == "budget"


@pytest.mark.parametrize("steps", ["many", math.nan, math.inf, 10**400, 2**63, [3], True])
def test_steps_of_any_kind_give_an_error_of_ours_and_do_not_stop_other_rules(with_law, steps):
    with_law(default=True)
    with pytest.raises(InvalidInput) as caught:
        suggest(task(steps=steps), "budget")
    assert caught.value.subject == "training, steps"
    found = suggest(task(512, steps=steps))
    assert found.rule == "hasegawa-sakai"
    assert found.others["budget"].note.startswith("training, steps: expected a whole number")


@pytest.mark.parametrize("remarks", ["odd", ["odd"], ("odd",)])
def test_a_remark_is_one_text_or_many(with_law, remarks):
    reasons = suggest(task(remarks=remarks), with_law()).reasons
    assert reasons[0] == "odd: the law does not know what that does"
    assert suggest(task(remarks=3), with_law()).reasons[0].startswith("3: ")


def test_the_norm_of_the_training_is_that_of_the_suggestion():
    for norm in ("layer", "none", "batch"):
        found = suggest(task(norm=norm), "budget")
        assert (found.norm, found.in_domain) == (norm, True)
    assert suggest(task(), "budget").norm == "batch"
    odd = suggest(task(norm="group"), "budget")
    assert (odd.norm, odd.in_domain) == ("batch", False)
    endless = suggest(task(norm="layer", lr=1e300, steps=10**10), "budget")
    assert (endless.fallback, endless.norm) == ("hasegawa-sakai", "batch")


def test_rows_of_the_training_count_and_not_those_of_the_measurement(with_law):
    rule = with_law()
    rng = np.random.default_rng(0)
    features = Features.from_arrays(rng.normal(size=(40, 32)), np.arange(40) % 10)
    measured = measure(features, training=FACTS)
    assert measured.n_samples == 40
    assert rule(measured) == rule(task(m=32))
    alone = replace(measured, training={k: v for k, v in FACTS.items() if k != "n"})
    assert rule(alone) == pytest.approx(rule(task(m=32, n=40)))


def test_facts_of_another_kind_do_not_disturb(with_law):
    with_law()
    odd = Task(512, 10, training={"optimizer": object(), "lr": "fast", "note": ("a", 1)})
    found = suggest(odd)
    assert found.rule == "hasegawa-sakai"
    assert found.inputs["training"] == {"lr": "fast", "note": ["a", 1]}


# ------------------------------------------------------------------ terms and trainings
def test_every_term_of_the_table():
    training = Training(
        "sgd", lr=0.2, steps=100, batch_size=50, n=1000, mean_lr_ratio=0.5, momentum=0.5,
        weight_decay=0.01, label_noise=0.25, norm="layer", tuned_lr=0.05,
    )  # fmt: skip
    expected = {
        "log(lr/tuned_lr)": math.log(4),
        "log(M)": math.log(64), "log(C)": math.log(5), "log(n)": math.log(1000),
        "log(steps)": math.log(100), "log(lr)": math.log(0.2), "log(mean_lr)": math.log(0.1),
        "log(mean_lr_ratio)": math.log(0.5), "log(batch_size)": math.log(50),
        "log(epochs)": math.log(5), "-log(1-momentum)": math.log(2), "label_noise": 0.25,
        "log(1+label_noise)": math.log(1.25), "log(progress)": math.log(0.1 * 100 / 0.5),
        "log(1+weight_decay*progress)": math.log1p(0.01 * 20), "decays": 1.0,
        "decays * log(weight_decay)": math.log(0.01),
        "norm=layer": 1.0, "norm=none": 0.0,
    }  # fmt: skip
    found = {name: value_of_term(name, Task(64, 5), training) for name in TERMS}
    assert found == pytest.approx(expected)
    both = value_of_term("log(steps) * log(lr)", Task(64, 5), training)
    assert both == pytest.approx(math.log(100) * math.log(0.2))
    bounded = value_of_term("log(progress/(progress+5.5))", Task(64, 5), training)
    assert bounded == pytest.approx(math.log(20 / 25.5))
    without = replace(training, weight_decay=0.0)
    for term in ("decays", "decays * log(weight_decay)", "log(1+weight_decay*progress)"):
        assert value_of_term(term, Task(64, 5), without) == 0.0


def test_trainings():
    assert steps_of(100, 64, epochs=2.5) == 5
    assert steps_of(100, 64, epochs=3, steps=6) == 6
    assert steps_of(100, 64, steps=7) == 7
    steps = 37
    cosine = [(1 + math.cos(math.pi * s / steps)) / 2 for s in range(steps)]
    assert ratio_of_schedule("cosine", steps) == pytest.approx(sum(cosine) / steps)
    for bad in ({"epochs": 3, "steps": 7}, {}, {"epochs": 0}, {"epochs": math.inf}):
        with pytest.raises(InvalidInput):
            steps_of(100, 64, **bad)
    assert Training("sgd", lr=1, steps=3, batch_size=64, n=10).epochs == 3.0  # all rows each step
    facts = Training("adamw", lr=1e-3, steps=10, batch_size=2, n=10, remarks=("odd",)).facts()
    assert json.loads(json.dumps(facts)) == facts
    assert facts["remarks"] == ["odd"]


# ------------------------------------------------------------------ the file
def test_the_file_round_trips(tmp_path, law_content):
    saved = save_coefficients(law_content, tmp_path / "law.json")
    assert load_coefficients(tmp_path / "law.json") == saved
    assert save_coefficients(saved, tmp_path / "again.json") == saved
    first, again = (json.loads((tmp_path / n).read_text()) for n in ("law.json", "again.json"))
    assert first == again
    rule = Budget(saved, target="accuracy")
    assert (rule.target, rule.fitted_on, rule.default) == ("accuracy", ("fashion-mnist",), True)
    assert (rule.domain.feature_dim, rule.domain.n_classes) == ((32, 512), (10, 10))
    with pytest.raises(NotFound):
        Budget(saved, target="nll_posthoc")


def test_one_text_of_a_domain_is_no_row_of_letters(law_content):
    law_content["targets"]["nll"]["sgd"]["domain"]["optimizer"] = "sgd"
    found = coefficients_of({"kind": "temperance budget law", "schema": 1, **law_content})
    assert dict(found.families("nll")["sgd"].domain)["optimizer"] == ("sgd",)


@pytest.mark.parametrize("degrees", [1, 2])
@pytest.mark.parametrize("level", [0.5, 0.9, 0.975, 0.9995])
def test_quantiles_of_the_smallest_fits_are_exact(degrees, level):
    assert t_quantile(level, degrees) == pytest.approx(stats.t.ppf(level, degrees))
    assert t_quantile(level, degrees + 0.9) >= stats.t.ppf(level, degrees + 0.9)


def _change(path, value):
    def change(content):
        *way, last = path.split("/")
        for part in way:
            content = content[part]
        if value is None:
            del content[last]
        else:
            content[last] = value

    return change


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("targets/nll/sgd/covariance", [[1.0]]),
        ("targets/nll/sgd/covariance", None),
        ("targets/nll/adam/covariance", [[1.0, 2.0, 0, 0], [0.0, 1.0, 0, 0], [0] * 4, [0] * 4]),
        ("targets/nll/sgd/residual_sd", -1.0),
        ("targets/nll/sgd/residual_sd", float("nan")),
        ("targets/nll/sgd/degrees_of_freedom", 0),
        ("targets/nll/sgd/intercept", "0"),
        ("targets/nll/sgd/terms/log(M)", True),
        ("targets/nll/sgd/domain/steps", [9, 1]),
        ("targets/nll/sgd/domain/optimizer", []),
        ("targets/nll/sgd/domain/color", [1, 2]),
        ("targets/nll/sgd/domain/M", None),
        ("targets/nll/sgd/domain/M", [1.5, 2]),
        ("targets/nll/sgd/more", 1),
        ("targets/nll", {"lion": {}}),
        ("targets/loss", {}),
        ("target", "nll_posthoc"),
        ("temperatures", [2.0, 1.0]),
        ("default", "yes"),
        ("version", ""),
        ("fit/datasets", None),
        ("fit", None),
        ("unknown", 1),
    ],
)
def test_a_file_that_cannot_be_used_is_refused(tmp_path, law_content, path, value):
    _change(path, value)(law_content)
    with pytest.raises(InvalidInput):
        save_coefficients(law_content, tmp_path / "law.json")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "term",
    [
        "log(momentum)",
        "steps",
        "log(steps) * ",
        "a * b * c",
        "log(a",
        "progress",
        "log(progress/(progress+0))",
        "log(progress/(progress+1e999))",
        "log(progress/(progress+-))",
    ],
)
def test_a_term_that_is_not_known(tmp_path, law_content, term):
    law_content["targets"]["nll"]["sgd"]["terms"] = {term: 1.0}
    with pytest.raises(NotFound):
        save_coefficients(law_content, tmp_path / "law.json")


@pytest.mark.parametrize(
    "text", ["", "[]", '{"kind": "temperance rule"}', '{"kind": "temperance budget law"}', "NaN"]
)
def test_another_file(tmp_path, text):
    (tmp_path / "law.json").write_text(text)
    with pytest.raises(InvalidInput) as caught:
        load_coefficients(tmp_path / "law.json")
    assert "law.json" in caught.value.subject
    with pytest.raises(NotFound):
        load_coefficients(tmp_path / "nothing.json")


# ------------------------------------------------------------------ the file of the library
def test_the_library_comes_with_coefficients():
    assert "budget" in RULES, f"rules/{PACKAGED} is missing"


def test_the_coefficients_of_the_library():
    found = load_coefficients()
    assert RULES["budget"] == Budget(found)
    held_out = {
        "fashion-mnist", "glyphs-kana", "wordnet-fields", "word-lists", "satellite", "vowel",
        "german-credit", "emoji", "glyphs-cyrillic", "glyphs-symbols", "tate-media",
        "computing-terms", "soybean", "dna", "vehicle", "cells", "credit", "stackoverflow",
    }  # fmt: skip
    assert not held_out & set(found.fit["datasets"])
    for _, families in found.targets:
        assert {"sgd", "adam"} <= dict(families).keys()
        for _, law in families:
            assert set(statistics_in(tuple(t for t, _ in law.terms))) <= set(STATISTICS)
            table = np.array(law.covariance)
            assert np.linalg.eigvalsh(table).min() >= -1e-9 * np.abs(table).max()
            assert {"optimizer", "lr", "steps", "batch_size"} <= dict(law.domain).keys()


def test_what_to_expect_comes_from_the_held_out_table(with_law):
    held = {"tasks": 18, "datasets": 7, "gain": [0.36, -0.02, 1.4], "median_gain": 0.011,
            "better": [0.72, 0.25, 0.95]}  # fmt: skip
    law = with_law(fit={"datasets": [], "held_out": {"sgd": held}})
    training = {"optimizer": "sgd", "lr": 0.05, "momentum": 0.9, "weight_decay": 0.0,
                "steps": 564, "batch_size": 64, "schedule": "cosine"}  # fmt: skip
    task = Task(128, 10, n_samples=3000, training=training)
    text = suggest(task, law).expectation
    assert "18 trainings of 7 held-out data sets" in text
    assert "72 % (25 to 95 %)" in text
    assert "0.011 lower in the middle one and 0.36 on average (-0.02 to 1.4)" in text
    assert suggest(task, with_law()).expectation == ""
    assert suggest(task, "sqrt-dim").expectation == ""


def test_what_was_judged_with_a_batch_norm_is_not_told_of_other_norms():
    held = {"tasks": 18, "datasets": 7, "gain": [0.36, -0.02, 1.4], "median_gain": 0.011,
            "better": [0.72, 0.25, 0.95]}  # fmt: skip
    found = replace(load_coefficients(), fit={"datasets": [], "held_out": {"sgd": held}})
    training = {"optimizer": "sgd", "lr": 0.05, "momentum": 0.9, "weight_decay": 0.0,
                "steps": 564, "batch_size": 64, "schedule": "cosine"}  # fmt: skip
    task = Task(128, 10, n_samples=3000, training=training)
    assert "18 trainings" in suggest(task, Budget(found)).expectation
    for norm in ("layer", "none"):
        other = suggest(replace(task, training={**training, "norm": norm}), Budget(found))
        assert other.norm == norm
        assert f"known for norm batch only, not {norm}" in other.expectation
        assert "trainings" not in other.expectation


def test_where_nothing_beat_t_1_the_rule_says_so():
    training = {"optimizer": "adamw", "lr": 1e-3, "weight_decay": 0.01, "steps": 564,
                "batch_size": 64, "schedule": "cosine"}  # fmt: skip
    found = suggest(Task(128, 10, n_samples=3000, training=training))
    assert (found.rule, found.temperature, found.norm) == ("norm-alone", 1.0, "batch")
    assert found.expectation.startswith("no form was shown to beat T = 1 with adamw")


def test_the_default_is_what_fresh_data_support():
    training = {"optimizer": "sgd", "lr": 0.05, "momentum": 0.9, "weight_decay": 0.0,
                "steps": 564, "batch_size": 64, "schedule": "cosine"}  # fmt: skip
    assert not load_coefficients().default  # studies/budget/results/regret-fresh.md
    known = Task(128, 10, n_samples=3000, training=training)
    found = suggest(known)
    assert (found.rule, found.temperature) == ("norm-alone", 1.0)
    assert "no rule is shown to beat T = 1 on fresh data" in found.expectation
    law = suggest(known, "budget").temperature
    progress = 0.025 * 564 / 0.1
    assert law == pytest.approx(0.45 * progress**0.48, rel=0.03)
    assert f"T = {law:.3g} here (rule budget)" in found.expectation
    for norm in ("layer", "none"):
        other = suggest(replace(known, training={**training, "norm": norm}))
        assert (other.rule, other.norm) == ("norm-alone", norm)
    adam = {**training, "optimizer": "adamw", "lr": 1e-3, "tuned_lr": 1e-3}
    tuned = suggest(replace(known, training=adam))
    assert tuned.rule == "budget"
    assert 3 < tuned.temperature < 9
    assert "held-out data sets this law beat T = 1" in tuned.expectation
    assert suggest(Task(512, 10, n_samples=3000)).rule == "hasegawa-sakai"


_LAW = {
    "kind": "temperance budget law", "schema": 1, "version": "test", "default": False,
    "target": "nll", "temperatures": [1.0, 32.0], "source": "a test", "fit": {"datasets": []},
    "targets": {
        "nll": {
            family: {
                "intercept": 0.67,
                "terms": {"log(M)": 0.1, "log(n)": -0.4, "log(steps)": 0.9, "log(lr)": 0.7},
                "covariance": [[0.01 * (i == j) for j in range(5)] for i in range(5)],
                "residual_sd": 0.24, "degrees_of_freedom": 8, "n_settings": 13,
                "domain": {"M": [32, 512], "C": [10, 10], "n": [1000, 9000]},
            }
            for family in ("sgd", "adam")
        }
    },
}  # fmt: skip


# ------------------------------------------------------------------ a rate that was tuned at T = 1
TUNED = {
    "intercept": math.log(2), "terms": {"log(lr/tuned_lr)": 0.5},
    "covariance": [[0.04, 0.0], [0.0, 0.0]], "residual_sd": 0.5, "degrees_of_freedom": 12,
    "n_settings": 100, "domain": {"M": [16, 512], "C": [2, 100], "n": [300, 6000],
    "lr/tuned_lr": [0.1, 100], "optimizer": ["sgd"]},
}  # fmt: skip


def with_tuned(**families):
    content = json.loads(_packaged().read_text())
    content["targets"] = {"nll_posthoc": {**content["targets"]["nll_posthoc"], **families}}
    return Budget(coefficients_of(content))


def _packaged():
    from importlib import resources

    return resources.files("temperance.rules") / PACKAGED


@pytest.mark.parametrize("ratio", [1, 3, 27])
def test_a_tuned_rate_has_a_law_of_its_own(ratio):
    rule = with_tuned(**{"sgd, tuned": TUNED})
    known = task(lr=0.01 * ratio, tuned_lr=0.01)
    assert rule(known) == pytest.approx(2 * math.sqrt(ratio))
    found = suggest(known, rule)
    assert found.in_domain, found.reasons
    assert found.terms == pytest.approx({"intercept": 2, "log(lr/tuned_lr)": math.sqrt(ratio)})
    assert rule(task(lr=0.01 * ratio)) != pytest.approx(2 * math.sqrt(ratio))
    low, high = rule.prediction(known)
    assert low < rule(known) < high


def test_the_law_of_a_tuned_rate_is_for_its_norms():
    laws = {"sgd, tuned": {**TUNED, "domain": {**TUNED["domain"], "norm": ["batch"]}}}
    rule = with_tuned(**laws)
    known = task(lr=0.05, tuned_lr=0.05)
    assert rule(known) == pytest.approx(2)
    for norm in ("layer", "none"):
        other = task(lr=0.05, tuned_lr=0.05, norm=norm)
        assert rule(other) == pytest.approx(rule(task(lr=0.05, norm=norm)))
        assert not rule.default_for(other)
        assert f"and norm {norm}" in rule.expectation(other)
        assert suggest(other).rule == "norm-alone"
    assert rule(task(lr=0.05, tuned_lr=0.05, norm="batch")) == pytest.approx(2)


def test_a_ratio_outside_of_the_fit_is_said():
    rule = with_tuned(**{"sgd, tuned": TUNED})
    found = suggest(task(lr=3.0, tuned_lr=0.001), rule)
    assert not found.in_domain
    assert any("lr/tuned_lr = 3000" in reason for reason in found.reasons)


def test_a_user_learns_that_a_tuned_rate_matters_and_where_it_does_not():
    rule = with_tuned(**{"sgd, tuned": TUNED})
    assert "say so (tuned_lr)" in rule.expectation(task())
    held = {"tasks": 59, "datasets": 6, "gain": [0.4, 0.1, 0.7], "median_gain": 0.05,
            "better": [0.75, 0.5, 0.8]}  # fmt: skip
    judged = replace(rule.coefficients, fit={"datasets": [], "held_out": {"sgd, tuned": held}})
    assert "on 59 trainings of 6" in Budget(judged).expectation(task(tuned_lr=0.01))
    assert Budget(judged).default_for(task(tuned_lr=0.01))
    assert not Budget(judged).default_for(task())
    unjudged = replace(rule.coefficients, fit={"datasets": []})
    assert Budget(unjudged).expectation(task(tuned_lr=0.01)).startswith("no figures of unseen data")
    assert not Budget(unjudged).default_for(task(tuned_lr=0.01))  # only what was judged is
    without = json.loads(_packaged().read_text())
    laws = without["targets"]["nll_posthoc"]
    without["targets"] = {"nll_posthoc": {n: v for n, v in laws.items() if "tuned" not in n}}
    plain = Budget(coefficients_of(without))
    assert plain(task(tuned_lr=0.01)) == plain(task())
    assert "not used" in plain.expectation(task(tuned_lr=0.01))


@pytest.mark.parametrize("value", [0, -1, math.inf, math.nan, "0.1", True])
def test_a_tuned_rate_is_a_positive_number(value):
    with pytest.raises(InvalidInput) as caught:
        suggest(task(tuned_lr=value), "budget")
    assert "tuned_lr" in str(caught.value)


def test_the_laws_of_a_tuned_rate_that_are_shipped():
    rule = Budget(load_coefficients())
    families = rule.coefficients.families("nll_posthoc")
    assert "adam, tuned" in families
    for family, optimizer, rate in (("sgd", "sgd", 0.05), ("adam", "adamw", 1e-3)):
        law = families.get(f"{family}, tuned")
        known = {"optimizer": optimizer, "lr": rate, "tuned_lr": rate}
        if law is None:  # fresh data did not support it
            assert "tuned_lr is not used" in rule.expectation(task(**known))
            continue
        assert rule(task(**known)) == pytest.approx(math.exp(law.intercept))
        assert 0.3 < dict(law.terms)["log(lr/tuned_lr)"] < 1.5
        assert f"{family}, tuned" in rule.coefficients.fit["held_out"]
    for target in ("nll", "accuracy"):  # of which none was judged
        assert not any("tuned" in name for name in rule.coefficients.families(target))
    facts = Training("sgd", lr=0.1, steps=9, batch_size=4, n=40, tuned_lr=0.2).facts()
    assert facts["tuned_lr"] == 0.2
    assert loads(dumps(task(tuned_lr=0.2))).training["tuned_lr"] == 0.2
