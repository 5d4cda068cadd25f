"""Mappers: every unit once, in any order, whatever becomes of the processes."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from multiprocessing.pool import ThreadPool

import pytest

from temperance.errors import InvalidInput, TemperanceError
from temperance.study.mappers import Lost, processes, serial

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals")

TOYS = """
import os, signal, time
from pathlib import Path

def double(x):
    return 2 * x

def who(x):
    return os.getpid()

def die_at(unit):
    x, folder, times = unit
    seen = len(list(Path(folder).glob(f"{x}-*")))
    if seen < times:
        (Path(folder) / f"{x}-{seen}").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return x

def wrong(x):
    raise ValueError(f"bad {x}")

class KilledAtTheStart:
    # kills the process that it is sent to, before that has said a word
    def __init__(self, folder, times):
        self.folder, self.times = folder, times

    def __call__(self, x):
        return x

    def __reduce__(self):
        return arrive, (self.folder, self.times)

def arrive(folder, times):
    if len(list(Path(folder).iterdir())) < times:
        (Path(folder) / f"pid-{os.getpid()}").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return KilledAtTheStart(folder, times)

def slow(unit):
    x, folder = unit
    (Path(folder) / f"pid-{os.getpid()}").touch()
    time.sleep(600)
"""


@pytest.fixture
def toys(tmp_path, monkeypatch):
    """Functions that a new process can import."""
    folder = tmp_path / "modules"
    folder.mkdir()
    (folder / "mapper_toys.py").write_text(TOYS)
    monkeypatch.syspath_prepend(str(folder))
    sys.modules.pop("mapper_toys", None)
    import mapper_toys

    yield mapper_toys
    sys.modules.pop("mapper_toys", None)


def gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def wait_until(condition, seconds=60):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_every_unit_once(toys):
    units = list(range(7))
    assert sorted(serial(toys.double, units)) == [2 * x for x in units]
    assert sorted(processes(2)(toys.double, units)) == [2 * x for x in units]
    assert list(processes(2)(toys.double, [])) == []


def test_as_many_processes_as_there_are_units_at_most(toys):
    pids = set(processes(50)(toys.who, [1, 2]))
    assert len(pids) == 2
    assert os.getpid() not in pids
    assert len(set(processes(1)(toys.who, [1, 2, 3]))) == 1


@pytest.mark.parametrize("mapper", [serial, processes(1)], ids=["serial", "processes"])
def test_units_are_taken_when_a_worker_is_free(toys, mapper):
    """Taking a unit claims it: no unit may wait in a queue while another sweep could do it."""
    taken = []

    def units():
        for x in range(4):
            taken.append(x)
            yield x

    results = mapper(toys.double, units())
    assert next(iter(results)) == 0
    assert taken == [0]


def test_a_killed_process_costs_its_unit_one_try(toys, tmp_path):
    units = [(x, str(tmp_path), 1 if x == 2 else 0) for x in range(5)]
    assert sorted(processes(2, retries=1)(toys.die_at, units)) == [0, 1, 2, 3, 4]


def test_a_unit_that_kills_its_process_every_time_is_lost_alone(toys, tmp_path):
    units = [(x, str(tmp_path), 9 if x == 1 else 0) for x in range(4)]
    found = list(processes(2, retries=1)(toys.die_at, units))
    (lost,) = [result for result in found if isinstance(result, Lost)]
    assert lost.unit == units[1]
    assert "died 2 times" in lost.reason
    assert "-9" in lost.reason
    assert sorted(result for result in found if not isinstance(result, Lost)) == [0, 2, 3]
    assert len(list(tmp_path.glob("1-*"))) == 2


def test_an_error_of_the_function_ends_the_map(toys):
    with pytest.raises(TemperanceError, match="ValueError: bad 3"):
        list(processes(2)(toys.wrong, [3]))


def test_a_process_that_dies_while_it_starts_is_an_error_and_no_failed_unit(toys, monkeypatch):
    """As where a script has no guard around its main part."""
    import multiprocessing.spawn

    monkeypatch.setattr(multiprocessing.spawn, "get_executable", lambda: b"/bin/false")
    with pytest.raises(TemperanceError, match="__main__"):
        list(processes(2)(toys.double, [1, 2, 3]))


@pytest.mark.parametrize("times", [1, 2])
def test_a_process_that_is_killed_while_it_starts_costs_a_try_and_not_the_sweep(
    toys, tmp_path, times
):
    deaths = tmp_path / "deaths"
    deaths.mkdir()
    (found,) = processes(1, retries=1)(toys.KilledAtTheStart(str(deaths), times), [7])
    assert found == 7 if times == 1 else "died 2 times" in found.reason
    assert len(list(deaths.iterdir())) == times


def test_closing_ends_the_workers(toys, tmp_path):
    results = processes(2)(toys.who, range(100))
    pids = {next(results), next(results)}
    results.close()
    assert all(map(gone, pids))


def test_workers_end_with_a_parent_that_is_killed(toys, tmp_path):
    code = f"""
        import mapper_toys
        from temperance.study.mappers import processes
        if __name__ == "__main__":
            units = [(x, {str(tmp_path)!r}) for x in range(2)]
            list(processes(2)(mapper_toys.slow, units))
    """
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(code))
    path = os.pathsep.join(filter(None, [os.path.dirname(toys.__file__), os.getenv("PYTHONPATH")]))
    process = subprocess.Popen([sys.executable, script], env={**os.environ, "PYTHONPATH": path})
    try:
        wait_until(lambda: len(list(tmp_path.glob("pid-*"))) == 2)
        pids = [int(p.name.removeprefix("pid-")) for p in tmp_path.glob("pid-*")]
        process.send_signal(signal.SIGKILL)
        process.wait(60)
        wait_until(lambda: all(map(gone, pids)))
    finally:
        process.kill()
        process.wait()


def test_what_can_be_asked_for():
    for arguments, subject in (({"workers": 0}, "workers"), ({"workers": 2.0}, "workers")):
        with pytest.raises(InvalidInput) as caught:
            processes(**arguments)
        assert caught.value.subject == subject
    with pytest.raises(InvalidInput) as caught:
        processes(2, retries=-1)
    assert caught.value.subject == "retries"


def test_the_map_of_a_pool_is_a_mapper(toys):
    with ThreadPool(2) as pool:
        assert sorted(pool.imap_unordered(toys.double, iter(range(4)))) == [0, 2, 4, 6]
