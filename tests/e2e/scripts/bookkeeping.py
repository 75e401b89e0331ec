"""Keeps books before its backward: schedules, averages, counts, logs. None may count twice."""

import collections
import copy
import os

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

seen = {"batches": 0, "sizes": []}
recent = collections.deque(maxlen=4)
histogram = np.zeros(3)


class Running(nn.Module):
    """Remembers what it saw last, and adds it to what it sees next."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 1)
        self.last = None

    def forward(self, x):
        if self.last is not None:
            x = x + 0.1 * self.last
        self.last = x.detach().mean(0)
        return self.layer(x)


class Log:
    lines = 0

    def __init__(self):
        self.entries, self.sums = [], {"x": 0.0}

    def write(self, x):
        Log.lines += 1
        self.entries.append(len(x))
        self.sums["x"] += float(x.sum())
        print("a batch")


def tell(text):
    os.write(1, f"{text}\n".encode())


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    stateful = os.environ.get("STATEFUL") == "1"
    model = DistributedDataParallel((Running() if stateful else nn.Linear(4, 1)).double())
    average = copy.deepcopy(model.module)
    norm = nn.BatchNorm1d(4, affine=False).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.8)
    log = Log()
    torch.manual_seed(10 + rank)
    for _ in range(9):
        schedule.step()
        with torch.no_grad():
            for param, mean in zip(model.parameters(), average.parameters(), strict=True):
                mean.mul_(0.9).add_(param, alpha=0.1)
        x = torch.randn(3, 4, dtype=torch.float64)
        norm(x)
        seen["batches"] += 1
        seen["sizes"].append(len(x))
        recent.append(float(x.sum()))
        histogram[seen["batches"] % 3] += 1
        log.write(x)
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
    params = [*model.parameters(), *average.parameters()]
    total = sum(float(p.detach().abs().sum()) for p in params)
    books = seen, list(recent), histogram.tolist(), Log.lines, log.entries, log.sums
    tell(f"rank {rank} weights {total:.9f}")
    tell(f"rank {rank} books {books} {norm.running_mean.tolist()} {schedule.last_epoch}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
