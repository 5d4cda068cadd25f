"""Two gloo processes run every case below once; each writes what it saw to OUT/RANK.json.

Run by test_distributed.py: ``python distributed_cases.py OUT``.
"""

import contextlib
import json
import sys
import warnings
from datetime import timedelta
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from temperance import collect, convert, insert, member_loss, set_norm_statistics
from temperance.ensemble import predict_members
from temperance.errors import InvalidInput, TemperanceWarning
from temperance.head import (
    accumulate_statistics,
    check_frozen,
    equalize_statistics,
    freeze,
    recompute_statistics,
    unfreeze,
    update_once,
)
from temperance.models import load_checkpoint

CASES = {}


def case(function):
    CASES[function.__name__] = function
    return function


def build(*, members=0, norm="batch"):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 5))
    insert(model, 4.0, norm=norm)
    return convert(model, members, example=torch.zeros(2, 6)) if members else model


def parallel_of(model, *, broadcast=False):
    """Without a word on the argument, whose name differs between versions of torch."""
    parallel = DistributedDataParallel(model)
    parallel.broadcast_buffers = broadcast
    return parallel


def batch_of(rank, step, rows=8):
    """Rows of each rank have a mean of their own."""
    generator = torch.Generator().manual_seed(100 * step + rank)
    x = torch.randn(rows, 6, generator=generator) + rank
    return x, torch.randint(0, 5, (rows,), generator=generator)


def fit(model, batches):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model.train()
    for x, y in batches:
        logits = model(x)
        loss = (
            member_loss(logits, y) if logits.dim() == 3 else nn.functional.cross_entropy(logits, y)
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def parts(model):
    """Weights and running statistics, as one list each."""
    weights = torch.cat([p.detach().flatten().double() for p in model.parameters()])
    buffers = {n: b.double().flatten() for n, b in model.named_buffers() if "running" in n}
    return weights.tolist(), {n: b.tolist() for n, b in buffers.items()}


def spread(model):
    """Largest difference of a weight, and of a running statistic, between the ranks."""
    weights, statistics = parts(model)
    flat = [
        torch.tensor(weights),
        torch.tensor([v for values in statistics.values() for v in values]),
    ]
    found = []
    for mine in flat:
        all_of_them = [torch.zeros_like(mine) for _ in range(2)]
        dist.all_gather(all_of_them, mine)
        found.append(float((all_of_them[0] - all_of_them[1]).abs().max()))
    return found


def trained(rank, *, members=0, broadcast=False, steps=12):
    model = build(members=members)
    parallel = parallel_of(model, broadcast=broadcast)
    fit(parallel, [batch_of(rank, i) for i in range(steps)])
    return parallel


def shown(record):
    return [record.world_size, record.mean_spread, record.variance_ratio, list(record.norms)]


@case
def pool(rank):
    parallel = trained(rank)
    model = parallel.module
    before = parts(model)[1]
    found = {"spread_before": spread(model), "before": before}
    found["record"] = shown(equalize_statistics(parallel))
    found |= {"spread_after": spread(model), "after": parts(model)[1]}
    equalize_statistics(parallel)
    found["again"] = parts(model)[1]
    found["counter"] = int(model[1].num_batches_tracked)
    alone = build()  # one process with the joined batch
    joined = [[batch_of(r, i) for r in range(2)] for i in range(12)]
    fit(alone, [(torch.cat([a, b]), torch.cat([y, z])) for (a, y), (b, z) in joined])
    found |= {"alone": parts(alone), "weights": parts(model)[0]}
    return found


@case
def broadcast(rank):
    model = trained(rank).module
    model[3].set_temperature(2.0 + rank)
    before = parts(model)[1]
    equalize_statistics(model, how="broadcast", source=1)
    return {
        "t": float(model[3].temperature),
        "before": before,
        "after": parts(model)[1],
        "spread": spread(model),
    }


@case
def default_buffers(rank):
    parallel = trained(rank, broadcast=True)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        equalize_statistics(parallel)
        equalize_statistics(parallel, how="broadcast")
    return {"warnings": [str(w.message) for w in seen if w.category is TemperanceWarning]}


@case
def uneven(rank):
    """Six batches on rank 0, four on rank 1, the last of five rows."""
    model = build()
    parallel = parallel_of(model)
    rows = [8] * 6 if rank == 0 else [8, 8, 8, 5]
    with parallel.join():
        fit(parallel, [batch_of(rank, i, n) for i, n in enumerate(rows)])
    before = parts(model)[1]
    equalize_statistics(parallel, rows=sum(rows))
    weights, after = parts(model)
    return {"before": before, "after": after, "spread": spread(model), "finite": all(
        abs(w) < 1e3 for w in weights)}  # fmt: skip


@case
def ensemble(rank):
    parallel = trained(rank, members=3)
    model = parallel.module
    found = {"spread_before": spread(model), "before": parts(model)[1]}
    equalize_statistics(parallel)
    return found | {"spread_after": spread(model), "after": parts(model)[1]}


class Unsendable:
    """An argument that cannot be pickled for the other ranks."""

    def __repr__(self):
        return "unsendable"

    def __reduce__(self):
        raise TypeError


@case
def errors(rank):
    """What is wrong on one rank raises on both, and nobody waits for ever."""

    def attempt(model, **settings):
        before = parts(model)
        try:
            equalize_statistics(model, **settings)
        except InvalidInput as error:
            return [error.subject, error.found, parts(model) == before]
        return "no error"

    other_norm = build(norm="batch" if rank == 0 else "none")
    infinite, hotter = build(), build()
    infinite[1].running_var.fill_(float("nan") if rank == 1 else 1.0)
    hotter[3].set_temperature(4.0 + rank)
    infinite_found = attempt(infinite)
    headless = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 5))
    return {
        "rows": attempt(build(), rows=-1 if rank == 1 else 5),
        "no rows": attempt(build(), rows=0),
        "some rows": attempt(build(), rows=5 if rank == 0 else None),
        "how": attempt(build(), how="mean"),
        "a how that cannot be sent": attempt(build(), how=Unsendable() if rank == 1 else "pool"),
        "source": attempt(build(), how="broadcast", source=2),
        "layers": attempt(other_norm),
        "no norms": attempt(build() if rank == 0 else nn.Sequential(nn.Linear(6, 5))),
        "heads": attempt(headless if rank == 1 else build(norm="none"), how="broadcast"),
        "rows as an array": attempt(build(), rows=np.array([1, 2]) if rank == 1 else 5),
        "nan": [*infinite_found[:2], True],  # NaN is not equal to itself
        "temperature": attempt(hotter),
        "one rank without rows": attempt(build(), rows=8 * rank),
    }


@case
def one_rank_alone(rank):
    """Evaluation, statistics and features on rank 0 only, with the wrapped model: nobody waits."""
    parallel, members = trained(rank, broadcast=True), trained(rank, members=2).module
    done = []
    if rank == 0:
        loader = [batch_of(0, i) for i in range(3)]
        set_norm_statistics(parallel, loader)
        recompute_statistics(parallel, loader)
        done.append(collect(parallel, loader).x.shape[0])
        done.append(list(predict_members(members, loader[0][0]).shape))
        with torch.no_grad():
            done.append(list(parallel.module.eval()(loader[0][0]).shape))
    dist.barrier()
    equalize_statistics(parallel.module, how="broadcast")
    return {"done": done, "spread": spread(parallel.module)}


@case
def synchronized(rank):
    """SyncBatchNorm trains on GPUs only; it is converted to, and predicts on one rank, anywhere."""
    model = nn.SyncBatchNorm.convert_sync_batchnorm(build())
    found = {"kind": type(model[3].norm).__name__}
    try:
        DistributedDataParallel(model)
    except ValueError as error:
        found["cpu"] = str(error)
    members = convert(model, 2)
    try:
        members.train()(torch.zeros(4, 6))
    except NotImplementedError:
        found["members on the CPU"] = "refused by torch"
    if rank == 0:
        found["eval"] = list(model.eval()(torch.zeros(1, 6)).shape)
        found["members"] = list(members.eval()(torch.zeros(1, 6)).shape)
    dist.barrier()
    return found


@case
def frozen(rank):
    model = build()
    record = freeze(model)
    parallel = parallel_of(model)
    before = model[3].norm.running_mean.clone()
    fit(parallel, [batch_of(rank, i) for i in range(4)])
    check_frozen(parallel, record)
    moved = not torch.equal(before, model[3].norm.running_mean)
    refused = []
    for change, wrapped in (
        (freeze, parallel),
        (freeze, torch.compile(parallel)),
        (unfreeze, parallel),  # it would send no gradients of the backbone: the ranks drift apart
    ):
        try:
            change(wrapped)
        except InvalidInput as error:
            refused.append(error.subject)
    check_frozen(parallel, record)
    return {"moved": moved, "refused": refused, "spread": spread(model)}


class Twice(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = build()

    def forward(self, x):
        return checkpoint(self.body, x, use_reentrant=False)


@case
def checkpointing(rank):
    torch.manual_seed(0)
    model = Twice()
    update_once(model)
    fit(parallel_of(model), [batch_of(rank, i) for i in range(3)])
    plain = build()
    fit(parallel_of(plain), [batch_of(rank, i) for i in range(3)])
    gap = max(
        float((a.double() - b.double()).abs().max())
        for a, b in zip(model.buffers(), plain.buffers(), strict=True)
    )
    return {"counter": int(model.body[1].num_batches_tracked), "gap": gap}


@case
def accumulation(rank):
    """Four batches per optimizer step, gradients sent once."""
    model = build()
    accumulate_statistics(model, 4)
    parallel = parallel_of(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(3):
        for i in range(4):
            with parallel.no_sync() if i < 3 else contextlib.nullcontext():
                x, y = batch_of(rank, 4 * step + i)
                (nn.functional.cross_entropy(parallel(x), y) / 4).backward()
        optimizer.step()
        optimizer.zero_grad()
    equalize_statistics(parallel)
    return {"spread": spread(model), "counter": int(model[1].num_batches_tracked)}


@case
def checkpoints(rank):
    """From every nesting of wrappers into a plain model, and back."""
    source = trained(rank, steps=2)
    equalize_statistics(source)
    found = []
    for saved in (source, torch.compile(source), parallel_of(torch.compile(source.module))):
        state = {"epoch": 1, "model": saved.state_dict()}
        plain = build()
        found.append([str(load_checkpoint(plain, state)), parts(plain) == parts(source.module)])
        wrapped = parallel_of(torch.compile(build()))
        load_checkpoint(wrapped, plain.state_dict())
        found.append(["back", spread(wrapped)[0] == 0.0])
    return {"found": found}


def work(rank, folder):
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", UserWarning)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/meeting",
        rank=rank,
        world_size=2,
        timeout=timedelta(minutes=4),
    )
    found = {}
    for name, function in CASES.items():
        found[name] = function(rank)
        Path(folder, f"{rank}.json").write_text(json.dumps(found))
    dist.barrier()  # who is done first does not hang up on the other
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.multiprocessing.spawn(work, (sys.argv[1],), nprocs=2)
