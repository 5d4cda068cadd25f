"""OOD scores point one way, and are judged as scikit-learn does it."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score, roc_auc_score

from temperance.errors import InvalidInput
from temperance.evaluation import (
    OOD_SCORES,
    energy,
    max_logit,
    member_uncertainty,
    msp,
    mutual_information,
    ood_metrics,
    predictive_entropy,
)
from temperance.evaluation.detection import _of_counts

SETTINGS = settings(deadline=None, max_examples=60, derandomize=True)
ONE_MODEL = [name for name in OOD_SCORES if name != "mutual_information"]
FIGURES = ("auroc", "aupr_in", "aupr_out", "fpr95_in", "fpr95_out")


def logsumexp(row):
    top = max(row)
    return top + math.log(math.fsum(math.exp(v - top) for v in row))


# ------------------------------------------------------------------ scores
@SETTINGS
@given(st.integers(0, 999), st.integers(2, 6), st.sampled_from([0.1, 1.0, 7.0, 1000.0]))
def test_scores_are_those_of_the_loops(seed, c, temperature):
    z = np.random.default_rng(seed).normal(size=(5, c)) * 4
    for row, values in enumerate(z.tolist()):
        scaled = [v / temperature for v in values]
        p = [math.exp(v - logsumexp(scaled)) for v in scaled]
        expected = {
            msp: 1 - max(p),
            predictive_entropy: -math.fsum(v * math.log(v) for v in p if v > 0),
            energy: -temperature * logsumexp(scaled),
        }
        for score, value in expected.items():
            found = score(logits=z, temperature=temperature)[row]
            assert found == pytest.approx(value, rel=1e-9, abs=1e-12)
    np.testing.assert_array_equal(max_logit(logits=z), -z.max(axis=1))


@pytest.mark.parametrize("name", ONE_MODEL)
@pytest.mark.parametrize("ratio", [1, 5])
def test_higher_is_more_ood(name, ratio):
    """Separable rows: sure in distribution, unsure outside; 1:1 and 5:1."""
    rng = np.random.default_rng(0)
    inside, outside = rng.normal(size=(100 * ratio, 4)) * 0.1, rng.normal(size=(100, 4)) * 0.1
    inside[np.arange(len(inside)), rng.integers(0, 4, len(inside))] += 9
    found = ood_metrics(
        id_scores=OOD_SCORES[name](logits=inside),
        ood_scores=OOD_SCORES[name](logits=outside),
        bootstrap=20,
    )
    for figure in ("auroc", "aupr_in", "aupr_out"):
        assert getattr(found, figure).value == 1.0
        assert getattr(found, figure).interval == (1.0, 1.0)
    for figure in ("fpr95_in", "fpr95_out"):
        assert getattr(found, figure).value == 0.0
    assert found.ratio == 1 / ratio
    assert not found.note


def test_members_that_disagree_are_more_ood():
    agree = np.tile([[0.9, 0.1]], (3, 50, 1))
    differ = np.stack([[[0.9, 0.1]] * 50, [[0.1, 0.9]] * 50, [[0.5, 0.5]] * 50])
    found = ood_metrics(
        id_scores=mutual_information(probs=agree),
        ood_scores=mutual_information(probs=differ),
        bootstrap=0,
    )
    assert found.auroc.value == 1.0
    z = np.log(differ)
    at_t = mutual_information(logits=z, temperature=3.0)
    np.testing.assert_allclose(at_t, member_uncertainty(logits=z / 3).mutual_information)
    np.testing.assert_allclose(mutual_information(probs=differ, temperature=3.0), at_t)
    np.testing.assert_allclose(mutual_information(probs=agree[:1], temperature=2.0), 0.0)


def test_scores_tell_sure_rows_apart():
    """In single precision all these softmaxes are 1."""
    z = np.array([[0.0, m] for m in (20.0, 40.0, 80.0, 400.0)], dtype=np.float32)
    for score in (msp, predictive_entropy):
        found = score(logits=z)
        assert (np.diff(found) < 0).all()
    assert msp(logits=z)[3] == pytest.approx(math.exp(-400), rel=1e-5)


def test_temperatures_at_the_ends():
    z = np.array([[3.0, 1.0, -2.0], [0.5, 0.4, -np.inf]])
    np.testing.assert_allclose(energy(logits=z, temperature=1e-300), max_logit(logits=z))
    assert (msp(logits=z, temperature=1e-300) == 0).all()
    np.testing.assert_allclose(msp(logits=z[:1], temperature=1e9), 2 / 3)
    np.testing.assert_allclose(predictive_entropy(logits=z[:1], temperature=1e9), math.log(3))


def test_probabilities_and_two_classes():
    z = np.random.default_rng(0).normal(size=30) * 3
    p = 1 / (1 + np.exp(-z))
    for score in (msp, predictive_entropy):
        one = score(logits=z)
        np.testing.assert_allclose(score(probs=p), one, atol=1e-12)
        np.testing.assert_allclose(score(logits=np.stack([0 * z, z], axis=1)), one, atol=1e-12)
        np.testing.assert_allclose(score(probs=p, temperature=2.0), score(logits=z / 2), atol=1e-9)
    assert predictive_entropy(probs=[[1.0, 0.0]])[0] == 0.0


@pytest.mark.parametrize("score", [max_logit, energy])
@pytest.mark.parametrize("logits", [[3.0, -3.0], [[3.0], [-3.0]]])
def test_the_level_of_one_logit_is_no_score(score, logits):
    """A sure class 0 has a low logit: it is not unfamiliar."""
    with pytest.raises(InvalidInput) as caught:
        score(logits=logits)
    assert caught.value.subject == "logits"


@pytest.mark.parametrize("name", OOD_SCORES)
@pytest.mark.parametrize("z", [[[np.nan, 1.0]], [[0.25, 0.75], [0.5, 0.5]], [], "a", [[np.inf, 0]]])
def test_bad_logits_are_refused(name, z):
    z = [z] if name == "mutual_information" and z not in ([], "a") else z
    with pytest.raises(InvalidInput):
        OOD_SCORES[name](logits=z)


@pytest.mark.parametrize("name", [n for n in OOD_SCORES if n != "max_logit"])
@pytest.mark.parametrize("temperature", [0, -1.0, math.inf, math.nan, "1", None])
def test_temperatures_are_checked(name, temperature):
    z = np.zeros((2, 3, 2)) if name == "mutual_information" else np.zeros((3, 2))
    with pytest.raises(InvalidInput) as caught:
        OOD_SCORES[name](logits=z, temperature=temperature)
    assert caught.value.subject == "temperature"


# ------------------------------------------------------------------ how well they do
def loops(inside, outside):
    """From the definitions: every score is a threshold."""
    inside, outside = list(inside), list(outside)
    pairs = [(a > b) + 0.5 * (a == b) for a in outside for b in inside]

    def one_way(positive, negative):  # higher is more positive
        ap, before, fpr = 0.0, 0.0, None
        for t in sorted({*positive, *negative}, reverse=True):
            hits, false = sum(v >= t for v in positive), sum(v >= t for v in negative)
            recall = hits / len(positive)
            ap += (recall - before) * hits / (hits + false)
            before = recall
            if fpr is None and recall >= 0.95:
                fpr = false / len(negative)
        return ap, fpr

    ap_out, fpr_out = one_way(outside, inside)
    ap_in, fpr_in = one_way([-v for v in inside], [-v for v in outside])
    return dict(
        zip(FIGURES, (sum(pairs) / len(pairs), ap_in, ap_out, fpr_in, fpr_out), strict=True)
    )


scores = st.lists(st.integers(0, 12), min_size=1, max_size=40)


@SETTINGS
@given(scores, scores)
def test_figures_are_those_of_the_loops(inside, outside):
    found = ood_metrics(id_scores=inside, ood_scores=outside, bootstrap=0)
    for name, value in loops(inside, outside).items():
        assert getattr(found, name).value == pytest.approx(value, abs=1e-12), name


@SETTINGS
@given(scores, scores, st.integers(0, 99))
def test_replicates_are_scikit_learn_s_with_weights(inside, outside, seed):
    rng = np.random.default_rng(seed)
    both = np.array([*inside, *outside], dtype=float)
    is_ood = np.repeat([0, 1], [len(inside), len(outside)])
    w = np.concatenate(
        [
            np.bincount(rng.integers(0, len(side), len(side)), minlength=len(side))
            for side in (inside, outside)
        ]
    ).astype(float)
    _, group = np.unique(both, return_inverse=True)
    counts = [np.bincount(group[is_ood == k], w[is_ood == k], group.max() + 1) for k in (0, 1)]
    found = _of_counts(*counts)
    kept = np.repeat(np.arange(len(w)), w.astype(int))
    y, s = is_ood[kept], both[kept]
    assert found["auroc"] == pytest.approx(roc_auc_score(y, s), abs=1e-12)
    assert found["aupr_out"] == pytest.approx(average_precision_score(y, s), abs=1e-12)
    assert found["aupr_in"] == pytest.approx(average_precision_score(1 - y, -s), abs=1e-12)
    direct = loops(s[y == 0], s[y == 1])
    assert found["fpr95_in"] == pytest.approx(direct["fpr95_in"])
    assert found["fpr95_out"] == pytest.approx(direct["fpr95_out"])


def test_the_ratio_moves_aupr_and_not_auroc():
    rng = np.random.default_rng(0)
    inside, outside = rng.normal(size=500), rng.normal(size=500) + 1
    one = ood_metrics(id_scores=inside, ood_scores=outside, bootstrap=0)
    five = ood_metrics(id_scores=np.tile(inside, 5), ood_scores=outside, bootstrap=0)
    assert five.auroc.value == pytest.approx(one.auroc.value)
    assert five.fpr95_in.value == pytest.approx(one.fpr95_in.value)
    assert five.aupr_out.value < one.aupr_out.value - 0.1
    assert five.aupr_in.value > one.aupr_in.value + 0.1
    assert (one.ratio, five.ratio) == (1.0, 0.2)


def test_the_wrong_way_round_is_said():
    found = ood_metrics(id_scores=[0.9, 0.8], ood_scores=[0.1, 0.2], bootstrap=0)
    assert found.auroc.value == 0.0
    assert found.note
    assert not ood_metrics(id_scores=[1.0, 1.0], ood_scores=[1.0], bootstrap=0).note


def test_intervals_are_seeded_and_hold_the_values(rng_guard):
    rng = np.random.default_rng(0)
    given_ = {"id_scores": rng.normal(size=300), "ood_scores": rng.normal(size=100) + 1}
    with rng_guard():
        found = ood_metrics(**given_, bootstrap=200)
    for name in FIGURES:
        low, high = getattr(found, name).interval
        assert 0 <= low <= getattr(found, name).value <= high <= 1
        assert low < high
    assert ood_metrics(**given_, bootstrap=200) == found
    assert ood_metrics(**given_, bootstrap=200, seed=1).auroc.interval != found.auroc.interval
    # DeLong's standard error of this AUROC
    above = given_["ood_scores"][:, None] > given_["id_scores"]
    variances = [above.mean(axis=axis).var(ddof=1) for axis in (0, 1)]
    error = math.sqrt(variances[0] / 300 + variances[1] / 100)
    width = found.auroc.interval[1] - found.auroc.interval[0]
    assert width == pytest.approx(2 * 1.96 * error, rel=0.2)
    assert ood_metrics(**given_, bootstrap=0).auroc.interval is None


@pytest.mark.parametrize(
    "given",
    [
        {"id_scores": [], "ood_scores": [1.0]},
        {"id_scores": [1.0], "ood_scores": []},
        {"id_scores": [1.0, np.nan], "ood_scores": [1.0]},
        {"id_scores": [1.0], "ood_scores": [np.inf]},
        {"id_scores": [[1.0, 2.0]], "ood_scores": [1.0]},
        {"id_scores": ["a"], "ood_scores": [1.0]},
        {"id_scores": [1.0], "ood_scores": [1.0], "bootstrap": 1},
        {"id_scores": [1.0], "ood_scores": [1.0], "seed": -1},
    ],
)
def test_bad_scores_are_refused(given):
    with pytest.raises(InvalidInput):
        ood_metrics(**given)
