"""Virtual time: a queue of calls and one seeded random. Nothing here knows what is simulated."""

import heapq
import random
from collections.abc import Callable
from typing import Any

Call = Callable[..., None]


class Engine:
    """Runs calls in the order of their virtual instants (seconds), ties in the order they came."""

    def __init__(self, seed: int) -> None:
        self.now = 0.0
        self.rng = random.Random(seed)
        self.calls = 0
        self._serial = 0
        self._heap: list[tuple[float, int, Call, tuple[Any, ...]]] = []

    def at(self, when: float, call: Call, *args: Any) -> None:
        self._serial += 1
        heapq.heappush(self._heap, (max(when, self.now), self._serial, call, args))

    def after(self, delay_s: float, call: Call, *args: Any) -> None:
        self.at(self.now + delay_s, call, *args)

    def run_one(self) -> bool:
        """Run the next call; False when there is none."""
        if not self._heap:
            return False
        self.now, _, call, args = heapq.heappop(self._heap)
        self.calls += 1
        call(*args)
        return True

    def jitter(self, mean_s: float) -> float:
        """A delay with many short and a few long ones."""
        return self.rng.expovariate(1.0) * mean_s

    def chance(self, probability: float) -> bool:
        return self.rng.random() < probability
