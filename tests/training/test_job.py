"""The main job as a whole: its outputs, resuming, what it refuses, and prediction."""

import json
import multiprocessing.spawn
import os
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from sklearn.datasets import load_digits

from temperance.errors import InvalidInput, NotFound, TemperanceError, TemperanceWarning
from temperance.records import Run, loads
from temperance.training import runs as runs_module
from temperance.training.bundle import load_bundle
from temperance.training.job import run_job
from temperance.training.loop import Budget
from temperance.training.plan import Plan, Progress
from temperance.training.predict import predict
from temperance.training.prepare import prepare

ARMS = ("plain", "ln", "bn:T=sqrt", "bn:T=suggested")
PLAN = Plan(
    source="digits",
    model="mlp",
    feature_dim=32,
    arms=ARMS,
    seeds=2,
    train_rows=300,
    budget=Budget(epochs=3, batch_size=32),
)


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """One finished job; tests that change it take a copy."""
    folder = tmp_path_factory.mktemp("job") / "out"
    with torch.random.fork_rng(devices=[]):
        comparison = run_job(PLAN, folder)
    return folder, comparison


def test_the_folder_holds_what_was_promised(done):
    folder, comparison = done
    names = {p.name for p in folder.iterdir()}
    assert names == {
        "config.json", "model.safetensors", "plan.json", "plots", "report.html",
        "report.json", "runs",
    }  # fmt: skip
    assert {p.stem for p in (folder / "plots").iterdir()} == {
        "differences", "eigenvalues", "learning_curves", "reliability",
    }  # fmt: skip
    assert all(p.read_bytes().startswith(b"\x89PNG") for p in (folder / "plots").iterdir())
    kept = sorted(p.name for p in (folder / "runs").iterdir())
    assert len(kept) == 2 * len(ARMS) * 2
    assert not any("weights" in name for name in kept)
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert "http" not in page.replace("http-equiv", "").replace("http://www.w3.org", "")
    for arm in comparison.arms:
        assert arm.title in page
    assert "What to do next" in page


def test_report_json_is_the_comparison(done):
    folder, comparison = done
    report = json.loads((folder / "report.json").read_text(encoding="utf-8"))
    assert [a["arm"]["name"] for a in report["arms"]] == list(ARMS)
    assert report["data"]["rows"]["train"] == 300
    assert len(report["runs"]) == 8
    assert report["suggestion"]["temperature"] == comparison.suggestion.temperature
    assert report["task"]["feature_dim"] == 32
    assert report["arms"][2]["arm"]["temperature"] == pytest.approx(32**0.5)


def test_figures_agree_with_the_kept_logits(done):
    """The table against a plain computation from the logits that were kept."""
    folder, comparison = done
    rows = {}
    for arm in ("plain", "bn-T-sqrt"):
        for seed in range(2):
            stem = folder / "runs" / f"{arm}-seed{seed}"
            logits = load_file(f"{stem}.logits.safetensors")["test"].double()
            run = loads((folder / "runs" / f"{arm}-seed{seed}.json").read_text(), Run)
            labels = _test_labels(len(logits))
            nll = torch.nn.functional.cross_entropy(logits, labels).item()
            hits = (logits.argmax(1) == labels).double().mean().item()
            assert run.report.metrics["nll"].value == pytest.approx(nll)
            assert run.report.metrics["accuracy"].value == pytest.approx(hits)
            rows.setdefault(arm, []).append((hits, nll))
    means = {arm: np.mean(values, axis=0) for arm, values in rows.items()}
    plain, sqrt = comparison.arms[0], comparison.arms[2]
    assert plain.metrics["accuracy"].value == pytest.approx(means["plain"][0])
    assert sqrt.differences["nll"].value == pytest.approx(means["bn-T-sqrt"][1] - means["plain"][1])


def _test_labels(n):
    from temperance.training.sources import open_data
    from temperance.training.splits import make_splits, select

    data = open_data("digits")
    part = select(data, make_splits(data, seed=0, train_rows=300).test)
    assert len(part) == n
    return torch.from_numpy(part.y)


def test_the_choice_goes_by_the_fit_rows_and_folds(done):
    folder, comparison = done
    foldable = [a for a in comparison.arms if a.arm.norm != "layer"]
    best = min(foldable, key=lambda a: a.held_out_nll)
    assert comparison.choice.arm == best.arm.name
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    assert config["temperature"]["folded"]
    assert config["temperature"]["fold_error"] < 1e-5
    assert not any(
        "norm" in k or "temperature" in k for k in load_file(folder / "model.safetensors")
    )


def test_prediction_is_the_run_that_was_chosen(done, tmp_path):
    folder, comparison = done
    digits = load_digits()
    np.savez(tmp_path / "x.npz", x=digits.images)
    predictions = list(predict(folder, [tmp_path / "x.npz"], top=10))
    hits = np.mean([int(p.label) == y for p, y in zip(predictions, digits.target, strict=True)])
    assert hits > 0.8
    one = predictions[0]
    assert one.input.endswith("x.npz:0")
    assert sum(p for _, p in one.top) == pytest.approx(1.0)
    assert one.probability == one.top[0][1] == max(p for _, p in one.top)
    bundle = load_bundle(folder)
    arm, seed = comparison.choice.arm, comparison.choice.seed
    stem = runs_module.key_of(next(a.arm for a in comparison.arms if a.arm.name == arm), seed)
    logits = load_file(folder / "runs" / f"{stem}.logits.safetensors")["test"]
    rows = _test_rows()
    with torch.no_grad():
        again = bundle.model(bundle.preprocess.apply(rows))
    torch.testing.assert_close(again, logits, rtol=1e-4, atol=1e-4)


def _test_rows():
    from temperance.training.sources import open_data
    from temperance.training.splits import make_splits, select

    data = open_data("digits")
    return select(data, make_splits(data, seed=0, train_rows=300).test).x


# ------------------------------------------------------------------ stopping and going on
def test_a_finished_or_foreign_folder_is_not_overwritten(done, tmp_path):
    folder = shutil.copytree(done[0], tmp_path / "copy")
    with pytest.raises(InvalidInput) as caught:
        run_job(PLAN, folder)
    assert "--resume" in caught.value.fix
    with pytest.raises(InvalidInput) as caught:
        run_job(replace(PLAN, seeds=3), folder, resume=True)
    assert caught.value.found == "seeds = 3"


@pytest.mark.parametrize("lost", ["config.json", "report.html", "model.safetensors"])
def test_resuming_a_finished_job_repairs_what_was_lost(done, tmp_path, lost):
    folder = shutil.copytree(done[0], tmp_path / "copy")
    before = load_file(folder / "model.safetensors")
    (folder / lost).unlink()
    comparison = run_job(PLAN, folder, resume=True)
    assert comparison.choice == done[1].choice
    torch.testing.assert_close(load_file(folder / "model.safetensors"), before, rtol=0, atol=0)
    load_bundle(folder)
    assert (folder / "report.html").exists()


def test_workers_and_device_may_change_on_the_way(done, tmp_path):
    folder = shutil.copytree(done[0], tmp_path / "copy")
    assert run_job(replace(PLAN, workers=3), folder, resume=True).choice == done[1].choice


def test_other_weights_under_the_same_plan_are_refused(tmp_path):
    pytest.importorskip("timm")
    import timm

    with torch.random.fork_rng(devices=[]):
        net = timm.create_model("test_resnet", pretrained=False)
    file = tmp_path / "w.safetensors"
    save_file(net.state_dict(), file)
    x = load_digits().images
    np.savez(tmp_path / "x.npz", x=x[:60].astype(np.uint8), y=load_digits().target[:60])
    plan = replace(
        PLAN, source=str(tmp_path / "x.npz"), model="timm:test_resnet", feature_dim=None,
        weights=str(file), train_rows=None, image_size=32, arms=("plain",), seeds=1,
        budget=Budget(epochs=1, batch_size=16),
    )  # fmt: skip
    folder = tmp_path / "out"
    run_job(plan, folder)
    assert load_bundle(folder).preprocess.shape == (3, 32, 32)  # gray pictures, a net for colour
    first = net.state_dict()
    save_file({k: v + 1 if v.is_floating_point() else v for k, v in first.items()}, file)
    with pytest.raises(InvalidInput) as caught:
        run_job(plan, folder, resume=True)
    assert caught.value.subject == f"weights {file}"


def test_another_width_than_the_advertised_one_is_told(tmp_path):
    pytest.importorskip("timm")
    x = load_digits().images
    np.savez(tmp_path / "x.npz", x=x[:200].astype(np.uint8), y=load_digits().target[:200])
    plan = replace(
        PLAN, source=str(tmp_path / "x.npz"), model="timm:mobilenetv3_small_050", feature_dim=None,
        train_rows=None, image_size=32, arms=("plain",), budget=Budget(epochs=1, batch_size=16),
    )  # fmt: skip
    prepared = prepare(plan)
    assert prepared.task.feature_dim == 1024
    assert any("advertises num_features = 288" in notice for notice in prepared.notices)


@pytest.mark.parametrize("where", ["full", "inside"])
def test_files_of_others_are_not_touched(tmp_path, where):
    data = tmp_path / "data"
    data.mkdir()
    x, y = load_digits(return_X_y=True)
    np.savez(data / "x.npz", x=x[:99].astype(np.float32), y=y[:99])
    folder = tmp_path / "own" if where == "full" else data / "runs"
    plan = PLAN if where == "full" else replace(PLAN, source=str(data))
    if where == "full":
        (folder / "state").mkdir(parents=True)
        (folder / "state" / "notes.txt").write_text("mine")
        (folder / "model.safetensors").write_bytes(b"mine")
    with pytest.raises(InvalidInput) as caught:
        run_job(plan, folder)
    assert "output folder" in caught.value.subject
    if where == "full":
        assert (folder / "model.safetensors").read_bytes() == b"mine"
        assert (folder / "state" / "notes.txt").read_text() == "mine"


def test_copies_of_training_rows_among_the_held_out_are_named(tmp_path):
    x, y = load_digits(return_X_y=True)
    x = np.concatenate([x[:100]] * 3).astype(np.float32)
    np.savez(tmp_path / "x.npz", x=x, y=np.concatenate([y[:100]] * 3))
    plan = replace(PLAN, source=str(tmp_path / "x.npz"), train_rows=None, arms=("plain",), seeds=1)
    with pytest.warns(TemperanceWarning, match="copies of training rows"):
        comparison = run_job(plan, tmp_path / "out")
    assert any("test rows are copies of training rows" in n for n in comparison.notices)


def test_a_foreign_plan(tmp_path):
    folder = tmp_path / "out"
    folder.mkdir()
    for content in ("[]", "{", '{"plan": 1}'):
        (folder / "plan.json").write_text(content)
        with pytest.raises(InvalidInput) as caught:
            run_job(PLAN, folder, resume=True)
        assert "plan.json" in caught.value.subject


def test_names_of_arms_make_names_of_files(tmp_path):
    plan = replace(PLAN, arms=("bn:T=1e+1", "bn:T=1e-1"), seeds=1, budget=Budget(epochs=1))
    comparison = run_job(plan, tmp_path / "out")
    assert [a.arm.temperature for a in comparison.arms] == [10.0, 0.1]
    assert len(list((tmp_path / "out" / "runs").glob("*.json"))) == 2


def test_the_suggested_arm_may_be_another_arm(tmp_path):
    plan = replace(PLAN, arms=("plain", "bn", "bn:T=suggested"), seeds=1, budget=Budget(epochs=1))
    plan = replace(plan, rule="hasegawa-sakai")
    comparison = run_job(plan, tmp_path / "out")  # M = 32: the fallback is T = 1
    assert [a.title for a in comparison.arms] == ["plain, T = 1", "BN, T = 1 (suggested)"]
    page = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    assert "BN, T = 1 (suggested) against plain, T = 1" in page


class Stop(Exception):
    """Stands for Ctrl-C."""


def test_interrupted_and_resumed_gives_the_same_report(done, tmp_path, monkeypatch):
    monkeypatch.setattr(runs_module, "SAVE_EVERY", 0.0)
    count = 0

    def stop(*_):
        nonlocal count
        count += 1
        if count == 8:  # in the middle of the third run
            raise Stop

    folder = tmp_path / "out"
    with pytest.raises(Stop):
        run_job(PLAN, folder, progress=Progress(epoch=stop))
    assert len(list((folder / "state").iterdir())) == 1
    assert not (folder / "report.json").exists()
    seen = []
    run_job(PLAN, folder, resume=True, progress=Progress(epoch=lambda *a: seen.append(a)))
    assert seen[0][2] == 6  # two runs were there
    assert seen[-1][2:] == (24, 24)
    for name in ("plain-seed0", "bn-T-sqrt-seed0", "bn-T-suggested-seed1"):
        ours, theirs = (f / "runs" / f"{name}.logits.safetensors" for f in (folder, done[0]))
        torch.testing.assert_close(load_file(ours), load_file(theirs), rtol=0, atol=0)


def test_other_data_under_the_same_plan_is_refused(tmp_path):
    x, y = load_digits(return_X_y=True)
    file = tmp_path / "data.npz"
    np.savez(file, x=x.astype(np.float32), y=y)
    plan = replace(PLAN, source=str(file), arms=("plain",), seeds=1, budget=Budget(epochs=1))
    run_job(plan, tmp_path / "out")
    np.savez(file, x=x[::-1].astype(np.float32), y=y)
    with pytest.raises(InvalidInput) as caught:
        run_job(plan, tmp_path / "out", resume=True)
    assert caught.value.subject == f"data {file}"


def test_two_jobs_in_one_folder(tmp_path):
    fcntl = pytest.importorskip("fcntl")
    folder = tmp_path / "out"
    folder.mkdir()
    handle = os.open(folder, os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_EX)
    with pytest.raises(InvalidInput) as caught:
        run_job(PLAN, folder)
    os.close(handle)
    assert "another temperance train" in caught.value.found


def test_runs_in_processes_are_the_runs_in_this_one(done, tmp_path):
    plan = replace(PLAN, workers=2)
    comparison = run_job(plan, tmp_path / "out")
    assert [a.held_out_nll for a in comparison.arms] == [a.held_out_nll for a in done[1].arms]


def test_a_process_that_dies_while_it_starts_is_an_error_and_no_hang(tmp_path, monkeypatch):
    """As where a script has no guard around its main part."""
    monkeypatch.setattr(multiprocessing.spawn, "get_executable", lambda: b"/bin/false")
    with pytest.raises(TemperanceError) as caught:
        run_job(replace(PLAN, workers=2), tmp_path / "out")
    assert "--resume" in str(caught.value)


# ------------------------------------------------------------------ what does not come to an end
def test_arms_that_diverge_are_said_and_do_not_stop_the_others(tmp_path):
    wild = Budget(epochs=2, lr=1e37, batch_size=32)
    plan = replace(PLAN, model="probe", feature_dim=None, budget=wild)
    plan = replace(plan, arms=("plain:T=0.01", "plain:T=1e6"))
    comparison = run_job(plan, tmp_path / "out")
    assert comparison.arms[0].outcomes == ("diverged", "diverged")
    assert comparison.arms[0].metrics == {}
    assert "diverged" in (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    assert comparison.runs[0].message.startswith("the loss was")


def test_nothing_is_shipped_where_no_run_came_to_an_end(tmp_path):
    wild = Budget(epochs=1, lr=1e37, batch_size=32)
    plan = replace(PLAN, model="probe", feature_dim=None, budget=wild, arms=("plain:T=0.01",))
    comparison = run_job(plan, tmp_path / "out")
    assert comparison.choice is None
    assert (tmp_path / "out" / "report.html").exists()
    assert not (tmp_path / "out" / "config.json").exists()


@pytest.mark.parametrize(
    ("changes", "subject"),
    [
        ({"source": "nowhere"}, None),
        ({"budget": Budget(batch_size=1)}, None),
        ({"arms": ("plain", "plain")}, "arms"),
        ({"arms": ()}, "arms"),
        ({"rule": "adacos"}, "rule"),
        ({"arms": ("bn:T=0.001",)}, None),
        ({"train_rows": 10_000}, None),
    ],
)
def test_bad_plans_are_refused_before_any_training(tmp_path, changes, subject):
    with pytest.raises(InvalidInput) as caught:
        run_job(replace(PLAN, **changes), tmp_path / "out")
    if subject:
        assert caught.value.subject == subject
    assert not (tmp_path / "out").exists()


def test_a_folder_that_cannot_be_written(tmp_path):
    file = tmp_path / "file"
    file.write_text("here first")
    with pytest.raises(InvalidInput) as caught:
        run_job(PLAN, file / "out")
    assert "--out" in caught.value.fix


# ------------------------------------------------------------------ a folder that was tampered with
@pytest.mark.parametrize(
    "harm",
    [
        "truncate",
        "foreign",
        "other weights",
        "no config",
        "no weights",
        "other version",
        "other order of classes",
        "not json",
    ],
)
def test_a_harmed_folder_is_refused(done, tmp_path, harm):
    folder = shutil.copytree(done[0], tmp_path / "copy")
    weights, config = folder / "model.safetensors", folder / "config.json"
    if harm == "truncate":
        weights.write_bytes(weights.read_bytes()[:-7])
    elif harm == "foreign":
        weights.write_bytes(b"PK\x03\x04 this is a pickle in a zip")
    elif harm == "other weights":
        content = bytearray(weights.read_bytes())
        content[-3] ^= 0x40
        weights.write_bytes(bytes(content))
    elif harm == "no config":
        config.unlink()
    elif harm == "no weights":
        weights.unlink()
    elif harm == "other version":
        config.write_text(config.read_text().replace('"format_version": 1', '"format_version": 9'))
    elif harm == "other order of classes":
        changed = json.loads(config.read_text())
        changed["class_map"]["names"].reverse()
        config.write_text(json.dumps(changed))
    elif harm == "no temperature":
        lacking = json.loads(config.read_text())
        del lacking["posthoc_temperature"]
        config.write_text(json.dumps(lacking))
    else:
        config.write_text("{")
    with pytest.raises((InvalidInput, NotFound)):
        load_bundle(folder)


@pytest.mark.parametrize(
    "array", [np.zeros((2, 9, 9)), np.zeros((0, 8, 8)), np.full((1, 8, 8), np.nan)]
)
def test_inputs_that_do_not_fit(done, tmp_path, array):
    np.savez(tmp_path / "x.npz", x=array)
    with pytest.raises(InvalidInput):
        list(predict(done[0], [tmp_path / "x.npz"]))
    with pytest.raises(InvalidInput):
        list(predict(done[0], [tmp_path / "nothing"]))
