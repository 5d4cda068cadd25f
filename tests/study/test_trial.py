"""The trial: its key is the same for the same content, everywhere and for ever."""

import json
import math
import pickle
import subprocess
import sys
from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from temperance.errors import InvalidInput
from temperance.study.trial import (
    AUGMENTS,
    LOSSES,
    NORMS,
    OPTIMIZERS,
    PATHS,
    SCHEDULES,
    Trial,
    trial_from_dict,
)

SHARE = st.floats(0, 1, exclude_max=True)
COUNT = st.integers(1, 2**63 - 1)
TRIALS = st.builds(
    Trial,
    dataset=st.text(min_size=1).filter(str.strip),
    features=st.sampled_from(["input", "pca:64"]),
    model=st.sampled_from(["probe", "cnn"]),
    feature_dim=st.none() | COUNT,
    norm=st.sampled_from(NORMS),
    temperature=st.floats(1e-6, 1e6),
    loss=st.sampled_from(LOSSES),
    optimizer=st.sampled_from(OPTIMIZERS),
    lr=st.floats(1e-9, 1e3),
    weight_decay=st.floats(0, 1),
    momentum=SHARE,
    schedule=st.sampled_from(SCHEDULES),
    batch_size=COUNT,
    steps=COUNT,
    train_rows=st.none() | st.integers(2, 10**6),
    smoothing=SHARE,
    label_noise=SHARE,
    seed=st.integers(0, 2**63 - 1),
    path=st.sampled_from(PATHS),
    augment=st.sampled_from(AUGMENTS),
)
OTHER = {
    "dataset": "glyphs",
    "features": "pca:64",
    "model": "cnn",
    "feature_dim": 64,
    "norm": "batch",
    "temperature": 4,
    "loss": "normalized",
    "optimizer": "adamw",
    "lr": 0.5,
    "weight_decay": 0.1,
    "momentum": 0,
    "schedule": "constant",
    "batch_size": 32,
    "steps": 10,
    "train_rows": 100,
    "smoothing": 0.1,
    "label_noise": 0.2,
    "seed": 1,
    "path": "ramp",
    "augment": "noise",
}


# ------------------------------------------------------------------ the key
def test_keys_are_what_they_always_were():
    assert Trial("digits").key == "8872d00f747970bb02f5"
    assert Trial("digits", temperature=4, seed=3).key == "3f5ec1ac0d8e40f64e0e"
    first = {k: v for k, v in OTHER.items() if k not in ("path", "augment")}
    assert Trial(**first).key == "81f2e1657d96a75f2c8e"
    moved = Trial("digits", path="ramp", model="mlp")
    assert moved.key == "ae6422f466e6aa7149ce"


def test_keys_are_the_same_in_another_process():
    code = "from temperance.study.trial import Trial; print(Trial('digits', seed=3, lr=.3).key)"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout.strip() == Trial("digits", seed=3, lr=0.3).key


@settings(max_examples=60)
@given(TRIALS)
def test_content_survives_json_and_keeps_its_key(trial):
    again = trial_from_dict(json.loads(json.dumps(trial.to_dict())))
    assert again == trial
    assert again.key == trial.key
    assert pickle.loads(pickle.dumps(trial)).key == trial.key


@settings(max_examples=60)
@given(TRIALS, TRIALS)
def test_equal_content_is_an_equal_key_and_other_content_another(one, two):
    assert (one == two) == (one.key == two.key)


def test_every_field_changes_the_key():
    assert set(OTHER) == {f.name for f in fields(Trial)}
    keys = {Trial(**{"dataset": "digits", name: value}).key for name, value in OTHER.items()}
    assert len({*keys, Trial("digits").key}) == len(OTHER) + 1


def test_defaults_do_not_count():
    written = {f.name: f.default for f in fields(Trial)} | {"dataset": "digits"}
    assert trial_from_dict(written).key == Trial("digits").key
    assert trial_from_dict({"dataset": "digits"}).key == Trial("digits").key


@pytest.mark.parametrize(
    ("name", "same"),
    [
        ("temperature", [4, 4.0, np.float64(4), np.float32(4), np.int64(4), np.uint8(4)]),
        ("lr", [1, 1.0, np.float16(1)]),
        ("steps", [500, 500.0, np.int32(500), np.uint64(500), np.float64(500)]),
        ("feature_dim", [64, 64.0, np.int16(64)]),
        ("seed", [2, 2.0, np.int64(2)]),
        ("weight_decay", [0, 0.0, -0.0, np.float32(-0.0)]),
        ("momentum", [0, 0.0, -0.0]),
        ("norm", ["batch", np.str_("batch")]),
    ],
)
def test_equal_numbers_are_one_trial_whatever_their_type(name, same):
    trials = [Trial(**{"dataset": "digits", name: value}) for value in same]
    assert len({t.key for t in trials}) == 1
    assert len(set(trials)) == 1
    text = {json.dumps(t.to_dict()) for t in trials}
    assert len(text) == 1
    kinds = {type(getattr(t, name)) for t in trials} - {np.str_}
    assert kinds <= {int, float, str}


def test_numbers_that_differ_in_the_last_bit_are_two_trials():
    near = math.nextafter(0.1, 1)
    assert Trial("digits", lr=near).key != Trial("digits", lr=0.1).key
    assert Trial("digits", lr=np.float32(0.1)) == Trial("digits", lr=float(np.float32(0.1)))


# ------------------------------------------------------------------ its parts
def test_a_setting_is_all_but_temperature_and_seed():
    trial = Trial(**OTHER)
    assert trial.setting == replace(trial, temperature=9.0, seed=9).setting
    assert set(trial.to_dict()) - set(trial.setting) == {"temperature", "seed"}
    assert Trial("digits").setting != Trial("digits", lr=0.2).setting


def test_a_task_is_data_representation_and_size():
    trial = Trial(**OTHER)
    assert set(trial.task_content) == {
        "dataset",
        "features",
        "model",
        "feature_dim",
        "train_rows",
        "label_noise",
    }
    assert trial.task_content == replace(trial, lr=0.3, norm="none", steps=3).task_content


# ------------------------------------------------------------------ bad input
@pytest.mark.parametrize(
    ("name", "bad"),
    [
        *(("dataset", bad) for bad in ("", " ", None, 3, ["digits"])),
        *(("features", bad) for bad in ("", b"input")),
        *(("norm", bad) for bad in ("Batch", "group", None, ["batch"], np.array(["none"]))),
        *(("loss", bad) for bad in ("nll", 1)),
        *(("optimizer", bad) for bad in ("adam", None)),
        *(("augment", bad) for bad in ("flip", "mixup", "", None, True)),
        *(("temperature", bad) for bad in (0, -1, math.nan, math.inf, "4", None, True, [4], 1j)),
        *(("temperature", bad) for bad in (10**400, np.array([4.0]), np.bool_(True))),
        *(("lr", bad) for bad in (0, -0.1, -math.inf)),
        *(("weight_decay", bad) for bad in (-1e-9, math.nan)),
        *(("momentum", bad) for bad in (1, -0.1, 1.5)),
        *(("smoothing", bad) for bad in (1.0, -0.1, math.nan)),
        *(("label_noise", bad) for bad in (1, "0.1")),
        *(("batch_size", bad) for bad in (0, -3, 1.5, "64", None, True)),
        *(("steps", bad) for bad in (0, 2**63, math.inf, math.nan, np.array([3]))),
        *(("seed", bad) for bad in (-1, 0.5, None, 2**64)),
        *(("train_rows", bad) for bad in (1, 0, 2.5)),
        *(("feature_dim", bad) for bad in (0, -1, False, "64")),
    ],
)
def test_values_out_of_range_are_refused_by_name(name, bad):
    with pytest.raises(InvalidInput) as error:
        Trial(**{"dataset": "digits", name: bad})
    assert error.value.subject == f"trial.{name}"
    assert len(error.value.found) <= 60


@pytest.mark.parametrize("name", ["lr", "steps", "dataset"])
def test_a_number_too_long_to_print_is_refused_in_a_sentence(name):
    with pytest.raises(InvalidInput, match="thousands of digits") as error:
        Trial(**{"dataset": "digits", name: 10**5000})
    assert error.value.subject == f"trial.{name}"


def test_the_largest_numbers_are_fine():
    trial = Trial("digits", seed=2**63 - 1, steps=2**53 + 1, temperature=1e308, lr=5e-324)
    assert trial_from_dict(json.loads(json.dumps(trial.to_dict()))) == trial


@pytest.mark.parametrize(
    ("content", "found"),
    [
        ({"dataset": "digits", "temprature": 4}, "'temprature'"),
        ({"dataset": "digits", "b": 1, "a": 2}, "'a', 'b'"),
        ({"dataset": "digits", 3: 1, "a": 2}, "3, 'a'"),
        ({"temperature": 4}, "none"),
        ([1], "[1]"),
        (None, "None"),
    ],
)
def test_mappings_that_are_no_trial_are_refused(content, found):
    with pytest.raises(InvalidInput) as error:
        trial_from_dict(content)
    assert error.value.subject == "trial"
    assert error.value.found == found
