"""DDP in the ways in which people use it, one at a time; trained in double precision."""

import argparse
import itertools
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler, IterableDataset

ARGUMENTS: dict[str, dict[str, Any]] = {
    "bucket-view": {"gradient_as_bucket_view": True},
    "static-graph": {"static_graph": True},
    "unused": {"find_unused_parameters": True},
    "many-buckets": {"bucket_cap_mb": 0.001},
    "unused-many-buckets": {"find_unused_parameters": True, "bucket_cap_mb": 0.001},
    "unused-two-buckets": {"find_unused_parameters": True},
}


class Numbers(Dataset):
    def __init__(self, count: int = 240) -> None:
        chance = torch.Generator().manual_seed(3)
        self.x = torch.randn(count, 16, generator=chance, dtype=torch.float64)
        self.y = self.x.roll(1, 1) * 0.5

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.x[index], self.y[index]


class Stream(IterableDataset):
    """Strided by rank, as `split_dataset_by_node` does it."""

    def __init__(self, rank: int, world: int) -> None:
        self.data, self.rank, self.world = Numbers(), rank, world

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        for index in range(self.rank, len(self.data) // self.world * self.world, self.world):
            yield self.data[index]


class Net(nn.Module):
    """With `branches` only one of two heads is used: which one depends on the data."""

    def __init__(self, norm: bool, branches: bool, width: int) -> None:
        super().__init__()
        self.inner = nn.Linear(16, width)
        self.norm = nn.BatchNorm1d(width) if norm else nn.Identity()
        self.drop = nn.Dropout(0.1)
        self.head = nn.Linear(width, 16)
        self.other = nn.Linear(width, 16) if branches else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.drop(torch.relu(self.norm(self.inner(x))))
        if self.other is not None and x.sum() > 0:
            return self.other(hidden)
        return self.head(hidden)


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("feature")
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--accumulation", type=int, default=2)
    return parser.parse_args()


def wrapped(feature: str) -> nn.Module:
    width = 8192 if feature.endswith("two-buckets") else 32
    net: Any = Net(feature == "batch-norm", feature.startswith("unused"), width).double()
    if feature == "compiled":
        net = torch.compile(net, backend="eager")
    if feature == "replicate":
        from torch.distributed._composable.replicate import replicate

        return replicate(net)
    if feature == "wrapped-late":
        warm_up(net)
    model = DistributedDataParallel(net, **ARGUMENTS.get(feature, {}))
    if feature == "fp16-hook":
        model.register_comm_hook(None, fp16_compress_hook)
    return model


def warm_up(net: nn.Module) -> None:
    """Every rank by itself, on the same data."""
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
    for _ in range(3):
        net(torch.ones(4, 16, dtype=torch.float64)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def batches(feature: str, rank: int, world: int) -> Iterator[list[torch.Tensor]]:
    if feature == "iterable":
        loader, sampler = DataLoader(Stream(rank, world), batch_size=4), None
    else:
        data = Numbers()
        sampler = DistributedSampler(data, seed=1)
        workers = 2 if feature == "loader-workers" else 0
        loader = DataLoader(data, 4, sampler=sampler, drop_last=True, num_workers=workers)
    epoch = 0
    while True:
        if sampler is not None:
            sampler.set_epoch(epoch)
        yield from loader
        epoch += 1


def main() -> None:
    args = parse_args()
    feature = args.feature
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(7)
    model = wrapped(feature)
    named = list(model.named_parameters())
    parts = [named[:2], named[2:]] if feature == "two-optimizers" else [named]
    optimizers = [torch.optim.AdamW([p for _, p in part], lr=1e-2) for part in parts]
    scaler = torch.amp.GradScaler("cpu", enabled=feature == "scaler")
    torch.manual_seed(100 + rank)

    noise = torch.Generator().manual_seed(rank)
    data = batches(feature, rank, world)
    if feature == "cycle":
        numbers = Numbers(72)
        data = itertools.cycle(DataLoader(numbers, 4, sampler=DistributedSampler(numbers, seed=1)))
    for step in range(args.steps):
        if feature == "evaluating" and step % 3 == 0 and rank == 0:
            with torch.no_grad():
                model.module(torch.randn(5, 16, dtype=torch.float64))
        for micro in range(args.accumulation):
            x, y = next(data)
            if feature == "own-generator":
                x = x + torch.randn(x.shape, generator=noise, dtype=x.dtype)
            last = micro == args.accumulation - 1
            every = feature in ("every-microbatch", "static-graph") or feature == "replicate"
            with nullcontext() if last or every else model.no_sync():
                loss = F.mse_loss(model(x), y) / args.accumulation
                scaler.scale(loss).backward()
        for optimizer in optimizers:
            scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in optimizers:
            scaler.step(optimizer)
        scaler.update()
        for optimizer in optimizers:
            optimizer.zero_grad(set_to_none=feature != "zeroed")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
