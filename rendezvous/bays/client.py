"""A worker's side of snapshots in memory: where to write, and where what was written is read.

Nothing here waits for a keeper longer than ANSWER_S. One that is gone is called again at once, one
that does not answer not before SILENT_S are over: the snapshot in between is missed.
"""

import mmap
import os
import socket
import threading
import time
from zlib import crc32

from rendezvous.bays import memory, packets
from rendezvous.bays.packets import Closed
from rendezvous.protocol.codec import RemoteProtocolError
from rendezvous.protocol.keeper_messages import (
    Attach,
    Fetch,
    Filled,
    KeeperMessage,
    Part,
    Release,
    Reserve,
    Room,
    Spoilt,
)
from rendezvous.snapshots import bay_header
from rendezvous.snapshots.bay_header import BayHeader
from rendezvous.snapshots.identity import SnapshotId

ANSWER_S = 1.0
"""How long a keeper may take for an answer while training waits."""

FETCH_S = 600.0
"""The same for a part that is wanted back, and may have to be rebuilt: nobody trains."""

KEEPERS = 5
"""So many that end are followed by another: a launcher does not start more within an hour."""

SILENT_S = 10.0
"""How long a keeper is left alone that did not answer."""


class SnapshotMissed(Exception):
    """No snapshot can be taken now; the text is a sentence for the user. The next one may be."""


class TooLittleMemory(SnapshotMissed):
    """There is no memory for a snapshot."""


class KeeperEnded(SnapshotMissed):
    """The keeper has ended while it was asked; another one may follow."""


class SnapshotLost(Exception):
    """A snapshot cannot be had, or is damaged; the text is a sentence for the user."""


class MappedBay:
    """Memory for one rank's part of one snapshot. Not for several threads at once."""

    def __init__(self, client: "KeeperClient", fd: int, mapped: mmap.mmap, pieces: int) -> None:
        self._client = client
        self._fd = fd
        self._mapped = mapped
        self._pieces = pieces
        self._begin = bay_header.content_begin(len(mapped))

    @property
    def memory(self) -> memoryview:
        """The memory for the pieces: as many bytes as were reserved for them. Page-aligned."""
        return memoryview(self._mapped)[self._begin : self._begin + self._pieces]

    @property
    def room(self) -> int:
        """Bytes that table and image may have together."""
        return bay_header.content_room(len(self._mapped)) - self._pieces

    def open(self) -> None:
        """Let all of it be written to. Raises SnapshotMissed."""
        try:
            memory.allow_writing(self._mapped, allowed=True)
        except OSError as error:
            raise SnapshotMissed(f"no memory for a snapshot: {error.strerror}") from error

    def touch(self) -> None:
        """Take the memory from the system now: a second for a few GB, only for a new bay.

        Raises SnapshotMissed where there is not so much.
        """
        try:
            memory.touch(self._fd, self._mapped)
        except OSError as error:
            raise TooLittleMemory(f"no memory for a snapshot: {error.strerror}") from error

    def seal(self, attempt: int, step: int, table: bytes, image: bytes) -> None:
        """The pieces are all there: from now on this is a part of snapshot (attempt, step).

        Nothing may be written to `memory` any more: it is a fault. Raises SnapshotMissed, and then
        there is none.
        """
        if len(table) + len(image) > self.room:
            raise SnapshotMissed(f"table and image have more than {self.room} bytes")
        self.open()
        header = BayHeader(
            rank=self._client.rank, world=self._client.world, id=SnapshotId(attempt, step),
            pieces=self._pieces, table=len(table), image=len(image),
            notes_sum=crc32(image, crc32(table)),
        )  # fmt: skip
        at = self._begin + self._pieces
        self._mapped[at : at + len(table)] = table
        at += len(table)
        self._mapped[at : at + len(image)] = image
        self._mapped[: bay_header.HEADER_BYTES] = header.pack()
        memory.allow_writing(self._mapped, allowed=False)
        self._client.tell_filled(memory.number_of(self._fd))


class KeptBay:
    """One rank's part of a snapshot, to be read. What is read is checked."""

    def __init__(self, client: "KeeperClient", fd: int, wanted: SnapshotId) -> None:
        """Takes `fd`. Raises SnapshotLost."""
        self._client = client
        self._fd = fd
        self._number = memory.number_of(fd)
        try:
            self._begin_reading(fd, wanted)
        except SnapshotLost:
            os.close(fd)
            raise

    def _begin_reading(self, fd: int, wanted: SnapshotId) -> None:
        client = self._client
        try:
            header = memory.header_of(fd) if memory.is_sealed(fd) else None
            self._sums = memory.sums_of(fd, header) if header is not None else None
            self._mapped: mmap.mmap | None = memory.map_to_read(fd)
        except (OSError, ValueError) as error:
            raise SnapshotLost(f"a kept snapshot cannot be read: {error}") from error
        mine = *wanted, client.rank, client.world
        found = None if header is None else (*header.id, header.rank, header.world)
        if header is None or self._sums is None or found != mine:
            client.tell_spoilt(self._number)
            raise SnapshotLost(f"what is kept is not the snapshot of step {wanted.step}")
        self._header = header
        self._begin = bay_header.content_begin(len(self._mapped))
        self._checked: set[int] = set()
        notes = self._checked_bytes(header.pieces, header.table + header.image)
        if crc32(notes) != header.notes_sum:
            client.tell_spoilt(self._number)
            raise SnapshotLost("table or image of a kept snapshot are damaged")
        self._notes = notes

    @property
    def id(self) -> SnapshotId:
        """(attempt, step)."""
        return self._header.id

    @property
    def nbytes(self) -> int:
        """Bytes of all pieces."""
        return self._header.pieces

    @property
    def table(self) -> bytes:
        return self._notes[: self._header.table]

    @property
    def image(self) -> bytes:
        return self._notes[self._header.table :]

    def read(self, offset: int, into: memoryview) -> None:
        """Fill `into` from byte `offset` of the pieces. Raises SnapshotLost if that is damaged."""
        if not 0 <= offset <= offset + into.nbytes <= self.nbytes:
            raise SnapshotLost("the table of a kept snapshot names bytes beyond its end")
        self._check(offset, into.nbytes)
        if self._mapped is None:
            raise SnapshotLost("the kept snapshot was closed")
        memory.read(self._fd, self._begin + offset, into)

    def close(self) -> None:
        """Let it be written over; may be called twice."""
        if self._mapped is not None:
            self._mapped.close()
            self._mapped = None
            os.close(self._fd)
            self._client.tell_released(self._number)

    def _checked_bytes(self, offset: int, nbytes: int) -> bytes:
        self._check(offset, nbytes)
        assert self._mapped is not None, "only read once it is mapped"
        return self._mapped[self._begin + offset : self._begin + offset + nbytes]

    def _check(self, offset: int, nbytes: int) -> None:
        """Compare the checksums of all parts that these bytes lie in, once."""
        if self._mapped is None or self._sums is None:
            raise SnapshotLost("the kept snapshot was closed")
        first = offset // bay_header.PART
        last = (offset + max(nbytes, 1) - 1) // bay_header.PART
        with memoryview(self._mapped) as whole:
            for index in range(first, min(last + 1, len(self._sums))):
                if index in self._checked:
                    continue
                begin, end = bay_header.part(index, self._header.content)
                with whole[self._begin + begin : self._begin + end] as found:
                    if crc32(found) != self._sums[index]:
                        self._client.tell_spoilt(self._number)
                        raise SnapshotLost(f"part {index} of a kept snapshot is damaged")
                self._checked.add(index)


class KeeperClient:
    """The client of one process of `rank`. Threads may share it; one at a time is served."""

    def __init__(self, path: str, rank: int, incarnation: int, world: int) -> None:
        """Calls nobody yet; `path` is that of the keeper's socket, `world` the job's ranks."""
        self.rank = rank
        self.world = world
        self._path = path
        self._incarnation = incarnation
        self._lock = threading.Lock()
        self._line: socket.socket | None = None
        self._silent_until = 0.0
        self._mapped: dict[int, mmap.mmap] = {}  # by the number of the memory
        self._fds: dict[int, int] = {}
        self.keeper_worked_s = 0.0  # processor time, as last heard

    def reserve(
        self,
        pieces: int,
        notes: int = 1 << 20,
        turn: int | None = 0,
        *,
        opened: int | None = None,
        within_s: float = ANSWER_S,
    ) -> MappedBay:
        """A bay with room for `pieces` bytes of tensors, and `notes` bytes of table and image.

        The first `opened` bytes of the pieces may be written to at once, None: all; the others once
        it was opened (`MappedBay.open`), which takes long enough to be left to another thread.

        `turn`: how many snapshots were due in this attempt, alike at all ranks (None: none yet).
        Where the one before is not safe yet, as steps are short, ranks give up at the same turns.

        Its content is lost, the bay reserved before is void, the memory of a new one not taken yet
        (`touch`). Raises SnapshotMissed, also without an answer `within_s` seconds.
        """
        nbytes = bay_header.bay_bytes(pieces + notes)
        wanted = Reserve(nbytes=nbytes, turn=turn or 0, ahead=turn is None)
        with self._lock:
            answer, fd = self._ask(wanted, within_s)
            self.keeper_worked_s = getattr(answer, "worked_s", self.keeper_worked_s)
            if fd is None:
                kind = TooLittleMemory if getattr(answer, "full", False) else SnapshotMissed
                raise kind(getattr(answer, "reason", "the keeper gave no memory"))
            try:
                return self._bay(answer, fd, nbytes, pieces, opened)
            except OSError as error:
                raise SnapshotMissed(f"no memory for a snapshot: {error.strerror}") from error

    def open(self, attempt: int, step: int) -> KeptBay:
        """This rank's part of that snapshot. Raises SnapshotLost. A keeper that ends meanwhile is
        followed by another, which has the same memory.
        """
        with self._lock:
            try:
                answer, fd = self._fetched(Fetch(attempt=attempt, step=step))
            except SnapshotMissed as error:
                raise SnapshotLost(str(error)) from error
        if fd is None or not isinstance(answer, Part):
            if fd is not None:
                os.close(fd)
            raise SnapshotLost(getattr(answer, "reason", "the keeper does not have it"))
        return KeptBay(self, fd, SnapshotId(attempt, step))

    def tell_spoilt(self, bay: int) -> None:
        """A bay that is being read is damaged: nobody is to have it again."""
        with self._lock:
            try:
                self._tell(Spoilt(bay=bay))
            except SnapshotMissed:
                pass  # Nobody is there who could give it.

    def tell_filled(self, bay: int) -> None:
        """A bay has its header. Raises SnapshotMissed if the keeper cannot be told."""
        with self._lock:
            self._tell(Filled(bay=bay))

    def tell_released(self, bay: int) -> None:
        """A bay is not read any more; a keeper that is gone has forgotten that it was."""
        with self._lock:
            try:
                self._tell(Release(bay=bay))
            except SnapshotMissed:
                pass

    def close(self) -> None:
        """Let go of all bays; memory goes once nobody uses it any more. May be called twice."""
        with self._lock:
            self._hang_up()
            for fd in self._fds.values():
                os.close(fd)
            self._fds.clear()
            self._mapped.clear()

    # --------------------------------------------------------------------------- the line

    def _bay(
        self, answer: KeeperMessage, fd: int, nbytes: int, pieces: int, opened: int | None
    ) -> MappedBay:
        """Takes `fd`. Raises OSError, SnapshotMissed."""
        number = memory.number_of(fd)
        if number in self._mapped:
            os.close(fd)
            mapped = self._mapped[number]
            begin = bay_header.content_begin(len(mapped))
            most = None if opened is None else begin + opened
            memory.allow_writing(mapped, allowed=True, most=most)
            return MappedBay(self, self._fds[number], mapped, pieces)
        if not (isinstance(answer, Room) and memory.is_sealed(fd)) or answer.nbytes < nbytes:
            os.close(fd)
            raise SnapshotMissed("the keeper gave memory of another kind")
        try:
            mapped = memory.map_to_write(fd)
        except OSError:
            os.close(fd)
            raise
        self._forget_all_but(answer.bays)
        self._fds[number], self._mapped[number] = fd, mapped
        return MappedBay(self, fd, mapped, pieces)

    def _forget_all_but(self, bays: tuple[int, ...]) -> None:
        for number in self._mapped.keys() - set(bays):
            os.close(self._fds.pop(number))
            del self._mapped[number]

    def _fetched(self, message: Fetch) -> tuple[KeeperMessage, int | None]:
        """Raises SnapshotMissed where nobody answers for FETCH_S, or none after KEEPERS."""
        for _ in range(KEEPERS):
            try:
                return self._ask(message, FETCH_S)
            except KeeperEnded:
                continue
        return self._ask(message, FETCH_S)

    def _ask(self, message: KeeperMessage, within_s: float) -> tuple[KeeperMessage, int | None]:
        """The keeper's answer. Raises SnapshotMissed."""
        self._tell(message, within_s)
        assert self._line is not None, "it was just spoken to"
        try:
            return packets.hear(self._line)
        except TimeoutError:
            self._hang_up()
            self._silent_until = time.monotonic() + SILENT_S
            raise SnapshotMissed("the keeper of this node does not answer") from None
        except (Closed, RemoteProtocolError) as error:
            self._hang_up()
            raise KeeperEnded(f"the keeper of this node is gone: {error}") from error

    def _tell(self, message: KeeperMessage, within_s: float = ANSWER_S) -> None:
        for again in (True, False):
            line = self._called()
            line.settimeout(within_s)
            try:
                packets.say(line, message)
            except TimeoutError:
                self._hang_up()
                self._silent_until = time.monotonic() + SILENT_S
                raise SnapshotMissed("the keeper of this node does not read") from None
            except Closed as error:
                self._hang_up()
                if not again:
                    raise SnapshotMissed(f"the keeper of this node is gone: {error}") from error
            else:
                return

    def _called(self) -> socket.socket:
        """The line to the keeper. Raises SnapshotMissed."""
        if self._line is not None:
            return self._line
        if time.monotonic() < self._silent_until:
            raise SnapshotMissed("the keeper of this node did not answer")
        line = packets.make_socket()
        line.settimeout(ANSWER_S)
        try:
            line.connect(self._path)
            packets.say(line, Attach(rank=self.rank, incarnation=self._incarnation))
        except (OSError, Closed) as error:
            line.close()
            raise SnapshotMissed(f"the keeper of this node cannot be reached: {error}") from error
        self._line = line
        return line

    def _hang_up(self) -> None:
        if self._line is not None:
            self._line.close()
            self._line = None
