"""Accelerate's example, and the excerpts of the examples in the docs."""

import re
import runpy
from pathlib import Path

import pytest

pytest.importorskip("accelerate")
DOCS = Path(__file__).parents[2] / "docs"


def test_the_example_runs():
    found = runpy.run_path(str(DOCS / "examples" / "accelerate_example.py"))["main"]()
    assert found["accuracy"] > 0.85
    assert found["temperature"] == pytest.approx(128**0.5, rel=1e-6)
    assert found["largest difference after folding"] < 1e-4


def test_a_model_of_mixed_precision_is_folded_without_its_wrapper():
    import torch
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState
    from torch import nn

    from temperance import fold
    from temperance.integrations.placement import place

    AcceleratorState._reset_state(reset_partial_state=True)  # of the other test
    try:
        accelerator = Accelerator(cpu=True, mixed_precision="bf16")
        model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3))
        x = torch.randn(32, 6)
        place(model, [(x, torch.arange(32) % 3)], "sqrt-dim")
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model, optimizer = accelerator.prepare(model, optimizer)
        accelerator.backward(nn.functional.cross_entropy(model(x), torch.arange(32) % 3))
        optimizer.step()
        plain = accelerator.unwrap_model(model, keep_fp32_wrapper=False).eval()
        with torch.no_grad():
            torch.testing.assert_close(fold(plain, x)(x), plain(x))
    finally:
        AcceleratorState._reset_state(reset_partial_state=True)


def test_the_excerpts_in_the_docs_are_lines_of_the_examples():
    page = (DOCS / "integrations.md").read_text(encoding="utf-8")
    sources = [p.read_text(encoding="utf-8") for p in sorted((DOCS / "examples").glob("*.py"))]
    lines = {line.strip() for source in sources for line in source.splitlines()}
    excerpts = re.findall(r"^```py\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    assert len(excerpts) == 4
    for excerpt in excerpts:
        assert {line.strip() for line in excerpt.splitlines()} <= lines


def test_the_yaml_of_the_docs_names_what_there_is():
    import importlib
    import inspect

    page = (DOCS / "integrations.md").read_text(encoding="utf-8")
    module, _, name = re.search(r"class_path: (\S+)", page)[1].rpartition(".")
    made = getattr(importlib.import_module(module), name)
    given = re.findall(r"^ {8}(\w+): ", page, re.MULTILINE)
    assert given == ["temperature", "max_batches"]
    assert set(given) <= set(inspect.signature(made).parameters)
