"""Learning rates that are written down, accelerate's wrapper, and the norm that a T is for."""

import json
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn, optim
from torch.optim import lr_scheduler as schedulers

from temperance import RULES, Task, suggest, training_facts
from temperance.errors import InvalidInput
from temperance.rules import FittedDomain, FittedRule, SqrtDim
from temperance.rules.rate_sequence import name_of_shares, rates_in
from temperance.rules.training import read_training
from temperance.serial import dumps

STEPS, PER_EPOCH = 12, 4
ROWS = (40, 10)  # rows and batch size
COSINE = [0.1 * (1 + math.cos(math.pi * s / STEPS)) / 2 for s in range(STEPS)]
KINDS = [list, tuple, np.array, lambda r: np.array(r, dtype=np.float32), torch.tensor]


def sgd(lr=0.1, sizes=(5,)):
    groups = [{"params": [nn.Parameter(torch.zeros(size))]} for size in sizes]
    return optim.SGD(groups, lr=lr, momentum=0.9)


def facts_with(scheduler, optimizer=None, **more):
    optimizer = sgd() if optimizer is None else optimizer
    return training_facts(optimizer, ROWS, 3, scheduler=scheduler, **more)


# ------------------------------------------------------------------ training_facts
@pytest.mark.parametrize("kind", KINDS)
def test_rates_of_all_steps_are_a_schedule(kind):
    facts, named = facts_with(kind(COSINE)), facts_with("cosine")
    assert facts == {**named, "mean_lr_ratio": pytest.approx(named["mean_lr_ratio"], rel=1e-6)}
    json.dumps(facts)


@given(st.lists(st.floats(0, 1), min_size=STEPS, max_size=STEPS).filter(lambda r: max(r) > 1e-3))
def test_their_mean_is_that_of_the_rates(shares):
    rates = [share / max(shares) * 0.1 for share in shares]
    facts = facts_with(rates)
    assert facts["lr"] == 0.1
    assert facts["mean_lr_ratio"] == pytest.approx(sum(rates) / STEPS / 0.1)
    assert facts["steps"] == STEPS


def test_rates_of_all_epochs():
    expected = (0.1 + 0.05 + 0.025) / 3 / 0.1
    for given_ in ([0.1, 0.05, 0.025], {"scheduler": [0.1, 0.05, 0.025], "interval": "epoch"}):
        assert facts_with(given_)["mean_lr_ratio"] == pytest.approx(expected)
    part = training_facts(sgd(), ROWS, steps=9, scheduler=[0.1, 0.05, 0.025])
    assert part["mean_lr_ratio"] == pytest.approx((4 * 0.1 + 4 * 0.05 + 0.025) / 9 / 0.1)
    with pytest.raises(InvalidInput) as caught:
        facts_with({"scheduler": COSINE, "interval": "epoch"})
    assert caught.value.expected == "3 rates, one for each epoch"


@pytest.mark.parametrize(
    ("bad", "found"),
    [
        (COSINE[:-1], "11 rates"),
        ([r / 0.1 for r in COSINE], "rates of up to 1 and an optimizer with 0.1"),
        ([[r] for r in COSINE], "[0.1]"),
        (np.ones((STEPS, 2)), "[1.0, 1.0]"),
        (torch.ones(2, 2, 2), "[[1.0"),
        ([], "[]"),
        ([0.0] * STEPS, "[0.0"),
        ([0.1, -0.1] * 6, "-0.1"),
        ([0.1, math.nan] * 6, "nan"),
        ([0.1, math.inf] * 6, "inf"),
        (["cosine"] * STEPS, "'cosine'"),
        ([True] * STEPS, "True"),
        ([torch.zeros(2)] * STEPS, "tensor"),
    ],
)
def test_sequences_that_are_no_schedule(bad, found):
    with pytest.raises(InvalidInput) as caught:
        facts_with(bad)
    assert found in caught.value.found


def test_numbers_of_numpy_and_torch_are_numbers():
    expected = facts_with(0.5)
    for number in (np.float64(0.5), np.float32(0.5), np.array(0.5), torch.tensor(0.5)):
        assert facts_with(number) == expected


def test_of_several_groups_the_rates_are_those_of_the_largest():
    optimizer = sgd(sizes=(5, 3, 1))
    optimizer.param_groups[1]["lr"] = 0.01
    optimizer.param_groups[2]["lr"] = 5.0  # of a learned T
    facts = facts_with(COSINE, optimizer)
    assert facts["lr"] == 0.1
    assert facts["remarks"] == ["learning rates of 0.01 to 0.1 in different layers"]


def test_curves_are_called_by_the_name_that_they_are_near_to():
    assert rates_in("cosine") is rates_in(None) is rates_in(object()) is None
    assert name_of_shares([1.0] * 5, "x") == "constant"
    assert facts_with([0.1] + [0.01] * 11)["schedule"] == "as given"
    linear = [0.1 * (1 - s / STEPS) for s in range(STEPS)]
    assert facts_with(linear)["schedule"] == "cosine"


# ------------------------------------------------------------------ in a task
FACTS = {
    "optimizer": "sgd", "lr": 0.1, "steps": STEPS, "batch_size": 10, "n": 400, "momentum": 0.9,
    "weight_decay": 0.0,
}  # fmt: skip


def task(**changes):
    return Task(64, 10, n_samples=400, training=FACTS | changes)


@pytest.mark.parametrize("kind", KINDS)
def test_a_task_may_hold_the_rates(kind, with_law):
    rule = with_law(default=True)
    written, named = task(schedule=kind(COSINE)), task(schedule="cosine")
    assert suggest(written).rule == "budget"
    assert rule(written) == pytest.approx(rule(named), rel=1e-6)
    assert read_training(written).schedule == "cosine"
    assert suggest(written, "sqrt-dim").others["budget"].temperature is not None
    dumps(suggest(written))


@pytest.mark.parametrize("kind", KINDS)
def test_a_fitted_rule_reads_them_by_their_name(kind):
    def reasons(*seen):
        domain = FittedDomain((1, 999), (2, 99), training=(("schedule", seen),))
        rule = FittedRule(SqrtDim(), domain, "batch")
        return suggest(task(schedule=kind(COSINE)), rule).reasons

    assert reasons("cosine") == ()
    assert reasons("constant")[0] == "schedule is cosine, the rule was fitted on constant"


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"schedule": np.array(COSINE[:-1])}, "11 rates of up to 0.1"),
        ({"schedule": np.array(COSINE) * 10}, "12 rates of up to 1"),
        ({"schedule": COSINE, "mean_lr_ratio": 0.9}, "0.5417 of it"),
        ({"schedule": np.ones((3, 2))}, "[1.0, 1.0]"),
        ({"schedule": 3}, "a int"),
        ({"schedule": np.array(0.5)}, "a ndarray"),
    ],
)
def test_rates_that_contradict_the_other_facts(changes, found, with_law):
    with_law(default=True)
    with pytest.raises(InvalidInput) as caught:
        suggest(task(**changes), "budget")
    assert found in caught.value.found
    assert found in suggest(task(**changes)).others["budget"].note


# ------------------------------------------------------------------ accelerate
@pytest.fixture
def accelerated():
    """Wrap a scheduler as accelerate does, with so many processes."""
    accelerate = pytest.importorskip("accelerate")
    from accelerate.scheduler import AcceleratedScheduler
    from accelerate.state import AcceleratorState, GradientState, PartialState

    AcceleratorState._reset_state(reset_partial_state=True)
    accelerate.Accelerator(cpu=True)

    def wrap(scheduler, optimizer, processes, **options):
        PartialState._shared_state["num_processes"] = processes
        optimizer.step_was_skipped = False  # of accelerate's optimizers
        return AcceleratedScheduler(scheduler, optimizer, **options)

    yield wrap
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()


MAKERS = {
    "cosine": lambda o: schedulers.CosineAnnealingLR(o, T_max=40),
    "cycle": lambda o: schedulers.OneCycleLR(o, 0.3, total_steps=20, cycle_momentum=False),
    "steps": lambda o: schedulers.StepLR(o, 5, 0.5),
}
WAYS = [{}, {"split_batches": True}, {"step_with_optimizer": False}]


@pytest.mark.parametrize("processes", [1, 2, 3])
@pytest.mark.parametrize("options", WAYS)
@pytest.mark.parametrize("kind", MAKERS)
def test_the_scheduler_of_accelerate_is_that_of_its_loop(accelerated, kind, options, processes):
    optimizer, rates = sgd(), []
    wrapped = accelerated(MAKERS[kind](optimizer), optimizer, processes, **options)
    for _ in range(STEPS):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        wrapped.step()
    times = processes if not options else 1
    assert wrapped.scheduler.last_epoch == min(times * STEPS, 20 if kind == "cycle" else 99)
    again = sgd()
    given_ = {"scheduler": accelerated(MAKERS[kind](again), again, processes, **options)}
    facts = facts_with({**given_, "interval": "step"}, again)
    assert facts["lr"] == pytest.approx(max(rates))
    assert facts["mean_lr_ratio"] == pytest.approx(sum(rates) / STEPS / max(rates))
    assert again.param_groups[0]["lr"] == rates[0]  # nothing of the user's was stepped


@pytest.mark.parametrize("adjusts", [True, False])
def test_batches_that_step_nothing_count_for_the_scheduler_of_accelerate(accelerated, adjusts):
    from accelerate.state import GradientState

    def wrapped(optimizer):
        found = accelerated(MAKERS["cycle"](optimizer), optimizer, 1)
        kwargs = {"num_steps": 3, "adjust_scheduler": adjusts}
        GradientState().plugin_kwargs.update(kwargs)
        return found

    optimizer, rates = sgd(), []
    scheduler = wrapped(optimizer)
    for batch in range(3 * STEPS):
        last = batch % 3 == 2
        GradientState()._set_sync_gradients(last)
        if last:
            rates.append(optimizer.param_groups[0]["lr"])
            optimizer.step()
        scheduler.step()
    again = sgd()
    facts = facts_with({"scheduler": wrapped(again), "interval": "step"}, again)
    assert facts["lr"] == pytest.approx(max(rates))
    assert facts["mean_lr_ratio"] == pytest.approx(sum(rates) / STEPS / max(rates))
    assert (rates[-1] == rates[-2]) == adjusts  # it stands still when its total is counted


def test_a_length_that_accelerate_counts_in_batches_of_all_processes(accelerated):
    optimizer = sgd()
    inner = schedulers.CosineAnnealingLR(optimizer, T_max=2 * STEPS)
    facts = facts_with(accelerated(inner, optimizer, 2), optimizer)
    assert facts["schedule"] == "cosine"
    assert facts["mean_lr_ratio"] == pytest.approx((STEPS + 1) / (2 * STEPS))
    other = sgd()
    twice = schedulers.CosineAnnealingLR(other, T_max=STEPS)  # down and up again
    with pytest.raises(InvalidInput) as caught:
        facts_with(accelerated(twice, other, 2), other)
    assert "each step or in each epoch" in caught.value.expected


def test_other_wrappers_leave_the_steps_to_their_engine(accelerated):
    class DeepSpeedSchedulerWrapper:
        def __init__(self, scheduler):
            self.scheduler = scheduler

    optimizer = sgd()
    given_ = {"scheduler": DeepSpeedSchedulerWrapper(MAKERS["steps"](optimizer))}
    plain = sgd()
    expected = facts_with({"scheduler": MAKERS["steps"](plain), "interval": "step"}, plain)
    assert facts_with({**given_, "interval": "step"}, optimizer) == expected


def test_the_accumulation_of_accelerate_must_be_said():
    class Prepared:
        def __init__(self, optimizer, num_steps):
            self.optimizer, self.gradient_state = optimizer, self
            self.num_steps = num_steps

    for given_ in (1, 3):
        with pytest.raises(InvalidInput) as caught:
            training_facts(Prepared(sgd(), 2), ROWS, 3, accumulation=given_)
        assert caught.value.fix == "Pass accumulation=2."
    facts = training_facts(Prepared(sgd(), 2), ROWS, 3, accumulation=2)
    assert (facts["steps"], facts["batch_size"]) == (6, 20)
    assert training_facts(Prepared(sgd(), 1), ROWS, 3, accumulation=2) == facts


# ------------------------------------------------------------------ norms
@pytest.mark.parametrize("norm", ["layer", "none"])
@pytest.mark.parametrize("rule", ["sqrt-dim", "hasegawa-sakai", None])
def test_a_rule_for_one_norm_says_so_where_another_is_asked_for(rule, norm):
    plain, asked = (
        suggest(Task(512, 10), rule),
        suggest(Task(512, 10, training={"norm": norm}), rule),
    )
    assert asked.temperature == plain.temperature
    assert (plain.in_domain, asked.in_domain, asked.norm) == (True, False, "batch")
    assert asked.reasons == (f"T is for norm batch; the rule says nothing of norm {norm}",)
    assert (
        asked.others["adacos"].note == f"T is for norm cosine; the rule says nothing of norm {norm}"
    )
    assert suggest(Task(512, 10, training={"norm": "batch"}), rule).in_domain
    assert suggest(Task(512, 10, training={"norm": "batch-no-affine"}), rule).in_domain


def test_a_fallback_keeps_its_value_and_says_its_norm():
    described = {"statistics": {"csg": 0.5}}
    plain = suggest(Task(512, 100, **described))
    asked = suggest(Task(512, 100, **described, training={"norm": "layer"}))
    assert plain.fallback == asked.fallback == "hasegawa-sakai"
    assert asked.temperature == plain.temperature
    assert asked.reasons == (
        *plain.reasons,
        "T is for norm batch; the rule says nothing of norm layer",
    )


def test_a_rule_that_names_its_norms_says_it_once():
    domain = FittedDomain((1, 999), (2, 99), training=(("norm", ("batch",)),))
    rule = FittedRule(SqrtDim(), domain, "batch")
    reasons = suggest(Task(64, 10, training={"norm": "layer"}), rule).reasons
    assert sum("norm" in reason for reason in reasons) == 1


@pytest.mark.parametrize("norm", ["batch", "layer", "none"])
def test_the_law_has_a_value_for_each_norm(norm):
    found = suggest(task(schedule="cosine", norm=norm), "budget")
    assert found.norm == norm
    assert not any("norm" in reason for reason in found.reasons)
    other = suggest(task(schedule="cosine", norm=norm), "sqrt-dim").others["budget"]
    assert (other.norm, other.temperature) == (
        norm,
        pytest.approx(RULES["budget"](task(schedule="cosine", norm=norm))),
    )
    cosine = suggest(task(schedule="cosine", norm="cosine"), "budget")
    assert not cosine.in_domain
    assert sum("norm" in reason for reason in cosine.reasons) == 1
