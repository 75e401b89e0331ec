"""Documents of random lengths, packed into batches by a generator that has a seed of its rank; they
may be weighed by running means. Or rows that a generator draws from the global stream.
"""

from collections.abc import Callable, Iterator

import numpy as np
import torch


class Mean:
    """A running mean, and the newest values of it."""

    def __init__(self, decay: float) -> None:
        self.decay, self.value = decay, 0.0
        self.newest: list[float] = []

    def note(self, value: float) -> None:
        self.value = self.decay * self.value + (1 - self.decay) * value
        self.newest = [*self.newest, value][-3:]


def batches(seed: int, rows: int, batch: int) -> Iterator[list[int]]:
    drawn = np.random.RandomState(seed)
    waiting: list[int] = []
    while True:
        while len(waiting) < batch:
            first = drawn.randint(rows)
            waiting += [(first + one) % rows for one in range(drawn.randint(1, 2 * batch))]
        given, waiting = waiting[:batch], waiting[batch:]
        yield given


def train_on(
    xs: torch.Tensor, ys: torch.Tensor, seed: int, steps: int, train: Callable[..., float]
) -> None:
    packed = batches(seed, len(xs), 4)
    for _ in range(steps):
        given = next(packed)
        train(xs[given], ys[given])


def train_weighed(
    xs: torch.Tensor, ys: torch.Tensor, seed: int, steps: int, train: Callable[..., float]
) -> None:
    packed, means = batches(seed, len(xs), 4), [Mean(0.5), Mean(0.9)]
    for step in range(steps):
        given = next(packed)
        weight = 1 + 0.1 * sum(mean.value + sum(mean.newest) for mean in means)
        train(weight * xs[given], ys[given])
        for mean in means:  # which is the shortest name of one of them from here on
            mean.note(step / steps)


def crops(rows: int) -> Iterator[torch.Tensor]:
    while True:
        yield torch.randint(rows, (4,))


def train_drawing(
    xs: torch.Tensor, ys: torch.Tensor, seed: int, steps: int, train: Callable[..., float]
) -> None:
    torch.manual_seed(seed)
    for step, given in enumerate(crops(len(xs))):
        train(xs[given], ys[given])
        if step + 1 == steps:
            break
