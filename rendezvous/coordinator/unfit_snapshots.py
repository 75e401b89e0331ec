"""Snapshots with which a script does not come to the same state: nobody goes back to them again.

Keepers are told to drop them, so that another coordinator, which knows nothing of it, does not hear
of them. What they have said before that is told without them here.
"""

from collections.abc import Collection
from dataclasses import replace
from typing import TypeVar

from rendezvous.protocol.formation_messages import Join
from rendezvous.protocol.snapshot_messages import Holding
from rendezvous.snapshots.identity import SnapshotId

Telling = TypeVar("Telling", Holding, Join)
"""A message that tells of snapshots."""


def without(unfit: Collection[SnapshotId], told: Telling) -> Telling:
    """The same statement without these snapshots, and without their parity."""
    if isinstance(told, Join):
        holding = tuple(one for one in told.holding if SnapshotId(*one[:2]) not in unfit)
        shares = tuple(one for one in told.shares if SnapshotId(*one[:2]) not in unfit)
        return replace(told, holding=holding, shares=shares)
    held = tuple(one for one in told.held if SnapshotId(*one[:2]) not in unfit)
    shares = tuple(one for one in told.shares if SnapshotId(*one[:2]) not in unfit)
    return replace(told, held=held, shares=shares)
