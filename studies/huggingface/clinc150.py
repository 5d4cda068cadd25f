"""A text classifier on CLINC150 through Trainer: with the callback, folded, saved, loaded plainly.

    python studies/huggingface/clinc150.py CLINC_DIR MINILM_DIR OUT.json

CLINC_DIR holds train, val and test as CSV (text, label); MINILM_DIR an all-MiniLM-L6-v2 (config,
tokenizer, safetensors). The arms (no callback; the callback's norm with T = 1; the callback) train
the same rows in the same order for the same steps. The folded model of the last is written, then
loaded by a process that imports transformers and not Temperance, and compared on all test rows.
"""

from __future__ import annotations

import csv
import json
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    Trainer,
    TrainingArguments,
)

from temperance.errors import TemperanceWarning
from temperance.evaluation import evaluate, fit_temperature
from temperance.integrations.huggingface import TemperatureTrainerCallback, save_folded

ROWS = {"train": 12, "val": 2, "test": 6}  # of each class, the first ones of the file
EPOCHS, BATCH, LR, SEED = 3, 32, 3e-4, 0
ARMS = {"plain": None, "norm": 1.0, "callback": "hasegawa-sakai-csg-cn"}  # T of the callback
PLAIN = """
import sys, numpy as np, torch
from datasets import load_from_disk
from transformers import AutoModelForSequenceClassification, AutoTokenizer, DataCollatorWithPadding
folder, rows, out = sys.argv[1:]
torch.set_num_threads(1)
tokenizer = AutoTokenizer.from_pretrained(folder)
model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
collate, data = DataCollatorWithPadding(tokenizer), load_from_disk(rows)
parts = []
for at in range(0, len(data), 64):
    batch = collate([data[i] for i in range(at, min(at + 64, len(data)))])
    batch.pop("labels")
    with torch.no_grad():
        parts.append(model(**batch).logits)
assert "temperance" not in sys.modules
np.save(out, torch.cat(parts).numpy())
"""


def read(folder: Path, split: str) -> dict[str, list[str]]:
    """The first rows of every class."""
    with (folder / f"{split}.csv").open(encoding="utf-8", newline="") as handle:
        rows = list(csv.DictReader(handle))
    seen: dict[str, int] = {}
    kept = []
    for row in rows:
        seen[row["label"]] = seen.get(row["label"], 0) + 1
        if seen[row["label"]] <= ROWS[split]:
            kept.append(row)
    return {"text": [r["text"] for r in kept], "label": [r["label"] for r in kept]}


def data_sets(folder: Path, tokenizer: Any) -> tuple[dict[str, Dataset], list[str]]:
    raw = {split: read(folder, split) for split in ROWS}
    names = sorted(set(raw["train"]["label"]))
    sets = {}
    for split, columns in raw.items():
        tokens = tokenizer(columns["text"], truncation=True, max_length=32)
        ids = [names.index(name) for name in columns["label"]]
        sets[split] = Dataset.from_dict({**tokens, "labels": ids})
    return sets, names


def train(arm: str, minilm: Path, sets: dict[str, Dataset], names: list[str], work: Path) -> Any:
    tokenizer = AutoTokenizer.from_pretrained(minilm)
    torch.manual_seed(SEED)  # the new output layer, the same for all arms
    model = AutoModelForSequenceClassification.from_pretrained(minilm, num_labels=len(names))
    callback = TemperatureTrainerCallback(ARMS[arm])
    trainer = Trainer(
        model,
        TrainingArguments(
            output_dir=str(work / arm),
            num_train_epochs=EPOCHS,
            per_device_train_batch_size=BATCH,
            per_device_eval_batch_size=64,
            learning_rate=LR,
            warmup_steps=20,
            logging_steps=1,
            save_strategy="no",
            report_to=[],
            seed=SEED,
            use_cpu=True,
            disable_tqdm=True,
        ),
        train_dataset=sets["train"],
        processing_class=tokenizer,
        callbacks=None if arm == "plain" else [callback],
    )
    started = time.process_time()
    trainer.train()
    return trainer, callback, time.process_time() - started


def figures(trainer: Trainer, sets: dict[str, Dataset]) -> tuple[dict[str, float], np.ndarray]:
    val, test = (trainer.predict(sets[s]).predictions for s in ("val", "test"))
    fit = fit_temperature(logits=val, labels=np.array(sets["val"]["labels"]))
    report = evaluate(logits=test, labels=np.array(sets["test"]["labels"]), posthoc=fit)
    found = {name: report.metrics[name].value for name in ("accuracy", "nll", "ece")}
    found |= {f"{n}_posthoc": report.metrics[f"{n}_posthoc"].value for n in ("nll", "ece")}
    return {**found, "posthoc_temperature": fit.temperature}, test


def main(clinc: Path, minilm: Path, out: Path) -> None:
    torch.set_num_threads(1)
    tokenizer = AutoTokenizer.from_pretrained(minilm)
    sets, names = data_sets(clinc, tokenizer)
    result: dict[str, Any] = {
        "rows": {split: len(rows) for split, rows in sets.items()},
        "classes": len(names),
        "training": {"epochs": EPOCHS, "batch_size": BATCH, "lr": LR, "seed": SEED},
        "arms": {},
    }
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        for arm in ARMS:
            with warnings.catch_warnings(record=True) as told:
                warnings.simplefilter("always", TemperanceWarning)
                trainer, callback, seconds = train(arm, minilm, sets, names, work)
            arm_figures, logits = figures(trainer, sets)
            logs = [row for row in trainer.state.log_history if "loss" in row]
            arm_figures["first_loss"], arm_figures["last_loss"] = logs[0]["loss"], logs[-1]["loss"]
            result["arms"][arm] = {**arm_figures, "cpu_seconds": round(seconds, 1)}
            print(arm, json.dumps(result["arms"][arm]), flush=True)
        suggestion = callback.placement.suggestion
        result["placement"] = {
            "text": str(callback.placement),
            "csg": callback.placement.task.statistics["csg"].value,
            "reasons": list(suggestion.reasons),
            "warnings": [str(w.message) for w in told if w.category is TemperanceWarning],
            "gradient_ratio": [logs[0].get("gradient_ratio"), logs[-1].get("gradient_ratio")],
        }
        result["folded"] = folded(trainer, sets["test"], logits, work=work, tokenizer=tokenizer)
    out.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    print(json.dumps(result, indent=2))


def folded(
    trainer: Trainer, test: Dataset, logits: np.ndarray, *, work: Path, tokenizer: Any
) -> dict[str, Any]:
    """Save the folded model, and let a process without Temperance predict with it."""
    example = trainer.data_collator([test[i] for i in range(16)])
    saved = save_folded(trainer.model, work / "folded", example=example, processing_class=tokenizer)
    test.save_to_disk(str(work / "test"))
    out = work / "logits.npy"
    subprocess.run(
        [sys.executable, "-c", PLAIN, str(saved.folder), str(work / "test"), str(out)], check=True
    )
    plain, labels = np.load(out), np.array(test["labels"])
    return {
        "max_difference_of_a_logit": float(np.abs(plain - logits).max()),
        "max_logit": float(np.abs(logits).max()),
        "different_predictions": int((plain.argmax(1) != logits.argmax(1)).sum()),
        "accuracy": [float((z.argmax(1) == labels).mean()) for z in (logits, plain)],
        "nll": [evaluate(logits=z, labels=labels).metrics["nll"].value for z in (logits, plain)],
        "rows": len(plain),
        "max_difference_on_example": saved.max_difference,
    }


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:4]))
