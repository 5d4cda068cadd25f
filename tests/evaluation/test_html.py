"""The report page: well formed, self-contained, escaped, readable without eyes."""

import re
from html.parser import HTMLParser

import numpy as np
import pytest

from temperance.errors import InvalidInput
from temperance.evaluation.html import (
    Callout,
    Column,
    Figure,
    Heading,
    Paragraph,
    Steps,
    Table,
    render_html,
    save_html,
)
from temperance.evaluation.plots import plot_eigenvalues, png_bytes
from temperance.evaluation.prepare import prepare_eigenvalues
from temperance.records import Estimate, Statistic

PNG = png_bytes(
    plot_eigenvalues(prepare_eigenvalues(Statistic(1.0, eigenvalues=(0.0, 1.0)))), dpi=40
)
COLUMNS = (Column("Arm"), Column("Accuracy (%)", "percent", 1), Column("NLL", "number", 3))
TABLE = Table(
    COLUMNS,
    (
        ("T = 16", Estimate(0.853, (0.846, 0.86)), 0.45),
        ("<b>T = 1</b>", Estimate(0.843), Estimate(float("inf"))),
        ("failed", None, float("nan")),
    ),
    caption='Test "rows"',
    highlight=(0,),
    note="Wilson.",
)
SECTIONS = [
    Callout("Train at `T = 16`.", "Better", "good"),
    Heading("Results"),
    TABLE,
    Figure(PNG, alt='A "spectrum"', caption="Eigenvalues"),
    Heading("Results"),
    Heading("Details", 3),
    Paragraph("a < b & c"),
    Heading("Next"),
    Steps(("Run `x`.", "Stop.")),
    Heading("\u00e9\u00e8"),
]
VOID = {"meta", "img", "br", "link"}


class Parser(HTMLParser):
    """Collects elements, and refuses tags that are not closed in order."""

    def __init__(self, page):
        super().__init__()
        self.open, self.elements, self.text = [], [], []
        self.feed(page)
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)

    def all(self, tag):
        return [attrs for name, attrs in self.elements if name == tag]


PAGE = render_html(SECTIONS, title="A & B", subtitle="3 < 4", footer="seed 0")
PARSED = Parser(PAGE)


def test_it_is_a_whole_document():
    assert PAGE.startswith("<!DOCTYPE html>")
    assert PARSED.all("html") == [{"lang": "en"}]
    assert {"charset": "utf-8"} in PARSED.all("meta")
    assert "<title>A &amp; B</title>" in PAGE
    assert len(PARSED.all("h1")) == len(PARSED.all("main")) == 1


def test_it_needs_nothing_else():
    assert not PARSED.all("script")
    assert not PARSED.all("link")
    assert all(a["src"].startswith("data:image/png;base64,") for a in PARSED.all("img"))
    assert all(a["href"].startswith("#") for a in PARSED.all("a"))
    assert "url(" not in PAGE
    assert "@import" not in PAGE
    assert not re.search(r"https?://", PAGE)
    (policy,) = [m for m in PARSED.all("meta") if "http-equiv" in m]
    assert policy["content"].startswith("default-src 'none'")


def test_it_is_light_and_dark_and_printable():
    assert "prefers-color-scheme: dark" in PAGE
    assert "@media print" in PAGE


def test_text_is_escaped_and_backticks_are_code():
    assert "&lt;b&gt;T = 1&lt;/b&gt;" in PAGE
    assert not PARSED.all("b")
    assert "<p>a &lt; b &amp; c</p>" in PAGE
    assert "Train at <code>T = 16</code>." in PAGE
    assert "<code>&lt;i&gt;</code>" in render_html([Paragraph("`<i>`")], title="")


def test_attributes_are_escaped():
    assert PARSED.all("img")[0]["alt"] == 'A "spectrum"'
    assert PARSED.all("div")[0]["aria-label"] == 'Test "rows"'


def test_headings_have_unique_anchors_and_a_list():
    ids = [a["id"] for tag in ("h2", "h3") for a in PARSED.all(tag)]
    assert len(ids) == len(set(ids)) == 5
    targets = [a["href"][1:] for a in PARSED.all("a")]
    assert set(targets) == {a["id"] for a in PARSED.all("h2")}
    short = Parser(render_html([Heading("One")], title="x"))
    assert not short.all("nav")


def test_tables_say_what_heads_what():
    scopes = [a["scope"] for a in PARSED.all("th")]
    assert scopes == ["col"] * 3 + ["row"] * 3
    assert [a.get("class") for a in PARSED.all("td")] == ["number"] * 6
    assert sum("chosen" in a.get("class", "") for a in PARSED.all("tr")) == 1
    assert "<caption>Test &quot;rows&quot;</caption>" in PAGE


def test_cells():
    assert '85.3 <small class="interval">[84.6, 86.0]</small>' in PAGE
    assert ">84.3<" in PAGE
    assert ">\u221e<" in PAGE
    assert ">not a number<" in PAGE
    assert '<span class="none">\u2013</span>' in PAGE


@pytest.mark.parametrize(
    ("value", "column", "shown"),
    [
        (-0.0123, Column("d", "percent", 2, signed=True), "\u22121.23"),
        (0.0123, Column("d", "percent", 2, signed=True), "+1.23"),
        (-1e-9, Column("d", "number", 3), "0.000"),
        (1e-9, Column("d", "number", 3, signed=True), "0.000"),
        (12, Column("n", "number", 0), "12"),
        (float("-inf"), Column("n", "number"), "\u2212\u221e"),
        (np.float64(2.5), Column("n", "number", 1), "2.5"),
        (7, Column("n"), "7"),
    ],
)
def test_numbers(value, column, shown):
    page = render_html([Table((Column("x"), column), (("r", value),))], title="")
    assert f">{shown}</td>" in page


def test_pages_are_written_whole(tmp_path):
    path = save_html(PAGE, tmp_path / "report.html")
    assert path.read_text(encoding="utf-8") == PAGE
    assert [p.name for p in tmp_path.iterdir()] == ["report.html"]


def test_what_cannot_be_shown_is_refused():
    for make in (
        lambda: Figure(b"GIF89a", "x"),
        lambda: Figure(PNG, " "),
        lambda: Table(COLUMNS, (("a", 1.0),)),
        lambda: Column("x", "money"),
        lambda: Callout("x", kind="danger"),
        lambda: render_html(["text"], title="x"),
    ):
        with pytest.raises(InvalidInput):
            make()
