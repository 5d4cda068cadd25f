"""Differences of ECEs: do their intervals hold the difference that endless rows would give?

The arms are drawn so that it is known: an arm sees its class through Gaussian noise, its logits are
those of Bayes' rule (which are calibrated exactly) times a factor, and its probability of being
right is known for every row, so that the true ECE is a mean without the chance of the labels.

``python tests/evaluation/test_ece_bias.py`` prints the table of coverages that the docstring of
``temperance.evaluation.compare`` speaks of.
"""

import math
from dataclasses import dataclass

import numpy as np
import pytest
from scipy.special import softmax

from temperance.evaluation import arm_mean, paired_difference, row_scores, verdict
from temperance.evaluation.ece_bias import bias_range, folded_bias


@dataclass(frozen=True)
class Arm:
    """How far apart the classes are, the factor on the logits, and the noise that seeds share."""

    strength: float
    factor: float = 1.0
    classes: int = 10
    shared: float = 0.9

    def logits(self, y, common, rng):
        """Calibrated logits of one seed; times ``factor`` they are those of the arm."""
        x = math.sqrt(self.shared) * common
        x = x + math.sqrt(1 - self.shared) * rng.normal(size=common.shape)
        x[np.arange(len(y)), y] += self.strength
        return x * self.strength

    def true_ece(self, rows=200_000):
        rng = np.random.default_rng(0)
        total = np.zeros(15)
        for _ in range(10):
            y = rng.integers(0, self.classes, rows // 10)
            z = self.logits(y, rng.normal(size=(len(y), self.classes)), rng)
            sure = softmax(z * self.factor, axis=1).max(axis=1)
            gap = sure - softmax(z, axis=1).max(axis=1)
            total += np.bincount(np.ceil(sure * 15).astype(int) - 1, weights=gap, minlength=15)
        return np.abs(total).sum() / rows


def draw(arms, n, *, seeds=3, trial=0):
    """Scores of every arm and seed on the same rows."""
    rng = np.random.default_rng(trial)
    y = rng.integers(0, arms[0].classes, n)
    common = rng.normal(size=(n, arms[0].classes))
    return [
        [row_scores(logits=a.logits(y, common, rng) * a.factor, labels=y) for _ in range(seeds)]
        for a in arms
    ]


def simulate(arms, n, *, trials, seeds=3):
    """Share of intervals that hold the truth, share of wrong verdicts, mean half-width."""
    truth = arms[0].true_ece() - arms[1].true_ece()
    held, wrong, width = [], [], []
    for trial in range(trials):
        found = paired_difference(*draw(arms, n, seeds=seeds, trial=trial), metric="ece")
        low, high = found.interval
        assert low <= found.value <= high
        held.append(low <= truth <= high)
        width.append((high - low) / 2)
        said = verdict(found, better="lower")
        wrong.append((said == "better" and truth >= 0) or (said == "worse" and truth <= 0))
    return np.mean(held), np.mean(wrong), np.mean(width)


CALIBRATED, SURE = Arm(2.0), Arm(2.0, 1.3)
WEAK, STRONG = Arm(1.25), Arm(3.5, 1.3)
CASES = {
    "x1.0 v x1.3": (CALIBRATED, SURE),
    "x1.0 v x1.05": (CALIBRATED, Arm(2.0, 1.05)),
    "x1.0 v x2.0": (CALIBRATED, Arm(2.0, 2.0)),
    "x1.0 v x1.0": (CALIBRATED, CALIBRATED),
    "x1.3 v x0.8": (SURE, Arm(2.0, 0.8)),
    "calibrated, weak v strong": (WEAK, Arm(3.5)),
    "weak v strong x1.3": (WEAK, STRONG),
    "strong v weak x1.3": (Arm(3.0), Arm(1.25, 1.3)),
    "x1.0 v x1.3, 2 classes": (Arm(1.0, 1.0, 2), Arm(1.0, 1.3, 2)),
    "x1.0 v x1.3, 100 classes": (Arm(2.5, 1.0, 100), Arm(2.5, 1.3, 100)),
}


@pytest.mark.parametrize("case", ["x1.0 v x1.3", "weak v strong x1.3"])
@pytest.mark.parametrize("n", [100, 360])
def test_the_interval_covers_the_difference_of_endless_rows(case, n):
    held, wrong, width = simulate(CASES[case], n, trials=60)
    assert held >= 0.9
    assert wrong <= 0.05
    assert width < 1.7 / math.sqrt(n)  # that of rows and seeds alone is about 1


def test_many_seeds_do_not_hide_the_bias():
    """Seeds take out the chance of the trainings, but not what few rows do to all of them."""
    held, _, _ = simulate(CASES["x1.0 v x1.3"], 200, trials=25, seeds=8)
    assert held >= 0.88


def test_a_worse_arm_is_not_called_better_for_being_accurate():
    """The weak arm is calibrated and has the larger ECE by its value: few rows push it up."""
    arms = WEAK, STRONG
    assert arms[0].true_ece() < 1e-12 < 0.005 < arms[1].true_ece()
    values = []
    for trial in range(10):
        found = paired_difference(*draw(arms, 360, trial=trial), metric="ece")
        values.append(found.value)
        assert verdict(found, better="lower") != "worse"
        assert found.method.endswith("less the bias of few rows")
    assert min(values) > 0


def test_a_clear_difference_stays_clear():
    arms = CALIBRATED, Arm(2.0, 2.0)
    found = paired_difference(*draw(arms, 1000), metric="ece")
    assert verdict(found, better="lower") == "better"


def test_the_mean_of_a_calibrated_arm_reaches_down_to_zero():
    held = []
    for trial in range(40):
        (runs,) = draw([CALIBRATED], 200, trial=trial)
        found = arm_mean(runs, metric="ece")
        assert found.interval[0] <= found.value <= found.interval[1]
        held.append(found.interval[0] == 0.0)
    assert np.mean(held) >= 0.9
    (runs,) = draw([Arm(2.0, 2.0)], 1000)
    low, high = arm_mean(runs, metric="ece").interval
    assert 0.05 < low < Arm(2.0, 2.0).true_ece() < high


# ------------------------------------------------------------------ the bias
def test_the_bias_of_an_absolute_value_is_that_of_draws():
    rng = np.random.default_rng(0)
    for mu, s in ((0.0, 1.0), (0.3, 0.5), (-2.0, 1.0), (0.01, 0.2)):
        x = mu + s * rng.normal(size=400_000)
        wanted = np.abs(x).mean() - abs(mu)
        assert folded_bias(np.array([mu]), np.array([s]))[0] == pytest.approx(wanted, abs=4e-3 * s)
    assert folded_bias(np.array([0.0, 0.4]), np.zeros(2)).tolist() == [0.0, 0.0]


def gaps_of(rng, n, shift=0.0):
    return rng.integers(0, 4, n), rng.normal(size=n) * 0.3 + shift


def test_the_range_of_the_bias_holds_the_bias():
    """Of a run in four calibrated bins, judged again and again."""
    rng = np.random.default_rng(1)
    n = 400
    values = [
        np.abs(np.bincount(i, weights=g, minlength=4)).sum() / n
        for i, g in (gaps_of(rng, n) for _ in range(2000))
    ]
    low, high = bias_range([gaps_of(rng, n)], bins=4)
    assert low < 0.7 * np.mean(values)  # the true ECE is 0
    assert high == pytest.approx(np.mean(values), rel=0.1)


def test_arms_that_are_alike_are_biased_alike():
    rng = np.random.default_rng(2)
    index, gap = gaps_of(rng, 500)
    run = (index, gap)
    assert bias_range([run], [run], bins=4) == (0.0, 0.0)
    near = (index, gap + 1e-4 * rng.normal(size=500))
    low, high = bias_range([run], [near], bins=4)
    assert -1e-4 < low < 0 < high < 1e-4
    other = gaps_of(rng, 500)
    low, high = bias_range([run, run], [other, other], bins=4)
    assert low < -0.005 < 0.005 < high
    assert (-high, -low) == pytest.approx(bias_range([other], [run], bins=4))


def test_clear_gaps_have_no_bias():
    run = gaps_of(np.random.default_rng(3), 4000, shift=0.5)
    low, high = bias_range([run], bins=6)
    assert 0 <= low <= high < 1e-12


def table():
    """Print the coverages; takes some minutes."""
    for name, arms in CASES.items():
        for n, trials in ((100, 300), (360, 300), (1000, 200), (10_000, 40)):
            held, wrong, width = simulate(arms, n, trials=trials)
            figures = f"held {held:.2f}  wrong verdict {wrong:.2f}  half-width {width:.3f}"
            print(f"{name:28s} n={n:<6d} {figures}", flush=True)


if __name__ == "__main__":
    table()
