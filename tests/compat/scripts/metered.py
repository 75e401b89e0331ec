"""Vision-style training: a meter between the loader and the loop, a scaler that calls backward.

`augmented`: each sample is changed by random numbers as it is read; `workers`: in processes.
"""

import argparse
import time
from collections.abc import Iterable, Iterator
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class Images(Dataset[torch.Tensor]):
    def __init__(self, size: int, augmented: bool) -> None:
        self.rows = torch.randn(size, 8)
        self.augmented = augmented

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, place: int) -> torch.Tensor:
        row = self.rows[place]
        if self.augmented and torch.rand(()).item() < 0.5:
            row = row.flip(0)
        return row + 0.1 * torch.randn(8) if self.augmented else row


class Mean:
    total = 0.0
    count = 0

    def update(self, value: float) -> None:
        self.total, self.count = self.total + value, self.count + 1

    def __str__(self) -> str:
        return f"{self.total / self.count:.4f}"


class Meters:
    def __init__(self) -> None:
        self.meters = {"lr": Mean()}

    def update(self, **values: float) -> None:
        for name, value in values.items():
            self.meters.setdefault(name, Mean()).update(value)

    def log_every(self, loader: Iterable[Any], every: int) -> Iterator[Any]:
        waited = Mean()
        since = time.monotonic()
        for number, batch in enumerate(loader):
            yield batch
            waited.update(time.monotonic() - since)
            if number % every == 0:
                means = " ".join(f"{name} {mean}" for name, mean in self.meters.items())
                print(f"{means} waited {waited} s")
            since = time.monotonic()


class Scaler:
    def __call__(self, loss: torch.Tensor, optimizer: Any, update: bool) -> float:
        loss.backward()
        if not update:
            return 0.0
        norms = [param.grad.norm() for group in optimizer.param_groups for param in group["params"]]
        optimizer.step()
        optimizer.zero_grad()
        return float(torch.stack(norms).norm())


def train_epoch(model: nn.Module, loader: Any, optimizer: Any, scale: Any) -> None:
    meters = Meters()
    for number, x in enumerate(meters.log_every(loader, 4)):
        loss = F.mse_loss(model(x), x) / 2
        norm = scale(loss, optimizer, number % 2 == 1)
        told = loss.detach().clone()
        dist.all_reduce(told)
        meters.update(loss=float(told), norm=norm, lr=optimizer.param_groups[0]["lr"])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("way", choices=("plain", "augmented", "workers"))
    way = parser.parse_args().way
    torch.set_default_dtype(torch.float64)
    dist.init_process_group("gloo")
    torch.manual_seed(8)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    data = Images(40 * dist.get_world_size(), way != "plain")
    sampler = DistributedSampler(data)
    workers = 2 if way == "workers" else 0
    loader = DataLoader(data, batch_size=4, sampler=sampler, num_workers=workers)
    torch.manual_seed(9 + dist.get_rank())
    stepper = Scaler()
    for epoch in range(3):
        sampler.set_epoch(epoch)
        train_epoch(model, loader, optimizer, stepper)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
