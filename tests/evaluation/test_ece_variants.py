"""Calibration errors beside the ECE against loops, their bias, and inputs that peers get wrong."""

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from temperance.errors import InvalidInput
from temperance.evaluation import class_ece, debiased_ece, ece, max_ece, rms_ece

SETTINGS = settings(deadline=None, max_examples=40, derandomize=True)


def softmax(z):
    e = np.exp(z - z.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


@st.composite
def cases(draw):
    n, c = draw(st.integers(1, 40)), draw(st.integers(2, 6))
    rng = np.random.default_rng(draw(st.integers(0, 2**31)))
    z = rng.normal(size=(n, c)) * draw(st.sampled_from([0.1, 1.0, 5.0, 50.0]))
    return softmax(z), rng.integers(0, c, n)


def split(scores, hits, bins):
    """Bins (a, b], the first [0, b]: (scores, hits) of each that has rows."""
    for b in range(bins):
        inside = [
            (s, h)
            for s, h in zip(scores, hits, strict=True)
            if b / bins < s <= (b + 1) / bins or (b == 0 and s == 0)
        ]
        if inside:
            yield [s for s, _ in inside], [h for _, h in inside]


def split_by_mass(scores, hits, bins):
    edges = sorted(set(np.quantile(scores, np.linspace(0, 1, bins + 1)).tolist()))
    edges = edges if len(edges) > 1 else edges * 2
    for b, (low, high) in enumerate(pairwise(edges)):
        inside = [
            (s, h)
            for s, h in zip(scores, hits, strict=True)
            if low < s <= high or (b == 0 and s <= low)
        ]
        if inside:
            yield [s for s, _ in inside], [h for _, h in inside]


def mean(values):
    return math.fsum(values) / len(values)


def top_label(p, y):
    at = [row.index(max(row)) for row in p.tolist()]
    return [max(row) for row in p.tolist()], [float(a == b) for a, b in zip(at, y, strict=True)]


@SETTINGS
@given(cases(), st.integers(1, 20), st.sampled_from(["width", "mass"]))
def test_class_ece_is_that_of_the_loop(case, bins, scheme):
    p, y = case
    cut = split if scheme == "width" else split_by_mass
    total = 0.0
    for label in range(p.shape[1]):
        hits = [float(k == label) for k in y]
        for scores, inside in cut(p[:, label].tolist(), hits, bins):
            total += len(scores) / len(y) * abs(mean(scores) - mean(inside))
    found = class_ece(probs=p, labels=y, bins=bins, scheme=scheme)
    assert found == pytest.approx(total / p.shape[1], abs=1e-12)


@SETTINGS
@given(cases(), st.integers(1, 20), st.sampled_from(["width", "mass"]))
def test_top_label_errors_are_those_of_the_loops(case, bins, scheme):
    p, y = case
    cut = split if scheme == "width" else split_by_mass
    worst, square, plain, bias = 0.0, 0.0, 0.0, 0.0
    for scores, hits in cut(*top_label(p, y), bins):
        n, gap, share = len(scores), mean(scores) - mean(hits), mean(hits)
        worst = max(worst, abs(gap))
        square += n / len(y) * (gap**2 - share * (1 - share) / max(n - 1, 1))
        plain += n / len(y) * abs(gap)
        error = math.sqrt(max(share * (1 - share), 0.0) / n)
        if error > 0:
            bias += n / len(y) * (mean_abs(gap, error) - abs(gap))
    settings_ = {"probs": p, "labels": y, "bins": bins, "scheme": scheme}
    assert max_ece(**settings_) == pytest.approx(worst, abs=1e-12)
    assert rms_ece(**settings_) ** 2 == pytest.approx(max(square, 0.0), abs=1e-12)
    assert ece(**settings_) == pytest.approx(plain, abs=1e-12)
    assert debiased_ece(**settings_) == pytest.approx(max(plain - bias, 0.0), abs=1e-7)
    assert debiased_ece(**settings_) <= plain + 1e-12


def mean_abs(mu, s):
    """E|x| of a normal x, from its density."""
    x = np.linspace(mu - 12 * s, mu + 12 * s, 20_001)
    density = np.exp(-((x - mu) ** 2) / (2 * s * s)) / (s * math.sqrt(2 * math.pi))
    return float(np.trapezoid(np.abs(x) * density, x))


def test_debiasing_draws_like_the_authors():
    """Their code draws labels of every bin from a normal; its mean is our closed form."""
    rng = np.random.default_rng(0)
    confidence = rng.uniform(0.5, 1, 400)
    y = (rng.random(400) < confidence).astype(int)
    p = np.stack([1 - confidence, confidence], axis=1)
    draws, plain = np.zeros(40_000), 0.0
    for scores, hits in split(confidence.tolist(), y.tolist(), 15):
        share, n = mean(hits), len(hits)
        normal = rng.normal(share, math.sqrt(share * (1 - share) / n), len(draws))
        draws += n / 400 * np.abs(mean(scores) - normal)
        plain += n / 400 * abs(mean(scores) - share)
    assert debiased_ece(probs=p, labels=y) == pytest.approx(2 * plain - draws.mean(), abs=5e-4)


def test_debiased_errors_of_calibrated_rows_are_smaller():
    """The plain ECE of calibrated rows is about 0.8 standard errors; debiased, 0.33 less."""
    plain, corrected, squares = [], [], []
    for seed in range(60):
        rng = np.random.default_rng(seed)
        confidence = rng.uniform(0.5, 1, 500)
        y = (rng.random(500) < confidence).astype(int)
        p = np.stack([1 - confidence, confidence], axis=1)
        plain.append(ece(probs=p, labels=y))
        corrected.append(debiased_ece(probs=p, labels=y))
        for scores, hits in [split_rows(confidence, y)]:
            squares.append(scores - hits)
    assert 0.45 < np.mean(corrected) / np.mean(plain) < 0.7
    assert abs(np.mean(squares)) < 3 * np.std(squares) / math.sqrt(60)


def split_rows(confidence, y):
    """Plain square error of the bins and what its bias is estimated to be."""
    square, bias = 0.0, 0.0
    for scores, hits in split_by_mass(confidence.tolist(), y.tolist(), 15):
        n, share = len(hits), mean(hits)
        square += n / 500 * (mean(scores) - share) ** 2
        bias += n / 500 * share * (1 - share) / (n - 1)
    return square, bias


# ------------------------------------------------------------------ closed forms and edges
def test_confidences_of_exactly_0_and_1_are_in_bins():
    p = [[0.05, 0.95], [0.0, 1.0]]
    assert max_ece(probs=p, labels=[1, 0]) == pytest.approx(0.475)  # torchmetrics: 0.525
    assert debiased_ece(probs=p, labels=[1, 0]) <= 0.475
    # classes 0 and 1: 0.05 and 0 lie in the first bin (one label), 0.95 and 1 in the last
    assert class_ece(probs=p, labels=[1, 0]) == pytest.approx(0.475)
    sure = [[0.0, 1.0, 0.0]] * 4
    assert class_ece(probs=sure, labels=[1, 1, 1, 1]) == 0.0
    assert class_ece(probs=sure, labels=[0, 0, 0, 0]) == pytest.approx(2 / 3)
    for error in (max_ece, rms_ece, debiased_ece):
        assert error(probs=sure, labels=[1, 1, 1, 1]) == 0.0
        assert error(probs=sure, labels=[0, 0, 0, 0]) == 1.0


def test_class_ece_sees_what_the_top_label_hides():
    """The most probable class is calibrated; the two others are the wrong way round."""
    p = [[0.6, 0.3, 0.1]] * 10
    y = [0] * 6 + [1] + [2] * 3
    assert ece(probs=p, labels=y) == pytest.approx(0.0, abs=1e-12)
    assert class_ece(probs=p, labels=y) == pytest.approx((0.0 + 0.2 + 0.2) / 3)


def test_class_ece_of_two_classes_is_the_reliability_of_class_1():
    rng = np.random.default_rng(1)
    p1 = rng.random(500)
    y = (rng.random(500) < p1**2).astype(int)
    one = sum(len(s) / 500 * abs(mean(s) - mean(h)) for s, h in split(p1.tolist(), y.tolist(), 10))
    assert class_ece(probs=p1, labels=y, bins=10) == pytest.approx(one, abs=1e-12)


def test_one_row_and_one_bin():
    for error in (max_ece, rms_ece, debiased_ece, class_ece):
        assert error(probs=[[0.25, 0.75]], labels=[1]) == pytest.approx(0.25)
        assert error(probs=[[0.25, 0.75]], labels=[1], bins=1) == pytest.approx(0.25)


@pytest.mark.parametrize("error", [class_ece, max_ece, rms_ece, debiased_ece])
@pytest.mark.parametrize("wrong", [{"bins": 0}, {"bins": 2.0}, {"scheme": "quantile"}])
def test_settings_are_checked(error, wrong):
    with pytest.raises(InvalidInput) as caught:
        error(probs=[[0.5, 0.5]], labels=[0], **wrong)
    assert caught.value.subject in wrong
