"""Rank 0 evaluates, with random numbers, before steps that are proved: `evaluated.py OUT`."""

import sys

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

(out,) = sys.argv[1:]
STEPS, BATCH = 12, 4

torch.set_default_dtype(torch.float64)
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
xs = torch.randn(STEPS * world * BATCH, 8)
ys = xs.sum(1, keepdim=True)
model = DDP(nn.Sequential(nn.Linear(8, 12), nn.Dropout(0.2), nn.Tanh(), nn.Linear(12, 1)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.5)
torch.manual_seed(10 + rank)
for step in range(STEPS):
    if step % 4 == 0 and step and rank == 0:
        with torch.no_grad():
            print("off by", F.mse_loss(model.module(xs[:5]), ys[:5]).item())
    first = (step * world + rank) * BATCH
    loss = F.mse_loss(model(xs[first : first + BATCH]), ys[first : first + BATCH])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
torch.save(model.module.state_dict(), f"{out}/weights{rank}.pt")
dist.barrier()
dist.destroy_process_group()
