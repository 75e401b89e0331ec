"""Point to point messages, over a communicator of the two ranks alone.

A message cannot be repeated when the members change: the sender may be done long before the
receiver looks. Between two live ranks it need not be, as long as no other rank's loss touches
their connection. So every two ranks that exchange messages have a communicator of their own, made
at the first message and never replaced. A message with a lost rank fails at once.

gloo's works of `send` and `recv` have no future and may block for ever. A thread waits for each of
them, and is left behind if the peer is lost; what it receives goes to private memory first.
"""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Literal

import torch

from ft_collectives.communicators.c10d import Gloo, Work, WorkBase
from ft_collectives.communicators.errors import PeerLost
from ft_collectives.communicators.fabric import Fabric
from ft_collectives.communicators.limits import LONGEST_S, TimedOut
from rendezvous.protocol.views import View

Call = Literal["send", "recv"]


class Message(WorkBase):
    """One message under way, as a c10d `Work` (torch/csrc/distributed/c10d/Work.hpp).

    A work that is made of a Python future would not raise: C++ takes an exception for a result.
    """

    def __init__(self, call: Call, targets: Sequence[torch.Tensor], peer: int, tag: int) -> None:
        super().__init__()
        self.call = call
        self.targets = list(targets)
        self.staged = [_private(tensor) for tensor in targets]
        self.peer = peer
        self.tag = tag
        self.failure: PeerLost | None = None
        self._over = threading.Event()
        self.within_s = LONGEST_S  # where the script gives no limit of its own to `wait`
        self.overdue: Callable[[], TimedOut] | None = None
        self._future: torch.futures.Future[Any] = torch.futures.Future()

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """True, or raises PeerLost, or RuntimeError after `timeout` (zero: the group's limit)."""
        if not self._over.wait(timeout.total_seconds() or self.within_s):
            if self.overdue is not None and not timeout:
                raise self.overdue()
            raise RuntimeError(f"dist.{self.call}: nothing passed within {timeout}")
        if self.failure is not None:
            raise self.failure
        return True

    def is_completed(self) -> bool:
        return self._over.is_set()

    def is_success(self) -> bool:
        return self.is_completed() and self.failure is None

    def exception(self) -> PeerLost | None:
        return self.failure

    def result(self) -> list[torch.Tensor]:
        return self.targets

    def get_future(self) -> "torch.futures.Future[Any]":
        return self._future

    def end(self, failure: str) -> None:
        """Called once. An empty `failure` means that the message has passed."""
        if failure:
            self.failure = PeerLost(f"dist.{self.call}: {failure}")
            self._future.set_exception(self.failure)
        else:
            if self.call == "recv":
                for target, received in zip(self.targets, self.staged, strict=True):
                    target.detach().copy_(received)
            self._future.set_result(self.targets)
        self._over.set()


@dataclass(slots=True, eq=False)
class PeerConnection:
    """The connection with one peer. Messages wait in `backlog`, in order, until it is made."""

    group: Gloo | None = None
    backlog: list[Message] = field(default_factory=list)
    under_way: list[Message] = field(default_factory=list)


class PointToPoint:
    """The messages of this rank within one group; ranks are global."""

    def __init__(self, fabric: Fabric, name: str, limit: Callable[[], timedelta]) -> None:
        """`limit` returns how long the script waits for a message."""
        self._fabric = fabric
        self._name = name
        self._limit = limit
        self._lock = threading.Lock()
        self._connections: dict[int, PeerConnection] = {}
        self._abandoned: list[PeerConnection] = []  # gloo may still be in them
        fabric.on_change.append(self._changed)

    def post(self, call: Call, tensors: Sequence[torch.Tensor], peer: int, tag: int) -> Work:
        """Begin to send `tensors` to `peer`, or to receive them from it.

        Raises PeerLost if `peer` is lost; the work's `wait` does if it dies before the message has
        passed, and raises TimedOut after the group's limit.
        """
        message = Message(call, tensors, peer, tag)
        message.within_s = self._fabric.limits.within_s(self._limit)
        message.overdue = lambda: self._overdue(message)
        with self._lock:
            if peer not in self._fabric.view.live_ranks:
                raise PeerLost(f"dist.{call}: rank {peer} is lost")
            connection = self._connections.get(peer)
            if connection is None:
                connection = self._connections[peer] = PeerConnection()
                self._in_thread(self._connect, connection, peer)
            connection.under_way.append(message)
            if connection.group is None:
                connection.backlog.append(message)
            else:
                self._launch(connection, message)
        return message

    def _overdue(self, message: Message) -> TimedOut:
        fabric, what = self._fabric, f"dist.{message.call}"
        generation, rank = fabric.view.generation, fabric.rank
        return fabric.limits.end(generation, rank, what, message.within_s, [message.peer])

    def _in_thread(self, target: Any, *args: Any) -> None:
        threading.Thread(target=target, args=args, name="recoverrun-pair", daemon=True).start()

    def _connect(self, connection: PeerConnection, peer: int) -> None:
        low, high = sorted((self._fabric.rank, peer))
        try:
            store = self._fabric.store_for_peers(f"{self._name}/pair{low}-{high}")
            group = self._fabric.connect(store, int(self._fabric.rank == high), 2)
        except (RuntimeError, OSError) as failure:  # gloo and the store raise these
            with self._lock:
                if self._connections.get(peer) is connection:
                    del self._connections[peer]
            self._fail(connection, f"rank {peer} cannot be reached: {failure}")
            return
        with self._lock:
            connection.group = group
            for message in connection.backlog:
                self._launch(connection, message)
            connection.backlog.clear()

    def _launch(self, connection: PeerConnection, message: Message) -> None:
        """Hand `message` to gloo, which matches messages of one tag in the order of launches."""
        other = int(message.peer > self._fabric.rank)
        try:
            work = getattr(connection.group, message.call)(message.staged, other, message.tag)
        except RuntimeError as failure:
            self._in_thread(self._end, connection, message, f"rank {message.peer}: {failure}")
            return
        self._in_thread(self._await, connection, message, work)

    def _await(self, connection: PeerConnection, message: Message, work: Work) -> None:
        try:
            work.wait()
        except RuntimeError as failure:
            self._end(connection, message, f"rank {message.peer}: {failure}")
        else:
            self._end(connection, message, "")

    def _changed(self, view: View) -> None:
        """A newer view holds: fail the messages with ranks that it has lost."""
        with self._lock:
            lost = {peer: p for peer, p in self._connections.items() if peer not in view.live_ranks}
            for peer in lost:
                del self._connections[peer]
            self._abandoned += lost.values()
        for peer, connection in lost.items():
            self._fail(connection, f"rank {peer} is lost")

    def _fail(self, connection: PeerConnection, reason: str) -> None:
        for message in list(connection.under_way):
            self._end(connection, message, reason)

    def _end(self, connection: PeerConnection, message: Message, failure: str) -> None:
        """Complete `message`, unless another thread has."""
        with self._lock:
            if message not in connection.under_way:
                return
            connection.under_way.remove(message)
        message.end(failure)


def _private(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().clone(memory_format=torch.contiguous_format)
