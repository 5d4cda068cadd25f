"""Paired differences: values, intervals, verdicts, and refusals of what is not paired."""

import math

import numpy as np
import pytest
from scipy import stats

from temperance.errors import InvalidInput
from temperance.evaluation import (
    BETTER,
    ONE_SEED,
    arm_mean,
    ece,
    paired_difference,
    row_scores,
    verdict,
)
from temperance.evaluation.posthoc import TemperatureFit
from temperance.records import Estimate

FIT = TemperatureFit(2.0, "converged", None, 1.0, 1.0, 10)


def arm(seeds=3, *, n=400, sharpness=1.0, noise=0.3, first=0):
    """Runs that share their rows; each seed adds noise of its own to the logits."""
    rows = np.random.default_rng(99)
    z = rows.normal(size=(n, 4)) * 2
    y = (z + rows.gumbel(size=z.shape)).argmax(axis=1)
    return {
        s: row_scores(
            logits=(z + noise * np.random.default_rng(s + first).normal(size=z.shape)) * sharpness,
            labels=y,
            posthoc=FIT,
        )
        for s in range(seeds)
    }


A, B = arm(sharpness=3.0), arm(first=100)


@pytest.mark.parametrize("metric", ["accuracy", "nll", "nll_posthoc", "brier", "brier_posthoc"])
def test_means_over_rows(metric):
    name = "correct" if metric == "accuracy" else metric
    d = np.stack([A[s][name] - B[s][name] for s in A])
    found = paired_difference(A, B, metric=metric)
    assert found.value == pytest.approx(d.mean())
    seeds = stats.t.ppf(0.975, 2) * stats.sem(d.mean(axis=1))
    rows = stats.norm.ppf(0.975) * stats.sem(d.mean(axis=0))
    half = math.hypot(seeds, rows)
    assert found.interval == pytest.approx((d.mean() - half, d.mean() + half))
    assert "3 seeds" in found.method
    assert "400 rows" in found.method


@pytest.mark.parametrize("metric", ["ece", "ece_posthoc"])
def test_ece_differences(metric):
    ending = metric.removeprefix("ece")

    def value(scores):
        c, hits = scores[f"confidence{ending}"], scores["correct"]
        index = np.clip(np.ceil(c * 15).astype(int) - 1, 0, 14)
        return sum(abs((c - hits)[index == b].sum()) for b in range(15)) / len(c)

    per_seed = [value(A[s]) - value(B[s]) for s in A]
    found = paired_difference(A, B, metric=metric)
    assert found.value == pytest.approx(np.mean(per_seed))
    half = (found.interval[1] - found.interval[0]) / 2
    assert half > stats.t.ppf(0.975, 2) * stats.sem(per_seed)
    assert "bootstrap over 400 rows" in found.method
    assert paired_difference(A, B, metric=metric) == found


def test_the_mean_of_an_arm():
    found = arm_mean(B, metric="nll")
    assert found.value == pytest.approx(np.mean([B[s]["nll"].mean() for s in B]))
    assert found.interval[0] < found.value < found.interval[1]
    one = arm_mean([B[0]], metric="ece")
    rng = np.random.default_rng(99)
    z = rng.normal(size=(400, 4)) * 2
    y = (z + rng.gumbel(size=z.shape)).argmax(axis=1)
    noisy = z + 0.3 * np.random.default_rng(100).normal(size=z.shape)
    assert one.value == pytest.approx(ece(logits=noisy, labels=y))


def test_pairing_takes_out_what_the_arms_share():
    paired = paired_difference(A, B, metric="accuracy")
    alone = [arm_mean(runs, metric="accuracy") for runs in (A, B)]
    width = paired.interval[1] - paired.interval[0]
    assert width < sum(e.interval[1] - e.interval[0] for e in alone)


def test_an_arm_against_itself():
    for metric in BETTER:
        found = paired_difference(A, A, metric=metric)
        assert found.value == 0
        assert found.interval == (0, 0)
        assert verdict(found, better=BETTER[metric]) == "no difference shown"


def test_the_interval_covers_a_difference_that_is_zero():
    covered = []
    for trial in range(120):
        a = arm(3, n=100, noise=0.5, first=1000 * trial)
        b = arm(3, n=100, noise=0.5, first=1000 * trial + 500)
        low, high = paired_difference(a, b, metric="nll").interval
        covered.append(low <= 0 <= high)
    assert np.mean(covered) >= 0.93


def test_seeds_are_paired_by_name():
    shuffled = {s: B[s] for s in (2, 0, 1)}
    assert paired_difference(A, shuffled, metric="nll") == paired_difference(A, B, metric="nll")
    as_lists = paired_difference(list(A.values()), list(B.values()), metric="nll")
    assert as_lists == paired_difference(A, B, metric="nll")


def test_one_seed_claims_nothing():
    found = paired_difference([A[0]], [B[0]], metric="nll")
    assert found.method.startswith(ONE_SEED)
    assert found.interval[0] > 0
    assert verdict(found, better="lower") == "no difference shown"
    assert verdict(paired_difference(A, B, metric="nll"), better="lower") == "worse"


def test_infinite_scores_have_no_interval():
    bad = {s: {**A[s], "nll": np.where(np.arange(400) == 7, np.inf, A[s]["nll"])} for s in A}
    found = paired_difference(bad, B, metric="nll")
    assert found.value == math.inf
    assert found.interval is None
    assert math.isnan(paired_difference(bad, bad, metric="nll").value)
    assert verdict(found, better="lower") == "no difference shown"


@pytest.mark.parametrize(
    ("interval", "better", "word"),
    [
        ((0.1, 0.2), "higher", "better"),
        ((0.1, 0.2), "lower", "worse"),
        ((-0.2, -0.1), "higher", "worse"),
        ((-0.2, -0.1), "lower", "better"),
        ((-0.1, 0.1), "lower", "no difference shown"),
        ((0.0, 0.1), "higher", "no difference shown"),
        (None, "higher", "no difference shown"),
    ],
)
def test_verdicts(interval, better, word):
    assert verdict(Estimate(0.0, interval), better=better) == word


def test_unpaired_arms_are_refused():
    other = {s: {**B[s], "label": np.roll(B[s]["label"], 1)} for s in B}
    short = {s: {k: v[:-1] for k, v in B[s].items()} for s in B}
    for baseline in (other, short, arm(2), {s + 1: B[s] for s in B}, list(B.values())[:2]):
        with pytest.raises(InvalidInput) as caught:
            paired_difference(A, baseline, metric="nll")
        assert caught.value.subject == "arms"


@pytest.mark.parametrize("metric", ["f1", "correct", "label"])
def test_unknown_metrics_are_refused(metric):
    with pytest.raises(InvalidInput) as caught:
        paired_difference(A, B, metric=metric)
    assert caught.value.subject == "metric"


def test_what_is_missing_is_named():
    rows = row_scores(logits=[[2.0, 0.0]] * 3, labels=[0, 1, 0])
    with pytest.raises(InvalidInput) as caught:
        arm_mean([rows], metric="nll_posthoc")
    assert "nll_posthoc" in caught.value.expected
    for runs in ([], {}, [np.zeros(3)]):
        with pytest.raises(InvalidInput):
            arm_mean(runs, metric="nll")
    with pytest.raises(InvalidInput):
        verdict(Estimate(0.0), better="bigger")


@pytest.mark.parametrize("nll", [[0.1, 0.2], [[0.1], [0.2, 0.3], [0.4]], ["a", "b", "c"]])
def test_columns_that_are_not_one_number_per_row_are_refused(nll):
    with pytest.raises(InvalidInput) as caught:
        arm_mean([{"label": np.zeros(3), "nll": nll}], metric="nll")
    assert caught.value.subject == "column 'nll'"


def test_intervals_of_an_arm_end_where_its_metric_ends():
    rng = np.random.default_rng(0)
    runs = [
        {
            "label": np.zeros(40),
            "correct": (rng.random(40) < p) * 1.0,
            "nll": rng.exponential(s, 40),
        }
        for p, s in ((1.0, 0.01), (0.8, 1.0), (0.98, 0.01))
    ]
    accuracy, nll = (arm_mean(runs, metric=m) for m in ("accuracy", "nll"))
    assert accuracy.interval[1] == 1.0
    assert nll.interval[0] == 0.0
    assert accuracy.interval[0] < accuracy.value <= 1.0
