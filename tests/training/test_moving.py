"""Arms whose T moves, through the whole job: trained, logged, shipped with the value in effect."""

import json

import pytest
import torch
from safetensors.torch import load_file

from temperance.errors import InvalidInput
from temperance.head import temperatures, tempered_heads
from temperance.training import loop
from temperance.training.arms import Arm
from temperance.training.bundle import load_bundle
from temperance.training.job import run_job
from temperance.training.loop import Budget
from temperance.training.moving import bounds_of, objective_of, stored_temperature
from temperance.training.plan import Plan

ARMS = ("cosine:s=adacos-dynamic", "bn:T=4..1", "bn:T=learned@4", "cosine:T=learned")


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    folder = tmp_path_factory.mktemp("moving") / "out"
    plan = Plan(
        source="digits",
        model="mlp",
        feature_dim=16,
        arms=ARMS,
        seeds=1,
        train_rows=300,
        budget=Budget(epochs=4, batch_size=50),
    )
    with torch.random.fork_rng(devices=[]):
        return folder, run_job(plan, folder)


def test_t_is_logged_where_it_moves_and_drawn(done):
    _, comparison = done
    curves = {str(run.trial["arm"]): run.history["temperature"] for run in comparison.runs}
    assert [len(curve) for curve in curves.values()] == [4] * 4
    assert curves["bn:T=4..1"][-1] == 1.0
    steps = 6 * 4
    assert curves["bn:T=4..1"][0] == pytest.approx(4 - 3 * 5 / (steps - 1), rel=1e-5)
    for arm in ("bn:T=learned@4", "cosine:T=learned", "cosine:s=adacos-dynamic"):
        assert len(set(curves[arm])) == 4
    assert {run.outcome for run in comparison.runs} == {"done"}


def test_the_shipped_model_has_the_value_in_effect(done):
    folder, comparison = done
    config = json.loads((folder / "config.json").read_text())
    chosen = comparison.choice.arm
    run = next(r for r in comparison.runs if r.trial["arm"] == chosen)
    assert chosen.startswith("bn")  # the arms that fold come first
    assert config["temperature"]["value"] == pytest.approx(run.history["temperature"][-1], rel=1e-5)
    assert config["temperature"]["unit"] == "divides the logits"
    assert config["temperature"]["training"]
    assert config["temperature"]["folded"]


@pytest.mark.parametrize("arm", ["cosine:T=learned", "cosine:s=adacos-dynamic"])
def test_a_cosine_head_is_shipped_as_it_is(arm, tmp_path):
    plan = Plan(
        source="digits",
        model="mlp",
        feature_dim=16,
        arms=(arm,),
        seeds=1,
        train_rows=300,
        budget=Budget(epochs=1, batch_size=50),
    )
    with torch.random.fork_rng(devices=[]):
        comparison = run_job(plan, tmp_path / "out")
    bundle = load_bundle(tmp_path / "out")
    (head,) = tempered_heads(bundle.model).values()
    assert (head.norm_kind, head.learned) == ("cosine", None)
    logged = comparison.runs[0].history["temperature"][-1]
    assert float(head.temperature) == pytest.approx(logged, rel=1e-5)
    assert bundle.config["temperature"]["value"] == float(head.temperature)
    assert not bundle.config["temperature"]["folded"]
    state = load_file(tmp_path / "out" / "model.safetensors")
    assert not any("log_temperature" in name for name in state)


def test_a_start_outside_of_the_bounds_is_refused_before_any_training(tmp_path):
    plan = Plan(source="digits", model="mlp", feature_dim=16, arms=("plain", "bn:T=learned@1000"))
    with pytest.raises(InvalidInput) as error:
        run_job(plan, tmp_path / "out")
    assert error.value.subject == "arm"
    assert "1000" in error.value.found
    assert not (tmp_path / "out" / "runs").exists()


def test_arms_whose_titles_round_to_the_same_are_told_apart(tmp_path):
    arms = ("cosine:s=adacos", "cosine:s=3.11", "bn:T=learned@4.001", "bn:T=learned@4.002")
    plan = Plan(
        source="digits",
        model="mlp",
        feature_dim=16,
        arms=arms,
        seeds=1,
        train_rows=300,
        budget=Budget(epochs=1, batch_size=50),
    )
    with torch.random.fork_rng(devices=[]):
        comparison = run_job(plan, tmp_path / "out")
    titles = [arm.title for arm in comparison.arms]
    assert len(set(titles)) == 4
    assert titles[:2] == ["cosine, s = 3.11 (cosine:s=adacos)", "cosine, s = 3.11 (cosine:s=3.11)"]


def test_a_fixed_t_is_in_the_config_as_it_was_asked_for(tmp_path):
    plan = Plan(
        source="digits",
        model="mlp",
        feature_dim=16,
        arms=("bn:T=3.3",),
        seeds=1,
        train_rows=300,
        budget=Budget(epochs=1, batch_size=50),
    )
    with torch.random.fork_rng(devices=[]):
        run_job(plan, tmp_path / "out")
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["temperature"]["value"] == 3.3  # not 3.299999952316284
    assert config["temperature"]["training"] == "fixed"


def test_a_fixed_arm_has_nothing_to_do_and_no_curve():
    arm = Arm("bn", "batch", 1.0)
    objective = objective_of(arm, torch.nn.Linear(4, 3))
    assert (objective.on_step, objective.moves, bounds_of(arm)) == (None, False, None)
    assert objective == loop.Objective()


def test_stored_temperature_is_the_one_of_the_model():
    from temperance import insert
    from temperance.head import HeadOptions, LearnedTemperature

    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 3))
    insert(model, 2.0, options=HeadOptions(learned=LearnedTemperature()))
    assert stored_temperature(model) == pytest.approx(2.0)
    assert temperatures(model) == {"1": pytest.approx(2.0)}
    assert not [n for n, _ in model.named_parameters() if "log_temperature" in n]
