"""T that moves in a training: each path against a plain loop that says what it is."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from temperance.errors import InvalidInput, TemperanceWarning
from temperance.head import (
    HeadOptions,
    LearnedTemperature,
    Ramp,
    insert,
    parameter_groups,
    set_scheduled,
)
from temperance.study.batches import batch_rows, learning_rate
from temperance.study.ledger import read_rows
from temperance.study.networks import train_networks
from temperance.study.networks_paths import (
    FREE_RATE,
    SPENT_EXPONENT,
    SPENT_FLOOR,
    planned_path,
    validation_batches,
)
from temperance.study.outcome import StudyData
from temperance.study.plan import read_plan
from temperance.study.probe import train_probes
from temperance.study.sweep import SweepOptions, sweep
from temperance.study.trial import PATHS, Trial, trial_from_dict
from temperance.training.nets import build_net

MOVING = PATHS[1:]


def made(seed=0):
    rng = np.random.default_rng(seed)
    x, y = {}, {}
    patterns = rng.normal(size=(4, 6))
    for split, rows in (("train", 90), ("val", 40), ("test", 30)):
        y[split] = rng.integers(0, 4, rows)
        x[split] = (0.7 * patterns[y[split]] + rng.normal(size=(rows, 6))).astype(np.float32)
    return StudyData("made", x, y, 4)


DATA = made()


def trial(path, **changes):
    base = {"model": "mlp", "feature_dim": 12, "batch_size": 16, "steps": 25, "lr": 0.02}
    return Trial("made", path=path, **(base | {"norm": "batch", "temperature": 3.0} | changes))


def optimizer_of(t, groups):
    if t.optimizer == "sgd":
        return torch.optim.SGD(groups, lr=t.lr, momentum=t.momentum)
    kind = torch.optim.AdamW if t.optimizer == "adamw" else torch.optim.RMSprop
    return kind(groups, lr=t.lr)


def built(t):
    net = build_net(
        t.model, input_shape=(6,), n_classes=4, seed=t.seed, feature_dim=t.feature_dim
    ).module
    options = HeadOptions(
        gradient_compensation=t.loss == "normalized",
        learned=LearnedTemperature() if t.path == "learned" else None,
    )
    return net, insert(net, t.temperature, norm=t.norm, name="head", options=options)


def hyper_of(head, h, y, *, t, log, stepped):
    """d val loss / d log T through one step, by autograd through the gradient itself.

    ``stepped`` gives the gradient of the validation loss after the step.
    """
    outer = [p.detach().clone().requires_grad_() for p in head.linear.parameters()]
    temperature = log.exp()
    z = nn.functional.linear(h.detach(), *outer) / temperature
    loss = nn.functional.cross_entropy(z, y, label_smoothing=t.smoothing)
    loss = loss * temperature if t.loss == "normalized" else loss
    update = torch.cat([g.flatten() for g in torch.autograd.grad(loss, outer, create_graph=True)])
    if t.optimizer != "sgd":
        update = update / update.norm()

    def slope():
        judged = torch.cat([g.flatten() for g in stepped()])
        return torch.autograd.grad(-(judged * update).sum(), log)[0]

    return slope


def plain_loop(t, *, data=DATA):
    """One net, torch's optimizers, the rooms of the head; the temperatures of all steps beside."""
    net, head = built(t)
    groups = parameter_groups(net, t.weight_decay)
    own = [head.log_temperature] if t.path == "learned" else []
    for group in groups:
        group["params"] = [p for p in group["params"] if all(p is not q for q in own)]
    optimizer = optimizer_of(t, [g for g in groups if g["params"]])
    log = own[0] if own else torch.tensor([math.log(t.temperature)], requires_grad=True)
    adam = torch.optim.Adam([log], lr=FREE_RATE, eps=1e-20)
    x, y = torch.tensor(data.x["train"]), torch.tensor(data.y["train"])
    val, of_val = torch.tensor(data.x["val"]), torch.tensor(data.y["val"])
    seen = []
    head.linear.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0]))
    rates = [learning_rate(s, t.steps, peak=t.lr, schedule=t.schedule) for s in range(t.steps)]
    judges = validation_batches(data, t)
    found = []
    for step, rows in enumerate(batch_rows(len(y), t.batch_size, t.steps, t.seed)):
        if t.path == "ramp":
            set_scheduled(net, Ramp(1.0, t.temperature), step, t.steps)
        if t.path == "spent":
            share = sum(rates[: step + 1]) / sum(rates)
            head.set_temperature(t.temperature * max(share**SPENT_EXPONENT, SPENT_FLOOR))
        for part in (*optimizer.param_groups, *adam.param_groups):
            part["lr"] = rates[step] * (FREE_RATE / t.lr if part["params"][0] is log else 1)
        loss = nn.functional.cross_entropy(net(x[rows]), y[rows], label_smoothing=t.smoothing)

        def stepped(step=step):
            net.eval()
            place = judges[step]
            judged = nn.functional.cross_entropy(net(val[place]), of_val[place])
            net.train()
            if t.loss == "normalized":  # the head gives it a factor T, which the NLL has not
                judged = judged / float(head.temperature)
            return torch.autograd.grad(judged, list(head.linear.parameters()))

        slope = hyper_of(head, seen[-1], y[rows], t=t, log=log, stepped=stepped)
        optimizer.zero_grad()
        adam.zero_grad()
        loss.backward()
        optimizer.step()
        if t.path == "hypergradient":
            log.grad = slope()
        if t.path in ("learned", "hypergradient"):
            adam.step()
        if t.path == "hypergradient":
            head.set_temperature(float(log.detach().exp()))
        found.append(float(head.temperature))
    net.eval()
    with torch.no_grad():
        return {s: net(torch.tensor(data.x[s])).numpy() for s in ("val", "test")}, found


def check(trials, outcomes):
    for t, outcome in zip(trials, outcomes, strict=True):
        logits, temperatures = plain_loop(t)
        assert outcome.outcome == "done", outcome.message
        history = outcome.history
        wanted = [temperatures[int(step) - 1] for step in history["step"]]
        np.testing.assert_allclose(history["temperature"], wanted, rtol=2e-4)
        for split, z in logits.items():
            np.testing.assert_allclose(outcome.logits[split], z, rtol=2e-3, atol=5e-4)


# ------------------------------------------------------------------ as a plain loop
SETTINGS = {
    "sgd": {"momentum": 0.9},
    "constant rate": {"schedule": "constant", "momentum": 0.0, "norm": "layer"},
    "smoothed": {"smoothing": 0.1, "norm": "none", "weight_decay": 0.01},
    "normalized": {"loss": "normalized", "lr": 0.005},
    "adamw": {"model": "probe", "feature_dim": None, "optimizer": "adamw", "lr": 0.003},
    "rmsprop": {"model": "probe", "feature_dim": None, "optimizer": "rmsprop", "lr": 0.001},
}


@pytest.mark.parametrize("setting", SETTINGS.values(), ids=SETTINGS)
@pytest.mark.parametrize("path", MOVING)
def test_every_path_is_the_plain_loop(path, setting):
    trials = [trial(path, **setting | {"temperature": t}) for t in (0.7, 3.0)]
    check(trials, train_networks(DATA, trials))


def test_paths_side_by_side_do_not_disturb_each_other(rng_guard):
    trials = [trial(path, temperature=t) for t in (1.5, 6.0) for path in PATHS]
    with rng_guard():
        outcomes = list(train_networks(DATA, trials))
    assert [o.trial for o in outcomes] == trials
    check(
        [t for t in trials if t.path != "constant"],
        [o for o in outcomes if o.trial.path != "constant"],
    )
    for alone in (o for o in outcomes if o.trial.path == "constant"):
        (again,) = train_networks(DATA, [alone.trial])
        np.testing.assert_allclose(alone.logits["test"], again.logits["test"], rtol=1e-4, atol=1e-5)
        assert list(alone.history) == ["step", "train_loss", "val_nll", "val_accuracy"]


@pytest.mark.parametrize("path", MOVING)
def test_the_ordinary_way_is_the_plain_loop(path, monkeypatch, rng_guard):
    def refuse(net):
        raise InvalidInput("net", expected="", found="a part", fix="")

    monkeypatch.setattr("temperance.study.networks_net.trace_steps", refuse)
    trials = [trial(path), trial(path, smoothing=0.1, loss="normalized", lr=0.005)]
    with rng_guard(), pytest.warns(TemperanceWarning, match="one by one"):
        outcomes = list(train_networks(DATA, trials))
    check(trials, outcomes)


def test_pictures_too():
    rng = np.random.default_rng(0)
    x = {s: rng.normal(size=(30, 1, 8, 8)).astype(np.float32) for s in ("train", "val", "test")}
    y = {s: rng.integers(0, 3, 30) for s in x}
    data = StudyData("made", x, y, 3)
    trials = [trial(path, model="convnet", steps=4) for path in PATHS]
    outcomes = list(train_networks(data, trials))
    assert {o.outcome for o in outcomes} == {"done"}


# ------------------------------------------------------------------ what they are
@pytest.mark.parametrize("schedule", ["cosine", "constant"])
@pytest.mark.parametrize("steps", [1, 2, 300])
def test_planned_paths_end_at_the_temperature(schedule, steps):
    for temperature in (0.02, 0.5, 8.0):
        change = {"schedule": schedule, "steps": steps, "temperature": temperature}
        ramp = planned_path(trial("ramp", **change))
        spent = planned_path(trial("spent", **change))
        assert ramp[-1] == pytest.approx(temperature)
        assert spent[-1] == pytest.approx(temperature)
        assert len(ramp) == len(spent) == steps
        assert (np.diff(spent) >= 0).all()
        assert spent.min() >= max(0.01, temperature * SPENT_FLOOR) - 1e-12
        assert ramp[0] == pytest.approx(1.0 if steps > 1 else temperature)


def test_free_paths_stay_between_the_bounds_of_a_learned_t():
    low = trial("learned", temperature=0.011, steps=100, lr=1e-9)
    (outcome,) = train_networks(DATA, [low])
    assert min(outcome.history["temperature"]) >= 0.01 * (1 - 1e-6)
    for path in ("learned", "hypergradient"):
        with pytest.raises(InvalidInput) as error:
            train_networks(DATA, [trial(path, temperature=600.0)])
        assert error.value.subject == "temperature"
    assert list(train_networks(DATA, [trial("ramp", temperature=600.0, steps=3)]))


def test_what_diverges_does_not_disturb_the_others():
    for path in MOVING:
        good = [trial(path, norm="none", temperature=t) for t in (1.0, 4.0)]
        bad = trial(path, norm="none", lr=1e30)
        outcomes = list(train_networks(DATA, [good[0], bad, good[1]]))
        assert [o.outcome for o in outcomes] == ["done", "diverged", "done"]
        check(good, outcomes[::2])


def test_a_sweep_says_so_before_it_trains(tmp_path):
    plan = tmp_path / "plan.toml"
    grid = 'temperature = [1, 2]\npath = ["constant", "ramp"]\nseed = {count = 40}\n'
    plan.write_text(f'name = "p"\n[fixed]\ndataset = "iris"\nsteps = 3\n[grid]\n{grid}')
    with pytest.raises(InvalidInput) as error:
        sweep(read_plan(plan), out=tmp_path / "out")
    assert error.value.found == "ramp"
    plan.write_text(
        plan.read_text()
        .replace("[grid]", 'model = "mlp"\nfeature_dim = 4\n[grid]')
        .replace("40", "1")
    )
    quick = SweepOptions(statistics=False)
    assert sweep(read_plan(plan), tmp_path / "out", options=quick).outcomes["done"] == 4
    rows = read_rows(tmp_path / "out")
    last = {row["trial"]["path"]: row["history"].get("temperature") for row in rows}
    assert last["constant"] is None
    assert last["ramp"][0] == 1.0


def test_old_rows_are_constant():
    old = Trial("digits", model="mlp").to_dict()
    del old["path"]
    assert trial_from_dict(old) == Trial("digits", model="mlp", path="constant")


def test_a_probe_has_no_paths():
    with pytest.raises(InvalidInput) as error:
        train_probes(DATA, [Trial("made", path="ramp", steps=3)])
    assert "path constant" in error.value.expected
    assert error.value.found == "ramp"
