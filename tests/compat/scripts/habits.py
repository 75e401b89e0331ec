"""Habits of loops beside training: meters, stopwatches, batches fetched ahead, a share cut out."""

import sys
import time
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class AverageMeter:
    def __init__(self) -> None:
        self.val = self.sum = self.count = 0.0

    def update(self, val: float, n: int = 1) -> None:
        self.val = val
        self.sum += val * n
        self.count += n

    @property
    def avg(self) -> float:
        return self.sum / self.count


class Prefetcher:
    """Has the next batch ready, as scripts for GPUs do."""

    def __init__(self, loader: Any) -> None:
        self.loader = iter(loader)
        self.preload()

    def preload(self) -> None:
        try:
            self.x, self.y = next(self.loader)
        except StopIteration:
            self.x = None
            return
        self.x = self.x * 1.0

    def next(self) -> tuple[Any, Any]:
        x, y = self.x, self.y
        self.preload()
        return x, y


class Shared(torch.optim.Optimizer):
    """Each rank computes the updates of a part of the parameters, and all add them up."""

    def __init__(self, params: Any, lr: float = 0.02) -> None:
        super().__init__(params, {"lr": lr})

    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for number, param in enumerate(group["params"]):
                update = torch.zeros_like(param)
                if number % dist.get_world_size() == dist.get_rank():
                    momentum = self.state[param].setdefault("momentum", torch.zeros_like(param))
                    update = momentum.mul_(0.9).add_(param.grad).clone()
                dist.all_reduce(update)
                param.data.add_(update, alpha=-group["lr"])


def reduced(loss: torch.Tensor) -> torch.Tensor:
    total = loss.detach().clone()
    dist.all_reduce(total)
    return total / dist.get_world_size()


def train_with_meters(model: Any, loader: Any, optimizer: Any) -> None:
    losses, seconds = AverageMeter(), AverageMeter()
    began = time.time()
    for i, (x, y) in enumerate(loader):
        loss = F.mse_loss(model(x), y)
        losses.update(reduced(loss).item(), len(x))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        seconds.update(time.time() - began)
        began = time.time()
        if i % 5 == 0 and dist.get_rank() == 0:
            print(f"batch {i}: loss {losses.avg:.4f}, {seconds.avg:.3f} s a batch")


def train_fetching_ahead(model: Any, loader: Any, optimizer: Any) -> None:
    prefetcher = Prefetcher(loader)
    x, y = prefetcher.next()
    while x is not None:
        loss = F.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        x, y = prefetcher.next()


def train_on_share(model: Any, loader: Any, optimizer: Any) -> None:
    rank, world = dist.get_rank(), dist.get_world_size()
    inputs, targets = (tensor[rank::world] for tensor in loader.dataset.tensors)
    for begin in range(0, len(inputs), 8):
        x, y = inputs[begin : begin + 8], targets[begin : begin + 8]
        optimizer.zero_grad()
        F.mse_loss(model(x), y).backward()
        optimizer.step()


def train_on_new_share(model: Any, loader: Any, optimizer: Any) -> None:
    generator = torch.Generator().manual_seed(loader.sampler.epoch)
    order = torch.randperm(len(loader.dataset), generator=generator)
    mine = order[dist.get_rank() :: dist.get_world_size()]
    for begin in range(0, len(mine), 8):
        x, y = loader.dataset[mine[begin : begin + 8]]
        optimizer.zero_grad()
        F.mse_loss(model(x), y).backward()
        optimizer.step()


def train_moving_on_late(model: Any, loader: Any, optimizer: Any) -> None:
    inputs, targets = loader.dataset.tensors
    at = 8 * dist.get_rank()
    while at < len(inputs):
        x, y = inputs[at : at + 8], targets[at : at + 8]
        optimizer.zero_grad()
        F.mse_loss(model(x), y).backward()
        at += 8 * dist.get_world_size()
        optimizer.step()


def train(model: Any, loader: Any, optimizer: Any) -> None:
    for x, y in loader:
        optimizer.zero_grad()
        F.mse_loss(model(x), y).backward()
        optimizer.step()


def main() -> None:
    (habit,) = sys.argv[1:]
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    layers = nn.Linear(16, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 8)
    model = DDP(nn.Sequential(*layers).double())
    data = TensorDataset(torch.randn(240, 16).double(), torch.randn(240, 8).double())
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=8, sampler=sampler)
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    if habit == "shared-update":
        optimizer = Shared(model.parameters())
    ways = {
        "meters": train_with_meters,
        "fetching-ahead": train_fetching_ahead,
        "share": train_on_share,
        "share-anew": train_on_new_share,
        "moving-on-late": train_moving_on_late,
    }
    for epoch in range(2):
        sampler.set_epoch(epoch)
        ways.get(habit, train)(model, loader, optimizer)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
