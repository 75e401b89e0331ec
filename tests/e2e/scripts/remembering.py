"""Loaders whose samplers and data sets keep a state from one item to the next."""

import random
from collections.abc import Callable, Iterator

import torch
from torch.utils.data import DataLoader, IterableDataset, Sampler, TensorDataset

Train = Callable[[torch.Tensor, torch.Tensor], float]


class Left(Sampler[list[int]]):
    """Batches of rows; what did not fit is kept for the next pass."""

    def __init__(self, rows: int, size: int) -> None:
        self.rows, self.size, self.left = rows, size, list[int]()

    def __iter__(self) -> Iterator[list[int]]:
        order = self.left + random.sample(range(self.rows), self.rows)
        batch: list[int] = []
        for row in order:
            batch.append(row)
            if len(batch) == self.size:
                yield batch
                batch = []
        self.left = batch


class Noisy(IterableDataset[tuple[torch.Tensor, torch.Tensor]]):
    """Draws from a buffer that it goes on with in each pass, and adds noise."""

    def __init__(self, xs: torch.Tensor, ys: torch.Tensor) -> None:
        self.xs, self.ys, self.buffer, self.given = xs, ys, list[int](), 0

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        for row in range(len(self.xs)):
            self.buffer.append(row)
            if len(self.buffer) > 10:
                chosen = self.buffer.pop(random.randrange(len(self.buffer)))
                self.given += 1
                noise = 0.1 * torch.randn(self.xs.shape[1])
                yield self.xs[chosen] + noise + 0.001 * self.given, self.ys[chosen]


class Ahead:
    """Reads one item ahead."""

    def __init__(self, loader: DataLoader) -> None:
        self.items = iter(loader)
        self.following = next(self.items)

    def __iter__(self) -> "Ahead":
        return self

    def __next__(self) -> list[torch.Tensor]:
        if self.following is None:
            raise StopIteration
        present, self.following = self.following, next(self.items, None)
        return present


def batches(xs: torch.Tensor, ys: torch.Tensor) -> DataLoader:
    return DataLoader(TensorDataset(xs, ys), batch_sampler=Left(len(xs), 6))


def run(loader: DataLoader, train: Train, steps: int) -> None:
    done = 0
    while True:
        for x, y in loader:
            train(x, y)
            done += 1
            if done == steps:
                return


def run_ahead(xs: torch.Tensor, ys: torch.Tensor, train: Train, steps: int) -> None:
    done = 0
    while True:
        for x, y in Ahead(DataLoader(Noisy(xs, ys), 6)):
            train(x * (1 + 0.01 * random.random()), y)
            done += 1
            if done == steps:
                return


class Stream:
    """Draws rows from a buffer that no variable of the script leads to."""

    def __init__(self, rows: int) -> None:
        self.rows, self.buffer, self.read = rows, list[int](), 0

    def __iter__(self) -> Iterator[int]:
        while True:
            while len(self.buffer) < 24:
                self.buffer.append(self.read % self.rows)
                self.read += 1
            yield self.buffer.pop(random.randrange(24))


def taken(stream: Stream, size: int) -> Iterator[list[int]]:
    rows = iter(stream)
    while True:
        yield [next(rows) for _ in range(size)]


def run_stream(xs: torch.Tensor, ys: torch.Tensor, train: Train, steps: int) -> None:
    for done, rows in enumerate(taken(Stream(len(xs)), 6), 1):
        train(xs[rows] * (1 + 0.01 * random.random()), ys[rows])
        if done == steps:
            return
