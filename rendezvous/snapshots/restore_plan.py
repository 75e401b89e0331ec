"""The beginning of a restart of all ranks: decided by what is there, not by what was heard before.

A snapshot can be had if each rank finds its own part in the memory of its own node, or that part is
on another node, or can be rebuilt from what the others of its group have. Of those the newest is
taken. One of a job with another number of ranks is none. What is in a directory comes after all
that is in memory, the one of the latest start first.
"""

import re
from collections.abc import Iterator, Sequence
from itertools import accumulate

from rendezvous.protocol.snapshot_messages import Held, Share, Source
from rendezvous.snapshots.identity import SnapshotId, start_of
from rendezvous.snapshots.parity_groups import Member, ParityGroup

Node = tuple[int, tuple[Held, ...], tuple[Share, ...]]
"""How many ranks a node is given, after those of the nodes before it, and what it holds."""


def plan(nodes: Sequence[Node]) -> SnapshotId | None:
    """The newest snapshot that all ranks can have; None if there is none."""
    world = sum(nproc for nproc, _, _ in nodes)
    held = {SnapshotId(*one[:2]) for _, parts, _ in nodes for one in parts if one[2] == world}
    newest = (of for of in sorted(held, reverse=True) if sources(nodes, of) is not None)
    return next(newest, None)


def arranged(nodes: Sequence[Node]) -> Sequence[int]:
    """The order in which nodes are given their ranks, so that each finds its parts of the newest
    snapshot in its own directory; as they came where no order helps.
    """
    world, came = sum(nproc for nproc, _, _ in nodes), range(len(nodes))
    held = {SnapshotId(*one[:2]) for _, parts, _ in nodes for one in parts if one[2] == world}
    for of in sorted(held, reverse=True):
        firsts = [min((h[3] for h in n[1] if h[:3] == (*of, world)), default=world) for n in nodes]
        for order in (came, sorted(came, key=firsts.__getitem__)):
            if sources([nodes[place] for place in order], of) is not None:
                return order
    return came


def sources(nodes: Sequence[Node], of: SnapshotId) -> tuple[Source, ...] | None:
    """The nodes with parts that are not on the nodes of their ranks; None if one is lost."""
    world = sum(nproc for nproc, _, _ in nodes)
    parts = [{h[3] for h in held if h[:3] == (*of, world)} for _, held, _ in nodes]
    lacking = list(missing([nproc for nproc, _, _ in nodes], parts))
    if not lacking:
        return ()
    groups = {
        (share[3], share[5])
        for _, _, shares in nodes
        for share in shares
        if share[:3] == (*of, world)
    }
    found: list[Source] = []
    for level, members in sorted(groups):
        data = tuple(_first(parts, _ranks(member)) for member in members)
        keepers = [{s[4] for s in n[2] if s[:4] == (*of, world, level) and s[5] == members}
                   for n in nodes]  # fmt: skip
        parity = tuple(_first(keepers, range(slot, slot + 1)) for slot in range(len(members)))
        had = {rank for rank in _had(ParityGroup(level, members), data, parity) if rank in lacking}
        if had:
            found.append((level, members, data, parity))
            lacking = [rank for rank in lacking if rank not in had]
    return None if lacking else tuple(found)


def missing(nproc: Sequence[int], parts: Sequence[set[int]]) -> Iterator[int]:
    """The ranks whose parts are not on their own nodes, of what each node has."""
    firsts = accumulate(nproc, initial=0)
    for first, many, here in zip(firsts, nproc, parts, strict=False):
        yield from (rank for rank in range(first, first + many) if rank not in here)


def _had(group: ParityGroup, data: Sequence[int], parity: Sequence[int]) -> Iterator[int]:
    """The ranks of a group whose parts are somewhere, or can be rebuilt."""
    there = [slot for slot, node in enumerate(data) if node >= 0]
    kept = [slot for slot, node in enumerate(parity) if node >= 0]
    for slot, member in enumerate(group.members):
        if group.can_have(slot, there, kept):
            yield from _ranks(member)


def _ranks(member: Member) -> range:
    return range(member[0], member[0] + member[1])


def _first(having: Sequence[set[int]], wanted: range) -> int:
    """The first node that has all of these, -1 if none has."""
    return next((node for node, has in enumerate(having) if has.issuperset(wanted)), -1)


def planned(nodes: Sequence[Node], attempt: int) -> str:
    """The same, as `Start.restore` of this attempt has it."""
    return written(plan(nodes), attempt)


_TEXT = re.compile(r"([0-9]{1,12}):([0-9]{1,12})(?:@([0-9]{1,12}))?", re.ASCII)


def written(found: SnapshotId | None, attempt: int) -> str:
    """The name of a snapshot in `Start.restore`. One from a directory is kept as one of this
    `attempt`, which begins with it: older than all that the attempt takes, and newer than others.
    """
    if found is None:
        return ""
    start = start_of(found)
    return f"{found.attempt}:{found.step}" if start < 0 else f"{attempt}:{found.step}@{start}"


def read(text: str) -> SnapshotId | None:
    """The snapshot that `written` has named, as it is kept once it is in memory; None of anything
    else.
    """
    match = _TEXT.fullmatch(text)
    return None if match is None else SnapshotId(int(match[1]), int(match[2]))


def start_in(text: str) -> int:
    """The start that has written it to a directory; -1 if it is in memory."""
    match = _TEXT.fullmatch(text)
    return -1 if match is None or match[3] is None else int(match[3])
