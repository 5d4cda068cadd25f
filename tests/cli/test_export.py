"""``temperance export`` as a shell sees it, on folders of ``train`` and ``ensemble``."""

import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from sklearn.datasets import load_digits

from temperance.errors import InvalidInput
from temperance.export import export_folder, read_metadata
from temperance.training.ensemble_bundle import load_members
from temperance.training.ensemble_job import run_ensemble
from temperance.training.ensemble_plan import EnsemblePlan
from temperance.training.job import run_job
from temperance.training.loop import Budget
from temperance.training.plan import Plan
from temperance.training.predict import open_bundle, predict
from temperance.training.preprocess import Preprocess

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.*:FutureWarning")
PLAN = Plan(
    source="digits", model="mlp1", feature_dim=16, arms=("bn:T=4",), seeds=1, train_rows=200,
    budget=Budget(epochs=1, lr=0.1),
)  # fmt: skip


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("export") / "model"
    with torch.random.fork_rng(devices=[]):
        run_job(PLAN, folder)
    return folder


@pytest.fixture(scope="module")
def members(tmp_path_factory):
    folder = tmp_path_factory.mktemp("export") / "members"
    with torch.random.fork_rng(devices=[]):
        run_ensemble(EnsemblePlan(PLAN, members=2), folder)
    return folder


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    path = tmp_path_factory.mktemp("images") / "x.npz"
    np.savez(path, x=load_digits().images[:9])
    return path


def prepared(path):
    """New rows, prepared by nothing but the metadata of the file."""
    preprocess = Preprocess.from_dict(read_metadata(path)["preprocess"])
    return preprocess.apply(load_digits().images[:9, ..., None].astype("uint8"))


def probabilities(folder, images):
    classes = open_bundle(folder).class_map.names
    said = [dict(p.top) for p in predict(folder, [images], top=10)]
    return [[p[name] for name in classes] for p in said]


def test_onnx_served_elsewhere_predicts_what_temperance_predicts(run, trained, images, tmp_path):
    ort = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    out = tmp_path / "m.onnx"
    result = run("export", trained, "--out", out, "--output", "probs", "--posthoc")
    assert result.code == 0, result.err
    assert "largest difference" in result.out
    assert "Post-hoc T in the graph" in result.out
    assert "[batch, 1, 8, 8]" in result.out
    assert "[batch, 10]" in result.out
    session = ort.InferenceSession(out, providers=["CPUExecutionProvider"])
    told = session.get_modelmeta().custom_metadata_map  # all that a server needs, without us
    how = json.loads(told["temperance.preprocess"])
    mean, std = (np.float32(how[k][0] * how["white"]) for k in ("mean", "std"))
    pictures = load_digits().images[:9, None].astype("float32")
    found = session.run(["probs"], {"input": (pictures - mean) / std})[0]
    np.testing.assert_allclose(found, probabilities(trained, images), atol=1e-5)
    facts = read_metadata(out)
    assert facts["classes"] == [str(i) for i in range(10)]
    config = json.loads((trained / "config.json").read_text())
    assert facts["temperature"]["value"] == config["temperature"]["value"] == 4.0
    value = config["posthoc_temperature"]["value"]
    assert facts["posthoc_of_folder"]["temperatures"] == [value]
    assert facts["posthoc_in_graph"]["temperatures"] == [value]


def test_an_ensemble_in_one_file(run, members, images, tmp_path):
    out = tmp_path / "m.pt"
    arguments = ("export", members, "--format", "torchscript", "--out", out)
    found = run(*arguments, "--json")
    assert found.code == 0, found.err
    assert found.json["output_shape"] == [2, "batch", 10]
    z = torch.jit.load(out)(prepared(out))
    torch.testing.assert_close(z, load_members(members).ensemble(prepared(out)))
    assert run(*arguments, "--output", "probs", "--posthoc").code == 3  # the file is there
    again = run(*arguments, "--output", "probs", "--posthoc", "--overwrite")
    assert again.code == 0, again.err
    mean = torch.jit.load(out)(prepared(out))
    np.testing.assert_allclose(mean, probabilities(members, images), atol=1e-5)


def test_torch_export_into_the_folder(run, trained):
    result = run("export", trained, "--format", "torch-export", "--json")
    assert result.code == 0, result.err
    assert result.json["record"] == "ExportReport"
    assert result.json["path"] == str(trained / "model.pt2")
    module = torch.export.load(trained / "model.pt2").module()
    x = prepared(trained / "model.pt2")
    torch.testing.assert_close(module(x), open_bundle(trained).model(x))
    (trained / "model.pt2").unlink()


def test_a_calibration_file_and_batches_of_one(run, trained, tmp_path):
    logits = load_file(trained / "runs" / "bn-T-4-seed0.logits.safetensors")
    np.savez(tmp_path / "fit.npz", logits=3 * logits["fit"], labels=logits["fit_labels"])
    assert run("calibrate", tmp_path / "fit.npz", "--out", tmp_path / "cal").code == 0
    value = json.loads((tmp_path / "cal" / "calibration.json").read_text())["parameters"]
    out = tmp_path / "m.pt"
    found = run(
        "export", trained, "--format", "torchscript", "--out", out, "--calibration",
        tmp_path / "cal", "--fixed-batch", "--json",
    )  # fmt: skip
    assert found.code == 0, found.err
    assert found.json["posthoc_temperatures"] == [value["temperature"]]
    assert found.json["inputs"] == {"input": [1, 1, 8, 8]}


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["DIR", "--format", "coreml"], 4),
        (["NOWHERE"], 3),
        (["EMPTY"], 3),
        (["DIR", "--out", "NOWHERE/m.onnx"], 3),
        (["DIR", "--out", "EMPTY"], 3),
        (["DIR", "--output", "classes"], 3),
        (["DIR", "--calibration", "NOWHERE"], 3),
        (["DIR", "--calibration", "NOWHERE", "--posthoc"], 2),
        ([], 2),
    ],
)
def test_bad_input_leaves_nothing(run, trained, tmp_path, arguments, code):
    (tmp_path / "empty").mkdir()
    names = {"DIR": str(trained), "NOWHERE": str(tmp_path / "no"), "EMPTY": str(tmp_path / "empty")}
    before = sorted(trained.rglob("*"))
    given = [names.get(a, a).replace("NOWHERE", names["NOWHERE"]) for a in arguments]
    result = run("export", *given)
    assert result.code == code
    assert "Traceback" not in result.err
    assert sorted(trained.rglob("*")) == before
    assert not list((tmp_path / "empty").iterdir())


def test_one_temperature_of_an_ensemble_wants_probabilities(run, members, tmp_path):
    result = run("export", members, "--posthoc", "--out", tmp_path / "m.pt", "--format",
                 "torchscript", "--json")  # fmt: skip
    assert result.code == 3
    assert result.json["error"]["subject"] == "post-hoc temperature"


def test_a_missing_package_has_its_exit_code(run, trained, tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "onnxscript", None)
    result = run("export", trained, "--out", tmp_path / "m.onnx", "--json")
    assert result.code == 5
    assert result.json["error"]["extra"] == "onnx"


def test_an_open_bundle_needs_a_path(trained, tmp_path):
    bundle = open_bundle(trained)
    with pytest.raises(InvalidInput) as error:
        export_folder(bundle, "torchscript")
    assert error.value.subject == "path"
    report = export_folder(bundle, "torchscript", path=tmp_path / "m.pt")
    assert report.max_rel_error < 1e-5
