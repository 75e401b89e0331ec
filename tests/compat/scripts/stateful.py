"""Streams that keep their place in themselves, and loaders that can be saved: torchdata's.

python stateful.py [tokens|rows|sampler|stream] [workers] [--resume] [--again]
"""

import argparse
from collections.abc import Iterable, Iterator
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import (
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    get_worker_info,
)

ROWS, WIDTH, BATCH, STEPS, BEFORE = 192, 12, 4, 9, 3

Rows = tuple[torch.Tensor, torch.Tensor]


def numbers() -> torch.Tensor:
    chance = torch.Generator().manual_seed(3)
    return torch.randn(ROWS, WIDTH, generator=chance, dtype=torch.float64)


class Table(Dataset[Rows]):
    def __init__(self) -> None:
        self.rows = numbers()

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, index: int) -> Rows:
        return self.rows[index], self.rows[index].roll(1) * 0.5


class Reader:
    def __init__(self) -> None:
        self.line = -1

    def next(self) -> int:
        self.line += 1
        return self.line % ROWS


class Tokens(IterableDataset[Rows]):
    """Tokens that are read and not yet given stay in a list, as where texts are packed."""

    def __init__(self, rank: int, world: int) -> None:
        self.rows, self.rank, self.world = numbers(), rank, world
        self.reader, self.held = Reader(), []  # type: tuple[Reader, list[float]]

    def __iter__(self) -> Iterator[Rows]:
        while True:
            line = self.reader.next()
            if line % self.world == self.rank:
                self.held.extend(self.rows[line][: WIDTH - 1 - line % 3].tolist())
            while len(self.held) >= WIDTH:
                row = torch.tensor(self.held[:WIDTH], dtype=torch.float64)
                del self.held[:WIDTH]
                yield row, row.roll(1) * 0.5


class Stream(IterableDataset[Rows]):
    """Says where it is, and can be put there."""

    def __init__(self, rank: int, world: int) -> None:
        self.table, self.rank, self.world, self.at = Table(), rank, world, 0

    def __iter__(self) -> Iterator[Rows]:
        worker = get_worker_info()
        number, workers = (worker.id, worker.num_workers) if worker else (0, 1)
        while True:
            index = (self.at * workers + number) * self.world + self.rank
            self.at += 1
            yield self.table[index % ROWS]

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at = state["at"]


def loaders(kind: str, rank: int, world: int, workers: int) -> Any:
    """A loader, and what is told the pass, if it has to be."""
    if kind == "tokens":
        return DataLoader(Tokens(rank, world), BATCH, num_workers=workers), None
    from torchdata.stateful_dataloader import StatefulDataLoader
    from torchdata.stateful_dataloader.sampler import StatefulDistributedSampler

    if kind == "stream":
        return StatefulDataLoader(Stream(rank, world), BATCH, num_workers=workers), None
    table = Table()
    make = StatefulDistributedSampler if kind == "sampler" else DistributedSampler
    sampler = make(table, seed=1)
    return StatefulDataLoader(table, BATCH, sampler=sampler, num_workers=workers), sampler


def resumed(made: tuple[Any, Any], again: tuple[Any, Any]) -> tuple[Any, Any]:
    """`again`, from where another run saved `made`."""
    for _ in zip(range(BEFORE), made[0], strict=False):
        pass
    again[0].load_state_dict(made[0].state_dict())
    return again


def train(model: nn.Module, made: tuple[Iterable[Rows], Any], passes: int) -> None:
    loader, sampler = made
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for number in range(passes):
        if sampler is not None:
            sampler.set_epoch(number)
        for step, (x, y) in enumerate(loader):
            F.mse_loss(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
            if step + 1 == STEPS:
                break


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=("tokens", "rows", "sampler", "stream"))
    parser.add_argument("workers", type=int)
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--again", action="store_true", help="a stream goes on from there")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(7)
    net = nn.Sequential(nn.Linear(WIDTH, 32), nn.Tanh(), nn.Dropout(0.1), nn.Linear(32, WIDTH))
    model = DistributedDataParallel(net.double())
    made = loaders(args.kind, rank, world, args.workers)
    if args.resume:
        made = resumed(made, loaders(args.kind, rank, world, args.workers))
    torch.manual_seed(100 + rank)
    train(model, made, passes=2 if args.again or args.kind in ("rows", "sampler") else 1)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
