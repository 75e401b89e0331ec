"""Python's own dice decide how much torch draws, once it is warm: `chance.py OUT layers|images`."""

import random
import sys

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

STEPS, WARM, BATCH = 10, 4, 4
ACCUMULATE = 2 if sys.argv[2] == "images" else 1
ROWS = STEPS * ACCUMULATE * BATCH

torch.set_default_dtype(torch.float64)
out, way = sys.argv[1:]
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()


class Layers(nn.Module):
    """Whole layers are left out at random."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Dropout(0.2)) for _ in range(3)
        )
        self.head = nn.Linear(8, 2)

    def forward(self, x):
        for block in self.blocks:
            if way == "layers" and random.random() < dice:
                x = x + 0 * block[0](x)
            else:
                x = x + block(x)
        return self.head(x)


def augmented(x):
    for row in range(len(x)):
        if random.random() < dice:
            x[row] += 0.1 * torch.randn(8)
        if random.random() < dice / 2:
            x[row] = x[row, torch.randperm(8)]
    return x


torch.manual_seed(0)
data = TensorDataset(torch.randn(ROWS * world, 8), torch.randn(ROWS * world, 2))
loader = DataLoader(data, BATCH, sampler=DistributedSampler(data, seed=1))
model = DDP(Layers())
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
torch.manual_seed(10 + rank)
random.seed(20 + rank)
dice = 0.0
for number, (x, y) in enumerate(loader):
    dice = 0.5 if number >= WARM * ACCUMULATE else 0.0
    last = number % ACCUMULATE == ACCUMULATE - 1
    model.require_backward_grad_sync = last
    x = augmented(x.clone()) if way == "images" else x
    (F.mse_loss(model(x), y) / ACCUMULATE).backward()
    if last:
        optimizer.step()
        optimizer.zero_grad()
torch.save(model.module.state_dict(), f"{out}/weights{rank}.pt")
dist.barrier()
dist.destroy_process_group()
