"""The invariants of snapshots, checked by books of their own.

SNAP-1 what was safe, or something newer, can be had at every later moment, unless more nodes of a
group are lost than its parity covers between two moments at which all of it stands. SNAP-2 all
ranks go back to one and the same snapshot, whole. SNAP-3 nothing of another attempt or process is
restored. SNAP-4 steps go on while keepers do not. SNAP-L after the last fault, snapshots get safe
again.
"""

from collections.abc import Callable, Sequence

from rendezvous.protocol.records import Record
from rendezvous.snapshots.identity import NONE, SnapshotId
from tests.sim.snapshots.memory import Memory
from tests.sim.snapshots.node import Node
from tests.sim.violation import demand


class Book:
    """All nodes are of one group here, of which `level` may be lost."""

    def __init__(self, world: int, level: int, nodes: Callable[[], Sequence[Node]]) -> None:
        self._world = world
        self._level = level
        self._nodes = nodes  # by place
        self._lost: set[int] = set()  # places of nodes that were lost since all parity stood
        self._bare: set[SnapshotId] = set()  # safe without parity, as was said
        self._void = False  # memory is gone that nobody was to outlive
        self.safe = NONE
        self.attempt = 0
        self._since = NONE  # what is older than that is not to be had, if memory is gone

    def ordered(self, attempt: int, safe: tuple[int, int]) -> None:
        """The coordinator says so."""
        found = SnapshotId(*safe)
        if attempt != self.attempt or self._void or found <= max(self.safe, self._since):
            return
        self.safe = found
        if found not in self._bare:
            self._stands(found)

    def noted(self, record: Record) -> None:
        """The coordinator says what parity is worth."""
        found = SnapshotId(
            int(record.fields.get("attempt", -1)), int(record.fields.get("step", -1))
        )
        if record.event == "snapshot.degraded":
            self._bare.add(found)
        if record.event == "snapshot.parity" and not self._void:
            self._stands(found)

    def _stands(self, found: SnapshotId) -> None:
        """It is said that every node has all that it should have of this one."""
        for place, node in enumerate(self._nodes() if self._level else ()):
            shares = {share.id for share in node.shares.values()}
            size = len(self._nodes())
            right = any(share[:2] == found and len(share.members) == size for share in shares)
            if right:
                self._lost.discard(place)
            lost = place in self._lost  # since it was said of this node
            demand(right or lost, "SNAP-1", f"{node.name} has no parity of {found}")

    def lost_node(self, place: int) -> None:
        """A node is lost with its memory."""
        self._lost.add(place)
        if len(self._lost) > self._level or self.safe in self._bare:
            self.safe, self._void = NONE, True

    def ranks_set(self, step: int) -> None:
        """Nodes have the places of lost ones at the top of this step, in the middle of the attempt:
        what is taken from then on is on them, too.
        """
        if self._void:
            self._void, self._since = False, SnapshotId(self.attempt, step)

    def began(self, attempt: int, restored: SnapshotId | None) -> None:
        """All ranks begin again."""
        found = NONE if restored is None else restored
        demand(found >= self.safe, "SNAP-1", f"back to {found} where {self.safe} was safe")
        self.attempt, self._void, self._since = attempt, False, NONE
        if restored is None:
            self._lost.clear()
        elif not self._level:
            self.safe = found  # else it is no safer than it was

    def check(self) -> None:
        """Check that what was safe is there, but for what lost nodes had."""
        if self.safe == NONE:
            return
        having: dict[SnapshotId, set[int]] = {}
        gone: set[int] = set()
        for place, node in enumerate(self._nodes()):
            if place in self._lost:
                gone |= set(node.ranks)
            for memory in _held(node):
                found = memory.header
                if (
                    found is not None
                    and memory.rank in node.ranks
                    and memory.is_part(found, self._world)
                ):
                    having.setdefault(found, set()).add(memory.rank)
        there = [found for found, parts in having.items() if len(parts | gone) == self._world]
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
