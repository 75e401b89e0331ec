"""Each rank changes its parameters by itself now and then: `training_alone.py OUT WAY`.

Every third step goes around the wrapper, or noise of each rank's own is added from some step on.
"""

import sys

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

out, way = sys.argv[1:]
STEPS, BATCH = 12, 4

torch.set_default_dtype(torch.float64)
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
xs = torch.randn(STEPS * world * BATCH, 8)
ys = xs.sum(1, keepdim=True)
model = DDP(nn.Sequential(nn.Linear(8, 12), nn.Tanh(), nn.Linear(12, 1)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.5)
chance = torch.Generator().manual_seed(rank)
for step in range(STEPS):
    first = (step * world + rank) * BATCH
    x, y = xs[first : first + BATCH], ys[first : first + BATCH]
    alone = way == "bypassed" and step % 3 == 2
    loss = F.mse_loss(model.module(x) if alone else model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if way == "noise" and step > 3:
        with torch.no_grad():
            for parameter in model.parameters():
                parameter += 0.01 * torch.randn(parameter.shape, generator=chance)
torch.save(model.module.state_dict(), f"{out}/weights{rank}.pt")
dist.barrier()
dist.destroy_process_group()
