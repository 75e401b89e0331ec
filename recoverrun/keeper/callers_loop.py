"""The loop of a keeper: one thread, one poll over callers and the processes that they are.

It is of no use to anybody but the job, so it takes the processor last and is the first that the
kernel ends where memory is short; signals that end a job are not meant for it.
"""

import os
import select
import selectors
import socket
import time
from contextlib import suppress

from recoverrun.keeper.disk import Disk
from rendezvous.bays import helper_process, packets
from rendezvous.bays.allowance import Allowance
from rendezvous.bays.packets import Closed
from rendezvous.bays.served import Caller, KeptBays
from rendezvous.protocol.codec import RemoteProtocolError

BATCH = 64
"""Messages of one caller that are taken at once."""

INHERIT_S = 10.0
"""How long a launcher may take to hand over what the keeper before had."""

FINISH_S = 1.0
"""Of the time that a launcher waits for its keeper's end, so much is for a disk."""

OOM_SCORE = 500
"""A snapshot is worth less than what it is of."""


class CallersLoop:
    def __init__(
        self, listener: socket.socket, incarnation: int, linger_s: float, allowance: Allowance
    ) -> None:
        self._listener = listener
        self._linger_s = linger_s
        self._disk = Disk()
        self._bays = KeptBays(incarnation, self._disk, allowance)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._disk.fd, selectors.EVENT_READ, self._disk)
        self._selector.register(listener, selectors.EVENT_READ)
        self._processes: dict[int, tuple[int, int]] = {}  # pidfd -> rank, incarnation
        self._alone_since = time.monotonic()

    def inherit(self, line: socket.socket) -> None:
        """Take what the launcher at the end of `line` hands over, before anybody else is heard."""
        launcher = self._welcomed(line)
        until = time.monotonic() + INHERIT_S
        while launcher is not None and not self._bays.serves:
            left_s = until - time.monotonic()
            if left_s <= 0 or not select.select([line], [], [], left_s)[0]:
                return
            self._listen(launcher)
            if launcher.gone:
                return

    def run(self) -> None:
        while not self._bays.dismissed and not self._is_forsaken():
            wait_s = 0.0 if self._bays.busy else self._wait_s()
            for key, _ in self._selector.select(wait_s):
                if key.fileobj is self._listener:
                    self._welcome()
                elif isinstance(key.data, Caller):
                    self._listen(key.data)
                elif key.data is self._disk:
                    self._go_on()
                else:
                    self._mourn(key.fd)
            for caller in tuple(self._bays.unreachable):
                self._let_go(caller)
            if self._bays.busy:
                self._bays.work()
        self._disk.finish(FINISH_S)
        self._bays.close()

    def _go_on(self) -> None:
        """Tasks are done for which disks were waited for."""
        for outcome in self._disk.take():
            outcome()
        self._bays.go_on()

    def _is_forsaken(self) -> bool:
        now = time.monotonic()
        if self._bays.has_launcher:
            self._alone_since = now
            return False
        return now >= self._alone_since + self._linger_s

    def _wait_s(self) -> float | None:
        if self._bays.has_launcher:
            return None
        return max(0.0, self._alone_since + self._linger_s - time.monotonic())

    def _welcome(self) -> None:
        with suppress(BlockingIOError):
            line, _ = self._listener.accept()
            self._welcomed(line)

    def _welcomed(self, line: socket.socket) -> Caller | None:
        caller = self._bays.welcome(line)
        if caller is None:
            line.close()
        else:
            self._selector.register(line, selectors.EVENT_READ, caller)
        return caller

    def _listen(self, caller: Caller) -> None:
        try:
            for _ in range(BATCH):
                message, fd = packets.hear(caller.line)
                new = caller.rank < 0
                self._bays.take(caller, message, fd)
                if new and caller.rank >= 0:
                    self._watch(caller)
        except BlockingIOError:
            pass
        except (Closed, RemoteProtocolError):
            self._let_go(caller)

    def _let_go(self, caller: Caller) -> None:
        self._selector.unregister(caller.line)
        caller.line.close()
        caller.gone = True
        self._bays.leave(caller)

    def _watch(self, caller: Caller) -> None:
        """Be told when this process ends, and with it what it has mapped."""
        process = caller.rank, caller.incarnation
        if process in self._processes.values():
            return
        try:
            pidfd = os.pidfd_open(caller.pid)
        except ProcessLookupError:
            self._bays.ended(*process)
            return
        self._processes[pidfd] = process
        self._selector.register(pidfd, selectors.EVENT_READ)

    def _mourn(self, pidfd: int) -> None:
        self._selector.unregister(pidfd)
        self._bays.ended(*self._processes.pop(pidfd))
        os.close(pidfd)


def run(
    listening: int, launcher: int, *, incarnation: int, linger_s: float, allowance: Allowance
) -> None:
    """Serve whoever calls at the descriptor of a listening socket; returns at the end.

    `launcher` is the descriptor of the line to the launcher that has started this process.
    """
    helper_process.become("keeper", oom_score=OOM_SCORE)
    listener = socket.socket(fileno=listening)
    listener.setblocking(False)
    loop = CallersLoop(listener, incarnation, linger_s, allowance)
    loop.inherit(socket.socket(fileno=launcher))
    loop.run()
