"""Probes of 16 temperatures and 3 seeds, side by side and one by one.

    python benchmarks/probe.py                                          # about 25 minutes
    python benchmarks/probe.py --quick                                  # about 3 minutes
    python benchmarks/probe.py --out benchmarks/results/probe.json      # and keep the figures

One thread, CPU seconds by ``time.process_time``, all in one process. One by one is an ordinary
loop: ``nn.BatchNorm1d`` or nothing, ``nn.Linear``, ``cross_entropy(z / T)``, ``torch.optim`` as it
comes, on the same batches of 64, with the same learning curves and the logits of the same rows.
Both are timed in turn, ``--repeats`` times (AdamW, for information, once); the ratio is the median
of the ratios of neighbours, with its range. *To fused* is, for information, the ratio to that loop
with ``fused=True`` in its optimizer, timed once.

The largest differences are over all 48 trials: of the weights after the last step, relative to the
largest weight of a trial, and of the logits, relative to the largest logit. *Itself* is the largest
difference of the weights between the ordinary loop and the fused one with the rows of every batch
in reverse order: two trainings that differ by nothing but rounding.
"""

from __future__ import annotations

import os

os.environ.update(OMP_NUM_THREADS="1", MKL_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1")

import argparse
import json
import platform
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from temperance.files import write_bytes
from temperance.study.batches import batch_rows, history_steps, learning_rate
from temperance.study.outcome import StudyData
from temperance.study.probe import train_probes
from temperance.study.probe_product import choose_product
from temperance.study.probe_train import train_stack
from temperance.study.trial import Trial

SIZES = ((128, 10), (512, 10), (1280, 10), (384, 150), (1280, 100))
SETTINGS = (("none", "sgd"), ("batch", "sgd"), ("none", "adamw"), ("batch", "adamw"))
RATES = {"sgd": 0.01, "adamw": 1e-3}
LIMIT = 0.35
TEMPERATURES, SEEDS = tuple(np.geomspace(0.5, 64, 16).tolist()), (0, 1, 2)


# ------------------------------------------------------------------ data and trials
def make_data(m: int, c: int, n: tuple[int, int, int] = (4000, 1000, 1000)) -> StudyData:
    """Gaussian classes of unit spread, float32."""
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(c, m)) * 2 / np.sqrt(m) * np.sqrt(np.log(c))
    x, y = {}, {}
    for split, count in zip(("train", "val", "test"), n, strict=True):
        y[split] = rng.integers(0, c, count)
        rows = rng.normal(size=(count, m)) + centres[y[split]]
        x[split] = rows.astype(np.float32)
    return StudyData("classes", x, y, c)


def make_trials(norm: str, optimizer: str, steps: int) -> list[Trial]:
    first = Trial(
        "classes",
        norm=norm,
        optimizer=optimizer,
        lr=RATES[optimizer],
        weight_decay=5e-4,
        steps=steps,
    )
    return [replace(first, seed=s, temperature=t) for s in SEEDS for t in TEMPERATURES]


# ------------------------------------------------------------------ one by one
def train_one(data: dict[str, Any], trial: Trial, rows: torch.Tensor, *, fused: bool = False):
    """Train and judge one probe in the ordinary way."""
    x, y, c = data["x"], data["y"], data["c"]
    m, t = x["train"].shape[1], trial.temperature
    torch.manual_seed(trial.seed)
    linear = nn.Linear(m, c)
    norm = nn.BatchNorm1d(m) if trial.norm == "batch" else nn.Identity()
    model = nn.Sequential(norm, linear)
    groups = [
        {"params": [linear.weight], "weight_decay": trial.weight_decay},
        {"params": [linear.bias, *norm.parameters()], "weight_decay": 0.0},
    ]
    how = {"fused": True} if fused else {}
    if trial.optimizer == "sgd":
        optimizer = torch.optim.SGD(groups, lr=trial.lr, momentum=trial.momentum, **how)
    else:
        optimizer = torch.optim.AdamW(groups, lr=trial.lr, **how)
    curve, total, marks = [], torch.zeros(()), set(history_steps(trial.steps))
    for step in range(trial.steps):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, trial.steps, peak=trial.lr, schedule=trial.schedule)
        index = rows[step]
        loss = cross_entropy(model(x["train"][index]) / t, y["train"][index])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.detach()
        if step + 1 in marks:
            z = infer(model, x["val"]) / t
            nll, hits = cross_entropy(z, y["val"]), (z.argmax(dim=1) == y["val"]).float().mean()
            curve.append((step + 1, float(total), float(nll), float(hits)))
            total = torch.zeros(())
    return model, {split: infer(model, x[split]) / t for split in ("val", "test")}, curve


@torch.no_grad()
def infer(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    model.eval()
    z = model(x)
    model.train()
    return z


def one_by_one(data: StudyData, trials: list[Trial], *, reverse_fused: bool = False) -> list[Any]:
    """Train the trials one after the other, perhaps fused and with batches in reverse order."""
    splits = ("train", "val", "test")
    tensors = {
        "x": {s: torch.from_numpy(data.x[s]) for s in splits},
        "y": {s: torch.from_numpy(data.y[s]) for s in splits},
        "c": data.n_classes,
    }
    first = trials[0]
    n = len(data.y["train"])
    rows = {s: torch.from_numpy(batch_rows(n, first.batch_size, first.steps, s)) for s in SEEDS}
    if reverse_fused:
        rows = {seed: batches.flip(1) for seed, batches in rows.items()}
    return [train_one(tensors, trial, rows[trial.seed], fused=reverse_fused) for trial in trials]


# ------------------------------------------------------------------ both
def timed(function: Callable[[], Any]) -> tuple[float, Any]:
    start = time.process_time()
    result = function()
    return time.process_time() - start, result


def measure(data: StudyData, norm: str, optimizer: str, *, steps: int, repeats: int):
    trials = make_trials(norm, optimizer, steps)
    few = [replace(trial, steps=10) for trial in trials[:2]]
    _ = list(train_probes(data, few)), one_by_one(data, few)  # warm-up
    ours, theirs = [], []
    for _ in range(repeats):
        seconds, outcomes = timed(lambda: list(train_probes(data, trials)))
        ours.append(seconds)
        seconds, single = timed(lambda: one_by_one(data, trials))
        theirs.append(seconds)
    fused, reverse = timed(lambda: one_by_one(data, trials, reverse_fused=True))
    ratios = [a / b for a, b in zip(ours, theirs, strict=True)]
    return {
        "in_features": data.x["train"].shape[1],
        "n_classes": data.n_classes,
        "norm": norm,
        "optimizer": optimizer,
        "steps": steps,
        "side_by_side_cpu_s": ours,
        "one_by_one_cpu_s": theirs,
        "ratio": statistics.median(ratios),
        "ratio_range": [min(ratios), max(ratios)],
        "ratio_to_fused": statistics.median(ours) / fused,
        "weight_difference": weight_difference(stacked_weights(data, trials), weights_of(single)),
        "weight_difference_of_itself": weight_difference(weights_of(reverse), weights_of(single)),
        "logit_difference": logit_difference(outcomes, single),
        "target_met": statistics.median(ratios) <= LIMIT,
    }


def weights_of(single: list[Any]) -> list[torch.Tensor]:
    return [model[1].weight.detach() for model, _, _ in single]


def stacked_weights(data: StudyData, trials: list[Trial]) -> list[torch.Tensor]:
    """The weights that ``train_probes`` comes to; trained again, since it gives logits only."""
    found = []
    for seed in SEEDS:
        chosen = [trial for trial in trials if trial.seed == seed]
        found += train_stack(data, chosen, multiply=choose_product()).heads.weight.unbind()
    return found


def weight_difference(ours: list[torch.Tensor], theirs: list[torch.Tensor]) -> float:
    pairs = zip(ours, theirs, strict=True)
    return max(float((a - b).abs().max() / b.abs().max()) for a, b in pairs)


def logit_difference(outcomes: list[Any], single: list[Any]) -> float:
    worst = 0.0
    for outcome, (_, theirs, _) in zip(outcomes, single, strict=True):
        for split, z in theirs.items():
            difference = np.abs(outcome.logits[split] - z.numpy()).max()
            worst = max(worst, float(difference / z.abs().max()))
    return worst


def table(rows: list[dict[str, Any]]) -> str:
    heads = (
        "| M, C | norm | optimizer | one by one, CPU s | side by side | ratio (range) | to fused |"
    )
    lines = [heads + " weights differ | itself | logits differ |", "|---" * 10 + "|"]
    for row in rows:
        low, high = row["ratio_range"]
        cells = [
            f"{row['in_features']}, {row['n_classes']}",
            row["norm"],
            row["optimizer"],
            f"{statistics.median(row['one_by_one_cpu_s']):.2f}",
            f"{statistics.median(row['side_by_side_cpu_s']):.2f}",
            f"{row['ratio']:.3f} ({low:.3f} to {high:.3f})",
            f"{row['ratio_to_fused']:.3f}",
            f"{row['weight_difference']:.0e}",
            f"{row['weight_difference_of_itself']:.0e}",
            f"{row['logit_difference']:.0e}",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def machine() -> dict[str, str]:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    found = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
    return {
        "processor": found[0] if found else platform.processor(),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "torch": torch.__version__,
        "product": choose_product().__name__.strip("_"),
    }


def main() -> None:
    torch.set_num_threads(1)
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="once, only SGD without a norm")
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, help="write the figures to this file, too")
    options = parser.parse_args()
    rows = []
    for norm, optimizer in SETTINGS[: 1 if options.quick else None]:
        repeats = 1 if options.quick or optimizer == "adamw" else options.repeats
        for m, c in SIZES:
            data = make_data(m, c)
            rows.append(measure(data, norm, optimizer, steps=options.steps, repeats=repeats))
            print(table(rows[-1:]).splitlines()[-1], file=sys.stderr, flush=True)
    record = {
        "benchmark": "probe",
        "threads": 1,
        "machine": machine(),
        "limit": LIMIT,
        "rows": rows,
    }
    print(table(rows))
    print(json.dumps(record))
    if options.out:
        write_bytes(options.out, (json.dumps(record, indent=1) + "\n").encode())


if __name__ == "__main__":
    main()
