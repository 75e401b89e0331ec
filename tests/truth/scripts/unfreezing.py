"""The head is trained first; then all is unfrozen, and the model is wrapped anew."""

import sys

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

STEPS, FROZEN, BATCH = 14, 7, 4

torch.set_default_dtype(torch.float64)
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
data = TensorDataset(torch.randn(STEPS * BATCH * world, 8), torch.randn(STEPS * BATCH * world, 2))
loader = DataLoader(data, BATCH, sampler=DistributedSampler(data, seed=1))
body, head = nn.Sequential(nn.Linear(8, 16), nn.ReLU()), nn.Linear(16, 2)
body.requires_grad_(False)
model = DDP(nn.Sequential(body, nn.Dropout(0.1), head))
optimizer = torch.optim.SGD(head.parameters(), lr=0.1, momentum=0.9)
torch.manual_seed(5 + rank)
for step, (x, y) in enumerate(loader):
    if step == FROZEN:
        body.requires_grad_(True)
        model = DDP(model.module)
        optimizer.add_param_group({"params": list(body.parameters()), "lr": 0.02})
    optimizer.zero_grad()
    F.mse_loss(model(x), y).backward()
    optimizer.step()
torch.save(model.module.state_dict(), f"{sys.argv[1]}/weights{rank}.pt")
dist.barrier()
dist.destroy_process_group()
