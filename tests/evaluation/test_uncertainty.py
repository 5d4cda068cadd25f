"""The parts of an ensemble's uncertainty against loops, and inputs in the wrong order."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from temperance.errors import InvalidInput
from temperance.evaluation import log_mean_exp, member_uncertainty, nll, pooled_log_probs

SETTINGS = settings(deadline=None, max_examples=60, derandomize=True)
NAMES = ("total", "aleatoric", "mutual_information", "disagreement", "pairwise_kl")


@st.composite
def stacks(draw):
    m, n, c = draw(st.integers(1, 5)), draw(st.integers(1, 6)), draw(st.integers(2, 5))
    rng = np.random.default_rng(draw(st.integers(0, 2**31)))
    return rng.dirichlet([draw(st.sampled_from([0.1, 1.0, 20.0]))] * c, size=(m, n))


def entropy(p):
    return -math.fsum(v * math.log(v) for v in p if v > 0)


def kl(p, q):
    return math.fsum(a * math.log(a / b) for a, b in zip(p, q, strict=True) if a > 0)


@SETTINGS
@given(stacks())
def test_parts_are_those_of_the_loops(p):
    found = member_uncertainty(probs=p)
    m, n, _ = p.shape
    assert found.members == m
    for row in range(n):
        members = p[:, row].tolist()
        pooled = [math.fsum(v) / m for v in zip(*members, strict=True)]
        assert found.total[row] == pytest.approx(entropy(pooled), abs=1e-12)
        own = math.fsum(entropy(q) for q in members) / m
        assert found.aleatoric[row] == pytest.approx(own, abs=1e-12)
        information = math.fsum(kl(q, pooled) for q in members) / m
        assert found.mutual_information[row] == pytest.approx(information, abs=1e-12)
        pairs = [(a, b) for a in range(m) for b in range(m) if a != b]
        votes = [q.index(max(q)) for q in members]
        apart = sum(votes[a] != votes[b] for a, b in pairs) / max(1, len(pairs))
        assert found.disagreement[row] == pytest.approx(apart)
        if min(map(min, members)) > 0:
            mean = math.fsum(kl(members[a], members[b]) for a, b in pairs) / max(1, len(pairs))
            assert found.pairwise_kl[row] == pytest.approx(mean, rel=1e-9, abs=1e-12)


@SETTINGS
@given(stacks())
def test_total_is_the_sum_and_bounds_hold(p):
    found = member_uncertainty(probs=p)
    m, _, c = p.shape
    parts = found.aleatoric + found.mutual_information
    np.testing.assert_allclose(found.total, parts, atol=1e-12)
    for name in NAMES:
        assert (getattr(found, name) >= 0).all()
    assert (found.total <= math.log(c) + 1e-12).all()
    assert (found.mutual_information <= math.log(m) + 1e-12).all()
    order = np.random.default_rng(0).permutation(m)
    again = member_uncertainty(probs=p[order])
    np.testing.assert_allclose(again.mutual_information, found.mutual_information, atol=1e-12)


@SETTINGS
@given(stacks())
def test_logits_probabilities_and_tensors_are_one(p):
    found = member_uncertainty(probs=p)
    z = np.log(p) + 7.0
    for other in (
        member_uncertainty(logits=z),
        member_uncertainty(logits=torch.from_numpy(z)),
        member_uncertainty(probs=torch.from_numpy(p)),
    ):
        for name in NAMES:
            np.testing.assert_allclose(getattr(other, name), getattr(found, name), atol=1e-9)
    np.testing.assert_allclose(pooled_log_probs(logits=z), np.log(p.mean(axis=0)), atol=1e-9)


def test_one_member_and_equal_members_have_nothing_to_disagree_on():
    rng = np.random.default_rng(0)
    p = rng.dirichlet([1.0] * 10, size=(1, 500)).astype(np.float32)
    one = member_uncertainty(probs=p)
    assert not one.mutual_information.any()
    assert not one.disagreement.any()
    assert not one.pairwise_kl.any()
    np.testing.assert_allclose(one.total, one.aleatoric, atol=1e-12)
    same = member_uncertainty(probs=np.repeat(p, 7, axis=0))
    assert (same.mutual_information >= 0).all()
    assert same.mutual_information.max() < 1e-14
    assert not same.disagreement.any()


def test_closed_forms():
    p = [[[1.0, 0.0, 0.0]], [[0.0, 1.0, 0.0]], [[0.0, 0.0, 1.0]]]
    found = member_uncertainty(probs=p)
    assert found.total[0] == pytest.approx(math.log(3))
    assert found.aleatoric[0] == 0.0
    assert found.mutual_information[0] == pytest.approx(math.log(3))
    assert found.disagreement[0] == 1.0
    assert found.pairwise_kl[0] == math.inf
    two = member_uncertainty(probs=[[[0.9, 0.1]], [[0.8, 0.2]], [[0.3, 0.7]], [[0.2, 0.8]]])
    assert two.disagreement[0] == pytest.approx(4 / 6)  # 4 of 6 pairs


def test_small_information_keeps_its_digits():
    """As a difference of two entropies this would be noise."""
    e = 1e-9
    found = member_uncertainty(probs=[[[0.5 + e, 0.5 - e]], [[0.5 - e, 0.5 + e]]])
    assert found.mutual_information[0] == pytest.approx(2 * e * e, rel=0.05)


def test_members_that_are_sure_are_pooled_exactly():
    pooled = pooled_log_probs(logits=[[[0.0, -2000.0]], [[0.0, -3000.0]]])
    assert nll(logits=pooled, labels=[1]) == pytest.approx(2000 + math.log(2))
    masked = pooled_log_probs(logits=[[[0.0, -np.inf, 1.0]], [[0.0, -np.inf, 1.0]]])
    assert masked[0, 1] == -math.inf
    assert member_uncertainty(logits=[[[0.0, -np.inf]]] * 2).total[0] == 0.0


def test_log_mean_exp():
    v = np.random.default_rng(0).normal(size=(4, 3, 2)) * 5
    np.testing.assert_allclose(log_mean_exp(v), np.log(np.exp(v).mean(axis=0)), atol=1e-12)
    np.testing.assert_allclose(log_mean_exp(v, axis=1), np.log(np.exp(v).mean(axis=1)), atol=1e-12)
    assert log_mean_exp(np.array([-np.inf, -np.inf])) == -math.inf
    for values, axis in (([], 0), ([1.0], 1), (3.0, 0)):
        with pytest.raises(InvalidInput):
            log_mean_exp(values, axis=axis)
    assert log_mean_exp(np.array([1000.0, -np.inf])) == pytest.approx(1000 - math.log(2))


def test_single_precision_rows_are_brought_to_1():
    rng = np.random.default_rng(1)
    z = rng.normal(size=(3, 50, 6)) * 3
    p = np.exp(z) / np.exp(z).sum(axis=2, keepdims=True)
    for dtype, tolerance in ((np.float32, 1e-5), (np.float16, 2e-2)):
        found = member_uncertainty(probs=p.astype(dtype))
        np.testing.assert_allclose(found.total, member_uncertainty(probs=p).total, atol=tolerance)
        total = found.aleatoric + found.mutual_information
        np.testing.assert_allclose(found.total, total, atol=1e-12)


def test_large_inputs_are_worked_on_in_chunks(monkeypatch):
    p = np.random.default_rng(0).dirichlet([1.0] * 4, size=(3, 50))
    whole = member_uncertainty(probs=p)
    monkeypatch.setattr("temperance.evaluation.predictions._CHUNK", 30)
    parts = member_uncertainty(probs=p)
    for name in NAMES:
        np.testing.assert_array_equal(getattr(parts, name), getattr(whole, name))


# ------------------------------------------------------------------ what is refused
GOOD = np.random.default_rng(0).dirichlet([1.0] * 5, size=(3, 4))


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"probs": GOOD, "logits": np.log(GOOD)},
        {"probs": np.log(GOOD)},
        {"logits": GOOD},
        {"probs": GOOD[0]},
        {"probs": GOOD[None]},
        {"probs": GOOD.reshape(12, 5)},
        {"probs": GOOD[:, :, :1] * 0 + 1},
        {"probs": GOOD[:, :0]},
        {"probs": GOOD, "members": 4},
        {"probs": np.where(np.arange(5) == 2, np.nan, GOOD)},
        {"probs": "text"},
    ],
)
def test_bad_stacks_are_refused(given):
    with pytest.raises(InvalidInput):
        member_uncertainty(**given)
    with pytest.raises(InvalidInput):
        pooled_log_probs(**given)


@pytest.mark.parametrize(("order", "axis"), [((2, 0, 1), 0), ((0, 2, 1), 1)])
def test_a_class_axis_in_another_place_is_named(order, axis):
    with pytest.raises(InvalidInput) as caught:
        member_uncertainty(probs=GOOD.transpose(order))
    assert f"Axis {axis}" in caught.value.fix


def test_the_member_and_row_at_fault_are_named():
    bad = GOOD.copy()
    bad[2, 1, 0] = 3.0
    with pytest.raises(InvalidInput) as caught:
        member_uncertainty(probs=bad)
    assert caught.value.subject == "probs of member 2"
    assert "row 1" in caught.value.found
    assert member_uncertainty(probs=GOOD, members=3).members == 3
