"""Records: checks on the way in, strict JSON on the way out and back."""

import json
import math

import numpy as np
import pytest
import torch

from temperance import Features, Suggestion, Task, suggest
from temperance.errors import InvalidInput
from temperance.records import (
    SCHEMA_VERSION,
    Estimate,
    Report,
    Run,
    Statistic,
    dumps,
    from_dict,
    loads,
    to_dict,
)

TASK = Task(
    feature_dim=512,
    n_classes=10,
    n_samples=100,
    statistics={"csg": Statistic(0.5, (0.4, 0.6), settings={"k": 3}, eigenvalues=(0.0, 1.0))},
    training={"optimizer": "sgd"},
)
REPORT = Report(
    n=2,
    n_classes=2,
    metrics={"nll": Estimate(math.inf, (0.1, math.inf), "bootstrap")},
    per_class={"a": Estimate(1.0), "b": None},
    reliability={"count": [1, 2]},
)


@pytest.mark.parametrize(
    "record",
    [
        TASK,
        REPORT,
        suggest(TASK),
        suggest(Task(feature_dim=8, n_classes=300)),
        Run(trial={"seed": 1}, outcome="done", report=REPORT, history={"nll": (1.0, math.nan)}),
    ],
)
def test_round_trip(record):
    again = loads(dumps(record))
    assert type(again) is type(record)
    assert dumps(again) == dumps(record)
    assert json.loads(dumps(record))["schema_version"] == SCHEMA_VERSION


def test_nan_and_infinity_are_written_as_texts():
    text = dumps(Estimate(math.nan, (-math.inf, math.inf)))
    assert "NaN" not in text
    assert "Infinity" not in text
    again = loads(text)
    assert math.isnan(again.value)
    assert again.interval == (-math.inf, math.inf)


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[1]",
        '{"record": "Nothing"}',
        '{"record": "Task", "schema_version": 99, "feature_dim": 1, "n_classes": 2}',
        '{"record": "Task", "schema_version": 1, "feature_dim": 1}',
        '{"record": "Estimate", "value": "abc"}',
        '{"record": "Estimate", "value": 1.0, "interval": [1, 2, 3]}',
        '{"record": "Report", "n": 1, "n_classes": 2, "metrics": [1]}',
        '{"record": "Report", "n": "x", "n_classes": 2, "metrics": {}}',
        b"\xff",
    ],
)
def test_foreign_json_is_refused(text):
    with pytest.raises(InvalidInput):
        loads(text)


def test_the_kind_that_was_asked_for():
    with pytest.raises(InvalidInput):
        loads(dumps(TASK), Suggestion)
    assert from_dict(to_dict(TASK), Task) == TASK


def test_arrays_are_not_json():
    with pytest.raises(InvalidInput):
        dumps(Features.from_arrays([[0.0], [1.0]], [0, 1]))


def test_what_json_cannot_hold_is_refused():
    with pytest.raises(InvalidInput):
        dumps(Statistic(1.0, settings={"f": print}))
    assert loads(dumps(Statistic(1.0, settings={"a": np.arange(2)}))).settings == {"a": [0, 1]}


@pytest.mark.parametrize(("m", "c"), [(0, 10), (512, 1), (512, 0), (1.5, 10), (True, 10)])
def test_a_task_has_features_and_classes(m, c):
    with pytest.raises(InvalidInput):
        Task(feature_dim=m, n_classes=c)


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [
        (np.float16, np.float32),
        (np.float32, np.float32),
        (np.float64, np.float64),
        (np.uint8, np.float32),
        (np.int16, np.float32),
        (np.int64, np.float64),
        (bool, np.float32),
    ],
)
def test_feature_types(dtype, expected):
    x = np.array([[0, 1], [1, 0]], dtype=dtype)
    assert Features.from_arrays(x, [0, 1]).x.dtype == expected


def test_features_of_tensors_and_ignored_rows():
    x = torch.arange(6.0).reshape(3, 2)
    features = Features.from_arrays(x.bfloat16(), torch.tensor([0, -100, 1]), ignore=(-100,))
    assert features.x.tolist() == [[0.0, 1.0], [4.0, 5.0]]
    assert (len(features), features.feature_dim, features.class_names) == (2, 2, ("0", "1"))


@pytest.mark.parametrize(
    ("x", "y", "found"),
    [
        ([[0.0], [math.nan]], [0, 1], "nan in row 1, column 0"),
        ([[0.0], [-math.inf]], [0, 1], "-inf in row 1, column 0"),
        ([0.0, 1.0], [0, 1], "shape [2]"),
        (np.zeros((0, 3)), [], "shape [0, 3]"),
        ([["a"], ["b"]], [0, 1], "type <U1"),
        ([[0.0], [1.0], [2.0]], [0, 1], "3 rows and 2 labels"),
    ],
)
def test_features_are_checked(x, y, found):
    with pytest.raises(InvalidInput) as caught:
        Features.from_arrays(x, y)
    assert caught.value.found == found
