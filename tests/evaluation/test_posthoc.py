"""The post-hoc temperature: right over seven decades, bounded and labelled on everything else."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar
from scipy.special import logsumexp

from temperance.errors import InvalidInput
from temperance.evaluation import (
    TemperatureFit,
    apply_temperature,
    evaluate,
    fit_temperature,
    nll,
    row_scores,
)
from temperance.evaluation.posthoc import BOUNDS
from temperance.records import from_dict, to_dict


def sample(n=2000, c=10, *, seed=0, spread=2.0):
    """Logits whose own softmax the labels are drawn from: the true T is 1."""
    rng = np.random.default_rng(seed)
    z = rng.normal(size=(n, c)) * spread
    return z, (z + rng.gumbel(size=z.shape)).argmax(axis=1)


def oracle(z, y, weights=None):
    """Log T by a general minimizer, in float64."""

    def loss(u):
        scaled = z * math.exp(-u)
        rows = logsumexp(scaled, axis=1) - scaled[np.arange(len(y)), y]
        return np.average(rows, weights=weights)

    return minimize_scalar(loss, bounds=(-3, 3), method="bounded", options={"xatol": 1e-12}).x


Z, Y = sample()
LOG_T = oracle(Z, Y)


@pytest.mark.parametrize("true", [1e-3, 0.05, 0.1, 1.0, 5.0, 20.0, 60.0, 98.6, 1e4])
def test_it_finds_the_minimum_over_seven_decades(true):
    fit = fit_temperature(logits=Z * true, labels=Y)
    # the oracle compares function values, which fixes its minimum to about 1e-8
    assert fit.temperature == pytest.approx(true * math.exp(LOG_T), rel=1e-7)
    assert fit.status == "converged"
    assert fit.notes == ()
    assert fit.interval[0] < true < fit.interval[1]
    assert fit.nll_after == pytest.approx(
        nll(logits=Z * true / fit.temperature, labels=Y), rel=1e-12
    )
    assert fit.nll_before == pytest.approx(nll(logits=Z * true, labels=Y), rel=1e-12)
    assert fit.nll_after <= fit.nll_before


def test_the_slope_is_zero_there():
    fit = fit_temperature(logits=Z * 7, labels=Y)
    left, right = (nll(logits=Z * 7 / (fit.temperature * f), labels=Y) for f in (0.999, 1.001))
    assert fit.nll_after < min(left, right)
    assert left == pytest.approx(right, rel=1e-6)


@settings(deadline=None, max_examples=80, derandomize=True)
@given(
    n=st.integers(1, 40),
    c=st.integers(1, 6),
    scale=st.floats(-7, 7),
    seed=st.integers(0, 2**31),
    informative=st.booleans(),
)
def test_it_is_never_worse_than_one_and_stays_in_its_bounds(n, c, scale, seed, informative):
    rng = np.random.default_rng(seed)
    z = rng.normal(size=(n, c))
    two = np.concatenate([np.zeros((n, 1)), z], axis=1) if c == 1 else z
    noise = rng.gumbel(size=two.shape) * (1.0 if informative else 100.0)
    fit = fit_temperature(logits=z * 10.0**scale, labels=(two + noise).argmax(axis=1))
    assert BOUNDS[0] <= fit.temperature <= BOUNDS[1]
    assert fit.nll_after <= fit.nll_before
    at_bound = fit.temperature in BOUNDS
    assert at_bound == fit.status.startswith("at ")
    assert (fit.interval is None) == (fit.status != "converged")
    if fit.interval:
        assert fit.interval[0] <= fit.temperature <= fit.interval[1]


@settings(deadline=None, max_examples=30, derandomize=True)
@given(seed=st.integers(0, 2**31), factor=st.floats(0.01, 100), shift=st.floats(-1e3, 1e3))
def test_it_scales_with_the_logits_and_is_blind_to_shifts_and_row_order(seed, factor, shift):
    rng = np.random.default_rng(seed)
    z = rng.normal(size=(60, 4)) * 3
    y = (z + rng.gumbel(size=z.shape)).argmax(axis=1)
    base = fit_temperature(logits=z, labels=y)
    if base.status != "converged":
        return
    order = rng.permutation(60)
    other = fit_temperature(logits=(z * factor + shift)[order], labels=y[order])
    assert other.temperature == pytest.approx(base.temperature * factor, rel=1e-6)


@pytest.mark.parametrize("make", [np.asarray, torch.as_tensor, np.ndarray.tolist])
def test_two_classes_in_three_forms_give_one_answer(make):
    z, y = sample(500, 2, seed=3)
    one = z[:, 1] - z[:, 0]
    fits = [
        fit_temperature(logits=make(form), labels=make(y))
        for form in (one, one[:, None], np.stack([0 * one, one], 1), z)
    ]
    np.testing.assert_allclose([f.temperature for f in fits], fits[0].temperature, rtol=1e-9)
    np.testing.assert_allclose([f.interval for f in fits], np.tile(fits[0].interval, (4, 1)))
    np.testing.assert_allclose(fits[0].probs(one), fits[0].probs(z), atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_half_precision_is_widened(dtype):
    z = torch.as_tensor(Z * 5e3).clamp(-6e4, 6e4).to(dtype)
    assert fit_temperature(logits=z, labels=Y).temperature == pytest.approx(5e3, rel=0.05)


def test_log_probabilities_are_logits():
    logs = torch.log_softmax(torch.as_tensor(Z * 4), 1)
    a, b = fit_temperature(logits=logs, labels=Y), fit_temperature(logits=Z * 4, labels=Y)
    assert a.temperature == pytest.approx(b.temperature, rel=1e-9)


# ------------------------------------------------------------------ dense logits
def images(dtype=np.float64):
    """Three layouts of the same logits ``[5, 10, 8, 50]``, and the labels ``[5, 8, 50]``."""
    z = Z.reshape(5, 8, 50, 10).transpose(0, 3, 1, 2)
    return [z, np.ascontiguousarray(z), torch.as_tensor(z)], Y.reshape(5, 8, 50)


@pytest.mark.parametrize("piece", [1 << 18, 3000, 700, 64])
def test_dense_logits_are_rows_in_another_layout(monkeypatch, piece):
    monkeypatch.setattr("temperance.evaluation.logit_rows._PIECE", piece)
    flat = fit_temperature(logits=Z, labels=Y)
    layouts, y = images()
    for z in layouts:
        for labels in (y, torch.as_tensor(y), y[:, None]):
            fit = fit_temperature(logits=z, labels=labels, axis=1)
            assert fit.temperature == pytest.approx(flat.temperature, rel=1e-9)
            assert fit.n == len(Y)
    for axis in (3, -1):
        fit = fit_temperature(logits=Z.reshape(5, 8, 50, 10), labels=y, axis=axis)
        assert fit.temperature == pytest.approx(flat.temperature, rel=1e-9)
    for axis in (0, -2):
        fit = fit_temperature(logits=Z.T, labels=Y, axis=axis)
        assert fit.temperature == pytest.approx(flat.temperature, rel=1e-9)


@pytest.mark.parametrize("piece", [1 << 18, 3000, 64])
def test_ignored_pixels_and_weights(monkeypatch, piece):
    monkeypatch.setattr("temperance.evaluation.logit_rows._PIECE", piece)
    rng = np.random.default_rng(0)
    layouts, y = images()
    out, w = rng.random(y.shape) < 0.3, rng.uniform(size=y.shape)
    out[1] = True
    marked = np.where(out, 255, y)
    kept = ~out.reshape(-1)
    flat = fit_temperature(logits=Z[kept], labels=Y[kept], weights=w.reshape(-1)[kept])
    for z in layouts:
        z = z.clone() if isinstance(z, torch.Tensor) else z.copy()
        z[1] = math.nan  # of ignored pixels
        fit = fit_temperature(logits=z, labels=marked, axis=1, ignore=255, weights=w)
        assert fit.temperature == pytest.approx(flat.temperature, rel=1e-9)
        assert fit.interval == pytest.approx(flat.interval, rel=1e-8)
        assert fit.n == kept.sum()


def test_dense_binary_logits():
    one = Z[:, 0].reshape(20, 1, 10, 10)
    y = (Y == 0).astype(int)
    fit = fit_temperature(logits=one, labels=y.reshape(20, 10, 10), axis=1)
    assert fit.temperature == fit_temperature(logits=Z[:, 0], labels=y).temperature
    p = fit.probs(one, axis=1)
    assert p.shape == (20, 2, 10, 10)
    np.testing.assert_allclose(p[3, :, 4, 5], fit.probs(Z[:, 0])[345], rtol=1e-12)


def test_dense_probabilities_lie_where_the_logits_do():
    layouts, y = images()
    fit = fit_temperature(logits=layouts[0], labels=y, axis=1)
    p = fit.probs(layouts[2], axis=1)
    np.testing.assert_allclose(p, fit.probs(Z).reshape(5, 8, 50, 10).transpose(0, 3, 1, 2))


@pytest.mark.parametrize("axis", [None, 4, -5, 1.0, True, "1"])
def test_the_class_axis_is_never_guessed(axis):
    layouts, y = images()
    with pytest.raises(InvalidInput) as caught:
        fit_temperature(logits=layouts[0], labels=y, axis=axis)
    assert caught.value.subject == "axis"


def test_dense_errors_name_the_position():
    layouts, y = images()
    z = layouts[1].copy()
    z[3, 2, 5, 7] = math.nan
    with pytest.raises(InvalidInput) as caught:
        fit_temperature(logits=z, labels=y, axis=1)
    assert caught.value.found == "a NaN in position [3, 5, 7], column 2"
    y = y.copy()
    y[0, 0] = 255
    with pytest.raises(InvalidInput) as caught:
        fit_temperature(logits=z, labels=y, axis=1, ignore=255)
    assert "[3, 5, 7]" in caught.value.found
    y[4, 1, 9] = 10
    with pytest.raises(InvalidInput) as caught:
        fit_temperature(logits=layouts[1], labels=y, axis=1, ignore=255)
    assert "10 in position [4, 1, 9]" in caught.value.found
    with pytest.raises(InvalidInput) as caught:
        fit_temperature(logits=layouts[1], labels=y.reshape(-1), axis=1)
    assert caught.value.subject == "logits and labels"


# ------------------------------------------------------------------ no minimum inside
def test_every_row_right():
    fit = fit_temperature(logits=Z, labels=Z.argmax(axis=1))
    assert (fit.temperature, fit.status, fit.interval) == (BOUNDS[0], "at lower bound", None)
    assert fit.nll_after < 1e-4 < fit.nll_before
    assert any("training data" in note for note in fit.notes)


def test_every_row_that_counts_right():
    weights = np.where(Z.argmax(axis=1) == Y, 0.1, 0.0)
    fit = fit_temperature(logits=Z * 1e4, labels=Y, weights=weights)
    assert (fit.temperature, fit.status) == (BOUNDS[0], "at lower bound")


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e2])
def test_every_row_wrong(scale):
    fit = fit_temperature(logits=Z * scale, labels=Z.argmin(axis=1))
    assert (fit.temperature, fit.status, fit.interval) == (BOUNDS[1], "at upper bound", None)
    assert fit.nll_after == pytest.approx(math.log(10), rel=0.05)


def test_the_wrong_sign_does_not_turn_t_negative():
    fit = fit_temperature(logits=-Z, labels=Y)
    assert fit.status == "at upper bound"
    assert any("order" in note for note in fit.notes)


def test_constant_logits_are_not_identifiable():
    fit = fit_temperature(logits=np.full((6, 3), 7.0), labels=[0, 1, 2, 0, 1, 2])
    assert (fit.temperature, fit.status, fit.interval) == (1.0, "not identifiable", None)
    assert fit.nll_before == fit.nll_after == pytest.approx(math.log(3))
    masked = fit_temperature(logits=[[2.0, -np.inf, 2.0]] * 2, labels=[0, 2])
    assert masked.status == "not identifiable"


def test_labels_without_information_are_told():
    rng = np.random.default_rng(5)
    seen = set()
    for _ in range(6):
        fit = fit_temperature(logits=Z[:500], labels=rng.integers(0, 10, 500))
        seen.add(fit.status)
        assert any("information" in note for note in fit.notes)
        assert fit.temperature > 5
    assert seen <= {"converged", "at upper bound"}


def test_one_row():
    right = fit_temperature(logits=[[3.0, 1.0]], labels=[0])
    wrong = fit_temperature(logits=[[3.0, 1.0]], labels=[1])
    assert (right.status, wrong.status) == ("at lower bound", "at upper bound")
    inner = fit_temperature(logits=[[3.0, 2.9, -50.0]], labels=[1])
    assert inner.status == "converged"
    assert any("only 1 fit rows" in note for note in inner.notes)


def test_one_wrong_row_among_many_sure_ones():
    z = np.tile([0.0, 30.0], (1000, 1))
    fit = fit_temperature(logits=z, labels=[1] * 999 + [0])
    assert fit.temperature == pytest.approx(30 / math.log(999), rel=1e-7)  # sigmoid(30/T) = .999


@pytest.mark.parametrize("bounds", [(0.5, 2.0), (0.9, 1.1)])
def test_own_bounds_hold(bounds):
    high = fit_temperature(logits=Z * 5, labels=Y, bounds=bounds)
    low = fit_temperature(logits=Z / 5, labels=Y, bounds=bounds)
    assert (high.temperature, high.status) == (bounds[1], "at upper bound")
    assert (low.temperature, low.status) == (bounds[0], "at lower bound")
    assert high.nll_after < high.nll_before
    assert low.nll_after < low.nll_before
    assert high.notes == ("the NLL still falls at the upper bound",)
    assert low.notes == ("the NLL still falls at the lower bound",)


# ------------------------------------------------------------------ what is applied
def test_only_a_converged_temperature_is_applied():
    right, wrong = Z.argmax(axis=1), Z.argmin(axis=1)
    fits = {
        "converged": fit_temperature(logits=Z * 3, labels=Y),
        "at lower bound": fit_temperature(logits=Z, labels=right),
        "at upper bound": fit_temperature(logits=Z, labels=wrong),
        "not identifiable": fit_temperature(logits=np.ones((4, 3)), labels=[0, 1, 2, 0]),
    }
    for status, fit in fits.items():
        assert fit.status == status
        assert fit.applied == (fit.temperature if status == "converged" else 1.0)
        p = fit.probs(Z)
        wanted = np.exp(Z / fit.applied - logsumexp(Z / fit.applied, axis=1, keepdims=True))
        np.testing.assert_allclose(p, wanted, rtol=1e-9)


def test_a_fit_on_rows_that_are_all_right_does_not_blow_up_other_rows():
    """At T = 1e-4 one wrong row of 100 would make an NLL of hundreds."""
    fit = fit_temperature(logits=Z[:50] * 5, labels=Z[:50].argmax(axis=1))
    assert (fit.status, fit.temperature) == ("at lower bound", BOUNDS[0])
    z, y = Z[50:150], Z[50:150].argmax(axis=1)
    y[7] = Z[57].argmin()
    scores = row_scores(logits=z, labels=y, posthoc=fit)
    for name in ("nll", "brier", "confidence"):
        np.testing.assert_array_equal(scores[f"{name}_posthoc"], scores[name])
    report = evaluate(logits=z, labels=y, posthoc=fit)
    assert report.metrics["nll_posthoc"].value == report.metrics["nll"].value < 2
    assert report.metrics["ece_posthoc"] == report.metrics["ece"]
    assert (report.posthoc_temperature, report.posthoc_status) == (1.0, "at lower bound")
    assert report.settings["posthoc_use"] == "not applied: status 'at lower bound', so that T = 1"
    assert report.settings["posthoc"]["temperature"] == BOUNDS[0]
    applied = evaluate(logits=Z * 3, labels=Y, posthoc=fit_temperature(logits=Z * 3, labels=Y))
    assert applied.settings["posthoc_use"] == "applied"
    assert applied.posthoc_temperature == pytest.approx(3, rel=0.1)
    assert evaluate(logits=Z, labels=Y).settings["posthoc_use"] is None


# ------------------------------------------------------------------ rows
def test_masked_classes_are_legal_unless_they_are_the_label():
    z = Z.copy()
    z[:, 3] = -np.inf
    y = np.where(Y == 3, 4, Y)
    fit = fit_temperature(logits=z, labels=y)
    without = fit_temperature(logits=np.delete(Z, 3, axis=1), labels=np.where(y > 3, y - 1, y))
    assert fit.temperature == pytest.approx(without.temperature, rel=1e-9)
    z[777, y[777]] = -np.inf
    with pytest.raises(InvalidInput) as caught:
        fit_temperature(logits=z, labels=y)
    assert f"row 777, whose label is {y[777]}" in caught.value.found
    y[776] = -1
    with pytest.raises(InvalidInput) as caught:
        fit_temperature(logits=z, labels=y, ignore=(-1,))
    assert "row 777" in caught.value.found


def test_ignored_rows_do_not_count():
    z, y = Z.copy(), Y.copy()
    z[:100] = np.nan
    y[:100] = -100
    fit = fit_temperature(logits=z, labels=y, ignore=(-100,))
    assert fit.n == 1900
    assert fit.temperature == fit_temperature(logits=Z[100:], labels=Y[100:]).temperature


def test_weights_count_rows():
    weights = np.random.default_rng(0).integers(0, 4, len(Y))
    fit = fit_temperature(logits=Z * 3, labels=Y, weights=weights)
    repeated = fit_temperature(logits=np.repeat(Z * 3, weights, 0), labels=np.repeat(Y, weights))
    assert fit.temperature == pytest.approx(repeated.temperature, rel=1e-9)
    assert fit.nll_after == pytest.approx(repeated.nll_after, rel=1e-12)
    assert math.log(fit.temperature / 3) == pytest.approx(oracle(Z, Y, weights), abs=1e-7)
    # unequal weights know less than as many equal ones
    plain = fit_temperature(logits=Z * 3, labels=Y)
    assert np.diff(np.log(fit.interval)) > np.diff(np.log(plain.interval))
    scaled = fit_temperature(logits=Z * 3, labels=Y, weights=weights * 1e-200)
    assert scaled.interval == pytest.approx(fit.interval)


@pytest.mark.parametrize(
    "weights",
    [[1.0] * 3, [-1.0] + [1.0] * 1999, [np.nan] + [1.0] * 1999, [0] * 2000, [[1.0], [1.0, 2.0]]],
)
def test_bad_weights_are_refused(weights):
    with pytest.raises(InvalidInput) as caught:
        fit_temperature(logits=Z, labels=Y, weights=weights)
    assert caught.value.subject == "weights"


@pytest.mark.parametrize(
    "bounds",
    [
        (0, 10),
        (2, 10),
        (0.1, 0.9),
        (1e-4, math.inf),
        (1e-120, 10),
        (0.1, 1e120),
        (math.nan, 2),
        None,
        5.0,
        (0.1, 1.5, 2),
        ("0.5", "2"),
        "12",
        (0.5, None),
        ([0.1, 0.2], 2),
    ],
)
def test_bad_bounds_are_refused(bounds):
    with pytest.raises(InvalidInput) as caught:
        fit_temperature(logits=Z, labels=Y, bounds=bounds)
    assert caught.value.subject == "bounds"


def test_large_sets_begin_on_a_part(monkeypatch):
    plain = fit_temperature(logits=Z * 20, labels=Y)
    monkeypatch.setattr("temperance.evaluation.nll_curve._SAMPLE", 500)
    monkeypatch.setattr("temperance.evaluation.nll_curve._LEAST", 60)
    monkeypatch.setattr("temperance.evaluation.nll_curve._BLOCK", 640)
    monkeypatch.setattr("temperance.evaluation.logit_rows._PIECE", 1500)
    fit = fit_temperature(logits=Z * 20, labels=Y)
    assert fit.temperature == pytest.approx(plain.temperature, rel=1e-9)
    assert fit.nll_after == pytest.approx(plain.nll_after, rel=1e-12)


@pytest.mark.parametrize("ignored", [False, True])
@pytest.mark.parametrize("form", ["rows", "rows as tensor, half", "dense", "class axis first"])
def test_memory_stays_bounded(form, ignored):
    import tracemalloc

    z = np.random.default_rng(0).normal(size=(60_000, 100)).astype(np.float32)
    y, axis, most = z.argmin(1) // 2, None, z.nbytes / 2
    if form.startswith("rows as"):
        z = torch.as_tensor(z).bfloat16()
    elif form == "dense":
        z, y, axis = z.reshape(60, 100, 20, 50), y.reshape(60, 20, 50), 1
    elif form.startswith("class"):
        z, axis = z.reshape(100, 60_000), 0
    if ignored:
        y.reshape(-1)[::7] = 255
    tracemalloc.start()
    fit_temperature(logits=z, labels=y, axis=axis, ignore=255)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < most  # a float64 copy would be four times that


# ------------------------------------------------------------------ the interval, the record
def test_the_interval_covers_the_truth():
    covered = []
    for seed in range(200):
        z, y = sample(300, 5, seed=seed)
        low, high = fit_temperature(logits=z * 3, labels=y).interval
        covered.append(low <= 3 <= high)
    assert 0.91 <= np.mean(covered) <= 0.99


def test_single_logits_that_look_like_probabilities_get_a_note():
    p = np.random.default_rng(0).uniform(0, 1, 200)
    fit = fit_temperature(logits=p, labels=(p > 0.5).astype(int))
    assert any("log(p / (1 - p))" in note for note in fit.notes)


def test_the_record_goes_through_json():
    fit = fit_temperature(logits=Z, labels=Y)
    assert from_dict(to_dict(fit), TemperatureFit) == fit


def test_probs_and_apply_temperature():
    fit = fit_temperature(logits=Z * 6, labels=Y)
    p = fit.probs(Z * 6)
    np.testing.assert_allclose(p.sum(axis=1), 1, rtol=1e-12)
    assert nll(probs=p, labels=Y) == pytest.approx(fit.nll_after)
    half = torch.tensor([6e4], dtype=torch.float16)
    assert apply_temperature(half, 0.05)[0] == pytest.approx(1.2e6)
    assert apply_temperature([4.0], torch.tensor(2.0)).tolist() == [2.0]
    for wrong in (0.0, -1.0, math.nan, math.inf, None, "2", torch.ones(2)):
        with pytest.raises(InvalidInput):
            apply_temperature([1.0], wrong)
    for logits in ([[1.0], [1.0, 2.0]], ["a"]):
        with pytest.raises(InvalidInput) as caught:
            apply_temperature(logits, 2.0)
        assert caught.value.subject == "logits"
    with pytest.raises(InvalidInput):
        TemperatureFit(-1.0, "converged", None, 1.0, 1.0, 5)


def test_no_global_random_state_moves(rng_guard):
    with rng_guard():
        fit_temperature(logits=Z, labels=Y)
