"""``temperance ensemble`` as a function: from a plan to members that can be used."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from temperance.ensemble import Ensemble, SharingStatistics, sharing_statistics
from temperance.errors import TemperanceError
from temperance.files import check_writable, write_bytes
from temperance.models import read_safetensors
from temperance.records import dumps
from temperance.training.ensemble_bundle import load_members, save_members
from temperance.training.ensemble_cost import costs_of
from temperance.training.ensemble_page import write_ensemble_page
from temperance.training.ensemble_plan import EnsemblePlan
from temperance.training.ensemble_runs import (
    new_ensemble,
    prepare_ensemble,
    retrain,
    run_methods,
    weights_of,
)
from temperance.training.ensemble_table import (
    EnsembleChoice,
    EnsembleComparison,
    summarize_methods,
)
from temperance.training.output_folder import check_plan, keep_plan, only_one, tidy
from temperance.training.plan import Prepared, Progress

__all__ = ["run_ensemble"]


def run_ensemble(
    plan: EnsemblePlan,
    out: str | Path,
    *,
    resume: bool = False,
    progress: Progress | None = None,
) -> EnsembleComparison:
    """Train ensembles in one backbone beside a single model, judge, choose, and write it all.

    The folder then holds ``members.safetensors`` and ``config.json`` (the chosen ensemble; read by
    ``load_members``), ``report.json``, ``report.html``, ``plots/*.png``, and in ``runs/`` record
    and logits of every run. An interruption leaves a state from which ``resume=True`` goes on to
    the same result.

    Args:
        plan: what to do.
        out: output folder.
        resume: go on with what is in the folder.
        progress: told about stages and epochs.

    Returns:
        The comparison; its ``choice`` is None if no ensemble came to an end.

    Raises:
        InvalidInput: for a folder that cannot be written or holds another job, and for anything
            that ``prepare_ensemble`` refuses, before any training.
        NotFound, MissingPackage: likewise.
    """
    folder = Path(out)
    tell = progress or Progress()
    check_writable(folder)
    with only_one(folder, verb="ensemble"):
        check_plan(folder, plan.to_dict(), resume=resume, verb="ensemble")
        prepared = prepare_ensemble(plan, tell)
        keep_plan(folder, plan.to_dict(), prepared)
        tell.stage("training")
        found = run_methods(prepared, plan, folder, tell)
        tell.stage("judging and writing the report")
        comparison = summarize_methods(prepared, plan, found, costs=costs_of(prepared, plan))
        sharing = _shipped(folder, prepared, plan, comparison)
        write_bytes(folder / "report.json", dumps(comparison).encode())
        write_ensemble_page(folder, comparison, sharing=sharing)
        tidy(folder)
    return comparison


# ------------------------------------------------------------------ what is shipped
def _shipped(
    folder: Path, prepared: Prepared, plan: EnsemblePlan, comparison: EnsembleComparison
) -> SharingStatistics | None:
    """Write the chosen ensemble, read it back to be sure, and look at how it shares."""
    choice = comparison.choice
    if choice is None:
        return None
    path = weights_of(plan, prepared, folder, choice.tau, choice.seed)
    ensemble = None
    if not path.exists():  # a finished job that is resumed has dropped them
        ensemble = _already(folder, choice)
        if ensemble is None:
            retrain(prepared, plan, folder, tau=choice.tau, seed=choice.seed)
    if ensemble is None:
        chosen = new_ensemble(prepared, plan, seed=choice.seed).cpu()
        chosen.load_state_dict(read_safetensors(path), strict=True)
        save_members(folder, chosen.eval(), _config(prepared, plan, comparison, choice))
        ensemble = load_members(folder).ensemble
    return sharing_statistics(ensemble) if plan.members > 1 else None


def _already(folder: Path, choice: EnsembleChoice) -> Ensemble | None:
    """The ensemble in the folder, if it is this one and whole."""
    try:
        bundle = load_members(folder)
    except TemperanceError:
        return None
    chosen = bundle.config["chosen"]
    same = (chosen["tau"], chosen["seed"]) == (choice.tau, choice.seed)
    return bundle.ensemble if same else None


def _config(
    prepared: Prepared,
    plan: EnsemblePlan,
    comparison: EnsembleComparison,
    choice: EnsembleChoice,
) -> dict[str, Any]:
    """All that a prediction needs besides the weights."""
    summary = next(m for m in comparison.methods if m.tau == choice.tau)
    done = [s for s, outcome in enumerate(summary.outcomes) if outcome == "done"]
    place = done.index(choice.seed)
    temperatures = list(summary.posthoc_temperatures[place])
    return {
        "model": {
            "name": prepared.model_name,
            "input_shape": list(prepared.preprocess.shape),
            "feature_dim": prepared.plan.feature_dim,
        },
        "ensemble": {
            "members": plan.members,
            "init": plan.init,
            "protocol": plan.protocol,
            "strength": plan.strength,
            "form": plan.form,
            "gamma_rate": plan.gamma_rate,
        },
        "feature_names": prepared.data.feature_names,
        "class_map": prepared.data.class_map.to_dict(),
        "preprocess": prepared.preprocess.to_dict(),
        "temperature": {
            "value": comparison.temperature,
            "unit": "divides the logits of every member",
            "norm": comparison.norm,
        },
        "posthoc": {
            "temperatures": temperatures,
            "when": plan.when,
            "unit": "divides the logits of each member, before their probabilities are averaged"
            if plan.when == "before"
            else "divides the logarithm of the members' mean probabilities",
            "fitted_on": f"{comparison.data['rows']['fit']} held-out rows",
        },
        "chosen": {"tau": choice.tau, "seed": choice.seed, "why": choice.why},
    }
