"""The c10d store on several launchers: what was answered outlives whoever answered it.

Theory of operation. The leader carries out calls on its own store and sends each change to the
followers, the first members of the configuration. An answer leaves once every follower has the
change, and all that came before it: so any follower can go on, and need not ask the others. A
follower that is silent holds answers up until the register leaves it out. What was changed and not
answered may survive or not; its caller repeats the call, and a store that has seen it gives the
same answer again.

A new leader, and a new follower, begin with the whole: a change is only taken behind the one before
it in the same term. Mirrors take nothing from a leader that they do not follow any more, so a
deposed leader cannot get an answer out.

The machine counts and holds back; the stores themselves are beside it. Whoever carries out its
effects does so at once and in order: `SendWhole` means what the store holds at that moment.
"""

from collections import deque
from dataclasses import dataclass
from typing import assert_never

from rendezvous.protocol.register_messages import Copied, Copy, Whole
from rendezvous.protocol.store_messages import StoreAnswer

RESEND_S = 0.3
BATCH = 256
"""Changes that are said again at once."""

NOTHING = -1


@dataclass(frozen=True, slots=True)
class Lead:
    """We lead in `term`, and these launchers follow us. Also when only they have changed."""

    term: int
    followers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Follow:
    """Another launcher leads in `term`."""

    term: int
    leader: str


@dataclass(frozen=True, slots=True)
class Done:
    """Our store has carried something out: `call` is the frame of a call that writes, or b""."""

    call: bytes
    superseded: int
    answers: tuple[StoreAnswer, ...]


@dataclass(frozen=True, slots=True)
class Heard:
    sender: str
    message: Copy | Whole | Copied


@dataclass(frozen=True, slots=True)
class Tick:
    """Time passed."""


Event = Lead | Follow | Done | Heard | Tick


@dataclass(frozen=True, slots=True)
class To:
    node: str
    message: Copy | Copied


@dataclass(frozen=True, slots=True)
class SendWhole:
    """Send all that our store holds, as parts of change `index` of `term`."""

    node: str
    term: int
    index: int


@dataclass(frozen=True, slots=True)
class Release:
    """These answers may leave."""

    answers: tuple[StoreAnswer, ...]


@dataclass(frozen=True, slots=True)
class Apply:
    """Make this change in our store; what it answers is nobody's."""

    call: bytes
    superseded: int


@dataclass(frozen=True, slots=True)
class Install:
    """Our store becomes this."""

    parts: tuple[Whole, ...]


Effect = To | SendWhole | Release | Apply | Install


class Replication:
    """Machine of one launcher. The founder's store, being empty, is as good as anybody's."""

    def __init__(self, *, founder: bool) -> None:
        self.complete = founder  # True if we could lead with what we hold
        self.term = 0
        self.leader = ""  # "": we lead
        self.index = 0
        self.held_in = 0  # the term whose changes up to `index` we hold
        self.held: deque[tuple[int, tuple[StoreAnswer, ...]]] = deque()
        self.acked: dict[str, int] = {}  # by follower
        self.log: deque[Copy] = deque()
        self.parts: dict[int, Whole] = {}
        self.early: dict[int, Copy] = {}  # that overtook the ones before them
        self.resend_at: float | None = None

    def step(self, event: Event, now: float) -> list[Effect]:
        """Take one event at monotonic time `now` (seconds)."""
        match event:
            case Lead():
                effects = self._lead(event)
            case Follow():
                effects = self._follow(event)
            case Done():
                effects = self._done(event)
            case Heard(sender=sender, message=message):
                effects = self._hear(sender, message)
            case Tick():
                effects = self._repeat(now)
            case _:
                assert_never(event)
        waits = bool(self.acked) and min(self.acked.values()) < self.index
        self.resend_at = (self.resend_at or now + RESEND_S) if waits else None
        self.check()
        return effects

    def deadline(self) -> float | None:
        """The time of the next `Tick`, or None."""
        return self.resend_at

    def check(self) -> None:
        least = min(self.acked.values(), default=self.index)
        assert all(index > least for index, _ in self.held), f"held {self.held} at {least}"
        assert not (self.leader and self.acked), f"follows {self.leader} and leads {self.acked}"

    def snapshot(self) -> dict[str, object]:
        return {
            "term": self.term, "leader": self.leader, "index": self.index,
            "acked": dict(self.acked), "held": len(self.held), "complete": self.complete,
        }  # fmt: skip

    @property
    def leads(self) -> bool:
        """True if answers of our store count: not before anybody has told us who leads."""
        return self.term > 0 and not self.leader

    # --------------------------------------------------------------------------- leading

    def _lead(self, event: Lead) -> list[Effect]:
        if event.term < self.term:
            return []
        assert self.complete, "whoever leads has the store"
        if event.term > self.term or self.leader:
            self._forget()
            self.term = self.held_in = event.term
            self.leader, self.index = "", 0
        self.acked = {node: self.acked.get(node, NOTHING) for node in event.followers}
        new = [node for node in sorted(self.acked) if self.acked[node] == NOTHING]
        wholes = [SendWhole(node, self.term, self.index) for node in new]
        return [*wholes, *self._release()]

    def _done(self, event: Done) -> list[Effect]:
        if not self.leads:
            return []
        effects: list[Effect] = []
        if event.call or event.superseded:
            self.index += 1
            copy = Copy(
                term=self.term, index=self.index, call=event.call, superseded=event.superseded
            )
            if self.acked:
                self.log.append(copy)
            effects = [To(node, copy) for node in sorted(self.acked)]
        if event.answers:
            self.held.append((self.index, event.answers))
        return effects + self._release()

    def _release(self) -> list[Effect]:
        """Release answers to changes that every follower has."""
        least = min(self.acked.values(), default=self.index)
        ready: list[StoreAnswer] = []
        while self.held and self.held[0][0] <= least:
            ready += self.held.popleft()[1]
        while self.log and self.log[0].index <= least:
            self.log.popleft()
        return [Release(tuple(ready))] if ready else []

    def _repeat(self, now: float) -> list[Effect]:
        if self.resend_at is None or now < self.resend_at:
            return []
        self.resend_at = None
        return [
            effect
            for node in sorted(self.acked)
            if self.acked[node] < self.index
            for effect in self._again(node)
        ]

    def _again(self, node: str) -> list[Effect]:
        first = self.log[0].index if self.log else self.index + 1
        if self.acked[node] == NOTHING or self.acked[node] + 1 < first:
            return [SendWhole(node, self.term, self.index)]
        missing = [copy for copy in self.log if copy.index > self.acked[node]]
        return [To(node, copy) for copy in missing[:BATCH]]

    # --------------------------------------------------------------------------- following

    def _follow(self, event: Follow) -> list[Effect]:
        if event.term > self.term:
            self._forget()
            self.term, self.leader = event.term, event.leader
        return []

    def _forget(self) -> None:
        """Forget the term before. Callers that were not answered in it will ask again."""
        self.held.clear()
        self.acked.clear()
        self.log.clear()
        self.parts.clear()
        self.early.clear()
        self.resend_at = None

    def _hear(self, sender: str, message: Copy | Whole | Copied) -> list[Effect]:
        if message.term != self.term:
            return []
        match message:
            case Copied(index=index):
                if sender in self.acked and index > self.acked[sender]:
                    self.acked[sender] = min(index, self.index)
                    return self._release()
                return []
            case _ if sender != self.leader:
                return []
            case Copy():
                return self._copy(sender, message)
            case Whole():
                return self._whole(sender, message)
            case _:
                assert_never(message)

    def _copy(self, sender: str, copy: Copy) -> list[Effect]:
        effects: list[Effect] = []
        if self.held_in == self.term and 0 < copy.index - self.index <= BATCH:
            self.early[copy.index] = copy
        while (following := self.early.pop(self.index + 1, None)) is not None:
            self.index += 1
            effects.append(Apply(following.call, following.superseded))
        return [*effects, self._confirm(sender)]

    def _whole(self, sender: str, whole: Whole) -> list[Effect]:
        current = self.held_in == self.term
        if current and whole.index <= self.index:
            return [self._confirm(sender)]
        if any(part.index != whole.index for part in self.parts.values()):
            self.parts.clear()
        self.parts[whole.part] = whole
        if len(self.parts) < whole.parts:
            return []
        parts = tuple(self.parts[number] for number in sorted(self.parts))
        self.parts.clear()
        self.complete = True
        self.held_in, self.index = self.term, whole.index
        self.early = {index: copy for index, copy in self.early.items() if index > whole.index}
        return [Install(parts), self._confirm(sender)]

    def _confirm(self, leader: str) -> To:
        index = self.index if self.held_in == self.term else NOTHING
        return To(leader, Copied(term=self.term, index=index))
