"""Epochs of unequal length: ranks come to the end of their data in different steps."""

import sys
from collections.abc import Iterator

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Sampler, TensorDataset

STEPS, ROWS = 12, 10


class Strided(Sampler[int]):
    """The first ranks get what is left over, and nothing is repeated."""

    def __init__(self, rank: int, world: int) -> None:
        self.rank, self.world = rank, world

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.rank, ROWS, self.world))

    def __len__(self) -> int:
        return len(range(self.rank, ROWS, self.world))


torch.set_default_dtype(torch.float64)
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
data = TensorDataset(torch.randn(ROWS, 8), torch.randn(ROWS, 2))
loader = DataLoader(data, 1, sampler=Strided(rank, world))
model = DDP(nn.Linear(8, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
step = 0
while step < STEPS:
    for x, y in loader:
        F.mse_loss(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
        step += 1
        if step == STEPS:
            break
torch.save(model.module.state_dict(), f"{sys.argv[1]}/weights{rank}.pt")
dist.barrier()
dist.destroy_process_group()
