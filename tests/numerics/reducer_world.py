"""A reducer whose communicator is a stand-in: its reductions end when the test says.

One process: two threads would be two ranks, but what matters is what is launched, in which order,
on which memory.
"""

import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch

from ft_collectives.communicators.channel import Communicator
from ft_collectives.communicators.fabric import Fabric
from ft_collectives.communicators.limits import TimeLimits
from ft_collectives.step.reducer import Bucket, Reducer
from rendezvous.protocol.views import View

RANKS = (0, 1)


class Operation:
    """A work of `Wire`: ends when told, with a sum of two equal ranks."""

    def __init__(self, staging: torch.Tensor) -> None:
        self.staging = staging
        self.offered = staging.clone()
        self.future: torch.futures.Future[Any] = torch.futures.Future()

    def get_future(self) -> Any:
        return self.future

    def wait(self) -> None:
        assert self.future.done()

    def end(self) -> None:
        self.staging.copy_(2 * self.offered)
        self.future.set_result(None)


class Wire:
    """Stands in for gloo."""

    def __init__(self) -> None:
        self.begun: list[Operation] = []
        self.by_itself = True

    def allreduce(self, tensors: list[torch.Tensor], _: object) -> Operation:
        self.begun.append(Operation(tensors[0]))
        if self.by_itself:
            self.begun[-1].end()
        return self.begun[-1]


def view(generation: int) -> View:
    return View(generation=generation, live=(), live_ranks=RANKS, losses=())


class World:
    """A reducer over buckets whose accumulators the test holds."""

    def __init__(self, sizes: dict[str, int]) -> None:
        self.wires = {1: Wire()}
        self.fabric = Fabric(
            rank=0,
            view=view(1),
            store=lambda generation: None,
            changed=threading.Condition(),
            limits=TimeLimits(lambda: timedelta(seconds=5)),
            on_hint=lambda generation, reason: None,
        )
        channel = self.fabric.adopt("gradients", RANKS, self.wires[1])
        self.launched: list[int] = []
        self.reducer = Reducer(
            self.fabric, channel, on_launch=lambda number, total: self.launched.append(number)
        )
        self.sums = {key: torch.full((size,), 1.0) for key, size in sizes.items()}
        self.given: dict[str, list[float]] = {}
        for key, size in sizes.items():
            self.reducer.register(self.bucket(key, size))
        self.reducer.include(sizes)
        self.fabric._connect = self._connect  # type: ignore[method-assign]

    def bucket(self, key: str, size: int, **changes: Any) -> Bucket:
        return Bucket(
            key=key,
            size=size,
            dtype=torch.float32,
            fill=self._filling(key),
            deliver=self._giving(key),
            **changes,
        )

    def _filling(self, key: str) -> Callable[[torch.Tensor], None]:
        def fill(staging: torch.Tensor) -> None:
            staging.copy_(self.sums[key])

        return fill

    def _giving(self, key: str) -> Callable[[torch.Tensor], None]:
        def deliver(total: torch.Tensor) -> None:
            self.given[key] = total.tolist()

        return deliver

    def _connect(self, channel: Any, of: View) -> None:
        wire = self.wires.setdefault(of.generation, Wire())
        with self.fabric.changed:
            channel.now = Communicator(of.generation, RANKS, wire)
            self.fabric.changed.notify_all()

    def meet(self, generation: int) -> None:
        self.fabric.change(view(generation))
        self.fabric.ready(self.reducer.channel)

    def sizes_begun(self, generation: int) -> list[int]:
        return [one.staging.numel() for one in self.wires[generation].begun]


SIZES = {"a": 1, "b": 2, "c": 3}
