"""A generator is made anew in each epoch, seeded by the rank: `anew_each_epoch.py OUT WAY`.

WAY is its kind: `torch`, `numpy` or `python`; or `late`: the second epoch makes the first one.
"""

import random
import sys

import numpy as np
import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

torch.set_default_dtype(torch.float64)
EPOCHS, STEPS, BATCH = 3, 5, 4


def noise(way, generator):
    if generator is None:
        return 0.0
    if way == "numpy":
        return float(generator.uniform(-1, 1))
    if way == "python":
        return generator.uniform(-1, 1)
    return torch.rand(1, generator=generator)


def main(out, way):
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    xs = torch.randn(STEPS * BATCH, 8)
    model = DDP(nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 2)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    generator = None
    for epoch in range(EPOCHS):
        seed = 100 * epoch + rank
        if way == "numpy":
            generator = np.random.default_rng(seed)
        elif way == "python":
            generator = random.Random(seed)
        elif way == "torch" or epoch:
            generator = torch.Generator().manual_seed(seed)
        for x in xs.split(BATCH):
            F.mse_loss(model(x + noise(way, generator)), x[:, :2]).backward()
            optimizer.step()
            optimizer.zero_grad()
    torch.save(model.module.state_dict(), f"{out}/weights{rank}.pt")
    dist.destroy_process_group()


main(*sys.argv[1:])
