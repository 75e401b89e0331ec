"""Post-local SGD by hand: from some step on, replicas go apart and are averaged now and then."""

import contextlib
import sys

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

STEPS, TOGETHER, PERIOD, BATCH = 15, 6, 3, 4

torch.set_default_dtype(torch.float64)
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
data = TensorDataset(torch.randn(STEPS * BATCH * world, 8), torch.randn(STEPS * BATCH * world, 2))
loader = DataLoader(data, BATCH, sampler=DistributedSampler(data, seed=1))
model = DDP(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
for step, (x, y) in enumerate(loader):
    local = step >= TOGETHER
    optimizer.zero_grad()
    with model.no_sync() if local else contextlib.nullcontext():
        F.mse_loss(model(x), y).backward()
    optimizer.step()
    if local and step % PERIOD == PERIOD - 1:
        with torch.no_grad():
            for p in model.parameters():
                dist.all_reduce(p)
                p /= world
torch.save(model.module.state_dict(), f"{sys.argv[1]}/weights{rank}.pt")
dist.barrier()
dist.destroy_process_group()
