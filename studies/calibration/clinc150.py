"""A real case: MiniLM features and a linear classifier on CLINC150, calibrated.

    python studies/calibration/clinc150.py CLINC_DIR MINILM_DIR WORK_DIR

CLINC_DIR holds train, val, test and oos_test as CSV (text, label); MINILM_DIR an all-MiniLM-L6-v2
(config, tokenizer, safetensors). Features, logits and figures go to WORK_DIR; a second call goes on
from them. The classifier is trained on train, every calibrator fitted on val, judged on test; the
out-of-scope queries of oos_test stand for what the model has never seen.
"""

from __future__ import annotations

import csv
import json
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from temperance.evaluation.calibrate_file import CalibrationPlan, calibrate_file
from temperance.evaluation.calibrators import CALIBRATORS
from temperance.evaluation.detection import ood_metrics
from temperance.evaluation.ood import energy, msp, predictive_entropy
from temperance.labels import read_labels

SPLITS = ("train", "val", "test", "oos_test")


def rows_of(file: Path) -> tuple[list[str], list[str]]:
    with file.open(encoding="utf-8", newline="") as handle:
        rows = list(csv.DictReader(handle))
    return [r["text"] for r in rows], [r["label"] for r in rows]


def embed(texts: list[str], model_dir: Path) -> np.ndarray:
    """Mean of the last hidden states over the tokens, length 1, as the model was trained."""
    import torch
    from transformers import AutoModel, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model_dir)
    model = AutoModel.from_pretrained(model_dir).eval()
    order = np.argsort([len(t) for t in texts])
    out = np.empty((len(texts), model.config.hidden_size), np.float32)
    with torch.inference_mode():
        for at in range(0, len(texts), 128):
            index = order[at : at + 128]
            batch = tokenizer([texts[i] for i in index], padding=True, return_tensors="pt")
            hidden = model(**batch).last_hidden_state
            mask = batch["attention_mask"][..., None]
            mean = (hidden * mask).sum(1) / mask.sum(1)
            out[index] = torch.nn.functional.normalize(mean, dim=1).numpy()
    return out


def make_logits(clinc: Path, minilm: Path, work: Path) -> None:
    from sklearn.linear_model import LogisticRegression

    x, names = {}, {}
    for split in SPLITS:
        texts, names[split] = rows_of(clinc / f"{split}.csv")
        file = work / f"{split}.features.npy"
        if not file.exists():
            np.save(file, embed(texts, minilm))
        x[split] = np.load(file)
    train = read_labels(names["train"])
    model = LogisticRegression(C=100.0, max_iter=300)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # 300 steps are the budget, converged or not
        model.fit(x["train"], train.ids)
    for split in ("val", "test"):
        ids = read_labels(names[split], class_map=train.class_map).ids
        logits = model.decision_function(x[split]).astype(np.float32)
        np.savez(work / f"{split}.npz", logits=logits, labels=ids)
    np.save(work / "oos.npy", model.decision_function(x["oos_test"]).astype(np.float32))


def figures(work: Path) -> list[dict[str, Any]]:
    rows = []
    for method in CALIBRATORS:
        plan = CalibrationPlan(
            str(work / "val.npz"), test_file=str(work / "test.npz"), method=method
        )
        found = calibrate_file(plan)
        row = {"method": method, "status": found.calibrator.status, "plain": found.calibrator.plain}
        for name in ("accuracy", "nll", "brier", "ece"):
            after, before = (r.metrics[name] for r in (found.after, found.before))
            row[name] = {"before": before.value, "after": after.value, "interval": after.interval}
            row[name]["shows"] = found.comparison.verdicts[name]
        if method == "temperature":
            row["temperature"] = found.calibrator.parameters["temperature"]
            row["interval"] = found.interval
        rows.append(row)
    return rows


def ood(work: Path, temperature: float) -> dict[str, Any]:
    """How well scores of known and of out-of-scope queries are told apart, at T = 1 and fitted."""
    inside, outside = np.load(work / "test.npz")["logits"], np.load(work / "oos.npy")
    found = {}
    for score in (msp, energy, predictive_entropy):
        for t in (1.0, temperature):
            ins, outs = (score(logits=z, temperature=t) for z in (inside, outside))
            metrics = ood_metrics(id_scores=ins, ood_scores=outs, bootstrap=200)
            found[f"{score.__name__}, T = {t:.3g}"] = {
                name: getattr(metrics, name).value for name in ("auroc", "fpr95_in", "aupr_out")
            }
    return found


def main(clinc: Path, minilm: Path, work: Path) -> None:
    work.mkdir(parents=True, exist_ok=True)
    if not (work / "oos.npy").exists():
        make_logits(clinc, minilm, work)
    rows = figures(work)
    result = {"rows": rows, "ood": ood(work, rows[0]["temperature"])}
    text = json.dumps(result, indent=1) + "\n"
    Path(__file__).with_name("clinc150.json").write_text(text, encoding="utf-8")
    for row in rows:
        cells = (f"{k} {row[k]['before']:.4f} -> {row[k]['after']:.4f}" for k in ("nll", "ece"))
        print(row["method"], row["status"], *cells, sep="; ")
    print(json.dumps(result["ood"], indent=1))


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:4]))
