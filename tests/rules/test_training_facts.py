"""What is read from an optimizer, a loader and a scheduler, held against a plain loop."""

import copy
import math
import warnings

import pytest
import torch
from torch import nn, optim
from torch.optim import lr_scheduler as schedulers
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)
from torch.utils.data.distributed import DistributedSampler

from temperance import Task, insert, parameter_groups, training_facts
from temperance.errors import InvalidInput, NotFound
from temperance.head import HeadOptions, LearnedTemperature

ROWS = TensorDataset(torch.zeros(100, 4), torch.arange(100) % 5)


def net():
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 5))


def sgd(lr=0.1, **options):
    return optim.SGD(net().parameters(), lr=lr, **{"momentum": 0.9, **options})


def loader(batch_size=16, **options):
    return DataLoader(ROWS, batch_size, **options)


# ------------------------------------------------------------------ sizes and steps
def test_the_facts_of_a_plain_training():
    assert training_facts(sgd(weight_decay=1e-4), loader(shuffle=True), 3) == {
        "optimizer": "sgd", "lr": 0.1, "steps": 21, "batch_size": 16, "n": 100,
        "epochs": 21 * 16 / 100, "schedule": "constant", "mean_lr_ratio": 1.0, "momentum": 0.9,
        "weight_decay": 1e-4,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("made", "steps", "n", "batch"),
    [
        (lambda: loader(), 14, 100, 16),
        (lambda: loader(drop_last=True), 12, 100, 16),
        (lambda: loader(256), 2, 100, 100),
        (lambda: loader(sampler=SubsetRandomSampler(range(40))), 6, 40, 16),
        (lambda: loader(sampler=RandomSampler(ROWS, replacement=True, num_samples=32)), 4, 100, 16),
        (lambda: loader(sampler=WeightedRandomSampler([1.0] * 100, 64)), 8, 100, 16),
        (lambda: loader(sampler=DistributedSampler(ROWS, 4, 1)), 4, 100, 64),
        (lambda: loader(sampler=SubsetRandomSampler([*range(40), *range(40)])), 10, 40, 16),
        (lambda: loader(sampler=[*range(40), *range(40)]), 10, 40, 16),
        (lambda: loader(sampler=RandomSampler(range(40))), 6, 40, 16),
        (lambda: loader(sampler=SequentialSampler(range(40))), 6, 40, 16),
        (lambda: loader(sampler=WeightedRandomSampler([1.0] * 40 + [0.0] * 60, 100)), 14, 40, 16),
        (
            lambda: DataLoader(
                ROWS, batch_sampler=BatchSampler(SequentialSampler(ROWS), 20, drop_last=True)
            ),
            10, 100, 20,
        ),
        (lambda: (100, 16), 14, 100, 16),
    ],
)  # fmt: skip
def test_loaders(made, steps, n, batch):
    facts = training_facts(sgd(), made(), 2)
    assert (facts["steps"], facts["n"], facts["batch_size"]) == (steps, n, batch)


def test_steps_epochs_and_accumulation():
    assert training_facts(sgd(), loader(), steps=50)["steps"] == 50
    assert training_facts(sgd(), loader(), 2, steps=14)["steps"] == 14
    summed = training_facts(sgd(), loader(), 2, accumulation=4)
    assert (summed["steps"], summed["batch_size"]) == (4, 64)
    drawn = loader(sampler=WeightedRandomSampler([1.0] * 100, 32))
    all_of_an_epoch = training_facts(sgd(), drawn, 3, accumulation=50)
    assert (all_of_an_epoch["steps"], all_of_an_epoch["batch_size"]) == (3, 32)
    assert training_facts(sgd(), loader(), 0.5)["steps"] == 4
    for bad in ({"epochs": 2, "steps": 15}, {}, {"epochs": 0}, {"epochs": 1, "accumulation": 0}):
        with pytest.raises(InvalidInput):
            training_facts(sgd(), loader(), **bad)


class Stream(IterableDataset):
    def __iter__(self):
        return iter(ROWS)


class Odd:
    def __iter__(self):
        return iter([[0, 1], [2]])

    def __len__(self):
        return 2


@pytest.mark.parametrize(
    "made",
    [
        lambda: DataLoader(Stream(), 16),
        lambda: DataLoader(ROWS, batch_size=None),
        lambda: DataLoader(ROWS, batch_sampler=Odd()),
        lambda: DataLoader(ROWS, 256, drop_last=True),
        lambda: [torch.zeros(3)] * 3,
        lambda: (100,),
        lambda: (100, 0),
        lambda: iter(()),
    ],
)
def test_a_loader_without_sizes_is_refused(made):
    with pytest.raises(InvalidInput) as caught:
        training_facts(sgd(), made(), 2)
    assert "rows, batch size" in caught.value.fix or caught.value.subject == "batch size"


# ------------------------------------------------------------------ optimizers
@pytest.mark.parametrize("kind", ["SGD", "Adam", "AdamW", "NAdam", "RAdam", "RMSprop"])
def test_optimizers(kind):
    optimizer = getattr(optim, kind)(net().parameters(), lr=0.01)
    facts = training_facts(optimizer, loader(), 1)
    assert (facts["optimizer"], facts["lr"]) == (kind.lower(), 0.01)
    assert facts["weight_decay"] == optimizer.defaults["weight_decay"]
    assert facts["momentum"] == 0.0
    assert "remarks" not in facts


def test_subclasses_and_wrappers():
    class FusedAdamW(optim.AdamW):
        pass

    class Wrapper:
        def __init__(self, optimizer):
            self.optimizer = optimizer

    inner = FusedAdamW(net().parameters(), lr=0.01)
    assert training_facts(Wrapper(inner), loader(), 1)["optimizer"] == "adamw"
    for other in (optim.Adagrad(net().parameters()), Wrapper(None), "sgd", None):
        with pytest.raises(NotFound) as caught:
            training_facts(other, loader(), 1)
        assert "RMSprop" in caught.value.candidates


@pytest.mark.parametrize(
    ("made", "word"),
    [
        (lambda p: optim.SGD(p, 0.1, momentum=0.9, nesterov=True), "nesterov"),
        (lambda p: optim.SGD(p, 0.1, momentum=0.9, dampening=0.5), "dampening"),
        (lambda p: optim.AdamW(p, 0.1, betas=(0.9, 0.95)), "betas (0.9, 0.95)"),
        (lambda p: optim.AdamW(p, 0.1, eps=1e-3), "eps 0.001"),
        (lambda p: optim.Adam(p, 0.1, amsgrad=True), "amsgrad"),
        (lambda p: optim.RMSprop(p, 0.1, momentum=0.9), "momentum 0.9"),
    ],
)
def test_settings_that_no_law_saw_are_remarked(made, word):
    (remark,) = training_facts(made(net().parameters()), loader(), 1)["remarks"]
    assert word in remark


def test_of_several_groups_the_largest_rate_counts():
    model = net()
    groups = [
        {"params": model[0].parameters(), "lr": 1e-4, "momentum": 0.5},
        {"params": model[2].parameters(), "lr": 1e-2, "weight_decay": 0.1},
    ]
    facts = training_facts(optim.SGD(groups, momentum=0.9), loader(), 1)
    assert (facts["lr"], facts["momentum"], facts["weight_decay"]) == (1e-2, 0.9, 0.1)
    assert facts["remarks"] == ["learning rates of 0.0001 to 0.01 in different layers"]


def test_the_groups_of_the_library_need_no_remark():
    model = net()
    insert(model, 4.0, options=HeadOptions(learned=LearnedTemperature()))
    groups = parameter_groups(model, 0.01, temperature_lr=0.5)
    facts = training_facts(optim.AdamW(groups, lr=0.5), loader(), 1)
    assert facts["lr"] == 0.5
    groups[-1]["lr"] = 1e-3
    assert "remarks" not in training_facts(optim.AdamW(groups, lr=0.5), loader(), 1)


def test_the_rate_of_a_learned_temperature_is_not_that_of_the_training():
    model = net()
    insert(model, 4.0, options=HeadOptions(learned=LearnedTemperature()))
    groups = parameter_groups(model, 0.01, temperature_lr=0.5)
    optimizer = optim.AdamW(groups, lr=1e-3)
    for scheduler in (None, "cosine", 0.5):
        facts = training_facts(optimizer, loader(), 1, scheduler=scheduler)
        assert facts["lr"] == 1e-3
        assert "remarks" not in facts
    scheduler = schedulers.LambdaLR(optimizer, [lambda s: 1.0, lambda s: 0.5, lambda s: 0.1**s])
    facts = training_facts(optimizer, loader(), 1, scheduler={"scheduler": scheduler})
    assert (facts["lr"], facts["mean_lr_ratio"]) == (1e-3, 1.0)


def test_adam_that_decouples_its_decay_is_adamw():
    parameters = list(net().parameters())
    facts = [
        training_facts(make(parameters, 1e-3, weight_decay=0.1), loader(), 1)
        for make in (lambda *a, **k: optim.Adam(*a, decoupled_weight_decay=True, **k), optim.AdamW)
    ]
    assert facts[0] == facts[1]
    assert facts[0]["optimizer"] == "adamw"


# ------------------------------------------------------------------ schedules
STEPS, EPOCHS = 70, 10  # 7 batches of 16 of 100 rows
MAKERS = {
    "cosine": lambda o: schedulers.CosineAnnealingLR(o, T_max=STEPS),
    "one cycle": lambda o: schedulers.OneCycleLR(o, max_lr=0.3, total_steps=STEPS),
    "cosine by epoch": lambda o: schedulers.CosineAnnealingLR(o, T_max=EPOCHS),
    "warm-up": lambda o: schedulers.SequentialLR(
        o,
        [
            schedulers.LinearLR(o, 0.01, total_iters=10),
            schedulers.CosineAnnealingLR(o, T_max=STEPS - 10),
        ],
        milestones=[10],
    ),
    "lambda": lambda o: schedulers.LambdaLR(o, lambda s: 0.97**s),
    "chained": lambda o: schedulers.ChainedScheduler(
        [schedulers.ConstantLR(o, 0.1, total_iters=5), schedulers.ExponentialLR(o, 0.99)]
    ),
    "steps": lambda o: schedulers.StepLR(o, 4, 0.5),
    "restarts": lambda o: schedulers.CosineAnnealingWarmRestarts(o, T_0=20),
    "cyclic": lambda o: schedulers.CyclicLR(o, 0.01, 0.2, step_size_up=5, cycle_momentum=False),
    "constant": lambda o: schedulers.ConstantLR(o, 1.0),
}


def trained_rates(make, interval):
    """The rates that a real loop meets."""
    optimizer = sgd()
    scheduler, rates = make(optimizer), []
    for _ in range(EPOCHS):
        for _ in range(STEPS // EPOCHS):
            rates.append(optimizer.param_groups[0]["lr"])
            optimizer.step()
            if interval == "step":
                scheduler.step()
        if interval == "epoch":
            scheduler.step()
    return rates


@pytest.mark.parametrize("interval", ["step", "epoch"])
@pytest.mark.parametrize("kind", MAKERS)
@pytest.mark.filterwarnings("ignore:The epoch parameter")  # SequentialLR's own
def test_schedules_are_those_of_the_loop(kind, interval):
    if (kind, interval) == ("one cycle", "epoch"):
        pytest.skip("it is made for steps")
    expected = trained_rates(MAKERS[kind], interval)
    optimizer = sgd()
    scheduler = MAKERS[kind](optimizer)
    given = {"scheduler": scheduler, "interval": interval}
    facts = training_facts(optimizer, loader(), EPOCHS, scheduler=given)
    assert facts["lr"] == pytest.approx(max(expected))
    mean = sum(expected) / len(expected) / max(expected)
    assert facts["mean_lr_ratio"] == pytest.approx(mean)


@pytest.mark.parametrize("kind", MAKERS)
@pytest.mark.filterwarnings("ignore:The epoch parameter")
def test_nothing_of_the_user_is_stepped(kind, rng_guard):
    optimizer = sgd()
    scheduler = MAKERS[kind](optimizer)
    before = copy.deepcopy((optimizer.state_dict(), scheduler.state_dict()))
    with rng_guard(), warnings.catch_warnings():
        warnings.simplefilter("error")
        for interval in ("step", "epoch"):
            if (kind, interval) == ("one cycle", "epoch"):
                continue
            given = {"scheduler": scheduler, "interval": interval}
            training_facts(optimizer, loader(), EPOCHS, scheduler=given)
    assert str(before) == str((optimizer.state_dict(), scheduler.state_dict()))


@pytest.mark.parametrize(
    ("kind", "name", "ratio"),
    [("cosine", "cosine", 0.507), ("cosine by epoch", "cosine", 0.55), ("constant", "constant", 1)],
)
def test_a_scheduler_that_states_its_length_needs_no_interval(kind, name, ratio):
    optimizer = sgd()
    facts = training_facts(optimizer, loader(), EPOCHS, scheduler=MAKERS[kind](optimizer))
    assert facts["schedule"] == name
    assert facts["mean_lr_ratio"] == pytest.approx(ratio, abs=1e-3)


def test_texts_and_numbers_for_loops_that_set_the_rate_by_hand():
    facts = [training_facts(sgd(), loader(), 10, scheduler=s) for s in ("cosine", "constant", 0.4)]
    assert [f["mean_lr_ratio"] for f in facts] == [71 / 140, 1.0, 0.4]
    assert [f["schedule"] for f in facts] == ["cosine", "constant", "as given"]
    for bad in (1.5, 0.0, math.nan):
        with pytest.raises(InvalidInput):
            training_facts(sgd(), loader(), 10, scheduler=bad)
    with pytest.raises(NotFound):
        training_facts(sgd(), loader(), 10, scheduler="polynomial")


def other(o):
    return schedulers.StepLR(sgd(), 4)


def stepped(o):
    scheduler = schedulers.StepLR(o, 4)
    o.step()
    scheduler.step()
    return scheduler


@pytest.mark.parametrize(
    ("make", "found"),
    [
        (lambda o: schedulers.ReduceLROnPlateau(o), "ReduceLROnPlateau"),
        (lambda o: object(), "object"),
        (lambda o: True, "bool"),
        (other, "another optimizer"),
        (stepped, "stepped 1 times"),
        (lambda o: schedulers.StepLR(o, 4, 0.5), "mean rates of"),
        (lambda o: schedulers.OneCycleLR(o, 0.1, total_steps=20), "raises ValueError"),
        (lambda o: {"scheduler": schedulers.StepLR(o, 4), "interval": "batch"}, "'batch'"),
        (lambda o: {"scheduler": schedulers.StepLR(o, 4), "frequency": 2}, "frequency 2"),
        (lambda o: schedulers.LambdaLR(o, lambda s: 0.0), "largest rate of 0"),
    ],
)
def test_schedules_that_cannot_be_foreseen_are_refused(make, found):
    optimizer = sgd()
    with pytest.raises(InvalidInput) as caught:
        training_facts(optimizer, loader(), EPOCHS, scheduler=make(optimizer))
    assert found in caught.value.found


@pytest.mark.parametrize(
    "make",
    [
        lambda o: schedulers.OneCycleLR(o, max_lr=0.3, total_steps=STEPS),
        lambda o: schedulers.CyclicLR(o, 0.01, 0.2, step_size_up=5),
    ],
)
def test_a_momentum_that_moves_counts_by_how_far_it_goes(make):
    optimizer = sgd()
    scheduler, progress, rates = make(optimizer), 0.0, 0.0
    for step in range(STEPS):
        group = optimizer.param_groups[0]
        rates += group["lr"]
        progress += group["lr"] / (1 - group["momentum"])
        optimizer.step()
        if step + 1 < STEPS:
            scheduler.step()
    optimizer = sgd()
    given = {"scheduler": make(optimizer), "interval": "step"}
    facts = training_facts(optimizer, loader(), EPOCHS, scheduler=given)
    found = facts["lr"] * facts["mean_lr_ratio"] * facts["steps"]
    assert found == pytest.approx(rates)
    assert found / (1 - facts["momentum"]) == pytest.approx(progress)
    assert facts["remarks"] == ["a momentum that moves"]


def test_a_chained_scheduler_that_was_stepped_is_seen():
    optimizer = sgd()
    scheduler = MAKERS["chained"](optimizer)
    for _ in range(3):
        optimizer.step()
        scheduler.step()
    given = {"scheduler": scheduler, "interval": "step"}
    with pytest.raises(InvalidInput) as caught:
        training_facts(optimizer, loader(), EPOCHS, scheduler=given)
    assert caught.value.found == "one that was stepped 3 times"


def test_the_peak_of_a_cycle_counts_where_only_its_mean_is_given():
    optimizer = sgd()
    schedulers.OneCycleLR(optimizer, max_lr=0.3, total_steps=STEPS, cycle_momentum=False)
    assert training_facts(optimizer, loader(), EPOCHS, scheduler=0.5)["lr"] == 0.3


@pytest.mark.filterwarnings("ignore:The epoch parameter")
def test_an_interval_that_matters_is_asked_for_with_both_means():
    optimizer = sgd()
    with pytest.raises(InvalidInput) as caught:
        training_facts(optimizer, loader(), EPOCHS, scheduler=MAKERS["warm-up"](optimizer))
    by = {i: sum(trained_rates(MAKERS["warm-up"], i)) / STEPS for i in ("step", "epoch")}
    words = caught.value.found.split()
    assert (words[-1], float(words[3])) == ("epochs", pytest.approx(by["step"], rel=0.01))
    assert float(words[-3]) == pytest.approx(by["epoch"], rel=0.01)


def test_a_scheduler_that_is_there_and_not_passed():
    optimizer = sgd()
    schedulers.CosineAnnealingLR(optimizer, T_max=STEPS)
    with pytest.raises(InvalidInput) as caught:
        training_facts(optimizer, loader(), EPOCHS)
    assert caught.value.subject == "scheduler of the learning rate"
    assert training_facts(optimizer, loader(), EPOCHS, scheduler="cosine")["lr"] == 0.1


def test_rates_that_are_tensors_are_left_alone():
    rate = torch.tensor(0.1)
    optimizer = optim.Adam(net().parameters(), lr=rate, foreach=False)
    scheduler = schedulers.ExponentialLR(optimizer, 0.9)
    given = {"scheduler": scheduler, "interval": "step"}
    facts = training_facts(optimizer, loader(), EPOCHS, scheduler=given)
    assert float(rate) == float(torch.tensor(0.1))
    assert facts["lr"] == pytest.approx(0.1)
    assert type(facts["lr"]) is float


def test_they_are_the_facts_that_the_law_needs(with_law):
    rule = with_law()
    facts = training_facts(sgd(), loader(), 10, scheduler="cosine")
    by_hand = {
        "optimizer": "sgd", "lr": 0.1, "steps": 70, "batch_size": 16, "n": 100, "momentum": 0.9,
        "weight_decay": 0.0, "schedule": "cosine",
    }  # fmt: skip
    assert rule(Task(64, 10, training=facts)) == rule(Task(64, 10, training=by_hand))
    assert rule.domain.reasons(Task(64, 10, training=facts))[-1].startswith("batch_size")
