"""A place in the data that nobody sees: the same on all ranks until it parts, on all or on one."""

import contextvars
import sys

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

STEPS, BATCH, PARTS_FROM = 20, 4, 8  # after the third proof


torch.set_default_dtype(torch.float64)
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
x, y = torch.randn(400, 8), torch.randn(400, 2)
model = DDP(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
ahead = contextvars.ContextVar("ahead", default=0)
for step in range(STEPS):
    first = BATCH * (step * world + rank) + ahead.get()
    rows = [number % len(x) for number in range(first, first + BATCH)]
    optimizer.zero_grad()
    F.mse_loss(model(x[rows]), y[rows]).backward()
    optimizer.step()
    if step == PARTS_FROM:
        ahead.set(100 * (rank if sys.argv[2] == "all" else rank == 2))
torch.save(model.module.state_dict(), f"{sys.argv[1]}/weights{rank}.pt")
dist.barrier()
dist.destroy_process_group()
