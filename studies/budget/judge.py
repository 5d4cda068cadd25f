"""What the rules cost: ``python judge.py RUNS BUDGET.json OUT [--held-out | --fresh]``.

Without an option: RUNS/law, every data set by laws that were fitted to all others (form and target
are those of BUDGET.json). ``--held-out``: RUNS/held-out by BUDGET.json itself, once, at the end.
``--fresh``: RUNS/fresh likewise, a second time, by what was written down before (README.md); this
decides whether the law is the default and writes into BUDGET.json what to expect.
All on test rows, for each family of optimizers, on settings with BatchNorm in front of the head
(the norm that all these rules are for), and unseen ones by kind of net, too. OUT gets
``regret-law``, ``regret-held-out`` or ``regret-fresh`` as JSON, Markdown and PNG.
"""

from __future__ import annotations

import json
import math
import sys
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from difficulty import key
from fit_law import FAMILIES, TARGETS, fit, read, settings
from measured import table

from temperance.errors import TemperanceWarning
from temperance.evaluation.plot_style import png_bytes
from temperance.files import write_bytes
from temperance.records import Task
from temperance.rules import HasegawaSakai, HasegawaSakaiCsgCn, SqrtDim, StatisticsRule
from temperance.rules.budget import Budget
from temperance.rules.budget_file import Coefficients, load_coefficients, save_coefficients
from temperance.rules.budget_terms import value_of_term
from temperance.rules.training import read_training
from temperance.study.plots import plot_regret
from temperance.study.prepare import prepare_regret
from temperance.study.regression import RegressionOptions, fit_statistics
from temperance.study.regret import regret
from temperance.study.regret_records import RegretReport
from temperance.study.runs import Curve

Measured = Mapping[str, Mapping[str, float]]
EVERY = ""  # stands for a data set that no fit saw
METRICS = ("accuracy", "nll", "nll_posthoc")


@dataclass(frozen=True)
class LeftOut:
    """The law of each data set, fitted to the others."""

    laws: Mapping[tuple[str, str], Mapping[str, float]]
    temperatures: tuple[float, float]

    needs: ClassVar[tuple[str, ...]] = ()
    norm: ClassVar[str] = "batch"
    fallback: ClassVar[None] = None
    name: ClassVar[str] = "budget, left out"

    def __call__(self, task: Task) -> float:
        """Give T of the law that has not seen the data set of the task."""
        training = read_training(task)
        law = self.laws[task.training["dataset"], training.family]
        total = sum(
            share * (1.0 if name == "intercept" else value_of_term(name, task, training))
            for name, share in law.items()
        )
        low, high = self.temperatures
        return min(max(math.exp(total), low, 0.1), high)


def left_out(curves: Sequence[Curve], coefficients: Coefficients) -> LeftOut:
    """Fit the laws."""
    laws: dict[tuple[str, str], dict[str, float]] = {}
    target = coefficients.target
    scale = 10.0 if target == "accuracy" else 1.0
    for family, optimizers in FAMILIES.items():
        own = [c for c in curves if c.setting["optimizer"] in optimizers]
        data = settings(own, TARGETS[target])
        terms = [name for name, _ in coefficients.families(target)[family].terms]
        x = data.terms(terms)
        for name in sorted(set(data.dataset)):
            kept = data.dataset != name
            b = np.zeros(1)  # a law without terms is T = 1
            if terms:
                b = fit(x[kept], data.cost[kept], data.best[kept], scale)
            laws[name, family] = dict(zip(("intercept", *terms), map(float, b), strict=True))
    return LeftOut(laws, coefficients.temperatures)


@dataclass(frozen=True)
class Heuristic:
    """T from statistics of the rows, for each data set by a fit that has not seen it.

    The forward regression of ``temperance fit --rule statistics`` (after arXiv 2210.09715) for each
    family of optimizers: statistics of the rows, M, C and n, and nothing of the training.
    """

    rules: Mapping[tuple[str, str], StatisticsRule]
    temperatures: tuple[float, float]

    needs: ClassVar[tuple[str, ...]] = ()
    norm: ClassVar[str] = "batch"
    fallback: ClassVar[None] = None
    name: ClassVar[str] = "statistics"

    def __call__(self, task: Task) -> float:
        """Give T of the fit that has not seen the data set of the task."""
        family = read_training(task).family
        name = str(task.training["dataset"])
        rule = self.rules.get((name, family)) or self.rules[EVERY, family]
        low, high = self.temperatures
        return min(max(rule(task), low, 0.1), high)


def heuristic(
    fitted: Sequence[Curve], judged: Sequence[Curve], coefficients: Coefficients
) -> Heuristic:
    """Fit the heuristic to curves, for each data set that is judged without it."""
    rules: dict[tuple[str, str], StatisticsRule] = {}
    options = RegressionOptions(bootstrap=0)
    for family, optimizers in FAMILIES.items():
        own = [c for c in fitted if c.setting["optimizer"] in optimizers]
        names = {c.dataset for c in own}
        for name in sorted({c.dataset for c in judged} & names) or [EVERY]:
            left = [c for c in own if c.dataset != name]
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", TemperanceWarning)
                fit = fit_statistics(left, objective=coefficients.target, options=options)
            rules[name, family] = fit.rule
    return Heuristic(rules, coefficients.temperatures)


def with_facts(curve: Curve, difficulty: Mapping[str, Any], measured: Measured) -> Curve:
    """Give the task of a curve its statistics and its data set; cap what is no NLL any more.

    A net that is far beyond chance, such as 1e25 nats, counts like one at three times ln C, or one
    setting would be the mean of all.
    """
    worst = 3 * math.log(curve.task.n_classes)
    metrics = {n: np.minimum(v, worst) if "nll" in n else v for n, v in curve.metrics.items()}
    known = difficulty.get(key(curve.setting), {})
    statistics = {**curve.task.statistics, **measured.get(key(curve.setting), {})}
    statistics |= {"csg": known["csg"]} if "csg" in known else {}
    training = {**curve.task.training, "dataset": curve.dataset}
    task = replace(curve.task, statistics=statistics, training=training)
    return replace(curve, task=task, metrics=metrics)


def groups(curves: Sequence[Curve], unseen: bool) -> dict[str, list[Curve]]:
    """Parts that are judged by themselves."""
    found = {"all": list(curves)}
    for family, optimizers in FAMILIES.items():
        found[family] = [c for c in curves if c.setting["optimizer"] in optimizers]
    if unseen:
        for kind, models in (
            ("seen nets", ("mlp", "mlp1", "convnet")),
            ("resnet", ("resnet",)),
            ("probe", ("probe",)),
            ("attention", ("vit", "transformer")),
            ("letters", ("transformer", "textcnn")),
        ):
            found[kind] = [c for c in curves if c.setting["model"] in models]
        nets = [c for c in curves if c.setting["model"] != "probe"]
        for family, optimizers in FAMILIES.items():
            found[f"nets, {family}"] = [c for c in nets if c.setting["optimizer"] in optimizers]
    return {name: part for name, part in found.items() if len({c.dataset for c in part}) >= 2}


def rows_of(report: RegretReport) -> list[dict[str, Any]]:
    def estimate(value: Any) -> Any:
        return None if value is None else [value.value, *(value.interval or (None, None))]

    return [
        {
            "rule": s.rule, "metric": s.metric, "tasks": s.tasks, "data sets": s.datasets,
            "mean": estimate(s.mean), "median": estimate(s.median),
            "relative": estimate(s.relative),
            "gain over T = 1": estimate(s.gain), "better than T = 1": estimate(s.better),
            "median gain": float(np.median([
                r.gain for r in report.rows
                if (r.rule, r.metric, r.group) == (s.rule, s.metric, s.group)
            ])),
            "ties": s.ties, "shows": s.verdict, "outside": s.outside, "fallbacks": s.fallbacks,
            "best at edge": s.best_at_edge, "temperatures": list(s.temperatures),
        }
        for s in report.summaries
    ]  # fmt: skip


def page(found: Mapping[str, Sequence[Mapping[str, Any]]], title: str) -> str:
    lines = [
        f"# {title}",
        "",
        "Made by `judge.py`. Mean regret on test rows: T of the rule against the best trained T in",
        "hindsight; 95 % intervals over data sets. Points of accuracy; nats, and percent of the",
        "best NLL; NLL counts up to three times ln C. Gain: over T = 1 with the same norm.",
        "",
    ]
    for rule in ("T = 1", "hasegawa-sakai-csg-cn"):
        own = [r for r in found["all"] if (r["rule"], r["metric"]) == (rule, "nll_posthoc")]
        if own:
            lines += [
                f"{rule}: outside of the trained T in {own[0]['outside']} of {own[0]['tasks']}",
                "tasks, where the nearest trained T stands for it; its fallback answers in "
                f"{own[0]['fallbacks']}.",
                "",
            ]
    names = ("rule", "tasks (data sets)", "mean regret", "relative %", "gain", "better", "shows")
    head = f"| {' | '.join(names)} |"

    def cell(value: Any, digits: int) -> str:
        if value is None or value[0] is None:
            return ""
        text = f"{value[0]:.{digits}f}"
        return (
            text if value[1] is None else f"{text} [{value[1]:.{digits}f}, {value[2]:.{digits}f}]"
        )

    for group, rows in found.items():
        for metric in METRICS:
            own = [r for r in rows if r["metric"] == metric]
            if own:
                lines += [f"## {group}: {metric}", "", head, "|---" * len(names) + "|"]
            digits = 2 if metric == "accuracy" else 4
            for r in own:
                cells = (
                    r["rule"],
                    f"{r['tasks']} ({r['data sets']})",
                    cell(r["mean"], digits),
                    cell(r["relative"], 1),
                    cell(r["gain over T = 1"], digits),
                    cell(r["better than T = 1"], 2),
                    r["shows"],
                )
                lines.append(f"| {' | '.join(cells)} |")
            lines.append("")
    return "\n".join(lines)


def keep(
    coefficients: Coefficients,
    fresh: Mapping[str, Sequence[Mapping[str, Any]]],
    unseen: Mapping[str, Sequence[Mapping[str, Any]]],
    file: Path,
) -> None:
    """Decide on fresh data whether the law is the default, and write for users what to expect.

    It is the default where the training is known if, over all fresh tasks and by NLL after a
    post-hoc T, it is shown to be better than T = 1 and has the smallest mean regret of all rules,
    and if it is not shown to be worse than T = 1 in accuracy (README.md, before the runs). What to
    expect is what it did on all data that it was not fitted on, held out and fresh.
    """
    rows = [row for row in fresh["all"] if row["metric"] == "nll_posthoc"]
    own = next(row for row in rows if row["rule"] == "budget")
    least = own["mean"][0] == min(row["mean"][0] for row in rows)
    by_rule = {row["rule"]: row for row in fresh["all"] if row["metric"] == "accuracy"}
    default = own["shows"] == "better" and least and by_rule["budget"]["shows"] != "worse"
    held: dict[str, Any] = dict(coefficients.fit.get("held_out", {}))
    for family in FAMILIES:
        for row in unseen.get(family, ()):
            if (row["rule"], row["metric"]) == ("budget", "nll_posthoc"):
                held[family] = {
                    "tasks": row["tasks"],
                    "datasets": row["data sets"],
                    "gain": [round(v, 4) for v in row["gain over T = 1"]],
                    "median_gain": round(row["median gain"], 4),
                    "better": [round(v, 3) for v in row["better than T = 1"]],
                    "regret_percent": [round(v, 2) for v in row["relative"]],
                }
    fit = {**coefficients.fit, "held_out": held}
    save_coefficients(replace(coefficients, fit=fit, default=default), file)


TITLES = {
    "law": "Regret, every data set left out of the fit",
    "held-out": "Regret on held-out data sets and nets",
    "fresh": "Regret on fresh data sets and kinds of nets",
}


def main(runs: Path, file: Path, out: Path, folder: str) -> None:
    coefficients = load_coefficients(file)
    difficulty = json.loads((runs / "difficulty.json").read_text())
    measured = table(runs / "statistics.parquet")
    out.mkdir(parents=True, exist_ok=True)

    def judged(name: str) -> list[Curve]:
        own = [c for c in read(runs / name) if c.setting["norm"] == "batch"]
        return [with_facts(c, difficulty, measured) for c in own]

    unseen = folder != "law"
    law: Any = Budget(coefficients) if unseen else left_out(read(runs / "law"), coefficients)
    curves, fitted = judged(folder), judged("law")

    def reports(curves: Sequence[Curve]) -> dict[str, RegretReport]:
        rules = {
            "budget" if unseen else law.name: law,
            "statistics": heuristic(fitted, curves, coefficients),
            "hasegawa-sakai": HasegawaSakai(),
            "sqrt-dim": SqrtDim(),
        }
        if all("csg" in c.task.statistics for c in curves):
            rules["hasegawa-sakai-csg-cn"] = HasegawaSakaiCsgCn()
        options: dict[str, Any] = {"metrics": METRICS, "norm": "batch", "bootstrap": 2000}
        parts = groups(curves, unseen)
        return {name: regret(part, rules, seed=0, **options) for name, part in parts.items()}

    def verdicts(curves: Sequence[Curve]) -> dict[str, list[dict[str, Any]]]:
        return {name: rows_of(report) for name, report in reports(curves).items()}

    judgements = reports(curves)
    found = {name: rows_of(report) for name, report in judgements.items()}
    if folder == "fresh":
        keep(coefficients, found, verdicts([*judged("held-out"), *curves]), file)
    text = page(found, TITLES[folder]) + "\n"
    write_bytes(out / f"regret-{folder}.json", (json.dumps(found, indent=1) + "\n").encode())
    write_bytes(out / f"regret-{folder}.md", text.encode())
    pictures = [prepare_regret(judgements[name])[0] | {"title": name} for name in ("all", "sgd")]
    write_bytes(out / f"regret-{folder}.png", png_bytes(plot_regret(pictures)))
    print(text)


if __name__ == "__main__":
    FOLDER = next((name for name in ("held-out", "fresh") if f"--{name}" in sys.argv), "law")
    main(*(Path(a) for a in sys.argv[1:4]), FOLDER)
