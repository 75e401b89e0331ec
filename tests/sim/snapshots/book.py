"""What must hold of snapshots, checked by books of their own.

SNAP-1 what was safe, or something newer, can be had at every later moment. SNAP-2 all ranks go back
to one and the same snapshot, whole. SNAP-3 nothing of another attempt or process is restored.
SNAP-4 steps go on while keepers do not. SNAP-L after the last fault, snapshots get safe again.
"""

from collections.abc import Iterable

from rendezvous.snapshots.identity import NONE, SnapshotId
from tests.sim.snapshots.memory import Memory
from tests.sim.snapshots.node import Node
from tests.sim.violation import demand


class Book:
    def __init__(self, world: int) -> None:
        self._world = world
        self.safe = NONE
        self.attempt = 0
        self._lost = False  # memory that nobody was to outlive

    def ordered(self, attempt: int, safe: tuple[int, int]) -> None:
        """The coordinator says so."""
        if attempt == self.attempt and not self._lost:
            self.safe = max(self.safe, SnapshotId(*safe))

    def lost_node(self) -> None:
        """Memory is gone that nobody was to outlive."""
        self.safe, self._lost = NONE, True

    def began(self, attempt: int, restored: SnapshotId | None) -> None:
        """All ranks begin again."""
        found = NONE if restored is None else restored
        demand(found >= self.safe, "SNAP-1", f"back to {found} where {self.safe} was safe")
        self.attempt, self.safe, self._lost = attempt, found, False

    def check(self, nodes: Iterable[Node]) -> None:
        if self.safe == NONE:
            return
        having: dict[SnapshotId, int] = {}
        for node in nodes:
            for memory in _held(node):
                found = memory.header
                if (
                    found is not None
                    and memory.rank in node.ranks
                    and memory.is_part(found, self._world)
                ):
                    having[found] = having.get(found, 0) + 1
        there = [found for found, parts in having.items() if parts == self._world]
        demand(
            any(found >= self.safe for found in there), "SNAP-1",
            f"{self.safe} was safe, and there are only {there}",
        )  # fmt: skip

    def restored(self, rank: int, wanted: SnapshotId, memory: Memory) -> None:
        """A rank takes its part."""
        of = {half for half in memory.halves if half is not None}
        demand(all(one[:2] == (rank, wanted.attempt) for one in of), "SNAP-3", f"{of} as {wanted}")
        demand(memory.is_part(wanted, self._world), "SNAP-2", f"{memory} is not {wanted}")


def _held(node: Node) -> list[Memory]:
    keeper = {} if node.keeper is None else node.keeper.memory
    return list({**node.bays, **keeper}.values())
