"""The invariants of snapshots on disks, checked by a book of its own.

DISK-1 once it was said that a snapshot is on the disk, that one or a newer one is gone on from
after a power cut, and in the same run where what is in memory does not fit, unless a disk is lost.
DISK-2 what all ranks go on from is one state.
DRAIN a job that ends with "start it again" has on the disk what was safe when it was told to end.
DISK-L as long as steps are done snapshots get onto the disk.
"""

from collections.abc import Mapping

from rendezvous.protocol.exit_codes import ExitCode
from tests.sim.violation import demand

State = int
"""What all ranks are at the top of one step of one attempt of one run: counted as they come, so a
greater one is newer."""

NOTHING: State = -1


class Book:
    def __init__(self) -> None:
        self.newest = NOTHING  # on the disk, as was said
        self._older = NOTHING  # beside it
        self._drained = NOTHING  # safe as a job was told to end
        self.persisted = 0

    def wrote(self, state: State) -> None:
        """It is said that it is on the disk."""
        if state != self.newest:
            self.newest, self._older = state, self.newest
        self.persisted += 1

    def lost_disk(self) -> None:
        """Of a node, with all that was there."""
        self.newest = self._older = NOTHING

    def unfit(self, state: State) -> None:
        """Nobody is to go on from it, wherever it is."""
        if state in (self.newest, self._older):
            left = self._older if state == self.newest else self.newest
            self.newest, self._older = left, NOTHING

    def drains(self, safe: State) -> None:
        self._drained = safe

    def drained(self, code: int) -> None:
        """A job that was told to end has ended by itself."""
        if code == ExitCode.REQUEUE:
            demand(self.newest >= self._drained, "DRAIN", f"{self.newest}, not {self._drained}")

    def began(self, states: Mapping[int, State]) -> None:
        """A job begins, each rank from a state that it has read from a disk; none: from line 1."""
        found = set(states.values())
        demand(len(found) <= 1, "DISK-2", f"ranks go on from {dict(states)}")
        newest = max(found, default=NOTHING)
        demand(newest >= self.newest, "DISK-1", f"on from {newest}, and {self.newest} was there")
