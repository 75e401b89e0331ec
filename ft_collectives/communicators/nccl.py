"""NCCL communicators that are aborted when the members change, and made anew.

Theory of operation (from torch's and NCCL's source; tried on one GPU, see docs/gpu.md). NCCL can
be aborted, gloo cannot. A work of NCCL is complete as soon as it is enqueued, so an event of our
own is polled instead, on a side stream that waits for the work. An abort ends the kernel and lets
the event pass, with garbage in the output; the kernel of a member that aborts may let a neighbour's
event pass as well. So an event that has passed proves nothing by itself: the generation must still
be the same (it ends before the abort begins), and a result counts only once all members have voted
for it, over gloo.

An abort may block without limit: it has a thread of its own. A launch and an abort of one
communicator never run at the same time, because NCCL frees what the launch is using. Nothing else
is called on a communicator, because each call waits for the abort with Python's lock held.

What needs a GPU is behind `Library`; unit tests run the rest with a stand-in.
"""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from queue import Empty, SimpleQueue
from typing import Any, Protocol

import torch
from torch._C import _distributed_c10d

from ft_collectives.communicators.c10d import Work
from ft_collectives.communicators.channel import Channel, Pending, Serving
from ft_collectives.communicators.errors import Superseded

SHORTEST_S, LONGEST_S = 50e-6, 1e-3
"""Pauses between polls of an event: short at first, doubled up to the longest."""

ABORT_WITHIN_S = 10.0
"""A new communicator waits so long for the end of the old one, then it is made beside it."""

LAUNCH_WITHIN_S = 5.0
"""An abort waits so long for a launch to return, which may hang as well."""

_library: Any = _distributed_c10d

_left_behind: list[object] = []
"""Aborted groups, whose destructor waits for a watchdog that may never end, and their memory."""


class StreamEvent(Protocol):
    """A mark in a stream, such as `torch.cuda.Event`."""

    def query(self) -> bool:
        """True if all that was enqueued before it is over."""


class Library(Protocol):
    """The calls that need a GPU, or a stand-in for one."""

    def group(self, store: Any, rank: int, size: int) -> Any:
        """Return a c10d backend, which may connect at its first operation. Raises RuntimeError."""

    def warm_up(self, group: Any) -> Work:
        """Begin a small operation of all members, which connects them."""

    def stamp(self, group: Any, work: Work) -> StreamEvent:
        """Return an event that passes when what `work` has enqueued is over."""

    def failure(self, group: Any) -> str:
        """Return the error of `group` so far, or "". Never blocks."""

    def refusal(self) -> str:
        """Return why no operation can begin now, or ""."""


@dataclass(slots=True, eq=False)
class DeviceCommunicator:
    """The communicator of one generation. A thread that holds `gate` is in NCCL with it."""

    generation: int
    group: Any
    gate: threading.Lock = field(default_factory=threading.Lock)
    leaving: bool = False  # no operation begins any more
    gone: threading.Event = field(default_factory=threading.Event)  # the abort has returned


class Nccl:
    """`Library` over torch's ProcessGroupNCCL, on `device`."""

    def __init__(self, device: torch.device, timeout: timedelta) -> None:
        self._device = device
        self._timeout = timeout
        self._sides: dict[int, torch.cuda.Stream] = {}  # of each group: one that hangs holds one up
        # The tensor that warmed each group up. torch lets go of it once the side stream waits, and
        # then the script's stream, which does not wait, could be given the memory that NCCL writes.
        self._first: dict[int, torch.Tensor] = {}

    def group(self, store: Any, rank: int, size: int) -> Any:
        options = _library.ProcessGroupNCCL.Options()
        options.config.blocking = 0  # a member that never comes is given up
        options._timeout = self._timeout
        made = _library.ProcessGroupNCCL(store, rank, size, options)
        self._sides[id(made)] = torch.cuda.Stream(self._device)
        self._first[id(made)] = torch.zeros(1, device=self._device)
        return made

    def warm_up(self, group: Any) -> Work:
        with torch.cuda.device(self._device):
            return group.allreduce([self._first[id(group)]], _library.AllreduceOptions())

    def stamp(self, group: Any, work: Work) -> StreamEvent:
        side, event = self._sides[id(group)], torch.cuda.Event()
        with torch.cuda.stream(side):
            work.wait()  # only the stream waits
            event.record(side)
        return event

    def failure(self, group: Any) -> str:
        error = group.get_error()  # what the watchdog saw last
        return "" if error == _library.ErrorType.SUCCESS else f"NCCL: {error.name}"

    def refusal(self) -> str:
        if torch.cuda.is_current_stream_capturing():
            return "a protected collective cannot be part of a CUDA graph"
        return ""


class StreamOperation:
    """An operation under way on a stream (`channel.DeviceOperation`)."""

    def __init__(
        self, stamp: StreamEvent, trouble: Callable[[], str], memory: "HeldMemory"
    ) -> None:
        self._stamp = stamp
        self._trouble = trouble
        self._held_memory = memory
        self._failure = ""

    def passed(self) -> bool:
        return self._stamp.query()

    def wait(self, bell: "SimpleQueue[object]", within_s: float) -> None:
        """Wait until it is over or has failed, or `bell` rings. Raises Empty after `within_s`."""
        pause, until = SHORTEST_S, time.monotonic() + within_s
        while not self._stamp.query():
            if time.monotonic() > until:
                raise Empty
            self._failure = self._trouble()
            if self._failure:
                return
            try:
                bell.get(timeout=pause)
                return
            except Empty:
                pause = min(2 * pause, LONGEST_S)

    def conclude(self) -> None:
        """Raise RuntimeError if it failed."""
        failure = self._failure or self._trouble()
        if failure:
            raise RuntimeError(failure)

    def keep(self, staged: Sequence[torch.Tensor]) -> None:
        self._held_memory.until(self._stamp, staged)


class FailedLaunch:
    """An operation that failed as it began. The device may have part of it: it never passes."""

    def __init__(self, failure: str) -> None:
        self._failure = failure

    def passed(self) -> bool:
        return False

    def wait(self, bell: "SimpleQueue[object]", within_s: float) -> None:
        return

    def conclude(self) -> None:
        """Raise RuntimeError with what failed."""
        raise RuntimeError(self._failure)

    def keep(self, staged: Sequence[torch.Tensor]) -> None:
        _left_behind.append(list(staged))


class HeldMemory:
    """Memory that the device may still use; checked whenever more is added."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._memory: list[tuple[StreamEvent, list[torch.Tensor]]] = []

    def until(self, stamp: StreamEvent, staged: Sequence[torch.Tensor]) -> None:
        """Keep `staged` until the event `stamp` has passed."""
        with self._lock:
            self._memory.append((stamp, list(staged)))
        self.look()

    def look(self) -> list[torch.Tensor]:
        """Let go of what the device is done with; return what it still uses."""
        with self._lock:
            self._memory = [(stamp, held) for stamp, held in self._memory if not stamp.query()]
            return [tensor for _, held in self._memory for tensor in held]


class NcclChannel:
    """The NCCL communicators of one channel, one for each generation (`channel.Accelerator`)."""

    def __init__(self, library: Library) -> None:
        self._library = library
        self._lock = threading.Lock()
        self._links: list[DeviceCommunicator] = []  # in use, or being connected
        self._leaving: list[DeviceCommunicator] = []  # being aborted
        self.held_memory = HeldMemory()

    def connect(
        self, generation: int, store: Any, place: int, size: int, wanted: Callable[[], bool]
    ) -> DeviceCommunicator | None:
        """Return a communicator over which an operation has passed, or None if no more `wanted`.

        Raises RuntimeError. Blocks: for the builder thread only.
        """
        self._await_aborts(wanted)
        link = DeviceCommunicator(generation, self._library.group(store, place, size))
        with self._lock:
            self._links.append(link)
        if not wanted():  # whoever ended this generation has not seen the link
            self.drop(before=generation + 1)
            return None
        try:
            operation = self._begin_operation(link, self._library.warm_up)
            bell: SimpleQueue[object] = SimpleQueue()
            while wanted() and not operation.passed():
                operation.conclude()
                _pause(bell)
        except (RuntimeError, Superseded):
            self.drop(before=generation + 1)
            if wanted():
                raise
        self.held_memory.look()
        return link if wanted() else None

    def drop(self, before: int) -> None:
        """Abort the communicators of generations `before` this one, each in its own thread."""
        with self._lock:
            old = [link for link in self._links if link.generation < before]
            self._links = [link for link in self._links if link not in old]
            self._leaving += old
            _left_behind.extend(link.group for link in old)
        for link in old:
            link.leaving = True
            threading.Thread(
                target=self._abort, args=(link,), name="recoverrun-abort", daemon=True
            ).start()

    def launch(
        self, serving: Serving, channel: Channel, generation: int, start: Callable[[Any], Work]
    ) -> Pending:
        """Launch as `Fabric.launch` does, on the device; `serving` is `Fabric.serving`."""
        now = serving(channel, generation)
        if now.group is None:
            return Pending()
        link: DeviceCommunicator = now.device
        refusal = self._library.refusal()
        if refusal:
            raise RuntimeError(refusal)
        try:
            return Pending(on_device=self._begin_operation(link, start))
        except RuntimeError as failure:
            serving(channel, generation)  # raises Superseded: an abort came in between
            return Pending(on_device=FailedLaunch(str(failure)))

    def _begin_operation(
        self, link: DeviceCommunicator, start: Callable[[Any], Work]
    ) -> StreamOperation:
        """Begin an operation. Raises Superseded if an abort of `link` has begun."""
        library, group = self._library, link.group
        with link.gate:
            if link.leaving:
                raise Superseded
            stamp = library.stamp(group, start(group))
        return StreamOperation(stamp, lambda: library.failure(group), self.held_memory)

    def _await_aborts(self, wanted: Callable[[], bool]) -> None:
        """Wait for aborts to end before a group is made on the device, up to ABORT_WITHIN_S."""
        until = time.monotonic() + ABORT_WITHIN_S
        with self._lock:
            leaving = list(self._leaving)
        for link in leaving:
            while wanted() and time.monotonic() < until and not link.gone.wait(0.05):
                pass
        if wanted():
            with self._lock:  # what is not gone by now is left behind
                self._leaving = [link for link in self._leaving if link not in leaving]

    def _abort(self, link: DeviceCommunicator) -> None:
        if link.gate.acquire(timeout=LAUNCH_WITHIN_S):  # nobody is in NCCL with it, or will be
            link.gate.release()
        try:
            link.group.abort()
        except RuntimeError:
            return  # torch gave up after its own time-out; it is not gone
        link.gone.set()


def _pause(bell: "SimpleQueue[object]") -> None:
    """Sleep, with Python's lock free."""
    try:
        bell.get(timeout=LONGEST_S)
    except Empty:
        return
