"""Warm spares of one node: processes that have imported torch, and wait to become a worker.

They are no workers: no report knows of them, nobody waits for them, and they end with the job. One
that was used is replaced. Where none is ready a worker is started cold.
"""

import os
import signal
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from recoverrun.errors import RecoverrunError
from recoverrun.launcher.node.process import Child, spawn
from rendezvous.protocol.records import Record, notice
from rendezvous.protocol.spare_order import READY, SpareOrder, encode
from rendezvous.transport.station import Station

SWITCH = "--spare"
"""What follows `python -u -m recoverrun.worker` for a spare (recoverrun/worker/boot/spare.py)."""

ROOM_BYTES = 1 << 20
"""For an order, as far as the system gives it: the launcher never waits for a spare to read."""


@dataclass(slots=True)
class _Spare:
    child: Child
    line: socket.socket  # where it is told what it becomes
    ready: bool = False


class Spares:
    """Keeps `wanted` of them, once they are asked for."""

    def __init__(self, wanted: int, station: Station, record: Callable[[Record], None]) -> None:
        self._wanted = wanted
        self._station = station
        self._record = record
        self._waiting: list[_Spare] = []
        self._command: Sequence[str] = ()
        self._environ: Mapping[str, str] = {}

    @property
    def pids(self) -> frozenset[int]:
        return frozenset(spare.child.pid for spare in self._waiting)

    @property
    def wanted(self) -> bool:
        """True if some are to be kept that nobody has asked for yet."""
        return self._wanted > 0 and not self._command

    def keep(self, command: Sequence[str], environ: Mapping[str, str]) -> None:
        """Keep spares from now on: `command` runs our worker, `environ` is like a worker's."""
        self._command, self._environ = command, environ
        self._fill()

    def take(self, order: SpareOrder) -> Child | None:
        """A process that becomes a worker by `order`; None if no spare is ready for that."""
        spare = next(filter(self._is_ready, self._waiting), None)
        if spare is None:
            return None
        self._waiting.remove(spare)
        self._station.unwatch(spare.child.pidfd)
        told = _told(spare, order)
        spare.line.close()
        self._fill()
        if told:
            return spare.child
        spare.child.signal(signal.SIGKILL)  # It has half of an order, or is about to end.
        spare.child.close()
        return None

    def reap(self, ready: set[int]) -> None:
        """Forget those whose end the pidfds in `ready` announce; they are not replaced."""
        for spare in [one for one in self._waiting if one.child.pidfd in ready]:
            code = spare.child.reap()
            if code is not None:
                self._forget(spare)
                spare.child.close()
                self._wanted = len(self._waiting)
                self._record(notice(f"a spare process has ended with code {code}: none follows"))

    def end(self) -> None:
        """End all of them: nobody needs them any more."""
        self._wanted = 0
        for spare in list(self._waiting):
            self._forget(spare)
            spare.child.signal(signal.SIGKILL)
            spare.child.close()

    def _fill(self) -> None:
        while len(self._waiting) < self._wanted:
            try:
                self._waiting.append(self._start())
            except (RecoverrunError, OSError) as error:
                self._wanted = len(self._waiting)
                self._record(notice(f"no spare process can be started: {error}"))

    def _start(self) -> _Spare:
        ours, theirs = socket.socketpair()
        with theirs:
            ours.setblocking(False)
            ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, ROOM_BYTES)
            command = [*self._command, SWITCH, str(theirs.fileno())]
            try:
                child = spawn(command, self._environ, handed=(theirs.fileno(),))
            except RecoverrunError:
                ours.close()
                raise
        self._station.watch(child.pidfd)
        return _Spare(child, ours)

    def _forget(self, spare: _Spare) -> None:
        self._waiting.remove(spare)
        self._station.unwatch(spare.child.pidfd)
        spare.line.close()

    @staticmethod
    def _is_ready(spare: _Spare) -> bool:
        if not spare.ready:
            try:
                spare.ready = spare.line.recv(len(READY)) == READY
            except OSError:
                return False
        return spare.ready


def _told(spare: _Spare, order: SpareOrder) -> bool:
    """True if the order has left as a whole."""
    data = encode(order)
    try:
        return spare.line.send(data) == len(data)
    except OSError:
        return False


def stream(path: Path | None) -> str:
    """A file as an order names it."""
    return "" if path is None else os.fspath(path)
