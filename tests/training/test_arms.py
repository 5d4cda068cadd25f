"""The grammar of arms."""

import math

import pytest

from temperance import Task, suggest
from temperance.errors import InvalidInput
from temperance.training.arms import DEFAULT_ARMS, merge_arms, parse_arm

SUGGESTION = suggest(Task(feature_dim=512, n_classes=10))
ADACOS = 1 / (math.sqrt(2) * math.log(9))
COSFACE = 1 / (0.9 * math.log(81))


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
        (
            "bn:T=suggested/4",
            "batch",
            SUGGESTION.temperature / 4,
            0.0,
            "BN, T = 2.92 (suggested / 4)",
        ),
        (
            "ln:T=suggested*4",
            "layer",
            SUGGESTION.temperature * 4,
            0.0,
            "LN, T = 46.7 (suggested * 4)",
        ),
        ("bn:T=sqrt/2:smoothing=0.1", "batch", 4.0, 0.1, "BN, T = 4, smoothing 0.1"),
        ("bn:T=suggested/2..1", "batch", SUGGESTION.temperature / 2, 0.0, "BN, T = 5.84 to 1"),
        ("bn:T=sqrt-dim", "batch", math.sqrt(512), 0.0, "BN, T = 22.6 (sqrt-dim)"),
        ("bn:T=sqrt-dim/4", "batch", math.sqrt(512) / 4, 0.0, "BN, T = 5.66 (sqrt-dim / 4)"),
        (
            "bn:T=hasegawa-sakai",
            "batch",
            SUGGESTION.temperature,
            0.0,
            "BN, T = 11.7 (hasegawa-sakai)",
        ),
        ("bn:T=4.0012", "batch", 4.0012, 0.0, "BN, T = 4.0012"),
        ("plain:smoothing=0.1", "none", 1.0, 0.1, "plain, T = 1, smoothing 0.1"),
        ("bn:T=4:smoothing=0.2", "batch", 4.0, 0.2, "BN, T = 4, smoothing 0.2"),
        ("bn:T=4..1", "batch", 4.0, 0.0, "BN, T = 4 to 1"),
        ("bn:T=4->1", "batch", 4.0, 0.0, "BN, T = 4 to 1"),
        ("ln:T=sqrt..0.5:ramp=cosine", "layer", 8.0, 0.0, "LN, T = 8 to 0.5 (cosine)"),
        ("bn:T=learned", "batch", SUGGESTION.temperature, 0.0, "BN, T learned from 11.7"),
        ("plain:T=learned@2", "none", 2.0, 0.0, "plain, T learned from 2"),
        ("cosine", "cosine", ADACOS, 0.0, "cosine, s = 3.11"),
        ("cosine:s=adacos", "cosine", ADACOS, 0.0, "cosine, s = 3.11"),
        ("cosine:s=adacos-dynamic", "cosine", ADACOS, 0.0, "cosine, s by AdaCos"),
        ("cosine:s=16:smoothing=0.1", "cosine", 1 / 16, 0.1, "cosine, s = 16, smoothing 0.1"),
        ("cosine:s=cosface", "cosine", COSFACE, 0.0, "cosine, s = 3.96"),
        ("cosine:T=0.05", "cosine", 0.05, 0.0, "cosine, s = 20"),
        ("cosine:T=learned", "cosine", ADACOS, 0.0, "cosine, T learned from 0.322"),
    ],
)
def test_grammar(text, norm, temperature, smoothing, title):
    found = arm(text)
    assert (found.norm, found.smoothing) == (norm, smoothing)
    assert found.temperature == pytest.approx(temperature)
    assert (found.name, found.title) == (text, title)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "gn",
        "bn:T",
        "bn:T=",
        "bn:T=warm",
        "bn:T=suggested/0",
        "bn:T=budget",
        "bn:T=sqrt-di",
        "cosine:T=sqrt-dim",
        "bn:T=suggested*-1",
        "bn:T=suggested*",
        "bn:T=suggested*inf",
        "bn:T=suggested*nan",
        "bn:T=sqrt/x",
        "bn:T=suggested4",
        "cosine:T=suggested/4",
        "bn:T=0",
        "bn:T=-1",
        "bn:T=nan",
        "bn:T=inf",
        "bn:lr=1",
        "bn:s=4",
        "bn:T=4..",
        "bn:T=4..0",
        "bn:T=4..2..1",
        "bn:T=4..1:ramp=square",
        "bn:T=4:ramp=cosine",
        "bn:T=learned@",
        "bn:T=4:T=5",
        "cosine:s=4:T=1",
        "cosine:T=sqrt",
        "cosine:T=suggested",
        "cosine:T=suggested..0.1",
        "cosine:T=learned@sqrt",
        "cosine:s=0",
        "cosine:s=arcface",
        "plain:smoothing=1",
        "plain:smoothing=-0.1",
    ],
)
def test_what_does_not_follow_it(text):
    with pytest.raises(InvalidInput) as caught:
        arm(text)
    assert caught.value.subject == "arm"


def test_the_default_arms_are_the_usual_alternatives():
    training = {"optimizer": "sgd", "lr": 0.05, "momentum": 0.9, "weight_decay": 0.0,
                "steps": 564, "batch_size": 64, "schedule": "cosine", "n": 3000}  # fmt: skip
    known = suggest(Task(64, 10, training=training))
    arms = [parse_arm(text, feature_dim=64, suggestion=known) for text in DEFAULT_ARMS]
    law = known.others["budget"].temperature
    assert [one.title for one in merge_arms(arms)] == [
        "plain, T = 1",
        "BN, T = 1 (suggested)",
        "LN, T = 1",
        "BN, T = 8",
        f"BN, T = {law:.3g} (budget)",
        "plain, T = 1, smoothing 0.1",
    ]
    adam = suggest(Task(64, 10, training={**training, "optimizer": "adamw"}))
    arms = [parse_arm(text, feature_dim=64, suggestion=adam) for text in DEFAULT_ARMS]
    assert len(merge_arms(arms)) == 5  # where the law is T = 1


def test_the_same_training_under_two_names_is_one_arm():
    arms = [arm(t) for t in ("plain", "bn:T=8", "bn:T=sqrt", "bn:T=suggested", "bn")]
    merged = merge_arms(arms)
    assert [a.name for a in merged] == ["plain", "bn:T=8", "bn:T=suggested", "bn"]
    assert merged[1].aliases == ("bn:T=sqrt",)
    assert [a.prefix for a in merged] == ["plain", "bn", "bn", "bn"]


def test_how_t_moves():
    ramp = arm("bn:T=4..1:ramp=exponential")
    assert ramp.schedule(0.5) == 2.0
    assert (ramp.moves, ramp.suggested) == ("4 to 1, exponential", False)
    assert not arm("bn:T=suggested..1").suggested
    learned, dynamic = arm("bn:T=learned"), arm("cosine:s=adacos-dynamic")
    assert (learned.learned, learned.schedule, dynamic.adaptive) == (True, None, True)
    texts = ("bn:T=4", "bn:T=4..1", "bn:T=4->1", "bn:T=learned@4", "bn:T=4..1:ramp=cosine")
    assert len(merge_arms([arm(t) for t in texts])) == 4
    assert [a.folds for a in (arm("bn"), arm("ln"), arm("cosine"))] == [True, False, False]


def test_two_classes_have_no_adacos_scale():
    two = suggest(Task(feature_dim=512, n_classes=2))
    with pytest.raises(InvalidInput) as caught:
        parse_arm("cosine", feature_dim=64, suggestion=two)
    assert "cosface" in caught.value.fix
    assert parse_arm("cosine:s=cosface", feature_dim=64, suggestion=two).norm == "cosine"


def test_only_the_suggested_temperature_itself_is_called_suggested():
    names = ("bn:T=suggested", "bn:T=suggested/4", "bn:T=suggested*4", "bn:T=suggested/1")
    arms = merge_arms([arm(name) for name in names])
    assert [a.suggested for a in arms] == [True, False, False]
    assert arms[0].aliases == ("bn:T=suggested/1",)
