"""Between two steps each rank draws as many numbers as its own loss says, once it is warm.

`between.py OUT numbers`: of torch's stream, from which dropout draws as well. `... value`: into a
variable that all ranks have had in common, and that scales the loss of the next step.
"""

import sys

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

STEPS, WARM, BATCH = 12, 5, 4

torch.set_default_dtype(torch.float64)
out, way = sys.argv[1:]
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
xs, ys = torch.randn(STEPS, world, BATCH, 8), torch.randn(STEPS, world, BATCH, 2)
model = DDP(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 2)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
torch.manual_seed(10 + rank)
scale = 1.0
for step in range(STEPS):
    optimizer.zero_grad()
    loss = F.mse_loss(model(xs[step, rank]), ys[step, rank])
    (loss * scale).backward()
    optimizer.step()
    if step >= WARM:
        if way == "numbers":
            torch.rand(int(1000 * loss.item()) % 5 + rank)
        else:
            scale = 1.0 + 0.1 * loss.item()
torch.save(model.module.state_dict(), f"{out}/weights{rank}.pt")
dist.barrier()
dist.destroy_process_group()
