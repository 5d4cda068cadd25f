"""The ensemble: order of members, protocols, one member at a time, AMP, compile, checkpointing."""

import copy

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from temperance.ensemble import MemberLinear, SigmaNorm, convert
from temperance.ensemble.rows import Layout, Rows
from temperance.errors import InvalidInput
from temperance.head import insert
from temperance.training.nets import build_net

X = torch.randn(12, 3, 8, 8, generator=torch.Generator().manual_seed(1))
Y = torch.arange(12) % 5


def resnet():
    return build_net(
        "resnet", input_shape=(3, 8, 8), n_classes=5, seed=0, feature_dim=16
    ).module.eval()


def loss_of(logits, targets):
    return nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


# ------------------------------------------------------------------ order
def test_members_come_first_then_rows_then_classes(differ):
    """An identity body: the logits of every member at every row are that row."""
    model = nn.Sequential(nn.LayerNorm(4), nn.Linear(4, 4)).eval()
    ensemble = convert(model, 3, spread=0.0)
    with torch.no_grad():
        heads = ensemble.backbone[1]
        for m in range(3):
            heads.weight[m] = torch.eye(4) * (m + 1)
        heads.bias.zero_()
    x = torch.randn(5, 4)
    expected = torch.stack([nn.functional.layer_norm(x, (4,)) * (m + 1) for m in range(3)])
    torch.testing.assert_close(ensemble(x), expected)
    for size in (1, 2):
        torch.testing.assert_close(ensemble(x[:size]), expected[:, :size])
    assert convert(model, 1)(x[:1]).shape == (1, 1, 4)


@pytest.mark.parametrize("shape", [(4,), (7, 4)])
@pytest.mark.parametrize("bias", [True, False])
def test_member_heads_against_a_loop(shape, bias):
    heads = MemberLinear(torch.randn(3, 5, 4), torch.randn(3, 5) if bias else None, Rows(3))
    x = torch.randn(6 * 3, *shape)
    for m in range(3):
        expected = nn.functional.linear(x[m::3], heads.weight[m], heads.bias[m] if bias else None)
        torch.testing.assert_close(heads(x)[m::3], expected)
    heads.layout = Layout(1)
    if len(shape) == 2:
        y = heads(x.transpose(0, 1)).transpose(0, 1)
        torch.testing.assert_close(y[1::3], heads_alone(heads, x[1::3], 1))


def heads_alone(heads, x, m):
    alone = copy.deepcopy(heads)
    alone.rows.active = m
    return alone(x)


# ------------------------------------------------------------------ protocols
@pytest.mark.parametrize("momentum", [0.1, None])
@pytest.mark.parametrize("tempered", [False, True])
def test_repeat_is_one_member_after_the_other(momentum, tempered, differ, rng_guard):
    model = resnet()
    for m in model.modules():
        if isinstance(m, nn.BatchNorm2d):
            m.momentum = momentum
    if tempered:
        insert(model, 3.0, example=X)
    joint = differ(convert(model, 4, example=X)).train()
    serial = copy.deepcopy(joint)
    with rng_guard():
        for _ in range(2):
            logits = joint(X)
            assert logits.shape == (4, 12, 5)
            loss_of(logits, joint.targets(Y)).backward()
            for m, z in enumerate(serial.run_each(X)):
                torch.testing.assert_close(z, logits[m], atol=1e-5, rtol=1e-4)
                (nn.functional.cross_entropy(z, Y) / 4).backward()
    for (name, p), q in zip(joint.named_parameters(), serial.parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad, atol=1e-5, rtol=1e-3, msg=name)
    for (name, p), q in zip(joint.named_buffers(), serial.buffers(), strict=True):
        torch.testing.assert_close(p, q, atol=1e-6, rtol=1e-5, msg=name)
    assert serial.rows.active is None


def test_repeat_makes_the_statistics_of_single_training():
    """One step of the plain model moves its running statistics as it moves each member's."""
    model = resnet()
    ensemble = convert(model, 3, spread=0.0, example=X).train()
    model.train()(X)
    ensemble(X)
    plain = {n: b for n, b in model.named_buffers() if "running" in n}
    assert plain
    for name, value in plain.items():
        for mine in ensemble.backbone.get_buffer(name):
            torch.testing.assert_close(mine, value, atol=1e-5, rtol=1e-5)


def test_split_deals_the_rows_to_the_members(differ):
    ensemble = differ(convert(resnet(), 3, example=X, protocol="split")).train()
    alone = copy.deepcopy(ensemble)
    logits = ensemble(X)
    assert logits.shape == (3, 4, 5)
    assert torch.equal(ensemble.targets(Y)[1], Y[1::3])
    for m in range(3):
        with alone.member(m):
            z = alone(X[m::3])
        torch.testing.assert_close(z[0], logits[m], atol=1e-5, rtol=1e-4)
    for p, q in zip(ensemble.buffers(), alone.buffers(), strict=True):
        torch.testing.assert_close(p, q)
    assert ensemble.eval()(X[:1]).shape == (3, 1, 5)  # every member sees every row
    assert ensemble.targets(Y).shape == (3, 12)
    ensemble.train().protocol = "repeat"
    assert ensemble(X).shape == (3, 12, 5)


@pytest.mark.parametrize("rows", [2, 4, 7])
def test_split_needs_rows_for_every_member(rows):
    ensemble = convert(resnet(), 3, example=X, protocol="split").train()
    before = copy.deepcopy(ensemble.state_dict())
    with pytest.raises(InvalidInput) as error:
        ensemble(X[:rows])
    assert error.value.found == f"{rows} rows"
    with pytest.raises(InvalidInput):
        ensemble.targets(Y[:rows])
    assert all(torch.equal(before[k], v) for k, v in ensemble.state_dict().items())


def test_what_comes_before_the_first_norm_runs_once():
    model = resnet()
    seen = {}
    ensemble = convert(model, 4, example=X)
    body = ensemble.backbone.body
    body[0].register_forward_hook(lambda _m, _a, y: seen.update(stem=len(y)))
    body[2].register_forward_hook(lambda _m, _a, y: seen.update(later=len(y)))
    ensemble(X)
    assert seen == {"stem": 12, "later": 48}
    ensemble.train().protocol = "split"
    ensemble(X)
    assert seen == {"stem": 12, "later": 12}


def test_one_member_alone():
    ensemble = convert(resnet(), 3, example=X)
    joint = ensemble(X)
    with ensemble.member(2):
        assert ensemble.targets(Y).shape == (1, 12)
        torch.testing.assert_close(ensemble(X)[0], joint[2], atol=1e-5, rtol=1e-4)
    with pytest.raises(RuntimeError), ensemble.member(1):
        raise RuntimeError
    assert ensemble.rows.active is None
    for z in ensemble.run_each(X):
        assert z.shape == (12, 5)
        break
    assert ensemble(X).shape == (3, 12, 5)
    for bad in (3, -1, None, True):
        with pytest.raises(InvalidInput), ensemble.member(bad):
            pass


@pytest.mark.parametrize(
    "call",
    [
        lambda e: e(X, labels=Y),
        lambda e: e(),
        lambda e: e(3),
        lambda e: setattr(e, "protocol", "both") or e.train()(X),
    ],
)
def test_bad_calls(call):
    ensemble = convert(resnet(), 3, example=X)
    with pytest.raises(InvalidInput):
        call(ensemble)


# ------------------------------------------------------------------ types, AMP
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_types(dtype):
    model = resnet().to(dtype)
    x = X.to(dtype)
    ensemble = convert(model, 2, spread=0.0, example=x)
    z = ensemble(x)
    assert z.dtype == dtype
    tolerance = 0.05 if dtype == torch.bfloat16 else 1e-6
    torch.testing.assert_close(z[1], model(x), atol=tolerance, rtol=tolerance)
    later = convert(resnet(), 2, spread=0.0, example=X).to(dtype)
    torch.testing.assert_close(later(x)[1], model(x), atol=tolerance, rtol=tolerance)
    later.train()(x).sum().backward()


class Small(nn.Sequential):
    """A norm of each kind."""

    def __init__(self):
        conv = nn.Conv2d(3, 4, 3)
        norms = nn.BatchNorm2d(4), nn.GroupNorm(2, 4)
        end = nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.RMSNorm(4), nn.LayerNorm(4)
        super().__init__(conv, *norms, nn.ReLU(), *end, nn.Linear(4, 5))


@pytest.mark.filterwarnings("ignore:Mismatch dtype")  # of the plain model's RMSNorm
@pytest.mark.parametrize("training", [True, False])
def test_autocast(training):
    model = Small().train(training)
    ensemble = convert(nn.Sequential(*model), 2, spread=0.0).train(training)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        z, expected = ensemble(X), model(X)  # the place is found inside of it
    assert z.dtype == expected.dtype == torch.bfloat16
    torch.testing.assert_close(z[0], expected, atol=0.05, rtol=0.05)
    z.float().square().mean().backward()
    assert all(p.grad.dtype == torch.float32 for p in ensemble.parameters())


def test_moves_like_any_module():
    moved = convert(Small(), 2, example=X).to("meta")
    assert {t.device.type for t in moved.state_dict().values()} == {"meta"}


# ------------------------------------------------------------------ compile, checkpointing, SyncBN
@pytest.mark.parametrize("protocol", ["repeat", "split"])
def test_compiles_as_one_graph(protocol, differ):
    ensemble = differ(convert(Small(), 3, example=X, protocol=protocol))
    eager = copy.deepcopy(ensemble)
    torch._dynamo.reset()
    compiled = torch.compile(ensemble, backend="eager", fullgraph=True)
    for training in (True, False):
        ensemble.train(training)
        eager.train(training)
        torch.testing.assert_close(compiled(X), eager(X))
    for p, q in zip(ensemble.buffers(), eager.buffers(), strict=True):
        torch.testing.assert_close(p, q)


def test_without_a_place_the_first_call_breaks_the_graph():
    ensemble = convert(nn.Sequential(nn.LayerNorm(4), nn.Linear(4, 3)), 3)
    x = torch.randn(5, 4)
    torch._dynamo.reset()
    with pytest.raises(Exception, match="disable"):
        torch.compile(ensemble, backend="eager", fullgraph=True)(x)
    assert ensemble.site is None
    torch._dynamo.reset()
    z = torch.compile(ensemble, backend="eager")(x)
    assert ensemble.site.inside
    torch.testing.assert_close(z, ensemble(x))


class Checkpointed(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = resnet().body
        self.head = nn.Linear(16, 5)
        self.on = True

    def forward(self, x):
        for part in self.body:
            x = checkpoint(part, x, use_reentrant=False) if self.on else part(x)
        return self.head(x)


@pytest.mark.parametrize("protocol", ["repeat", "split"])
def test_gradient_checkpointing(protocol):
    ensemble = convert(Checkpointed(), 3, example=X, protocol=protocol).train()
    plain = copy.deepcopy(ensemble)
    plain.backbone.on = False
    for e in (ensemble, plain):
        loss_of(e(X), e.targets(Y)).backward()
    for (name, p), q in zip(ensemble.named_parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad, atol=1e-6, rtol=1e-4, msg=name)
    ensemble.zero_grad()
    for z in ensemble.run_each(X):
        nn.functional.cross_entropy(z, Y).backward()
    assert all(p.grad is not None for p in ensemble.parameters())


def test_synchronized_norms_are_taken_over(differ):
    model = nn.SyncBatchNorm.convert_sync_batchnorm(resnet())
    ensemble = differ(convert(model, 3, example=X))
    norm = next(m for m in ensemble.modules() if isinstance(m, SigmaNorm))
    assert norm.facts.sync
    plain = differ(convert(resnet(), 3, example=X))
    torch.testing.assert_close(ensemble.train()(X), plain.train()(X))
    torch.testing.assert_close(ensemble.eval()(X), plain.eval()(X))


@pytest.mark.parametrize("expands", [True, False])
def test_two_processes_share_their_statistics(expands, monkeypatch):
    """With a stand-in for torch's function, which needs a GPU: what it is given, and how often."""
    from temperance.ensemble import NormFacts, sigma_norm

    calls = []

    class Stand:
        @staticmethod
        def apply(x, scale, bias, mean, var, eps, step, group, world):
            calls.append((tuple(x.shape), len(scale), group, world))
            return nn.functional.batch_norm(x, mean, var, scale, bias, True, step, eps)

    monkeypatch.setattr(sigma_norm, "_world", lambda facts: 2 if facts.sync else 1)
    monkeypatch.setattr(sigma_norm, "SyncFunction", Stand)
    norms = [
        SigmaNorm(NormFacts("batch", (4,), sync=sync, process_group="all"), 3)
        for sync in (True, False)
    ]
    x = torch.randn(6 if expands else 18, 4, 5)
    for norm in norms:
        norm.expands = expands
    torch.testing.assert_close(norms[0](x), norms[1](x))
    assert calls == [((6, 12, 5), 12, "all", 2)]
    torch.testing.assert_close(norms[0].running_var, norms[1].running_var)
    norms[0].eval()(x)
    assert len(calls) == 1
