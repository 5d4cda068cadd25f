"""What holds for every method of the table, whatever its formula."""

import json
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from temperance.errors import InvalidInput, NotFound
from temperance.evaluation import (
    CALIBRATORS,
    Calibrator,
    fit_calibrator,
    fit_temperature,
    nll,
)
from temperance.records import dumps, loads

METHODS = list(CALIBRATORS)
TAKING_MASKS = [name for name in METHODS if CALIBRATORS[name].masks]
KEEPING_TOP = [name for name in METHODS if CALIBRATORS[name].keeps_top]
#: Options that make every method fit more than one temperature on whatever rows there are.
FORCED = {
    "matrix": {"off_diagonal": 0.1, "bias": 0.1},
    "dirichlet": {"off_diagonal": 0.1, "bias": 0.1},
    "class-temperature": {"spread": 0.5},
    "isotonic": {"shrink": 0.1},
    "isotonic-joint": {"shrink": 0.1},
}


def sample(n=900, c=4, *, seed=0):
    """Logits that no single temperature makes right: classes differ, and some labels are noise."""
    rng = np.random.default_rng(seed)
    true = rng.normal(size=(n, c)) * 3
    y = (true + rng.gumbel(size=true.shape)).argmax(axis=1)
    y = np.where(rng.random(n) < 0.15, rng.integers(0, c, size=n), y)
    return true * np.linspace(1, 4, c) + np.linspace(-1, 1, c), y


Z, Y = sample()
FITS = {m: fit_calibrator(m, logits=Z, labels=Y, options=FORCED.get(m)) for m in METHODS}


@pytest.mark.parametrize("method", METHODS)
def test_every_row_of_the_table_says_what_it_is(method):
    row = CALIBRATORS[method]
    assert row.name == method
    assert "softmax" in row.formula or "p_k" in row.formula
    assert any(str(year) in row.reference for year in range(1990, 2030))
    assert row.trust
    assert row.n_parameters


@pytest.mark.parametrize("method", METHODS)
def test_probabilities_are_such_and_better_than_those_at_one(method):
    fit = FITS[method]
    p = fit.probs(Z)
    assert p.dtype == np.float64
    assert p.shape == Z.shape
    assert (p >= 0).all()
    np.testing.assert_allclose(p.sum(axis=1), 1, atol=1e-12)
    np.testing.assert_allclose(np.exp(fit.log_probs(Z)), p, rtol=1e-12)
    assert (fit.n, fit.n_classes) == Z.shape
    assert fit.nll_before == pytest.approx(nll(logits=Z, labels=Y), rel=1e-9)
    assert fit.nll_after == pytest.approx(nll(logits=fit.log_probs(Z), labels=Y), rel=1e-9)
    assert fit.nll_after < fit.nll_before
    assert fit.status == "converged"
    assert not fit.plain


@pytest.mark.parametrize("method", METHODS[1:])
def test_it_does_at_least_as_well_as_one_temperature_on_rows_made_for_it(method):
    assert FITS[method].nll_after < FITS["temperature"].nll_after + 1e-9


@pytest.mark.parametrize("method", METHODS)
def test_it_goes_through_json_unchanged(method):
    fit = FITS[method]
    again = Calibrator.from_dict(json.loads(json.dumps(fit.to_dict(), allow_nan=False)))
    assert again == fit
    assert loads(dumps(fit), Calibrator) == fit
    np.testing.assert_array_equal(again.probs(Z), fit.probs(Z))


@pytest.mark.parametrize("method", METHODS)
def test_it_is_the_same_twice_and_touches_no_global_state(method, rng_guard):
    with rng_guard():
        again = fit_calibrator(method, logits=Z, labels=Y, options=FORCED.get(method))
    assert again == FITS[method]


def test_the_temperature_is_that_of_fit_temperature():
    fit = fit_temperature(logits=Z, labels=Y)
    ours = FITS["temperature"]
    assert ours.parameters == {"temperature": fit.temperature}
    assert ours.settings["interval"] == list(fit.interval)
    np.testing.assert_allclose(ours.probs(Z), fit.probs(Z), rtol=1e-12)


@pytest.mark.parametrize("method", KEEPING_TOP)
def test_methods_that_keep_the_top_class_do(method):
    np.testing.assert_array_equal(FITS[method].probs(Z).argmax(axis=1), Z.argmax(axis=1))


@pytest.mark.parametrize("method", [m for m in METHODS if m not in KEEPING_TOP])
def test_the_others_may_move_it(method):
    assert (FITS[method].probs(Z).argmax(axis=1) != Z.argmax(axis=1)).any()


# ------------------------------------------------------------------ one answer for one question
@pytest.mark.parametrize("method", METHODS)
def test_constants_per_row_and_the_order_of_rows_do_not_matter(method):
    rng = np.random.default_rng(5)
    shifted = Z + rng.normal(size=(len(Z), 1)) * 100
    order = rng.permutation(len(Z))
    other = fit_calibrator(
        method, logits=shifted[order], labels=Y[order], options=FORCED.get(method)
    )
    np.testing.assert_allclose(other.probs(Z), FITS[method].probs(Z), atol=2e-5)


@pytest.mark.parametrize("method", sorted({*METHODS} - {"ensemble-temperature"}))  # has T = 1
def test_the_scale_of_the_logits_does_not_matter(method):
    other = fit_calibrator(method, logits=Z * 50, labels=Y, options=FORCED.get(method))
    np.testing.assert_allclose(other.probs(Z * 50), FITS[method].probs(Z), atol=2e-5)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("make", [np.asarray, torch.as_tensor])
def test_two_classes_in_three_forms_give_one_answer(method, make):
    z, y = sample(400, 2, seed=3)
    one = z[:, 1] - z[:, 0]
    forms = (one, one[:, None], z, torch.log_softmax(torch.as_tensor(z), 1).numpy())
    options = FORCED.get(method)
    fits = [fit_calibrator(method, logits=make(f), labels=make(y), options=options) for f in forms]
    for fit, form in zip(fits, forms, strict=True):
        np.testing.assert_allclose(fit.probs(make(form)), fits[0].probs(one), atol=2e-5)


@pytest.mark.parametrize("method", METHODS)
def test_weights_are_repeated_rows(method):
    z, y = Z[:200], Y[:200]
    times = np.random.default_rng(0).integers(0, 4, size=200)
    options = FORCED.get(method)
    if method == "sample-temperature":  # what it chooses by differs: a repeated row is held out
        options = {"folds": 2}
    a = fit_calibrator(method, logits=z, labels=y, weights=times, options=options)
    b = fit_calibrator(
        method, logits=np.repeat(z, times, axis=0), labels=np.repeat(y, times), options=options
    )
    assert a.nll_before == pytest.approx(b.nll_before, rel=1e-9)
    if method not in ("vector", "class-temperature", "sample-temperature"):  # priors count rows
        np.testing.assert_allclose(a.probs(z), b.probs(z), atol=1e-4)


@pytest.mark.parametrize("method", METHODS)
def test_ignored_rows_are_left_out(method):
    y = np.where(np.arange(len(Y)) % 3 == 0, -100, Y)
    a = fit_calibrator(method, logits=Z, labels=y, ignore=(-100,), options=FORCED.get(method))
    b = fit_calibrator(method, logits=Z[y >= 0], labels=y[y >= 0], options=FORCED.get(method))
    assert a == b


# ------------------------------------------------------------------ masks
MASK = np.random.default_rng(2).random(Z.shape) < 0.2
MASK[np.arange(len(Y)), Y] = False
MASKED = np.where(MASK, -np.inf, Z)


@pytest.mark.parametrize("method", TAKING_MASKS)
def test_masked_classes_get_nothing(method):
    fit = fit_calibrator(method, logits=MASKED, labels=Y, options=FORCED.get(method))
    p = fit.probs(MASKED)
    assert fit.status in ("converged", "not favoured")
    assert (p[MASK] == 0).all()
    assert (p[~MASK] > 0).all()
    np.testing.assert_allclose(p.sum(axis=1), 1, atol=1e-12)
    assert np.isneginf(fit.log_probs(MASKED)[MASK]).all()


@pytest.mark.parametrize("method", [m for m in METHODS if m not in TAKING_MASKS])
def test_methods_that_mix_logits_refuse_masks_by_row(method):
    z = Z.copy()
    z[7, (Y[7] + 1) % 4] = -np.inf
    with pytest.raises(InvalidInput) as error:
        fit_calibrator(method, logits=z, labels=Y)
    assert "row 7" in error.value.found
    assert method in METHODS
    with pytest.raises(InvalidInput) as error:
        FITS[method].probs(z[5:])
    assert "row 2" in error.value.found
    assert method in error.value.expected


# ------------------------------------------------------------------ rows that say little
def odd_rows():
    z, y = sample(120, 4, seed=1)
    yield pytest.param(z, z.argmax(axis=1), "at lower bound", id="all right")
    yield pytest.param(z, z.argmin(axis=1), "at upper bound", id="all wrong")
    yield pytest.param(np.ones_like(z), y, "not identifiable", id="constant")
    yield pytest.param(z[:1], z[:1].argmax(axis=1), "at lower bound", id="one row right")
    yield pytest.param(z[:1], z[:1].argmin(axis=1), "at upper bound", id="one row wrong")


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(("z", "y", "status"), list(odd_rows()))
def test_nothing_is_fitted_where_one_temperature_has_no_minimum(method, z, y, status):
    fit = fit_calibrator(method, logits=z, labels=y, options=FORCED.get(method))
    assert fit.status == status
    assert fit.plain == (method != "temperature")
    assert fit.parameters == {"temperature": 1.0}
    assert fit.nll_after == pytest.approx(fit.nll_before, rel=1e-14)
    np.testing.assert_allclose(fit.probs(z), np.exp(z - np.log(np.exp(z).sum(1))[:, None]))


@pytest.mark.parametrize("method", METHODS)
def test_a_class_without_fit_rows(method):
    y = np.where(Y == 3, 2, Y)
    fit = fit_calibrator(method, logits=Z, labels=y, options=FORCED.get(method))
    p = fit.probs(Z)
    assert np.isfinite(fit.log_probs(Z)).all()
    assert p[:, 3].mean() < np.exp(Z[:, 3] - np.log(np.exp(Z).sum(axis=1))).mean()
    said = any("without fit rows" in note and "3" in note for note in fit.notes)
    assert said == (not CALIBRATORS[method].keeps_top)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("n", [2, 3, 5, 9])
def test_a_handful_of_rows_gives_a_status(method, n):
    fit = fit_calibrator(method, logits=Z[:n], labels=Y[:n])
    assert fit.status in (
        "converged",
        "not favoured",
        "at lower bound",
        "at upper bound",
        "at a bound",
    )
    assert fit.nll_after <= fit.nll_before
    assert fit.notes


@settings(deadline=None, max_examples=40, derandomize=True)
@given(
    method=st.sampled_from(METHODS),
    n=st.integers(1, 40),
    c=st.integers(2, 5),
    scale=st.floats(-3, 3),
    seed=st.integers(0, 2**31),
    noise=st.sampled_from([0.1, 1.0, 100.0]),
)
def test_it_is_never_worse_than_one_on_any_rows(method, n, c, scale, seed, noise):
    rng = np.random.default_rng(seed)
    z = rng.normal(size=(n, c)) * 10.0**scale
    y = (z + noise * 10.0**scale * rng.gumbel(size=z.shape)).argmax(axis=1)
    fit = fit_calibrator(method, logits=z, labels=y, options=FORCED.get(method))
    assert fit.nll_after <= fit.nll_before
    p = fit.probs(rng.normal(size=(20, c)) * 10.0**scale)
    assert np.isfinite(p).all()
    np.testing.assert_allclose(p.sum(axis=1), 1, atol=1e-9)


def test_few_rows_for_many_numbers_are_remarked_on():
    fit = fit_calibrator("vector", logits=Z[:60], labels=Y[:60])
    assert any("8 numbers from only 60 rows" in note for note in fit.notes)


# ------------------------------------------------------------------ what is refused
def test_an_unknown_method_is_named_with_the_known_ones():
    with pytest.raises(NotFound) as error:
        fit_calibrator("platt", logits=Z, labels=Y)
    assert error.value.candidates == tuple(METHODS)


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("vector", {"prior": -1}),
        ("vector", {"prior": math.nan}),
        ("vector", {"prior": None}),
        ("vector", {"strength": 1}),
        ("matrix", {"folds": 1}),
        ("matrix", {"folds": 2.5}),
        ("matrix", {"seed": True}),
        ("isotonic", {"shrink": 1.5}),
        ("isotonic", {"shrink": "auto"}),
        ("temperature", {"bounds": 1}),
        ("temperature", [1]),
    ],
)
def test_options_that_cannot_be_are_refused(method, options):
    with pytest.raises(InvalidInput):
        fit_calibrator(method, logits=Z, labels=Y, options=options)


@pytest.mark.parametrize("method", METHODS)
def test_logits_that_cannot_be_are_refused_by_row(method):
    bad = Z.copy()
    bad[5, 1] = np.nan
    with pytest.raises(InvalidInput) as error:
        fit_calibrator(method, logits=bad, labels=Y)
    assert "row 5" in error.value.found
    with pytest.raises(InvalidInput) as error:
        FITS[method].probs(bad)
    assert "row 5" in error.value.found
    with pytest.raises(InvalidInput) as error:
        FITS[method].probs(Z[:, :3])
    assert error.value.found == "3"
    with pytest.raises(InvalidInput):
        fit_calibrator(method, logits=FITS[method].probs(Z), labels=Y)


@pytest.mark.parametrize("method", METHODS)
def test_parameters_from_a_file_are_checked(method):
    data = FITS[method].to_dict()
    first = next(iter(data["parameters"]))
    value = data["parameters"][first]
    for wrong in ("text", [[[1.0]]], [] if value == [] else [math.nan], None):
        with pytest.raises(InvalidInput):
            Calibrator.from_dict({**data, "parameters": {**data["parameters"], first: wrong}})
    with pytest.raises(InvalidInput):
        Calibrator.from_dict({**data, "parameters": {}})
    with pytest.raises(InvalidInput):
        Calibrator.from_dict({**data, "parameters": {**data["parameters"], "extra": 1.0}})
    with pytest.raises(NotFound):
        Calibrator.from_dict({**data, "method": "platt"})
    with pytest.raises(InvalidInput):
        Calibrator.from_dict({**data, "record": "Report"})


@pytest.mark.parametrize(
    ("method", "wrong"),
    [
        ("temperature", {"temperature": -1.0}),
        ("class-temperature", {"temperature": [1.0, 1.0, 0.0, 1.0]}),
        ("ensemble-temperature", {"weights": [0.5, 0.6, -0.1]}),
        ("ensemble-temperature", {"weights": [0.5, 0.6, 0.1]}),
        ("isotonic", {"ends": [3.0, 2.0, 5.0, 6.0]}),
        ("isotonic-joint", {"ends": [1.5]}),
        ("isotonic-joint", {"shrink": 0.0}),
        ("sample-temperature", {"lowest": [1e9, 0.0, 0.0]}),
    ],
)
def test_parameters_out_of_range_are_refused(method, wrong):
    data = FITS[method].to_dict()
    with pytest.raises(InvalidInput):
        Calibrator.from_dict({**data, "parameters": {**data["parameters"], **wrong}})
