"""``temperance regret`` on ledgers as a sweep writes them."""

import csv
import json

import numpy as np
import pytest

from temperance.records import Statistic, Task, loads, to_dict
from temperance.rules import FittedDomain, FittedRule, SqrtDim, save_rule
from temperance.study.regret_records import RegretReport
from temperance.study.trial import Trial

GRID = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
VERSIONS = {"temperance": "0", "torch": "0", "numpy": "0", "python": "0"}


def write_runs(folder, *, n=5, norm="batch", csg=True, temperatures=GRID, skip=()):
    """A small ledger: the best T is half of sqrt(M)."""
    folder.mkdir()
    rng, rows, tasks = np.random.default_rng(0), [], []
    for d in range(n):
        for m in (16, 64, 256):
            key = f"{d}-{m}"
            statistics = {"csg": Statistic(0.5)} if csg else {}
            task = to_dict(Task(m, 10, n_samples=500, statistics=statistics))
            for t in temperatures:
                trial = Trial(f"set{d}", features=f"pca:{m}", norm=norm, temperature=t)
                values = {}
                for split in ("val", "test"):
                    bowl = 0.1 * np.log(t / (0.5 * m**0.5)) ** 2
                    values[f"{split}_accuracy"] = 0.9 - 0.3 * bowl + 0.001 * rng.normal()
                    values[f"{split}_nll"] = 0.5 + bowl + 0.001 * rng.normal()
                    values[f"{split}_nll_posthoc"] = 0.4 + bowl / 2 + 0.001 * rng.normal()
                values = {k: v for k, v in values.items() if k not in skip}
                rows.append(
                    {
                        "schema": 1, "key": trial.key, "trial": trial.to_dict(), "task": key,
                        "outcome": "done", "message": "", "metrics": values, "history": {},
                        "seconds": 1.0, "feature_dim": m, "versions": VERSIONS,
                        "written": "2026-01-01T00:00:00Z",
                    }
                )  # fmt: skip
            tasks.append(
                {"schema": 1, "key": key, "content": trial.task_content, "feature_dim": m,
                 "task": task}
            )  # fmt: skip
    for name, lines in (("ledger", rows), ("tasks", tasks)):
        text = "".join(json.dumps(line) + "\n" for line in lines)
        (folder / f"{name}.jsonl").write_text(text)
    return folder


@pytest.fixture
def runs(tmp_path):
    return write_runs(tmp_path / "runs")


def test_table_and_files(run, runs, tmp_path):
    out = tmp_path / "out"
    result = run("regret", runs, "--bootstrap", 50, "--out", out)
    assert result.code == 0, result.err
    for text in ("sqrt-dim", "hasegawa-sakai-csg-cn", "best constant", "T = 1", "15 tasks"):
        assert text in result.out
    assert "Not judged: adacos" in result.out
    assert {p.name for p in out.iterdir()} == {
        "regret.json", "regret.md", "regret.png", "tasks.csv",
    }  # fmt: skip
    report = loads((out / "regret.json").read_text(), RegretReport)
    with (out / "tasks.csv").open() as file:
        assert len(list(csv.DictReader(file))) == len(report.rows)
    assert (out / "regret.md").read_text().startswith("# Regret")
    again = run("regret", runs, "--out", out)
    assert again.code == 3


def test_metrics_with_commas(run, runs):
    command = ("regret", runs, "--rules", "sqrt-dim", "--bootstrap", 9, "--json")
    found = run(*command, "--metric", "nll,accuracy", "--metric", "nll-posthoc").json
    assert found["settings"]["metrics"] == ["nll", "accuracy", "nll_posthoc"]


def test_json_is_the_report(run, runs):
    found = run(
        "regret", runs, "--rules", "sqrt-dim", "--metric", "nll", "--bootstrap", 9, "--json"
    )
    assert found.code == 0, found.err
    report = loads(found.out, RegretReport)
    assert {s.rule for s in report.summaries} == {"sqrt-dim", "T = 1", "best constant"}
    assert report.settings["bootstrap"] == 9
    assert found.json["files"] == []


def test_rules_from_files_and_refits(run, runs, tmp_path):
    domain = FittedDomain(feature_dim=(16, 256), n_classes=(10, 10))
    rule = FittedRule(SqrtDim(0.5), domain, "batch", fit={"datasets": ["set0", "set1"]})
    save_rule(rule, tmp_path / "mine.json")
    result = run(
        "regret", runs, "--rules", f"sqrt-dim,{tmp_path / 'mine.json'}", "--refit", "sqrt-dim",
        "--objective", "nll", "--metric", "nll", "--bootstrap", 9, "--json",
    )  # fmt: skip
    assert result.code == 0, result.err
    found = {s["rule"]: s for s in result.json["summaries"]}
    assert found["sqrt-dim (fitted), mine.json"]["tasks"] == 9
    assert found["sqrt-dim (fitted), mine.json"]["datasets"] == 3
    refitted, plain = found["sqrt-dim, refitted"], found["sqrt-dim"]
    assert refitted["tasks"] == 15
    assert refitted["mean"]["value"] < 0.02 < plain["mean"]["value"]


def test_norms(run, runs, tmp_path):
    other = write_runs(tmp_path / "none", norm="none")
    command = ("regret", runs, other, "--metric", "accuracy", "--bootstrap", 9, "--json")
    groups = {(s["rule"], s["group"]) for s in run(*command).json["summaries"]}
    assert ("sqrt-dim", "batch") in groups
    assert ("sqrt-dim", "none") not in groups
    pooled = run(*command, "--any-norm").json["summaries"]
    assert {(s["rule"], s["tasks"]) for s in pooled} >= {("sqrt-dim", 30), ("adacos", 30)}
    only = run(*command, "--norm", "none", "--loss", "plain").json
    assert {s["group"] for s in only["summaries"]} == {"none"}
    assert "sqrt-dim" in only["not_judged"]


@pytest.mark.parametrize(
    ("arguments", "code", "word"),
    [
        (["--rules", "magic"], 4, "magic"),
        (["--rules", "adacos"], 3, "cosine"),
        (["--rules", "hasegawa-sakai-csg-cn"], 3, "needs csg"),
        (["--rules", "nowhere.json"], 4, "nowhere.json"),
        (["--norm", "layer"], 3, "layer"),
        (["--metric", "f1"], 4, "f1"),
        (["--metric", "nll-posthoc"], 4, "nll_posthoc"),
        (["--refit", "magic"], 4, "magic"),
        (["--objective", "ece"], 4, "ece"),
        (["--bootstrap", "0"], 2, "bootstrap"),
        (["--rules", ","], 2, "rules"),
        (["--metric", "nll,f1"], 4, "metric: no 'f1'"),
    ],
)
def test_bad_input_leaves_nothing(run, tmp_path, arguments, code, word):
    runs = write_runs(
        tmp_path / "runs", n=2, csg=False, skip=("val_nll_posthoc", "test_nll_posthoc")
    )
    out = tmp_path / "out"
    metric = [] if "--metric" in arguments else ["--metric", "nll"]
    result = run("regret", runs, *arguments, *metric, "--out", out)
    assert result.code == code
    assert word in result.err
    assert "Traceback" not in result.err
    assert not out.exists()


def test_runs_that_cannot_be_judged(run, tmp_path):
    flat = write_runs(tmp_path / "flat", n=2, temperatures=(1.0,))
    result = run("regret", flat)
    assert result.code == 3
    assert "temperatures" in result.err
    assert run("regret", tmp_path / "nowhere").code == 4
    assert run("regret").code == 2
    fit = {"datasets": ["set0", "set1"]}
    domain = FittedDomain(feature_dim=(16, 256), n_classes=(10, 10))
    save_rule(FittedRule(SqrtDim(0.5), domain, "batch", fit=fit), tmp_path / "mine.json")
    good = write_runs(tmp_path / "good", n=2)
    result = run("regret", good, "--rules", tmp_path / "mine.json", "--json")
    assert result.code == 3
    assert result.json["error"]["found"] == "the rule was fitted on this data set"
