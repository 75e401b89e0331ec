"""The script gives its own limit of time; one rank stops in its data: `limit.py OUT SECONDS`."""

import datetime
import sys
import threading

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

STEPS, BATCH = 12, 4

torch.set_default_dtype(torch.float64)
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=float(sys.argv[2])))
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
xs, ys = torch.randn(STEPS, world, BATCH, 8), torch.randn(STEPS, world, BATCH, 2)
model = DDP(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
for step in range(STEPS):
    if step == 5 and rank == 1:
        threading.Event().wait()  # a file server that does not answer
    optimizer.zero_grad()
    F.mse_loss(model(xs[step, rank]), ys[step, rank]).backward()
    optimizer.step()
