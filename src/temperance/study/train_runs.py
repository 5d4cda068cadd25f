"""The runs of ``temperance train`` as rows of a study: its arms are temperatures of one setting."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from temperance.errors import InvalidInput
from temperance.records import Run, Task, loads
from temperance.study.ledger import row_of, task_key
from temperance.study.outcome import Outcome, StudyData
from temperance.study.score import score
from temperance.study.trial import Trial

__all__ = ["is_training", "rows_of_training"]


def is_training(folder: Path) -> bool:
    """Say whether a folder is one of ``temperance train`` that came to its report."""
    return (folder / "report.json").is_file() and (folder / "runs").is_dir()


def rows_of_training(folder: Path) -> tuple[list[dict[str, Any]], dict[str, Task]]:
    """Read the runs of a folder of ``temperance train``.

    Its fit rows, which fit the post-hoc temperature, are the validation rows of a study. Arms of
    one norm and smoothing make a curve.

    Args:
        folder: the ``--out`` folder.

    Returns:
        Rows and tasks, as ``runs.curves_of_rows`` takes them.

    Raises:
        InvalidInput: if a record or its logits cannot be read.
    """
    from temperance.training.table import Comparison

    report = loads((folder / "report.json").read_text(encoding="utf-8"), Comparison)
    rows = [_row(file, report) for file in sorted((folder / "runs").glob("*.json"))]
    return rows, {row["task"]: report.task for row in rows}


def _row(file: Path, report: Any) -> dict[str, Any]:
    run = loads(file.read_text(encoding="utf-8"), Run)
    trial = _trial(run.trial, report)
    key = task_key(trial.task_content)
    made = {"seconds": run.seconds, "feature_dim": report.task.feature_dim}
    if run.outcome != "done":
        return row_of(Outcome(trial, run.outcome, run.message, **made), {}, key)
    logits, labels = _logits(file)
    data = StudyData(trial.dataset, {}, labels, report.task.n_classes)
    outcome = Outcome(trial, "done", logits=logits, **made)
    return row_of(outcome, score(outcome, data), key)


def _trial(arm: Mapping[str, Any], report: Any) -> Trial:
    from temperance.training.loop import plan_steps

    rows = report.data["rows"]["train"]
    return Trial(
        dataset=str(report.data["name"]),
        model=report.model,
        feature_dim=report.task.feature_dim,
        norm=arm["norm"],
        temperature=arm["temperature"],
        optimizer=arm["optimizer"],
        lr=arm["lr"],
        weight_decay=arm["weight_decay"],
        momentum=arm["momentum"],
        batch_size=arm["batch_size"],
        steps=arm["epochs"] * len(plan_steps(rows, arm["batch_size"])),
        train_rows=rows,
        smoothing=arm["smoothing"],
        seed=arm["seed"],
        augment=arm.get("augment", "none"),
    )


def _logits(file: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Logits (divided by T already, as the model puts them out) and labels of a run."""
    from temperance.models import read_safetensors

    held = file.with_suffix(".logits.safetensors")
    if not held.is_file():
        raise InvalidInput(
            f"run {file}",
            expected="its logits beside it",
            found=f"no {held.name}",
            fix="Run temperance train --resume on the folder.",
        )
    stored = read_safetensors(held)
    names = {"val": "fit", "test": "test"}
    logits = {split: stored[name].numpy() for split, name in names.items()}
    return logits, {split: stored[f"{name}_labels"].numpy() for split, name in names.items()}
