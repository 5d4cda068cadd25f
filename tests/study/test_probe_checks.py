"""What cannot be trained as a probe is refused, before any work."""

from dataclasses import replace

import numpy as np
import pytest

from temperance.errors import InvalidInput
from temperance.study.outcome import StudyData
from temperance.study.probe import train_probes
from temperance.study.trial import Trial

M = 7
FIRST = Trial("blobs", steps=40, batch_size=16)


def blobs(sizes=(50, 30, 20)):
    """Features and labels at random, seven features and four classes."""
    rng = np.random.default_rng(0)
    splits = dict(zip(("train", "val", "test"), sizes, strict=True))
    x = {split: rng.normal(size=(n, M)).astype(np.float32) for split, n in splits.items()}
    return StudyData("blobs", x, {split: rng.integers(0, 4, n) for split, n in splits.items()}, 4)


def changed(**arrays):
    """Data with one array replaced, named for instance x_val."""
    data = blobs()
    x, y = dict(data.x), dict(data.y)
    for name, array in arrays.items():
        (x if name[0] == "x" else y)[name[2:]] = array
    return replace(data, x=x, y=y)


X, Y = blobs().x, blobs().y
NAN = X["val"].copy()
NAN[3, 2] = np.nan


@pytest.mark.parametrize(
    ("data", "subject", "found"),
    [
        (changed(x_val=X["val"][:0], y_val=Y["val"][:0]), "blobs (val)", "none"),
        (changed(x_test=np.zeros((20, 1, 7, 7), np.float32)), "blobs (test)", "[20, 1, 7, 7]"),
        (changed(x_val=NAN), "blobs (val)", "nan in row 3, column 2"),
        (changed(x_val=X["val"][:, :5]), "blobs (val)", "rows of 5"),
        (changed(x_train=X["train"].astype(np.float64)), "blobs (train)", "float64"),
        (changed(y_test=Y["test"] + 3), "labels of blobs (test)", "in row"),
        (changed(y_val=Y["val"] - 4), "labels of blobs (val)", "in row 0"),
        (changed(y_val=Y["val"][:9]), "labels of blobs (val)", "shape [9]"),
        (changed(y_val=Y["val"].astype(float)), "labels of blobs (val)", "float64"),
    ],
)
def test_rows_that_cannot_be_used_are_refused_before_any_work(data, subject, found):
    with pytest.raises(InvalidInput) as caught:
        train_probes(data, [FIRST])
    assert caught.value.subject == subject
    assert found in caught.value.found


def test_a_split_that_is_absent_is_refused():
    data = blobs()
    x = {split: rows for split, rows in data.x.items() if split != "test"}
    with pytest.raises(InvalidInput) as caught:
        train_probes(replace(data, x=x), [FIRST])
    assert caught.value.subject == "blobs (test)"


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"model": "mlp"}, "model probe"),
        ({"steps": 41}, "steps 40, as in trial 0"),
        ({"batch_size": 8}, "batch_size 16, as in trial 0"),
        ({"dataset": "other"}, "dataset 'blobs', as in trial 0"),
        ({"train_rows": 30}, "train_rows None, as in trial 0"),
    ],
)
def test_trials_that_do_not_belong_together_are_refused(changes, expected):
    with pytest.raises(InvalidInput) as caught:
        train_probes(blobs(), [FIRST, replace(FIRST, **changes)])
    assert caught.value.subject == "trial 1"
    assert caught.value.expected == expected


def test_another_feature_dim_is_refused():
    with pytest.raises(InvalidInput) as caught:
        train_probes(blobs(), [replace(FIRST, feature_dim=3)])
    assert caught.value.subject == "trial.feature_dim"
    outcome = next(train_probes(blobs(), [replace(FIRST, feature_dim=M)]))
    assert outcome.feature_dim == M


@pytest.mark.parametrize(("n", "batch_size"), [(50, 1), (50, 3), (3, 64)])
def test_batches_too_small_for_a_batch_norm_are_refused(n, batch_size):
    data = blobs(sizes=(n, 4, 4))
    trial = replace(FIRST, norm="batch", batch_size=batch_size)
    with pytest.raises(InvalidInput) as caught:
        train_probes(data, [replace(trial, norm="none"), trial])
    assert caught.value.subject == "batches for BatchNorm"
    assert "norm='layer'" in caught.value.fix
