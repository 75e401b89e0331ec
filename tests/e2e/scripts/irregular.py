"""The number of microbatches changes from step to step, as at the end of an epoch."""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(8, 4).double())
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
torch.manual_seed(10 + rank)
for count in (3, 3, 4, 2, 3, 1, 5, 3):
    for _ in range(count):
        x = torch.randn(16, 8, dtype=torch.float64)
        loss = model(x).square().mean() / count
        loss.backward()
    optimizer.step()
    optimizer.zero_grad()
total = sum(float(p.detach().abs().sum()) for p in model.parameters())
print(f"rank {rank} weights {total:.9f}", flush=True)
dist.destroy_process_group()
