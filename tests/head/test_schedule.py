"""A T that moves: the shapes, the one call that sets it, and what stays right while it moves."""

import copy
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from temperance.errors import InvalidInput, NotFound
from temperance.head import (
    SHAPES,
    Constant,
    HeadOptions,
    LearnedTemperature,
    Piecewise,
    Ramp,
    TemperedHead,
    fold,
    insert,
    set_scheduled,
    temperature_at,
    temperatures,
)

T = st.floats(0.05, 500)


def net(**options):
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    insert(model, 4.0, options=HeadOptions(**options))
    return model


# ------------------------------------------------------------------ shapes
def naive(a, b, shape, u):
    return {
        "linear": lambda: a + (b - a) * u,
        "cosine": lambda: b + (a - b) * (1 + math.cos(math.pi * u)) / 2,
        "exponential": lambda: math.exp(math.log(a) + (math.log(b) - math.log(a)) * u),
    }[shape]()


@settings(max_examples=60, deadline=None, derandomize=True)
@given(a=T, b=T, shape=st.sampled_from(SHAPES), u=st.floats(0, 1))
def test_ramps_follow_their_formulas_and_stay_between_their_ends(a, b, shape, u):
    value = Ramp(a, b, shape)(u)
    assert value == pytest.approx(naive(a, b, shape, u), rel=1e-9)
    assert min(a, b) * (1 - 1e-9) <= value <= max(a, b) * (1 + 1e-9)


@pytest.mark.parametrize("shape", SHAPES)
def test_ramps_have_exactly_their_ends(shape):
    ramp = Ramp(0.1, 0.3, shape)
    assert [temperature_at(ramp, step, 7) for step in (0, 6, 7, 100)] == [0.1, 0.3, 0.3, 0.3]
    later = Ramp(0.1, 0.3, shape, begin=0.25, until=0.75)
    assert [later(p) for p in (0, 0.2, 0.25, 0.75, 1)] == [0.1, 0.1, 0.1, 0.3, 0.3]
    assert later(0.5) == pytest.approx(ramp(0.5))


def test_stages():
    steps = Piecewise([(0, 8.0), (0.5, 2), (1, 1.0)])
    found = [steps(p) for p in (0, 0.3, 0.5, 0.99, 1.0)]
    assert found == [8.0, 8.0, 2.0, 2.0, 1.0]
    lines = Piecewise(((0, 8.0), (0.5, 2.0)), interpolate=True)
    assert [lines(p) for p in (0, 0.25, 0.5, 1.0)] == [8.0, 5.0, 2.0, 2.0]
    assert Constant(3)(0.7) == 3.0


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    values=st.lists(T, min_size=2, max_size=5),
    p=st.floats(0, 1),
)
def test_straight_lines_are_those_of_numpy(values, p):
    shares = np.linspace(0, 1, len(values))
    lines = Piecewise(tuple(zip(shares, values, strict=True)), interpolate=True)
    assert lines(p) == pytest.approx(np.interp(p, shares, values), rel=1e-9)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Ramp(0.0, 1.0),
        lambda: Ramp(1.0, math.inf),
        lambda: Ramp(1.0, 2.0, "square"),
        lambda: Ramp(1.0, 2.0, begin=0.5, until=0.5),
        lambda: Ramp(1.0, 2.0, until=1.5),
        lambda: Piecewise(()),
        lambda: Piecewise(((0.1, 1.0),)),
        lambda: Piecewise(((0, 1.0), (0, 2.0))),
        lambda: Piecewise(((0, 1.0), (1.5, 2.0))),
        lambda: Piecewise(((0, -1.0),)),
        lambda: Ramp(1.0, 2.0, begin=None),
        lambda: Ramp(1.0, 2.0, until="1"),
        lambda: Ramp(1.0, 2.0, begin=math.nan),
        lambda: Piecewise(None),
        lambda: Piecewise((0, 1.0)),
        lambda: Piecewise(((0, 1.0), (0.5,))),
        lambda: Piecewise((("0", 1.0),)),
        lambda: temperature_at(4.0, 0, 4),
        lambda: temperature_at(Constant(1.0), 0, math.inf),
        lambda: Constant(0.001),
        lambda: temperature_at(Constant(1.0), -1, 4),
        lambda: temperature_at(Constant(1.0), 0, 0),
        lambda: temperature_at(Constant(1.0), 0.5, 4),
        lambda: temperature_at(Constant(1.0), True, 4),
    ],
)
def test_what_is_refused(make):
    with pytest.raises(InvalidInput):
        make()


def test_a_function_of_ones_own_and_what_it_may_not_give():
    assert temperature_at(lambda p: 16 * max(p, 0.01) ** 0.9, 99, 100) == 16.0
    for bad in (lambda p: 0.0, lambda p: math.nan, lambda p: torch.tensor(1.0), lambda p: -p):
        with pytest.raises(InvalidInput) as error:
            temperature_at(bad, 3, 9)
        assert "step 3 of 9" in error.value.__notes__[0]


def test_one_step_is_the_last_one():
    assert temperature_at(Ramp(4.0, 1.0), 0, 1) == 1.0


# ------------------------------------------------------------------ setting it
def test_sets_gives_and_shows_the_value():
    model = net()
    given = [set_scheduled(model, Ramp(4.0, 1.0), step, 3) for step in range(3)]
    assert given == [4.0, 2.5, 1.0]
    assert temperatures(model) == {"2": 1.0}
    assert temperatures(nn.DataParallel(model)) == {"2": 1.0}


def test_all_heads_or_the_named_one():
    model = nn.ModuleDict({n: TemperedHead(nn.Linear(4, 3), 2.0) for n in ("a", "b")})
    set_scheduled(model, Constant(5.0), 0, 1)
    set_scheduled(model, Constant(7.0), 0, 1, name="b")
    assert temperatures(model) == {"a": 5.0, "b": 7.0}
    with pytest.raises(NotFound) as error:
        set_scheduled(model, Constant(5.0), 0, 1, name="c")
    assert error.value.candidates == ("a", "b")
    with pytest.raises(NotFound):
        set_scheduled(nn.Linear(4, 3), Constant(5.0), 0, 1)


def test_a_bad_value_or_a_learned_head_changes_nothing():
    model = nn.ModuleList([TemperedHead(nn.Linear(4, 3), 2.0) for _ in range(2)])
    with pytest.raises(InvalidInput):
        set_scheduled(model, lambda p: 1e-9, 0, 2)
    model.append(TemperedHead(nn.Linear(4, 3), 2.0, learned=LearnedTemperature()))
    with pytest.raises(InvalidInput) as error:
        set_scheduled(model, Constant(5.0), 0, 2)
    assert error.value.subject == "tempered head '2'"
    assert set(temperatures(model).values()) == {2.0}


# ------------------------------------------------------------------ what stays right
def test_fold_and_state_dict_take_the_value_in_effect():
    model, x = net(), torch.randn(9, 6)
    model(x)
    set_scheduled(model, Ramp(4.0, 0.3), 5, 6)
    other = net()
    other.load_state_dict(model.state_dict())
    expected = model.eval()(x)
    torch.testing.assert_close(other.eval()(x), expected, rtol=0, atol=0)
    assert temperatures(other)["2"] == pytest.approx(0.3)
    torch.testing.assert_close(fold(model)(x), expected)


@pytest.mark.parametrize("norm", ["batch", "none"])
def test_compensation_stays_right_while_t_moves(norm):
    """At every T of the ramp, the layers below get the gradient of the same logits at T = 1."""
    torch.manual_seed(0)
    head = TemperedHead(nn.Linear(8, 3), 1.0, norm=norm, gradient_compensation=True)
    for step in range(5):
        value = set_scheduled(head, Ramp(32.0, 0.5, "exponential"), step, 5)
        x, y = torch.randn(6, 8, requires_grad=True), torch.randint(0, 3, (6,))
        logits = head(x)
        nn.functional.cross_entropy(logits, y).backward()
        upstream = (logits.detach().softmax(1) - nn.functional.one_hot(y, 3)) / 6
        plain = copy.deepcopy(head)
        plain.gradient_compensation = False
        plain.set_temperature(1.0)
        z = x.detach().clone().requires_grad_()
        plain(z).backward(upstream)
        torch.testing.assert_close(x.grad, z.grad, rtol=1e-4, atol=1e-6)
        assert float(head.temperature) == pytest.approx(value)


@pytest.mark.parametrize("compensation", [False, True])
def test_a_t_that_moves_between_forward_and_backward_leaves_the_gradient_alone(compensation):
    grads = []
    for move in (False, True):
        torch.manual_seed(0)
        head = TemperedHead(nn.Linear(8, 3), 4.0, gradient_compensation=compensation)
        loss = nn.functional.cross_entropy(head(torch.randn(6, 8)), torch.arange(6) % 3)
        if move:
            set_scheduled(head, Constant(0.5), 0, 1)
        loss.backward()
        grads.append(head.weight.grad)
    torch.testing.assert_close(*grads, rtol=0, atol=0)


def test_a_compiled_model_sees_every_value_without_a_new_graph():
    torch._dynamo.reset()
    model, x = net().eval(), torch.randn(5, 6)
    compiled = torch.compile(model, backend="eager")
    compiled(x)
    with torch._dynamo.config.patch(error_on_recompile=True):
        for step in range(4):
            set_scheduled(compiled, Ramp(4.0, 1.0), step, 4)
            torch.testing.assert_close(compiled(x), model(x))


def test_going_on_needs_nothing_but_the_number_of_the_step():
    torch.manual_seed(0)
    x, y, ramp = torch.randn(32, 6), torch.randint(0, 3, (32,)), Ramp(8.0, 1.0, "cosine")

    def run(model, first, last):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(first, last):
            set_scheduled(model, ramp, step, 10)
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
        return model

    start = net()
    whole = run(copy.deepcopy(start), 0, 10)
    half = run(copy.deepcopy(start), 0, 4)
    rest = net()
    rest.load_state_dict(half.state_dict())
    run(rest, 4, 10)
    for a, b in zip(whole.state_dict().values(), rest.state_dict().values(), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0)
    assert temperatures(rest) == {"2": 1.0}


# ------------------------------------------------------------------ other people's loops
@pytest.mark.filterwarnings("ignore:.*LeafSpec.*:FutureWarning")  # lightning's use of torch
@pytest.mark.filterwarnings("ignore:.*does not have many workers.*")  # a hint about its loader
@pytest.mark.filterwarnings("ignore:.*logging interval.*")  # a hint about its logger
def test_a_lightning_callback_sets_and_logs_it(tmp_path):
    lightning = pytest.importorskip("lightning")
    ramp, seen = Ramp(4.0, 1.0), []

    class Move(lightning.Callback):
        def on_train_batch_start(self, trainer, module, batch, index):
            steps = trainer.estimated_stepping_batches
            seen.append(set_scheduled(module, ramp, trainer.global_step, steps))
            module.log("temperature", seen[-1])

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = net()

        def training_step(self, batch, index):
            return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    rows = torch.utils.data.TensorDataset(torch.randn(24, 6), torch.arange(24) % 3)
    trainer = lightning.Trainer(
        max_epochs=2,
        accelerator="cpu",
        logger=False,
        callbacks=[Move()],
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
        default_root_dir=tmp_path,
    )
    module = Module()
    trainer.fit(module, torch.utils.data.DataLoader(rows, batch_size=8))
    assert seen == pytest.approx([4.0, 3.4, 2.8, 2.2, 1.6, 1.0])
    assert float(trainer.callback_metrics["temperature"]) == 1.0
    assert temperatures(module) == {"net.2": 1.0}


def test_a_trainer_callback_sets_and_logs_it(tmp_path):
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    ramp, seen = Ramp(4.0, 1.0), []

    class Move(transformers.TrainerCallback):
        def on_step_begin(self, args, state, control, model=None, **kwargs):
            seen.append(set_scheduled(model, ramp, state.global_step, state.max_steps))

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = net()

        def forward(self, x, labels):
            logits = self.net(x)
            return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}

    rows = [{"x": torch.randn(6), "labels": i % 3} for i in range(24)]
    arguments = transformers.TrainingArguments(
        output_dir=tmp_path,
        num_train_epochs=2,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        use_cpu=True,
        report_to=[],
        save_strategy="no",
        disable_tqdm=True,
        dataloader_pin_memory=False,
    )
    model = Model()
    trainer = transformers.Trainer(model, arguments, train_dataset=rows, callbacks=[Move()])
    trainer.train()
    assert seen == pytest.approx([4.0, 3.4, 2.8, 2.2, 1.6, 1.0])
    assert temperatures(model) == {"net.2": 1.0}
