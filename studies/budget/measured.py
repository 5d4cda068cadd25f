"""Statistics of the rows of every task: ``python measured.py RUNS OUT.parquet``.

For the heuristic of statistics (``temperance fit --rule statistics``), to be judged beside the law:
all that ``task.statistics`` has, of the training rows of every setting with BN in front of the head
in RUNS/law, RUNS/held-out and RUNS/fresh (the last where it is there), as they are trained on; for
sequences of letters those of ``char-svd:128``, since one-hot letters say nothing as features. What
is in OUT.parquet already is kept, so that a call that was stopped goes on.
"""

from __future__ import annotations

import io
import math
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from difficulty import key
from fit_law import read

from temperance.files import write_bytes
from temperance.study.data import features_of, load
from temperance.task.statistics import measure_statistics

FOLDERS = ("law", "held-out", "fresh")
_SAVED_EVERY = 10


def wanted(runs: Path) -> dict[str, tuple[Any, ...]]:
    """Rows to measure, by key; those of one representation together."""
    found = {}
    for folder in FOLDERS:
        curves = read(runs / folder) if (runs / folder).exists() else []
        for s in (curve.setting for curve in curves if curve.setting["norm"] == "batch"):
            features = "char-svd:128" if "one-hot" in s["features"] else s["features"]
            found[key(s)] = (s["dataset"], features, s["train_rows"], s["label_noise"])
    return dict(sorted(found.items(), key=lambda item: tuple(map(str, item[1]))))


def table(file: Path) -> dict[str, dict[str, float]]:
    """Statistics by task, without those that a task does not have."""
    rows = pq.read_table(file).to_pylist() if file.exists() else []
    return {row.pop("task"): {name: v for name, v in row.items() if v is not None} for row in rows}


def save(found: dict[str, dict[str, float]], file: Path) -> None:
    names = sorted({name for row in found.values() for name in row})
    columns = {name: [row.get(name) for row in found.values()] for name in names}
    buffer = io.BytesIO()
    pq.write_table(pa.table({"task": list(found), **columns}), buffer, compression="zstd")
    write_bytes(file, buffer.getvalue())


def main(runs: Path, out: Path) -> None:
    """Measure what is missing."""
    found = table(out)
    missing = {k: v for k, v in wanted(runs).items() if k not in found}
    for count, (name, (dataset, features, rows, noise)) in enumerate(missing.items(), start=1):
        task = features_of(load(dataset, features, train_rows=rows, label_noise=noise))
        values = {k: float(v.value) for k, v in measure_statistics(task).items()}
        found[name] = {k: float(f"{v:.7g}") for k, v in values.items() if math.isfinite(v)}
        if count % _SAVED_EVERY == 0 or count == len(missing):
            save(dict(sorted(found.items())), out)
            print(f"{count} of {len(missing)}", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
