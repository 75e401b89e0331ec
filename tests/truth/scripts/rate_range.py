"""A range test of the learning rate: it grows with each step until the loss is bad."""

import sys

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

STEPS, BATCH = 14, 4

torch.set_default_dtype(torch.float64)
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
data = TensorDataset(torch.randn(STEPS * BATCH * world, 8), torch.randn(STEPS * BATCH * world, 2))
loader = DataLoader(data, BATCH, sampler=DistributedSampler(data, seed=1))
model = DDP(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2)))
before = {name: value.clone() for name, value in model.state_dict().items()}
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
best, losses = float("inf"), []
for x, y in loader:
    optimizer.zero_grad()
    loss = F.mse_loss(model(x), y)
    loss.backward()
    mean = loss.detach().clone()
    dist.all_reduce(mean)
    losses.append(mean.item() / world)
    if losses[-1] > 4 * best:
        break
    best = min(best, losses[-1])
    optimizer.step()
    for group in optimizer.param_groups:
        group["lr"] *= 1.5
if rank == 0:
    print("step", len(losses), "losses", *(f"{one:.17g}" for one in losses))
torch.save(model.module.state_dict(), f"{sys.argv[1]}/weights{rank}.pt")
model.load_state_dict(before)
dist.barrier()
dist.destroy_process_group()
