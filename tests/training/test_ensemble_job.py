"""Ensembles in one backbone as a job: outputs, figures, resuming, and what is refused."""

import json
import math
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.nn import functional as F  # noqa: N812

from temperance.ensemble import predict_members
from temperance.errors import InvalidInput, NotFound
from temperance.evaluation.calibration import ece
from temperance.training import ensemble_runs, loop
from temperance.training import runs as runs_module
from temperance.training.ensemble_bundle import load_members
from temperance.training.ensemble_job import run_ensemble
from temperance.training.ensemble_plan import EnsemblePlan
from temperance.training.ensemble_runs import new_ensemble, prepare_ensemble
from temperance.training.loop import Budget
from temperance.training.nets import build_net
from temperance.training.plan import Plan, Progress
from temperance.training.sources import open_data
from temperance.training.splits import make_splits, select

TRAINING = Plan(
    source="digits",
    model="mlp1",
    feature_dim=16,
    seeds=2,
    train_rows=200,
    budget=Budget(epochs=2, batch_size=32, lr=0.1),
)
PLAN = EnsemblePlan(TRAINING, members=2, taus=(0.1, 0.5), deep=True)
QUICK = EnsemblePlan(replace(TRAINING, seeds=1, budget=Budget(epochs=1)), members=2)


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """One finished job; tests that change it take a copy."""
    folder = tmp_path_factory.mktemp("job") / "out"
    with torch.random.fork_rng(devices=[]):
        comparison = run_ensemble(PLAN, folder)
    return folder, comparison


def rows(name):
    data = open_data("digits")
    return select(data, getattr(make_splits(data, seed=0, train_rows=200), name))


def test_the_folder_holds_what_was_promised(done):
    folder, comparison = done
    names = {p.name for p in folder.iterdir()}
    assert names == {
        "config.json", "members.safetensors", "plan.json", "plots", "report.html", "report.json",
        "runs",
    }  # fmt: skip
    assert {p.stem for p in (folder / "plots").iterdir()} == {
        "differences", "frontier", "learning_curves", "reliability", "sharing",
    }  # fmt: skip
    assert all(p.read_bytes().startswith(b"\x89PNG") for p in (folder / "plots").iterdir())
    kept = {p.name.split(".json")[0] for p in (folder / "runs").glob("*.json")}
    sigma = {f"sigma-tau-{tau}-seed{seed}" for tau in (0.1, 0.5) for seed in (0, 1)}
    assert kept == {f"single-seed{s}" for s in range(4)} | sigma
    assert not list((folder / "runs").glob("*.weights.safetensors"))
    page = (folder / "report.html").read_text(encoding="utf-8")
    for method in comparison.methods:
        assert method.title in page
    report = json.loads((folder / "report.json").read_text(encoding="utf-8"))
    assert [m["name"] for m in report["methods"]] == [m.name for m in comparison.methods]
    assert report["data"]["rows"]["train"] == 200
    assert report["cost"] == comparison.cost
    assert "Multiply-adds" in page
    assert comparison.cost["not_counted"] in page


def pooled(z):
    return z.double().softmax(-1).mean(0)


def logits_of(folder, method, split):
    """Members' logits of seed 1, read from the kept files."""
    if method.startswith("sigma"):
        stems = [f"{method.replace(':', '-').replace('=', '-')}-seed1"]
    else:
        stems = [f"single-seed{s}" for s in ((2, 3) if method == "deep" else (2,))]
    found = [load_file(folder / "runs" / f"{s}.logits.safetensors")[split] for s in stems]
    return found[0] if found[0].dim() == 3 else torch.stack(found)


@pytest.mark.parametrize("place", range(4))
def test_figures_agree_with_the_kept_logits(done, place):
    """The table against a plain computation from members' probabilities."""
    folder, comparison = done
    method = comparison.methods[place]
    report, y = method.reports["1"], torch.from_numpy(rows("test").y)
    z = logits_of(folder, method.name, "test")
    assert len(z) == method.members
    p = pooled(z)
    plain = {
        "accuracy": (p.argmax(1) == y).double().mean(),
        "nll": -p[range(len(y)), y].log().mean(),
        "brier": (p - F.one_hot(y, 10)).square().sum(1).mean(),
        "ece": ece(probs=p.numpy(), labels=y.numpy()),
    }
    for name, value in plain.items():
        assert report.metrics[name].value == pytest.approx(float(value))
    (t,) = method.posthoc_temperatures[1]
    after = (p.log() / t).log_softmax(1)
    assert report.metrics["nll_posthoc"].value == pytest.approx(float(F.nll_loss(after, y)))
    fit = (pooled(logits_of(folder, method.name, "fit")).log() / t).log_softmax(1)
    slope = [F.nll_loss((fit * s).log_softmax(1), torch.from_numpy(rows("fit").y)) for s in
             (0.98, 1.0, 1.02)]  # fmt: skip
    assert slope[1] <= min(slope)
    two = method.members == 2
    votes = z.argmax(-1)
    apart = (votes[0] != votes[-1]).double().mean().item()
    assert method.metrics["nll"].value == pytest.approx(
        np.mean([r.metrics["nll"].value for r in method.reports.values()])
    )
    assert ("disagreement" in method.uncertainty) is two
    assert not two or 0 <= apart <= 1


def test_uncertainty_adds_up_and_parameters_are_counted(done):
    single, deep, *sigma = done[1].methods
    assert deep.parameters == 2 * single.parameters
    for method in (deep, *sigma):
        u = method.uncertainty
        assert u["total"] == pytest.approx(u["aleatoric"] + u["mutual_information"])
    head, gammas = 16 * 10 + 10, 2 * 16
    assert sigma[0].parameters == single.parameters + head + gammas
    # mlp1: 64 x 16 once, before the first norm, then 16 x 10 of each member
    assert single.multiply_adds == 64 * 16 + 16 * 10
    assert deep.multiply_adds == 2 * single.multiply_adds
    assert sigma[0].multiply_adds == 64 * 16 + 2 * 16 * 10
    assert all(m.milliseconds_per_row > 0 for m in done[1].methods)
    assert done[1].cost["batch_rows"] == 256
    assert sigma[0].differences["nll"].value == pytest.approx(
        sigma[0].metrics["nll"].value - single.metrics["nll"].value
    )
    assert set(sigma[0].against_deep) == set(sigma[0].differences)
    assert deep.against_deep == {}
    assert "held_out_disagreement" in sigma[0].histories[0]
    assert all(v < 0 for v in sigma[0].histories[0]["penalty"])


def test_the_choice_goes_by_the_fit_rows_and_what_is_shipped_loads_strictly(done):
    folder, comparison = done
    best = min(comparison.methods[2:], key=lambda m: m.held_out_nll)
    assert comparison.choice.tau == best.tau
    bundle = load_members(folder)
    state = load_file(folder / "members.safetensors")
    assert set(state) == set(bundle.ensemble.state_dict())
    stem = f"sigma-tau-{best.tau}-seed{comparison.choice.seed}"
    kept = load_file(folder / "runs" / f"{stem}.logits.safetensors")["test"]
    z = predict_members(bundle.ensemble, bundle.preprocess.apply(rows("test").x))
    torch.testing.assert_close(z, kept, rtol=1e-4, atol=1e-4)
    assert bundle.config["posthoc"]["when"] == "after"
    harmed = bytearray((folder / "members.safetensors").read_bytes())
    harmed[-3] ^= 0x40
    copy = folder.parent / "harmed"
    shutil.copytree(folder, copy)
    (copy / "members.safetensors").write_bytes(harmed)
    with pytest.raises(InvalidInput):
        load_members(copy)


# ------------------------------------------------------------------ stopping and going on
class Stop(Exception):
    """Stands for Ctrl-C."""


def test_interrupted_and_resumed_gives_the_same(done, tmp_path, monkeypatch):
    monkeypatch.setattr(runs_module, "SAVE_EVERY", 0.0)
    folder, count = tmp_path / "out", 0

    def stop(*_):
        nonlocal count
        count += 1
        if count == 5:  # in the middle of the first ensemble
            raise Stop

    with pytest.raises(Stop):
        run_ensemble(PLAN, folder, progress=Progress(epoch=stop))
    assert [p.name for p in (folder / "state").iterdir()] == ["sigma-tau-0.1-seed0.safetensors"]
    assert not (folder / "report.json").exists()
    seen = []
    again = run_ensemble(
        PLAN, folder, resume=True, progress=Progress(epoch=lambda *a: seen.append(a))
    )
    assert seen[0][2] == 6  # two single models and an epoch were there
    assert seen[-1][2:] == (16, 16)
    for name in ("sigma-tau-0.1-seed0", "sigma-tau-0.5-seed1"):
        ours, theirs = (f / "runs" / f"{name}.logits.safetensors" for f in (folder, done[0]))
        torch.testing.assert_close(load_file(ours), load_file(theirs), rtol=0, atol=0)
    assert again.choice == done[1].choice


def test_resuming_a_finished_job_repairs_what_was_lost(done, tmp_path):
    folder = shutil.copytree(done[0], tmp_path / "copy")
    for lost in ("report.html", "members.safetensors"):
        (folder / lost).unlink()
    assert run_ensemble(PLAN, folder, resume=True).choice == done[1].choice
    load_members(folder)
    assert (folder / "report.html").exists()
    assert not (folder / "state").exists()


def test_a_finished_folder_and_another_plan(done):
    with pytest.raises(InvalidInput) as caught:
        run_ensemble(PLAN, done[0])
    assert "--resume" in caught.value.fix
    with pytest.raises(InvalidInput) as caught:
        run_ensemble(replace(PLAN, strength=0.5), done[0], resume=True)
    assert caught.value.found == "strength = 0.5"


# ------------------------------------------------------------------ other ways
def test_split_before_a_suggested_t_and_no_random_state(tmp_path, rng_guard):
    plan = replace(QUICK, protocol="split", when="before", temperature=2.0, init="paper")
    with rng_guard():
        comparison = run_ensemble(plan, tmp_path / "out")
    assert (comparison.temperature, comparison.norm) == (2.0, "batch")
    sigma = comparison.methods[1]
    assert len(sigma.posthoc_temperatures[0]) == 2
    assert "frontier" not in {p.stem for p in (tmp_path / "out" / "plots").iterdir()}
    bundle = load_members(tmp_path / "out")
    assert bundle.ensemble.protocol == "split"
    assert len(bundle.config["posthoc"]["temperatures"]) == 2


def test_the_rule_suggests_t_and_norm():
    plan = replace(
        QUICK, temperature="suggested", training=replace(QUICK.training, rule="sqrt-dim")
    )
    prepared = prepare_ensemble(plan)
    (arm,) = prepared.arms
    assert (arm.temperature, arm.norm) == (prepared.suggestion.temperature, "batch")
    head = new_ensemble(prepared, plan, seed=0).backbone.head
    assert float(head.temperature) == pytest.approx(arm.temperature)
    (plain,) = prepare_ensemble(QUICK).arms
    assert (plain.temperature, plain.norm) == (1.0, "none")


def test_one_member_is_a_model(tmp_path):
    comparison = run_ensemble(replace(QUICK, members=1), tmp_path / "out")
    assert comparison.methods[1].uncertainty == {}
    assert "penalty" not in comparison.methods[1].histories[0]
    assert load_members(tmp_path / "out").ensemble.members == 1


def test_members_start_from_weights(tmp_path):
    net = build_net("mlp1", input_shape=(1, 8, 8), n_classes=10, seed=7, feature_dim=16).module
    file = tmp_path / "w.safetensors"
    save_file(net.state_dict(), file)
    plan = replace(QUICK, training=replace(QUICK.training, weights=str(file)), spread=0.5)
    prepared = prepare_ensemble(plan)
    ensemble = new_ensemble(prepared, plan, seed=0)
    torch.testing.assert_close(ensemble.backbone.body[1].weight, net.body[1].weight)
    assert plan.member_heads == "copy"
    comparison = run_ensemble(replace(plan, deep=True), tmp_path / "out")
    assert comparison.choice is not None
    assert any("start from the same loaded weights" in n for n in comparison.notices)


def test_the_gammas_keep_their_rate_and_the_loop_its_rows():
    prepared = prepare_ensemble(QUICK)
    ensemble = new_ensemble(prepared, QUICK, seed=0)
    from temperance.ensemble import parameter_groups

    groups = parameter_groups(ensemble, 0.0, lr=0.1, gamma_rate=5.0)
    training = loop.start(ensemble, Budget(lr=0.1), seed=0, groups=groups)
    loop._set_lr(training.optimizer, Budget(lr=0.1, epochs=1), 1, 2)
    rates = [group["lr"] for group in training.optimizer.param_groups]
    assert rates[-1] == pytest.approx(5 * rates[0])
    assert rates[0] == pytest.approx(0.05)
    assert loop.plan_steps(202, 65, multiple=4) == [64, 64, 72]


def test_a_diverged_ensemble_is_said_and_the_rest_judged(tmp_path, monkeypatch):
    monkeypatch.setattr(ensemble_runs, "member_loss", lambda z, *_, **__: z.sum() * math.nan)
    comparison = run_ensemble(QUICK, tmp_path / "out")
    single, sigma = comparison.methods
    assert (single.outcomes, sigma.outcomes) == (("done",), ("diverged",))
    assert sigma.messages == ("the loss was nan in epoch 1",)
    assert single.metrics["accuracy"].value > 0
    assert comparison.choice is None
    assert not (tmp_path / "out" / "config.json").exists()
    assert "diverged" in (tmp_path / "out" / "report.html").read_text(encoding="utf-8")


def test_nothing_comes_to_an_end(tmp_path):
    training = replace(QUICK.training, budget=Budget(epochs=1, lr=1e37))
    comparison = run_ensemble(replace(QUICK, training=training, deep=True), tmp_path / "out")
    assert {o for m in comparison.methods for o in m.outcomes} == {"diverged"}
    assert (tmp_path / "out" / "report.html").exists()


# ------------------------------------------------------------------ what is refused
@pytest.mark.parametrize(
    ("changes", "subject"),
    [
        ({"members": 0}, "members"),
        ({"members": 2.5}, "members"),
        ({"taus": (0.0,)}, "tau"),
        ({"taus": (float("nan"),)}, "tau"),
        ({"taus": ()}, "tau"),
        ({"taus": (0.1, 0.1)}, "tau"),
        ({"members": 1, "taus": (0.1, 0.2)}, "tau"),
        ({"strength": -1.0}, "strength"),
        ({"gamma_rate": 0.0}, "gamma_rate"),
        ({"protocol": "share"}, "protocol"),
        ({"heads": "new"}, "heads"),
        ({"when": "during"}, "posthoc"),
        ({"temperature": "warm"}, "temperature"),
        ({"temperature": 0.0}, "temperature"),
        ({"protocol": "split", "members": 128}, "batch_size under protocol 'split'"),
        ({"protocol": "split", "of": "mean"}, "loss under protocol 'split'"),
    ],
)
def test_bad_plans(changes, subject):
    with pytest.raises(InvalidInput) as caught:
        replace(QUICK, **changes)
    assert caught.value.subject == subject


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"training": replace(QUICK.training, model="probe", feature_dim=None)}, NotFound),
        ({"training": replace(QUICK.training, weights="nothing.safetensors")}, NotFound),
        ({"training": replace(QUICK.training, source="nowhere")}, InvalidInput),
        ({"spread": 0.0, "heads": "copy"}, InvalidInput),  # members that would stay equal
        ({"protocol": "split", "members": 32}, InvalidInput),  # two rows for each BatchNorm
    ],
)
def test_what_cannot_be_trained_is_refused_before_any_work(tmp_path, changes, error):
    with pytest.raises(error):
        run_ensemble(replace(QUICK, **changes), tmp_path / "out")
    assert not (tmp_path / "out").exists()
