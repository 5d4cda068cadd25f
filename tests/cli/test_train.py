"""``temperance train`` and ``temperance predict`` as a shell sees them."""

import json
import os
import re
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from sklearn.datasets import load_digits

QUICK = ("--model", "mlp", "-M", 16, "--epochs", 1, "--seeds", 1, "--workers", 1)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    x, y = load_digits(return_X_y=True)
    file = tmp_path_factory.mktemp("data") / "digits.csv"
    header = ",".join([f"p{i}" for i in range(64)] + ["label"])
    rows = np.column_stack([x, y])[:300]
    np.savetxt(file, rows, fmt="%d", delimiter=",", header=header, comments="")
    return file


def test_train_then_predict(run, data, tmp_path):
    out = tmp_path / "out"
    result = run("train", data, "--out", out, *QUICK, "--arm", "plain", "--arm", "bn:T=budget")
    assert result.code == 0, result.err
    assert "Suggested T = 1 (norm-alone, norm: batch)\n  no rule is shown to beat" in result.out
    assert re.search(r"BN, T = 0\.\d+ \(budget\)", result.out)
    assert "Shipped: " in result.out
    assert "Difference to plain" in result.out
    predicted = run("predict", out, data, "--json")
    assert predicted.code == 0
    assert len(predicted.json["predictions"]) == 300
    first = predicted.json["predictions"][0]
    assert set(first) == {"input", "label", "probability", "top"}
    assert len(run("predict", out, data).out.splitlines()) == 300


def test_columns_are_matched_by_name(run, data, tmp_path):
    out = tmp_path / "out"
    run("train", data, "--out", out, *QUICK, "--arm", "bn")
    lines = [line.split(",") for line in data.read_text().splitlines()]
    turned = tmp_path / "turned.csv"
    turned.write_text("\n".join(",".join(reversed(cells)) for cells in lines))
    expected = [p["probability"] for p in run("predict", out, data, "--json").json["predictions"]]
    found = [p["probability"] for p in run("predict", out, turned, "--json").json["predictions"]]
    assert found == expected
    lacking = tmp_path / "lacking.csv"
    lacking.write_text("\n".join(",".join(cells[1:]) for cells in lines))
    result = run("predict", out, lacking)
    assert result.code == 3
    assert "no column 'p0'" in result.err


def test_json(run, data, tmp_path):
    result = run("train", data, "--out", tmp_path / "o", *QUICK, "--arm", "plain", "--json")
    assert result.code == 0
    assert result.json["record"] == "Comparison"
    assert result.json["out"] == str(tmp_path / "o")
    report = json.loads((tmp_path / "o" / "report.json").read_text(encoding="utf-8"))
    assert result.json["arms"] == report["arms"]


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["nowhere", "--out", "OUT"], 3),
        (["digits"], 2),
        (["digits", "--out", "OUT", "--seeds", "0"], 2),
        (["digits", "--out", "OUT", "--epochs", "0"], 3),
        (["digits", "--out", "OUT", "--batch-size", "1"], 3),
        (["digits", "--out", "OUT", "--model", "resnet9000"], 4),
        (["digits", "--out", "OUT", "--rule", "nope"], 4),
        (["digits", "--out", "OUT", "--arm", "gn"], 3),
        (["digits", "--out", "OUT", "--on-bad", "maybe"], 2),
        (["digits", "--out", "OUT", "--optimizer", "lion"], 3),
        (["digits", "--out", "OUT", "--weights", "nothing.safetensors"], 4),
        (["digits", "--out", "OUT", "--train-rows", "99999"], 3),
    ],
)
def test_bad_input_before_any_training(run, tmp_path, arguments, code):
    out = tmp_path / "out"
    result = run("train", *[str(out) if a == "OUT" else a for a in arguments])
    assert result.code == code, result.err
    assert result.err
    assert "Traceback" not in result.err
    assert not (out / "runs").exists()


def test_predict_from_a_folder_without_a_model(run, tmp_path):
    assert run("predict", tmp_path, tmp_path).code == 3


def test_resume_of_a_finished_training_says_the_same(run, data, tmp_path):
    arguments = ["train", data, "--out", tmp_path / "o", *QUICK, "--arm", "plain", "--json"]
    first = run(*arguments)
    assert run(*arguments).code == 3
    assert run(*arguments, "--resume").json == first.json
    other = run(*arguments, "--resume", "--batch-size", 32)
    assert other.code == 3
    assert "budget" in other.json["error"]["found"]


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
@pytest.mark.parametrize("workers", ["1", "2"])
def test_ctrl_c_leaves_a_state(tmp_path, workers):
    out = tmp_path / "out"
    options = ["--model", "mlp", "-M", "16", "--epochs", "1000000", "--seeds", "1"]
    command = ["train", "digits", "--out", str(out), *options, "--workers", workers]
    code = (  # a job in the background of a script has Ctrl-C switched off
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        f"from temperance.cli import main; main({command!r})"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    try:
        deadline = time.monotonic() + 120
        while not list(out.glob("state/*.safetensors")):
            assert process.poll() is None, process.communicate()[1]
            assert time.monotonic() < deadline, "no state was written"
            time.sleep(0.05)
        os.killpg(process.pid, signal.SIGINT)
        printed, err = process.communicate(timeout=60)
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == 130, err
    assert "--resume" in err
    assert "Traceback" not in err
    assert printed == ""
    assert (out / "plan.json").exists()
    assert not (out / "report.json").exists()
