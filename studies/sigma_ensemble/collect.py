"""Make the committed rows of what ``run.py`` and ``pretrained.py`` left in a folder.

    python studies/sigma_ensemble/collect.py WORK studies/sigma_ensemble/rows

A file of JSON lines for each plan, a line for each cell in the order of the plan: the cell, its
outcome, parameters, CPU seconds of the training, all figures (rounded to 6 digits) and the versions
of the libraries. Cells that are not there yet are counted, and left out.
"""

from __future__ import annotations

import argparse
import json
import platform
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from plans import PLANS

import temperance
from temperance.files import write_bytes


def rounded(value: Any) -> Any:
    """Round every float inside to 6 significant digits."""
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, dict):
        return {k: rounded(v) for k, v in value.items()}
    return value


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("work", type=Path)
    parser.add_argument("out", type=Path)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    versions = {
        "temperance": temperance.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
    }
    for name, plan in PLANS.items():
        lines, missing = [], 0
        for cell in plan():
            file = options.work / "rows" / f"{cell.key}.json"
            if not file.exists():
                missing += 1
                continue
            row = json.loads(file.read_text())
            row["cell"] = replace(cell, part=name).to_dict()
            row.pop("curve", None)
            lines.append(json.dumps({**rounded(row), "versions": versions}) + "\n")
        print(f"{name}: {len(lines)} rows, {missing} missing")
        if lines:
            write_bytes(options.out / f"{name}.jsonl", "".join(lines).encode())
    for file in sorted(options.work.glob("pretrained-*.jsonl")):
        rows = [rounded(json.loads(line)) for line in file.read_text().splitlines()]
        text = "".join(json.dumps({**r, "versions": versions}) + "\n" for r in rows)
        write_bytes(options.out / file.name, text.encode())
        print(f"{file.name}: {len(rows)} rows")


if __name__ == "__main__":
    main()
