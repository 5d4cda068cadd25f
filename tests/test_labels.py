"""The one reader of labels: every form people have, and every way they are wrong."""

import json
from datetime import date
from decimal import Decimal

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from temperance.errors import InvalidInput, TemperanceWarning
from temperance.labels import ClassMap, check_ids, labelled_rows, read_labels


@pytest.mark.parametrize(
    ("labels", "names", "ids"),
    [
        (["NA", "None", "007", "yes"], ("007", "NA", "None", "yes"), [1, 2, 0, 3]),
        (np.array(["b", "a"]), ("a", "b"), [1, 0]),
        (np.array([b"b", b"a"]), ("a", "b"), [1, 0]),
        (np.array([0, 1, 1], dtype=np.uint8), ("0", "1"), [0, 1, 1]),
        (np.array([1.0, 0.0]), ("0", "1"), [1, 0]),
        ([True, False], ("False", "True"), [1, 0]),
        (np.array([True, False]), ("False", "True"), [1, 0]),
        (torch.tensor([2, 0, 1]), ("0", "1", "2"), [2, 0, 1]),
        (torch.tensor([[0.0, 1.0], [1.0, 0.0]]), ("0", "1"), [1, 0]),
        (np.eye(3, dtype=bool), ("0", "1", "2"), [0, 1, 2]),
        (np.array([[1], [0]]), ("0", "1"), [1, 0]),
        (["10", "2", "1"], ("1", "10", "2"), [1, 2, 0]),
        (np.array([1, 0], dtype=object), ("0", "1"), [1, 0]),
    ],
)
def test_reads_every_form(labels, names, ids):
    result = read_labels(labels)
    assert result.class_map.names == names
    assert result.ids.tolist() == ids
    assert result.ids.dtype == np.int64


@pytest.mark.parametrize("ids", [[1, 2, 3], [0, 2, 5], [255, 0, 1], [-1, 1]])
def test_ids_that_are_not_contiguous_are_mapped_with_a_notice(ids):
    with pytest.warns(TemperanceWarning, match="mapped to"):
        result = read_labels(ids)
    assert result.class_map.names == tuple(map(str, sorted(ids)))
    assert sorted(result.ids.tolist()) == list(range(len(ids)))


@pytest.mark.parametrize(
    ("labels", "found"),
    [
        (["a", 1], "text (first in row 0), number (first in row 1)"),
        (["a", True], "text (first in row 0), boolean (first in row 1)"),
        (["a", None], "a missing value in row 1"),
        (["a", float("nan")], "a missing value in row 1"),
        ([1.0, float("nan")], "a missing value (NaN) in row 1"),
        ([0.5, 1.0], "the number 0.5 in row 0"),
        ([-100, 0, 1], "the id -100"),
        ([-1, -1], "1 ('-1')"),
        (["x", "x"], "1 ('x')"),
        ([], "shape [0]"),
        ([[0, 1], [1, 1]], "row 1 = [1, 1]"),
        ([[0.3, 0.7]], "row 0 = [0.3, 0.7]"),
        (np.zeros((2, 2, 2)), "shape [2, 2, 2]"),
        (np.array([1 + 1j, 2]), "type complex128"),
        ([2**70, 0], "type int"),
        ([Decimal(1), Decimal(2)], "type Decimal"),
        ([date(2026, 1, 1), date(2026, 1, 2)], "type date"),
        ([1e19, 2e19, 1.0], "the number 1e+19 in row 0"),
        ([2.0**53, 2.0**53 + 2, 1.0], "the number 9007199254740992.0 in row 0"),
        ([[1, 0], [1]], "rows of unequal length"),
    ],
)
def test_refuses_by_row(labels, found):
    with pytest.raises(InvalidInput) as caught:
        read_labels(labels)
    assert caught.value.found == found


def test_ignored_only_when_named():
    result = read_labels([-1, 0, 1, -1], ignore=(-1,))
    assert result.ids.tolist() == [0, 1]
    assert result.kept.tolist() == [False, True, True, False]
    text = read_labels(["?", "a", "b"], ignore=("?",))
    assert text.class_map.names == ("a", "b")
    with pytest.raises(InvalidInput) as caught:
        read_labels([-100, -100], ignore=(-100,))
    assert "none with a label" in caught.value.found


def test_later_splits_are_matched_by_name_not_by_place():
    train = read_labels([str(i) for i in range(12)])
    without_two = [str(i) for i in range(12) if i != 2]
    val = read_labels(without_two, class_map=train.class_map)
    assert [train.class_map.names[i] for i in val.ids] == without_two
    with pytest.raises(InvalidInput) as caught:
        read_labels(["3", "99"], class_map=train.class_map)
    assert caught.value.found == "the class '99' in row 1"


def test_names_for_ids_and_a_class_without_rows():
    result = read_labels([0, 2], class_names=["cat", "dog", "owl"])
    assert result.class_map.names == ("cat", "dog", "owl")
    assert result.counts.tolist() == [1, 0, 1]
    assert read_labels(["owl"], class_map=result.class_map).ids.tolist() == [2]
    assert read_labels([1], class_map=result.class_map).ids.tolist() == [1]
    with pytest.raises(InvalidInput):
        read_labels([0, 3], class_names=["cat", "dog", "owl"])


@pytest.mark.parametrize(
    ("names", "labels", "ids"),
    [
        (["1", "2", "3"], [0, 1, 2, 0], [0, 1, 2, 0]),
        (["1", "0"], [0, 1, 1], [0, 1, 1]),
        (["2", "1", "0"], np.eye(3), [0, 1, 2]),
    ],
)
def test_names_that_are_numbers(names, labels, ids):
    """A number is an id before it is a name; a text is a name before it is an id."""
    read = read_labels(labels, class_names=names)
    assert read.ids.tolist() == ids
    assert read.class_map.names == tuple(names)
    assert read_labels(labels, class_map=read.class_map).ids.tolist() == ids
    assert read_labels(list(names), class_map=read.class_map).ids.tolist() == list(
        range(len(names))
    )


def test_one_hot_columns_are_the_classes_used_or_not():
    used = np.eye(5)[[0, 3, 3]]
    read = read_labels(used)
    assert read.class_map.names == ("0", "1", "2", "3", "4")
    assert read.ids.tolist() == [0, 3, 3]
    with pytest.raises(InvalidInput) as caught:
        read_labels(np.eye(4), class_map=read.class_map)
    assert caught.value.found == "4 columns"


def test_masked_values_are_not_labels():
    masked = np.ma.array([0, 1, 7], mask=[False, False, True])
    for read in (read_labels, lambda y: check_ids(y, 8)):
        with pytest.raises(InvalidInput):
            read(masked)
    assert read_labels(np.ma.array([0, 1, 1])).ids.tolist() == [0, 1, 1]


def test_one_ignored_value_may_come_by_itself():
    assert read_labels(["N", "A", "NA", "x"], ignore="NA").class_map.names == ("A", "N", "x")
    assert read_labels([0, 1, -100], ignore=-100).ids.tolist() == [0, 1]
    assert labelled_rows(["a", "NA"], ignore="NA").tolist() == [True, False]
    assert labelled_rows(np.array([1.0, -100.0]), ignore=-100).tolist() == [True, False]


def test_pandas_shows_its_missing_values():
    pd = pytest.importorskip("pandas")
    assert read_labels(pd.Series(["a", "b"])).ids.tolist() == [0, 1]
    assert read_labels(pd.Series(["a", "b"]).astype("category")).ids.tolist() == [0, 1]
    for missing in (pd.Series(["a", None]), pd.Series(["a", pd.NA], dtype="string")):
        with pytest.raises(InvalidInput) as caught:
            read_labels(missing)
        assert "keep_default_na=False" in caught.value.fix


def test_class_map_round_trip_and_checks():
    made = ClassMap(("cat", "dog"), ("0", "1"))
    assert ClassMap.from_dict(json.loads(json.dumps(made.to_dict()))) == made
    for bad in (("a", "a"), ("a",), ()):
        with pytest.raises(InvalidInput):
            ClassMap(bad)
    with pytest.raises(InvalidInput):
        ClassMap(("a", "b"), ("0",))


@pytest.mark.parametrize("bad", [[3], [-1], [0.5], [float("nan")], [[0, 1]], ["a"]])
def test_check_ids_refuses(bad):
    with pytest.raises(InvalidInput):
        check_ids(bad, 3)


def test_check_ids_accepts_floats_bools_columns_and_tensors():
    for good in ([1.0, 0.0], [True, False], [[1], [0]], torch.tensor([1, 0], dtype=torch.int32)):
        assert check_ids(good, 2).tolist() == [1, 0]


@settings(deadline=None, derandomize=True, max_examples=60)
@given(st.lists(st.text(min_size=0, max_size=6), min_size=2, max_size=40))
def test_names_survive_the_round_trip(labels):
    if len(set(labels)) < 2:
        return
    result = read_labels(labels)
    assert [result.class_map.names[i] for i in result.ids] == labels
