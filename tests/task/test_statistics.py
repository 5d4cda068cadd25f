"""Statistics: naive oracles, contracts over the whole table, odd rows, honest spread."""

import math
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.optimize import minimize
from scipy.stats import kurtosis, multivariate_normal
from sklearn.decomposition import PCA
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.metrics import silhouette_score

from temperance import measure
from temperance.errors import InvalidInput, NotFound, TemperanceWarning
from temperance.labels import ClassMap
from temperance.records import Features, dumps, loads
from temperance.task import measurement, moment_sums, moments, neighbour_statistics, statistics
from temperance.task.dimension import twonn_dim
from temperance.task.logme import logme
from temperance.task.spread import deal
from temperance.task.statistics import (
    STATISTICS,
    StatisticSpec,
    UndefinedStatistic,
    measure_statistics,
    try_statistics,
)

NAMES = tuple(STATISTICS)
SUMS = ("moments", "scatter", "spectrum")


def blobs(n=60, dim=5, classes=3, *, offset=0.5, apart=1.0, seed=0):
    """Rows of continuous, correlated, skewed features; classes of unequal sizes."""
    rng = np.random.default_rng(seed)
    y = np.sort(rng.integers(0, classes, n))
    y[: 2 * classes] = np.repeat(np.arange(classes), 2)
    x = rng.gamma(2.0, size=(n, dim)) @ (np.eye(dim) + 0.3 * rng.normal(size=(dim, dim)))
    order = rng.permutation(n)
    x += apart * rng.normal(size=(classes, dim))[y] + offset
    return x[order], y[order]


def features(x, y, classes=None):
    names = tuple(map(str, range(int(np.max(y)) + 1 if classes is None else classes)))
    return Features(np.asarray(x), np.asarray(y), ClassMap(names))


def value(name, x, y):
    return STATISTICS[name].function(features(x, y))


# ------------------------------------------------------------------ oracles: loops, or scikit-learn
def class_mean(x, y, c):
    return x[y == c].mean(axis=0)


def cosine(a, b):
    return float(a @ b / math.sqrt((a @ a) * (b @ b)))


def pairs(values):
    return [(a, b) for i, a in enumerate(values) for b in values[i + 1 :]]


def naive_within(x, y):
    return sum(
        float(((r - class_mean(x, y, c)) ** 2).sum()) for r, c in zip(x, y, strict=True)
    ) / len(x)


def naive_between(x, y):
    gaps = [(y == c).sum() * ((class_mean(x, y, c) - x.mean(axis=0)) ** 2).sum() for c in set(y)]
    return float(sum(gaps)) / len(x)


def naive_nearest_mean(x, y):
    right = 0
    for i, row in enumerate(x):
        rest = np.arange(len(x)) != i
        means = {c: class_mean(x[rest], y[rest], c) for c in set(y[rest])}
        right += min(means, key=lambda c: ((row - means[c]) ** 2).sum()) == y[i]
    return right / len(x)


def naive_neighbours(x):
    out = []
    for i, row in enumerate(x):
        far = sorted((math.dist(row, other), j) for j, other in enumerate(x) if j != i)
        out.append(far[:2])
    return out


def naive_twonn(x, y):
    mu = sorted(b[0] / a[0] for a, b in naive_neighbours(x))
    kept = mu[: int(0.9 * len(mu))]
    across = [math.log(m) for m in kept]
    up = [-math.log(1 - i / len(mu)) for i in range(1, len(kept) + 1)]
    return float(np.linalg.lstsq(np.array(across)[:, None], np.array(up), rcond=None)[0][0])


TIGHT = {"fatol": 1e-12, "xatol": 1e-7, "maxiter": 4000}


def naive_logme(x, y):
    """Maximize the evidence of each class as a plain normal density over both precisions."""
    n, gram = len(x), x @ x.T

    def loss(log_precisions, target):
        alpha, beta = np.exp(log_precisions)
        cov = np.eye(n) / beta + gram / alpha
        return -multivariate_normal(np.zeros(n), cov).logpdf(target) / n

    best = []
    for c in sorted(set(y)):
        target = (y == c).astype(float)
        starts = [(a, b) for a in (-2.0, 2.0, 6.0) for b in (0.0, 3.0)]
        runs = [
            minimize(loss, s, (target,), "Nelder-Mead", bounds=[(-20, 20)] * 2, options=TIGHT)
            for s in starts
        ]
        best.append(-min(run.fun for run in runs))
    return float(np.mean(best))


def counts(y):
    return np.unique(y, return_counts=True)[1]


ORACLES = {
    "n_classes": lambda x, y: len(set(y)),
    "feature_dim": lambda x, y: x.shape[1],
    "n_samples": lambda x, y: len(x),
    "samples_per_class_min": lambda x, y: min(counts(y)),
    "samples_per_class_median": lambda x, y: np.median(counts(y)),
    "class_entropy": lambda x, y: -sum(p * math.log(p) for p in counts(y) / len(y)),
    "class_balance": lambda x, y: ORACLES["class_entropy"](x, y) / math.log(len(set(y))),
    "norm_mean": lambda x, y: np.mean([math.hypot(*row) for row in x]),
    "norm_std": lambda x, y: np.std([math.hypot(*row) for row in x]),
    "norm_cv": lambda x, y: ORACLES["norm_std"](x, y) / ORACLES["norm_mean"](x, y),
    "feature_std": lambda x, y: math.sqrt(x.var(axis=0).mean()),
    "mean_abs_correlation": lambda x, y: np.mean(
        [abs(np.corrcoef(a, b)[0, 1]) for a, b in pairs(list(x.T))]
    ),
    "kurtosis": lambda x, y: kurtosis(x, axis=0).mean(),
    "trace_within": naive_within,
    "trace_between": naive_between,
    "trace_total": lambda x, y: np.trace(np.cov(x.T, bias=True)),
    "fisher_ratio": lambda x, y: naive_between(x, y) / naive_within(x, y),
    "class_cosine": lambda x, y: np.mean(
        [cosine(a, b) for a, b in pairs([class_mean(x, y, c) for c in sorted(set(y))])]
    ),
    "class_cosine_centred": lambda x, y: ORACLES["class_cosine"](x - x.mean(axis=0), y),
    "own_mean_cosine": lambda x, y: np.mean(
        [cosine(row, class_mean(x, y, c)) for row, c in zip(x, y, strict=True)]
    ),
    "own_mean_cosine_centred": lambda x, y: ORACLES["own_mean_cosine"](x - x.mean(axis=0), y),
    "nearest_mean_accuracy": naive_nearest_mean,
    "participation_ratio": lambda x, y: (
        PCA().fit(x).explained_variance_.sum() ** 2 / (PCA().fit(x).explained_variance_ ** 2).sum()
    ),
    "pca90_dim": lambda x, y: PCA(0.9).fit(x).n_components_,
    "twonn_dim": naive_twonn,
    "silhouette": lambda x, y: silhouette_score(x, y),
    "nn_accuracy": lambda x, y: np.mean(
        [y[a[1]] == c for (a, _), c in zip(naive_neighbours(x), y, strict=True)]
    ),
    "logme": naive_logme,
}


def test_every_statistic_has_an_oracle():
    assert set(ORACLES) == set(NAMES) - {"csg"}  # csg has its own tests


@pytest.mark.parametrize("name", ORACLES)
@pytest.mark.parametrize("shape", [(60, 5, 3), (40, 12, 4), (25, 40, 2)])
def test_values_are_those_of_a_naive_computation(name, shape):
    n, dim, classes = shape
    x, y = blobs(n, dim, classes, seed=n)
    np.testing.assert_allclose(value(name, x, y), ORACLES[name](x, y), rtol=1e-7, atol=1e-9)


def test_within_scatter_is_that_of_linear_discriminant_analysis():
    x, y = blobs()
    model = LinearDiscriminantAnalysis(solver="eigen", store_covariance=True).fit(x, y)
    np.testing.assert_allclose(value("trace_within", x, y), np.trace(model.covariance_), rtol=1e-12)


# ------------------------------------------------------------------ contracts over the table
@pytest.mark.parametrize("spec", STATISTICS.values(), ids=NAMES)
def test_rows_of_the_table_say_what_they_are(spec):
    assert STATISTICS[spec.name] is spec
    assert spec.title
    assert spec.unit
    assert spec.reference
    doc = " ".join((spec.function.__doc__ or "").split())
    assert " ".join(spec.formula.split()) in doc
    for section in ("Args:", "Returns:", "Example:"):
        assert section in doc
    assert spec.range[0] < spec.range[1]


@pytest.fixture(scope="module")
def base():
    """Rows and their values; the same rows go through every transformation."""
    x, y = blobs(80, 6, 3, seed=3)
    return x, y, {name: value(name, x, y) for name in NAMES}


def ids_where(condition):
    return [name for name, spec in STATISTICS.items() if condition(spec)]


@pytest.mark.parametrize("name", ids_where(lambda s: s.scale is not None))
@pytest.mark.parametrize("factor", [3.0, 1e-9, 1e15])
def test_scale(name, base, factor):
    x, y, values = base
    expected = values[name] * factor ** STATISTICS[name].scale
    assert value(name, factor * x, y) == pytest.approx(expected, rel=1e-7)


def rotated(x):
    return x @ np.linalg.qr(np.random.default_rng(1).normal(size=(x.shape[1],) * 2))[0]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("law", "change"),
    [("rotation", rotated), ("translation", lambda x: x + np.arange(1.0, x.shape[1] + 1))],
)
def test_rotation_and_translation(name, base, law, change):
    x, y, values = base
    found = value(name, change(x), y)
    if getattr(STATISTICS[name], law):
        assert found == pytest.approx(values[name], rel=1e-7)
    elif not (name == "csg" and law == "translation"):
        assert found != pytest.approx(
            values[name], rel=1e-4
        )  # the table does not promise too little


@pytest.mark.parametrize("name", NAMES)
def test_doubling_every_row(name, base):
    x, y, values = base
    law = STATISTICS[name].doubling
    double = np.concatenate([x, x]), np.concatenate([y, y])
    if name == "twonn_dim":
        with pytest.raises(UndefinedStatistic):
            value(name, *double)
        return
    tolerance = {"same": 1e-9, "near": 0.15, "changes": 1e-3}[law]
    same = value(name, *double) == pytest.approx(values[name], rel=tolerance)
    assert same == (law != "changes")


@pytest.mark.parametrize("name", NAMES)
def test_order_of_rows_and_of_features(name, base):
    x, y, values = base
    order = np.random.default_rng(0).permutation(len(x))
    assert value(name, x[order], y[order]) == pytest.approx(values[name], rel=1e-9)
    columns = np.random.default_rng(0).permutation(x.shape[1])
    assert value(name, x[:, columns], y) == pytest.approx(values[name], rel=1e-9)


@pytest.mark.parametrize("name", NAMES)
def test_names_of_classes_do_not_matter(name, base):
    x, y, values = base
    assert value(name, x, (y + 1) % 3) == pytest.approx(values[name], rel=1e-9)


@pytest.mark.parametrize("name", NAMES)
def test_half_precision_is_widened_first(name, base):
    x, y, _ = base
    half = x.astype(np.float16)
    assert value(name, half, y) == value(name, half.astype(np.float32), y)
    if name not in ("nn_accuracy", "nearest_mean_accuracy", "pca90_dim", "csg"):
        single = value(name, x.astype(np.float32), y)
        assert single == pytest.approx(value(name, x, y), rel=1e-4)


@pytest.mark.parametrize("spec", STATISTICS.values(), ids=NAMES)
def test_a_large_offset_costs_no_digits(spec, base):
    x, y, _ = base
    x = np.round(x, 6) * 2.0**-4  # what the offset itself leaves of the rows is not the point
    shifted = value(spec.name, x + 2.0**20, y)
    if spec.translation:
        x = (x + 2.0**20) - 2.0**20
        assert shifted == pytest.approx(value(spec.name, x, y), rel=1e-6)
    elif spec.name == "logme":
        assert shifted == pytest.approx(evidence_by_svd(x + 2.0**20, y), rel=1e-5)
    else:
        assert math.isfinite(shifted)


def evidence_by_svd(x, y):
    """The evidence over a fine grid of t, from singular values: no squares of the offset."""
    u, s, _ = np.linalg.svd(x, full_matrices=False)
    n, best = len(x), []
    for c in sorted(set(y)):
        target = (y == c).astype(float)
        inside = (u.T @ target) ** 2
        t = np.exp(np.linspace(-30, 40, 20001))[:, None]
        outside = ((target - u @ (u.T @ target)) ** 2).sum()
        rest = outside + (inside * t / (t + s**2)).sum(axis=1)
        spread = np.log1p(s**2 / t).sum(axis=1)
        best.append((-0.5 * (np.log(rest / n) + 1 + math.log(2 * math.pi)) - spread / 2 / n).max())
    return float(np.mean(best))


@pytest.fixture(scope="module")
def measured():
    x, y = blobs(90, 6, 3, seed=5)
    return features(x, y), measure_statistics(features(x, y), seed=4)


@pytest.mark.parametrize("name", NAMES)
def test_records(name, measured):
    given, found = measured
    spec, statistic = STATISTICS[name], found[name]
    assert type(statistic.value) is float
    assert statistic.value == spec.function(given, **({"seed": 4} if spec.needs_seed else {}))
    assert spec.range[0] <= statistic.value <= spec.range[1]
    assert statistic.settings["embedding"] == "arrays"
    assert statistic.settings["interval"]
    assert loads(dumps(statistic)) == statistic
    if spec.interval == "none":
        assert statistic.interval is None
    else:
        low, high = statistic.interval
        assert spec.range[0] <= low <= statistic.value <= high <= spec.range[1]
    if spec.integer:
        assert statistic.value.is_integer()
        assert all(end.is_integer() for end in statistic.interval or ())


def test_all_together_equal_one_by_one(measured, rng_guard):
    given, found = measured
    assert tuple(found) == NAMES
    with rng_guard():
        again = measure_statistics(given, seed=4)
    assert again == found
    for name in NAMES:
        assert measure_statistics(given, name, seed=4)[name] == found[name]
    other = measure_statistics(given, seed=5)
    assert all(other[name].value == found[name].value for name in NAMES)  # all rows are drawn
    assert other["fisher_ratio"].interval != found["fisher_ratio"].interval


# ------------------------------------------------------------------ odd rows
RNG = np.random.default_rng(11)
CLOUD = RNG.normal(size=(30, 4))
ODD = {
    "one feature": (CLOUD[:, :1], np.arange(30) % 3, 3),
    "two classes": (CLOUD, np.arange(30) % 2, 2),
    "a class of one row": (CLOUD, np.minimum(np.arange(30), 2), 3),
    "a class without rows": (CLOUD, np.arange(30) % 2 * 2, 4),
    "one class with rows": (CLOUD, np.zeros(30, int), 2),
    "one row for each class": (CLOUD, np.arange(30), 30),
    "equal rows": (np.full((30, 4), 0.1), np.arange(30) % 3, 3),
    "rows of zeros": (np.zeros((30, 4)), np.arange(30) % 3, 3),
    "classes that are points": (0.1 * np.eye(3)[np.arange(30) % 3], np.arange(30) % 3, 3),
    "a constant feature": (np.c_[CLOUD, np.full(30, 0.3)], np.arange(30) % 3, 3),
    "duplicates": (CLOUD[np.arange(30) // 2], np.arange(30) % 3, 3),
    "more features than rows": (RNG.normal(size=(12, 40)), np.arange(12) % 3, 3),
    "two rows": (CLOUD[:2], np.arange(2), 2),
    "one row": (CLOUD[:1], np.zeros(1, int), 2),
    "a grid": (np.stack(np.meshgrid(*[range(6)] * 2), -1).reshape(36, 2), np.arange(36) % 3, 3),
    "an outlier": (np.r_[CLOUD, np.full((1, 4), 1e30)], np.arange(31) % 3, 3),
    "very small": (1e-40 * CLOUD, np.arange(30) % 3, 3),
    "whole numbers": ((10 * CLOUD).astype(np.int8), np.arange(30) % 3, 3),
    "a spike": (np.eye(30)[:, :4], np.arange(30) % 3, 3),
}


@pytest.mark.parametrize("case", ODD)
def test_odd_rows_give_a_value_in_range_or_a_reason(case):
    x, y, classes = ODD[case]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found, undefined = try_statistics(features(x, y, classes))
    assert {*found, *undefined} == set(NAMES)
    assert not set(found) & set(undefined)
    for name, statistic in found.items():
        low, high = STATISTICS[name].range
        assert low <= statistic.value <= high
        assert math.isfinite(statistic.value)
        assert all(map(math.isfinite, statistic.interval or ()))
    for name in undefined:
        if name in ("csg",):
            continue
        with pytest.raises(UndefinedStatistic) as caught:
            STATISTICS[name].function(features(x, y, classes))
        assert isinstance(caught.value, InvalidInput)


def undefined_in(case):
    x, y, classes = ODD[case]
    return set(try_statistics(features(x, y, classes))[1])


def test_what_does_not_exist_on_odd_rows():
    assert undefined_in("one feature") == {"mean_abs_correlation"}
    assert undefined_in("one class with rows") == {
        *("class_balance", "fisher_ratio", "class_cosine", "class_cosine_centred"),
        *("own_mean_cosine_centred", "nearest_mean_accuracy", "silhouette", "nn_accuracy"),
        *("logme", "csg"),
    }
    flat = {"mean_abs_correlation", "kurtosis", "participation_ratio", "pca90_dim", "twonn_dim"}
    assert undefined_in("equal rows") >= flat | {"fisher_ratio", "class_cosine_centred"}
    assert undefined_in("classes that are points") >= {"fisher_ratio", "logme", "twonn_dim"}
    assert undefined_in("two classes") == set()
    assert undefined_in("a class of one row") == set()


def test_equal_rows_have_no_scatter_and_chance_accuracy():
    x, y, classes = ODD["equal rows"]
    found, _ = try_statistics(features(x, y, classes))
    assert found["trace_total"].value == found["feature_std"].value == 0
    assert found["silhouette"].value == 0
    assert found["nearest_mean_accuracy"].value == pytest.approx(1 / 3)


def test_statuses_say_what_is_left_out():
    x, y, classes = ODD["a constant feature"]
    found = measure_statistics(features(x, y, classes), ["kurtosis", "mean_abs_correlation"])
    assert found["kurtosis"].status == "1 of 5 features are constant and left out"
    assert found["kurtosis"].value == pytest.approx(kurtosis(x[:, :4], axis=0).mean())
    x, y, classes = ODD["a class without rows"]
    found = measure_statistics(features(x, y, classes), ["n_classes", "fisher_ratio"])
    assert found["n_classes"].value == 4
    assert found["fisher_ratio"].status.startswith("classes without rows are left out, 2 of 4")
    x, y, classes = ODD["a class of one row"]
    found = measure_statistics(features(x, y, classes), ["own_mean_cosine", "trace_within"])
    assert found["trace_within"].status == "classes with one row: '0', '1'"
    assert found["own_mean_cosine"].status.startswith("2 of 30 rows that are 0, alone")
    x, y, classes = ODD["a grid"]
    found = measure_statistics(features(x, y, classes), "nn_accuracy")
    assert "ties: 36 of 36" in found["nn_accuracy"].status


def test_rows_that_are_zero_have_no_cosine():
    x, y = blobs(40)
    x[:3] = 0
    kept = y[3:]
    means = np.stack([class_mean(x, y, c) for c in range(3)])
    expected = np.mean([cosine(r, means[c]) for r, c in zip(x[3:], kept, strict=True)])
    assert value("own_mean_cosine", x, y) == pytest.approx(expected)


def test_undefined_statistics_are_named_in_a_warning():
    x, y, classes = ODD["one feature"]
    with pytest.warns(TemperanceWarning, match="mean_abs_correlation .expected two features"):
        found = measure_statistics(features(x, y, classes))
    assert len(found) == len(NAMES) - 1


@settings(max_examples=25, deadline=None)
@given(
    arrays(
        np.float64,
        st.tuples(st.integers(4, 12), st.integers(1, 4)),
        elements=st.floats(-1e6, 1e6, allow_subnormal=False).map(lambda v: round(v, 3)),
    )
)
def test_any_rows_give_values_in_range(x):
    y = np.arange(len(x)) % 2
    found, undefined = try_statistics(features(x, y), set(NAMES) - {"csg"})
    assert len(found) + len(undefined) == len(NAMES) - 1
    for name, statistic in found.items():
        low, high = STATISTICS[name].range
        assert low <= statistic.value <= high
    within, between = found["trace_within"].value, found["trace_between"].value
    assert found["trace_total"].value == pytest.approx(within + between)
    total = float(x.var(axis=0).sum())
    assert found["trace_total"].value == pytest.approx(
        total, rel=1e-9, abs=1e-18 * abs(x).max() ** 2
    )


# ------------------------------------------------------------------ published behaviour
@pytest.mark.parametrize(("dim", "tolerance"), [(1, 0.12), (2, 0.12), (5, 0.12)])
def test_twonn_finds_the_dimension_of_uniform_rows(dim, tolerance):
    rng = np.random.default_rng(dim)
    x = rng.random((2500, dim)) @ np.linalg.qr(rng.normal(size=(10, 10)))[0][:dim]
    found = twonn_dim(features(x, np.arange(2500) % 2))
    assert found == pytest.approx(dim, rel=tolerance)


def test_twonn_leaves_duplicates_out_and_counts_them():
    x, y = blobs(200, 3, 2)
    x[150:] = x[100:150]
    record = measure_statistics(features(x, y), "twonn_dim")["twonn_dim"]
    assert record.status == "duplicates: 100 of 200 rows have one and are left out"
    assert record.value == pytest.approx(naive_twonn_without_twins(x), rel=1e-9)


def naive_twonn_without_twins(x):
    found = [(a[0], b[0]) for a, b in naive_neighbours(x) if a[0] > 0]
    mu = np.sort([b / a for a, b in found])
    kept = int(0.9 * len(mu))
    up = -np.log(1 - np.arange(1, kept + 1) / len(mu))
    return float((np.log(mu[:kept]) * up).sum() / (np.log(mu[:kept]) ** 2).sum())


def test_logme_ranks_features_by_how_well_they_explain():
    y = np.arange(300) % 3
    noise = np.random.default_rng(0).normal(size=(300, 8))
    values = [logme(features(noise + a * np.eye(8)[y], y)) for a in (0.0, 1.0, 3.0, 10.0)]
    assert values == sorted(values)


def test_logme_has_no_upper_bound_for_exact_labels():
    y = np.arange(30) % 3
    with pytest.raises(UndefinedStatistic) as caught:
        logme(features(np.eye(3)[y], y))
    assert "no upper bound" in caught.value.found


# ------------------------------------------------------------------ spread
@pytest.mark.parametrize(
    "name", ids_where(lambda s: s.interval == "jackknife" and not s.held and not s.record)
)
def test_intervals_are_those_of_groups_really_left_out(name):
    x, y = blobs(70, 5, 3, seed=8)
    record = measure_statistics(features(x, y), name, repeats=4, seed=2)[name]
    group = deal(y, 4, np.random.default_rng(np.random.SeedSequence(2)))
    left = np.array([value(name, x[group != g], y[group != g]) for g in range(4)])
    error = math.sqrt(3 / 4 * ((left - left.mean()) ** 2).sum())
    assert record.settings["standard_error"] == pytest.approx(error, rel=1e-6, abs=1e-12)
    if not STATISTICS[name].integer:
        half = 3.182446305284263 * error  # t, 3 degrees of freedom
        high = min(STATISTICS[name].range[1], record.value + half)
        assert record.interval[1] == pytest.approx(high, rel=1e-6)


def test_intervals_cover_what_other_rows_give():
    """Rows drawn anew: the mean of a statistic lies in 95 % of the intervals, give or take."""
    names = ["norm_mean", "fisher_ratio", "kurtosis", "participation_ratio", "logme", "twonn_dim"]
    runs = [measure_statistics(features(*fresh(seed)), names, seed=seed) for seed in range(60)]
    for name in names:
        mean = np.mean([run[name].value for run in runs])
        inside = [run[name].interval[0] <= mean <= run[name].interval[1] for run in runs]
        assert np.mean(inside) >= 0.8, name


def fresh(seed):
    y = np.arange(150) % 3
    return np.random.default_rng(seed).normal(size=(150, 4)) + np.eye(4)[y], y


def test_one_group_has_no_spread():
    x, y = blobs()
    found = measure_statistics(features(x, y), ["fisher_ratio", "nn_accuracy"], repeats=1)
    assert found["fisher_ratio"].interval is None
    assert found["fisher_ratio"].settings["interval"] == "none: one group of rows has no spread"
    assert found["nn_accuracy"].interval is not None  # Wilson's needs no groups


def test_a_group_that_holds_a_whole_class_leaves_no_interval():
    x = np.r_[np.zeros((1, 2)), RNG.normal(size=(9, 2))]
    record = measure_statistics(features(x, np.r_[0, np.ones(9, int)]), "fisher_ratio")
    said = record["fisher_ratio"].settings["interval"]
    assert record["fisher_ratio"].interval is None
    assert said == "none: without some group of rows it does not exist"


def test_more_rows_than_are_drawn(monkeypatch, rng_guard):
    x, y = blobs(600, 4, 3)
    whole = measure_statistics(features(x, y), seed=0)
    monkeypatch.setattr(neighbour_statistics, "NEIGHBOUR_ROWS", 200)
    monkeypatch.setattr(neighbour_statistics, "SILHOUETTE_ROWS", 100)
    with rng_guard():
        part = measure_statistics(features(x, y), seed=0)
    assert part["nn_accuracy"].settings["drawn_rows"] == 200
    assert part["silhouette"].settings["drawn_rows"] == 100
    for name in ("nn_accuracy", "twonn_dim", "silhouette"):
        assert part[name].value != whole[name].value
        low, high = part[name].interval
        assert low - 0.5 * (high - low) < whole[name].value < high + 0.5 * (high - low)
        assert measure_statistics(features(x, y), name, seed=0)[name] == part[name]
        assert measure_statistics(features(x, y), name, seed=1)[name].value != part[name].value
    assert part["fisher_ratio"] == whole["fisher_ratio"]


def test_blocks_do_not_show(monkeypatch, measured):
    given, found = measured
    monkeypatch.setattr(moment_sums, "_BLOCK_BYTES", 1)  # 16 rows each
    monkeypatch.setattr(neighbour_statistics, "_CHUNK_BYTES", 1)
    for name, statistic in measure_statistics(given, seed=4).items():
        assert statistic.value == pytest.approx(found[name].value, rel=1e-12)


def test_too_many_features(monkeypatch):
    x, y = blobs(30, 6)
    monkeypatch.setattr(measurement, "MAX_SPECTRUM_SPREAD", 5)
    found = measure_statistics(features(x, y), ["logme", "participation_ratio"])
    assert found["logme"].interval is None
    assert found["logme"].settings["interval"] == "none: 6 features, too many to repeat"
    assert found["participation_ratio"].interval is not None
    monkeypatch.setattr(measurement, "MAX_FEATURES", 5)
    monkeypatch.setattr(moments, "MAX_FEATURES", 5)
    found, undefined = try_statistics(features(x, y))
    assert set(undefined) == {"logme", "participation_ratio", "mean_abs_correlation", "pca90_dim"}
    assert undefined["logme"] == "expected at most 5 features for a covariance, found 6"
    assert found["fisher_ratio"].interval is not None
    with pytest.raises(InvalidInput) as caught:
        logme(features(x, y))
    assert caught.value.found == "6"


# ------------------------------------------------------------------ asking
def test_progress_and_order():
    x, y = blobs()
    seen = []
    found = measure_statistics(
        features(x, y), ["silhouette", "n_samples", "logme"], progress=lambda *a: seen.append(a)
    )
    assert list(found) == ["silhouette", "n_samples", "logme"]
    assert {what for what, _, _ in seen} == {"moments", "silhouettes", "groups left out"}
    assert all(0 <= done <= total for _, done, total in seen)


@pytest.mark.parametrize(
    ("arguments", "subject"),
    [
        ({"repeats": 0}, "statistics repeats"),
        ({"repeats": 1.5}, "statistics repeats"),
        ({"seed": -1}, "statistics seed"),
        ({"seed": True}, "statistics seed"),
    ],
)
def test_bad_settings(arguments, subject):
    x, y = blobs()
    with pytest.raises(InvalidInput) as caught:
        measure_statistics(features(x, y), "n_samples", **arguments)
    assert caught.value.subject == subject


@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e80, -1e200])
def test_bad_rows(bad):
    x, y = blobs()
    x[7, 2] = bad
    with pytest.raises(InvalidInput) as caught:
        measure_statistics(features(x, y))
    assert not isinstance(caught.value, UndefinedStatistic)
    assert ("row 7, column 2" in caught.value.found) == (not math.isfinite(bad))


def test_rows_without_labels_and_labels_out_of_range():
    x, y = blobs()
    with pytest.raises(InvalidInput) as caught:
        measure_statistics(features(x[:-1], y))
    assert caught.value.found == "59 rows and 60 labels"
    with pytest.raises(InvalidInput):
        measure_statistics(features(x, y, classes=2))


def test_unknown_names():
    x, y = blobs()
    with pytest.raises(NotFound) as caught:
        measure_statistics(features(x, y), ["fisher"])
    assert caught.value.candidates == NAMES
    with pytest.raises(NotFound):
        measure(features(x, y), statistics=["fisher"])


def largest_norm(given):
    return float(np.linalg.norm(given.x, axis=1).max())


OWN = StatisticSpec(
    "largest_norm", largest_norm, title="largest norm", unit="x", formula="max", reference="mine"
)


def test_a_statistic_of_your_own(monkeypatch):
    x, y = blobs()
    record = measure_statistics(features(x, y), [OWN, "norm_mean"])["largest_norm"]
    assert record.value == largest_norm(features(x, y))
    assert record.interval[0] <= record.value

    class Point:
        name = "largest_norm"

        def load(self):
            return OWN

    monkeypatch.setattr(statistics, "entry_points", lambda group: [Point()])
    assert measure_statistics(features(x, y), "largest_norm")["largest_norm"] == record


def test_a_value_that_is_no_number_does_not_get_through():
    spec = StatisticSpec("bad", lambda _: math.nan, title="b", unit="", formula="", reference="")
    x, y = blobs()
    assert try_statistics(features(x, y), [spec]) == (
        {},
        {"bad": "expected a finite value, found nan"},
    )


def test_measure_takes_statistics(rng_guard):
    x, y = blobs()
    with rng_guard():
        task = measure(features(x, y), n_samples=10, repeats=3, statistics=["logme", "csg"])
    assert list(task.statistics) == ["csg", "logme"]
    assert task.statistics["csg"].settings["n_samples"] == 10
    assert task.statistics["logme"].settings["groups"] == 3
    assert set(measure(features(x, y), statistics=None).statistics) == set(NAMES)
    assert set(measure(features(x, y)).statistics) == {"csg"}
    assert loads(dumps(task)) == task
