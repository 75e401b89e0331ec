"""Reads its loader one batch ahead and without an end, as trainers built on accelerate do."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

ACCUMULATION = 2


def ahead(loader):
    items = iter(loader)
    current = next(items)
    for following in items:
        yield current
        current = following
    yield current


def endless(loader):
    while True:
        yield from ahead(loader)


class Trainer:
    def __init__(self):
        self.rank = dist.get_rank()
        torch.manual_seed(0)
        rows = torch.randn(27, 4, dtype=torch.float64)
        self.model = DistributedDataParallel(nn.Linear(4, 1).double())
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.05)
        data = TensorDataset(rows, rows.sin().sum(1, keepdim=True))
        loader = DataLoader(data, batch_size=3, sampler=DistributedSampler(data))
        self.batches = endless(loader)
        self.step = 0
        torch.manual_seed(10 + self.rank)

    def train(self, steps):
        while self.step < steps:
            for _ in range(ACCUMULATION):
                x, y = next(self.batches)
                x = x + 0.1 * torch.randn_like(x)
                loss = (self.model(x) - y).square().mean() / ACCUMULATION
                loss.backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.step += 1


def main():
    dist.init_process_group("gloo")
    trainer = Trainer()
    trainer.train(9)
    total = sum(float(p.detach().abs().sum()) for p in trainer.model.parameters())
    print(f"rank {trainer.rank} weights {total:.9f}\n", end="", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
