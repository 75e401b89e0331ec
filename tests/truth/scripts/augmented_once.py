"""A data set keeps its rows as they were augmented when they were first read:
`augmented_once.py OUT WAY`.

WAY is whose random numbers augment them: torch's (`torch`), or Python's (`python`). Each rank has
its own rows in a dict, which holds more and more of them.
"""

import random
import sys

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler

torch.set_default_dtype(torch.float64)
EPOCHS, BATCH, SHARE = 3, 4, 40
OUT, WAY = sys.argv[1:]
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
xs = torch.randn(SHARE * world, 8)


class AugmentedOnce(Dataset):
    def __init__(self):
        self.kept = {}

    def __len__(self):
        return len(xs)

    def __getitem__(self, row):
        if row not in self.kept:
            noise = torch.randn(8) if WAY == "torch" else random.random()
            self.kept[row] = xs[row] + 0.1 * noise
        return self.kept[row]


data = AugmentedOnce()
sampler = DistributedSampler(data, seed=3)
torch.manual_seed(rank)
random.seed(rank)
model = DDP(nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 2)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for epoch in range(EPOCHS):
    sampler.set_epoch(epoch)
    for x in DataLoader(data, BATCH, sampler=sampler):
        F.mse_loss(model(x), x[:, :2]).backward()
        optimizer.step()
        optimizer.zero_grad()
torch.save(model.module.state_dict(), f"{OUT}/weights{rank}.pt")
dist.barrier()
dist.destroy_process_group()
