"""Each epoch makes a stream of the files that are a rank's own: `files.py OUT WAY`.

WAY is who has which: the `same` in each epoch, also with `workers`; or they are `turned`. Later
epochs may make another kind: a `harder` stream, or `rows`.
"""

import sys

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, IterableDataset

out, way = sys.argv[1:]
torch.set_default_dtype(torch.float64)
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
FILES = [f"part{number}" for number in range(2 * world)]
ROWS = {name: torch.randn(8, 8) for name in FILES}


class Lines(IterableDataset):
    def __init__(self, names):
        self.names = names

    def __iter__(self):
        for name in self.names:
            yield from ROWS[name]


class Harder(IterableDataset):
    def __init__(self, names):
        self.names = names

    def __iter__(self):
        for name in self.names:
            yield from 2 * ROWS[name]


class Rows(Dataset):
    def __init__(self, names):
        self.rows = torch.cat([ROWS[name] for name in names])

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, number):
        return self.rows[number]


LATER = {"harder": Harder, "rows": Rows}
model = DDP(nn.Sequential(nn.Linear(8, 12), nn.Tanh(), nn.Linear(12, 1)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
for epoch in range(3):
    first = rank + epoch if way == "turned" else rank
    kind = LATER.get(way, Lines) if epoch else Lines
    for x in DataLoader(kind(FILES[first % world :: world]), 4, num_workers=way == "workers"):
        loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
torch.save(model.module.state_dict(), f"{out}/weights{rank}.pt")
dist.barrier()
dist.destroy_process_group()
