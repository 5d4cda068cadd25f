"""What is to be predicted: pictures, folders, arrays and tables, read as the training read them."""

import numpy as np
import pytest

from temperance.errors import InvalidInput, TemperanceWarning
from temperance.training.inputs import read_inputs
from temperance.training.preprocess import Preprocess, decode_image

IMAGES = Preprocess(
    "images", (3, 8, 10), (0.5,) * 3, (0.2,) * 3, white=255.0, stored_channels=3, dtype="uint8"
)
TABLE = Preprocess("features", (2,), (0.0, 0.0), (1.0, 1.0))


def rows_of(inputs):
    return np.concatenate(list(inputs.chunks))


def test_files_and_folders_of_pictures(tree, pictures):
    files = {**pictures("b", 2), **pictures("a/deep", 1), ".hidden/x.png": b"no", "c": None}
    root = tree({**files, "README.txt": b"words"})
    with pytest.warns(TemperanceWarning, match=r"README\.txt"):
        inputs = read_inputs([root / "b" / "1.png", root], IMAGES)
    names = [p.removeprefix(f"{root}/") for p in inputs.ids]
    assert names == ["b/1.png", "a/deep/0.png", "b/0.png", "b/1.png"]
    rows = rows_of(inputs)
    assert rows.shape == (4, 8, 10, 3)
    np.testing.assert_array_equal(rows[0], decode_image(root / "b" / "1.png", IMAGES))
    np.testing.assert_array_equal(rows[0], rows[3])


def test_arrays_of_pictures_with_their_channels_anywhere(tmp_path):
    x = np.random.default_rng(0).integers(0, 256, (3, 8, 10, 3), dtype=np.uint8)
    np.save(tmp_path / "last.npy", x)
    np.savez(tmp_path / "first.npz", x=np.moveaxis(x, -1, 1))
    inputs = read_inputs([tmp_path / "last.npy", tmp_path / "first.npz"], IMAGES)
    assert inputs.ids[3] == f"{tmp_path / 'first.npz'}:0"
    rows = rows_of(inputs)
    np.testing.assert_array_equal(rows[:3], x)
    np.testing.assert_array_equal(rows[3:], x)


@pytest.mark.parametrize("scale", [1 / 255, 1.5, -1.0, 0.501])
def test_pictures_on_another_scale_are_refused(tmp_path, scale):
    x = np.random.default_rng(0).integers(100, 256, (3, 8, 10, 3)) * scale
    np.save(tmp_path / "x.npy", x)
    with pytest.raises(InvalidInput) as caught:
        read_inputs([tmp_path / "x.npy"], IMAGES)
    assert caught.value.expected == "pictures from 0 to 255, whole numbers, as in training"


def test_more_rows_than_a_chunk(tmp_path):
    x = np.arange(1200, dtype=np.float32).reshape(600, 2)
    np.save(tmp_path / "x.npy", x)
    inputs = read_inputs([tmp_path / "x.npy"], TABLE)
    chunks = list(inputs.chunks)
    assert max(map(len, chunks)) < 600
    np.testing.assert_array_equal(np.concatenate(chunks), x)
    assert len(inputs.ids) == 600


def test_tables_by_name(tmp_path):
    file = tmp_path / "t.csv"
    file.write_text("b;label;a\n1;yes;2\n3;no;4\n", encoding="utf-8-sig")
    named = read_inputs([file], TABLE, feature_names=["a", "b"])
    assert rows_of(named).tolist() == [[2.0, 1.0], [4.0, 3.0]]
    unnamed = read_inputs([file], TABLE)
    assert rows_of(unnamed).tolist() == [[1.0, 2.0], [3.0, 4.0]]


def test_parquet_of_columns_of_lists_and_of_pictures(tmp_path, pictures):
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    file = tmp_path / "columns.parquet"
    pq.write_table(pa.table({"b": [1.0, 3.0], "a": [2.0, 4.0], "label": ["x", "y"]}), file)
    found = rows_of(read_inputs([file], TABLE, feature_names=["a", "b"]))
    assert found.tolist() == [[2.0, 1.0], [4.0, 3.0]]
    pq.write_table(pa.table({"embedding": [[1.0, 2.0], [3.0, 4.0]], "label": [0, 1]}), file)
    found = rows_of(read_inputs([file], TABLE, feature_names=["embedding"]))
    assert found.tolist() == [[1.0, 2.0], [3.0, 4.0]]
    (encoded,) = pictures("a", 1).values()
    pq.write_table(pa.table({"image": [{"bytes": encoded, "path": "0.png"}], "label": [0]}), file)
    found = rows_of(read_inputs([file], IMAGES))
    np.testing.assert_array_equal(found[0], decode_image(encoded, IMAGES))


@pytest.mark.parametrize(
    ("name", "content", "part"),
    [
        ("t.csv", "a,c\n1,2\n", "no column 'b'"),
        ("t.csv", "a,b\n", "no rows"),
        ("t.csv", "a,b\n1,x\n", "could not convert"),
        ("t.csv", "a,b\n1\n", "1 in line 2"),
        ("t.csv", "a,b\n1,nan\n", "nan in row 0, column 1"),
        ("t.xyz", "a,b\n1,2\n", ".xyz"),
        ("t.npy", "not an array", ""),
        ("t.npz", "not an array", ""),
    ],
)
def test_tables_that_do_not_fit(tmp_path, name, content, part):
    file = tmp_path / name
    file.write_text(content)
    with pytest.raises(InvalidInput) as caught:
        rows_of(read_inputs([file], TABLE, feature_names=["a", "b"]))
    assert part in caught.value.found
    assert str(file) in caught.value.subject


def test_pictures_that_cannot_be_read_are_named(tree, pictures, tmp_path):
    root = tree({**pictures("a", 1), "a/bad.jpg": b"text", "a/short.png": b"\x89PNG\r\n"})
    with pytest.raises(InvalidInput) as caught:
        rows_of(read_inputs([root], IMAGES))
    assert "bad.jpg" in caught.value.subject
    with pytest.raises(InvalidInput):
        read_inputs([tmp_path / "nothing"], IMAGES)
    with pytest.raises(InvalidInput):
        read_inputs([tree({"empty": None}, tmp_path / "other") / "empty"], IMAGES)
    with pytest.raises(InvalidInput):
        read_inputs([root], TABLE)


def test_pickles_are_never_opened(tmp_path):
    np.save(tmp_path / "x.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    with pytest.raises(InvalidInput):
        read_inputs([tmp_path / "x.npy"], TABLE)
