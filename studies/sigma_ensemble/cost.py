"""What every method costs at M = 4: parameters, multiply-adds, times of a step and a prediction.

    python studies/sigma_ensemble/cost.py OUT.json        # about 15 CPU minutes; one thread

For each task a process measures CPU seconds of a training step (64 rows: forward, backward, AdamW)
and of a prediction of 200 rows; the methods alternate, and a ratio to the single model is the
median of the ratios within a round. Peak memory is what the high-water mark of the resident set
(Linux: ``VmHWM``) grows by while a method is built and two steps are made, each in a process of its
own. A deep ensemble takes four steps one after the other, each with an optimizer of its own. The
data come from ``TEMPERANCE_DATA``, as in ``run.py``.
"""

from __future__ import annotations

import os

os.environ.update(OMP_NUM_THREADS="1", MKL_NUM_THREADS="1")

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from methods import make
from nets import build
from plans import RIVALS, TASKS
from run import rows_of
from torch import nn

from temperance.errors import TemperanceError
from temperance.files import write_bytes
from temperance.models.cost import multiply_adds
from temperance.training import loop

METHODS = ("single", "deep_ensemble", "sigma", "sigma_split", *RIVALS)
BATCH, ROWS, WARM = 64, 200, 2
Step = Callable[[], None]


class Setup:
    """One method on one task: what a step and a prediction are."""

    def __init__(self, task: str, method: str) -> None:
        cell = replace(TASKS[task], method=method)
        rows = rows_of(cell.dataset, cell.train_rows)
        size = {"shape": rows.input_shape, "classes": rows.n_classes, "words": rows.words}
        self.x = rows.preprocess.apply(rows.x["train"][:BATCH])
        self.y = torch.from_numpy(rows.y["train"][:BATCH])
        self.more = rows.preprocess.apply(rows.x["test"][:ROWS])
        count = 4 if method == "deep_ensemble" else 1
        alone = replace(cell, method="single") if count > 1 else cell
        nets = [build(cell.net, cell.width, seed=s, **size).train() for s in range(count)]
        self.parts = [self._part(alone, net) for net in nets]

    def _part(self, cell: Any, net: nn.Module) -> tuple[nn.Module, Any, Any]:
        model, groups, objective = make(cell, net, self.x[:2])
        budget = loop.Budget(cell.epochs, optimizer=cell.optimizer, lr=cell.lr)
        return model, loop.start(model, budget, seed=0, groups=groups).optimizer, objective

    def step(self) -> None:
        """Make one training step of all parts."""
        for model, optimizer, objective in self.parts:
            model.train()
            loss = objective.loss(model(self.x), self.y, 0.0)
            if objective.penalty is not None:
                loss = loss + objective.penalty(model)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()

    def predict(self) -> None:
        """Predict the rows with all parts."""
        for model, _, _ in self.parts:
            model.eval()
            with torch.inference_mode():
                model(self.more)

    @property
    def parameters(self) -> int:
        """Count the parameters of all parts."""
        return sum(p.numel() for model, _, _ in self.parts for p in model.parameters())

    @property
    def multiply_adds(self) -> int:
        """Count those of one prediction of one row."""
        return sum(multiply_adds(model.eval(), self.x[:1]) for model, _, _ in self.parts)


def measure(task: str, repeats: int) -> dict[str, Any]:
    """Parameters, multiply-adds and times of all methods of a task, in this process."""
    setups: dict[str, Setup] = {}
    for method in METHODS:
        try:
            setups[method] = Setup(task, method)
        except TemperanceError as error:
            print(f"{task} {method}: {str(error).splitlines()[0]}", flush=True)
    times: dict[str, dict[str, list[float]]] = {m: {"step": [], "predict": []} for m in setups}
    for round_ in range(-WARM, repeats):
        for method, setup in setups.items():
            for name in ("step", "predict"):
                begun = time.process_time()
                getattr(setup, name)()
                if round_ >= 0:
                    times[method][name].append(time.process_time() - begun)
    single = times["single"]
    out = {}
    for method, setup in setups.items():
        ratios = {
            f"{name}_ratio": statistics.median(
                a / b for a, b in zip(times[method][name], single[name], strict=True)
            )
            for name in ("step", "predict")
        }
        seconds = {f"{n}_seconds": statistics.median(v) for n, v in times[method].items()}
        out[method] = {
            "parameters": setup.parameters,
            "multiply_adds": setup.multiply_adds,
            **seconds,
            **ratios,
        }
    return out


def high_water(field: str = "VmHWM") -> float:
    text = Path("/proc/self/status").read_text()
    line = next(s for s in text.splitlines() if s.startswith(f"{field}:"))
    return float(line.split()[1]) / 1024


def memory(task: str, method: str) -> float:
    """Growth of the high-water mark in MB."""
    rows_of(TASKS[task].dataset, TASKS[task].train_rows)
    Path("/proc/self/clear_refs").write_text("5")  # the high-water mark starts anew
    before = high_water("VmRSS")
    setup = Setup(task, method)
    for _ in range(2):
        setup.step()
    return high_water() - before


def child(*arguments: str) -> Any:
    command = [sys.executable, __file__, "-", *arguments]
    out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return json.loads(out.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--child", nargs=2)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.child:
        task, method = options.child
        found = measure(task, options.repeats) if method == "all" else memory(task, method)
        print(json.dumps(found))
        return
    result = {}
    for task in TASKS:
        found = child("--repeats", str(options.repeats), "--child", task, "all")
        for method in found:
            found[method]["memory_mb"] = child("--child", task, method)
            print(task, method, found[method], flush=True)
        result[task] = found
    record = {"torch": torch.__version__, "threads": 1, "repeats": options.repeats, "tasks": result}
    write_bytes(Path(options.out), (json.dumps(record, indent=1) + "\n").encode())


if __name__ == "__main__":
    main()
