"""The ten lines for timm's train script, as the docs have them, on a small model and real files."""

import argparse
import logging
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from temperance.errors import TemperanceWarning
from temperance.head import TemperedHead, check_optimizer

timm = pytest.importorskip("timm")
PAGE = Path(__file__).parents[2] / "docs" / "integrations.md"


def lines_of_the_docs():
    """The added lines: those before the optimizer, and those after the last epoch."""
    diff = re.search(r"^```diff\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)[1]
    parts = diff.split("@@")
    added = [[line[5:] for line in part.splitlines() if line.startswith("+")] for part in parts]
    assert sum(map(len, added)) == 10
    return ["\n".join(part) for part in added]


@pytest.fixture
def folder(tmp_path):
    rng = np.random.default_rng(0)
    for split, n in (("train", 8), ("validation", 2)):
        for name in ("cat", "dog", "owl"):
            (tmp_path / split / name).mkdir(parents=True)
            for i in range(n):
                pixels = rng.integers(0, 256, (40, 40, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(tmp_path / split / name / f"{i}.png")
    return tmp_path


def test_the_ten_lines_of_the_train_script(folder, monkeypatch, caplog):
    from timm.data import create_dataset, create_loader, resolve_data_config
    from timm.optim import create_optimizer_v2, optimizer_kwargs

    monkeypatch.chdir(folder)
    args = argparse.Namespace(  # what the script's parser makes, as far as it matters here
        dataset="",
        data_dir=str(folder),
        train_split="train",
        class_map="",
        rank=0,
        batch_size=8,
        workers=1,
        img_size=32,
        opt="adamw",
        lr=1e-2,
        weight_decay=0.05,
        momentum=0.9,
    )
    settings = {"num_classes": 3, "pretrained": False, "img_size": 32}
    model = timm.create_model("test_vit", **settings)
    data_config = resolve_data_config(vars(args), model=model)
    before, after = lines_of_the_docs()
    scope = {
        "args": args,
        "model": model,
        "data_config": data_config,
        "create_dataset": create_dataset,
        "create_loader": create_loader,
        "_logger": logging.getLogger("train"),
        "utils": timm.utils,
        "torch": torch,
    }
    caplog.set_level(logging.INFO, logger="train")
    with pytest.warns(TemperanceWarning, match="is a guess here"):  # 3 classes and 64 features
        exec(before, scope)
    assert isinstance(model.get_classifier(), TemperedHead)
    assert "norm batch" in caplog.text

    optimizer = create_optimizer_v2(model, **optimizer_kwargs(cfg=args))
    check_optimizer(optimizer, model)
    decay = {p for g in optimizer.param_groups if g["weight_decay"] for p in g["params"]}
    assert model.head.linear.weight in decay
    assert model.head.norm.weight not in decay
    x, y = next(iter(scope["probe"]))
    nn.functional.cross_entropy(model.train()(x), y).backward()
    optimizer.step()

    exec(after, scope)
    loaded = timm.create_model("test_vit", **settings, checkpoint_path="folded.pth").eval()
    with torch.no_grad():
        torch.testing.assert_close(loaded(x), model.eval()(x), rtol=1e-4, atol=1e-4)
