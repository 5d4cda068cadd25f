"""Does the law hold where a net is fine-tuned? ``python finetune.py ROWS.jsonl [OUT]``.

Perceptrons that were trained on one data set go on with another one and a new head, beside the same
trainings from scratch: letters (``pixels``) from ``typefaces`` to three alphabets, sentences
(``minilm``) from ``clinc150`` to four sets of texts. 24 settings drawn like those of the study, 11
temperatures, two seeds. Rows are kept, so that a call that was stopped goes on. OUT gets the table.
The data sets are among those that the law was fitted on (from scratch), none is held out here.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from design import log_between, one_of, short
from scipy.stats import qmc

from temperance.files import write_bytes
from temperance.records import Task
from temperance.rules import RULES
from temperance.study import networks
from temperance.study.data import load
from temperance.study.networks_net import new_prototype
from temperance.study.networks_train import train
from temperance.study.outcome import StudyData
from temperance.study.score import score
from temperance.study.trial import Trial

GROUPS = {
    "pixels": ("typefaces", ("glyphs-latin", "glyphs-greek", "glyphs-accents")),
    "minilm": ("clinc150", ("debian-sections", "fortunes", "bible-books", "food-reviews")),
}
WIDTHS, SEEDS, SETTINGS = (64, 256), 2, 24
STARTS = ("scratch", "pretrained")


def settings() -> list[dict[str, Any]]:
    """The settings, drawn from a Sobol sequence, data sets in turn."""
    pairs = [(f, target) for f, (_, targets) in GROUPS.items() for target in targets]
    sobol = qmc.Sobol(9, scramble=True, rng=np.random.default_rng(900)).random(32)[:SETTINGS]
    found = []
    for index, u in enumerate(sobol):
        features, dataset = pairs[index % len(pairs)]
        optimizer = one_of(u[0], ("sgd", "adamw"))
        rate = (3e-3, 1.0) if optimizer == "sgd" else (1e-4, 1e-2)
        found.append({
            "dataset": dataset, "features": features, "model": "mlp", "norm": "batch",
            "feature_dim": one_of(u[1], WIDTHS), "optimizer": optimizer,
            "lr": short(log_between(u[2], *rate)), "steps": round(log_between(u[3], 30, 2000)),
            "train_rows": round(log_between(u[4], 600, 2900)), "batch_size": one_of(u[5], (32, 64)),
            "schedule": one_of(u[6], ("cosine", "constant")), "weight_decay": 0.0,
            "momentum": one_of(u[7], (0.0, 0.9)) if optimizer == "sgd" else 0.0,
        })  # fmt: skip
    return found


def grid(setting: Mapping[str, Any], data: StudyData) -> list[float]:
    """Eleven temperatures, doubling, around that of the law."""
    at = round(math.log2(law(setting, data)))
    return [2.0**k for k in range(at - 5, at + 6)]


def law(setting: Mapping[str, Any], data: StudyData) -> float:
    task = Task(
        setting["feature_dim"],
        data.n_classes,
        n_samples=len(data.y["train"]),
        training={k: v for k, v in setting.items() if k not in ("dataset", "features", "model")},
    )
    return float(RULES["budget"](task))


def bodies() -> dict[tuple[str, int], dict[str, torch.Tensor]]:
    """Weights of the nets on the first data set of every group, by features and width."""
    found = {}
    for features, (source, _) in GROUPS.items():
        data = load(source, features)
        for width in WIDTHS:
            trial = Trial(
                source, features, "mlp", width, "batch", optimizer="adamw", lr=1e-3, steps=3000
            )
            run = train([trial], data, prototype=new_prototype(data, trial))
            state = run.states[0]
            found[features, width] = {
                k: v.clone() for k, v in state.items() if not k.startswith("head.")
            }
            print(f"{source} {features} M = {width}: {run.history['val_accuracy'][-1]}", flush=True)
    return found


def run(file: Path) -> None:
    """Train what is missing."""
    known = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    done = {(row["setting"], row["start"]) for row in known}
    weights = bodies() if len(done) < SETTINGS * len(STARTS) else {}
    for number, setting in enumerate(settings()):
        if all((number, start) in done for start in STARTS):
            continue
        data = load(setting["dataset"], setting["features"], train_rows=setting["train_rows"])
        base = Trial(**setting)
        trials = [
            replace(base, temperature=t, seed=seed)
            for seed in range(SEEDS)
            for t in grid(setting, data)
        ]
        for start in STARTS:
            if (number, start) in done:
                continue
            body = weights[setting["features"], setting["feature_dim"]]
            networks.new_prototype = started(body) if start == "pretrained" else new_prototype
            rows = []
            for outcome in networks.train_networks(data, trials):
                metrics = score(outcome, data) if outcome.outcome == "done" else {}
                rows.append(
                    {
                        "temperature": outcome.trial.temperature,
                        "seed": outcome.trial.seed,
                        **metrics,
                    }
                )
            line = {
                "setting": number, "start": start, "law": law(setting, data), **setting,
                "classes": data.n_classes, "rows": rows,
            }  # fmt: skip
            with file.open("a") as out:
                out.write(json.dumps(line) + "\n")
            print(number, start, setting["dataset"], setting["optimizer"], flush=True)


def started(body: Mapping[str, torch.Tensor]) -> Any:
    """``new_prototype`` with the weights of a body, and a head of its own."""

    def make(data: StudyData, trial: Trial) -> Any:
        prototype = new_prototype(data, trial)
        missing, foreign = prototype.net.load_state_dict(dict(body), strict=False)
        assert not foreign
        assert all(name.startswith("head.") for name in missing)
        return prototype

    return make


# ------------------------------------------------------------------ the table
def curve(line: Mapping[str, Any], metric: str) -> tuple[np.ndarray, np.ndarray]:
    """Temperatures, and the mean over seeds; what diverged knows nothing."""
    chance = 1 / line["classes"] if "accuracy" in metric else math.log(line["classes"])
    tried = sorted({row["temperature"] for row in line["rows"]})
    mean = [
        np.mean([row.get(metric, chance) for row in line["rows"] if row["temperature"] == t])
        for t in tried
    ]
    found = np.array(mean)
    return np.log(tried), found if "accuracy" in metric else np.minimum(found, 3 * chance)


def table(lines: list[dict[str, Any]]) -> str:
    """Per optimizer and start: best T over that of the law, and what law and T = 1 cost."""
    text = [
        "# The law where a net is fine-tuned",
        "",
        "Made by `finetune.py`. Best T by validation NLL after a post-hoc T; regrets on test rows",
        "against it, mean over settings; 95 % intervals, data sets drawn again.",
        "",
        "| optimizer, start | settings | best T over law | accuracy: law | accuracy: T = 1 "
        "| NLL after %: law | NLL after %: T = 1 |",
        "|---|---|---|---|---|---|---|",
    ]
    for optimizer in ("sgd", "adamw"):
        for start in STARTS:
            own = [r for r in lines if r["optimizer"] == optimizer and r["start"] == start]
            figures = np.array([figures_of(line) for line in own])
            sets = np.array([line["dataset"] for line in own])
            cells = [interval(figures[:, k], sets) for k in range(figures.shape[1])]
            ratio = [f"{math.exp(v):.2f}" for v in cells[0]]
            words = [f"{ratio[0]} [{ratio[1]}, {ratio[2]}]"]
            words += [f"{a:.2f} [{b:.2f}, {c:.2f}]" for a, b, c in cells[1:]]
            text.append(f"| {optimizer}, {start} | {len(own)} | {' | '.join(words)} |")
    both = {}
    for line in lines:
        x, y = curve(line, "val_nll_posthoc")
        both.setdefault(line["setting"], {})[line["start"]] = (x[y.argmin()], line)
    text += ["", "Best T fine-tuned over best T from scratch, geometric mean:", ""]
    for optimizer in ("sgd", "adamw"):
        pairs = [
            v for v in both.values() if len(v) == 2 and v["scratch"][1]["optimizer"] == optimizer
        ]
        shift = np.array([v["pretrained"][0] - v["scratch"][0] for v in pairs])
        sets = np.array([v["scratch"][1]["dataset"] for v in pairs])
        a, b, c = (math.exp(v) for v in interval(shift, sets))
        text.append(f"- {optimizer}: {a:.2f} [{b:.2f}, {c:.2f}] ({len(pairs)} settings)")
    return "\n".join(text) + "\n"


def figures_of(line: Mapping[str, Any]) -> list[float]:
    x, val = curve(line, "val_nll_posthoc")
    best, at = val.argmin(), math.log(line["law"])
    _, nll = curve(line, "test_nll_posthoc")
    _, accuracy = curve(line, "test_accuracy")
    found = [float(x[best]) - at]
    found += [100 * (accuracy[best] - np.interp(t, x, accuracy)) for t in (at, 0.0)]
    found += [100 * (np.interp(t, x, nll) / nll[best] - 1) for t in (at, 0.0)]
    return [float(v) for v in found]


def interval(values: np.ndarray, sets: np.ndarray) -> tuple[float, float, float]:
    rng, names = np.random.default_rng(0), sorted(set(sets))
    draws = [
        np.concatenate([values[sets == n] for n in rng.choice(names, len(names))]).mean()
        for _ in range(2000)
    ]
    low, high = np.quantile(draws, (0.025, 0.975))
    return float(values.mean()), float(low), float(high)


def main() -> None:
    file = Path(sys.argv[1])
    file.parent.mkdir(parents=True, exist_ok=True)
    run(file)
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    found = table(lines)
    print(found)
    if len(sys.argv) > 2:
        out = Path(sys.argv[2])
        out.mkdir(parents=True, exist_ok=True)
        write_bytes(out / "finetune.md", found.encode())


if __name__ == "__main__":
    main()
