"""The reducer of gradient buckets: order, overlap, and generations that end in the middle.

One process: two threads would be two ranks, but what matters here is what is launched, in which
order, on which memory. So the communicator is a stand-in whose reductions end when the test says.
"""

import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import torch

from ft_collectives.communicators.fabric import Communicator, Fabric
from ft_collectives.step.reducer import Bucket, Reducer
from rendezvous.protocol.messages import View

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
            timeout=timedelta(seconds=5),
            on_hint=lambda generation, reason: None,
        )
        channel = self.fabric.adopt("gradients", RANKS, self.wires[1])
        self.reducer = Reducer(self.fabric, channel)
        self.launched: list[int] = []
        self.reducer.on_launch = lambda number, total: self.launched.append(number)
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


def test_buckets_start_in_the_order_in_which_they_were_included() -> None:
    world = World(SIZES)
    world.reducer.begin()
    world.reducer.include(["b", "a"])
    world.reducer.include(["a", "c", "b"])  # each has its place already, but for "c"

    world.reducer.finish(1)

    assert world.sizes_begun(1) == [2, 1, 3]
    assert world.launched == [0, 1, 2]


def test_what_is_not_included_is_not_reduced() -> None:
    world = World(SIZES)
    world.reducer.begin()
    world.reducer.include("ac")

    world.reducer.finish(1)
    world.reducer.deliver()

    assert world.sizes_begun(1) == [1, 3]
    assert world.given == {"a": [2.0], "c": [2.0] * 3}


def test_a_transaction_without_buckets_reduces_nothing() -> None:
    world = World(SIZES)
    world.reducer.begin()

    world.reducer.finish(1)
    world.reducer.deliver()

    assert world.sizes_begun(1) == []
    assert world.given == {}


def test_what_is_offered_first_is_included() -> None:
    world = World(SIZES)
    world.reducer.begin()
    for key in "cab":
        world.reducer.offer(key, 1)

    assert world.sizes_begun(1) == [3, 1, 2]


def test_a_gradient_that_was_made_up_is_part_of_the_sum() -> None:
    world = World(SIZES)
    world.sums["a"] += 4
    piece = world.reducer.piece(carried=False)
    world.sums["a"] -= 4
    world.reducer.add((1, 0), piece)
    world.reducer.add((1, 1), world.reducer.piece(carried=False))

    world.reducer.finish(1)
    world.reducer.deliver()

    assert world.given == {"a": [14.0], "b": [6.0] * 2, "c": [6.0] * 3}


def test_what_was_made_up_is_kept_until_the_step_ends() -> None:
    world = World(SIZES)
    world.reducer.add((1, 0), world.reducer.piece(carried=False))
    world.wires[1].by_itself = False
    world.reducer.offer("a", 1)
    world.meet(2)  # in the middle: all is reduced again
    world.reducer.finish(2)
    world.reducer.deliver()
    again = dict(world.given)
    world.reducer.begin()
    world.reducer.include(SIZES)

    world.reducer.finish(2)
    world.reducer.deliver()

    assert again == {"a": [4.0], "b": [4.0] * 2, "c": [4.0] * 3}
    assert world.given == {"a": [2.0], "b": [2.0] * 2, "c": [2.0] * 3}


def test_a_piece_holds_what_gradients_had_before_if_that_is_asked_for() -> None:
    world = World({"a": 2})

    def carry(staging: torch.Tensor) -> bool:
        staging.fill_(10.0)
        return True

    world.reducer.register(world.bucket("a", 2, carry=carry))

    assert world.reducer.piece(carried=False)["a"].tolist() == [1.0, 1.0]
    assert world.reducer.piece(carried=True)["a"].tolist() == [11.0, 11.0]


def test_offers_out_of_order_wait_for_their_turn() -> None:
    world = World(SIZES)
    begun = []
    for key in ("c", "a", "b"):
        world.reducer.offer(key, 1)
        begun.append(world.sizes_begun(1))

    assert begun == [[], [1], [1, 2, 3]]


def test_what_was_not_offered_is_reduced_at_the_end() -> None:
    world = World(SIZES)
    world.reducer.offer("a", 1)

    world.reducer.finish(1)
    world.reducer.deliver()

    assert world.sizes_begun(1) == [1, 2, 3]
    assert world.given == {"a": [2.0], "b": [2.0] * 2, "c": [2.0] * 3}


def test_nothing_is_delivered_before_all_is_reduced() -> None:
    world = World(SIZES)
    world.reducer.offer("a", 1)

    with pytest.raises(AssertionError, match="INV-5"):
        world.reducer.deliver()
    assert not world.given


def test_nothing_is_delivered_while_it_is_reduced_again() -> None:
    world = World(SIZES)
    world.reducer.finish(1)
    world.meet(2)
    world.wires[2].by_itself = False
    world.reducer.offer("a", 2)  # of no use before the commit point
    world.meet(3)

    world.reducer._launch_up_to(1, 3)

    with pytest.raises(AssertionError, match="INV-5"):
        world.reducer.deliver()
