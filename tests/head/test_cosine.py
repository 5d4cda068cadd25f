"""Cosine heads: the formula, T = 1 / s, AdaCos in both forms, surgery, and what of it folds."""

import copy
import math
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils.checkpoint import checkpoint

from temperance import Task, suggest
from temperance.ensemble import convert
from temperance.errors import InvalidInput
from temperance.head import (
    CLIP_TEMPERATURE,
    SCALE_BOUNDS,
    CosineLinear,
    HeadOptions,
    LearnedTemperature,
    TemperedHead,
    UnitLength,
    adacos_scale,
    adapt_scale,
    fold,
    insert,
    parameter_groups,
    remove,
    temperatures,
)
from temperance.models import find_head, load_state

X = torch.randn(12, 6, generator=torch.Generator().manual_seed(0))
Y = torch.arange(12) % 5


def net(temperature=0.5, *, classes=5, norm="cosine", bias=True, **options):
    layer = nn.Linear(8, classes, bias=bias)
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), layer)
    insert(model, temperature, norm=norm, example=X, options=HeadOptions(**options))
    return model


def naive_cosines(x, weight):
    return torch.tensor(
        [
            [float(a @ w) / (math.sqrt(a @ a) * math.sqrt(w @ w)) for w in weight.double()]
            for a in x.double()
        ]
    )


# ------------------------------------------------------------------ the formula
def test_logits_are_cosines_over_t():
    model = net(0.125)
    features = model[:2](X).detach()
    expected = naive_cosines(features, model[2].weight.detach()) / 0.125
    torch.testing.assert_close(model(X), expected.float(), rtol=1e-5, atol=1e-5)


@settings(max_examples=25, deadline=None, derandomize=True)
@given(a=st.floats(0.01, 1e4), b=st.floats(0.01, 1e4), seed=st.integers(0, 100))
def test_lengths_of_features_and_weights_play_no_part(a, b, seed):
    torch.manual_seed(seed)
    head, x = TemperedHead(CosineLinear(8, 3), 0.1), torch.randn(4, 8)
    head = TemperedHead(head.linear, 0.1, norm="cosine")
    expected = head(x)
    with torch.no_grad():
        head.weight.mul_(b)
    torch.testing.assert_close(head(a * x), expected, rtol=1e-4, atol=1e-4)


def test_a_row_of_zeros_has_logits_of_zero_and_finite_gradients():
    head, x = TemperedHead(nn.Linear(8, 3), 0.1, norm="cosine"), torch.zeros(2, 8)
    x.requires_grad_()
    logits = head(x)
    assert float(logits.detach().abs().max()) == 0
    logits.sum().backward()
    assert bool(torch.isfinite(x.grad).all())
    assert bool(torch.isfinite(head.weight.grad).all())


def test_a_large_scale_in_bfloat16_keeps_its_digits():
    """The product stays in float32 under autocast: bfloat16 cosines would err by 0.2 here."""
    head, x = TemperedHead(nn.Linear(512, 10), 1 / 64, norm="cosine"), torch.randn(16, 512)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = head(x)
    assert logits.dtype == torch.float32
    torch.testing.assert_close(logits, head(x))


def test_unit_length():
    x = torch.randn(3, 4, 5, dtype=torch.float16)
    unit = UnitLength()(x)
    assert unit.dtype == torch.float16
    torch.testing.assert_close(unit.float().norm(dim=-1), torch.ones(3, 4), rtol=1e-3, atol=1e-3)


# ------------------------------------------------------------------ scales
@pytest.mark.parametrize("classes", [3, 10, 1000])
def test_fixed_scales_come_from_the_rules(classes):
    task = Task(feature_dim=512, n_classes=classes)
    wanted = {
        "adacos": math.sqrt(2) * math.log(classes - 1),
        "cosface-bound": (classes - 1) / classes * math.log((classes - 1) * 0.9 / 0.1),
        "normface": (classes - 1) / classes * math.log((classes - 1) / math.expm1(0.01)),
    }
    for rule, scale in wanted.items():
        model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, classes))
        head = insert(model, suggest(task, rule), example=X)
        assert head.norm_kind == "cosine"
        assert float(head.temperature) == pytest.approx(1 / scale)


def test_clip_is_a_learned_scale():
    model = net(CLIP_TEMPERATURE, learned=LearnedTemperature())
    assert 1 / temperatures(model)["2"] == pytest.approx(14.2857, rel=1e-4)
    with torch.no_grad():
        model[2].log_temperature.fill_(-50.0)
    assert 1 / temperatures(model)["2"] == pytest.approx(100)  # exp(t) is clamped at ln 100
    assert len(parameter_groups(model, 0.1)[0]["params"]) == 2


def naive_adacos(cosines, targets, scale):
    """The paper's equations, row by row."""
    sums, angles = [], []
    for row, own in zip(cosines.tolist(), targets.tolist(), strict=True):
        sums.append(sum(math.exp(scale * c) for j, c in enumerate(row) if j != own))
        angles.append(math.acos(row[own]))
    angles.sort()
    n = len(angles)
    median = (angles[(n - 1) // 2] + angles[n // 2]) / 2
    return math.log(sum(sums) / n) / math.cos(min(math.pi / 4, median))


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    n=st.integers(1, 9),
    classes=st.integers(3, 12),
    scale=st.floats(0.5, 64),
    seed=st.integers(0, 1000),
)
def test_the_running_scale_is_that_of_the_equations(n, classes, scale, seed):
    generator = torch.Generator().manual_seed(seed)
    cosines = torch.rand(n, classes, generator=generator, dtype=torch.float64) * 2 - 1
    targets = torch.randint(0, classes, (n,), generator=generator)
    found = adacos_scale(cosines, targets, scale)
    assert float(found) == pytest.approx(naive_adacos(cosines, targets, scale), rel=1e-9)


def test_a_training_with_the_running_scale_follows_the_equations_step_by_step():
    torch.manual_seed(0)
    start = math.sqrt(2) * math.log(4)
    model = net(1 / start)
    optimizer = torch.optim.SGD(parameter_groups(model, 0.0), lr=0.2)
    scale, seen = start, []
    for _ in range(8):
        cosines = naive_cosines(model[:2](X).detach(), model[2].weight.detach())
        scale = naive_adacos(cosines, Y, scale)
        logits = adapt_scale(model[2], model(X), Y)
        torch.testing.assert_close(logits, (scale * cosines).float(), rtol=1e-4, atol=1e-4)
        optimizer.zero_grad()
        nn.functional.cross_entropy(logits, Y).backward()
        assert 1 / temperatures(model)["2"] == pytest.approx(scale, rel=1e-5)
        optimizer.step()
        seen.append(scale)
    assert len(set(seen)) == 8
    torch.testing.assert_close(
        float(model.state_dict()["2.temperature"]), 1 / scale, rtol=1e-5, atol=0
    )


@pytest.mark.parametrize("compensation", [False, True])
def test_the_gradient_is_that_of_the_logits_it_gives(compensation):
    model = net(0.5, gradient_compensation=compensation)
    features = model[:2](X).detach().requires_grad_()
    logits = adapt_scale(model[2], model[2](features), Y)
    nn.functional.cross_entropy(logits, Y).backward()
    plain = copy.deepcopy(model[2])
    plain.gradient_compensation = False
    again = features.detach().clone().requires_grad_()
    nn.functional.cross_entropy(plain(again), Y).backward()
    factor = float(plain.temperature) if compensation else 1.0
    torch.testing.assert_close(features.grad, factor * again.grad, rtol=1e-4, atol=1e-6)
    assert plain.temperature == model[2].temperature != 0.5


@pytest.mark.parametrize("run", ["compiled", "checkpointed", "two at once"])
def test_t_moves_after_the_backward_pass_and_leaves_its_gradient_alone(run):
    torch._dynamo.reset()
    grads = []
    for special in (False, True):
        torch.manual_seed(0)
        model = net(0.5)
        forward = model
        if special and run == "compiled":
            forward = torch.compile(model, backend="aot_eager_decomp_partition")
        if special and run == "checkpointed":
            forward = partial(checkpoint, model, use_reentrant=False)
        logits = [forward(X), forward(2 * X)] if run == "two at once" else [forward(X)]
        adapted = [adapt_scale(model[2], z, Y) for z in logits]
        assert temperatures(model) == {"2": 0.5}
        if run == "two at once":  # lengths play no part; both are measured at the T they came at
            torch.testing.assert_close(adapted[0], naive_adapted(model, X), rtol=1e-4, atol=1e-4)
            torch.testing.assert_close(
                adapted[1], naive_adapted(model, 2 * X), rtol=1e-4, atol=1e-4
            )
        sum(nn.functional.cross_entropy(z, Y) for z in adapted).backward()
        assert temperatures(model)["2"] != 0.5
        grads.append(model[0].weight.grad)
    torch.testing.assert_close(*grads)


def naive_adapted(model, x):
    cosines = naive_cosines(model[:2](x).detach(), model[2].weight.detach())
    return (naive_adacos(cosines, Y, 2.0) * cosines).float()


def test_without_a_backward_pass_t_moves_at_once():
    model = net(0.5)
    with torch.no_grad():
        logits = adapt_scale(model[2], model(X), Y)
        torch.testing.assert_close(logits, model(X))
    assert temperatures(model)["2"] != 0.5


def test_evaluation_and_ignored_rows_do_not_move_it():
    model = net().eval()
    z = model(X)
    assert adapt_scale(model[2], z, Y) is z
    model.train()
    z = model(X)
    assert adapt_scale(model[2], z, torch.full((12,), -100)) is z
    assert temperatures(model) == {"2": 0.5}
    some = torch.where(Y == 0, 255, Y)
    adapt_scale(model[2], z, some, ignore_index=255).sum().backward()
    cosines = (z.detach() * 0.5).double()[Y != 0]
    expected = naive_adacos(cosines, Y[Y != 0], 2.0)
    assert 1 / temperatures(model)["2"] == pytest.approx(expected, rel=1e-5)


def test_tokens_are_rows():
    head = TemperedHead(CosineLinear(8, 5), 0.5, norm="cosine")
    x, y = torch.randn(2, 3, 8), torch.tensor([[0, 1, 2], [3, -100, 4]])
    logits = adapt_scale(head, head(x), y)
    logits.sum().backward()
    assert logits.shape == (2, 3, 5)
    assert temperatures(head)[""] != 0.5


def test_the_scale_is_kept_in_bounds_and_a_bad_batch_does_not_move_it():
    head = TemperedHead(CosineLinear(2, 3), 0.05, norm="cosine")
    away = torch.tensor([[1.0, 0.99, -1.0]]).T @ torch.tensor([[1.0, 0.0]])
    with torch.no_grad():
        head.weight.copy_(torch.tensor([[1.0, 0.0], [-1.0, 0.0], [-1.0, 0.0]]))
    x = away[:2]
    adapt_scale(head, head(x).detach(), torch.tensor([0, 0]))
    assert 1 / float(head.temperature) == pytest.approx(SCALE_BOUNDS[0], rel=1e-5)
    before = float(head.temperature)
    adapt_scale(head, torch.full((2, 3), math.nan), torch.tensor([0, 1]))
    assert float(head.temperature) == before


@pytest.mark.parametrize(
    ("make", "found"),
    [
        (lambda: nn.Linear(8, 5), "Linear"),
        (lambda: TemperedHead(nn.Linear(8, 5), 1.0), "norm='batch'"),
        (lambda: TemperedHead(CosineLinear(8, 2), 1.0, norm="cosine"), "two classes"),
        (
            lambda: TemperedHead(
                CosineLinear(8, 5), 1.0, norm="cosine", learned=LearnedTemperature()
            ),
            "learned",
        ),
    ],
)
def test_heads_that_adacos_cannot_have(make, found):
    with pytest.raises(InvalidInput) as error:
        adapt_scale(make(), torch.randn(4, 5), torch.zeros(4, dtype=torch.long))
    assert found in error.value.found


@pytest.mark.parametrize(
    "targets",
    [
        torch.zeros(3, dtype=torch.long),
        torch.zeros(12),
        torch.zeros(12, dtype=torch.bool),
        [0] * 12,
        torch.full((12,), 5),
        torch.full((12,), -1),
    ],
)
def test_targets_that_are_refused(targets):
    model = net()
    with pytest.raises(InvalidInput) as error:
        adapt_scale(model[2], model(X), targets)
    assert error.value.subject == "targets"
    assert temperatures(model) == {"2": 0.5}


@pytest.mark.parametrize("logits", [{"logits": X}, torch.zeros(12, 4), torch.zeros(12, 5).long()])
def test_logits_that_are_not_of_the_head(logits):
    model = net()
    with pytest.raises(InvalidInput) as error:
        adapt_scale(model[2], logits, Y)
    assert error.value.subject == "logits"


@pytest.mark.parametrize(
    ("cosines", "targets"),
    [
        (torch.zeros(0, 3), torch.zeros(0, dtype=torch.long)),
        (torch.zeros(3), torch.tensor(0)),
        (torch.zeros(2, 3), torch.tensor([0, 3])),
        (torch.zeros(2, 3), torch.tensor([0, -100])),
    ],
)
def test_no_scale_of_such_rows(cosines, targets):
    with pytest.raises(InvalidInput):
        adacos_scale(cosines, targets, 2.0)


def test_shapes_can_be_had_without_memory():
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 5))
        insert(model, 0.1, norm="cosine")
        assert model(torch.empty(3, 6)).shape == (3, 5)


# ------------------------------------------------------------------ surgery
@pytest.mark.parametrize("bias", [True, False])
def test_remove_gives_the_old_layer_back(bias, rng_guard):
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 5, bias=bias))
    layer, expected = model[2], model(X)
    with rng_guard():
        head = insert(model, 0.1, norm="cosine", example=X)
    assert [n for n, _ in head.named_parameters()] == ["linear.weight"]
    assert head.bias is None
    assert remove(model) is layer is model[2]
    torch.testing.assert_close(model(X), expected, rtol=0, atol=0)


def test_remove_after_moves_and_copies_keeps_the_weights_of_now():
    model = copy.deepcopy(net()).double()
    with torch.no_grad():
        model[2].weight.fill_(2.0)
    layer = remove(model)
    assert type(layer) is nn.Linear
    assert layer.weight.dtype == layer.bias.dtype == torch.float64
    assert float(layer.weight.detach()[0, 0]) == 2.0
    assert model(X.double()).shape == (12, 5)


def test_other_layers_cannot_become_cosine_heads():
    normed = nn.utils.parametrizations.weight_norm(nn.Linear(8, 5))
    for layer in (nn.Conv2d(8, 5, 1), normed):
        with pytest.raises(InvalidInput) as error:
            TemperedHead(layer, 0.1, norm="cosine")
        assert "nn.Linear" in error.value.expected


def test_an_ensemble_refuses_it_with_a_reason():
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 5))
    insert(model, 0.5, norm="cosine", example=X)
    with pytest.raises(InvalidInput) as error:
        convert(model, 2, example=X)
    assert "CosineLinear" in error.value.found


def test_a_checkpoint_shows_that_its_head_is_a_cosine_head():
    model = net(0.1)
    again = net(0.9)
    assert not load_state(again, model.state_dict()).new
    torch.testing.assert_close(again(X), model(X))
    for other in (net(norm="none", bias=False), net(norm="batch")):
        with pytest.raises(InvalidInput) as error:
            load_state(other, model.state_dict())
        assert error.value.found == "norm='cosine'"
        with pytest.raises(InvalidInput):
            load_state(model, other.state_dict())
    with pytest.raises(RuntimeError):
        net(norm="none", bias=False).load_state_dict(model.state_dict())
    plain = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 5))
    report = load_state(model, plain.state_dict())
    assert report.ignored == ("2.linear.bias",)
    assert set(report.new) == {"2.temperature", "2.linear.eps"}


# ------------------------------------------------------------------ fold
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_weights_and_t_fold_and_the_length_of_rows_stays(dtype):
    model = net(1 / 30).to(dtype).eval()
    x = X.to(dtype)
    folded = fold(model, x)
    unit, linear = folded[2]
    assert type(linear) is nn.Linear
    assert linear.bias is None
    assert not list(unit.parameters())
    loose = 0.05 if dtype == torch.bfloat16 else 1e-5
    torch.testing.assert_close(folded(x).float(), model(x).float(), rtol=loose, atol=30 * loose)
    lengths = linear.weight.detach().float().norm(dim=1)
    torch.testing.assert_close(lengths, torch.full((5,), 30.0), rtol=1e-2, atol=0)
    assert linear.fold_report.max_rel_error < 0.05
    found = find_head(folded, x)
    assert (found.name, found.kind, found.in_features) == ("2.linear", "linear", 8)
    assert isinstance(fold(folded), nn.Sequential)


def test_a_learned_scale_folds_with_the_value_in_effect():
    model = net(0.07, learned=LearnedTemperature()).eval()
    model[2].set_temperature(0.02)
    folded = fold(model, X, inplace=True)
    assert folded is model
    torch.testing.assert_close(folded[2][1].weight.norm(dim=1).detach(), torch.full((5,), 50.0))


def test_a_folded_cosine_head_exports():
    model = net(0.1).eval()
    folded = fold(model)
    batch = torch.export.Dim("batch", min=2)
    program = torch.export.export(folded, (X,), dynamic_shapes=({0: batch},))
    torch.testing.assert_close(program.module()(X[:3]), model(X[:3]))


def test_a_norm_in_front_of_a_cosine_is_refused_with_the_reason():
    head = TemperedHead(CosineLinear(8, 3), 0.1, norm="batch")
    head(torch.randn(9, 8))
    with pytest.raises(InvalidInput) as error:
        fold(head.eval())
    assert "each row's" in error.value.found
