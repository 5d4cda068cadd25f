"""Two models on the same rows: McNemar's test and paired intervals."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from temperance.errors import InvalidInput
from temperance.evaluation import (
    EvaluateOptions,
    accuracy,
    brier,
    compare_models,
    ece,
    mcnemar,
    nll,
)
from temperance.records import to_dict

SETTINGS = settings(deadline=None, max_examples=60, derandomize=True)
QUICK = EvaluateOptions(bootstrap=200)


def models(n=600, c=4, gain=0.0, seed=0):
    """Logits of two models that share most of what they see; the first sees ``gain`` more."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, c, n)
    common = rng.normal(size=(n, c))
    out = []
    for more in (gain, 0.0):
        x = common * 0.9 + rng.normal(size=(n, c)) * 0.4
        x[np.arange(n), y] += 1.2 + more
        out.append(x * 1.2)
    return out[0], out[1], y


# ------------------------------------------------------------------ McNemar
@SETTINGS
@given(st.integers(0, 12), st.integers(0, 12), st.integers(0, 5), st.integers(0, 5))
def test_p_is_that_of_the_fractions(only_a, only_b, both, neither):
    a = [1] * only_a + [0] * only_b + [1] * both + [0] * neither
    b = [0] * only_a + [1] * only_b + [1] * both + [0] * neither
    if not a:
        return
    n, fewer = only_a + only_b, min(only_a, only_b)
    points = [Fraction(math.comb(n, k), 2**n) for k in range(n + 1)]
    tail = sum(points[: fewer + 1])
    found = mcnemar(a, b)
    assert (found.both, found.only_a, found.only_b, found.neither) == (
        both,
        only_a,
        only_b,
        neither,
    )
    assert found.p_exact == pytest.approx(float(min(1, 2 * tail)), rel=1e-12)
    assert found.p_mid == pytest.approx(float(2 * tail - points[fewer]), rel=1e-12)
    assert 0 < found.p_mid <= found.p_exact <= 1
    other = mcnemar(b, a)
    assert (other.p_exact, other.p_mid) == (found.p_exact, found.p_mid)


def test_a_published_table():
    """Bentur and others, in Fagerland and others 2013, table 1: 7 and 1 discordant pairs of 21."""
    found = mcnemar([1] * 7 + [0] * 1 + [1] * 1 + [0] * 12, [0] * 7 + [1] * 1 + [1] * 1 + [0] * 12)
    assert found.p_exact == pytest.approx(0.0703, abs=5e-5)
    assert found.p_mid == pytest.approx(0.0391, abs=5e-5)


def test_models_that_agree_are_not_different():
    found = mcnemar([True, False], [True, False])
    assert (found.p_exact, found.p_mid) == (1.0, 1.0)


@pytest.mark.parametrize(
    ("a", "b"), [([1, 0], [1]), ([], []), ([0.5], [1]), ([[1]], [[0]]), ([2], [1]), (["a"], ["b"])]
)
def test_flags_are_checked(a, b):
    with pytest.raises(InvalidInput):
        mcnemar(a, b)


# ------------------------------------------------------------------ the comparison
def test_figures_and_differences():
    a, b, y = models(gain=0.4)
    found = compare_models({"logits": a}, {"logits": b}, labels=y, options=QUICK)
    for name, figure in (("accuracy", accuracy), ("nll", nll), ("brier", brier), ("ece", ece)):
        one, two = figure(logits=a, labels=y), figure(logits=b, labels=y)
        assert found.a[name] == pytest.approx(one, abs=1e-12)
        assert found.b[name] == pytest.approx(two, abs=1e-12)
        difference = found.differences[name]
        assert difference.value == pytest.approx(one - two, abs=1e-12)
        assert difference.interval[0] <= difference.value <= difference.interval[1]
    assert found.verdicts["accuracy"] == found.verdicts["nll"] == "better"
    assert found.n == 600


def test_intervals_are_paired():
    """What the models share cancels: the interval is far narrower than that of either model."""
    a, b, y = models(gain=0.0)
    found = compare_models({"logits": a}, {"logits": b}, labels=y, options=QUICK)
    one = 1.96 * np.std([nll(logits=a[k : k + 1], labels=y[k : k + 1]) for k in range(600)])
    low, high = found.differences["nll"].interval
    assert high - low < 1.2 * one / math.sqrt(600) * 2
    assert set(found.verdicts.values()) == {"no difference shown"}


def test_a_model_against_itself_and_the_other_way_round():
    a, b, y = models(gain=0.4)
    same = compare_models({"logits": a}, {"logits": a}, labels=y, options=QUICK)
    assert all(e.value == 0.0 for e in same.differences.values())
    assert set(same.verdicts.values()) == {"no difference shown"}
    there = compare_models({"logits": a}, {"logits": b}, labels=y, options=QUICK)
    back = compare_models({"logits": b}, {"logits": a}, labels=y, options=QUICK)
    turned = {"better": "worse", "worse": "better"}
    for name, word in there.verdicts.items():
        assert back.verdicts[name] == turned.get(word, word)
        low, high = there.differences[name].interval
        assert back.differences[name].interval == pytest.approx((-high, -low), abs=1e-9)


def test_models_of_different_kinds():
    a, b, y = models()
    p = np.exp(b - b.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    mixed = compare_models({"logits": a}, {"probs": p}, labels=y, options=QUICK)
    plain = compare_models({"logits": a}, {"logits": b}, labels=y, options=QUICK)
    assert mixed.differences["nll"].value == pytest.approx(plain.differences["nll"].value)


def test_alike_models_are_seldom_called_different():
    words = []
    for seed in range(60):
        a, b, y = models(n=150, seed=seed)
        found = compare_models({"logits": a}, {"logits": b}, labels=y, options=QUICK)
        words.append(found.verdicts)
    for name in ("accuracy", "nll", "brier", "ece"):
        assert sum(w[name] != "no difference shown" for w in words) <= 8, name


def test_infinite_rows_show_nothing():
    p, q = [[1.0, 0.0], [0.4, 0.6]], [[0.5, 0.5], [0.4, 0.6]]
    found = compare_models({"probs": p}, {"probs": q}, labels=[1, 1], options=QUICK)
    assert found.differences["nll"].value == math.inf
    assert found.differences["nll"].interval is None
    assert found.verdicts["nll"] == "no difference shown"
    one = compare_models({"probs": p[:1]}, {"probs": q[:1]}, labels=[0], options=QUICK)
    assert set(one.verdicts.values()) == {"no difference shown"}


def test_ignored_rows_and_round_trip():
    a, b, y = models()
    y[:100] = -1
    options = EvaluateOptions(bootstrap=50, ignore=(-1,))
    found = compare_models({"logits": a}, {"logits": b}, labels=y, options=options)
    assert found.n == 500
    data = to_dict(found)
    assert data["mcnemar"]["p_mid"] == found.mcnemar.p_mid
    assert data["verdicts"] == found.verdicts


@pytest.mark.parametrize(
    ("a", "b", "labels"),
    [
        ([[0.0, 1.0]], {"logits": [[0.0, 3.0]]}, [0]),
        ({"scores": [[0.0, 3.0]]}, {"logits": [[0.0, 3.0]]}, [0]),
        ({"logits": [[0.0, 3.0]], "probs": [[0.0, 1.0]]}, {"logits": [[0.0, 3.0]]}, [0]),
        ({"logits": [[0.0, 3.0]]}, {"logits": [[0.0, 3.0, 1.0]]}, [0]),
        ({"logits": [[0.0, 3.0]] * 2}, {"logits": [[0.0, 3.0]]}, [0]),
        ({"logits": [[0.0, 3.0]]}, {"probs": [[0.0, 3.0]]}, [0]),
    ],
)
def test_unlike_models_are_refused(a, b, labels):
    with pytest.raises(InvalidInput):
        compare_models(a, b, labels=labels)


@pytest.mark.parametrize("options", [{"bootstrap": 0}, {"scheme": "mass"}])
def test_options_are_checked(options):
    with pytest.raises(InvalidInput) as caught:
        compare_models(
            {"logits": [[0.0, 3.0]]},
            {"logits": [[0.0, 3.0]]},
            labels=[0],
            options=EvaluateOptions(**options),
        )
    assert caught.value.subject == "options"
