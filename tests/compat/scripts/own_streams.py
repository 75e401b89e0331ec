"""DDP whose ranks choose their batches by random numbers of their own: `own_streams.py FEATURE`."""

import sys

import numpy as np
import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import Dataset, TensorDataset

STEPS, ROWS, BATCH = 12, 240, 6

torch.set_default_dtype(torch.float64)
feature = sys.argv[1]
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
xs, ys = torch.randn(ROWS, 8), torch.randn(ROWS, 2)
data = TensorDataset(xs, ys)
model = DDP(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 2)))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)


class Choice:
    """Batches by a generator of numpy's, and noise by another one."""

    def __init__(self, generator, noise):
        self.generator = generator
        self.noise = noise

    def batch(self):
        rows = self.generator.choice(ROWS, BATCH, replace=False)
        return xs[rows] + torch.from_numpy(self.noise.normal(0, 0.1, (BATCH, 8))), ys[rows]


class Noisy(Dataset):
    """Items that numbers of its own are added to as they are read."""

    def __init__(self):
        self.generator = np.random.default_rng(rank)

    def __len__(self):
        return ROWS

    def __getitem__(self, row):
        return xs[row] + torch.from_numpy(self.generator.standard_normal(8)), ys[row]


def train(x, y):
    optimizer.zero_grad()
    F.mse_loss(model(x), y).backward()
    optimizer.step()


def by_choice(choice):
    for _ in range(STEPS):
        optimizer.zero_grad()
        for _ in range(2):
            x, y = choice.batch()
            F.mse_loss(model(x), y).backward()
        optimizer.step()


if feature == "numpy":
    by_choice(Choice(np.random.default_rng(rank), np.random.Generator(np.random.SFC64(rank))))
elif feature == "numpy-legacy":
    by_choice(Choice(np.random.RandomState(rank), np.random.RandomState(np.random.PCG64(rank))))
elif feature == "numpy-in-workers":
    sampler = torch.utils.data.DistributedSampler(data)
    for x, y in torch.utils.data.DataLoader(Noisy(), BATCH, sampler=sampler, num_workers=1):
        train(x, y)
else:
    raise SystemExit(f"no feature is called {feature}")
dist.destroy_process_group()
