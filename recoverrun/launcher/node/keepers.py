"""The keeper of this node: started before its workers, replaced where it ends, dismissed at last.

The launcher holds a second descriptor of all memory that the keeper has. So a keeper that is lost
loses nothing: the next one is handed that memory, at the same socket, before anybody calls it.
"""

import os
import select
import signal
import socket
import sys
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from recoverrun.errors import RecoverrunError
from recoverrun.launcher.node.process import Child, spawn
from recoverrun.launcher.node.snapshot_dir import SnapshotDir
from rendezvous.bays import memory, packets
from rendezvous.bays.allowance import USUAL, Allowance
from rendezvous.bays.packets import Closed
from rendezvous.protocol.codec import RemoteProtocolError
from rendezvous.protocol.formation_messages import Start
from rendezvous.protocol.keeper_messages import (
    BayDropped,
    BayMade,
    Custody,
    Dismiss,
    Heartbeat,
    KeeperMessage,
    Load,
    Serve,
    SetAside,
    WrittenOut,
)
from rendezvous.protocol.messages import Message
from rendezvous.protocol.records import Record, notice
from rendezvous.protocol.snapshot_messages import Held, Holding, Keep, Order, Persist, Persisted
from rendezvous.snapshots.holdings import is_settled, order_of_start
from rendezvous.snapshots.identity import NO_ORDER, NONE
from rendezvous.snapshots.restore_plan import read

ASK_S = 5.0
"""How often a keeper is asked whether it is there."""

SILENT_S = 30.0
"""A keeper without an answer for so long is ended. Its work is done when nobody else has any."""

LINGER_S = 0.0
"""How long a keeper outlives this launcher: nobody would come for what it holds."""

STARTS = 5
"""A keeper that ends more often than that in `HOUR_S` is not started again."""

HOUR_S = 3600.0

FAREWELL_S = 2.0

NO_DIRECTORY = "this node has no --snapshot-dir"

CALLERS = 64
"""Processes that may wait to be heard."""


class NodeKeeper:
    """Never waits for the keeper, but for its end."""

    def __init__(
        self,
        path: str,
        *,
        watch: Callable[[int], None],
        unwatch: Callable[[int], None],
        record: Callable[[Record], None],
        directory: SnapshotDir | None = None,
        undirected: str = "",
        allowance: Allowance = USUAL,
        at_once: bool = True,
    ) -> None:
        """Listen at `path`, and start the first keeper `at_once`, or else as somebody calls.
        Raises OSError, RecoverrunError.

        `directory`: where snapshots are written to, and come from as a job begins; `undirected`:
        the reason for which that is none though one was given;
        `allowance`: how much memory they may have.
        """
        self.path = path
        self._watch, self._unwatch, self._record = watch, unwatch, record
        self._directory, self._undirected = directory, undirected or NO_DIRECTORY
        self._allowance = allowance
        self._world = 0
        self._ranks = range(0)  # of this node
        self._set_aside = SetAside(paths=())  # said again, as loads are
        self._loads: list[Load] = []  # said again to a keeper that takes the place of one
        self._told: list[Message] = []
        self._bays: dict[int, tuple[BayMade, int]] = {}  # by the number of the memory
        self._starts: list[float] = []
        self._asked, self._heard_at, self._ask_at = 0, 0.0, 0.0
        self._order: Order = NO_ORDER
        self._child: Child | None = None
        self._number = 0
        self._kept = Holding(keeper=0, serial=0, order=NO_ORDER, held=())  # in memory
        self._listener = packets.make_socket()
        self._listener.bind(path)
        self._listener.listen(CALLERS)
        self._line: socket.socket | None = None
        self.awaits = not at_once
        """Nobody has called yet, and there is no keeper."""
        if at_once:
            self._start(time.monotonic())
        else:
            watch(self._listener.fileno())

    @property
    def pids(self) -> frozenset[int]:
        return frozenset() if self._child is None else frozenset({self._child.pid})

    @property
    def holding(self) -> Holding:
        """The newest statement of the keeper, and what is in the directory of this node's ranks."""
        if self._directory is None:
            return self._kept
        return replace(self._kept, held=self._kept.held + self._directory.held_of(self._ranks))

    @property
    def held(self) -> tuple[Held, ...]:
        """All that is whole here, as far as the keeper has told, and all in the directory."""
        self._listen(time.monotonic())
        return self._kept.held + (() if self._directory is None else self._directory.held)

    @property
    def is_used(self) -> bool:
        """True if there is a snapshot, or a part of one."""
        return self._order[2] != NONE or bool(self._kept.held)

    # --------------------------------------------------------------------------- events

    def read(self, ready: Collection[object]) -> list[Message]:
        """The messages of its descriptors in `ready`: for the coordinator, what is held here."""
        before, now = self.holding, time.monotonic()
        if self.awaits and self._listener.fileno() in ready:
            self._begin_to_serve(now)
        if self._line is not None and self._line.fileno() in ready:
            self._listen(now)
        if self._child is not None and self._child.pidfd in ready:
            self._mourn(now)
        told, self._told = self._told, []
        return [self.holding, *told] if self.holding != before else told

    def tick(self, now: float) -> list[Message]:
        """Time passed. What the coordinator may not have heard is told again."""
        if self._child is None or self._line is None:
            return []
        again = now >= self._ask_at and not is_settled(self._kept)
        if now > self._heard_at + SILENT_S:
            self._record(notice(f"the keeper has not answered for {SILENT_S:g} s: it is replaced"))
            self._heard_at = now
            self._child.signal(signal.SIGKILL)
        elif now >= self._ask_at:
            self._ask_at = now + ASK_S
            self._asked += 1
            self._say(Heartbeat(serial=self._asked))
        return [self.holding] if again else []

    def deadline(self) -> float | None:
        """The time at which `tick` is next needed, or None."""
        return None if self._child is None else self._ask_at

    def begin(self, start: Start, *, parity: bool = False) -> None:
        """An attempt begins here, perhaps from a snapshot. `parity`: nodes make it for each
        other.
        """
        self._world, self._loads = start.world_size, []
        restored = read(start.restore) or NONE
        self.keep(order_of_start(self._kept, start.attempt, restored, parity=parity))
        if self._directory is not None:
            self._ranks = range(start.first_rank, start.first_rank + start.nproc)
            self._loads = self._directory.loads(start.restore, self._ranks)
            self._have_loaded()

    def _have_loaded(self) -> None:
        here = {held[3] for held in self._kept.held if held[:2] == self._order[2]}
        for load in self._loads:
            if load.rank not in here:
                self._say(load)

    def persist(self, order: Persist) -> list[Message]:
        """Have the keeper write its parts of this snapshot; what there is to say of it now."""
        if self._directory is None or self._line is None:
            words = "it has no keeper" if self._directory else self._undirected
            return [_unwritten(order, words)]
        wanted = order.attempt, order.step
        parts = {held[3]: held[4] for held in self._kept.held if held[:2] == wanted}
        self._say(self._directory.order(order, self._world, parts))
        return []

    def keep(self, order: Order, unfit: tuple[tuple[int, int], ...] = ()) -> None:
        """Have these snapshots not written over; nobody is to have those that are `unfit`."""
        self._order = max(self._order, order)
        self._say(Keep(order=order, unfit=unfit))
        if self._directory is not None and unfit:
            files = self._directory.without(unfit, self._ranks)
            self._set_aside = SetAside(paths=tuple(files))
            self._say(self._set_aside)

    def end(self) -> None:
        """The job is over: no memory is needed any more."""
        self._say(Dismiss())
        if self._child is not None:
            poll = select.poll()
            poll.register(self._child.pidfd, select.POLLIN)
            if not poll.poll(int(1000 * FAREWELL_S)):
                self._child.signal(signal.SIGKILL)
                poll.poll(int(1000 * FAREWELL_S))
            self._bury()
        for _, fd in self._bays.values():
            os.close(fd)
        self._bays.clear()
        self._await_no_more()
        self._listener.close()

    def _await_no_more(self) -> None:
        if self.awaits:
            self.awaits = False
            self._unwatch(self._listener.fileno())

    def _begin_to_serve(self, now: float) -> None:
        """The first worker calls; it is answered by the keeper, which has the same listener."""
        self._await_no_more()
        try:
            self._start(now)
        except (OSError, RecoverrunError) as error:
            self._record(notice(f"no keeper of snapshots can be started: {error}"))
            self._listener.close()  # who has called is told so, and others are refused

    # --------------------------------------------------------------------------- the process

    def _start(self, now: float) -> None:
        """Raises OSError, RecoverrunError."""
        self._starts = [*(at for at in self._starts if at > now - HOUR_S), now]
        self._number += 1
        line, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        line.setblocking(False)
        handed = self._listener.fileno(), theirs.fileno()
        words = map(str, (*handed, self._number, LINGER_S, self._allowance.written()))
        command = [sys.executable, "-m", "recoverrun.keeper", *words]
        null = Path(os.devnull)
        with theirs:
            try:
                child = spawn(
                    command,
                    _environ(os.environ),
                    stdout=null,
                    stderr=null,
                    handed=handed,
                    outlives=True,
                )
            except RecoverrunError:
                line.close()
                raise
        self._child, self._line = child, line
        self._heard_at, self._ask_at = now, now + ASK_S
        self._watch(child.pidfd)
        self._watch(line.fileno())
        self._record(Record("keeper.spawn", "a keeper of snapshots starts", {"pid": child.pid}))
        self._say(Custody())
        for made, fd in self._bays.values():
            self._say(made, fd)
        self._say(Keep(order=self._order))
        self._say(Serve())
        if self._set_aside.paths:
            self._say(self._set_aside)
        self._have_loaded()

    def _mourn(self, now: float) -> None:
        """The kernel says that the keeper is gone."""
        assert self._child is not None, "its pidfd was readable"
        code, pid = self._child.reap(), self._child.pid
        if code is None:
            return
        self._listen(now)  # what it had said before
        self._bury()
        words = "the keeper of snapshots has ended"
        self._record(Record("keeper.exit", words, {"pid": pid, "code": code}))
        if len(self._starts) >= STARTS:
            self._record(notice(f"{words} {STARTS} times within an hour: it is not started again"))
            return
        try:
            self._start(now)
        except (OSError, RecoverrunError) as error:
            self._record(notice(f"no keeper of snapshots can be started: {error}"))

    def _bury(self) -> None:
        if self._child is not None:
            self._unwatch(self._child.pidfd)
            self._child.reap()
            self._child.close()
            self._child = None
        if self._line is not None:
            self._unwatch(self._line.fileno())
            self._line.close()
            self._line = None

    # --------------------------------------------------------------------------- the line

    def _listen(self, now: float) -> None:
        while self._line is not None:
            try:
                message, fd = packets.hear(self._line)
            except (BlockingIOError, Closed):
                return  # Its pidfd tells of its end.
            except RemoteProtocolError as error:
                self._record(
                    notice(f"the keeper of snapshots sent something that is not a message: {error}")
                )
                return
            self._heard_at = now
            self._take(message, fd)

    def _take(self, message: KeeperMessage, fd: int | None) -> None:
        match message:
            case BayMade() if fd is not None and memory.number_of(fd) not in self._bays:
                self._bays[memory.number_of(fd)] = message, fd
                return
            case BayDropped(bay=number) if number in self._bays:
                os.close(self._bays.pop(number)[1])
            case Holding():
                self._kept = message
            case WrittenOut():
                if self._directory is not None:
                    self._directory.hear(message)
                self._told.append(
                    Persisted(
                        attempt=message.attempt,
                        step=message.step,
                        start=message.start,
                        nbytes=message.nbytes,
                        failed=message.failed,
                    )
                )
            case _:
                pass
        if fd is not None:
            os.close(fd)

    def _say(self, message: KeeperMessage, fd: int | None = None) -> None:
        """Whoever does not read is found out by its silence, and who is gone by its pidfd."""
        if self._line is not None:
            with suppress(BlockingIOError, Closed):
                packets.say(self._line, message, fd)


def _unwritten(order: Persist, why: str) -> Persisted:
    return Persisted(
        attempt=order.attempt, step=order.step, start=order.start, nbytes=0, failed=why
    )


def _environ(inherited: Mapping[str, str]) -> dict[str, str]:
    """The environment of a keeper: nothing by which it could be taken for one of our workers."""
    return {name: value for name, value in inherited.items() if name != "RECOVERRUN_ENDPOINT"}
