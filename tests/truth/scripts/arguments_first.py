"""A script that asks a library for its arguments before anything has imported torch."""

import sys

from transformers import TrainingArguments

import torch  # isort: skip
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

STEPS, BATCH = 8, 4

torch.set_default_dtype(torch.float64)
dist.init_process_group("gloo")
arguments = TrainingArguments(output_dir=sys.argv[1], learning_rate=0.1, use_cpu=True)
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
xs, ys = torch.randn(STEPS, world * BATCH, 8), torch.randn(STEPS, world * BATCH, 2)
model = DDP(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2)))
optimizer = torch.optim.SGD(model.parameters(), lr=arguments.learning_rate)
for step in range(STEPS):
    rows = slice(rank * BATCH, (rank + 1) * BATCH)
    optimizer.zero_grad()
    F.mse_loss(model(xs[step, rows]), ys[step, rows]).backward()
    optimizer.step()
torch.save(model.module.state_dict(), f"{sys.argv[1]}/weights{rank}.pt")
dist.barrier()
dist.destroy_process_group()
