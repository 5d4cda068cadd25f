"""Going on with a job whose rule gives another T now, and the rate that was tuned at T = 1."""

import json
import shutil
from dataclasses import replace

import pytest
import torch

from temperance.errors import InvalidInput
from temperance.training import runs as runs_module
from temperance.training.job import run_job
from temperance.training.loop import Budget
from temperance.training.plan import Plan, Progress
from temperance.training.prepare import prepare

PLAN = Plan(
    source="digits",
    model="probe",
    arms=("bn", "bn:T=budget", "bn:T=sqrt..1"),
    seeds=1,
    train_rows=100,
    budget=Budget(epochs=2, batch_size=32),
)


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """One finished job; tests that change it take a copy."""
    folder = tmp_path_factory.mktemp("job") / "out"
    with torch.random.fork_rng(devices=[]):
        return folder, run_job(PLAN, folder)


@pytest.mark.parametrize(
    ("arm", "name"),
    [("bn-T-budget", "temperature"), ("bn-T-sqrt..1", "temperature"), ("bn-T-sqrt..1", "end")],
)
def test_a_run_with_another_temperature_is_not_averaged_with_new_ones(done, tmp_path, arm, name):
    folder = shutil.copytree(done[0], tmp_path / "copy")
    file = folder / "runs" / f"{arm}-seed0.json"
    record = json.loads(file.read_text())
    record["trial"][name] *= 1.5
    file.write_text(json.dumps(record))
    with pytest.raises(InvalidInput) as caught:
        run_job(PLAN, folder, resume=True)
    assert caught.value.subject == str(file)
    assert f"one with T = {record['trial'][name]:.6g}" in caught.value.found


def test_a_state_with_another_temperature_is_not_gone_on_with(tmp_path, monkeypatch):
    monkeypatch.setattr(runs_module, "SAVE_EVERY", 0.0)

    class Stop(Exception):
        pass

    def stop(*_):
        raise Stop

    plan = replace(PLAN, arms=("bn:T=suggested",), rule="sqrt-dim")
    with pytest.raises(Stop):
        run_job(plan, tmp_path / "out", progress=Progress(epoch=stop))
    (state,) = (tmp_path / "out" / "state").iterdir()
    prepared = prepare(plan)
    (arm,) = prepared.arms
    with pytest.raises(InvalidInput) as caught:
        runs_module.run_one(
            prepared, tmp_path / "out", replace(arm, temperature=3.0), 0, report=lambda _: None
        )
    assert caught.value.subject == str(state)
    assert caught.value.found.startswith("one with T = 8")
    run_job(plan, tmp_path / "out", resume=True)


def test_a_job_that_knew_no_tuned_rate_goes_on(done, tmp_path):
    folder = shutil.copytree(done[0], tmp_path / "copy")
    file = folder / "plan.json"
    plan = json.loads(file.read_text())
    del plan["plan"]["tuned_lr"]
    file.write_text(json.dumps(plan))
    assert run_job(PLAN, folder, resume=True).choice == done[1].choice
    with pytest.raises(InvalidInput) as caught:
        run_job(replace(PLAN, tuned_lr=0.1), folder, resume=True)
    assert caught.value.found == "tuned_lr = 0.1"


@pytest.mark.parametrize("rule", [None, "sqrt-dim"])
def test_a_tuned_rate_that_the_rule_makes_nothing_of_is_told(rule):
    prepared = prepare(replace(PLAN, arms=("bn:T=suggested",), tuned_lr=0.05, rule=rule))
    assert prepared.task.training["tuned_lr"] == 0.05
    used = "log(lr/tuned_lr)" in prepared.suggestion.terms
    assert any("tuned_lr = 0.05 is not used" in n for n in prepared.notices) != used
    if rule is not None:
        assert not used


@pytest.mark.parametrize("value", [0, -1.0, float("inf"), float("nan"), "0.1", True])
def test_tuned_rates_that_there_are_not(value):
    with pytest.raises(InvalidInput) as caught:
        replace(PLAN, tuned_lr=value)
    assert caught.value.subject == "plan, tuned_lr"
