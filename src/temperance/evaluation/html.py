"""A report as one page of HTML that needs nothing else: no network, no script, no second file.

A page is a sequence of sections, plain records; ``render_html`` turns it into text. All text is
escaped; ``between backticks`` it is set as code. Pictures are PNG files inside the page.
"""

from __future__ import annotations

import base64
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from temperance.errors import InvalidInput
from temperance.evaluation.stylesheet import STYLESHEET
from temperance.files import write_bytes
from temperance.records import Estimate

__all__ = [
    "Callout",
    "Column",
    "Figure",
    "Heading",
    "Paragraph",
    "Section",
    "Steps",
    "Table",
    "render_html",
    "save_html",
]

Cell = str | int | float | Estimate | None


@dataclass(frozen=True)
class Heading:
    """A heading.

    Attributes:
        text: its words.
        level: 2 for a section, 3 for a part of one; 1 is the title of the page.
    """

    text: str
    level: int = 2


@dataclass(frozen=True)
class Paragraph:
    """A paragraph of plain text."""

    text: str


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Attributes:
        title: its head.
        kind: ``"text"``; ``"number"``; ``"percent"``, for shares, shown times 100.
        digits: digits after the point.
        signed: whether positive numbers carry a plus, as differences should.
    """

    title: str
    kind: str = "text"
    digits: int = 3
    signed: bool = False

    def __post_init__(self) -> None:
        if self.kind not in ("text", "number", "percent"):
            raise InvalidInput(
                f"column {self.title!r}",
                expected="the kind 'text', 'number' or 'percent'",
                found=repr(self.kind),
                fix="Choose one.",
            )


@dataclass(frozen=True)
class Table:
    """A table; the first cell of a row names the row.

    Attributes:
        columns: its columns.
        rows: cells: texts, numbers, estimates (shown with their interval) or None.
        caption: what it shows.
        highlight: places of the rows to set off.
        note: a line under the table, such as how the intervals were made.
    """

    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    caption: str = ""
    highlight: tuple[int, ...] = ()
    note: str = ""

    def __post_init__(self) -> None:
        for place, row in enumerate(self.rows):
            if len(row) != len(self.columns):
                raise InvalidInput(
                    f"row {place} of table {self.caption!r}",
                    expected=f"{len(self.columns)} cells, one per column",
                    found=f"{len(row)}",
                    fix="Use None for an empty cell.",
                )


@dataclass(frozen=True)
class Figure:
    """A picture.

    Attributes:
        png: content of a PNG file, from ``temperance.evaluation.plots.png_bytes``.
        alt: what it shows, for people who cannot see it; not empty.
        caption: a line under it.
    """

    png: bytes
    alt: str
    caption: str = ""

    def __post_init__(self) -> None:
        if not self.png.startswith(b"\x89PNG"):
            raise InvalidInput(
                "figure",
                expected="the content of a PNG file",
                found=repr(self.png[:8]),
                fix="Pass what temperance.evaluation.plots.png_bytes returned.",
            )
        if not self.alt.strip():
            raise InvalidInput(
                "figure", expected="a text for alt", found="none", fix="Say what it shows."
            )


@dataclass(frozen=True)
class Callout:
    """A box that stands out.

    Attributes:
        text: what it says.
        title: its first words.
        kind: ``"note"``, ``"good"`` or ``"warning"``.
    """

    text: str
    title: str = ""
    kind: str = "note"

    def __post_init__(self) -> None:
        if self.kind not in ("note", "good", "warning"):
            raise InvalidInput(
                "callout",
                expected="the kind 'note', 'good' or 'warning'",
                found=repr(self.kind),
                fix="Choose one.",
            )


@dataclass(frozen=True)
class Steps:
    """A numbered list: what to do, or what was done, in order."""

    items: tuple[str, ...]


Section = Heading | Paragraph | Table | Figure | Callout | Steps


def render_html(
    sections: Sequence[Section], *, title: str, subtitle: str = "", footer: str = ""
) -> str:
    """Make one page of HTML.

    Args:
        sections: the page from top to bottom.
        title: its title and first heading.
        subtitle: a line under the title.
        footer: a line at the end.

    Returns:
        A whole HTML document.

    Raises:
        InvalidInput: if a section is of no known kind.

    Example:
        >>> from temperance.evaluation.html import Paragraph, render_html
        >>> page = render_html([Paragraph("T < 1 & `T > 0`")], title="Report")
        >>> "<p>T &lt; 1 &amp; <code>T &gt; 0</code></p>" in page
        True
    """
    anchors = _anchors(sections)
    body = "\n".join(_section(s, anchors.get(i, "")) for i, s in enumerate(sections))
    lead = f'\n<p class="lead">{_text(subtitle)}</p>' if subtitle else ""
    end = f"\n<footer><p>{_text(footer)}</p></footer>" if footer else ""
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{_POLICY}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{escape(title)}</title>
<style>
{STYLESHEET}</style>
</head>
<body>
<main>
<header>
<h1>{_text(title)}</h1>{lead}
</header>
{_contents(sections, anchors)}{body}{end}
</main>
</body>
</html>
"""


def save_html(page: str, path: str | Path) -> Path:
    """Write a page; the file is whole or not there.

    Args:
        page: from ``render_html``.
        path: where to; its folder exists.

    Returns:
        The path.
    """
    target = Path(path)
    write_bytes(target, page.encode("utf-8"))
    return target


# ------------------------------------------------------------------ sections
_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
_CONTENTS_FROM = 4  # sections from which a list of them helps


def _section(section: Section, anchor: str) -> str:
    match section:
        case Heading():
            level = min(max(section.level, 2), 6)
            return f'<h{level} id="{anchor}">{_text(section.text)}</h{level}>'
        case Paragraph():
            return f"<p>{_text(section.text)}</p>"
        case Table():
            return _table(section)
        case Figure():
            return _figure(section)
        case Callout():
            title = section.title or section.kind.capitalize()
            return (
                f'<aside class="callout {section.kind}" role="note">'
                f"<p><strong>{_text(title)}</strong></p><p>{_text(section.text)}</p></aside>"
            )
        case Steps():
            items = "\n".join(f"<li>{_text(item)}</li>" for item in section.items)
            return f"<ol>\n{items}\n</ol>"
    raise InvalidInput(
        "sections",
        expected="Heading, Paragraph, Table, Figure, Callout or Steps",
        found=type(section).__name__,
        fix="Make the page of these.",
    )


def _table(table: Table) -> str:
    heads = "".join(
        f'<th scope="col"{_aligned(column)}>{_text(column.title)}</th>' for column in table.columns
    )
    rows = "\n".join(
        _table_row(row, table.columns, highlight=place in table.highlight)
        for place, row in enumerate(table.rows)
    )
    caption = f"<caption>{_text(table.caption)}</caption>\n" if table.caption else ""
    note = f'\n<p class="tablenote">{_text(table.note)}</p>' if table.note else ""
    label = escape(table.caption or "Table", quote=True)
    return (
        f'<div class="scroll" role="region" tabindex="0" aria-label="{label}">\n<table>\n'
        f"{caption}<thead><tr>{heads}</tr></thead>\n<tbody>\n{rows}\n</tbody>\n</table>\n</div>{note}"
    )


def _table_row(row: tuple[Cell, ...], columns: tuple[Column, ...], *, highlight: bool) -> str:
    cells = [
        f"<td{_aligned(column)}>{_cell(cell, column)}</td>"
        for cell, column in zip(row[1:], columns[1:], strict=True)
    ]
    first = f'<th scope="row"{_aligned(columns[0])}>{_cell(row[0], columns[0])}</th>'
    mark = ' class="chosen"' if highlight else ""
    return f"<tr{mark}>{first}{''.join(cells)}</tr>"


def _figure(figure: Figure) -> str:
    data = base64.b64encode(figure.png).decode("ascii")
    caption = f"<figcaption>{_text(figure.caption)}</figcaption>" if figure.caption else ""
    alt = escape(figure.alt, quote=True)
    return f'<figure><img src="data:image/png;base64,{data}" alt="{alt}">{caption}</figure>'


def _contents(sections: Sequence[Section], anchors: dict[int, str]) -> str:
    """A list of the sections, where there are enough of them."""
    places = [i for i, s in enumerate(sections) if isinstance(s, Heading) and s.level <= 2]
    if len(places) < _CONTENTS_FROM:
        return ""
    items = "".join(
        f'<li><a href="#{anchors[i]}">{_text(s.text)}</a></li>'
        for i in places
        if isinstance(s := sections[i], Heading)
    )
    return f'<nav aria-label="Contents"><ul>{items}</ul></nav>\n'


def _anchors(sections: Sequence[Section]) -> dict[int, str]:
    """A unique id for every heading, by its place."""
    anchors: dict[int, str] = {}
    for place, section in enumerate(sections):
        if isinstance(section, Heading):
            word = re.sub(r"[^a-z0-9]+", "-", section.text.lower()).strip("-") or "section"
            anchors[place] = f"{word}-{place}" if word in anchors.values() else word
    return anchors


# ------------------------------------------------------------------ text and numbers
def _text(text: str) -> str:
    """Escaped text, with what stands between backticks as code."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text, quote=True))


def _aligned(column: Column) -> str:
    return "" if column.kind == "text" else ' class="number"'


def _cell(cell: Cell, column: Column) -> str:
    if cell is None:
        return '<span class="none">\N{EN DASH}</span>'
    if isinstance(cell, str):
        return _text(cell)
    if not isinstance(cell, Estimate):
        return _number(cell, column)
    value = _number(cell.value, column)
    if cell.interval is None:
        return value
    low, high = (_number(end, column) for end in cell.interval)
    return f'{value} <small class="interval">[{low}, {high}]</small>'


def _number(value: float, column: Column) -> str:
    """Number as text, with a true minus sign."""
    if column.kind == "text":
        return escape(str(value))
    scaled = 100 * value if column.kind == "percent" else value
    if math.isnan(scaled):
        return "not a number"
    if math.isinf(scaled):
        return "\N{INFINITY}" if scaled > 0 else "\N{MINUS SIGN}\N{INFINITY}"
    sign = "+" if column.signed else ""
    shown = f"{scaled:{sign}.{column.digits}f}"
    if float(shown) == 0:
        shown = f"{0:.{column.digits}f}"  # neither +0.0 nor -0.0
    return shown.replace("-", "\N{MINUS SIGN}")
