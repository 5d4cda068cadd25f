import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from temperance.errors import InvalidInput
from temperance.labels import ClassMap
from temperance.training.dataset import DataSet, Part
from temperance.training.splits import default_fit_rows, make_splits, select

COUNTS = st.lists(st.integers(0, 60), min_size=2, max_size=12)
LAYOUTS = st.sampled_from(
    [("train",), ("train", "val"), ("train", "test"), ("train", "val", "test")]
)
EXAMPLES = settings(deadline=None, derandomize=True, max_examples=150)


def data_of(counts, others=(), shuffle=0):
    """A data set whose train has these rows per class; other parts have two of each."""

    def part(name, numbers):
        y = np.repeat(np.arange(len(numbers)), numbers)
        y = np.random.default_rng(shuffle).permutation(y).astype(np.int64)
        return Part(
            np.arange(len(y), dtype=np.float32)[:, None],
            y,
            tuple(f"{name}{i}" for i in range(len(y))),
        )

    parts = {"train": part("train", counts)}
    parts |= {name: part(name, [2] * len(counts)) for name in others if name != "train"}
    return DataSet("toy", "features", parts, ClassMap(tuple(f"c{i}" for i in range(len(counts)))))


def taken(data, rows):
    return np.bincount(data.parts[rows.part].y[rows.index], minlength=data.n_classes)


def check_disjoint(splits):
    seen = [(r.part, i) for r in (splits.train, splits.fit, splits.test) for i in r.index.tolist()]
    assert len(seen) == len(set(seen))
    for rows in (splits.train, splits.fit, splits.test):
        assert (np.diff(rows.index) > 0).all()
    return seen


@EXAMPLES
@given(COUNTS, LAYOUTS, st.integers(0, 3))
def test_disjoint_and_covering(counts, layout, seed):
    data = data_of(counts, layout)
    if sum(counts) < 20:
        return
    splits = make_splits(data, seed=seed)
    seen = check_disjoint(splits)
    assert len(seen) == sum(len(p) for p in data.parts.values())


@EXAMPLES
@given(COUNTS, st.integers(0, 3))
def test_one_part_is_divided_within_one_row_per_class(counts, seed):
    if sum(counts) < 20:
        return
    data = data_of(counts)
    splits = make_splits(data, seed=seed)
    exact = np.array(counts)
    for rows, share in ((splits.train, 0.6), (splits.fit, 0.2), (splits.test, 0.2)):
        assert (np.abs(taken(data, rows) - share * exact) <= 1 + 1e-9).all()
        assert abs(len(rows) - share * exact.sum()) <= 1 + 0.8 * (exact <= 2).sum()
    assert (taken(data, splits.train)[exact > 0] > 0).all()


@EXAMPLES
@given(COUNTS, st.integers(0, 3))
def test_fit_rows_are_carved_within_one_row_per_class(counts, seed):
    n = sum(counts)
    if n < 20:
        return
    data = data_of(counts, ("test",))
    splits = make_splits(data, seed=seed)
    expected = min(default_fit_rows(n), sum(max(c - 1, 0) for c in counts))
    assert len(splits.fit) == expected
    assert splits.fit.part == splits.train.part == "train"
    if (np.array(counts) != 1).all():
        exact = expected / n * np.array(counts)
        assert (np.abs(taken(data, splits.fit) - exact) <= 1 + 1e-9).all()
    assert (taken(data, splits.train)[np.array(counts) > 0] > 0).all()


@EXAMPLES
@given(COUNTS, LAYOUTS, st.integers(2, 100), st.integers(0, 3))
def test_a_subset_has_exactly_its_size_within_one_row_per_class(counts, layout, rows, seed):
    if sum(counts) < 20:
        return
    data = data_of(counts, layout)
    pool = make_splits(data, seed=seed).train
    if rows > len(pool):
        with pytest.raises(InvalidInput):
            make_splits(data, seed=seed, train_rows=rows)
        return
    splits = make_splits(data, seed=seed, train_rows=rows)
    check_disjoint(splits)
    assert len(splits.train) == rows
    whole = np.array(counts) if len(layout) > 1 else taken(data, pool)
    exact = rows / whole.sum() * whole
    if rows >= (whole > 0).sum():
        assert (taken(data, splits.train)[whole > 0] > 0).all()
    if (exact[whole > 0] < 1).any():
        return
    assert (np.abs(taken(data, splits.train) - exact) <= 1 + 1e-9).all()
    if len(layout) == 2:
        assert len(splits.fit) == default_fit_rows(sum(counts))


def test_a_subset_keeps_rare_classes():
    data = data_of([100, 100, 1, 1, 1], ("val", "test"))
    for rows in (5, 20, 25, 203):
        counts = taken(data, make_splits(data, seed=0, train_rows=rows).train)
        assert counts.sum() == rows
        assert counts[2:].tolist() == [1, 1, 1]
        assert abs(counts[0] - counts[1]) <= 1
    few = make_splits(data, seed=0, train_rows=3)
    assert taken(data, few.train).max() == 1
    assert any("without a row in train" in n for n in few.notices)


def test_val_fits_and_test_judges():
    splits = make_splits(data_of([9, 9], ("val", "test")), seed=0)
    assert (splits.train.part, splits.fit.part, splits.test.part) == ("train", "val", "test")
    assert (len(splits.train), len(splits.fit), len(splits.test)) == (18, 4, 4)
    assert not splits.notices


@pytest.mark.parametrize("other", ["val", "test"])
def test_the_one_other_part_judges(other):
    splits = make_splits(data_of([30, 30], (other,)), seed=0)
    assert splits.test.part == other
    assert splits.fit.part == "train"
    assert len(splits.fit) == 12
    assert other in splits.notices[0]


def test_rare_classes_train_and_are_told():
    data = data_of([100, 10, 1, 2])
    splits = make_splits(data, seed=0)
    assert taken(data, splits.train).tolist()[2:] == [1, 1]
    assert taken(data, splits.test).tolist()[2:] == [0, 1]
    text = " | ".join(splits.notices)
    assert "classes with one row, which trains: c2" in text
    assert "without a row in fit: c2, c3" in text
    assert "without a row in test: c2" in text


def test_many_small_classes_do_not_all_fall_to_one_side():
    data = data_of([3] * 200)
    splits = make_splits(data, seed=0)
    assert abs(len(splits.fit) - 120) <= 1
    assert abs(len(splits.test) - 120) <= 1


def test_draws_depend_on_the_seed_only():
    data = data_of([40, 30, 20])
    one, two, other = (make_splits(data, seed=s) for s in (5, 5, 6))
    np.testing.assert_array_equal(one.test.index, two.test.index)
    assert not np.array_equal(one.test.index, other.test.index)


def test_no_global_random_state_is_touched(rng_guard):
    with rng_guard():
        make_splits(data_of([40, 30]), seed=0, train_rows=10)


def test_rows_are_drawn_and_not_taken_from_the_front():
    data = data_of([500, 500])
    index = make_splits(data, seed=0).test.index
    assert 400 < index.mean() < 600
    assert len(index) == 200


@pytest.mark.parametrize(
    "options",
    [
        {"train_rows": 1},
        {"train_rows": 10_000},
        {"fractions": (0.5, 0.5, 0.5)},
        {"fractions": (1.0, 0.0, 0.0)},
    ],
)
def test_arguments_are_checked(options):
    with pytest.raises(InvalidInput) as caught:
        make_splits(data_of([40, 30]), seed=0, **options)
    assert caught.value.subject in options


@pytest.mark.parametrize(("counts", "others"), [([1, 1], ()), ([2, 2], ()), ([2, 2], ("test",))])
def test_too_few_rows_are_refused(counts, others):
    with pytest.raises(InvalidInput, match="too few rows"):
        make_splits(data_of(counts, others), seed=0)


def test_more_rows_than_may_train_names_how_many_may():
    with pytest.raises(InvalidInput) as caught:
        make_splits(data_of([50, 50], ("test",)), seed=0, train_rows=90)
    assert "80" in caught.value.expected
    assert len(make_splits(data_of([50, 50], ("test",)), seed=0, train_rows=80).train) == 80


def test_select_gives_these_rows():
    data = data_of([10, 10])
    splits = make_splits(data, seed=0)
    part = select(data, splits.fit)
    assert part.x[:, 0].astype(int).tolist() == splits.fit.index.tolist()
    assert part.ids[0] == f"train{splits.fit.index[0]}"
    np.testing.assert_array_equal(part.y, data.parts["train"].y[splits.fit.index])
    whole = data_of([9, 9], ("val", "test"))
    assert select(whole, make_splits(whole, seed=0).test) is whole.parts["test"]
