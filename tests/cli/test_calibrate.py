"""``temperance calibrate``, and its result in ``temperance predict``."""

import numpy as np
import pytest
from safetensors.torch import load_file
from sklearn.datasets import load_digits

from temperance.records import from_dict
from temperance.training.job import run_job
from temperance.training.loop import Budget
from temperance.training.plan import Plan


@pytest.fixture
def file(tmp_path):
    rng = np.random.default_rng(0)
    z = rng.normal(size=(2000, 3)) * 2
    y = (z + rng.gumbel(size=z.shape)).argmax(axis=1)
    np.savez(tmp_path / "val.npz", logits=4 * z, labels=y)
    return tmp_path / "val.npz"


def test_table_and_files(run, file, tmp_path):
    out = tmp_path / "out"
    result = run("calibrate", file, "--out", out, "--apply", tmp_path / "p.npy")
    assert result.code == 0, result.err
    assert "T = 4.0" in result.out or "T = 3.9" in result.out
    assert "better" in result.out
    assert {p.name for p in out.iterdir()} == {
        "calibration.json", "plots", "report.html", "report.json",
    }  # fmt: skip
    assert np.load(tmp_path / "p.npy").shape == (2000, 3)


def test_json(run, file, tmp_path):
    found = run("calibrate", file, "--out", tmp_path / "o", "--method", "vector", "--json").json
    assert found["calibrator"]["method"] == "vector"
    assert from_dict({"record": "Report", **found["after"]}).n == found["rows"]["judged"]


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["nowhere.npz", "--out", "OUT"], 3),
        (["FILE", "--out", "OUT", "--method", "magic"], 4),
        (["FILE", "--out", "OUT", "--labels", "y"], 3),
        (["FILE", "--out", "OUT", "--fit-share", "1.5"], 3),
        (["FILE"], 2),
    ],
)
def test_bad_input_leaves_nothing(run, file, tmp_path, arguments, code):
    names = {"FILE": str(file), "OUT": str(tmp_path / "out")}
    result = run("calibrate", *[names.get(a, a) for a in arguments])
    assert result.code == code
    assert "Traceback" not in result.err
    assert not (tmp_path / "out").exists()


def test_a_folder_with_something_in_it_is_not_touched(run, file, tmp_path):
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "calibration.json").write_text("mine")
    assert run("calibrate", file, "--out", tmp_path / "own").code == 3
    assert (tmp_path / "own" / "calibration.json").read_text() == "mine"


def test_predict_takes_it(run, tmp_path):
    plan = Plan(
        source="digits", model="mlp", feature_dim=16, arms=("bn",), seeds=1,
        budget=Budget(epochs=2),
    )  # fmt: skip
    run_job(plan, tmp_path / "model")
    logits = load_file(tmp_path / "model" / "runs" / "bn-seed0.logits.safetensors")
    np.savez(tmp_path / "fit.npz", logits=logits["fit"], labels=logits["fit_labels"])
    result = run("calibrate", tmp_path / "fit.npz", "--out", tmp_path / "cal")
    assert result.code == 0, result.err
    np.savez(tmp_path / "x.npz", x=load_digits().images[:20])
    calibration = tmp_path / "cal" / "calibration.json"
    inputs = (tmp_path / "model", tmp_path / "x.npz", "--json")
    plain = run("predict", *inputs).json["predictions"]
    found = run("predict", *inputs, "--calibration", calibration).json["predictions"]
    assert [p["label"] for p in found] == [p["label"] for p in plain]
    assert any(a["probability"] != b["probability"] for a, b in zip(found, plain, strict=True))
    np.savez(tmp_path / "two.npz", logits=np.eye(2)[[0, 1] * 20] * 3.0, labels=[0, 1, 1, 0] * 10)
    assert run("calibrate", tmp_path / "two.npz", "--out", tmp_path / "two").code == 0
    other = run("predict", *inputs, "--calibration", tmp_path / "two")
    assert other.code == 3
    assert "10 classes" in other.json["error"]["expected"]


def test_evaluate(run, file, tmp_path):
    np.save(tmp_path / "ood.npy", np.zeros((50, 3)))
    arguments = ["evaluate", file, "--bootstrap", 20, "--ood", tmp_path / "ood.npy"]
    result = run(*arguments, "--shift", file, "--out", tmp_path / "judged")
    assert result.code == 0, result.err
    assert "Smooth ECE" in result.out
    assert "predictive_entropy" in result.out
    assert "Under shift" in result.out
    found = run(*arguments, "--out", tmp_path / "again", "--json").json
    assert found["rows"] == {"file": 2000, "judged": 2000}
    assert run(*arguments, "--out", tmp_path / "again").code == 3
    calibrated = run("calibrate", file, "--out", tmp_path / "cal")
    assert calibrated.code == 0
    better = run(
        "evaluate", file, "--bootstrap", 20, "--calibration", tmp_path / "cal", "--out",
        tmp_path / "third", "--json",
    ).json  # fmt: skip
    assert better["figures"]["nll"]["value"] < found["figures"]["nll"]["value"]


@pytest.mark.parametrize("target", ["val.npz", "there.npy", "new.csv", "nowhere/p.npy"])
def test_apply_overwrites_nothing(run, file, tmp_path, target):
    (tmp_path / "there.npy").write_bytes(b"mine")
    before = file.read_bytes()
    result = run("calibrate", file, "--out", tmp_path / "o", "--apply", tmp_path / target)
    assert result.code == 3
    assert file.read_bytes() == before
    assert (tmp_path / "there.npy").read_bytes() == b"mine"
    assert not (tmp_path / "o").exists()
