"""Channels, the communicators that serve them for one generation, and operations under way.

Values and interfaces: `fabric` connects channels and waits for operations; an accelerator (`nccl`)
connects and launches in its own way.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from queue import SimpleQueue
from typing import Any, Protocol

import torch

from ft_collectives.communicators.c10d import Gloo, Work
from rendezvous.protocol.progress_page import key_of, members

Totals = tuple[int, ...]
"""What each member tells the others while it connects; see `Channel.on_align`."""


class DeviceOperation(Protocol):
    """An operation on an accelerator. It rings no bell when it is over, so it is polled."""

    def passed(self) -> bool:
        """True if it is over."""

    def wait(self, bell: "SimpleQueue[object]", within_s: float) -> None:
        """Wait until it is over or has failed, or `bell` rings. Raises Empty after `within_s`."""

    def conclude(self) -> None:
        """Raise RuntimeError if it failed."""

    def keep(self, staged: Sequence[torch.Tensor]) -> None:
        """Keep memory until it is over."""


class Accelerator(Protocol):
    """Communicators of a channel on a device, beside those of gloo; see `nccl`."""

    def connect(
        self, generation: int, store: Any, place: int, size: int, wanted: Callable[[], bool]
    ) -> Any:
        """Return a communicator that works, or None once it is not `wanted` any more.

        `place` is this rank's among `size` members. Raises RuntimeError.
        """

    def drop(self, before: int) -> None:
        """Begin to abort the communicators of generations `before` this one."""

    def launch(
        self, serving: "Serving", channel: "Channel", generation: int, start: Callable[[Any], Work]
    ) -> "Pending":
        """Launch as `Fabric.launch` does, on the device; `serving` is `Fabric.serving`."""


@dataclass(slots=True, eq=False)
class Pending:
    """An operation under way, or a complete one if it has neither `future` nor `on_device`.

    gloo's thread rings `bell` when the operation is done, and a new View rings it for those who
    wait. Both are calls into C: Python code in a thread that seldom runs any is slow
    (`docs/benchmarks.md`).
    """

    work: Work = None
    future: Any = None
    bell: "SimpleQueue[object]" = field(default_factory=SimpleQueue)
    on_device: DeviceOperation | None = None
    channel: "Channel | None" = None
    number: int = 0  # of the operation in its channel and generation

    @property
    def done(self) -> bool:
        """True if gloo or the device has let go of its memory, with success or without."""
        if self.on_device is not None:
            return self.on_device.passed()
        return self.future is None or bool(self.future.done())

    def conclude(self) -> None:
        """Raise RuntimeError if the operation, which is done, has failed."""
        if self.on_device is not None:
            self.on_device.conclude()
        elif self.work is not None:
            self.work.wait()


@dataclass(frozen=True, slots=True, eq=False)
class Communicator:
    """The members (global ranks) of one generation, and what connects them.

    `group` is None if this rank is the only member. `aligned` holds the members' totals, in the
    order of members, as they were when this communicator was connected. `device` connects the same
    members on an accelerator, if the channel has one.
    """

    generation: int = 0  # 0 before the first one
    members: tuple[int, ...] = ()
    group: Gloo = None
    aligned: tuple[Totals, ...] = ()
    device: Any = None
    whole: bool = True  # a result over these members is as without a loss
    guessed: bool = False  # `whole`, but for what lost members may have given otherwise
    same_inputs: bool = False  # members' inputs were equal, bit for bit; compared after a loss only

    def position(self, rank: int) -> int:
        """Return the place of `rank` (global) among the members."""
        return self.members.index(rank)


Start = Callable[[Communicator], Sequence[Work]]
"""Begins operations on the group of a communicator that has one."""


@dataclass(slots=True, eq=False)
class Channel:
    """The connection of those of `ranks` (global) that are members of the present generation.

    `now` may change between two reads: code that needs more than one part of it reads it once.
    """

    name: str
    ranks: tuple[int, ...]
    on_align: Callable[[], Totals] | None = None  # called in the builder's thread
    now: Communicator = Communicator()
    over: Accelerator | None = None
    limit: Callable[[], timedelta] | None = None  # time limit of a wait; None: the fabric's
    what: str = ""  # what is done over it, in words for people
    begun: int = 0  # operations in this generation; members begin them in the same order
    key: int = field(init=False)
    span: tuple[int, int, int] = field(init=False)  # `ranks`, as a page of progress tells them

    def __post_init__(self) -> None:
        self.key, self.span = key_of(self.name), members(self.ranks)

    def serve(self, communicator: Communicator) -> None:
        """Serve operations over this one from now on."""
        self.now, self.begun = communicator, 0

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


def arranged(channels: Sequence[Channel], names: Sequence[str]) -> list[Channel]:
    """Return `channels` in the order of `names`. Raises ValueError if they are others."""
    by_name = {channel.name: channel for channel in channels}
    if sorted(names) != sorted(by_name) or len(by_name) != len(channels):
        raise ValueError(f"members connect {list(names)}, this process {list(by_name)}")
    return [by_name[name] for name in names]


def exchange(group: Gloo, size: int, mine: Totals) -> tuple[Totals, ...]:
    """Return all members' totals, in the order of members. Blocks: for the builder thread only."""
    totals = torch.tensor(mine, dtype=torch.int64)
    others = [torch.empty_like(totals) for _ in range(size)]
    group.allgather([others], [totals]).wait()
    return tuple(tuple(one.tolist()) for one in others)
