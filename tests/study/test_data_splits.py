"""Nested training sets and wrong labels."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from temperance.errors import InvalidInput
from temperance.study.data_splits import nested_rows, noisy_labels

counts = st.lists(st.integers(1, 30), min_size=2, max_size=8)


def labels(sizes, seed=1):
    y = np.repeat(np.arange(len(sizes)), sizes)
    return np.random.default_rng(seed).permutation(y)


@given(counts, st.data())
@settings(max_examples=60, deadline=None)
def test_subsets_are_nested_and_stratified(sizes, data):
    y, n_classes = labels(sizes), len(sizes)
    large = data.draw(st.integers(n_classes, len(y)))
    small = data.draw(st.integers(n_classes, large))
    more, less = (nested_rows(y, n, n_classes) for n in (large, small))
    assert len(more) == large
    assert (np.diff(more) > 0).all()
    assert set(less) <= set(more)
    found = np.bincount(y[more], minlength=n_classes)
    assert found.min() >= 1
    # One share fits all classes within one row; a class has one row at least.
    least = max((n - 1) / size for n, size in zip(found, sizes, strict=True))
    most = min((n + 1) / size for n, size in zip(found, sizes, strict=True))
    assert least <= most


def test_all_rows():
    y = labels([4, 5, 6])
    np.testing.assert_array_equal(nested_rows(y, 15, 3), np.arange(15))


@pytest.mark.parametrize("n", [2, 16, 0, -1])
def test_too_few_and_too_many(n):
    with pytest.raises(InvalidInput) as caught:
        nested_rows(labels([4, 5, 6]), n, 3)
    assert caught.value.subject == "train_rows"
    assert caught.value.found == str(n)
    assert "3" in caught.value.expected
    assert "15" in caught.value.expected


@given(counts, st.floats(0, 0.99), st.floats(0, 0.99))
@settings(max_examples=60, deadline=None)
def test_noise_changes_that_share_and_nests(sizes, one, other):
    y, n_classes = labels(sizes), len(sizes)
    before = y.copy()
    low, high = sorted((one, other))
    little, much = (noisy_labels(y, share, n_classes) for share in (low, high))
    np.testing.assert_array_equal(y, before)
    assert (little != y).sum() == round(low * len(y))
    assert (much != y).sum() == round(high * len(y))
    wrong = little != y
    np.testing.assert_array_equal(little[wrong], much[wrong])
    assert ((much >= 0) & (much < n_classes)).all()


def test_wrong_classes_are_uniform():
    y = np.full(12_000, 2)
    wrong = np.bincount(noisy_labels(y, 0.5, 4), minlength=4)
    assert wrong[2] == 6000
    assert (np.abs(wrong[[0, 1, 3]] - 2000) < 200).all()


@pytest.mark.parametrize("share", [-0.1, 1.0, 2, float("nan")])
def test_shares_out_of_range(share):
    with pytest.raises(InvalidInput) as caught:
        noisy_labels(np.zeros(3, np.int64), share, 2)
    assert caught.value.subject == "label_noise"
