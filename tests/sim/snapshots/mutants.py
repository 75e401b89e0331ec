"""Planted bugs: rules of snapshots that are broken one at a time, and a history that notices."""

from rendezvous.coordinator import parity_circle, snapshots
from rendezvous.snapshots import (
    exchange,
    exchange_units,
    holdings,
    kept_shares,
    parity_code,
    parity_groups,
    restore_plan,
)
from tests.sim.mutants import Mutant
from tests.sim.snapshots import worker

BUGS = (
    Mutant(
        "what is whole is safe", snapshots, "SnapshotBook._secure",
        "if not all(self._obeyed(name) for name in self._ranks):", "if False:", "SNAP-1", 12,
    ),
    Mutant(
        "whoever has not heard the order keeps what it is about", snapshots,
        "SnapshotBook._obeyed", "holding is None or holding.order != self._order",
        "holding is None", "SNAP-1", 10,
    ),
    Mutant(
        "what is gone waits for ever", snapshots, "SnapshotBook._secure",
        "self.next, self._kept_at = NONE, -1.0\n        return [self._give_order()]",
        "return []", "SNAP-L", 1,
    ),
    Mutant(
        "any bay is written over", holdings, "KeeperHoldings._is_free",
        "bay.content in self.order[2:] or", "", "SNAP-1", 13,
    ),
    Mutant(
        "the one that is to be next is written over", holdings, "KeeperHoldings._is_free",
        "self.order[2:]", "self.order[2:3]", "SNAP-1", 1,
    ),
    Mutant(
        "the older one is written over when the newer is to be next", holdings,
        "KeeperHoldings._is_free", "self.order[2:]", "self.order[3:]", "SNAP-1", 10,
    ),
    Mutant(
        "late orders are obeyed", holdings, "KeeperHoldings.keep",
        "max(self.order, order)", "order", "SNAP-1", 1,
    ),
    Mutant(
        "ranks of different steps", restore_plan, "missing",
        "if rank not in here", "if not here", "SNAP-1", 23,
    ),
    Mutant(
        "memory that a process may still write to is given to the next", holdings,
        "KeeperHoldings._fits", "bay.owner in (None, incarnation) and", "", "SNAP-1", 1068,
    ),
    Mutant(
        "ranks give up at different turns", holdings, "KeeperHoldings.reserve",
        "if turn % self._grid(rank).every:", "if False:", "SNAP-L", 13,
    ),
    Mutant(
        "header first", worker, "Worker.top", "self._copy(self._bay, 0)",
        "self._copy(self._bay, 0)\n"
        "    self._bay.header, self._bay.world = SnapshotId(self.attempt, step), self.world\n"
        "    self.node.filled(self.rank, self.incarnation, self._bay)",
        "SNAP-1", 4,
    ),
    Mutant(
        "what an old keeper has said is believed after what the new one says", snapshots,
        "SnapshotBook.hear", " or (known is not None and _age(holding) < _age(known))", "",
        "SNAP-1", 14,
    ),
    Mutant(
        "parity is rotated by one too many", parity_groups, "ParityGroup.kept_at",
        "(slot - column)", "(slot - column + 1)", "assert", 0,
    ),
    Mutant(
        "safe before its parity stands", snapshots, "SnapshotBook._secure",
        "self._circle.stands(self.next, self._holdings)", "True", "SNAP-1", 0,
    ),
    Mutant(
        "what all went back to is as safe as what they had", snapshots, "SnapshotBook._choose",
        "self._circle.exposed or", "", "SNAP-1", 74,
    ),
    Mutant(
        "another exchange is called where the one before was", parity_circle, "ParityCircle.due",
        "or told.ports != ports", "", "SNAP-L", 11,
    ),
    Mutant(
        "parity is dropped before it is known what is to stay", kept_shares,
        "KeptShares._dropped", "if self._order == NO_ORDER:", "if False:", "SNAP-L", 225,
    ),
    Mutant(
        "diagonals without the row parity", parity_code, "diagonal_parity",
        "enumerate(_rows(column))", "enumerate(_rows(column)) if place != PRIME - 1", "SNAP-L", 60,
    ),
    Mutant(
        "each part is the first one", exchange_units, "_read",
        "chunk.begin + number * part", "chunk.begin", "SNAP-L", 225,
    ),
    Mutant(
        "the last part of a chunk is left out", exchange_units, "of_encoding",
        "range(-(-work.longest // part))", "range(work.longest // part)", "SNAP-L", 3,
    ),
    Mutant(
        "what is rebuilt is handed over as it is", exchange, "Exchange._end_restoring",
        "self._memory.end_bays(work.of, work.wanted)", "''", "SNAP-L", 225,
    ),
    Mutant(
        "no fence", worker, "Worker.fence", "self._copy(bay, 1)",
        "self.step += 1\n    self._copy(bay, 1)\n    self.step -= 1", "SNAP-1", 0,
    ),
)  # fmt: skip

OF_REPLICAS = (
    Mutant(
        "a survivor seals what it copied while it did the work of others", worker, "Worker.fence",
        " or self._stands_for >= 0", "", "SNAP-1", 14,
    ),
    Mutant(
        "what is whole is safe", snapshots, "SnapshotBook._secure",
        "if not all(self._obeyed(name) for name in self._ranks):", "if False:", "SNAP-1", 12,
    ),
    Mutant(
        "any bay is written over", holdings, "KeeperHoldings._is_free",
        "bay.content in self.order[2:] or", "", "SNAP-1", 2,
    ),
)  # fmt: skip
"""In histories of a job with several replicas."""

OF_RETURNS = (
    Mutant(
        "turns go on where a process that came back counts anew", holdings,
        "KeeperHoldings.reserve", "if turn <= self._grid(rank).turn:", "if False:", "SNAP-L", 39,
    ),
    Mutant(
        "what a lost node had is waited for", snapshots, "SnapshotBook.set_ranks",
        "if self._circle.exposed and self.newest != self.safe:", "if False:", "SNAP-L", 119,
    ),
    Mutant(
        "a node that takes a place is unknown", snapshots, "SnapshotBook.set_ranks",
        "self._ranks = dict(ranks)", "pass", "assert", 3,
    ),
)  # fmt: skip
"""In histories in which lost replicas come back."""
