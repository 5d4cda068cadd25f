"""Nets side by side (``temperance.study.networks``) against an ordinary torch loop, one by one.

    python benchmarks/networks.py --out benchmarks/results/networks.json   # about 3 minutes

16 trials (one seed, 16 temperatures, BatchNorm in front of the output layer, SGD with momentum,
batch 64) of every net. CPU seconds by ``time.process_time`` of one thread, for training alone:
without the evaluation that both need afterwards. The loop is what one would write: ``nn.Module``,
``cross_entropy``, ``torch.optim.SGD``, memory as torch lays it out; its time of one trial is taken
times 16. Every net has a process of its own, since what the engine does for the memory of the
process (see ``networks._KEPT``) would help the loop as well; in it, loop and engine alternate, and
the loop runs before the engine for the first time. ``kept``: the loop with that help, measured
afterwards. The best of the rounds counts.

- ``loop``, ``kept``, ``engine``: milliseconds of a step of one trial.
- ``together``: trials that the engine trains as one program.
- ``of the loop``, ``of kept``: time of the engine by that of the loop.
- ``1``, ``4``, ``16``: time of a program of so many trials by that of the loop.
"""

from __future__ import annotations

import os

os.environ.update(OMP_NUM_THREADS="1", MKL_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1")

import argparse
import json
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from temperance.head import insert, parameter_groups
from temperance.study import networks
from temperance.study.batches import batch_rows, learning_rate
from temperance.study.networks_net import new_prototype
from temperance.study.networks_train import Stack
from temperance.study.outcome import StudyData
from temperance.study.trial import Trial
from temperance.training.nets import build_net

MEMBERS, BATCH, CLASSES = 16, 64, 10
# net, M, shape of a row, steps of one round
CASES = (
    ("mlp", 128, (64,), 300),
    ("mlp", 512, (64,), 100),
    ("convnet", 16, (1, 8, 8), 100),
    ("convnet", 64, (1, 28, 28), 12),
    ("resnet", 64, (1, 28, 28), 6),
)
ROUNDS, WARM_UP = 3, 3


def made(shape: tuple[int, ...]) -> StudyData:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(1024, *shape)).astype(np.float32)
    y = rng.integers(0, CLASSES, 1024)
    splits = ("train", "val", "test")
    return StudyData("made", dict.fromkeys(splits, x), dict.fromkeys(splits, y), CLASSES)


def seconds_per_step(step: Callable[[int], Any], steps: int) -> float:
    for k in range(WARM_UP):
        step(k)
    start = time.process_time()
    for k in range(steps):
        step(k)
    return (time.process_time() - start) / steps


# ------------------------------------------------------------------ the contestants
def loop(data: StudyData, trial: Trial, steps: int) -> float:
    """Seconds of a step of one trial in the ordinary loop."""
    net = build_net(
        trial.model,
        input_shape=data.input_shape,
        n_classes=CLASSES,
        seed=trial.seed,
        feature_dim=trial.feature_dim,
    ).module
    insert(net, trial.temperature, norm=trial.norm, name="head")
    groups = parameter_groups(net, trial.weight_decay)
    optimizer = torch.optim.SGD(groups, lr=trial.lr, momentum=trial.momentum)
    x, y = torch.from_numpy(data.x["train"]), torch.from_numpy(data.y["train"])
    rows = torch.from_numpy(batch_rows(len(y), BATCH, trial.steps, trial.seed))

    def step(k: int) -> None:
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(k, trial.steps, peak=trial.lr, schedule=trial.schedule)
        loss = nn.functional.cross_entropy(net(x[rows[k]]), y[rows[k]])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return seconds_per_step(step, steps)


def engine(data: StudyData, trials: list[Trial], steps: int) -> float:
    """Seconds of a step of one trial of a stack."""
    first = trials[0]
    prototype = new_prototype(data, first)
    stack = Stack(prototype, trials, BATCH)
    rows = batch_rows(len(data.y["train"]), BATCH, first.steps, first.seed)

    def step(k: int) -> None:
        x = prototype.inputs(np.take(data.x["train"], rows[k], axis=0))
        stack.step(x, torch.from_numpy(data.y["train"][rows[k]]), k)

    return seconds_per_step(step, max(3, steps // len(trials))) / len(trials)


# ------------------------------------------------------------------ one net
def measure(name: str, feature_dim: int) -> dict[str, Any]:
    _, _, shape, steps = next(case for case in CASES if case[:2] == (name, feature_dim))
    data = made(shape)
    trials = [
        Trial("made", model=name, feature_dim=feature_dim, norm="batch", temperature=t, lr=0.01)
        for t in np.geomspace(0.25, 32, MEMBERS).tolist()
    ]
    places = networks._together(
        data,
        trials,
        0,
        prototype=new_prototype(data, trials[0]),
        memory_limit=networks.MEMORY_LIMIT,
    )
    ordinary = min(loop(data, trials[0], steps) for _ in range(ROUNDS))
    torch.empty(networks._KEPT, dtype=torch.uint8)
    sizes = sorted({1, 4, MEMBERS, len(places)})
    found: dict[Any, list[float]] = {}
    for _ in range(ROUNDS):
        found.setdefault("kept", []).append(loop(data, trials[0], steps))
        for size in sizes:
            found.setdefault(size, []).append(engine(data, trials[:size], steps))
    best = {key: min(values) for key, values in found.items()}
    return {
        "net": name,
        "feature_dim": feature_dim,
        "input_shape": shape,
        "together": len(places),
        "loop_ms": 1e3 * ordinary,
        "loop_kept_ms": 1e3 * best["kept"],
        "engine_ms": 1e3 * best[len(places)],
        "of_the_loop": best[len(places)] / ordinary,
        "of_the_loop_kept": best[len(places)] / best["kept"],
        "by_members": {str(size): best[size] / ordinary for size in sizes},
    }


def table(rows: list[dict[str, Any]]) -> str:
    lines = [
        "| net, M, input | loop | kept | engine | together | of the loop | of kept | 1 | 4 | 16 |",
        "|---" * 10 + "|",
    ]
    for row in rows:
        shape = "x".join(map(str, row["input_shape"]))
        times = " | ".join(f"{row[k]:.2f}" for k in ("loop_ms", "loop_kept_ms", "engine_ms"))
        ratios = " | ".join(f"{row[k]:.2f}" for k in ("of_the_loop", "of_the_loop_kept"))
        by = " | ".join(f"{row['by_members'][str(size)]:.2f}" for size in (1, 4, MEMBERS))
        title = f"{row['net']}, {row['feature_dim']}, {shape}"
        lines.append(f"| {title} | {times} | {row['together']} | {ratios} | {by} |")
    return "\n".join(lines)


def main() -> None:
    torch.set_num_threads(1)
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, help="write the figures to this file, too")
    parser.add_argument("--case", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.case:
        name, feature_dim = options.case.split("x")
        print(json.dumps(measure(name, int(feature_dim))))
        return
    rows = []
    for name, feature_dim, _, _ in CASES:
        command = [sys.executable, __file__, "--case", f"{name}x{feature_dim}"]
        rows.append(json.loads(subprocess.run(command, check=True, capture_output=True).stdout))
    print(table(rows))
    record = {"benchmark": "networks", "threads": 1, "members": MEMBERS, "machine": machine()}
    record |= {"nets": rows}
    print(json.dumps(record))
    if options.out:
        part = options.out.with_suffix(".part")
        part.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
        os.replace(part, options.out)


def machine() -> dict[str, str]:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
    return {
        "processor": names[0] if names else platform.processor(),
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


if __name__ == "__main__":
    main()
