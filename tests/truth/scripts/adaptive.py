"""Looks at gradients by itself once training has settled: `adaptive.py OUT clip|rate|logs`."""

import sys

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

STEPS, WARM, BATCH = 12, 5, 4

torch.set_default_dtype(torch.float64)
out, way = sys.argv[1:]
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
data = TensorDataset(torch.randn(STEPS * BATCH * world, 8), torch.randn(STEPS * BATCH * world, 2))
loader = DataLoader(data, BATCH, sampler=DistributedSampler(data, seed=1))
model = DDP(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
norms = []


def look(step):
    norm = torch.stack([p.grad.norm() for p in model.parameters()]).norm()
    norms.append(norm.item())
    if way == "clip":
        limit = 0.9 * sorted(norms)[len(norms) // 2]
        if norm > limit:
            for p in model.parameters():
                p.grad.mul_(limit / norm)
    elif way == "rate":
        for group in optimizer.param_groups:
            group["lr"] = 0.1 / (1 + norm.item())
    elif rank == 0 and step % 3 == 0:
        print(f"step {step} gradient norm {norm.item():.17g}")


for step, (x, y) in enumerate(loader):
    optimizer.zero_grad()
    F.mse_loss(model(x), y).backward()
    if step >= WARM:
        look(step)
    optimizer.step()
torch.save(model.module.state_dict(), f"{out}/weights{rank}.pt")
dist.barrier()
dist.destroy_process_group()
