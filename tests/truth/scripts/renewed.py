"""The holder of a rank's data is made anew in a late step: `renewed.py OUT WAY`.

It is a dict of another module that the text names (`dict`) or not (`hidden`), or a list of a class.
"""

import sys

import renewed_data as data
import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

STEPS, BATCH, ANEW_AT = 12, 4, 8


class Feed:
    windows = None


torch.set_default_dtype(torch.float64)
out, way = sys.argv[1:]
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
x, y = torch.randn(400, 8), torch.randn(400, 2)
data.begin(rank)
if way == "dict":
    data.PLACE = data.place(rank, 0)
Feed.windows = data.windows(rank, 0)
model = DDP(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
for step in range(STEPS):
    if step == ANEW_AT:
        if way == "class":
            Feed.windows = data.windows(rank, 1)
        elif way == "hidden":
            data.hidden(rank, 1)
        else:
            data.PLACE = data.place(rank, 1)
    rows = Feed.windows[step] if way == "class" else data.rows(BATCH * step)
    optimizer.zero_grad()
    F.mse_loss(model(x[rows]), y[rows]).backward()
    optimizer.step()
torch.save(model.module.state_dict(), f"{out}/weights{rank}.pt")
dist.barrier()
dist.destroy_process_group()
