"""Looking at a training loader, and reading it so that the training does not notice."""

import random

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

from temperance.errors import InvalidInput, TemperanceWarning
from temperance.integrations.loaders import (
    Batches,
    check_again,
    check_rows,
    first_batch,
    same_order,
)


def rows_of(n=60):
    return TensorDataset(torch.arange(n).float()[:, None], torch.arange(n) % 3)


def loader_of(n=60, **settings):
    return DataLoader(rows_of(n), 16, **settings)


class Stream(IterableDataset):
    def __iter__(self):
        while True:
            yield torch.zeros(6), 0


def test_small_batches_are_told_before_the_training():
    check_rows(loader_of(64))
    with pytest.raises(InvalidInput) as error:
        check_rows(loader_of(65))
    assert error.value.subject == "batches for BatchNorm"
    check_rows(loader_of(65, drop_last=True))
    with pytest.warns(TemperanceWarning, match="3 rows"):
        check_rows(loader_of(67))
    with pytest.raises(InvalidInput):
        check_rows(loader_of(130), processes=2)  # 65 each
    with pytest.raises(InvalidInput):
        check_rows(loader_of(80), replicas=16)
    check_rows([1, 2])  # nothing to look at
    check_rows(DataLoader(Stream(), 8))


def test_the_rows_are_those_that_the_sampler_takes():
    check_rows(loader_of(65, sampler=SubsetRandomSampler(range(64))))
    with pytest.raises(InvalidInput):
        check_rows(loader_of(64, sampler=WeightedRandomSampler(torch.ones(64), 65)))
    part = DistributedSampler(rows_of(64), num_replicas=2, rank=0)  # 32 of the rows
    check_rows(loader_of(64, sampler=part), processes=2)
    with pytest.raises(InvalidInput):
        check_rows(loader_of(34, sampler=DistributedSampler(rows_of(34), 2, 0)), processes=2)


def own():
    return torch.Generator().manual_seed(5)


LOADERS = {
    "generator of the loader": lambda: loader_of(shuffle=True, generator=own()),
    "of the sampler": lambda: loader_of(sampler=RandomSampler(rows_of(), generator=own())),
    "of a batch sampler": lambda: DataLoader(
        rows_of(),
        batch_sampler=BatchSampler(RandomSampler(rows_of(), generator=own()), 16, False),
    ),
    "none of its own": lambda: loader_of(shuffle=True),
}


@pytest.mark.parametrize("kind", LOADERS)
def test_the_next_order_is_what_it_was(kind):
    model = nn.Linear(1, 3)

    def order(loader):
        return [y.tolist() for x, y in loader]

    torch.manual_seed(0)
    expected = order(LOADERS[kind]())
    torch.manual_seed(0)
    loader = LOADERS[kind]()
    first = first_batch(model, Batches(loader, None))
    assert first[1].tolist() == expected[0]
    with torch.random.fork_rng(devices=[]), same_order(Batches(loader, 2)):
        list(loader)
    assert order(loader) == expected


def test_the_order_comes_back_after_an_error_too():
    loader = loader_of(shuffle=True, generator=own())
    before = loader.generator.get_state()
    with pytest.raises(IndexError), same_order(loader):
        _ = list(loader)[99]
    assert torch.equal(loader.generator.get_state(), before)


def test_a_data_set_may_draw_from_python_and_numpy(rng_guard):
    class Noisy(torch.utils.data.Dataset):
        def __len__(self):
            return 32

        def __getitem__(self, i):
            return torch.tensor([random.random(), np.random.rand()]), i % 3  # noqa: NPY002

    model = nn.Linear(2, 3)
    with rng_guard():
        first_batch(model, DataLoader(Noisy(), 16, shuffle=True))


@pytest.mark.parametrize("loader", [iter([1]), (i for i in range(3)), None, 3])
def test_what_cannot_be_read_again(loader):
    with pytest.raises(InvalidInput) as error:
        check_again(loader)
    assert error.value.found == f"a {type(loader).__name__}"


def test_a_limit_and_a_length():
    assert len(Batches([1, 2, 3], None)) == 3
    assert list(Batches([1, 2, 3], 2)) == [1, 2]
    assert len(Batches(DataLoader(Stream(), 8), 5)) == 5
    with pytest.raises(InvalidInput) as error:
        Batches(DataLoader(Stream(), 8), None)
    assert error.value.fix == "Set max_batches."
    with pytest.raises(InvalidInput) as error:
        first_batch(nn.Linear(1, 3), loader_of(3, drop_last=True))
    assert error.value.expected == "at least one batch"
