"""BatchEnsemble, FiLM-Ensemble and Masksembles against members computed one by one."""

import copy
import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

from temperance.ensemble.batch_ensemble import RankOneLayer, batch_ensemble
from temperance.ensemble.film_ensemble import FilmNorm, film_ensemble
from temperance.ensemble.masksembles import MemberMask, make_masks, masksembles
from temperance.errors import InvalidInput, NotFound
from temperance.training.nets import build_net

M = 3
X = torch.randn(6, 3, 8, 8, generator=torch.Generator().manual_seed(2))


def resnet():
    net = build_net("resnet", input_shape=(3, 8, 8), n_classes=5, seed=0, feature_dim=48)
    return settled(net.module)


def settled(net):
    """Running statistics that are not 0 and 1."""
    with torch.no_grad():
        net.train()(X)
    return net.eval()


def count(model):
    return sum(p.numel() for p in model.parameters())


def member_plain(model, ensemble, m):
    """The plain model with the weights that member m has, by the formula of the method."""
    net = copy.deepcopy(model)
    for name, layer in ensemble.backbone.named_modules():
        if not isinstance(layer, (RankOneLayer, FilmNorm)):
            continue
        plain = net.get_submodule(name)
        with torch.no_grad():
            if isinstance(layer, RankOneLayer):
                ones = (1,) * (plain.weight.dim() - 2)
                outer = layer.s[m].view(-1, 1, *ones) * layer.r[m].view(1, -1, *ones)
                plain.weight.mul_(outer)
                if plain.bias is not None:
                    plain.bias.copy_(layer.bias[m])
            else:
                plain.weight.copy_(layer.gamma[m])
                plain.bias.copy_(layer.beta[m])
                plain.running_mean.copy_(layer.running_mean[m])
                plain.running_var.copy_(layer.running_var[m])
    return net


def members_alone(ensemble, x):
    logits = []
    for m in range(ensemble.members):
        with ensemble.member(m):
            logits.append(ensemble(x)[0])
    return torch.stack(logits)


# ------------------------------------------------------------------ BatchEnsemble
@pytest.mark.parametrize("init", ["normal", "signs"])
def test_batch_ensemble_is_rank_one_weights(init):
    model = resnet()
    ensemble = batch_ensemble(model, M, init=init, seed=4)
    with torch.no_grad():
        for layer in ensemble.modules():
            if isinstance(layer, RankOneLayer) and layer.bias is not None:
                layer.bias.normal_()
        expected = torch.stack([member_plain(model, ensemble, m)(X) for m in range(M)])
        torch.testing.assert_close(ensemble(X), expected, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(members_alone(ensemble, X), expected, rtol=1e-4, atol=1e-4)
    if init == "signs":
        assert set(ensemble.backbone.head.r.flatten().tolist()) == {-1.0, 1.0}


def test_batch_ensemble_keeps_function_and_counts():
    model = resnet()
    ensemble = batch_ensemble(model, M, spread=0.0)
    torch.testing.assert_close(ensemble(X), model(X).expand(M, -1, -1), rtol=1e-4, atol=1e-5)
    layers = [m for m in model.modules() if isinstance(m, (nn.Conv2d, nn.Linear))]
    ends = sum(w.weight.shape[0] + w.weight.shape[1] for w in layers)
    biases = sum(w.bias.numel() for w in layers if w.bias is not None)
    assert count(ensemble) == count(model) + M * ends + (M - 1) * biases
    partly = batch_ensemble(model, M, layers=["*", "!head"])
    assert isinstance(partly.backbone.head, nn.Linear)
    with pytest.raises(InvalidInput):
        batch_ensemble(model, M, init="ones")


def test_split_deals_out_the_rows():
    ensemble = batch_ensemble(resnet(), M)
    whole = ensemble(X)
    ensemble.train()
    for layer in ensemble.modules():
        if isinstance(layer, nn.BatchNorm2d):
            layer.eval()
    ensemble.protocol = "split"
    logits, targets = ensemble(X), ensemble.targets(torch.arange(6))
    assert targets.tolist() == [[0, 3], [1, 4], [2, 5]]
    for m in range(M):
        torch.testing.assert_close(logits[m], whole[m, m::M], rtol=1e-4, atol=1e-5)
    with pytest.raises(InvalidInput):
        ensemble(X[:4])
    with pytest.raises(InvalidInput):
        ensemble.protocol = "every"


class Windows(nn.Module):
    """Folds tokens into the rows in front of a linear layer, and another axis to the front."""

    def __init__(self, first=False):
        super().__init__()
        self.inside, self.head, self.first = nn.Linear(4, 4), nn.Linear(4, 5), first

    def forward(self, x):
        if self.first:
            return self.head(self.inside(x.transpose(0, 1)).mean(0))
        return self.head(self.inside(x.flatten(0, 1)).unflatten(0, x.shape[:2]).mean(1))


def test_rows_in_other_places():
    x = torch.randn(4, 6, 4)
    ensemble = batch_ensemble(Windows().eval(), M)
    torch.testing.assert_close(ensemble(x), members_alone(ensemble, x))
    for length in (6, 9, 18):
        with pytest.raises(InvalidInput) as error:
            batch_ensemble(Windows(first=True).eval(), M)(torch.randn(4, length, 4))
        assert error.value.subject == "model"
        assert "alone" in error.value.expected


# ------------------------------------------------------------------ FiLM-Ensemble
@pytest.mark.parametrize("training", [False, True])
def test_film_members_alone(training):
    """Own batch statistics, too: together as the plain models, one for each member."""
    model = resnet()
    ensemble = film_ensemble(model, M, seed=5)
    plain = [member_plain(model, ensemble, m).train(training) for m in range(M)]
    alone = copy.deepcopy(ensemble).train(training)
    ensemble.train(training)
    expected = torch.stack([net(X) for net in plain])
    torch.testing.assert_close(ensemble(X), expected, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(members_alone(alone, X), expected, rtol=1e-3, atol=1e-4)
    for name, layer in ensemble.backbone.named_modules():
        if isinstance(layer, FilmNorm):
            for m, net in enumerate(plain):
                theirs = net.get_submodule(name)
                torch.testing.assert_close(layer.running_mean[m], theirs.running_mean)
                torch.testing.assert_close(layer.running_var[m], theirs.running_var)


def test_film_start_and_counts():
    model = resnet()
    features = sum(m.num_features for m in model.modules() if isinstance(m, nn.BatchNorm2d))
    ensemble = film_ensemble(model, M, gain=2.0)
    assert count(ensemble) == count(model) + 2 * features * (M - 1)
    norm = next(m for m in ensemble.modules() if isinstance(m, FilmNorm))
    bound = 2 * math.sqrt(6 / (norm.facts.num_features + M))
    assert 0.7 * bound < norm.gamma.abs().max() < bound
    kept = film_ensemble(model, M, init="function", gain=0.0)
    torch.testing.assert_close(kept(X), model(X).expand(M, -1, -1), rtol=1e-4, atol=1e-5)
    near = film_ensemble(model, M, init="function", gain=0.1)
    norm = next(m for m in near.modules() if isinstance(m, FilmNorm))
    assert (norm.gamma - 1).abs().max() < 0.1 * math.sqrt(6 / (norm.facts.num_features + M))


def test_film_refuses():
    with pytest.raises(NotFound) as error:
        film_ensemble(nn.Sequential(nn.LayerNorm(4), nn.Linear(4, 2)), M)
    assert "layer" in error.value.found
    for norm in (nn.BatchNorm1d(4, momentum=None), nn.SyncBatchNorm(4)):
        with pytest.raises(InvalidInput) as refused:
            film_ensemble(nn.Sequential(nn.Linear(4, 4), norm, nn.Linear(4, 2)), M)
        assert refused.value.subject == "norm '1'"
    for options in ({"gain": -1.0}, {"gain": float("nan")}, {"init": "ones"}):
        with pytest.raises(InvalidInput):
            film_ensemble(resnet(), M, **options)


# ------------------------------------------------------------------ Masksembles
@pytest.mark.parametrize("features", [10, 16, 48, 257])
@pytest.mark.parametrize(("members", "scale"), [(2, 1.1), (4, 2.0), (4, 3.0), (8, 1.5), (16, 6.0)])
def test_masks(features, members, scale):
    masks = make_masks(features, members, scale, seed=1)
    assert masks.shape == (members, features)
    assert set(masks.flatten().tolist()) <= {0.0, 1.0}
    expected = int(features / (scale * (1 - (1 - 1 / scale) ** members)) + 1e-9)
    assert masks.sum(1).tolist() == [expected] * members
    assert masks.any(0).all()
    assert torch.equal(masks, make_masks(features, members, scale, seed=1))


def test_masks_overlap_as_the_paper_says():
    """Two masks of scale s share 1 / s of their ones, so that their IoU is 1 / (2 s - 1)."""
    for scale in (1.5, 2.0, 4.0):
        shares = []
        for seed in range(40):
            masks = make_masks(200, 4, scale, seed=seed)
            both = masks @ masks.T / masks.sum(1)
            shares.append(both[~torch.eye(4, dtype=torch.bool)].mean())
        assert torch.stack(shares).mean().item() == pytest.approx(1 / scale, rel=0.04)
    assert make_masks(5, 3, 1.0).all()
    assert make_masks(5, 1, 3.0).all()


def test_masksembles_members_are_masked_nets():
    model = resnet()
    ensemble = masksembles(model, M, scale=2.0)
    assert count(ensemble) == count(model)
    expected = []
    for m in range(M):
        net = copy.deepcopy(model)
        for name, layer in ensemble.backbone.named_modules():
            if isinstance(layer, MemberMask):
                weight = net.get_submodule(name.rpartition(".")[0]).weight
                mask = layer.masks[m].view(1, -1, *(1,) * (weight.dim() - 2))
                weight.data.mul_(mask)
        expected.append(net(X))
    torch.testing.assert_close(ensemble(X), torch.stack(expected), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(members_alone(ensemble, X), ensemble(X), rtol=1e-4, atol=1e-5)
    behind = masksembles(model, M, layers="body.0", place="after")
    first = [m for m in behind.modules() if isinstance(m, MemberMask)]
    assert [m.masks.shape for m in first] == [(M, 12)]
    y = F.conv2d(X, model.body[0].weight, padding=1)
    with behind.member(1):
        torch.testing.assert_close(
            behind.backbone.body[0](X), y * first[0].masks[1].view(1, -1, 1, 1)
        )


def test_masksembles_refuses():
    narrow = build_net("resnet", input_shape=(3, 8, 8), n_classes=5, seed=0, feature_dim=16).module
    with pytest.raises(InvalidInput) as error:
        masksembles(narrow, M)
    assert "body.3.conv.0" in error.value.found
    assert masksembles(narrow.eval(), M, layers="head")(X).shape == (M, 6, 5)
    for options in ({"scale": 0.9}, {"scale": 7.0}, {"place": "around"}):
        with pytest.raises(InvalidInput):
            masksembles(resnet(), M, **options)
    with pytest.raises(InvalidInput):
        masksembles(nn.Sequential(nn.Linear(12, 3)), M)
