"""Batches in, logits out: every form that models and loaders use, refusal of what is unclear."""

from collections import OrderedDict, UserDict, namedtuple
from dataclasses import dataclass

import pytest
import torch
from torch import nn

from temperance.errors import InvalidInput, NotFound
from temperance.models import call_model, device_of, logits_of, split_batch, to_device

Z = torch.zeros(2, 3)
LOSS = torch.tensor(0.5)
Inception = namedtuple("Inception", ["logits", "aux_logits"])


@dataclass
class Output:
    logits: torch.Tensor | None = None
    hidden_states: tuple | None = None


@pytest.mark.parametrize(
    "output",
    [
        Z,
        (Z,),
        [Z],
        (LOSS, Z),
        (Z, None),
        (Z, (torch.ones(2, 4),)),
        {"logits": Z, "features": torch.ones(2, 4)},
        {"out": Z, "aux": torch.ones(2, 3)},
        {"prediction": Z, "loss": LOSS},
        OrderedDict(loss=LOSS, logits=Z),
        UserDict(logits=Z),
        Inception(Z, torch.ones(2, 3)),
        Output(Z, (torch.ones(2, 3),)),
    ],
)
def test_logits_are_found(output):
    assert logits_of(output) is Z


@pytest.mark.parametrize(
    ("output", "candidates"),
    [
        ((Z, Z + 1), ("0", "1")),
        ([Z, torch.ones(2, 4)], ("0", "1")),
        ({"a": Z, "b": Z}, ("a", "b")),
        ({"loss": LOSS}, ()),
        (Output(None), ()),
        ((), ()),
        ("text", ()),
        (None, ()),
    ],
)
def test_unclear_output_is_refused_with_candidates(output, candidates):
    with pytest.raises(NotFound) as error:
        logits_of(output)
    assert error.value.candidates == candidates


def test_key_chooses():
    two = (Z, Z + 1)
    assert logits_of(two, key=1) is two[1]
    assert logits_of(two, key=-1) is two[1]
    assert logits_of({"a": Z, "b": Z + 1}, key="a") is Z
    aux = Inception(Z, Z + 1)
    assert logits_of(aux, key="aux_logits") is aux[1]
    assert logits_of(aux, key=1) is aux[1]
    assert logits_of(Output(Z), key="logits") is Z
    assert (
        logits_of(Z, key=1) is Z
    )  # a distilled model: a tuple in training, a tensor in evaluation
    with pytest.raises(NotFound):
        logits_of(two, key=2)
    with pytest.raises(NotFound) as error:
        logits_of({"a": Z}, key="b")
    assert error.value.candidates == ("a",)


@pytest.mark.parametrize(
    "bad", [torch.tensor([1, 2]), torch.tensor(1.0), {"logits": torch.ones(2).long()}]
)
def test_no_floats_no_logits(bad):
    with pytest.raises(InvalidInput):
        logits_of(bad)


def test_split_batch():
    x, y = torch.zeros(2, 3), torch.tensor([0, 1])
    assert split_batch(x) == (x, None)
    assert split_batch((x,)) == (x, None)
    assert split_batch([x, y]) == (x, y)
    assert split_batch(((x, x), y)) == ((x, x), y)
    inputs, labels = split_batch({"input_ids": x, "labels": y})
    assert list(inputs) == ["input_ids"]
    assert labels is y
    assert split_batch({"x": x, "labels": None}) == ({"x": x}, None)


@pytest.mark.parametrize("bad", [(), (1, 2, 3), 7, None, "a", {"label": 1, "labels": 2}])
def test_other_batches_are_refused(bad):
    with pytest.raises(InvalidInput):
        split_batch(bad)


class Named(nn.Module):
    def forward(self, pixel_values, mask=None):
        return pixel_values if mask is None else pixel_values * mask


class Anything(nn.Module):
    def forward(self, **inputs):
        return inputs["pixel_values"]


def test_call_model():
    x, model = torch.ones(2, 3), Named()
    assert call_model(model, x) is x
    assert call_model(model, {"pixel_values": x}) is x
    assert call_model(model, {"image": x}) is x  # the only entry, under a loader's own name
    assert call_model(Anything(), {"pixel_values": x}) is x
    assert call_model(nn.DataParallel(model), {"image": x}) is x
    torch.testing.assert_close(call_model(model, (x, 2 * x)), 2 * x)
    torch.testing.assert_close(call_model(model, {"mask": 3 * x, "pixel_values": x}), 3 * x)
    with pytest.raises(TypeError):
        call_model(model, {"image": x, "mask": x})
    for empty in ({}, (), []):
        with pytest.raises(InvalidInput):
            call_model(model, empty)


def test_to_device_keeps_the_structure():
    pair = namedtuple("Pair", ["a", "b"])(torch.zeros(1), "text")
    moved = to_device({"p": pair, "l": [torch.zeros(1), 3]}, "meta")
    assert moved["p"].a.device.type == "meta"
    assert moved["p"].b == "text"
    assert moved["l"][0].device.type == "meta"
    assert moved["l"][1] == 3


def test_device_of():
    assert device_of(nn.Linear(2, 2, device="meta")).type == "meta"
    assert device_of(nn.BatchNorm1d(2, affine=False, device="meta")).type == "meta"
    assert device_of(nn.ReLU()).type == "cpu"
