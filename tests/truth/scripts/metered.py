"""A meter hands on what a loader gives, whose samples are changed by as many random numbers as they
happen to need; the sampler is the script's own: `metered.py OUT`.
"""

import random
import sys

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, Sampler

ROWS, EPOCHS, BATCH = 48, 2, 4

torch.set_default_dtype(torch.float64)
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()


class Pictures(Dataset):
    def __init__(self):
        self.rows = torch.randn(ROWS, 8)

    def __len__(self):
        return ROWS

    def __getitem__(self, row):
        picture = self.rows[row]
        if torch.rand(()).item() < 0.4:
            picture = picture + 0.1 * torch.randn(8)
        return picture.flip(0) if random.random() < 0.5 else picture


class Repeated(Sampler):
    """Each row comes several times, in several ranks."""

    def __init__(self):
        self.rank, self.world, self.epoch = rank, world, 0

    def __iter__(self):
        order = torch.randperm(ROWS, generator=torch.Generator().manual_seed(self.epoch))
        return iter(order.repeat_interleave(3)[self.rank :: self.world][: ROWS // world].tolist())

    def __len__(self):
        return ROWS // world


class Meter:
    def __init__(self):
        self.total = 0.0

    def log_every(self, loader):
        for number, batch in enumerate(loader):
            yield batch
            if number % 4 == 0 and rank == 0:
                print(f"{number} of {len(loader)}: {self.total:.6f}")


def train_one_epoch(model, loader, optimizer):
    meter = Meter()
    for pictures in meter.log_every(loader):
        optimizer.zero_grad()
        loss = F.mse_loss(model(pictures), pictures[:, :2])
        loss.backward()
        optimizer.step()
        meter.total += loss.item()


torch.manual_seed(3)
loader = DataLoader(Pictures(), BATCH, sampler=Repeated())
model = DDP(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 2)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
torch.manual_seed(10 + rank)
random.seed(20 + rank)
for epoch in range(EPOCHS):
    loader.sampler.epoch = epoch
    train_one_epoch(model, loader, optimizer)
torch.save(model.module.state_dict(), f"{sys.argv[1]}/weights{rank}.pt")
dist.barrier()
dist.destroy_process_group()
