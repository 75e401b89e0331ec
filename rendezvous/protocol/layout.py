"""The layout: slot (replica position) and shard position of every global rank.

A layout is learned once, from the script's own process groups, and never changes: a lost rank
keeps its place in it. See docs/recovery.md, "What follows from a loss".
"""

from dataclasses import dataclass, field

FIRST_GENERATION = 1
"""The only generation that everybody has a plan for without asking: all slots at home."""


@dataclass(frozen=True, slots=True)
class Layout:
    """`replicas[slot][shard]` is a global rank."""

    replicas: tuple[tuple[int, ...], ...]
    _places: dict[int, tuple[int, int]] = field(
        default_factory=dict, init=False, compare=False, repr=False
    )

    def __post_init__(self) -> None:
        ranks = [rank for replica in self.replicas for rank in replica]
        widths = {len(replica) for replica in self.replicas}
        if not ranks or sorted(ranks) != list(range(len(ranks))) or len(widths) != 1:
            words = "do not partition the ranks 0..n-1 into equal shard groups"
            raise ValueError(f"replicas {self.replicas} {words}")
        for slot, replica in enumerate(self.replicas):
            self._places.update({rank: (slot, shard) for shard, rank in enumerate(replica)})

    @property
    def slots(self) -> tuple[int, ...]:
        return tuple(range(len(self.replicas)))

    @property
    def world_size(self) -> int:
        return len(self.replicas) * self.shards

    @property
    def shards(self) -> int:
        """Ranks of one replica."""
        return len(self.replicas[0])

    def place(self, rank: int) -> tuple[int, int]:
        """(slot, shard position) of `rank`."""
        place = self._places.get(rank)
        if place is None:
            raise ValueError(f"rank {rank} is not in the layout of {self.world_size} ranks")
        return place

    def slot(self, rank: int) -> int:
        return self.place(rank)[0]

    def ranks(self, slots: tuple[int, ...]) -> tuple[int, ...]:
        """All ranks of `slots`, ascending."""
        return tuple(sorted(rank for slot in slots for rank in self.replicas[slot]))
