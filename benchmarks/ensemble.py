"""An ensemble of four in one backbone beside four models: time, memory, parameters.

    python benchmarks/ensemble.py                                            # about 5 CPU minutes
    python benchmarks/ensemble.py --quick                                    # seconds: a small net
    python benchmarks/ensemble.py --out benchmarks/results/ensemble.json     # and keep the figures

ResNet-18 in its CIFAR form (first convolution 3 x 3, no pooling behind it), 3 x 32 x 32, batches of
64, M = 4, SGD with momentum and weight decay, one thread. *Four models* train one after the other
in each step, each with an optimizer of its own. A ``repeat`` step is measured both ways:
*together*, ``member_loss(ensemble(x), y).backward()``, and *in turn*, ``backward_each``. A
``split`` step is beside a step of one model on the same batch.

CPU seconds (``time.process_time``), all of one process; the variants alternate, ``--repeats``
times; a ratio is the median of the ratios within a round. Everything is measured in a fresh process
with the C library's allocator as it comes, and in another one that keeps freed memory
(``MALLOC_MMAP_THRESHOLD_``, ``MALLOC_TRIM_THRESHOLD_``; glibc): as it comes, glibc gives blocks
above 32 MB back to the system each time, and such tensors cost a page fault for every 4 kB.

Memory is what the high-water mark of the resident set grows by while models are built and two
steps are made, each variant in a fresh process (Linux: ``VmHWM``). *Lean*: four models whose
gradients are let go after each model's step.
"""

from __future__ import annotations

import os

os.environ.update(OMP_NUM_THREADS="1", MKL_NUM_THREADS="1")

import argparse
import json
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from temperance.ensemble import Ensemble, convert, member_loss, predict_members
from temperance.ensemble.step import backward_each
from temperance.files import write_bytes

MEMBERS, BATCH = 4, 64
KEEPING = {"MALLOC_MMAP_THRESHOLD_": "4294967296", "MALLOC_TRIM_THRESHOLD_": "8589934592"}
STEPS = ("four models", "together", "in turn", "one model", "split")
PREDICTIONS = ("four models, prediction", "predict_members", "forward")
MEMORY = ("four models", "four models, lean", "in turn", "together", "one model", "split")
BOUNDS = {
    "parameters": 1.002,
    "repeat step": 1.0,
    "repeat memory": 0.75,
    "split step": 1.1,
    "prediction": 1.0,
}

Step = Callable[[], Any]


# ------------------------------------------------------------------ the network
class Block(nn.Module):
    """Two convolutions and a way around them."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(after)
        self.conv2 = nn.Conv2d(after, after, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(after)
        self.relu = nn.ReLU(inplace=True)
        self.around = nn.Sequential()
        if stride > 1 or before != after:
            self.around = nn.Sequential(
                nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after)
            )

    def forward(self, x: Tensor) -> Tensor:
        """Add what the convolutions make of the input to it."""
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        y += self.around(x)
        return self.relu(y)


def resnet(seed: int, *, width: int = 64, blocks: int = 2) -> nn.Sequential:
    """ResNet-18 in its CIFAR form by default (He et al. 2015, arXiv 1512.03385)."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        stem = nn.Conv2d(3, width, 3, 1, 1, bias=False)
        layers: list[nn.Module] = [stem, nn.BatchNorm2d(width), nn.ReLU(inplace=True)]
        before = width
        for stage in range(4):
            after = width * 2**stage
            for block in range(blocks):
                layers.append(Block(before, after, 2 if stage and not block else 1))
                before = after
        layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, 10)]
        return nn.Sequential(*layers)


# ------------------------------------------------------------------ one step of each kind
def sgd(model: nn.Module) -> torch.optim.SGD:
    return torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=5e-4)


def batch() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(BATCH, 3, 32, 32, generator=generator)
    return x, torch.randint(0, 10, (BATCH,), generator=generator)


def models_step(size: dict[str, int], count: int, *, lean: bool = False) -> Step:
    """A training step of some models one after the other."""
    x, y = batch()
    models = [resnet(seed, **size) for seed in range(count)]
    optimizers = [sgd(model) for model in models]

    def step() -> None:
        for model, optimizer in zip(models, optimizers, strict=True):
            optimizer.zero_grad()
            cross_entropy(model(x), y).backward()
            optimizer.step()
            if lean:
                optimizer.zero_grad()

    return step


def ensemble_step(size: dict[str, int], way: str) -> Step:
    """A training step of the ensemble."""
    x, y = batch()
    protocol = "split" if way == "split" else "repeat"
    ensemble = convert(resnet(0, **size), MEMBERS, example=x[:2], protocol=protocol)
    optimizer = sgd(ensemble)

    def step() -> None:
        optimizer.zero_grad()
        if way == "in turn":
            backward_each(ensemble, x, targets=y)
        else:
            member_loss(ensemble(x), ensemble.targets(y)).backward()
        optimizer.step()

    return step


def step_of(name: str, size: dict[str, int]) -> Step:
    if name.startswith(("four", "one")):
        count = MEMBERS if name.startswith("four") else 1
        return models_step(size, count, lean=name.endswith("lean"))
    return ensemble_step(size, name)


def predictions(size: dict[str, int]) -> dict[str, Step]:
    """Prediction of a batch by all members."""
    x, _ = batch()
    models = [resnet(seed, **size).eval() for seed in range(MEMBERS)]
    ensemble = convert(resnet(0, **size).eval(), MEMBERS, example=x[:2])

    def separate() -> Tensor:
        with torch.no_grad():
            return torch.stack([model(x) for model in models])

    def forward() -> Tensor:
        with torch.no_grad():
            result: Tensor = ensemble(x)
        return result

    ways = (separate, lambda: predict_members(ensemble, x), forward)
    return dict(zip(PREDICTIONS, ways, strict=True))


# ------------------------------------------------------------------ time
def time_child(size: dict[str, int], repeats: int) -> dict[str, list[float]]:
    """CPU seconds of every variant, in turn; the first round is not counted."""
    variants = {name: step_of(name, size) for name in STEPS} | predictions(size)
    seconds: dict[str, list[float]] = {name: [] for name in variants}
    for repeat in range(repeats + 1):
        for name, variant in variants.items():
            start = time.process_time()
            variant()
            if repeat:
                seconds[name].append(time.process_time() - start)
    return seconds


def ratios(seconds: dict[str, list[float]]) -> dict[str, float]:
    def ratio(name: str, to: str) -> float:
        return statistics.median(a / b for a, b in zip(seconds[name], seconds[to], strict=True))

    return {
        "repeat step, together": ratio("together", "four models"),
        "repeat step, in turn": ratio("in turn", "four models"),
        "split step": ratio("split", "one model"),
        "prediction, predict_members": ratio("predict_members", "four models, prediction"),
        "prediction, forward": ratio("forward", "four models, prediction"),
    }


# ------------------------------------------------------------------ memory
def memory_child(name: str, size: dict[str, int]) -> float:
    """MB that the process grows by."""
    torch.nn.functional.conv2d(torch.zeros(1, 1, 8, 8), torch.zeros(1, 1, 3, 3))
    before = status_mb("VmRSS")
    step = step_of(name, size)
    for _ in range(2):
        step()
    return status_mb("VmHWM") - before


def status_mb(field: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith(field)) / 1024


def child(arguments: list[str], *, keeping: bool) -> Any:
    """What a fresh process prints, which is one line of JSON."""
    environment = os.environ | (KEEPING if keeping else {})
    command = [sys.executable, __file__, *arguments]
    done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    return json.loads(done.stdout)


# ------------------------------------------------------------------ parameters, report
def parameter_ratio(size: dict[str, int]) -> float:
    """Parameters of the ensemble over those of the model, output layers apart."""
    model = resnet(0, **size)
    ensemble = convert(model, MEMBERS)
    assert isinstance(ensemble, Ensemble)
    backbone: Any = ensemble.backbone

    def count(network: nn.Module, head: nn.Module) -> int:
        return sum(p.numel() for p in network.parameters()) - sum(
            p.numel() for p in head.parameters()
        )

    return count(ensemble, backbone[-1]) / count(model, model[-1])


def table(record: dict[str, Any]) -> str:
    allocators = [a for a in ("as it comes", "keeping") if a in record["ratios"]]
    lines = ["| what | bound | " + " | ".join(f"allocator {a}" for a in allocators) + " |"]
    lines.append("|---" * (2 + len(allocators)) + "|")
    cells = f"{record['parameters']:.4f} | " * len(allocators)
    lines.append(f"| parameters | {BOUNDS['parameters']} | {cells.rstrip()}")
    for name in record["ratios"]["as it comes"]:
        bound = BOUNDS[name.partition(",")[0]]
        cells = " | ".join(f"{record['ratios'][a][name]:.3f}" for a in allocators)
        lines.append(f"| {name} | {bound} | {cells} |")
    memory = record["memory_mb"]
    for name in ("in turn", "together"):
        for peer in ("four models", "four models, lean"):
            cells = f"{memory[name] / memory[peer]:.3f}" + " | " * (len(allocators) - 1)
            lines.append(f"| memory, {name} to {peer} | {BOUNDS['repeat memory']} | {cells} |")
    lines.append("")
    lines.append("MB: " + ", ".join(f"{name} {mb:.0f}" for name, mb in memory.items()))
    return "\n".join(lines)


def machine() -> dict[str, str]:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    found = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
    return {
        "processor": found[0] if found else platform.processor(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "libc": " ".join(platform.libc_ver()),
    }


def main() -> None:
    torch.set_num_threads(1)
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a small net, twice")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, help="write the figures to this file, too")
    parser.add_argument("--time-child", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--memory-child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    size = {"width": 8, "blocks": 1} if options.quick else {}
    repeats = 2 if options.quick else options.repeats
    if options.time_child:
        print(json.dumps(time_child(size, repeats)))
        return
    if options.memory_child:
        print(json.dumps(memory_child(options.memory_child, size)))
        return
    shared = ["--quick"] if options.quick else ["--repeats", str(repeats)]
    record: dict[str, Any] = {
        "benchmark": "ensemble",
        "network": size or "ResNet-18, CIFAR form",
        "members": MEMBERS,
        "batch": BATCH,
        "threads": 1,
        "machine": machine(),
        "bounds": BOUNDS,
        "parameters": parameter_ratio(size),
        "ratios": {},
        "cpu_seconds": {},
        "memory_mb": {},
        "allocator": {"as it comes": {}, "keeping": KEEPING},
    }
    for allocator, keeping in (("as it comes", False), ("keeping", True)):
        seconds = child([*shared, "--time-child"], keeping=keeping)
        record["cpu_seconds"][allocator] = seconds
        record["ratios"][allocator] = ratios(seconds)
        print(allocator, record["ratios"][allocator], file=sys.stderr, flush=True)
    for name in MEMORY:
        record["memory_mb"][name] = child([*shared, "--memory-child", name], keeping=False)
    print(table(record))
    if options.out:
        write_bytes(options.out, (json.dumps(record, indent=1) + "\n").encode())


if __name__ == "__main__":
    main()
