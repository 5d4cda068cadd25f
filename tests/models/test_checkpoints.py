"""Loading weights: prefixes, plain and tempered heads, files; all or nothing."""

import os

import pytest
import torch
from torch import nn

from temperance.errors import InvalidInput, NotFound, TemperanceWarning
from temperance.head import insert
from temperance.models import load_state, read_safetensors, strip_prefixes, write_safetensors


class Net(nn.Module):
    def __init__(self, classes=3, *, bias=True):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU())
        self.fc = nn.Linear(6, classes, bias=bias)

    def forward(self, x):
        return self.fc(self.body(x))


def tempered(temperature=4.0, **settings):
    model = Net()
    insert(model, temperature, name="fc", **settings)
    return model


def values(model):
    return {k: v.clone() for k, v in model.state_dict().items()}


def same(a, b):
    return list(a) == list(b) and all(torch.equal(a[k], b[k]) for k in a)


def prefixed(state, before="", inside=""):
    return {before + k.replace("body.", f"body.{inside}"): v for k, v in state.items()}


@pytest.mark.parametrize(
    ("before", "inside"),
    [
        ("module.", ""),
        ("_orig_mod.", ""),
        ("module._orig_mod.", ""),
        ("_orig_mod.module.", "_orig_mod."),
        ("", "_fsdp_wrapped_module._checkpoint_wrapped_module."),
    ],
)
def test_any_nesting_of_prefixes_is_stripped(before, inside):
    source, target = Net(), Net()
    report = load_state(target, prefixed(source.state_dict(), before, inside))
    assert same(values(source), values(target))
    assert (len(report.loaded), report.new, report.ignored) == (9, (), ())
    assert str(report) == "9 loaded, 0 new, 0 ignored"


def test_wrapped_models_on_both_sides():
    source, target = torch.compile(nn.DataParallel(Net())), nn.DataParallel(torch.compile(Net()))
    load_state(target, source.state_dict())
    load_state(source, target.state_dict())
    assert same(strip_prefixes(source.state_dict()), strip_prefixes(target.state_dict()))


def test_a_model_with_a_module_of_its_own_called_module():
    def build():
        model = nn.Module()
        model.module = nn.Linear(2, 2)
        return model

    source, target = build(), build()
    assert load_state(target, source.state_dict()).loaded == ("module.weight", "module.bias")
    assert same(values(source), values(target))


def test_two_names_that_become_one():
    with pytest.raises(InvalidInput):
        strip_prefixes({"module.fc.weight": 1, "fc.weight": 2})


def test_plain_checkpoint_into_a_tempered_model():
    source, target = Net(), tempered()
    before = values(target)
    report = load_state(target, prefixed(source.state_dict(), "module."))
    torch.testing.assert_close(target.fc.linear.weight, source.fc.weight, rtol=0, atol=0)
    torch.testing.assert_close(target.fc.linear.bias, source.fc.bias, rtol=0, atol=0)
    torch.testing.assert_close(target.body[0].weight, source.body[0].weight, rtol=0, atol=0)
    assert set(report.new) == {k for k in before if k.startswith("fc.norm.")} | {"fc.temperature"}
    assert report.ignored == ()
    assert float(target.fc.temperature) == 4.0


def test_tempered_checkpoint_into_a_plain_model_warns():
    source, target = tempered(), Net()
    with pytest.warns(TemperanceWarning, match=r"fc\.temperature"):
        report = load_state(target, source.state_dict())
    torch.testing.assert_close(target.fc.weight, source.fc.linear.weight, rtol=0, atol=0)
    assert report.new == ()
    assert "fc.norm.running_mean" in report.ignored


def test_tempered_into_tempered_takes_temperature_and_statistics():
    source, target = tempered(7.5), tempered(4.0)
    source.fc.norm.running_mean.fill_(3.0)
    load_state(target, source.state_dict())
    assert same(values(source), values(target))
    assert float(target.fc.temperature) == 7.5


def test_round_trip_of_the_model_whose_head_is_the_root():
    source, target = tempered().fc, tempered().fc
    source.norm.running_var.fill_(2.0)
    load_state(target, source.state_dict())
    assert same(values(source), values(target))


def corrupt(state, **changes):
    return {**state, **{k.replace("__", "."): v for k, v in changes.items()}}


@pytest.mark.parametrize(
    ("make", "state"),
    [
        (Net, lambda: {}),
        (Net, lambda: {"other.weight": torch.zeros(3, 6)}),
        (Net, lambda: {k: v for k, v in Net().state_dict().items() if k != "body.0.weight"}),
        (Net, lambda: {k: v for k, v in Net().state_dict().items() if not k.startswith("fc")}),
        (Net, lambda: {f"backbone.{k}": v for k, v in Net().state_dict().items()}),
        (Net, lambda: Net(classes=5).state_dict()),
        (Net, lambda: {"state_dict": Net().state_dict()}),
        (Net, lambda: {**Net().state_dict(), "epoch": 3}),
        (Net, lambda: Net(bias=False).state_dict()),
        (tempered, lambda: Net(classes=5).state_dict()),
        (tempered, lambda: tempered(norm="none").state_dict()),
        (tempered, lambda: corrupt(tempered().state_dict(), fc__temperature=torch.tensor(0.0))),
        (
            tempered,
            lambda: corrupt(tempered().state_dict(), fc__temperature=torch.tensor(torch.nan)),
        ),
    ],
)
def test_bad_checkpoints_change_nothing(make, state):
    model = make()
    before = values(model)
    with pytest.raises(InvalidInput):
        load_state(model, state())
    assert same(values(model), before)


def test_a_parameter_of_the_model_may_be_called_temperature():
    def build():
        model = Net()
        model.temperature = nn.Parameter(torch.tensor(-2.66))  # a logarithm
        return model

    source, target = build(), build()
    load_state(target, source.state_dict())
    assert same(values(source), values(target))


def test_what_is_no_state_dict():
    for bad in ([1], None, Net()):
        with pytest.raises(InvalidInput):
            load_state(Net(), bad)


def test_names_of_missing_and_misshapen_weights_are_listed():
    with pytest.raises(InvalidInput) as error:
        load_state(Net(), Net(classes=5).state_dict())
    assert "fc.weight" in error.value.found
    assert "[5, 6]" in error.value.found
    state = Net().state_dict()
    del state["body.0.bias"]
    with pytest.raises(InvalidInput) as error:
        load_state(Net(), state)
    assert "body.0.bias" in error.value.found


def test_missing_names_on_purpose():
    source, target = Net(), tempered()
    backbone = {k: v for k, v in source.state_dict().items() if k.startswith("body.")}
    report = load_state(target, {**backbone, "queue": torch.zeros(2)}, allow_missing=True)
    assert "fc.linear.weight" in report.new
    assert report.ignored == ("queue",)
    assert "1 ignored (queue)" in str(report)
    with pytest.raises(InvalidInput):  # even then, something has to fit
        load_state(target, {"queue": torch.zeros(2)}, allow_missing=True)


def test_safetensors_round_trip_also_with_shared_weights(tmp_path):
    model = tempered(0.3)
    model.tied = nn.Linear(6, 3)
    model.tied.weight = model.fc.linear.weight
    file = tmp_path / "model.safetensors"
    write_safetensors(file, model.state_dict())
    write_safetensors(file, model.state_dict())  # over an existing file
    assert same(dict(sorted(read_safetensors(file).items())), dict(sorted(values(model).items())))
    assert os.listdir(tmp_path) == ["model.safetensors"]


def test_a_failed_write_leaves_the_old_file(tmp_path, monkeypatch):
    file = tmp_path / "model.safetensors"
    write_safetensors(file, {"a": torch.zeros(2)})

    def fail(*_args):
        raise OSError("disk full")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="disk full"):
        write_safetensors(file, {"a": torch.ones(2)})
    assert os.listdir(tmp_path) == ["model.safetensors"]
    assert read_safetensors(file)["a"].tolist() == [0, 0]
    with pytest.raises(InvalidInput):
        write_safetensors(file, {"a": 3})


def test_foreign_and_broken_files(tmp_path):
    good = tmp_path / "good.safetensors"
    write_safetensors(good, {"a": torch.arange(100.0)})
    contents = {
        "cut.safetensors": good.read_bytes()[:-7],
        "head_only.safetensors": good.read_bytes()[:20],
        "text.safetensors": b"this is no tensor file, but long enough to look at",
        "empty.safetensors": b"",
    }
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(InvalidInput) as error:
            read_safetensors(tmp_path / name)
        assert name in error.value.subject
    with pytest.raises(NotFound):
        read_safetensors(tmp_path / "absent.safetensors")


@pytest.mark.parametrize("legacy", [True, False])
def test_pickles_are_refused_with_the_way_out(tmp_path, legacy):
    file = tmp_path / "model.pth"
    torch.save({"a": torch.zeros(2)}, file, _use_new_zipfile_serialization=not legacy)
    with pytest.raises(InvalidInput) as error:
        read_safetensors(file)
    assert "weights_only=True" in error.value.fix


KINDS = ("batch", "batch-no-affine", "layer", "none")


@pytest.mark.parametrize("allow_missing", [False, True])
@pytest.mark.parametrize("ours", KINDS)
@pytest.mark.parametrize("theirs", KINDS)
def test_tempered_heads_with_different_norms_do_not_fit(theirs, ours, allow_missing):
    source, target = tempered(norm=theirs), tempered(norm=ours)
    state = prefixed(source.state_dict(), "module.")
    before = values(target)
    if theirs == ours:
        load_state(target, state, allow_missing=allow_missing)
        assert same(values(source), values(target))
        return
    with pytest.raises(InvalidInput) as error:
        load_state(target, state, allow_missing=allow_missing)
    assert (error.value.expected, error.value.found) == (
        f"norm={ours!r}, as in the model",
        f"norm={theirs!r}",
    )
    assert same(values(target), before)


def two_of_one_plain_name():
    model = nn.Module()
    model.module = nn.ModuleDict({"fc": nn.Linear(4, 3)})
    model.fc = nn.Linear(4, 3)
    return model


@pytest.mark.parametrize("wrap", [lambda m: m, nn.DataParallel, torch.compile])
def test_a_model_takes_its_own_state_whatever_its_names(wrap):
    source, target = wrap(two_of_one_plain_name()), wrap(two_of_one_plain_name())
    report = load_state(target, source.state_dict())
    assert same(values(source), values(target))
    assert set(report.loaded) == set(two_of_one_plain_name().state_dict())
    target = two_of_one_plain_name()
    insert(target, 4.0, name="module.fc")
    source = two_of_one_plain_name()
    insert(source, 2.0, name="module.fc")
    load_state(target, source.state_dict())
    assert same(values(source), values(target))


@pytest.mark.parametrize(
    "value",
    [
        {"steps": 1},
        torch.eye(2).to_sparse(),
        torch.zeros(2, device="meta"),
    ],
    ids=["extra state", "sparse", "meta"],
)
def test_what_safetensors_cannot_hold(tmp_path, value):
    with pytest.raises(InvalidInput) as error:
        write_safetensors(tmp_path / "a.safetensors", {"part._extra_state": value})
    assert "part._extra_state" in error.value.found
    assert os.listdir(tmp_path) == []


def test_no_folder_to_write_into(tmp_path):
    for path in (tmp_path / "absent" / "a.safetensors", tmp_path):
        with pytest.raises(InvalidInput) as error:
            write_safetensors(path, {"a": torch.zeros(2)})
        assert error.value.subject == str(path)


@pytest.mark.parametrize("length", [128, 384, 640])
def test_a_header_whose_length_looks_like_a_pickle(tmp_path, length):
    """A pickle starts with 0x80, and so does the length of every 32nd header."""
    from safetensors.torch import save

    content = save({"a": torch.ones(3)})
    header = content[8 : 8 + int.from_bytes(content[:8], "little")].rstrip()
    padded = header.ljust(length)
    file = tmp_path / "x.safetensors"
    file.write_bytes(length.to_bytes(8, "little") + padded + torch.ones(3).numpy().tobytes())
    assert file.read_bytes()[:1] == b"\x80"
    torch.testing.assert_close(read_safetensors(file), {"a": torch.ones(3)})
