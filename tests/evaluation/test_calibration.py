"""The figures against loops written from their definitions, and their properties."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from temperance import ece as root_ece
from temperance.errors import InvalidInput
from temperance.evaluation import accuracy, brier, ece, nll, reliability_bins, row_scores
from temperance.evaluation.posthoc import TemperatureFit

SETTINGS = settings(deadline=None, max_examples=60, derandomize=True)


def softmax(z):
    out = []
    for row in z:
        top = max(row)
        e = [math.exp(v - top) for v in row]
        out.append([v / math.fsum(e) for v in e])
    return out


def loop_ece(p, y, bins):
    """From the definition: bins (a, b], the first [0, b]."""
    total = 0.0
    for b in range(bins):
        inside = []
        for row, label in zip(p, y, strict=True):
            c = max(row)
            if b / bins < c <= (b + 1) / bins or (b == 0 and c == 0):
                inside.append((c, float(row.index(c) == label)))
        if inside:
            confidence = math.fsum(c for c, _ in inside) / len(inside)
            hits = math.fsum(h for _, h in inside) / len(inside)
            total += len(inside) / len(p) * abs(hits - confidence)
    return total


def loop_brier(p, y):
    return math.fsum(
        (value - (k == label)) ** 2
        for row, label in zip(p, y, strict=True)
        for k, value in enumerate(row)
    ) / len(p)


@st.composite
def cases(draw):
    n, c = draw(st.integers(1, 30)), draw(st.integers(2, 6))
    seed = draw(st.integers(0, 2**31))
    scale = draw(st.sampled_from([0.01, 1.0, 5.0, 50.0]))
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, c)) * scale, rng.integers(0, c, n)


@SETTINGS
@given(cases(), st.integers(1, 20))
def test_figures_are_those_of_the_loops(case, bins):
    z, y = case
    p = softmax(z.tolist())
    assert ece(logits=z, labels=y, bins=bins) == pytest.approx(loop_ece(p, y, bins), abs=1e-9)
    assert ece(probs=p, labels=y, bins=bins) == pytest.approx(loop_ece(p, y, bins), abs=1e-12)
    assert brier(logits=z, labels=y) == pytest.approx(loop_brier(p, y), abs=1e-12)
    assert brier(probs=p, labels=y) == pytest.approx(loop_brier(p, y), abs=1e-12)
    hits = [row.index(max(row)) == label for row, label in zip(z.tolist(), y, strict=True)]
    assert accuracy(logits=z, labels=y) == pytest.approx(sum(hits) / len(hits))
    exact = [
        max(row) + math.log(math.fsum(math.exp(v - max(row)) for v in row)) - row[label]
        for row, label in zip(z.tolist(), y, strict=True)
    ]
    assert nll(logits=z, labels=y) == pytest.approx(math.fsum(exact) / len(exact), rel=1e-12)


@SETTINGS
@given(cases(), st.integers(1, 20), st.sampled_from(["width", "mass"]), st.integers(0, 99))
def test_ece_lies_in_0_1_and_is_blind_to_row_order(case, bins, scheme, seed):
    z, y = case
    value = ece(logits=z, labels=y, bins=bins, scheme=scheme)
    assert 0 <= value <= 1
    order = np.random.default_rng(seed).permutation(len(y))
    shuffled = ece(logits=z[order], labels=y[order], bins=bins, scheme=scheme)
    assert shuffled == pytest.approx(value, abs=1e-12)


@SETTINGS
@given(cases(), st.integers(1, 20), st.sampled_from(["width", "mass"]))
def test_every_row_is_in_one_bin(case, bins, scheme):
    z, y = case
    table = reliability_bins(logits=z, labels=y, bins=bins, scheme=scheme)
    assert sum(table["count"]) == len(y)
    edges = table["edges"]
    assert len(edges) == len(table["count"]) + 1 == len(table["confidence"]) + 1
    for k, (count, mean) in enumerate(zip(table["count"], table["confidence"], strict=True)):
        assert (mean is None) == (count == 0)
        if count:
            assert edges[k] - 1e-12 <= mean <= edges[k + 1] + 1e-12


def test_ece_counts_the_score_one():
    p = [[0.05, 0.95], [0.0, 1.0]]
    assert root_ece is ece
    assert ece(probs=p, labels=[1, 0], bins=15) == pytest.approx(0.475)
    assert ece(probs=p, labels=[1, 0], bins=1) == pytest.approx(0.475)


def test_edges_belong_to_the_bin_below():
    p = [[0.5, 0.5, 0.0, 0.0], [0.75, 0.25, 0.0, 0.0], [0.25] * 4, [1.0, 0.0, 0.0, 0.0]]
    table = reliability_bins(probs=p, labels=[0, 0, 0, 0], bins=4)
    assert table["count"] == [1, 1, 1, 1]
    assert table["confidence"] == [0.25, 0.5, 0.75, 1.0]
    assert table["accuracy"] == [1.0, 1.0, 1.0, 1.0]


def test_binary_ece_is_that_of_the_more_probable_class():
    p = np.array([0.1, 0.9, 0.4])  # confidences 0.9, 0.9, 0.6: right, right, wrong
    assert ece(probs=p, labels=[0, 1, 1], bins=5) == pytest.approx((2 * 0.1 + 0.6) / 3)
    assert brier(probs=p, labels=[0, 1, 1]) == pytest.approx(2 * (0.01 + 0.01 + 0.36) / 3)


def test_bins_of_equal_mass_hold_equally_many_rows():
    rng = np.random.default_rng(0)
    z, y = rng.normal(size=(1000, 3)) * 4, rng.integers(0, 3, 1000)
    assert reliability_bins(logits=z, labels=y, bins=10, scheme="mass")["count"] == [100] * 10
    same = reliability_bins(probs=[[0.7, 0.3]] * 9, labels=[0] * 9, bins=10, scheme="mass")
    assert same["count"] == [9]


def test_nll_is_exact_where_probabilities_round_to_one():
    assert nll(logits=[[0.0, -50.0]], labels=[0]) == pytest.approx(math.exp(-50), rel=1e-12)
    assert nll(logits=[[0.0, -5000.0]], labels=[1]) == 5000.0
    assert nll(logits=[[1e5, 0.0]], labels=[1]) == pytest.approx(1e5)


def test_probability_zero_of_the_label_is_infinite():
    assert nll(probs=[[1.0, 0.0], [0.5, 0.5]], labels=[1, 0]) == math.inf
    assert nll(probs=[[1.0, 0.0], [0.5, 0.5]], labels=[0, 0]) == pytest.approx(math.log(2) / 2)


@pytest.mark.parametrize("bins", [0, -1, 2.5, True, "15"])
def test_bins_are_checked(bins):
    with pytest.raises(InvalidInput) as caught:
        ece(probs=[[0.5, 0.5]], labels=[0], bins=bins)
    assert caught.value.subject == "bins"


def test_scheme_is_checked():
    with pytest.raises(InvalidInput) as caught:
        ece(probs=[[0.5, 0.5]], labels=[0], scheme="quantile")
    assert caught.value.subject == "scheme"


def test_row_scores_average_to_the_figures():
    rng = np.random.default_rng(1)
    z, y = rng.normal(size=(300, 4)) * 3, rng.integers(0, 4, 300)
    fit = TemperatureFit(2.0, "converged", None, 1.0, 1.0, 10)
    scores = row_scores(logits=z, labels=y, posthoc=fit)
    assert set(scores) == {
        *("label", "correct", "confidence", "nll", "brier"),
        *("confidence_posthoc", "nll_posthoc", "brier_posthoc"),
    }
    assert scores["label"].tolist() == y.tolist()
    for name, measure in (("correct", accuracy), ("nll", nll), ("brier", brier)):
        assert scores[name].mean() == pytest.approx(measure(logits=z, labels=y))
    for name, measure in (("nll_posthoc", nll), ("brier_posthoc", brier)):
        assert scores[name].mean() == pytest.approx(measure(logits=z / 2, labels=y))
    p = np.exp(z) / np.exp(z).sum(1, keepdims=True)
    again = row_scores(probs=p, labels=y, posthoc=fit)
    for name, values in scores.items():
        np.testing.assert_allclose(again[name], values, atol=1e-12)


def test_large_inputs_are_worked_on_in_chunks(monkeypatch):
    rng = np.random.default_rng(2)
    z, y = rng.normal(size=(500, 7)), rng.integers(0, 7, 500)
    whole = row_scores(logits=z, labels=y)
    monkeypatch.setattr("temperance.evaluation.predictions._CHUNK", 50)
    for name, values in row_scores(logits=z, labels=y).items():
        np.testing.assert_array_equal(values, whole[name])
