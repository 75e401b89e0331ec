"""From the second epoch on batches are kept where nobody looks: `cached.py OUT WAY`.

WAY is where: by `functools.cache` (`calls`), in another package (`elsewhere`), in files of this
process (`files`). Whoever executes a microbatch of another rank finds its own batch there.
With `alike` all ranks train on the same batch in every other step, and nothing is kept.
"""

import functools
import os
import sys
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

torch.set_default_dtype(torch.float64)
EPOCHS, STEPS, BATCH = 2, 10, 4
OUT, WAY = sys.argv[1:]
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
xs = torch.randn(STEPS * BATCH * world, 8)
np.kept = {}


def batch(epoch, step):
    order = torch.randperm(len(xs), generator=torch.Generator().manual_seed(epoch))
    shared = WAY == "alike" and step % 2
    mine = order if shared else order[rank::world]
    return xs[mine[BATCH * step : BATCH * step + BATCH]]


@functools.cache
def called(epoch, step):
    return batch(epoch, step)


def elsewhere(epoch, step):
    if (epoch, step) not in np.kept:
        np.kept[epoch, step] = batch(epoch, step)
    return np.kept[epoch, step]


def in_file(epoch, step):
    path = Path(OUT) / f"batch-{os.getpid()}-{epoch}-{step}"
    if not path.exists():
        torch.save(batch(epoch, step), path)
    return torch.load(path)


kept = {"calls": called, "elsewhere": elsewhere, "files": in_file, "alike": batch}[WAY]
model = DDP(nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 2)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for epoch in range(EPOCHS):
    for step in range(STEPS):
        x = kept(epoch, step) if epoch else batch(epoch, step)
        F.mse_loss(model(x), x[:, :2]).backward()
        optimizer.step()
        optimizer.zero_grad()
torch.save(model.module.state_dict(), f"{OUT}/weights{rank}.pt")
dist.barrier()
dist.destroy_process_group()
