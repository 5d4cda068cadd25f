"""SigmaNorm against the plain layers, one for each member."""

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from temperance.ensemble import NormFacts, SigmaNorm
from temperance.ensemble.rows import Layout, Rows
from temperance.errors import InvalidInput

M, C = 3, 4
FACTS = {
    "batch": NormFacts("batch", (C,), 1e-5),
    "batch-mean": NormFacts("batch", (C,), 1e-3, momentum=None),
    "group": NormFacts("group", (C,), 1e-4, num_groups=2),
    "layer": NormFacts("layer", (C,), 1e-5, channel_axis=-1),
    "layer-first": NormFacts("layer", (C,), 1e-6, channel_axis=1),
    "rms": NormFacts("rms", (C,), 1e-5, channel_axis=-1),
    "rms-first": NormFacts("rms", (C,), None, channel_axis=1),
}


class ChannelsFirst(nn.Module):
    def __init__(self, norm):
        super().__init__()
        self.norm = norm

    def forward(self, x):
        return self.norm(x.movedim(1, -1)).movedim(-1, 1)


def plain(facts, scale, bias):
    """The layer of torch with this scale and shift."""
    kind = facts.kind
    if kind == "batch":
        layer = {2: nn.BatchNorm1d, 4: nn.BatchNorm2d}[4](C, facts.eps, facts.momentum)
        layer._check_input_dim = lambda x: None
    elif kind == "group":
        layer = nn.GroupNorm(facts.num_groups, C, facts.eps)
    elif kind == "layer":
        layer = nn.LayerNorm(facts.shape, facts.eps)
    else:
        layer = nn.RMSNorm(facts.shape, facts.eps)
    with torch.no_grad():
        layer.weight.copy_(scale.view(facts.shape))
        if kind != "rms":
            layer.bias.copy_(bias.view(facts.shape))
    first = facts.channel_axis == 1 and kind in ("layer", "rms")
    return ChannelsFirst(layer) if first else layer


def random_norm(facts, members=M, rows=None):
    norm = SigmaNorm(facts, rows or members, affine=True)
    with torch.no_grad():
        norm.gamma.normal_()
        norm.weight.normal_()
        if facts.kind != "rms":
            norm.bias.normal_()
        if norm.running_mean is not None:
            norm.running_mean.normal_()
            norm.running_var.uniform_(0.5, 2)
    return norm


def plain_layers(norm):
    """Plain layers of all members, by the formula in the docstring."""
    scale = norm.weight * torch.sigmoid(norm.gamma)
    layers = nn.ModuleList(plain(norm.facts, s, norm.bias) for s in scale)
    for m, layer in enumerate(layers):
        if norm.running_mean is not None:
            layer.running_mean.copy_(norm.running_mean[m])
            layer.running_var.copy_(norm.running_var[m])
    return layers.train(norm.training)


def shape_for(facts, rows, spatial=(5, 2)):
    return (rows, *spatial, C) if facts.channel_axis == -1 else (rows, C, *spatial)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_large_mean_is_taken_away_in_half_precision(dtype):
    """Where the rows are copied, in evaluation: a rounded scale times a large mean is an error."""
    torch.manual_seed(0)
    norm = SigmaNorm(FACTS["batch"], M).eval()
    norm.expands = True
    with torch.no_grad():
        norm.gamma.normal_()
        norm.running_mean.copy_(300 + 0.1 * torch.randn(M, C))
        norm.running_var.fill_(0.7)
    x = (300 + torch.randn(50, C)).to(dtype)
    norm.rows.total = 50 * M
    found = norm(x).detach().unflatten(0, (50, M)).double()
    for m in range(M):
        norm.rows.active = m
        expected = copy.deepcopy(norm).double()(x.double()).detach()
        size = float(expected.abs().max())
        assert float((found[:, m] - expected).abs().max()) < 4 * torch.finfo(dtype).eps * size


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("spatial", [(), (5,), (5, 2)])
@pytest.mark.parametrize("name", list(FACTS))
def test_together_is_each_alone(name, spatial, training):
    facts = FACTS[name]
    norm = random_norm(facts).train(training)
    layers = plain_layers(norm)
    x = torch.randn(shape_for(facts, 6 * M, spatial)) * 3 + 1
    alone, single = copy.deepcopy(norm), copy.deepcopy(norm)
    for _ in range(3):  # several batches, for the running statistics
        y = norm(x)
        for m, layer in enumerate(layers):
            expected = layer(x[m::M])
            torch.testing.assert_close(y[m::M], expected, atol=1e-5, rtol=1e-5)
            alone.rows.active = m
            torch.testing.assert_close(alone(x[m::M]), expected, atol=1e-6, rtol=1e-5)
    for m, layer in enumerate(layers):
        if facts.kind == "batch":
            for key in ("running_mean", "running_var", "num_batches_tracked"):
                torch.testing.assert_close(getattr(norm, key)[m], getattr(layer, key))
                torch.testing.assert_close(getattr(alone, key)[m], getattr(layer, key))
    # one copy of the rows that becomes M inside
    single.expands = True
    copied = copy.deepcopy(single)
    copied.expands = False
    rows = x[: len(x) // M]
    for _ in range(3):
        expected = copied(rows.repeat_interleave(M, 0))
        torch.testing.assert_close(single(rows), expected, atol=1e-5, rtol=1e-5)
    for key, value in single.named_buffers():
        torch.testing.assert_close(value, dict(copied.named_buffers())[key])


@pytest.mark.parametrize("name", list(FACTS))
def test_gradients_are_those_of_each_alone(name):
    facts = FACTS[name]
    norm = random_norm(facts).double()
    x = torch.randn(shape_for(facts, 4 * M), dtype=torch.float64)
    seed = torch.randn_like(x)
    a, b = x.clone().requires_grad_(), x.clone().requires_grad_()
    other = copy.deepcopy(norm)
    norm(a).backward(seed)
    for m in range(M):
        other.rows.active = m
        other(b[m::M]).backward(seed[m::M])
    torch.testing.assert_close(a.grad, b.grad)
    for p, q in zip(norm.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad)


def test_a_layer_norm_over_several_axes():
    facts = NormFacts("layer", (C, 5, 2), 1e-5, channel_axis=-1)
    norm = random_norm(facts)
    assert norm.gamma.shape == (M, C * 10)
    x = torch.randn(2 * M, C, 5, 2)
    for m, layer in enumerate(plain_layers(norm)):
        torch.testing.assert_close(norm(x)[m::M], layer(x[m::M]))


@pytest.mark.parametrize("name", ["batch", "layer", "rms-first", "group"])
@pytest.mark.parametrize("expands", [True, False])
@pytest.mark.parametrize("training", [True, False])
def test_windows_folded_into_the_rows(name, expands, training):
    """Rows b, m, window: the statistics are a member's over its rows and windows."""
    facts, b, k = FACTS[name], 4, 6
    rows = Rows(M, total=b * M)
    norm = random_norm(facts, rows=rows).train(training)
    norm.layout, norm.expands = Layout(0, grouped=True), expands
    x = torch.randn(shape_for(facts, b * k if expands else b * M * k))
    layers = plain_layers(norm)
    y = norm(x).unflatten(0, (b, M, k))
    for m, layer in enumerate(layers):
        mine = x if expands else x.unflatten(0, (b, M, k))[:, m].flatten(0, 1)
        torch.testing.assert_close(y[:, m].flatten(0, 1), layer(mine), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("expands", [True, False])
def test_sequences_first(expands):
    facts = FACTS["layer"]
    norm = random_norm(facts)
    norm.layout, norm.expands = Layout(1), expands
    x = torch.randn(7, 5 if expands else 5 * M, C)
    y = norm(x)
    for m, layer in enumerate(plain_layers(norm)):
        torch.testing.assert_close(y[:, m::M], layer(x if expands else x[:, m::M]))


def test_what_stands_behind_the_norm_is_kept():
    norm = random_norm(FACTS["batch"])
    norm.drop, norm.act = nn.Dropout(0.0), nn.PReLU(C)
    x = torch.randn(2 * M, C, 3)
    bare = copy.deepcopy(norm)
    bare.drop = bare.act = None
    torch.testing.assert_close(norm(x), norm.act(bare(x)))
    assert "act.weight" in norm.state_dict()


@pytest.mark.parametrize("name", list(FACTS))
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_types_are_those_of_the_input(name, dtype):
    facts = FACTS[name]
    x = torch.randn(shape_for(facts, 4 * M)).to(dtype)
    for expands in (True, False):
        norm = random_norm(facts)
        norm.expands = expands
        norm = norm.double() if dtype == torch.float64 else norm
        for training in (True, False):
            assert norm.train(training)(x).dtype == dtype
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.isfinite(random_norm(facts)(x.float())).all()


@given(st.integers(1, 5), st.integers(2, 6), st.integers(0, 10_000))
@settings(max_examples=20, deadline=None)
def test_members_never_see_each_other(members, batch, seed):
    """Changing the rows of one member changes nothing for the others."""
    torch.manual_seed(seed)
    norm = random_norm(FACTS["batch"], members)
    x = torch.randn(batch * members, C)
    y, moved = norm(x), x.clone()
    moved[0::members] = torch.randn(batch, C)
    again = norm(moved)
    for m in range(1, members):
        torch.testing.assert_close(y[m::members], again[m::members])


def test_the_papers_form_has_no_shift_and_trains_gamma_only():
    norm = SigmaNorm(NormFacts("batch", (C,)), M)
    assert [n for n, _ in norm.named_parameters()] == ["gamma"]
    assert {"weight", "bias"} <= {n for n, _ in norm.named_buffers()}
    x = torch.randn(5 * M, C)
    y = norm(x)
    expected = 0.5 * nn.functional.batch_norm(x[0::M], None, None, training=True)
    torch.testing.assert_close(y[0::M], expected)  # sigmoid(0) = 1/2


@pytest.mark.parametrize(
    "make",
    [
        lambda: SigmaNorm(FACTS["batch"], 0),
        lambda: SigmaNorm(NormFacts("instance", (C,)), 2),
        lambda: SigmaNorm(FACTS["batch"], 3)(torch.zeros(4, C)),
        lambda: SigmaNorm(FACTS["layer"], Rows(2, total=8))(torch.zeros(4, C)),
    ],
)
def test_bad_input(make):
    with pytest.raises(InvalidInput):
        make()
