"""A validation loss over all ranks steers the training: `plateau.py OUT rate|skip`.

Each rank validates on rows of its own. The loss lowers the rate, or skips steps.
"""

import sys

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.optim.lr_scheduler import ReduceLROnPlateau
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

STEPS, EVERY, BATCH = 15, 3, 4

torch.set_default_dtype(torch.float64)
out, way = sys.argv[1:]
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
data = TensorDataset(torch.randn(STEPS * BATCH * world, 8), torch.randn(STEPS * BATCH * world, 2))
loader = DataLoader(data, BATCH, sampler=DistributedSampler(data, seed=1))
held_out, wanted = torch.randn(world, 16, 8), torch.randn(world, 16, 2)
model = DDP(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
scheduler = ReduceLROnPlateau(optimizer, factor=0.5, patience=0, threshold=0.1)


def validate():
    model.eval()
    with torch.no_grad():
        loss = F.mse_loss(model.module(held_out[rank]), wanted[rank])
    model.train()
    dist.all_reduce(loss)
    return loss.item() / world


skip = 0.0
for step, (x, y) in enumerate(loader):
    optimizer.zero_grad()
    F.mse_loss(model(x), y).backward()
    if way == "rate" or step % 2 or skip < 1.0:
        optimizer.step()
    if step % EVERY == EVERY - 1:
        loss = validate()
        if way == "rate":
            scheduler.step(loss)
            for group in optimizer.param_groups:
                group["lr"] = min(group["lr"], 0.2 / loss)
        skip = loss
torch.save(model.module.state_dict(), f"{out}/weights{rank}.pt")
dist.barrier()
dist.destroy_process_group()
