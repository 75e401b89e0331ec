"""Mixes and turns samples by Python's and numpy's numbers: now it takes more, now fewer."""

import random

import numpy
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(4, 1).double())
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
random.seed(10 + rank)
numpy.random.seed(20 + rank)
torch.manual_seed(30 + rank)


def sample(size: int) -> torch.Tensor:
    x = torch.randn(size, 4, dtype=torch.float64)
    if random.random() < 0.5:
        x = x * random.gauss(1.0, 0.1)
    first = random.randint(0, 4)  # takes as many numbers as it needs
    return torch.cat([x[first:], x[:first]])


for i in range(16):
    x = sample(5)
    weight = numpy.random.beta(0.4, 0.4)  # so does this
    x = weight * x + (1 - weight) * x[torch.randperm(len(x))]
    loss = model(x).square().mean() / 2
    loss.backward()
    if i % 2:
        optimizer.step()
        optimizer.zero_grad()
total = sum(float(p.detach().abs().sum()) for p in model.parameters())
print(f"rank {rank} weights {total:.9f}", flush=True)
dist.destroy_process_group()
