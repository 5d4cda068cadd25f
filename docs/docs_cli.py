"""Write ``docs/cli.md`` from the program's own help: ``python docs/docs_cli.py``."""

import io
import os
from contextlib import redirect_stdout, suppress
from pathlib import Path

VERBS = (
    *("", "suggest", "rules", "measure", "train", "ensemble", "predict"),
    "export",
    *("calibrate", "evaluate"),
    *("sweep", "fit", "regret"),
)


def help_of(verb: str) -> str:
    """Help text of a verb, 100 columns wide, the same on every machine."""
    os.environ.update(COLUMNS="100", TERMINAL_WIDTH="100", NO_COLOR="1")
    from temperance.cli import main

    output = io.StringIO()
    with redirect_stdout(output), suppress(SystemExit):
        main([*verb.split(), "--help"])
    return output.getvalue().strip()


def page() -> str:
    """The whole page."""
    parts = [
        "# Command line",
        "Made from the program's help by `python docs/docs_cli.py`; a test compares the two.",
    ]
    for verb in VERBS:
        parts += [f"## temperance {verb}".rstrip(), f"```text\n{help_of(verb)}\n```"]
    parts += [
        "## Exit codes",
        "0 done; 1 the work ended without a usable result; 2 wrong usage; 3 input that cannot be "
        "used; 4 a name that is not there; 5 a missing package; 130 interrupted.\n\nWith `--json` "
        "errors other than wrong usage are printed as JSON, too: `error.kind`, `error.message` and "
        "the error's parts.",
    ]
    return "\n\n".join(parts) + "\n"


if __name__ == "__main__":
    Path(__file__).with_name("cli.md").write_text(page(), encoding="utf-8")
