"""Backwards within a block that the forward, or code before it, is not in: `blocks.py OUT WAY`.

WAY is `no_sync`, which DDP reads in the forward, so that it says nothing here, or `autocast`.
"""

import contextlib
import sys

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

STEPS, BATCH = 10, 4

out, way = sys.argv[1:]
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
xs, ys = torch.randn(STEPS, world, BATCH, 8), torch.randn(STEPS, world, BATCH, 2)
model = DDP(nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 2)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
torch.manual_seed(1 + rank)
for step, (x, y) in enumerate(zip(xs, ys, strict=True)):
    optimizer.zero_grad()
    mixed = x[rank] @ torch.linalg.qr(torch.randn(8, 8))[0]
    if way == "autocast":
        with torch.autocast("cpu", torch.bfloat16):
            F.mse_loss(model(mixed), y[rank]).backward()
    else:
        loss = F.mse_loss(model(mixed), y[rank])
        with model.no_sync() if step % 2 == 0 else contextlib.nullcontext():
            loss.backward()
    optimizer.step()
torch.save(model.module.state_dict(), f"{out}/weights{rank}.pt")
dist.destroy_process_group()
