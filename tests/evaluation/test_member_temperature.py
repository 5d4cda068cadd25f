"""Post-hoc temperatures of an ensemble, before and after averaging."""

import numpy as np
import pytest

from temperance.errors import InvalidInput
from temperance.evaluation import fit_temperature, nll, pooled_log_probs
from temperance.evaluation.member_temperature import (
    POOLING,
    apply_member_temperatures,
    fit_member_temperature,
)


def rows(members=3, n=400, classes=4, seed=0):
    """Members that are too sure, with errors of their own."""
    rng = np.random.default_rng(seed)
    z = 1.5 * rng.normal(size=(n, classes))
    y = (z + rng.gumbel(size=z.shape)).argmax(axis=1)
    return 4 * (z + 0.7 * rng.normal(size=(members, n, classes))), y


def softmax(z):
    p = np.exp(z - z.max(axis=-1, keepdims=True))
    return p / p.sum(axis=-1, keepdims=True)


def test_before_fits_every_member_by_itself():
    z, y = rows()
    found = fit_member_temperature(z, y, when="before")
    alone = [fit_temperature(logits=one, labels=y).temperature for one in z]
    assert [fit.temperature for fit in found.fits] == pytest.approx(alone)
    expected = np.mean([softmax(one / t) for one, t in zip(z, alone, strict=True)], axis=0)
    np.testing.assert_allclose(np.exp(found.log_probs(z)), expected, atol=1e-12)
    assert found.nll_after == pytest.approx(-np.log(expected[np.arange(len(y)), y]).mean())


def test_after_fits_their_average():
    z, y = rows()
    found = fit_member_temperature(z, y)
    assert found.when == "after"
    pooled = pooled_log_probs(logits=z)
    (fit,) = found.fits
    assert fit.temperature == pytest.approx(fit_temperature(logits=pooled, labels=y).temperature)
    expected = softmax(np.log(softmax(z).mean(axis=0)) / fit.temperature)
    np.testing.assert_allclose(np.exp(found.log_probs(z)), expected, atol=1e-12)
    assert found.nll_before == pytest.approx(nll(logits=pooled, labels=y))
    assert found.nll_after <= found.nll_before
    assert found.nll_after == pytest.approx(fit.nll_after)


def test_averaging_calibrated_members_is_not_sure_enough():
    z, y = rows(members=6)
    before, after = (fit_member_temperature(z, y, when=when) for when in POOLING)
    again = fit_temperature(logits=before.log_probs(z), labels=y)
    assert again.temperature < 1  # wants to be sharpened
    assert after.nll_after < before.nll_before


@pytest.mark.parametrize("when", POOLING)
def test_one_member_is_the_plain_fit_and_rows_are_read_by_themselves(when):
    z, y = rows(members=1)
    found = fit_member_temperature(z, y, when=when)
    t = fit_temperature(logits=z[0], labels=y).temperature
    np.testing.assert_allclose(np.exp(found.log_probs(z)), softmax(z[0] / t), atol=1e-9)
    np.testing.assert_allclose(found.log_probs(z[:, :7]), found.log_probs(z)[:7])


@pytest.mark.parametrize("when", POOLING)
def test_a_t_that_did_not_converge_is_not_applied(when):
    z = np.array([[[5.0, 0.0]] * 4] * 2)
    found = fit_member_temperature(z, [0] * 4, when=when)
    assert all(fit.status == "at lower bound" for fit in found.fits)
    np.testing.assert_allclose(found.log_probs(z), pooled_log_probs(logits=z))


@pytest.mark.parametrize("when", POOLING)
def test_what_does_not_fit_is_refused(when):
    z, y = rows(n=20)
    found = fit_member_temperature(z, y, when=when)
    for call, subject in (
        (lambda: fit_member_temperature(z[0], y, when=when), "logits"),
        (lambda: found.log_probs(z[:2]), "logits"),
        (lambda: found.log_probs(z[0]), "logits"),
        (lambda: fit_member_temperature(z, y, when="during"), "when"),
    ):
        with pytest.raises(InvalidInput) as caught:
            call()
        assert caught.value.subject == subject
    with pytest.raises(InvalidInput):
        fit_member_temperature(z, y[:5], when=when)


@pytest.mark.parametrize("when", ["before", "after"])
def test_given_temperatures_do_what_the_fit_does(when):
    generator = np.random.default_rng(0)
    z, y = generator.normal(size=(3, 40, 4)), generator.integers(0, 4, 40)
    found = fit_member_temperature(z, y, when=when)
    given = [fit.applied for fit in found.fits]
    np.testing.assert_array_equal(
        apply_member_temperatures(z, given, when=when), found.log_probs(z)
    )
    with pytest.raises(InvalidInput) as caught:
        apply_member_temperatures(z, [*given, 1.0], when=when)
    assert caught.value.subject == "temperatures"
    with pytest.raises(InvalidInput):
        apply_member_temperatures(z, given, when="during")
    with pytest.raises(InvalidInput):
        apply_member_temperatures(z, [0.0] * len(given), when=when)
