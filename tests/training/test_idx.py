import gzip
import struct

import numpy as np
import pytest

from temperance.errors import InvalidInput
from temperance.training.idx import is_idx, read_idx
from temperance.training.sources import open_data

CODES = {"u1": 8, "i1": 9, "i2": 11, "i4": 12, "f4": 13, "f8": 14}


def idx_bytes(array):
    code = CODES[array.dtype.str[1:]]
    head = struct.pack(">BBBB", 0, 0, code, array.ndim)
    return (
        head
        + struct.pack(f">{array.ndim}I", *array.shape)
        + array.astype(array.dtype.newbyteorder(">")).tobytes()
    )


@pytest.fixture
def folder(tmp_path):
    rng = np.random.default_rng(0)
    for part, n in (("train", 12), ("t10k", 6)):
        x = rng.integers(0, 256, (n, 5, 4), dtype=np.uint8)
        y = (np.arange(n) % 3).astype(np.uint8)
        for what, a in (("images-idx3", x), ("labels-idx1", y)):
            (tmp_path / f"{part}-{what}-ubyte.gz").write_bytes(gzip.compress(idx_bytes(a)))
    return tmp_path


@pytest.mark.parametrize("dtype", sorted(CODES))
@pytest.mark.parametrize("packed", [True, False])
def test_every_type_comes_back(dtype, packed, tmp_path):
    values = (np.arange(24).reshape(2, 3, 4) - (0 if dtype == "u1" else 5)).astype(dtype)
    path = tmp_path / ("x.gz" if packed else "x")
    path.write_bytes(gzip.compress(idx_bytes(values)) if packed else idx_bytes(values))
    result = read_idx(path)
    np.testing.assert_array_equal(result, values)
    assert result.dtype == values.dtype


def test_a_folder_is_opened(folder):
    data = open_data(folder)
    assert data.parts["train"].x.shape == (12, 5, 4, 1)
    assert data.parts["test"].y.tolist() == [0, 1, 2, 0, 1, 2]
    assert data.class_map.names == ("0", "1", "2")
    assert data.white == 255


@pytest.mark.parametrize(
    "damage",
    [
        lambda b: b[:-30],  # cut in the gzip stream
        lambda b: b"not gzip" + b,
        lambda b: gzip.compress(gzip.decompress(b)[:-1]),  # a value too few
        lambda b: gzip.compress(gzip.decompress(b) + b"\0"),  # a value too many
        lambda b: gzip.compress(b"\1" + gzip.decompress(b)[1:]),  # another magic number
        lambda b: gzip.compress(b"\0\0"),
        lambda b: b"",
    ],
)
def test_damage_is_refused_by_name(folder, damage):
    path = folder / "train-images-idx3-ubyte.gz"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(InvalidInput) as caught:
        open_data(folder)
    assert path.name in caught.value.subject


def test_other_counts_of_pictures_and_labels(folder):
    path = folder / "train-labels-idx1-ubyte.gz"
    path.write_bytes(gzip.compress(idx_bytes(np.zeros(11, np.uint8))))
    with pytest.raises(InvalidInput) as caught:
        open_data(folder)
    assert "[12, 5, 4]" in caught.value.found
    assert "[11]" in caught.value.found


def test_parts_of_another_size(folder):
    path = folder / "t10k-images-idx3-ubyte.gz"
    path.write_bytes(gzip.compress(idx_bytes(np.zeros((6, 5, 5), np.uint8))))
    with pytest.raises(InvalidInput) as caught:
        open_data(folder)
    assert caught.value.found == "[5, 5, 1]"


def test_a_lone_file_of_a_pair(folder):
    (folder / "t10k-labels-idx1-ubyte.gz").unlink()
    with pytest.raises(InvalidInput, match="test"):
        open_data(folder)


def test_several_data_sets_in_a_folder(folder):
    (folder / "letters-train-images-idx3-ubyte.gz").write_bytes(b"")
    with pytest.raises(InvalidInput) as caught:
        open_data(folder)
    assert "letters-" in caught.value.found


def test_the_file_itself_is_no_form_but_its_folder_is(folder):
    with pytest.raises(InvalidInput) as caught:
        open_data(folder / "train-images-idx3-ubyte.gz")
    assert "folder" in caught.value.fix


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("train-images-idx3-ubyte", True),
        ("t10k-labels.idx1-ubyte", True),
        ("emnist-letters-train-labels-idx1-ubyte.gz", True),
        ("train-images.png", False),
    ],
)
def test_names(name, expected):
    assert is_idx(name) is expected
