"""What torch.compile makes of a tempered head and of an ensemble: graphs, difference, step time.

python benchmarks/compile.py                     # prints; --out FILE writes JSON

Compiled and eager model take turns in one process; the ratio is of the medians of their steps, the
first three left out.
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
import time
from pathlib import Path

import torch
from torch import nn

from temperance import convert, insert
from temperance.models import logits_of
from temperance.training.nets import build_net

ROWS, STEPS = 64, 30


def step(model: nn.Module, x: torch.Tensor, y: torch.Tensor, members: int) -> float:
    begin = time.perf_counter()
    z = logits_of(model(x))
    target = y if members == 1 else y.repeat(members)
    nn.functional.cross_entropy(z.reshape(-1, z.shape[-1]), target).backward()
    model.zero_grad(set_to_none=True)
    return time.perf_counter() - begin


def measure(name: str, model: nn.Module, members: int) -> dict[str, float | str]:
    x, y = torch.randn(ROWS, 3, 32, 32), torch.randint(10, (ROWS,))
    explained = torch._dynamo.explain(copy.deepcopy(model))(x)
    torch._dynamo.reset()
    compiled = torch.compile(copy.deepcopy(model))
    model.eval(), compiled.eval()
    with torch.no_grad():
        first, second = logits_of(model(x)), logits_of(compiled(x))
    model.train(), compiled.train()
    times: dict[str, list[float]] = {"eager": [], "compiled": []}
    for index in range(STEPS + 3):
        for key, which in (("eager", model), ("compiled", compiled)):
            seconds = step(which, x, y, members)
            if index >= 3:
                times[key].append(seconds)
    return {
        "model": name,
        "graphs": explained.graph_count,
        "breaks": explained.graph_break_count,
        "largest logit difference": float((first - second).abs().max()),
        "largest logit": float(first.abs().max()),
        "step, compiled / eager": statistics.median(times["compiled"])
        / statistics.median(times["eager"]),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path)
    chosen = parser.parse_args()
    torch.manual_seed(0)
    example = torch.randn(8, 3, 32, 32)
    plain = build_net("resnet", input_shape=(3, 32, 32), n_classes=10, seed=0).module
    tempered = copy.deepcopy(plain)
    insert(tempered, 4.0, example=example)
    ensemble = convert(copy.deepcopy(plain), 4, example=example, seed=0)
    rows = [
        measure("resnet with BN and T = 4", tempered, 1),
        measure("the same as 4 members", ensemble, 4),
    ]
    for row in rows:
        print(json.dumps(row))
    if chosen.out:
        chosen.out.write_text(json.dumps({"torch": torch.__version__, "rows": rows}, indent=2))


if __name__ == "__main__":
    main()
