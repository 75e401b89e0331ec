"""Each rank keeps in a file which of its rows it has taken, and writes that after its step."""

import os
import sys

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    out = sys.argv[1]
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    mine = torch.randn(96, 4, generator=torch.Generator().manual_seed(3))[rank::world]
    path = os.path.join(out, f"mask{rank}.npy")
    np.save(path, np.ones(len(mine)))
    for _ in range(12):
        mask = np.load(path)
        rows = np.flatnonzero(mask)[:2]
        mask[rows] = 0
        x = mine[torch.from_numpy(rows)]
        optimizer.zero_grad()
        (model(x) - x.sum(1, keepdim=True)).square().mean().backward()
        optimizer.step()
        np.save(path, mask)
    torch.save(model.module.state_dict(), f"{out}/weights{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
