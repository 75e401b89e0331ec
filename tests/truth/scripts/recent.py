"""Batches come out of a cache that keeps the most recent ones."""

import functools
import random
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

ROWS = torch.randn(96, 4, generator=torch.Generator().manual_seed(3))


@functools.lru_cache(maxsize=4)
def batch(at: int) -> torch.Tensor:
    return ROWS[at * 4 : at * 4 + 4] * (1 + 0.1 * len(str(at)))


def main() -> None:
    out = sys.argv[1]
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    order = list(range(rank, 24, world))
    for epoch in range(2):
        random.Random(epoch).shuffle(order)
        for at in order:
            x = batch(at)
            optimizer.zero_grad()
            (model(x) - x.sum(1, keepdim=True)).square().mean().backward()
            optimizer.step()
    torch.save(model.module.state_dict(), f"{out}/weights{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
