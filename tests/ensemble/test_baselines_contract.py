"""What every rival must do, over the table."""

import copy

import pytest
import torch
from torch import nn

from temperance.ensemble.baselines import BASELINES
from temperance.ensemble.rival_layers import find_layers
from temperance.errors import InvalidInput, NotFound
from temperance.training.nets import build_net

M, B, C = 3, 6, 4
MODELS = {"resnet": (3, 8, 8), "mlp": (12,)}
OPTIONS = {"mc_dropout": {"p": 0.3}, "mimo": {"batch_repetition": 2, "input_repetition": 0.5}}
CASES = [(name, model) for name in BASELINES for model in MODELS]


def plain(name):
    net = build_net(name, input_shape=MODELS[name], n_classes=C, seed=3, feature_dim=48)
    return net.module.train()


def rows_of(name, n=B):
    return torch.randn(n, *MODELS[name], generator=torch.Generator().manual_seed(7))


def build(name, model, members=M, seed=0):
    options = dict(OPTIONS.get(name, {}))
    if BASELINES[name].takes_example and type(model).__name__ == "_Net":
        shape = MODELS["mlp" if isinstance(model.body[0], nn.Flatten) else "resnet"]
        options["example"] = torch.zeros(2, *shape)
    return BASELINES[name].build(model, members, seed=seed, **options)


def trained(ensemble, x, steps=1):
    """A step or two of training, as every loop would do it."""
    y = torch.arange(len(x)) % C
    optimizer = torch.optim.SGD(ensemble.parameters(), lr=0.01)
    for _ in range(steps):
        logits = ensemble(x)
        targets = ensemble.targets(y)
        assert logits.shape[:2] == targets.shape
        optimizer.zero_grad()
        nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten()).backward()
        optimizer.step()
    return ensemble


@pytest.mark.parametrize(("name", "model"), CASES)
def test_trains_and_predicts(name, model, rng_guard, assert_unchanged, picture):
    net, x = plain(model), rows_of(model)
    before = picture(net)
    with rng_guard():
        ensemble = build(name, net)
    assert_unchanged(net, before)
    assert ensemble.members == M
    trained(ensemble, x)
    reached = {n: p.grad is not None and bool(p.grad.any()) for n, p in ensemble.named_parameters()}
    assert all(reached.values()), reached
    ensemble.eval()
    state = copy.deepcopy(ensemble.state_dict())
    with torch.no_grad(), rng_guard():
        logits = ensemble(x)
        parts = torch.cat([ensemble(x[:1]), ensemble(x[1:5]), ensemble(x[5:])], dim=1)
        again = ensemble(x)
    assert logits.shape == (M, B, C)
    torch.testing.assert_close(parts, logits, rtol=1e-4, atol=1e-5)
    assert torch.equal(again, logits)
    assert all((logits[a] - logits[b]).abs().max() > 1e-4 for a, b in ((0, 1), (0, 2), (1, 2)))
    torch.testing.assert_close(ensemble.targets(torch.arange(B)), torch.arange(B).expand(M, B))
    for key, value in ensemble.state_dict().items():
        assert torch.equal(value, state[key]), key


@pytest.mark.parametrize(("name", "model"), CASES)
def test_seeds_and_state(name, model):
    net, x = plain(model).eval(), rows_of(model)
    first, same, other = (build(name, net, seed=s).eval() for s in (0, 0, 1))
    with torch.no_grad():
        assert torch.equal(first(x), same(x))
        assert not torch.allclose(first(x), other(x))
    trained(first.train(), x).eval()
    # masks in evaluation are not weights: they come from the seed
    target = same if name == "mc_dropout" else other
    target.load_state_dict(first.state_dict(), strict=True)
    with torch.no_grad():
        assert torch.equal(target(x), first(x))
        assert torch.equal(copy.deepcopy(first)(x), first(x))


@pytest.mark.parametrize(("name", "model"), CASES)
def test_one_member(name, model):
    net, x = plain(model).eval(), rows_of(model)
    ensemble = build(name, net, members=1).eval()
    with torch.no_grad():
        assert ensemble(x).shape == (1, B, C)
        if name in ("batch_ensemble", "masksembles", "mimo", "film_ensemble"):
            torch.testing.assert_close(ensemble(x)[0], net(x))
    trained(ensemble.train(), x)


@pytest.mark.parametrize("name", BASELINES)
@pytest.mark.parametrize(("members", "seed"), [(0, 0), (2.0, 0), (True, 0), (2, -1)])
def test_bad_arguments(name, members, seed):
    with pytest.raises(InvalidInput) as error:
        build(name, plain("mlp"), members=members, seed=seed)
    assert error.value.subject in ("members", "seed")


@pytest.mark.parametrize("name", BASELINES)
def test_only_plain_models(name):
    with pytest.raises(InvalidInput):
        build(name, nn.DataParallel(plain("mlp")))


@pytest.mark.parametrize("name", sorted(set(BASELINES) - {"deep_ensemble"}))
def test_models_without_what_it_needs(name):
    with pytest.raises((InvalidInput, NotFound)):
        build(name, nn.Sequential(nn.Flatten(), nn.ReLU()))
    with pytest.raises((InvalidInput, NotFound)):
        build(name, build(name, plain("mlp")))


def test_table():
    for name, baseline in BASELINES.items():
        assert baseline.name == name
        assert "arXiv" in baseline.reference
        assert baseline.protocol in ("repeat", "split", "single", "paired")
        ensemble = build(name, plain("mlp"))
        assert baseline.loss in ("sum", "mean")
        own = getattr(ensemble, "protocol", baseline.protocol)
        assert own == baseline.protocol


def test_patterns_of_layers():
    net = plain("resnet")
    everything = find_layers(net)
    assert list(find_layers(net, patterns=["*", "!head"])) == list(everything)[:-1]
    assert list(find_layers(net, patterns="head")) == ["head"]
    with pytest.raises(NotFound) as error:
        find_layers(net, patterns="nothing")
    assert error.value.candidates

    class Reading(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.head = nn.Linear(12, 12), nn.Linear(12, C)

        def forward(self, x):
            return nn.functional.linear(self.one(x), self.head.weight)

    for name in ("batch_ensemble", "masksembles", "mc_dropout"):
        with pytest.raises(InvalidInput) as read:
            build(name, Reading().eval())(torch.zeros(2, 12))
        assert read.value.subject == "layers"
    with pytest.raises(InvalidInput) as refused:
        find_layers(nn.TransformerEncoderLayer(8, 2))
    assert "self_attn.out_proj" in refused.value.subject
