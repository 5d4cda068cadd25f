"""The parts of the Brier score add up to it, and are those of the loops."""

import math
from itertools import chain

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from temperance.errors import InvalidInput
from temperance.evaluation import brier, brier_parts, brier_reliability, brier_resolution, sharpness

SETTINGS = settings(deadline=None, max_examples=40, derandomize=True)


@st.composite
def cases(draw):
    n, c = draw(st.integers(1, 40)), draw(st.integers(2, 5))
    rng = np.random.default_rng(draw(st.integers(0, 2**31)))
    p = rng.dirichlet([draw(st.sampled_from([0.1, 1.0, 10.0]))] * c, size=n)
    if draw(st.booleans()):
        p = np.round(p * 4) / 4  # few distinct values, exact 0 and 1
        p[:, 0] += 1 - p.sum(axis=1)
        p = np.clip(p, 0, 1)
        p /= p.sum(axis=1, keepdims=True)
    return p, rng.integers(0, c, n)


def mean(values):
    return math.fsum(values) / len(values)


def loop(p, y, groups_of):
    """Murphy's three parts, and the two of Stephenson, Coelho and Jolliffe, class by class."""
    n, parts = len(y), [0.0] * 4
    for label in range(p.shape[1]):
        scores = p[:, label].tolist()
        hits = [float(k == label) for k in y]
        overall = mean(hits)
        parts[2] += overall * (1 - overall)
        groups = {}
        for s, h in zip(scores, hits, strict=True):
            groups.setdefault(groups_of(s), []).append((s, h))
        for rows in groups.values():
            ps, hs = mean([s for s, _ in rows]), mean([h for _, h in rows])
            parts[0] += len(rows) / n * (ps - hs) ** 2
            parts[1] += len(rows) / n * (hs - overall) ** 2
            within = math.fsum((s - ps) ** 2 for s, _ in rows)
            covary = math.fsum((s - ps) * (h - hs) for s, h in rows)
            parts[3] += (within - 2 * covary) / n
    return parts


@SETTINGS
@given(cases(), st.integers(1, 20))
def test_parts_are_those_of_the_loop(case, bins):
    p, y = case
    edges = np.linspace(0, 1, bins + 1)

    def place(s):
        return max(int(np.searchsorted(edges, s, side="left")) - 1, 0)

    reliability, resolution, uncertainty, residual = loop(p, y, place)
    found = brier_parts(probs=p, labels=y, bins=bins)
    assert found.reliability == pytest.approx(reliability, abs=1e-12)
    assert found.resolution == pytest.approx(resolution, abs=1e-12)
    assert found.uncertainty == pytest.approx(uncertainty, abs=1e-12)
    assert found.residual == pytest.approx(residual, abs=1e-12)
    assert brier_reliability(probs=p, labels=y, bins=bins) == found.reliability
    assert brier_resolution(probs=p, labels=y, bins=bins) == found.resolution


@SETTINGS
@given(cases(), st.sampled_from(["width", "mass", "isotonic"]))
def test_parts_add_up(case, scheme):
    p, y = case
    found = brier_parts(probs=p, labels=y, scheme=scheme)
    assert found.score == pytest.approx(brier(probs=p, labels=y), abs=1e-12)
    total = found.reliability - found.resolution + found.uncertainty + found.residual
    assert total == pytest.approx(found.score, abs=1e-12)
    two = found.reliability + found.refinement + found.residual
    assert two == pytest.approx(found.score, abs=1e-12)
    assert found.reliability >= 0
    assert found.resolution >= 0
    assert found.refinement >= -1e-12


def best_monotone(scores, hits):
    """Isotonic regression by its minimax formula, at the distinct scores."""
    values = sorted(set(scores))
    table = [[h for s, h in zip(scores, hits, strict=True) if s == v] for v in values]
    out = {}
    for k, v in enumerate(values):
        out[v] = max(
            min(mean(list(chain(*table[a : b + 1]))) for b in range(k, len(values)))
            for a in range(k + 1)
        )
    return out


@settings(deadline=None, max_examples=20, derandomize=True)
@given(cases())
def test_isotonic_parts_are_those_of_the_loop(case):
    p, y = case
    reliability, resolution = 0.0, 0.0
    for label in range(p.shape[1]):
        scores, hits = p[:, label].tolist(), [float(k == label) for k in y]
        fitted = best_monotone(scores, hits)
        best = mean([(fitted[s] - h) ** 2 for s, h in zip(scores, hits, strict=True)])
        reliability += mean([(s - h) ** 2 for s, h in zip(scores, hits, strict=True)]) - best
        resolution += mean(hits) * (1 - mean(hits)) - best
    found = brier_parts(probs=p, labels=y, scheme="isotonic")
    assert found.reliability == pytest.approx(reliability, abs=1e-10)
    assert found.resolution == pytest.approx(resolution, abs=1e-10)
    assert (found.residual, found.bins) == (0.0, None)


def test_nothing_is_left_over_where_probabilities_repeat():
    """Murphy's own case: a few distinct forecasts, each in a bin of its own."""
    p1 = np.repeat([0.1, 0.5, 0.9], 20)
    y = np.array([0] * 16 + [1] * 4 + [0] * 10 + [1] * 10 + [0] * 2 + [1] * 18)
    found = brier_parts(probs=p1, labels=y, bins=10)
    assert found.residual == pytest.approx(0.0, abs=1e-12)
    assert found.reliability == pytest.approx(2 * 0.1**2 / 3)
    overall = 32 / 60
    expected = 2 * np.mean([(s - overall) ** 2 for s in (0.2, 0.5, 0.9)])
    assert found.resolution == pytest.approx(expected)
    assert found.uncertainty == pytest.approx(2 * overall * (1 - overall))


def test_closed_forms():
    right = brier_parts(probs=[[1.0, 0.0], [0.0, 1.0]], labels=[0, 1])
    assert (right.score, right.reliability, right.refinement) == (0.0, 0.0, 0.0)
    wrong = brier_parts(probs=[[1.0, 0.0], [0.0, 1.0]], labels=[1, 0])
    assert (wrong.score, wrong.reliability, wrong.resolution) == (2.0, 2.0, 0.5)
    base = brier_parts(probs=[[0.25, 0.75]] * 4, labels=[0, 1, 1, 1])
    assert base.score == pytest.approx(base.uncertainty)
    assert base.reliability == pytest.approx(0, abs=1e-12)
    assert base.resolution == pytest.approx(0, abs=1e-12)


def test_resolution_of_calibrated_rows_is_their_sharpness():
    rng = np.random.default_rng(0)
    z = rng.normal(size=(20_000, 4)) * 2
    y = (z + rng.gumbel(size=z.shape)).argmax(axis=1)
    for scheme in ("width", "mass", "isotonic"):
        found = brier_parts(logits=z, labels=y, scheme=scheme, bins=30)
        assert found.reliability < 0.003
        assert found.resolution == pytest.approx(sharpness(logits=z, labels=y), rel=0.03)


def test_settings_are_checked():
    for wrong in ({"bins": 0}, {"scheme": "unique"}, {"bins": 0, "scheme": "isotonic"}):
        with pytest.raises(InvalidInput):
            brier_parts(probs=[[0.5, 0.5]], labels=[0], **wrong)
