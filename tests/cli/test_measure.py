"""``temperance measure`` as a shell sees it."""

import json

import numpy as np
import pytest

from temperance.records import Features, Task, loads
from temperance.task.statistics import STATISTICS, measure_statistics


@pytest.fixture
def table(tmp_path):
    rng = np.random.default_rng(0)
    y = np.arange(120) % 3
    x = (rng.normal(2.0, 3.0, (120, 5)) + 4 * np.eye(5)[y]).astype(np.float32)
    np.savez(tmp_path / "table.npz", x=x, y=y)
    return tmp_path / "table.npz", x, y


def test_all_statistics_with_the_picture_of_the_csg(run, table, tmp_path):
    file, _, _ = table
    result = run("measure", file, "--out", tmp_path / "out")
    assert result.code == 0, result.err
    for name in STATISTICS:
        assert f" {name} " in result.out
    assert "standardized input features, 120 rows" in result.out
    assert (tmp_path / "out" / "eigenvalues.png").read_bytes().startswith(b"\x89PNG")
    task = loads((tmp_path / "out" / "task.json").read_text(encoding="utf-8"))
    assert isinstance(task, Task)
    assert set(task.statistics) == set(STATISTICS)
    assert task.statistics["feature_std"].value == pytest.approx(1.0, abs=1e-5)


def test_a_csg_of_all_rows_has_no_interval(run, table):
    """Not one of width 0, as if other rows gave the same value."""
    said = run("measure", table[0], "--statistics", "csg").out
    assert "none: all rows drawn" in said
    assert " to " not in said


def test_json_holds_the_task(run, table):
    file, x, y = table
    arguments = ["--as-given", "--statistics", "norm_mean, logme", "--seed", 3, "--repeats", 4]
    result = run("measure", file, *arguments, "--json")
    assert result.code == 0, result.err
    found = result.json
    assert (found["record"], found["feature_dim"], found["n_classes"]) == ("Task", 5, 3)
    assert found["embedding"] == "input features as given"
    expected = measure_statistics(
        Features.from_arrays(x, y), ["norm_mean", "logme"], repeats=4, seed=3
    )
    assert list(found["statistics"]) == ["norm_mean", "logme"]
    for name, statistic in expected.items():
        assert found["statistics"][name]["value"] == pytest.approx(statistic.value, rel=1e-12)
        assert found["statistics"][name]["interval"] == pytest.approx(statistic.interval)
    assert isinstance(loads(json.dumps({k: found[k] for k in found if k != "out"})), Task)


def test_a_net_gives_m_and_its_input_stands_for_the_task(run):
    names = "feature_dim,class_balance"
    result = run("measure", "digits", "--model", "mlp", "-M", 24, "--statistics", names, "--json")
    assert result.code == 0, result.err
    assert result.json["feature_dim"] == 24
    assert result.json["embedding"] == "pixels as shares of white"
    assert result.json["statistics"]["feature_dim"]["value"] == 64


def test_weights_give_their_own_features(run, table, tmp_path):
    from temperance.models.checkpoints import write_safetensors
    from temperance.training.nets import build_net

    file, _, _ = table
    net = build_net("mlp", input_shape=(5,), n_classes=3, seed=1, feature_dim=7)
    write_safetensors(tmp_path / "net.safetensors", net.module.state_dict())
    options = ["--model", "mlp", "-M", 7, "--weights", tmp_path / "net.safetensors"]
    result = run("measure", file, *options, "--statistics", "feature_dim", "--json")
    assert result.code == 0, result.err
    assert result.json["embedding"].endswith("input of head")
    assert result.json["statistics"]["feature_dim"]["value"] == 7
    result = run("measure", file, "--weights", tmp_path / "net.safetensors")
    assert result.code == 3
    assert "--model" in result.err


def test_rows_are_drawn_by_class(run, table):
    file, _, _ = table
    names = "n_samples,samples_per_class_min,class_balance"
    result = run("measure", file, "--rows", 31, "--statistics", names, "--json")
    found = {name: s["value"] for name, s in result.json["statistics"].items()}
    assert (found["n_samples"], found["samples_per_class_min"]) == (31, 10)
    assert result.json["notices"] == ["31 of 120 rows are measured, drawn by class"]
    assert run("measure", file, "--rows", 31, "--statistics", names, "--json").json == result.json


def test_only_the_training_part_is_looked_at(run, tmp_path):
    x, y = np.random.default_rng(0).normal(size=(40, 3)), np.arange(40) % 2
    parts = {"x_train": x, "y_train": y, "x_test": x[:10] + 1, "y_test": y[:10]}
    np.savez(tmp_path / "parts.npz", **parts)
    result = run("measure", tmp_path / "parts.npz", "--statistics", "n_samples")
    assert result.code == 0, result.err
    assert "10 of test are not looked at" in result.out
    assert "40 rows" in result.out


def test_what_does_not_exist_is_said(run, tmp_path):
    file = tmp_path / "narrow.npz"
    np.savez(file, x=np.random.default_rng(0).normal(size=(20, 1)), y=np.arange(20) % 2)
    result = run("measure", file)
    assert result.code == 0, result.err
    assert "Not defined here: mean_abs_correlation (expected two features" in result.out
    assert "mean_abs_correlation" in run("measure", file, "--json").json["undefined"]


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["nowhere"], 3),
        ([], 2),
        (["TABLE", "--statistics", "fisher"], 4),
        (["TABLE", "--statistics", ""], 4),
        (["TABLE", "--repeats", "0"], 2),
        (["TABLE", "--seed", "-1"], 2),
        (["TABLE", "--rows", "1"], 3),
        (["TABLE", "--rows", "1000"], 3),
        (["TABLE", "--on-bad", "maybe"], 2),
        (["TABLE", "--model", "resnet9000"], 4),
        (["TABLE", "--model", "mlp", "--as-given"], 3),
        (["TABLE", "--features", "32"], 3),  # of which net?
        (["digits", "--as-given"], 3),
        (["ONE"], 3),
        (["NAN"], 3),
        (["TABLE", "--out", "FULL"], 3),
    ],
)
def test_bad_input(run, table, tmp_path, arguments, code):
    file, x, y = table
    np.savez(tmp_path / "one.npz", x=x, y=np.zeros(len(y), int))
    broken = x.copy()
    broken[7, 2] = np.nan
    np.savez(tmp_path / "nan.npz", x=broken, y=y)
    names = {"TABLE": file, "ONE": tmp_path / "one.npz", "NAN": tmp_path / "nan.npz"}
    names["FULL"] = tmp_path
    result = run("measure", *[names.get(a, a) for a in arguments])
    assert result.code == code, result.err
    assert result.err
    assert "Traceback" not in result.err
    assert not result.out


def test_ctrl_c(run, table, tmp_path, monkeypatch):
    def stop(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("temperance.training.task_features.measure_data", stop)
    result = run("measure", table[0], "--out", tmp_path / "out")
    assert result.code == 130
    assert "Nothing was written" in result.err
    assert not (tmp_path / "out").exists()
