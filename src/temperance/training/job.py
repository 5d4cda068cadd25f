"""``temperance train`` as a function: from a plan to an output folder that can be used."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from temperance.errors import InvalidInput, TemperanceError
from temperance.files import check_writable, write_bytes
from temperance.head import fold
from temperance.models import find_head, read_safetensors
from temperance.records import dumps
from temperance.training.arms import Arm
from temperance.training.bundle import load_bundle, save_bundle
from temperance.training.page import write_page
from temperance.training.plan import Plan, Prepared, Progress
from temperance.training.prepare import prepare
from temperance.training.runs import key_of, new_model, run_arms, run_one
from temperance.training.splits import select
from temperance.training.table import Comparison, summarize
from temperance.version import __version__

__all__ = ["run_job"]

_MAY_DIFFER = ("workers", "device")  # how the work is done, not what is done


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
    with _only_one(folder):
        _check_plan(folder, plan, resume=resume)
        prepared = prepare(plan, tell)
        _keep_plan(folder, prepared)
        tell.stage("training")
        scored = run_arms(prepared, folder, tell)
        tell.stage("judging and writing the report")
        comparison = summarize(prepared, scored)
        if comparison.choice is not None:
            _ship(folder, prepared, comparison)
        write_bytes(folder / "report.json", dumps(comparison).encode())
        write_page(folder, comparison)
        _tidy(folder)
    return comparison


# ------------------------------------------------------------------ one job per folder
@contextmanager
def _only_one(folder: Path) -> Iterator[None]:
    """Hold a lock on the folder; the system frees it even if the process is killed."""
    try:
        import fcntl
    except ImportError:  # not on Windows
        yield
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(handle)
        raise InvalidInput(
            f"output folder {folder}",
            expected="a folder that nobody is writing",
            found="another temperance train at work there",
            fix="Wait for it, or choose another folder.",
        ) from None
    try:
        yield
    except BaseException:
        with suppress(OSError):  # an empty folder is of no use; one with a state in it stays
            folder.rmdir()
        raise
    finally:
        os.close(handle)


def _check_plan(folder: Path, plan: Plan, *, resume: bool) -> None:
    """Refuse a folder with a job in it, unless it is this job and it is to go on."""
    file = folder / "plan.json"
    _refuse_inside(folder, plan.source)
    if not file.exists():
        others = sorted(p.name for p in folder.iterdir())
        if others:
            raise InvalidInput(
                f"output folder {folder}",
                expected="a new or empty folder, or one of temperance train",
                found=", ".join(others[:5]) + (", ..." if len(others) > 5 else ""),
                fix="Choose another folder; nothing in this one was touched.",
            )
        return
    if not resume:
        raise InvalidInput(
            f"output folder {folder}",
            expected="an empty folder",
            found="a training",
            fix="Pass --resume to go on with it, or choose another folder.",
        )
    old = _read_plan(file)["plan"]
    new = plan.to_dict()
    for key in new:
        if key not in _MAY_DIFFER and old.get(key) != new[key]:
            raise InvalidInput(
                f"output folder {folder}",
                expected=f"the same job: {key} = {old.get(key)!r}",
                found=f"{key} = {new[key]!r}",
                fix="Resume with the options of the first call, or choose another folder.",
            )


def _refuse_inside(folder: Path, source: str) -> None:
    """An output folder among the data would be read as a class the next time."""
    data = Path(source)
    if data.is_dir() and folder.resolve().is_relative_to(data.resolve()):
        raise InvalidInput(
            f"output folder {folder}",
            expected=f"a folder outside the data in {source}",
            found="one inside",
            fix="Choose another with --out.",
        )


def _read_plan(file: Path) -> dict[str, Any]:
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
        return {"plan": dict(found["plan"]), "fingerprints": dict(found["fingerprints"])}
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise InvalidInput(
            str(file),
            expected="the plan of a training",
            found=f"something else ({error})",
            fix="Choose another folder.",
        ) from error


def _keep_plan(folder: Path, prepared: Prepared) -> None:
    file = folder / "plan.json"
    prints = {"data": prepared.data.fingerprint}
    if prepared.plan.weights is not None:
        content = Path(prepared.plan.weights).read_bytes()
        prints["weights"] = hashlib.sha256(content).hexdigest()
    facts = {"plan": prepared.plan.to_dict(), "fingerprints": prints}
    if file.exists():
        old = _read_plan(file)["fingerprints"]
        for what, source in (("data", prepared.plan.source), ("weights", prepared.plan.weights)):
            if old.get(what) != prints.get(what):
                raise InvalidInput(
                    f"{what} {source}",
                    expected=f"the {what} that the training was started with",
                    found="other content",
                    fix="Put it back, or start into another folder.",
                )
        return
    text = json.dumps({**facts, "version": __version__}, indent=2, ensure_ascii=False)
    write_bytes(file, text.encode())


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
    example = prepared.preprocess.apply(select(prepared.data, prepared.splits.fit).x[:8])
    foldable = arm.norm != "layer"
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
                "value": arm.temperature,
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


def _tidy(folder: Path) -> None:
    """Drop states and the weights of single runs; records and logits stay."""
    for file in (folder / "state").glob("*.safetensors"):
        file.unlink()
    with suppress(OSError):
        (folder / "state").rmdir()
    for file in (folder / "runs").glob("*.weights.safetensors"):
        file.unlink()
