"""Plans of the temperatures that were missing: ``python widen.py RUNS/law PLANS/wide.toml``.

Settings whose best T, by any of the three targets on validation rows, was at an end of their grid
get four more temperatures beyond that end. Call again after the sweep, until little is left.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from analyse import TARGETS, read

from temperance.errors import InvalidInput
from temperance.study.curves import best_temperature
from temperance.study.runs import Curve

MORE, LEAST, MOST = 4, 2.0**-6, 2.0**16  # T below 0.01 is no head's


def missing(curve: Curve) -> list[float]:
    """Temperatures beyond the ends at which the curve is best."""
    ends = set()
    for target in TARGETS:
        try:
            ends.add(best_temperature(curve, target).at_edge)
        except InvalidInput:  # diverged everywhere
            ends.add("upper")
    low, high = float(curve.temperatures[0]), float(curve.temperatures[-1])
    found = [low / 2**k for k in range(1, MORE + 1)] if ends & {"lower", "both"} else []
    found += [high * 2**k for k in range(1, MORE + 1)] if ends & {"upper", "both"} else []
    return sorted(t for t in found if LEAST <= t <= MOST)


def main(runs: Path, plan: Path) -> None:
    """Write the plan, or nothing if nothing is missing."""
    lines = [f'name = "{plan.stem}"', ""]
    found = [(curve, missing(curve)) for curve in read(runs)]
    for curve, grid in found:
        if grid:
            setting = {k: v for k, v in curve.setting.items() if v is not None}
            full = setting | {"temperature": grid, "seed": list(curve.seeds)}
            lines += ["[[grids]]", *(f"{k} = {json.dumps(v)}" for k, v in full.items()), ""]
    wide = sum(bool(grid) for _, grid in found)
    print(f"{wide} of {len(found)} settings, {sum(len(g) for _, g in found)} temperatures")
    if wide:
        plan.write_text("\n".join(lines), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
