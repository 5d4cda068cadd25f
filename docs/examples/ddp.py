"""Two processes train one model with a tempered head: ``python ddp.py [FOLDER]``.

On GPUs write "nccl" for "gloo", and move the model and the batches to the rank's device.
"""

import os
import sys
import tempfile
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

import temperance as tp
from temperance.head import equalize_statistics
from temperance.models import write_safetensors

RANKS = 2


def train(rank: int, folder: str) -> None:
    """Train on this rank's share of the rows; rank 0 judges and saves."""
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/meeting",
        rank=rank,
        world_size=RANKS,
        timeout=timedelta(minutes=5),
    )
    x, y = (torch.as_tensor(a) for a in load_digits(return_X_y=True))
    x = x.float() / 16
    rows = TensorDataset(x[:1400], y[:1400])
    sampler = DistributedSampler(rows, RANKS, rank, seed=0)  # equally many rows on every rank
    loader = DataLoader(rows, batch_size=32, sampler=sampler)
    tp.check_batches(len(sampler), 32).require_safe()  # rows and batch size of one rank

    torch.manual_seed(0)  # the same model on every rank
    model = nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 10))
    tp.insert(model, 4.0, example=x[:8])
    parallel = DistributedDataParallel(model)
    # Statistics stay with the ranks until they are pooled. An attribute, since the argument is
    # called forward_sync_buffers or, in former versions of PyTorch, broadcast_buffers.
    parallel.broadcast_buffers = False

    groups = tp.parameter_groups(model, 5e-4)
    optimizer = torch.optim.SGD(groups, lr=0.1, momentum=0.9)
    for epoch in range(5):
        sampler.set_epoch(epoch)
        parallel.train()
        for inputs, labels in loader:
            nn.functional.cross_entropy(parallel(inputs), labels).backward()
            optimizer.step()
            optimizer.zero_grad()

        spread = equalize_statistics(parallel).mean_spread  # on all ranks, before evaluation
        if rank == 0:  # alone: what is evaluated is the model inside, which waits for nobody
            model.eval()
            with torch.no_grad():
                hits = (model(x[1400:]).argmax(1) == y[1400:]).float().mean()
            print(f"epoch {epoch + 1}: accuracy {hits:.3f}, statistics were {spread:.2f} std apart")
    if rank == 0:
        write_safetensors(Path(folder) / "model.safetensors", model.state_dict())
    dist.barrier()
    dist.destroy_process_group()


def main(folder: str) -> None:
    """Start the processes."""
    meeting = Path(folder) / "meeting"
    meeting.unlink(missing_ok=True)
    torch.multiprocessing.spawn(train, (folder,), nprocs=RANKS)


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    if len(sys.argv) > 1:
        main(sys.argv[1])
    else:
        with tempfile.TemporaryDirectory() as temporary:
            main(temporary)
