"""Planted bugs of nodes that are lost, and whose places other launchers take."""

from rendezvous.coordinator import revivals, standing
from tests.sim.mutants import Mutant

OF_PLACES = (
    Mutant(
        "ranks of a lost node are started although nobody hosts them", revivals,
        "Revivals._may_start", "and self._unhosted.isdisjoint(ranks)", "", "arrival", 1,
    ),
    Mutant(
        "whoever takes a place is not known to host its ranks", revivals, "Revivals.take_place",
        "self._unhosted.difference_update(ranks)", "pass", "arrival", 3,
    ),
    Mutant(
        "mates of a lost node's ranks start without these", revivals, "Revivals._ranks",
        "sorted(self._members.layout.replicas[slot])",
        "r for r in sorted(self._members.layout.replicas[slot]) if r not in self._unhosted",
        "arrival", 1,
    ),
    Mutant(
        "a start that is ordered again has another birth", revivals, "Revivals._ask_again",
        "starts.asked_at = now", "starts.asked_at = now\n    starts.birth += 1", "arrival", 42,
    ),
    Mutant(
        "a lost node's newcomers are waited for", revivals, "Revivals.lose_node",
        "ended |= self._fail(rank, starts)", "pass", "arrival", 23,
    ),
    Mutant(
        "what was started is not remembered", standing, "Memory.heard",
        "self._starts[ranks] = message", "pass", "arrival", 309,
    ),
)  # fmt: skip
"""See `plan.draw_places`."""
