"""The post-hoc temperature side by side with five other ways to fit it.

    python benchmarks/posthoc.py                  # all tables in one process, about 6 minutes
    python benchmarks/posthoc.py --quick          # the smallest size, about a minute
    python benchmarks/posthoc.py --json out.json

The peers must be installed (what is missing is left out):
``pip install scikit-learn==1.9.* probmetrics numba pandas netcal torch-uncertainty lightning``.

One thread, CPU seconds by ``time.process_time``, the best of five runs (of one, if it takes more
than 2 s). Float32 logits: normal, spread 2, times the true T; labels are drawn from the softmax
before the T. Every peer is fed what its documentation asks for: scikit-learn's core
(``sklearn.calibration._TemperatureScaling``, what ``CalibratedClassifierCV`` runs) and ours an
array of logits, probmetrics and torch-uncertainty tensors, netcal the softmax (float64; making it
is not timed). The L-BFGS recipe is that of most papers' code: ``Parameter(1.5)``, cross entropy of
``logits / T``, ``LBFGS(lr=0.01, max_iter=50)``.

Relative errors are against the zero of the slope in float64, found by Brent's method. Peak memory
is what the process grows by during the fit: the kernel's highest resident set (Linux only), in a
fresh process that holds the data, has fitted a small set already and has given back what is free.
"""

from __future__ import annotations

import os

os.environ.update(OMP_NUM_THREADS="1", MKL_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1")

import argparse
import ctypes
import json
import logging
import math
import platform
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.optimize import brentq

from temperance import fit_temperature

SIZES = ((10_000, 10), (50_000, 100), (50_000, 1000))
TRUE = (1e-3, 0.05, 1.0, 20.0, 98.6, 500.0, 1e4)
SLOW, TIME_LIMIT = 2.0, 900  # CPU seconds above which a fit runs once; seconds after which it ends
FRACTION, ERROR = 1 / 3, 1e-6  # of the fastest peer that finds the optimum; relative, of T
FOUND = 1e-2  # relative error of T below which a peer counts as having found the optimum


# ------------------------------------------------------------------ the contestants
def temperance(z: Any, y: np.ndarray) -> float:
    return fit_temperature(logits=z, labels=y).temperature


def scikit_learn(z: Any, y: np.ndarray) -> float:
    from sklearn.calibration import _TemperatureScaling

    return float(1 / _TemperatureScaling().fit(z, y).beta_)


def probmetrics(z: Any, y: np.ndarray) -> float:
    from probmetrics.calibrators.temperature_scaling import TemperatureScalingCalibrator
    from probmetrics.distributions import CategoricalLogits

    peer = TemperatureScalingCalibrator()
    peer.fit_torch(CategoricalLogits(torch.as_tensor(z)), torch.as_tensor(y))
    return float(1 / peer.invtemp_)


def netcal(p: Any, y: np.ndarray) -> float:
    from netcal.scaling import TemperatureScaling

    peer = TemperatureScaling()
    peer.fit(p, y)
    return float(1 / np.ravel(peer.temperature)[0])  # what it calls so multiplies the logits


def torch_uncertainty(z: Any, y: np.ndarray) -> float:
    from torch.utils.data import DataLoader, TensorDataset
    from torch_uncertainty.post_processing import TemperatureScaler

    peer = TemperatureScaler()
    data = TensorDataset(torch.as_tensor(z), torch.as_tensor(y))
    peer.fit(DataLoader(data, batch_size=4096), progress=False)
    return float(peer.temperature[0])


def l_bfgs(z: Any, y: np.ndarray) -> float:
    temperature = torch.nn.Parameter(torch.ones(1) * 1.5)
    optimizer = torch.optim.LBFGS([temperature], lr=0.01, max_iter=50)
    logits, labels = torch.as_tensor(z), torch.as_tensor(y)

    def loss() -> torch.Tensor:
        optimizer.zero_grad()
        value = torch.nn.functional.cross_entropy(logits / temperature, labels)
        value.backward()
        return value

    optimizer.step(loss)
    return float(temperature)


METHODS: dict[str, Callable[[Any, np.ndarray], float]] = {
    "Temperance": temperance,
    "scikit-learn": scikit_learn,
    "probmetrics": probmetrics,
    "netcal": netcal,
    "torch-uncertainty": torch_uncertainty,
    "L-BFGS recipe": l_bfgs,
}


def installed() -> list[str]:
    """Methods that run here; imports them, which is not timed."""
    z, y = sample(200, 5)
    names = []
    for name, method in METHODS.items():
        try:
            quietly(method, fed(name, z), y)
            names.append(name)
        except ImportError as error:
            print(f"{name} is left out: {error}", file=sys.stderr)
    return names


def fed(name: str, z: np.ndarray) -> np.ndarray:
    """What a method is fed: netcal takes probabilities."""
    if name != "netcal":
        return z
    if z.ndim == 1 or (z.ndim == 2 and z.shape[1] == 1):
        return 1 / (1 + np.exp(-z.reshape(-1).astype(np.float64)))
    d = z.astype(np.float64) - z.max(axis=1, keepdims=True, initial=-np.inf)
    p = np.exp(d)
    return p / p.sum(axis=1, keepdims=True)


# ------------------------------------------------------------------ data, and the right answer
def sample(n: int, c: int, true: float = 3.0, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Float32 logits and labels; the true T is ``true``."""
    rng = np.random.default_rng(seed)
    z, y = np.empty((n, c), dtype=np.float32), np.empty(n, dtype=np.int64)
    for start in range(0, n, 1000):
        part = rng.normal(0, 2, (min(1000, n - start), c))
        y[start : start + 1000] = (part + rng.gumbel(size=part.shape)).argmax(axis=1)
        z[start : start + 1000] = part * true
    return z, y


def optimum(z: np.ndarray, y: np.ndarray, near: float) -> float:
    """The T at which the slope of the NLL is zero, in float64."""

    def slope(u: float) -> float:
        total = 0.0
        for start in range(0, len(z), 1000):
            d = z[start : start + 1000].astype(np.float64)
            d -= d.max(axis=1, keepdims=True)
            p = np.exp(d * math.exp(u))
            mean = (p * d).sum(axis=1) / p.sum(axis=1)
            total += float((mean - d[np.arange(len(d)), y[start : start + 1000]]).sum())
        return total

    u = -math.log(near)
    return math.exp(-brentq(slope, u - 0.5, u + 0.5, xtol=1e-13, rtol=1e-14))


# ------------------------------------------------------------------ one call, watched
def quietly(method: Callable[..., float], *data: Any) -> float:
    """Run a method without its warnings and messages, and not for ever."""
    logging.disable(logging.CRITICAL)
    signal.signal(signal.SIGALRM, _stop)
    signal.alarm(TIME_LIMIT)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return method(*data)
    finally:
        signal.alarm(0)
        logging.disable(logging.NOTSET)


def _stop(*_: object) -> None:
    raise TimeoutError(f"no end after {TIME_LIMIT} s")


def best_time(method: Callable[..., float], *data: Any) -> tuple[float, float]:
    """CPU seconds, the best of up to five runs that are not slow, and the T of the last."""
    times: list[float] = []
    while len(times) < (5 if not times or times[0] < SLOW else 1):
        start = time.process_time()
        value = quietly(method, *data)
        times.append(time.process_time() - start)
    return min(times), value


def memory_growth(name: str, n: int, c: int) -> float:
    command = [sys.executable, __file__, "--memory-child", name, str(n), str(c)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    return float(done.stdout.split()[-1]) if done.returncode == 0 else math.nan


def memory_child(name: str, n: int, c: int) -> None:
    torch.set_num_threads(1)
    small = sample(500, 10)
    quietly(METHODS[name], fed(name, small[0]), small[1])  # warm-up: imports
    z, y = sample(n, c)
    data = fed(name, z)
    ctypes.CDLL(None).malloc_trim(0)
    before = status_mb("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # resets the highest resident set
    quietly(METHODS[name], data, y)
    print(status_mb("VmHWM") - before)


def status_mb(key: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1e3 for line in lines if line.startswith(f"{key}:"))


# ------------------------------------------------------------------ the tables
def measure_size(n: int, c: int, names: list[str]) -> dict[str, Any]:
    z, y = sample(n, c)
    right = optimum(z, y, 3.0)
    rows = {}
    for name in names:
        seconds, value = best_time(METHODS[name], fed(name, z), y)
        error = abs(value / right - 1)
        rows[name] = {"cpu_s": seconds, "temperature": value, "rel_error": error}
        rows[name]["peak_mb"] = memory_growth(name, n, c)
        print(f"{n} x {c}, {name}: {rows[name]}", file=sys.stderr, flush=True)
    out = {"n": n, "classes": c, "optimum": right, "methods": rows}
    peers = {k: v for k, v in rows.items() if k != "Temperance" and v["rel_error"] < FOUND}
    if peers:
        ours = rows["Temperance"]
        fastest = min(peers, key=lambda k: peers[k]["cpu_s"])
        out |= {"fastest_peer": fastest, "of_it": ours["cpu_s"] / peers[fastest]["cpu_s"]}
        out["targets_met"] = {
            "cpu": bool(out["of_it"] <= FRACTION),
            "error": bool(ours["rel_error"] <= ERROR),
            "memory": all(not ours["peak_mb"] >= v["peak_mb"] for v in peers.values()),
        }
    return out


def recovery(names: list[str]) -> list[dict[str, Any]]:
    rows = []
    for true in TRUE:
        z, y = sample(10_000, 10, true)
        right = optimum(z, y, true)
        row: dict[str, Any] = {"true": true, "optimum": right}
        row |= {name: said(METHODS[name], fed(name, z), y) for name in names}
        ours = row["Temperance"]
        row["rel_error"] = abs(float(ours) / right - 1)
        rows.append(row)
    return rows


def bad_inputs() -> dict[str, tuple[np.ndarray, np.ndarray]]:
    z, y = sample(2000, 10, 2.0)
    nan, masked, single = z.copy(), z.copy(), z[:, 1] - z[:, 0]
    nan[7, 3] = np.nan
    masked[:, 3] = -np.inf
    rng = np.random.default_rng(1)
    binary = (rng.random(2000) < 1 / (1 + np.exp(-single / 2.0))).astype(np.int64)
    return {
        "as it is": (z, y),
        "one NaN logit": (nan, y),
        "a class masked with -inf": (masked, np.where(y == 3, 4, y)),
        "one label = C": (z, np.where(np.arange(2000) == 7, 10, y)),
        "one label -1": (z, np.where(np.arange(2000) == 7, -1, y)),
        "no rows": (z[:0], y[:0]),
        "every row right": (z, z.argmax(axis=1)),
        "every row wrong": (z, z.argmin(axis=1)),
        "labels at random": (z, rng.integers(0, 10, 2000)),
        "float16, true T 5e3": ((z * 2500).clip(-6e4, 6e4).astype(np.float16), y),
        "one column, true T 2": (single[:, None], binary),
        "probabilities for logits": (fed("netcal", z / 2).astype(np.float32), y),
    }


def said(method: Callable[..., float], *data: Any) -> str:
    """What a method returned: a number, or the kind of error and its first words."""
    try:
        return f"{quietly(method, *data):.5g}" if method is not temperance else ours_said(*data)
    except Exception as error:  # whatever a peer raises is what its user sees
        return f"{type(error).__name__}: {' '.join(str(error).split())[:80]}"


def ours_said(z: np.ndarray, y: np.ndarray) -> str:
    fit = fit_temperature(logits=z, labels=y)
    notes = " (noted)" if fit.notes else ""
    status = "" if fit.status == "converged" else f" {fit.status}, 1 is applied"
    return f"{fit.temperature!r}{status}{notes}" if status or notes else repr(fit.temperature)


def bad_table(names: list[str]) -> list[dict[str, str]]:
    rows = []
    for what, (z, y) in bad_inputs().items():
        with np.errstate(all="ignore"):
            rows.append({"input": what} | {m: said(METHODS[m], _fed(m, z, what), y) for m in names})
    return rows


def _fed(name: str, z: np.ndarray, what: str) -> np.ndarray:
    return z if what.startswith("prob") or not len(z) else fed(name, z)


def size_table(sizes: list[dict[str, Any]], names: list[str]) -> str:
    heads = [f"{s['n']} x {s['classes']}" for s in sizes]
    lines = ["| | " + " | ".join(f"{h}: CPU s | rel. error | MB" for h in heads) + " |"]
    lines.append("|---" * (1 + 3 * len(sizes)) + "|")
    for name in names:
        cells = []
        for s in sizes:
            m = s["methods"][name]
            cells += [f"{m['cpu_s']:.2g}", f"{m['rel_error']:.0e}", f"{m['peak_mb']:.1f}"]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def wide_table(rows: list[dict[str, Any]], key: str, names: list[str]) -> str:
    lines = [f"| {key} | " + " | ".join(names) + " |", "|---" * (len(names) + 1) + "|"]
    lines += [f"| {row[key]} | " + " | ".join(short(row[m]) for m in names) + " |" for row in rows]
    return "\n".join(lines)


def short(text: Any) -> str:
    """Numbers with five digits, errors by their kind."""
    first, *rest = str(text).split(" ")
    try:
        return " ".join([f"{float(first):.5g}", *rest])
    except ValueError:
        return first.rstrip(":")


def main() -> None:
    torch.set_num_threads(1)
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="only the smallest size")
    parser.add_argument("--json", type=Path, help="write the figures to this file, too")
    parser.add_argument("--memory-child", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.memory_child:
        name, n, c = options.memory_child
        memory_child(name, int(n), int(c))
        return
    names = installed()
    sizes = [measure_size(n, c, names) for n, c in (SIZES[:1] if options.quick else SIZES)]
    found, bad = recovery(names), bad_table(names)
    print(size_table(sizes, names))
    print(wide_table(found, "true", ["optimum", *names]))
    print(wide_table(bad, "input", names))
    record = {
        "benchmark": "posthoc",
        "threads": 1,
        "machine": machine(),
        "sizes": sizes,
        "recovery": found,
        "bad_input": bad,
    }
    if options.json:
        part = options.json.with_suffix(".part")
        part.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
        os.replace(part, options.json)


def machine() -> dict[str, str]:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    found = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
    out = {"processor": found[0] if found else platform.processor()}
    out["python"] = platform.python_version()
    for name in ("numpy", "torch", "scikit-learn", "probmetrics", "netcal", "torch-uncertainty"):
        try:
            out[name] = version(name)
        except PackageNotFoundError:
            out[name] = "not installed"
    return out


if __name__ == "__main__":
    main()
