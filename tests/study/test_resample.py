"""The bootstrap over data sets against plain loops."""

import numpy as np
import pytest

from temperance.errors import InvalidInput
from temperance.study.resample import data_set_interval, resample_data_sets


def test_draws_are_whole_data_sets():
    names = ["b", "a", "b", "c", "a", "b"]
    values = np.array([1.0, 2.0, 4.0, 8.0, 16.0, 32.0])
    draw = resample_data_sets(names, replicates=40, seed=3)
    means, medians, sums = draw.mean(values), draw.median(values), draw.sums(values)
    for place, weights in enumerate(draw.weights):
        assert weights.sum() == 3
        rows = [v for name, times in zip("abc", weights, strict=True)
                for _ in range(int(times)) for n, v in zip(names, values, strict=True)
                if n == name]  # fmt: skip
        assert means[place] == pytest.approx(np.mean(rows))
        assert medians[place] == np.median(rows)
        assert sums[place] == sum(rows)


def test_intervals_that_cannot_be_given():
    assert data_set_interval(1.0, np.ones(9), 1) is None
    assert data_set_interval(1.0, np.array([np.nan, 1, 1, 1]), 5) is None
    assert data_set_interval(2.0, np.linspace(0, 1, 11), 5)[1] == 2.0  # it holds the value
    wide, narrow = (data_set_interval(0.5, np.linspace(0, 1, 101), d) for d in (4, 400))
    assert wide[0] < narrow[0] < narrow[1] < wide[1]
    with pytest.raises(InvalidInput):
        resample_data_sets([], replicates=5, seed=0)
    for bad in ({"replicates": 0}, {"replicates": 2.0}, {"replicates": True}, {"seed": -1}):
        with pytest.raises(InvalidInput) as caught:
            resample_data_sets(["a"], **{"replicates": 5, "seed": 0, **bad})
        assert caught.value.subject == ("seed" if "seed" in bad else "bootstrap")


def test_intervals_of_few_data_sets_hold_the_truth_more_often_than_percentiles():
    rng = np.random.default_rng(0)
    held = np.zeros(2)
    for trial in range(300):
        names = np.repeat(np.arange(6), rng.integers(1, 5, 6)).astype(str)
        values = rng.normal(size=6)[names.astype(int)] + 0.3 * rng.normal(size=len(names))
        means = resample_data_sets(list(names), replicates=200, seed=trial).mean(values)
        low, high = data_set_interval(float(values.mean()), means, 6)
        plain = np.quantile(means, [0.025, 0.975])
        held += [low <= 0 <= high, plain[0] <= 0 <= plain[1]]
    assert held[0] / 300 > 0.88
    assert held[0] > held[1]
