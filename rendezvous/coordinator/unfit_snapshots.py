"""Snapshots with which a script does not come to the same state: nobody goes back to them again.

Keepers have them still, and another coordinator may know nothing of it; then they fail once more.
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
