"""How fast tempered logits grow: the predictions of docs/theory.md, tried on made-up features.

``python speed.py OUT.jsonl`` (under a minute of one core): a linear layer on features of
variance 1 per feature, as a BatchNorm leaves them, and a small net. Settings are random draws of
all factors; one row for each. The table of exponents is printed, and is the last row.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from temperance.files import write_bytes
from temperance.study.batches import learning_rate

C = 10  # classes
SHARE = 0.1  # of the variance of a feature that lies between the classes
DRAWS = 48  # settings of a question and optimizer
BEST_DRAWS = 40
GRID = 2.0 ** np.arange(-3, 9, 0.5)  # T of the search for the best one
RMSPROP_ALPHA = 0.99  # the default of torch.optim.RMSprop
MARGIN = 1.0  # of tempered logits, to be reached
MOST_STEPS = 3000

Row = dict[str, Any]


def rows_of(n: int, dim: int, *, share: float, rng: np.random.Generator, like: Any = None) -> Any:
    """Labelled rows of variance 1 per feature; ``like``: more rows with the same class means."""
    means = rng.normal(size=(C, dim)) * math.sqrt(share) if like is None else like[2]
    y = np.arange(n) % C
    x = means[y] + rng.normal(size=(n, dim)) * math.sqrt(1 - share)
    x = (x - x.mean(axis=0)) / x.std(axis=0)
    return torch.tensor(x, dtype=torch.float32), torch.tensor(y), means


def make(kind: str, parameters: list[Tensor], lr: float, momentum: float) -> torch.optim.Optimizer:
    if kind == "sgd":
        return torch.optim.SGD(parameters, lr=lr, momentum=momentum)
    if kind == "adamw":
        return torch.optim.AdamW(parameters, lr=lr, weight_decay=0.0)
    return torch.optim.RMSprop(parameters, lr=lr)


def train(x: Tensor, y: Tensor, s: Row, *, rng: np.random.Generator) -> Tensor:
    """Weights ``[k, C, M]`` of linear layers that start at 0, one for each of the temperatures."""
    temperatures = torch.tensor(s["temperatures"], dtype=torch.float32)
    w = torch.zeros(len(temperatures), C, x.shape[1], requires_grad=True)
    optimizer = make(s["optimizer"], [w], s["lr"], s["momentum"])
    for step in range(s["steps"]):
        batch = torch.from_numpy(rng.choice(len(x), s["batch"], replace=False))
        u = torch.einsum("bm,kcm->bck", x[batch], w) / temperatures
        loss = cross_entropy(u, y[batch, None].expand(-1, len(temperatures))) * len(temperatures)
        optimizer.zero_grad()
        loss.backward()
        rate = learning_rate(step, s["steps"], peak=s["lr"], schedule=s["schedule"])
        optimizer.param_groups[0]["lr"] = rate
        optimizer.step()
    return w.detach()


def margin(u: Tensor, y: Tensor) -> float:
    """Mean distance of the own class's logit from the mean of the others."""
    own = u.gather(1, y[:, None])[:, 0]
    return float((own - (u.sum(dim=1) - own) / (C - 1)).mean())


def drawn(rng: np.random.Generator, optimizer: str) -> Row:
    """One draw of all factors but the learning rate."""
    even = lambda low, high: float(np.exp(rng.uniform(np.log(low), np.log(high))))  # noqa: E731
    return {
        "optimizer": optimizer,
        "steps": round(even(60, 400)),
        "M": round(even(16, 1024)),
        "n": round(even(300, 3000)),
        "batch": int(rng.choice([16, 64, 256])),
        "momentum": float(rng.choice([0.0, 0.5, 0.9])) if optimizer == "sgd" else 0.0,
        "schedule": str(rng.choice(["cosine", "constant"])),
        "T": even(1, 30),
    }


def progress(s: Row) -> float:
    """Mean rate times steps over 1 - momentum, for a peak rate of 1."""
    return sum(rates(s)) / (1 - s["momentum"])


def rates(s: Row) -> list[float]:
    steps = s["steps"]
    return [learning_rate(t, steps, peak=1.0, schedule=s["schedule"]) for t in range(steps)]


def started(s: Row) -> float:
    """Progress of RMSprop, which does not correct that its mean of squares starts at 0."""
    pairs = enumerate(rates(s), 1)
    return sum(rate / math.sqrt(1 - RMSPROP_ALPHA**step) for step, rate in pairs)


# ------------------------------------------------------------------ questions
def early(question: str, optimizer: str, seed: int) -> Row:
    """Growth of the margin before the loss has fallen: of learning, or of learning by heart.

    ``growth``: classes differ; the margin of rows that were not trained on. ``memory``: labels say
    nothing about the features; how much larger the margin of the rows is that were trained on.
    """
    rng = np.random.default_rng((seed, 1 if question == "growth" else 2))
    s = drawn(rng, optimizer)
    wanted = float(np.exp(rng.uniform(np.log(0.005), np.log(0.1))))
    gain = s["M"] / s["T"] ** (2 if optimizer == "sgd" else 1)
    gain /= s["n"] / 30 if question == "memory" else 10 if optimizer == "sgd" else 3
    s["lr"] = wanted / (gain * progress(s))
    s["temperatures"] = [s["T"]]
    share = SHARE if question == "growth" else 0.0
    known = rows_of(s["n"], s["M"], share=share, rng=rng)
    x, y, _ = known
    w = train(x, y, s, rng=rng)[0] / s["T"]
    value = margin(x @ w.T, y)
    if question == "growth":
        fresh, labels, _ = rows_of(2000, s["M"], share=share, rng=rng, like=known)
        value = margin(fresh @ w.T, labels)
    far = {"progress": progress(s)} | ({"started": started(s)} if optimizer == "rmsprop" else {})
    return {"question": question, "seed": seed, **s, **far, "value": value}


def best(optimizer: str, seed: int) -> Row:
    """The T with the lowest NLL on rows not trained on; a fifth of all labels is wrong."""
    rng = np.random.default_rng((seed, 3))
    s = drawn(rng, optimizer)
    s["M"] = min(s["M"], 16 + s["M"] // 2)
    s["lr"] = float(
        np.exp(rng.uniform(*np.log((0.02, 1.0) if optimizer == "sgd" else (5e-4, 2e-2))))
    )
    s["temperatures"] = GRID.tolist()
    known = rows_of(s["n"], s["M"], share=SHARE, rng=rng)
    x, y, _ = known
    wrong = torch.from_numpy(rng.random(len(y)) < 0.2)
    noisy = torch.where(wrong, torch.from_numpy(rng.integers(0, C, len(y))), y)
    w = train(x, noisy, s, rng=rng)
    fresh, labels, _ = rows_of(2000, s["M"], share=SHARE, rng=rng, like=known)
    flip = torch.from_numpy(rng.random(len(labels)) < 0.2)
    labels = torch.where(flip, torch.from_numpy(rng.integers(0, C, len(labels))), labels)
    u = (
        torch.einsum("bm,kcm->kbc", fresh, w)
        / torch.tensor(GRID, dtype=torch.float32)[:, None, None]
    )
    nll = np.array([float(cross_entropy(part, labels)) for part in u])
    place = int(np.argmin(nll))
    at_edge = place in (0, len(GRID) - 1)
    shift = 0.0
    if not at_edge:  # the parabola through three points
        a, b, c = nll[place - 1 : place + 2]
        shift = 0.5 * (a - c) / (a - 2 * b + c)
    value = float(GRID[place] * math.sqrt(2) ** shift)
    del s["temperatures"], s["T"]
    far = {"progress": progress(s)} | ({"started": started(s)} if optimizer == "rmsprop" else {})
    return {"question": "best T", "seed": seed, **s, **far, "value": value, "at_edge": at_edge}


def reach(kind: str, optimizer: str, *, dim: int, temperature: float, seed: int) -> Row:
    """Steps until the margin of tempered logits is 1: frozen features, or a net that learns."""
    rng = np.random.default_rng((seed, 4))
    x, y, _ = rows_of(2000, dim if kind == "probe" else 64, share=SHARE, rng=rng)
    lr = 0.5 if optimizer == "sgd" else 1e-3
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        head = nn.Linear(dim, C)
        body = [nn.Linear(64, dim), nn.BatchNorm1d(dim), nn.ReLU(), nn.Linear(dim, dim)]
        norm = nn.BatchNorm1d(dim)
    net = head if kind == "probe" else nn.Sequential(*body, norm, nn.ReLU(), head)
    optimizer_ = make(optimizer, list(net.parameters()), lr, 0.0)
    found, steps = 0.0, 0
    while found < MARGIN and steps < MOST_STEPS:
        steps += 1
        batch = torch.from_numpy(rng.choice(len(x), 64, replace=False))
        u = net(x[batch]) / temperature
        loss = cross_entropy(u, y[batch])
        optimizer_.zero_grad()
        loss.backward()
        optimizer_.step()
        found = margin(u.detach(), y[batch])
    return {
        "question": "reach", "kind": kind, "optimizer": optimizer, "M": dim, "T": temperature,
        "seed": seed, "lr": lr, "value": steps, "reached": found >= MARGIN,
    }  # fmt: skip


# ------------------------------------------------------------------ exponents
def exponents(rows: Sequence[Row], names: Sequence[str]) -> dict[str, list[float]]:
    """Powers of a log-linear fit, each with its standard error."""
    columns = [np.log([row[name] for row in rows]) for name in names]
    x = np.column_stack([np.ones(len(rows)), *columns])
    y = np.log([row["value"] for row in rows])
    found = np.linalg.lstsq(x, y, rcond=None)[0]
    rest = y - x @ found
    variance = rest @ rest / (len(y) - x.shape[1])
    errors = np.sqrt(np.diag(np.linalg.inv(x.T @ x)) * variance)
    pairs = {n: [float(b), float(e)] for n, b, e in zip(names, found[1:], errors[1:], strict=True)}
    return pairs | {"rms": [float(np.sqrt(np.mean(rest**2))), 0.0]}


def constants(rows: Sequence[Row]) -> dict[str, float]:
    """Median of the margin of SGD over what is predicted: ``growth``, ``memory``."""
    found = {}
    for question in ("growth", "memory"):
        own = [r for r in rows if (r["question"], r["optimizer"]) == (question, "sgd")]
        shares = [SHARE / C if question == "growth" else 1 / r["n"] for r in own]
        scales = [r["lr"] * r["progress"] * r["M"] / r["T"] ** 2 for r in own]
        parts = [r["value"] / (a * b) for r, a, b in zip(own, shares, scales, strict=True)]
        found[question] = float(np.median(parts))
    return found


def table(rows: Sequence[Row]) -> list[Row]:
    """The exponents of every question."""
    found = []
    kinds = (("sgd", "progress"), ("adamw", "progress"), ("rmsprop", "started"))
    for question in ("growth", "memory", "best T"):
        for optimizer, far in (*kinds, ("rmsprop", "progress")):
            names = ["lr", far, "M", "n", "batch"] + ["T"] * (question != "best T")
            own = [r for r in rows if (r["question"], r.get("optimizer")) == (question, optimizer)]
            used = [r for r in own if r["value"] > 0 and not r.get("at_edge")]
            if len(used) > len(names) + 1:
                powers = exponents(used, names)
                found.append({"of": question, "optimizer": optimizer, "rows": len(used),
                              "left_out": len(own) - len(used), "exponents": powers})  # fmt: skip
    for kind in ("probe", "net"):
        for optimizer in ("sgd", "adamw"):
            own = [r for r in rows if (r.get("kind"), r["optimizer"]) == (kind, optimizer)]
            used = [r for r in own if r["reached"] and r["value"] >= 10]
            if len(used) > 3:
                found.append({"of": f"reach, {kind}", "optimizer": optimizer, "rows": len(used),
                              "left_out": len(own) - len(used),
                              "exponents": exponents(used, ["T", "M"])})  # fmt: skip
    return found


def main(out: str) -> None:
    rows: list[Row] = []
    for optimizer in ("sgd", "adamw", "rmsprop"):
        for seed in range(DRAWS):
            rows += [early("growth", optimizer, seed), early("memory", optimizer, seed)]
        rows += [best(optimizer, seed) for seed in range(BEST_DRAWS)]
    cases = product(
        ("probe", "net"), ("sgd", "adamw"), (32, 128, 512), 2.0 ** np.arange(1, 6), (0, 1)
    )
    for kind, optimizer, dim, temperature, seed in cases:
        rows.append(reach(kind, optimizer, dim=dim, temperature=float(temperature), seed=seed))
    for row in rows:
        row.pop("temperatures", None)
    found = table(rows)
    last = {"question": "exponents", "table": found, "constants": constants(rows)}
    lines = [json.dumps(row) for row in (*rows, last)]
    write_bytes(Path(out), ("\n".join(lines) + "\n").encode())
    for entry in found:
        powers = ", ".join(f"{n} {b:+.2f} ({e:.2f})" for n, (b, e) in entry["exponents"].items())
        counts = f"{entry['rows']} rows, {entry['left_out']} left out"
        print(f"{entry['of']}, {entry['optimizer']} ({counts}): {powers}")
    print(f"sgd, found over predicted: {last['constants']}")


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(*sys.argv[1:])
