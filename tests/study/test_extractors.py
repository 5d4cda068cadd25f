"""Frozen extractors: their grammar, what they compute, what they may look at."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from temperance.errors import InvalidInput
from temperance.study.extractors import EXTRACTORS, Step, extract, parse_features

SIZES = {"pca": "3", "pca-white": "3", "random-relu": "16", "rff": "16", "random-conv": "8"}
STEPS = [Step(name, SIZES.get(name)) for name in EXTRACTORS if name != "one-hot"]


def rows(step, n=40, seed=0):
    rng = np.random.default_rng(seed)
    shape = (2, 6, 5) if EXTRACTORS[step.name].pictures else (7,)
    scale = 1.0 if len(shape) == 3 else np.arange(1.0, 8.0)
    return {
        split: (rng.normal(size=(m, *shape)) * scale + 2).astype(np.float32)
        for split, m in (("train", n), ("val", 9), ("test", 8))
    }


# ------------------------------------------------------------------ the contract of every extractor
@pytest.mark.parametrize("step", STEPS, ids=lambda s: s.text)
def test_shape_type_and_repeatability(step, rng_guard):
    x = rows(step)
    with rng_guard():
        once, again = extract(step, x), extract(step, x)
    width = int(step.size) if step.size else 7
    for split in x:
        assert once[split].shape == (len(x[split]), width)
        assert once[split].dtype == np.float32
        assert once[split].flags.c_contiguous
        assert np.isfinite(once[split]).all()
        np.testing.assert_array_equal(once[split], again[split])


@pytest.mark.parametrize("step", STEPS, ids=lambda s: s.text)
def test_fitted_on_training_rows_only(step):
    x = rows(step)
    other = {**x, "val": x["val"] * 100, "test": x["test"][:3]}
    found, changed = extract(step, x), extract(step, other)
    np.testing.assert_array_equal(found["train"], changed["train"])
    np.testing.assert_allclose(found["test"][:3], changed["test"], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("step", STEPS, ids=lambda s: s.text)
def test_the_input_is_left_alone(step):
    x = rows(step)
    before = {split: r.copy() for split, r in x.items()}
    extract(step, x)
    for split, r in x.items():
        np.testing.assert_array_equal(r, before[split])


# ------------------------------------------------------------------ what they compute
def test_standardized_is_the_plain_formula():
    x = rows(Step("standardized"))
    x["train"][:, 3] = 5.0  # a column without spread
    found = extract(Step("standardized"), x)
    mean, std = x["train"].mean(0, np.float64), x["train"].std(0, dtype=np.float64)
    std[3] = 1
    for split in x:
        np.testing.assert_allclose(found[split], (x[split] - mean) / std, rtol=1e-5, atol=1e-5)
    assert (found["train"][:, 3] == 0).all()


@pytest.mark.parametrize(("n", "d", "size"), [(60, 7, 3), (60, 7, 7), (9, 20, 5), (9, 20, 8)])
def test_pca_is_that_of_a_singular_value_decomposition(n, d, size):
    rng = np.random.default_rng(n)
    x = {s: rng.normal(size=(m, d)).astype(np.float32) for s, m in (("train", n), ("test", 5))}
    found = extract(Step("pca", str(size)), x)
    mean = x["train"].mean(0, np.float64)
    _, _, directions = np.linalg.svd(x["train"] - mean, full_matrices=False)
    for split in x:
        expected = (x[split] - mean) @ directions[:size].T
        np.testing.assert_allclose(np.abs(found[split]), np.abs(expected), rtol=1e-4, atol=1e-4)


def test_whitened_components_have_variance_one():
    white = extract(Step("pca-white", "5"), rows(Step("pca-white", "5")))["train"]
    np.testing.assert_allclose(np.cov(white.T), np.eye(5), atol=1e-4)


def test_random_fourier_features_approach_their_kernel():
    x = rows(Step("rff", "1"), n=30)
    z = extract(Step("rff", "20000"), x)["train"].astype(np.float64)
    centred = x["train"] - x["train"].mean(0, np.float64)
    squares = ((centred[:, None] - centred[None]) ** 2).sum(-1)
    width = np.median(np.sqrt(squares[np.triu_indices(30, 1)]))
    np.testing.assert_allclose(z @ z.T, np.exp(-squares / (2 * width**2)), atol=0.05)


@pytest.mark.parametrize("name", ["random-relu", "rff"])
@given(scale=st.floats(0.01, 100), shift=st.floats(-10, 10))
@settings(max_examples=10, deadline=None)
def test_random_features_do_not_depend_on_the_unit(name, scale, shift):
    x = rows(Step(name, "8"))
    moved = {s: (r * scale + shift).astype(np.float32) for s, r in x.items()}
    step = Step(name, "8")
    np.testing.assert_allclose(
        extract(step, x)["val"], extract(step, moved)["val"], rtol=1e-2, atol=1e-2
    )


def test_the_random_net_is_the_naive_convolution():
    x = rows(Step("random-conv", "8"), n=2)
    found = extract(Step("random-conv", "8"), x)["train"]
    # A net of ReLUs without bias: twice the input gives twice the features.
    double = {s: 2 * r for s, r in x.items()}
    np.testing.assert_allclose(extract(Step("random-conv", "8"), double)["train"], 2 * found)
    assert (found >= 0).all()
    assert found.std() > 0


IDS = arrays(
    np.float32, st.tuples(st.integers(1, 9), st.integers(1, 7)), elements=st.integers(-2, 9)
)


@given(ids=IDS, size=st.integers(1, 9))
def test_one_hot_is_the_naive_loop(ids, size):
    before = ids.copy()
    found = extract(Step("one-hot", str(size)), {"train": ids, "val": ids[:1]})
    wanted = np.zeros((len(ids), size, 1, ids.shape[1]), np.float32)
    for row, column in np.ndindex(*ids.shape):
        if 1 <= ids[row, column] <= size:
            wanted[row, int(ids[row, column]) - 1, 0, column] = 1
    np.testing.assert_array_equal(found["train"], wanted)
    np.testing.assert_array_equal(found["val"], wanted[:1])
    np.testing.assert_array_equal(ids, before)
    assert found["train"].dtype == np.float32
    assert found["train"].flags.c_contiguous


def test_one_hot_of_more_rows_than_it_takes_together():
    ids = np.random.default_rng(0).integers(0, 4, (1100, 3)).astype(np.float32)
    found = extract(Step("one-hot", "3"), {"train": ids})["train"]
    back = (found * np.arange(1, 4)[:, None, None]).sum(axis=(1, 2))
    np.testing.assert_array_equal(back, ids)


def test_one_hot_wants_whole_numbers():
    ids = np.array([[1, 2], [3, 0.5]], np.float32)
    with pytest.raises(InvalidInput) as caught:
        extract(Step("one-hot", "4"), {"train": ids[:1], "val": ids})
    assert caught.value.found == "0.5 in row 1, column 1"
    with pytest.raises(InvalidInput) as caught:
        extract(Step("one-hot", "4"), {"train": np.zeros((2, 1, 1, 4), np.float32)})
    assert "rows of numbers" in caught.value.expected


# ------------------------------------------------------------------ grammar and bad input
def test_grammar():
    assert parse_features("input") == (Step("input"),)
    assert parse_features("efficientnet-lite0:3 | pca:8")[1] == Step("pca", "8")
    assert parse_features("efficientnet-lite0:3")[0].text == "efficientnet-lite0:3"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "pca",
        "pca:",
        "pca:0",
        "pca:-3",
        "pca:4.5",
        "pca:many",
        "standardized:3",
        "pixels:4",
        "input:3",
        "input|pca:3",
        "pca:3|",
        "|pca:3",
        "pca:3|minilm",
        "pca:3|pixels",
        "pixels|random-conv:8",
        "one-hot",
        "one-hot:3|pca:2",
        "letters:9|one-hot:3|one-hot:3",
        ":3",
        3,
        None,
    ],
)
def test_bad_names_are_refused(text):
    with pytest.raises(InvalidInput) as caught:
        parse_features(text)
    assert caught.value.subject.startswith("features")


def test_more_components_than_the_rows_allow():
    x = rows(Step("pca", "3"))
    for size, most in (("8", "7"), ("100", "7")):
        with pytest.raises(InvalidInput) as caught:
            extract(Step("pca", size), x)
        assert most in caught.value.expected
        assert caught.value.found == size
    few = {"train": x["train"][:4]}
    with pytest.raises(InvalidInput) as caught:
        extract(Step("pca-white", "4"), few)
    assert "at most 3" in caught.value.expected


def test_more_components_than_the_rank():
    x = rows(Step("pca", "3"))
    x["train"][:, 2:] = x["train"][:, :1]
    with pytest.raises(InvalidInput) as caught:
        extract(Step("pca", "4"), x)
    assert caught.value.expected.startswith("M of at most 2, the rank")


@pytest.mark.parametrize("step", [Step("rff", "4"), Step("random-relu", "4"), Step("pca", "1")])
def test_rows_that_do_not_differ(step):
    with pytest.raises(InvalidInput):
        extract(step, {"train": np.ones((6, 3), np.float32)})


def test_pictures_and_rows_are_not_mixed_up():
    pictures = np.zeros((4, 1, 8, 8), np.float32)
    with pytest.raises(InvalidInput) as caught:
        extract(Step("pca", "2"), {"train": pictures})
    assert "rows of numbers" in caught.value.expected
    with pytest.raises(InvalidInput) as caught:
        extract(Step("random-conv", "8"), {"train": pictures.reshape(4, 64)})
    assert caught.value.expected == "pictures"
    for step, x in (
        (Step("random-conv", "6"), pictures),
        (Step("random-conv", "8"), pictures[..., :3]),
    ):
        with pytest.raises(InvalidInput) as caught:
            extract(step, {"train": x})
        assert "fours" in caught.value.expected


@pytest.mark.parametrize("name", ["one-hot", "random-relu"])
def test_a_size_beyond_all_memory_is_refused(name):
    with pytest.raises(InvalidInput) as caught:
        extract(Step(name, str(10**13)), {"train": np.eye(4, dtype=np.float32)})
    assert caught.value.expected == "a size that fits into memory"
