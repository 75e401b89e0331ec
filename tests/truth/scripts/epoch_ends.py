"""Four microbatches a step, and what is left at the end of each epoch."""

import contextlib
import sys

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

EPOCHS, MICROBATCHES, ACCUMULATE, BATCH = 3, 10, 4, 3

torch.set_default_dtype(torch.float64)
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
rows = MICROBATCHES * BATCH * world
data = TensorDataset(torch.randn(rows, 8), torch.randn(rows, 2))
sampler = DistributedSampler(data, seed=1)
loader = DataLoader(data, BATCH, sampler=sampler)
model = DDP(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 2)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
torch.manual_seed(5 + rank)
for epoch in range(EPOCHS):
    sampler.set_epoch(epoch)
    for number, (x, y) in enumerate(loader):
        last = number % ACCUMULATE == ACCUMULATE - 1 or number == len(loader) - 1
        with contextlib.nullcontext() if last else model.no_sync():
            (F.mse_loss(model(x), y) / ACCUMULATE).backward()
        if last:
            optimizer.step()
            optimizer.zero_grad()
torch.save(model.module.state_dict(), f"{sys.argv[1]}/weights{rank}.pt")
dist.barrier()
dist.destroy_process_group()
