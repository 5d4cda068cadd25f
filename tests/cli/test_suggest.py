"""``temperance suggest`` and ``temperance rules``."""

import pytest

from temperance import RULES, Task, suggest
from temperance.records import from_dict
from temperance.rules import FittedDomain, FittedRule, StatisticsRule, save_rule

KEYS = {"temperature", "unclipped", "rule", "norm", "in_domain", "reasons", "terms", "others"}


def test_json_has_the_keys_and_is_the_function(run):
    result = run("suggest", "--features", 512, "--classes", 10, "--json")
    assert result.code == 0
    assert set(result.json) >= KEYS
    expected = suggest(Task(feature_dim=512, n_classes=10))
    assert from_dict(result.json) == expected


def test_csg_and_rule(run):
    result = run("suggest", "-M", 512, "-C", 10, "--csg", 0.7, "--json")
    assert result.json["rule"] == "hasegawa-sakai-csg-cn"
    assert result.json["temperature"] == pytest.approx(9.631226)
    other = run("suggest", "-M", 512, "-C", 10, "--rule", "sqrt-dim", "--json")
    assert other.json["temperature"] == pytest.approx(512**0.5)


def test_text_says_t_terms_reasons_and_others(run):
    result = run("suggest", "-M", 512, "-C", 100, "--csg", 0.5)
    assert result.out.startswith("T = 11.67   (fallback hasegawa-sakai of rule")
    assert "Note: the formula gives" in result.out
    assert all(name in result.out for name in RULES)
    assert "log(csg)" in result.out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--csg", 0.5], "share, all add up"),
        (["--rule", "adacos"], "value"),
        (["--rule", "rule.json", "--statistic", "spread=0.5"], "factor, all multiply"),
    ],
)
def test_terms_are_called_what_they_are(run, tmp_path, monkeypatch, arguments, words):
    rule = StatisticsRule(0.5, (("log(M)", 0.2), ("spread", 1.0)))
    monkeypatch.chdir(tmp_path)
    save_rule(FittedRule(rule, FittedDomain((1, 999), (2, 99)), "batch"), "rule.json")
    result = run("suggest", "-M", 512, "-C", 10, *arguments)
    assert result.code == 0
    assert words in result.out


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["--features", 512], 2),
        (["--features", "wide", "--classes", 10], 2),
        (["--features", 0, "--classes", 10], 3),
        (["--features", 512, "--classes", 1], 3),
        (["--features", 512, "--classes", 10, "--csg", "nan"], 3),
        (["--features", 512, "--classes", 10, "--csg", -1], 3),
        (["--features", 512, "--classes", 10, "--rule", "hasegawa-sakai-csg-cn"], 3),
        (["--features", 512, "--classes", 10, "--rule", "nope"], 4),
        (["--features", 512, "--classes", 10, "--statistic", "=3"], 2),
        (["--features", 512, "--classes", 10, "--statistic", "a=1", "--statistic", "a=2"], 2),
        (["--features", 512, "--classes", 10, "--csg", 1, "--statistic", "csg=2"], 2),
    ],
)
def test_bad_input(run, arguments, code):
    result = run("suggest", *arguments)
    assert result.code == code
    assert result.out == ""
    assert result.err
    assert "Traceback" not in result.err


def test_errors_are_json_too(run):
    result = run("suggest", "-M", 512, "-C", 10, "--rule", "nope", "--json")
    assert result.code == 4
    assert result.json["error"]["kind"] == "NotFound"
    assert set(result.json["error"]["candidates"]) == set(RULES)


def test_rules(run):
    listed = run("rules", "--json").json["rules"]
    assert [row["rule"] for row in listed] == list(RULES)
    assert all(row["source"] and row["formula"] and row["trust"] for row in listed)
    text = run("rules").out
    assert all(name in text for name in RULES)


# ------------------------------------------------------------------ with a training
TRAINING = [
    "-M", 128, "-C", 10, "--n", 3000, "--optimizer", "sgd", "--lr", 0.05, "--batch-size", 64,
]  # fmt: skip


def test_a_training_on_the_command_line_is_one_in_python(run, with_law):
    rule = with_law(default=True)
    result = run("suggest", *TRAINING, "--epochs", 12, "--json")
    assert result.code == 0
    facts = result.json["inputs"]["training"]
    assert (facts["steps"], facts["momentum"], facts["schedule"]) == (564, 0.9, "cosine")
    assert from_dict(result.json) == suggest(Task(128, 10, n_samples=3000, training=facts))
    assert result.json["rule"] == "budget"
    assert result.json["interval"] == list(rule.prediction(Task(128, 10, training=facts)))
    same = run("suggest", *TRAINING, "--steps", 564, "--epochs", 12, "--json")
    assert same.json == result.json
    other = run("suggest", *TRAINING, "--steps", 564, "--momentum", 0.5, "--schedule", "constant",
                "--weight-decay", 0.01, "--label-noise", 0.2, "--json")  # fmt: skip
    facts = other.json["inputs"]["training"]
    assert (facts["momentum"], facts["weight_decay"], facts["label_noise"]) == (0.5, 0.01, 0.2)
    assert facts["mean_lr_ratio"] == 1.0


def test_text_says_interval_factors_and_domain(run, with_law):
    with_law(default=True)
    text = run("suggest", *TRAINING, "--steps", 564).out
    assert text.startswith("T = 3.927 ")
    assert "(rule budget, norm: batch)" in text
    assert "(80 %)" in text
    assert "(95 %)" in text
    assert "factor, all multiply" in text
    assert "inside the rule's domain" in text
    assert "188 to 2256" in text
    outside = run("suggest", *TRAINING, "--steps", 9000).out
    assert "Note: steps = 9000 is outside the 188 to 2256" in outside
    assert "tried T = 1 to 32" in outside


def test_the_law_is_among_the_others_where_it_is_not_the_default(run, with_law):
    with_law(default=False)
    result = run("suggest", *TRAINING, "--steps", 564, "--json").json
    assert (result["rule"], result["temperature"]) == ("norm-alone", 1.0)
    assert result["others"]["budget"]["temperature"] == pytest.approx(3.9266, abs=1e-3)
    named = run("suggest", *TRAINING, "--steps", 564, "--rule", "budget", "--json").json
    assert named["rule"] == "budget"
    assert run("suggest", "-M", 128, "-C", 10, "--rule", "budget").code == 3
    assert {row["rule"] for row in run("rules", "--json").json["rules"]} >= {"budget"}
    assert run("rules").code == 0


@pytest.mark.parametrize(
    ("more", "code", "word"),
    [
        ([], 3, "--steps or --epochs"),
        (["--steps", 100, "--epochs", 12], 3, "not both"),
        (["--steps", 0], 2, "--steps"),
        (["--epochs", -1], 3, "epochs"),
        (["--steps", 100, "--schedule", "linear"], 4, "linear"),
        (["--steps", 100, "--momentum", 1], 3, "momentum"),
        (["--steps", 100, "--label-noise", 1], 3, "label_noise"),
        (["--steps", 100, "--weight-decay", -1], 3, "weight_decay"),
        (["--steps", 100, "--lr", 0], 3, "lr"),
        (["--steps", 100, "--optimizer", "lion"], 4, "lion"),
        (["--steps", 100, "--optimizer", "adamw", "--momentum", 0.9], 3, "--momentum"),
    ],
)
def test_trainings_that_cannot_be(run, with_law, more, code, word):
    with_law(default=True)
    result = run("suggest", *TRAINING, *more)
    assert (result.code, result.out) == (code, "")
    assert word in result.err
    assert "Traceback" not in result.err


def test_half_a_training_is_refused(run):
    result = run("suggest", "-M", 128, "-C", 10, "--lr", 0.1)
    assert result.code == 3
    for option in ("--optimizer", "--batch-size", "--steps or --epochs", "--n"):
        assert option in result.err


@pytest.mark.parametrize(
    "changed",
    [
        {"--epochs": 1e308},
        {"--lr": 1e-320},
        {"--tuned-lr": 1e-320},
        {"--tuned-lr": "nan"},
    ],
)
def test_numbers_at_the_end_of_all_numbers_are_refused(run, changed):
    given = dict(zip(TRAINING[::2], TRAINING[1::2], strict=True)) | {"--epochs": 12} | changed
    result = run("suggest", *(part for pair in given.items() for part in pair))
    assert (result.code, result.out) == (3, "")
    assert result.err.startswith("temperance: training, ")


def test_a_tuned_rate_that_the_rule_makes_nothing_of_is_told(run):
    given = [*TRAINING, "--epochs", 12, "--tuned-lr", 0.05]
    note = "--tuned-lr is not used: rule sqrt-dim"
    assert note in run("suggest", *given, "--rule", "sqrt-dim").out
    used = "log(lr/tuned_lr)" in run("suggest", *given, "--json").json["terms"]
    assert ("--tuned-lr is not used" in run("suggest", *given).out) != used


# ------------------------------------------------------------------ norms
@pytest.mark.parametrize("norm", ["batch", "layer", "none"])
def test_the_norm_of_the_command_line_is_that_of_python(run, norm):
    given = [*TRAINING, "--epochs", 12, "--norm", norm]
    result = run("suggest", *given, "--json").json
    facts = result["inputs"]["training"]
    assert facts["norm"] == result["norm"] == norm
    assert from_dict(result) == suggest(Task(128, 10, n_samples=3000, training=facts))
    text = run("suggest", *given).out
    assert f"norm: {norm})" in text
    assert ("no norm in front of" in text) == (norm == "none")
    assert "says nothing of norm" not in text.split("Terms of")[0]


def test_a_rule_for_another_norm_says_so(run):
    plain = run("suggest", "-M", 512, "-C", 10, "--json").json
    result = run("suggest", "-M", 512, "-C", 10, "--norm", "layer")
    assert result.out.startswith("T = 11.67   (rule hasegawa-sakai, norm: batch)")
    assert "Note: T is for norm batch; the rule says nothing of norm layer." in result.out
    assert "inside the rule's domain" not in result.out
    asked = run("suggest", "-M", 512, "-C", 10, "--norm", "layer", "--json").json
    assert (plain["in_domain"], asked["in_domain"]) == (True, False)
    assert asked["temperature"] == plain["temperature"]
    assert asked["inputs"]["training"] == {"norm": "layer"}
    assert from_dict(asked) == suggest(Task(512, 10, training={"norm": "layer"}))
    batch = run("suggest", "-M", 512, "-C", 10, "--norm", "batch", "--json").json
    assert batch["in_domain"]


@pytest.mark.parametrize("norm", ["bn", "cosine", "", "Batch"])
def test_norms_that_there_are_not(run, norm):
    result = run("suggest", "-M", 512, "-C", 10, "--norm", norm)
    assert (result.code, result.out) == (2, "")
    assert "batch, layer, none" in result.err


def test_version_and_help(run):
    assert run("--version").out.startswith("temperance 0.")
    for verb in ("suggest", "rules", "train", "predict"):
        result = run(verb, "--help")
        assert result.code == 0
        assert "Example: temperance" in result.out
