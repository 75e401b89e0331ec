"""Lost replicas on their way back, as the journal tells it: started again, ready, back or not.

A *life* of a replica lasts from its beginning, or the step in which it takes part again, to its
loss. A process that was started again and ends before its replica takes part belongs to no life:
nothing was lost with it, and it is the cause of nothing. A replica is *back* once its first step is
committed: all others have compared what it computed before that.
"""

from collections.abc import Callable, Sequence, Sized
from dataclasses import dataclass, field
from typing import Literal

from recoverrun.reports.happenings import Death, ViewChange
from recoverrun.text import plural, ranks, span
from rendezvous.journal.reader import Entry
from rendezvous.protocol.incarnations import birth_of

ON_NO_LIFE = -1

WAY_PARTS = ("start", "prologue", "wait", "hold", "transfer", "place", "first step")
"""Parts of a replica's way back, in their order, as people read them."""

WayState = Literal["started", "ready", "invited", "trial", "back", "ended"]


@dataclass(slots=True)
class WayParts:
    """The parts of a replica's way, told once it trains: of the slowest process; -1 unknown."""

    transfer_ms: float = -1.0
    place_ms: float = -1.0
    first_ms: float = -1.0
    size: int = 0  # bytes that all of them were given
    sources: tuple[int, ...] = ()  # ranks that gave them

    def add(self, entry: Entry) -> None:
        """One of them says it."""
        self.transfer_ms = max(self.transfer_ms, entry.number("transfer_ms"))
        self.place_ms = max(self.place_ms, entry.number("place_ms"))
        self.first_ms = max(self.first_ms, entry.number("first_ms"))
        self.size += max(0, entry.integer("bytes", 0))
        self.sources = tuple(sorted({*self.sources, entry.integer("source")}))


@dataclass(slots=True, kw_only=True)
class ReturnWay:
    """One try of a lost replica to come back. Instants are seconds since 1970, 0 unknown."""

    attempt: int
    slot: int
    ranks: tuple[int, ...]
    lost: float
    number: int = 0  # of its starts within an hour, 0 unknown
    started: float = 0.0
    hooked: float = 0.0  # the last of its processes has its hooks: the script has begun
    ready: float = 0.0
    invited: float = 0.0
    joined: float = 0.0  # it takes part from `step` on: a life of the replica begins
    back: float = 0.0  # that step is committed
    step: int = -1  # the first in which it takes part
    generation: int = -1  # in which it does
    lost_again: bool = False  # before that step was committed
    wait_ms: float = -1.0  # from ready to joined
    hold_ms: float = -1.0  # for so long the first member stood at the top of that step
    parts: WayParts = field(default_factory=WayParts)
    live: int = 0  # replicas then
    of: int = 0  # so many that there were in the beginning
    ended: list[Death] = field(default_factory=list)  # processes, before they took part

    @property
    def state(self) -> WayState:
        if self.back:
            return "back"
        if self.ended or self.lost_again:
            return "ended"
        if self.joined:
            return "trial"
        return "invited" if self.invited else "ready" if self.ready else "started"

    @property
    def open(self) -> bool:
        """True if its replica does not take part yet, and may still do."""
        return self.state not in ("trial", "back", "ended")

    @property
    def lost_for_s(self) -> float:
        """Seconds from the loss until it was back, -1 unknown."""
        return max(0.0, self.back - self.lost) if self.lost and self.back else -1.0

    @property
    def start_ms(self) -> float:
        """The time from the order to start them to the hooks in all its processes, -1 unknown."""
        known = self.started and self.hooked
        return 1000 * max(0.0, self.hooked - self.started) if known else -1.0

    @property
    def prologue_ms(self) -> float:
        """The time from there to their loops, -1 unknown."""
        return 1000 * max(0.0, self.ready - self.hooked) if self.hooked and self.ready else -1.0

    @property
    def parts_ms(self) -> tuple[tuple[str, float], ...]:
        """The known times of the parts of its way."""
        parts = self.parts
        told = (
            self.start_ms,
            self.prologue_ms,
            max(0.0, self.wait_ms - max(0.0, self.hold_ms)) if self.joined else -1.0,
            self.hold_ms,
            parts.transfer_ms,
            parts.place_ms,
            parts.first_ms,
        )
        return tuple((name, ms) for name, ms in zip(WAY_PARTS, told, strict=True) if ms >= 0)

    @property
    def fields_ms(self) -> dict[str, float]:
        """The same for programs, by names such as `first_step_ms`."""
        return {f"{name.replace(' ', '_')}_ms": ms for name, ms in self.parts_ms}

    @property
    def why(self) -> str:
        """The reason why its way ended before the replica took part, in words; "" if it did not
        end.
        """
        first = next((death for death in self.ended if not death.ours), None)
        if self.lost_again:
            return f"it was lost again in step {self.step}, its first one"
        if first is None:
            return "it was ended before that" if self.ended else ""
        return f"rank {first.rank}: {first.error}" if first.error else first.reason


class Returns:
    """All ways of one run, in the order of their beginnings."""

    def __init__(self) -> None:
        self.ways: list[ReturnWay] = []
        self._lives: dict[tuple[int, int], int] = {}  # (rank, incarnation) -> the life it began

    @property
    def backs(self) -> list[ReturnWay]:
        """The ways that led back."""
        return [way for way in self.ways if way.back]

    @property
    def joins(self) -> list[ReturnWay]:
        """The ways by which a replica took part again, also if it was lost in its first step."""
        return [way for way in self.ways if way.joined]

    def coming(self, attempt: int, slot: int) -> ReturnWay | None:
        """The way that a lost replica is on now."""
        newest = self._newest(attempt, slot)
        return newest if newest is not None and newest.open else None

    def life(self, attempt: int, slot: int) -> int:
        """The number of the newest life of a replica, 0 for the first."""
        return sum((way.attempt, way.slot) == (attempt, slot) for way in self.joins)

    def life_at(self, slot: int, attempt: int, step: int) -> int:
        """The number of the life in which a replica took part in `step`, or did last before it."""
        mine = (way for way in self.joins if (way.attempt, way.slot) == (attempt, slot))
        return sum(way.step <= step for way in mine)

    def life_when(self, attempt: int, slot: int, ts: float) -> int:
        """The number of the newest life that a replica had begun at an instant."""
        mine = (way for way in self.joins if (way.attempt, way.slot) == (attempt, slot))
        return sum(way.joined <= ts for way in mine)

    def life_of(self, rank: int, incarnation: int) -> int:
        """The number of the life that a process belongs to, `ON_NO_LIFE` if none."""
        return self._lives.get((rank, incarnation), ON_NO_LIFE if birth_of(incarnation) else 0)

    def at(self, slot: int, step: int) -> ReturnWay:
        """The newest one that led this replica back at `step`."""
        return next(one for one in reversed(self.backs) if (one.slot, one.step) == (slot, step))

    def failed(self, entry: Entry) -> Death | None:
        """The end of a process of no life that this record tells, if it was none of our doing."""
        ends = (death for way in self.ways for death in way.ended if not death.ours)
        here = (death for death in ends if (death.node, death.seq) == (entry.node, entry.seq))
        return next(here, None)

    # ------------------------------------------------------------------------ what happens

    def hear(self, entry: Entry, attempt: int, lost: float, slot: int) -> None:
        """A lost replica gets on. `lost`: since when it is; `slot`: that of the rank that speaks,
        where the record is of one rank.
        """
        match entry.event:
            case "replica.start":
                way = self._begin(attempt, entry.integer("slot"), entry.integers("ranks"), lost)
                way.started, way.number = entry.ts, max(0, entry.integer("number", 0))
            case "worker.hello":
                self._greet(entry, attempt, slot)
            case "replica.ready":
                members = entry.integers("ranks")
                self._way(attempt, entry.integer("slot"), members, lost).ready = entry.ts
            case "replica.invite":
                for invited in entry.integers("slots"):
                    found = self.coming(attempt, invited)
                    if found is not None:
                        found.invited = entry.ts
            case "replica.prove":
                self._prove(entry, attempt)
            case "replica.parts":
                self._told(entry, attempt, slot)

    def _greet(self, entry: Entry, attempt: int, slot: int) -> None:
        """A process has its hooks."""
        way = self.coming(attempt, slot)
        if way is not None and way.started and not way.ready:
            way.hooked = entry.ts

    def _told(self, entry: Entry, attempt: int, slot: int) -> None:
        """A rank of a replica that came back has committed its first step."""
        place = (attempt, slot, entry.integer("step"))
        told = (one for one in self.joins if (one.attempt, one.slot, one.step) == place)
        way = next(told, None)
        if way is not None:
            way.parts.add(entry)

    def end(self, death: Death, slot: int) -> None:
        """A process has ended that belongs to no life."""
        way = self._newest(death.attempt, slot)
        if way is not None and not way.joined:
            way.ended.append(death)

    def _prove(self, entry: Entry, attempt: int) -> None:
        """The first step of a replica that takes part again is committed; several nodes say it."""
        place = (attempt, entry.integer("slot"), entry.integer("step"))
        for way in self.joins:
            if (way.attempt, way.slot, way.step) == place and not way.back:
                way.back = entry.ts

    def lose(self, attempt: int, slot: int, generation: int) -> None:
        """A replica leaves in `generation`."""
        way = self._newest(attempt, slot)
        if way is not None and way.state == "trial" and generation > way.generation:
            way.lost_again = True

    def come(
        self,
        entry: Entry,
        attempt: int,
        lost: float,
        incarnation_of: Callable[[int], int],
        *,
        views: Sequence[ViewChange],
        of: Sized,
    ) -> None:
        """A replica takes part again in the newest of `views`, `of` so many replicas; several nodes
        may tell it.

        `incarnation_of` says it of a rank's newest process.
        """
        slot, step, members = entry.integer("slot"), entry.integer("step"), entry.integers("ranks")
        place = (attempt, slot, step)
        told = [one for one in self.joins if (one.attempt, one.slot, one.step) == place]
        way = told[0] if told else self._way(attempt, slot, members, lost)
        if not told:
            way.joined, way.step = entry.ts, step
            for view in views[-1:]:
                way.generation, way.live = view.generation, len(view.live)
                way.of = len(of) if way.live else 0
            life = self.life(attempt, slot)
            self._lives |= {(rank, incarnation_of(rank)): life for rank in members}
        elif (begun := self.coming(attempt, slot)) is not None:
            # By another node's clock it took part before it had begun to come.
            way.started, way.number = begun.started, begun.number
            way.ready, way.invited, way.hooked = begun.ready, begun.invited, begun.hooked
            self.ways.remove(begun)
        way.wait_ms = entry.number("wait_ms") if "wait_ms" in entry.fields else way.wait_ms
        way.hold_ms = entry.number("hold_ms") if "hold_ms" in entry.fields else way.hold_ms

    def _newest(self, attempt: int, slot: int) -> ReturnWay | None:
        mine = (w for w in reversed(self.ways) if (w.attempt, w.slot) == (attempt, slot))
        return next(mine, None)

    def _way(self, attempt: int, slot: int, members: tuple[int, ...], lost: float) -> ReturnWay:
        """The way that a replica is on; its beginning may be in a journal that is not here."""
        return self.coming(attempt, slot) or self._begin(attempt, slot, members, lost)

    def _begin(self, attempt: int, slot: int, members: tuple[int, ...], lost: float) -> ReturnWay:
        way = ReturnWay(attempt=attempt, slot=slot, ranks=members, lost=lost)
        self.ways.append(way)
        return way


def is_back(way: ReturnWay) -> str:
    """The sentence that a replica is back: the same on the console and in `status`."""
    words = f"replica {way.slot} ({ranks(way.ranks)}) is back at step {way.step}"
    since = f", {span(way.lost_for_s)} after it was lost" if way.lost_for_s >= 0 else ""
    whole = f" · {way.live} of {plural(way.of, 'replica')}" if way.of else ""
    return f"{words}{since}{whole}"


def on_the_way(way: ReturnWay) -> str:
    """The progress of a lost replica on its way back, in words."""
    match way.state:
        case "started":
            again = f" (start {way.number} within an hour)" if way.number > 1 else ""
            return f"started again{again}"
        case "ready" | "invited":
            return "ready to take part again"
        case "ended":
            return f"its new process ended: {way.why}"
        case "trial":
            return f"in step {way.step}, its first one"
        case "back":
            return f"back at step {way.step}"
