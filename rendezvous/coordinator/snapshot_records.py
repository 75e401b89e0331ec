"""Records of the snapshots of a job, in words for its user."""

from rendezvous.protocol.records import Json, Record, notice
from rendezvous.snapshots.identity import SnapshotId

REPLACED = "a node that had a part of it was lost"
LOST = "the snapshot of step {} cannot be gone back to: {}"


def identity(found: SnapshotId) -> dict[str, Json]:
    """The fields that name a snapshot."""
    return {"attempt": found.attempt, "step": found.step}


def in_vain(found: SnapshotId, of: int, world: int) -> Record:
    """Nobody goes back to `found`, of `of` ranks, in an attempt with `world`."""
    words = "parts of it are lost" if of == world else f"it is for {of} ranks, and {world} came"
    return notice(LOST.format(found.step, words))


def degraded(found: SnapshotId, why: str) -> Record:
    """The parity of `found` does not stand."""
    words = f"no loss of a node is survived by the snapshot of step {found.step}: {why}"
    return Record("snapshot.degraded", words, identity(found))
