"""The cut of studies/data to the rows that studies use, and the files that it writes."""

import importlib
import importlib.util
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest

from temperance.study.data import load
from temperance.study.outcome import SPLITS

FOLDER = Path(__file__).parents[2] / "studies" / "data"


@pytest.fixture(scope="module")
def prepared():
    spec = importlib.util.spec_from_file_location("studies_prepared", FOLDER / "prepared.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


def rows(n, *, classes=3, rare=0):
    """Row i holds i; the first ``rare`` rows are a class of their own."""
    x = np.stack([np.arange(n), np.arange(n)], axis=1).astype(np.float32)
    y = np.array([f"c{i % classes}" for i in range(n)])
    y[:rare] = "rare"
    return x, y


def test_rare_classes_go_and_large_sets_are_cut(prepared, monkeypatch):
    monkeypatch.setattr(prepared, "MOST", {"train": 60, "val": 20, "test": 20})
    x, y = rows(400, rare=5)
    found = prepared.cut("t", prepared.Raw(x, y))
    assert found.classes == ("c0", "c1", "c2")
    assert np.bincount(found.split).tolist() == [60, 20, 20]
    ids = found.x[:, 0].astype(int)
    assert len(set(ids)) == 100
    assert ids.min() >= 5
    assert [found.classes[k] for k in found.y] == y[ids].tolist()
    for code in range(3):
        assert np.ptp(np.bincount(found.y[found.part(code)])) <= 2


@pytest.mark.parametrize("codes", [(0, 2), (0, 1, 2)])
def test_a_split_of_the_source_is_kept(prepared, codes):
    x, y = rows(120)
    split = np.array(codes)[np.arange(120) * len(codes) // 120]
    found = prepared.cut("t", prepared.Raw(x, y, split))
    ids = found.x[:, 0].astype(int)
    np.testing.assert_array_equal(found.split == 2, split[ids] == 2)
    assert set(found.split) == {0, 1, 2}


def test_files_are_read_back_and_the_same_each_time(prepared, tmp_path):
    x, y = rows(90)
    found = prepared.cut("t", prepared.Raw(x, y))
    path = prepared.save(tmp_path, "t", found, found.x)
    content = path.read_bytes()
    prepared.save(tmp_path, "t", found, found.x * 2, features="net:2")
    assert prepared.save(tmp_path, "t", found, found.x).read_bytes() == content
    plain, ready = load("t", data_root=tmp_path), load("t", "net:2", data_root=tmp_path)
    for code, split in enumerate(SPLITS):
        np.testing.assert_array_equal(plain.x[split], found.x[found.part(code)])
        np.testing.assert_array_equal(ready.x[split], 2 * plain.x[split])
        np.testing.assert_array_equal(ready.y[split], found.y[found.part(code)])


@pytest.fixture
def heavy(monkeypatch):
    """The module, and those beside it, as prepare.py sees them."""
    monkeypatch.syspath_prepend(FOLDER)
    before = set(sys.modules)
    yield importlib.import_module("heavy")
    for name in {"heavy", "fetch", "prepared"} - before:
        sys.modules.pop(name, None)


def test_letters_are_ids_by_their_count_in_training(prepared, heavy):
    words = np.array(["Aab", "ba\u212bb", "", "\ufb01zzzz", "qqq"], dtype=object)
    split = np.array([0, 0, 0, 0, 2])
    found = heavy.letters(
        prepared.Cut(words, np.zeros(5, np.int64), ("c",), split), length=5, size=6
    )
    # Five letters of a text count: a, b and z three times each; f, i and the Angstrom sign once,
    # of which there is room for two. What only the test row has is one of the others, too.
    rows = found["letters:5"]
    assert rows.dtype == np.uint8
    assert rows.tolist() == [
        [1, 1, 2, 0, 0],
        [2, 1, 6, 2, 0],
        [0, 0, 0, 0, 0],
        [4, 5, 3, 3, 3],
        [6, 6, 6, 0, 0],
    ]


def test_the_list_of_pairs():
    content = tomllib.loads((FOLDER / "pairs.toml").read_text("utf-8"))
    pairs = content["pairs"]
    sets = {pair["dataset"] for pair in pairs}
    assert len({(p["dataset"], p["features"]) for p in pairs}) == len(pairs) >= 110
    assert len(sets) >= 22
    assert len(content["held_out"]) >= 5
    assert set(content["held_out"]) <= sets
    assert {p["kind"] for p in pairs if p["dataset"] in content["held_out"]} == {
        "picture",
        "text",
        "table",
    }
    assert all(p["M"] >= 1 and p["C"] >= 2 and p["train"] >= p["C"] for p in pairs)
