"""A generator is made anew in each step, and kept until the next one: `made_anew.py OUT WAY`.

WAY is its kind: `torch`, `numpy` or `python`.
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
STEPS, MICROBATCHES, BATCH = 10, 2, 4


def picks(way, generator):
    if way == "torch":
        return torch.randint(0, len(xs), (BATCH,), generator=generator)
    if way == "numpy":
        return torch.from_numpy(generator.integers(0, len(xs), BATCH))
    return torch.tensor(generator.choices(range(len(xs)), k=BATCH))


out, way = sys.argv[1:]
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
xs = torch.randn(64, 8)
model = DDP(nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 2)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for step in range(STEPS):
    for part in range(MICROBATCHES):
        seed = 1000 * step + 100 * part + rank
        if way == "torch":
            generator = torch.Generator().manual_seed(seed)
        else:
            generator = np.random.default_rng(seed) if way == "numpy" else random.Random(seed)
        x = xs[picks(way, generator)] + (xs[picks(way, generator)] if part else 0)
        F.mse_loss(model(x), x[:, :2]).backward()
    optimizer.step()
    optimizer.zero_grad()
torch.save(model.module.state_dict(), f"{out}/weights{rank}.pt")
dist.destroy_process_group()
