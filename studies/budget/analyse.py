"""The exponents of the law from its rows: ``python analyse.py RUNS OUT [--pictures] [--held-out]``.

RUNS holds folders of sweeps, ``law`` and ``held-out``, and ``difficulty.json``; OUT gets JSON, one
Markdown page and pictures. Nothing is trained here, a part of the rows is enough, and test rows
are not looked at. ``--held-out`` judges the fitted laws on rows that no fit saw: once, at the end.
"""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from difficulty import key
from forms import FORMS, design
from tobit import Fit, fit, predict

from temperance.errors import InvalidInput, TemperanceWarning
from temperance.files import write_bytes
from temperance.study.curves import best_temperature, metric_curve, value_at
from temperance.study.runs import Curve, read_curves

TARGETS = ("val_nll_posthoc", "val_nll", "val_accuracy")
FAMILIES = ("sgd", "adamw", "rmsprop")
FEWEST = 12  # settings of a family for a fit
REPLICATES = 200
SHOWN = ("progress, n, M, B", "training", "full")  # forms that get intervals


# ------------------------------------------------------------------ reading
def read(folder: Path) -> list[Curve]:
    """All curves with at least five temperatures, of any sweep in a folder."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TemperanceWarning)
        return [c for c in read_curves(folder) if len(c.temperatures) >= 5]


def rows_of(curves: Sequence[Curve], target: str, difficulty: dict[str, Any]) -> dict[str, Any]:
    """Facts of every curve by name, with what is known of log T*: from ``low`` to ``high``."""
    facts: list[dict[str, Any]] = []
    lost = dict.fromkeys(("diverged everywhere", "equal everywhere"), 0)
    for curve in curves:
        try:
            best = best_temperature(curve, target)
        except InvalidInput:
            lost["diverged everywhere"] += 1
            continue
        if best.at_edge == "both":
            lost["equal everywhere"] += 1
            continue
        facts.append(facts_of(curve, difficulty) | known(curve, best) | {"curve": curve})
    columns = {n: np.array([f[n] for f in facts]) for n in (facts[0] if facts else {})}
    return columns | {"lost": lost}


def known(curve: Curve, best: Any) -> dict[str, Any]:
    """What is known of log T*: a point, or an interval that is open where the grid ended."""
    # the best T may be half a step inside the last one that was tried
    half = float(np.median(np.diff(np.log(curve.temperatures)))) / 2
    point = float(np.log(best.temperature))
    ends = {
        "": (point, point),
        "upper": (np.log(best.plateau[0]) - half, np.inf),
        "lower": (-np.inf, np.log(best.plateau[1]) + half),
    }
    low, high = ends[best.at_edge]
    diverged = (curve.outcomes == "diverged").any(axis=1).mean()
    return {"low": low, "high": high, "point": point, "edge": best.at_edge, "diverged": diverged}


def facts_of(curve: Curve, difficulty: dict[str, Any]) -> dict[str, Any]:
    """What a law may see of a curve."""
    s, task = curve.setting, curve.task
    own = difficulty.get(key(s), {})
    clean = difficulty.get(key(s, clean=True), {})
    return {
        "dataset": curve.dataset,
        "model": s["model"],
        "optimizer": s["optimizer"],
        "schedule": s["schedule"],
        "norm": s["norm"],
        "features": task.feature_dim,
        "rows": task.n_samples,
        "classes": task.n_classes,
        "steps": s["steps"],
        "lr": s["lr"],
        "batch": min(s["batch_size"], task.n_samples),
        "momentum": s["momentum"],
        "weight_decay": s["weight_decay"],
        "label_noise": s["label_noise"],
        "nn_error": 1 - own.get("nn_accuracy", np.nan),
        "nn_error_clean": 1 - clean.get("nn_accuracy", np.nan),
        "csg": own.get("csg", np.nan),
    }


def chosen(rows: dict[str, Any], keep: np.ndarray) -> dict[str, Any]:
    """Some of the rows."""
    return {n: v[keep] if isinstance(v, np.ndarray) else v for n, v in rows.items()}


# ------------------------------------------------------------------ one law
def law(rows: dict[str, Any], form: str, *, target: str, replicates: int) -> dict[str, Any]:
    """Fit a form: coefficients with intervals, and what is left unexplained."""
    x, names = design(rows, form)
    found = fit(x, rows["low"], rows["high"])
    inside = rows["edge"] == ""
    y = rows["point"][inside]
    error = predict(found, x[inside]) - y
    left = left_out(rows, x)
    lost = costs(rows, left, target)
    lo, hi = intervals(rows, x, found, replicates=replicates)
    exact = fit(x[inside], y, y)
    return {
        "form": form,
        "settings": len(x),
        "censored": int((~inside).sum()),
        "datasets": len(set(rows["dataset"])),
        "coefficients": {
            n: {"value": c, "interval": [a, b], "without_censored": e}
            for n, c, a, b, e in zip(
                names, found.coefficients.tolist(), lo, hi, exact.coefficients.tolist(), strict=True
            )
        },
        "sigma": found.sigma,
        "rms": rms(error),
        "r2": 1 - rms(error) ** 2 / float(y.var()) if len(y) > 1 and y.var() > 0 else None,
        "spread": float(y.std()),
        "left_out_rms": rms(left[inside] - y),
        "left_out_r2": 1 - rms(left[inside] - y) ** 2 / float(y.var()),
        "left_out_within_2": float((np.abs(left[inside] - y) < np.log(2)).mean()),
        "loglik": found.loglik,
        "left_out_cost": float(lost.mean()),
        "left_out_cost_median": float(np.median(lost)),
        "left_out_worst": float(np.percentile(lost, 90)),
    }


def costs(rows: dict[str, Any], log_t: np.ndarray, target: str) -> np.ndarray:
    """What a T costs on validation rows: share of the lowest NLL, or points of accuracy / 100."""
    found = []
    for curve, at in zip(rows["curve"], log_t, strict=True):
        means = metric_curve(curve, target)
        t = np.clip(np.exp(at), means.temperatures[0], means.temperatures[-1])
        value, best = float(value_at(means, t)[0]), float(means.loss.min())
        if not means.higher_is_better:  # never worse than a model that knows nothing
            value = min(value, max(float(np.log(curve.task.n_classes)), best))
        found.append(-value - best if means.higher_is_better else value / best - 1)
    return np.array(found)


def baselines(rows: dict[str, Any], target: str) -> dict[str, float]:
    """What T = 1 costs, and the best constant in hindsight."""
    tried = np.arange(-6, 12) * np.log(2)
    means = [float(costs(rows, np.full(len(rows["low"]), t), target).mean()) for t in tried]
    at = int(np.argmin(means))
    return {"T = 1": means[6], "best constant": means[at], "which": float(np.exp(tried[at]))}


def rms(error: np.ndarray) -> float:
    """Root of the mean square."""
    return float(np.sqrt(np.mean(error**2))) if len(error) else float("nan")


def left_out(rows: dict[str, Any], x: np.ndarray) -> np.ndarray:
    """Predictions for every data set by a fit on all others."""
    found = np.full(len(x), np.nan)
    for name in sorted(set(rows["dataset"])):
        mine = rows["dataset"] == name
        if (~mine).sum() > x.shape[1]:
            found[mine] = predict(fit(x[~mine], rows["low"][~mine], rows["high"][~mine]), x[mine])
        else:
            found[mine] = rows["point"][~mine].mean()
    return found


def intervals(
    rows: dict[str, Any], x: np.ndarray, found: Fit, *, replicates: int
) -> tuple[list[Any], list[Any]]:
    """95 % intervals of the coefficients: data sets are drawn again, with all their settings."""
    names = sorted(set(rows["dataset"]))
    places = [np.flatnonzero(rows["dataset"] == name) for name in names]
    rng, draws = np.random.default_rng(0), []
    for _ in range(replicates):
        at = np.concatenate([places[i] for i in rng.integers(0, len(names), len(names))])
        draws.append(fit(x[at], rows["low"][at], rows["high"][at], start=found).coefficients)
    if not draws:
        return [None] * x.shape[1], [None] * x.shape[1]
    low, high = np.percentile(draws, [2.5, 97.5], axis=0)
    return low.tolist(), high.tolist()


# ------------------------------------------------------------------ the page
def main(runs: Path, out: Path, *, pictures: bool, held_out: bool) -> None:
    """Fit all laws, print them, write them."""
    out.mkdir(parents=True, exist_ok=True)
    path = runs / "difficulty.json"
    difficulty = json.loads(path.read_text()) if path.exists() else {}
    curves = read(runs / "law")
    unseen = read(runs / "held-out") if held_out else []
    lines = [f"# The law of the budget\n\n{len(curves)} settings.\n"]
    for target in TARGETS:
        rows = rows_of(curves, target, difficulty)
        judged = rows_of(unseen, target, difficulty) if unseen else None
        found: dict[str, Any] = {"lost": rows["lost"], "edges": edges(rows)}
        lines += [f"## {target}\n", f"No T: {rows['lost']}. Edges: {found['edges']}.\n"]
        for family in FAMILIES:
            mine = chosen(rows, rows["optimizer"] == family)
            if len(mine["low"]) < FEWEST:
                continue
            laws = [
                law(mine, f, target=target, replicates=REPLICATES if f in SHOWN else 0)
                for f in FORMS[family]
            ]
            found[family] = laws
            found[f"{family} baselines"] = baselines(mine, target)
            lines += page_of(family, laws, found[f"{family} baselines"])
            if judged:
                found[f"{family} held out"] = check(mine, judged, family)
                lines += [f"Held out: {json.dumps(found[f'{family} held out'])}\n"]
        text = json.dumps(found, indent=1) + "\n"
        write_bytes(out / f"{target}.json", text.encode())
        if pictures:
            from pictures import draw

            draw(points_of(rows), found, out, target=target)
    write_bytes(out / "law.md", "\n".join(lines).encode())
    print("\n".join(lines))


def points_of(rows: dict[str, Any]) -> dict[str, Any]:
    """Best T of every setting, and what the full law says of it by the other data sets."""
    found = {}
    for family in FAMILIES:
        mine = chosen(rows, rows["optimizer"] == family)
        if len(mine["low"]) >= FEWEST:
            left = left_out(mine, design(mine, "full")[0])
            found[family] = {"best": mine["point"], "left_out": left, "edge": mine["edge"]}
    return found


def edges(rows: dict[str, Any]) -> dict[str, Any]:
    """How often the best T was at an end of the grid, by family."""
    found = {}
    for family in FAMILIES:
        mine = rows["optimizer"] == family
        edge = rows["edge"][mine]
        found[family] = {e or "inside": int((edge == e).sum()) for e in ("", "lower", "upper")}
    return found


def page_of(family: str, laws: Sequence[dict[str, Any]], base: dict[str, float]) -> list[str]:
    """Two tables: the forms, and the exponents of the full one."""
    lines = [
        f"### {family}: {laws[0]['settings']} settings, {laws[0]['censored']} censored, "
        f"{laws[0]['datasets']} data sets; log T* spreads {laws[0]['spread']:.2f}\n",
        f"Costs, mean: T = 1 {base['T = 1']:.4f}; best constant in hindsight, "
        f"T = {base['which']:g}, {base['best constant']:.4f}\n",
        "| form | terms | rms | R2 | left-out rms | left-out R2 | within x2 "
        "| cost | median cost "
        "| log-lik | coefficients |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for one in laws:
        short = one["form"] not in SHOWN[1:]
        shown = ", ".join(f"{n} {c['value']:+.2f}" for n, c in one["coefficients"].items() if short)
        lines.append(
            f"| {one['form']} | {len(one['coefficients'])} | {one['rms']:.2f} | {one['r2']:.2f} "
            f"| {one['left_out_rms']:.2f} | {one['left_out_r2']:.2f} "
            f"| {one['left_out_within_2']:.2f} | {one['left_out_cost']:.4f} "
            f"| {one['left_out_cost_median']:.4f} | {one['loglik']:.1f} | {shown} |"
        )
    for form in SHOWN:
        lines += ["", f"| {form} | exponent | 95 % | without censored |", "|---|---|---|---|"]
        for name, c in next(o for o in laws if o["form"] == form)["coefficients"].items():
            a, b = c["interval"]
            mark = "**" if a * b > 0 and name != "constant" else ""
            lines.append(
                f"| {name} | {mark}{c['value']:+.3f}{mark} | {a:+.2f} to {b:+.2f} "
                f"| {c['without_censored']:+.3f} |"
            )
    return [*lines, ""]


def check(mine: dict[str, Any], unseen: dict[str, Any], family: str) -> dict[str, Any]:
    """Errors of laws of one family on data sets and nets that no fit saw."""
    found: dict[str, Any] = {}
    for form in FORMS[family]:
        x, _ = design(mine, form)
        own = fit(x, mine["low"], mine["high"])
        for kind in ("perceptron", "resnet", "probe"):
            nets = ("mlp", "mlp1") if kind == "perceptron" else (kind,)
            keep = (unseen["optimizer"] == family) & np.isin(unseen["model"], nets)
            keep &= unseen["edge"] == ""
            if keep.any():
                these = chosen(unseen, keep)
                there, _ = design(these, form, like=mine)
                error = predict(own, there) - these["point"]
                found[f"{form}, {kind}"] = {
                    "settings": int(keep.sum()),
                    "rms": round(rms(error), 3),
                    "bias": round(float(error.mean()), 3),
                }
    return found


if __name__ == "__main__":
    main(
        Path(sys.argv[1]),
        Path(sys.argv[2]),
        pictures="--pictures" in sys.argv,
        held_out="--held-out" in sys.argv,
    )
