"""The memory of loops that are under way and of the iterations around a backward: enough to execute
it again (`replay`).
"""

from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from recoverrun.worker.data.source import Draw
from recoverrun.worker.instrumentation import Loop

if TYPE_CHECKING:  # they import torch, which the script imports when it wants to
    from torch import dtype
    from torch.optim import Optimizer

    from ft_collectives.communicators.script_modes import Modes
    from recoverrun.worker.context.evidence import Evidence, Mark
    from recoverrun.worker.context.slot_context import Context, Key, Path
    from recoverrun.worker.data.source import Source
    from recoverrun.worker.rng.streams import Streams
    from recoverrun.worker.tracking.trained_loops import TrainedLoop

    Switches = tuple[list[dtype | None], Callable[[], AbstractContextManager[None]], Modes]


@dataclass(slots=True, eq=False, weakref_slot=True)
class Top:
    """The variables that the body of a loop could see as an iteration began."""

    loop: Loop
    frame_id: int
    iteration: int
    item: Any
    streams: "Streams"  # before the loop's header drew anything for this iteration
    body: "Streams | None"  # as the body began, if the header made an iterator
    names: dict[str, Any]
    globals: dict[str, Any]
    attributes: "dict[Path, Any]"
    bulk: "dict[Key, Any]"
    iterators: "dict[Key, Any]"
    positions: "list[tuple[Source, int]]"  # of every source, when the body began
    draws: list[Draw]  # those of the loop's header
    ahead: list[Draw]  # those before the iteration, which may have fetched this one's item
    drew: bool = False  # data, in its body
    heard: int = 0  # collectives of the script before it
    seeded: bool = False  # torch's streams were seeded before anything was drawn
    switches: "Switches | None" = None  # see `step.switches`
    context: "Context | None" = None  # captured then
    made: Counter[str] = field(default_factory=Counter)  # generators, by place, before it
    evidence: "Evidence | None" = None  # of what the iteration does
    synced: tuple[int, ...] = ()  # see `ForwardSync.counts`
    iterator_lists: "list[tuple[list[Any], list[Any]]]" = field(default_factory=list)
    """Lists that hold iterators over loaders, and what they held."""
    groups: "list[tuple[Optimizer, list[dict[str, Any]]]]" = field(default_factory=list)


@dataclass(slots=True, eq=False)
class LoopFrame:
    """A loop that is under way, at its present iteration."""

    loop: Loop
    frame_id: int
    iteration: int = -1
    item: Any = None
    streams: "Streams | None" = None
    draws: list[Draw] = field(default_factory=list)
    ahead: list[Draw] = field(default_factory=list)
    held: list[Draw] = field(default_factory=list)  # before it, of what it goes over
    adopted: int = 0  # iterators of the process when this iteration began
    heard: int = 0
    backwards: int = 0  # in this iteration
    begun: int = 0  # iterations since the last backward that somebody looked at
    seeded: bool = False
    counts: dict[int, int] = field(default_factory=dict)  # of items, by source, before its header
    tested: dict[int, int] | None = None  # of items, by source, for the test of a `while`
    opened: int = 0  # iterators of loaders that the process had made by then
    trained: "dict[int, TrainedLoop]" = field(default_factory=dict)  # in this iteration, by number
    number: int = -1  # of the loops of this process, in the order in which they began
    top: Top | None = None
    fetches: bool = False  # a `for` asks for its next item
    over: Any = None  # what a `for` goes over


LEVELS = 3
"""Loops around a backward of which the body may be executed again."""


@dataclass(frozen=True, slots=True)
class Place:
    """The place of a microbatch: in this iteration, after so many other backwards of it."""

    top: Top
    skip: int
    line: int = 0  # of its backward, or of the call that comes to it

    @property
    def refusal(self) -> str:
        """The reason why it cannot be executed again from that top, as far as its code says; "" if
        it can.
        """
        loop = self.top.loop
        before = (reason for line, reason in loop.waits if line < self.line)
        return loop.refusal or next(before, "")


@dataclass(slots=True, eq=False)
class Microbatch:
    """One microbatch of the present transaction as this rank ran it."""

    index: int
    places: tuple[Place, ...]  # the innermost iteration first
    chosen: int = 0  # the one from whose top it is executed again
    noted: "tuple[tuple[Mark, Evidence], ...]" = ()  # by place: its mark as it ended
    gradient: int = 0
    reduces: bool | None = None  # torch reduces at its end (`Strategy.asked_to_reduce`)

    @property
    def place(self) -> Place:
        return self.places[min(self.chosen, len(self.places) - 1)]

    @property
    def top(self) -> Top:
        return self.place.top

    @property
    def shown(self) -> "tuple[tuple[Mark, int], ...]":
        """By place: its mark and its door (`evidence`)."""
        return tuple((mark, evidence.door) for mark, evidence in self.noted)

    @property
    def mark(self) -> "Mark":
        """The mark by which it is known again when it is executed from that top."""
        at = min(self.chosen, len(self.noted) - 1)
        return self.noted[at][0] if self.noted else (0, 0)
