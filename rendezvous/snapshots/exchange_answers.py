"""The answers of an exchange to others, from the memory of its node."""

from zlib import crc32

from rendezvous.protocol.exchange_messages import (
    Bytes,
    Describe,
    Described,
    Read,
    ReadParity,
    Rebuild,
    Request,
)
from rendezvous.protocol.snapshot_messages import Circle
from rendezvous.snapshots import exchange_units
from rendezvous.snapshots.exchange_work import (
    Answer,
    Decoding,
    KeptSnapshot,
    NodeMemory,
    ShareId,
    Unit,
)
from rendezvous.snapshots.member_stream import spans, stream_bytes
from rendezvous.snapshots.parity_code import Part
from rendezvous.snapshots.parity_groups import Member


class Answers:
    """The answers of one node; `part`: bytes that are asked for at once."""

    def __init__(self, memory: NodeMemory, part: int) -> None:
        self._memory = memory
        self._part = part

    def answer(self, peer: str, request: Request) -> Answer:
        """The answer from the memory of this node."""
        of = KeptSnapshot(request.attempt, request.step, request.world)
        match request:
            case Describe(serial=serial, first_rank=first, nproc=many):
                found = self._memory.extents(of, (first, many)) or self._remembered(
                    of, (first, many)
                )
                return Answer(peer, Described(serial=serial, bays=found))
            case Read(serial=serial, offset=offset, nbytes=nbytes):
                member = request.first_rank, request.nproc
                return of_bytes(peer, serial, self._read(of, member, offset, nbytes))
            case ReadParity(serial=serial, column=column, part=part):
                share = ShareId(*of, request.level, request.slot, request.members)
                known = share in self._memory.shares() and column in range(request.level)
                data = self._memory.read_share(share, column, part) if known else None
                return of_bytes(peer, serial, data)
            case Rebuild(serial=serial):
                return of_bytes(peer, serial, None)

    def _remembered(self, of: KeptSnapshot, member: Member) -> tuple[tuple[int, int, int], ...]:
        """The extents of a node's bays, as its parity tells."""
        for share in self._memory.shares():
            if share.of == of and member in share.members:
                extents = self._memory.share_extents(share) or ()
                found = extents[share.members.index(member)] if extents else ()
                if found:
                    return found
        return ()

    def _read(self, of: KeptSnapshot, member: Member, offset: int, nbytes: int) -> bytes | None:
        extents = self._memory.extents(of, member)
        end = offset + nbytes
        if nbytes > self._part or not 0 <= offset <= end <= stream_bytes(extents):
            return None
        pieces = []
        for span in spans(extents, offset, end):
            piece = self._memory.read(of, span.rank, span.offset, span.nbytes)
            if piece is None:
                return None
            pieces.append(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def lost_part(self, work: Decoding, request: Rebuild, circle: Circle | None) -> Unit | None:
        """The unit that is needed for it; None if that cannot be told now."""
        key = request.level, request.members
        if circle is None or circle.of != (request.attempt, request.step):
            return None
        source = next((one for one in circle.sources if one[:2] == key), None)
        of = KeptSnapshot(request.attempt, request.step, request.world)
        here = next((s for s in self._memory.shares() if s.of == of and s[3::2] == key), None)
        if source is None or here is None:
            return None
        extents = self._memory.share_extents(here)
        if extents is None:
            return None
        return exchange_units.of_lost_part(work, request, source, extents, self._part)


def of_bytes(peer: str, serial: int, data: Part | None) -> Answer:
    """These bytes, or that they are not there."""
    if data is None:
        return Answer(peer, Bytes(serial=serial, there=False))
    return Answer(peer, Bytes(serial=serial, there=True, check=crc32(data)), data)
