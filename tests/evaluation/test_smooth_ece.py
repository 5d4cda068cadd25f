"""Smooth ECE against a direct sum over kernels and their mirror images."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from temperance.evaluation import ece, smooth_ece

SETTINGS = settings(deadline=None, max_examples=10, derandomize=True)


def direct(f, y):
    """From the definition: kernels reflected at 0 and 1 by images, the integral on a fine grid."""
    t = np.linspace(0, 1, 2001)

    def smoothed(s):
        total = np.zeros_like(t)
        turns = math.ceil(5 * s) + 1
        for k in range(-turns, turns + 1):
            for sign in (1, -1):
                kernel = np.exp(-((t[:, None] - 2 * k - sign * f) ** 2) / (2 * s * s))
                total += kernel @ (y - f)
        total /= len(f) * s * math.sqrt(2 * math.pi)
        return np.trapezoid(np.abs(total), t)

    low, high = 1e-3, 1.0
    for _ in range(25):
        middle = (low + high) / 2
        low, high = (middle, high) if smoothed(middle) > middle else (low, middle)
    return (low + high) / 2


def rows(confidence, correct):
    return {"probs": np.stack([1 - confidence, confidence], axis=1), "labels": correct.astype(int)}


@SETTINGS
@given(st.integers(2, 60), st.integers(0, 999), st.sampled_from([0.5, 1.0, 3.0]))
def test_smooth_ece_is_the_fixed_point(n, seed, power):
    rng = np.random.default_rng(seed)
    f = rng.uniform(0.5, 1, n)
    f[0] = 1.0
    y = rng.random(n) < f**power
    expected = direct(f, y)
    found = smooth_ece(**rows(f, y))
    if expected > 0.002:  # where the direct sum is exact enough itself
        assert found == pytest.approx(expected, rel=1e-4)


# smECE of relplot 1.0.3 (reflected kernel, eps=1e-5) for these rows. It looks for the bandwidth by
# ten halvings; its figure is that of one up to 0.001 above the fixed point, so a little less.
RELPLOT = {
    (200, 1.0): 0.04021257,
    (2000, 2.0): 0.18496603,
    (5000, 0.7): 0.05634067,
    (20_000, 1.0): 0.00867386,
}


@pytest.mark.parametrize(("n", "power"), RELPLOT)
def test_smooth_ece_is_that_of_the_authors(n, power):
    rng = np.random.default_rng(n)
    f = rng.uniform(0.5, 1, n)
    y = rng.random(n) < f**power
    found = smooth_ece(**rows(f, y))
    assert RELPLOT[n, power] - 1e-5 <= found <= RELPLOT[n, power] + 5e-4


def test_closed_forms():
    # one confidence: the kernel keeps the mass, so that the gap is the fixed point
    sure = np.ones(5)
    assert smooth_ece(**rows(sure, np.zeros(5))) == 1.0
    assert smooth_ece(**rows(sure, np.ones(5))) == 0.0
    assert smooth_ece(**rows(np.full(10, 0.7), np.ones(10))) == pytest.approx(0.3, rel=1e-6)
    half = np.full(4, 0.5)
    assert smooth_ece(**rows(half, np.array([0, 1, 0, 1]))) == 0.0
    # residuals of 0.4 and -1: apart for a narrow kernel, in part cancelling for a wide one
    f, y = np.array([0.6, 1.0]), np.array([1, 0])
    assert smooth_ece(**rows(f, y)) == pytest.approx(direct(f, y), rel=1e-4)


def test_errors_below_the_first_grid_are_found():
    f = np.full(4000, 0.75)
    y = np.arange(4000) < 3002  # a gap of 0.0005
    assert smooth_ece(**rows(f, y)) == pytest.approx(0.0005, rel=1e-3)


def test_smooth_ece_does_not_jump_where_bins_do():
    """A confidence that crosses an edge of the bins moves the ECE by 0.1, the smooth one hardly."""
    y = np.array([1, 0] * 50)
    at = [np.where(y == 1, 0.6 - 1e-9, 0.6 + shift) for shift in (-1e-9, 1e-9)]
    binned = [ece(**rows(f, y), bins=10) for f in at]
    smooth = [smooth_ece(**rows(f, y)) for f in at]
    assert abs(binned[0] - binned[1]) > 0.3
    assert abs(smooth[0] - smooth[1]) < 1e-6


def test_more_calibrated_rows_give_less():
    found = []
    for n in (100, 1000, 10_000, 100_000):
        rng = np.random.default_rng(n)
        f = rng.uniform(0.5, 1, n)
        found.append(smooth_ece(**rows(f, rng.random(n) < f)))
    assert sorted(found, reverse=True) == found
    assert found[-1] < 0.005
