"""Measure, suggest, insert and set the statistics: in one call, and in its two halves."""

import math
import socket
import warnings
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from temperance import collect, insert, measure, set_norm_statistics, suggest
from temperance.errors import InvalidInput, NotFound, TemperanceWarning
from temperance.head import tempered_heads
from temperance.integrations.placement import (
    Placement,
    PlaceOptions,
    place,
    put_in,
    settle,
)
from temperance.integrations.tempered_state import heads_in, heads_of_state, load_tempered
from temperance.rules import load_rule
from temperance.serial import dumps, loads

RESULTS = Path(__file__).parents[2] / "studies" / "temperature" / "results"
RULE = RESULTS / "check-mlp-none-250-statistics.rule.json"


def model_of():
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3))


def loader_of(n=60, **settings):
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(n, 6, generator=generator) + 1
    return DataLoader(TensorDataset(x, torch.arange(n) % 3), 16, **settings)


def by_hand(model, loader, rule=None, **options):
    """The four lines of the guide."""
    suggestion = suggest(measure(collect(model, loader)), rule)
    head = insert(model, suggestion, example=next(iter(loader)))
    set_norm_statistics(model, loader, **options)
    return head


@pytest.mark.filterwarnings("ignore:the T of rule:temperance.errors.TemperanceWarning")
@pytest.mark.parametrize("rule", [None, "sqrt-dim", "hasegawa-sakai"])
def test_it_is_the_four_lines_of_the_guide(rule):
    model, loader = model_of(), loader_of()
    other = model_of()
    other.load_state_dict(model.state_dict())
    placement = place(model, loader, rule)
    head = by_hand(other, loader, rule)
    assert placement.temperature == float(head.temperature)
    assert placement.suggestion == suggest(measure(collect(other, loader)), rule)
    torch.testing.assert_close(model[2].norm.running_mean, head.norm.running_mean)
    torch.testing.assert_close(model[2].norm.running_var, head.norm.running_var)
    assert loads(dumps(placement), Placement) == placement


def test_the_function_of_a_pretrained_head_is_kept_where_asked_for():
    model, loader = model_of().eval(), loader_of()
    x = loader.dataset.tensors[0]
    before = model(x)
    for temperature in ("sqrt-dim", 3.0):
        fresh = model_of().eval()
        fresh.load_state_dict(model.state_dict())
        place(fresh, loader, temperature, options=PlaceOptions(keep_function=True))
        torch.testing.assert_close(fresh(x), before, rtol=1e-4, atol=1e-5)


def test_a_number_reads_no_labels():
    rows = [x for x, _ in loader_of()]
    placement = place(model_of(), rows, 3.0)
    assert placement.suggestion is None
    assert placement.task is None
    assert (placement.head, placement.norm, placement.feature_dim) == ("2", "batch", 16)


def test_a_rule_of_a_file_gets_the_statistics_that_it_needs():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TemperanceWarning)
        placement = place(model_of(), loader_of(), str(RULE))
    needs = set(load_rule(RULE).needs)
    assert needs - {"csg"}
    assert needs <= set(placement.task.statistics)
    assert placement.suggestion.rule == load_rule(RULE).name


@pytest.mark.parametrize("temperature", [3.0, "sqrt-dim"])
def test_a_convolution_as_the_head(temperature):
    model = nn.Sequential(
        nn.Conv2d(2, 8, 3), nn.AdaptiveAvgPool2d(1), nn.Conv2d(8, 3, 1), nn.Flatten()
    )
    data = TensorDataset(torch.randn(30, 2, 5, 5), torch.arange(30) % 3)
    place(model, DataLoader(data, 10), temperature)
    features = model[:2](data.tensors[0]).flatten(1)
    torch.testing.assert_close(model[2].norm.running_mean, features.mean(0), rtol=1e-4, atol=1e-5)


def test_the_loader_is_read_once_and_no_random_state_moves(rng_guard):
    reads = []

    class Rows(torch.utils.data.Dataset):
        def __len__(self):
            return 60

        def __getitem__(self, i):
            reads.append(i)
            return torch.full((6,), float(i)).sin(), i % 3

    model = model_of()
    with rng_guard():
        place(model, DataLoader(Rows(), 16, shuffle=True), "sqrt-dim")
    assert len(reads) == 60 + 2 * 16  # and twice the first batch, to find the layer with


def test_nothing_stays_where_it_fails():
    model = model_of()
    bad = [(torch.full((8, 6), torch.nan), torch.arange(8) % 3)]
    with pytest.raises(InvalidInput):
        place(model, bad, "sqrt-dim")
    assert isinstance(model[2], nn.Linear)
    with pytest.raises(NotFound):
        place(model, loader_of(), "no-such-rule")
    tied = model_of()
    tied.twin = nn.Linear(16, 3)
    tied.twin.weight = tied[2].weight
    tied.forward = lambda x: nn.Sequential(*list(tied)[:3])(x)
    with pytest.raises(InvalidInput) as error:
        place(tied, loader_of(), "sqrt-dim", options=PlaceOptions(keep_function=True))
    assert error.value.subject == "keep_function"
    assert not tempered_heads(tied)


def test_a_head_that_does_not_make_the_logits_is_told():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc, self.other = nn.Linear(6, 3), nn.Linear(6, 3)

        def forward(self, x):
            return self.fc(x)

    model = Two()
    put_in(model, 3.0, options=PlaceOptions(head="other"))
    with pytest.raises(InvalidInput) as error:
        settle(model, loader_of(), 3.0, options=PlaceOptions())
    assert "head='fc'" in error.value.fix


def test_a_second_head_is_told():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.two = nn.Linear(6, 3), nn.Linear(6, 3)

        def forward(self, x):
            return self.one(x) + self.two(x)

    model = Two()
    for name in ("one", "two"):
        put_in(model, 3.0, options=PlaceOptions(head=name))
    with pytest.raises(NotFound) as error:
        settle(model, loader_of(), 3.0, options=PlaceOptions())
    assert error.value.candidates == ("one", "two")


@pytest.mark.parametrize("number", [0, -1, 1.5, "2", True])
def test_numbers_of_batches_that_are_none(number):
    with pytest.raises(InvalidInput) as error:
        PlaceOptions(max_batches=number)
    assert error.value.subject == "max_batches"


def test_a_guess_is_told():
    with pytest.warns(TemperanceWarning, match="is a guess here"):
        place(model_of(), loader_of(), "hasegawa-sakai")


def test_loaders_without_an_end():
    def endless():
        while True:
            yield torch.randn(8, 6), torch.arange(8) % 3

    class Endless:
        def __iter__(self):
            return endless()

    model = model_of()
    with pytest.raises(InvalidInput) as error:
        place(model, Endless(), 3.0)
    assert error.value.fix == "Set max_batches."
    assert isinstance(model[2], nn.Linear)
    used_up = endless()  # its first batch would go into the search of the layer
    with pytest.raises(InvalidInput) as error:
        place(model, used_up, 3.0, options=PlaceOptions(max_batches=3))
    assert "read again" in error.value.expected
    assert isinstance(model[2], nn.Linear)
    stream = torch.utils.data.DataLoader(Stream(), 8)
    placed = place(model_of(), stream, "sqrt-dim", options=PlaceOptions(max_batches=3))
    assert placed.task.n_samples == 24


class Stream(torch.utils.data.IterableDataset):
    def __iter__(self):
        i = 0
        while True:
            yield torch.full((6,), float(i)).sin(), i % 3
            i += 1


# ------------------------------------------------------------------ state dicts
@pytest.mark.parametrize("norm", ["batch", "batch-no-affine", "layer", "none", "cosine"])
def test_the_head_of_a_state_dict(norm):
    trained = model_of()
    insert(trained, 5.0, norm=norm)
    state = {f"module.net.{k}": v for k, v in trained.state_dict().items()}
    assert heads_in(trained.state_dict()) == {"2": norm}
    fresh = model_of()
    assert heads_of_state(fresh, state, prefix="net.") == ["2"]
    assert heads_of_state(fresh, state, prefix="net.") == []
    assert fresh[2].norm_kind == norm
    plain = model_of()
    report = load_tempered(plain, trained.state_dict())
    assert not report.new
    x = torch.randn(4, 6)
    torch.testing.assert_close(plain.eval()(x), trained.eval()(x))


# ------------------------------------------------------------------ several processes
def work(rank, port, folder):
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    torch.manual_seed(0)
    model = model_of()
    loader = loader_of(60 if rank == 0 else 45)  # as if they had seen different rows
    placement = place(model, loader, "hasegawa-sakai-csg-cn")
    torch.save((placement.temperature, model.state_dict()), f"{folder}/{rank}.pt")
    dist.destroy_process_group()


def test_two_processes_use_what_the_first_found(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))  # where this file is found
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    torch.multiprocessing.spawn(work, (port, str(tmp_path)), nprocs=2)
    (t0, first), (t1, second) = (torch.load(tmp_path / f"{i}.pt") for i in (0, 1))
    assert t0 == t1
    assert all(torch.equal(first[k], second[k]) for k in first)
    assert math.isfinite(t0)
