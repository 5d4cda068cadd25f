"""Statistics of a whole model from one pass: exact, for any batch, and nothing else moves."""

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn, update_bn

from temperance import fold, insert
from temperance.errors import InvalidInput, NotFound, TemperanceWarning
from temperance.head import check_frozen, freeze, recompute_statistics, tempered_heads


def rows(n=67, width=4, mean=50.0, std=10.0):
    generator = torch.Generator().manual_seed(3)
    return torch.randn(n, width, generator=generator) * std + mean


def first_norm(width=4):
    """The first norm sees the data themselves."""
    model = nn.Sequential(nn.BatchNorm1d(width), nn.Linear(width, 6), nn.Tanh(), nn.Linear(6, 3))
    insert(model, 4.0, name="3")
    return model


def state(model):
    return {k: v.clone() for k, v in model.state_dict().items()}


@settings(max_examples=20, deadline=None, derandomize=True)
@given(sizes=st.lists(st.integers(2, 9), min_size=1, max_size=6), seed=st.integers(0, 99))
def test_mean_and_variance_of_all_rows_whatever_the_batches(sizes, seed):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(sum(sizes), 4, generator=generator) * 3 + 50
    x = x.sort(dim=0).values  # the mean of the batches' variances would be far off
    model = first_norm()
    figures = recompute_statistics(model, x.split(sizes))
    torch.testing.assert_close(model[0].running_mean, x.mean(0), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(model[0].running_var, x.var(0), rtol=1e-4, atol=1e-4)
    assert (figures.n_rows, figures.n_batches, figures.skipped) == (sum(sizes), len(sizes), 0)
    assert int(model[0].num_batches_tracked) == len(sizes)


@pytest.mark.parametrize("shape", [(5,), (5, 6), (5, 3, 3), (5, 2, 3, 3)])
def test_every_place_of_a_feature_counts(shape):
    norm = {1: nn.BatchNorm1d, 2: nn.BatchNorm1d, 3: nn.BatchNorm2d, 4: nn.BatchNorm3d}[len(shape)]
    model = nn.Sequential(norm(5), nn.Flatten(), nn.LazyLinear(3))
    x = torch.randn(11, *shape) * 2 + 7
    model(x)
    recompute_statistics(model, x.split([4, 7]))
    flat = x.movedim(1, -1).flatten(0, -2)
    torch.testing.assert_close(model[0].running_mean, flat.mean(0))
    torch.testing.assert_close(model[0].running_var, flat.var(0))


def test_one_batch_gives_what_momentum_one_gives():
    """Also behind other norms, which normalize by the batch as in training."""
    model, x = first_norm(), rows()
    reference = copy.deepcopy(model)
    for norm in (reference[0], reference[3].norm):
        norm.momentum = 1.0
    reference.train()(x)
    recompute_statistics(model, [x])
    for name in ("running_mean", "running_var"):
        for a, b in ((model[0], reference[0]), (model[3].norm, reference[3].norm)):
            torch.testing.assert_close(getattr(a, name), getattr(b, name))


@pytest.mark.parametrize(
    "make",
    [
        lambda x: x,
        lambda x: (x, torch.zeros(len(x))),
        lambda x: {"input": x, "labels": torch.zeros(len(x))},
        lambda x: {"pixel_values": x},
    ],
    ids=["tensor", "pair", "mapping", "one name"],
)
def test_batches_of_every_form_and_a_last_one_of_one_row(make):
    """Of which torch's own update_bn refuses the mappings and the single row."""
    model, x = first_norm(), rows(33)
    figures = recompute_statistics(model, [make(part) for part in x.split(16)])
    assert (figures.n_rows, figures.n_batches, figures.skipped) == (32, 2, 1)
    torch.testing.assert_close(model[0].running_mean, x[:32].mean(0))
    with pytest.raises((ValueError, AttributeError, TypeError)):
        update_bn([make(part) for part in x[:1].split(1)], first_norm())


@pytest.mark.parametrize("use_buffers", [False, True])
@pytest.mark.parametrize("ema", [False, True])
def test_averaged_weights(use_buffers, ema):
    """Their statistics belong to other weights before, and are their own afterwards."""
    model = first_norm()
    averaging = {"multi_avg_fn": get_ema_multi_avg_fn(0.9)} if ema else {}
    averaged = AveragedModel(model, use_buffers=use_buffers, **averaging)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    x, y = rows(64), torch.arange(64) % 3
    model.train()
    for part in range(8):
        nn.functional.cross_entropy(model(x[part::2]), y[part::2]).backward()
        optimizer.step()
        optimizer.zero_grad()
        averaged.update_parameters(model)
    before = recompute_statistics(averaged, [x])
    assert before.mean_shift > 0.3  # eight batches of mean 50: the moving average has come to 28
    again = recompute_statistics(averaged, [x])
    assert again.mean_shift < 1e-4
    assert again.variance_ratio < 1.001
    (head,) = tempered_heads(averaged).values()
    assert float(head.temperature) == 4.0
    inside = []
    head.linear.register_forward_hook(lambda _m, args, _o: inside.append(args[0]))
    with torch.no_grad():
        averaged.eval()(x)
        expected = averaged.train()(x)
    torch.testing.assert_close(inside[0].mean(0), inside[1].mean(0), atol=0.02, rtol=0)
    assert expected.shape == (64, 3)
    folded = fold(averaged.module.eval(), x)
    torch.testing.assert_close(folded(x), averaged.eval()(x), rtol=1e-4, atol=1e-4)


def test_nothing_else_moves(rng_guard):
    model = nn.Sequential(nn.BatchNorm1d(4, momentum=0.3), nn.Dropout(0.5), nn.Linear(4, 3))
    model.append(nn.BatchNorm1d(3, momentum=None)).train()
    model[1].eval()
    before, modes = state(model), [m.training for m in model.modules()]
    with rng_guard():
        recompute_statistics(model, rows().split(16))
    changed = {k for k, v in model.state_dict().items() if not torch.equal(v, before[k])}
    statistics = ("running_mean", "running_var", "num_batches_tracked")
    assert changed == {f"{i}.{n}" for i in (0, 3) for n in statistics}
    assert [m.training for m in model.modules()] == modes
    assert (model[0].momentum, model[3].momentum) == (0.3, None)
    assert not any(m._forward_hooks for m in model.modules())


def test_frozen_norms_and_names():
    model, x = first_norm(), rows(mean=0.0, std=1.0)
    frozen = freeze(model)
    figures = recompute_statistics(model, [x])
    check_frozen(model, frozen)
    assert figures.norms == ("3.norm",)
    assert recompute_statistics(first_norm(), [x], norms="0").norms == ("0",)
    assert recompute_statistics(first_norm(), [x], norms=["*.norm"]).norms == ("3.norm",)
    with pytest.raises(NotFound) as error:
        recompute_statistics(first_norm(), [x], norms="bn")
    assert error.value.candidates == ("0", "3.norm")
    with pytest.raises(NotFound):
        recompute_statistics(model, [x], norms="0")


def test_constant_features_are_not_blown_up():
    x = rows()
    x[:, 2] = 0.1
    model = nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 3))
    with pytest.warns(TemperanceWarning, match="1 of 0"):
        figures = recompute_statistics(model, x.split(8))
    assert figures.n_dead == 1
    assert float(model[0].running_var[2]) == 1.0
    z = model[0].eval()(torch.full((1, 4), 1.1))
    assert abs(z[0, 2].item()) < 2  # and not 316


@pytest.mark.parametrize(
    "loader",
    [
        lambda: [],
        lambda: [rows(1)],
        lambda: [rows(1), rows(1)],
        lambda: [rows() * torch.inf],
        lambda: [rows(), torch.full((4, 4), torch.nan)],
        lambda: [(1, 2, 3)],
    ],
)
def test_what_cannot_be_used_changes_nothing(loader):
    model = first_norm().train()
    model(rows())
    before = state(model)
    with pytest.raises(InvalidInput):
        recompute_statistics(model, loader())
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    assert model[0].momentum == 0.1
    assert model[0].training


class Apart(nn.Module):
    """A norm that takes its input by name, and one that is not called."""

    def __init__(self):
        super().__init__()
        self.norm, self.idle = nn.BatchNorm1d(4), nn.BatchNorm1d(4)

    def forward(self, x):
        return self.norm(input=x)


def test_norms_by_keyword_and_norms_that_are_not_called():
    model, x = Apart(), rows()
    assert recompute_statistics(model, [x]).norms == ("norm",)
    torch.testing.assert_close(model.norm.running_mean, x.mean(0))
    with pytest.raises(InvalidInput) as error:
        recompute_statistics(model, [x], norms="idle")
    assert "idle" in error.value.found


@pytest.mark.parametrize("bad", [3, ["norm", 3], nn.Sequential(nn.BatchNorm1d(4))])
def test_names_that_are_none(bad):
    with pytest.raises(InvalidInput) as error:
        recompute_statistics(first_norm(), [rows()], norms=bad)
    assert error.value.subject == "norms"


def test_a_variance_that_float16_cannot_hold_is_refused():
    """Each batch's can be held; what is between them cannot."""
    model, x = nn.Sequential(nn.BatchNorm1d(4)).half(), torch.randn(8, 4)
    with pytest.raises(InvalidInput) as error:
        recompute_statistics(model, [(x - 400).half(), (x + 400).half()])
    assert "float16" in error.value.fix
    assert model[0].running_var.tolist() == [1.0] * 4


def from_inference_mode():
    with torch.inference_mode():
        return nn.BatchNorm1d(4)


@pytest.mark.parametrize(
    "last",
    [from_inference_mode, nn.LazyBatchNorm1d, lambda: nn.BatchNorm1d(4, device="meta")],
    ids=["inference mode", "lazy", "meta"],
)
def test_statistics_that_cannot_be_written_are_refused_before_any_is(last):
    model = nn.Sequential(nn.BatchNorm1d(4), last())
    with pytest.raises(InvalidInput) as error:
        recompute_statistics(model, [rows()])
    assert "1" in error.value.subject
    assert model[0].running_mean.tolist() == [0.0] * 4


def test_an_error_of_the_model_changes_nothing():
    model = first_norm()
    before = state(model)
    with pytest.raises(RuntimeError):
        recompute_statistics(model, [rows(), rows(8, 5)])
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    assert model[0].momentum == 0.1


def test_without_statistics():
    for model in (nn.Linear(4, 3), nn.Sequential(nn.BatchNorm1d(4, track_running_stats=False))):
        with pytest.raises(NotFound):
            recompute_statistics(model, [rows()])


def test_progress_and_a_limit():
    seen, loader = [], iter(rows().split(8))
    figures = recompute_statistics(first_norm(), loader, max_batches=3, progress=seen.append)
    assert (figures.n_batches, seen, len(list(loader))) == (3, [1, 2, 3], 6)
    with pytest.raises(InvalidInput):
        recompute_statistics(first_norm(), [rows()], max_batches=0)


def test_a_norm_that_runs_twice_sees_both():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.BatchNorm1d(4)

        def forward(self, x):
            return self.norm(x) + self.norm(x + 100)

    model, x = Twice(), rows()
    recompute_statistics(model, [x[:30], x[30:]])
    both = torch.cat([x, x + 100])
    torch.testing.assert_close(model.norm.running_mean, both.mean(0))
    torch.testing.assert_close(model.norm.running_var, both.var(0))


def test_instance_norm_keeps_the_mean_over_rows():
    model = nn.Sequential(nn.InstanceNorm1d(4, track_running_stats=True))
    x = torch.randn(9, 4, 20) * torch.arange(1, 10).view(-1, 1, 1)
    recompute_statistics(model, x.split(3))
    torch.testing.assert_close(model[0].running_mean, x.mean(2).mean(0), atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(model[0].running_var, x.var(2).mean(0))


def test_compiled_models():
    torch._dynamo.reset()
    model, x = first_norm(), rows()
    plain = copy.deepcopy(model)
    compiled = torch.compile(model, backend="eager")
    compiled(x)
    recompute_statistics(compiled, [x])
    recompute_statistics(plain, [x])
    torch.testing.assert_close(model[0].running_var, plain[0].running_var)
