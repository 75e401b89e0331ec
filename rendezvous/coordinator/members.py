"""The members of one generation, those that ended, and those that the kernel has reaped."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from rendezvous.protocol.effects import Effect, KillRanks
from rendezvous.protocol.layout import FIRST_GENERATION, Layout
from rendezvous.protocol.messages import ContextBuffer, Farewell, Kill, LostContexts, Topology
from rendezvous.protocol.records import Json, Record
from rendezvous.protocol.views import Identity, View


@dataclass(slots=True)
class Membership:
    """Facts about ranks. Only the coordinator changes them, and it begins every generation."""

    world: tuple[int, ...]
    live_ranks: set[int]
    generation: int = FIRST_GENERATION
    layout: Layout | None = None
    finished: dict[int, int] = field(default_factory=dict)
    """Rank -> steps it had committed when its script ended, -1 if it did not say."""
    farewells: dict[int, Farewell] = field(default_factory=dict)
    absent: tuple[int, ...] = ()  # members that had ended as this generation began
    joined: tuple[int, ...] = ()  # those that take part again since it began
    from_step: int = -1  # the step at whose top it began, if some have joined
    gone: set[int] = field(default_factory=set)
    births: dict[int, int] = field(default_factory=dict)
    """Rank -> birth of its newest process, of ranks that were started again."""
    returned_in: dict[int, int] = field(default_factory=dict)
    """Rank -> the newest generation by which it has come back."""
    context_buffer: dict[int, ContextBuffer] = field(default_factory=dict)
    # Asked with every message of every rank: what they follow from changes with a loss or an end.
    _running: list[int] = field(default_factory=list, init=False, repr=False, compare=False)
    _ended: list[int] = field(default_factory=list, init=False, repr=False, compare=False)
    _live: tuple[int, ...] = field(default=(), init=False, repr=False, compare=False)
    _lost: tuple[int, ...] = field(default=(), init=False, repr=False, compare=False)
    _divided_for: tuple[int, int, bool] = field(default=(0, 0, False), init=False, repr=False)
    _sorted_for: tuple[int, int, int] = field(default=(0, 0, 0), init=False, repr=False)
    _checked: tuple[int, int, bool] = field(default=(0, 0, False), init=False, repr=False)
    _viewed: tuple[object, ...] = field(default=(), init=False, repr=False)
    _view: View | None = field(default=None, init=False, repr=False)
    _ranks: frozenset[int] = field(default=frozenset(), init=False, repr=False, compare=False)

    def __contains__(self, rank: int) -> bool:
        """True if this is a rank of the job, lost or not."""
        if not self._ranks:
            self._ranks = frozenset(self.world)
        return rank in self._ranks

    def place(self, topology: Topology) -> str:
        """Keep who replicates whom; return why that cannot be believed, "" if it can."""
        if self.layout is not None:
            same = topology.replicas == self.layout.replicas
            return "" if same else f"others see {self.layout.replicas}"
        try:
            layout = Layout(topology.replicas)
        except ValueError as error:
            return str(error)
        if layout.world_size != len(self.world):
            return f"the world has {len(self.world)} ranks"
        self.layout = layout
        return ""

    @property
    def live(self) -> tuple[int, ...]:
        """Slots whose ranks are all members of this generation."""
        state = (self.generation, len(self.live_ranks), self.layout is not None)
        if state != self._divided_for and self.layout is not None:
            self._divided_for = state
            firsts = {slot: ranks[0] for slot, ranks in enumerate(self.layout.replicas)}
            self._live = tuple(slot for slot, rank in firsts.items() if rank in self.live_ranks)
            self._lost = tuple(slot for slot, rank in firsts.items() if rank not in self.live_ranks)
        return self._live

    @property
    def lost(self) -> tuple[int, ...]:
        """Slots whose ranks are no members of this generation."""
        return self._lost if self.live else ()

    @property
    def came_back(self) -> dict[int, int]:
        """Members that were lost before and take part again, and since which generation.

        That is FIRST_GENERATION where another coordinator has begun it, so long ago that nobody
        remembers it: before all that are remembered.
        """
        again = {rank for rank, birth in self.births.items() if birth} | self.returned_in.keys()
        return {
            rank: self.returned_in.get(rank, FIRST_GENERATION)
            for rank in sorted(again & self.live_ranks)
        }

    @property
    def running(self) -> list[int]:
        """Members whose script has not ended."""
        self._sort()
        return self._running

    @property
    def ended(self) -> list[int]:
        """Members whose script has ended."""
        self._sort()
        return self._ended

    def _sort(self) -> None:
        # Members leave and come with a new generation; who has ended stays ended within one.
        state = (self.generation, len(self.live_ranks), len(self.finished))
        if state != self._sorted_for:
            self._sorted_for = state
            self._running = sorted(self.live_ranks - self.finished.keys())
            self._ended = sorted(self.live_ranks & self.finished.keys())

    def mates(self, rank: int) -> list[int]:
        """Members of the same replica whose script has not ended, this rank among them."""
        ranks = () if self.layout is None else self.layout.replicas[self.layout.slot(rank)]
        return [r for r in ranks if r in self.live_ranks and r not in self.finished]

    def ended_mates(self, rank: int) -> list[int]:
        """Shard mates of `rank` whose script has ended, in that order."""
        ranks = () if self.layout is None else self.layout.replicas[self.layout.slot(rank)]
        return [one for one in self.finished if one in ranks and one in self.live_ranks]

    def finish(self, rank: int, step: int, generation: int) -> bool:
        """Its script ended. True if a member waits for it in a generation that it never joined."""
        known = self.finished.get(rank)
        self.finished[rank] = step if known is None else max(step, known)
        missed = known is None and generation < self.generation and rank in self.live_ranks
        return missed and bool(self.running)

    def advance(self, leaving: Iterable[int]) -> None:
        """Begin the next generation without these ranks."""
        self.live_ranks -= set(leaving)
        self.joined, self.from_step = (), -1
        self.generation += 1
        self.absent = tuple(self.ended)

    def arrive(self, ranks: Iterable[int], from_step: int) -> None:
        """Begin the next generation with these ranks, too, at the top of step `from_step`.

        Their processes are new ones: what is known of those before is over.
        """
        joined = tuple(sorted(ranks))
        for rank in joined:
            for known in (self.finished, self.farewells, self.context_buffer):
                known.pop(rank, None)
        self.gone.difference_update(joined)
        self.live_ranks.update(joined)
        self.advance(())
        self.joined, self.from_step = joined, from_step
        self.returned_in.update(dict.fromkeys(joined, self.generation))

    def view(self, roots: Mapping[int, int]) -> View:
        """`roots[slot]` is the rank whose end has taken it out, for slots lost since the last."""
        losses, placed = tuple(sorted(roots.values())), self.layout is not None
        state = (self.generation, len(self.live_ranks), placed, losses, self.absent)
        if self._view is None or state != self._viewed:  # It is asked for by each rank.
            self._viewed = state
            self._view = View(
                generation=self.generation,
                live=self.live,
                live_ranks=tuple(sorted(self.live_ranks)),
                losses=losses,
                ended=self.absent,
                joined=self.joined,
                from_step=self.from_step,
            )
        return self._view

    def without(self, slots: Iterable[int]) -> set[int]:
        """The members that would be left."""
        lost = () if self.layout is None else self.layout.ranks(tuple(slots))
        return self.live_ranks.difference(lost)

    def end(self, slot: int, reason: str, hung: int | None = None) -> list[Effect]:
        """End those ranks of a replica that leaves whose script still runs; `hung` is one that
        hangs.
        """
        assert self.layout is not None, "replicas are known before one can leave"
        over = self.finished.keys() | self.gone
        rest = tuple(rank for rank in sorted(self.layout.replicas[slot]) if rank not in over)
        roots = () if hung is None else (hung,)
        return [self.kill(rest, reason, self.generation + 1, roots)] if rest else []

    def kill(
        self, ranks: tuple[int, ...], reason: str, generation: int, hung: tuple[int, ...] = ()
    ) -> KillRanks:
        """End the newest processes of these ranks, because of what `generation` is without."""
        births = tuple(self.births.get(rank, 0) for rank in ranks)
        kill = Kill(generation=generation, ranks=ranks, births=births, reason=reason, hung=hung)
        return KillRanks(kill=kill)

    def unreaped(self, slots: Iterable[int]) -> bool:
        """True if a rank of these slots may still leave its context."""
        assert self.layout is not None, "slots are known once one can be lost"
        return any(rank not in self.gone for rank in self.layout.ranks(tuple(slots)))

    def shard_peers(self, rank: int) -> list[int]:
        """Members at the shard position of `rank`."""
        assert self.layout is not None, "positions are known once something is left behind"
        shard = self.layout.place(rank)[1]
        return [self.layout.replicas[slot][shard] for slot in self.live]

    def lost_contexts(self, shard_peers: Iterable[int]) -> Iterator[tuple[int, LostContexts]]:
        """The contexts of lost ranks at the shard position of each member, if there are any."""
        layout = self.layout
        if layout is None or not self.live or not self._lost:
            return
        # By shard position: one message for all members there.
        found: dict[int, LostContexts | None] = {}
        for member in shard_peers:
            shard = layout.place(member)[1]
            if shard not in found:
                ranks = [layout.replicas[slot][shard] for slot in self._lost]
                left = [self.context_buffer[rank] for rank in ranks if rank in self.context_buffer]
                found[shard] = self._lost_contexts(left) if left else None
            if (lost_contexts := found[shard]) is not None:
                yield member, lost_contexts

    def _lost_contexts(self, left: list[ContextBuffer]) -> LostContexts:
        return LostContexts(
            generation=self.generation,
            contexts=tuple((one.rank, one.contexts) for one in left),
            marks=tuple((one.rank, one.marks) for one in left if one.marks),
            begun=tuple((one.rank, one.begun) for one in left if one.begun),
            buffers=tuple((one.rank, one.buffers) for one in left if one.buffers),
        )

    def suspects(self, step: int) -> tuple[Identity, ...]:
        """Microbatches of `step` that a lost rank had begun which ended by its own doing.

        Not those that ranks of two replicas have begun, or that one gave up: survivors at the place
        of these ranks execute them no more, and their mates would wait for them in a trial.
        """
        layout = self.layout
        if layout is None:
            return ()
        begun: dict[Identity, set[int]] = {}  # by which replicas
        found, left_alone = set[Identity](), set[Identity]()
        for rank in sorted(layout.ranks(self.lost)):
            left = self.context_buffer.get(rank)
            for slot, of, first, last, given_up in () if left is None else left.begun:
                for identity in ((slot, index) for index in range(first, last + 1) if of == step):
                    begun.setdefault(identity, set()).add(layout.slot(rank))
                    found |= {identity} if left is not None and left.by_itself else set()
                    left_alone |= {identity} if given_up else set()
        twice = {identity for identity, slots in begun.items() if len(slots) > 1}
        return tuple(sorted(found - twice - left_alone))

    def check(self) -> None:
        state = (self.generation, len(self.live_ranks), self.layout is not None)
        if state == self._checked:
            return
        self._checked = state
        assert self.live_ranks <= set(self.world), f"INV-2: live {sorted(self.live_ranks)}"
        replicas = self.layout.replicas if self.layout is not None else ()
        for slot, ranks in enumerate(replicas):
            members = self.live_ranks & set(ranks)
            assert len(members) in (0, len(ranks)), f"INV-2: half of replica {slot}: {members}"


def changed(view: View, leaving: Iterable[int], reason: str) -> Record:
    """The journal's line of a generation that begins, without the ranks `leaving`."""
    fields: dict[str, Json] = {
        "generation": view.generation, "live": [*view.live], "lost_ranks": [*sorted(leaving)],
    }  # fmt: skip
    if view.joined:
        fields |= {"joined": [*view.joined], "step": view.from_step}
    return Record("view.change", reason, fields)
