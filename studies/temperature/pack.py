"""Pack the rows of the sweeps for the repository: ``python pack.py RUNS OUT``.

Learning curves are left out, and how the statistics were measured (but for csg): what is left
answers all questions of the study, in a few megabytes.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from temperance.study.ledger import LEDGER_NAME, TASKS_NAME, open_ledger, read_rows, read_tasks


def main(runs: Path, out: Path) -> None:
    """Write the table of rows and the tasks."""
    out.mkdir(parents=True, exist_ok=True)
    rows = [{**row, "history": {}} for row in read_rows(runs, history=False)]
    ledger = open_ledger(out)
    ledger.append(rows)
    ledger.compact()
    (out / LEDGER_NAME).unlink(missing_ok=True)
    (out / "ledger.lock").unlink(missing_ok=True)
    with (out / TASKS_NAME).open("w", encoding="utf-8") as file:
        for task in read_tasks(runs).values():
            for name, statistic in task["task"]["statistics"].items():
                statistic |= {"replicates": [], "eigenvalues": []}
                if name != "csg":  # published rules ask how csg was measured
                    statistic["settings"] = {}
            file.write(json.dumps(task, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
