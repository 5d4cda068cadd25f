"""Train the cells of a plan, one after the other; several such processes share out a plan.

    python studies/sigma_ensemble/run.py PLAN WORK      # a part of plans.py, or "all"; a folder

Every finished cell is a file ``WORK/rows/KEY.json`` and its logits ``WORK/logits/KEY.npz``; what is
there is not done again, so that a call goes on where another one stopped. One thread each: start as
many as there are cores. ``collect.py`` makes rows of the files.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import argparse
import io
import json
import time
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from cells import Cell, member_of
from judge import judge, ood_figures
from methods import make
from nets import build
from numpy.typing import NDArray
from plans import PLANS
from sets import Rows, load
from torch import nn

from temperance.ensemble.diversity import require_distinct
from temperance.ensemble.members import Ensemble
from temperance.ensemble.predict import predict_members
from temperance.ensemble.sharing import sharing_statistics
from temperance.errors import TemperanceError
from temperance.evaluation.corruptions import CORRUPTIONS, corrupt
from temperance.files import write_bytes
from temperance.models.probe import evaluating
from temperance.training import loop

CORRUPTED, CURVE = {"resnet": 400, "vit": 200}, 200
"""Test rows that are corrupted, by net, and fit rows of the learning curves."""


@cache
def rows_of(dataset: str, train_rows: int) -> Rows:
    return load(dataset, train_rows)


def new_net(cell: Cell, rows: Rows) -> nn.Module:
    return build(
        cell.net,
        cell.width,
        shape=rows.input_shape,
        classes=rows.n_classes,
        words=rows.words,
        seed=cell.seed,
    )


def budget_of(cell: Cell) -> loop.Budget:
    return loop.Budget(
        epochs=cell.epochs, optimizer=cell.optimizer, lr=cell.lr, augment=cell.augment
    )


# ------------------------------------------------------------------ one cell
def train(cell: Cell, rows: Rows) -> tuple[nn.Module, loop.Training]:
    """Train the model or the ensemble of a cell."""
    example = rows.preprocess.apply(rows.x["train"][:2])
    model, groups, objective = make(cell, new_net(cell, rows).train(), example)
    if isinstance(model, Ensemble) and cell.members > 1:
        require_distinct(model)
    budget = budget_of(cell)
    training = loop.start(model, budget, seed=cell.seed, groups=groups, objective=objective)
    batches = loop.Batches(rows.x["train"], rows.y["train"], rows.preprocess)
    curve = loop.Batches(rows.x["fit"][:CURVE], rows.y["fit"][:CURVE], rows.preprocess)
    loop.train(training, batches, budget, held_out=curve)
    return model, training


def predict(model: nn.Module, rows: Rows, stored: NDArray[Any]) -> NDArray[Any]:
    """Logits ``[M, n, C]``; M = 1 of one model."""
    x = rows.preprocess.apply(stored)
    if hasattr(model, "members"):
        return predict_members(model, x, batch_size=200).numpy()
    with evaluating(model), torch.inference_mode():
        return torch.cat([model(part) for part in x.split(200)])[None].numpy()


def logits_of(cell: Cell, model: nn.Module, rows: Rows) -> dict[str, NDArray[Any]]:
    """Of fit and test rows, of other things, and of corrupted test rows."""
    out = {name: predict(model, rows, rows.x[name]) for name in ("fit", "test")}
    out |= {f"ood:{name}": predict(model, rows, x) for name, x in rows.ood.items()}
    if cell.dataset == "cifar10":
        pictures = rows.x["test"][: CORRUPTED[cell.net]]
        for kind in CORRUPTIONS:
            for severity in range(1, 6):
                bad = corrupt(pictures, kind, severity=severity)
                out[f"corrupted:{kind}:{severity}"] = predict(model, rows, bad)
    return out


def figures_of(logits: dict[str, NDArray[Any]], rows: Rows) -> dict[str, Any]:
    """All figures of a cell from its logits."""
    found: dict[str, Any] = {"metrics": judge(logits, rows.y)}
    ood = {n.partition(":")[2]: z for n, z in logits.items() if n.startswith("ood:")}
    if ood:
        found["ood"] = {name: ood_figures(logits["test"], z) for name, z in ood.items()}
    bad = [name for name in logits if name.startswith("corrupted:")]
    if bad:
        found["corrupted"] = _corrupted({name: logits[name] for name in bad}, logits, rows)
    return found


def _corrupted(
    bad: dict[str, NDArray[Any]], logits: dict[str, NDArray[Any]], rows: Rows
) -> dict[str, dict[str, float]]:
    """Means over the kinds for each severity; T stays that of the clean fit rows."""
    n = next(iter(bad.values())).shape[1]
    y = {"fit": rows.y["fit"], "test": rows.y["test"][:n]}
    clean = judge({"fit": logits["fit"], "test": logits["test"][:, :n]}, y)
    out = {"0": clean}
    for severity in range(1, 6):
        each = [
            judge({"fit": logits["fit"], "test": z}, y)
            for name, z in bad.items()
            if name.endswith(f":{severity}")
        ]
        out[str(severity)] = {k: float(np.mean([e[k] for e in each])) for k in clean}
    kept = ("accuracy", "nll", "ece", "brier", "ece_posthoc", "nll_posthoc", "mutual_information")
    return {severity: {k: row[k] for k in kept} for severity, row in out.items()}


def do(cell: Cell, work: Path) -> dict[str, Any]:
    """Train, judge, keep."""
    rows = rows_of(cell.dataset, cell.train_rows)
    row: dict[str, Any] = {"key": cell.key, "cell": cell.to_dict(), "outcome": "done"}
    begun = time.process_time()
    try:
        if cell.method == "deep_ensemble":
            logits, row["train_seconds"], parameters = _put_together(cell, work)
            row["parameters"] = parameters
        else:
            model, training = train(cell, rows)
            row["train_seconds"] = time.process_time() - begun
            row["parameters"] = sum(p.numel() for p in model.parameters())
            row["curve"] = training.history
            if training.diverged:
                return {**row, "outcome": "diverged", "message": training.diverged}
            logits = logits_of(cell, model, rows)
            if isinstance(model, Ensemble) and cell.members > 1:
                row["sharing"] = _sharing(model)
    except TemperanceError as error:
        return {**row, "outcome": "refused", "message": str(error)}
    row |= figures_of(logits, rows)
    buffer = io.BytesIO()
    np.savez(buffer, **{k: v.astype(np.float32) for k, v in logits.items()})
    write_bytes(work / "logits" / f"{cell.key}.npz", buffer.getvalue())
    return row


def _sharing(model: nn.Module) -> dict[str, float]:
    found = sharing_statistics(model)
    return {
        "effective_owners": float(np.mean(found.effective_owners)),
        "owners_above": float(np.mean(found.owners_above)),
        "correlation": float(np.mean(found.correlation)),
        "spread": float(np.mean(found.spread)),
    }


def _put_together(cell: Cell, work: Path) -> tuple[dict[str, NDArray[Any]], float, int]:
    """A deep ensemble of single models, M * seed and on; each trained by itself."""
    parts, seconds, parameters = [], 0.0, 0
    for member in range(cell.members):
        single = member_of(cell, member)
        row = json.loads((work / "rows" / f"{single.key}.json").read_text())
        with np.load(work / "logits" / f"{single.key}.npz") as file:
            parts.append({name: file[name] for name in file.files})
        seconds, parameters = seconds + row["train_seconds"], parameters + row["parameters"]
    return {n: np.concatenate([p[n] for p in parts]) for n in parts[0]}, seconds, parameters


# ------------------------------------------------------------------ a plan
def claim(work: Path, key: str) -> bool:
    """Take a cell that no other process has taken."""
    try:
        with (work / "claims" / key).open("x") as file:
            file.write(str(os.getpid()))
    except FileExistsError:
        return False
    return True


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("plan", choices=[*PLANS, "all"])
    parser.add_argument("work", type=Path)
    parser.add_argument("--seeds", type=int, nargs="+", help="of these only")
    options = parser.parse_args()
    torch.set_num_threads(1)
    for name in ("rows", "logits", "claims"):
        (options.work / name).mkdir(parents=True, exist_ok=True)
    for name, value in _dead(options.work):
        print(f"claim of {name} by {value}, which is gone: let go", flush=True)
    plans = PLANS.values() if options.plan == "all" else [PLANS[options.plan]]
    cells = [cell for plan in plans for cell in plan()]
    if options.seeds is not None:
        cells = [cell for cell in cells if seed_of(cell) in options.seeds]
    for number, cell in enumerate(cells):
        place = options.work / "rows" / f"{cell.key}.json"
        if place.exists() or not claim(options.work, cell.key):
            continue
        if not _ready(cell, options.work):
            (options.work / "claims" / cell.key).unlink()
            continue
        row = do(cell, options.work)
        write_bytes(place, (json.dumps(row) + "\n").encode())
        found = row.get("metrics", {})
        said = " ".join(f"{k} {found[k]:.4f}" for k in ("accuracy", "nll", "ece") if k in found)
        seconds = row.get("train_seconds", 0)
        print(
            f"{number + 1}/{len(cells)} {cell.part} {cell.dataset} {cell.net}-{cell.width} "
            f"{cell.method} M={cell.members} seed {cell.seed}: {row['outcome']} {said} "
            f"{seconds:.0f} s",
            flush=True,
        )


def seed_of(cell: Cell) -> int:
    """The seed of the plan, which the members of a deep ensemble have in their hundreds."""
    return cell.seed // 100 if cell.method == "single" else cell.seed


def _ready(cell: Cell, work: Path) -> bool:
    """Whether the members of a deep ensemble are there."""
    if cell.method != "deep_ensemble":
        return True
    singles = [member_of(cell, m).key for m in range(cell.members)]
    return all((work / "logits" / f"{key}.npz").exists() for key in singles)


def _dead(work: Path) -> list[tuple[str, str]]:
    """Let go of what processes took that ended without a result."""
    gone = []
    for file in (work / "claims").iterdir():
        pid = file.read_text().strip()
        done = (work / "rows" / f"{file.name}.json").exists()
        if pid and not done and not Path(f"/proc/{pid}").exists():
            file.unlink()
            gone.append((file.name, pid))
    return gone


if __name__ == "__main__":
    main()
