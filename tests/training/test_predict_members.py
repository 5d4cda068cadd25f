"""Predictions of an ensemble's folder, and folders that are not as they were written."""

import json
import math
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from temperance.ensemble import predict_members
from temperance.errors import InvalidInput, NotFound
from temperance.evaluation.calibrators import fit_calibrator
from temperance.evaluation.temperature_fit import BOUNDS
from temperance.training.ensemble_bundle import load_members
from temperance.training.ensemble_job import run_ensemble
from temperance.training.ensemble_plan import EnsemblePlan
from temperance.training.loop import Budget
from temperance.training.plan import Plan
from temperance.training.predict import open_bundle, predict

X = load_digits().images.astype(np.uint8)[:300]
Y = load_digits().target[:300]
TRAINING = Plan(
    source="digits", model="mlp1", feature_dim=16, seeds=1, train_rows=200, budget=Budget(epochs=1)
)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Finished ensembles of two members, by when their temperatures apply."""
    root, found = tmp_path_factory.mktemp("ensembles"), {}
    for when in ("before", "after"):
        plan = EnsemblePlan(TRAINING, members=2, when=when)
        run_ensemble(plan, root / when)
        found[when] = root / when
    return found


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    file = tmp_path_factory.mktemp("rows") / "x.npy"
    np.save(file, X)
    return file


def plain(folder):
    """Probabilities and members' own ones, computed step by step."""
    bundle = load_members(folder)
    posthoc = json.loads((folder / "config.json").read_text())["posthoc"]
    z = predict_members(bundle.ensemble, bundle.preprocess.apply(X[..., None])).double()
    own = z.softmax(-1)
    if posthoc["when"] == "before":
        t = torch.tensor(posthoc["temperatures"], dtype=torch.float64)
        return (z / t[:, None, None]).softmax(-1).mean(0), own
    (t,) = posthoc["temperatures"]
    return (own.mean(0).log() / t).softmax(-1), own


@pytest.mark.parametrize("when", ["before", "after"])
def test_mean_probabilities_after_the_temperatures_of_the_folder(folders, rows, when):
    found = list(predict(folders[when], [rows], top=10))
    p, own = plain(folders[when])
    assert [f.input for f in found] == [f"{rows}:{i}" for i in range(300)]
    ours = np.array([[dict(f.top)[str(c)] for c in range(10)] for f in found])
    np.testing.assert_allclose(ours, p.numpy(), rtol=1e-5, atol=1e-7)
    assert [f.label for f in found] == [str(c) for c in p.argmax(1).tolist()]
    assert all(f.probability == f.top[0][1] for f in found)

    def entropy(q):
        return -(q * q.log()).sum(-1)

    total, each = entropy(own.mean(0)), entropy(own).mean(0)
    np.testing.assert_allclose([f.total_entropy for f in found], total, rtol=1e-5)
    np.testing.assert_allclose([f.mutual_information for f in found], total - each, atol=1e-6)
    votes = own.argmax(-1)
    assert [f.disagreement for f in found] == (votes[0] != votes[1]).double().tolist()


def test_it_does_not_matter_how_rows_fall_into_batches(folders, rows, tmp_path):
    together = list(predict(folders["after"], [rows], top=10))
    for place in (0, 255, 256, 299):
        np.save(tmp_path / "one.npy", X[place : place + 1])
        (alone,) = predict(folders["after"], [tmp_path / "one.npy"], top=10)
        other = together[place]
        assert [n for n, _ in alone.top] == [n for n, _ in other.top]
        assert alone.probability == pytest.approx(other.probability, rel=1e-5)
        assert alone.mutual_information == pytest.approx(other.mutual_information, abs=1e-6)


def test_a_calibrator_takes_the_place_of_the_temperatures(folders, rows):
    _, own = plain(folders["before"])
    pooled = own.mean(0).log().numpy()
    calibrator = fit_calibrator("temperature", logits=pooled, labels=Y)
    found = list(predict(folders["before"], [rows], calibrator=calibrator))
    np.testing.assert_allclose(
        [f.probability for f in found], calibrator.probs(pooled).max(axis=1), rtol=1e-5
    )


def test_one_member_has_nothing_to_disagree_with(tmp_path, rows):
    run_ensemble(EnsemblePlan(TRAINING, members=1), tmp_path / "out")
    found = next(predict(tmp_path / "out", [rows]))
    assert (found.mutual_information, found.disagreement) == (0.0, 0.0)
    assert found.total_entropy > 0


def test_a_table_of_features(tmp_path):
    generator = np.random.default_rng(0)
    y = np.arange(200) % 2
    x = generator.normal(size=(200, 3)) + 2 * y[:, None]
    table = np.column_stack([x, y])
    np.savetxt(tmp_path / "d.csv", table, delimiter=",", header="a,b,c,label", comments="")
    plan = replace(TRAINING, source=str(tmp_path / "d.csv"), train_rows=None)
    run_ensemble(EnsemblePlan(plan, members=2), tmp_path / "out")
    assert len(list(predict(tmp_path / "out", [tmp_path / "d.csv"]))) == 200


# ------------------------------------------------------------------ folders that were changed
def changed(**entries):
    """Merge entries into ``config.json``; None takes an entry away."""

    def harm(folder):
        config = json.loads((folder / "config.json").read_text())
        for name, value in entries.items():
            if isinstance(value, dict):
                config[name].update(value)
            else:
                config.pop(name) if value is None else config.update({name: value})
        (folder / "config.json").write_text(json.dumps(config))

    return harm


def cut(name, size):
    def harm(folder):
        content = (folder / name).read_bytes()
        (folder / name).write_bytes(content[:size])

    return harm


def without(*names):
    def harm(folder):
        for name in names:
            (folder / name).unlink()

    return harm


@pytest.mark.parametrize(
    ("harm", "subject", "found"),
    [
        (without("members.safetensors"), "members.safetensors", "no such file"),
        (cut("members.safetensors", 900), "members.safetensors", "something else"),
        (cut("config.json", 300), "config.json", "Unterminated"),
        (without("config.json"), "", "weights without"),
        (without("config.json", "members.safetensors"), "", "no training came to an end"),
        (without("config.json", "members.safetensors", "report.json"), "", "was stopped"),
        (changed(format="other"), "config.json", "other"),
        (changed(format_version=2), "config.json", "version 2"),
        (changed(probe=None), "config.json", "no probe"),
        (changed(sha256="0"), "members.safetensors", "other weights"),
        (changed(probe={"logits": [[0.0]]}), "members.safetensors", "differ"),
        (changed(ensemble={"members": 3}), "config.json: state dict", "2"),
        (changed(ensemble={"members": "two"}), "config.json: members", "two"),
        (changed(class_map={"names": ["a", "b"], "keys": []}), "config.json", "another order"),
        (
            changed(class_map={"names": ["a", "b"], "keys": []}, class_map_sha256=None),
            "config.json",
            "size mismatch",
        ),
        (changed(model=7), "config.json", "TypeError"),
        (changed(preprocess={"shape": [1, 9, 9]}), "config.json", "shapes"),
        (changed(posthoc={"when": "during"}), "config.json", "during"),
        (changed(posthoc={"when": "before"}), "config.json", "1 posthoc.temperatures, not 2"),
        (changed(posthoc={"temperatures": [0.0]}), "config.json: temperature", "0"),
        (changed(posthoc={"temperatures": [math.inf]}), "config.json: temperature", "inf"),
        (changed(posthoc={"temperatures": None}), "config.json", "TypeError"),
    ],
)
def test_a_harmed_folder_is_named(folders, rows, tmp_path, harm, subject, found):
    folder = shutil.copytree(folders["after"], tmp_path / "copy")
    harm(folder)
    with pytest.raises(InvalidInput) as caught:
        predict(folder, [rows])
    assert caught.value.subject.startswith(str(folder / subject) if subject else str(folder))
    assert found in caught.value.found


def test_every_temperature_that_a_fit_can_give_is_taken(folders, tmp_path):
    folder = shutil.copytree(folders["after"], tmp_path / "copy")
    for t in BOUNDS:
        changed(posthoc={"temperatures": [t]})(folder)
        assert open_bundle(folder).posthoc_temperatures == (t,)


def test_an_unknown_net_is_said_as_such(folders, tmp_path):
    folder = shutil.copytree(folders["after"], tmp_path / "copy")
    changed(model={"name": "resnet9000"})(folder)
    with pytest.raises(NotFound):
        open_bundle(folder)


@pytest.mark.parametrize(
    ("name", "found"), [("nowhere", "no such folder"), ("x.npy", "a file"), ("", "no config.json")]
)
def test_what_is_no_folder_of_a_training(tmp_path, name, found):
    (tmp_path / "x.npy").write_bytes(b"")
    with pytest.raises(InvalidInput) as caught:
        open_bundle(tmp_path / name)
    assert caught.value.found == found
