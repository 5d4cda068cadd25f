"""Batches that are too small for BatchNorm are named before the training."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from temperance.errors import InvalidInput
from temperance.head import MIN_ROWS, check_batches


@pytest.mark.parametrize(
    ("n", "batch_size", "settings_", "first_unsafe", "smallest"),
    [
        (65, 64, {}, 2, 1),
        (66, 64, {}, 2, 2),
        (68, 64, {}, None, 4),
        (64, 64, {}, None, 64),
        (65, 64, {"drop_last": True}, None, 64),
        (10, 1, {}, 1, 1),
        (10, 2, {}, 1, 2),
        (10, 2, {"minimum": 2}, None, 2),
        (3, 64, {}, 1, 3),
        (129, 64, {"minimum": 2}, 3, 1),
        (128, 64, {"replicas": 8}, None, 8),
        (145, 64, {"replicas": 8}, 3, 2),
        (73, 64, {"replicas": 8, "minimum": 2}, 2, 1),
        (64, 8, {"replicas": 8}, 1, 1),
        (64, 9, {"replicas": 8, "minimum": 2}, 1, 1),
        (640, 64, {"accumulation": 64}, None, 64),
        (7, 3, {}, 1, 1),
    ],
)
def test_which_batch_and_how_few(n, batch_size, settings_, first_unsafe, smallest):
    plan, plan_replicas = check_batches(n, batch_size, **settings_), settings_.get("replicas", 1)
    assert (plan.first_unsafe, plan.smallest_rows) == (first_unsafe, smallest)
    assert plan.safe == (first_unsafe is None)
    assert bool(plan.advice) != plan.safe
    if plan.safe:
        plan.require_safe()
        return
    with pytest.raises(InvalidInput) as error:
        plan.require_safe()
    sizes = [b.numel() for b in torch.arange(n).split(batch_size)]
    rows = min(len(part) for part in torch.arange(sizes[first_unsafe - 1]).chunk(plan_replicas))
    assert plan.first_unsafe_rows == rows
    said = f"batch {first_unsafe} of {plan.batches} leaves BatchNorm with {rows} row"
    assert error.value.found.startswith(said)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(
    n=st.integers(1, 300),
    batch_size=st.integers(1, 70),
    replicas=st.integers(1, 9),
    drop_last=st.booleans(),
    accumulation=st.integers(1, 5),
)
def test_against_cutting_the_rows(n, batch_size, replicas, drop_last, accumulation):
    batches = [
        b for b in torch.arange(n).split(batch_size) if not drop_last or len(b) == batch_size
    ]
    arguments = {"drop_last": drop_last, "replicas": replicas, "accumulation": accumulation}
    if not batches:
        with pytest.raises(InvalidInput):
            check_batches(n, batch_size, **arguments)
        return
    shares = [min(len(part) for part in b.chunk(replicas)) for b in batches]
    plan = check_batches(n, batch_size, **arguments)
    unsafe = [i for i, share in enumerate(shares, start=1) if share < MIN_ROWS]
    assert plan.first_unsafe == (unsafe[0] if unsafe else None)
    assert plan.smallest_rows == min(shares)
    assert plan.batches == len(batches)
    assert plan.last_rows == len(batches[-1])
    assert plan.optimizer_steps == -(-len(batches) // accumulation)


def test_dropping_everything_is_refused():
    with pytest.raises(InvalidInput) as error:
        check_batches(63, 64, drop_last=True)
    assert "63" in error.value.fix


@pytest.mark.parametrize("bad", [0, -1, True, 2.0, "8", None])
@pytest.mark.parametrize("name", ["n", "batch_size", "replicas", "accumulation", "minimum"])
def test_counts(name, bad):
    arguments = {"n": 64, "batch_size": 8, name: bad}
    with pytest.raises(InvalidInput) as error:
        check_batches(arguments.pop("n"), arguments.pop("batch_size"), **arguments)
    assert error.value.subject == name


def test_advice_fits_the_case():
    assert any("drop_last" in a for a in check_batches(65, 64).advice)
    assert not any("drop_last" in a for a in check_batches(3, 64).advice)
    assert any("batch size" in a for a in check_batches(10, 2).advice)
    assert "replicas" in check_batches(64, 8, replicas=8).advice[0]


def test_the_message_tells_the_rows_of_the_batch_that_it_names():
    assert check_batches(7, 3).message == (
        "batch 1 of 3 leaves BatchNorm with 3 rows, fewer than 4, and the last one with 1"
    )


@settings(max_examples=300, deadline=None, derandomize=True)
@given(
    n=st.integers(1, 300),
    batch_size=st.integers(1, 80),
    replicas=st.integers(1, 9),
    minimum=st.integers(2, 5),
)
def test_advice_that_is_given_helps(n, batch_size, replicas, minimum):
    plan = check_batches(n, batch_size, replicas=replicas, minimum=minimum)
    text = " ".join(plan.advice)
    shared = {"replicas": replicas, "minimum": minimum}
    if "Drop" in text:
        assert check_batches(n, batch_size, drop_last=True, **shared).safe
    if "Merge" in text:
        merged = batch_size + n % batch_size
        assert check_batches(merged, merged, **shared).safe
    if "batch size" in text:
        size = minimum * replicas
        assert f"{size} or more" in text
        assert check_batches(n, size, drop_last=True, **shared).safe
        if n >= size + replicas:  # "a multiple of the replicas"
            assert check_batches(n, size + replicas, drop_last=True, **shared).safe


def test_merging_is_not_advised_where_it_does_not_help():
    assert not any("Merge" in a for a in check_batches(65, 64, replicas=8).advice)
    assert any("Merge" in a for a in check_batches(65, 64).advice)


def test_one_row_is_never_enough():
    with pytest.raises(InvalidInput) as error:
        check_batches(2, 1, minimum=1)
    assert error.value.subject == "minimum"


def test_whole_numbers_of_numpy():
    plan = check_batches(np.int64(65), np.int32(64), replicas=np.uint8(1))
    assert plan == check_batches(65, 64)
    assert all(type(v) is int for v in (plan.batches, plan.last_rows, plan.smallest_rows))
    with pytest.raises(InvalidInput):
        check_batches(np.bool_(True), 64)
