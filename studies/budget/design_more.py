"""Plans that came after the law had been fitted: ``python design_more.py FOLDER``; ``--costs``.

``tuned``: learning rate and T on one grid, for what is left of the gain where the rate is tuned.
``long``: trainings of 6,000 to 60,000 steps, longer than any that the law was fitted on.
Both on data sets of the law.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from design import LAW, Setting, any_net, drawn, write

RATES = {
    "sgd": [0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0],
    "adamw": [3e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2],
}
TEMPERATURES = [2.0**k for k in range(-2, 9)]


def tuned(u: Sequence[float]) -> tuple[Setting, float]:
    """A setting of the law, BN in front of the head, whose rate is on a grid as its T is."""
    without_rmsprop = (0.7 * u[0], 0.0, *u[2:])
    setting, cost = any_net(without_rmsprop, LAW, conv=0.2, steps=(60, 3000))
    return setting | {"lr": RATES[setting["optimizer"]]}, cost


def long(u: Sequence[float]) -> tuple[Setting, float]:
    """A setting of the law that is trained for longer than all of those."""
    return any_net(u, LAW, conv=0.2, steps=(6000, 60000))


def plans() -> dict[str, list[tuple[Setting, float]]]:
    """All plans by name."""
    return {
        "tuned": drawn(tuned, seed=400, count=36, most=150, grid=lambda _: TEMPERATURES),
        "long": drawn(long, seed=401, count=18, most=300),
    }


if __name__ == "__main__":
    write(plans(), Path(sys.argv[1]), "--costs" in sys.argv)
