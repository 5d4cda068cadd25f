"""Reports in MLflow, TensorBoard and a stand-in for Weights & Biases."""

import json
import runpy
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from temperance import evaluate
from temperance.errors import InvalidInput, MissingPackage
from temperance.integrations.trackers import (
    figures_of,
    log_to_mlflow,
    log_to_tensorboard,
    log_to_wandb,
)
from temperance.training.job import run_job
from temperance.training.loop import Budget
from temperance.training.plan import Plan

EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "trackers_example.py"
PLAN = Plan(
    source="digits", model="mlp1", feature_dim=16, arms=("plain", "bn:T=4"), seeds=1,
    train_rows=200, budget=Budget(epochs=1),
)  # fmt: skip
# Both trackers import modules of protobuf and of setuptools that are on their way out.
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    out = tmp_path_factory.mktemp("tracked") / "out"
    with torch.random.fork_rng(devices=[]):
        run_job(PLAN, out)
    return out


@pytest.fixture
def mlflow(monkeypatch, tmp_path):
    """The package with plain files as its store, which reports to nobody."""
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    package = pytest.importorskip("mlflow")
    before = package.get_tracking_uri()
    package.set_tracking_uri((tmp_path / "mlruns").as_uri())
    yield package
    package.set_tracking_uri(before)


@pytest.fixture(scope="module")
def report():
    rng = np.random.default_rng(0)
    z = rng.normal(size=(300, 3)) * 2
    return evaluate(logits=z, labels=(z + rng.gumbel(size=z.shape)).argmax(axis=1))


def test_figures_are_those_of_the_report(folder, report):
    data = json.loads((folder / "report.json").read_text())
    found = figures_of(folder)
    for arm in data["arms"]:
        name = arm["arm"]["name"].replace(":", "_").replace("=", "_")
        for metric, estimate in arm["metrics"].items():
            assert found[f"temperance/arms/{name}/{metric}"] == estimate["value"]
    assert found["temperance/suggested_temperature"] == data["suggestion"]["temperature"]
    assert not any("/runs/" in name or "per_class" in name for name in found)
    assert figures_of(report, prefix="a/b") == {
        f"a/b/{name}": e.value for name, e in report.metrics.items()
    }


def test_mlflow_has_metrics_and_files(mlflow, folder, tmp_path):
    with pytest.raises(InvalidInput) as error:
        log_to_mlflow(folder)
    assert error.value.subject == "MLflow run"
    assert mlflow.active_run() is None
    experiment = mlflow.create_experiment("e", (tmp_path / "artifacts").as_uri())
    with mlflow.start_run(experiment_id=experiment) as run:
        logged = log_to_mlflow(folder, step=3)
    client = mlflow.MlflowClient()
    assert client.get_run(run.info.run_id).data.metrics == dict(logged.figures)
    there = {f.path for f in client.list_artifacts(run.info.run_id, "temperance")}
    assert {"temperance/report.json", "temperance/report.html", "temperance/plots"} <= there
    again = log_to_mlflow(folder, run_id=run.info.run_id, prefix="later")
    assert client.list_artifacts(run.info.run_id, "later")
    assert again.files == logged.files


def test_tensorboard_has_scalars_pictures_and_files(folder, report, tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from torch.utils.tensorboard import SummaryWriter

    logged = log_to_tensorboard(folder, tmp_path / "logs", step=2)
    events = EventAccumulator(str(tmp_path / "logs")).Reload()
    assert set(events.Tags()["scalars"]) == set(logged.figures)
    name = "temperance/arms/plain/nll"
    (event,) = events.Scalars(name)
    assert event.step == 2
    assert event.value == pytest.approx(logged.figures[name], rel=1e-6)
    assert "temperance/plots/reliability" in events.Tags()["images"]
    files = tmp_path / "logs" / "temperance"
    assert (files / "report.html").read_bytes() == (folder / "report.html").read_bytes()
    with SummaryWriter(tmp_path / "own") as writer:
        assert log_to_tensorboard(report, writer).files == (
            "plots/reliability.png", "report.html", "report.json",
        )  # fmt: skip
        writer.add_scalar("mine", 1.0)  # it is still open
    assert "accuracy" in (tmp_path / "own" / "temperance" / "report.html").read_text()


@pytest.mark.parametrize("prefix", ["", "/elsewhere", "../up", "a//b", "a/.."])
def test_a_prefix_that_leads_out_of_the_run_is_refused(report, tmp_path, prefix):
    pytest.importorskip("tensorboard")
    with pytest.raises(InvalidInput) as error:
        log_to_tensorboard(report, tmp_path / "logs", prefix=prefix)
    assert error.value.subject == "prefix"
    assert not list(tmp_path.iterdir())


def test_every_name_has_characters_that_all_trackers_take(folder):
    assert {name.partition("/")[0] for name in figures_of(folder, prefix="a:b")} == {"a_b"}


def test_what_is_no_writer_is_refused(report):
    with pytest.raises(InvalidInput) as error:
        log_to_tensorboard(report, None)
    assert error.value.subject == "writer"


class Wandb:
    """The four names of wandb that are used, and what was done with them."""

    def __init__(self, run):
        self.run = run

    def Image(self, path):  # noqa: N802
        return ("image", Path(path).read_bytes()[:4])

    class Artifact:
        def __init__(self, name, type):
            self.name, self.type, self.files = name, type, set()

        def add_dir(self, folder):
            self.files = {str(p.relative_to(folder)) for p in Path(folder).rglob("*.*")}


@pytest.fixture
def run():
    done = SimpleNamespace(logged=[], artifacts=[])
    done.log = lambda values, step=None: done.logged.append((values, step))
    done.log_artifact = done.artifacts.append
    return done


def test_wandb_has_figures_pictures_and_an_artifact(folder, run):
    logged = log_to_wandb(folder, run, module=Wandb(None), step=5)
    ((values, step),) = run.logged
    assert step == 5
    assert values["temperance/plots/reliability"] == ("image", b"\x89PNG")
    assert {k: v for k, v in values.items() if isinstance(v, float)} == dict(logged.figures)
    (artifact,) = run.artifacts
    assert (artifact.name, artifact.type) == ("temperance", "report")
    assert artifact.files == set(logged.files)


def test_wandb_uses_the_current_run_or_says_that_there_is_none(report, run):
    callback = partial(log_to_wandb, module=Wandb(run), prefix="test")
    callback(report)
    assert "test/nll" in run.logged[0][0]
    with pytest.raises(InvalidInput):
        log_to_wandb(report, module=Wandb(None))


def test_a_missing_tracker_is_named(report, monkeypatch):
    for name, call in (
        ("mlflow", log_to_mlflow),
        ("wandb", log_to_wandb),
        ("tensorboard", partial(log_to_tensorboard, writer="nowhere")),
    ):
        monkeypatch.setitem(sys.modules, name, None)
        with pytest.raises(MissingPackage) as error:
            call(report)
        assert error.value.package == name
    assert not Path("nowhere").exists()


@pytest.mark.parametrize("content", [None, "no JSON", "[]", "{}"])
def test_a_folder_without_a_report_is_refused_before_anything_is_logged(tmp_path, run, content):
    if content is not None:
        (tmp_path / "report.json").write_text(content)
    with pytest.raises(InvalidInput) as error:
        log_to_wandb(tmp_path, run, module=Wandb(None))
    assert error.value.subject.endswith("report.json")
    assert not run.logged
    pytest.importorskip("tensorboard")
    with pytest.raises(InvalidInput):
        log_to_tensorboard(tmp_path, tmp_path / "logs")
    assert not (tmp_path / "logs").exists()


@pytest.mark.usefixtures("mlflow")
def test_the_example_runs(tmp_path):
    pytest.importorskip("tensorboard")
    found = runpy.run_path(str(EXAMPLE))["main"](tmp_path)
    assert found["mlflow"] == found["tensorboard"] > 3
