"""A loss, averaged over all ranks, that has to be finite: `finite.py OUT WAY`, as in torchvision.

end: else the script ends, before the backward. skip: else it leaves the batch out. after: it ends
after the backward, and the rank's rows are cut out anew in each epoch.
"""

import math
import sys

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

FOLDER, WAY = sys.argv[1:]
ROWS, BATCH, EPOCHS = 96, 8, 3


def mean_of(loss):
    mean = loss.detach().clone()
    dist.all_reduce(mean)
    return mean.item() / dist.get_world_size()


def train_one_epoch(model, optimizer, xs, ys, mine):
    for begin in range(0, len(mine), BATCH):
        rows = mine[begin : begin + BATCH]
        loss = F.mse_loss(model(xs[rows]), ys[rows])
        if WAY != "after":
            finite = math.isfinite(mean_of(loss))
            if not finite and WAY == "skip":
                continue
            if not finite:
                print("the loss is not finite")
                sys.exit(1)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if WAY == "after" and not math.isfinite(mean_of(loss)):
            raise FloatingPointError("the loss is not finite")


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    xs, ys = torch.randn(ROWS, 8).double(), torch.randn(ROWS, 2).double()
    model = DDP(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2)).double())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for epoch in range(EPOCHS):
        order = torch.randperm(ROWS, generator=torch.Generator().manual_seed(epoch))
        train_one_epoch(model, optimizer, xs, ys, order[rank::world])
    torch.save(model.module.state_dict(), f"{FOLDER}/weights{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
