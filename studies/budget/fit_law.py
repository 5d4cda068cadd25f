"""Fit the law of the budget by what its temperatures cost: ``python fit_law.py RUNS FILE [OUT]``.

RUNS is the ledger of the settings that may be fitted (RUNS/law); FILE gets the coefficients that
the rule ``budget`` reads; OUT the table of forms, ``fit.md`` and ``fit.json``.

A best T is hardly known where its curve is flat, and there it does not matter. So coefficients are
not those of a regression of log T*, but those whose temperatures lose least, on validation rows:

    NLL:      (NLL(T) - lowest NLL) / max(lowest NLL, 0.05), capped at 2
    accuracy: highest accuracy - accuracy(T), in points, capped at 20

the mean over settings, plus a small pull back into the trained temperatures and of the coefficients
to 0. Forms are compared by the cost of each data set under a fit to all others; the shortest form
within one standard error of the best is taken, and "T = 1" is the shortest of all: where nothing is
shown to beat it, the rule says so. Test rows are not looked at.
"""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

from temperance.errors import TemperanceWarning
from temperance.files import write_bytes
from temperance.rules.budget_file import save_coefficients
from temperance.rules.budget_terms import facts_of, value_of_term
from temperance.rules.training import read_training
from temperance.study.runs import Curve, read_curves

Array = NDArray[np.float64]

TARGETS = {"nll_posthoc": "val_nll_posthoc", "nll": "val_nll", "accuracy": "val_accuracy"}
FAMILIES = {"sgd": ("sgd",), "adam": ("adamw",), "rmsprop": ("rmsprop",)}
NORMS = ("norm=layer", "norm=none")
ONE = "T = 1"
FORMS: dict[str, tuple[str, ...]] = {
    ONE: (),
    "constant": (),
    "M": ("log(M)",),
    "progress": ("log(progress)",),
    "progress, n": ("log(progress)", "log(n)"),
    "progress, M": ("log(progress)", "log(M)"),
    "progress, n, M": ("log(progress)", "log(n)", "log(M)"),
    "progress, n, noise": ("log(progress)", "log(n)", "label_noise"),
    "progress, n, C": ("log(progress)", "log(n)", "log(C)"),
    "progress, M, C": ("log(progress)", "log(M)", "log(C)"),
    "progress, n, M, C, noise": ("log(progress)", "log(n)", "log(M)", "log(C)", "label_noise"),
    "progress, n, M, C, B, noise": (
        "log(progress)",
        "log(n)",
        "log(M)",
        "log(C)",
        "log(batch_size)",
        "label_noise",
    ),
    "steps, lr, n, M, C": ("log(steps)", "log(mean_lr)", "log(n)", "log(M)", "log(C)"),
}
GRID = np.arange(-10, 16.001, 0.125) * np.log(2)  # log T of the interpolated costs
RIDGE, OUTSIDE = 2e-3, 1e-2
REPLICATES = 100
FLOOR = 0.05  # nats: below it a relative cost of NLL says nothing


@dataclass(frozen=True)
class Settings:
    """What is fitted: terms and costs of every setting."""

    curves: tuple[Curve, ...]
    cost: Array  # [n, len(GRID)]
    best: Array  # [n], log T
    dataset: NDArray[Any]

    def terms(self, names: Sequence[str]) -> Array:
        """Columns of a form, the constant first, each but the constant around its mean."""
        rows = []
        for curve in self.curves:
            training = read_training(curve.task)
            rows.append([1.0, *(value_of_term(name, curve.task, training) for name in names)])
        return np.array(rows)


def read(*folders: Path) -> list[Curve]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TemperanceWarning)
        return [c for c in read_curves(*folders) if len(c.temperatures) >= 5]


def settings(curves: Sequence[Curve], metric: str) -> Settings:
    costs = [cost_of(curve, metric) for curve in curves]
    return Settings(
        tuple(curves),
        np.array(
            [np.interp(GRID, np.log(c.temperatures), y) for c, y in zip(curves, costs, strict=True)]
        )
        + OUTSIDE * np.array([_beyond(np.log(c.temperatures)) for c in curves]),
        np.array([np.log(c.temperatures)[y.argmin()] for c, y in zip(curves, costs, strict=True)]),
        np.array([c.dataset for c in curves]),
    )


def _beyond(tried: Array) -> Array:
    return np.maximum(tried[0] - GRID, 0) + np.maximum(GRID - tried[-1], 0)


def cost_of(curve: Curve, metric: str) -> Array:
    """Cost of every temperature; what diverged is a model that knows nothing."""
    found = np.asarray(curve.metrics[metric])
    ignorant = np.log(curve.task.n_classes)
    if metric.endswith("accuracy"):
        mean = np.where(np.isnan(found), 1 / curve.task.n_classes, found).mean(axis=1)
        return np.minimum(100 * (mean.max() - mean), 20.0)
    known = np.where(np.isnan(found), ignorant, np.minimum(found, 3 * ignorant))
    mean = known.mean(axis=1)
    return np.minimum((mean - mean.min()) / max(mean.min(), FLOOR), 2.0)


def looked_up(cost: Array, log_t: Array) -> Array:
    """Cost of each setting at its own log T."""
    place = np.clip((log_t - GRID[0]) / (GRID[1] - GRID[0]), 0, len(GRID) - 1.000001)
    low = place.astype(int)
    share, rows = place - low, np.arange(len(cost))
    return cost[rows, low] * (1 - share) + cost[rows, low + 1] * share


def fit(x: Array, cost: Array, best: Array, scale: float, *, near: Array | None = None) -> Array:
    """Coefficients of least mean cost, from three starts, or from those that are near."""
    middle = x.mean(axis=0)
    middle[0] = 0.0
    z = x - middle  # so that the constant does not depend on the others

    def lost(b: Array) -> float:
        return float(looked_up(cost, z @ b).mean() + scale * RIDGE * (b[1:] ** 2).sum())

    pulled = np.vstack([z, 0.5 * np.eye(z.shape[1])])
    line = np.linalg.lstsq(pulled, np.r_[best, np.zeros(z.shape[1])], rcond=None)[0]
    starts = [line, line / 2, np.zeros(z.shape[1])]
    if near is not None:
        starts = [np.r_[near[0] + middle[1:] @ near[1:], near[1:]], line]
    options = {"xtol": 1e-3, "ftol": 1e-6, "maxiter": 200}
    found = min(
        (minimize(lost, s, method="Powell", options=options) for s in starts), key=lambda r: r.fun
    )
    b = np.atleast_1d(found.x)
    b[0] -= middle[1:] @ b[1:]
    return b


def left_out(x: Array, data: Settings, scale: float) -> tuple[Array, Array]:
    """Log T and cost of each setting under a fit to the other data sets."""
    log_t = np.zeros(len(x))
    for name in sorted(set(data.dataset)):
        out = data.dataset == name
        log_t[out] = x[out] @ fit(x[~out], data.cost[~out], data.best[~out], scale)
    return log_t, looked_up(data.cost, log_t)


def family(curves: Sequence[Curve], target: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    data = settings(curves, TARGETS[target])
    scale = 10.0 if target == "accuracy" else 1.0  # points and shares
    one = looked_up(data.cost, np.zeros(len(curves)))
    table, fits = [], {}
    for form, names in FORMS.items():
        terms = () if form == ONE else (*names, *NORMS)
        x = data.terms(terms)
        log_t, lost = (np.zeros(len(x)), one) if form == ONE else left_out(x, data, scale)
        sets = sorted(set(data.dataset))
        by_set = np.array([lost[data.dataset == s].mean() for s in sets])
        fits[form] = (terms, x, log_t, lost)
        table.append({
            "form": form, "terms": len(names) + (form != ONE), "cost": float(lost.mean()),
            "median": float(np.median(lost)), "T = 1": float(one.mean()),
            "error": float(by_set.std(ddof=1) / np.sqrt(len(sets))),
            "T = 1, median": float(np.median(one)),
            "better than T = 1": float((lost < one - 1e-9).mean()),
        })  # fmt: skip
    best = min(table, key=lambda row: row["cost"])
    good = [row for row in table if row["cost"] <= best["cost"] + best["error"]]
    form = min(good, key=lambda row: (row["terms"], row["cost"]))["form"]
    terms, x, log_t, lost = fits[form]
    b = np.zeros(1) if form == ONE else fit(x, data.cost, data.best, scale)
    draws = np.zeros((2, 1)) if form == ONE else resampled(x, data, scale, near=b)
    inner = np.abs(log_t - data.best) < 50
    law = {
        "intercept": round(float(b[0]), 4),
        "terms": {name: round(float(v), 4) for name, v in zip(terms, b[1:], strict=True)},
        "covariance": np.round(np.atleast_2d(np.cov(draws.T)), 8).tolist(),
        "residual_sd": round(float(np.sqrt(np.mean((log_t - data.best)[inner] ** 2))), 4),
        "degrees_of_freedom": max(1, len(set(data.dataset)) - len(b)),
        "n_settings": len(curves),
        "domain": domain_of(curves),
    }
    ends = np.quantile(draws, (0.025, 0.975), axis=0)
    for row in table:
        row["taken"] = row["form"] == form
    law_interval = {
        n: [float(lo), float(hi)] for n, lo, hi in zip(("intercept", *terms), *ends, strict=True)
    }
    return law, [*table, {"form": "interval of the taken form", "interval": law_interval}]


def resampled(x: Array, data: Settings, scale: float, *, near: Array) -> Array:
    rng, sets = np.random.default_rng(0), sorted(set(data.dataset))
    draws = []
    for _ in range(REPLICATES):
        drawn = rng.choice(sets, len(sets))
        rows = np.concatenate([np.flatnonzero(data.dataset == name) for name in drawn])
        draws.append(fit(x[rows], data.cost[rows], data.best[rows], scale, near=near))
    return np.array(draws)


def domain_of(curves: Sequence[Curve]) -> dict[str, list[Any]]:
    facts = [facts_of(c.task, read_training(c.task)) for c in curves]
    numbers = ("M", "C", "n", "steps", "lr", "batch_size", "progress", "epochs")
    numbers += ("momentum", "weight_decay", "label_noise")
    whole = ("M", "C", "n", "steps", "batch_size")
    ranges = {n: [min(f[n] for f in facts), max(f[n] for f in facts)] for n in numbers}
    return {
        **{n: [int(v) if n in whole else float(f"{v:.4g}") for v in e] for n, e in ranges.items()},
        "optimizer": sorted({c.setting["optimizer"] for c in curves}),
        "norm": sorted({c.setting["norm"] for c in curves}),
        "schedule": sorted({c.setting["schedule"] for c in curves}),
    }


def main() -> None:
    runs, file = Path(sys.argv[1]), Path(sys.argv[2])
    for folder in (file.parent, *map(Path, sys.argv[3:4])):
        folder.mkdir(parents=True, exist_ok=True)  # before any work that could be lost
    curves = read(runs)
    targets: dict[str, Any] = {}
    report: dict[str, Any] = {}
    for target in TARGETS:
        targets[target], report[target] = {}, {}
        for name, optimizers in FAMILIES.items():
            own = [c for c in curves if c.setting["optimizer"] in optimizers]
            law, table = family(own, target)
            targets[target][name], report[target][name] = law, table
            print(target, name, len(own), law["intercept"], law["terms"], flush=True)
            for row in table[:-1]:
                print(
                    "   ", {k: round(v, 4) if isinstance(v, float) else v for k, v in row.items()}
                )
            print(
                "   ",
                {k: [round(e, 2) for e in v] for k, v in table[-1]["interval"].items()},
                flush=True,
            )
    tried = [t for c in curves for t in c.temperatures]
    content = {
        "version": "1",
        "default": False,
        "target": "nll_posthoc",
        "temperatures": [float(min(tried)), float(max(tried))],
        "source": "our own runs, studies/budget",
        "fit": {
            "datasets": sorted({c.dataset for c in curves}),
            "method": "least cost, studies/budget/fit_law.py",
        },
        "targets": targets,
    }
    save_coefficients(content, file)
    if len(sys.argv) > 3:
        from fit_page import draw, page  # which would import this module

        out = Path(sys.argv[3])
        write_bytes(out / "fit.json", (json.dumps(report, indent=1) + "\n").encode())
        write_bytes(out / "fit.md", page(report, targets).encode())
        draw(report, curves, targets, out / "fit.png")


if __name__ == "__main__":
    main()
