"""``temperance calibrate`` as a function: bounded memory, honest rows, files that come back."""

import json

import numpy as np
import pytest

from temperance import serial
from temperance.errors import InvalidInput, NotFound
from temperance.evaluation import calibrate_file as module
from temperance.evaluation import fit_temperature
from temperance.evaluation.calibrate_file import (
    CalibrationPlan,
    apply_to_file,
    calibrate_file,
)
from temperance.evaluation.calibration_page import (
    finding,
    read_calibration,
    write_calibration,
)
from temperance.evaluation.logit_files import LogitsFile


def rows(n=3000, c=4, scale=3.0, seed=0):
    rng = np.random.default_rng(seed)
    z = rng.normal(size=(n, c)) * 2
    y = (z + rng.gumbel(size=z.shape)).argmax(axis=1)
    return (scale * z).astype(np.float32), y


@pytest.fixture
def file(tmp_path):
    z, y = rows()
    np.savez(tmp_path / "val.npz", logits=z, labels=y)
    return tmp_path / "val.npz"


def test_the_planted_temperature_and_rows_that_were_not_fitted_on(file):
    found = calibrate_file(CalibrationPlan(str(file)))
    assert found.interval[0] < 3.0 < found.interval[1]
    assert found.rows["fit"] + found.rows["test"] == 3000
    assert found.rows["judged"] == found.rows["test"] == found.before.n == found.after.n
    assert found.after.metrics["nll"].value < found.before.metrics["nll"].value
    assert found.comparison.verdicts["nll"] == "better"
    assert found.comparison.verdicts["accuracy"] == "no difference shown"


def test_the_fit_is_that_of_its_rows_in_memory(file):
    plan = CalibrationPlan(str(file), fit_share=0.3, seed=5)
    found = calibrate_file(plan)
    z, y = rows()
    mine = np.random.default_rng(5).random(len(y)) < 0.3
    expected = fit_temperature(logits=z[mine], labels=y[mine])
    assert found.calibrator.parameters["temperature"] == pytest.approx(
        expected.temperature, rel=1e-9
    )
    assert found.rows["fit"] == mine.sum()
    assert found.calibrator.nll_after == pytest.approx(expected.nll_after, rel=1e-9)


def test_other_rows_to_judge_on(file, tmp_path):
    z, y = rows(500, seed=1)
    np.savez(tmp_path / "test.npz", logits=z, labels=y)
    found = calibrate_file(CalibrationPlan(str(file), test_file=str(tmp_path / "test.npz")))
    assert (found.rows["fit"], found.rows["test"]) == (3000, 500)


def test_memory_is_bounded_by_a_seeded_draw(file, monkeypatch):
    monkeypatch.setattr(module, "_MEMORY", 4 * 4 * 600)
    found = calibrate_file(CalibrationPlan(str(file), method="vector"))
    assert 450 < found.rows["judged"] < 750 < found.rows["test"]
    assert 450 < found.rows["fit_used"] < 750
    assert sum("drawn by seed" in note for note in found.notes) == 2
    again = calibrate_file(CalibrationPlan(str(file), method="vector"))
    assert again.rows == found.rows
    assert again.calibrator.parameters == found.calibrator.parameters


@pytest.mark.parametrize("method", ["temperature", "vector", "isotonic"])
def test_what_is_written_comes_back(file, tmp_path, method):
    found = calibrate_file(CalibrationPlan(str(file), method=method))
    out = tmp_path / "out"
    out.mkdir()
    write_calibration(out, found)
    z, _ = rows()
    again = read_calibration(out)
    np.testing.assert_allclose(again.probs(z), found.calibrator.probs(z), rtol=1e-12)
    assert read_calibration(out / "calibration.json") == again
    report = json.loads((out / "report.json").read_text(encoding="utf-8"))
    assert report["rows"] == found.rows
    page = (out / "report.html").read_text(encoding="utf-8")
    assert "Before and after" in page
    assert finding(found)[0].split(":")[0] in page
    assert (out / "plots" / "reliability.png").read_bytes().startswith(b"\x89PNG")


def test_three_lines_of_numpy_give_the_same(file):
    found = calibrate_file(CalibrationPlan(str(file)))
    logits, _ = rows()
    z = logits / found.calibrator.parameters["temperature"]
    z -= z.max(1, keepdims=True)
    p = np.exp(z) / np.exp(z).sum(1, keepdims=True)
    np.testing.assert_allclose(p, found.calibrator.probs(logits), rtol=1e-5)


def test_probabilities_of_a_whole_file(file, tmp_path):
    found = calibrate_file(CalibrationPlan(str(file)))
    n = apply_to_file(found.calibrator, LogitsFile(file), tmp_path / "p.npy")
    p = np.load(tmp_path / "p.npy")
    assert (n, p.shape, p.dtype) == (3000, (3000, 4), np.float32)
    np.testing.assert_allclose(p, found.calibrator.probs(rows()[0]), atol=1e-7)
    assert sorted(f.name for f in tmp_path.iterdir()) == ["p.npy", "val.npz"]


@pytest.mark.parametrize("mark", [",", ";", "\t"])
def test_csv_gives_what_the_arrays_give(file, tmp_path, mark):
    z, y = rows()
    table = tmp_path / "val.csv"
    lines = [mark.join(["id", "labels", "logit_1", "logit_0", "logit_2", "logit_3"])]
    for i, (row, label) in enumerate(zip(z.tolist(), y.tolist(), strict=True)):
        lines.append(mark.join(map(str, [i, label, row[1], row[0], row[2], row[3]])))
    table.write_text("\n".join(lines), encoding="utf-8")
    found = calibrate_file(CalibrationPlan(str(table)))
    expected = calibrate_file(CalibrationPlan(str(file)))
    assert found.rows == expected.rows
    assert found.calibrator.parameters["temperature"] == pytest.approx(
        expected.calibrator.parameters["temperature"], rel=1e-6
    )


@pytest.mark.parametrize(
    ("content", "part"),
    [
        ("z0,z1,labels\n1,2,0\n1,x,1\n", "'x' in line 3, column z1"),
        ("z0,z1,labels\n1,2,0\n1,2\n", "no cell in line 3, column labels"),
        ("z0,z1,y\n1,2,0\n", "the columns z0, z1, y"),
        ("a,b,labels\n1,2,0\n", "the columns a, b, labels"),
        ("z0,z1,labels\n1,2,cat\n1,2,dog\n", "'cat' in line 2"),
    ],
)
def test_csv_that_cannot_be_used_is_named_by_line(tmp_path, content, part):
    (tmp_path / "x.csv").write_text(content)
    with pytest.raises(InvalidInput) as caught:
        calibrate_file(CalibrationPlan(str(tmp_path / "x.csv")))
    assert part in caught.value.found


def test_a_fit_without_information_says_so(tmp_path):
    z = np.zeros((400, 3), np.float32)
    np.savez(tmp_path / "flat.npz", logits=z, labels=np.arange(400) % 3)
    found = calibrate_file(CalibrationPlan(str(tmp_path / "flat.npz")))
    assert found.calibrator.status == "not identifiable"
    assert found.calibrator.parameters["temperature"] == 1.0
    assert serial.loads(serial.dumps(found.before)) == found.before


@pytest.mark.parametrize(
    "changes", [{"fit_share": 0.0}, {"fit_share": 1.0}, {"file": "nowhere.npz"}, {"labels": "y"}]
)
def test_bad_plans(file, changes):
    with pytest.raises(InvalidInput):
        calibrate_file(CalibrationPlan(**{"file": str(file), **changes}))


def test_unknown_method_and_too_few_rows(file, tmp_path):
    with pytest.raises(NotFound):
        CalibrationPlan(str(file), method="magic")
    np.savez(tmp_path / "few.npz", logits=np.eye(2), labels=[0, 1])
    with pytest.raises(InvalidInput):
        calibrate_file(CalibrationPlan(str(tmp_path / "few.npz")))


@pytest.mark.parametrize("content", ["{", "[]", '{"record": "Task"}', "{}"])
def test_a_foreign_calibration(tmp_path, content):
    (tmp_path / "calibration.json").write_text(content)
    with pytest.raises(InvalidInput):
        read_calibration(tmp_path)
    with pytest.raises(InvalidInput):
        read_calibration(tmp_path / "nothing.json")


def test_figures_stay_finite_where_probabilities_underflow(tmp_path):
    z, y = rows(400, scale=1.0)
    z = np.concatenate([z, 1500 * z[:8]])
    y = np.concatenate([y, z[-8:].argmin(axis=1)])
    np.savez(tmp_path / "huge.npz", logits=z, labels=y)
    found = calibrate_file(CalibrationPlan(str(tmp_path / "huge.npz"), fit_share=0.5))
    assert np.isfinite(found.after.metrics["nll"].value)
    assert found.comparison.differences["nll"].interval is not None


def test_nothing_changed_shows_no_difference(tmp_path):
    z, _ = rows(600)
    np.savez(tmp_path / "right.npz", logits=z, labels=z.argmax(axis=1))
    found = calibrate_file(CalibrationPlan(str(tmp_path / "right.npz")))
    assert found.calibrator.parameters["temperature"] == 1.0
    assert set(found.comparison.verdicts.values()) == {"no difference shown"}


def test_the_test_file_is_another_file(file):
    with pytest.raises(InvalidInput) as caught:
        calibrate_file(CalibrationPlan(str(file), test_file=str(file)))
    assert caught.value.found == "the same file"


def test_bad_rows_are_named_by_their_place_in_the_file(tmp_path):
    z, y = rows(300)
    z[123, 1] = np.nan
    np.savez(tmp_path / "x.npz", logits=z, labels=y)
    with pytest.raises(InvalidInput) as caught:
        calibrate_file(CalibrationPlan(str(tmp_path / "x.npz")))
    assert "row 123" in str(caught.value)


@pytest.mark.parametrize(
    ("header", "columns"),
    [("z0,z1,labels", ("z0", "z0")), ("z0,z1,labels", ("z0", "labels")), ("z0,z1,z1,labels", ())],
)
def test_a_column_stands_for_one_thing(tmp_path, header, columns):
    cells = ",".join("1" for _ in header.split(","))
    (tmp_path / "x.csv").write_text(f"{header}\n{cells}\n{cells}\n")
    with pytest.raises(InvalidInput) as caught:
        calibrate_file(CalibrationPlan(str(tmp_path / "x.csv"), columns=columns))
    assert "more than once" in caught.value.found


def test_csv_blank_lines_are_skipped_and_long_ones_refused(tmp_path):
    lines = ["z0, z1, labels", *["2,1,0", "", "1,2,1", "1,3,0"] * 10, ""]
    (tmp_path / "x.csv").write_text("\n".join(lines))
    assert calibrate_file(CalibrationPlan(str(tmp_path / "x.csv"))).rows["fit"] > 5
    (tmp_path / "long.csv").write_text("z0,z1,labels\n1,2,0,9\n")
    with pytest.raises(InvalidInput) as caught:
        calibrate_file(CalibrationPlan(str(tmp_path / "long.csv")))
    assert caught.value.found == "4 in line 2"
    (tmp_path / "empty.csv").write_text("")
    with pytest.raises(InvalidInput):
        calibrate_file(CalibrationPlan(str(tmp_path / "empty.csv")))


def test_parquet_lists_of_unequal_length_and_texts(tmp_path):
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    ragged = pa.table({"logits": [[1.0, 2.0], [1.0, 2.0, 3.0, 4.0]] * 5, "labels": [0, 1] * 5})
    texts = pa.table({"z0": ["a"] * 4, "z1": ["b"] * 4, "labels": [0, 1] * 2})
    for table, part in ((ragged, "4 in row 1"), (texts, "type string")):
        pq.write_table(table, tmp_path / "x.parquet")
        with pytest.raises(InvalidInput) as caught:
            calibrate_file(CalibrationPlan(str(tmp_path / "x.parquet")))
        assert part in caught.value.found


def test_one_logit_per_row_has_a_recipe_of_its_own(tmp_path):
    rng = np.random.default_rng(0)
    z = rng.normal(size=2000) * 2
    y = (rng.random(2000) < 1 / (1 + np.exp(-z))).astype(int)
    np.savez(tmp_path / "one.npz", logits=3 * z[:, None], labels=y)
    found = calibrate_file(CalibrationPlan(str(tmp_path / "one.npz")))
    assert found.one_column
    out = tmp_path / "out"
    out.mkdir()
    write_calibration(out, found)
    assert "1 / (1 + np.exp(-logits" in (out / "report.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "change",
    [
        {"n": -5},
        {"n": "many"},
        {"parameters": {"temperature": "5"}},
        {"parameters": {"temperature": True}},
    ],
)
def test_values_that_were_tampered_with(file, tmp_path, change):
    found = calibrate_file(CalibrationPlan(str(file)))
    content = json.dumps({**found.calibrator.to_dict(), **change})
    (tmp_path / "calibration.json").write_text(content)
    with pytest.raises(InvalidInput):
        read_calibration(tmp_path / "calibration.json")
