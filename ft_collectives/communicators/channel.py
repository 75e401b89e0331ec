"""What a communicator is made of: channels, the communicator of one generation, pending operations.

These are values and interfaces. `fabric` connects them and waits for them; an accelerator (`nccl`)
connects and launches in its own way.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from queue import SimpleQueue
from typing import Any, Protocol

import torch

from ft_collectives.communicators.c10d import Gloo, Work

Totals = tuple[int, ...]
"""What a member says of itself while it connects; see `Channel.on_align`."""


class DeviceOperation(Protocol):
    """An operation on an accelerator: it rings no bell when it is over, so it is asked."""

    def passed(self) -> bool: ...

    def wait(self, bell: "SimpleQueue[object]", within_s: float) -> None:
        """Until it has passed or failed, or until `bell` rings; raises Empty after `within_s`."""

    def conclude(self) -> None:
        """Raises RuntimeError if it failed."""

    def keep(self, staged: Sequence[torch.Tensor]) -> None:
        """Hold on to memory until it has passed."""


class Accelerator(Protocol):
    """Communicators of a channel on a device, beside those of gloo; see `nccl`."""

    def connect(
        self, generation: int, store: Any, place: int, size: int, wanted: Callable[[], bool]
    ) -> Any:
        """A communicator that works. None once it is not `wanted` any more. Raises RuntimeError."""

    def drop(self, before: int) -> None:
        """Abort those of generations `before` this one. Returns at once."""

    def launch(
        self, serving: "Serving", channel: "Channel", generation: int, start: Callable[[Any], Work]
    ) -> "Pending":
        """As `Fabric.launch`, on the device; `serving` is `Fabric.serving`."""


@dataclass(slots=True, eq=False)
class Pending:
    """An operation under way, or complete from the start without `future` and `on_device`.

    gloo's thread rings `bell` when it is done, and a new View if somebody waits: both are calls
    into C, because Python code in a thread that seldom runs any is dear (`docs/benchmarks.md`).
    """

    work: Work = None
    future: Any = None
    bell: "SimpleQueue[object]" = field(default_factory=SimpleQueue)
    on_device: DeviceOperation | None = None
    channel: "Channel | None" = None

    @property
    def done(self) -> bool:
        """Whether its memory has been let go of, with success or without."""
        if self.on_device is not None:
            return self.on_device.passed()
        return self.future is None or bool(self.future.done())

    def conclude(self) -> None:
        """Of one that is done: returns at once, or raises RuntimeError with what went wrong."""
        if self.on_device is not None:
            self.on_device.conclude()
        elif self.work is not None:
            self.work.wait()


@dataclass(frozen=True, slots=True, eq=False)
class Communicator:
    """The members of one generation and what connects them.

    `group` is None while this rank is the only member. `aligned` holds the members' totals, in
    member order, as they stood when this communicator was connected. `device` connects the same
    members on an accelerator, where the channel has one.
    """

    generation: int = 0  # of none
    members: tuple[int, ...] = ()
    group: Gloo = None
    aligned: tuple[Totals, ...] = ()
    device: Any = None
    whole: bool = True  # a result among these is as if nobody were lost
    alike: bool = False  # several gave the same, bit for bit; only known where somebody is lost

    def position(self, rank: int) -> int:
        """Place of the global `rank` among the members."""
        return self.members.index(rank)


Start = Callable[[Communicator], Sequence[Work]]
"""Begins operations on the group of a communicator, which is not None."""


@dataclass(slots=True, eq=False)
class Channel:
    """What those of `ranks` (global) that are members of the generation talk over.

    Two looks at `now` may see two generations; who needs more than one of its parts looks once.
    """

    name: str
    ranks: tuple[int, ...]
    on_align: Callable[[], Totals] | None = None  # asked by the builder, in its thread
    now: Communicator = Communicator()
    over: Accelerator | None = None
    limit: Callable[[], timedelta] | None = None  # of a wait, where it is not the fabric's
    what: str = ""  # is done over it, to people

    @property
    def generation(self) -> int:
        return self.now.generation

    @property
    def members(self) -> tuple[int, ...]:
        return self.now.members

    @property
    def group(self) -> Gloo:
        return self.now.group


Serving = Callable[[Channel, int], Communicator]
"""`Fabric.serving`: the communicator of a channel in a generation. Raises Superseded."""
