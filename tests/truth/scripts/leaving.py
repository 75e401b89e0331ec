"""A context manager around the backward steps and counts as it is left: `leaving.py OUT`."""

import contextlib
import sys

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP

STEPS, BATCH = 10, 4

torch.set_default_dtype(torch.float64)
out = sys.argv[1]
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
xs = torch.randn(STEPS * BATCH * world, 8)
model = DDP(nn.Sequential(nn.Linear(8, 12), nn.Tanh(), nn.Linear(12, 1)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.02)


class Trainer:
    count = 0

    @contextlib.contextmanager
    def step(self):
        optimizer.zero_grad()
        try:
            yield
        finally:
            optimizer.step()
            Trainer.count += 1

    def train(self, x):
        with self.step():
            loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
            (loss / (1 + Trainer.count)).backward()


trainer = Trainer()
for step in range(STEPS):
    trainer.train(xs[BATCH * (step * world + rank) :][:BATCH])
torch.save(model.module.state_dict(), f"{out}/weights{rank}.pt")
dist.barrier()
dist.destroy_process_group()
