"""One generator makes batches of another's rows, which it reads from a file: `in_batches.py OUT`.

Each epoch has its own two, and both have an end.
"""

import itertools
import sys

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP

EPOCHS, STEPS, BATCH = 3, 6, 5

torch.set_default_dtype(torch.float64)
out = sys.argv[1]
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(1)
path = f"{out}/rows{rank}.txt"
with open(path, "w") as file:
    for row in torch.randn(STEPS * BATCH * world, 4)[rank::world].tolist():
        print(*row, file=file)


def rows():
    with open(path) as lines:
        for line in lines:
            yield [float(word) for word in line.split()]


def in_batches(items):
    while batch := list(itertools.islice(items, BATCH)):
        yield torch.tensor(batch)


model = DDP(nn.Sequential(nn.Linear(4, 12), nn.Tanh(), nn.Linear(12, 1)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
for _ in range(EPOCHS):
    for x in in_batches(rows()):
        loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
torch.save(model.module.state_dict(), f"{out}/weights{rank}.pt")
dist.barrier()
dist.destroy_process_group()
