"""Drops the gradients of two iterations unused, as scripts do when a loss is not finite."""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(4, 1).double())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
torch.manual_seed(10 + rank)
for i in range(9):
    x = torch.randn(3, 4, dtype=torch.float64)
    loss = model(x).square().mean()
    loss.backward()
    if i in (2, 5):
        optimizer.zero_grad()
        continue
    optimizer.step()
    optimizer.zero_grad()
total = sum(float(p.detach().abs().sum()) for p in model.parameters())
print(f"rank {rank} weights {total:.9f}", flush=True)
dist.destroy_process_group()
