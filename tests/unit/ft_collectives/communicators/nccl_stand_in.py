"""A stand-in for NCCL, and a reducer of one bucket over it: no GPU, real tensors on the CPU."""

import threading
from collections.abc import Callable
from datetime import timedelta
from queue import SimpleQueue
from typing import Any

import torch
from torch.distributed import HashStore

from ft_collectives.communicators.errors import Superseded
from ft_collectives.communicators.fabric import Fabric
from ft_collectives.communicators.limits import TimeLimits
from ft_collectives.communicators.nccl import NcclChannel
from ft_collectives.step.reducer import Bucket, Reducer
from rendezvous.protocol.views import View

GARBAGE = -1e9
OTHERS = 10.0  # what all other members together add to every element


class Mark:
    """An event of a stream. An operation that hangs passes with its abort."""

    def __init__(self, *, passed: bool) -> None:
        self.passed = passed

    def query(self) -> bool:
        return self.passed


class Group:
    """A stand-in for ProcessGroupNCCL: operations pass, hang until the abort, or fail."""

    def __init__(
        self, place: int, size: int, behaviour: str, on_hang: Callable[["Group"], None]
    ) -> None:
        self._on_hang = on_hang
        self.place, self.size = place, size
        self.behaviour = behaviour  # of what begins from now on
        self.error = ""
        self.hanging: list[tuple[Mark, list[torch.Tensor]]] = []
        self.aborted = threading.Event()
        self.abort_may_end = threading.Event()
        self.abort_may_end.set()
        self.kernels_end = True  # with the abort

    def allreduce(self, tensors: list[torch.Tensor], _: Any = None) -> Mark:
        assert not self.aborted.is_set(), "NCCL frees what it is asked to use"
        if self.behaviour == "refuses":
            raise RuntimeError("NCCL error: remote process exited")
        if self.behaviour == "passes":
            for tensor in tensors:
                tensor += OTHERS
            return Mark(passed=True)
        if self.behaviour == "fails":
            self.error = "NCCL: COMM_ERROR"
        mark = Mark(passed=False)
        self.hanging.append((mark, tensors))
        self._on_hang(self)
        return mark

    def abort(self) -> None:
        self.aborted.set()
        self.abort_may_end.wait()
        if self.kernels_end:
            self.end_kernels()

    def end_kernels(self) -> None:
        for mark, tensors in self.hanging:
            for tensor in tensors:
                tensor.fill_(GARBAGE)
            mark.passed = True


class StandIn:
    """The library: keeps every group that it made."""

    def __init__(self, *behaviours: str) -> None:
        self.behaviours = list(behaviours)
        self.groups: list[Group] = []
        self.stores: list[Any] = []
        self.hanging: SimpleQueue[Group] = SimpleQueue()  # have an operation that hangs
        self.graph = ""
        self.greets = "passes"

    def group(self, store: Any, rank: int, size: int) -> Group:
        behaviour = self.behaviours[min(len(self.groups), len(self.behaviours) - 1)]
        self.groups.append(Group(rank, size, behaviour, self.hanging.put))
        self.stores.append(store)
        return self.groups[-1]

    def warm_up(self, group: Group) -> Mark:
        later, group.behaviour = group.behaviour, self.greets
        try:
            return group.allreduce([torch.zeros(1)])
        finally:
            group.behaviour = later

    def stamp(self, group: Group, work: Mark) -> Mark:
        return work

    def failure(self, group: Group) -> str:
        return group.error

    def refusal(self) -> str:
        return self.graph


class Gloo:
    """Connects the members beside; nothing is said over it here."""


def view(generation: int, ranks: tuple[int, ...] = (0, 1, 2)) -> View:
    return View(generation=generation, live=(), live_ranks=ranks, losses=())


def make(on_hint: Callable[[int, str], None] = lambda *_: None) -> Fabric:
    stores: dict[int, Any] = {}
    fabric = Fabric(
        rank=0, view=view(1), store=lambda generation: stores.setdefault(generation, HashStore()),
        changed=threading.Condition(), on_hint=on_hint,
        limits=TimeLimits(lambda: timedelta(seconds=5)),
    )  # fmt: skip
    fabric.connect = lambda store, rank, size: Gloo()  # type: ignore[method-assign]
    return fabric


def fill_with_ones(staging: torch.Tensor) -> None:
    staging.fill_(1.0)


class Rig:
    """A reducer of one bucket of ones, over the stand-in."""

    def __init__(self, library: StandIn, on_hint: Callable[[int, str], None] | None = None) -> None:
        self.library = library
        self.over = NcclChannel(library)
        self.fabric = make(on_hint or (lambda *_: None))
        channel = self.fabric.open("gradients0", (0, 1, 2), over=self.over)
        self.reducer = Reducer(self.fabric, channel)
        self.delivered: list[torch.Tensor] = []
        self.bucket = self.reducer.register(
            Bucket(
                key="weights", size=4, dtype=torch.float32,
                fill=fill_with_ones,
                deliver=lambda total: self.delivered.append(total.clone()),
            )
        )  # fmt: skip
        self.reducer.include(["weights"])
        self.fabric.ready(channel)

    def in_a_thread(self, generation: int) -> "SimpleQueue[object]":
        """Reduce in `generation`; the queue gets what comes of it."""
        ended: SimpleQueue[object] = SimpleQueue()

        def reduce() -> None:
            try:
                self.reducer.finish(generation)
                ended.put("held")
            except Superseded:
                ended.put("superseded")

        threading.Thread(target=reduce, daemon=True).start()
        return ended
