"""No loop names what it calls: a step out of a table, or by its name. `named.py OUT WAY`."""

import sys

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

ROWS, EPOCHS, BATCH = 48, 3, 4
STEPS = {}


def registered(step):
    STEPS[step.__name__] = step
    return step


@registered
def plain(trainer, batch):
    trainer.train_step(batch)


class Trainer:
    def __init__(self, model, optimizer):
        self.model, self.optimizer, self.seen = model, optimizer, 0

    def train_step(self, batch):
        x, y = batch
        self.optimizer.zero_grad()
        F.mse_loss(self.model(x), y).backward()
        self.optimizer.step()
        self.seen += len(x)

    def run(self, loader, mode):
        for batch in loader:
            getattr(self, f"{mode}_step")(batch)


def main(out, way):
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(ROWS, 8), torch.randn(ROWS, 1))
    model = DDP(nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.2), nn.Linear(16, 1)))
    torch.manual_seed(1 + rank)
    trainer = Trainer(model, torch.optim.AdamW(model.parameters(), lr=0.01))
    sampler = DistributedSampler(data, seed=1)
    loader = DataLoader(data, BATCH, sampler=sampler)
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        if way == "name":
            trainer.run(loader, "train")
        else:
            step = STEPS["plain"]
            for batch in loader:
                step(trainer, batch)
    torch.save(model.module.state_dict(), f"{out}/weights{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


torch.set_default_dtype(torch.float64)
main(*sys.argv[1:])
