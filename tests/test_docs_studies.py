"""The tables and commands of docs/studies.md and docs/methods.md keep in step with the code."""

import re
import runpy
import shlex
from dataclasses import MISSING, fields
from pathlib import Path

import pytest

from temperance.study.extractors import EXTRACTORS
from temperance.study.ledger import row_of, task_key
from temperance.study.outcome import Outcome
from temperance.study.score import METRICS
from temperance.study.trial import Trial

DOCS = Path(__file__).parent.parent / "docs"


@pytest.fixture(scope="module")
def page():
    return (DOCS / "studies.md").read_text(encoding="utf-8")


def table(page: str, first: str) -> list[list[str]]:
    """Cells of the body of the table whose head begins with a word."""
    found = re.search(rf"^\| {first} \|.*\n\|[-| ]+\n((?:\|.*\n)+)", page, re.MULTILINE)
    assert found, f"no table that begins with {first}"
    return [
        [cell.strip() for cell in line.strip("|").split(" | ")]
        for line in found[1].split("\n")
        if line
    ]


def shown(default: object) -> str:
    """A default as the page writes it."""
    if default is MISSING or default is None:
        return "none"
    return f'"{default}"' if isinstance(default, str) else repr(default)


def block(page: str, language: str) -> str:
    found = re.search(rf"^```{language}\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    assert found
    return found[1]


def test_every_field_of_a_trial_is_there_with_its_default(page):
    rows = {row[0].strip("| `"): row[1].strip("`") for row in table(page, "field")}
    assert rows == {f.name: shown(f.default) for f in fields(Trial)}


def test_every_field_of_a_row_and_every_metric_is_there(page):
    part = page[page.index("## The ledger") :]
    rows = {row[0].strip("| `"): row[1] for row in table(part, "field")}
    trial = Trial("digits")
    row = row_of(Outcome(trial, "done"), {}, task_key(trial.task_content))
    assert set(rows) == {*row, "check"}
    assert all(f"`{name}`" in rows["metrics"] for name in METRICS)


def test_every_extractor_is_there(page):
    names = [row[0].strip("| `").removesuffix(":M") for row in table(page, "step")]
    sized = [row[0].strip("| `").endswith(":M") for row in table(page, "step")]
    assert dict(zip(names, sized, strict=True)) == {n: e.sized for n, e in EXTRACTORS.items()}


def test_the_commands_run_one_after_the_other(page, tmp_path, monkeypatch, capsys):
    from temperance.cli import main

    monkeypatch.chdir(tmp_path)
    Path("plan.toml").write_text(block(page, "toml"), encoding="utf-8")
    for line in block(page, "bash").splitlines():
        program, *arguments = shlex.split(line, comments=True)
        assert program == "temperance"
        with pytest.raises(SystemExit) as stop:
            main(arguments)
        assert stop.value.code in (0, None), line
    assert "128 trials: 128 done" in capsys.readouterr().out
    assert sorted(p.name for p in Path("runs/judged").iterdir()) == [
        "regret.json",
        "regret.md",
        "regret.png",
        "tasks.csv",
    ]


def test_the_table_of_statistics_is_that_of_the_code():
    made = runpy.run_path(str(DOCS / "docs_statistics.py"))["table"]()
    written = (DOCS / "methods.md").read_text(encoding="utf-8")
    assert made in written, "paste what python docs/docs_statistics.py prints"
