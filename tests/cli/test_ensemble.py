"""``temperance ensemble`` as a shell sees it."""

import csv
import math

import numpy as np
import pytest
from sklearn.datasets import load_digits

from temperance.cli.app import app
from temperance.cli.ensemble import ensemble
from temperance.training import ensemble_runs
from temperance.training.runs import Saver

QUICK = (
    "--model", "mlp1", "-M", 16, "--members", 2, "--epochs", 1, "--seeds", 1, "--train-rows", 200,
)  # fmt: skip


@pytest.fixture(autouse=True)
def _registered():
    """The verb is in the program, whether it is registered there by now or not."""
    if any(command.callback is ensemble for command in app.registered_commands):
        yield
        return
    app.command()(ensemble)
    yield
    app.registered_commands.pop()


def test_a_sweep_and_resuming(run, tmp_path):
    arguments = ["ensemble", "digits", "--out", tmp_path / "o", *QUICK, "--sweep-tau", "0.1,1"]
    result = run(*arguments)
    assert result.code == 0, result.err
    assert "sigmaN, tau 0.1" in result.out
    assert "Difference to the single model" in result.out
    assert "Shipped: members.safetensors" in result.out
    assert "multiply-adds per row" in result.out
    assert (tmp_path / "o" / "plots" / "frontier.png").exists()
    assert run(*arguments, "--json").code == 3
    again = run(*arguments, "--resume", "--json")
    assert again.code == 0
    assert again.json["record"] == "EnsembleComparison"
    assert [m["tau"] for m in again.json["methods"]] == [None, 0.1, 1.0]
    other = run(*arguments, "--resume", "--json", "--strength", 1)
    assert other.code == 3
    assert other.json["error"]["found"] == "strength = 1.0"


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["nowhere"], 3),
        (["digits", "--members", "0"], 3),
        (["digits", "--tau", "0"], 3),
        (["digits", "--tau", "-1"], 3),
        (["digits", "--sweep-tau", "0.1,x"], 2),
        (["digits", "--sweep-tau", "0.1", "--tau", "1"], 2),
        (["digits", "--strength", "-1"], 3),
        (["digits", "--protocol", "split", "--batch-size", "3"], 3),
        (["digits", "--protocol", "any"], 3),
        (["digits", "--model", "probe"], 4),
        (["digits", "--model", "resnet9000"], 4),
        (["digits", "--from", "nothing.safetensors"], 4),
        (["digits", "--temperature", "warm"], 3),
        (["digits", "--posthoc", "never"], 3),
        (["digits", "--seeds", "0"], 2),
    ],
)
def test_bad_input_before_any_training(run, tmp_path, arguments, code):
    out = tmp_path / "out"
    result = run("ensemble", *arguments, "--out", out)
    assert result.code == code, result.err
    assert result.err
    assert "Traceback" not in result.err
    assert not out.exists()


def test_ctrl_c_leaves_a_state_that_can_go_on(run, tmp_path, monkeypatch):
    arguments = ["ensemble", "digits", "--out", tmp_path / "o", *QUICK]

    class Interrupting(Saver):
        def __call__(self, training):
            self.last = -math.inf
            super().__call__(training)
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(ensemble_runs, "Saver", Interrupting)
        result = run(*arguments)
    assert result.code == 130
    assert "--resume" in result.err
    assert result.out == ""
    assert [p.name for p in (tmp_path / "o" / "state").iterdir()] == [
        "sigma-tau-0.2-seed0.safetensors"
    ]
    assert not (tmp_path / "o" / "report.json").exists()
    assert run(*arguments, "--resume").code == 0
    assert (tmp_path / "o" / "members.safetensors").exists()


def test_predict_takes_the_folder_of_an_ensemble(run, tmp_path):
    out, rows = tmp_path / "o", tmp_path / "x.npy"
    assert run("ensemble", "digits", "--out", out, *QUICK).code == 0
    np.save(rows, load_digits().images.astype(np.uint8)[:5])
    found = run("predict", out, rows, "--json").json["predictions"]
    names = ("total_entropy", "mutual_information", "disagreement")
    assert set(found[0]) == {"input", "label", "probability", "top", *names}
    table = list(csv.DictReader(run("predict", out, rows, "--csv", "--top", 2).out.splitlines()))
    assert list(table[0]) == ["input", "label", "probability", *names, "label_2", "probability_2"]
    for line, said in zip(table, found, strict=True):
        assert (line["input"], line["label"]) == (said["input"], said["label"])
        for name in ("probability", *names):
            assert float(line[name]) == said[name]
        assert float(line["probability_2"]) == said["top"][1]["probability"]
    text = run("predict", out, rows).out.splitlines()
    assert len(text) == 5
    assert "mutual information" in text[0]
    assert run("predict", out, rows, "--csv", "--json").code == 2
    (out / "config.json").write_text("{}")
    harmed = run("predict", out, rows, "--json")
    assert harmed.code == 3
    assert harmed.json["error"]["subject"] == str(out / "config.json")
