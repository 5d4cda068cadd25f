"""Risk and coverage against loops over all orders of equal rows."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from temperance.errors import InvalidInput
from temperance.evaluation import accuracy, aurc, eaurc, risk_coverage, selective_accuracy

SETTINGS = settings(deadline=None, max_examples=40, derandomize=True)


def binary(confidence, correct):
    """Probabilities of two classes, with class 1 on top, and labels that make rows right."""
    c = np.asarray(confidence, dtype=float)
    return np.stack([1 - c, c], axis=1), np.asarray(correct, dtype=int)


def loop_risks(confidence, wrong):
    """Risk after each row, mean over all orders of rows of equal confidence."""
    groups = {}
    for c, w in zip(confidence, wrong, strict=True):
        groups.setdefault(c, []).append(w)
    orders = [list(itertools.permutations(groups[c])) for c in sorted(groups, reverse=True)]
    curves = []
    for order in itertools.product(*orders):
        row = [w for group in order for w in group]
        curves.append([sum(row[: k + 1]) / (k + 1) for k in range(len(row))])
    return np.mean(curves, axis=0)


@SETTINGS
@given(
    st.lists(
        st.tuples(st.sampled_from([0.6, 0.7, 0.8, 0.9, 1.0]), st.booleans()),
        min_size=1,
        max_size=7,
    ),
    st.floats(0.01, 1.0),
)
def test_figures_are_those_of_the_loop(rows, coverage):
    p, y = binary([c for c, _ in rows], [r for _, r in rows])
    risks = loop_risks([c for c, _ in rows], [not r for _, r in rows])
    n, errors = len(rows), sum(not r for _, r in rows)
    assert aurc(probs=p, labels=y) == pytest.approx(risks.mean(), abs=1e-12)
    best = [max(k - (n - errors), 0) / k for k in range(1, n + 1)]
    assert eaurc(probs=p, labels=y) == pytest.approx(risks.mean() - np.mean(best), abs=1e-12)
    curve = risk_coverage(probs=p, labels=y)
    np.testing.assert_allclose(curve["risk"], risks, atol=1e-12)
    np.testing.assert_allclose(curve["best"], best, atol=1e-12)
    assert curve["coverage"][-1] == 1.0
    k = math.ceil(coverage * n - 1e-9)
    found = selective_accuracy(probs=p, labels=y, coverage=coverage)
    assert found == pytest.approx(1 - risks[k - 1], abs=1e-12)


def test_the_order_of_the_file_does_not_matter_where_all_are_sure():
    """A plain sort gives 0.29 or 0.71 here, by the order of the rows."""
    p, y = binary([1.0] * 4, [1, 1, 0, 0])
    assert aurc(probs=p, labels=y) == aurc(probs=p, labels=y[::-1].copy()) == pytest.approx(0.5)


def test_logits_rank_rows_whose_confidences_round_to_1():
    z = np.array([[0.0, m] for m in (50.0, 60.0, 800.0, 45.0, 40.0)])
    y = [1, 1, 1, 0, 0]
    assert eaurc(logits=z, labels=y) == 0.0
    assert selective_accuracy(logits=z, labels=y, coverage=0.6) == 1.0
    p = np.exp(z - z.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    assert eaurc(probs=p, labels=y) > 0.1  # the probabilities have lost it


def test_closed_forms():
    p, y = binary([0.9, 0.8, 0.7, 0.6], [1, 1, 0, 0])
    assert aurc(probs=p, labels=y) == pytest.approx((0 + 0 + 1 / 3 + 1 / 2) / 4)
    assert eaurc(probs=p, labels=y) == 0.0
    assert aurc(probs=p, labels=[1, 1, 1, 1]) == 0.0
    assert aurc(probs=p, labels=[0, 0, 0, 0]) == 1.0
    assert eaurc(probs=p, labels=[0, 0, 0, 0]) == 0.0
    rng = np.random.default_rng(0)
    many = rng.uniform(0.5, 1, 20_000)
    p, y = binary(many, rng.random(20_000) < 0.7)  # confidence says nothing
    assert aurc(probs=p, labels=y) == pytest.approx(0.3, abs=0.02)
    limit = 0.3 - (0.3 + 0.7 * math.log(0.7))  # the form of the paper, for endless rows
    assert eaurc(probs=p, labels=y) == pytest.approx(limit, abs=0.02)


def test_full_coverage_is_the_accuracy():
    rng = np.random.default_rng(1)
    z, y = rng.normal(size=(100, 3)), rng.integers(0, 3, 100)
    full = selective_accuracy(logits=z, labels=y, coverage=1.0)
    assert full == pytest.approx(accuracy(logits=z, labels=y))
    assert selective_accuracy(logits=z, labels=y, coverage=0.07) * 7 == pytest.approx(
        round(selective_accuracy(logits=z, labels=y, coverage=0.07) * 7)
    )


@pytest.mark.parametrize("coverage", [0, -0.1, 1.01, math.nan, "0.5", None, True])
def test_coverage_is_checked(coverage):
    with pytest.raises(InvalidInput) as caught:
        selective_accuracy(probs=[[0.5, 0.5]], labels=[0], coverage=coverage)
    assert caught.value.subject == "coverage"
