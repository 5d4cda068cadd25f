"""The README and the docs are true: their code runs, their commands print what they say."""

import re
import runpy
import shlex
from pathlib import Path

import pytest

PROJECT = Path(__file__).parent.parent
PAGES = [PROJECT / "README.md", *sorted((PROJECT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(page: Path, language: str) -> list[str]:
    return [
        code for lang, code in BLOCK.findall(page.read_text(encoding="utf-8")) if lang == language
    ]


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_python_blocks_run(page, tmp_path, monkeypatch):
    code = blocks(page, "python")
    if not code:
        assert "```python" not in page.read_text(encoding="utf-8")
        return
    monkeypatch.chdir(tmp_path)
    namespace: dict = {"__name__": "docs"}
    for block in code:
        exec(compile(block, str(page), "exec"), namespace)


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_console_blocks_print_what_they_say(page, capsys):
    """Blocks of ``console`` hold a command after ``$`` and the first lines of its output."""
    from temperance.cli import main

    for block in blocks(page, "console"):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, _, expected = part.partition("\n")
            program, *arguments = shlex.split(command)
            assert program == "temperance"
            with pytest.raises(SystemExit) as stop:
                main(arguments)
            assert stop.value.code in (0, None)
            printed = capsys.readouterr().out
            for line in expected.strip().splitlines():
                if line.strip() != "...":
                    assert line.rstrip() in printed, f"{command}: no line {line!r} in\n{printed}"


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_inside_the_project_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
        assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_the_page_of_commands_is_the_help_of_the_program():
    made = runpy.run_path(str(PROJECT / "docs" / "docs_cli.py"))["page"]()
    written = (PROJECT / "docs" / "cli.md").read_text(encoding="utf-8")
    assert written == made, "run: python docs/docs_cli.py"
