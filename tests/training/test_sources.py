import os
import tempfile
import warnings
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from temperance.errors import InvalidInput
from temperance.training.dataset import row_digests
from temperance.training.sources import FORMS, open_data


def test_digits():
    data = open_data("digits")
    part = data.parts["train"]
    assert part.x.shape == (1797, 8, 8, 1)
    assert part.x.dtype == np.uint8
    assert part.x.max() == data.white == 16
    assert data.n_classes == 10
    assert data.input_shape == (1, 8, 8)
    assert data.counts().sum() == 1797
    assert len(part.ids) == 1797


def test_digits_is_the_word_even_if_there_is_a_folder_of_that_name(tmp_path, monkeypatch):
    (tmp_path / "digits").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.warns(match=r"\./digits"):
        assert open_data("digits").kind == "images"
    with pytest.raises(InvalidInput):
        open_data("./digits")


@pytest.mark.parametrize("size", [4, 8, 32])
def test_arrays_take_the_size_that_is_asked_for(size):
    data = open_data("digits", image_size=size)
    assert data.parts["train"].x.shape == (1797, size, size, 1)
    assert any("8x8 pixels were resized" in n for n in data.notices) == (size != 8)
    if size == 8:
        assert data.fingerprint == open_data("digits").fingerprint


def test_nothing_there():
    with pytest.raises(InvalidInput) as caught:
        open_data("no/such/thing")
    assert caught.value.found == "nothing there"
    assert all(form in str(caught.value) for form in FORMS)


@pytest.mark.parametrize("name", ["x.txt", "x", "x.tar.gz", "x.npy"])
def test_an_unknown_form_lists_the_known_ones(tmp_path, name):
    (tmp_path / name).write_bytes(b"x")
    with pytest.raises(InvalidInput) as caught:
        open_data(tmp_path / name)
    assert all(form in caught.value.expected for form in FORMS)


def test_an_empty_folder(tmp_path):
    with pytest.raises(InvalidInput, match="one per class"):
        open_data(tmp_path)


@pytest.mark.skipif(os.name != "posix", reason="permissions")
@pytest.mark.parametrize("name", ["x.npz", "x.csv", "x.parquet", "folder"])
def test_unreadable_sources_are_named(name):
    with tempfile.TemporaryDirectory() as folder, somebody_else(folder):
        path = Path(folder) / name
        path.mkdir() if name == "folder" else path.write_bytes(b"x")
        path.chmod(0)
        try:
            with pytest.raises(InvalidInput) as caught:
                open_data(path)
        finally:
            path.chmod(0o700)
    assert name in caught.value.subject


@contextmanager
def somebody_else(folder):
    """Work without the rights of root, who may read everything."""
    if os.geteuid() != 0:
        yield
        return
    os.chown(folder, 65534, 65534)
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


def test_values_that_are_not_finite_are_named_by_the_row_of_the_source(tmp_path):
    for shape in ((8, 3), (8, 3, 4)):
        x = np.zeros(shape)
        x[5, 1] = np.nan
        np.savez(tmp_path / "x.npz", x=x, y=[-1, -1, 0, 1, 0, 1, 0, 1])
        with pytest.raises(InvalidInput) as caught:
            open_data(tmp_path / "x.npz", ignore=(-1,))
        assert "x[5]" in caught.value.found


@pytest.mark.parametrize(
    "options", [{"image_size": 0}, {"image_size": 100_000}, {"on_bad": "ignore"}]
)
def test_arguments_are_checked_first(options):
    with pytest.raises(InvalidInput) as caught:
        open_data("no/such/thing", **options)
    assert caught.value.subject in options


def test_the_fingerprint_sees_rows_labels_and_classes(tmp_path):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(8, 3)), np.array([0, 1] * 4)

    def fingerprint(**arrays):
        path = tmp_path / "x.npz"
        np.savez(path, **{"x": x, "y": y, **arrays})
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return open_data(path).fingerprint

    base = fingerprint()
    assert fingerprint() == base
    other = x.copy()
    other[3, 1] += 1e-3
    others = [
        fingerprint(x=other),
        fingerprint(y=1 - y),
        fingerprint(class_names=["a", "b"]),
        fingerprint(x_test=x, y_test=y),
    ]
    assert len({base, *others}) == 5


def test_equal_rows_have_equal_digests_whatever_their_memory():
    x = np.random.default_rng(0).integers(0, 9, (4, 3, 2), dtype=np.uint8)
    assert row_digests(x) == row_digests(np.asfortranarray(x))
    assert len(set(row_digests(np.concatenate([x, x])))) == 4


def test_no_global_random_state_is_touched(rng_guard):
    with rng_guard():
        open_data("digits")


@pytest.mark.skipif(
    "TEMPERANCE_FASHION_MNIST" not in os.environ,
    reason="TEMPERANCE_FASHION_MNIST names no folder with the IDX files of Fashion-MNIST",
)
def test_fashion_mnist():
    data = open_data(os.environ["TEMPERANCE_FASHION_MNIST"])
    assert data.parts["train"].x.shape == (60000, 28, 28, 1)
    assert data.counts().tolist() == [6000] * 10
    assert data.counts("test").tolist() == [1000] * 10
