"""The data of studies: names, representations, splits, and what is refused."""

import numpy as np
import pytest
import sklearn.datasets  # noqa: F401 - its import draws random numbers of its own

from temperance.errors import InvalidInput, NotFound
from temperance.study import data as room
from temperance.study.data import features_of, load
from temperance.study.outcome import SPLITS


@pytest.fixture(autouse=True)
def _no_root(monkeypatch):
    monkeypatch.delenv("TEMPERANCE_DATA", raising=False)


def write(path, *, n=60, c=3, d=4, **arrays):
    """A prepared data set of features."""
    rng = np.random.default_rng(0)
    y = np.arange(n) % c
    content = {
        "x": (rng.normal(size=(n, d)) + y[:, None]).astype(np.float32),
        "y": y,
        "classes": np.array([f"class {i}" for i in range(c)]),
    }
    content |= arrays
    np.savez(path, **{k: v for k, v in content.items() if v is not None})
    return content


def pictures(path, *, n=60):
    rng = np.random.default_rng(0)
    y = np.arange(n) % 3
    x = (
        rng.integers(0, 100, (n, 6, 5, 3)).astype(np.uint8)
        + (50 * y).astype(np.uint8)[:, None, None, None]
    )
    split = np.repeat([0, 1, 2], [36, 12, 12])
    write(path, n=n, x=x, y=y, split=split)
    return x, y, split


# ------------------------------------------------------------------ built-in data sets
@pytest.mark.parametrize(
    ("name", "shape", "n_classes"),
    [("digits", (1, 8, 8), 10), ("wine", (13,), 3), ("breast_cancer", (30,), 2), ("iris", (4,), 3)],
)
def test_built_in_data_sets(name, shape, n_classes, rng_guard):
    with rng_guard():
        data = load(name)
    assert data.input_shape == shape
    assert data.n_classes == n_classes
    assert (data.name, data.source) == (name, "input")
    assert set(data.x) == set(data.y) == set(SPLITS)
    for split in SPLITS:
        assert data.x[split].dtype == np.float32
        assert data.x[split].flags.c_contiguous
        assert data.y[split].dtype == np.int64
        assert len(data.x[split]) == len(data.y[split])
        assert set(np.unique(data.y[split])) == set(range(n_classes))
    n = sum(map(len, data.y.values()))
    assert abs(len(data.y["train"]) - 0.6 * n) <= n_classes


def test_input_of_pictures_is_standardized_by_the_training_rows():
    x = load("digits").x
    assert abs(float(x["train"].mean())) < 1e-4
    assert abs(float(x["train"].std()) - 1) < 1e-4
    assert float(x["test"].mean()) != 0


def test_pixels_are_shares_of_white():
    x = load("digits", "pixels").x["train"]
    assert x.shape == (1078, 64)
    assert (x.min(), x.max()) == (0, 1)


def test_steps_follow_each_other():
    once = load("wine", "standardized|pca:5")
    assert once.x["test"].shape[1] == 5
    # Standardized columns have the trace 13: five components explain a part of it.
    assert 5 < once.x["train"].var(axis=0).sum() < 13
    assert load("wine", "pca:5").x["train"].var(axis=0).sum() > 1000


def test_what_is_loaded_belongs_to_the_caller():
    first = load("iris")
    first.x["train"][:] = 0
    first.y["train"][:] = 0
    again = load("iris")
    assert again.x["train"].any()
    assert again.y["train"].any()


# ------------------------------------------------------------------ rows
def test_fewer_rows_are_a_part_of_more_and_judging_rows_stay():
    whole, large, small = (load("digits", train_rows=n) for n in (None, 400, 100))
    everything = {row.tobytes() for row in load("digits", "pixels").x["train"]}
    parts = [
        {row.tobytes() for row in load("digits", "pixels", train_rows=n).x["train"]}
        for n in (100, 400)
    ]
    assert parts[0] < parts[1] < everything
    assert (len(large.y["train"]), len(small.y["train"])) == (400, 100)
    for split in ("val", "test"):
        np.testing.assert_array_equal(whole.y[split], small.y[split])
    np.testing.assert_array_equal(np.bincount(small.y["train"]), [10] * 10)


def test_extractors_see_only_the_rows_that_train():
    few = load("digits", "standardized", train_rows=50).x["train"]
    np.testing.assert_allclose(few.mean(axis=0), 0, atol=1e-5)


def test_label_noise_is_in_training_only():
    clean, noisy = load("digits"), load("digits", label_noise=0.25)
    wrong = clean.y["train"] != noisy.y["train"]
    assert wrong.sum() == round(0.25 * len(wrong))
    np.testing.assert_array_equal(clean.x["train"], noisy.x["train"])
    for split in ("val", "test"):
        np.testing.assert_array_equal(clean.y[split], noisy.y[split])


# ------------------------------------------------------------------ prepared data sets and paths
def test_prepared_features_by_name_and_by_path(tmp_path, monkeypatch):
    content = write(tmp_path / "small.npz")
    named = load("small", data_root=tmp_path)
    path = load(str(tmp_path / "small.npz"))
    monkeypatch.setenv("TEMPERANCE_DATA", str(tmp_path))
    for other in (path, load("small")):
        np.testing.assert_array_equal(named.x["train"], other.x["train"])
    rows = {row.tobytes(): y for row, y in zip(content["x"], content["y"], strict=True)}
    seen = [row.tobytes() for split in SPLITS for row in named.x[split]]
    assert len(seen) == len(set(seen)) == 60
    for split in SPLITS:
        for row, y in zip(named.x[split], named.y[split], strict=True):
            assert rows[row.tobytes()] == y


def test_a_split_of_the_file_is_kept(tmp_path):
    x, y, split = pictures(tmp_path / "p.npz")
    data = load("p", "pixels", data_root=tmp_path)
    for code, name in enumerate(SPLITS):
        expected = x[split == code].reshape(-1, 90) / np.float32(255)
        np.testing.assert_allclose(data.x[name], expected, rtol=1e-6)
        np.testing.assert_array_equal(data.y[name], y[split == code])
    pic = load("p", data_root=tmp_path).x
    assert pic["val"].shape == (12, 3, 6, 5)
    flat = x[split == 0].reshape(-1, 3) / 255
    expected = (x[split == 1] / 255 - flat.mean(0)) / flat.std(0)
    np.testing.assert_allclose(pic["val"], expected.transpose(0, 3, 1, 2), rtol=1e-3, atol=1e-4)


def test_gray_pictures_without_an_axis_for_channels(tmp_path):
    x, y, split = pictures(tmp_path / "p.npz")
    write(tmp_path / "gray.npz", x=x[..., 0], y=y, split=split)
    assert load("gray", data_root=tmp_path).input_shape == (1, 6, 5)


def test_a_split_without_validation_rows_draws_them_from_training(tmp_path):
    content = write(tmp_path / "s.npz", split=np.repeat([0, 2], [48, 12]))
    data = load("s", data_root=tmp_path)
    np.testing.assert_array_equal(data.x["test"], content["x"][48:])
    assert len(data.y["train"]) + len(data.y["val"]) == 48


def test_ready_features(tmp_path):
    write(tmp_path / "words.npz", d=3)
    write(tmp_path / "words+net-7.npz", d=7)
    write(tmp_path / "words+minilm.npz", d=5)
    assert load("words", "net:7", data_root=tmp_path).input_shape == (7,)
    assert load(str(tmp_path / "words.npz"), "net:7").input_shape == (7,)
    reduced = load("words", "minilm|pca:2", data_root=tmp_path)
    assert reduced.input_shape == (2,)
    assert reduced.source == "minilm|pca:2"


def test_ids_of_letters_become_sequences(tmp_path):
    ids = np.random.default_rng(0).integers(0, 6, (60, 9)).astype(np.uint8)
    write(tmp_path / "words+letters-9.npz", x=ids, split=np.repeat([0, 1, 2], [36, 12, 12]))
    data = load("words", "letters:9|one-hot:5", data_root=tmp_path)
    assert data.input_shape == (5, 1, 9)
    for split, rows in zip(SPLITS, np.split(ids, [36, 48]), strict=True):
        found = data.x[split]
        assert found.dtype == np.float32
        back = (found * np.arange(1, 6)[:, None, None]).sum(axis=(1, 2))
        np.testing.assert_array_equal(back, rows)
    assert features_of(data).x.shape == (36, 45)
    with pytest.raises(InvalidInput) as caught:
        load("digits", "pixels|one-hot:5")
    assert caught.value.expected == "ids that are whole numbers"


def test_texts_have_ready_features_only(tmp_path):
    write(tmp_path / "words+minilm.npz")
    assert load("words", "minilm", data_root=tmp_path).input_shape == (4,)
    with pytest.raises(NotFound) as caught:
        load("words", data_root=tmp_path)
    assert caught.value.candidates == ("minilm",)


def test_a_file_that_changed_is_read_again(tmp_path):
    write(tmp_path / "a.npz", d=4)
    assert load("a", data_root=tmp_path).input_shape == (4,)
    write(tmp_path / "a.npz", d=5)
    assert load("a", data_root=tmp_path).input_shape == (5,)


def test_any_form_that_the_training_room_reads(tmp_path):
    lines = ["f,g,label"] + [f"{i},{i * i},{'ab'[i % 2]}" for i in range(40)]
    (tmp_path / "t.csv").write_text("\n".join(lines))
    assert load(str(tmp_path / "t.csv"), "standardized").input_shape == (2,)


def test_memory_is_bounded(monkeypatch):
    monkeypatch.setattr(room, "_KEPT_BYTES", 1)
    room._represented_rows.clear()
    for name in ("iris", "wine", "breast_cancer"):
        load(name)
    assert len(room._represented_rows) == 1
    assert len(room._sources) <= 2


# ------------------------------------------------------------------ features of the training rows
def test_features_keep_every_class_and_are_flat():
    data = load("digits", train_rows=10)
    found = features_of(data)
    assert found.x.shape == (10, 64)
    np.testing.assert_array_equal(found.x, data.x["train"].reshape(10, -1))
    assert found.class_names == tuple(map(str, range(10)))
    assert "digits" in found.source


# ------------------------------------------------------------------ bad input
def test_unknown_data_set(tmp_path):
    write(tmp_path / "here.npz")
    write(tmp_path / "text+minilm.npz")
    with pytest.raises(NotFound) as caught:
        load("nowhere", data_root=tmp_path)
    assert "'nowhere'" in caught.value.subject
    assert {"digits", "iris", "here", "text"} <= set(caught.value.candidates)
    assert "prepare.py" in caught.value.fix
    for name in ("", "nowhere"):
        with pytest.raises(NotFound) as caught:
            load(name)
    assert "TEMPERANCE_DATA" in caught.value.found


def test_unknown_representation(tmp_path):
    write(tmp_path / "here.npz")
    write(tmp_path / "here+net-8.npz")
    with pytest.raises(NotFound) as caught:
        load("here", "net:9", data_root=tmp_path)
    assert "here+net-9.npz" in caught.value.found
    assert {"pca", "net-8"} <= set(caught.value.candidates)
    with pytest.raises(NotFound) as caught:
        load("nowhere", "net:9", data_root=tmp_path)
    assert caught.value.subject == "data set 'nowhere'"


def test_sizes_that_the_rows_do_not_allow():
    for features in ("pca:14", "pca:500"):
        with pytest.raises(InvalidInput) as caught:
            load("wine", features)
        assert "at most 13" in caught.value.expected
    with pytest.raises(InvalidInput) as caught:
        load("wine", "pixels")
    assert caught.value.expected == "pictures"
    with pytest.raises(InvalidInput):
        load("wine", "random-conv:8")


@pytest.mark.parametrize(("rows", "noise"), [(5000, 0.0), (5, 0.0), (None, 1.0), (None, -0.5)])
def test_rows_and_noise_out_of_range(rows, noise):
    with pytest.raises(InvalidInput) as caught:
        load("digits", train_rows=rows, label_noise=noise)
    assert caught.value.subject in ("train_rows", "label_noise")


@pytest.mark.parametrize(
    ("arrays", "word"),
    [
        ({"x": np.full((60, 4), np.nan, np.float32)}, "finite"),
        ({"x": np.full((60, 4), 1e300)}, "finite"),
        ({"x": np.zeros((60, 3, 3), np.float32)}, "bytes"),
        ({"x": np.zeros((59, 4), np.float32)}, "60 rows"),
        ({"x": np.zeros((60, 0), np.float32)}, "60 rows"),
        ({"x": np.full((60, 4), "a")}, "numbers"),
        ({"x": 1e9 + np.arange(240.0).reshape(60, 4)}, "float32"),  # all would become one number
        ({"x": 1e9 + np.arange(240.0).reshape(60, 4), "classes": None}, "float32"),
        ({"x": (1 << 40) + np.arange(240).reshape(60, 4)}, "float32"),
        ({"x": 1e-60 * np.arange(240.0).reshape(60, 4)}, "float32"),
        ({"x": np.zeros((60, 3, 8, 8), np.uint8)}, "channels last"),
        ({"y": np.arange(60)}, "class ids"),
        ({"y": np.zeros(60, int), "classes": np.array(["one"])}, "two classes"),
        ({"y": np.zeros(60, int)}, "training row"),
        ({"split": np.full(60, 3)}, "split"),
        ({"split": np.zeros(5, int)}, "split"),
        ({"y": None}, "x, y"),
        ({"classes": None, "split": np.zeros(60, int)}, "classes"),
    ],
)
def test_damaged_files(tmp_path, arrays, word):
    write(tmp_path / "bad.npz", **arrays)
    with pytest.raises(InvalidInput) as caught:
        load("bad", data_root=tmp_path)
    assert word in caught.value.expected


def test_wide_numbers_that_float32_can_hold(tmp_path):
    """Constants that float32 rounds, and numbers far from 0 whose differences survive."""
    x = np.stack([np.full(60, 0.1), 0.1 + 0.2 * (np.arange(60) % 2), 1e6 + np.arange(60)], axis=1)
    x[::2, 0] = 0.1 * 3 / 3  # another rounding of the same number
    write(tmp_path / "wide.npz", x=x)
    assert len(np.unique(load("wide", data_root=tmp_path).x["train"][:, 2])) == 36


def test_too_few_rows_of_a_class(tmp_path):
    split = np.repeat([0, 1, 2], [40, 10, 10])
    y = np.where(split == 0, np.arange(60) % 2, np.arange(60) % 3)
    write(tmp_path / "few.npz", y=y, split=split)
    with pytest.raises(InvalidInput) as caught:
        load("few", data_root=tmp_path)
    assert "class 2" in caught.value.found


def test_a_file_cut_short(tmp_path):
    write(tmp_path / "cut.npz")
    content = (tmp_path / "cut.npz").read_bytes()
    for length in (0, 10, len(content) // 2):
        (tmp_path / "cut.npz").write_bytes(content[:length])
        with pytest.raises(InvalidInput) as caught:
            load("cut", data_root=tmp_path)
        assert "cut.npz" in caught.value.subject
