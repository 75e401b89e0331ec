"""A loader is made anew in each epoch, and something in it is another one on each rank and in each
epoch, or was the same on all ranks in the first one: `turning_shares.py OUT WAY`.

WAY is what holds it: a function that reads a variable (`variable`, `files`), an attribute that
rests on rank 0 (`rests`) or that came later (`later`, `begins`).
Of `alike`, all is known: its attributes are a rank's share, which rests, and the epoch.
"""

import sys

import numpy as np
import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, IterableDataset

torch.set_default_dtype(torch.float64)
EPOCHS, BATCH, SHARE = 3, 4, 24


def rows_of(part, first):
    return [world * row + first for row in part]


class Lines(IterableDataset):
    def __init__(self, xs, numbers, seed):
        self.xs, self.numbers, self.seed = xs, numbers, seed

    def __iter__(self):
        for number in np.random.default_rng(self.seed).permutation(self.numbers):
            yield self.xs[number]


class Turned(IterableDataset):
    def __init__(self, xs, numbers, start=0):
        self.xs, self.numbers, self.start = xs, numbers, start

    def __iter__(self):
        for number in self.numbers() if callable(self.numbers) else self.numbers:
            yield self.xs[number] + self.start


class Other(IterableDataset):
    def __init__(self, xs, numbers, others=None):
        self.xs, self.numbers, self.others = xs, numbers, others

    def __iter__(self):
        for number in self.others or self.numbers:
            yield self.xs[number]


OUT, WAY = sys.argv[1:]
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
xs = torch.randn(SHARE * world, 8)
mine = list(range(rank, SHARE * world, world))
model = DDP(nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 2)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for epoch in range(EPOCHS):
    # Each function is read in its own epoch alone.
    if WAY == "variable":
        first = (rank + epoch) % world
        picked = lambda part: xs[rows_of(part, first)]  # noqa: B023, E731
        made = DataLoader(range(SHARE), BATCH, collate_fn=picked)
    elif WAY == "files":
        first = (rank + epoch) % world
        numbers = lambda: range(first, SHARE * world, world)  # noqa: B023, E731
        made = DataLoader(Turned(xs, numbers), BATCH)
    elif WAY == "rests":
        made = DataLoader(Turned(xs, mine, start=epoch * rank), BATCH)
    elif WAY == "later":
        made = DataLoader(Turned(xs, mine, 10 * epoch + rank if epoch else 0), BATCH)
    elif WAY == "begins":
        data = Other(xs, mine, mine[::-2] + mine[::-2]) if epoch else Other(xs, mine)
        made = DataLoader(data, BATCH)
    else:
        made = DataLoader(Lines(xs, mine, epoch), BATCH)
    for x in made:
        F.mse_loss(model(x), x[:, :2]).backward()
        optimizer.step()
        optimizer.zero_grad()
torch.save(model.module.state_dict(), f"{OUT}/weights{rank}.pt")
dist.barrier()
dist.destroy_process_group()
