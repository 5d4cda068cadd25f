"""``temperance sweep`` as a shell sees it."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from temperance.study.ledger import read_rows, read_tasks
from temperance.study.plan import parse_plan
from temperance.study.sweep import SweepOptions, sweep

FEW = """
name = "few"
fixed.dataset = "iris"
fixed.steps = 10
grid.temperature = [1, 4]
grid.seed = {count = 2}
"""
MANY = """
fixed.dataset = "iris"
fixed.steps = 1500
grid.temperature = [1, 2, 4, 8]
grid.seed = {count = 12}
"""


@pytest.fixture
def plan(tmp_path):
    file = tmp_path / "few.toml"
    file.write_text(FEW)
    return file


def figures(folder):
    return {row["key"]: (row["outcome"], row["metrics"]) for row in read_rows(folder)}


def test_sweep_then_again(run, plan, tmp_path):
    out = tmp_path / "out"
    result = run("sweep", plan, "--out", out, "--workers", 1)
    assert result.code == 0, result.err
    assert "few: 4 trials: 4 done" in result.out
    assert f"temperance fit {out}" in result.out
    assert "training" in result.err
    (task,) = read_tasks(out).values()
    assert "csg" in task["task"]["statistics"]
    before = (out / "ledger.jsonl").read_bytes()
    again = run("sweep", plan, "--out", out, "--workers", 1, "--json")
    assert again.json["new"] == 0
    assert again.json["outcomes"] == {"done": 4, "diverged": 0, "failed": 0, "missing": 0}
    assert (out / "ledger.jsonl").read_bytes() == before


def test_json_is_all_of_the_output(run, plan, tmp_path):
    result = run("sweep", plan, "--out", tmp_path / "o", "--workers", 1, "--json")
    assert result.json["new"] == 4
    assert result.json["out"] == str(tmp_path / "o")
    assert "training" not in result.err


def test_dry_run_runs_nothing(run, plan, tmp_path):
    out = tmp_path / "out"
    result = run("sweep", plan, "--out", out, "--dry-run")
    assert result.code == 0, result.err
    assert "Left: 4 trials in 2 units of work" in result.out
    assert "CPU time: about" in result.out
    assert not out.exists()
    assert run("sweep", plan, "--out", out, "--dry-run", "--json").json["units"] == 2


def test_without_statistics_and_compacted(run, plan, tmp_path):
    pytest.importorskip("pyarrow")
    out = tmp_path / "out"
    result = run("sweep", plan, "--out", out, "--workers", 1, "--no-statistics", "--compact")
    assert result.code == 0, result.err
    assert "ledger.parquet" in result.out
    assert (out / "ledger.jsonl").read_bytes() == b""
    assert len(read_rows(out)) == 4
    (task,) = read_tasks(out).values()
    assert task["task"]["statistics"] == {}
    assert run("sweep", plan, "--out", out, "--workers", 1, "--json").json["new"] == 0


def test_more_workers_than_cpus_are_remarked_on(run, plan, tmp_path):
    run("sweep", plan, "--out", tmp_path / "o", "--workers", 1)
    result = run("sweep", plan, "--out", tmp_path / "o", "--workers", 9999)  # none is needed
    assert result.code == 0
    assert "9999 workers share" in result.err


@pytest.mark.parametrize(
    ("text", "arguments", "code"),
    [
        (FEW, ["--workers", "0"], 2),
        (FEW, ["--workers", "2", "--ray", "local"], 2),
        (FEW, ["--ray", "localhost:1"], 3),
        (FEW.replace("iris", "nowhere"), [], 4),
        (FEW + 'fixed.model = "resnet9000"', [], 4),
        (FEW + "fixed.feature_dim = 5", [], 3),
        (FEW + 'fixed.features = "pca:99"', [], 3),
        (FEW + "fixed.colour = 5", [], 3),
        ("grid.temperature = []", [], 3),
    ],
)
def test_bad_input_before_the_first_trial(run, tmp_path, text, arguments, code):
    if "--ray" in arguments and code == 3:
        pytest.importorskip("ray")
    plan, out = tmp_path / "plan.toml", tmp_path / "out"
    plan.write_text(text)
    result = run("sweep", plan, "--out", out, *arguments)
    assert result.code == code, result.err
    assert "Traceback" not in result.err
    assert not (out / "ledger.jsonl").exists()


def test_a_plan_or_folder_that_is_not_there(run, plan, tmp_path):
    assert run("sweep", tmp_path / "no.toml", "--out", tmp_path / "out").code == 4
    assert run("sweep", plan).code == 2
    assert run("sweep", plan, "--out", plan).code == 3
    assert run("sweep", plan, "--out", plan, "--dry-run").code == 3


def test_all_trials_failed_is_no_success(run, tmp_path):
    plan = tmp_path / "wild.toml"
    plan.write_text(FEW + "fixed.lr = 1e30\nfixed.weight_decay = 1e30")
    result = run("sweep", plan, "--out", tmp_path / "out", "--workers", 1)
    assert result.code == 1
    assert "4 diverged" in result.out
    assert "Next:" not in result.out


# ------------------------------------------------------------------ a process that is stopped
@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The ledger of a sweep that nobody stopped."""
    folder = tmp_path_factory.mktemp("whole")
    sweep(parse_plan(MANY), folder, options=SweepOptions(statistics=False))
    return folder


def start(plan, out, *options):
    """A sweep in a process of its own, in a group that signals can be sent to."""
    command = ["sweep", str(plan), "--out", str(out), "--no-statistics", *options]
    code = (  # a job in the background of a script has Ctrl-C switched off
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        f"from temperance.cli import main; main({command!r})"
    )
    return subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


def stop_midway(plan, out, number, *options):
    """Send a signal when a few rows are there; give the process and what it printed."""
    process = start(plan, out, *options)
    try:
        deadline = time.monotonic() + 120
        ledger = out / "ledger.jsonl"
        while not ledger.exists() or ledger.read_bytes().count(b"\n") < 8:
            assert process.poll() is None, process.communicate()[1]
            assert time.monotonic() < deadline, "no rows were written"
            time.sleep(0.01)
        os.killpg(process.pid, number)
        said = process.communicate(timeout=60)
    finally:
        process.kill()
        process.communicate()
    return process.returncode, *said


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
@pytest.mark.parametrize(
    ("number", "workers"), [("SIGKILL", "2"), ("SIGINT", "1"), ("SIGINT", "2")]
)
def test_stopped_midway_and_started_again_gives_the_same_rows(
    run, tmp_path, whole, number, workers
):
    plan, out = tmp_path / "plan.toml", tmp_path / "out"
    plan.write_text(MANY)
    code, printed, err = stop_midway(plan, out, getattr(signal, number), "--workers", workers)
    kept = figures(out)
    assert 4 <= len(kept) < 48
    if number == "SIGINT":
        assert code == 130, err
        assert "Run the same command again" in err
        assert printed == ""
    assert "Traceback" not in err
    result = run("sweep", plan, "--out", out, "--workers", 1, "--no-statistics", "--json")
    assert result.json["new"] == 48 - len(kept)
    found = [json.loads(line) for line in (out / "ledger.jsonl").read_bytes().splitlines()]
    assert len(found) == len({row["key"] for row in found}) == 48
    assert figures(out) == figures(whole)
