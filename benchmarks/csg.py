"""CSG side by side: Temperance, spectral-metric 0.6.1, and faiss's exact search as the floor.

    python benchmarks/csg.py                      # all sizes in one process, about 10 minutes
    python benchmarks/csg.py --quick              # the smallest size, seconds
    python benchmarks/csg.py --only 50000x128x100 --json out.json

One thread, CPU seconds by ``time.process_time``. Per size, all on the same rows:

- ``spectral-metric``: one run of its public call (``M_sample=250, k_nearest=3``), float64.
- ``csg, 1 draw``: the same work, one draw of 250 rows per class, the same float64 array; the better
  of two runs, as for faiss.
- ``csg, 1 draw, float32`` and ``csg, 5 draws`` (the default): for comparison.
- ``faiss``: ``IndexFlatL2`` built and asked for the 4 nearest rows (the row itself and 3) of one
  draw; ``nearest``: our search of the same rows. Their answers are compared.

Imports are not timed; torch is imported before, as in any program that trains (without it, csg
would use NumPy's product, or import torch where that pays).

Peak memory is what the process grows by during ``csg`` (resident set, sampled every 2 ms in a
fresh process that holds the data already).
"""

from __future__ import annotations

import os

os.environ.update(OMP_NUM_THREADS="1", MKL_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1")

import argparse
import json
import platform
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from temperance.records import Features
from temperance.task.csg import csg
from temperance.task.neighbours import nearest

SIZES = ((10_000, 128, 10), (50_000, 128, 100), (50_000, 512, 200))
TARGETS = {(50_000, 128, 100): 12, (50_000, 512, 200): 6}  # times faster than spectral-metric
FLOOR_TARGET, MEMORY_TARGET = 1.5, 300
N_SAMPLES, K = 250, 3


def blobs(n: int, d: int, classes: int) -> tuple[np.ndarray, np.ndarray]:
    """Unit-variance Gaussian classes whose centres have a spread of 0.15 (float64)."""
    rng = np.random.default_rng(0)
    y = np.arange(n) % classes
    centres = rng.normal(0, 0.15, (classes, d))
    x = rng.normal(0, 1, (n, d))
    for start in range(0, n, 1000):
        x[start : start + 1000] += centres[y[start : start + 1000]]
    return x, y


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    start = time.process_time()
    result = work()
    return time.process_time() - start, result


def one_draw(y: np.ndarray) -> np.ndarray:
    rng = np.random.default_rng(0)
    members = [np.flatnonzero(y == c) for c in range(y.max() + 1)]
    return np.sort(np.concatenate([rng.permutation(m)[:N_SAMPLES] for m in members]))


# ------------------------------------------------------------------ the contestants
def run_ours(x: np.ndarray, y: np.ndarray) -> dict[str, Any]:
    wide = Features.from_arrays(x, y)
    slim = Features.from_arrays(x.astype(np.float32), y)
    csg(Features.from_arrays(x[:500], y[:500]))  # warm-up
    runs = [timed(lambda: csg(wide, N_SAMPLES, K, repeats=1)) for _ in range(2)]
    out = {"csg_1_draw": min(seconds for seconds, _ in runs), "value": runs[0][1].value}
    out["csg_1_draw_float32"], _ = timed(lambda: csg(slim, N_SAMPLES, K, repeats=1))
    out["csg_5_draws"], five = timed(lambda: csg(wide, N_SAMPLES, K, repeats=5))
    return out | {"value_5_draws": five.value, "interval_5_draws": five.interval}


def run_floor(x: np.ndarray, y: np.ndarray) -> dict[str, Any]:
    """Faiss and our search, alternating; the better of two each."""
    slim, rows = x.astype(np.float32), one_draw(y)
    out: dict[str, Any] = {"queries": len(rows)}
    try:
        import faiss
    except ImportError:
        print("faiss is not installed (pip install faiss-cpu): no floor", file=sys.stderr)
        return out | {"nearest": timed(lambda: nearest(slim, rows, K))[0]}
    faiss.omp_set_num_threads(1)

    def search() -> np.ndarray:
        index = faiss.IndexFlatL2(slim.shape[1])
        index.add(slim)
        return index.search(slim[rows], K + 1)[1]

    runs = [(timed(search), timed(lambda: nearest(slim, rows, K))) for _ in range(2)]
    theirs, ours = runs[0][0][1][:, 1:], runs[0][1][1][0]
    return out | {
        "faiss": min(run[0][0] for run in runs),
        "nearest": min(run[1][0] for run in runs),
        "rows_that_differ_from_faiss": int((theirs != ours).any(axis=1).sum()),
    }


def run_peer(x: np.ndarray, y: np.ndarray) -> dict[str, Any]:
    try:
        from spectral_metric.estimator import CumulativeGradientEstimator
    except ImportError:
        print("spectral-metric is not installed: nothing to compare with", file=sys.stderr)
        return {}
    peer = CumulativeGradientEstimator(M_sample=N_SAMPLES, k_nearest=K)
    seconds, _ = timed(lambda: peer.fit(x, y))
    return {"spectral_metric": seconds, "value_spectral_metric": float(np.squeeze(peer.csg))}


# ------------------------------------------------------------------ memory, in a fresh process
def memory_growth(n: int, d: int, classes: int, dtype: str) -> float:
    command = [sys.executable, __file__, "--memory-child", f"{n}x{d}x{classes}x{dtype}"]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def memory_child(size: str) -> None:
    n, d, classes, dtype = size.split("x")
    x, y = blobs(int(n), int(d), int(classes))
    features = Features.from_arrays(x.astype(dtype, copy=False), y)
    del x
    csg(Features.from_arrays(features.x[:500], y[:500]))  # warm-up: imports
    page, statm = os.sysconf("SC_PAGE_SIZE"), Path("/proc/self/statm")

    def resident() -> float:
        return int(statm.read_text().split()[1]) * page / 1e6

    before, peak, done = resident(), [0.0], threading.Event()

    def watch() -> None:
        while not done.wait(0.002):
            peak[0] = max(peak[0], resident())

    thread = threading.Thread(target=watch)
    thread.start()
    csg(features, N_SAMPLES, K)
    done.set()
    thread.join()
    print(peak[0] - before)


# ------------------------------------------------------------------ the table
def measure_size(size: tuple[int, int, int]) -> dict[str, Any]:
    n, d, classes = size
    x, y = blobs(n, d, classes)
    out = {"n": n, "d": d, "classes": classes}
    out |= run_ours(x, y) | run_floor(x, y) | run_peer(x, y)
    if Path("/proc/self/statm").exists():
        for dtype in ("float32", "float64"):
            out[f"memory_mb_{dtype}"] = memory_growth(n, d, classes, dtype)
    if "spectral_metric" in out:
        out["times_faster"] = out["spectral_metric"] / out["csg_1_draw"]
    if "faiss" in out:
        out["of_floor"] = out["csg_1_draw"] / out["faiss"]
    out["targets_met"] = met(size, out)
    return out


def met(size: tuple[int, int, int], out: dict[str, Any]) -> dict[str, bool]:
    checks = {
        "times_faster": out.get("times_faster", np.inf) >= TARGETS.get(size, 1),
        "of_floor": out.get("of_floor", 0) <= FLOOR_TARGET,
        "memory": max(out.get("memory_mb_float32", 0), out.get("memory_mb_float64", 0))
        < MEMORY_TARGET,
    }
    return {name: bool(value) for name, value in checks.items()}


COLUMNS = (
    ("spectral-metric", "spectral_metric", "{:.1f}"),
    ("csg, 1 draw", "csg_1_draw", "{:.2f}"),
    ("float32", "csg_1_draw_float32", "{:.2f}"),
    ("5 draws", "csg_5_draws", "{:.2f}"),
    ("faiss", "faiss", "{:.2f}"),
    ("nearest", "nearest", "{:.2f}"),
    ("times faster", "times_faster", "{:.0f}"),
    ("of faiss", "of_floor", "{:.2f}"),
    ("MB, float32", "memory_mb_float32", "{:.0f}"),
    ("MB, float64", "memory_mb_float64", "{:.0f}"),
)


def table(rows: list[dict[str, Any]]) -> str:
    lines = ["| N, d, classes | " + " | ".join(title for title, _, _ in COLUMNS) + " |"]
    lines.append("|---" * (len(COLUMNS) + 1) + "|")
    for row in rows:
        cells = [form.format(row[key]) if key in row else "-" for _, key, form in COLUMNS]
        lines.append(f"| {row['n']}, {row['d']}, {row['classes']} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    torch.set_num_threads(1)
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="only the smallest size")
    parser.add_argument("--only", action="append", metavar="NxDxC", help="sizes, may be repeated")
    parser.add_argument("--json", type=Path, help="write the figures to this file, too")
    parser.add_argument("--memory-child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.memory_child:
        memory_child(options.memory_child)
        return
    sizes = SIZES[:1] if options.quick else SIZES
    if options.only:
        sizes = tuple(tuple(map(int, text.split("x"))) for text in options.only)
    rows = [measure_size(size) for size in sizes]
    print(table(rows))
    record = {"benchmark": "csg", "threads": 1, "machine": machine(), "sizes": rows}
    print(json.dumps(record))
    if options.json:
        part = options.json.with_suffix(".part")
        part.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
        os.replace(part, options.json)


def machine() -> dict[str, str]:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
    return {
        "processor": names[0] if names else platform.processor(),
        "python": platform.python_version(),
        "numpy": np.__version__,
    }


if __name__ == "__main__":
    main()
