"""The memory of a keeper as the exchange of its node has it: by descriptors, which it is handed as
a launcher is. What it makes itself it hands to the keeper.
"""

import os
import socket
from collections.abc import Callable, Iterable
from zlib import crc32

from rendezvous.bays import memory, packets, share_memory
from rendezvous.bays.allowance import USUAL, Allowance
from rendezvous.bays.free_memory import too_much
from rendezvous.bays.packets import Closed
from rendezvous.bays.share_memory import OF_NO_RANK, ShareInMemory, SharePlan
from rendezvous.protocol.codec import RemoteProtocolError
from rendezvous.protocol.keeper_messages import BayDropped, BayMade, Custody
from rendezvous.protocol.snapshot_messages import Holding
from rendezvous.snapshots import bay_header
from rendezvous.snapshots.bay_header import BayHeader
from rendezvous.snapshots.exchange_work import KeptSnapshot, ShareId
from rendezvous.snapshots.identity import NO_ORDER
from rendezvous.snapshots.member_stream import Extents
from rendezvous.snapshots.parity_code import Part
from rendezvous.snapshots.parity_groups import Member

CALL_S = 5.0
"""How long a keeper may take to read what it is handed."""


class KeeperMemory:
    """Implements `exchange_work.NodeMemory`."""

    def __init__(
        self,
        path: str,
        allowance: Allowance = USUAL,
        amid: Callable[[int], None] = lambda step: None,
    ) -> None:
        """`path` is that of the keeper's socket; nobody is called yet. `amid` hears when half of a
        share is made, of the snapshot of this step.
        """
        self._amid = amid
        self._path = path
        self._allowance = allowance
        self.line: socket.socket | None = None
        self._holding = Holding(keeper=0, serial=0, order=NO_ORDER, held=())
        self._bays: dict[int, tuple[int, int]] = {}  # by number: rank, descriptor
        self._shares: dict[int, ShareInMemory] = {}  # by number
        self._making: dict[ShareId, ShareInMemory] = {}
        self._coming: dict[
            tuple[KeptSnapshot, int], int
        ] = {}  # descriptors of what is brought here

    # --------------------------------------------------------------------------- the keeper

    def call(self) -> bool:
        """Call the keeper, or that after it. False if nobody can be called now."""
        self._forget()
        line = packets.make_socket()
        line.settimeout(CALL_S)
        try:
            line.connect(self._path)
            packets.say(line, Custody())
        except (OSError, Closed):
            line.close()
            return False
        self.line = line
        return True

    def hear(self) -> list[Holding]:
        """The statements of the keeper. Once it is gone `line` is None."""
        found = []
        while self.line is not None:
            self.line.setblocking(False)
            try:
                message, fd = packets.hear(self.line)
            except BlockingIOError:
                self.line.settimeout(CALL_S)
                break
            except (Closed, RemoteProtocolError):
                self._forget()
                break
            match message:
                case BayMade(rank=rank) if fd is not None:
                    fd = None if self._take(rank, fd) else fd
                case BayDropped(bay=number):
                    self._drop(number)
                case Holding():
                    self._holding = message
                    found.append(message)
                case _:
                    pass
            if fd is not None:
                os.close(fd)
        return found

    def _take(self, rank: int, fd: int) -> bool:
        """True if the descriptor is kept."""
        number = memory.number_of(fd)
        if number in self._bays or number in self._shares or not memory.is_sealed(fd):
            return False
        if rank != OF_NO_RANK:
            self._bays[number] = rank, fd
        elif (share := share_memory.opened(fd)) is not None:
            self._shares[number] = share
        else:
            return False
        return True

    def _drop(self, number: int) -> None:
        if number in self._bays:
            os.close(self._bays.pop(number)[1])
        if number in self._shares:
            self._shares.pop(number).close()

    def _forget(self) -> None:
        """Another keeper tells what there is."""
        if self.line is not None:
            self.line.close()
            self.line = None
        for number in [*self._bays, *self._shares]:
            self._drop(number)

    def _hand(self, rank: int, fd: int) -> None:
        """Hand memory to the keeper; where that is gone, the next one will be handed another."""
        if self.line is not None:
            try:
                nbytes = os.fstat(fd).st_size
                packets.say(self.line, BayMade(rank=rank, owner=-1, nbytes=nbytes), fd)
            except (Closed, TimeoutError):
                self._forget()

    def _too_much(self, nbytes: int) -> str:
        fds = [fd for _, fd in self._bays.values()]
        fds += [share.fd for share in (*self._shares.values(), *self._making.values())]
        return too_much(nbytes, sum(os.fstat(fd).st_size for fd in fds), self._allowance)

    # --------------------------------------------------------------------------- bays

    def extents(self, of: KeptSnapshot, member: Member) -> Extents:
        first, many = member
        here = {held[3] for held in self._holding.held if held[:3] == of}
        found = []
        for rank in range(first, first + many):
            bay = self._bay(of, rank) if rank in here else None
            if bay is None:
                return ()
            fd, header = bay
            size = os.fstat(fd).st_size
            found.append((rank, size, bay_header.content_begin(size) + header.content))
        return tuple(found)

    def read(self, of: KeptSnapshot, rank: int, offset: int, nbytes: int) -> bytes | None:
        bay = self._bay(of, rank)
        if bay is None:
            return None
        data = os.pread(bay[0], nbytes, offset)
        # The header goes before anything else is written there.
        return data if self._bay(of, rank) is not None and len(data) == nbytes else None

    def _bay(self, of: KeptSnapshot, rank: int) -> tuple[int, BayHeader] | None:
        for owner, fd in self._bays.values():
            if owner == rank:
                header = memory.header_of(fd)
                if header is not None and (*header.id, header.world) == of:
                    return fd, header
        return None

    def begin_bays(self, of: KeptSnapshot, extents: Extents) -> str:
        if words := self._too_much(sum(nbytes for _, nbytes, _ in extents)):
            return words
        try:
            for rank, nbytes, _ in extents:
                self._coming[of, rank] = memory.make(nbytes)
        except OSError as error:
            self.drop_bays(of, [rank for rank, _, _ in extents])
            return error.strerror or str(error)
        return ""

    def write_bay(self, of: KeptSnapshot, rank: int, offset: int, data: Part) -> None:
        os.pwrite(self._coming[of, rank], data, offset)

    def end_bays(self, of: KeptSnapshot, extents: Extents) -> str:
        ranks = [rank for rank, _, _ in extents]
        for rank in ranks:
            if words := _wrong(of, rank, self._coming[of, rank]):
                self.drop_bays(of, ranks)
                return words
        for rank in ranks:
            fd = self._coming.pop((of, rank))
            self._bays[memory.number_of(fd)] = rank, fd
            self._hand(rank, fd)
        return ""

    def drop_bays(self, of: KeptSnapshot, ranks: Iterable[int]) -> None:
        for rank in ranks:
            if (fd := self._coming.pop((of, rank), None)) is not None:
                os.close(fd)

    # --------------------------------------------------------------------------- shares

    def shares(self) -> tuple[ShareId, ...]:
        return tuple(sorted(share.plan.id for share in self._shares.values()))

    def _share(self, share: ShareId) -> ShareInMemory | None:
        return next((one for one in self._shares.values() if one.plan.id == share), None)

    def share_extents(self, share: ShareId) -> tuple[Extents, ...] | None:
        found = self._share(share)
        return None if found is None else found.plan.extents

    def read_share(self, share: ShareId, column: int, part: int) -> bytes | None:
        found = self._share(share)
        return None if found is None else found.read(column, part)

    def begin_share(self, share: ShareId, extents: tuple[Extents, ...], parts: int) -> str:
        plan = SharePlan(share, extents, parts)
        if words := self._too_much(plan.nbytes):
            return words
        try:
            self._making[share] = share_memory.make(plan)
        except OSError as error:
            return error.strerror or str(error)
        return ""

    def write_share(
        self, share: ShareId, column: int, part: int, data: Part, check: int | None
    ) -> None:
        making = self._making[share]
        if (column, part) == (0, making.plan.parts // 2):
            self._amid(share.step)
        making.write(column, part, data, check)

    def end_share(self, share: ShareId) -> None:
        made = self._making.pop(share)
        made.finish()
        self._shares[memory.number_of(made.fd)] = made
        self._hand(OF_NO_RANK, made.fd)

    def drop_share(self, share: ShareId) -> None:
        if (made := self._making.pop(share, None)) is not None:
            made.close()


def _wrong(of: KeptSnapshot, rank: int, fd: int) -> str:
    """The reason why this is not the part of this rank; "" if it is."""
    header = memory.header_of(fd)
    if header is None or (*header.id, header.world, header.rank) != (*of, rank):
        return f"what was rebuilt has no header of rank {rank}"
    sums = memory.sums_of(fd, header)
    if sums is None:
        return f"what was rebuilt of rank {rank} has no checksums"
    first = bay_header.content_begin(os.fstat(fd).st_size)
    for index, known in enumerate(sums):
        begin, end = bay_header.part(index, header.content)
        if crc32(os.pread(fd, end - begin, first + begin)) != known:
            return f"part {index} of rank {rank} is damaged"
    return ""
