"""A keeper's side: the memory that it holds, and what it answers those who call.

Of each caller one message is taken at a time, and no answer waits for anybody: a caller that does
not read is let go. Checksums are made in slices between messages.
"""

import os
import socket
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from zlib import crc32

from rendezvous.bays import disk_orders, memory, packets, share_memory
from rendezvous.bays.allowance import Allowance
from rendezvous.bays.disk_orders import Asks, Loading
from rendezvous.bays.free_memory import too_much
from rendezvous.bays.packets import Closed
from rendezvous.bays.share_memory import OF_NO_RANK
from rendezvous.protocol.keeper_messages import (
    Attach,
    BayDropped,
    BayMade,
    Custody,
    Dismiss,
    Fetch,
    Filled,
    Heartbeat,
    KeeperMessage,
    Load,
    Part,
    Release,
    Reserve,
    Room,
    Serve,
    SetAside,
    Spoilt,
    Unavailable,
    WriteOut,
)
from rendezvous.protocol.snapshot_messages import Holding, Keep
from rendezvous.snapshots import bay_header
from rendezvous.snapshots.bay_header import BayHeader
from rendezvous.snapshots.holdings import Bay, KeeperHoldings, with_slack
from rendezvous.snapshots.identity import SnapshotId
from rendezvous.snapshots.kept_shares import KeptShares


@dataclass(eq=False, slots=True)
class Caller:
    """Somebody at the other end of a line."""

    line: socket.socket  # never blocks
    pid: int
    rank: int = -1  # of a worker that has said who it is
    incarnation: int = -1
    launcher: bool = False
    gone: bool = False  # its line is closed
    reads: list[int] = field(default_factory=list)  # bays


class KeptBays:
    """All that a keeper has."""

    def __init__(self, incarnation: int, disk: Asks, allowance: Allowance) -> None:
        """`incarnation` tells this keeper from those before it on this node."""
        self._incarnation = incarnation
        self._disk = disk
        self._allowance = allowance
        self._loading = Loading()
        self._serial = 0  # of what launchers were told
        self._holdings = KeeperHoldings()
        self._shares = KeptShares()
        self._fds: dict[int, int] = {}  # by the number of the memory
        self._waiting: list[tuple[Caller, SnapshotId]] = []  # for what is still to come
        self._callers: list[Caller] = []
        self._unsummed: dict[int, BayHeader] = {}
        self._slices: Iterator[bool] | None = None
        self.unreachable: list[Caller] = []  # launchers that do not read: to be let go
        self.serves = False  # all that an earlier keeper had is here
        self.dismissed = False

    # --------------------------------------------------------------------------- callers

    def welcome(self, line: socket.socket) -> Caller | None:
        """Somebody calls; None if it is nobody of this user."""
        pid, uid = packets.peer_of(line)
        if uid not in (os.geteuid(), 0):
            return None
        line.setblocking(False)
        caller = Caller(line, pid)
        self._callers.append(caller)
        return caller

    def leave(self, caller: Caller) -> None:
        """Its line is closed. What it reads may be written over."""
        for number in caller.reads:
            self._holdings.reading(number, -1)
        for callers in (self._callers, self.unreachable):
            if caller in callers:
                callers.remove(caller)

    def ended(self, rank: int, incarnation: int) -> None:
        """The kernel says that this process of a rank is gone, with all that it had mapped."""
        self._holdings.end(rank, incarnation)

    @property
    def has_launcher(self) -> bool:
        return any(caller.launcher for caller in self._callers)

    def close(self) -> None:
        """Let go of all memory."""
        for fd in self._fds.values():
            os.close(fd)
        self._fds.clear()

    # --------------------------------------------------------------------------- messages

    def take(self, caller: Caller, message: KeeperMessage, fd: int | None) -> None:
        """A message of a caller. `fd` is taken. Raises Closed if the caller must be let go."""
        try:
            if caller.rank < 0 and not caller.launcher:
                self._introduce(caller, message)
            elif caller.launcher:
                self._obey(caller, message, fd)
            else:
                self._serve(caller, message)
        except (TimeoutError, BlockingIOError) as error:
            raise Closed("it does not read") from error
        finally:
            if fd is not None and fd not in self._fds.values():
                os.close(fd)

    def _introduce(self, caller: Caller, message: KeeperMessage) -> None:
        match message:
            case Attach(rank=rank, incarnation=incarnation):
                if not self._holdings.attach(rank, incarnation):
                    raise Closed("a newer process of this rank is here")
                caller.rank, caller.incarnation = rank, incarnation
            case Custody():
                caller.launcher = True
                for bay in self._holdings.bays:
                    packets.say(caller.line, _made(bay), self._fds[bay.number])
                for number in self._shares.held:
                    packets.say(caller.line, self._share_made(number), self._fds[number])
                packets.say(caller.line, self._holding())
            case _:
                raise Closed("it did not say who it is")

    def _serve(self, caller: Caller, message: KeeperMessage) -> None:
        if not self._holdings.speaks(caller.rank, caller.incarnation):
            raise Closed("a newer process of this rank is here")
        match message:
            case Reserve():
                self._reserve(caller, message)
            case Filled(bay=number):
                self._fill(caller, number)
            case Fetch(attempt=attempt, step=step):
                self._fetch(caller, SnapshotId(attempt, step))
            case Release(bay=number):
                if number in caller.reads:
                    caller.reads.remove(number)
                    self._holdings.reading(number, -1)
            case Spoilt(bay=number):
                if number in caller.reads:
                    memory.take_header(self._fds[number])  # nor does the next keeper take it
                    self._holdings.spoilt(number)
                    self._announce()
            case _:
                raise Closed(f"{type(message).__name__} is not for it to say")

    def _obey(self, caller: Caller, message: KeeperMessage, fd: int | None) -> None:
        match message:
            case BayMade(rank=rank, owner=owner):
                if fd is not None and memory.is_sealed(fd):
                    self._take_over(caller, rank, owner, fd)
            case Keep(order=order):
                unfit = {SnapshotId(*one) for one in message.unfit}
                for number in self._holdings.keep(order, unfit):
                    memory.take_header(self._fds[number])  # nor does the next keeper take it
                self._drop(self._shares.keep(order, unfit))
                self._announce()
            case Heartbeat():
                packets.say(caller.line, message)
            case WriteOut():
                tell = self._tell_launchers
                disk_orders.write(message, self._holdings, self._fds, self._disk, tell)
            case Load():
                self._drop(self._holdings.surplus(message.rank, more=1))
                disk_orders.load(message, self._loading, self._disk, self._refusal, self._loaded)
            case SetAside(paths=paths):
                disk_orders.set_aside(paths, self._disk)
            case Serve():
                self.serves = True
            case Dismiss():
                self.dismissed = True
            case _:
                raise Closed(f"{type(message).__name__} is not for it to say")

    # --------------------------------------------------------------------------- bays

    def _reserve(self, caller: Caller, wanted: Reserve) -> None:
        nbytes, turn = wanted.nbytes, None if wanted.ahead else wanted.turn
        room = self._holdings.reserve(caller.rank, caller.incarnation, nbytes, turn)
        if room is None:
            packets.say(caller.line, Unavailable(reason="the one before is not safe yet"))
            return
        self._drop(room.dropped)
        if (number := room.number) is None:
            nbytes = with_slack(nbytes)
            if words := self._refusal(nbytes):
                answer = Unavailable(reason=f"too little memory: {words}", full=True)
                packets.say(caller.line, answer)
                return
            try:
                number = self._make(caller, nbytes)
            except OSError as error:
                words = f"no memory for a snapshot: {error.strerror}"
                packets.say(caller.line, Unavailable(reason=words, full=True))
                return
        self._unsummed.pop(number, None)
        memory.take_header(self._fds[number])
        self._announce()
        size = os.fstat(self._fds[number]).st_size
        mine = tuple(bay.number for bay in self._holdings.bays if bay.rank == caller.rank)
        room_made = Room(nbytes=size, bays=mine, worked_s=time.process_time())
        packets.say(caller.line, room_made, self._fds[number])

    def _refusal(self, nbytes: int) -> str:
        held = sum(os.fstat(fd).st_size for fd in tuple(self._fds.values()))
        return too_much(nbytes, held, self._allowance)

    def _make(self, caller: Caller, nbytes: int) -> int:
        fd = memory.make(nbytes)
        number = memory.number_of(fd)
        bay = Bay(number, caller.rank, nbytes, caller.incarnation)
        self._fds[number] = fd
        self._holdings.made(bay)
        self._tell_launchers(_made(bay), fd)
        return number

    def _drop(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            os.close(self._fds.pop(number))
            self._unsummed.pop(number, None)
            self._tell_launchers(BayDropped(bay=number))

    def _take_over(self, giver: Caller, rank: int, owner: int, fd: int) -> None:
        """A launcher hands over what an earlier keeper had, or an exchange what it has made."""
        number = memory.number_of(fd)
        if number in self._fds:
            return
        share = share_memory.opened(fd) if rank == OF_NO_RANK else None
        if rank == OF_NO_RANK and share is None:
            return
        self._fds[number] = fd
        made = BayMade(rank=rank, owner=owner, nbytes=os.fstat(fd).st_size)
        # First: who counts on it holds it, should this process end now.
        self._tell_launchers(made, fd, beside=giver)
        if share is not None:
            self._drop(self._shares.add(number, share.plan.id))
            self._announce()
            return
        self._adopt(rank, owner, fd)
        self._drop(self._holdings.surplus(rank))
        self.go_on()

    def _adopt(self, rank: int, owner: int, fd: int) -> None:
        number = memory.number_of(fd)
        header = memory.header_of(fd)
        if owner >= 0:
            self._holdings.attach(rank, owner)
        size, writer = os.fstat(fd).st_size, owner if owner >= 0 else None
        self._holdings.made(Bay(number, rank, size, writer))
        if header is None or header.rank != rank:
            return
        summed = memory.sums_of(fd, header) is not None
        self._holdings.adopt(number, header.id, header.world, summed=summed)
        if summed:
            self._announce()
        else:
            self._unsummed[number] = header

    def _fill(self, caller: Caller, number: int) -> None:
        fd = self._fds.get(number)
        header = memory.header_of(fd) if fd is not None else None
        if header is None or header.rank != caller.rank:
            return
        who = caller.rank, caller.incarnation
        if self._holdings.filled(*who, number, header.id, header.world):
            self._unsummed[number] = header

    def _fetch(self, caller: Caller, wanted: SnapshotId) -> None:
        bay = self._holdings.find(caller.rank, wanted)
        failure = self._loading.failure(caller.rank, wanted)
        coming = wanted == self._holdings.safe or self._loading.is_under_way(caller.rank, wanted)
        if bay is None and coming and not failure:
            self._waiting.append((caller, wanted))  # It is read from a disk, or brought here.
            return
        if bay is None:
            words = f"the keeper of this node has no snapshot of step {wanted.step}"
            words = self._loading.failure(caller.rank, wanted) or words
            packets.say(caller.line, Unavailable(reason=words))
            return
        caller.reads.append(bay.number)
        self._holdings.reading(bay.number, 1)
        packets.say(caller.line, Part(nbytes=bay.nbytes), self._fds[bay.number])

    def _loaded(self, rank: int, found: SnapshotId, fd: int) -> None:
        """A part has come from a disk, with its checksums."""
        number, size = memory.number_of(fd), os.fstat(fd).st_size
        header = memory.header_of(fd)
        assert header is not None, "it was compared"
        self._fds[number] = fd
        bay = Bay(number, rank, size, None)
        self._holdings.made(bay)
        self._holdings.adopt(number, found, header.world, summed=True)
        self._tell_launchers(_made(bay), fd)
        self._announce()

    def go_on(self) -> None:
        """Something was done at a disk, or brought here: answer those who wait for it. Whoever does
        not read is let go.
        """
        waiting, self._waiting = self._waiting, []
        for caller, wanted in waiting:
            if caller.gone:
                continue
            try:
                self._fetch(caller, wanted)
            except (Closed, BlockingIOError):
                self.unreachable.append(caller)

    # --------------------------------------------------------------------------- checksums

    @property
    def busy(self) -> bool:
        """True if `work` has something to do."""
        return self._slices is not None or bool(self._unsummed)

    def work(self) -> None:
        """Make the checksum of one part more."""
        if self._slices is None:
            number, header = next(iter(self._unsummed.items()))
            self._slices = self._sum(number, header)
        if next(self._slices, None) is None:
            self._slices = None

    def _sum(self, number: int, header: BayHeader) -> Iterator[bool]:
        """Yield after each part; ends early if the bay is written over meanwhile."""
        sums: list[int] = []
        begin = bay_header.content_begin(os.fstat(self._fds[number]).st_size)
        for index in range(bay_header.parts(header.content)):
            if self._unsummed.get(number) is not header:
                return
            first, last = bay_header.part(index, header.content)
            sums.append(crc32(os.pread(self._fds[number], last - first, begin + first)))
            yield True
        if self._unsummed.get(number) is not header:
            return
        del self._unsummed[number]
        os.pwrite(self._fds[number], bay_header.pack_sums(sums, header.id), bay_header.PAGE)
        if self._holdings.summed(number, header.id):
            self._announce()

    # --------------------------------------------------------------------------- launchers

    def _announce(self) -> None:
        self._serial += 1
        self._tell_launchers(self._holding())

    def _share_made(self, number: int) -> BayMade:
        return BayMade(rank=OF_NO_RANK, owner=-1, nbytes=os.fstat(self._fds[number]).st_size)

    def _tell_launchers(
        self, message: KeeperMessage, fd: int | None = None, beside: Caller | None = None
    ) -> None:
        """All but `beside`, who knows."""
        for caller in self._callers:
            if caller.launcher and caller is not beside and caller not in self.unreachable:
                try:
                    packets.say(caller.line, message, fd)
                except (Closed, BlockingIOError):
                    self.unreachable.append(caller)

    def _holding(self) -> Holding:
        return Holding(
            keeper=self._incarnation,
            serial=self._serial,
            order=self._holdings.order,
            held=self._holdings.statement(),
            shares=self._shares.statement(),
        )


def _made(bay: Bay) -> BayMade:
    owner = -1 if bay.owner is None else bay.owner
    return BayMade(rank=bay.rank, owner=owner, nbytes=bay.nbytes)
