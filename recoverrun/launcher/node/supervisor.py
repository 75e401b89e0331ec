"""The life of this node's workers: who ended, by whose hand, and the ladder that stops the rest.

Theory of operation. Workers run until they end by themselves, until their replica has left (a kill:
SIGKILL at once, because a survivor is waiting for their collectives to break), or until the job is
stopped (a signal, `grace_s` later SIGKILL). A signal counts as ours from the moment that we decide
to send it. Every wait has a bound, also the one after SIGKILL: a process stuck in the kernel must
not hold up the others, so the launcher leaves without it.

A worker that ended normally may be ahead of its last words in the socket: its end is told a moment
later, or as soon as its farewell is there.

A rank that has ended may be told to run again, as another process, unless the job is being stopped.
What is not told yet of the process before is told first: then nothing of it can be meant for the
one that follows. Orders name the process that they mean by its birth (`births`), as they may come
late: what is over by then has no effect, and what has not begun never will.
"""

import signal
from dataclasses import dataclass
from enum import Enum, auto
from typing import assert_never

from rendezvous.membership.births import Births
from rendezvous.protocol.records import Record

GRACE_S = 5.0
"""Between SIGTERM and SIGKILL."""

REAP_S = 5.0
"""Between SIGKILL and leaving without the process."""

LAST_WORDS_S = 0.3
"""How long the end of a worker waits for messages that it sent before."""


@dataclass(frozen=True, slots=True)
class Ended:
    """The kernel says that the worker is gone. `complete`: no message of it is missing."""

    rank: int
    code: int
    complete: bool


@dataclass(frozen=True, slots=True)
class Completed:
    """The farewell of a worker that may have ended already."""

    rank: int


@dataclass(frozen=True, slots=True)
class KillOrder:
    """The replica of these ranks has left. Without `births` whatever runs is meant."""

    ranks: tuple[int, ...]
    reason: str
    births: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class EndOrder:
    """The scripts of these ranks have ended, and their processes have not."""

    ranks: tuple[int, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class Again:
    """These ranks are wanted again, as processes of this birth where they have ended."""

    ranks: tuple[int, ...]
    birth: int
    reason: str


@dataclass(frozen=True, slots=True)
class Unborn:
    """The new process of this rank could not be started."""

    rank: int


@dataclass(frozen=True, slots=True)
class StopOrder:
    """The job ends with `exit_code`."""

    exit_code: int
    reason: str
    number: signal.Signals = signal.SIGTERM  # what the workers are told it with


@dataclass(frozen=True, slots=True)
class Hurry:
    """The user asked twice: no more patience."""


@dataclass(frozen=True, slots=True)
class Tick:
    """Time passed."""


Event = Ended | Completed | KillOrder | EndOrder | Again | Unborn | StopOrder | Hurry | Tick


@dataclass(frozen=True, slots=True)
class Signal:
    """Send this signal to the process groups of these ranks."""

    ranks: tuple[int, ...]
    number: signal.Signals
    reason: str


@dataclass(frozen=True, slots=True)
class Gone:
    """Tell the coordinator that this rank is gone. `ours`: we had sent it a signal."""

    rank: int
    code: int
    ours: bool


@dataclass(frozen=True, slots=True)
class Begin:
    """Start a new process for this rank, whose former one has ended."""

    rank: int
    birth: int
    reason: str


@dataclass(frozen=True, slots=True)
class Unbegun:
    """Tell the coordinator that this process of a rank never begins: it was to be ended."""

    rank: int
    birth: int


@dataclass(frozen=True, slots=True)
class Leave:
    """Nothing is left to do here. `stuck` are ranks that even SIGKILL did not end."""

    exit_code: int
    stuck: tuple[int, ...]

    def notices(self) -> list[Record]:
        """The journal's lines about `stuck` ranks."""
        words = "did not end by SIGKILL (stuck in the kernel, or frozen), and is left behind"
        return [Record("notice.give", words, {"rank": rank}) for rank in self.stuck]


Effect = Signal | Gone | Begin | Unbegun | Leave


class ProcessState(Enum):
    RUNNING = auto()
    SIGNALLED = auto()  # by us
    ENDED = auto()


@dataclass(slots=True)
class _Late:
    """An end that is not told yet."""

    code: int
    ours: bool
    told_at: float


class Supervisor:
    """Machine for the workers `ranks` of one node."""

    def __init__(
        self,
        ranks: tuple[int, ...],
        *,
        begun: bool = True,
        grace_s: float = GRACE_S,
    ) -> None:
        """`begun`: all of them run. Else another node had them, and here nothing runs yet."""
        self._states = dict.fromkeys(ranks, ProcessState.RUNNING if begun else ProcessState.ENDED)
        self._births = Births(ranks, first=begun)
        self._grace_s = grace_s
        self._late: dict[int, _Late] = {}
        self._stop: StopOrder | None = None
        self._kill_at: float | None = None  # the next rung of the ladder
        self._abandon_at: float | None = None  # the one after that
        self._left = False

    def step(self, event: Event, now: float) -> list[Effect]:
        """Take one event at monotonic time `now` (seconds)."""
        effects: list[Effect] = []
        match event:
            case Ended():
                effects = self._end(event, now)
            case Completed(rank=rank):
                effects = self._tell(rank)
            case KillOrder():
                effects = self._kill(event)
            case EndOrder(ranks=ranks, reason=reason):
                effects = self._signal(ranks, signal.SIGTERM, reason)
            case Again():
                effects = self._begin_again(event)
            case Unborn(rank=rank):
                self._states[rank] = ProcessState.ENDED
            case StopOrder():
                effects = self._begin_stop(event, now)
            case Hurry():
                effects = self._kill_rest(now, "asked to stop a second time")
            case Tick():
                effects = self._expire(now)
            case _:
                assert_never(event)
        effects += self._leave(now)
        self.check()
        return effects

    def deadline(self) -> float | None:
        """The time of the next `Tick`, or None."""
        times = [late.told_at for late in self._late.values()]
        times += [at for at in (self._kill_at, self._abandon_at) if at is not None]
        return None if self._left else min(times, default=None)

    def check(self) -> None:
        for rank in self._late:
            assert self._states[rank] is ProcessState.ENDED, (
                f"rank {rank} is late with an end it has not"
            )

    def snapshot(self) -> dict[str, object]:
        return {
            "running": self._alive(),
            "stopping": self._stop is not None,
            "left": self._left,
        }

    def _alive(self) -> tuple[int, ...]:
        return tuple(
            rank for rank, state in self._states.items() if state is not ProcessState.ENDED
        )

    def _end(self, ended: Ended, now: float) -> list[Effect]:
        state = self._states[ended.rank]
        if state is ProcessState.ENDED:
            return []
        ours = state is ProcessState.SIGNALLED
        self._states[ended.rank] = ProcessState.ENDED
        if ended.complete or ours:
            return [Gone(ended.rank, ended.code, ours)]
        self._late[ended.rank] = _Late(ended.code, ours, now + LAST_WORDS_S)
        return []

    def _tell(self, rank: int) -> list[Effect]:
        late = self._late.pop(rank, None)
        return [] if late is None else [Gone(rank, late.code, late.ours)]

    def _begin_again(self, again: Again) -> list[Effect]:
        effects: list[Effect] = []
        for rank in again.ranks if self._stop is None else ():
            if self._states.get(rank) is ProcessState.ENDED and self._is_to_come(rank, again.birth):
                self._births.use(rank, again.birth)
                self._states[rank] = ProcessState.RUNNING
                effects += [*self._tell(rank), Begin(rank, again.birth, again.reason)]
        return effects

    def _is_to_come(self, rank: int, birth: int) -> bool:
        return self._births.judge(rank, birth) == "future"

    def _kill(self, order: KillOrder) -> list[Effect]:
        if order.births is None:
            return self._signal(order.ranks, signal.SIGKILL, order.reason)
        meant, effects = [], list[Effect]()
        for rank, birth in zip(order.ranks, order.births, strict=False):
            if rank in self._births and self._births.judge(rank, birth) == "present":
                meant.append(rank)
            elif self._states.get(rank) is ProcessState.ENDED and self._is_to_come(rank, birth):
                self._births.use(rank, birth)
                effects += [*self._tell(rank), Unbegun(rank, birth)]
        return [*self._signal(tuple(meant), signal.SIGKILL, order.reason), *effects]

    def _signal(self, ranks: tuple[int, ...], number: signal.Signals, reason: str) -> list[Effect]:
        here = tuple(rank for rank in self._alive() if rank in ranks)
        for rank in here:
            self._states[rank] = ProcessState.SIGNALLED
        return [Signal(here, number, reason)] if here else []

    def _begin_stop(self, order: StopOrder, now: float) -> list[Effect]:
        if self._stop is not None:
            return []
        self._stop = order
        self._kill_at = now + self._grace_s
        return self._signal(self._alive(), order.number, order.reason)

    def _kill_rest(self, now: float, reason: str) -> list[Effect]:
        self._kill_at = None
        self._abandon_at = now + REAP_S
        return self._signal(self._alive(), signal.SIGKILL, reason)

    def _expire(self, now: float) -> list[Effect]:
        due = [rank for rank, late in self._late.items() if now >= late.told_at]
        effects = [effect for rank in due for effect in self._tell(rank)]
        if self._kill_at is not None and now >= self._kill_at:
            name = self._stop.number.name if self._stop is not None else "the end"
            reason = f"still there {self._grace_s:g} s after {name}"
            effects += self._kill_rest(now, reason)
        return effects

    def _leave(self, now: float) -> list[Effect]:
        if self._stop is None or self._left:
            return []
        alive = self._alive()
        given_up = self._abandon_at is not None and now >= self._abandon_at
        if (alive and not given_up) or self._late:
            return []
        self._left = True
        return [Leave(self._stop.exit_code, alive)]
