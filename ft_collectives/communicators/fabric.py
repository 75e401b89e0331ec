"""Communicators that are replaced when the members change, and waits that end when they do.

Theory of operation. gloo cannot abort: a survivor in the middle of a transfer with a dead peer can
stay in it until the group's timeout, and the destructor of a group with such an operation blocks as
long (ProcessGroupGloo of torch 2.13 does not override `Backend::abort`, and gloo's
`Pair::signalException` does not wake unbound buffers in transfer). So no thread that must survive
blocks in gloo: an operation is launched asynchronously on private staging memory, and the waiting
thread sleeps until a bell rings, for its completion or for a new View. What is stuck is left
behind, with its memory, in `_kept_groups` and `left_memory`; the process ends by `os._exit`.

For every View a builder thread connects every channel anew under a fresh store prefix, so that no
late byte of an older generation can meet a newer one. Connecting blocks in C++ as well, and happens
in a thread that can be left behind when yet another View arrives. It makes one immutable
`Communicator` and puts it into its channel at once: a holder of one never mixes two generations.
"""

import itertools
import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from queue import Empty, SimpleQueue
from typing import Any

from ft_collectives.communicators import gloo_threads
from ft_collectives.communicators.c10d import Gloo, PrefixStore, Work, connect
from ft_collectives.communicators.channel import (
    Accelerator,
    Channel,
    Communicator,
    Pending,
    Start,
    Totals,
    arranged,
    exchange,
)
from ft_collectives.communicators.errors import Superseded
from ft_collectives.communicators.left_memory import LeftMemory
from ft_collectives.communicators.limits import TimeLimits, is_time
from ft_collectives.communicators.waits import Waits
from rendezvous.protocol.layout import FIRST_GENERATION
from rendezvous.protocol.progress_page import ProgressWriter
from rendezvous.protocol.side_threads import begin_thread
from rendezvous.protocol.views import View

HINT_AFTER_S = 0.5
"""A failed collective waits so long for a new View before it asks the launcher for one."""

HINT_AGAIN_S = 5.0
"""A hint that brings no new generation is repeated: a message may be lost."""

_kept_groups: list[object] = []
"""Groups that gloo may still use; never freed (see above)."""


class Fabric:
    """All channels of this process: connects them for each View, and waits for operations."""

    def __init__(
        self,
        *,
        rank: int,
        view: View,
        store: Callable[[int], Any],
        changed: threading.Condition,
        limits: TimeLimits,
        on_hint: Callable[[int, str], None],
        progress: ProgressWriter | None = None,
        withdraw: Callable[[str], None] | None = None,
        since: Callable[[], int] = lambda: 0,
    ) -> None:
        """`store(generation)` returns the c10d store of a generation; 0 outlives all of them.

        `changed` is notified of every change here. `on_hint` asks the launcher, by generation and
        reason, to let the members meet anew. `progress` is told of waits. A process that came back
        is there `since()` that generation, and `withdraw` ends it, for this reason: it goes another
        way than those that stayed.
        """
        self.rank = rank
        self.view = view
        self.changed = changed
        self.rebuild_ms = 0.0
        self.limits = limits
        self.withdraw = withdraw
        self.since = since
        self.on_change: list[Callable[[View], None]] = []
        self.channels: list[Channel] = []  # in the order in which they are connected
        marks = progress or ProgressWriter("")
        self.waits = Waits(rank, limits, lambda: self.view, marks, self.channels)
        self.memory = LeftMemory(changed)
        self._store = store
        self._on_hint = on_hint
        self._devices: Sequence[Any] = ()
        self._bells: list[SimpleQueue[object]] = []  # of those who wait
        self._turn = threading.Lock()  # one builder at a time; a new one for every generation
        self._failure: BaseException | None = None

    # --------------------------------------------------------------------------- members

    def change(self, view: View) -> None:
        """Take a newer View: every wait of the older generation ends. Older Views are ignored."""
        with self.changed:
            if view.generation <= self.view.generation:
                return
            self.view = view
            self._turn = threading.Lock()  # the old one may be held by a builder that is stuck
            self._failure = None
            self.changed.notify_all()
            for bell in self._bells:
                bell.put(None)
            channels = list(self.channels)
            listeners = list(self.on_change)
        for channel in channels:
            if channel.over is not None:  # its view is over: what an abort completes is not taken
                channel.over.drop(before=view.generation)
        if channels:
            self._build_in_thread()
        for listener in listeners:
            listener(view)

    def open(
        self,
        name: str,
        ranks: Sequence[int],
        on_align: Callable[[], Totals] | None = None,
        *,
        over: Accelerator | None = None,
        limit: Callable[[], timedelta] | None = None,
        what: str = "",
    ) -> Channel:
        """Return a new channel. Every member opens its channels in the same order."""
        channel = Channel(
            name=name, ranks=tuple(ranks), on_align=on_align, over=over, limit=limit, what=what
        )
        with self.changed:
            self.channels.append(channel)
        self._build_in_thread()
        return channel

    def unused(self, name: str) -> str:
        """`name`, with a number if a channel has it already: of a group that was destroyed, and
        that torch, which counts anew, calls the same as the next one.
        """
        taken = {channel.name for channel in self.channels}
        names = itertools.chain([name], (f"{name} ({again})" for again in itertools.count(2)))
        return next(one for one in names if one not in taken)

    def arrange(self, names: Sequence[str]) -> None:
        """Connect in this order: who comes later has opened its own in another. See `arranged`."""
        with self.changed:
            self.channels[:] = arranged(self.channels, names)

    def adopt(
        self,
        name: str,
        ranks: Sequence[int],
        group: Gloo,
        on_align: Callable[[], Totals] | None = None,
        limit: Callable[[], timedelta] | None = None,
    ) -> Channel:
        """Return a channel that uses `group` in the first generation.

        Only in the first: a rank that hears of a loss before it gets here must not use a group that
        the others, who got here before, have replaced.
        """
        channel = Channel(name=name, ranks=tuple(ranks), on_align=on_align, limit=limit)
        with self.changed:
            first = self.view.generation == FIRST_GENERATION
            if first:
                channel.now = Communicator(FIRST_GENERATION, channel.ranks, group)
            self.channels.append(channel)
        _kept_groups.append(group)
        if not first:
            self._build_in_thread()
        return channel

    def share_devices(self, group: Gloo) -> None:
        """Connect over the gloo devices of the native `group` from now on."""
        self._devices = self._devices or group.options._devices
        gloo_threads.schedule_as_batch()

    def connect(self, store: Any, rank: int, size: int) -> Gloo:
        """Return a new gloo group. Blocks until all members connect.

        Raises RuntimeError or OSError, as gloo and the store do.
        """
        longest = self.limits.longest
        made = connect(store, rank, size, timeout=longest, devices=self._devices)
        gloo_threads.schedule_as_batch()
        return made

    def store_for_peers(self, name: str) -> Any:
        """Return a store that outlives generations, for the connection of two ranks."""
        return PrefixStore(f"recoverrun/{name}/", self._store(0))

    def _build_in_thread(self) -> None:
        with self.changed:
            view, turn = self.view, self._turn  # together: a turn belongs to one generation
            if begin_thread("recoverrun-build", self._build, view, turn) is None:
                self._failure = RuntimeError("can't start new thread")
                self.changed.notify_all()

    def _build(self, view: View, turn: threading.Lock) -> None:
        """Connect the channels that do not serve `view` yet, in the order of their opening."""
        started = time.monotonic()
        try:
            with turn:
                for channel in list(self.channels):
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
        live = set(view.live_ranks) - set(view.ended)
        members = tuple(rank for rank in channel.ranks if rank in live)
        group = None
        with self.changed:  # what was done in older generations is written under this lock
            mine = channel.on_align() if channel.on_align is not None else ()
        aligned: tuple[Totals, ...] = (mine,)
        if len(members) > 1 and self.rank in members:
            store = PrefixStore(f"{_prefix(channel)}/", self._store(view.generation))
            group = self.connect(store, members.index(self.rank), len(members))
            _kept_groups.append((group, store))
            if mine:
                aligned = exchange(group, len(members), mine)
        device = None
        if group is not None and channel.over is not None:
            device = self._connect_device(channel.over, channel, view, members)
        with self.changed:
            if not self._current(view):
                return
            channel.serve(Communicator(view.generation, members, group, aligned, device))
            self.changed.notify_all()

    def _connect_device(
        self, over: Accelerator, channel: Channel, view: View, members: tuple[int, ...]
    ) -> Any:
        store = PrefixStore(f"{_prefix(channel)}/device/", self._store(view.generation))
        _kept_groups.append(store)
        place = members.index(self.rank)
        return over.connect(
            view.generation, store, place, len(members), lambda: self._current(view)
        )

    # --------------------------------------------------------------------------- operations

    def ready(self, channel: Channel) -> int:
        """Wait until `channel` serves the present generation; return that generation."""
        return self.meet(channel).generation

    def meet(self, channel: Channel) -> Communicator:
        """Wait as `ready` does; return the communicator. Raises TimedOut."""
        with self.changed:
            while channel.generation != self.view.generation:
                generation = self.view.generation
                if self._failure is None:
                    self._await_connection(channel, generation)
                else:
                    self._await_change(channel, generation, f"{channel.name}: {self._failure}")
            return channel.now

    def _await_connection(self, channel: Channel, generation: int) -> None:
        """Wait until `channel` serves `generation`, fails to, or another generation begins."""
        with self.waits.on(channel, 0) as within_s:
            over = self.changed.wait_for(
                lambda: (
                    channel.generation == generation
                    or self.view.generation != generation
                    or self._failure is not None
                ),
                timeout=within_s,
            )
        if not over:
            raise self.waits.overdue(channel)

    def leave(self) -> int:
        """Meet all members that may wait for this rank, whose script has ended.

        Return the generation in which it is not needed any more.
        """
        while True:
            met = {self.ready(channel) for channel in list(self.channels)}
            with self.changed:
                if met <= {self.view.generation}:
                    return self.view.generation

    def launch(self, channel: Channel, generation: int, start: Callable[[Gloo], Work]) -> Pending:
        """Begin an operation of `generation`. It is complete if this rank is the only member.

        Raises Superseded if the generation is over, and RuntimeError if gloo refuses it.
        """
        begun = self.begin(channel, generation, lambda now: [start(now.group)])
        return begun[0] if begun else Pending()

    def begin(self, channel: Channel, generation: int, start: Start) -> list[Pending]:
        """Begin as `launch` does, for several operations; none of them if this rank is the only
        member.
        """
        now = self.serving(channel, generation)
        if now.group is None:
            return []
        pendings = []
        for work in start(now):
            assert work is not None, "gloo returns a work for every operation"
            channel.begun += 1
            pending = Pending(
                work=work, future=work.get_future(), channel=channel, number=channel.begun
            )
            pending.future.add_done_callback(pending.bell.put)
            pendings.append(pending)
        return pendings

    def serving(self, channel: Channel, generation: int) -> Communicator:
        """Return the communicator of `generation`. Raises Superseded if that is over."""
        with self.changed:
            now = channel.now
            if generation != self.view.generation or now.generation != generation:
                raise Superseded
        return now

    def finish(self, pendings: Sequence[Pending], generation: int) -> None:
        """Wait for operations of `generation`.

        Raises Superseded if a newer generation begins first, also after an error of gloo, and
        TimedOut if other members do not join within the channel's limit.
        """
        for pending in pendings:
            self._await(pending, generation)
        if self.view.generation != generation:
            raise Superseded
        for pending in pendings:
            try:
                pending.conclude()
            except RuntimeError as failure:
                if is_time(str(failure)):
                    raise self.waits.overdue(pending.channel) from failure
                self._await_next_view(pending.channel, generation, str(failure))

    def _await(self, pending: Pending, generation: int) -> None:
        with self.changed:  # a new View rings for those who are in the list by then
            if pending.done or self.view.generation != generation:
                return
            self._bells.append(pending.bell)
        try:
            with self.waits.on(pending.channel, pending.number) as within_s:
                if pending.on_device is None:
                    pending.bell.get(timeout=within_s)
                else:
                    pending.on_device.wait(pending.bell, within_s)
        except Empty:
            raise self.waits.overdue(pending.channel) from None
        finally:
            with self.changed:
                self._bells.remove(pending.bell)

    def _await_next_view(self, channel: Channel | None, generation: int, reason: str) -> None:
        """A peer's socket failed: wait for a new View, or ask for one. Raises Superseded."""
        with self.changed:
            self._await_change(channel, generation, reason)
        raise Superseded(reason)

    def _await_change(self, channel: Channel | None, generation: int, reason: str) -> None:
        """Wait for a newer generation, and give hints until it comes. Raises TimedOut."""
        words = reason.splitlines()[0][:200] if reason else "collective failed"
        with self.waits.on(None, 0, "other members"):
            patience, until = HINT_AFTER_S, time.monotonic() + self.waits.within_s(channel)
            while not self.changed.wait_for(
                lambda: self.view.generation != generation, timeout=patience
            ):
                if time.monotonic() > until:
                    raise self.waits.overdue(channel)
                self._on_hint(generation, words)
                patience = HINT_AGAIN_S


def _prefix(channel: Channel) -> str:
    """The channel's place in a store: those of several replicas may have one name."""
    return f"recoverrun/{channel.name}/{channel.ranks[0]}"
