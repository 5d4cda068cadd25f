"""A judgement of rules for people: tables, Markdown, and a file of the single tasks."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from temperance.files import check_writable, write_bytes
from temperance.records import Estimate, dumps
from temperance.study.regret_records import (
    ANY,
    METRIC_SPECS,
    ORIGINS,
    RegretReport,
    RuleSummary,
)
from temperance.study.regret_rules import PLAIN

__all__ = [
    "GROUPS",
    "RegretTable",
    "blocks",
    "count",
    "estimate",
    "how_to_read",
    "markdown",
    "tables",
    "tasks_csv",
    "write_regret",
]

_TEXTS = ("rule", "coefficients", "worst", "shows")  # columns that are no numbers
#: Groups in words.
GROUPS = {"none": "no norm", "layer": "LayerNorm", "batch": "BatchNorm", ANY: "every norm"}


@dataclass(frozen=True)
class RegretTable:
    """One group and metric as a table of texts.

    Attributes:
        title: metric, group, tasks and data sets.
        columns: heads of the columns.
        rows: a row for each rule, the smallest mean regret first.
    """

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def tables(report: RegretReport) -> tuple[RegretTable, ...]:
    """Write the summaries as tables, one for each group and metric.

    Args:
        report: what ``regret`` gave.

    Returns:
        The tables.
    """
    return tuple(
        RegretTable(_title(found), _columns(found[0]), tuple(map(_cells, found)))
        for found in blocks(report)
    )


def blocks(report: RegretReport) -> list[list[RuleSummary]]:
    """The summaries of each group and metric."""
    found: dict[tuple[str, str], list[RuleSummary]] = {}
    for summary in report.summaries:
        found.setdefault((summary.group, summary.metric), []).append(summary)
    return list(found.values())


def _title(found: Sequence[RuleSummary]) -> str:
    most = max(found, key=lambda s: s.tasks)
    spec = METRIC_SPECS[most.metric]
    return (
        f"{spec.title}, runs with {GROUPS[most.group]}: regret in {spec.unit} "
        f"({count(most.tasks, 'task')}, {count(most.datasets, 'data set')})"
    )


def count(number: int, thing: str, *, many: str = "") -> str:
    """``1 task``, ``2 tasks``."""
    return f"{number} {thing if number == 1 else many or thing + 's'}"


def _columns(first: RuleSummary) -> tuple[str, ...]:
    relative = () if first.relative is None else ("mean, % of best",)
    return (
        *("rule", "coefficients", "tasks", "T", "mean", *relative, "median", "worst"),
        *("gain over T = 1", "shows", "better than T = 1", "outside", "fallback"),
    )


def _cells(s: RuleSummary) -> tuple[str, ...]:
    digits = METRIC_SPECS[s.metric].digits
    name = s.rule if s.group != ANY or s.rule_norm == ANY else f"{s.rule} (norm {s.rule_norm})"
    relative = () if s.relative is None else (signed(s.relative.value, 1),)
    against = (estimate(s.gain, digits), s.verdict, _better(s))
    return (
        *(name, s.origin, str(s.tasks), _temperatures(s), estimate(s.mean, digits), *relative),
        *(estimate(s.median, digits), f"{signed(s.worst, digits)} ({s.worst_task})"),
        *(("-", "-", "-") if s.rule == PLAIN else against),
        *(str(s.outside), str(s.fallbacks)),
    )


def estimate(found: Estimate, digits: int) -> str:
    """A figure with its sign and its interval."""
    value, *ends = (signed(x, digits) for x in (found.value, *(found.interval or ())))
    return f"{value} [{', '.join(ends)}]" if ends else value


def signed(value: float, digits: int) -> str:
    """A number with its sign; what rounds to zero is not negative."""
    return f"{round(value, digits) + 0.0:+.{digits}f}"


def _temperatures(s: RuleSummary) -> str:
    low, middle, high = s.temperatures
    return f"{middle:.3g}" if low == high else f"{middle:.3g} ({low:.3g} to {high:.3g})"


def _better(s: RuleSummary) -> str:
    text = f"{100 * s.better.value:.0f} %"
    if s.better.interval is not None:
        text += " [{:.0f}, {:.0f}]".format(*(100 * end for end in s.better.interval))
    return text + (f", {100 * s.ties:.0f} % equal" if s.ties else "")


def how_to_read() -> tuple[str, ...]:
    """What the columns mean, in sentences."""
    return (
        "Regret: what the rule's T loses on the test rows against the best trained T, which "
        "validation chose. 0 is best; it can be negative, because another set of rows chose.",
        "Mean and median: each task counts the same. % of best: of the NLL at the best T.",
        "Intervals are 95 %, from drawing data sets again; the worst case has none. Gain over "
        "T = 1 is paired by task, positive is better.",
        "T: median (smallest to largest). Outside: tasks whose T lies outside the trained ones, "
        "judged at the edge. Fallback: tasks where another rule answered, as in suggest.",
        "Coefficients: " + "; ".join(f"{name}: {text}" for name, text in ORIGINS.items()) + ".",
    )


def markdown(report: RegretReport) -> str:
    """Write the report as Markdown: its tables, what was not judged, and the notes.

    Args:
        report: what ``regret`` gave.

    Returns:
        The text.
    """
    parts = ["# Regret of temperature rules"]
    for table in tables(report):
        parts += [f"## {table.title}", _grid(table.columns, table.rows)]
    if report.not_judged:
        lines = [f"- {name}: {reason}" for name, reason in report.not_judged.items()]
        parts += ["## Not judged", "\n".join(lines)]
    if report.notes:
        parts += ["## Notes", "\n".join(f"- {note}" for note in report.notes)]
    parts += ["## How to read this", "\n".join(f"- {line}" for line in how_to_read())]
    return "\n\n".join(parts) + "\n"


def _grid(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [columns, ["---" if c in _TEXTS else "---:" for c in columns], *rows]
    return "\n".join(
        "| " + " | ".join(c.replace("|", "\\|") for c in line) + " |" for line in lines
    )


def tasks_csv(report: RegretReport) -> str:
    """Write every rule on every task as CSV, with the task's setting.

    Args:
        report: what ``regret`` gave.

    Returns:
        The text, with a head line.
    """
    settings = list(dict.fromkeys(name for task in report.tasks for name in task.setting))
    facts = ("feature_dim", "n_classes")
    figures = (
        *("rule", "group", "metric", "temperature", "judged_at", "outside", "fallback"),
        *("in_domain", "best_temperature", "best_at_edge", "value", "best", "plain"),
        *("regret", "relative", "gain"),
    )
    named = [name for name in settings if name not in ("dataset", *facts)]
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(["dataset", *facts, *named, *figures])
    for row in report.rows:
        task = report.tasks[row.task]
        writer.writerow(
            [task.dataset, *(getattr(task, name) for name in facts)]
            + [task.setting.get(name) for name in named]
            + [getattr(row, name) for name in figures]
        )
    return buffer.getvalue()


def write_regret(report: RegretReport, folder: str | Path) -> tuple[Path, ...]:
    """Write a report as files: ``regret.json``, ``regret.md``, ``tasks.csv``, ``regret.png``.

    Args:
        report: what ``regret`` gave.
        folder: made if it is not there; older files of these names are replaced.

    Returns:
        The paths. Everything is made before the first is written, and each is whole or not there.

    Raises:
        InvalidInput: if nothing was judged, or if the folder cannot be written.
    """
    from temperance.evaluation.plot_style import png_bytes
    from temperance.study.plots import plot_regret
    from temperance.study.prepare import prepare_regret

    contents = {
        "regret.json": dumps(report, indent=1).encode(),
        "regret.md": markdown(report).encode(),
        "tasks.csv": tasks_csv(report).encode(),
        "regret.png": png_bytes(plot_regret(prepare_regret(report))),
    }
    target = Path(folder)
    check_writable(target)
    for name, content in contents.items():
        write_bytes(target / name, content)
    return tuple(target / name for name in contents)
