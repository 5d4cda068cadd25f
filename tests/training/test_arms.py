"""The grammar of arms."""

import pytest

from temperance import Task, suggest
from temperance.errors import InvalidInput
from temperance.training.arms import DEFAULT_ARMS, merge_arms, parse_arm

SUGGESTION = suggest(Task(feature_dim=512, n_classes=10))


def arm(text):
    return parse_arm(text, feature_dim=64, suggestion=SUGGESTION)


@pytest.mark.parametrize(
    ("text", "norm", "temperature", "smoothing", "title"),
    [
        ("plain", "none", 1.0, 0.0, "plain, T = 1"),
        ("bn", "batch", 1.0, 0.0, "BN, T = 1"),
        ("ln:T=2.5", "layer", 2.5, 0.0, "LN, T = 2.5"),
        ("bn:T=sqrt", "batch", 8.0, 0.0, "BN, T = 8"),
        ("bn:T=suggested", "batch", SUGGESTION.temperature, 0.0, "BN, T = 11.7 (suggested)"),
        ("bn:T=4.0012", "batch", 4.0012, 0.0, "BN, T = 4.0012"),
        ("plain:smoothing=0.1", "none", 1.0, 0.1, "plain, T = 1, smoothing 0.1"),
        ("bn:T=4:smoothing=0.2", "batch", 4.0, 0.2, "BN, T = 4, smoothing 0.2"),
    ],
)
def test_grammar(text, norm, temperature, smoothing, title):
    found = arm(text)
    assert (found.norm, found.temperature, found.smoothing) == (norm, temperature, smoothing)
    assert (found.name, found.title) == (text, title)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "gn",
        "bn:T",
        "bn:T=",
        "bn:T=warm",
        "bn:T=0",
        "bn:T=-1",
        "bn:T=nan",
        "bn:T=inf",
        "bn:lr=1",
        "plain:smoothing=1",
        "plain:smoothing=-0.1",
    ],
)
def test_what_does_not_follow_it(text):
    with pytest.raises(InvalidInput) as caught:
        arm(text)
    assert caught.value.subject == "arm"


def test_the_default_arms_are_the_usual_alternatives():
    titles = [arm(text).title for text in DEFAULT_ARMS]
    assert titles == [
        "plain, T = 1",
        "BN, T = 1",
        "LN, T = 1",
        "BN, T = 8",
        "BN, T = 11.7 (suggested)",
        "plain, T = 1, smoothing 0.1",
    ]


def test_the_same_training_under_two_names_is_one_arm():
    arms = [arm(t) for t in ("plain", "bn:T=8", "bn:T=sqrt", "bn:T=suggested", "bn")]
    merged = merge_arms(arms)
    assert [a.name for a in merged] == ["plain", "bn:T=8", "bn:T=suggested", "bn"]
    assert merged[1].aliases == ("bn:T=sqrt",)
    assert [a.prefix for a in merged] == ["plain", "bn", "bn", "bn"]
