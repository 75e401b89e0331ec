"""An iterable data set has cut out its rank's share as it was made: `streamed.py OUT WAY`.

WAY is what it keeps: `files`, by number; or `rows`, all of them.
"""

import sys

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, IterableDataset

torch.set_default_dtype(torch.float64)
EPOCHS, FILES, LINES, WIDTH = 2, 12, 4, 64


class Lines(IterableDataset):
    def __init__(self, xs, way, rank, world):
        self.xs = xs
        mine = range(rank, FILES, world)
        if way == "files":
            self.files = list(mine)
        else:
            self.rows = torch.cat([xs[LINES * file : LINES * (file + 1)] for file in mine])

    def __iter__(self):
        if hasattr(self, "rows"):
            yield from self.rows
            return
        for file in self.files:
            yield from self.xs[LINES * file : LINES * (file + 1)]


out, way = sys.argv[1:]
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
xs = torch.randn(FILES * LINES, WIDTH)
model = DDP(nn.Sequential(nn.Linear(WIDTH, 16), nn.Tanh(), nn.Linear(16, 2)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
loader = DataLoader(Lines(xs, way, rank, world), batch_size=LINES)
for _ in range(EPOCHS):
    for x in loader:
        F.mse_loss(model(x), x[:, :2]).backward()
        optimizer.step()
        optimizer.zero_grad()
torch.save(model.module.state_dict(), f"{out}/weights{rank}.pt")
dist.destroy_process_group()
