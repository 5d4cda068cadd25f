"""Real weights, exported and served: texts of CLINC150 by MiniLM, pictures by EfficientNet-lite0.

    python studies/export/serve.py CLINC_DIR MINILM_DIR IN_DIR TRAINED_DIR OUT.json

IN_DIR is what prepare.py wrote; TRAINED_DIR the output of ``temperance train`` on it (see
README.md). Every file is run on batches that its export never saw, of other sizes and lengths, by
what a server would load, and compared with the live model.
"""

from __future__ import annotations

import csv
import json
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import timm
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from temperance import fit_temperature, insert, parameter_groups, set_norm_statistics
from temperance.export import FORMATS, ExportOptions, export_folder, read_metadata
from temperance.models import load_state, read_safetensors
from temperance.training.predict import open_bundle
from temperance.training.preprocess import Preprocess
from temperance.training.sources import open_data

PER_CLASS, EPOCHS, BATCH, LR, SEED, T = 6, 3, 32, 3e-4, 0, 4.0
SIZES = (1, 2, 7, 33)  # rows of the batches that are served
TOKENS = (8, 17, 40, 128)  # and their lengths; the example has up to 22
Server = Callable[[dict[str, Tensor]], NDArray[Any]]


def served(format: str, path: Path) -> Server:
    """What a server loads; nothing of ours."""
    if format in ("onnx", "int8"):
        session = ort.InferenceSession(path, providers=["CPUExecutionProvider"])
        return lambda x: session.run(None, {k: v.numpy() for k, v in x.items()})[0]
    script = format == "torchscript"
    module = torch.jit.load(path) if script else torch.export.load(path).module()
    return lambda x: module(*x.values()).detach().numpy()


def judge(
    model: nn.Module, example: Any, batches: list[dict[str, Tensor]], **options: Any
) -> dict[str, Any]:
    """Export to every format, and serve all batches."""
    named = isinstance(example, dict)
    rows: dict[str, Any] = {}
    with torch.no_grad():
        live = [output(model(**b) if named else model(*b.values())).numpy() for b in batches]
    for name, row in FORMATS.items():
        with tempfile.TemporaryDirectory() as folder:
            path, started = Path(folder) / row.file, time.process_time()
            report = row.export(model, path, example, options=ExportOptions(**options))
            seconds, server = time.process_time() - started, served(name, path)
            found = [server(b) for b in batches]
        far = max(float(np.abs(a - b).max()) for a, b in zip(live, found, strict=True))
        same = [(a.argmax(-1) == b.argmax(-1)).mean() for a, b in zip(live, found, strict=True)]
        rows[name] = {
            "inputs": {k: list(v) for k, v in report.inputs.items()},
            "output_shape": list(report.output_shape),
            "on_probe": {"abs": report.max_abs_error, "rel": report.max_rel_error},
            "served": {"max_difference": far, "same_top_class": float(np.mean(same))},
            "bytes": report.bytes,
            "cpu_seconds": round(seconds, 1),
        }
        print(name, json.dumps(rows[name]), flush=True)
    return {"largest_output": max(float(np.abs(z).max()) for z in live), "formats": rows}


def output(value: Any) -> Tensor:
    return value if isinstance(value, Tensor) else value.logits


# ------------------------------------------------------------------ texts
def texts(folder: Path, split: str, per_class: int) -> tuple[list[str], list[str]]:
    with (folder / f"{split}.csv").open(encoding="utf-8", newline="") as handle:
        rows = list(csv.DictReader(handle))
    seen: dict[str, int] = {}
    kept = []
    for row in rows:
        seen[row["label"]] = seen.get(row["label"], 0) + 1
        kept += [row] if seen[row["label"]] <= per_class else []
    return [r["text"] for r in kept], [r["label"] for r in kept]


def minilm(clinc: Path, folder: Path) -> dict[str, Any]:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    rows, labels = texts(clinc, "train", PER_CLASS)
    names = sorted(set(labels))
    ids = torch.tensor([names.index(label) for label in labels])

    def batch(lines: list[str], length: int | None = None) -> dict[str, Tensor]:
        how = {"padding": True} if length is None else {"padding": "max_length"}
        length = length or 32
        found = tokenizer(lines, truncation=True, max_length=length, return_tensors="pt", **how)
        return dict(found)

    torch.manual_seed(SEED)
    model = AutoModelForSequenceClassification.from_pretrained(folder, num_labels=len(names))
    insert(model, T, example=batch(rows[:4]))
    optimizer = torch.optim.AdamW(parameter_groups(model, weight_decay=0.01), lr=LR)
    model.train()
    for _ in range(EPOCHS):
        for at in torch.randperm(len(rows)).split(BATCH):
            z = model(**batch([rows[i] for i in at])).logits
            optimizer.zero_grad()
            nn.functional.cross_entropy(z, ids[at]).backward()
            optimizer.step()
    model.eval()
    val, test = (texts(clinc, split, 2) for split in ("val", "test"))
    fit_on = [names.index(n) for n in val[1]]
    logits = []
    for lines, _ in (val, test):
        with torch.no_grad():
            parts = [model(**batch(lines[i : i + 50])).logits for i in range(0, len(lines), 50)]
        logits.append(torch.cat(parts))
    fit = fit_temperature(logits=logits[0], labels=fit_on)
    hits = [names[i] == label for i, label in zip(logits[1].argmax(1), test[1], strict=True)]
    batches = [batch(test[0][7 : 7 + n], length) for n in SIZES for length in TOKENS]
    axes = {0: "batch", 1: "tokens"}
    found = judge(model, batch(rows[:12]), batches, axes=axes)
    probs = judge_probs(model, batch(rows[:12]), batches, fit.applied, axes)
    return {"accuracy": float(np.mean(hits)), "rows": len(hits), **found, "probs": probs}


def judge_probs(
    model: nn.Module, example: Any, batches: Iterable[Any], posthoc: float, axes: dict[int, str]
) -> dict[str, float]:
    """ONNX with a post-hoc T and the softmax in the graph."""
    options = ExportOptions(output="probs", posthoc=posthoc, axes=axes)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "m.onnx"
        FORMATS["onnx"].export(model, path, example, options=options)
        server, far = served("onnx", path), 0.0
        for b in batches:
            with torch.no_grad():
                expected = (model(**b).logits.double() / posthoc).softmax(-1).numpy()
            far = max(far, float(np.abs(server(b) - expected).max()))
    return {"posthoc_temperature": posthoc, "max_difference": far}


# ------------------------------------------------------------------ pictures
def lite0(folder: Path) -> dict[str, Any]:
    """Its 1000 classes, behind a BatchNorm that keeps the function, T = 8."""
    model = timm.create_model("tf_efficientnet_lite0", pretrained=False)
    load_state(model, read_safetensors(folder / "lite0.safetensors"))
    data = open_data(folder / "cifar10", image_size=224).parts["test"].x[:64]
    x = (torch.tensor(np.ascontiguousarray(data)).permute(0, 3, 1, 2).float() - 127) / 128
    before = model.eval()(x[:8]).detach()
    insert(model, 8.0, example=x[:2])
    set_norm_statistics(model, x.split(16), keep_function=True)
    with torch.no_grad():
        kept = float((model.eval()(x[:8]) - before).abs().max())
    batches = [{"input": x[:n]} for n in SIZES]
    return {"insertion_moved_logits": kept, **judge(model, x[:4], batches)}


def trained(folder: Path, inputs: Path) -> dict[str, Any]:
    """The output of ``temperance train`` as ONNX, on the test pictures, with its metadata alone."""
    bundle = open_bundle(folder)
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "m.onnx"
        report = export_folder(folder, path=path, output="probs", posthoc=True)
        facts, server = read_metadata(path), served("onnx", path)
        side = facts["preprocess"]["shape"][-1]
        part = open_data(inputs / "cifar10", image_size=side).parts["test"]
        x = Preprocess.from_dict(facts["preprocess"]).apply(part.x)
        found = np.concatenate([server({"input": rows}) for rows in x.split(64)])
    with torch.no_grad():
        z = torch.cat([bundle.model(rows) for rows in x.split(50)]).double()
    live = (z / bundle.posthoc_temperature).softmax(1).numpy()
    arms = json.loads((folder / "report.json").read_text(encoding="utf-8"))["arms"]
    return {
        "arms": {a["title"]: {k: e["value"] for k, e in a["metrics"].items()} for a in arms},
        "temperature": facts["temperature"],
        "posthoc_temperature": list(report.posthoc_temperatures),
        "rows": len(x),
        "accuracy": [float((p.argmax(1) == part.y).mean()) for p in (live, found)],
        "max_difference": float(np.abs(live - found).max()),
        "different_predictions": int((live.argmax(1) != found.argmax(1)).sum()),
        "on_probe": {"abs": report.max_abs_error, "rel": report.max_rel_error},
    }


def main(clinc: Path, texts_of: Path, inputs: Path, folder: Path, out: Path) -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # PyTorch on TorchScript
    result = {
        "sizes": SIZES,
        "tokens": TOKENS,
        "minilm": minilm(clinc, texts_of),
        "lite0": lite0(inputs),
        "trained": trained(folder, inputs),
        "versions": {m.__name__: m.__version__ for m in (torch, timm, ort)},
    }
    out.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:6]))
