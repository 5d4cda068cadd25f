"""``temperance train`` as a function: from a plan to an output folder that can be used."""

from __future__ import annotations

from pathlib import Path

from temperance.errors import TemperanceError
from temperance.files import check_writable, write_bytes
from temperance.head import fold
from temperance.models import find_head, read_safetensors
from temperance.records import dumps
from temperance.training.arms import Arm
from temperance.training.bundle import load_bundle, save_bundle
from temperance.training.moving import stored_temperature
from temperance.training.output_folder import check_plan, keep_plan, only_one, tidy
from temperance.training.page import write_page
from temperance.training.plan import Plan, Prepared, Progress
from temperance.training.prepare import prepare
from temperance.training.runs import key_of, new_model, run_arms, run_one
from temperance.training.splits import select
from temperance.training.table import Comparison, summarize

__all__ = ["run_job"]


def run_job(
    plan: Plan, out: str | Path, *, resume: bool = False, progress: Progress | None = None
) -> Comparison:
    """Measure, suggest, train every arm over every seed, judge, choose, and write it all.

    The folder then holds ``model.safetensors`` and ``config.json`` (the chosen run, folded),
    ``report.json``, ``report.html``, ``plots/*.png``, and in ``runs/`` record and logits of every
    run. An interruption leaves a state from which ``resume=True`` goes on to the same result.

    Args:
        plan: what to do.
        out: output folder.
        resume: go on with what is in the folder.
        progress: told about stages and epochs.

    Returns:
        The comparison; its ``choice`` is None if no run came to an end.

    Raises:
        InvalidInput: for a folder that cannot be written or holds another job, and for anything
            that ``prepare`` refuses.
    """
    folder = Path(out)
    tell = progress or Progress()
    check_writable(folder)
    with only_one(folder, verb="train"):
        check_plan(folder, plan.to_dict(), resume=resume, verb="train")
        prepared = prepare(plan, tell)
        keep_plan(folder, plan.to_dict(), prepared)
        tell.stage("training")
        scored = run_arms(prepared, folder, tell)
        tell.stage("judging and writing the report")
        comparison = summarize(prepared, scored)
        if comparison.choice is not None:
            _ship(folder, prepared, comparison)
        write_bytes(folder / "report.json", dumps(comparison).encode())
        write_page(folder, comparison)
        tidy(folder)
    return comparison


# ------------------------------------------------------------------ what is shipped
def _ship(folder: Path, prepared: Prepared, comparison: Comparison) -> None:
    """Fold the chosen run, write it, and read it back to be sure."""
    choice = comparison.choice
    assert choice is not None
    arm = next(a for a in prepared.arms if a.name == choice.arm)
    summary = next(a for a in comparison.arms if a.arm.name == choice.arm)
    run = next(
        r for r in comparison.runs if (r.trial["arm"], r.trial["seed"]) == (choice.arm, choice.seed)
    )
    path = folder / "runs" / f"{key_of(arm, choice.seed)}.weights.safetensors"
    if not path.exists():  # a finished job that is resumed has dropped them
        if _is_shipped(folder, arm, choice.seed):
            return
        run_one(prepared, folder, arm, choice.seed, report=lambda _: None)
    model = new_model(prepared, arm, seed=choice.seed).cpu()
    model.load_state_dict(read_safetensors(path))
    model.eval()
    stored = stored_temperature(model)  # of a float32 buffer; a fixed T is known exactly
    example = prepared.preprocess.apply(select(prepared.data, prepared.splits.fit).x[:8])
    foldable = arm.folds
    error = None
    if foldable:
        model = fold(model, example)
        error = getattr(find_head(model, example).module, "fold_report", None)
    report = run.report
    assert report is not None
    save_bundle(
        folder,
        model,
        {
            "model": {
                "name": prepared.model_name,
                "input_shape": list(prepared.preprocess.shape),
                "feature_dim": prepared.plan.feature_dim,
                "head": find_head(model, example).name,
            },
            "feature_names": prepared.data.feature_names,
            "class_map": prepared.data.class_map.to_dict(),
            "preprocess": prepared.preprocess.to_dict(),
            "temperature": {
                "value": stored if arm.moves else arm.temperature,
                "training": arm.moves or "fixed",
                "unit": "divides the logits",
                "norm": arm.norm,
                "folded": foldable,
                "fold_error": None if error is None else error.max_rel_error,
            },
            "posthoc_temperature": {
                "value": report.posthoc_temperature,
                "unit": "divides the logits of the model in this folder",
                "fitted_on": f"{comparison.data['rows']['fit']} held-out rows",
            },
            "chosen": {"arm": arm.name, "title": summary.title, "seed": choice.seed},
        },
    )
    load_bundle(folder)


def _is_shipped(folder: Path, arm: Arm, seed: int) -> bool:
    """Whether the folder already holds this run as a whole."""
    try:
        chosen = load_bundle(folder).config["chosen"]
    except TemperanceError:
        return False
    return (chosen["arm"], chosen["seed"]) == (arm.name, seed)
