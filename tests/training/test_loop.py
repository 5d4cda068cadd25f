"""The training loop: budgets, steps, seeds, stopping and going on."""

import json
import math

import numpy as np
import pytest
import torch
from torch import nn

from temperance.errors import InvalidInput
from temperance.head import insert
from temperance.training import loop, state
from temperance.training.loop import Batches, Budget, plan_steps
from temperance.training.preprocess import Preprocess


def rows(n=60, seed=0):
    rng = np.random.default_rng(seed)
    y = (np.arange(n) % 3).astype(np.int64)
    x = (rng.normal(size=(n, 5)) + y[:, None]).astype(np.float32)
    return Batches(x, y, Preprocess("features", (5,), (0.0,) * 5, (1.0,) * 5))


class Net(nn.Module):
    """With dropout, so that random states matter."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Dropout(0.3))
        self.head = nn.Linear(16, 3)

    def forward(self, x):
        return self.head(self.body(x))


def new_model(temperature=2.0, norm="batch"):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        model = Net()
    insert(model, temperature, norm=norm, example=torch.zeros(2, 5))
    return model


def trained(budget, *, seed=0, smoothing=0.0):
    training = loop.start(new_model(), budget, seed=seed)
    loop.train(training, rows(), budget, held_out=rows(30, 1), smoothing=smoothing)
    return training


@pytest.mark.parametrize(
    ("n", "batch", "steps"),
    [
        (128, 64, [64, 64]),
        (129, 64, [64, 65]),
        (135, 64, [64, 71]),
        (136, 64, [64, 64, 8]),
        (5, 64, [5]),
        (64, 64, [64]),
        (1, 64, [1]),
    ],
)
def test_steps_of_an_epoch(n, batch, steps):
    assert plan_steps(n, batch) == steps
    assert sum(steps) == n


@pytest.mark.parametrize(
    "wrong",
    [
        {"optimizer": "lion"},
        {"epochs": 0},
        {"batch_size": 0},
        {"lr": -1.0},
        {"lr": math.nan},
        {"weight_decay": -0.1},
    ],
)
def test_bad_budgets(wrong):
    with pytest.raises(InvalidInput):
        Budget(**wrong)


def test_defaults_follow_the_optimizer():
    assert (Budget().lr, Budget().weight_decay) == (0.05, 5e-4)
    assert (Budget(optimizer="adamw").lr, Budget(optimizer="adamw").weight_decay) == (1e-3, 1e-2)
    assert Budget(lr=0.2, weight_decay=0.0).lr == 0.2


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_training_learns(optimizer):
    training = trained(Budget(epochs=20, batch_size=16, optimizer=optimizer, lr=0.05))
    assert training.history["held_out_nll"][-1] < 0.7 * math.log(3)
    assert training.history["held_out_accuracy"][-1] > 0.75
    assert all(len(curve) == 20 for curve in training.history.values())


def test_same_seed_same_weights_and_no_global_state(rng_guard):
    budget = Budget(epochs=2, batch_size=16)
    with rng_guard():
        first = trained(budget)
    torch.rand(5)  # the global state is somewhere else now
    again, other = trained(budget), trained(budget, seed=1)
    torch.testing.assert_close(first.model.state_dict(), again.model.state_dict(), rtol=0, atol=0)
    assert first.history == again.history != other.history


def test_the_schedule_is_a_cosine_to_zero():
    budget = Budget(epochs=3, batch_size=20)
    training = loop.start(new_model(), budget, seed=0)
    seen = []
    original = training.optimizer.step

    def step(*args, **kwargs):
        seen.append(training.optimizer.param_groups[0]["lr"])
        return original(*args, **kwargs)

    training.optimizer.step = step
    loop.train(training, rows(), budget, held_out=rows(30, 1))
    expected = [0.05 * 0.5 * (1 + math.cos(math.pi * i / 9)) for i in range(9)]
    np.testing.assert_allclose(seen, expected)


def test_smoothing_changes_the_loss_and_not_the_judgement():
    budget = Budget(epochs=20, batch_size=16)
    plain, smooth = (trained(budget, smoothing=s) for s in (0.0, 0.3))
    entropy = -(0.8 * math.log(0.8) + 2 * 0.1 * math.log(0.1))  # of the smoothed target
    assert smooth.history["train_loss"][-1] > entropy > plain.history["train_loss"][-1]
    assert smooth.history["held_out_nll"][-1] < entropy + 0.1


def test_weight_decay_spares_norms_biases_and_t():
    training = loop.start(new_model(), Budget(), seed=0)
    spared = {
        id(p)
        for g in training.optimizer.param_groups
        if g["weight_decay"] == 0
        for p in g["params"]
    }
    for name, parameter in training.model.named_parameters():
        assert (id(parameter) in spared) == (parameter.ndim < 2), name


def test_a_loss_that_is_no_number_ends_the_run():
    training = loop.start(new_model(0.01, "none"), Budget(epochs=5, lr=1e6, batch_size=16), seed=0)
    loop.train(training, rows(), Budget(epochs=5, lr=1e6, batch_size=16), held_out=rows(30, 1))
    assert "epoch" in training.diverged
    assert training.epoch < 5


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_a_stopped_run_goes_on_to_the_same_result(tmp_path, optimizer):
    budget = Budget(epochs=6, batch_size=16, optimizer=optimizer)
    whole = trained(budget)

    class Stop(Exception):
        pass

    def stop(training):
        if training.epoch == 3:
            state.save(training, tmp_path / "state.safetensors")
            raise Stop

    first = loop.start(new_model(), budget, seed=0)
    with pytest.raises(Stop):
        loop.train(first, rows(), budget, held_out=rows(30, 1), on_epoch=stop)
    second = loop.start(new_model(), budget, seed=0)
    state.restore(second, tmp_path / "state.safetensors")
    assert second.epoch == 3
    loop.train(second, rows(), budget, held_out=rows(30, 1))
    torch.testing.assert_close(second.model.state_dict(), whole.model.state_dict(), rtol=0, atol=0)
    assert second.history == whole.history
    assert [p.name for p in tmp_path.iterdir()] == ["state.safetensors"]


def test_a_state_that_does_not_belong_here(tmp_path):
    budget = Budget(epochs=1)
    file = tmp_path / "state.safetensors"
    state.save(trained(budget), file)
    with pytest.raises(InvalidInput):
        state.restore(loop.start(new_model(), budget, seed=5), file)
    with pytest.raises(InvalidInput):
        state.restore(loop.start(new_model(norm="none"), budget, seed=0), file)
    file.write_bytes(file.read_bytes()[:-10])
    with pytest.raises(InvalidInput):
        state.restore(loop.start(new_model(), budget, seed=0), file)


def test_logits_do_not_depend_on_the_batch_size_and_leave_the_mode():
    model = trained(Budget(epochs=1)).model.train()
    few = loop.logits_of_rows(model, rows(), batch_size=7)
    many = loop.logits_of_rows(model, rows(), batch_size=60)
    torch.testing.assert_close(few, many, rtol=1e-5, atol=1e-6)
    assert model.training
    json.dumps(trained(Budget(epochs=1)).history)
