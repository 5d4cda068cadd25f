"""Nets side by side: each as if it were trained alone, whatever is beside it."""

import math
import warnings
from dataclasses import replace
from itertools import pairwise, product

import numpy as np
import pytest
import torch
from torch import nn

from temperance.errors import InvalidInput, NotFound, TemperanceWarning
from temperance.head import insert, parameter_groups
from temperance.study import networks
from temperance.study.batches import batch_rows, history_steps, learning_rate
from temperance.study.networks import train_networks
from temperance.study.networks_net import bytes_of, new_prototype
from temperance.study.outcome import StudyData
from temperance.study.trial import OPTIMIZERS, Trial
from temperance.training.nets import NETS, build_net


def made(shape, n_classes=3, *, n=80, seed=0):
    """Classes with a pattern each, and noise."""
    rng = np.random.default_rng(seed)
    patterns = rng.normal(size=(n_classes, *shape))
    x, y = {}, {}
    for split, rows in (("train", n), ("val", 30), ("test", 30)):
        y[split] = rng.integers(0, n_classes, rows)
        noise = rng.normal(size=(rows, *shape))
        x[split] = (0.7 * patterns[y[split]] + noise).astype(np.float32)
    return StudyData("made", x, y, n_classes)


FEATURES, PICTURES = made((6,)), made((1, 8, 8))


def trial(model="mlp", **changes):
    base = {"feature_dim": 12, "batch_size": 16, "steps": 25, "lr": 0.05, "norm": "batch"}
    return Trial("made", model=model, **(base | changes))


def built(data, t):
    net = build_net(
        t.model,
        input_shape=data.input_shape,
        n_classes=data.n_classes,
        seed=t.seed,
        feature_dim=t.feature_dim,
    ).module
    insert(net, t.temperature, norm=t.norm, name="head")
    return net


def alone(data, t):
    """The naive loop: one net, torch's optimizer, the loss as it is written down."""
    net = built(data, t)
    groups = parameter_groups(net, t.weight_decay)
    if t.optimizer == "sgd":
        optimizer = torch.optim.SGD(groups, lr=t.lr, momentum=t.momentum)
    elif t.optimizer == "rmsprop":
        optimizer = torch.optim.RMSprop(groups, lr=t.lr)
    else:
        optimizer = torch.optim.AdamW(groups, lr=t.lr)
    x, y = torch.tensor(data.x["train"]), torch.tensor(data.y["train"])
    losses = []
    for step, rows in enumerate(batch_rows(len(y), t.batch_size, t.steps, t.seed)):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, t.steps, peak=t.lr, schedule=t.schedule)
        z = net(x[rows])
        loss = nn.functional.cross_entropy(z, y[rows], label_smoothing=t.smoothing)
        losses.append(float(nn.functional.cross_entropy(z, y[rows]).detach()))
        optimizer.zero_grad()
        (loss * t.temperature if t.loss == "normalized" else loss).backward()
        optimizer.step()
    net.eval()
    with torch.no_grad():
        return {split: net(torch.tensor(data.x[split])) for split in ("val", "test")}, losses


def check_against_alone(data, trials, **options):
    outcomes = list(train_networks(data, trials, **options))
    assert [o.trial for o in outcomes] == list(trials)
    for outcome in outcomes:
        assert (outcome.outcome, outcome.message) == ("done", "")
        logits, losses = alone(data, outcome.trial)
        for split in ("val", "test"):
            found = torch.from_numpy(outcome.logits[split])
            torch.testing.assert_close(found, logits[split], rtol=1e-4, atol=1e-4)
        check_history(outcome, logits["val"], losses, data.y["val"])


def check_history(outcome, val, losses, y):
    history = {name: list(values) for name, values in outcome.history.items()}
    assert list(history) == ["step", "train_loss", "val_nll", "val_accuracy"]
    steps = [0, *map(int, history["step"])]
    means = [np.mean(losses[a:b]) for a, b in pairwise(steps)]
    np.testing.assert_allclose(history["train_loss"], means, rtol=1e-4, atol=1e-4)
    assert steps[-1] == outcome.trial.steps
    nll = nn.functional.cross_entropy(val, torch.tensor(y))
    np.testing.assert_allclose(history["val_nll"][-1], nll, rtol=1e-3, atol=1e-4)
    hits = (val.argmax(1).numpy() == y).mean()
    assert abs(history["val_accuracy"][-1] - hits) <= 1 / len(y) + 1e-9


RATES = {"sgd": 0.02, "adamw": 0.003, "rmsprop": 5e-5}


@pytest.fixture
def no_idle_biases(monkeypatch):
    """A mlp without biases in front of its BatchNorms.

    Their gradient is 0 but for rounding, which AdamW makes steps of the learning rate of: with them
    the naive loop in float32 is as far from itself in float64 (1e-3 to 1e-2) as from the engine.
    """
    original = NETS["mlp"]

    def mlp(shape, n_classes, m):
        net = original(shape, n_classes, m)
        for layer in net.body:
            if isinstance(layer, nn.Linear):
                layer.bias = None
        return net

    monkeypatch.setitem(NETS, "mlp", mlp)


# ------------------------------------------------------------------ as if trained alone
@pytest.mark.parametrize(
    ("norm", "optimizer", "loss"),
    list(product(("none", "layer", "batch"), OPTIMIZERS, ("plain", "normalized"))),
)
@pytest.mark.parametrize("model", ["mlp", "convnet"])
@pytest.mark.usefixtures("no_idle_biases")
def test_side_by_side_is_alone(model, norm, optimizer, loss):
    data = FEATURES if model == "mlp" else PICTURES
    setting = {"norm": norm, "optimizer": optimizer, "loss": loss, "lr": RATES[optimizer]}
    check_against_alone(data, [trial(model, **setting, temperature=t) for t in (0.5, 1, 4)])


@pytest.mark.usefixtures("no_idle_biases")
def test_everything_that_may_differ():
    changes = [
        {"temperature": 3.0, "weight_decay": 0.1},
        {"temperature": 0.7, "lr": 0.01, "seed": 2},
        {"temperature": 2.0, "lr": 0.01, "smoothing": 0.2},
        {"loss": "normalized", "temperature": 2.0, "norm": "layer", "weight_decay": 0.01},
        {"optimizer": "adamw", "lr": 0.003, "weight_decay": 0.3},
        {"optimizer": "adamw", "lr": 0.001, "weight_decay": 0.3, "seed": 2, "smoothing": 0.1},
        {"optimizer": "rmsprop", "lr": 0.001, "weight_decay": 0.3, "seed": 2},
        {"optimizer": "rmsprop", "lr": 0.002, "momentum": 0.0, "schedule": "constant"},
        {"momentum": 0.0, "schedule": "constant", "norm": "none"},
        {"momentum": 0.5, "temperature": 5.0, "seed": 2},
    ]
    check_against_alone(FEATURES, [trial(**change) for change in changes])


@pytest.mark.parametrize("data", [made((3, 16, 16), 4, n=40), made((1, 5, 7))])
@pytest.mark.parametrize("model", ["resnet", "convnet", "mlp", "probe"])
def test_nets_and_shapes(model, data):
    setting = {"feature_dim": None if model == "probe" else 9, "steps": 12, "lr": 0.01}
    trials = [trial(model, **setting, temperature=t) for t in (1, 2)]
    check_against_alone(data, trials)


def test_letters_side_by_side():
    data, setting = made((5, 1, 14), n=40), {"feature_dim": 9, "steps": 12, "lr": 0.01}
    check_against_alone(data, [trial("textcnn", **setting, temperature=t) for t in (1, 2)])


@pytest.mark.parametrize(("model", "data"), [("vit", PICTURES), ("transformer", made((5, 1, 14)))])
def test_attention_is_trained_one_by_one(model, data):
    setting = {"steps": 10, "lr": 0.003, "optimizer": "adamw", "weight_decay": 0.1}
    trials = [trial(model, **setting, temperature=t) for t in (1, 4)]
    with pytest.warns(TemperanceWarning, match="one by one, since it has .* AttentionEncoder"):
        check_against_alone(data, trials)


def test_wide_layers_take_the_other_product():
    trials = [trial(feature_dim=260, temperature=t, steps=15, lr=0.01) for t in (1, 4)]
    check_against_alone(FEATURES, trials)
    check_against_alone(FEATURES, trials[:1])


def test_any_limit_gives_the_same():
    trials = [trial(temperature=t, seed=s) for t in (1, 2, 4, 8) for s in (0, 1)]
    size = bytes_of(new_prototype(FEATURES, trials[0]), trials[0], rows=16)
    together = list(train_networks(FEATURES, trials))
    for factor in (4, 5):  # stacks of two, and a window that holds some of the trials
        cut = list(train_networks(FEATURES, trials, memory_limit=factor * size))
        for a, b in zip(together, cut, strict=True):
            assert a.trial == b.trial
            np.testing.assert_allclose(a.logits["test"], b.logits["test"], rtol=1e-4, atol=1e-4)


def test_equal_seeds_start_equal_and_no_global_state_moves(rng_guard):
    trials = [trial(temperature=t, steps=1, lr=1e-12) for t in (1, 4)]
    with rng_guard():
        one, four = train_networks(FEATURES, trials)
    np.testing.assert_allclose(one.logits["val"] / 4, four.logits["val"], rtol=1e-4, atol=1e-6)
    assert one.feature_dim == 12
    assert one.logits["val"].dtype == np.float32


# ------------------------------------------------------------------ one by one, saying so
class Dropping(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(6, 12), nn.Linear(12, 3)

    def forward(self, x):
        return self.head(nn.functional.dropout(self.body(x), 0.5, self.training))


def test_a_net_that_cannot_be_stacked_is_trained_one_by_one(monkeypatch, rng_guard):
    monkeypatch.setitem(NETS, "mlp", lambda *_: Dropping())
    trials = [trial(temperature=t, smoothing=s, steps=8) for t, s in ((1, 0), (4, 0.1))]
    with rng_guard(), pytest.warns(TemperanceWarning, match="one by one, since it has .*dropout"):
        first = list(train_networks(FEATURES, trials))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        again = [next(iter(train_networks(FEATURES, [t]))) for t in trials]  # alone: no warning
    for a, b in zip(first, again, strict=True):
        assert a.outcome == "done"
        np.testing.assert_array_equal(a.logits["test"], b.logits["test"])
        assert a.history == b.history


def test_the_ordinary_way_is_the_naive_loop(monkeypatch):
    monkeypatch.setattr("temperance.study.networks_net.trace_steps", refuse)
    for data, model in ((FEATURES, "mlp"), (PICTURES, "convnet")):
        trials = [
            trial(model, temperature=2.0, loss="normalized", lr=0.01),
            trial(model, optimizer="adamw", lr=0.003, smoothing=0.1, weight_decay=0.1),
        ]
        with pytest.warns(TemperanceWarning, match="one by one"):
            check_against_alone(data, trials)


def refuse(net):
    raise InvalidInput("net", expected="", found="a part", fix="")


def test_a_model_of_a_library_is_trained_one_by_one():
    pytest.importorskip("torchvision")
    data = made((1, 32, 32), n=16)
    trials = [
        trial("torchvision:mobilenet_v2", feature_dim=None, temperature=t, steps=2, batch_size=8)
        for t in (1, 4)
    ]
    with pytest.warns(TemperanceWarning, match="not one of our nets"):
        outcomes = list(train_networks(data, trials))
    assert [o.outcome for o in outcomes] == ["done", "done"]
    assert outcomes[0].feature_dim == 1280


def test_memory_that_does_not_allow_two_is_said():
    trials = [trial(temperature=t, steps=3) for t in (1, 4)]
    size = bytes_of(new_prototype(FEATURES, trials[0]), trials[0], rows=16)
    with pytest.warns(TemperanceWarning, match="does not allow two together"):
        assert len(list(train_networks(FEATURES, trials, memory_limit=3 * size))) == 2
    with pytest.raises(InvalidInput) as error:
        train_networks(FEATURES, trials, memory_limit=size)
    assert error.value.subject == "memory_limit"


# ------------------------------------------------------------------ divergence
@pytest.mark.parametrize(
    ("model", "width"), [("mlp", 12), ("convnet", 5), ("convnet", 16), ("resnet", 7)]
)
def test_what_diverges_says_when_and_disturbs_nobody(model, width):
    data = FEATURES if model == "mlp" else PICTURES
    good = [trial(model, norm="none", feature_dim=width, lr=0.01, temperature=t) for t in (1, 4)]
    bad = replace(good[0], lr=1e30)
    outcomes = list(train_networks(data, [good[0], bad, good[1]]))
    assert [o.outcome for o in outcomes] == ["done", "diverged", "done"]
    assert outcomes[1].logits is None
    assert outcomes[1].message == "the validation loss was nan after step 1 of 25"
    assert outcomes[1].history["step"] == ()
    for outcome, alone_again in zip(outcomes[::2], train_networks(data, good), strict=True):
        np.testing.assert_allclose(
            outcome.logits["test"], alone_again.logits["test"], rtol=1e-4, atol=1e-4
        )


def test_a_stack_of_which_all_diverge_ends_early():
    told = []
    trials = [trial(norm="none", lr=1e30, temperature=t, steps=500) for t in (1, 2)]
    outcomes = list(train_networks(FEATURES, trials, progress=lambda *n: told.append(n)))
    assert {o.outcome for o in outcomes} == {"diverged"}
    assert told[-1] == (1000, 1000)
    assert len(told) < 5


def test_diverging_in_the_ordinary_way(monkeypatch):
    monkeypatch.setattr("temperance.study.networks_net.trace_steps", refuse)
    (outcome,) = train_networks(FEATURES, [trial(norm="none", lr=1e30)])
    assert (outcome.outcome, outcome.history["step"]) == ("diverged", ())


def test_the_step_is_that_of_the_naive_loop():
    x = FEATURES.x["train"].copy()
    rows = batch_rows(len(x), 16, 25, 0)
    seen = {row: list(np.flatnonzero((rows == row).any(axis=1))) for row in range(len(x))}
    first = next(row for row, steps in seen.items() if steps[0] == 4)
    x[first] = 1e25  # its loss is finite, and its gradient too large for what comes next
    data = replace(FEATURES, x=FEATURES.x | {"train": x})
    planned = trial("probe", norm="none", feature_dim=None)
    (bad,) = train_networks(data, [planned])
    losses = np.array(alone(data, planned)[1])
    step = int(np.flatnonzero(~np.isfinite(losses))[0]) + 1
    assert step > 5
    assert bad.message == f"the training loss was {losses[step - 1]} in step {step} of 25"
    assert bad.history["step"] == tuple(s for s in history_steps(25) if s < step)
    assert all(math.isfinite(v) for values in bad.history.values() for v in values)


# ------------------------------------------------------------------ progress, order, laziness
def test_progress_counts_all_steps_and_outcomes_come_in_order_when_asked_for():
    told = []
    trials = [trial(temperature=t, seed=s, steps=45) for s in (0, 1) for t in (1, 2)]
    trials = [trials[0], trials[2], trials[1], trials[3]]
    outcomes = train_networks(FEATURES, trials, progress=lambda *n: told.append(n))
    assert told == []
    assert next(outcomes).trial == trials[0]
    assert told[-1] == (90, 180)  # the two of its seed
    assert [o.trial for o in outcomes] == trials[1:]
    assert told[-1] == (180, 180)
    assert sorted(told) == told


def test_read_only_rows_and_large_batches():
    x = {split: rows.copy() for split, rows in FEATURES.x.items()}
    for rows in x.values():
        rows.flags.writeable = False
    (outcome,) = train_networks(replace(FEATURES, x=x), [trial(batch_size=1000, steps=3)])
    assert outcome.outcome == "done"


def test_no_trials_no_outcomes():
    assert list(train_networks(FEATURES, [])) == []


# ------------------------------------------------------------------ bad input
def changed(split="train", **parts):
    return replace(
        FEATURES,
        x=FEATURES.x | ({split: parts["x"]} if "x" in parts else {}),
        y=FEATURES.y | ({split: parts["y"]} if "y" in parts else {}),
    )


HOLED = FEATURES.x["val"].copy()
HOLED[4, 2] = np.nan
BAD = [
    (FEATURES, [trial(), trial("convnet")], "trial 1", "model 'mlp'"),
    (FEATURES, [trial(), trial(feature_dim=13)], "trial 1", "feature_dim 12"),
    (FEATURES, [trial(), trial(steps=26)], "trial 1", "steps 25"),
    (FEATURES, [trial(), trial(batch_size=8)], "trial 1", "batch_size 16"),
    (FEATURES, [trial(batch_size=2)], "batches for BatchNorm", "at least 4 rows"),
    (FEATURES, [trial(batch_size=2, norm="none")], "batches for BatchNorm", "at least 4 rows"),
    (FEATURES, [trial("convnet")], "net convnet", "pictures"),
    (FEATURES, [trial("probe")], "feature_dim", "6,"),
    (FEATURES, [trial(temperature=1e-3)], "temperature", "0.01"),
    (changed(x=FEATURES.x["train"].astype(np.float64)), [trial()], "made (train)", "float32"),
    (changed("val", x=FEATURES.x["val"][:, :5]), [trial()], "made (val)", "of one shape"),
    (changed("val", x=HOLED), [trial()], "made (val)", "finite"),
    (changed("test", y=FEATURES.y["test"] + 2), [trial()], "labels of made (test)", "0 to 2"),
    (replace(FEATURES, x={}), [trial()], "made (train)", "one row or more"),
    (replace(FEATURES, x={"train": FEATURES.x["train"]}), [trial()], "made (val)", "one row"),
]


@pytest.mark.parametrize(("data", "trials", "subject", "expected"), BAD)
def test_bad_input_is_refused_before_any_work(data, trials, subject, expected):
    with pytest.raises(InvalidInput) as error:
        train_networks(data, trials)
    assert error.value.subject == subject
    assert expected in error.value.expected


def test_unknown_nets_are_named():
    with pytest.raises(NotFound) as error:
        train_networks(FEATURES, [trial("mpl", feature_dim=None)])
    assert "mpl" in str(error.value)
    assert networks.MEMORY_LIMIT > 0
