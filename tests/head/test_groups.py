"""Weight decay where it belongs, every parameter once, and no optimizer without the head."""

import pytest
import torch
from torch import nn

from temperance.errors import InvalidInput, NotFound
from temperance.head import TemperedHead, check_optimizer, insert, parameter_groups


class RootMeanSquareNorm(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(2, 4))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv1d(1, 4, 3)
        self.bn = nn.BatchNorm1d(4)
        self.planes = nn.LayerNorm((4, 4))  # two-dimensional, and still a norm
        self.own = RootMeanSquareNorm()
        self.gate = nn.Bilinear(4, 4, 4)
        self.log_temperature = nn.Parameter(torch.zeros(()))
        self.token = nn.Parameter(torch.zeros(1, 4))
        self.head_bias = nn.ParameterDict({"bias": nn.Parameter(torch.zeros(2, 2))})
        self.fc = nn.Linear(4, 3)


def names(model, group):
    wanted = {id(p) for p in group["params"]}
    return {n for n, p in model.named_parameters() if id(p) in wanted}


def test_what_is_decayed():
    model = Net()
    insert(model, 4.0, name="fc")
    decayed, rest = parameter_groups(model, 0.05)
    assert (decayed["weight_decay"], rest["weight_decay"]) == (0.05, 0.0)
    assert names(model, decayed) == {"conv.weight", "gate.weight", "token", "fc.linear.weight"}
    assert names(model, rest) == {n for n, _ in model.named_parameters()} - names(model, decayed)
    assert {"fc.norm.weight", "planes.weight", "own.scale", "log_temperature"} <= names(model, rest)


@pytest.mark.parametrize("tempered", [False, True])
def test_every_trainable_parameter_exactly_once(tempered):
    model = Net()
    model.again = model.fc
    model.tied = nn.Linear(4, 3)
    model.tied.weight = model.fc.weight
    model.conv.requires_grad_(False)
    if tempered:
        insert(model, 4.0, name="fc")
    listed = [id(p) for g in parameter_groups(model, 0.1) for p in g["params"]]
    assert len(listed) == len(set(listed))
    assert set(listed) == {id(p) for p in model.parameters() if p.requires_grad}


@pytest.mark.parametrize("order", [("fc", "norm"), ("norm", "fc")])
def test_a_shared_parameter_is_spared_if_one_use_says_so(order):
    parts = {"fc": nn.Linear(4, 4), "norm": nn.LayerNorm((4, 4), bias=False)}
    parts["norm"].weight = parts["fc"].weight
    model = nn.ModuleDict({name: parts[name] for name in order})
    (rest,) = parameter_groups(model, 0.1)
    assert rest["weight_decay"] == 0.0
    assert len(rest["params"]) == 2


def test_the_models_own_list_is_kept():
    model = Net()
    model.no_weight_decay = lambda: {"token"}
    assert "token" in names(model, parameter_groups(model, 0.1)[1])


def test_groups_of_a_wrapped_model_and_a_frozen_one():
    model = nn.Sequential(nn.Linear(4, 3))
    wrapped = parameter_groups(torch.compile(nn.DataParallel(model)), 0.1)
    assert [len(g["params"]) for g in wrapped] == [1, 1]
    with pytest.raises(InvalidInput):
        parameter_groups(model.requires_grad_(False), 0.1)


@pytest.mark.parametrize("bad", [-0.1, float("nan"), float("inf"), True, "0.1", None])
def test_bad_decay(bad):
    with pytest.raises(InvalidInput):
        parameter_groups(nn.Linear(2, 2), bad)


def test_decay_moves_only_what_it_should():
    model = nn.Sequential(TemperedHead(nn.Linear(4, 3), 4.0))
    optimizer = torch.optim.AdamW(parameter_groups(model, 0.5), lr=0.1)
    before = {n: p.detach().clone() for n, p in model.named_parameters()}
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    optimizer.step()
    moved = {n for n, p in model.named_parameters() if not torch.equal(before[n], p)}
    assert moved == {"0.linear.weight"}


def test_an_optimizer_from_before_is_refused():
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(NotFound):
        check_optimizer(optimizer, model)
    head = insert(model, 4.0)
    with pytest.raises(InvalidInput) as error:
        check_optimizer(optimizer, model)
    assert "2.norm.weight, 2.norm.bias" in error.value.found
    optimizer.add_param_group({"params": list(head.norm.parameters())})
    check_optimizer(optimizer, model)
    check_optimizer(torch.optim.SGD(parameter_groups(model, 0.1), lr=0.1), nn.DataParallel(model))


def test_frozen_head_parameters_need_no_optimizer():
    model = nn.Sequential(nn.Linear(4, 3).requires_grad_(False))
    head = insert(model, 4.0)
    check_optimizer(torch.optim.SGD(head.norm.parameters(), lr=0.1), model)
