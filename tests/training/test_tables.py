import json
import warnings

import numpy as np
import pytest
from PIL import Image

from temperance.errors import InvalidInput, MissingPackage, TemperanceWarning
from temperance.training.sources import open_data

RNG = np.random.default_rng(0)


# ------------------------------------------------------------------ .npz
@pytest.fixture
def npz(tmp_path):
    def write(**arrays):
        path = tmp_path / "data.npz"
        np.savez(path, **arrays)
        return path

    return write


Y = np.array([0, 1, 2] * 4)
GRAY = RNG.integers(0, 256, (12, 6, 5), dtype=np.uint8)


@pytest.mark.parametrize(
    ("x", "stored"),
    [
        (GRAY, GRAY[..., None]),
        (GRAY[..., None], GRAY[..., None]),
        (GRAY[:, None], GRAY[..., None]),
        (np.stack([GRAY] * 3, axis=1), np.stack([GRAY] * 3, axis=3)),
        (np.stack([GRAY] * 3, axis=3), np.stack([GRAY] * 3, axis=3)),
        (GRAY.astype(np.float64), GRAY[..., None]),
        (GRAY.astype(np.int64), GRAY[..., None]),
    ],
)
def test_pictures_are_stored_with_channels_last_and_without_loss(npz, x, stored):
    data = open_data(npz(x=x, y=Y))
    np.testing.assert_array_equal(data.parts["train"].x, stored)
    assert data.parts["train"].x.dtype == np.uint8
    assert data.white == 255
    assert data.input_shape == (stored.shape[3], 6, 5)


@pytest.mark.parametrize(
    ("x", "dtype", "white"),
    [
        (GRAY / 255, np.float32, 1.0),
        ((GRAY > 100).astype(np.float32), np.uint8, 1.0),
        (GRAY > 100, np.uint8, 1.0),
        (GRAY / 100 - 1, np.float32, None),
        (GRAY.astype(np.uint16) * 257, np.float32, 65535.0),
    ],
)
def test_other_scales_are_kept(npz, x, dtype, white):
    data = open_data(npz(x=x, y=Y))
    assert data.parts["train"].x.dtype == dtype
    assert data.white == white
    np.testing.assert_allclose(data.parts["train"].x[..., 0], x.astype(np.float64), rtol=1e-6)
    assert bool(data.notices) == (white is None)


@pytest.mark.parametrize("shape", [(12, 3, 3, 3), (12, 1, 28, 1), (12, 9, 8, 9)])
def test_channels_that_cannot_be_told_are_refused(npz, shape):
    with pytest.raises(InvalidInput) as caught:
        open_data(npz(x=np.zeros(shape, np.uint8), y=Y))
    assert str(list(shape)) in caught.value.found


def test_all_parts_and_names(npz):
    x = RNG.normal(size=(12, 4))
    path = npz(x=x, y=Y, x_test=x + 9, y_test=Y, x_val=x - 9, y_val=Y, class_names=["a", "b", "c"])
    data = open_data(path)
    assert data.kind == "features"
    assert list(data.parts) == ["train", "val", "test"]
    assert data.class_map.names == ("a", "b", "c")
    assert data.parts["test"].x.dtype == np.float32
    assert data.parts["test"].ids[2] == "x_test[2]"
    assert data.white is None


def test_the_names_of_keras_and_arrays_that_are_not_used(npz):
    data = open_data(npz(x_train=GRAY, y_train=Y, x_test=GRAY[::-1] // 2, y_test=Y, extra=Y))
    assert list(data.parts) == ["train", "test"]
    assert "extra" in data.notices[0]


@pytest.mark.parametrize(
    "arrays",
    [
        {"x": GRAY},
        {"y": Y},
        {"x": GRAY, "y": Y[:5]},
        {"x": GRAY, "y": Y, "x_test": GRAY},
        {"x": GRAY, "y": Y, "x_test": GRAY[:, :3], "y_test": Y},
        {"x": np.array(["a"] * 12), "y": Y},
        {"x": np.zeros((0, 4)), "y": np.zeros(0)},
        {"x": np.zeros(12), "y": Y},
        {"x": np.full((12, 3, 4), np.nan), "y": Y},
        {"x": np.full((12, 4), np.inf), "y": Y},
        {"x": np.full((12, 4), 1e300), "y": Y},
        {"x": np.full((12, 4, 4), 1e300), "y": Y},
        {"x": GRAY, "y": Y * 0},
        {"x": GRAY, "y": np.full(12, np.nan)},
        {"x": GRAY, "y": Y, "x_train": GRAY, "y_train": Y},
    ],
)
def test_incomplete_archives_are_refused(npz, arrays):
    with pytest.raises(InvalidInput):
        open_data(npz(**arrays))


def test_python_objects_are_not_unpickled(npz):
    with pytest.raises(InvalidInput) as caught:
        open_data(npz(x=GRAY, y=np.array(["a", 1] * 6, dtype=object)))
    assert "can run code" in caught.value.found


@pytest.mark.parametrize("damage", [lambda b: b[:-40], lambda b: b"text", lambda b: b""])
def test_a_damaged_archive_is_named(npz, damage):
    path = npz(x=GRAY, y=Y)
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(InvalidInput) as caught:
        open_data(path)
    assert path.name in caught.value.subject


def test_labels_that_are_not_0_to_c_are_mapped_and_told(npz):
    with pytest.warns(TemperanceWarning, match="0, 2, 5"):
        data = open_data(npz(x=GRAY, y=np.array([0, 2, 5] * 4)))
    assert data.parts["train"].y.tolist() == [0, 1, 2] * 4
    assert data.class_map.names == ("0", "2", "5")
    assert any("0, 2, 5" in n for n in data.notices)


def test_ignored_rows_are_left_out_and_counted(npz):
    y = np.where(np.arange(12) < 3, -1, Y)
    data = open_data(npz(x=GRAY, y=y), ignore=(-1,))
    assert len(data.parts["train"]) == 9
    np.testing.assert_array_equal(data.parts["train"].x[0, ..., 0], GRAY[3])
    assert data.parts["train"].ids[0] == "x[3]"
    assert any("3 rows without a label" in n for n in data.notices)


@pytest.mark.parametrize("mark", [-1, "-1"])
def test_a_part_without_labels_is_left_out_only_if_asked(npz, mark):
    path = npz(x=GRAY, y=Y, x_test=GRAY // 2, y_test=Y * 0 - 1)
    with pytest.raises(InvalidInput) as caught:
        open_data(path)
    assert "'-1'" in caught.value.found
    with pytest.warns(TemperanceWarning, match="test has no row with a label"):
        data = open_data(path, ignore=(mark,))
    assert list(data.parts) == ["train"]


# ------------------------------------------------------------------ .csv
def csv_file(tmp_path, text, name="data.csv"):
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return path


def test_text_labels_stay_text(tmp_path):
    text = "a,label,b\n1,NA,2\n3,None,4\n5,007,6\n7,yes,8\n"
    data = open_data(csv_file(tmp_path, text))
    names = [data.class_map.names[i] for i in data.parts["train"].y]
    assert names == ["NA", "None", "007", "yes"]
    assert data.parts["train"].x.tolist() == [[1, 2], [3, 4], [5, 6], [7, 8]]
    assert data.parts["train"].ids[2] == "data.csv:4"


def test_whole_number_labels_are_in_numeric_order(tmp_path):
    rows = "".join(f"{i},{i}\n" for i in (10, 2, 0, 1, 3, 4, 5, 6, 7, 8, 9))
    data = open_data(csv_file(tmp_path, "a,label\n" + rows))
    assert data.class_map.names == tuple(map(str, range(11)))
    assert data.parts["train"].y.tolist()[:2] == [10, 2]


@pytest.mark.parametrize("separator", [";", "\t"])
def test_other_separators_and_a_byte_order_mark(tmp_path, separator):
    text = "\ufeffa,label\n1.5,x\n2.5,y\n".replace(",", separator)
    assert open_data(csv_file(tmp_path, text)).parts["train"].x.ravel().tolist() == [1.5, 2.5]


def test_another_label_column(tmp_path):
    path = csv_file(tmp_path, "a,species\n1,x\n2,y\n")
    assert open_data(path, label="species").class_map.names == ("x", "y")


def test_a_folder_of_csv_files(tmp_path):
    csv_file(tmp_path, "a,label\n1,x\n2,y\n", "train.csv")
    csv_file(tmp_path, "a,label\n3,y\n", "test.csv")
    with pytest.warns(TemperanceWarning, match="test has no rows of the classes x"):
        data = open_data(tmp_path)
    assert data.parts["test"].y.tolist() == [1]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "label"),
        ("a,b\n1,2\n", "label"),
        ("a,label\n1,x\n2\n", "line 3"),
        ("a,label\n1,x\nred,y\n", "column a"),
        ("a,label\n1,x\n2,\n", "line 3"),
        ("a,label\n1,x\n,y\n", "line 3"),
        ("a,a,label\n1,2,x\n", "once"),
        ("label\nx\ny\n", "feature columns"),
        ('a,label\n1,"x\n', "CSV"),
    ],
)
def test_damaged_csv_files_are_refused_by_line(tmp_path, text, told):
    with pytest.raises(InvalidInput) as caught:
        open_data(csv_file(tmp_path, text))
    assert told in caught.value.expected
    assert "data.csv" in caught.value.subject


@pytest.mark.parametrize("value", ["nan", "inf"])
def test_values_that_are_not_finite(tmp_path, value):
    with pytest.raises(InvalidInput, match=r"data\.csv:3"):
        open_data(csv_file(tmp_path, f"a,label\n1,x\n{value},y\n"))


def test_bytes_that_are_not_utf8(tmp_path):
    path = tmp_path / "data.csv"
    path.write_bytes(b"a,label\n1,\xff\n")
    with pytest.raises(InvalidInput):
        open_data(path)


# ------------------------------------------------------------------ Parquet
pyarrow = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")


def write_parquet(path, columns, names=None, label="label", **options):
    table = pyarrow.table(columns)
    if names is not None:
        features = {label: {"names": list(names), "_type": "ClassLabel"}}
        info = json.dumps({"info": {"features": features}})
        table = table.replace_schema_metadata({"huggingface": info})
    parquet.write_table(table, path, **options)
    return path


def image_column(blobs):
    kind = pyarrow.struct([("bytes", pyarrow.binary()), ("path", pyarrow.string())])
    return pyarrow.array([{"bytes": b, "path": None} for b in blobs], kind)


@pytest.fixture
def blobs(colour, encoded):
    return [encoded(colour(i)) for i in range(6)]


def test_pictures_as_hugging_face_writes_them(tmp_path, blobs, colour):
    columns = {"image": image_column(blobs), "label": [1, 0, 1, 0, 1, 0]}
    path = write_parquet(tmp_path / "x.parquet", columns, ["cat", "dog"], row_group_size=2)
    data = open_data(path)
    assert data.kind == "images"
    assert [data.class_map.names[i] for i in data.parts["train"].y[:2]] == ["dog", "cat"]
    for i in range(6):
        np.testing.assert_array_equal(data.parts["train"].x[i], np.asarray(colour(i)))


def test_a_folder_of_shards(tmp_path, blobs):
    (tmp_path / "data").mkdir()
    for name, rows in (
        ("train-00001-of-00002", [2, 3]),
        ("train-00000-of-00002", [0, 1]),
        ("validation-00000-of-00001", [4, 5]),
        ("README", [0, 1]),
    ):
        columns = {
            "image": image_column([blobs[i] for i in rows]),
            "label": [("a", "b")[i % 2] for i in rows],
        }
        write_parquet(tmp_path / "data" / f"{name}.parquet", columns)
    data = open_data(tmp_path)
    assert list(data.parts) == ["train", "val"]
    assert data.parts["train"].ids[0] == "train-00000-of-00002.parquet:0"
    assert data.parts["train"].y.tolist() == [0, 1, 0, 1]
    assert any("README.parquet" in n for n in data.notices)


def test_every_file_is_read_by_its_own_class_names(tmp_path, blobs):
    x = image_column(blobs[:2])
    write_parquet(tmp_path / "train.parquet", {"image": x, "label": [0, 1]}, ["cat", "dog"])
    x = image_column(blobs[2:4])
    write_parquet(tmp_path / "test.parquet", {"image": x, "label": [0, 1]}, ["dog", "cat"])
    data = open_data(tmp_path)
    assert data.parts["test"].y.tolist() == [1, 0]


def test_a_file_without_class_names_is_told(tmp_path, blobs):
    x = image_column(blobs[:2])
    write_parquet(tmp_path / "train.parquet", {"image": x, "label": [0, 1]}, ["cat", "dog"])
    x = image_column(blobs[2:4])
    write_parquet(tmp_path / "test.parquet", {"image": x, "label": [1, 0]})
    with pytest.warns(TemperanceWarning, match=r"test\.parquet: no names"):
        data = open_data(tmp_path)
    assert data.parts["test"].y.tolist() == [1, 0]


def test_classes_without_rows_keep_their_places(tmp_path, blobs):
    columns = {"image": image_column(blobs[:4]), "label": [0, 2, 0, 2]}
    path = write_parquet(tmp_path / "x.parquet", columns, ["a", "b", "c"])
    with pytest.warns(TemperanceWarning, match="no rows of the classes b"):
        data = open_data(path)
    assert data.counts().tolist() == [2, 0, 2]


def test_hidden_test_labels(tmp_path, blobs):
    x = image_column(blobs[:2])
    write_parquet(tmp_path / "train.parquet", {"image": x, "label": [0, 1]}, ["cat", "dog"])
    write_parquet(tmp_path / "test.parquet", {"image": x, "label": [-1, -1]}, ["cat", "dog"])
    with pytest.raises(InvalidInput):
        open_data(tmp_path)
    with pytest.warns(TemperanceWarning, match="left out"):
        assert list(open_data(tmp_path, ignore=(-1,)).parts) == ["train"]


def test_bad_and_missing_pictures_are_named_by_row(tmp_path, blobs):
    kind = pyarrow.struct([("bytes", pyarrow.binary()), ("path", pyarrow.string())])
    rows = [{"bytes": b, "path": None} for b in (blobs[0], blobs[1], b"x")]
    rows += [None, {"bytes": None, "path": "gone.png"}]
    columns = {"image": pyarrow.array(rows, kind), "label": ["a", "b", "a", "b", "a"]}
    path = write_parquet(tmp_path / "x.parquet", columns)
    with pytest.raises(InvalidInput) as caught:
        open_data(path)
    assert [name for name, _ in caught.value.files] == [f"x.parquet:{i}" for i in (2, 3, 4)]
    assert len(open_data(path, on_bad="skip").parts["train"]) == 2


def test_pictures_beside_the_file(tmp_path, blobs):
    (tmp_path / "p.png").write_bytes(blobs[0])
    kind = pyarrow.struct([("bytes", pyarrow.binary()), ("path", pyarrow.string())])
    rows = [{"bytes": None, "path": "p.png"}, {"bytes": blobs[1], "path": "any"}]
    path = write_parquet(
        tmp_path / "x.parquet", {"img": pyarrow.array(rows, kind), "label": [True, False]}
    )
    assert open_data(path).class_map.names == ("False", "True")


@pytest.mark.parametrize("kind", ["columns", "list", "fixed"])
def test_features(tmp_path, kind):
    x = RNG.normal(size=(6, 3)).astype(np.float32)
    types = {"list": pyarrow.list_(pyarrow.float32()), "fixed": pyarrow.list_(pyarrow.float32(), 3)}
    columns = (
        {f"f{i}": x[:, i] for i in range(3)}
        if kind == "columns"
        else {"embedding": pyarrow.array(list(x), types[kind])}
    )
    columns |= {"text": ["t"] * 6, "label": ["NA", "007"] * 3}
    data = open_data(write_parquet(tmp_path / "x.parquet", columns, row_group_size=4))
    np.testing.assert_array_equal(data.parts["train"].x, x)
    assert data.class_map.names == ("007", "NA")
    assert "not used: text" in " ".join(data.notices)


@pytest.mark.parametrize(
    "columns",
    [
        {"a": [1.0, 2.0]},
        {"label": [0, 1]},
        {"a": ["x", "y"], "label": [0, 1]},
        {"a": [1.0, None], "label": [0, 1]},
        {"a": [[1.0], [1.0, 2.0]], "label": [0, 1]},
        {"a": [[1.0], [2.0]], "b": [[1.0], [2.0]], "label": [0, 1]},
        {"a": [b"x", b"y"], "b": [b"x", b"y"], "label": [0, 1]},
        {"a": [1.0, 2.0], "label": [0, None]},
    ],
)
def test_tables_that_cannot_be_used(tmp_path, columns):
    with pytest.raises(InvalidInput):
        open_data(write_parquet(tmp_path / "x.parquet", columns))


def test_shards_with_other_columns(tmp_path):
    write_parquet(tmp_path / "train.parquet", {"a": [1.0, 2.0], "label": [0, 1]})
    write_parquet(tmp_path / "test.parquet", {"b": [1.0, 2.0], "label": [0, 1]})
    with pytest.raises(InvalidInput, match=r"test\.parquet"):
        open_data(tmp_path)


@pytest.mark.parametrize("damage", [lambda b: b[:-50], lambda b: b"", lambda b: b[:60] + b"?" * 40])
def test_a_damaged_parquet_file_is_named(tmp_path, blobs, damage):
    columns = {"image": image_column(blobs[:2]), "label": [0, 1]}
    path = write_parquet(tmp_path / "x.parquet", columns)
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(InvalidInput) as caught:
        open_data(path)
    assert "x.parquet" in caught.value.subject


def test_without_pyarrow_the_extra_is_named(tmp_path, blobs, monkeypatch):
    columns = {"image": image_column(blobs[:2]), "label": [0, 1]}
    path = write_parquet(tmp_path / "x.parquet", columns)
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    with pytest.raises(MissingPackage) as caught:
        open_data(path)
    assert caught.value.extra == "parquet"


def test_sixteen_bit_pictures_survive(tmp_path, encoded):
    blobs = [encoded(Image.fromarray(np.full((4, 4), v, np.uint16))) for v in (257, 65535)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        columns = {"image": image_column(blobs), "label": [0, 1]}
        data = open_data(write_parquet(tmp_path / "x.parquet", columns))
    assert data.parts["train"].x[:, 0, 0, 0].tolist() == [1, 255]
