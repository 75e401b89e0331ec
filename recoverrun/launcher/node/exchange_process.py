"""The exchange of this node: started beside the keeper where nodes make parity for each other, and
started again where it ends. All that it has made is the keeper's; what it was making is made again.
"""

import os
import socket
import sys
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from recoverrun.errors import RecoverrunError
from recoverrun.launcher.node.process import Child, spawn
from rendezvous.bays import exchange_line
from rendezvous.bays.packets import Closed
from rendezvous.protocol.codec import RemoteProtocolError
from rendezvous.protocol.exchange_messages import Employ, Trouble
from rendezvous.protocol.formation_messages import Start
from rendezvous.protocol.messages import Message
from rendezvous.protocol.records import Record, notice
from rendezvous.protocol.snapshot_messages import Circle, Exchanging

STARTS, HOUR_S = 5, 3600.0
"""One that ends more often than that within an hour is not started again."""


class NodeExchange:
    """Never waits for it."""

    def __init__(
        self,
        keeper: str,
        employ: Employ,
        *,
        watch: Callable[[int], None],
        unwatch: Callable[[int], None],
        record: Callable[[Record], None],
    ) -> None:
        """`keeper` is the path of the keeper's socket. Raises RecoverrunError."""
        self._keeper, self._employ = keeper, employ
        self._watch, self._unwatch, self._record = watch, unwatch, record
        self._starts: list[float] = []
        self._child: Child | None = None
        self._line: socket.socket | None = None
        self._circle: Circle | None = None
        self.standing: Exchanging | None = None  # as it said last
        self._start(time.monotonic())

    @property
    def pids(self) -> frozenset[int]:
        return frozenset() if self._child is None else frozenset({self._child.pid})

    def read(self, ready: Collection[object]) -> list[Message]:
        """The messages of the exchange for the coordinator."""
        told: list[Message] = []
        if self._line is not None and self._line.fileno() in ready:
            told += self._listen()
        if self._child is not None and self._child.pidfd in ready:
            self._mourn(time.monotonic())
        return told

    def join(self, circle: Circle, start: Start) -> None:
        """The coordinator's word. `start` has the hosts of all others."""
        hosts = tuple(host for _, host, _, _ in start.peers)
        if len(hosts) == len(circle.ports):
            self._circle = replace(circle, node=start.node_rank, hosts=hosts)
            self._say(self._circle)

    def end(self) -> None:
        """The job is over."""
        self._bury()

    # --------------------------------------------------------------------------- the process

    def _start(self, now: float) -> None:
        """Raises RecoverrunError."""
        self._starts = [*(at for at in self._starts if at > now - HOUR_S), now]
        line, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        line.setblocking(False)
        words = str(theirs.fileno()), self._keeper
        command = [sys.executable, "-m", "recoverrun.exchange", *words]
        environ = {n: v for n, v in os.environ.items() if n != "RECOVERRUN_ENDPOINT"}
        null = Path(os.devnull)
        with theirs:
            try:
                child = spawn(command, environ, stdout=null, stderr=null, handed=(theirs.fileno(),))
            except RecoverrunError:
                line.close()
                raise
        self._child, self._line = child, line
        self._watch(child.pidfd)
        self._watch(line.fileno())
        self._say(self._employ)
        self._employ = replace(self._employ, inject="")  # a fault strikes once
        if self._circle is not None:
            self._say(self._circle)

    def _mourn(self, now: float) -> None:
        assert self._child is not None, "its pidfd was readable"
        code = self._child.reap()
        if code is None:
            return
        self._listen()
        self._bury()
        self.standing = None
        words = f"the exchange of snapshots has ended ({code})"
        if len(self._starts) >= STARTS:
            self._record(notice(f"{words} {STARTS} times within an hour: it is not started again"))
            return
        self._record(notice(f"{words}: another is started"))
        try:
            self._start(now)
        except RecoverrunError as error:
            self._record(notice(f"no exchange of snapshots can be started: {error}"))

    def _bury(self) -> None:
        """End the exchange, whose line is closed, if it has not ended."""
        if self._line is not None:
            self._unwatch(self._line.fileno())
            self._line.close()
            self._line = None
        if self._child is not None:
            self._unwatch(self._child.pidfd)
            self._child.reap()
            self._child.close()
            self._child = None

    # --------------------------------------------------------------------------- the line

    def _listen(self) -> list[Message]:
        told: list[Message] = []
        while self._line is not None:
            try:
                message = exchange_line.hear(self._line)
            except (BlockingIOError, Closed):
                break  # Its pidfd tells of its end.
            except RemoteProtocolError as error:
                self._record(
                    notice(
                        f"the exchange of snapshots sent something that is not a message: {error}"
                    )
                )
                break
            if isinstance(message, Exchanging):
                self.standing = message
                told.append(message)
            elif isinstance(message, Trouble):
                self._record(notice(message.reason))
        return told

    def _say(self, message: Employ | Circle) -> None:
        """Send; a peer that does not read is stopped, one that is gone is found by its pidfd."""
        if self._line is not None:
            with suppress(BlockingIOError, Closed):
                exchange_line.say(self._line, message)
