"""Pack rows for the repository: ``python pack.py ROWS .. OUT``.

Of the learning curves the last entry is kept, which has the T at the end.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from temperance.study.ledger import LEDGER_NAME, TASKS_NAME, open_ledger, read_rows, read_tasks


def main(folders: Sequence[Path], out: Path) -> None:
    """Write the table of rows and the tasks."""
    out.mkdir(parents=True, exist_ok=True)
    rows = [
        {**row, "history": {name: curve[-1:] for name, curve in row["history"].items()}}
        for runs in folders
        for row in read_rows(runs)
    ]
    ledger = open_ledger(out)
    ledger.append(rows)
    ledger.compact()
    (out / LEDGER_NAME).unlink(missing_ok=True)
    (out / "ledger.lock").unlink(missing_ok=True)
    with (out / TASKS_NAME).open("w", encoding="utf-8") as file:
        tasks = {key: task for runs in folders for key, task in read_tasks(runs).items()}
        for task in tasks.values():
            file.write(json.dumps(task, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main([Path(folder) for folder in sys.argv[1:-1]], Path(sys.argv[-1]))
