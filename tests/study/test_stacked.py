"""Many copies of a net as one program: the same values, gradients and statistics."""

import pytest
import torch
from torch import nn

from temperance.errors import InvalidInput
from temperance.head import insert
from temperance.study.probe_product import choose_product
from temperance.study.stacked import stack_net
from temperance.study.stacked_linear import linears
from temperance.study.stacked_trace import trace_steps
from temperance.training.nets import NETS, build_net

ATTENTION = ("transformer", "vit")


@pytest.mark.parametrize("name", sorted(set(NETS) - set(ATTENTION)))
@pytest.mark.parametrize("norm", ["none", "layer", "batch", "batch-no-affine"])
def test_our_nets_without_attention_can_be_stacked(name, norm):
    shape = (5, 1, 13) if name == "textcnn" else (2, 8, 8)
    net = build_net(
        name, input_shape=shape, n_classes=3, seed=1, feature_dim=None if name == "probe" else 8
    ).module
    head = insert(net, 2.0, norm=norm, name="head")
    stack = stack_net(net, 3, steps=trace_steps(net))
    x = torch.randn(6, *shape)
    found = stack(x, training=True)
    wanted = net(x) * head.temperature
    for index in range(3):
        torch.testing.assert_close(found[:, index], wanted, rtol=1e-4, atol=1e-4)
        state = net.state_dict()
        for tensor_name, tensor in stack.member(index).items():  # running statistics, too
            torch.testing.assert_close(tensor, state[tensor_name], rtol=1e-4, atol=1e-5)
    net.eval()
    torch.testing.assert_close(
        stack(x, training=False)[:, 2], net(x) * head.temperature, rtol=1e-4, atol=1e-4
    )


@pytest.mark.parametrize("name", ATTENTION)
def test_attention_is_not_stacked_and_is_named(name):
    shape = (2, 1, 8) if name == "transformer" else (2, 8, 8)
    net = build_net(name, input_shape=shape, n_classes=3, seed=1, feature_dim=8).module
    insert(net, 2.0, name="head")
    with pytest.raises(InvalidInput) as caught:
        trace_steps(net)
    assert caught.value.found == "the layer body, AttentionEncoder"


class Odd(nn.Module):
    def __init__(self, part):
        super().__init__()
        self.body, self.head = nn.Sequential(nn.Flatten(), nn.Linear(6, 12), part), nn.Linear(12, 3)

    def forward(self, x):
        return self.head(self.body(x))


class Branching(Odd):
    def forward(self, x):
        return self.head(self.body(x) if x.sum() > 0 else self.body(-x))


class Mixed(nn.Module):
    """What is the same for all members meets what is not."""

    def __init__(self):
        super().__init__()
        self.inner, self.head = nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x):
        return self.head(torch.relu(x + self.inner(x) + x))


def test_shared_rows_can_be_added_to_those_of_a_member():
    net = Mixed()
    head = insert(net, 3.0, norm="batch", name="head")
    stack = stack_net(net, 2, steps=trace_steps(net))
    x = torch.randn(5, 6)
    wanted = net(x) * head.temperature
    torch.testing.assert_close(stack(x, training=True), wanted.unsqueeze(1).expand(-1, 2, -1))


class Shifted(Odd):
    def forward(self, x):
        return self.head(torch.add(self.body(x), 1.0))


def tied():
    net = Odd(nn.Linear(12, 12))
    net.body.append(nn.Linear(12, 12))
    net.body[3].weight = net.body[2].weight
    return net


@pytest.mark.parametrize(
    ("net", "found"),
    [
        (tied(), "weights that two layers share"),
        (Shifted(nn.ReLU()), "add"),
        (Odd(nn.Dropout(0.5)), "body.2, Dropout"),
        (Odd(nn.BatchNorm1d(12, momentum=None)), "body.2, BatchNorm1d"),
        (Branching(nn.ReLU()), "cannot be traced"),
    ],
)
def test_what_cannot_be_stacked_is_named(net, found):
    insert(net, 1.0, name="head")
    with pytest.raises(InvalidInput) as error:
        trace_steps(net)
    assert error.value.subject == "net"
    assert found in error.value.found


@pytest.mark.parametrize("inside", [5, 300])  # both products
@pytest.mark.parametrize("members", [1, 3])
@pytest.mark.parametrize("with_bias", [False, True])
def test_linear_layers_are_those_of_torch(inside, members, with_bias):
    outside, rows = 250, 7
    x = torch.randn(rows, members * inside, requires_grad=True)
    weight = torch.randn(members * outside, inside, requires_grad=True)
    bias = torch.randn(members * outside, requires_grad=True) if with_bias else None
    parts = [t for t in (x, weight, bias) if t is not None]
    found = linears(x, weight, bias, members=members, multiply=choose_product())
    wanted = torch.cat(
        [
            nn.functional.linear(
                x[:, r * inside : (r + 1) * inside],
                weight[r * outside : (r + 1) * outside],
                None if bias is None else bias[r * outside : (r + 1) * outside],
            )
            for r in range(members)
        ],
        dim=1,
    )
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)
    slope = torch.randn_like(found)
    ours, theirs = (torch.autograd.grad(z, parts, slope) for z in (found, wanted))
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("width", [3, 5, 16, 20])
def test_numbers_that_are_none_stay_with_their_member(width):
    net = build_net("convnet", input_shape=(1, 8, 8), n_classes=3, seed=0, feature_dim=width).module
    insert(net, 1.0, norm="batch", name="head")
    stack, clean = (stack_net(net, 3, steps=trace_steps(net)) for _ in range(2))
    for tensor in stack.member(1).values():
        tensor.fill_(torch.nan)
    x, slope = torch.randn(6, 1, 8, 8), torch.randn(6, 3, 3)
    for a, b in zip(gradients(stack, x, slope), gradients(clean, x, slope), strict=True):
        size = len(a) // 3
        for index in (0, 2):
            part = slice(index * size, (index + 1) * size)
            torch.testing.assert_close(a[part], b[part])


def gradients(stack, x, slope):
    return torch.autograd.grad(stack(x, training=True), list(stack.parameters.values()), slope)
