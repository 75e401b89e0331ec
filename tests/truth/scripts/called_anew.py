"""A generator function is called in each epoch with a seed that is the rank's own, in all of them
or from the second one on, or that a function makes, or with its rows: `called_anew.py OUT WAY`.
"""

import sys

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

torch.set_default_dtype(torch.float64)
EPOCHS, ROWS, BATCH = 3, 48, 4


def batches(xs, seed):
    order = torch.randperm(len(xs), generator=torch.Generator().manual_seed(seed))
    for start in range(0, len(xs), BATCH):
        yield xs[order[start : start + BATCH]]


def step(model, optimizer, x):
    F.mse_loss(model(x), x[:, :2]).backward()
    optimizer.step()
    optimizer.zero_grad()


def seed_of(epoch, rank):
    return 10 * epoch + rank


def main(out, way):
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    xs = torch.randn(ROWS, 8)
    mine = xs[rank::2].clone()
    model = DDP(nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 2)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for epoch in range(EPOCHS):
        if way == "shares":
            for x in batches(mine, epoch):
                step(model, optimizer, x)
        elif way == "called":
            for x in batches(xs, seed_of(epoch, rank)):
                step(model, optimizer, x)
        else:
            for x in batches(xs, epoch * rank if way == "later" else 10 * epoch + rank):
                step(model, optimizer, x)
    torch.save(model.module.state_dict(), f"{out}/weights{rank}.pt")
    dist.destroy_process_group()


main(*sys.argv[1:])
