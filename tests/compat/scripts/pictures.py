"""Small pictures from one file that each worker process opens as it is first asked; random crops of
the larger ones, mirrored, with noise. As vision scripts do it.

python pictures.py [workers] [plain|documented|by-rank]
"""

import argparse
import os
import random
import sys
from pathlib import Path
from typing import Any, BinaryIO

import numpy
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

COUNT, SIZE, CROP = 144, 12, 8
LARGE = COUNT // 2  # pictures from this one on
EPOCHS, ACCUMULATE = 3, 2

args = argparse.Namespace()


class Pictures(Dataset[Any]):
    def __init__(self, path: Path) -> None:
        self.path = path
        self.file: BinaryIO | None = None

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> Any:
        if self.file is None:
            self.file = self.path.open("rb", buffering=0)
        self.file.seek(index * SIZE * SIZE * 8)
        values = numpy.frombuffer(self.file.read(SIZE * SIZE * 8))
        picture = torch.from_numpy(values.reshape(1, SIZE, SIZE).copy())
        x = y = 0
        if index >= LARGE:
            x, y = random.randint(0, SIZE - CROP), random.randint(0, SIZE - CROP)
        picture = picture[:, y : y + CROP, x : x + CROP]
        if index >= LARGE and torch.rand(1) < 0.5:
            picture = picture.flip(-1)
        noise = 0.05 * numpy.random.randn(1, CROP, CROP) if index >= LARGE else 0.0
        return picture + noise, index % 3


def documented(worker: int) -> None:
    """As PyTorch's notes on randomness have it."""
    seed = torch.initial_seed() % 2**32
    numpy.random.seed(seed)
    random.seed(seed)


def by_rank(worker: int) -> None:
    for seeded in (numpy.random.seed, random.seed, torch.manual_seed):
        seeded(1000 * args.rank + worker)


SEEDED = {"plain": None, "documented": documented, "by-rank": by_rank}


def main() -> None:
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    args.rank = rank
    chance = numpy.random.default_rng(8)
    path = Path(f"/proc/self/fd/{os.memfd_create('pictures')}")  # opened anew by whoever opens it
    path.write_bytes(chance.standard_normal((COUNT, SIZE, SIZE)).tobytes())
    torch.manual_seed(3)
    layers = (nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Dropout(0.1), nn.Flatten(), nn.Linear(4 * 36, 3))
    model = DistributedDataParallel(nn.Sequential(*layers).double())
    torch.manual_seed(3 + rank)
    data = Pictures(path)
    # The first batches are of small pictures, of which no part is chosen by chance.
    order = DistributedSampler(data, world, rank, shuffle=False)
    workers, seeded = int(sys.argv[1]), SEEDED[sys.argv[2]]
    loader = DataLoader(data, 4, sampler=order, num_workers=workers, worker_init_fn=seeded)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for epoch in range(EPOCHS):
        order.shuffle = epoch > 0
        order.set_epoch(epoch)
        for number, (pictures, labels) in enumerate(loader):
            last = (number + 1) % ACCUMULATE == 0
            model.require_backward_grad_sync = last
            loss = nn.functional.cross_entropy(model(pictures), labels)
            (loss / ACCUMULATE).backward()
            if last:
                optimizer.step()
                optimizer.zero_grad()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
