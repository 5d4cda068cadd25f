"""convert, revert, fold_member: what is kept, what is drawn, what is refused."""

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from temperance.ensemble import (
    SPREAD,
    START,
    MemberLinear,
    SigmaNorm,
    convert,
    fold_member,
    revert,
    sigma_norms,
)
from temperance.errors import InvalidInput, NotFound
from temperance.head import TemperedHead, insert, tempered_heads
from temperance.models import find_head, load_state, read_safetensors, write_safetensors

X = torch.randn(6, 5, generator=torch.Generator().manual_seed(1))


class Net(nn.Module):
    """A way around every norm, BatchNorm and LayerNorm with scales of any sign, and a head."""

    def __init__(self, norm=nn.BatchNorm1d, classes=3):
        super().__init__()
        self.first = nn.Linear(5, 8)
        self.norms = nn.ModuleList([norm(8), nn.LayerNorm(8)])
        self.mid = nn.Linear(8, 8)
        self.fc = nn.Linear(8, classes)

    def forward(self, x):
        x = self.first(x)
        x = x + torch.relu(self.norms[0](x))
        return self.fc(x + self.norms[1](self.mid(x)))


def trained(model):
    """Random scales, negative and zero ones too, and statistics."""
    with torch.no_grad():
        for m in model.modules():
            if isinstance(m, (nn.BatchNorm1d, nn.LayerNorm)):
                m.weight.normal_()
                m.weight[::3] = 0.0
                m.bias.normal_()
            if isinstance(m, nn.BatchNorm1d):
                m.running_mean.normal_()
                m.running_var.uniform_(0.5, 2)
                m.num_batches_tracked.fill_(7)
    return model.eval()


@pytest.mark.parametrize("members", [1, 2, 5])
@pytest.mark.parametrize("example", [None, X])
def test_the_function_is_kept_and_the_model_untouched(
    members, example, picture, assert_unchanged, rng_guard
):
    model = trained(Net())
    if example is None:  # then the structure has to show the head
        model = nn.Sequential(model.first, model.norms[0], model.mid, model.fc).eval()
    before = picture(model)
    with rng_guard():
        ensemble = convert(model, members, spread=0.0, example=example)
        logits = ensemble(X)
    assert logits.shape == (members, 6, 3)
    for z in logits:
        torch.testing.assert_close(z, model(X), atol=1e-5, rtol=1e-5)
    assert_unchanged(model, before)
    assert not set(map(id, ensemble.parameters())) & set(map(id, model.parameters()))


@given(st.lists(st.floats(-1e3, 1e3, width=32), min_size=8, max_size=8))
@settings(max_examples=25, deadline=None)
def test_any_scale_is_kept(scale):
    model = nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 3)).eval()
    with torch.no_grad():
        model[0].weight.copy_(torch.tensor(scale))
        model[0].bias.copy_(torch.tensor(scale[::-1]))
    x = torch.randn(4, 8)
    expected = model(x)
    for z in convert(model, 2, spread=0.0)(x):
        allowed = 1e-5 * float(expected.detach().abs().max())
        torch.testing.assert_close(z, expected, atol=allowed, rtol=1e-5)


@pytest.mark.parametrize("init", ["function", "paper"])
def test_the_spread_is_stated_and_seeded(init, rng_guard):
    model = nn.Sequential(nn.Linear(5, 400), nn.BatchNorm1d(400), nn.Linear(400, 3))
    with rng_guard():
        first = convert(model, 8, init=init)
        same = convert(model, 8, init=init)
        other = convert(model, 8, init=init, seed=1)
        wide = convert(model, 8, init=init, spread=2 * SPREAD)
    gamma = first.backbone[1].gamma.detach()
    assert abs(float(gamma.mean()) - START) < 0.05
    assert abs(float(gamma.std()) - SPREAD) < 0.05
    assert torch.equal(gamma, same.backbone[1].gamma)
    assert not torch.equal(gamma, other.backbone[1].gamma)
    torch.testing.assert_close(wide.backbone[1].gamma.detach() - START, 2 * (gamma - START))
    z = first.eval()(X).detach()
    assert float((z[0] - z[1]).abs().max()) > 1e-3


def test_one_member_is_the_model_with_any_spread():
    model = trained(Net())
    ensemble = convert(model, 1, spread=2.0, example=X)
    torch.testing.assert_close(ensemble(X)[0], model(X))
    torch.testing.assert_close(ensemble.train()(X)[0], model.train()(X))
    assert ensemble.site is None
    ensemble.protocol = "split"
    assert ensemble(X).shape == (1, 6, 3)


def test_members_that_start_equal_stay_equal_and_the_spread_parts_them():
    for spread, parted in ((0.0, False), (SPREAD, True)):
        ensemble = convert(Net(), 3, spread=spread, example=X).train()
        optimizer = torch.optim.SGD(ensemble.parameters(), lr=0.5)
        for _ in range(3):
            optimizer.zero_grad()
            ensemble(X).square().mean().backward()
            optimizer.step()
        gamma = ensemble.backbone.norms[0].gamma.detach()
        assert (float((gamma[0] - gamma[1]).abs().max()) > 1e-3) == parted


def test_the_papers_form():
    model = trained(Net())
    ensemble = convert(model, 4, init="paper", example=X)
    for norm in sigma_norms(ensemble).values():
        assert torch.equal(norm.weight, torch.ones(8))
        assert torch.equal(norm.bias, torch.zeros(8))
        assert [n for n, _ in norm.named_parameters()] == ["gamma"]
    ones = Net()
    ones.load_state_dict(model.state_dict())
    with torch.no_grad():
        for norm, sigma in zip(ones.norms, ensemble.backbone.norms, strict=True):
            norm.weight.copy_(torch.sigmoid(sigma.gamma[2]))
            norm.bias.zero_()
    torch.testing.assert_close(ensemble(X)[2], ones.eval()(X))


def test_heads_are_copied_or_drawn_as_linear_draws_them(rng_guard):
    model = Net(classes=50)
    copied = convert(model, 4, example=X).backbone.fc
    assert all(torch.equal(w, model.fc.weight) for w in copied.weight)
    with rng_guard():
        fresh = convert(model, 4, example=X, heads="fresh").backbone.fc.requires_grad_(False)
    bound = 1 / 8**0.5
    assert float(fresh.weight.abs().max()) <= bound
    assert float(fresh.weight.std()) == pytest.approx(bound / 3**0.5, rel=0.05)
    assert not torch.equal(fresh.weight[0], fresh.weight[1])
    assert not torch.equal(fresh.bias[0], fresh.bias[1])
    again = convert(model, 4, example=X, heads="fresh").backbone.fc
    assert torch.equal(fresh.weight, again.weight)


def test_only_named_norms_become_the_members():
    model = trained(Net())
    ensemble = convert(model, 3, norms=["norms.0"], example=X, spread=0.0)
    assert list(sigma_norms(ensemble)) == ["backbone.norms.0"]
    assert isinstance(ensemble.backbone.norms[1], nn.LayerNorm)
    torch.testing.assert_close(ensemble(X)[1], model(X))


def test_shared_weights_are_there_once_and_members_cost_little():
    model = Net()
    ensemble = convert(model, 4, example=X)
    extra = 4 * (8 + 8) + 3 * sum(p.numel() for p in model.fc.parameters())
    count = sum(p.numel() for p in ensemble.parameters())
    assert count == sum(p.numel() for p in model.parameters()) + extra


# ------------------------------------------------------------------ and back
@pytest.mark.parametrize("init", ["function", "paper"])
def test_revert_gives_each_member_as_a_plain_model(init, differ, rng_guard):
    model = trained(Net())
    ensemble = differ(convert(model, 3, init=init, example=X))
    logits, before = ensemble(X), copy.deepcopy(ensemble.state_dict())
    for m in range(3):
        with rng_guard():
            plain = revert(ensemble, m)
        assert [type(a) for a in plain.modules()] == [type(a) for a in model.modules()]
        assert list(plain.state_dict()) == list(model.state_dict())
        torch.testing.assert_close(plain(X), logits[m], atol=1e-6, rtol=1e-5)
        torch.testing.assert_close(plain.train()(X), ensemble_alone(ensemble, m))
    assert all(torch.equal(before[k], v) for k, v in ensemble.state_dict().items())
    assert not any(m._forward_pre_hooks for m in plain.modules())


def ensemble_alone(ensemble, m):
    alone = copy.deepcopy(ensemble).train()
    with alone.member(m):
        return alone(X)[0]


def test_there_and_back_is_the_same_model():
    model = trained(Net())
    plain = revert(convert(model, 3, spread=0.0, example=X), 1)
    for key, value in model.state_dict().items():
        torch.testing.assert_close(plain.state_dict()[key], value, atol=1e-7, rtol=1e-6)
    assert [p.requires_grad for p in plain.parameters()] == [
        p.requires_grad for p in model.parameters()
    ]


def test_frozen_weights_stay_frozen_and_gamma_trains():
    model = Net()
    model.norms.requires_grad_(False)
    model.first.requires_grad_(False)
    ensemble = convert(model, 2, example=X)
    trained_names = {n for n, p in ensemble.named_parameters() if p.requires_grad}
    assert "backbone.norms.0.gamma" in trained_names
    assert not {"backbone.norms.0.weight", "backbone.first.weight"} & trained_names
    assert not revert(ensemble).norms[0].weight.requires_grad


@pytest.mark.parametrize("norm", ["batch", "layer", "none"])
def test_a_tempered_head_works_in_each_member(norm, differ):
    model = trained(Net())
    insert(model, 4.0, norm=norm, example=X)
    trained(model)
    ensemble = convert(model, 3, spread=0.0, example=X)
    head = ensemble.backbone.fc
    assert isinstance(head, TemperedHead)
    assert isinstance(head.linear, MemberLinear)
    assert isinstance(head.norm, nn.Identity if norm == "none" else SigmaNorm)
    assert float(head.temperature) == 4.0
    for z in ensemble(X):
        torch.testing.assert_close(z, model(X))
    differ(ensemble)
    joint = ensemble(X)
    for m in range(3):
        plain = revert(ensemble, m)
        torch.testing.assert_close(plain(X), joint[m])
        assert float(tempered_heads(plain)["fc"].temperature) == 4.0
        if norm != "layer":
            folded = fold_member(ensemble, m, example=X)
            assert type(folded.fc) is nn.Linear
            torch.testing.assert_close(folded(X), joint[m])
    ensemble.train()(X).sum().backward()
    assert head.linear.weight.grad.shape == (3, 3, 8)


def test_fold_without_a_tempered_head():
    with pytest.raises(NotFound):
        fold_member(convert(Net(), 2, example=X))


# ------------------------------------------------------------------ saved
def test_state_dicts_go_round(tmp_path, differ):
    model = Net()
    ensemble = differ(convert(model, 3, example=X).eval())
    other = convert(model, 3, seed=5, example=X).eval()
    assert not torch.equal(other(X), ensemble(X))
    other.load_state_dict(ensemble.state_dict(), strict=True)
    assert torch.equal(other(X), ensemble(X))
    path = tmp_path / "ensemble.safetensors"
    write_safetensors(path, ensemble.state_dict())
    again = convert(model, 3, seed=6, example=X).eval()
    again.load_state_dict(read_safetensors(path), strict=True)
    assert torch.equal(again(X), ensemble(X))
    third = convert(model, 3, seed=7, example=X).eval()
    load_state(third, read_safetensors(path))
    assert torch.equal(third(X), ensemble(X))


def test_safetensors_of_its_own_finds_no_shared_memory(tmp_path):
    from safetensors.torch import load_model, save_model

    ensemble = convert(Net(), 3, example=X).eval()
    save_model(ensemble, str(tmp_path / "a.safetensors"))
    other = convert(Net(), 3, example=X, seed=3).eval()
    assert load_model(other, str(tmp_path / "a.safetensors")) == (set(), [])
    assert torch.equal(other(X), ensemble(X))
    pointers = [t.untyped_storage().data_ptr() for t in ensemble.state_dict().values()]
    assert len(set(pointers)) == len(pointers)


def test_another_number_of_members_does_not_load(picture, assert_unchanged):
    ensemble = convert(Net(), 3, example=X)
    before = picture(ensemble)
    with pytest.raises(InvalidInput) as error:
        ensemble.load_state_dict(convert(Net(), 4, example=X).state_dict())
    assert "3" in error.value.expected
    assert error.value.found == "4"
    assert_unchanged(ensemble, before)


def test_weights_of_a_plain_model_do_not_load(picture, assert_unchanged):
    ensemble = convert(Net(), 3, example=X)
    before = picture(ensemble)
    plain = {f"backbone.{k}": v for k, v in Net().state_dict().items()}
    with pytest.raises(InvalidInput) as error:
        ensemble.load_state_dict(plain, strict=False)
    assert "plain" in error.value.found
    assert_unchanged(ensemble, before)


def test_a_deep_copy_is_an_ensemble_of_its_own(differ):
    ensemble = convert(Net(), 3, example=X).eval()
    twin = copy.deepcopy(ensemble)
    differ(twin)
    assert not torch.equal(twin(X), ensemble(X))
    with twin.member(1):
        assert ensemble(X).shape == (3, 6, 3)
        assert twin(X).shape == (1, 6, 3)
    layers = [m for m in twin.modules() if isinstance(m, (SigmaNorm, MemberLinear))]
    assert all(m.rows is twin.rows is not ensemble.rows for m in layers)


# ------------------------------------------------------------------ refused
class Tied(Net):
    def __init__(self):
        super().__init__(classes=8)
        self.fc.weight = self.mid.weight


class Uncopied(Net):
    def __deepcopy__(self, memo):
        raise RuntimeError("only leaves")


def scripted():
    return nn.Sequential(torch.jit.trace(nn.Linear(5, 8), X), nn.LayerNorm(8), nn.Linear(8, 3))


def normless():
    return nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 3))


@pytest.mark.filterwarnings("ignore:.*torch.jit:FutureWarning")
@pytest.mark.parametrize(
    ("make", "settings", "error", "subject"),
    [
        (Net, {"members": 0}, InvalidInput, "members"),
        (Net, {"members": True}, InvalidInput, "members"),
        (Net, {"members": 2.0}, InvalidInput, "members"),
        (Net, {"init": "random"}, InvalidInput, "init"),
        (Net, {"heads": "shared"}, InvalidInput, "heads"),
        (Net, {"protocol": "share"}, InvalidInput, "protocol"),
        (Net, {"spread": -1.0}, InvalidInput, "spread"),
        (Net, {"spread": float("nan")}, InvalidInput, "spread"),
        (Net, {"seed": -1}, InvalidInput, "seed"),
        (Net, {"norms": ["nothing"]}, NotFound, "norms 'nothing'"),
        (Net, {"norms": ["norms.1"]}, InvalidInput, "norms that all members share"),
        (lambda: Net(nn.InstanceNorm1d), {}, InvalidInput, "normalization layers"),
        (normless, {}, NotFound, "normalization layers"),
        (Tied, {}, InvalidInput, "output layer 'fc'"),
        (Uncopied, {}, InvalidInput, "model"),
        (lambda: convert(Net(), 2, example=X), {}, InvalidInput, "model"),
        (lambda: convert(Net(), 2, example=X).backbone, {}, InvalidInput, "model"),
        (lambda: torch.compile(Net()), {}, InvalidInput, "model"),
        (lambda: nn.Sequential(torch.compile(Net())), {}, InvalidInput, "model"),
        (lambda: nn.DataParallel(Net()), {}, InvalidInput, "model"),
        (scripted, {}, InvalidInput, "model"),
        (lambda: nn.Linear(5, 3), {}, NotFound, "normalization layers"),
    ],
)
def test_refused_and_unchanged(make, settings, error, subject, picture, assert_unchanged):
    model = make()
    before = picture(model)
    with pytest.raises(error) as caught:
        convert(model, **{"members": 3, "example": X, **settings})
    assert caught.value.subject == subject
    assert caught.value.fix
    assert_unchanged(model, before)


def test_a_model_without_norms_gets_one_with_a_tempered_head():
    """What the refusal advises."""
    model = normless()
    insert(model, 2.0, norm="batch", name="2")
    ensemble = convert(model.eval(), 3, spread=0.0, example=X)
    assert ensemble.site.name == "2"  # what comes before is computed once
    torch.testing.assert_close(ensemble(X)[2], model(X))


def test_other_heads_are_refused():
    conv = nn.Sequential(
        nn.Unflatten(1, (1, 5)), nn.BatchNorm1d(1), nn.Conv1d(1, 3, 5), nn.Flatten()
    )
    with pytest.raises(InvalidInput) as error:
        convert(conv, 2, example=X)
    assert "Conv1d" in error.value.found
    weighted = nn.Sequential(
        nn.LayerNorm(5), nn.utils.parametrizations.weight_norm(nn.Linear(5, 3))
    )
    with pytest.raises(InvalidInput):
        convert(weighted, 2, example=X)


def test_a_convolution_of_size_one_is_a_head(differ):
    model = nn.Sequential(
        nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.AdaptiveAvgPool2d(1), nn.Conv2d(4, 3, 1),
        nn.Flatten(),
    ).eval()  # fmt: skip
    x = torch.randn(5, 2, 6, 6)
    ensemble = convert(model, 3, spread=0.0, example=x)
    torch.testing.assert_close(ensemble(x)[1], model(x))
    differ(ensemble)
    plain = revert(ensemble, 2)
    assert type(plain[3]) is nn.Conv2d
    torch.testing.assert_close(plain(x), ensemble(x)[2])


def test_several_layers_that_feed_the_logits_are_all_the_members(differ):
    class Distilled(Net):
        def __init__(self):
            super().__init__()
            self.other = nn.Linear(8, 3)

        def forward(self, x):
            x = torch.relu(self.norms[1](self.norms[0](self.first(x))))
            return (self.fc(x) + self.other(x)) / 2

    ensemble = differ(convert(Distilled().eval(), 3, example=X))
    heads = [m for m in ensemble.modules() if isinstance(m, MemberLinear)]
    assert len(heads) == 2
    torch.testing.assert_close(revert(ensemble, 1)(X), ensemble(X)[1])


def test_revert_refuses():
    ensemble = convert(Net(), 3, example=X)
    for member in (3, -1, True, 1.0):
        with pytest.raises(InvalidInput):
            revert(ensemble, member)
    with pytest.raises(InvalidInput):
        revert(ensemble.backbone, 0)


def test_the_head_of_a_model_is_found_without_an_example():
    assert find_head(nn.Sequential(nn.LayerNorm(5), nn.Linear(5, 3))).name == "1"
    ensemble = convert(nn.Sequential(nn.LayerNorm(5), nn.Linear(5, 3)), 2)
    assert ensemble.site is None
    ensemble(X)
    assert ensemble.site.inside
    with pytest.raises(NotFound):
        convert(Net(), 2)


@pytest.mark.parametrize("start", [-3.0, 0.0, 4.0])
def test_the_start_is_where_gamma_lies_and_the_function_stays(start):
    model = trained(Net())
    ensemble = convert(model, 3, start=start, spread=0.0, example=X)
    gammas = [n.gamma for n in sigma_norms(ensemble).values()]
    assert all(torch.equal(g, torch.full_like(g, start)) for g in gammas)
    for z in ensemble(X):
        torch.testing.assert_close(z, model(X), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("start", [float("nan"), float("inf"), -21, "2", True, None])
def test_a_start_from_which_no_gate_comes_back_is_refused(start):
    with pytest.raises(InvalidInput) as caught:
        convert(Net(), 3, start=start)
    assert caught.value.subject == "start"
