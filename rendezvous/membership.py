"""Who is in: the members of one generation, those that ended, those that the kernel has reaped."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from rendezvous.layout import Layout
from rendezvous.messages import Legacy, View

FIRST_GENERATION = 1
"""The only generation that everybody has a plan for without asking: all slots at home."""


@dataclass(slots=True)
class Membership:
    """Facts about ranks. Only the coordinator changes them, and it begins every generation."""

    world: tuple[int, ...]
    live_ranks: set[int]
    generation: int = FIRST_GENERATION
    layout: Layout | None = None
    finished: dict[int, int] = field(default_factory=dict)
    """Rank -> steps it had committed when its script ended, -1 if it did not say."""
    absent: tuple[int, ...] = ()  # members that had ended as this generation began
    gone: set[int] = field(default_factory=set)
    remains: dict[int, tuple[bytes, ...]] = field(default_factory=dict)

    @property
    def live(self) -> tuple[int, ...]:
        """Slots whose ranks are all members of this generation."""
        if self.layout is None:
            return ()
        return tuple(s for s in self.layout.slots if self.layout.replicas[s][0] in self.live_ranks)

    @property
    def running(self) -> list[int]:
        """Members whose script has not ended."""
        return sorted(self.live_ranks - self.finished.keys())

    @property
    def ended(self) -> list[int]:
        """Members whose script has ended."""
        return sorted(self.live_ranks & self.finished.keys())

    def finish(self, rank: int, step: int, generation: int) -> bool:
        """Its script ended. Does a member now wait for it in a generation that it never joined?"""
        known = self.finished.get(rank)
        self.finished[rank] = step if known is None else max(step, known)
        missed = known is None and generation < self.generation and rank in self.live_ranks
        return missed and bool(self.running)

    def advance(self, leaving: Iterable[int]) -> None:
        """Begin the next generation without these ranks."""
        self.live_ranks -= set(leaving)
        self.generation += 1
        self.absent = tuple(self.ended)

    def view(self, roots: Mapping[int, int]) -> View:
        """`roots[slot]` is the rank whose end has taken it out, for slots lost since the last."""
        return View(
            generation=self.generation,
            live=self.live,
            live_ranks=tuple(sorted(self.live_ranks)),
            losses=tuple(sorted(roots.values())),
            ended=self.absent,
        )

    def unreaped(self, slots: Iterable[int]) -> bool:
        """May a rank of these slots still leave its context?"""
        assert self.layout is not None, "slots are known once one can be lost"
        return any(rank not in self.gone for rank in self.layout.ranks(tuple(slots)))

    def heirs(self, rank: int) -> list[int]:
        """Members at the shard position of `rank`."""
        assert self.layout is not None, "positions are known once something is left behind"
        shard = self.layout.place(rank)[1]
        return [self.layout.replicas[slot][shard] for slot in self.live]

    def legacy(self, heir: int) -> Legacy | None:
        """What the lost ranks of the shard position of `heir` left behind, None if nothing."""
        if self.layout is None:
            return None
        shard = self.layout.place(heir)[1]
        lost = [self.layout.replicas[s][shard] for s in self.layout.slots if s not in self.live]
        contexts = tuple((rank, self.remains[rank]) for rank in lost if rank in self.remains)
        return Legacy(generation=self.generation, contexts=contexts) if contexts else None

    def check(self) -> None:
        assert self.live_ranks <= set(self.world), f"INV-2: live {sorted(self.live_ranks)}"
        replicas = self.layout.replicas if self.layout is not None else ()
        for slot, ranks in enumerate(replicas):
            members = self.live_ranks & set(ranks)
            assert len(members) in (0, len(ranks)), f"INV-2: half of replica {slot}: {members}"
