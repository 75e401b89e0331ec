"""The model gets another layer in mid-training, and is wrapped anew."""

import sys

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

STEPS, DEEPER, BATCH, WIDTH = 12, 7, 4, 6

torch.set_default_dtype(torch.float64)
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
layers = nn.Sequential(nn.Linear(WIDTH, WIDTH))
model = DDP(layers)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
torch.manual_seed(5 + rank)
for step in range(STEPS):
    if step == DEEPER:
        added = nn.Linear(WIDTH, WIDTH)
        nn.init.eye_(added.weight)
        nn.init.zeros_(added.bias)
        layers.append(added)
        model = DDP(layers)
        optimizer.add_param_group({"params": list(added.parameters())})
    x = torch.randn(BATCH, WIDTH)
    optimizer.zero_grad()
    F.mse_loss(model(x), x.sin()).backward()
    optimizer.step()
assert len(layers) == 2
torch.save(layers.state_dict(), f"{sys.argv[1]}/weights{rank}.pt")
dist.barrier()
dist.destroy_process_group()
