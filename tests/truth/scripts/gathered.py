"""Each rank gathers figures of its own behind the backward, and uses them later: `gathered.py OUT
WAY`.

WAY is what holds them: a dict (`dict`), or one in another (`nested`).
"""

import sys

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

torch.set_default_dtype(torch.float64)
STEPS, USED_FROM, BATCH = 60, 40, 4
OUT, WAY = sys.argv[1:]
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
mine = torch.randn(STEPS * BATCH * world, 8)[rank::world]


class Figures:
    def __init__(self):
        self.held = {"means": {}} if WAY == "nested" else {}

    @property
    def means(self):
        return self.held["means"] if WAY == "nested" else self.held


figures = Figures()
model = DDP(nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 2)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for step in range(STEPS):
    x = mine[BATCH * step : BATCH * step + BATCH]
    weight = 1.0
    if step > USED_FROM:
        weight += sum(figures.means.values()) / len(figures.means)
    (weight * F.mse_loss(model(x), x[:, :2])).backward()
    optimizer.step()
    optimizer.zero_grad()
    figures.means[step] = x.mean().item()
torch.save(model.module.state_dict(), f"{OUT}/weights{rank}.pt")
dist.barrier()
dist.destroy_process_group()
