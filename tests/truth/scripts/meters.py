"""Meters of each epoch, which the generator that gives the batches prints: `meters.py OUT`."""

import sys
from collections import defaultdict, deque

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

torch.set_default_dtype(torch.float64)
EPOCHS, BATCH, ROWS = 4, 2, 24


class Meter:
    def __init__(self):
        self.deque = deque(maxlen=20)
        self.total, self.count = 0.0, 0

    def update(self, value):
        self.deque.append(value)
        self.total += value
        self.count += 1

    @property
    def median(self):
        return torch.tensor(list(self.deque)).median().item()

    @property
    def average(self):
        return self.total / self.count

    def __str__(self):
        return f"{self.median:.4f} ({self.average:.4f})"


class Meters:
    def __init__(self):
        self.meters = defaultdict(Meter)

    def update(self, **values):
        for name, value in values.items():
            self.meters[name].update(value)

    def __str__(self):
        return ", ".join(f"{name} {meter}" for name, meter in self.meters.items())

    def log_every(self, batches, epoch):
        for number, batch in enumerate(batches):
            yield batch
            if rank == 0:
                print(f"step {epoch}/{number} {self}\n", end="", flush=True)


dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
data = TensorDataset(torch.randn(ROWS, 8), torch.randn(ROWS, 2))
model = DDP(nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.2), nn.Linear(16, 2)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
torch.manual_seed(1 + rank)
sampler = DistributedSampler(data)
loader = DataLoader(data, BATCH, sampler=sampler)
for epoch in range(EPOCHS):
    sampler.set_epoch(epoch)
    meters = Meters()
    for x, y in meters.log_every(loader, epoch):
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        meters.update(loss=loss.item())
torch.save(model.module.state_dict(), f"{sys.argv[1]}/weights{rank}.pt")
dist.destroy_process_group()
