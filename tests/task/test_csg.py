"""CSG: the public code's values, an exact oracle, hard numbers, odd classes, honest records."""

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import t

from temperance.errors import InvalidInput
from temperance.labels import ClassMap
from temperance.records import Features, dumps, loads
from temperance.task import csg as csg_of_room
from temperance.task import csg_record
from temperance.task.csg import csg
from temperance.task.spectrum import (
    ball_log_volume,
    cumulative_gradient,
    laplacian_eigenvalues,
)


def blobs(n, d, classes, *, std=0.15, scale=1.0, seed=0):
    rng = np.random.default_rng(seed)
    y = np.arange(n) % classes
    centres = rng.normal(0, std, (classes, d))
    return (centres[y] + rng.normal(0, 1, (n, d))) * scale, y


def measure(x, y, *args, **settings):
    return csg(Features.from_arrays(x, y), *args, **settings)


def small(n=40, classes=3, d=4, seed=1):
    return blobs(n, d, classes, std=1.0, seed=seed)


# ------------------------------------------------------------------ oracle: loops over fractions
def oracle(x, y, k, weighting="parzen"):
    """All rows drawn; distances, volumes and sums are exact, only the eigenvalues are floats."""
    exact = [[Fraction(float(v)) for v in row] for row in x]
    classes = sorted(set(y.tolist()))
    total = [[Fraction(0)] * len(classes) for _ in classes]
    for i, row in enumerate(exact):
        others = [
            (sum((a - b) ** 2 for a, b in zip(row, o, strict=True)), -j)
            for j, o in enumerate(exact)
            if j != i
        ]
        chosen = [-j for _, j in sorted(others)[:k]]
        volume = Fraction(1)
        if weighting == "parzen":
            for feature, value in enumerate(row):
                volume *= 2 * max(abs(exact[j][feature] - value) for j in chosen)
            volume = max(Fraction(1e-4), volume)
        for j in chosen:
            total[classes.index(y[i])][classes.index(y[j])] += Fraction(1, k) / volume
    shares = [[float(cell / sum(row)) for cell in row] for row in total]
    graph = [[sum(map(min, a, b)) for b in shares] for a in shares]  # rows sum to 1
    laplacian = [
        [sum(graph[i]) - graph[i][i] if i == j else -graph[i][j] for j in range(len(graph))]
        for i in range(len(graph))
    ]
    eigenvalues = sorted(np.linalg.eigvalsh(np.array(laplacian)).tolist())
    best, result = -math.inf, 0.0
    for i in range(len(graph) - 1):
        best = max(best, (eigenvalues[i + 1] - eigenvalues[i]) / (len(graph) - i))
        result += best
    return result, eigenvalues


@pytest.mark.parametrize(
    ("n", "d", "classes", "scale"),
    [
        (30, 2, 3, 1.0),
        (30, 2, 3, 0.01),  # the floor holds some rows
        (25, 6, 2, 1e-3),  # the floor holds all rows
        (24, 5, 4, 1e8),
        (12, 300, 3, 1.0),
        (10, 500, 3, 8.0),  # volumes beyond float64
        (10, 500, 2, 1e-2),  # and below
    ],
)
@pytest.mark.parametrize("k", [1, 3])
def test_exact_oracle(n, d, classes, scale, k):
    x, y = blobs(n, d, classes, std=0.3, scale=scale, seed=7)
    result = measure(x, y, k=k)
    value, eigenvalues = oracle(x, y, k)
    assert result.value == pytest.approx(value, rel=1e-9, abs=1e-12)
    np.testing.assert_allclose(result.eigenvalues, eigenvalues, atol=1e-12)


def test_exact_oracle_on_pixels_with_ties():
    rng = np.random.default_rng(3)
    x, y = rng.integers(0, 4, size=(40, 3)).astype(np.uint8), rng.integers(0, 3, size=40)
    for weighting in ("parzen", "none"):
        value, _ = oracle(x, y, 3, weighting)
        assert measure(x, y, weighting=weighting).value == pytest.approx(value, rel=1e-9)


# ------------------------------------------------------------------ the public code's values
@pytest.mark.parametrize("n_samples", [250, 500])
def test_digits_as_the_public_code(n_samples):
    """spectral-metric 0.6.1 on scikit-learn's digits, k = 3, all rows drawn, any seed."""
    from sklearn.datasets import load_digits

    result = csg(Features.from_arrays(*load_digits(return_X_y=True)), n_samples)
    assert result.value == pytest.approx(0.041127942208711, abs=1e-9)
    assert result.interval == (result.value, result.value)
    assert result.replicates == (result.value,)


@pytest.mark.parametrize(
    ("d", "classes", "value"),
    [(128, 100, 3.139734103034869), (128, 200, 3.234088166166299), (256, 200, 2.311667003425685)],
)
def test_blobs_as_the_public_code_where_all_rows_are_drawn(d, classes, value):
    assert measure(*blobs(10_000, d, classes)).value == pytest.approx(value, rel=1e-9)


def test_blobs_as_the_public_code_in_the_mean_over_draws():
    """28 runs of spectral-metric 0.6.1 on these rows have mean 1.9322 and deviation 0.5122."""
    result = measure(*blobs(10_000, 128, 10), repeats=20)
    error = np.std(result.replicates, ddof=1) * math.sqrt(1 / 28 + 1 / 20)
    assert abs(result.value - 1.9322478) < 3 * error
    assert 0.25 < np.std(result.replicates, ddof=1) < 1.0


# ------------------------------------------------------------------ hard numbers
@pytest.mark.parametrize("weighting", ["parzen", "none", "ball"])
@pytest.mark.parametrize("d", [256, 1024, 4096])
@pytest.mark.parametrize("scale", [1e-8, 1e-3, 1.0, 1e3, 1e8])
def test_finite_at_any_scale_and_dimension(weighting, d, scale):
    x, y = blobs(60, d, 3, scale=scale)
    result = measure(x, y, 10, weighting=weighting, repeats=2)
    assert isinstance(result.value, float)
    assert 0 <= result.value <= 2
    assert np.isfinite([*result.eigenvalues, *result.replicates, *result.interval]).all()


def test_the_unit_matters_only_through_the_floor():
    x, y = blobs(300, 512, 5)
    for weighting in ("none", "ball"):
        values = [measure(x * s, y, weighting=weighting).value for s in (2.0**-20, 1.0, 2.0**20)]
        assert values == pytest.approx([values[1]] * 3, rel=1e-9)
    large = [measure(x * s, y).value for s in (1.0, 2.0**10, 2.0**20)]
    assert large == pytest.approx([large[0]] * 3, rel=1e-9)
    tiny = measure(x * 2.0**-20, y)
    assert tiny.value == measure(x, y, weighting="none").value
    assert tiny.settings["floor_share"] == 1.0
    assert "volume floor" in tiny.status


def test_an_offset_does_not_disturb_float32():
    x, y = blobs(400, 64, 4)
    near = np.round(x * 2**8) / 2**8  # with the offset still exact in float32
    far = (near + 2.0**13).astype(np.float32)
    np.testing.assert_array_equal(far.astype(np.float64) - 2.0**13, near)
    assert measure(far, y, 40).value == measure(near, y, 40).value


@pytest.mark.parametrize("kind", [np.uint8, np.int64, np.float16, np.float32])
def test_types_of_numbers(kind):
    x = np.random.default_rng(0).integers(0, 250, size=(120, 20)).astype(kind)
    y = np.arange(120) % 3
    assert measure(x, y).value == measure(x.astype(np.float64), y).value
    assert measure(torch.from_numpy(x), torch.from_numpy(y)).value == measure(x, y).value


def test_balls():
    """Unit balls: 2, pi, 4/3 pi; and the weights of rows follow the volumes."""
    volumes = [math.exp(ball_log_volume(np.array([1.0]), d)[0]) for d in (1, 2, 3)]
    assert volumes == pytest.approx([2, math.pi, 4 / 3 * math.pi])
    assert ball_log_volume(np.array([2.0]), 1000)[0] - ball_log_volume(np.array([1.0]), 1000)[
        0
    ] == pytest.approx(1000 * math.log(2))
    x, y = [[0.0], [1.0], [3.0], [6.5], [10.5], [15.0]], np.array([0, 0, 1, 0, 1, 1])
    # k = 1; nearest: 1 0 1 2 3 4; radius: 1 1 2 3.5 4 4.5, in one dimension weight 1 / radius
    s0 = np.array([1 + 1, 1 / 3.5]) / (2 + 1 / 3.5)
    s1 = np.array([1 / 2 + 1 / 4, 1 / 4.5]) / (1 / 2 + 1 / 4 + 1 / 4.5)
    w = np.minimum(s0, s1).sum()  # two classes: eigenvalues 0 and 2 w, csg = 2 w / 2
    assert measure(x, y, k=1, weighting="ball").value == pytest.approx(w)


def test_balls_of_radius_zero_count_as_the_smallest():
    x = np.repeat(np.random.default_rng(0).normal(size=(30, 3)), 2, axis=0)
    result = measure(x, np.arange(60) % 2, k=1, weighting="ball")
    assert math.isfinite(result.value)
    assert result.value == measure(x, np.arange(60) % 2, k=1, weighting="none").value


# ------------------------------------------------------------------ draws
def test_seeds(rng_guard):
    features = Features.from_arrays(*blobs(600, 8, 3))
    with rng_guard():
        first = csg(features, 50, seed=4)
    assert first == csg(features, 50, seed=4)
    assert first.replicates != csg(features, 50, seed=5).replicates
    assert len(set(first.replicates)) == 5
    more = csg(features, 50, seed=4, repeats=8)
    np.testing.assert_allclose(more.replicates[:5], first.replicates, rtol=1e-12)


def test_interval_is_that_of_the_mean_over_draws():
    result = measure(*blobs(900, 8, 3), 30, repeats=6)
    half = t.ppf(0.975, 5) * np.std(result.replicates, ddof=1) / math.sqrt(6)
    assert result.value == pytest.approx(np.mean(result.replicates))
    assert result.interval == pytest.approx((max(0, result.value - half), result.value + half))
    assert "95 %" in result.settings["interval"]
    assert "6 draws" in result.settings["interval"]


def test_interval_never_reaches_below_zero():
    x, y = blobs(900, 3, 3, std=4.0)
    results = [measure(x, y, 25, repeats=2, seed=seed) for seed in range(12)]
    assert min(r.interval[0] for r in results) == 0.0
    assert all(r.interval[0] >= 0 for r in results)


def test_one_draw_has_no_interval_and_a_full_draw_a_point():
    x, y = blobs(90, 3, 3)
    assert measure(x, y, 29, repeats=1).interval is None
    full = measure(x, y, 30, repeats=7)
    assert full.interval == (full.value, full.value)
    assert full.settings["repeats"] == 1
    assert full == measure(x, y, 30, repeats=7, seed=0)
    assert full.value == measure(x, y, 31, seed=9).value


def test_neighbours_are_searched_once_per_row(monkeypatch):
    import sys

    module, asked = sys.modules[csg.__module__], []
    search = module.nearest

    def spy(x, rows, k, *, progress):
        asked.append(rows)
        return search(x, rows, k, progress=progress)

    monkeypatch.setattr(module, "nearest", spy)
    measure(*blobs(300, 4, 3), 60, repeats=10)
    assert len(asked) == 1
    assert len(np.unique(asked[0])) == len(asked[0]) <= 300


def test_progress_ends_at_its_total():
    calls = []
    measure(*blobs(3000, 4, 3), 100, progress=lambda done, total: calls.append((done, total)))
    assert [done for done, _ in calls] == list(range(1, len(calls) + 1))
    assert calls[-1][0] == calls[-1][1]


# ------------------------------------------------------------------ classes
def test_separable_classes_give_exactly_zero():
    x, y = blobs(200, 8, 4, std=50.0)
    for weighting in ("parzen", "none", "ball"):
        result = measure(x, y, weighting=weighting)
        assert result.value == 0.0
        assert result.interval == (0.0, 0.0)
        assert result.status == "separable: csg is exactly 0"
        assert result.settings["own_share"] == 1.0


def test_full_overlap_gives_nearly_the_largest_value():
    """All rows equal: 29 of 89 neighbours are of the own class, 30 of each other one."""
    result = measure(np.ones((90, 5)), np.arange(90) % 3, k=89)
    w = (29 + 29 + 30) / 89  # eigenvalues 0, 3 w, 3 w
    assert result.value == pytest.approx(2 * w)
    assert result.settings["duplicate_share"] == 1.0
    assert cumulative_gradient(laplacian_eigenvalues(np.full((6, 6), 1 / 6))) == pytest.approx(5.0)


def test_empty_classes_are_left_out_and_named():
    x, y = small()
    names = ("ant", "bee", "cat", "dog", "emu")
    class_map = ClassMap(names, tuple("01234"))
    few = csg(Features.from_arrays(x, np.array([0, 2, 4])[y], class_map=class_map))
    assert few.value == measure(x, y).value
    assert len(few.eigenvalues) == few.settings["n_nonempty"] == 3
    assert few.settings["n_classes"] == 5
    assert "3 of 5" in few.status
    assert "'bee'" in few.status
    assert "'dog'" in few.status


def test_classes_with_few_rows_are_named():
    x, _ = small(40)
    y = np.array(["many"] * 37 + ["single"] + ["pair"] * 2)
    status = measure(x, y).status
    assert "classes with one row: 'single'" in status
    assert "classes with k rows or fewer: 'pair'" in status


def test_duplicates_ties_and_few_draws_are_named():
    x, y = blobs(100, 4, 2)
    assert measure(x, y).status == "ok"
    twice = measure(np.repeat(x, 2, axis=0), np.repeat(y, 2))
    assert twice.settings["duplicate_share"] == 1.0
    assert "duplicates: 100.0%" in twice.status
    assert twice.value < measure(x, y).value
    assert "ties" in measure(np.round(x), y).status
    assert "n_samples below" in measure(x, y, 10).status


def test_a_duplicate_is_a_neighbour_and_the_row_itself_is_not():
    """Twins of other classes: every nearest row is of the other class, whoever comes first."""
    x = np.repeat(np.arange(20.0)[:, None] ** 2, 2, axis=0)
    y = np.tile([0, 1], 20)
    result = measure(x, y, k=1)
    assert result.value == 0.0  # class 0 sees only class 1, and the reverse
    assert result.settings["own_share"] == 0.0
    assert "not for separable" in result.status
    with_self = laplacian_eigenvalues(np.array([[0.5, 0.5], [0.5, 0.5]]))
    assert cumulative_gradient(with_self) == pytest.approx(1.0)


def test_a_thousand_classes():
    result = measure(*blobs(4000, 16, 1000), 3, repeats=2)
    assert len(result.eigenvalues) == 1000
    assert 0 < result.value < 999


# ------------------------------------------------------------------ records
def test_settings_say_all_that_the_value_depends_on():
    x, y = small(41)
    features = Features.from_arrays(x, y, source="resnet, layer fc")
    result = csg(features, 10, 2, repeats=3, seed=8, weighting="none")
    wanted = {
        "n_samples": 10,
        "k": 2,
        "repeats": 3,
        "seed": 8,
        "weighting": "none",
        "distance": "euclidean",
        "embedding": "resnet, layer fc",
        "n_rows": 41,
        "feature_dim": 4,
        "n_classes": 3,
        "n_nonempty": 3,
        "rows_per_class": {"min": 13, "median": 14.0, "max": 14},
        "all_rows_drawn": False,
    }
    assert {key: result.settings[key] for key in wanted} == wanted
    assert result.settings["effective_rows"] == {"min": 10.0, "median": 10.0, "max": 10.0}
    assert list(result.eigenvalues) == sorted(result.eigenvalues)
    assert result.eigenvalues[0] == pytest.approx(0, abs=1e-12)
    assert loads(dumps(result)) == loads(dumps(loads(dumps(result))))
    assert loads(dumps(result)).value == result.value


def test_effective_rows_show_that_single_rows_decide():
    few = measure(*blobs(200, 512, 2)).settings["effective_rows"]["max"]
    all_ = measure(*blobs(200, 512, 2), weighting="none").settings["effective_rows"]["min"]
    assert few < 10
    assert all_ == pytest.approx(100)


def test_the_room_exports_it():
    assert csg_of_room is csg
    assert csg_record._some(list("abcdefg")) == "'a', 'b', 'c', 'd', 'e' and 2 more"


# ------------------------------------------------------------------ refusals
@pytest.mark.parametrize(
    ("settings", "subject"),
    [
        ({"n_samples": 0}, "csg n_samples"),
        ({"n_samples": 2.5}, "csg n_samples"),
        ({"k": 0}, "csg k"),
        ({"k": True}, "csg k"),
        ({"k": 40}, "csg k"),
        ({"repeats": 0}, "csg repeats"),
        ({"seed": -1}, "csg seed"),
        ({"seed": None}, "csg seed"),
        ({"weighting": "cube"}, "csg weighting"),
    ],
)
def test_settings_out_of_range(settings, subject):
    with pytest.raises(InvalidInput) as caught:
        measure(*small(40), **settings)
    assert caught.value.subject == subject


def test_the_largest_k_is_legal():
    assert measure(*small(40), k=39).value > 0


def test_one_class_is_refused():
    x, y = small()
    one = Features.from_arrays(x, y * 0, class_map=ClassMap(("a", "b"), ("0", "1")))
    with pytest.raises(InvalidInput) as caught:
        csg(one)
    assert caught.value.subject == "csg classes"
    assert caught.value.found == "1"


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_records_made_by_hand_are_checked(bad):
    x, y = small()
    good = Features.from_arrays(x, y)
    x = x.copy()
    x[5, 2] = bad
    for features, subject in [
        (Features(x, good.y, good.class_map), "features x"),
        (Features(good.x, good.y + 1, good.class_map), "labels"),
        (Features(good.x, good.y[:-1], good.class_map), "features x and labels y"),
    ]:
        with pytest.raises(InvalidInput) as caught:
            csg(features)
        assert caught.value.subject == subject


# ------------------------------------------------------------------ properties
@settings(max_examples=25, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 10_000),
    classes=st.integers(2, 6),
    d=st.integers(1, 40),
    k=st.integers(1, 8),
    weighting=st.sampled_from(["parzen", "none", "ball"]),
)
def test_order_of_rows_and_names_of_classes_do_not_matter(seed, classes, d, k, weighting):
    x, y = blobs(60, d, classes, std=0.5, seed=seed)
    rng = np.random.default_rng(seed)
    order, rename = rng.permutation(60), rng.permutation(classes)
    result = measure(x, y, k=k, weighting=weighting)
    again = measure(x[order], rename[y[order]], k=k, weighting=weighting)
    assert again.value == pytest.approx(result.value, rel=1e-9, abs=1e-9)
    assert -1e-9 <= result.value <= classes - 1 + 1e-9
    np.testing.assert_allclose(again.eigenvalues, result.eigenvalues, atol=1e-9)


@settings(max_examples=30, deadline=None, derandomize=True)
@given(st.lists(st.floats(0, 100), min_size=2, max_size=12))
def test_the_gradient_is_the_sum_of_running_maxima(values):
    values = sorted(values)
    n = len(values)
    gaps = [(values[i + 1] - values[i]) / (n - i) for i in range(n - 1)]
    expected = sum(max(gaps[: i + 1]) for i in range(n - 1))
    assert cumulative_gradient(np.array(values)) == pytest.approx(expected)
