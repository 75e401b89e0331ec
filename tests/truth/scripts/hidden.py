"""Each rank has a generator of its own, first used after a while: `hidden.py OUT WAY`."""

import sys

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

STEPS, CLEAN, BATCH = 12, 5, 4

torch.set_default_dtype(torch.float64)
out, way = sys.argv[1:]
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()


def noisy(generator):
    def noise(shape):
        return 0.3 * torch.randn(shape, generator=generator)

    return noise


generator = torch.Generator().manual_seed(100 + rank)
held = {"dict": {"noise": generator}, "list": [generator]}
if way == "closure":
    noise = noisy(generator)
    del generator
elif way == "dict":

    def noise(shape):
        return 0.3 * torch.randn(shape, generator=held["dict"]["noise"])
else:

    def noise(shape):
        return 0.3 * torch.randn(shape, generator=held["list"][0])


torch.manual_seed(0)
data = TensorDataset(torch.randn(STEPS * BATCH * world, 8), torch.randn(STEPS * BATCH * world, 2))
loader = DataLoader(data, BATCH, sampler=DistributedSampler(data, seed=1))
model = DDP(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
for step, (x, y) in enumerate(loader):
    if step >= CLEAN:
        x = x + noise(x.shape)
    optimizer.zero_grad()
    F.mse_loss(model(x), y).backward()
    optimizer.step()
torch.save(model.module.state_dict(), f"{out}/weights{rank}.pt")
dist.barrier()
dist.destroy_process_group()
