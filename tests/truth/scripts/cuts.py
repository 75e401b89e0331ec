"""Each epoch reads eight items of a generator: `cuts.py OUT WAY`.

WAY is what they are: `drawn` at random, or `blocks`, whose loss a value of each rank's own weighs.
"""

import sys

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP

out, way = sys.argv[1:]
torch.set_default_dtype(torch.float64)
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
rows = torch.randn(200, 8)
mine = rows[rank::world]


def drawn():
    for _ in range(8):
        yield rows[torch.randint(len(rows), (5,))]


def blocks():
    for block in range(8):
        yield mine[5 * block :][:5]


class Weight:
    def __init__(self):
        self.value = 1.0

    def follow(self, loss):
        self.value = 0.9 * self.value + 0.1 * loss


weight = Weight()
model = DDP(nn.Sequential(nn.Linear(8, 12), nn.Tanh(), nn.Linear(12, 1)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
torch.manual_seed(1 + rank)
for _ in range(2):
    for x in drawn() if way == "drawn" else blocks():
        loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
        if way == "blocks":
            loss = loss * weight.value
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        weight.follow(loss.item())
torch.save(model.module.state_dict(), f"{out}/weights{rank}.pt")
dist.barrier()
dist.destroy_process_group()
