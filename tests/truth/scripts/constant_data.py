"""Batches of `constant.py`."""

import os

import torch

STEPS, BATCH = 12, 4
RANK, WORLD_SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
chance = torch.Generator().manual_seed(3)
xs = torch.randn(STEPS, WORLD_SIZE, BATCH, 8, generator=chance, dtype=torch.float64)
ys = torch.randn(STEPS, WORLD_SIZE, BATCH, 2, generator=chance, dtype=torch.float64)


def batch(step):
    return xs[step, RANK], ys[step, RANK]
