"""Folding: the same logits from one linear layer, or a refusal with the reason."""

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.utils import prune

from temperance.errors import InvalidInput, NotFound, TemperanceWarning
from temperance.head import FoldReport, TemperedHead, fold, insert

X = torch.randn(5, 4, generator=torch.Generator().manual_seed(1))


def trained(norm="batch", *, width=8, classes=3, bias=True, temperature=4.0, scale=3.0):
    """A head in evaluation mode with statistics and an affine part as training leaves them."""
    head = TemperedHead(nn.Linear(width, classes, bias=bias), temperature, norm=norm)
    with torch.no_grad():
        if norm.startswith("batch"):
            head.norm.running_mean.normal_(0, scale)
            head.norm.running_var.uniform_(0.1, 5)
            head.norm.num_batches_tracked.fill_(10)
        if norm == "batch":
            head.norm.weight.normal_()  # negative ones, too
            head.norm.bias.normal_()
    return head.eval()


def model_with(head):
    return nn.Sequential(nn.Linear(4, head.in_features), nn.ReLU(), head).eval()


@pytest.mark.parametrize("norm", ["batch", "batch-no-affine", "none"])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("classes", [2, 3, 8])  # 8: square, where other fusers are silently wrong
def test_the_folded_layer_gives_the_same_logits(norm, bias, classes):
    head = trained(norm, bias=bias, classes=classes)
    x = torch.randn(100, 8) * 5
    folded = fold(head)
    assert type(folded) is nn.Linear
    torch.testing.assert_close(folded(x), head(x), rtol=1e-5, atol=1e-5)
    assert (folded.bias is None) == (norm == "none" and not bias)
    assert isinstance(folded.fold_report, FoldReport)
    assert folded.fold_report.max_rel_error < 1e-6
    assert folded.fold_report.dtype == "float32"


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    width=st.integers(1, 40),
    classes=st.integers(2, 12),
    temperature=st.floats(0.01, 512),
    bias=st.booleans(),
    seed=st.integers(0, 10**6),
)
def test_fold_of_any_head_in_double_precision(width, classes, temperature, bias, seed):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        head = trained(width=width, classes=classes, bias=bias, temperature=temperature).double()
        x = torch.randn(20, width, dtype=torch.float64)
    expected = head(x)
    tolerance = 1e-11 * float(expected.detach().abs().max())
    torch.testing.assert_close(fold(head)(x), expected, rtol=0, atol=tolerance)


def test_against_the_formula_written_out():
    head = trained(width=3, classes=2)
    folded = fold(head).requires_grad_(False)
    norm, weight, bias = head.requires_grad_(False).norm, head.weight, head.bias
    for k in range(2):
        total = float(bias[k])
        for j in range(3):
            g = float(norm.weight[j]) / (float(norm.running_var[j]) + norm.eps) ** 0.5
            assert float(folded.weight[k, j]) == pytest.approx(
                float(weight[k, j]) * g / 4, rel=1e-5
            )
            total += float(weight[k, j]) * (float(norm.bias[j]) - g * float(norm.running_mean[j]))
        assert float(folded.bias[k]) == pytest.approx(total / 4, rel=1e-5, abs=1e-6)


def test_a_copy_by_default_in_place_on_demand(rng_guard):
    head = trained()
    model = model_with(head)
    expected = model(X)
    before = copy.deepcopy(model.state_dict())
    with rng_guard():
        folded = fold(model, X)
    assert model[2] is head
    assert all(torch.equal(before[k], v) for k, v in model.state_dict().items())
    assert type(folded[2]) is nn.Linear
    assert folded[0].weight is not model[0].weight
    torch.testing.assert_close(folded(X), expected, rtol=1e-5, atol=1e-5)
    assert folded[2].fold_report.example_rel_error < 1e-6
    assert fold(model, X, inplace=True) is model
    assert type(model[2]) is nn.Linear
    torch.testing.assert_close(model(X), folded(X), rtol=0, atol=0)


def test_folding_twice_changes_nothing_more():
    once = fold(model_with(trained()))
    twice = fold(once, X)
    assert twice is not once
    assert all(torch.equal(twice.state_dict()[k], v) for k, v in once.state_dict().items())
    assert twice[2].fold_report == once[2].fold_report
    assert fold(once, inplace=True) is once


def test_nothing_to_fold():
    for model in (nn.Sequential(nn.Linear(4, 3)), nn.Linear(4, 3)):
        with pytest.raises(NotFound):
            fold(model.eval())


def test_every_head_of_a_model_is_folded():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = trained(width=4), trained(width=4)
            self.again = self.a

        def forward(self, x):
            return self.a(x) + self.b(x) + self.again(x)

    model = Two().eval()
    folded = fold(model, X)
    assert type(folded.a) is type(folded.b) is nn.Linear
    assert folded.again is folded.a
    torch.testing.assert_close(folded(X), model(X), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("part", ["model", "head", "norm"])
def test_training_mode_is_refused(part):
    model = model_with(trained())
    {"model": model, "head": model[2], "norm": model[2].norm}[part].training = True
    with pytest.raises(InvalidInput) as error:
        fold(model)
    assert "eval()" in error.value.fix
    assert type(model[2]) is TemperedHead


def broken(**changes):
    head = trained()
    for name, value in changes.items():
        with torch.no_grad():
            getattr(head.norm, name)[0] = value
    return head


def without_running_statistics():
    head = trained()
    head.norm = nn.BatchNorm1d(8, track_running_stats=False).eval()
    return head


def with_another_norm():
    head = trained()
    head.norm = nn.RMSNorm(8).eval()
    return head


@pytest.mark.parametrize(
    "make",
    [
        lambda: trained("layer"),
        without_running_statistics,
        with_another_norm,
        lambda: broken(running_mean=torch.nan),
        lambda: broken(running_var=torch.inf),
        lambda: broken(weight=torch.nan),
    ],
)
def test_heads_that_cannot_be_folded(make):
    for subject in (make(), model_with(make())):
        before = str(subject)
        with pytest.raises(InvalidInput):
            fold(subject, inplace=True)
        assert str(subject) == before


def test_shared_weights_are_refused_with_the_other_name():
    model = model_with(trained())
    model.add_module("embedding", nn.Linear(8, 3))
    model.embedding.weight = model[2].linear.weight
    with pytest.raises(InvalidInput) as error:
        fold(model)
    assert "embedding.weight" in error.value.found


def test_negative_variances_are_named():
    for value in (-1.0, -1e-7):  # the second is less than eps, and would fold into something
        with pytest.raises(InvalidInput) as error:
            fold(broken(running_var=value))
        assert "varian" in error.value.expected
        assert "negative" in error.value.found


def test_statistics_that_were_never_set_are_reported():
    head = TemperedHead(nn.Linear(8, 3), 4.0).eval()
    with pytest.warns(TemperanceWarning, match="never"):
        folded = fold(head)
    x = torch.randn(5, 8)
    torch.testing.assert_close(folded(x), head(x))


def test_wrapped_models_are_refused():
    with pytest.raises(InvalidInput):
        fold(nn.DataParallel(model_with(trained())))


def test_means_far_above_their_spread_are_caught_by_the_probe():
    head = trained()
    with torch.no_grad():
        head.norm.running_mean.fill_(3e5)
        head.norm.running_var.fill_(1.0)
        head.norm.weight.fill_(1.0)
    model = model_with(head)
    with pytest.raises(InvalidInput) as error:
        fold(model, inplace=True)
    assert "relative error" in error.value.found
    assert model[2] is head
    fold(model.double())  # exact enough in float64


def test_a_hook_that_changes_the_head_is_caught():
    head = trained()
    head.linear.register_forward_hook(lambda _m, _a, out: out + 1)
    with pytest.raises(InvalidInput):
        fold(head)


def test_the_whole_model_is_compared_on_the_example():
    class Peeks(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = trained(width=4)

        def forward(self, x):
            return self.fc(x) if isinstance(self.fc, TemperedHead) else self.fc(x) * 1.01

    for inplace in (True, False):
        model = Peeks().eval()
        with pytest.raises(InvalidInput):
            fold(model, X, inplace=inplace)
        assert isinstance(model.fc, TemperedHead)


def test_a_model_that_fails_without_its_head_is_put_back():
    class Reads(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = trained(width=4)

        def forward(self, x):
            return self.fc(x) * self.fc.temperature

    model = Reads().eval()
    with pytest.raises(AttributeError):
        fold(model, X, inplace=True)
    assert isinstance(model.fc, TemperedHead)


def test_the_example_of_a_model_with_several_outputs():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = trained(width=4), nn.Linear(4, 3)

        def forward(self, x):
            return self.a(x), self.b(x)

    model = Two().eval()
    with pytest.raises(NotFound):
        fold(model, X)
    folded = fold(model, X, output_key=0)
    assert folded.a.fold_report.example_rel_error < 1e-6
    torch.testing.assert_close(folded(X)[0], model(X)[0])


def test_weights_without_values():
    model = nn.Sequential(nn.Linear(4, 3, device="meta"))
    insert(model, 4.0, example=X)
    with pytest.raises(InvalidInput) as error:
        fold(model.eval())
    assert "meta" in error.value.found


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_folds_into_half_within_its_rounding(dtype):
    model = model_with(trained(scale=0.5)).to(dtype)
    x = X.to(dtype)
    folded = fold(model, x)
    assert folded[2].weight.dtype == dtype
    assert model(x).dtype == torch.float32
    assert folded(x).dtype == dtype
    assert folded[2].fold_report.max_rel_error < (5e-3 if dtype == torch.float16 else 5e-2)


def test_values_beyond_half_precision_are_refused():
    head = trained("none", temperature=0.01).half()
    with torch.no_grad():
        head.weight.fill_(6e4)
    with pytest.raises(InvalidInput):
        fold(head)


@pytest.mark.parametrize(
    "hooked",
    [
        nn.utils.spectral_norm,
        lambda linear: prune.l1_unstructured(linear, "weight", 0.5),
    ],
)
def test_weights_that_a_hook_computes_are_refused_until_they_are_plain(hooked):
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), hooked(nn.Linear(8, 3)))
    insert(model, 4.0, norm="none", example=X)
    model.eval()(X)
    with pytest.raises(InvalidInput) as error:
        fold(model, X)
    assert "remove" in error.value.fix
    linear = model[2].linear
    if hooked is nn.utils.spectral_norm:
        nn.utils.remove_spectral_norm(linear)
    else:
        prune.remove(linear, "weight")
    torch.testing.assert_close(fold(model, X)(X), model(X))


def test_dead_features_and_other_eps():
    head = trained()
    with torch.no_grad():
        head.norm.running_var[:3] = 0.0
    head.norm.eps = 1e-3
    x = torch.randn(20, 8) * 0.1 + head.norm.running_mean
    torch.testing.assert_close(fold(head)(x), head(x), rtol=1e-4, atol=1e-4)


def test_a_zero_head_folds_to_zero():
    head = trained()
    nn.init.zeros_(head.linear.weight)
    nn.init.zeros_(head.linear.bias)
    folded = fold(head)
    assert float(folded.weight.detach().abs().max()) == 0.0
    assert folded.fold_report.max_rel_error == 0.0


def test_token_inputs_and_synchronized_batchnorm():
    head = trained()
    tokens = torch.randn(2, 3, 8)
    torch.testing.assert_close(fold(head)(tokens), head(tokens), rtol=1e-5, atol=1e-5)
    model = nn.SyncBatchNorm.convert_sync_batchnorm(model_with(head)).eval()
    torch.testing.assert_close(fold(model, X)(X), model(X), rtol=1e-5, atol=1e-5)


def test_compensated_and_normed_layers_fold_to_the_same_function():
    head = trained()
    head.gradient_compensation = True
    x = torch.randn(5, 8)
    torch.testing.assert_close(fold(head)(x), head(x), rtol=1e-5, atol=1e-5)
    weight_norm = nn.utils.parametrizations.weight_norm(nn.Linear(8, 3)).eval()
    head = TemperedHead(weight_norm, 2.0, norm="none")
    torch.testing.assert_close(fold(head)(x), head(x))


def test_after_training_and_insert():
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    insert(model, 8.0, example=X)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(20):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(X), torch.tensor([0, 1, 2, 0, 1])).backward()
        optimizer.step()
    folded = fold(model.eval(), X)
    torch.testing.assert_close(folded(X[:1]), model(X[:1]), rtol=1e-5, atol=1e-5)
    plain = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    plain.load_state_dict(folded.state_dict())
    torch.testing.assert_close(plain(X), folded(X), rtol=0, atol=0)
