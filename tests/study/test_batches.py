"""The order of rows, the learning rate and the entries of a learning curve."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from temperance.errors import InvalidInput
from temperance.study.batches import HISTORY_POINTS, batch_rows, history_steps, learning_rate


@settings(max_examples=60, deadline=None)
@given(
    n=st.integers(1, 40), size=st.integers(1, 50), steps=st.integers(1, 60), seed=st.integers(0, 9)
)
def test_an_epoch_takes_no_row_twice_and_all_that_fill_a_batch(n, size, steps, seed):
    rows = batch_rows(n, size, steps, seed)
    assert rows.shape == (steps, min(size, n))
    assert rows.dtype == np.int64
    assert rows.min() >= 0
    assert rows.max() < n
    per_epoch = n // rows.shape[1]
    for start in range(0, steps, per_epoch):
        epoch = rows[start : start + per_epoch].ravel()
        assert len(set(epoch.tolist())) == len(epoch)


def test_more_steps_change_no_earlier_batch():
    np.testing.assert_array_equal(batch_rows(20, 6, 50, 3)[:17], batch_rows(20, 6, 17, 3))


def test_seeds_and_epochs_have_orders_of_their_own(rng_guard):
    with rng_guard():
        rows = batch_rows(50, 50, 2, 0)
    assert not np.array_equal(rows[0], rows[1])
    assert not np.array_equal(rows[0], batch_rows(50, 50, 1, 1)[0])
    np.testing.assert_array_equal(rows, batch_rows(50, 50, 2, 0))


def test_rows_left_out_of_an_epoch_come_in_others():
    assert set(batch_rows(10, 7, 40, 0).ravel().tolist()) == set(range(10))


@pytest.mark.parametrize(
    ("arguments", "subject"),
    [
        ((0, 4, 5, 0), "n"),
        ((10, 0, 5, 0), "batch_size"),
        ((10, 4, 0, 0), "steps"),
        ((10, 4, 5, -1), "seed"),
    ],
)
def test_numbers_out_of_range_are_refused(arguments, subject):
    with pytest.raises(InvalidInput) as caught:
        batch_rows(*arguments)
    assert caught.value.subject == subject


def test_the_cosine_is_the_one_of_torch():
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=0.3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=40)
    for step in range(40):
        ours = learning_rate(step, 40, peak=0.3, schedule="cosine")
        assert math.isclose(ours, optimizer.param_groups[0]["lr"], rel_tol=1e-9)
        assert ours > 0
        optimizer.step()
        schedule.step()


def test_a_constant_rate_stays():
    assert {learning_rate(step, 9, peak=0.3, schedule="constant") for step in range(9)} == {0.3}


@pytest.mark.parametrize(
    ("step", "schedule", "subject"),
    [(9, "cosine", "step"), (-1, "constant", "step"), (0, "linear", "schedule")],
)
def test_steps_and_schedules_that_are_none_are_refused(step, schedule, subject):
    with pytest.raises(InvalidInput) as caught:
        learning_rate(step, 9, peak=0.3, schedule=schedule)
    assert caught.value.subject == subject


@given(steps=st.integers(1, 10**7))
def test_a_curve_has_few_entries_and_the_last_step(steps):
    entries = history_steps(steps)
    assert entries[0] == 1
    assert entries[-1] == steps
    assert list(entries) == sorted(set(entries))
    assert len(entries) <= HISTORY_POINTS
    assert all(isinstance(entry, int) for entry in entries)
