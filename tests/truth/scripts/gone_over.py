"""The script itself goes over its sampler: `gone_over.py OUT WAY`.

It takes the rows of an epoch in a list that it splits, or slices; hands the sampler to another one
that makes batches; or asks for row after row. Or the sampler's rank is another one in each epoch.
"""

import sys

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import BatchSampler, DistributedSampler

ROWS, BATCH = 72, 4

torch.set_default_dtype(torch.float64)
out, way = sys.argv[1:]
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(1)
xs = torch.randn(ROWS, 4)
model = DDP(nn.Sequential(nn.Linear(4, 12), nn.Tanh(), nn.Linear(12, 1)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
sampler = DistributedSampler(range(ROWS), seed=3)


def step(x):
    loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def train():
    if way == "split":
        for rows in torch.tensor(list(sampler)).split(BATCH):
            step(xs[rows])
    elif way == "single":
        rows = []
        for row in sampler:
            rows.append(row)
            if len(rows) == BATCH:
                step(xs[rows])
                rows = []
    elif way == "batches":
        for rows in BatchSampler(sampler, BATCH, drop_last=True):
            step(xs[rows])
    else:
        rows = list(sampler)
        for first in range(0, len(rows), BATCH):
            step(xs[rows[first : first + BATCH]])


for epoch in range(3):
    sampler.set_epoch(epoch)
    train()
    if way == "turns":
        sampler.rank = (sampler.rank + 1) % world
torch.save(model.module.state_dict(), f"{out}/weights{rank}.pt")
dist.barrier()
dist.destroy_process_group()
