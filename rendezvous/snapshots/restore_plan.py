"""What a restart of all ranks begins from: decided by what is there, not by what was heard before.

A snapshot can be had if each rank finds its own part in the memory of its own node. Of those the
newest is taken. One of a job with another number of ranks is none.
"""

from collections.abc import Iterable, Sequence

from rendezvous.protocol.snapshot_messages import Held
from rendezvous.snapshots.identity import SnapshotId

Node = tuple[int, tuple[Held, ...]]
"""How many ranks a node is given, after those of the nodes before it, and what it holds."""


def plan(nodes: Sequence[Node]) -> SnapshotId | None:
    """The newest snapshot that all ranks can have; None if there is none."""
    world = sum(nproc for nproc, _ in nodes)
    found: set[SnapshotId] | None = None
    first = 0
    for nproc, held in nodes:
        ranks = range(first, first + nproc)
        here = _of_all(held, ranks, world)
        found = here if found is None else found & here
        first += nproc
    return max(found or (), default=None)


def _of_all(held: Iterable[Held], ranks: range, world: int) -> set[SnapshotId]:
    """The snapshots of `world` ranks of which a node has the parts of all `ranks`."""
    parts: dict[SnapshotId, set[int]] = {}
    for attempt, step, of, rank, _ in held:
        if of == world and rank in ranks:
            parts.setdefault(SnapshotId(attempt, step), set()).add(rank)
    return {found for found, here in parts.items() if len(here) == len(ranks)}


def planned(nodes: Sequence[Node]) -> str:
    """The same, as `Start.restore` has it."""
    return written(plan(nodes))


def written(found: SnapshotId | None) -> str:
    """As `Start.restore` has it."""
    return "" if found is None else f"{found.attempt}:{found.step}"


def read(text: str) -> SnapshotId | None:
    """What `written` has made; None of anything else."""
    attempt, colon, step = text.partition(":")
    if not colon or not (attempt.isdecimal() and step.isdecimal()):
        return None
    return SnapshotId(int(attempt), int(step))
