"""A data set that no variable holds, and whose items tell how often they were read."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

Train = Callable[[Tensor, Tensor], float]

BATCH, ROWS = 4, 32


class RowCounts(Dataset[tuple[Tensor, Tensor]]):
    def __init__(self, xs: Tensor, ys: Tensor) -> None:
        self.xs, self.ys = xs, ys
        self.read: dict[int, int] = {}
        self.mean = torch.zeros(xs.shape[1])

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, row: int) -> tuple[Tensor, Tensor]:
        self.read[row] = self.read.get(row, 0) + 1
        self.mean = 0.9 * self.mean + 0.1 * self.xs[row]
        return self.xs[row] / self.read[row] + self.mean, self.ys[row]


def run(xs: Tensor, ys: Tensor, train: Train, steps: int) -> None:
    rows = [number % ROWS for number in range(BATCH * steps)]
    for x, y in DataLoader(RowCounts(xs, ys), BATCH, sampler=rows):
        train(x, y)
