"""The one reader of predictions: forms, precision, and refusals that name the row."""

import numpy as np
import pytest
import torch

from temperance.errors import InvalidInput
from temperance.evaluation import (
    EvaluateOptions,
    accuracy,
    brier,
    ece,
    evaluate,
    fit_temperature,
    nll,
    row_scores,
)
from temperance.evaluation.predictions import FLOOR, read_logits, read_predictions, read_probs

Z = [[2.0, 0.0, 1.0], [0.0, 3.0, 0.5], [0.2, 0.1, 0.0]]


def refusal(call, *args, **kwargs) -> InvalidInput:
    with pytest.raises(InvalidInput) as caught:
        call(*args, **kwargs)
    return caught.value


@pytest.mark.parametrize(
    "form",
    [
        np.asarray(Z),
        np.asarray(Z, dtype=np.float32),
        torch.tensor(Z),
        torch.tensor(Z, dtype=torch.float64, requires_grad=True),
        Z,
    ],
    ids=["float64", "float32", "tensor", "with gradient", "lists"],
)
def test_every_form_gives_the_same_scores(form):
    found = row_scores(logits=form, labels=torch.tensor([0, 1, 2]))
    wanted = row_scores(logits=np.asarray(Z), labels=[0, 1, 2])
    for name, values in wanted.items():
        torch.testing.assert_close(
            torch.as_tensor(found[name]), torch.as_tensor(values), rtol=0, atol=1e-6
        )


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_widened_first(dtype):
    z = torch.tensor([[6e4, 0.0], [0.0, 1.0]], dtype=dtype)
    assert np.isfinite(row_scores(logits=z, labels=[0, 1])["nll"]).all()
    p = torch.softmax(torch.randn(50, 30, dtype=torch.float32) * 3, 1).to(dtype)
    assert 0 <= ece(probs=p, labels=[0] * 50) <= 1


def test_two_classes_in_three_forms_are_the_same():
    z = torch.randn(40, dtype=torch.float64)
    y = [0, 1] * 20
    forms = [z, z[:, None], torch.stack([torch.zeros(40, dtype=torch.float64), z], 1)]
    shifted = torch.stack([-z / 2, z / 2], 1)
    for measure in (accuracy, nll, brier, ece):
        values = [measure(logits=form, labels=y) for form in [*forms, shifted]]
        values.append(measure(probs=torch.sigmoid(z), labels=y))
        np.testing.assert_allclose(values, values[0], rtol=1e-12)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_bad_logits_are_refused_by_row(value):
    z = np.zeros((3000, 200), dtype=np.float32)  # more than one chunk
    z[2345, 7] = value
    assert "row 2345, column 7" in refusal(read_logits, z).found


def test_a_row_of_nothing_but_minus_inf_is_refused():
    assert "row 1" in refusal(read_logits, [[0.0, -np.inf], [-np.inf, -np.inf]]).found


def test_masked_classes_have_probability_zero():
    scores = row_scores(logits=[[0.0, 0.0, -np.inf]] * 2, labels=[0, 2])
    np.testing.assert_allclose(scores["nll"], [np.log(2), np.inf])
    np.testing.assert_allclose(scores["brier"], [0.5, 1.5])
    (_, z, _), *_ = read_predictions(logits=[[0.0, -np.inf]], labels=[0]).shifted()
    assert z[0, 1] == FLOOR


def test_probabilities_named_logits_are_refused():
    p = torch.softmax(torch.randn(20, 5), 1)
    for measure in (nll, ece, fit_temperature):
        assert "probabilities" in refusal(measure, logits=p, labels=[0] * 20).found
    assert "probabilities" in refusal(nll, logits=p.half(), labels=[0] * 20).found
    nll(logits=torch.log(p), labels=[0] * 20)  # log-probabilities are logits


def test_logits_between_0_and_1_are_logits():
    z = np.random.default_rng(0).uniform(0, 1, (50, 4))
    p = np.exp(z) / np.exp(z).sum(1, keepdims=True)
    y = np.arange(50) % 4
    assert ece(logits=z, labels=y) == pytest.approx(ece(probs=p, labels=y), abs=1e-12)


@pytest.mark.parametrize(
    ("p", "found"),
    [
        ([[0.5, 0.5], [0.5, 0.6]], "a sum of 1.1 in row 1"),
        ([[0.5, 0.5], [-0.5, 1.5]], "-0.5 in row 1, column 0"),
        ([[0.5, 0.5], [np.nan, 1.0]], "a NaN in row 1, column 0"),
        ([0.5, 1.2], "-0.2 in row 1, column 0"),
    ],
)
def test_bad_probabilities_are_refused_by_row(p, found):
    assert refusal(read_probs, p).found == found


def test_which_of_the_two_it_is_must_be_said():
    assert refusal(ece, labels=[0]).found == "none"
    assert refusal(ece, logits=Z, probs=Z, labels=[0, 1, 2]).found == "both"


@pytest.mark.parametrize("labels", [[0, 1, 3], [0, 1, -1], [0, 1, 0.5], [0, 1, np.nan]])
def test_labels_out_of_range_are_refused_by_row(labels):
    assert refusal(nll, logits=Z, labels=labels).found.endswith("in row 2")


def test_ignored_rows_are_left_out_and_rows_keep_their_numbers():
    z = np.asarray([*Z, [np.nan] * 3])
    kept = read_predictions(logits=z, labels=[0, -100, 2, 255], ignore=(-100, 255))
    assert kept.ids.tolist() == [0, 2]
    assert kept.kept.tolist() == [True, False, True, False]
    error = refusal(read_predictions, logits=z, labels=[0, -100, 2, 1], ignore=(-100,))
    assert "row 3" in error.found
    error = refusal(read_predictions, logits=Z, labels=[-100, 0, 9], ignore=(-100,))
    assert error.found == "9 in row 2"


@pytest.mark.parametrize("form", [int, float, np.int64, np.asarray, torch.tensor])
def test_a_single_ignored_number_stands_alone(form):
    y = [0, -100, 2]
    for ignore in (form(-100), [form(-100)] if form in (int, float) else form(-100)):
        assert row_scores(logits=Z, labels=y, ignore=ignore)["label"].tolist() == [0, 2]
        assert fit_temperature(logits=Z, labels=y, ignore=ignore).n == 2
        assert EvaluateOptions(ignore=ignore).ignore == (-100,)
    assert evaluate(logits=Z, labels=y, options=EvaluateOptions(ignore=form(-100))).n == 2


@pytest.mark.parametrize("ignore", [{-100, 255}, [-100, 255], np.asarray([-100, 255])])
def test_ignored_numbers_come_in_any_collection(ignore):
    kept = read_predictions(logits=Z, labels=[-100, 1, 255], ignore=ignore).kept
    assert kept.tolist() == [False, True, False]


def test_nothing_ignored_is_none_too():
    assert read_predictions(logits=Z, labels=[0, 1, 2], ignore=None).kept.all()


@pytest.mark.parametrize("ignore", ["NA", b"NA", ("NA",)])
def test_an_ignored_text_is_named_whole(ignore):
    error = refusal(fit_temperature, logits=Z, labels=[0, 1, 2], ignore=ignore)
    assert error.subject == "ignore"
    assert "NA" in error.found


def test_rows_of_different_lengths_are_refused():
    ragged = [[1.0, 2.0], [1.0]]
    for measure in (fit_temperature, nll, evaluate, row_scores):
        assert refusal(measure, logits=ragged, labels=[0, 1]).subject == "logits"
        assert refusal(measure, logits=[[1.0, 0.0]] * 2, labels=[[0], [1, 0]]).subject == "labels"
    assert refusal(ece, probs=ragged, labels=[0, 1]).subject == "probs"
    assert refusal(read_logits, ragged).subject == "logits"
    assert refusal(read_probs, ragged).subject == "probs"


@pytest.mark.parametrize(
    ("z", "y", "ignore"),
    [
        (np.empty((0, 3)), [], ()),
        (np.empty((3, 0)), [0, 0, 0], ()),
        (Z, [0, 1], ()),
        (np.zeros((2, 3, 4)), [0, 1], ()),
        (Z, [-1, -1, -1], (-1,)),
        (Z, [0, 1, 2], ("unlabelled",)),
        (np.asarray([["a", "b"]]), [0], ()),
        (np.asarray([[True, False]]), [0], ()),
        (1.0, [0], ()),
        (Z, ["a", "b", "c"], ()),
    ],
)
def test_what_cannot_be_read_is_refused(z, y, ignore):
    error = refusal(read_predictions, logits=z, labels=y, ignore=ignore)
    assert error.expected
    assert error.fix
