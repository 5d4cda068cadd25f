"""Sweeps on a real Ray of this machine: the same rows, also where workers are killed."""

import gc
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from temperance.errors import InvalidInput, TemperanceError
from temperance.integrations.ray import ray_mapper
from temperance.study.ledger import read_rows, read_tasks
from temperance.study.mappers import Lost
from temperance.study.plan import parse_plan
from temperance.study.probe import train_probes
from temperance.study.runner import Runner
from temperance.study.sweep import SweepOptions, sweep

ray = pytest.importorskip("ray")
# What Ray leaves open when it ends (sockets, log files) says nothing about this library.
pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore:.*Ray will no longer override:FutureWarning"),
]


@pytest.fixture(autouse=True)
def _print_stays(monkeypatch):
    """Ray replaces ``print``: what holds the old one can no longer be pickled."""
    monkeypatch.setenv("RAY_TQDM_PATCH_PRINT", "0")


TEXT = """
[fixed]
dataset = "iris"
steps = 30
[grid]
temperature = [1, 4]
norm = ["none", "batch"]
seed = {count = 3}
[[grids]]
model = "probe"
[[grids]]
model = "mlp"
feature_dim = 8
"""
PLAN = parse_plan(TEXT)


@pytest.fixture(scope="module")
def cluster():
    """A Ray with two workers, and functions of this file sent to them as a whole."""
    import warnings

    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
        ray.init(
            address="local",
            num_cpus=2,
            object_store_memory=80 * 2**20,
            include_dashboard=False,
            log_to_driver=False,
            logging_level="ERROR",
        )
        yield
        ray.shutdown()
        gc.collect()  # here, and not in a test that comes later
    ray.cloudpickle.unregister_pickle_by_value(sys.modules[__name__])


def figures(folder):
    return {
        row["key"]: (row["outcome"], row["metrics"], row["history"]) for row in read_rows(folder)
    }


def once(folder: Path, name: str) -> bool:
    """Whether this is the first time, in any process."""
    try:
        (folder / name).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class Deadly:
    """An engine whose worker is killed in the middle of its first unit of each seed below 2."""

    def __init__(self, folder):
        self.folder = folder

    def __call__(self, data, trials):
        outcomes = train_probes(data, trials)

        def train():
            for place, outcome in enumerate(outcomes):
                seed = outcome.trial.seed
                if place == 1 and seed < 2 and once(self.folder, f"killed-{seed}"):
                    die()
                yield outcome

        return train()


# ------------------------------------------------------------------ on a Ray that is there
def test_the_same_rows_though_workers_are_killed(cluster, tmp_path):
    sweep(PLAN, tmp_path / "serial")
    options = SweepOptions(runner=Runner(probe=Deadly(tmp_path)))
    summary = sweep(PLAN, tmp_path / "ray", mapper=ray_mapper(), options=options)
    assert {p.name for p in tmp_path.glob("killed-*")} == {"killed-0", "killed-1"}
    assert summary.outcomes == {"done": 24, "diverged": 0, "failed": 0, "missing": 0}
    assert figures(tmp_path / "ray") == figures(tmp_path / "serial")
    assert read_tasks(tmp_path / "ray") == read_tasks(tmp_path / "serial")
    assert ray.is_initialized()  # it was not ours to end
    again = sweep(PLAN, tmp_path / "ray", mapper=ray_mapper(), options=options)
    assert again.new == 0


def test_a_worker_that_dies_every_time_is_given_up(cluster):
    def deadly(unit):
        if unit == 2:
            die()
        return unit

    found = list(ray_mapper(retries=1)(deadly, [1, 2, 3]))
    (lost,) = [result for result in found if isinstance(result, Lost)]
    assert lost.unit == 2
    assert "died 2 times" in lost.reason
    assert sorted(result for result in found if not isinstance(result, Lost)) == [1, 3]


def test_an_error_of_the_function_ends_the_map(cluster):
    def wrong(unit):
        raise ModuleNotFoundError("temperance")

    with pytest.raises(TemperanceError, match="same versions"):
        list(ray_mapper()(wrong, [1]))


def test_units_are_taken_as_there_is_room_and_given_up_at_the_end(cluster, tmp_path):
    taken = []

    def units():
        for unit in range(100):
            taken.append(unit)
            yield unit

    def slow(unit):
        if unit == 1:
            time.sleep(600)
        return os.getpid()

    results = ray_mapper()(slow, units())
    next(results)
    results.close()
    assert len(taken) <= 5
    deadline = time.monotonic() + 60
    while ray.available_resources().get("CPU") != 2:  # the sleeper is ended
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_shares_of_a_cpu(cluster):
    def cpus(unit):
        return ray.get_runtime_context().get_assigned_resources()["CPU"]

    assert list(ray_mapper(cpus=0.5)(cpus, [1])) == [0.5]


def test_resources_that_are_not_there(cluster):
    with pytest.raises(InvalidInput) as caught:
        list(ray_mapper(gpus=1)(abs, [1]))
    assert "GPU" in caught.value.found


# ------------------------------------------------------------------ what is refused, and the shell
@pytest.mark.parametrize(
    ("arguments", "subject"),
    [
        ({"cpus": -1}, "cpus"),
        ({"gpus": "many"}, "gpus"),
        ({"retries": -1}, "retries"),
        ({"cpus": 0}, "cpus and gpus"),
    ],
)
def test_what_can_be_asked_for(arguments, subject):
    with pytest.raises(InvalidInput) as caught:
        ray_mapper(**arguments)
    assert caught.value.subject == subject


@pytest.mark.parametrize("address", ["127.0.0.1:1", "ray://127.0.0.1:1", "nonsense"])
def test_an_address_where_no_ray_is(address, monkeypatch):
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    with pytest.raises(InvalidInput) as caught:
        list(ray_mapper(address)(abs, [1]))
    assert address in caught.value.subject


def test_a_ray_of_its_own_from_the_command_line(tmp_path):
    (tmp_path / "plan.toml").write_text(TEXT)
    command = ["sweep", str(tmp_path / "plan.toml"), "--out", str(tmp_path / "out")]
    options = ["--ray", "local", "--no-statistics", "--json"]
    code = f"from temperance.cli import main; main({[*command, *options]!r})"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=False
    )
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["outcomes"]["done"] == 24
