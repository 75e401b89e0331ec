"""Planted bugs: rules of snapshots that are broken one at a time, and a history that notices."""

from rendezvous.coordinator import snapshots
from rendezvous.snapshots import holdings, restore_plan
from tests.sim.mutants import Mutant
from tests.sim.snapshots import worker

BUGS = (
    Mutant(
        "what is whole is safe", snapshots, "SnapshotBook._secure",
        "if not all(self._obeyed(name) for name in self._ranks):", "if False:", "SNAP-1", 7,
    ),
    Mutant(
        "whoever has not heard the order keeps what it is about", snapshots,
        "SnapshotBook._obeyed", "holding is None or holding.order != self._order",
        "holding is None", "SNAP-1", 6,
    ),
    Mutant(
        "what is gone waits for ever", snapshots, "SnapshotBook._secure",
        "self.next = NONE\n            return [self._give_order()]", "return []", "SNAP-L", 15,
    ),
    Mutant(
        "any bay is written over", holdings, "Holdings._is_free",
        "bay.content in self.order[2:] or", "", "SNAP-1", 0,
    ),
    Mutant(
        "the one that is to be next is written over", holdings, "Holdings._is_free",
        "self.order[2:]", "self.order[2:3]", "SNAP-1", 0,
    ),
    Mutant(
        "the older one is written over when the newer is to be next", holdings,
        "Holdings._is_free", "self.order[2:]", "self.order[3:]", "SNAP-1", 0,
    ),
    Mutant(
        "late orders are obeyed", holdings, "Holdings.keep", "max(self.order, order)", "order",
        "SNAP-1", 6,
    ),
    Mutant(
        "ranks of different steps", restore_plan, "_of_all",
        "len(here) == len(ranks)", "here", "SNAP-1", 23,
    ),
    Mutant(
        "memory that a process may still write to is given to the next", holdings,
        "Holdings._fits", "bay.owner in (None, incarnation) and", "", "SNAP-1", 10,
    ),
    Mutant(
        "ranks give up at different turns", holdings, "Holdings.reserve",
        "if turn % self._grid(rank).every:", "if False:", "SNAP-L", 0,
    ),
    Mutant(
        "header first", worker, "Worker.top", "self._copy(self._bay, 0)",
        "self._copy(self._bay, 0)\n"
        "    self._bay.header, self._bay.world = SnapshotId(self.attempt, step), self.world\n"
        "    self.node.filled(self.rank, self.incarnation, self._bay)",
        "SNAP-1", 8,
    ),
    Mutant(
        "no fence", worker, "Worker.fence", "self._copy(bay, 1)",
        "self.step += 1\n    self._copy(bay, 1)\n    self.step -= 1", "SNAP-1", 0,
    ),
)  # fmt: skip
