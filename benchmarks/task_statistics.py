"""Every statistic of ``measure_statistics``: CPU seconds, and the same number from another library.

    python benchmarks/task_statistics.py        # 50,000 x 1280, 100 classes, 4 minutes
    python benchmarks/task_statistics.py --quick # 5,000 x 128, 10 classes, seconds
    python benchmarks/task_statistics.py --json out.json

One thread, float32 rows, CPU seconds by ``time.process_time``; memory is what the process grows by.

- *alone*: the statistic by itself, from features to a number, without spread.
- *peer*: the usual way to the same number on the same rows, where there is one; in float64 as ours,
  the conversion not timed. *difference*: relative, of the two numbers.
- For TwoNN and silhouette the peers have no way to compare some rows with all: both sides get the
  same few rows as the whole data set (column *rows*).
- *together*: all at once, with and without spread; csg apart, since it has its own benchmark.

scikit-dimension (for TwoNN) is looked for and left out where it is not installed.
"""

from __future__ import annotations

import os

os.environ.update(OMP_NUM_THREADS="1", MKL_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1")

import argparse
import json
import platform
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.stats import kurtosis
from sklearn.decomposition import PCA
from sklearn.metrics import silhouette_score
from sklearn.neighbors import NearestCentroid, NearestNeighbors

from temperance.records import Features
from temperance.task.neighbour_statistics import NEIGHBOUR_ROWS, SILHOUETTE_ROWS, _draw
from temperance.task.statistics import STATISTICS, try_statistics

Number = Callable[[], float]


def blobs(n: int, d: int, classes: int) -> tuple[np.ndarray, np.ndarray]:
    """Correlated Gaussian classes of unit scale, float32."""
    rng = np.random.default_rng(0)
    y = np.arange(n) % classes
    mix = (np.eye(d) + rng.normal(0, 0.5, (d, d)) / np.sqrt(d)).astype(np.float32)
    x = rng.standard_normal((n, d), dtype=np.float32) @ mix
    x += rng.normal(0, 0.15, (classes, d)).astype(np.float32)[y]
    return x, y


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    start = time.process_time()
    result = work()
    return time.process_time() - start, result


# ------------------------------------------------------------------ peers
def logme_fixed_point(f: np.ndarray, y: np.ndarray) -> float:
    """The fixed point of arXiv 2110.10545 for more rows than features, run to convergence."""
    n, d = f.shape
    _, square, vh = np.linalg.svd(f.T @ f)
    u = f @ vh.T / np.sqrt(square)
    total = 0.0
    for c in range(y.max() + 1):
        target = (y == c).astype(np.float64)
        x2 = (u.T @ target) ** 2
        rest = max(target.sum() - x2.sum(), 0.0)
        alpha = beta = 1.0
        for _ in range(200):
            t = alpha / beta
            gamma = (square / (square + t)).sum()
            m2 = (square * x2 / (t + square) ** 2).sum()
            res2 = (x2 / (1 + square / t) ** 2).sum() + rest
            alpha, beta = gamma / m2, (n - gamma) / res2
            if abs(alpha / beta - t) <= 1e-9 * t:
                break
        log_det = np.log(alpha + beta * square).sum()
        fit = beta * res2 + alpha * m2
        ends = d * np.log(alpha) + n * np.log(beta) - log_det - fit - n * np.log(2 * np.pi)
        total += 0.5 * float(ends) / n
    return total / (y.max() + 1)


def correlation(x: np.ndarray) -> float:
    size = np.abs(np.corrcoef(x, rowvar=False))
    return float((size.sum() - len(size)) / (len(size) * (len(size) - 1)))


def peers(x: np.ndarray, y: np.ndarray) -> dict[str, tuple[str, Number]]:
    """Name of the peer and how it gets the number, by statistic."""
    wide = x.astype(np.float64)
    rows, _ = _draw(y, NEIGHBOUR_ROWS, groups=5, seed=0)

    def within() -> float:
        means = np.stack([wide[y == c].mean(axis=0) for c in range(y.max() + 1)])
        return float(np.square(wide - means[y]).sum() / len(y))

    def ratio() -> float:
        values = PCA(svd_solver="covariance_eigh").fit(wide).explained_variance_
        return float(values.sum() ** 2 / np.square(values).sum())

    def nearest_neighbour() -> float:
        index = NearestNeighbors(n_neighbors=2, algorithm="brute").fit(x)
        return float((y[index.kneighbors(x[rows], return_distance=False)[:, 1]] == y[rows]).mean())

    return {
        "norm_mean": ("NumPy", lambda: float(np.linalg.norm(wide, axis=1).mean())),
        "mean_abs_correlation": ("NumPy", lambda: correlation(wide)),
        "kurtosis": ("SciPy", lambda: float(kurtosis(wide, axis=0).mean())),
        "trace_within": ("NumPy", within),
        "participation_ratio": ("scikit-learn", ratio),
        "pca90_dim": (
            "scikit-learn",
            lambda: float(PCA(0.9, svd_solver="covariance_eigh").fit(wide).n_components_),
        ),
        "nearest_mean_accuracy": (
            "scikit-learn (row not left out)",
            lambda: float(NearestCentroid().fit(wide, y).score(wide, y)),
        ),
        "nn_accuracy": ("scikit-learn", nearest_neighbour),
        "logme": ("fixed point, NumPy", lambda: logme_fixed_point(wide, y)),
    }


def small_peers(x: np.ndarray, y: np.ndarray) -> dict[str, tuple[str, int, Number]]:
    """The same where the peer takes whole data sets only: name, rows, number."""
    n, m = min(SILHOUETTE_ROWS, len(x)), min(NEIGHBOUR_ROWS, len(x))
    wide = x[:n].astype(np.float64)
    found: dict[str, tuple[str, int, Number]] = {
        "silhouette": ("scikit-learn", n, lambda: float(silhouette_score(wide, y[:n])))
    }
    try:
        from skdim.id import TwoNN
    except ImportError:
        print("scikit-dimension is not installed: no peer for TwoNN", file=sys.stderr)
        return found
    return found | {
        "twonn_dim": ("scikit-dimension", m, lambda: float(TwoNN().fit(x[:m]).dimension_))
    }


# ------------------------------------------------------------------ measuring
def measure_alone(x: np.ndarray, y: np.ndarray) -> list[dict[str, Any]]:
    features, known, small = Features.from_arrays(x, y), peers(x, y), small_peers(x, y)
    rows = []
    for name, spec in STATISTICS.items():
        seconds, value = timed(lambda spec=spec: spec.function(features))
        row = {"statistic": name, "value": value, "alone": seconds}
        if name in known:
            row |= compare(*known[name], ours=(seconds, value)) | {"rows": len(x)}
        if name in small:
            title, n, number = small[name]
            part = Features.from_arrays(x[:n], y[:n])
            ours = timed(lambda spec=spec, part=part: spec.function(part))
            row |= compare(title, number, ours=ours) | {"rows": n}
        print(json.dumps(row), file=sys.stderr)
        rows.append(row)
    return rows


def compare(title: str, number: Number, *, ours: tuple[float, float]) -> dict[str, Any]:
    seconds, value = timed(number)
    return {
        "peer": title,
        "peer_seconds": seconds,
        "ours_seconds": ours[0],
        "ratio": ours[0] / seconds,
        "difference": abs(ours[1] - value) / max(abs(value), 1e-300),
    }


def measure_together(x: np.ndarray, y: np.ndarray) -> dict[str, Any]:
    features = Features.from_arrays(x, y)
    names = [name for name in STATISTICS if name != "csg"]
    try_statistics(Features.from_arrays(x[:500], y[:500]), names)  # warm-up: imports
    out: dict[str, Any] = {}
    with growth(out, "memory_mb"):
        out["all_but_csg"], _ = timed(lambda: try_statistics(features, names))
    out["without_spread"], _ = timed(lambda: try_statistics(features, names, repeats=1))
    out["csg"], _ = timed(lambda: try_statistics(features, "csg"))
    return out


@contextmanager
def growth(out: dict[str, Any], name: str) -> Iterator[None]:
    """Keep by how much the resident set grows at its peak (MB), sampled every 2 ms."""
    page, statm = os.sysconf("SC_PAGE_SIZE"), Path("/proc/self/statm")

    def resident() -> float:
        return int(statm.read_text().split()[1]) * page / 1e6

    before, done = resident(), threading.Event()
    peak = [before]

    def watch() -> None:
        while not done.wait(0.002):
            peak[0] = max(peak[0], resident())

    thread = threading.Thread(target=watch)
    thread.start()
    yield
    done.set()
    thread.join()
    out[name] = peak[0] - before


# ------------------------------------------------------------------ the table
def table(rows: list[dict[str, Any]]) -> str:
    lines = [
        "| statistic | alone, s | peer | rows | peer, s | ours, s | of peer | difference |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        cells = [row["statistic"], f"{row['alone']:.2f}"]
        if "peer" in row:
            cells += [row["peer"], f"{row['rows']:,}"]
            cells += [f"{row[k]:.2f}" for k in ("peer_seconds", "ours_seconds", "ratio")]
            cells.append(f"{row['difference']:.0e}")
        lines.append("| " + " | ".join(cells + ["-"] * (8 - len(cells))) + " |")
    return "\n".join(lines)


def main() -> None:
    torch.set_num_threads(1)
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="5,000 x 128, 10 classes")
    parser.add_argument("--size", metavar="NxMxC", help="another size")
    parser.add_argument("--json", type=Path, help="write the figures to this file, too")
    options = parser.parse_args()
    size = options.size or ("5000x128x10" if options.quick else "50000x1280x100")
    n, d, classes = map(int, size.split("x"))
    x, y = blobs(n, d, classes)
    together = measure_together(x, y)
    rows = measure_alone(x, y)
    print(table(rows))
    print(json.dumps(together))
    record = {"benchmark": "statistics", "threads": 1, "size": size, "machine": machine()}
    record |= {"together": together, "statistics": rows}
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
