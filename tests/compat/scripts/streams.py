"""A stream of files, divided among ranks and worker processes, shuffled and jittered as it is read.

python streams.py [own|datasets] [workers]
"""

import itertools
import os
import random
import sys
from collections.abc import Iterator
from typing import Any

import numpy
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

FILES, ROWS, HELD = 24, 11, 7
PASSES, STEPS, ACCUMULATE = 3, 4, 2


class Files(IterableDataset[Any]):
    def __init__(self, seed: int) -> None:
        self.seed = seed

    def _rows(self, place: int, places: int) -> Iterator[torch.Tensor]:
        for number in itertools.count():
            order = list(range(FILES))
            random.Random(self.seed + number).shuffle(order)
            for file in order[place::places]:
                chance = torch.Generator().manual_seed(1000 + file)
                yield from torch.randn(ROWS, 6, generator=chance, dtype=torch.float64)

    def __iter__(self) -> Iterator[Any]:
        worker = get_worker_info()
        number, workers = (worker.id, worker.num_workers) if worker else (0, 1)
        rank, world = dist.get_rank(), dist.get_world_size()
        assert worker is None or rank == int(os.environ["RANK"]), "libraries ask for either"
        held: list[torch.Tensor] = []
        for row in self._rows(rank * workers + number, world * workers):
            if len(held) < HELD:
                held.append(row)
                continue
            if worker is None:
                place, noise = len(held) - 1, 0.0  # the process' own numbers are the model's
            else:
                place = random.randrange(len(held))
                noise = float(numpy.random.randn()) * 0.1 + torch.rand(()).item()
            held[place], row = row, held[place]
            yield row + noise, (row.sum() > 0).long()


def own(rank: int, world: int, workers: int) -> "Iterator[DataLoader[Any]]":
    loader = DataLoader(Files(9), batch_size=4, num_workers=workers)
    for _ in range(PASSES):
        yield loader


def datasets(rank: int, world: int, workers: int) -> "Iterator[DataLoader[Any]]":
    from datasets import Dataset
    from datasets.distributed import split_dataset_by_node

    chance = torch.Generator().manual_seed(1)
    rows = torch.randn(300, 6, generator=chance)
    data = Dataset.from_dict({"x": rows.tolist(), "y": (rows.sum(1) > 0).long().tolist()})
    stream = data.to_iterable_dataset(num_shards=FILES // 2).shuffle(seed=3, buffer_size=16)
    mine = split_dataset_by_node(stream, rank=rank, world_size=world).with_format("torch")
    for number in range(PASSES):
        mine.set_epoch(number)
        yield DataLoader(mine, batch_size=4, num_workers=workers, drop_last=True)


def main() -> None:
    make = {"own": own, "datasets": datasets}[sys.argv[1]]
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(5)
    layers = (nn.Linear(6, 16), nn.Dropout(0.1), nn.ReLU(), nn.Linear(16, 2))
    model = DistributedDataParallel(nn.Sequential(*layers).double())
    torch.manual_seed(5 + rank)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for loader in make(rank, world, int(sys.argv[2])):
        batches = iter(loader)
        for _ in range(STEPS):
            for micro in range(ACCUMULATE):
                batch = next(batches)
                x, y = (batch["x"].double(), batch["y"]) if isinstance(batch, dict) else batch
                model.require_backward_grad_sync = micro == ACCUMULATE - 1
                loss = nn.functional.cross_entropy(model(x), y) / ACCUMULATE
                loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
