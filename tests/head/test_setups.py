"""Around a tempered head: AMP, compile, DataParallel, accumulation, gradient checkpointing."""

import copy

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from temperance import check_batches, fold, insert, set_norm_statistics
from temperance.errors import InvalidInput, NotFound
from temperance.head import accumulate_statistics, update_once
from temperance.head.running import momentum_of, running_norms

X = torch.randn(32, 3, 8, 8, generator=torch.Generator().manual_seed(1))
Y = torch.arange(32) % 5


def build(temperature=4.0, **settings):
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(8, 5),
    )  # fmt: skip
    insert(model, temperature, **settings)
    return model


def statistics(model):
    return {n: b.clone() for n, b in model.named_buffers() if "temperature" not in n}


def largest_gap(found, expected):
    return max(float((found[n].double() - expected[n].double()).abs().max()) for n in expected)


# ------------------------------------------------------------------ AMP
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("temperature", [0.05, 4.0, 100.0])
@pytest.mark.parametrize("norm", ["batch", "layer", "none"])
def test_autocast_with_and_without_a_scaler(dtype, temperature, norm):
    """Loss and logits in float32, statistics and weights finite, close to full precision."""
    model = build(temperature, norm=norm)
    plain = copy.deepcopy(model)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, enabled=dtype == torch.float16)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for _ in range(3):
        with torch.autocast("cpu", dtype=dtype):
            logits = model(X)
            loss = nn.functional.cross_entropy(logits, Y)
        assert logits.dtype == loss.dtype == torch.float32
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    assert all(t.isfinite().all() for t in model.state_dict().values())
    assert all(b.dtype == torch.float32 for n, b in model.named_buffers() if "running" in n)
    for _ in range(3):
        plain(X)
    gap = largest_gap(statistics(model), statistics(plain))
    assert gap < 0.02  # the statistics are those of full precision, up to the rounding of features


def test_logits_that_half_precision_cannot_hold():
    model = build(0.05, norm="none")
    with torch.no_grad():
        model[5].linear.weight.mul_(1e5)
    with torch.autocast("cpu", dtype=torch.float16):
        logits = model(X)
        loss = nn.functional.cross_entropy(logits, Y)
    assert float(logits.detach().abs().max()) > 65504
    assert loss.isfinite()


# ------------------------------------------------------------------ compile
@pytest.mark.parametrize("training", [True, False])
def test_a_compiled_model_is_one_graph_and_computes_the_same(training):
    torch._dynamo.reset()
    model = build().train(training)
    eager = copy.deepcopy(model)
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    for part in (compiled, eager):
        nn.functional.cross_entropy(part(X), Y).backward()
    for p, q in zip(model.parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad)
    assert largest_gap(statistics(model), statistics(eager)) < 1e-6
    torch._dynamo.reset()
    assert torch._dynamo.explain(model)(X).graph_break_count == 0


def test_tools_see_through_wrappers_and_fold_says_what_to_do():
    torch._dynamo.reset()
    model = build()
    wrapped = nn.DataParallel(torch.compile(model, backend="eager"))
    set_norm_statistics(wrapped, [X])
    with pytest.raises(InvalidInput) as error:
        fold(wrapped.eval())
    assert "wraps" in error.value.fix
    torch.testing.assert_close(fold(model, X)(X), wrapped(X), rtol=1e-4, atol=1e-5)


# ------------------------------------------------------------------ DataParallel
def replica_of(model):
    """What DataParallel makes for each device: no parameters, only attributes, shared buffers."""
    copies = {m: m._replicate_for_data_parallel() for m in model.modules()}
    for module, replica in copies.items():
        for name, child in module._modules.items():
            replica._modules[name] = copies[child]
            setattr(replica, name, copies[child])
        for name, parameter in module._parameters.items():
            setattr(replica, name, None if parameter is None else parameter.clone())
        for name, buffer in module._buffers.items():
            setattr(replica, name, buffer)
    return copies[model]


@pytest.mark.parametrize("norm", ["batch", "batch-no-affine", "layer", "none"])
@pytest.mark.parametrize("compensation", [False, True])
def test_replicas_of_data_parallel(norm, compensation):
    """Two chunks as two devices would have them: the same logits, gradients to the one model."""
    from temperance.head import HeadOptions

    options = HeadOptions(gradient_compensation=compensation)
    model = build(norm=norm, options=options).eval()
    with torch.no_grad():
        expected = model(X)
    replicas = [replica_of(model) for _ in range(2)]
    z = torch.cat([r(part) for r, part in zip(replicas, X.chunk(2), strict=True)])
    torch.testing.assert_close(z, expected)
    z.sum().backward()
    assert all(p.grad is not None for p in model.parameters())
    model.train()
    replica_of(model)(X[:16])
    if norm.startswith("batch"):  # the first device's chunk writes into the model's own buffers
        assert int(model[5].norm.num_batches_tracked) == 1


def test_the_last_chunk_of_one_row_is_foreseen():
    plan = check_batches(65, 16, replicas=2)
    assert not plan.safe
    with pytest.raises(InvalidInput):
        replica_of(build().train())(X[:1])


# ------------------------------------------------------------------ accumulation
def moved(model, batches, accumulation=None):
    if accumulation:
        accumulate_statistics(model, accumulation)
    model.train()
    with torch.no_grad():
        for x in batches:
            model(x)
    return model


def test_eight_small_batches_weigh_as_much_as_one_large():
    """The smallest input of the trap: one batch as eight."""
    norm = nn.Sequential(nn.BatchNorm1d(4))
    x = torch.randn(64, 4) + torch.arange(64).view(-1, 1)
    whole = moved(copy.deepcopy(norm), [x])
    naive = moved(copy.deepcopy(norm), x.split(8))
    rule = moved(copy.deepcopy(norm), x.split(8), 8)
    expected = whole[0].running_mean
    assert float((naive[0].running_mean / expected).mean()) > 5  # 0.57 in the place of 0.1
    torch.testing.assert_close(rule[0].running_mean, expected, rtol=0.06, atol=0)


def test_the_running_mean_follows_the_large_batches_over_many_steps():
    generator = torch.Generator().manual_seed(5)
    steps = [torch.randn(64, 4, generator=generator) * 3 + 50 for _ in range(60)]
    norm = nn.Sequential(nn.BatchNorm1d(4))
    whole = moved(copy.deepcopy(norm), steps)[0]
    rule = moved(copy.deepcopy(norm), [p for x in steps for p in x.split(8)], 8)[0]
    naive = moved(copy.deepcopy(norm), [p for x in steps for p in x.split(8)])[0]
    gap = (rule.running_mean - whole.running_mean).abs().max()
    assert gap < 0.1
    assert gap < 0.3 * (naive.running_mean - whole.running_mean).abs().max()
    torch.testing.assert_close(rule.running_var, whole.running_var, rtol=0.15, atol=0)


def test_the_formula_and_the_way_back():
    model = build()
    model[1].momentum, model.extra = 0.01, nn.BatchNorm1d(3, momentum=None)
    found = accumulate_statistics(model, 8)
    assert found["1"] == pytest.approx(1 - 0.99 ** (1 / 8))
    assert found["5.norm"] == pytest.approx(1 - 0.9 ** (1 / 8))
    assert found["extra"] is None
    assert accumulate_statistics(model, 4)["1"] == pytest.approx(1 - 0.99 ** (1 / 4))  # not of 8
    copied = copy.deepcopy(model)
    assert accumulate_statistics(copied, 1) == {"1": 0.01, "5.norm": 0.1, "extra": None}
    assert {n: momentum_of(m) for n, m in running_norms(copied).items()}["1"] == 0.01


def test_a_momentum_that_was_set_since_counts():
    model = build()
    accumulate_statistics(model, 8)
    model[1].momentum = 0.02
    found = accumulate_statistics(model, 4)
    assert found["1"] == pytest.approx(1 - 0.98 ** (1 / 4))
    assert found["5.norm"] == pytest.approx(1 - 0.9 ** (1 / 4))
    assert accumulate_statistics(model, 1) == {"1": 0.02, "5.norm": 0.1}


@pytest.mark.parametrize("bad", [0, -1, 1.5, True, None, "8"])
def test_accumulations_that_are_refused(bad):
    model = build()
    with pytest.raises(InvalidInput) as error:
        accumulate_statistics(model, bad)
    assert error.value.subject == "accumulation"
    with pytest.raises(NotFound):
        accumulate_statistics(nn.Linear(2, 2), 4)


# ------------------------------------------------------------------ gradient checkpointing
class Checkpointed(nn.Module):
    def __init__(self, mode=None):
        super().__init__()
        self.inner, self.mode = build(), mode

    def forward(self, x):
        if self.mode is None:
            return self.inner(x)
        return checkpoint(self.inner, x, use_reentrant=self.mode)


def step(model):
    model.train()
    nn.functional.cross_entropy(model(X.clone().requires_grad_()), Y).backward()
    return model


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("wrap", [lambda m: m, copy.deepcopy], ids=["itself", "a copy"])
def test_a_batch_that_is_computed_twice_counts_once(reentrant, wrap):
    plain, model = Checkpointed(), Checkpointed(reentrant)
    model.load_state_dict(plain.state_dict())
    twice = step(copy.deepcopy(model))
    assert int(twice.inner[5].norm.num_batches_tracked) == 2  # so the trap is there
    assert update_once(model) == update_once(model) == ("inner.1", "inner.5.norm")
    model = wrap(model)
    for _ in range(2):
        step(model), step(plain)
    assert largest_gap(statistics(model), statistics(plain)) == 0.0
    for p, q in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad, rtol=0, atol=0)


def test_checkpointing_as_timm_switches_it_on():
    timm = pytest.importorskip("timm")
    plain = timm.create_model("resnet10t", num_classes=5)
    insert(plain, 4.0)
    model = copy.deepcopy(plain)
    model.set_grad_checkpointing(True)
    assert len(update_once(model)) == len(running_norms(plain))
    x = torch.randn(4, 3, 32, 32)
    for part in (model, plain):
        nn.functional.cross_entropy(part.train()(x), Y[:4]).backward()
    assert largest_gap(statistics(model), statistics(plain)) == 0.0


def test_an_error_in_the_second_run_leaves_the_buffers_in_place():
    class Breaks(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.runs = nn.BatchNorm1d(4), 0

        def forward(self, x):
            self.runs += 1
            if self.runs == 2:
                self.norm(x[:1])  # one row in training
            return self.norm(x)

    model = Breaks()
    update_once(model)
    buffers = dict(model.norm.named_buffers())
    y = checkpoint(model, torch.randn(8, 4, requires_grad=True), use_reentrant=False)
    with pytest.raises(ValueError, match="more than 1 value"):
        y.sum().backward()
    assert all(b is buffers[n] for n, b in model.norm.named_buffers())
    assert int(model.norm.num_batches_tracked) == 1


def test_forward_passes_outside_of_backward_count_as_ever():
    model = build()
    plain = copy.deepcopy(model)
    update_once(model)
    step(model), step(plain), model(X), plain(X)
    assert largest_gap(statistics(model), statistics(plain)) == 0.0
    assert set(model.state_dict()) == set(plain.state_dict())
    with pytest.raises(NotFound):
        update_once(nn.Linear(2, 2))


def test_compiled_and_checkpointed_counts_once_in_any_case():
    for guarded in (False, True):
        torch._dynamo.reset()
        model = Checkpointed(False)
        if guarded:
            update_once(model)
        compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
        nn.functional.cross_entropy(compiled(X), Y).backward()
        assert int(model.inner[5].norm.num_batches_tracked) == 1
