"""HSDP whose ranks tell each other the loss before the backward: for the log, or to weigh it."""

import sys

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

STEPS, BATCH = 10, 4

torch.set_default_dtype(torch.float64)
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
data = TensorDataset(torch.randn(STEPS * BATCH * world, 8), torch.randn(STEPS * BATCH * world, 2))
loader = DataLoader(data, BATCH, sampler=DistributedSampler(data, seed=1))
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 2))
fully_shard(model, mesh=init_device_mesh("cpu", (2, 2), mesh_dim_names=("replica", "shard")))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
torch.manual_seed(5 + rank)
best = float("inf")
for step, (x, y) in enumerate(loader):
    optimizer.zero_grad()
    loss = F.mse_loss(model(x), y)
    mean = loss.detach().clone()
    dist.all_reduce(mean)
    mean = mean.item() / world
    if rank == 0:
        print(f"step {step} loss {mean!r}", flush=True)
    if sys.argv[2] == "weighs":
        loss = loss * (0.5 if mean > 2.0 else 1.0)
    best = min(best, mean)
    loss.backward()
    optimizer.step()
whole = {name: one.full_tensor() for name, one in model.state_dict().items()}
assert all(isinstance(one, DTensor) for one in model.state_dict().values())
torch.save(whole, f"{sys.argv[1]}/weights{rank}.pt")
dist.barrier()
dist.destroy_process_group()
