"""One launcher's copy of the c10d store, together with the machine that keeps the copies alike.

Theory of operation. `kv.Store` answers calls and `replication.Replication` says when an answer may
leave. This machine carries out what either wants of the other, at once and in order, as the
replication demands. An attempt of the job has a store of its own, and each term of an attempt
another leader: the replication is told their *epoch*, which grows with both.

Calls that wait in a store are not copied: whoever waits is asked to call again by its launcher once
another leads.
"""

from dataclasses import dataclass
from typing import assert_never

from rendezvous.protocol import codec
from rendezvous.protocol.chunks import shares
from rendezvous.protocol.register_messages import Copied, Copy, Whole
from rendezvous.protocol.store_messages import StoreAnswer, StoreCall
from rendezvous.store import kv, replication

PART_BYTES = 2 << 20
"""Of keys, values and answers in one `Whole`; a frame has room for four times as much."""

CHANGE_BYTES = codec.FRAME_BYTES - 4096
"""Of one call that writes: it must fit into the frame that takes it to the followers."""

TERMS = 1 << 32
"""More than any attempt can have."""


@dataclass(frozen=True, slots=True)
class Say:
    """Send to the launcher `to`."""

    to: str
    message: Copy | Whole | Copied


Effect = Say | StoreAnswer
"""What is to be sent: to another launcher, or to the worker that had called."""


def epoch(attempt: int, term: int) -> int:
    """The number under which a leader of this attempt and term speaks to its followers."""
    return attempt * TERMS + term


class ReplicatedStore:
    """Machine of one launcher; the `founder` of a job knows that its store is empty."""

    def __init__(self, *, founder: bool) -> None:
        self._store = kv.Store()
        self._replication = replication.Replication(founder=founder)

    @property
    def complete(self) -> bool:
        """True if this launcher could lead with what it holds."""
        return self._replication.complete

    def holds(self, attempt: int) -> bool:
        """True if this copy is one of that attempt's store."""
        return self._replication.held_in >= epoch(attempt, 0)

    def lead(
        self, attempt: int, term: int, followers: tuple[str, ...], now: float, *, anew: bool
    ) -> list[Effect]:
        """We lead, and `followers` follow us; `anew`: with an empty store."""
        if anew:
            self._store = kv.Store()
        return self._replicated(replication.Lead(epoch(attempt, term), followers), now)

    def empty(self) -> None:
        """The attempt whose store this is has ended: nothing of it is to be read again."""
        self._store = kv.Store()

    def follow(self, attempt: int, term: int, leader: str, now: float) -> list[Effect]:
        """`leader` leads: what it says is in our copy from now on."""
        return self._replicated(replication.Follow(epoch(attempt, term), leader), now)

    def call(self, call: StoreCall, now: float) -> list[Effect]:
        """A worker's call, to the leader. Not answered where somebody else leads."""
        if not self._replication.leads:
            return []
        known = self._store.knows(call)
        change = b"" if known or call.op not in kv.WRITES else codec.encode(call)
        if len(change) > CHANGE_BYTES:
            return [_too_large(call, len(change))]
        answers = self._store.step(kv.Called(call), now)
        return self._done(change, 0, answers, now)

    def supersede(self, generation: int, now: float) -> list[Effect]:
        """A generation has begun: nobody may wait in those before it."""
        answers = self._store.step(kv.Superseded(generation), now)
        return self._done(b"", generation, answers, now)

    def hear(self, sender: str, message: Copy | Whole | Copied, now: float) -> list[Effect]:
        """Follow what the launcher `sender` says about its copy or ours."""
        return self._replicated(replication.Heard(sender, message), now)

    def tick(self, now: float) -> list[Effect]:
        """Time passed."""
        effects: list[Effect] = []
        if self._replication.leads:
            answers = self._store.step(kv.Tick(), now)
            effects = self._done(b"", 0, answers, now) if answers else []
        return [*effects, *self._replicated(replication.Tick(), now)]

    def deadline(self) -> float | None:
        """The time at which `tick` is next needed, or None."""
        times = [self._replication.deadline()]
        if self._replication.leads:
            times.append(self._store.deadline())
        return min((at for at in times if at is not None), default=None)

    def check(self) -> None:
        self._store.check()
        self._replication.check()

    def snapshot(self) -> dict[str, object]:
        return {"store": self._store.snapshot(), "replication": self._replication.snapshot()}

    # --------------------------------------------------------------------------- plumbing

    def _done(
        self, change: bytes, superseded: int, answers: list[StoreAnswer], now: float
    ) -> list[Effect]:
        if not (change or superseded or answers):
            return []
        return self._replicated(replication.Done(change, superseded, tuple(answers)), now)

    def _replicated(self, event: replication.Event, now: float) -> list[Effect]:
        effects: list[Effect] = []
        for wish in self._replication.step(event, now):
            match wish:
                case replication.To(node=node, message=message):
                    effects.append(Say(node, message))
                case replication.SendWhole():
                    effects += [Say(wish.node, part) for part in self._parts(wish)]
                case replication.Release(answers=answers):
                    effects += answers
                case replication.Apply(call=call, superseded=superseded):
                    self._apply(call, superseded, now)
                case replication.Install(parts=parts):
                    self._install(parts)
                case _:
                    assert_never(wish)
        return effects

    def _apply(self, call: bytes, superseded: int, now: float) -> None:
        if superseded:
            self._store.step(kv.Superseded(superseded), now)
        if call:
            self._store.step(kv.Called(_call(call)), now)

    def _install(self, parts: tuple[Whole, ...]) -> None:
        keys = [key for part in parts for key in part.keys]
        answers = [_answer(frame) for part in parts for frame in part.answers]
        self._store = kv.Store.restored(parts[0].generation, keys, answers)

    def _parts(self, wish: replication.SendWhole) -> list[Whole]:
        keys, answers = self._store.contents()
        items: list[tuple[int, str, bytes] | bytes] = [*keys, *map(codec.encode, answers)]
        parts = list(shares(items, _size, PART_BYTES))
        return [
            Whole(
                term=wish.term,
                index=wish.index,
                part=number,
                parts=len(parts),
                generation=self._store.generation,
                keys=tuple(item for item in share if isinstance(item, tuple)),
                answers=tuple(item for item in share if isinstance(item, bytes)),
            )
            for number, share in enumerate(parts)
        ]


def _size(item: tuple[int, str, bytes] | bytes) -> int:
    return len(item) if isinstance(item, bytes) else len(item[1].encode()) + len(item[2])


def _too_large(call: StoreCall, size: int) -> StoreAnswer:
    words = f"{call.op} has {size} bytes, {CHANGE_BYTES} are allowed"
    return StoreAnswer(
        rank=call.rank, serial=call.serial, status="timeout", values=(words.encode(),), number=0
    )


def _call(frame: bytes) -> StoreCall:
    call = codec.decode(frame)
    if not isinstance(call, StoreCall):
        raise codec.RemoteProtocolError("what was to be copied is no call of the store")
    return call


def _answer(frame: bytes) -> StoreAnswer:
    answer = codec.decode(frame)
    if not isinstance(answer, StoreAnswer):
        raise codec.RemoteProtocolError("what was to be remembered is no answer of the store")
    return answer
