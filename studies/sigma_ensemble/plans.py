"""What is trained for which question. ``python studies/sigma_ensemble/plans.py`` counts it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from cells import Cell, member_of

__all__ = ["PLANS"]

SEEDS = (0, 1, 2)
RIVALS = ("batch_ensemble", "packed", "film_ensemble", "mimo", "masksembles", "mc_dropout")

TASKS: Mapping[str, Cell] = {
    "cifar-resnet": Cell(
        "table", "cifar10", "resnet", 32, "single", train_rows=3000, augment="shift-flip"
    ),
    "fashion-resnet": Cell("table", "fashion-mnist", "resnet", 32, "single", train_rows=2000),
    "cifar-vit": Cell(
        "table", "cifar10", "vit", 64, "single", train_rows=1500, augment="shift-flip", lr=1e-3
    ),
    "fashion-vit": Cell("table", "fashion-mnist", "vit", 64, "single", train_rows=2000, lr=2e-3),
    "clinc-text": Cell("table", "clinc150", "text", 64, "single", train_rows=7500, lr=2e-3),
}
"""The five tasks, each with its budget."""


def rate() -> Iterator[Cell]:
    """Which learning rate suits the single model of each task (judged on fit rows)."""
    for task in TASKS.values():
        rows, epochs = (15000, 8) if task.net == "text" else (4000, 12)
        for lr in (5e-4, 1e-3, 2e-3, 4e-3, 8e-3):
            budget = {"train_rows": rows, "epochs": epochs, "lr": lr}
            yield replace(task, part="rate", members=1, **budget)


# start, spread, rate, strength: an orthogonal array of four factors with three levels, L9
LEVELS = {
    "start": (1.0, 2.0, 3.0),
    "spread": (0.5, 1.0, 2.0),
    "rate": (1.0, 10.0, 30.0),
    "strength": (0.0, 1e-4, 1e-3),
}
L9 = (
    *((0, 0, 0, 0), (0, 1, 1, 1), (0, 2, 2, 2)),
    *((1, 0, 1, 2), (1, 1, 2, 0), (1, 2, 0, 1)),
    *((2, 0, 2, 1), (2, 1, 0, 2), (2, 2, 1, 0)),
)


def _nine(base: Cell) -> Iterator[Cell]:
    for places in L9:
        values = {k: LEVELS[k][i] for k, i in zip(LEVELS, places, strict=True)}
        yield replace(base, method="sigma", **values)


def _deep(base: Cell, members: int = 4) -> Iterator[Cell]:
    """Single models, and the deep ensemble of them; the first of them is the single model."""
    ensemble = replace(base, method="deep_ensemble", members=members)
    yield from (member_of(ensemble, m) for m in range(members))
    yield ensemble


def regime() -> Iterator[Cell]:
    """Nine settings of gamma's start, spread and rate and of the strength, at three widths."""
    base = replace(TASKS["fashion-resnet"], part="regime")
    for width, seeds in ((16, (0, 1, 2)), (32, (0, 1))):
        for seed in seeds:
            yield from _deep(replace(base, width=width, seed=seed))
            yield from _nine(replace(base, width=width, seed=seed))
    wide = replace(base, width=64)
    yield from _deep(wide)
    for places in ((0, 1, 1, 1), (1, 0, 1, 2), (2, 2, 1, 0)):
        values = {k: LEVELS[k][i] for k, i in zip(LEVELS, places, strict=True)}
        yield replace(wide, method="sigma", **values)
    sgd = replace(base, width=16, optimizer="sgd", lr=0.05)
    for seed in (0, 1):
        yield from _deep(replace(sgd, seed=seed))
        yield from _nine(replace(sgd, seed=seed))


REFINED = (
    {"start": 1.0, "spread": 2.0, "rate": 10.0, "strength": 1e-3},
    {"start": 2.0, "spread": 2.0, "rate": 10.0, "strength": 1e-3},
    {"start": 2.0, "spread": 1.0, "rate": 10.0, "strength": 1e-3},
    {"start": 2.0, "spread": 0.5, "rate": 30.0, "strength": 1e-3},
    {"start": 2.0, "spread": 1.0, "rate": 10.0, "strength": 3e-3},
    {"start": 1.0, "spread": 2.0, "rate": 30.0, "strength": 3e-3},
)
"""What the nine settings point at: strength, with a rate above 1 that lets gamma follow it."""


def refine() -> Iterator[Cell]:
    """Six more settings where the nine were best."""
    base = replace(TASKS["fashion-resnet"], part="refine", method="sigma")
    for width in (16, 32):
        for seed in (0, 1):
            for setting in REFINED:
                yield replace(base, width=width, seed=seed, **setting)


CHOSEN = {"start": 2.0, "spread": 1.0, "rate": 10.0, "tau": 0.2, "strength": 1e-3}
"""Third of fifteen by the NLL of the fit rows over widths 16 and 32; the library's defaults."""


def table() -> Iterator[Cell]:
    """All methods at M = 4 on the five tasks, seed after seed."""
    for seed in SEEDS:
        for task in sorted(TASKS.values(), key=lambda t: t.net == "vit"):  # they take longest
            base = replace(task, seed=seed)
            yield from _deep(base)
            more = ("sigma_plain",) if task is TASKS["cifar-resnet"] else ()
            more += ("sigma_paper",) if more and seed == 0 else ()
            for method in ("sigma", "sigma_split", *more, *RIVALS):
                setting = CHOSEN if method.startswith("sigma") else {}
                yield replace(base, method=method, **setting)


def members() -> Iterator[Cell]:
    """M = 1 to 16 on a small budget."""
    base = replace(TASKS["fashion-resnet"], part="members", width=16, train_rows=1000)
    for seed in SEEDS:
        for m in (1, 2, 4, 8, 16):
            if m > 1:
                yield from _deep(replace(base, seed=seed), m)
            for method in ("sigma", "batch_ensemble", "packed", "mimo", "masksembles"):
                if (method, m) != ("batch_ensemble", 16):  # a sixth of the plan's time
                    setting = CHOSEN if method == "sigma" else {}
                    yield replace(base, seed=seed, method=method, members=m, **setting)


def tau() -> Iterator[Cell]:
    """Four tau at three strengths, and without the term."""
    base = replace(TASKS["fashion-resnet"], part="tau", width=16, method="sigma")
    for seed in SEEDS:
        yield replace(base, seed=seed, strength=0.0)
        for strength in (1e-4, 1e-3, 1e-2):
            for value in (0.1, 0.3, 1.0, 3.0):
                yield replace(base, seed=seed, strength=strength, tau=value)


PLANS: Mapping[str, Callable[[], Iterator[Cell]]] = {
    "rate": rate,
    "regime": regime,
    "refine": refine,
    "table": table,
    "members": members,
    "tau": tau,
}

if __name__ == "__main__":
    for name, plan in PLANS.items():
        print(name, len({cell.key for cell in plan()}))
