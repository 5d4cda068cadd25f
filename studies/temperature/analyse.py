"""The answers of the study from its rows: ``python analyse.py RUNS OUT [PART ...]``.

RUNS is the folder of the sweeps (``runs/`` holds the committed rows), OUT gets a JSON and a picture
for every question. Nothing is trained here. Parts: dimension, correlations, regret, check, steps.
"""

from __future__ import annotations

import io
import json
import math
import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import plans

from temperance.errors import TemperanceWarning
from temperance.files import write_bytes
from temperance.records import Estimate, to_dict
from temperance.rules import save_rule
from temperance.study.correlation import correlate
from temperance.study.curves import best_temperature
from temperance.study.dimension import dimension_exponent
from temperance.study.fit import fit_rule
from temperance.study.plan import parse_plan
from temperance.study.plots import plot_correlations, plot_dimension
from temperance.study.prepare import prepare_correlations, prepare_dimension
from temperance.study.refit import refit_of
from temperance.study.regression import RegressionOptions, fit_statistics
from temperance.study.regret import regret
from temperance.study.regret_table import write_regret
from temperance.study.resample import data_set_interval, resample_data_sets
from temperance.study.runs import Curve, read_curves

METRICS = ("nll", "nll_posthoc", "accuracy")
# Groups of curves that differ by their task only.
PROBES = {
    "probe-none-plain": {"model": "probe", "norm": "none", "loss": "plain"},
    "probe-none-normalized": {"model": "probe", "norm": "none", "loss": "normalized"},
    "probe-batch-plain": {"model": "probe", "norm": "batch", "loss": "plain"},
}
NETS = {
    f"mlp-{norm}-{steps}": {"model": "mlp", "norm": norm, "steps": steps}
    for norm in ("none", "batch")
    for steps in (250, 2000)
}
PUBLISHED = ("hasegawa-sakai", "hasegawa-sakai-csg-cn")


def of_plan(curves: Sequence[Curve], text: str) -> list[Curve]:
    """The curves that a plan asks for."""
    wanted = {json.dumps(t.setting, sort_keys=True) for t in parse_plan(text).trials}
    return [c for c in curves if json.dumps(dict(c.setting), sort_keys=True) in wanted]


def those(curves: Sequence[Curve], setting: dict[str, Any]) -> list[Curve]:
    """The curves of one group."""
    return [c for c in curves if all(c.setting[k] == v for k, v in setting.items())]


def keep(record: object, path: Path) -> None:
    """Write a record as JSON."""
    write_bytes(path, (json.dumps(to_dict(record), indent=1, allow_nan=False) + "\n").encode())


def draw(figure: Any, path: Path) -> None:
    """Write a picture."""
    file = io.BytesIO()
    figure.savefig(file, dpi=120, format="png")
    write_bytes(path, file.getvalue())


def dimension(curves: Sequence[Curve], out: Path) -> None:
    """Question 1: does the best T grow like sqrt(M), and does BN shrink the spread of alpha?"""
    mine = of_plan(curves, plans.dimension())
    for model in ("probe", "mlp1"):
        for metric in METRICS:
            report = dimension_exponent(those(mine, {"model": model}), metric)
            keep(report, out / f"dimension-{model}-{metric}.json")
            draw(plot_dimension(prepare_dimension(report)), out / f"dimension-{model}-{metric}.png")
            for norm in report.norms:
                exponent = "-" if norm.exponent is None else shown(norm.exponent)
                print(model, metric, norm.norm, "exponent", exponent, "alpha", shown(norm.alpha))
                print("   log spread of alpha", shown(norm.alpha_log_std), "edge", norm.at_edge)
            print("   ratios", {k: shown(v) for k, v in report.log_spread_ratio.items()})


def shown(estimate: Any) -> str:
    """A figure with its interval."""
    if estimate is None:
        return "-"
    ends = "" if estimate.interval is None else " [{:.3g}, {:.3g}]".format(*estimate.interval)
    return f"{estimate.value:.3g}{ends}"


def correlations(curves: Sequence[Curve], out: Path) -> None:
    """Question 2: which statistics go with the best T, and what a heuristic of them is worth."""
    mine = of_plan(curves, plans.probes(held_out=False))
    for name, setting in PROBES.items():
        group = those(mine, setting)
        for metric in METRICS:
            table = correlate(group, metric=metric)
            keep(table, out / f"correlations-{name}-{metric}.json")
            picture = plot_correlations(prepare_correlations(table))
            draw(picture, out / f"correlations-{name}-{metric}.png")
            print(name, metric, table.pairs, "pairs of", table.datasets, "data sets; edges:")
            print("  ", table.at_lower_edge, "lower,", table.at_upper_edge, "upper")
            for row in table.rows[:6]:
                print("  ", row.statistic, shown(row.spearman), "p", f"{row.p_adjusted:.3g}")
            fit = fit_statistics(group, objective=metric)
            keep_fit(fit, out / f"heuristic-{name}-{metric}")
            print("   heuristic:", fit.rule.rule.formula if hasattr(fit.rule, "rule") else fit.rule)
            print("   errors:", {k: shown(v) for k, v in fit.errors.items()})


def keep_fit(fit: Any, path: Path) -> None:
    """Write a fitted rule, and what is known of the fit."""
    save_rule(fit.rule, path.with_name(path.name + ".rule.json"))


def judge(curves: Sequence[Curve], out: Path, rules: Any, fitted: Sequence[Any]) -> None:
    """Write a report of regrets and print its shortest form."""
    report = regret(curves, rules, fitted=fitted)
    write_regret(report, out)
    for name in ("regret.json", "tasks.csv"):  # megabytes that this command makes again
        (out / name).unlink()
    for s in report.summaries:
        figures = " | ".join(map(shown, (s.mean, s.median, s.better)))
        print(f"{out.name} | {s.metric} | {s.rule} | {figures}")


def regrets(curves: Sequence[Curve], out: Path) -> None:
    """Question 3: what every rule costs, never on a data set that it was fitted on."""
    probes = of_plan(curves, plans.probes(held_out=False))
    nets = of_plan(curves, plans.networks(held_out=False))
    for name, setting in (PROBES | NETS).items():
        group = those(probes if name in PROBES else nets, setting)
        again = [refit_of("statistics", objective="nll")]
        if setting["norm"] == "batch":
            again += [refit_of(rule, objective="nll") for rule in PUBLISHED]
        judge(group, out / f"regret-{name}", None, again)


def check(curves: Sequence[Curve], out: Path) -> None:
    """The final check, once: rules fitted on all other data sets, on those that nothing saw."""
    for name, setting in (PROBES | NETS).items():
        make = plans.probes if name in PROBES else plans.networks
        seen = those(of_plan(curves, make(held_out=False)), setting)
        unseen = those(of_plan(curves, make(held_out=True)), setting)
        options = RegressionOptions(bootstrap=0)
        rules: dict[str, Any] = {
            "statistics": fit_statistics(seen, objective="nll", options=options).rule
        }
        if setting["norm"] == "batch":
            for rule in PUBLISHED:
                rules[rule + ", refitted"] = fit_rule(seen, rule, objective="nll").rule
        for rule_name, rule in rules.items():
            save_rule(rule, out / f"check-{name}-{rule_name.split(',')[0]}.rule.json")
        if setting["norm"] == "batch":
            rules |= {rule: rule for rule in (*PUBLISHED, "sqrt-dim")}
        judge(unseen, out / f"check-{name}", rules, ())


def steps(curves: Sequence[Curve], out: Path) -> None:
    """How the best T moves from 250 to 2,000 steps of the same nets: T ~ steps^e, by data set."""
    found = {}
    for norm in ("none", "batch"):
        best = {}
        for curve in of_plan(curves, plans.networks(held_out=False)):
            if curve.setting["norm"] == norm:
                at = best_temperature(curve, "val_nll")
                if not at.at_edge:
                    best[curve.dataset, curve.setting["steps"]] = math.log(at.temperature)
        names = sorted(name for name, n in best if n == 250 and (name, 2000) in best)
        slopes = np.array([(best[n, 2000] - best[n, 250]) / math.log(8) for n in names])
        draw = resample_data_sets(names, replicates=2000, seed=0)
        mean = float(slopes.mean())
        ends = data_set_interval(mean, draw.mean(slopes), len(names))
        found[norm] = Estimate(mean, ends, "bootstrap over data sets")
        print("steps", norm, len(names), "data sets, exponent", shown(found[norm]))
    text = json.dumps({norm: to_dict(e) for norm, e in found.items()}, indent=1)
    write_bytes(out / "steps.json", text.encode())


PARTS: dict[str, Callable[[Sequence[Curve], Path], None]] = {
    "dimension": dimension,
    "correlations": correlations,
    "regret": regrets,
    "check": check,
    "steps": steps,
}


def main(runs: Path, out: Path, parts: Sequence[str]) -> None:
    """Answer the questions that were named, or all."""
    out.mkdir(parents=True, exist_ok=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TemperanceWarning)
        curves = read_curves(runs)
        for part in parts or PARTS:
            PARTS[part](curves, out)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:])
