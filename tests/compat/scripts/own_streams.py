"""DDP whose ranks choose their batches by random numbers of their own: `own_streams.py FEATURE`."""

import sys

import numpy as np
import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import (
    DataLoader,
    Dataset,
    DistributedSampler,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
)

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


class Kept(Dataset):
    """Every rank has loaded its own rows, and no others."""

    def __init__(self):
        self.rows = {row: (xs[row], ys[row]) for row in range(rank, ROWS, world)}

    def __len__(self):
        return ROWS

    def __getitem__(self, row):
        return self.rows[row]


def by_chance(many):
    """Rows that every rank chooses for itself."""
    return torch.randperm(ROWS * many)[: ROWS * many // 2] % ROWS


LOADERS = {
    "loader-generator": lambda: DataLoader(
        data, BATCH, shuffle=True, generator=torch.Generator().manual_seed(100 + rank)
    ),
    "global-shuffle": lambda: DataLoader(data, BATCH, shuffle=True),
    "strided-rows": lambda: DataLoader(
        Subset(data, range(rank, ROWS, world)), BATCH, shuffle=True, num_workers=1
    ),
    "listed-chunk": lambda: DataLoader(
        Subset(data, list(range(rank * 80, rank * 80 + 80))), BATCH, shuffle=True
    ),
    "sampler-rows": lambda: DataLoader(
        data, BATCH, sampler=SubsetRandomSampler(range(rank, ROWS, world))
    ),
    "kept-rows": lambda: DataLoader(
        kept := Kept(), BATCH, sampler=DistributedSampler(kept, shuffle=False), num_workers=1
    ),
    "rows-by-chance": lambda: DataLoader(Subset(data, by_chance(1)), BATCH),
    "many-rows-by-chance": lambda: DataLoader(Subset(data, by_chance(20)), BATCH),
}


def train(x, y):
    optimizer.zero_grad()
    F.mse_loss(model(x), y).backward()
    optimizer.step()


def train_logged(rows, losses):
    """The losses of all epochs so far are in a list of the caller's."""
    for at in range(0, len(rows), BATCH):
        optimizer.zero_grad()
        loss = F.mse_loss(model(xs[rows[at : at + BATCH]]), ys[rows[at : at + BATCH]])
        loss.backward()
        optimizer.step()
        losses.append(loss.item())


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
    sampler = DistributedSampler(data)
    for x, y in DataLoader(Noisy(), BATCH, sampler=sampler, num_workers=1):
        train(x, y)
elif feature == "seed-each-step":
    for step in range(STEPS):
        torch.manual_seed(step * world + rank)
        rows = torch.randint(0, ROWS, (BATCH,))
        train(xs[rows], ys[rows])
elif feature == "logged-rows":
    losses = []
    for epoch in range(6):
        train_logged(list(range(epoch + rank, ROWS, 10 * world)), losses)
elif feature in LOADERS:
    if feature != "loader-generator":
        torch.manual_seed(rank)
    loader = LOADERS[feature]()
    for _ in range(3):
        for number, (x, y) in enumerate(loader):
            if number == 4:
                break
            train(x, y)
else:
    raise SystemExit(f"no feature is called {feature}")
dist.destroy_process_group()
