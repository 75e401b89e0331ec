"""Communicators that are replaced when the members change, and waits that end when they do.

Theory of operation. gloo cannot abort: a survivor in the middle of a transfer with a dead peer can
sit in it until the group's timeout, and the destructor of a group with such an operation blocks as
long (ProcessGroupGloo of torch 2.13 does not override `Backend::abort`, and gloo's
`Pair::signalException` does not wake unbound buffers in transfer). So nothing here ever blocks in
gloo on a thread that must survive: an operation is launched asynchronously on private staging
memory, its completion sets a flag of our own, and the waiting thread sleeps on a condition variable
that a new View also wakes.
What is stuck is left behind, with its memory, in `_graveyard`; the process ends by `os._exit`.

For every View a builder thread connects every channel anew under a fresh store prefix, so that no
late byte of an older generation can meet a newer one. Connecting blocks in C++ as well; it happens
in a thread that can be left behind when yet another View arrives.
"""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import torch

from ft_collectives.c10d import Gloo, PrefixStore, ProcessGroupGloo, Work
from ft_collectives.faults import Superseded
from rendezvous.messages import View

HINT_AFTER_S = 0.5
"""A failed collective waits this long for the launcher's word before it asks for a new meeting."""

_graveyard: list[object] = []
"""Groups and buffers that gloo may still touch; never freed (see above)."""


@dataclass(slots=True, eq=False)
class Pending:
    """An operation under way; `done` is set by gloo's thread, before `Work.is_completed`."""

    work: Work
    done: bool = False


@dataclass(slots=True, eq=False)
class Channel:
    """One communicator among those of `ranks` (global) that are members of the generation.

    `group` is None while this rank is the only member. `aligned` holds, per member, the totals
    that `on_align` supplied when the generation's communicator was connected.
    """

    name: str
    ranks: tuple[int, ...]
    generation: int = 0  # for which `group` is ready
    members: tuple[int, ...] = ()
    group: Gloo | None = None
    on_align: Callable[[], tuple[int, int]] | None = None
    aligned: list[tuple[int, int]] = field(default_factory=list)

    def position(self, rank: int) -> int:
        """Place of the global `rank` among the members."""
        return self.members.index(rank)


class Fabric:
    """All channels of this process. `store(generation)` is private to a generation."""

    def __init__(
        self,
        *,
        rank: int,
        view: View,
        store: Callable[[int], Any],
        changed: threading.Condition,
        timeout: timedelta,
        on_hint: Callable[[int, str], None],
    ) -> None:
        self.rank = rank
        self.view = view
        self.changed = changed
        self.rebuild_ms = 0.0
        self._store = store
        self._timeout = timeout
        self._on_hint = on_hint
        self._channels: list[Channel] = []
        self._turn = threading.Lock()  # one builder at a time; a new one for every generation
        self._failure: BaseException | None = None

    # --------------------------------------------------------------------------- members

    def change(self, view: View) -> None:
        """A newer View holds from now on: every wait of the older generation ends."""
        with self.changed:
            if view.generation <= self.view.generation:
                return
            self.view = view
            self._turn = threading.Lock()  # the old one may be held by a builder that is stuck
            self._failure = None
            self.changed.notify_all()
            idle = not self._channels
        if not idle:
            self._build_in_thread(view)

    def open(self, name: str, ranks: Sequence[int]) -> Channel:
        """A new channel; every member opens its channels in the same order."""
        channel = Channel(name=name, ranks=tuple(ranks))
        with self.changed:
            self._channels.append(channel)
            view = self.view
        self._build_in_thread(view)
        return channel

    def adopt(self, name: str, ranks: Sequence[int], group: Gloo) -> Channel:
        """A channel whose communicator of the present generation exists already."""
        channel = Channel(name=name, ranks=tuple(ranks), group=group, members=tuple(ranks))
        with self.changed:
            if set(ranks) <= set(self.view.live_ranks):
                channel.generation = self.view.generation
            self._channels.append(channel)
        return channel

    def _build_in_thread(self, view: View) -> None:
        with self.changed:
            turn = self._turn
        threading.Thread(
            target=self._build, args=(view, turn), name="recoverrun-build", daemon=True
        ).start()

    def _build(self, view: View, turn: threading.Lock) -> None:
        """Connect what `view` still lacks, in the order in which the channels were opened."""
        started = time.monotonic()
        try:
            with turn:
                for channel in list(self._channels):
                    if self._current(view) and channel.generation != view.generation:
                        self._connect(channel, view)
        except (RuntimeError, OSError) as failure:  # gloo and the store raise these
            with self.changed:
                if self._current(view):
                    self._failure = failure
                    self.changed.notify_all()
            return
        self.rebuild_ms = 1000 * (time.monotonic() - started)

    def _current(self, view: View) -> bool:
        return self.view.generation == view.generation

    def _connect(self, channel: Channel, view: View) -> None:
        live = set(view.live_ranks)
        members = tuple(rank for rank in channel.ranks if rank in live)
        group = None
        aligned: list[tuple[int, int]] = []
        if len(members) > 1 and self.rank in members:
            store = PrefixStore(f"recoverrun/{channel.name}/", self._store(view.generation))
            group = ProcessGroupGloo(
                store, members.index(self.rank), len(members), timeout=self._timeout
            )
            _graveyard.append((group, store))
            if channel.on_align is not None:
                aligned = _exchange(group, len(members), channel.on_align())
        elif channel.on_align is not None:
            aligned = [channel.on_align()]
        with self.changed:
            if self.view.generation != view.generation:
                return
            channel.group, channel.members, channel.aligned = group, members, aligned
            channel.generation = view.generation
            self.changed.notify_all()

    # --------------------------------------------------------------------------- operations

    def ready(self, channel: Channel) -> int:
        """Wait until `channel` serves the present generation; returns that generation."""
        with self.changed:
            while channel.generation != self.view.generation:
                if self._failure is not None:
                    self._hint(self.view.generation, f"{channel.name}: {self._failure}")
                self.changed.wait(timeout=1.0)
            return channel.generation

    def launch(
        self, channel: Channel, generation: int, start: Callable[[Gloo], Work]
    ) -> Pending:
        """Begin an operation of `generation`; alone, it is complete at once.

        Raises Superseded if the generation is over, RuntimeError what gloo says at once.
        """
        with self.changed:
            if generation != self.view.generation or channel.generation != generation:
                raise Superseded
        if channel.group is None:
            return Pending(work=None, done=True)
        pending = Pending(work=start(channel.group))
        assert pending.work is not None, "gloo returns a work for every operation"

        def finished(_: object) -> None:
            with self.changed:
                pending.done = True
                self.changed.notify_all()

        pending.work.get_future().add_done_callback(finished)
        return pending

    def finish(self, pendings: Sequence[Pending], generation: int) -> None:
        """Wait for operations of `generation`; Superseded if a newer one begins first."""
        with self.changed:
            self.changed.wait_for(
                lambda: self.view.generation != generation or all(p.done for p in pendings)
            )
            if self.view.generation != generation:
                raise Superseded
        for pending in pendings:
            if pending.work is None:
                continue
            try:
                pending.work.wait()  # complete: returns at once, or raises what went wrong
            except RuntimeError as failure:
                self._outlive(generation, str(failure))

    def bury(self, staged: list[torch.Tensor]) -> None:
        """Keep memory that an operation may still write to after it was left behind."""
        _graveyard.append(staged)

    def unbury(self, staged: list[torch.Tensor]) -> None:
        """The operation is complete: nobody writes there any more."""
        _graveyard[:] = [thing for thing in _graveyard if thing is not staged]

    def _outlive(self, generation: int, reason: str) -> None:
        """A peer's socket failed: the launcher's word follows. Without it, ask to meet again."""
        with self.changed:
            moved = self.changed.wait_for(
                lambda: self.view.generation != generation, timeout=HINT_AFTER_S
            )
            if not moved:
                self._hint(generation, reason)
                self.changed.wait_for(lambda: self.view.generation != generation)
        raise Superseded

    def _hint(self, generation: int, reason: str) -> None:
        self._failure = None
        self._on_hint(generation, reason.splitlines()[0][:200] if reason else "collective failed")


def _exchange(
    group: Gloo, size: int, mine: tuple[int, int]
) -> list[tuple[int, int]]:
    """All members' totals, in member order. Blocks: for the builder thread only."""
    totals = torch.tensor(mine, dtype=torch.int64)
    others = [torch.empty_like(totals) for _ in range(size)]
    group.allgather([others], [totals]).wait()
    return [(int(one[0]), int(one[1])) for one in others]
