"""A learned T: its value, its bounds, its gradient, no decay, and how it is stored."""

import copy
import math

import pytest
import torch
from torch import nn, optim
from torch.optim.swa_utils import AveragedModel

from temperance.ensemble import convert
from temperance.ensemble import parameter_groups as ensemble_groups
from temperance.errors import InvalidInput
from temperance.head import (
    HeadOptions,
    LearnedTemperature,
    TemperedHead,
    check_optimizer,
    fold,
    insert,
    parameter_groups,
    temperatures,
)
from temperance.models import load_state

BOUNDS = LearnedTemperature(0.5, 8.0)


def head(temperature=4.0, *, norm="none", bounds=BOUNDS, **more):
    return TemperedHead(nn.Linear(8, 3), temperature, norm=norm, learned=bounds, **more)


def net(temperature=4.0, *, bounds=BOUNDS, norm="batch"):
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    options = HeadOptions(learned=bounds)
    insert(model, temperature, norm=norm, options=options, example=torch.randn(4, 6))
    return model


def batch(n=12):
    return torch.randn(n, 8), torch.arange(n) % 3


# ------------------------------------------------------------------ value and gradient
@pytest.mark.parametrize("norm", ["batch", "layer", "none", "cosine"])
@pytest.mark.parametrize("training", [True, False])
def test_the_same_function_as_a_fixed_t(norm, training):
    learned = head(norm=norm).train(training)
    fixed = TemperedHead(copy.deepcopy(learned.linear), 4.0, norm=norm).train(training)
    x, _ = batch()
    torch.testing.assert_close(learned(x), fixed(x))
    assert not learned.temperature.requires_grad
    assert learned(x).requires_grad


def test_the_gradient_is_that_of_the_formula():
    module = head().double()
    x, y = batch()
    z = module.linear(x.double()).detach()

    def loss(log):
        return nn.functional.cross_entropy(z / log.exp(), y)

    log = torch.tensor(math.log(4.0), dtype=torch.float64, requires_grad=True)
    expected = torch.autograd.grad(loss(log), log)[0]
    nn.functional.cross_entropy(module(x.double()), y).backward()
    torch.testing.assert_close(module.log_temperature.grad[0], expected)
    step = 1e-6
    difference = (loss(log + step) - loss(log - step)) / (2 * step)
    torch.testing.assert_close(
        module.log_temperature.grad[0], difference.detach(), rtol=1e-6, atol=1e-9
    )


def test_compensation_leaves_the_gradient_of_t_alone_and_scales_the_rest():
    x, y = batch()
    grads = []
    for compensation in (False, True):
        torch.manual_seed(0)
        module = head(gradient_compensation=compensation)
        nn.functional.cross_entropy(module(x), y).backward()
        grads.append((module.log_temperature.grad, module.weight.grad))
    torch.testing.assert_close(grads[0][0], grads[1][0])
    torch.testing.assert_close(4 * grads[0][1], grads[1][1], rtol=1e-4, atol=1e-7)


# ------------------------------------------------------------------ bounds
@pytest.mark.parametrize(("sign", "bound"), [(1.0, 0.5), (-1.0, 8.0)])
def test_a_huge_step_ends_at_the_bound_and_t_comes_back(sign, bound):
    module = head()
    x, _ = batch()
    optimizer = optim.SGD([module.log_temperature], lr=1e6)
    (-sign * module(x).square().mean()).backward()
    optimizer.step()
    assert float(module.temperature) == pytest.approx(bound)  # also before the next forward
    assert not 0.5 <= math.exp(min(float(module.log_temperature.detach()), 50)) <= 8.0
    optimizer = optim.SGD([module.log_temperature], lr=0.1)
    optimizer.zero_grad()
    (sign * module(x).square().mean()).backward()
    assert float(module.log_temperature.detach().exp()) == pytest.approx(bound)
    assert float(module.log_temperature.grad) != 0
    optimizer.step()
    assert 0.5 < float(module.temperature) < 8.0


@pytest.mark.parametrize("optimizer", [optim.SGD, optim.AdamW])
@pytest.mark.parametrize("lr", [1.0, 100.0])
def test_no_rate_makes_it_collapse_or_run_away(optimizer, lr):
    torch.manual_seed(0)
    model, x = net(), torch.randn(48, 6)
    y = torch.arange(48) % 3
    groups = parameter_groups(model, 0.1, temperature_lr=lr)
    steps = optimizer(groups, lr=0.01)
    seen = []
    for _ in range(40):
        steps.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        steps.step()
        seen.append(temperatures(model)["2"])
        assert math.isfinite(float(loss.detach()))
    assert all(0.5 * (1 - 1e-6) <= t <= 8.0 * (1 + 1e-6) for t in seen)


@pytest.mark.parametrize(
    "make",
    [
        lambda: LearnedTemperature(2.0, 2.0),
        lambda: LearnedTemperature(2.0, 1.0),
        lambda: LearnedTemperature(0.0, 1.0),
        lambda: LearnedTemperature(0.5, math.inf),
        lambda: head(0.4),
        lambda: head(9.0),
        lambda: head().set_temperature(9.0),
        lambda: net(100.0),
        lambda: net(bounds=True),
        lambda: net(bounds=(0.5, 8.0)),
    ],
)
def test_what_is_refused(make):
    with pytest.raises(InvalidInput):
        make()


def test_it_can_be_set():
    module = head()
    module.set_temperature(2.0)
    assert float(module.temperature) == pytest.approx(2.0)
    assert "temperature=2 (learned, 0.5 to 8)" in repr(module)


def test_called_twice_before_one_backward():
    module = head()
    x, y = batch()
    loss = nn.functional.cross_entropy(module(x), y) + nn.functional.cross_entropy(module(2 * x), y)
    loss.backward()
    assert module.log_temperature.grad is not None


# ------------------------------------------------------------------ optimizers
def test_groups_hold_it_once_without_decay():
    model = net()
    log = model[2].log_temperature
    for groups, rates in (
        (parameter_groups(model, 0.1), [None, None]),
        (parameter_groups(model, 0.1, temperature_lr=1e-3), [None, None, 1e-3]),
    ):
        assert [g.get("lr") for g in groups] == rates
        holding = [g for g in groups if any(p is log for p in g["params"])]
        assert [g["weight_decay"] for g in holding] == [0.0]
        every = [p for g in groups for p in g["params"]]
        assert len(every) == len(set(every)) == len(list(model.parameters()))
    check_optimizer(optim.AdamW(groups, lr=1e-2), model)


def test_decay_is_refused_and_would_have_pulled():
    model = net()
    with pytest.raises(InvalidInput) as error:
        check_optimizer(optim.AdamW(model.parameters(), lr=0.1, weight_decay=0.1), model)
    assert "T towards 1" in error.value.found


@pytest.mark.parametrize("lr", [0.0, -1.0, math.nan, True, "1"])
def test_rates_that_are_refused(lr):
    with pytest.raises(InvalidInput) as error:
        parameter_groups(net(), 0.1, temperature_lr=lr)
    assert error.value.subject == "temperature_lr"


def test_a_rate_for_nothing_is_refused():
    model = nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 3))
    insert(model, 4.0)
    with pytest.raises(InvalidInput) as error:
        parameter_groups(model, 0.1, temperature_lr=0.1)
    assert error.value.found == "no learned temperature"


def test_the_groups_of_a_trainer_that_decays_it_are_refused(tmp_path):
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    from temperance.integrations.huggingface import TemperatureTrainerCallback

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = net()

        def forward(self, x, labels):
            logits = self.net(x)
            return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}

    def trainer(decay, optimizers=(None, None)):
        arguments = transformers.TrainingArguments(
            output_dir=tmp_path,
            max_steps=2,
            weight_decay=decay,
            use_cpu=True,
            report_to=[],
            save_strategy="no",
            disable_tqdm=True,
            dataloader_pin_memory=False,
        )
        rows = [{"x": torch.randn(6), "labels": i % 3} for i in range(24)]
        return transformers.Trainer(
            model,
            arguments,
            train_dataset=rows,
            optimizers=optimizers,
            callbacks=[TemperatureTrainerCallback()],
        )

    model = Model()
    with pytest.raises(InvalidInput) as error:
        trainer(0.1).train()
    assert "T towards 1" in error.value.found
    groups = parameter_groups(model, 0.1, temperature_lr=1e-2)
    trainer(0.1, (optim.AdamW(groups, lr=1e-3), None)).train()
    assert temperatures(model)["net.2"] != pytest.approx(4.0, abs=1e-4)


# ------------------------------------------------------------------ stored as T
def trained():
    torch.manual_seed(0)
    model, x = net(), torch.randn(24, 6)
    optimizer = optim.SGD(parameter_groups(model, 0.0), lr=0.5)
    for _ in range(5):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), torch.arange(24) % 3).backward()
        optimizer.step()
    assert abs(temperatures(model)["2"] - 4.0) > 1e-3
    return model.eval(), x


def test_the_state_has_t_itself_and_goes_into_either_kind_of_head():
    model, x = trained()
    state = model.state_dict()
    assert float(state["2.temperature"]) == temperatures(model)["2"]
    assert state["2.log_temperature"].shape == (1,)
    again, fixed = net(1.0), net(1.0, bounds=None)
    again.load_state_dict(state)
    fixed.load_state_dict(state)
    for other in (again, fixed):
        torch.testing.assert_close(other.eval()(x), model(x), rtol=0, atol=0)
    assert fixed[2].log_temperature is None
    back = net(1.0)
    back.load_state_dict(fixed.state_dict())
    torch.testing.assert_close(back.eval()(x), model(x))
    assert "2.log_temperature" in state  # a load leaves what it reads as it is


@pytest.mark.parametrize("source", [None, LearnedTemperature()])
@pytest.mark.parametrize("load", ["load_state", "load_state_dict"])
def test_bounds_do_not_change_the_t_of_a_checkpoint_without_a_word(source, load):
    state, model = net(100.0, bounds=source).state_dict(), net()
    before = copy.deepcopy(model.state_dict())
    if load == "load_state":
        with pytest.raises(InvalidInput) as error:
            load_state(model, state)
        assert error.value.found.startswith("100")
        for key, value in model.state_dict().items():
            torch.testing.assert_close(value, before[key], rtol=0, atol=0)
    else:
        with pytest.raises(RuntimeError, match=r"between the bounds 0\.5 and 8"):
            model.load_state_dict(state)
    assert temperatures(model)["2"] == pytest.approx(4.0)


@pytest.mark.parametrize("bounds", [LearnedTemperature(0.3, 0.7), LearnedTemperature(0.07, 1.1)])
def test_a_t_at_a_bound_can_be_stored_and_loaded(bounds):
    for end in (bounds.minimum, bounds.maximum):
        state, model = net(end, bounds=bounds).state_dict(), net(0.5, bounds=bounds)
        model.load_state_dict(state)
        load_state(model, net(end, bounds=None).state_dict())
        assert temperatures(model)["2"] == pytest.approx(end)


def test_load_state_reports_what_became_of_it():
    model, x = trained()
    fixed, learned = net(1.0, bounds=None), net(1.0)
    report = load_state(fixed, model.state_dict())
    assert report.ignored == ("2.log_temperature",)
    torch.testing.assert_close(fixed.eval()(x), model(x), rtol=0, atol=0)
    assert not load_state(learned, fixed.state_dict()).new
    torch.testing.assert_close(learned.eval()(x), model(x))
    plain = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    report = load_state(learned, plain.state_dict())
    assert {"2.temperature", "2.log_temperature"} <= set(report.new)


def test_fixing_and_folding_keep_the_function():
    model, x = trained()
    expected, value = model(x), temperatures(model)["2"]
    torch.testing.assert_close(fold(model)(x), expected)
    assert model[2].fix_temperature() == value == model[2].fix_temperature()
    torch.testing.assert_close(model(x), expected, rtol=0, atol=0)
    assert set(model.state_dict()) == set(net(bounds=None).state_dict())
    assert model[2].learned is None
    model[2].set_temperature(100.0)


def test_an_average_of_weights_averages_it():
    model, _ = trained()
    average = AveragedModel(model)
    model[2].set_temperature(1.0)
    average.update_parameters(model)
    first = temperatures(average.module)["2"]
    model[2].set_temperature(4.0)
    average.update_parameters(model)
    assert temperatures(average.module)["2"] != first
    copied = net()  # an average over the state dict, as timm's, in place
    for ours, theirs in zip(copied.state_dict().values(), model.state_dict().values(), strict=True):
        ours.copy_(theirs)
    assert temperatures(copied)["2"] == pytest.approx(4.0)


def test_half_precision_and_device_moves_keep_it_wide():
    module = head().bfloat16()
    assert module.log_temperature.dtype == torch.float32
    assert module(torch.randn(4, 8).bfloat16()).dtype == torch.float32
    assert isinstance(module.log_temperature, nn.Parameter)


def test_autocast_and_a_scaler_leave_it_in_float32():
    module = head()
    x, y = batch()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = nn.functional.cross_entropy(module(x), y)
    loss.backward()
    assert module.log_temperature.grad.dtype == torch.float32


@pytest.mark.parametrize("compensation", [False, True])
def test_compiles_without_a_break(compensation):
    torch._dynamo.reset()
    module = head(norm="batch", gradient_compensation=compensation)
    compiled = torch.compile(copy.deepcopy(module), fullgraph=True, backend="aot_eager")
    x, y = batch()
    for one in (module, compiled):
        optimizer = optim.SGD(one.parameters(), lr=1e4)
        for _ in range(3):
            optimizer.zero_grad()
            nn.functional.cross_entropy(one(x), y).backward()
            optimizer.step()
    for a, b in zip(module.parameters(), compiled.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-3)


# ------------------------------------------------------------------ ensembles
def test_members_share_one_learned_t():
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
    options = HeadOptions(learned=BOUNDS)
    insert(model, 4.0, norm="none", options=options, example=torch.randn(4, 6))
    ensemble = convert(model, 3, example=torch.randn(4, 6)).train()
    groups = ensemble_groups(ensemble, 0.1, lr=0.1, temperature_lr=0.5)
    assert [g["lr"] for g in groups] == [0.1, 0.1, 0.5, 1.0]
    assert len({p for g in groups for p in g["params"]}) == len(list(ensemble.parameters()))
    logs = [p for n, p in ensemble.named_parameters() if n.endswith("log_temperature")]
    assert len(logs) == 1
    holding = [g for g in groups if any(p is logs[0] for p in g["params"])]
    assert [(g["weight_decay"], g["lr"]) for g in holding] == [(0.0, 0.5)]
    z = ensemble(torch.randn(12, 6))
    assert z.shape == (3, 12, 3)
    z.square().mean().backward()
    assert logs[0].grad is not None
    z = z.detach()
    assert temperatures(ensemble)[next(iter(temperatures(ensemble)))] == pytest.approx(4.0)
