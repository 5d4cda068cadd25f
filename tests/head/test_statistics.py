"""Statistics of the training data for a new BatchNorm: exact, and the function kept on demand."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from temperance.errors import InvalidInput, NotFound, TemperanceWarning
from temperance.head import TemperedHead, fold, insert, set_norm_statistics

WIDTH = 6


def identity_model(temperature=4.0, norm="batch", width=WIDTH):
    """A model whose features are its inputs."""
    model = nn.Sequential(nn.Identity(), nn.Linear(width, 3))
    return model, insert(model, temperature, norm=norm)


def features(n=65, mean=50.0, std=10.0):
    return torch.randn(n, WIDTH, generator=torch.Generator().manual_seed(3)) * std + mean


def batches(x, size=8):
    return list(x.split(size))


def test_mean_and_variance_over_all_rows():
    x = features()  # 65 rows in batches of 8: the last has one
    model, head = identity_model()
    stats = set_norm_statistics(model, batches(x))
    exact = x.double().numpy()
    np.testing.assert_allclose(head.norm.running_mean.numpy(), exact.mean(0), rtol=1e-6)
    np.testing.assert_allclose(head.norm.running_var.numpy(), exact.var(0, ddof=1), rtol=1e-5)
    assert (stats.n_rows, stats.n_batches, stats.dead) == (65, 9, ())
    assert stats.mean_shift == pytest.approx((exact.mean(0) / exact.std(0, ddof=1)).max(), rel=1e-6)
    assert stats.variance_ratio == pytest.approx(exact.var(0, ddof=1).max(), rel=1e-6)
    again = set_norm_statistics(model, batches(x))
    assert again.mean_shift < 1e-5
    assert again.variance_ratio < 1 + 1e-5
    z = head.eval().normalize(x)
    torch.testing.assert_close(z.mean(0), torch.zeros(WIDTH), atol=1e-5, rtol=0)
    torch.testing.assert_close(z.std(0), torch.ones(WIDTH), atol=1e-5, rtol=0)


@settings(max_examples=30, deadline=None, derandomize=True)
@given(
    sizes=st.lists(st.integers(1, 9), min_size=1, max_size=8),
    offset=st.sampled_from([0.0, 1e3, -1e6]),
    seed=st.integers(0, 99),
)
def test_any_cut_into_batches_gives_the_same_figures(sizes, offset, seed):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(sum(sizes) + 2, WIDTH, generator=generator).double() + offset
    model = nn.Sequential(nn.Linear(WIDTH, 3).double())
    head = insert(model, 2.0)
    set_norm_statistics(model, [x[:2], *x[2:].split(sizes)])
    torch.testing.assert_close(head.norm.running_mean, x.mean(0), rtol=1e-12, atol=1e-9)
    torch.testing.assert_close(head.norm.running_var, x.var(0), rtol=1e-6, atol=1e-9)


class Wide(nn.Module):
    """Takes its input by name; holds a dropout and a BatchNorm that must stay as they are."""

    def __init__(self):
        super().__init__()
        self.norm, self.drop, self.fc = nn.BatchNorm1d(WIDTH), nn.Dropout(0.5), nn.Linear(WIDTH, 3)

    def forward(self, pixel_values):
        return {"logits": self.fc(self.drop(self.norm(pixel_values)))}


@pytest.mark.parametrize(
    "form",
    [
        lambda x, y: x,
        lambda x, y: (x, y),
        lambda x, y: [x],
        lambda x, y: {"pixel_values": x, "labels": y},
        lambda x, y: {"image": x, "label": y},
    ],
)
def test_any_form_of_batch_and_the_rest_of_the_model_untouched(form, rng_guard):
    x, y = features(20), torch.zeros(20, dtype=torch.long)
    model = Wide()
    model.drop.eval()
    head = insert(model, 4.0, example=x)
    modes = [m.training for m in model.modules()]
    others = {k: v.clone() for k, v in model.state_dict().items() if not k.startswith("fc.norm")}
    with rng_guard():
        set_norm_statistics(
            model, [form(a, b) for a, b in zip(x.split(7), y.split(7), strict=True)]
        )
    assert [m.training for m in model.modules()] == modes
    assert all(torch.equal(v, model.state_dict()[k]) for k, v in others.items())
    expected = x.mean(0) / (1 + model.norm.eps) ** 0.5  # its own BatchNorm is at its start
    torch.testing.assert_close(head.norm.running_mean, expected)
    assert not head._forward_pre_hooks


def test_a_shuffling_loader_leaves_the_random_state(rng_guard):
    loader = DataLoader(TensorDataset(features(), torch.zeros(65)), batch_size=8, shuffle=True)
    model, head = identity_model()
    with rng_guard():
        set_norm_statistics(model, loader)
    torch.testing.assert_close(head.norm.running_mean, features().mean(0))


def test_tokens_are_rows():
    x = torch.randn(4, 5, WIDTH)
    model, head = identity_model()
    assert set_norm_statistics(model, [x]).n_rows == 20
    torch.testing.assert_close(head.norm.running_var, x.reshape(-1, WIDTH).var(0))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_features(dtype):
    model, head = identity_model()
    model.to(dtype)
    x = features().to(dtype)
    set_norm_statistics(model, batches(x))
    torch.testing.assert_close(head.norm.running_mean, x.float().mean(0))
    assert head.norm.running_mean.dtype == torch.float32


# ------------------------------------------------------------------ dead features
def dead_data():
    x = features(64, mean=1.0, std=1.0)
    x[:, 1], x[:, 4] = 0.0, 7.3
    return x


def test_dead_features_are_named_and_not_blown_up_not_even_after_training():
    x = dead_data()
    model, head = identity_model()
    with pytest.warns(TemperanceWarning, match="1, 4"):
        stats = set_norm_statistics(model, batches(x))
    assert stats.dead == (1, 4)
    awake = x.mean(0).clone()
    awake[1] = 1.0  # it was 0 in every row; unprotected this becomes 316
    limit = 1.01 * float(head.eval().normalize(x).detach().abs().max())
    assert float(head.normalize(awake).detach().abs().max()) < limit
    head.train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(200):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), torch.arange(64) % 3).backward()
        optimizer.step()
    assert float(head.norm.running_var[1]) < 1e-6  # training takes the variance back
    assert float(head.norm.weight[1].detach().abs()) < 1e-4  # but the scale stays away
    assert abs(float((head.eval().normalize(awake) - head.norm.bias)[1].detach())) < 1e-3


def test_dead_features_without_an_affine_part_get_variance_one():
    model, head = identity_model(norm="batch-no-affine")
    with pytest.warns(TemperanceWarning):
        set_norm_statistics(model, batches(dead_data()))
    assert head.norm.running_var[[1, 4]].tolist() == [1.0, 1.0]
    awake = dead_data().mean(0)
    awake[1] = 1.0
    assert float(head.eval().normalize(awake)[1]) == pytest.approx(1.0, rel=1e-4)


def test_small_and_shifted_features_are_not_dead():
    x = features(64, mean=0.0, std=1e-4)
    x[:, 0] = features(64, mean=1000.0, std=0.1)[:, 0]
    model, _ = identity_model()
    assert set_norm_statistics(model, batches(x)).dead == ()


@pytest.mark.parametrize(
    ("dtype", "low", "high"),
    [(torch.bfloat16, 10.0, 10.0625), (torch.float32, 1000.0, 1000.0001)],
)
def test_two_neighbouring_values_are_a_signal(dtype, low, high):
    x = torch.tensor([low, high], dtype=dtype).repeat(50).unsqueeze(1).repeat(1, WIDTH)
    model, head = identity_model()
    assert set_norm_statistics(model.to(dtype), batches(x)).dead == ()
    torch.testing.assert_close(head.norm.running_var, x.double().var(0).float())
    assert bool((head.norm.weight == 1).all())


def test_constant_over_all_batches_is_what_counts():
    x = features(64)
    x[:, 2] = 0.1  # not exact in binary: mean and variance of it are rounded
    x[:8, 3], x[8:, 3] = 5.0, 6.0  # constant in every batch, but not over them
    model, _ = identity_model()
    with pytest.warns(TemperanceWarning):
        assert set_norm_statistics(model, batches(x)).dead == (2,)


# ------------------------------------------------------------------ keeping the function
@pytest.mark.parametrize("temperature", [1.0, 0.3, 16.0])
@pytest.mark.parametrize("dead", [False, True])
def test_keep_function_keeps_the_logits_of_the_pretrained_head(temperature, dead):
    model = nn.Sequential(nn.Identity(), nn.Linear(WIDTH, 3)).eval()
    x = dead_data() if dead else features()
    elsewhere = torch.randn(20, WIDTH) * 10
    expected, expected_elsewhere = model(x), model(elsewhere)
    head = insert(model, temperature)
    if dead:
        with pytest.warns(TemperanceWarning):
            set_norm_statistics(model, batches(x), keep_function=True)
    else:
        set_norm_statistics(model, batches(x), keep_function=True)
    torch.testing.assert_close(model(x), expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(model(elsewhere), expected_elsewhere, rtol=1e-4, atol=1e-4)
    assert float(head.temperature) == pytest.approx(temperature)
    torch.testing.assert_close(fold(model)(x), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("weight", "bias"), [(200.0, 0.0), (0.1, 200.0)])
def test_keep_function_refuses_weights_that_overflow(weight, bias):
    model = nn.Sequential(nn.Identity(), nn.Linear(WIDTH, 3))
    nn.init.constant_(model[1].weight, weight)
    nn.init.constant_(model[1].bias, bias)
    model.half()
    insert(model, 512.0)  # 200 * 512 is above 65504
    before = {k: v.clone() for k, v in model.state_dict().items()}
    with pytest.raises(InvalidInput) as error:
        set_norm_statistics(model, batches(features().half()), keep_function=True)
    assert "float16" in error.value.expected
    assert all(torch.equal(v, model.state_dict()[k]) for k, v in before.items())


def test_a_variance_that_overflows_changes_nothing():
    model, _ = identity_model()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    with pytest.raises(InvalidInput):
        set_norm_statistics(model, batches(features() * 1e20))
    assert all(torch.equal(v, model.state_dict()[k]) for k, v in before.items())


def test_heads_from_inference_mode_are_read_but_not_half_written():
    with torch.inference_mode():
        model = nn.Sequential(nn.Identity(), nn.Linear(WIDTH, 3))
    head = insert(model, 4.0, norm="batch")
    with pytest.raises(InvalidInput):
        set_norm_statistics(model, batches(features()), keep_function=True)
    assert head.norm.running_mean.tolist() == [0.0] * WIDTH
    set_norm_statistics(model, batches(features()))
    torch.testing.assert_close(head.norm.running_mean, features().mean(0))


def tied():
    model = nn.Sequential(nn.Identity(), nn.Linear(WIDTH, 3), nn.Identity())
    model[2].weight = model[1].weight
    insert(model, 4.0, name="1")
    return model


def used():
    model, head = identity_model()
    head.norm.weight.data[0] = 2.0
    return model


def seen():
    model, _ = identity_model()
    set_norm_statistics(model, batches(features()), keep_function=True)
    return model


@pytest.mark.parametrize(
    "make", [lambda: identity_model(norm="batch-no-affine")[0], used, seen, tied]
)
def test_keep_function_needs_a_fresh_affine_head_of_its_own(make):
    model = make()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    with pytest.raises(InvalidInput) as error:
        set_norm_statistics(model, batches(features()), keep_function=True)
    assert error.value.subject == "keep_function"
    assert all(torch.equal(v, model.state_dict()[k]) for k, v in before.items())


# ------------------------------------------------------------------ refusals
def not_finite(value):
    x = features(20)
    x[17, 2] = value
    return batches(x)


@pytest.mark.parametrize(
    "loader",
    [
        [],
        [features(1)],
        not_finite(torch.nan),
        not_finite(torch.inf),
        [features(0)],
        [(features(4), 1, 2)],
    ],
)
def test_bad_data_changes_nothing(loader):
    model, _ = identity_model()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    with pytest.raises(InvalidInput):
        set_norm_statistics(model, loader)
    assert all(torch.equal(v, model.state_dict()[k]) for k, v in before.items())
    assert model.training


def test_the_bad_row_is_named():
    model, _ = identity_model()
    with pytest.raises(InvalidInput) as error:
        set_norm_statistics(model, not_finite(torch.nan))
    assert "batch 2, row 1" in error.value.found


@pytest.mark.parametrize("norm", ["layer", "none"])
def test_other_norms_have_no_statistics(norm):
    with pytest.raises(InvalidInput) as error:
        set_norm_statistics(identity_model(norm=norm)[0], batches(features()))
    assert norm in error.value.found


def test_no_head_or_two():
    with pytest.raises(NotFound):
        set_norm_statistics(nn.Linear(WIDTH, 3), batches(features()))
    two = nn.Sequential(
        TemperedHead(nn.Linear(WIDTH, WIDTH), 2.0), TemperedHead(nn.Linear(WIDTH, 3), 2.0)
    )
    with pytest.raises(NotFound) as error:
        set_norm_statistics(two, batches(features()))
    assert error.value.candidates == ("0", "1")


def test_some_batches_and_progress():
    model, head = identity_model()
    seen = []
    stats = set_norm_statistics(model, batches(features()), max_batches=2, progress=seen.append)
    assert (stats.n_rows, seen) == (16, [1, 2])
    torch.testing.assert_close(head.norm.running_mean, features()[:16].mean(0))
    for bad in (0, -1, True, 1.5):
        with pytest.raises(InvalidInput):
            set_norm_statistics(model, batches(features()), max_batches=bad)


def test_no_more_is_taken_than_asked_for():
    model, _ = identity_model()
    iterator = iter(batches(features()))
    assert set_norm_statistics(model, iterator, max_batches=np.int64(1)).n_batches == 1
    assert len(list(iterator)) == 8
