"""Exact neighbours: against a loop, on data that break float32, blind to blocks and threads."""

import subprocess
import sys
import tracemalloc

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from temperance.errors import InvalidInput
from temperance.task import neighbours, products, row_view
from temperance.task.neighbours import nearest

RNG = np.random.default_rng(5)
N = 700


def brute(x, rows, k):
    """All distances by differences in float64; equal distances: the higher row number first."""
    wide = np.ascontiguousarray(x, dtype=np.float64)
    ids, distances = np.empty((len(rows), k), int), np.empty((len(rows), k))
    for place, row in enumerate(rows):
        squared = np.square(wide - wide[row]).sum(axis=1)
        squared[row] = np.inf
        ids[place] = np.lexsort((-np.arange(len(x)), squared))[:k]
        distances[place] = np.sqrt(squared[ids[place]])
    return ids, distances


def normal(*shape):
    return RNG.normal(size=shape)


def far_clusters(distance):
    centres = normal(20, 24) * distance
    return centres[np.arange(N) % 20] + normal(N, 24)


def with_outliers():
    x = normal(N, 16)
    x[3], x[4], x[5, 0] = 1e12, -1e30, 1e30
    return x


CASES = {
    "normal": normal(N, 32),
    "float32": normal(N, 32).astype(np.float32),
    "mean 1e4, float32": (1e4 + normal(N, 32)).astype(np.float32),
    "mean 1e6, float32": (1e6 + normal(N, 32)).astype(np.float32),
    "mean 1e9": 1e9 + normal(N, 32),
    "clusters 1e4 apart, float32": far_clusters(1e4).astype(np.float32),
    "clusters 1e9 apart": far_clusters(1e9),
    "outliers": with_outliers(),
    "outliers, float32": with_outliers().astype(np.float32),
    "unit 1e-8": normal(N, 16) * 1e-8,
    "unit 1e8, float32": (normal(N, 16) * 1e8).astype(np.float32),
    "unit 1e-40, float32": (normal(N, 16) * 1e-40).astype(np.float32),
    "unit 1e35, float32": (normal(N, 16) * 1e35).astype(np.float32),
    "pixels": RNG.integers(0, 256, size=(N, 48)).astype(np.float32),
    "binary, many ties": RNG.integers(0, 2, size=(N, 24)).astype(np.float32),
    "binary, many duplicates": RNG.integers(0, 2, size=(N, 5)).astype(np.float32),
    "all rows equal": np.full((N, 8), 3.0, np.float32),
    "every row twice": np.repeat(normal(N // 2, 16), 2, axis=0),
    "signed zeros": np.where(RNG.integers(0, 2, size=(N, 2)) > 0, 0.0, -0.0),
    "one feature": normal(N, 1),
    "evenly spaced": np.linspace(0, 1, N)[:, None] * np.ones((1, 5)),
    "sorted": np.sort(normal(N, 3), axis=0),
    "one-hot": np.eye(90),
    "column order": np.asfortranarray(normal(N, 12)),
    "4096 features": normal(120, 4096).astype(np.float32),
    "mostly zero": np.maximum(0, normal(N, 40) - 2),
    "one row in a thousand differs": np.vstack([np.zeros((N, 4)), normal(3, 4)]),
}


@pytest.mark.parametrize("k", [1, 3])
@pytest.mark.parametrize("name", CASES)
def test_as_a_loop_finds_them(name, k):
    x = CASES[name]
    rows = np.arange(0, len(x), 2)
    ids, distance = nearest(x, rows, k)
    expected_ids, expected = brute(x, rows, k)
    np.testing.assert_array_equal(ids, expected_ids)
    np.testing.assert_allclose(distance, expected, rtol=1e-12)


@pytest.mark.parametrize(("n", "k"), [(2, 1), (3, 2), (40, 39), (40, 37), (700, 150), (33, 5)])
def test_any_number_of_neighbours(n, k):
    x = normal(n, 6)
    np.testing.assert_array_equal(nearest(x, np.arange(n), k)[0], brute(x, np.arange(n), k)[0])


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    x=arrays(np.float32, (24, 2), elements=st.integers(-3, 3).map(float)),
    rows=st.sets(st.integers(0, 23), min_size=1),
    k=st.integers(1, 23),
)
def test_small_grids_full_of_ties(x, rows, k):
    rows = np.array(sorted(rows))
    np.testing.assert_array_equal(nearest(x, rows, k)[0], brute(x, rows, k)[0])


@pytest.mark.parametrize("block", [32, 64, 256])
def test_blocks_change_nothing(monkeypatch, block):
    x = np.concatenate([normal(400, 8), far_clusters(1e4)[:300, :8]]).astype(np.float32)
    whole = nearest(x, np.arange(3, 700, 2), 3)
    monkeypatch.setattr(row_view, "_BLOCK", block)
    monkeypatch.setattr(neighbours, "_GROUP_BYTES", 3 * block * 10 * 4)
    parts = nearest(x, np.arange(3, 700, 2), 3)
    np.testing.assert_array_equal(parts[0], whole[0])
    np.testing.assert_array_equal(parts[1], whole[1])


@pytest.mark.parametrize("product", [products.BLAS, products.ONEDNN], ids=["blas", "onednn"])
@pytest.mark.parametrize("name", ["normal", "clusters 1e4 apart, float32", "binary, many ties"])
def test_the_library_of_the_product_changes_nothing(monkeypatch, product, name):
    if product is products.ONEDNN and not torch.backends.mkldnn.is_available():
        pytest.skip("this torch has no oneDNN")
    monkeypatch.setattr(neighbours, "choose_product", lambda _: product)
    x = CASES[name]
    rows = np.arange(len(x))
    np.testing.assert_array_equal(nearest(x, rows, 3)[0], brute(x, rows, 3)[0])


def test_products_that_round_to_fewer_bits_are_not_used():
    def shorter(a, b):  # as with eight bits
        cut = a.astype(np.float32).view(np.uint32) & np.uint32(0xFFFF0000)
        return cut.view(np.float32) @ b.T

    assert products._is_float32(products.BLAS)
    assert not products._is_float32(products.Product(lambda block: block, shorter))
    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("medium")
        x = CASES["normal"]
        rows = np.arange(len(x))
        np.testing.assert_array_equal(nearest(x, rows, 3)[0], brute(x, rows, 3)[0])
    finally:
        torch.set_float32_matmul_precision(before)


def test_torch_is_not_imported_for_little_work():
    code = (
        "import sys, numpy as np; from temperance.task.products import choose_product as c, BLAS;"
        "assert c(1e9) is BLAS; assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_threads_and_memory_order_change_nothing():
    from threadpoolctl import threadpool_limits

    x = normal(1500, 64)
    with threadpool_limits(1):
        one = nearest(x, np.arange(0, 1500, 3), 4)
    with threadpool_limits(4):
        four = nearest(np.asfortranarray(x), np.arange(0, 1500, 3), 4)
    np.testing.assert_array_equal(one[0], four[0])
    np.testing.assert_array_equal(one[1], four[1])


def test_float32_alone_would_be_wrong_here(monkeypatch):
    """The proof matters: without it the far clusters get wrong neighbours."""
    x = CASES["clusters 1e4 apart, float32"]
    rows = np.arange(len(x))
    monkeypatch.setattr(neighbours, "_proven", lambda view, rows, *_: np.ones(len(rows), bool))
    assert (nearest(x, rows, 3)[0] != brute(x, rows, 3)[0]).any()


def test_the_slow_way_is_rare_on_ordinary_data(monkeypatch):
    slow = []
    again = neighbours._search_again
    monkeypatch.setattr(
        neighbours,
        "_search_again",
        lambda view, rows, *rest: slow.extend(rows) or again(view, rows, *rest),
    )
    nearest((1e4 + normal(2000, 64)).astype(np.float32), np.arange(2000), 3)
    assert len(slow) < 10


def test_shared_tiles_are_computed_once():
    calls = []
    nearest(normal(5000, 4), np.arange(5000), 1, progress=lambda *call: calls.append(call))
    assert [done for done, _ in calls] == list(range(1, 16))  # 5 blocks: 5 * 6 / 2 pairs
    assert {total for _, total in calls} == {15}
    calls.clear()
    nearest(normal(5000, 4), np.arange(10), 1, progress=lambda *call: calls.append(call))
    assert calls[-1] == (5, 5)  # one block of queries: linear in the rows


def test_memory_is_bounded():
    x = normal(60_000, 16).astype(np.float32)
    rows = np.arange(0, 60_000, 60)
    tracemalloc.start()
    nearest(x, rows, 3)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 60e6  # the table of all distances would take 240 MB


def test_the_random_state_stays(rng_guard):
    with rng_guard():
        nearest(normal(100, 3), np.arange(100), 2)


@pytest.mark.parametrize("largest", [1e150, 1e305])
def test_values_that_cannot_be_squared(largest):
    x = normal(50, 3)
    x[7, 1] = largest
    with pytest.raises(InvalidInput) as caught:
        nearest(x, np.arange(50), 1)
    assert caught.value.subject == "features x"
