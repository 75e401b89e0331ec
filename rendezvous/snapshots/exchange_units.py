"""The columns of which a part of parity, or of what was lost, is made. Pure."""

from collections.abc import Container, Iterator, Sequence

from rendezvous.protocol.exchange_messages import Read, ReadParity, Rebuild, Request
from rendezvous.protocol.snapshot_messages import Circle, Source
from rendezvous.snapshots import parity_code
from rendezvous.snapshots.exchange_work import (
    DIAGONALS_COLUMN,
    ROWS_COLUMN,
    Decoding,
    Encoding,
    KeptSnapshot,
    Restoring,
    Unit,
    Want,
)
from rendezvous.snapshots.member_stream import Extents, place, stream_bytes
from rendezvous.snapshots.parity_code import Part, Xor, padded
from rendezvous.snapshots.parity_groups import ParityGroup

PARITY = (ROWS_COLUMN, DIAGONALS_COLUMN)


def lacking(circle: Circle, of: KeptSnapshot, here: Container[int]) -> Iterator[Restoring]:
    """The parts to bring to the node of this circle, which has or awaits the ranks in `here`."""
    first = sum(circle.ranks[: circle.node])
    own = set(range(first, first + circle.ranks[circle.node]))
    for level, members, data, parity in circle.sources:
        for slot, (begin, many) in enumerate(members):
            ranks = (rank for rank in range(begin, begin + many) if rank in own)
            if missing := tuple(rank for rank in ranks if rank not in here):
                own -= set(missing)  # They may be of another group as well.
                yield Restoring(of, level, members, slot, missing, data, parity)


def who_knows(work: Restoring) -> int:
    """A node that knows which bays made up the stream."""
    if work.is_there:
        return work.data[work.slot]
    holders = (
        work.parity[slot]
        for stripe in work.group.stripes_of(work.slot)
        for slot in work.group.parity_slots(stripe)
    )
    return next(node for node in holders if node >= 0)


def of_encoding(work: Encoding, part: int) -> Iterator[Unit]:
    """All units of a share: for each of its columns, part by part."""
    share, group = work.share, work.share.group
    for column, stripe in enumerate(group.kept_at(share.slot)):
        for number in range(-(-work.longest // part)):
            wants = []
            for slot in group.data_slots(stripe):
                read = _read(
                    share.of,
                    group,
                    slot=slot,
                    stripe=stripe,
                    extents=work.extents[slot],
                    number=number,
                    part=part,
                )
                if read is not None:
                    wants.append(Want(slot, work.nodes[slot], read, read.nbytes))
            if wants:
                yield Unit(work, tuple(wants), (column, number), stripe=stripe)


def parity_of(unit: Unit, column: int, part: int, xor: Xor) -> Part:
    """The bytes of this part of the parity: zeros at its end may be left out."""
    found = [unit.columns[slot] for slot in sorted(unit.columns)]
    if column == 0:
        longest = max(map(len, found))
        return parity_code.row_parity([padded(one, longest) for one in found], xor)
    work = unit.work
    assert isinstance(work, Encoding), "only that makes parity"
    columns = [
        padded(unit.columns.get(slot, b""), part)
        for slot in work.share.group.data_slots(unit.stripe)
    ]
    return parity_code.diagonal_parity(columns, xor)


def check_of(unit: Unit, column: int, part: int, zeros: int) -> int | None:
    """The CRC of this part of the parity, None if it does not follow from those of the columns.
    `zeros` is the CRC of a part of zeros.
    """
    whole = all(len(one) == part for one in unit.columns.values())
    return (
        parity_code.row_check(list(unit.checks.values()), zeros) if whole and not column else None
    )


def of_restoring(work: Restoring, part: int) -> Iterator[Unit]:
    """All units by which the wanted ranks of a stream are had; each knows where its bytes begin."""
    length, of, group = stream_bytes(work.extents), work.of, work.group
    wanted = [place(work.extents, rank) for rank in work.ranks]
    first, many = group.members[work.slot]
    request: Request
    if work.is_there:
        for begin in range(0, length, part):
            size = min(part, length - begin)
            if _overlaps(wanted, begin, begin + size):
                request = Read(
                    serial=0, attempt=of.attempt, step=of.step, world=of.world,
                    first_rank=first, nproc=many, offset=begin, nbytes=size,
                )  # fmt: skip
                yield Unit(work, (Want(0, work.data[work.slot], request, size),), (begin, 0))
        return
    for stripe in group.stripes_of(work.slot):
        chunk = group.chunk(work.slot, stripe, length)
        node = next(work.parity[s] for s in group.parity_slots(stripe) if work.parity[s] >= 0)
        for number, begin in enumerate(range(chunk.begin, chunk.end, part)):
            size = min(part, chunk.end - begin)
            if _overlaps(wanted, begin, begin + size):
                request = Rebuild(
                    serial=0, attempt=of.attempt, step=of.step, world=of.world,
                    level=work.level, members=work.members, slot=work.slot, stripe=stripe,
                    part=number,
                )  # fmt: skip
                yield Unit(work, (Want(0, node, request, size),), (begin, 0))


def of_lost_part(
    work: Decoding, request: Rebuild, source: Source, extents: Sequence[Extents], part: int
) -> Unit | None:
    """The unit of which a part of a lost chunk is made; None if too much is missing, or there is no
    such.
    """
    level, members, data, parity = source
    group, of = (
        ParityGroup(level, members),
        KeptSnapshot(request.attempt, request.step, request.world),
    )
    slot, stripe, number = request.slot, request.stripe, request.part
    if not (slot in range(group.size) and stripe in range(group.size)):
        return None
    if slot not in group.data_slots(stripe):
        return None
    chunk = group.chunk(slot, stripe, stream_bytes(extents[slot]))
    size = min(part, chunk.end - chunk.begin - number * part)
    missing = [one for one in group.data_slots(stripe) if data[one] < 0 or one == slot]
    kinds = [kind for kind, at in enumerate(group.parity_slots(stripe)) if parity[at] >= 0]
    if size <= 0 or len(missing) > len(kinds):
        return None
    wants = []
    for one in group.data_slots(stripe):
        if one not in missing:
            read = _read(
                of, group, slot=one, stripe=stripe, extents=extents[one], number=number, part=part
            )
            if read is not None:
                wants.append(Want(one, data[one], read, read.nbytes))
    for kind in kinds if len(missing) > 1 else kinds[:1]:
        at = group.parity_slots(stripe)[kind]
        asked = ReadParity(
            serial=0, attempt=of.attempt, step=of.step, world=of.world,
            level=level, members=members, slot=at, column=kind, part=number,
        )  # fmt: skip
        wants.append(Want(PARITY[kind], parity[at], asked, part))
    return Unit(
        work,
        tuple(wants),
        (size, 0),
        group=group,
        wanted=slot,
        stripe=stripe,
        missing=frozenset(missing),
    )


def lost_part(unit: Unit, part: int, xor: Xor) -> Part:
    """The part that was lost."""
    group = unit.group
    assert group is not None, "a part of a group's stripe"
    slots = group.data_slots(unit.stripe)
    asked = {want.column for want in unit.wants}
    data = {
        column: padded(unit.columns.get(slot, b""), part)
        for column, slot in enumerate(slots)
        if slot not in unit.missing
    }
    parity = {kind: unit.columns[PARITY[kind]] for kind in (0, 1) if PARITY[kind] in asked}
    found = parity_code.rebuilt(
        data, parity, wanted=slots.index(unit.wanted), columns=len(slots), xor=xor
    )
    size, _ = unit.at
    return found[:size]


def _read(
    of: KeptSnapshot,
    group: ParityGroup,
    *,
    slot: int,
    stripe: int,
    extents: Extents,
    number: int,
    part: int,
) -> Read | None:
    """The question for part `number` of a chunk; None beyond its end."""
    chunk = group.chunk(slot, stripe, stream_bytes(extents))
    begin = chunk.begin + number * part
    first, many = group.members[slot]
    if begin >= chunk.end:
        return None
    return Read(
        serial=0, attempt=of.attempt, step=of.step, world=of.world, first_rank=first, nproc=many,
        offset=begin, nbytes=min(part, chunk.end - begin),
    )  # fmt: skip


def _overlaps(wanted: Sequence[tuple[int, int]], begin: int, end: int) -> bool:
    return any(low < end and begin < high for low, high in wanted)
