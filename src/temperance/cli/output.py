"""How the verbs print: JSON for programs, plain tables for people, errors for both."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any

from temperance.errors import TemperanceError

__all__ = ["number", "print_error", "print_json", "print_table"]

_WIDE = 240


def print_json(data: Any) -> None:
    """Print one strict JSON document."""
    print(json.dumps(data, indent=2, allow_nan=False, ensure_ascii=False))


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table; the first column is text, the others are aligned to the right."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for place, column in enumerate(columns):
        right = place > 0 and all(_is_number(row[place]) for row in rows)
        table.add_column(column, justify="right" if right else "left")
    for row in rows:
        table.add_row(*row)
    console = Console(markup=False, emoji=False)  # brackets are shapes or names, nothing of rich's
    if not console.is_terminal:  # a pipe or a file has no width: do not wrap what people keep
        console = Console(width=_WIDE, markup=False, emoji=False)
    console.print(title, highlight=False)
    console.print(table)


def _is_number(text: str) -> bool:
    return not text or text[0].isdigit() or text[0] in "+-−–."


def number(value: float | None, digits: int = 4) -> str:
    """Write a number for people; a dash where there is none."""
    return "-" if value is None else f"{value:.{digits}g}"


def print_error(error: TemperanceError, *, as_json: bool) -> None:
    """Print an error as a sentence on the error stream, and as JSON on the output if asked."""
    print(f"temperance: {error}", file=sys.stderr)
    if as_json:
        parts = {k: v for k, v in vars(error).items() if not k.startswith("_")}
        print_json({"error": {"kind": type(error).__name__, "message": str(error), **parts}})
