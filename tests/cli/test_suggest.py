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


def test_version_and_help(run):
    assert run("--version").out.startswith("temperance 0.")
    for verb in ("suggest", "rules", "train", "predict"):
        result = run(verb, "--help")
        assert result.code == 0
        assert "Example: temperance" in result.out
