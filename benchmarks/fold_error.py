"""How exact a folded head is: norm, linear layer and T against the one layer that replaces them.

    python benchmarks/fold_error.py               # under a minute on one core
    python benchmarks/fold_error.py --json out.json

Models with random weights, a head with random running statistics and a random affine part (means
spread by 3, variances 0.1 to 5, scales of both signs) stand for trained ones. Per model and T:

- ``layer``: largest difference to the head in float64, on 256 rows drawn from the running
  statistics, divided by the largest logit.
- ``model``: the same for the whole model before and after, on a random batch, in its own type.
- ``argmax``: share of that batch's rows that keep their class.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

import temperance
from temperance.head import tempered_heads
from temperance.models import call_model, logits_of

TEMPERATURES = (0.05, 1.0, 16.0, 512.0)
ROWS, CLASSES = 16, 10


def resnet18() -> tuple[nn.Module, Any]:
    from torchvision.models import resnet18 as build

    return build(num_classes=CLASSES), torch.randn(ROWS, 3, 64, 64)


def vit_tiny() -> tuple[nn.Module, Any]:
    import timm

    model = timm.create_model("vit_tiny_patch16_224", num_classes=CLASSES, img_size=64)
    return model, torch.randn(ROWS, 3, 64, 64)


def bert_small() -> tuple[nn.Module, Any]:
    from transformers import BertConfig, BertForSequenceClassification

    config = BertConfig(
        vocab_size=1000,
        hidden_size=256,
        num_hidden_layers=4,
        num_attention_heads=4,
        intermediate_size=1024,
        num_labels=CLASSES,
    )
    return BertForSequenceClassification(config), {"input_ids": torch.randint(5, 1000, (ROWS, 32))}


MODELS: dict[str, Callable[[], tuple[nn.Module, Any]]] = {
    "torchvision resnet18": resnet18,
    "timm vit_tiny_patch16_224": vit_tiny,
    "transformers BERT, 4 layers of 256": bert_small,
}


def measure(name: str, temperature: float, dtype: torch.dtype) -> dict[str, Any]:
    torch.manual_seed(0)
    model, batch = MODELS[name]()
    head = temperance.insert(model, temperature, example=batch)
    scramble(head)
    model.eval().to(dtype)
    if isinstance(batch, torch.Tensor):
        batch = batch.to(dtype)
    folded = temperance.fold(model, batch)
    place = next(iter(tempered_heads(model)))
    report = dict(folded.named_modules())[place].fold_report
    with torch.no_grad():
        before, after = (logits_of(call_model(m, batch)).argmax(-1) for m in (model, folded))
    return {
        "model": name,
        "dtype": report.dtype,
        "in_features": head.in_features,
        "temperature": temperature,
        "layer_rel_error": report.max_rel_error,
        "model_rel_error": report.example_rel_error,
        "argmax_kept": float((before == after).float().mean()),
    }


def scramble(head: temperance.head.TemperedHead) -> None:
    """Give the head statistics, an affine part and weights as after a training."""
    with torch.no_grad():
        head.norm.running_mean.normal_(0, 3)
        head.norm.running_var.uniform_(0.1, 5)
        head.norm.num_batches_tracked.fill_(1)
        head.norm.weight.normal_()
        head.norm.bias.normal_()
        head.linear.weight.normal_(0, head.in_features**-0.5)
        head.linear.bias.normal_()


def table(rows: list[dict[str, Any]]) -> str:
    lines = [
        "| model | type | M | T | layer | model | argmax kept |",
        "|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {r['model']} | {r['dtype']} | {r['in_features']} | {r['temperature']:g} | "
        f"{r['layer_rel_error']:.1e} | {r['model_rel_error']:.1e} | {r['argmax_kept']:.0%} |"
        for r in rows
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="write the figures to this file, too")
    options = parser.parse_args()
    torch.set_num_threads(1)
    cases = [(t, torch.float32) for t in TEMPERATURES] + [(16.0, torch.bfloat16)]
    rows = [measure(name, t, dtype) for name in MODELS for t, dtype in cases]
    print(table(rows))
    record = {"benchmark": "fold_error", "torch": torch.__version__, "rows": rows}
    print(json.dumps(record))
    if options.json:
        part = options.json.with_suffix(".part")
        part.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
        os.replace(part, options.json)


if __name__ == "__main__":
    main()
