"""How hard the tasks are, without a net: ``python difficulty.py PLANS OUT.json``.

1-NN accuracy and CSG of the training rows of every task in a folder of plans, as they are trained
on (with their wrong labels), and of all training rows with their own labels. What is in OUT.json
already is kept, so that a call that was stopped goes on.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from temperance.files import write_bytes
from temperance.study.data import features_of, load
from temperance.study.plan import read_plan
from temperance.task.statistics import measure_statistics

NAMES = ["nn_accuracy", "csg"]


def key(setting: Mapping[str, Any], *, clean: bool = False) -> str:
    """What says which rows: one text, as JSON wants it."""
    rows = ("", 0.0) if clean else (setting["train_rows"] or "", setting["label_noise"])
    return "|".join(map(str, (setting["dataset"], setting["features"], *rows)))


def wanted(plans: Path) -> dict[str, tuple[Any, ...]]:
    """Rows to measure, by key; those of one representation together."""
    found: dict[str, tuple[Any, ...]] = {}
    for path in sorted(plans.glob("*.toml"), key=lambda p: (not p.name.startswith("law"), p.name)):
        for s in {json.dumps(t.setting): t.setting for t in read_plan(path).trials}.values():
            found[key(s)] = (s["dataset"], s["features"], s["train_rows"], s["label_noise"])
            found[key(s, clean=True)] = (s["dataset"], s["features"], None, 0.0)
    return dict(sorted(found.items(), key=lambda item: item[1][:2]))


def main(plans: Path, out: Path) -> None:
    """Measure what is missing."""
    known = json.loads(out.read_text()) if out.exists() else {}
    for name, (dataset, features, rows, noise) in wanted(plans).items():
        if name in known:
            continue
        task = features_of(load(dataset, features, train_rows=rows, label_noise=noise))
        known[name] = {
            k: round(float(v.value), 6) for k, v in measure_statistics(task, NAMES).items()
        }
        write_bytes(out, (json.dumps(known, indent=0, sort_keys=True) + "\n").encode())


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
