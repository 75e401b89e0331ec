"""Generators that draw random numbers for their items, and look at what has changed since."""

import random
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

Train = Callable[[Tensor, Tensor], float]

BATCH = 4


class Drawing:
    def __init__(self, xs: Tensor, ys: Tensor, train: Train) -> None:
        self.xs, self.ys, self.train = xs, ys, train
        self.level, self.given = 1.0, [0] * 64
        self.bank = torch.zeros(1 << 19)

    def batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Rows of an order that it draws anew, those left out that a number says, each with noise
        by a mean of former losses and by a bank, which the loop's body fills.
        """
        mean, bank = 0.0, self.bank
        while True:
            for row in torch.randperm(len(self.xs)).tolist()[: -BATCH + 1]:
                if random.random() < 0.3:
                    continue
                self.given[row] += 1
                mean = 0.9 * mean + self.level / self.given[row]
                x = self.xs[row : row + BATCH]
                yield x + (mean + bank[0]) * torch.randn_like(x), self.ys[row : row + BATCH]

    def learn(self, x: Tensor, y: Tensor) -> None:
        self.level = self.train(x, y)
        self.bank.mul_(0.9).add_(0.01 * self.level)

    def run(self, steps: int) -> None:
        for _, (x, y) in zip(range(steps), self.batches(), strict=False):
            self.learn(x, y)

    def ask(self, steps: int) -> None:
        items, done = self.batches(), 0
        while done < steps:
            x, y = next(items)
            self.learn(x, y)
            done += 1
