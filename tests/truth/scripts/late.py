"""Layers remember something where nobody looks, which bears on them from a later step on: `late.py
OUT`.
"""

import contextvars
import sys

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

STEPS, BATCH, BEGINS = 9, 4, 6

torch.set_default_dtype(torch.float64)
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
xs, ys = torch.randn(STEPS * BATCH * world, 8), torch.randn(STEPS * BATCH * world, 2)
calls = contextvars.ContextVar("calls", default=0)


class Gate(nn.Module):
    def forward(self, x):
        calls.set(calls.get() + 1)
        return torch.tanh(x * 0.9 ** max(0, calls.get() - BEGINS))


model = DDP(nn.Sequential(nn.Linear(8, 16), Gate(), nn.Linear(16, 2)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
for step in range(STEPS):
    first = BATCH * (step * world + rank)
    optimizer.zero_grad()
    F.mse_loss(model(xs[first : first + BATCH]), ys[first : first + BATCH]).backward()
    optimizer.step()
torch.save(model.module.state_dict(), f"{sys.argv[1]}/weights{rank}.pt")
dist.barrier()
dist.destroy_process_group()
