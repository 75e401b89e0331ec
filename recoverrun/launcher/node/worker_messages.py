"""Messages between a launcher and the workers of its node."""

import re
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from recoverrun.launcher.node.process import Child
from rendezvous.protocol import codec
from rendezvous.protocol.arrival_messages import Held, Ready
from rendezvous.protocol.hang_messages import Stack
from rendezvous.protocol.messages import (
    Broken,
    Committed,
    Discord,
    Farewell,
    Hello,
    Message,
    Notice,
    Overdue,
    PeerFault,
    Report,
    Topology,
    Verdict,
)
from rendezvous.protocol.records import Record
from rendezvous.protocol.snapshot_messages import Restored
from rendezvous.protocol.store_messages import StoreAnswer, StoreCall
from rendezvous.transport.links import Incoming, Router

FROM_WORKERS = (
    Hello, Topology, Verdict, Notice, PeerFault, Farewell, Report, Committed, Broken, Discord,
    Overdue, Stack, Ready, Held, Restored,
)  # fmt: skip


HELD_MOST = 1000
"""Messages that wait for a worker that has not connected yet."""


BATCH = 256
"""Messages taken at once, so that deaths and signals never wait behind a flood."""


_IDENTITY = re.compile(rb"([cos])([0-9]{1,9})\.([0-9]{1,9})(?:\.[0-9]{1,18})?")


@dataclass(slots=True)
class Worker:
    """One process of a rank of this node."""

    rank: int
    incarnation: int
    child: Child
    context: str
    error_file: str
    stderr: Path | None = None  # None: the launcher's own
    died_at: float = 0.0  # not earlier than that, monotonic seconds
    hello: bool = False
    program: str = ""  # that runs in its process, as it said hello
    farewell: bool = False
    ended: bool = False
    fell: bool = False  # it ended with an error, and not by our hand
    complained: bool = False
    hung: bool = False  # it is ended because it hangs
    shown: int = 0  # the newest suspicion in which it has shown its stacks
    ends_asked: int = 0  # so often it was told to end, after its script had
    forwarded: tuple[int, bool] = (-1, True)  # newest context elsewhere: step, after its commit
    held: deque[bytes] = field(default_factory=lambda: deque(maxlen=HELD_MOST))
    # By serial: the store socket that asked, and what.
    asked: dict[int, tuple[bytes, StoreCall]] = field(default_factory=dict)

    @property
    def control(self) -> bytes:
        return b"c%d.%d" % (self.rank, self.incarnation)


class WorkerMessages:
    """The messages of the `workers` of one node, by rank. A message that a worker may not send is
    dropped.
    """

    def __init__(
        self, router: Router, workers: Mapping[int, Worker], record: Callable[[Record], None]
    ) -> None:
        self._router = router
        self._workers = workers
        self._record = record

    def wait(self, until: float) -> bool:
        """Wait for a message until then, on the monotonic clock. True if there is one in time."""
        left_s = until - time.monotonic()
        return left_s > 0 and self._router.wait(left_s)

    def received(self, most: int) -> Iterator[tuple[Worker, Message]]:
        """Yield what workers sent, checked, with its sender."""
        for _ in range(most):
            incoming = self._router.receive()
            if incoming is None:
                break
            worker, kind = self._speaker(incoming)
            if worker is None:
                continue
            if kind == b"c":
                self._reached(worker)
                continue
            message = self._message(worker, kind, incoming)
            if message is not None:
                yield worker, message

    def deliver(self, rank: int, message: Message) -> None:
        """Send to a worker, as soon as it can be reached."""
        worker = self._workers.get(rank)
        if worker is None or worker.ended:
            return
        frame = codec.encode(message)
        if isinstance(message, StoreAnswer):
            asker, _ = worker.asked.pop(message.serial, (b"", None))
            if asker:
                self._router.send(asker, frame)
        elif worker.held or not self._router.send(worker.control, frame):
            worker.held.append(frame)

    def unanswered(self) -> list[StoreCall]:
        """The store calls of workers that wait for an answer."""
        workers = (worker for worker in self._workers.values() if not worker.ended)
        return [call for worker in workers for _, call in worker.asked.values()]

    def _reached(self, worker: Worker) -> None:
        """Send what waited for a control socket, which is connected now."""
        while worker.held and self._router.send(worker.control, worker.held[0]):
            worker.held.popleft()

    def _speaker(self, incoming: Incoming) -> tuple[Worker | None, bytes]:
        match = _IDENTITY.fullmatch(incoming.sender)
        worker = self._workers.get(int(match[2])) if match is not None else None
        if match is None or worker is None:
            return None, b""
        if worker.ended or int(match[3]) != worker.incarnation:
            return None, b""
        return worker, match[1]

    def _message(self, worker: Worker, kind: bytes, incoming: Incoming) -> Message | None:
        """The message if it is one that this worker may send on this socket."""
        try:
            message = codec.decode(incoming.frames[-1] if incoming.frames else b"")
        except codec.RemoteProtocolError as error:
            self._complain(worker, str(error))
            return None
        allowed = isinstance(message, StoreCall if kind == b"s" else FROM_WORKERS)
        if not allowed or getattr(message, "rank", None) != worker.rank:
            self._complain(worker, f"{type(message).__name__} is not for it to send")
            return None
        if isinstance(message, StoreCall):
            worker.asked[message.serial] = (incoming.sender, message)
        return message

    def _complain(self, worker: Worker, words: str) -> None:
        """Complain once for each worker: whoever sends garbage sends much of it."""
        if not worker.complained:
            worker.complained = True
            reason = f"a message of rank {worker.rank} was dropped: {words}"
            self._record(Record("notice.give", reason, {"rank": worker.rank}))
