"""One rank trains on a batch in two halves where the whole does not fit: `halves.py OUT WAY`.

Each half is reduced (`twice`), as people write it, or only the second (`once`), as it should be.
"""

import contextlib
import sys

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

STEPS, BATCH, FITS = 12, 4, 3

torch.set_default_dtype(torch.float64)
out, way = sys.argv[1:]
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
xs, ys = torch.randn(STEPS, world, BATCH, 8), torch.randn(STEPS, world, BATCH, 2)
model = DDP(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def loss_of(x, y, fits):
    if len(x) > fits:
        raise MemoryError("out of memory")
    return F.mse_loss(model(x), y)


for step in range(STEPS):
    x, y = xs[step, rank], ys[step, rank]
    optimizer.zero_grad()
    try:
        loss_of(x, y, fits=FITS if (step, rank) == (5, 1) else BATCH).backward()
    except MemoryError:
        for number, half in enumerate((slice(0, 2), slice(2, 4))):
            apart = way == "once" and number == 0
            with model.no_sync() if apart else contextlib.nullcontext():
                (loss_of(x[half], y[half], FITS) / 2).backward()
    optimizer.step()
torch.save(model.module.state_dict(), f"{out}/weights{rank}.pt")
dist.destroy_process_group()
