"""Ranks fill a budget of tokens, each with as many microbatches as it takes: `budget.py OUT WAY`.

From the first step on (`always`), or from a later one (`later`).
"""

import contextlib
import sys

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

STEPS, TOKENS, UNEQUAL_FROM = 10, 12, {"always": 0, "later": 5}

torch.set_default_dtype(torch.float64)
out, way = sys.argv[1:]
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
model = DDP(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
torch.manual_seed(1 + rank)
for step in range(STEPS):
    lengths = [4, 4, 4]
    if step >= UNEQUAL_FROM[way] and rank == 1:
        lengths = [6, 6]
    optimizer.zero_grad()
    for number, length in enumerate(lengths):
        x, y = torch.randn(length, 8), torch.randn(length, 2)
        last = number == len(lengths) - 1
        with contextlib.nullcontext() if last else model.no_sync():
            loss = F.mse_loss(model(x), y, reduction="sum") / TOKENS
            loss.backward()
    optimizer.step()
torch.save(model.module.state_dict(), f"{out}/weights{rank}.pt")
dist.barrier()
dist.destroy_process_group()
