"""Checkpoints as they lie on the disk: containers, prefixes, both kinds of heads, bad files."""

import argparse
import random

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel

from temperance import insert
from temperance.errors import InvalidInput, NotFound, TemperanceWarning
from temperance.models import find_state, load_checkpoint, strip_prefixes, write_safetensors


class Net(nn.Module):
    def __init__(self, classes=3):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU())
        self.fc = nn.Linear(6, classes)

    def forward(self, x):
        return self.fc(self.body(x))


def tempered(temperature=4.0):
    model = Net()
    insert(model, temperature, name="fc")
    return model


def values(model):
    return {k: v.clone() for k, v in model.state_dict().items()}


def same(a, b):
    return set(a) == set(b) and all(torch.equal(a[k], b[k]) for k in a)


def compiled(model):
    return torch.compile(model, backend="eager")


WRAPPERS = {
    "plain": lambda m: m,
    "module": nn.DataParallel,
    "_orig_mod": compiled,
    "module._orig_mod": lambda m: nn.DataParallel(compiled(m)),
    "_orig_mod.module": lambda m: compiled(nn.DataParallel(m)),
    "module.module": lambda m: nn.DataParallel(nn.DataParallel(m)),
    "inside": lambda m: setattr(m, "body", compiled(m.body)) or m,
    "inside and outside": lambda m: nn.DataParallel(setattr(m, "body", compiled(m.body)) or m),
    "averaged": AveragedModel,
}
CONTAINERS = {
    "bare": lambda s: s,
    "lightning": lambda s: {"state_dict": s, "epoch": 3, "global_step": 9, "callbacks": {}},
    "trainer": lambda s: {
        "model": s,
        "optimizer": torch.optim.SGD([nn.Parameter(torch.zeros(2))], lr=0.1).state_dict(),
        "epoch": 1,
        "best": torch.tensor(0.3),
        "loss": {"running": torch.tensor(1.0)},
    },
    "deep": lambda s: {"run": {"weights": s, "config": {"lr": 0.1}}, "rng": torch.zeros(3)},
}


@pytest.mark.parametrize("theirs", WRAPPERS)
@pytest.mark.parametrize("ours", WRAPPERS)
@pytest.mark.parametrize("heads", ["plain", "tempered"])
def test_every_nesting_into_every_other(theirs, ours, heads):
    make = Net if heads == "plain" else tempered
    source, target = make(), make()
    saved = WRAPPERS[theirs](source).state_dict()
    more = {"allow_missing": True} if ours == "averaged" else {}
    report = load_checkpoint(WRAPPERS[ours](target), {"model": saved}, **more)
    if ours == "averaged":  # the averaged model is a copy, and counts for itself
        assert set(report.new) <= {"n_averaged"}
        return
    assert same(*(strip_prefixes(values(m)) for m in (source, target)))
    assert report.new == ()
    assert report.ignored == (("n_averaged",) if theirs == "averaged" else ())


@pytest.mark.parametrize("container", CONTAINERS)
@pytest.mark.parametrize("legacy", [None, True, False])
def test_every_container_from_memory_and_from_both_kinds_of_file(container, legacy, tmp_path):
    source, target = tempered(7.5), tempered()
    content = CONTAINERS[container](nn.DataParallel(source).state_dict())
    if legacy is not None:
        file = tmp_path / "checkpoint.ckpt"
        torch.save(content, file, _use_new_zipfile_serialization=not legacy)
        content = file
    report = load_checkpoint(target, content)
    assert same(values(source), values(target))
    assert str(report) == "15 loaded, 0 new, 0 ignored"


def test_safetensors(tmp_path):
    source, target = Net(), Net()
    write_safetensors(tmp_path / "model.safetensors", nn.DataParallel(source).state_dict())
    load_checkpoint(target, tmp_path / "model.safetensors")
    assert same(values(source), values(target))


def test_plain_into_tempered_and_back_with_a_report(tmp_path):
    torch.save({"model": nn.DataParallel(Net()).state_dict()}, tmp_path / "plain.pt")
    report = load_checkpoint(tempered(), str(tmp_path / "plain.pt"))
    assert (len(report.loaded), len(report.ignored)) == (9, 0)
    assert set(report.new) == {
        "fc.temperature", "fc.norm.weight", "fc.norm.bias", "fc.norm.running_mean",
        "fc.norm.running_var", "fc.norm.num_batches_tracked",
    }  # fmt: skip
    torch.save({"model": compiled(tempered()).state_dict()}, tmp_path / "tempered.pt")
    with pytest.warns(TemperanceWarning, match=r"fc\.temperature"):
        report = load_checkpoint(Net(), tmp_path / "tempered.pt")
    assert (len(report.loaded), len(report.new), len(report.ignored)) == (9, 0, 6)


def test_two_entries_with_weights_have_to_be_named():
    source, other, target = Net(), Net(), Net()
    content = {"model": source.state_dict(), "ema": {"state_dict": other.state_dict()}}
    before = values(target)
    with pytest.raises(NotFound) as error:
        load_checkpoint(target, content)
    assert error.value.candidates == ("model", "ema.state_dict")
    assert same(values(target), before)
    load_checkpoint(target, content, entry="ema.state_dict")
    assert same(values(target), values(other))
    with pytest.raises(NotFound) as error:
        load_checkpoint(target, content, entry="weights")
    assert "weights" in error.value.found


def test_names_behind_an_attribute():
    """A LightningModule that holds the model and a metric with a buffer."""
    source, target = Net(), Net()
    module = nn.Module()
    module.model, module.metric = source, nn.BatchNorm1d(2)
    state = nn.DataParallel(module).state_dict()
    before = values(target)
    with pytest.raises(InvalidInput) as error:
        load_checkpoint(target, state)
    assert "prefix='model.'" in error.value.fix
    assert same(values(target), before)
    report = load_checkpoint(target, state, prefix="model.")
    assert same(values(source), values(target))
    assert len(report.ignored) == 5
    assert all(name.startswith("metric.") for name in report.ignored)
    with pytest.raises(InvalidInput) as error:
        load_checkpoint(target, state, prefix="net.")
    assert error.value.subject == "prefix"


@pytest.mark.parametrize(
    ("content", "error"),
    [
        ({}, NotFound),
        ({"epoch": 3}, NotFound),
        ({"loss": torch.tensor(0.3)}, NotFound),
        ({"optimizer": {"state": {}, "param_groups": []}}, NotFound),
        ({"model": {"other.weight": torch.zeros(3, 3)}}, InvalidInput),
        ({"model": {k: v for k, v in Net().state_dict().items() if k[0] == "b"}}, InvalidInput),
        ({"model": Net(classes=7).state_dict()}, InvalidInput),
    ],
)
def test_what_does_not_fit_changes_nothing(content, error):
    model = Net()
    before = values(model)
    with pytest.raises(error):
        load_checkpoint(model, content)
    assert same(values(model), before)


def test_missing_names_on_purpose():
    state = {k: v for k, v in Net().state_dict().items() if k.startswith("body.")}
    report = load_checkpoint(Net(), {"model": state, "step": 1}, allow_missing=True)
    assert set(report.new) == {"fc.weight", "fc.bias"}


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04", b"\x80\x02", b"text, and no checkpoint"])
def test_broken_files(content, tmp_path):
    file = tmp_path / "broken.pt"
    file.write_bytes(content)
    with pytest.raises(InvalidInput) as error:
        load_checkpoint(Net(), file)
    assert error.value.subject == str(file)


@pytest.mark.parametrize("legacy", [False, True])
def test_damaged_bytes_anywhere_are_a_clear_error(legacy, tmp_path):
    """Of which torch raises KeyError, IndexError, AssertionError, struct.error and more."""
    file, model, random_ = tmp_path / "damaged.pt", Net(), random.Random(0)
    torch.save({"model": Net().state_dict()}, file, _use_new_zipfile_serialization=not legacy)
    whole, outcomes = file.read_bytes(), set()
    for _ in range(150):
        damaged = bytearray(whole)
        for place in random_.sample(range(4, 600), 3):
            damaged[place] = random_.randrange(256)
        file.write_bytes(damaged)
        try:
            outcomes.add(type(load_checkpoint(model, file)).__name__)
        except (InvalidInput, NotFound) as error:
            outcomes.add(type(error).__name__)
    assert "InvalidInput" in outcomes


@pytest.mark.parametrize(
    ("source", "settings", "subject"),
    [
        (None, {}, "source"),
        (3, {}, "source"),
        (b"last.pt", {}, "source"),
        ([Net().state_dict()], {}, "source"),
        (Net().state_dict(), {"prefix": None}, "prefix"),
        (Net().state_dict(), {"prefix": 3}, "prefix"),
    ],
)
def test_arguments_of_another_kind(source, settings, subject):
    with pytest.raises(InvalidInput) as error:
        load_checkpoint(Net(), source, **settings)
    assert error.value.subject == subject


def test_a_folder_is_named_as_one(tmp_path):
    with pytest.raises(NotFound) as error:
        load_checkpoint(Net(), tmp_path)
    assert "folder" in error.value.found


@pytest.mark.parametrize("prefix", ["model", "model."])
def test_the_last_dot_of_a_prefix_may_be_left_out(prefix):
    source, target = Net(), Net()
    state = {f"model.{k}": v for k, v in source.state_dict().items()}
    load_checkpoint(target, state | {"models.extra": torch.zeros(2)}, prefix=prefix)
    assert same(values(source), values(target))


def test_files_with_code_are_not_run(tmp_path):
    file = tmp_path / "args.pt"
    torch.save({"model": Net().state_dict(), "args": argparse.Namespace(lr=0.1)}, file)
    with pytest.raises(InvalidInput) as error:
        load_checkpoint(Net(), file)
    assert "weights_only=False" in error.value.fix
    read = torch.load(file, weights_only=False)
    assert str(load_checkpoint(Net(), read)) == "9 loaded, 0 new, 0 ignored"


def test_a_cut_file_and_what_holds_no_mapping(tmp_path):
    whole, cut, tensor = (tmp_path / n for n in ("whole.pt", "cut.pt", "tensor.pt"))
    torch.save(Net().state_dict(), whole)
    cut.write_bytes(whole.read_bytes()[:-200])
    torch.save(torch.zeros(3), tensor)
    with pytest.raises(InvalidInput):
        load_checkpoint(Net(), cut)
    with pytest.raises(NotFound):
        load_checkpoint(Net(), tensor)
    with pytest.raises(NotFound):
        load_checkpoint(Net(), tmp_path / "absent.pt")


def test_finding_the_weights_only():
    state = Net().state_dict()
    assert find_state({"a": {"b": {"c": state}}}) is state
    assert find_state(state) is state
    with pytest.raises(NotFound):
        find_state({"a": {"b": {"c": {"d": state}}}})
