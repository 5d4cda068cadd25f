"""``table.md``: the counts and the rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

__all__ = ["OUTCOMES", "counts", "write_page"]

OUTCOMES = ("passed", "refused", "failed")
VERBS = ("find", "insert", "fold", "remove", "convert")
COMMAND = "python studies/models/table.py"


def counts(rows: Iterable[dict[str, Any]]) -> dict[str, Counter[str]]:
    """Count the outcomes by library."""
    found: dict[str, Counter[str]] = {}
    for row in rows:
        found.setdefault(row["library"], Counter())[row["outcome"]] += 1
    return found


def write_page(rows: Iterable[dict[str, Any]], path: Path) -> None:
    """Write the table of all rows."""
    rows = sorted(rows, key=lambda r: (r["library"], r["family"], r["name"]))
    lines = [
        "# Models that were tried",
        "",
        f"Made by `{COMMAND}` from `rows.jsonl`; what the columns mean is in the README.",
        "",
        *_summary(rows),
        *_reasons(rows),
    ]
    for library in sorted({r["library"] for r in rows}):
        lines += _rows_of(library, [r for r in rows if r["library"] == library])
    path.write_text("\n".join(lines).rstrip() + "\n", encoding="utf-8")


def _summary(rows: list[dict[str, Any]]) -> list[str]:
    lines = [
        "| library | families | tried | passed | refused | failed | " + " | ".join(VERBS) + " |",
        "|---|" + "---:|" * (5 + len(VERBS)),
    ]
    for library, found in sorted(counts(rows).items()):
        lines.append(_summary_line(library, [r for r in rows if r["library"] == library], found))
    total = sum(counts(rows).values(), Counter())
    return [*lines, _summary_line("all", rows, total), "", *_errors(rows), ""]


def _summary_line(title: str, rows: list[dict[str, Any]], found: Counter[str]) -> str:
    families = len({(r["library"], r["family"]) for r in rows})
    cells = [title, str(families), str(len(rows)), *(str(found[o]) for o in OUTCOMES)]
    cells += [f"{sum(r[v] == 'ok' for r in rows)} ok" for v in VERBS]
    return "| " + " | ".join(cells) + " |"


def _errors(rows: list[dict[str, Any]]) -> list[str]:
    lines = []
    for name, title in (("fold_error", "fold"), ("convert_error", "convert")):
        values = sorted(r[name] for r in rows if r[name] is not None)
        if values:
            middle, worst = values[len(values) // 2], values[-1]
            lines.append(f"Error of {title}: median {middle:.1e}, largest {worst:.1e}.")
    return lines


def _reasons(rows: list[dict[str, Any]]) -> list[str]:
    """Every reason once, with the models that it is given for."""
    found: dict[str, list[str]] = {}
    for row in rows:
        for note in row["note"]:
            if " refused: " in note or " failed: " in note or row["outcome"] == "failed":
                text = note.replace(row["name"], "MODEL")
                for name in row["head"]:
                    text = text.replace(f"{name!r}", "HEAD")
                found.setdefault(text, []).append(f"{row['library']} {row['name']}")
    if not found:
        return []
    lines = ["## Refused and failed", ""]
    for text, names in sorted(found.items()):
        lines.append(f"- {_cell(text)} ({len(names)}: {', '.join(names)})")
    return [*lines, ""]


def _rows_of(library: str, rows: list[dict[str, Any]]) -> list[str]:
    lines = [
        f"## {library}",
        "",
        "| family | model | size | head | kind | M | advertised | insert | fold error "
        "| convert error | outcome | note |",
        "|---|---|---|---|---|---:|---|---|---:|---:|---|---|",
    ]
    return [*lines, *(_line(r) for r in rows), ""]


def _line(row: dict[str, Any]) -> str:
    notes = [n for n in row["note"] if " refused: " not in n and " failed: " not in n]
    cells = [
        row["family"],
        row["name"],
        row["size"],
        ", ".join(row["head"]),
        row["kind"],
        ", ".join(map(str, row["in_features"])),
        row["advertised"],
        row["insert"],
        _number(row["fold_error"], row["fold"]),
        _number(row["convert_error"], row["convert"]),
        row["outcome"],
        "; ".join(notes),
    ]
    return "| " + " | ".join(_cell(c) for c in cells) + " |"


def _number(value: float | None, state: str) -> str:
    return state if value is None else f"{value:.1e}"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
