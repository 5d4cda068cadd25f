import os
import warnings

import numpy as np
import pytest

from temperance.errors import InvalidInput, TemperanceWarning
from temperance.training.scan import BadPictures
from temperance.training.sources import open_data


def opened(source, **options):
    """Open a data set, and give its warnings as texts too."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        data = open_data(source, **options)
    assert all(issubclass(w.category, TemperanceWarning) for w in caught)
    assert [str(w.message).split(": ", 1)[1] for w in caught] == list(data.warnings)
    return data, " | ".join(data.warnings)


def test_one_folder_per_class(tree, pictures):
    data, warned = opened(tree({**pictures("cat", 3), **pictures("dog", 2)}))
    assert data.class_map.names == ("cat", "dog")
    assert data.parts["train"].y.tolist() == [0, 0, 0, 1, 1]
    assert data.parts["train"].ids[3] == "dog/0.png"
    assert data.parts["train"].x.shape == (5, 20, 24, 3)
    assert not warned


def test_hidden_and_foreign_folders_are_skipped_and_named(tree, pictures):
    files = {**pictures("a", 2), **pictures("b", 2)}
    files |= {".ipynb_checkpoints/x.png": b"x", "__MACOSX/y.png": b"y", "a/.hidden.png": b"z"}
    data, _ = opened(tree(files))
    assert data.class_map.names == ("a", "b")
    text = " ".join(data.notices)
    assert ".ipynb_checkpoints" in text
    assert "__MACOSX" in text
    assert "a/.hidden.png" in text


def test_an_empty_class_keeps_its_id(tree, pictures):
    root = tree({**pictures("a", 2), "b": None, "c/readme.txt": b"no picture", **pictures("d", 2)})
    data, warned = opened(root)
    assert data.class_map.names == ("a", "b", "c", "d")
    assert data.parts["train"].y.tolist() == [0, 0, 3, 3]
    assert data.counts().tolist() == [2, 0, 0, 2]
    assert "b, c" in warned
    assert "c/readme.txt" in " ".join(data.notices)


@pytest.mark.parametrize("extra", [{}, {"b/readme.txt": b"text"}, {"b": None}])
def test_fewer_than_two_classes_with_pictures(tree, pictures, extra):
    with pytest.raises(InvalidInput) as caught:
        open_data(tree({**pictures("a", 3), **extra}))
    assert "(a)" in caught.value.found


def test_pictures_outside_of_classes_are_named(tree, pictures):
    with pytest.raises(InvalidInput) as caught:
        open_data(tree({name.split("/")[1]: data for name, data in pictures("a", 3).items()}))
    assert "3 pictures outside" in caught.value.found


@pytest.mark.parametrize("validation", ["val", "valid", "validation"])
def test_parts_are_matched_by_name(tree, pictures, validation):
    classes = [str(i) for i in range(12)]
    files = {}
    for c in classes:
        files |= pictures(f"train/{c}", 1)
        if c != "2":
            files |= pictures(f"{validation}/{c}", 1, start=1)
            files |= pictures(f"test/{c}", 1, start=2)
    data, warned = opened(tree(files))
    assert list(data.parts) == ["train", "val", "test"]
    for part in data.parts.values():
        names = [data.class_map.names[i] for i in part.y]
        assert names == [name.split("/")[1] for name in part.ids]
    assert "val has no rows of the classes 2" in warned
    assert "test has no rows of the classes 2" in warned


def test_a_class_that_train_lacks_is_refused(tree, pictures):
    files = {**pictures("train/a", 1), **pictures("train/b", 1), **pictures("val/c", 1)}
    with pytest.raises(InvalidInput) as caught:
        open_data(tree(files))
    assert "'c'" in caught.value.found
    assert "val" in caught.value.subject


def test_an_empty_folder_that_train_lacks_is_only_named(tree, pictures):
    files = {**pictures("train/a", 1), **pictures("train/b", 1), "test/c": None}
    files |= {**pictures("test/a", 1, start=5), **pictures("test/b", 1, start=5)}
    data, warned = opened(tree(files))
    assert data.class_map.names == ("a", "b")
    assert "the empty folder c" in warned


def test_a_part_without_any_picture_is_left_out(tree, pictures):
    files = {**pictures("train/a", 1), **pictures("train/b", 1), "val/a": None, "val/b": None}
    data, warned = opened(tree(files))
    assert list(data.parts) == ["train"]
    assert "val has no row with a label" in warned


@pytest.mark.parametrize("deeper", ["", "/x"])
def test_a_class_may_be_called_train(tree, pictures, deeper):
    files = {**pictures("bus", 2), **pictures(f"train{deeper}", 2), **pictures("tram", 1)}
    data, _ = opened(tree(files))
    assert data.class_map.names == ("bus", "train", "tram")
    assert data.counts().tolist() == [2, 2, 1]


def test_folders_beside_the_parts_are_skipped_and_named(tree, pictures):
    files = {**pictures("train/a", 1), **pictures("train/b", 1), **pictures("extra/c", 1)}
    files |= {**pictures("test/a", 1, start=5), **pictures("test/b", 1, start=5)}
    data, _ = opened(tree(files))
    assert list(data.parts) == ["train", "test"]
    assert any("extra" in n for n in data.notices)


def test_pictures_in_deeper_folders_count(tree, pictures):
    data, _ = opened(tree({**pictures("a/x/y", 2), **pictures("b", 1)}))
    assert data.parts["train"].ids[:2] == ("a/x/y/0.png", "a/x/y/1.png")


def test_two_folders_for_one_part(tree, pictures):
    files = {}
    for part in ("train", "val", "valid"):
        files |= {**pictures(f"{part}/a", 1), **pictures(f"{part}/b", 1)}
    with pytest.raises(InvalidInput) as caught:
        open_data(tree(files))
    assert "valid" in caught.value.found


def test_parts_without_train(tree, pictures):
    files = {**pictures("val/a", 1), **pictures("test/a", 1)}
    with pytest.raises(InvalidInput) as caught:
        open_data(tree(files))
    assert "train" in caught.value.expected


def test_a_link_back_up_does_not_loop(tree, pictures):
    root = tree({**pictures("a", 1), **pictures("b", 1)})
    os.symlink(root / "a", root / "a" / "again")
    data, _ = opened(root)
    assert len(data.parts["train"]) == 2


def test_bad_pictures_stop_or_are_skipped_and_counts_follow(tree, pictures):
    files = {**pictures("a", 3), **pictures("b", 2), "b/bad.jpg": b"text", "c/zero.png": b""}
    root = tree(files)
    with pytest.raises(BadPictures) as caught:
        open_data(root)
    assert [name for name, _ in caught.value.files] == ["b/bad.jpg", "c/zero.png"]
    data, warned = opened(root, on_bad="skip")
    assert data.counts().tolist() == [3, 2, 0]
    assert "train has no rows of the classes c" in warned
    assert any("2 of 7" in n for n in data.notices)
    assert "b/bad.jpg" not in data.parts["train"].ids
    assert len(data.parts["train"].ids) == len(data.parts["train"].x) == 5


def test_skipping_may_not_leave_one_class(tree, pictures):
    with pytest.raises(InvalidInput) as caught:
        open_data(tree({**pictures("a", 3), "b/bad.jpg": b"text"}), on_bad="skip")
    assert "two classes" in caught.value.expected


def test_bad_pictures_of_all_parts_are_listed_together(tree, pictures):
    files = {**pictures("train/a", 1), **pictures("train/b", 1), "train/b/1.png": b""}
    files |= {**pictures("test/a", 1), "test/b/0.png": b"x"}
    with pytest.raises(BadPictures) as caught:
        open_data(tree(files))
    assert [name for name, _ in caught.value.files] == ["train/b/1.png", "test/b/0.png"]


def test_copies_between_parts_are_told(tree, pictures):
    files = {**pictures("train/a", 2), **pictures("train/b", 2)}
    files |= {"test/a/same.png": files["train/a/0.png"], **pictures("test/b", 1, start=9)}
    _, warned = opened(tree(files))
    assert "1 of 2 rows of test are also in train (test/a/same.png)" in warned


def test_the_order_of_reading_does_not_matter(tree, pictures, tmp_path):
    files = {**pictures("b", 2), **pictures("a", 2)}
    one, _ = opened(tree(files))
    two, _ = opened(tree(dict(reversed(files.items())), root=tmp_path / "again"))
    assert one.fingerprint == two.fingerprint
    np.testing.assert_array_equal(one.parts["train"].x, two.parts["train"].x)
