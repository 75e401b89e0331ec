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
    from recoverrun.worker.context.evidence import IterationEvidence, Mark
    from recoverrun.worker.context.slot_context import Context, Key, Path
    from recoverrun.worker.data.source import Source
    from recoverrun.worker.rng.streams import Streams
    from recoverrun.worker.tracking.trained_loops import TrainedLoop

    Switches = tuple[list[dtype | None], Callable[[], AbstractContextManager[None]], Modes]


CONTAINERS = (list, dict, set)
"""Kinds of values that code changes where they lie."""


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
    positions: "list[tuple[Source, int]]"  # items that each source had given as the body began
    draws: list[Draw]  # made by the loop's header for this iteration
    ahead: list[Draw]  # made before the iteration; one of them may have fetched its item
    drew: bool = False  # the body took an item from a source
    heard: int = 0  # collectives of the script so far, as the iteration began
    seeded: bool = False  # torch's streams were seeded before anything was drawn
    switches: "Switches | None" = None  # see `step.switches`
    context: "Context | None" = None  # of this rank, captured as the iteration began
    made: Counter[str] = field(default_factory=Counter)  # generators so far, by place in the code
    evidence: "IterationEvidence | None" = None  # collected while the iteration runs
    synced: tuple[int, ...] = ()  # see `ForwardSync.counts`
    iterator_lists: "list[tuple[list[Any], list[Any]]]" = field(default_factory=list)
    """Lists that hold iterators over loaders, and what they held."""
    groups: "list[tuple[Optimizer, list[dict[str, Any]]]]" = field(default_factory=list)
    first_writes: int = 0  # of modules, as the iteration began (`attached_state`)
    containers: dict[str, Any] = field(default_factory=dict)
    """The lists, dicts and sets of which `names` has copies."""


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
    held: list[Draw] = field(default_factory=list)  # before it, of what it iterates over
    adopted: int = 0  # sources of the process so far, as this iteration began
    heard: int = 0
    backwards: int = 0  # backward passes in this iteration so far
    begun: int = 0  # iterations counted by `LoopStack.attempt` since the last backward
    seeded: bool = False
    counts: dict[int, int] = field(default_factory=dict)  # items by source, before the header
    tested: dict[int, int] | None = None  # items each source gave for the first test of a `while`
    opened: int = 0  # loader iterators of the process so far, as this iteration began
    trained: "dict[int, TrainedLoop]" = field(default_factory=dict)  # in this iteration, by number
    number: int = -1  # position in the order in which this process's loops began
    top: Top | None = None
    fetches: bool = False  # a `for` asks for its next item
    over: Any = None  # the iterable of a `for`
    items: Any = None  # its iterator


LEVELS = 3
"""Loops around a backward of which the body may be executed again."""


@dataclass(frozen=True, slots=True)
class MicrobatchPlace:
    """A microbatch's place: an iteration, and the number of backward passes before it there."""

    top: Top
    skip: int
    line: int = 0  # of its backward, or of the call in the loop's body that leads to it

    @property
    def refusal(self) -> str:
        """The reason why it cannot be executed again from that top, as far as its code says; "" if
        it can.
        """
        loop = self.top.loop
        before = (reason for line, reason in loop.waits if reason and line < self.line)
        return loop.refusal or next(before, "")


@dataclass(slots=True, eq=False)
class Microbatch:
    """One microbatch of the present transaction as this rank ran it."""

    index: int
    places: tuple[MicrobatchPlace, ...]  # the innermost iteration first
    chosen: int = 0  # index in `places` of the iteration that is executed again for it
    noted: "tuple[tuple[Mark, IterationEvidence], ...]" = ()  # as each place ended
    inputs: int = 0  # digest of what entered the model since the backward before
    gradient: int = 0
    reduces: bool | None = None  # `Strategy.asked_to_reduce` as it ended

    @property
    def place(self) -> MicrobatchPlace:
        return self.places[min(self.chosen, len(self.places) - 1)]

    @property
    def top(self) -> Top:
        return self.place.top

    @property
    def items(self) -> list[tuple[str, Any]]:
        """The variables that the loops around it bind for each iteration, with their values."""
        tops = [place.top for place in self.places]
        bound = [(one.names, name) for one in tops for name in sorted(one.loop.targets)]
        return [(name, names[name]) for names, name in bound if name in names]

    @property
    def shown(self) -> "tuple[tuple[Mark, int], ...]":
        """By place: the mark, and the digest of what entered the model (`evidence`)."""
        return tuple((mark, evidence.door) for mark, evidence in self.noted)

    @property
    def mark(self) -> "Mark":
        """The mark by which it is known again when it is executed from that top."""
        at = min(self.chosen, len(self.noted) - 1)
        return self.noted[at][0] if self.noted else (0, 0)
