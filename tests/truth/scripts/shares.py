"""A rank's share of the rows, cut out of a new order in each epoch or fold: `shares.py OUT WAY`."""

import random
import sys

import numpy as np
import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

FOLDER, WAY = sys.argv[1:]
ROWS, BATCH, EPOCHS = 96, 8, 3


def order_of(epoch):
    if WAY == "numpy":
        return np.random.default_rng(epoch).permutation(ROWS)
    if WAY == "list":
        rows = list(range(ROWS))
        random.Random(epoch).shuffle(rows)
        return rows
    return torch.randperm(ROWS, generator=torch.Generator().manual_seed(epoch))


def pieces_of(order, rank, world):
    mine = order[rank::world]
    return [mine[begin : begin + BATCH] for begin in range(0, len(mine), BATCH)]


def step(model, optimizer, x, y):
    optimizer.zero_grad()
    F.mse_loss(model(x), y).backward()
    optimizer.step()


def train(model, optimizer, xs, ys, rank, world, epoch):
    mine = order_of(epoch)[rank::world]
    for begin in range(0, len(mine), BATCH):
        rows = mine[begin : begin + BATCH]
        step(model, optimizer, xs[rows], ys[rows])


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    xs, ys = torch.randn(ROWS, 8).double(), torch.randn(ROWS, 2).double()
    model = DDP(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2)).double())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for epoch in range(EPOCHS):
        if WAY == "function":
            train(model, optimizer, xs, ys, rank, world, epoch)
            continue
        if WAY == "pieces":
            for rows in pieces_of(order_of(epoch), rank, world):
                step(model, optimizer, xs[rows], ys[rows])
            continue
        mine = order_of(epoch)[rank::world]
        for begin in range(0, len(mine), BATCH):
            rows = mine[begin : begin + BATCH]
            step(model, optimizer, xs[rows], ys[rows])
    torch.save(model.module.state_dict(), f"{FOLDER}/weights{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
