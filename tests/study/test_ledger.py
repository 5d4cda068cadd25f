"""The ledger: every promise it makes, with the accident that would break it."""

import errno
import json
import os
import pickle
import random
import signal
import subprocess
import sys
import textwrap
import threading
import time
import warnings
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from temperance.errors import InvalidInput, MissingPackage, NotFound, TemperanceWarning
from temperance.records import Task, from_dict
from temperance.study import ledger_lines, ledger_lock, ledger_parquet, ledger_write
from temperance.study.ledger import Ledger, open_ledger, read_rows, read_tasks, row_of, task_key
from temperance.study.ledger_lines import decode, encode, lines_of
from temperance.study.outcome import Outcome
from temperance.study.trial import Trial

TASK = task_key(Trial("digits").task_content)


def trial(i):
    return Trial("digits", temperature=2.5, seed=i)


def row(i, outcome="done", message="", points=3):
    metrics = {"test_nll": 0.1 * i, "test_accuracy": 0.5} if outcome == "done" else {}
    history = {
        "step": tuple(range(points)),
        "train_loss": tuple(1 / (3 + j) for j in range(points)),
    }
    what = Outcome(trial(i), outcome, message, history=history, seconds=1.5, feature_dim=64)
    return row_of(what, metrics, TASK)


def seeds(rows):
    return sorted(r["trial"]["seed"] for r in rows)


def file_of(folder):
    return Path(folder) / "ledger.jsonl"


def size_of(path):
    return path.stat().st_size if path.exists() else 0


def raw_keys(folder):
    """Keys of all lines, each of which must be JSON."""
    return [json.loads(line)["key"] for line in file_of(folder).read_bytes().splitlines()]


PRELUDE = """
import os, sys, time
from temperance.study.ledger import open_ledger, Ledger, row_of, task_key
from temperance.study.outcome import Outcome
from temperance.study.trial import Trial
TASK = task_key(Trial("digits").task_content)
def row(i, points=3):
    losses = tuple(1 / (3 + j) for j in range(points))
    history = {"step": tuple(range(points)), "train_loss": losses}
    what = Outcome(Trial("digits", temperature=2.5, seed=i), "done", history=history,
                   seconds=1.5, feature_dim=64)
    return row_of(what, {"test_nll": 0.1 * i, "test_accuracy": 0.5}, TASK)
folder = sys.argv[1]
"""


def start(code, *arguments):
    return subprocess.Popen(
        [
            sys.executable,
            "-W",
            "ignore",
            "-c",
            PRELUDE + textwrap.dedent(code),
            *map(str, arguments),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def finish(process, code=0):
    out, _ = process.communicate(timeout=120)
    assert process.returncode == code
    return out


# ------------------------------------------------------------------ rows
def test_what_is_appended_is_read_back_exactly(tmp_path):
    ledger = open_ledger(tmp_path / "new" / "folder")
    rows = [row(0), row(1, "diverged", "loss inf in step 3"), row(2, "failed", 'é "x"\n{} \udc80')]
    assert ledger.append(rows) == 3
    assert ledger.rows() == rows == read_rows(file_of(ledger.folder))
    assert ledger.keys() == {trial(0).key, trial(1).key}
    assert ledger.keys(retry_failed=False) == {trial(i).key for i in range(3)}
    assert all(r["history"] == {} for r in read_rows(ledger.folder, history=False))


def test_a_finished_key_is_not_added_again_and_a_failed_one_is_retried(tmp_path):
    ledger = open_ledger(tmp_path)
    assert ledger.append([row(0), row(0), row(1, "failed", "first")]) == 2
    assert ledger.append([row(0, "failed", "late"), row(1, "failed", "second")]) == 1
    assert [r["message"] for r in ledger.rows()] == ["", "second"]
    assert ledger.append([row(1), row(1, "failed", "late")]) == 1
    assert ledger.append([row(1, "diverged")]) == 0
    assert [r["outcome"] for r in ledger.rows()] == ["done", "done"]
    assert len(raw_keys(tmp_path)) == 4
    assert Ledger(tmp_path).keys() == {trial(0).key, trial(1).key}


def test_a_finished_row_beats_a_failed_one_whatever_the_order(tmp_path):
    done, failed = row(0), row(0, "failed", "x")
    lines = [encode(r, "") for r in (failed, done, failed)]
    file_of(tmp_path).write_bytes(b"".join(lines))
    assert read_rows(tmp_path) == [done]
    assert open_ledger(tmp_path).keys() == {done["key"]}
    pytest.importorskip("pyarrow")
    assert read_rows(open_ledger(tmp_path).compact()) == [done]


def test_row_of_gives_plain_values_and_cuts_curves_where_they_end():
    history = {
        "step": np.array([10, 20, 30]),
        "train_loss": (0.5, np.float32(0.25), float("nan")),
        "val_nll": (1.0, 1.0, 1.0),
    }
    what = Outcome(trial(0), "done", history=history, feature_dim=np.int64(8))
    made = row_of(what, {"test_nll": np.float32(0.5)}, TASK)
    assert made["history"] == {
        "step": [10, 20],
        "train_loss": [0.5, 0.25],
        "val_nll": [1.0, 1.0],
    }
    assert set(made["versions"]) == {"temperance", "torch", "numpy", "python"}
    assert json.loads(encode(made, "")) == {**made, "check": json.loads(encode(made, ""))["check"]}


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), np.float64("nan")])
def test_a_metric_that_is_no_number_is_refused_by_name(tmp_path, value):
    with pytest.raises(InvalidInput) as error:
        row_of(Outcome(trial(0), "done"), {"val_nll": 1.0, "test_nll": value}, TASK)
    assert "metrics.test_nll" in error.value.subject
    ledger = open_ledger(tmp_path)
    good = row(1)
    for bad in (
        {**good, "metrics": {"test_nll": value}},
        {**good, "seconds": value},
        {**good, "history": {"train_loss": [0.5, value]}},
    ):
        with pytest.raises(InvalidInput) as error:
            ledger.append([row(2), bad])
        assert any(n in error.value.subject for n in ("test_nll", "seconds", "train_loss[1]"))
    assert not file_of(tmp_path).exists()


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"key": "0" * 20}, "key"),
        ({"schema": 2}, "schema"),
        ({"outcome": "pruned"}, "outcome"),
        ({"outcome": "diverged"}, "metrics"),
        ({"metrics": None}, "metrics"),
        ({"metrics": {"test_nll": "low"}}, "metrics.test_nll"),
        ({"trial": {"dataset": "digits", "widht": 3}}, "trial"),
        ({"feature_dim": True}, "feature_dim"),
        ({"versions": {"torch": object()}}, "versions.torch"),
        ({"message": None}, "message"),
    ],
)
def test_rows_that_nobody_could_use_are_refused(tmp_path, change, named):
    with pytest.raises(InvalidInput) as error:
        open_ledger(tmp_path).append([{**row(0), **change}])
    assert named in error.value.subject


def test_equal_tasks_have_equal_keys():
    content = Trial("digits", features="pca:16").task_content
    assert task_key(content) == task_key(json.loads(json.dumps(content)))
    assert task_key(content) == task_key({"dataset": "digits", "features": "pca:16"})
    others = [
        Trial("digits").task_content,
        Trial("digits", features="pca:16", train_rows=100).task_content,
        Trial("digits", features="pca:16", label_noise=0.1).task_content,
    ]
    assert len({task_key(content), *map(task_key, others)}) == 4
    assert task_key({"dataset": "digits"}) == "8872d00f747970bb02f5"  # for ever


@settings(max_examples=25)
@given(st.text(), st.floats(allow_nan=False, allow_infinity=False))
def test_a_row_is_one_line_whatever_is_in_it(message, figure):
    given_row = {**row(0), "message": message, "metrics": {message: figure}}
    line = encode(given_row, "")
    assert line.count(b"\n") == 1
    assert line.endswith(b"\n")
    assert decode(line[:-1], "") == given_row
    for at in range(0, len(line) - 22, 37):  # no changed byte goes unseen
        changed = line[:at] + bytes([line[at] ^ 1]) + line[at + 1 : -1]
        assert decode(changed, "") is None


# ------------------------------------------------------------------ tasks
def test_a_task_is_kept_once_and_a_later_record_replaces_it(tmp_path):
    ledger = open_ledger(tmp_path)
    assert ledger.tasks() == {}
    content = Trial("digits").task_content
    task = Task(feature_dim=64, n_classes=10, n_samples=900, statistics={"csg": 0.5})
    key = ledger.append_task(content, task)
    assert ledger.append_task(content, task) == key == TASK
    assert len((tmp_path / "tasks.jsonl").read_bytes().splitlines()) == 1
    more = Task(feature_dim=64, n_classes=10, n_samples=900, statistics={"csg": float("nan")})
    ledger.append_task(content, more)
    ledger.append_task(Trial("fashion-mnist").task_content, task)
    found = read_tasks(tmp_path)
    assert len(found) == 2
    assert found[key]["content"] == content
    assert found[key]["feature_dim"] == 64
    assert np.isnan(from_dict(found[key]["task"], Task).statistics["csg"].value)


def test_a_torn_task_is_healed(tmp_path):
    ledger = open_ledger(tmp_path)
    task = Task(feature_dim=64, n_classes=10)
    path = tmp_path / "tasks.jsonl"
    ledger.append_task({"dataset": "a"}, task)
    ledger.append_task({"dataset": "b"}, task)
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.warns(TemperanceWarning, match="unfinished"):
        assert len(read_tasks(path)) == 1
    with pytest.warns(TemperanceWarning, match="unfinished"):
        ledger.append_task({"dataset": "b"}, task)
    assert len(ledger.tasks()) == 2


# ------------------------------------------------------------------ a torn last line
def test_a_last_line_torn_anywhere_costs_only_itself(tmp_path):
    open_ledger(tmp_path).append([row(0), row(1)])
    before = file_of(tmp_path).read_bytes()
    line = encode(row(2), "")
    for cut in (*range(1, len(line) - 3, 13), *range(len(line) - 3, len(line))):
        file_of(tmp_path).write_bytes(before + line[:cut])
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            found = seeds(read_rows(tmp_path))
            ledger = open_ledger(tmp_path)
            added = ledger.append([row(2), row(3)])
        whole = cut == len(line) - 1  # only its end is missing: that is a row
        assert found == ([0, 1, 2] if whole else [0, 1])
        assert added == (1 if whole else 2)
        assert len(caught) == (0 if whole else 2)
        assert all("line 3" in str(w.message) for w in caught)
        kept = file_of(tmp_path).read_bytes().splitlines()
        assert [json.loads(x)["trial"]["seed"] for x in kept] == [0, 1, 2, 3]


def test_zeros_that_a_power_cut_leaves_are_no_row(tmp_path):
    open_ledger(tmp_path).append([row(0)])
    with file_of(tmp_path).open("ab") as file:
        file.write(bytes(4096))
    with pytest.warns(TemperanceWarning, match="line 2 is unfinished"):
        ledger = open_ledger(tmp_path)
    assert ledger.append([row(1)]) == 1
    assert seeds(ledger.rows()) == [0, 1]
    assert b"\0" not in file_of(tmp_path).read_bytes()


def test_a_reader_sees_no_torn_line_while_another_process_writes(tmp_path):
    code = """
    ledger = open_ledger(folder)
    for i in range(40):
        ledger.append([row(i, points=10_000)])
    """
    open_ledger(tmp_path).append([row(1000)])
    process = start(code, tmp_path)
    last = 0
    while process.poll() is None:  # warnings are errors here
        found = len(read_rows(tmp_path, history=False))
        assert found >= last
        last = found
    finish(process)
    assert len(read_rows(tmp_path)) == 41


# ------------------------------------------------------------------ damage
def test_a_damaged_line_is_reported_by_number_and_its_trial_is_missing(tmp_path):
    ledger = open_ledger(tmp_path)
    ledger.append([row(i) for i in range(5)])
    lines = file_of(tmp_path).read_bytes().splitlines(keepends=True)
    lines[1] = b"\x00\xff garbage \n"
    lines[3] = lines[3].replace(b'"test_accuracy":0.5', b'"test_accuracy":0.9')  # still JSON
    file_of(tmp_path).write_bytes(b"".join(lines) + b"\n" + b"[1]\n")
    with pytest.warns(TemperanceWarning, match=r"3 damaged line\(s\).*: 2, 4, 7\. "):
        assert seeds(read_rows(tmp_path)) == [0, 2, 4]
    with pytest.warns(TemperanceWarning, match="2, 4, 7"):
        ledger = open_ledger(tmp_path)
    assert ledger.keys() == {trial(i).key for i in (0, 2, 4)}
    assert ledger.append([row(i) for i in range(5)]) == 2


def test_damaged_lines_outlive_a_compaction(tmp_path):
    pytest.importorskip("pyarrow")
    ledger = open_ledger(tmp_path)
    ledger.append([row(0)])
    with file_of(tmp_path).open("ab") as file:
        file.write(b"garbage\n")
    with pytest.warns(TemperanceWarning, match="damaged"):
        ledger.compact()
    assert file_of(tmp_path).read_bytes() == b"garbage\n"


def test_lines_of_other_programs_are_read(tmp_path):
    given = row(0)
    other = {name: given[name] for name in sorted(given, reverse=True)}
    file_of(tmp_path).write_text(json.dumps(other, indent=None) + "\r\n\n")
    assert read_rows(tmp_path) == [given]
    assert open_ledger(tmp_path).keys() == {given["key"]}
    assert open_ledger(tmp_path).append([given]) == 0


@pytest.mark.parametrize("version", [0, 2, "1", None])
def test_another_schema_version_is_refused_with_its_place(tmp_path, version):
    strange = encode({**row(1), "schema": version}, "")
    file_of(tmp_path).write_bytes(encode(row(0), "") + strange)
    for call in (open_ledger, read_rows):
        with pytest.raises(InvalidInput) as error:
            call(tmp_path)
        assert error.value.subject == f"{file_of(tmp_path)} line 2"
        assert error.value.found == f"version {version!r}"


def test_a_later_field_is_no_damage(tmp_path):
    file_of(tmp_path).write_bytes(encode({**row(0), "host": "a"}, ""))
    assert open_ledger(tmp_path).keys() == {trial(0).key}


# ------------------------------------------------------------------ two processes at once
def test_two_processes_append_at_once_and_nothing_is_lost_or_twice(tmp_path):
    code = """
    import random
    seeds = list(range(120)); random.Random(int(sys.argv[2])).shuffle(seeds)
    ledger, rng, added = open_ledger(folder), random.Random(0), 0
    sys.stdin.readline()
    while seeds:
        part = [seeds.pop() for _ in range(min(len(seeds), rng.randint(1, 5)))]
        added += ledger.append([row(i, points=rng.choice([3, 3000])) for i in part])
    print(added)
    """
    workers = [start(code, tmp_path, n) for n in range(2)]
    for worker in workers:
        worker.stdin.write("go\n")
        worker.stdin.flush()
    added = [int(finish(worker)) for worker in workers]
    assert sum(added) == 120
    assert all(added)
    assert len(raw_keys(tmp_path)) == 120
    assert seeds(read_rows(tmp_path)) == list(range(120))


def test_two_threads_append_at_once(tmp_path):
    ledger, added = open_ledger(tmp_path), []

    def work():
        added.extend(ledger.append([row(i), row(i + 1), row(i + 2)]) for i in range(0, 60, 3))

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(added) == 60 == len(raw_keys(tmp_path))


def test_a_lock_that_nobody_gives_back_ends_in_a_sentence(tmp_path, monkeypatch):
    code = """
    from pathlib import Path
    from temperance.study.ledger_lock import exclusive
    with exclusive(Path(folder)):
        print("held", flush=True)
        sys.stdin.readline()
    """
    process = start(code, tmp_path)
    assert process.stdout.readline() == "held\n"
    with (
        pytest.raises(InvalidInput, match=r"ledger\.lock"),
        ledger_lock.exclusive(tmp_path, patience=0.05),
    ):
        pass
    process.kill()
    process.communicate()
    with ledger_lock.exclusive(tmp_path, patience=10) as locked:
        assert locked


def test_a_file_system_without_locks_is_named_and_used_all_the_same(tmp_path, monkeypatch):
    def no_locks(handle, place):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(ledger_lock, "_lock_byte", no_locks)
    with pytest.warns(TemperanceWarning, match="has no locks"):
        ledger = open_ledger(tmp_path)
    assert ledger.append([row(0)]) == 1
    assert ledger.claim("a")
    with file_of(tmp_path).open("ab") as file:
        file.write(b'{"schema":1,"ke')
    with (
        pytest.warns(TemperanceWarning, match="unfinished"),
        pytest.warns(TemperanceWarning, match="1 damaged"),
    ):
        assert ledger.append([row(0), row(1)]) == 1
    with pytest.warns(TemperanceWarning, match="1 damaged"):
        assert seeds(read_rows(tmp_path)) == [0, 1]  # the piece was ended, not cut off
    pytest.importorskip("pyarrow")
    with pytest.raises(InvalidInput, match="locks"):
        ledger.compact()


def test_a_ledger_can_be_sent_to_another_process(tmp_path):
    ledger = open_ledger(tmp_path)
    ledger.append([row(0)])
    assert pickle.loads(pickle.dumps(ledger)).keys() == ledger.keys()


# ------------------------------------------------------------------ a full disk
def test_a_full_disk_is_an_error_and_room_is_all_that_is_needed(tmp_path, monkeypatch):
    ledger = open_ledger(tmp_path)
    ledger.append([row(0)])
    before = file_of(tmp_path).read_bytes()
    real = os.write

    def full(handle, content):
        if len(content) > 100:
            return real(handle, content[:100])
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(ledger_write.os, "write", full)
        with pytest.raises(InvalidInput) as error:
            ledger.append([row(1), row(2)])
    assert error.value.expected == "room on the disk"
    assert error.value.found == "No space left on device"
    assert file_of(tmp_path).read_bytes() == before
    assert ledger.append([row(1), row(2)]) == 2
    assert seeds(ledger.rows()) == [0, 1, 2]


def test_a_torn_piece_that_cannot_be_taken_back_is_healed_later(tmp_path, monkeypatch):
    ledger = open_ledger(tmp_path)
    ledger.append([row(0)])
    real, calls = os.write, []

    def full(handle, content):
        calls.append(1)
        if len(calls) == 1:
            return real(handle, content[:150])
        raise OSError(errno.ENOSPC, "No space left on device")

    def no_cut(handle, size):
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(ledger_write.os, "write", full)
        patch.setattr(ledger_write.os, "ftruncate", no_cut)
        with pytest.raises(InvalidInput, match="No space left"):
            ledger.append([row(1)])
    with pytest.warns(TemperanceWarning, match="unfinished"):
        assert ledger.append([row(1)]) == 1
    assert len(raw_keys(tmp_path)) == 2


@pytest.mark.skipif(sys.platform == "win32", reason="no limits on file size")
def test_a_real_limit_of_the_system_is_survived(tmp_path):
    code = """
    import resource
    from temperance.errors import InvalidInput
    ledger, kept = open_ledger(folder), 0
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, resource.RLIM_INFINITY))
    try:
        while True:
            kept += ledger.append([row(kept), row(kept + 1)])
    except InvalidInput as error:
        assert error.expected == "room on the disk", error
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    print(kept, ledger.append([row(kept), row(kept + 1)]))
    """
    kept, more = map(int, finish(start(code, tmp_path)).split())
    assert kept > 2
    assert more == 2
    assert seeds(read_rows(tmp_path)) == list(range(kept + 2))


def _can_mount():
    try:
        return subprocess.run(["unshare", "-rm", "true"], capture_output=True).returncode == 0
    except OSError:
        return False


@pytest.mark.skipif(not _can_mount(), reason="no own mounts for this user")
def test_a_real_full_disk_is_survived(tmp_path):
    code = PRELUDE + textwrap.dedent("""
    from pathlib import Path
    from temperance.errors import InvalidInput
    from temperance.study.ledger import read_rows
    filler = Path(folder, "filler"); filler.write_bytes(bytes(150_000))
    ledger, kept = open_ledger(folder), 0
    try:
        while True:
            kept += ledger.append([row(kept), row(kept + 1)])
    except InvalidInput as error:
        assert error.expected == "room on the disk", error
    assert len(read_rows(folder)) == kept > 2
    try:
        import pyarrow
    except ImportError:
        pass
    else:
        try:
            ledger.compact()
            raise SystemExit("there was room for the table")
        except InvalidInput as error:
            assert error.expected == "room on the disk", error
        assert not list(Path(folder).glob("*parquet*")), os.listdir(folder)
        assert len(read_rows(folder)) == kept
    filler.unlink()
    assert ledger.append([row(kept), row(kept + 1)]) == 2
    assert len(read_rows(folder)) == kept + 2
    print("fine")
    """)
    shell = 'mount -t tmpfs -o size=200k none "$1" && exec "$2" -W error -c "$3" "$1"'
    done = subprocess.run(
        ["unshare", "-rm", "sh", "-c", shell, "sh", tmp_path, sys.executable, code],
        capture_output=True,
        text=True,
    )
    if "mount:" in done.stderr:
        pytest.skip("no own mounts for this user")
    assert done.stdout == "fine\n", done.stderr


def test_a_full_disk_in_a_compaction_changes_nothing(tmp_path, monkeypatch):
    pytest.importorskip("pyarrow")
    ledger = open_ledger(tmp_path)
    ledger.append([row(i) for i in range(3)])
    before = file_of(tmp_path).read_bytes()

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    for place, name in ((ledger_parquet, "_write"), (ledger_parquet.os, "fsync")):
        with monkeypatch.context() as patch:
            patch.setattr(place, name, full)
            with pytest.raises(InvalidInput, match="room on the disk"):
                ledger.compact()
        assert file_of(tmp_path).read_bytes() == before
        assert sorted(p.name for p in tmp_path.iterdir()) == ["ledger.jsonl", "ledger.lock"]


# ------------------------------------------------------------------ kill -9
@pytest.mark.skipif(sys.platform == "win32", reason="no kill -9")
@pytest.mark.parametrize("compacting", [False, True])
def test_kill_at_any_moment_loses_nothing_and_doubles_nothing(tmp_path, compacting):
    if compacting:
        pytest.importorskip("pyarrow")
    code = """
    compacting = sys.argv[2] == "True"
    ledger = open_ledger(folder)
    todo = [i for i in range(90) if row(i)["key"] not in ledger.keys()]
    if compacting:
        ledger.compact()
    print("todo", flush=True)
    for at in range(0, len(todo), 3):
        part = todo[at : at + 3]
        ledger.append([row(i, points=4000) for i in part])
        print(*part, flush=True)
        if compacting and at % 24 == 0:
            ledger.compact()
    """
    rng, promised, kills = random.Random(0), set(), 0
    for _ in range(100):
        process = start(code, tmp_path, compacting)
        lines = [process.stdout.readline()]
        if kills < 4:
            lines += [process.stdout.readline() for _ in range(rng.randint(0, 4))]
            if kills % 2:
                time.sleep(rng.uniform(0, 0.02))
            else:  # in the middle of a write, most of the time
                size = size_of(file_of(tmp_path))
                while process.poll() is None and size_of(file_of(tmp_path)) <= size:
                    pass
            process.kill()
        lines += process.stdout.readlines()
        process.communicate(timeout=120)
        promised |= {int(i) for text in lines[1:] if text.endswith("\n") for i in text.split()}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", TemperanceWarning)  # a torn line is to be expected
            assert promised <= set(seeds(read_rows(tmp_path)))
        if process.returncode == 0:
            break
        kills += 1
    assert kills == 4
    assert seeds(read_rows(tmp_path)) == list(range(90))
    assert compacting or len(raw_keys(tmp_path)) == 90


def test_an_interrupt_in_the_middle_of_a_write_leaves_no_piece(tmp_path, monkeypatch):
    ledger = open_ledger(tmp_path)
    ledger.append([row(0)])
    before = file_of(tmp_path).read_bytes()
    real = os.write

    def interrupted(handle, content):
        real(handle, content[:100])
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(ledger_write.os, "write", interrupted)
        with pytest.raises(KeyboardInterrupt):
            ledger.append([row(1)])
    assert file_of(tmp_path).read_bytes() == before
    assert ledger.append([row(1)]) == 1


# ------------------------------------------------------------------ compaction
@pytest.fixture
def filled(tmp_path):
    pytest.importorskip("pyarrow")
    ledger = open_ledger(tmp_path)
    ledger.append([row(0), row(1, "failed", "x"), row(2, "diverged", "y")])
    return ledger


def test_a_compaction_keeps_every_row_and_goes_on(filled):
    rows = filled.rows()
    assert filled.compact() == filled.folder / "ledger.parquet"
    assert file_of(filled.folder).read_bytes() == b""
    assert filled.rows() == rows == read_rows(filled.folder / "ledger.parquet")
    assert filled.append([row(0), row(1), row(3)]) == 2
    assert Ledger(filled.folder).keys() == {trial(i).key for i in range(4)}
    rows = filled.rows()
    filled.compact()
    filled.compact()
    assert filled.rows() == rows
    assert [r["outcome"] for r in rows] == ["done", "diverged", "done", "done"]


def test_the_table_can_be_read_by_others(filled):
    from pyarrow import parquet

    table = parquet.read_table(filled.compact())
    assert table.column("trial.temperature").to_pylist() == [2.5] * 3
    assert table.column("trial.train_rows").to_pylist() == [None] * 3
    assert table.column("metrics.test_accuracy").to_pylist() == [0.5, None, None]
    assert table.column("outcome").to_pylist() == ["done", "failed", "diverged"]


@pytest.mark.parametrize(
    "stop",
    [
        "ledger_parquet.table_lines = lambda *_: os._exit(9)",  # before the rename
        "os.replace = lambda *_: os._exit(9)",
        "ledger.sync_folder = lambda *_: os._exit(9)",  # after the rename
        "ledger.write_bytes = lambda *_: os._exit(9)",
    ],
)
def test_a_compaction_that_is_killed_leaves_old_or_new(filled, stop):
    rows = filled.rows()
    code = f"""
    from temperance.study import ledger, ledger_parquet
    opened = open_ledger(folder)
    {stop}
    opened.compact()
    """
    for _ in range(2):
        finish(start(code, filled.folder), 9)
        assert read_rows(filled.folder) == rows
    assert filled.append([row(0), row(3)]) == 1
    filled.compact()
    assert filled.rows()[:3] == rows
    assert seeds(filled.rows()) == [0, 1, 2, 3]
    assert len(read_rows(filled.folder / "ledger.parquet")) == 4
    assert {p.name for p in filled.folder.iterdir()} == {
        "ledger.jsonl",
        "ledger.lock",
        "ledger.parquet",
    }


def test_compactions_while_another_process_appends(tmp_path):
    pytest.importorskip("pyarrow")
    code = """
    ledger = open_ledger(folder)
    print(sum(ledger.append([row(i), row(max(0, i - 20))]) for i in range(60)))
    """
    ledger = open_ledger(tmp_path)
    process, compactions, last = start(code, tmp_path), 0, 0
    while process.poll() is None:
        ledger.compact()
        compactions += 1
        found = len(read_rows(tmp_path))
        assert found >= last
        last = found
    assert int(finish(process)) == 60
    assert compactions > 1
    assert seeds(ledger.rows()) == list(range(60))
    assert len(ledger.keys()) == 60


def test_a_damaged_or_foreign_table_is_refused(filled):
    import pyarrow as pa
    from pyarrow import parquet

    rows, keys, path = filled.rows(), filled.keys(), filled.compact()
    whole = path.read_bytes()
    for damaged in (whole[:-20], b"", b"PAR1"):
        path.write_bytes(damaged)
        with pytest.raises(InvalidInput, match=r"ledger\.parquet"):
            read_rows(filled.folder)
    refused = 0
    for at in range(0, len(whole) - 40, 41):  # damage is seen or does not matter
        path.write_bytes(whole[:at] + bytes(40) + whole[at + 40 :])
        try:
            assert read_rows(filled.folder) == rows
            assert Ledger(filled.folder).keys() == keys
        except InvalidInput:
            refused += 1
    assert refused > 5
    parquet.write_table(pa.table({"a": [1]}), path)
    with pytest.raises(InvalidInput, match="no ledger"):
        open_ledger(filled.folder)
    table = parquet.read_table(pa.BufferReader(whole))
    meta = {b"temperance.ledger.schema": b"2"}
    parquet.write_table(table.replace_schema_metadata(meta), path)
    with pytest.raises(InvalidInput, match="version 2"):
        read_rows(filled.folder)


def test_a_table_without_pyarrow_says_what_to_install(filled, monkeypatch):
    filled.compact()
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingPackage) as error:
        read_rows(filled.folder)
    assert error.value.extra == "parquet"
    with pytest.raises(MissingPackage):
        filled.compact()


# ------------------------------------------------------------------ where it cannot be
def test_a_folder_that_is_a_file_is_refused(tmp_path):
    (tmp_path / "file").write_text("x")
    for name in ("file", "file/inside"):
        with pytest.raises(InvalidInput, match="folder"):
            open_ledger(tmp_path / name)


def test_places_without_a_ledger_are_named(tmp_path):
    for place in (tmp_path, tmp_path / "ledger.jsonl", tmp_path / "none"):
        with pytest.raises(NotFound):
            read_rows(place)
    (tmp_path / "a.csv").write_text("x")
    with pytest.raises(InvalidInput, match=r"\.csv"):
        read_rows(tmp_path / "a.csv")
    (tmp_path / "b.jsonl").mkdir()
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "ledger.jsonl").mkdir()
    for call in (read_rows, open_ledger):
        with pytest.raises(InvalidInput) as error:
            call(tmp_path / "c")
        assert error.value.found == "Is a directory"
    with pytest.raises(InvalidInput, match=r"ledger\.lock"):
        Ledger(tmp_path / "none").append([row(0)])


def test_what_may_not_be_written_is_an_error_and_can_be_read(tmp_path, monkeypatch):
    open_ledger(tmp_path).append([row(0)])
    ledger = open_ledger(tmp_path)
    real = os.open

    def denied(path, flags, *rest):
        if flags & (os.O_RDWR | os.O_WRONLY):
            raise PermissionError(errno.EROFS, "Read-only file system")
        return real(path, flags, *rest)

    monkeypatch.setattr(os, "open", denied)
    with pytest.raises(InvalidInput) as error:
        ledger.append([row(1)])
    assert error.value.found == "Read-only file system"
    assert error.value.expected == "a file that can be read and written"
    monkeypatch.setattr(ledger_lock, "_DOORS", {})
    assert len(read_rows(tmp_path)) == 1
    assert Ledger(tmp_path).keys() == {trial(0).key}


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may do all")
def test_a_read_only_folder_is_refused(tmp_path):
    tmp_path.chmod(0o555)
    try:
        with pytest.raises(InvalidInput, match="folder"):
            open_ledger(tmp_path)
    finally:
        tmp_path.chmod(0o755)


# ------------------------------------------------------------------ claims
HOLDER = """
ledger = open_ledger(folder)
print(*(ledger.claim(unit) for unit in sys.argv[2:]), flush=True)
sys.stdin.readline()
"""


def test_a_claim_keeps_another_process_out_and_ends_with_its_owner(tmp_path):
    ledger = open_ledger(tmp_path)
    assert ledger.claim("mine")
    process = start(HOLDER, tmp_path, "theirs", "mine", "both")
    assert process.stdout.readline() == "True False True\n"
    assert not ledger.claim("theirs")
    with ledger.claimed("both") as ours:
        assert not ours
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert ledger.claim("theirs")
    with ledger.claimed("both") as ours:
        assert ours
    ledger.release("mine")
    ledger.release("never held")
    process = start(HOLDER, tmp_path, "theirs", "mine", "both")
    assert process.stdout.readline() == "False True True\n"
    finish(process)
    ledger.release("theirs")


def test_a_claim_is_one_also_within_a_process_and_is_given_back_after_an_error(tmp_path):
    one, two = open_ledger(tmp_path), open_ledger(tmp_path)
    assert one.claim("a")
    assert not two.claim("a")
    two.release("a")
    with pytest.raises(RuntimeError), two.claimed("a"):
        raise RuntimeError
    assert one.claim("a")
    one.append([row(0)])  # writing gives up no claim
    one.keys()
    process = start(HOLDER, tmp_path, "a")
    assert process.stdout.readline() == "False\n"
    finish(process)
    one.release("a")


def test_thousands_of_claims_need_one_open_file(tmp_path):
    ledger = open_ledger(tmp_path)
    units = [f"train {i}" for i in range(2500)]  # more than a process may have files
    assert all(map(ledger.claim, units))
    assert not any(map(ledger.claim, units))
    process = start(HOLDER, tmp_path, units[0], units[-1], "other")
    assert process.stdout.readline() == "False False True\n"
    finish(process)
    for unit in units:
        ledger.release(unit)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_forked_child_neither_has_nor_keeps_a_claim(tmp_path):
    code = """
    import warnings; warnings.simplefilter("ignore")
    ledger = open_ledger(folder)
    assert ledger.claim("a")
    child = os.fork()
    if child == 0:
        print("child", ledger.claim("a"), ledger.claim("b"), ledger.append([row(0)]), flush=True)
        os.close(1)
        time.sleep(60)
        os._exit(0)
    sys.stdin.readline()
    print("parent", ledger.claim("b"), ledger.append([row(0)]), child, flush=True)
    os.kill(os.getpid(), 9)
    """
    process = start(code, tmp_path)
    assert process.stdout.readline() == "child False True 1\n"
    process.stdin.write("go\n")
    process.stdin.flush()
    *said, child = process.stdout.readline().split()
    assert said == ["parent", "False", "0"]
    process.communicate()
    try:
        assert open_ledger(tmp_path).claim("a")  # the child still lives
    finally:
        os.kill(int(child), signal.SIGKILL)


def test_claims_of_a_folder_that_is_made_anew_count_again(tmp_path):
    folder = tmp_path / "out"
    ledger = open_ledger(folder)
    assert ledger.claim("a")
    ledger.release("a")
    for path in folder.iterdir():
        path.unlink()
    folder.rmdir()
    again = open_ledger(folder)
    again.append([row(0)])
    assert again.claim("a")
    process = start(HOLDER, folder, "a")
    assert process.stdout.readline() == "False\n"
    finish(process)


# ------------------------------------------------------------------ speed, without a clock
def test_a_resume_parses_nothing_of_our_own_lines(tmp_path, monkeypatch):
    ledger = open_ledger(tmp_path)
    ledger.append([row(i) for i in range(20)])

    def parsed(*_):
        raise AssertionError("a whole line was parsed")

    monkeypatch.setattr(ledger_lines, "_parsed", parsed)
    again = Ledger(tmp_path)
    assert len(again.keys()) == 20
    assert again.append([row(3)]) == 0
    assert [line.number for line in lines_of(file_of(tmp_path))] == list(range(1, 21))
