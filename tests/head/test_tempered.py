"""The head itself: formula, shapes, precision, gradients, errors."""

import copy

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from temperance.errors import InvalidInput
from temperance.head import MIN_TEMPERATURE, NORMS, TemperedHead, check_temperature


def head(norm="batch", temperature=4.0, *, width=8, classes=3, bias=True, **more):
    return TemperedHead(nn.Linear(width, classes, bias=bias), temperature, norm=norm, **more)


def with_statistics(module):
    with torch.no_grad():
        module.norm.running_mean.normal_(2, 3)
        module.norm.running_var.uniform_(0.1, 5)
        if module.norm.affine:
            module.norm.weight.normal_()
            module.norm.bias.normal_()
    return module


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("bias", [True, False])
def test_formula(norm, bias):
    module, x = head(norm, bias=bias), torch.randn(10, 8)
    z = {
        "batch": lambda: (x - x.mean(0)) / (x.var(0, correction=0) + 1e-5).sqrt(),
        "batch-no-affine": lambda: (x - x.mean(0)) / (x.var(0, correction=0) + 1e-5).sqrt(),
        "layer": lambda: (
            (x - x.mean(1, keepdim=True)) / (x.var(1, correction=0, keepdim=True) + 1e-5).sqrt()
        ),
        "none": lambda: x,
        "cosine": lambda: x,
    }[norm]()
    expected = (z @ module.weight.T + (module.bias if bias and norm != "cosine" else 0)) / 4.0
    if norm == "cosine":
        expected = torch.cosine_similarity(x[:, None], module.weight[None], dim=2) / 4.0
    torch.testing.assert_close(module(x), expected)
    torch.testing.assert_close(module.normalize(x), z)


def test_evaluation_uses_the_running_statistics():
    module, x = with_statistics(head()).eval(), torch.randn(5, 8)
    norm = module.norm
    z = (x - norm.running_mean) / (norm.running_var + norm.eps).sqrt() * norm.weight + norm.bias
    torch.testing.assert_close(module(x), module.linear(z) / 4.0)


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("shape", [(6, 8), (2, 3, 8), (2, 2, 3, 8)])
def test_the_last_axis_holds_the_features_and_all_others_are_rows(norm, training, shape):
    module, x = head(norm).train(training), torch.randn(shape)
    reference = copy.deepcopy(module)
    torch.testing.assert_close(module(x), reference(x.reshape(-1, 8)).reshape(*shape[:-1], 3))
    for a, b in zip(module.buffers(), reference.buffers(), strict=True):
        torch.testing.assert_close(a, b)


def test_one_vector_and_no_rows_in_evaluation():
    module = with_statistics(head()).eval()
    x = torch.randn(8)
    torch.testing.assert_close(module(x), module(x[None])[0])
    assert module(torch.zeros(0, 8)).shape == (0, 3)
    assert module(x[None]).shape == (1, 3)


@pytest.mark.parametrize("shape", [(1, 8), (8,), (1, 1, 8), (0, 8)])
def test_too_few_rows_for_training_name_the_way_out(shape):
    module = head()
    before = module.norm.running_mean.clone()
    with pytest.raises(InvalidInput) as error:
        module(torch.ones(shape))
    assert "check_batches" in error.value.fix
    torch.testing.assert_close(module.norm.running_mean, before)
    assert head("layer")(torch.ones(shape)).shape == (*shape[:-1], 3)


def test_a_frozen_norm_takes_one_row_while_the_rest_trains():
    module = head().train()
    module.norm.eval()
    assert module(torch.ones(1, 8)).shape == (1, 3)


@pytest.mark.parametrize("shape", [(2, 7), (8, 2), (2, 8, 4, 4)])
def test_features_of_another_width(shape):
    with pytest.raises(InvalidInput) as error:
        head()(torch.ones(shape))
    assert str(list(shape)) in error.value.found


@pytest.mark.parametrize(
    "bad",
    [True, False, 0, 0.0, -1.0, float("nan"), float("inf"), 1e-8, 0.0099, 1e39, "4", None, [4.0],
     np.bool_(True), 1j],
)  # fmt: skip
def test_temperatures_that_are_refused(bad):
    with pytest.raises(InvalidInput) as error:
        head(temperature=bad)
    assert error.value.subject == "temperature"
    module = head()
    with pytest.raises(InvalidInput):
        module.set_temperature(bad)
    assert float(module.temperature) == 4.0


@pytest.mark.parametrize("good", [1, 4.0, np.float32(2), np.int64(3), MIN_TEMPERATURE, 512])
def test_temperatures_that_are_taken(good):
    assert check_temperature(good) == float(good)
    assert float(head(temperature=good).temperature) == pytest.approx(float(good))


@pytest.mark.parametrize("norm", ["Cosine", "bn", "", None, "BATCH"])
def test_other_norms_are_refused(norm):
    with pytest.raises(InvalidInput) as error:
        head(norm)
    assert error.value.subject == "norm"


@pytest.mark.parametrize("momentum", [7.0, 0.0, -0.1, float("nan"), "0.1"])
def test_momentum_of_the_running_statistics(momentum):
    with pytest.raises(InvalidInput) as error:
        head(momentum=momentum)
    assert error.value.subject == "momentum"


def test_one_output_is_refused():
    with pytest.raises(InvalidInput) as error:
        head(classes=1)
    assert "two" in error.value.expected


# ------------------------------------------------------------------ precision
def test_logits_are_raised_before_the_division():
    module = head("none", 0.05, width=2, classes=2).half()
    with torch.no_grad():
        module.weight.copy_(torch.eye(2))
        module.bias.zero_()
    logits = module(torch.tensor([[6e4, 0.0]]).half())
    assert logits.dtype == torch.float32
    torch.testing.assert_close(logits, torch.tensor([[6e4, 0.0]]).half().float() / 0.05)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("norm", NORMS)
def test_the_norm_and_temperature_stay_wide_when_the_model_is_cast(dtype, norm):
    module = head(norm, 0.05)
    if norm.startswith("batch"):
        with_statistics(module)
    kept = {k: v.clone() for k, v in module.state_dict().items() if not k.startswith("linear")}
    model = nn.Sequential(module)
    model[0].norm.train()
    module(torch.randn(4, 8)).sum().backward()
    module.norm.eval()
    if norm.startswith("batch"):
        kept = {k: v.clone() for k, v in module.state_dict().items() if k in kept}
    model.to(dtype)
    assert module.weight.dtype == dtype
    for name, value in kept.items():
        torch.testing.assert_close(module.state_dict()[name], value, rtol=0, atol=0)
    for parameter in module.norm.parameters():
        assert parameter.dtype == torch.float32
        assert parameter.grad.dtype == torch.float32
    model.train()
    logits = model(torch.randn(4, 8).to(dtype))
    assert logits.dtype == torch.float32
    logits.sum().backward()
    assert module.weight.grad.dtype == dtype
    assert len({id(p) for p in model.parameters()}) == len(list(model.parameters()))


@pytest.mark.parametrize("features", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("weights", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("norm", NORMS)
def test_features_and_weights_of_different_types(features, weights, norm):
    module = head(norm).to(weights)
    x = torch.randn(6, 8, dtype=torch.float64).to(features)
    logits = module(x)
    assert logits.dtype == (torch.float64 if weights == torch.float64 else torch.float32)
    reference = copy.deepcopy(module).double()(x.double())
    loose = torch.bfloat16 in (features, weights) or features == torch.float16
    torch.testing.assert_close(logits.double(), reference, rtol=2e-2, atol=2e-2 if loose else 1e-6)


@pytest.mark.parametrize("norm", NORMS)
def test_autocast(norm):
    module, x = head(norm), torch.randn(6, 8)
    plain = copy.deepcopy(module)(x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = module(x)
        from_half = module(x.bfloat16())
    assert logits.dtype == from_half.dtype == torch.float32
    torch.testing.assert_close(logits, plain, rtol=2e-2, atol=2e-2)


def test_a_double_head_is_double_throughout():
    module = TemperedHead(nn.Linear(8, 3).double(), 4.0)
    assert module.norm.running_mean.dtype == module.norm.weight.dtype == torch.float64
    assert module(torch.randn(4, 8)).dtype == torch.float64


# ------------------------------------------------------------------ gradients
@settings(max_examples=20, deadline=None, derandomize=True)
@given(temperature=st.floats(0.05, 500), seed=st.integers(0, 1000))
def test_compensation_changes_the_gradient_by_exactly_t_and_no_value(temperature, seed):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(6, 8, generator=generator)
    y = torch.randint(0, 3, (6,), generator=generator)
    linear = nn.Linear(8, 3)
    results = []
    for compensation in (False, True):
        module = TemperedHead(
            copy.deepcopy(linear), temperature, gradient_compensation=compensation
        )
        loss = nn.functional.cross_entropy(module(x), y)
        loss.backward()
        results.append((loss.detach(), module.weight.grad, module.norm.weight.grad))
    (loss, *plain), (compensated_loss, *compensated) = results
    assert torch.equal(loss, compensated_loss)
    factor = torch.tensor(temperature).float()
    for a, b in zip(plain, compensated, strict=True):
        torch.testing.assert_close(a * factor, b, rtol=1e-4, atol=1e-6)


def test_compensation_is_off_by_default_and_can_be_switched():
    module = head("none")
    assert module.gradient_compensation is False
    x = torch.ones(2, 8)
    module(x).sum().backward()
    first = module.bias.grad.clone()
    module.zero_grad()
    module.gradient_compensation = True
    module(x).sum().backward()
    torch.testing.assert_close(module.bias.grad, 4 * first)


def test_compensation_under_vmap_of_gradients():
    module = head("none", gradient_compensation=True)
    parameters = dict(module.named_parameters())
    buffers = dict(module.named_buffers())

    def loss(parameters, x):
        return torch.func.functional_call(module, {**parameters, **buffers}, (x,)).square().sum()

    xs = torch.randn(5, 2, 8)
    found = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(parameters, xs)
    for i, x in enumerate(xs):
        one = torch.func.grad(loss)(parameters, x)
        torch.testing.assert_close(found["linear.weight"][i], one["linear.weight"])


# ------------------------------------------------------------------ a good module
def test_reads_like_the_linear_layer():
    module = head()
    assert (module.in_features, module.out_features) == (8, 3)
    assert module.weight is module.linear.weight
    assert module.bias is module.linear.bias
    assert head(bias=False).bias is None
    assert module(input=torch.randn(4, 8)).shape == (4, 3)
    assert "temperature=4" in repr(module)
    assert [n for n, _ in module.named_parameters()] == [
        "norm.weight", "norm.bias", "linear.weight", "linear.bias",
    ]  # fmt: skip


@pytest.mark.parametrize("norm", NORMS)
def test_state_dict_and_deepcopy(norm):
    module = head(norm, 0.3)
    module(torch.randn(9, 8))
    other = head(norm, 2.0)
    other.load_state_dict(module.state_dict())
    copied = copy.deepcopy(module)
    x = torch.randn(4, 8)
    expected = module.eval()(x)
    torch.testing.assert_close(other.eval()(x), expected, rtol=0, atol=0)
    torch.testing.assert_close(copied.eval()(x), expected, rtol=0, atol=0)
    assert copied.linear is not module.linear
    assert "temperature" in module.state_dict()


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("theirs", ["batch", "batch-no-affine", "layer", "none"])
@pytest.mark.parametrize("ours", ["batch", "batch-no-affine", "layer", "none"])
def test_torch_does_not_load_a_head_with_another_norm(theirs, ours, strict):
    model, state = nn.Sequential(head(ours)), nn.Sequential(head(theirs)).state_dict()
    if ours == theirs:
        model.load_state_dict(state, strict=strict)
        return
    with pytest.raises(RuntimeError, match=f"0 has norm='{ours}'"):
        model.load_state_dict(state, strict=strict)


def test_torch_loads_parameters_alone():
    source, target = with_statistics(head()), head()
    target.load_state_dict(dict(source.named_parameters()), strict=False)
    torch.testing.assert_close(target.norm.bias, source.norm.bias)


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("compensation", [False, True])
def test_compiles_without_a_break(norm, compensation):
    torch._dynamo.reset()  # the cases differ only in the class of the norm, and that is recompiled
    module, x = head(norm, gradient_compensation=compensation), torch.randn(6, 8)
    compiled = torch.compile(copy.deepcopy(module), fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x), module(x))
    compiled(x).sum().backward()
    assert compiled.linear.weight.grad is not None
    torch.testing.assert_close(compiled.eval()(x), compiled._orig_mod(x))


def test_sync_batchnorm_conversion_keeps_the_function():
    model = nn.Sequential(with_statistics(head())).eval()
    x = torch.randn(4, 8)
    expected = model(x)
    converted = nn.SyncBatchNorm.convert_sync_batchnorm(model)
    assert isinstance(converted[0].norm, nn.SyncBatchNorm)
    torch.testing.assert_close(converted.eval()(x), expected)


def test_follows_the_mode_of_the_layer():
    linear = nn.Linear(8, 3).eval()
    module = TemperedHead(linear, 2.0)
    assert not any(m.training for m in module.modules())
    assert linear is module.linear
