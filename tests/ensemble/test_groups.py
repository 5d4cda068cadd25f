"""Parameter groups: every parameter once, gamma by itself and faster, nothing decayed wrongly."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from temperance import insert
from temperance.ensemble import GAMMA_RATE, convert, parameter_groups, sigma_norms
from temperance.errors import InvalidInput

X = torch.zeros(2, 4)


class Net(nn.Module):
    """A table of positions that is not to be decayed, as timm's models say it."""

    def __init__(self):
        super().__init__()
        self.pos = nn.Parameter(torch.zeros(1, 6))
        self.first = nn.Linear(4, 6)
        self.norm = nn.LayerNorm(6)
        self.fc = nn.Linear(6, 3)

    def no_weight_decay(self):
        return {"pos"}

    def forward(self, x):
        return self.fc(self.norm(self.first(x) + self.pos))


def names(ensemble, groups):
    by_id = {id(p): n for n, p in ensemble.named_parameters()}
    return [{by_id[id(p)].removeprefix("backbone.") for p in g["params"]} for g in groups]


def test_who_is_in_which_group():
    ensemble = convert(Net(), 3, example=X)
    groups = parameter_groups(ensemble, 0.1, lr=0.01, gamma_rate=20)
    decayed, plain, gamma = names(ensemble, groups)
    assert decayed == {"first.weight", "fc.weight"}
    assert plain == {"pos", "first.bias", "norm.weight", "norm.bias", "fc.bias"}
    assert gamma == {"norm.gamma"}
    assert [g["weight_decay"] for g in groups] == [0.1, 0.0, 0.0]
    assert [g["lr"] for g in groups] == pytest.approx([0.01, 0.01, 0.2])
    optimizer = torch.optim.SGD(groups, lr=99.0)  # not used: every group has its own
    assert [g["lr"] for g in optimizer.param_groups] == pytest.approx([0.01, 0.01, 0.2])


def test_the_rate_by_default_and_one_step():
    ensemble = convert(Net(), 3, example=X)
    groups = parameter_groups(ensemble, 0.0, lr=0.5)
    assert groups[-1]["lr"] == pytest.approx(0.5 * GAMMA_RATE)
    before = {n: p.detach().clone() for n, p in ensemble.named_parameters()}
    ensemble(torch.randn(5, 4)).square().sum().backward()
    torch.optim.SGD(groups).step()
    for name, p in ensemble.named_parameters():
        lr = 0.5 * (GAMMA_RATE if name.endswith("gamma") else 1)
        torch.testing.assert_close(p.detach(), before[name] - lr * p.grad)


def test_a_tempered_head_is_grouped_like_the_rest():
    model = Net()
    insert(model, 4.0, norm="batch", name="fc")
    ensemble = convert(model, 3, example=X)
    decayed, plain, gamma = names(ensemble, parameter_groups(ensemble, 0.1, lr=0.01))
    assert decayed == {"first.weight", "fc.linear.weight"}
    assert plain == {"pos", "first.bias", "fc.linear.bias", "norm.weight", "norm.bias",
                     "fc.norm.weight", "fc.norm.bias"}  # fmt: skip
    assert gamma == {"norm.gamma", "fc.norm.gamma"}


@settings(max_examples=15, deadline=None)
@given(frozen=st.sets(st.integers(0, 7)), members=st.integers(1, 3))
def test_every_trainable_parameter_comes_once(frozen, members):
    ensemble = convert(Net(), members, example=X)
    parameters = list(ensemble.parameters())
    assert len(parameters) == 8
    for place in frozen:
        parameters[place].requires_grad_(False)
    if len(frozen) == 8:
        with pytest.raises(InvalidInput) as caught:
            parameter_groups(ensemble, 0.1, lr=0.01)
        assert caught.value.expected == "trainable parameters"
        return
    groups = parameter_groups(ensemble, 0.1, lr=0.01)
    assert all(g["params"] for g in groups)
    held = [id(p) for g in groups for p in g["params"]]
    assert sorted(held) == sorted(id(p) for p in parameters if p.requires_grad)
    gammas = {id(n.gamma) for n in sigma_norms(ensemble).values()}
    assert all(id(p) not in gammas for g in groups if g["lr"] == 0.01 for p in g["params"])


def test_a_wrapped_ensemble_has_the_same_groups():
    ensemble = convert(Net(), 2, example=X)
    plain, wrapped = (
        parameter_groups(m, 0.1, lr=0.01) for m in (ensemble, nn.DataParallel(ensemble))
    )
    assert names(ensemble, plain) == names(ensemble, wrapped)


@pytest.mark.parametrize(
    ("call", "subject"),
    [
        *((lambda e, v=v: parameter_groups(e, 0.1, lr=v), "lr")
          for v in (0, -1, math.inf, "1", None, True)),
        *((lambda e, v=v: parameter_groups(e, 0.1, lr=1, gamma_rate=v), "gamma_rate")
          for v in (0, -2.0, math.nan)),
        (lambda e: parameter_groups(e, -0.1, lr=1), "weight_decay"),
        (lambda e: parameter_groups(e.backbone, 0.1, lr=1), "model"),
        (lambda _: parameter_groups(None, 0.1, lr=1), "model"),
    ],
)  # fmt: skip
def test_what_cannot_be_used_is_refused(call, subject):
    with pytest.raises(InvalidInput) as caught:
        call(convert(Net(), 2, example=X))
    assert caught.value.subject == subject
