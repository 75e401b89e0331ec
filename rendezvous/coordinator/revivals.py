"""The lost ranks that are started again, and when.

A lost replica is started again once all of its processes are gone, all of its ranks at once: they
are of use only together. Each start has a *birth*, a number that all ranks of it share: an order
that reached some of them is said again, and means the same. At once after its first loss, later
after further ones, and not for ever: what ends each time costs the others more than it gives. Ranks
whose node is lost wait until another launcher has its place. A replica whose script had ended is
started nowhere. One that went astray is: its new processes get their state from those that did not.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from rendezvous.coordinator.members import Membership
from rendezvous.protocol.arrival_messages import StartAgain
from rendezvous.protocol.effects import Effect, StartRanks
from rendezvous.protocol.records import Json, Record, notice

BACKOFF_S = (0.0, 2.0, 20.0)
"""How long a replica waits for its first, second and third start in `HOUR_S`. It has no fourth."""

HOUR_S = 3600.0

START_AGAIN_S = 5.0
"""A start that shows no process is ordered again, and so is an end."""

TELL_S = 60.0
"""A start that has not come to the training loop by then is told of, and again each time it has
taken twice as long. It is not ended: the first lines of a script may take any time."""

STILL = "replica {} was started again {:.0f} s ago, and has not come to its training loop yet"


@dataclass(slots=True, kw_only=True)
class _Starts:
    """The starts of one lost replica; times are those of the coordinator's clock."""

    birth: int = 0  # of the newest
    times: list[float] = field(default_factory=list)
    due: float | None = None
    asked_at: float = 0.0
    began_at: float = 0.0
    tell_at: float | None = None  # None: it stands before its loop, or is none
    living: set[int] = field(default_factory=set)  # ranks started again and not reaped since
    heard: set[int] = field(default_factory=set)  # those of them that have spoken
    ending: bool = False  # one of them has ended, and the others are told to

    def began(self, now: float) -> None:
        self.asked_at = self.began_at = now
        self.tell_at = now + TELL_S if self.living else None

    def end(self) -> None:
        self.ending, self.tell_at = True, None

    def begin(self, birth: int, ranks: Iterable[int]) -> None:
        self.birth, self.due, self.tell_at = birth, None, None
        self.living, self.heard, self.ending = set(ranks), set(), False


class Revivals:
    """The revivals of one job. Another coordinator is told by the launchers what was started
    (`remember`).
    """

    def __init__(self, members: Membership) -> None:
        self._members = members
        self._starts: dict[int, _Starts] = {}  # by slot
        self._never: set[int] = set()  # slots
        self._unhosted: set[int] = set()  # ranks
        self.wake: float | None = None  # when `advance` has something to do next

    # --------------------------------------------------------------------------- what is known

    def hear(self, rank: int, birth: int) -> bool:
        """A process of this lost rank speaks; False if it or its replica is being ended."""
        slot = self._slot(rank)
        starts = self._starts.setdefault(slot, _Starts())
        if birth > starts.birth:  # another coordinator has started it, and nobody remembers
            self._begin(slot, starts, birth)
        starts.heard.add(rank)
        return birth == starts.birth and not starts.ending

    def end(self, rank: int, birth: int) -> dict[int, tuple[int, ...]]:
        """A process of this lost rank has ended: its slot, and the mates that must end now, too.

        Nothing if it was none of the newest start.
        """
        starts = self._starts.get(self._slot(rank)) if self._members.lost else None
        if starts is None or birth != starts.birth:
            return {}
        return self._fail(rank, starts)

    def _fail(self, rank: int, starts: _Starts) -> dict[int, tuple[int, ...]]:
        if rank not in starts.living:
            return {}
        starts.living.discard(rank)
        if starts.ending:
            return {}
        starts.end()
        return {self._slot(rank): tuple(sorted(starts.living))}

    def arrive(self, slot: int) -> None:
        """Note that all of its new processes stand before their loop."""
        self._starts[slot].tell_at = None

    def take_part(self, slot: int) -> None:
        """Note that the replica is a member again."""
        starts = self._starts.setdefault(slot, _Starts())
        starts.begin(starts.birth, ())

    def remember(self, start: StartAgain, now: float) -> None:
        """Another coordinator has ordered this start, which may be under way.

        It was no earlier than within the hour, so it counts as one of this moment.
        """
        slot = self._slot(start.ranks[0])
        starts = self._starts.setdefault(slot, _Starts())
        if start.birth > starts.birth:
            lost = slot in self._members.lost
            self._begin(slot, starts, start.birth, start.ranks if lost else ())
            starts.times = [now] * start.often
            starts.began(now)

    def dismiss(self) -> tuple[int, ...]:
        """The ranks whose new processes are on the way, as far as is known, each once: all of them
        are to be ended.
        """
        ranks: list[int] = []
        for slot, starts in self._starts.items():
            if slot in self._members.lost and starts.living and not starts.ending:
                starts.end()
                ranks += starts.living
        return tuple(sorted(ranks))

    # --------------------------------------------------------------------------- nodes

    def lose_node(self, ranks: tuple[int, ...]) -> dict[int, tuple[int, ...]]:
        """No launcher is left that could start these: by slot, mates that must end now."""
        self._unhosted.update(ranks)
        ended: dict[int, tuple[int, ...]] = {}
        for rank in ranks if self._members.lost else ():
            starts = self._starts.get(self._slot(rank))
            if starts is not None and rank not in self._members.live_ranks:
                ended |= self._fail(rank, starts)
        return ended

    def wants(self, ranks: tuple[int, ...]) -> bool:
        """True if one of these belongs to a lost replica that would be started."""
        slots = {self._slot(rank) for rank in ranks}.intersection(self._members.lost)
        return any(self._may_come(slot) for slot in slots)

    def take_place(self, ranks: tuple[int, ...]) -> list[Effect]:
        """A launcher hosts these from now on; what it should remember of others."""
        self._unhosted.difference_update(ranks)
        if not self._members.lost:
            return []
        here = {self._slot(rank) for rank in ranks}
        others = sorted(self._starts.keys() - here)
        orders = [self._order(slot, self._starts[slot], "so it began") for slot in others]
        return [StartRanks(start=order) for order in orders if order.birth]

    # --------------------------------------------------------------------------- starting

    def advance(self, now: float) -> list[Effect]:
        """Start those for which it is time."""
        effects: list[Effect] = []
        times: list[float] = []
        for slot in self._members.lost:
            starts = self._starts.setdefault(slot, _Starts())
            if starts.living:
                effects += self._ask_again(slot, starts, now)
                effects += self._tell(slot, starts, now)
            elif self._may_start(slot):
                effects += self._start(slot, starts, now)
            if starts.due is not None:
                times.append(starts.due)
            elif self._silent(starts):
                times.append(starts.asked_at + START_AGAIN_S)
            if starts.tell_at is not None:
                times.append(starts.tell_at)
        self.wake = min((at for at in times if at > now), default=None)
        return effects

    def _may_come(self, slot: int) -> bool:
        return slot not in self._never and not self._members.finished.keys() & self._ranks(slot)

    def _may_start(self, slot: int) -> bool:
        ranks = self._ranks(slot)
        over = self._members.gone.issuperset(ranks) and self._unhosted.isdisjoint(ranks)
        return over and self._may_come(slot)

    def _start(self, slot: int, starts: _Starts, now: float) -> list[Effect]:
        starts.times = [at for at in starts.times if at > now - HOUR_S]
        number = len(starts.times)
        if number == len(BACKOFF_S):
            self._never.add(slot)
            return [notice(f"replica {slot} was lost {number + 1} times in an hour: it stays away")]
        if starts.due is None:
            starts.due = now + BACKOFF_S[number]
        if now < starts.due:
            return []
        self._begin(slot, starts, starts.birth + 1)
        starts.times.append(now)
        starts.began(now)
        ranks = self._ranks(slot)
        words = f"replica {slot} is lost and its processes are gone: its ranks start again"
        fields: dict[str, Json] = {"slot": slot, "ranks": [*ranks], "number": number + 1}
        order = self._order(slot, starts, words)
        return [StartRanks(start=order), Record("replica.start", words, fields)]

    def _begin(
        self, slot: int, starts: _Starts, birth: int, ranks: tuple[int, ...] | None = None
    ) -> None:
        starts.begin(birth, self._ranks(slot) if ranks is None else ranks)
        for rank in self._ranks(slot):
            self._members.births[rank] = birth

    def _order(self, slot: int, starts: _Starts, reason: str) -> StartAgain:
        often = len(starts.times)
        return StartAgain(ranks=self._ranks(slot), birth=starts.birth, often=often, reason=reason)

    def _ask_again(self, slot: int, starts: _Starts, now: float) -> list[Effect]:
        """The same birth again: it reaches those that the order before has not reached."""
        silent = self._silent(starts)
        if not silent or now < starts.asked_at + START_AGAIN_S:
            return []
        starts.asked_at = now
        if starts.ending:
            words = "a rank of its replica has ended"
            return [self._members.kill(tuple(silent), words, self._members.generation)]
        return [StartRanks(start=self._order(slot, starts, "nothing was heard of them"))]

    def _tell(self, slot: int, starts: _Starts, now: float) -> list[Effect]:
        """It comes slowly, or does not come: nobody waits for it, and nobody would notice."""
        if starts.tell_at is None or now < starts.tell_at:
            return []
        ago = now - starts.began_at
        starts.tell_at = now + ago
        return [notice(STILL.format(slot, ago))]

    def _silent(self, starts: _Starts) -> list[int]:
        return sorted(starts.living if starts.ending else starts.living - starts.heard)

    def _ranks(self, slot: int) -> tuple[int, ...]:
        assert self._members.layout is not None, "slots are known once one is lost"
        return tuple(sorted(self._members.layout.replicas[slot]))

    def _slot(self, rank: int) -> int:
        assert self._members.layout is not None, "slots are known once one is lost"
        return self._members.layout.slot(rank)
