"""Passes over the data end with different steps on different ranks: `unequal_passes.py OUT`.

A trainer counts its steps, and ends after so many. It draws its order of the data for each pass.
"""

import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

STEPS, ROWS, BATCH = 24, 82, 4

torch.set_default_dtype(torch.float64)
out = sys.argv[1]
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
xs, ys = torch.randn(ROWS, 8), torch.randn(ROWS, 2)


class Trainer:
    def __init__(self) -> None:
        self.model = DDP(nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 2)))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05)
        self.rng = np.random.default_rng(5 + rank)
        self.steps = 0

    def batches(self) -> Iterator[Any]:
        order = self.rng.permutation(ROWS)
        for at in range(rank * BATCH, ROWS - BATCH, world * BATCH):
            yield torch.from_numpy(order[at : at + BATCH])

    def train(self) -> None:
        while self.steps < STEPS:
            for rows in self.batches():
                self.optimizer.zero_grad()
                F.mse_loss(self.model(xs[rows]), ys[rows]).backward()
                self.optimizer.step()
                self.steps += 1
                if self.steps >= STEPS:
                    break


trainer = Trainer()
trainer.train()
torch.save(trainer.model.module.state_dict(), f"{out}/weights{rank}.pt")
dist.destroy_process_group()
