"""Deep ensembles, MC dropout, MIMO and Packed-Ensembles against plain nets."""

import copy

import pytest
import torch
from torch import nn

from temperance.ensemble.deep_ensemble import deep_ensemble
from temperance.ensemble.mc_dropout import MemberDropout, mc_dropout
from temperance.ensemble.mimo import draw_pairing, mimo
from temperance.ensemble.packed import packed, packed_width
from temperance.ensemble.packed_layers import GroupedLayerNorm, GroupedLinear
from temperance.errors import InvalidInput, NotFound
from temperance.training.nets import build_net

M, C = 3, 5
X = torch.randn(6, 3, 8, 8, generator=torch.Generator().manual_seed(2))


def net(name="resnet", seed=0):
    return build_net(name, input_shape=(3, 8, 8), n_classes=C, seed=seed, feature_dim=48).module


def count(model):
    return sum(p.numel() for p in model.parameters())


# ------------------------------------------------------------------ deep ensemble
def test_deep_ensemble_is_nets_built_apart(rng_guard):
    with rng_guard():
        ensemble = deep_ensemble(lambda s: net(seed=s), M, seed=2).eval()
    expected = torch.stack([net(seed=2 * M + m).eval()(X) for m in range(M)])
    assert torch.equal(ensemble(X), expected)
    assert count(ensemble) == M * count(net())
    with ensemble.member(1):
        assert torch.equal(ensemble(X), expected[1:2])
        assert ensemble.targets(torch.arange(6)).shape == (1, 6)
    again = deep_ensemble(net("mlp", seed=9), M).eval()
    assert torch.equal(again(X), deep_ensemble(net("mlp", seed=1), M).eval()(X))


def test_deep_ensemble_draws_like_the_constructor():
    layer = nn.TransformerEncoderLayer(8, 2, 16)
    with torch.random.fork_rng():
        attention = deep_ensemble(nn.Sequential(layer, nn.Linear(8, 2)), 1).models[0][0].self_attn
    assert not attention.out_proj.bias.any()
    assert not torch.equal(attention.in_proj_weight, layer.self_attn.in_proj_weight)


def test_together_with_the_sum_of_losses_is_each_alone():
    def step(model, logits_of, targets):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        for _ in range(2):
            logits = logits_of()
            loss = nn.functional.cross_entropy(logits.flatten(0, -2), targets.flatten())
            optimizer.zero_grad()
            (loss * (M if logits.dim() == 3 else 1)).backward()
            optimizer.step()

    y = torch.arange(6) % C
    together = deep_ensemble(lambda s: net("mlp", seed=s), M)
    apart = copy.deepcopy(together)
    step(together, lambda: together(X), together.targets(y))
    for model in apart.models:
        step(model, lambda model=model: model(X), y)
    for a, b in zip(together.parameters(), apart.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


class Free(nn.Module):
    def __init__(self):
        super().__init__()
        self.position, self.head = nn.Parameter(torch.zeros(4)), nn.Linear(4, 2)

    def forward(self, x):
        return self.head(x + self.position)


def test_deep_ensemble_refuses():
    with pytest.raises(InvalidInput) as error:
        deep_ensemble(Free(), M)
    assert "position" in error.value.found
    shared = net()
    for function in (lambda s: shared, lambda s: 3):
        with pytest.raises(InvalidInput):
            deep_ensemble(function, M)


# ------------------------------------------------------------------ MC dropout
def test_dropout_of_nothing_has_no_variance():
    model = net().eval()
    ensemble = mc_dropout(model, M, p=0.0)
    torch.testing.assert_close(ensemble(X), model(X).expand(M, -1, -1))
    assert count(ensemble) == count(model)


def test_members_are_fixed_draws_of_the_weights():
    """Dropping inputs of a linear layer is dropping columns of its weights."""
    model = nn.Sequential(nn.Linear(4, 400), nn.Dropout(0.25), nn.Linear(400, 3)).eval()
    ensemble, x = mc_dropout(model, M, seed=3), torch.randn(7, 4)
    logits, dropout = ensemble(x), ensemble.backbone[1]
    assert not any(m.training for m in ensemble.modules())
    for m in range(M):
        mask = dropout._masks[m]
        assert sorted(set(mask.tolist())) == pytest.approx([0.0, 1 / 0.75])
        assert (mask == 0).float().mean().item() == pytest.approx(0.25, abs=0.08)
        hidden, weight = model[0](x), model[2].weight * mask
        torch.testing.assert_close(
            logits[m], hidden @ weight.T + model[2].bias, rtol=1e-4, atol=1e-5
        )
        with ensemble.member(m):
            assert torch.equal(ensemble(x)[0], logits[m])
    mean = mc_dropout(model, 400)(x).mean(0)
    torch.testing.assert_close(mean, model(x), atol=0.1, rtol=0.1)


def test_training_is_that_of_the_model():
    model = nn.Sequential(nn.Linear(4, 16), nn.BatchNorm1d(16), nn.Dropout(0.5), nn.Linear(16, 3))
    ensemble, x = mc_dropout(model, M), torch.randn(8, 4)
    torch.manual_seed(1)
    expected = model(x)
    torch.manual_seed(1)
    assert torch.equal(ensemble(x), expected.unsqueeze(0))
    assert ensemble.targets(torch.arange(8)).shape == (1, 8)


def test_whole_channels_and_places():
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Dropout2d(0.5), nn.Flatten(), nn.Linear(288, C))
    ensemble = mc_dropout(model.eval(), M)
    ensemble(X)
    assert ensemble.backbone[1]._masks[0].shape == (8, 1, 1)
    inside = mc_dropout(net(), M, p=0.2)
    assert (
        len([m for m in inside.modules() if isinstance(m, MemberDropout)])
        == len([m for m in net().modules() if isinstance(m, (nn.Conv2d, nn.Linear))]) - 1
    )
    assert isinstance(mc_dropout(net(), M, p=0.2, layers="head").backbone.head, nn.Sequential)


def test_fused_encoder_layers_drop_too():
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.3, batch_first=True)
    model = nn.Sequential(layer, nn.Flatten(), nn.Linear(32, 3)).eval()
    with torch.no_grad():
        logits = mc_dropout(model, M)(torch.randn(2, 4, 8))
    assert not torch.allclose(logits[0], logits[1])


class Unused(nn.Module):
    def __init__(self):
        super().__init__()
        self.drop, self.head = nn.Dropout(0.5), nn.Linear(4, 2)

    def forward(self, x):
        return self.head(x)


def test_mc_dropout_refuses():
    with pytest.raises(NotFound):
        mc_dropout(net(), M)
    with pytest.raises(InvalidInput) as error:
        mc_dropout(Unused().eval(), M)(torch.zeros(2, 4))
    assert "dropout" in error.value.expected
    for options in ({"p": 1.0}, {"p": -0.1}, {"layers": "head"}):
        with pytest.raises(InvalidInput):
            mc_dropout(net(), M, **options)
    with pytest.raises(InvalidInput):
        mc_dropout(nn.Sequential(nn.Linear(4, 3)), M, p=0.1)


# ------------------------------------------------------------------ MIMO
def test_mimo_with_one_member_is_the_model():
    model = net().eval()
    assert torch.equal(mimo(model, 1, example=X)(X)[0], model(X))


def test_mimo_pairs_rows_as_it_says():
    ensemble = mimo(net(), M, batch_repetition=2, seed=1, example=X).train()
    same = copy.deepcopy(ensemble)
    seen = []
    ensemble.backbone.register_forward_pre_hook(lambda _m, args: seen.append(args[0]))
    logits = ensemble(X)
    assert logits.shape == (M, 12, C)
    targets = ensemble.targets(torch.arange(6))
    for m in range(M):
        assert sorted(targets[m].tolist()) == sorted(list(range(6)) * 2)
        assert torch.equal(seen[0][:, 3 * m : 3 * m + 3], X[targets[m]])
    ensemble(X)
    assert not torch.equal(ensemble.targets(torch.arange(6)), targets)
    assert torch.equal(same(X), logits)
    same.load_state_dict(ensemble.state_dict())
    assert same.batches == 2
    with pytest.raises(InvalidInput):
        ensemble.targets(torch.arange(5))


@pytest.mark.parametrize("together", [0.0, 0.5, 1.0])
def test_pairing(together):
    generator = torch.Generator().manual_seed(0)
    pairing = draw_pairing(50, M, repetition=2, together=together, generator=generator)
    same = (pairing == pairing[0]).all(0)
    alone = round(100 * (1 - together))
    assert same[alone:].all()
    assert same[:alone].sum() < 10
    assert all(row.bincount().tolist() == [2] * 50 for row in pairing)


def test_mimo_counts_and_keeps_the_rest():
    for name in ("resnet", "mlp"):
        model = net(name)
        ensemble = mimo(model, M, example=X)
        layers = [m for m in model.modules() if isinstance(m, (nn.Conv2d, nn.Linear))]
        more = layers[0].weight.numel() + count(layers[-1])
        assert count(ensemble) == count(model) + (M - 1) * more
    inner = mimo(net(), M, example=X).backbone.body[3].conv[0].weight
    assert torch.equal(inner, net().body[3].conv[0].weight)


class Twice(nn.Module):
    """Reads its input in two places."""

    def __init__(self):
        super().__init__()
        self.one, self.two, self.head = nn.Linear(4, 8), nn.Linear(4, 8), nn.Linear(8, 3)

    def forward(self, x):
        return self.head(self.one(x) + self.two(x))


def test_mimo_and_packed_refuse():
    x = torch.zeros(2, 4)
    for build in (mimo, packed):
        with pytest.raises(InvalidInput) as error:
            build(Twice().eval(), M, example=x)
        assert error.value.subject == "model"
        with pytest.raises(InvalidInput):
            build(nn.Sequential(nn.Flatten(), nn.Linear(4, 3)), M)
        with pytest.raises(NotFound):
            build(Twice(), M)
    with pytest.raises(InvalidInput) as text:
        mimo(
            net(), M, example={"ids": torch.zeros(2, 3, dtype=torch.long), "mask": torch.ones(2, 3)}
        )
    assert text.value.subject == "example"
    for options in ({"batch_repetition": 0}, {"input_repetition": 1.5}):
        with pytest.raises(InvalidInput):
            mimo(net(), M, example=X, **options)


# ------------------------------------------------------------------ Packed-Ensembles
def alone(ensemble, model, m):
    """The plain narrow net of member m: the m-th part of every layer."""
    plain = copy.deepcopy(ensemble.backbone)
    names = [n for n, layer in model.named_modules() if isinstance(layer, (nn.Conv2d, nn.Linear))]

    def part(x, axis=0):
        return None if x is None else x.detach().chunk(M, axis)[m].clone()

    for name, layer in model.named_modules():
        new = plain.get_submodule(name)
        if isinstance(layer, (nn.Linear, nn.Conv2d)):
            grouped = isinstance(new, GroupedLinear)
            weight, bias = part(new.weight)[0] if grouped else part(new.weight), part(new.bias)
            if grouped:
                new = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None)
                parent, _, key = name.rpartition(".")
                setattr(plain.get_submodule(parent), key, new)
            elif isinstance(new, nn.Conv2d):
                new.groups = 1
                assert (
                    name == names[0]
                    or weight.shape[1] * M == ensemble.backbone.get_submodule(name).in_channels
                )
            new.weight = nn.Parameter(weight)
            new.bias = None if bias is None else nn.Parameter(bias)
        elif isinstance(layer, nn.modules.batchnorm._BatchNorm):
            for key in ("running_mean", "running_var"):
                setattr(new, key, part(getattr(new, key)))
            new.weight, new.bias = nn.Parameter(part(new.weight)), nn.Parameter(part(new.bias))
    return plain


@pytest.mark.parametrize("name", ["resnet", "mlp", "convnet"])
def test_packed_without_gamma_is_separate_nets(name):
    model = net(name)
    ensemble = packed(model, M, alpha=1.5, seed=1, example=X)
    with torch.no_grad():
        ensemble.train()(X)
        logits = ensemble.eval()(X)
        expected = torch.stack([alone(ensemble, model, m).eval()(X) for m in range(M)])
    torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-5)


def test_packed_weights_are_block_diagonal():
    """The gradient of one member's logits reaches its own part of every layer only."""
    ensemble = packed(net(), M, alpha=2.0, example=X).eval()
    ensemble(X)[1].sum().backward()
    for parameter in ensemble.parameters():
        parts = parameter.grad.flatten(1).abs().sum(1) if parameter.dim() > 1 else parameter.grad
        touched = [bool(part.any()) for part in parts.chunk(M)]
        assert touched == [False, True, False]


@pytest.mark.parametrize(("alpha", "gamma"), [(1.0, 1), (2.0, 1), (2.0, 2)])
def test_packed_counts(alpha, gamma):
    """An inner layer has alpha^2 / (M gamma) times the parameters: 48 and 96 divide evenly."""
    model = nn.Sequential(
        nn.Conv2d(3, 48, 3), nn.BatchNorm2d(48), nn.Conv2d(48, 96, 3, bias=False),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(96, 48, bias=False), nn.Linear(48, C),
    )  # fmt: skip
    ensemble = packed(model, M, alpha=alpha, gamma=gamma, example=X)
    for number in (2, 5):
        expected = alpha**2 / (M * gamma) * model[number].weight.numel()
        assert ensemble.backbone[number].weight.numel() == expected
    assert ensemble.backbone[0].weight.numel() == alpha * model[0].weight.numel()
    assert ensemble.backbone[6].weight.numel() == alpha * model[6].weight.numel()


def test_packed_of_one_is_the_model():
    model = net().eval()
    assert torch.equal(packed(model, 1, alpha=1.0, example=X)(X)[0], model(X))


def test_packed_widths_and_norms():
    for width, alpha, gamma in ((10, 2.0, 1), (7, 1.3, 2), (64, 2.0, 2), (30, 1.1, 1)):
        got = packed_width(width, M, alpha=alpha, gamma=gamma)
        assert got % (M * gamma) == 0
        assert alpha * width - 1e-6 <= got < alpha * width + M * gamma
    model = nn.Sequential(
        nn.Linear(4, 12), nn.LayerNorm(12), nn.Linear(12, 12), nn.GroupNorm(2, 12), nn.Linear(12, 2)
    ).eval()
    ensemble = packed(model, M, alpha=2.0, example=torch.zeros(2, 4))
    assert isinstance(ensemble.backbone[1], GroupedLayerNorm)
    assert ensemble.backbone[3].num_groups == 2 * M
    x = torch.randn(5, 4)
    ensemble(x)[2].sum().backward()
    assert not ensemble.backbone[1].weight.grad[:16].any()
    assert ensemble.backbone[1].weight.grad[16:].any()
    wide = torch.randn(2, 12)
    parts = [nn.functional.layer_norm(p, (4,)) for p in wide.chunk(M, 1)]
    torch.testing.assert_close(GroupedLayerNorm(12, groups=M)(wide), torch.cat(parts, 1))


def test_packed_grouped_convolutions_and_refusals():
    depthwise = nn.Sequential(
        nn.Conv2d(3, 12, 3), nn.Conv2d(12, 12, 3, groups=12), nn.Conv2d(12, 24, 1, groups=2),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(24, C),
    ).eval()  # fmt: skip
    ensemble = packed(depthwise, M, example=X)
    assert [ensemble.backbone[i].groups for i in (0, 1, 2)] == [1, 24, 2 * M]
    with pytest.raises(InvalidInput) as error:
        packed(nn.Sequential(Free(), nn.Linear(2, 2)), M)
    assert "0 (Free: position)" in error.value.found
    flat = nn.Sequential(nn.Conv2d(3, 10, 8), nn.Flatten(), nn.Linear(10, 8), nn.Linear(8, C))
    assert packed(flat, M, example=X)(X).shape == (M, 6, C)
    maps = nn.Sequential(nn.Conv2d(3, 10, 7), nn.Flatten(), nn.Linear(40, 8), nn.Linear(8, C))
    with pytest.raises(InvalidInput):
        packed(maps, M, example=X)
    groups = nn.Sequential(nn.Linear(4, 10), nn.GroupNorm(5, 10), nn.Linear(10, 2))
    with pytest.raises(InvalidInput) as refused:
        packed(groups, M)
    assert refused.value.subject == "norm '1'"
    for options in ({"alpha": 0.0}, {"gamma": 0}):
        with pytest.raises(InvalidInput):
            packed(net(), M, example=X, **options)
