"""Documents of random lengths, packed into batches by a generator that has a seed of its rank."""

from collections.abc import Callable, Iterator

import numpy as np
import torch


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
