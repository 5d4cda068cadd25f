"""``temperance evaluate`` as a function: every figure, OOD, shift, members, calibration first."""

import json

import numpy as np
import pytest

from temperance.errors import InvalidInput
from temperance.evaluation import brier, ece, fit_calibrator, nll
from temperance.evaluation.evaluate_file import EvaluationPlan, evaluate_file
from temperance.evaluation.evaluation_page import write_evaluation
from temperance.evaluation.figures import FIGURES


def rows(n=800, c=3, scale=2.0, seed=0):
    rng = np.random.default_rng(seed)
    z = rng.normal(size=(n, c)) * 2
    return scale * z, (z + rng.gumbel(size=z.shape)).argmax(axis=1)


@pytest.fixture
def file(tmp_path):
    z, y = rows()
    np.savez(tmp_path / "test.npz", logits=z, labels=y)
    return tmp_path / "test.npz"


def judged(file, **options):
    return evaluate_file(EvaluationPlan(str(file), bootstrap=20, **options))


def test_every_figure_of_the_table_from_the_rows(file):
    found = judged(file)
    z, y = rows()
    assert set(found.figures) == set(FIGURES)
    for name, function in (("nll", nll), ("brier", brier), ("ece", ece)):
        assert found.figures[name].value == pytest.approx(function(logits=z, labels=y))
        assert found.report.metrics[name].value == pytest.approx(found.figures[name].value)
    assert found.rows == {"file": 800, "judged": 800}


def test_a_calibration_comes_first(file):
    z, y = rows()
    calibrator = fit_calibrator("temperature", logits=z, labels=y)
    plain = judged(file)
    found = evaluate_file(EvaluationPlan(str(file), bootstrap=20), calibrator=calibrator)
    assert found.figures["nll"].value == pytest.approx(calibrator.nll_after)
    assert found.figures["nll"].value < plain.figures["nll"].value
    assert found.figures["accuracy"] == plain.figures["accuracy"]


def test_ood_and_shift(file, tmp_path):
    rng = np.random.default_rng(1)
    np.save(tmp_path / "ood.npy", rng.normal(size=(200, 3)) * 0.1)
    shifted = []
    for severity in (1, 2):
        z, y = rows()
        name = tmp_path / f"shift{severity}.npz"
        np.savez(name, logits=z + 3 * severity * rng.normal(size=z.shape), labels=y)
        shifted.append(str(name))
    found = judged(file, ood=str(tmp_path / "ood.npy"), shift=tuple(shifted))
    assert set(found.ood) == {"msp", "max_logit", "energy", "predictive_entropy"}
    assert all(m.auroc.value > 0.7 for m in found.ood.values())  # flat logits look foreign
    assert list(found.shift) == shifted
    accuracies = [f["accuracy"].value for f in found.shift.values()]
    assert found.figures["accuracy"].value > accuracies[0] > accuracies[1]


def test_members(tmp_path):
    z, y = rows()
    rng = np.random.default_rng(2)
    members = z[None] + rng.normal(size=(4, *z.shape))
    np.savez(tmp_path / "m.npz", logits=members, labels=y)
    found = judged(tmp_path / "m.npz")
    parts = found.uncertainty
    assert parts["total"] == pytest.approx(parts["aleatoric"] + parts["mutual_information"])
    assert parts["mutual_information"] > 0.01
    np.savez(tmp_path / "same.npz", logits=np.stack([z] * 3), labels=y)
    same = judged(tmp_path / "same.npz")
    assert same.uncertainty["mutual_information"] == pytest.approx(0.0, abs=1e-12)
    assert same.figures["nll"].value == pytest.approx(nll(logits=z, labels=y))


def test_what_is_written(file, tmp_path):
    np.save(tmp_path / "ood.npy", np.zeros((50, 3)))
    found = judged(file, ood=str(tmp_path / "ood.npy"), shift=(str(file),))
    out = tmp_path / "out"
    out.mkdir()
    write_evaluation(out, found)
    report = json.loads((out / "report.json").read_text(encoding="utf-8"))
    assert report["figures"]["nll"]["value"] == found.figures["nll"].value
    assert {p.name for p in (out / "plots").iterdir()} == {"reliability.png", "shift.png"}
    page = (out / "report.html").read_text(encoding="utf-8")
    for title in ("Smooth ECE", "Out of distribution", "Under shift", "Reliability diagram"):
        assert title in page


@pytest.mark.parametrize(
    "options",
    [{"file": "nowhere.npz"}, {"labels": "y"}, {"ood": "nowhere.npy"}, {"shift": ("no.npz",)}],
)
def test_what_cannot_be_read(file, options):
    with pytest.raises(InvalidInput):
        evaluate_file(EvaluationPlan(**{"file": str(file), "bootstrap": 20, **options}))


def test_members_are_not_calibrated_one_by_one(tmp_path):
    z, y = rows(100)
    np.savez(tmp_path / "m.npz", logits=np.stack([z, z]), labels=y)
    calibrator = fit_calibrator("temperature", logits=z, labels=y)
    with pytest.raises(InvalidInput) as caught:
        evaluate_file(EvaluationPlan(str(tmp_path / "m.npz")), calibrator=calibrator)
    assert caught.value.found == "2 members"


@pytest.mark.parametrize("kind", ["ood", "shift"])
def test_another_number_of_classes_is_refused(file, tmp_path, kind):
    z, y = rows(c=5)
    np.savez(tmp_path / "five.npz", logits=z, labels=y)
    other = str(tmp_path / "five.npz")
    with pytest.raises(InvalidInput) as caught:
        judged(file, **{kind: other if kind == "ood" else (other,)})
    assert caught.value.found == "5"


def test_damaged_files_and_files_named_twice(file, tmp_path):
    bad = tmp_path / "bad.npz"
    bad.write_bytes(file.read_bytes()[:-40])
    empty = tmp_path / "empty.npy"
    empty.write_bytes(b"")
    for options in ({"file": str(bad)}, {"ood": str(bad)}, {"ood": str(empty)}):
        with pytest.raises(InvalidInput):
            evaluate_file(EvaluationPlan(**{"file": str(file), "bootstrap": 20, **options}))
    with pytest.raises(InvalidInput):
        judged(file, shift=(str(file), str(file)))


def test_one_logit_per_row(tmp_path):
    rng = np.random.default_rng(0)
    z = rng.normal(size=(400, 1)) * 2
    y = (rng.random(400) < 1 / (1 + np.exp(-z[:, 0]))).astype(int)
    np.savez(tmp_path / "one.npz", logits=z, labels=y)
    found = judged(tmp_path / "one.npz", ood=str(tmp_path / "one.npz"))
    assert found.figures["nll"].value == pytest.approx(nll(logits=z, labels=y))
    assert found.ood["msp"].auroc.value == pytest.approx(0.5)


def test_members_with_infinite_logits_are_named(tmp_path):
    z, y = rows(50)
    members = np.stack([z, z])
    members[1, 5, 0] = np.inf
    np.savez(tmp_path / "m.npz", logits=members, labels=y)
    with pytest.raises(InvalidInput, match="member 1"):
        judged(tmp_path / "m.npz")


@pytest.mark.parametrize("columns", [1, 3])
def test_ood_rows_are_calibrated_like_the_others(tmp_path, columns):
    """The same rows on both sides cannot be told apart, calibrated or not."""
    z, y = rows(300)
    z, y = (z[:, :1], (y > 0).astype(int)) if columns == 1 else (z, y)
    np.savez(tmp_path / "x.npz", logits=z, labels=y)
    calibrator = fit_calibrator("temperature", logits=3 * z + 0.5, labels=y)
    plan = EvaluationPlan(str(tmp_path / "x.npz"), ood=str(tmp_path / "x.npz"), bootstrap=20)
    found = evaluate_file(plan, calibrator=calibrator)
    assert set(found.ood) == {"msp", "predictive_entropy"}  # energy of log-probabilities is 0
    assert all(m.auroc.value == pytest.approx(0.5) for m in found.ood.values())


def test_members_that_are_sure_and_wrong_keep_a_finite_nll(tmp_path):
    z, y = rows(60)
    members = np.stack([z, z])
    members[:, 0] = 0.0
    members[:, 0, y[0]] = -2000.0
    np.savez(tmp_path / "m.npz", logits=members, labels=y)
    plan = EvaluationPlan(str(tmp_path / "m.npz"), ood=str(tmp_path / "m.npz"), bootstrap=20)
    found = evaluate_file(plan)
    assert 2000 / 60 < found.figures["nll"].value < 2100 / 60 + 5
    assert set(found.ood) == {"mutual_information", "msp", "predictive_entropy"}
