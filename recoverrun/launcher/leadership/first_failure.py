"""The cause among several ends, when a job that recovery does not cover fails.

What is heard first need not have happened first. A rank that fails closes its connections before it
has ended; a peer on another node may be gone of that, and known to be, while the rank that failed
is still writing its last words. So:
1. An end whose error only tells of another process's end is never the cause while there is another.
2. After the first end that can be a cause, the others have ACROSS_S to be heard, if there are other
   nodes. A signal that no peer's end can bring about needs no such wait.
3. Of those that can be the cause it is the one that failed first: each launcher says how long ago
   that was, by its own clock alone, and the coordinator counts back from when it heard. Two clocks
   are never compared; what is left of error is the time that a message took.
4. With nothing but ends of the first kind, the cause has as long to show itself as it takes to
   notice that a node is silent. A node that falls silent in that time is the cause.
"""

import signal
from dataclasses import dataclass, field
from typing import assert_never

from rendezvous.coordinator.error_kinds import tells_of_another
from rendezvous.coordinator.losses import Loss
from rendezvous.protocol.exit_codes import code_for_lost
from rendezvous.protocol.heartbeat import heartbeat
from rendezvous.protocol.messages import Exited, Stop

ACROSS_S = 1.0
"""What an earlier failure may take longer to end its process, and to be heard of."""

NOTICE_S = 0.5
"""After a node has been silent for as long as the `heartbeat` allows: until that is agreed on."""

ALONE_S = 1.0
"""The same where all workers are on one node: its launcher sees every end at once."""

_CONTAGIOUS = frozenset({signal.SIGABRT, signal.SIGTERM, signal.SIGPIPE, signal.SIGHUP})
"""Signals by which a process ends because another one did; libraries abort when a peer is gone."""


@dataclass(frozen=True, slots=True)
class Ended:
    """A worker ended."""

    exited: Exited


@dataclass(frozen=True, slots=True)
class Lost:
    """A node is silent; `rank` is the first of its ranks."""

    rank: int
    reason: str


@dataclass(frozen=True, slots=True)
class Stopping:
    """The coordinator wants to stop because of a rank's failure."""

    stop: Stop


@dataclass(frozen=True, slots=True)
class Tick:
    """Time passed."""


Event = Ended | Lost | Stopping | Tick


@dataclass(frozen=True, slots=True)
class Concluded:
    """The stop with the cause that stands. `lost`: it is a node."""

    stop: Stop
    lost: bool


@dataclass(frozen=True, slots=True, order=True)
class _Failure:
    """One end that was not good; the order is that of time."""

    failed_at: float  # coordinator's clock, monotonic seconds
    rank: int
    stop: Stop = field(compare=False)
    cascade: bool = field(compare=False)
    certain: bool = field(compare=False)  # nobody else's end can have brought it about
    lost: bool = field(compare=False)


class FirstFailure:
    """Machine for the end of one attempt of `world_size` ranks on `nodes` nodes."""

    def __init__(self, *, nodes: int, world_size: int) -> None:
        self._nodes = nodes
        self._world_size = world_size
        self._ended: set[int] = set()
        self._failures: list[_Failure] = []
        self._stop: Stop | None = None  # as the coordinator wants it
        self._conclude_at: float | None = None
        self._over = False

    def step(self, event: Event, now: float) -> list[Concluded]:
        """Take one event at monotonic time `now` (seconds)."""
        if self._over:
            return []
        match event:
            case Ended(exited=exited):
                self._hear(exited, now)
            case Lost(rank=rank, reason=reason):
                stop = Stop(exit_code=code_for_lost(-signal.SIGKILL), reason=reason, root_rank=rank)
                self._add(_Failure(now, rank, stop, cascade=False, certain=True, lost=True), now)
            case Stopping(stop=stop):
                self._stop = stop
            case Tick():
                pass
            case _:
                assert_never(event)
        concluded = self._conclude(now)
        self.check()
        return concluded

    def deadline(self) -> float | None:
        """The time of the next `Tick`, or None."""
        return self._conclude_at if self.pending else None

    def check(self) -> None:
        assert not self._over or self._stop is not None, "a conclusion that nobody wanted"

    def snapshot(self) -> dict[str, object]:
        return {"pending": self.pending, "failures": len(self._failures), "over": self._over}

    @property
    def pending(self) -> bool:
        """True if the job is to stop as soon as the cause is known."""
        return self._stop is not None and not self._over

    def _hear(self, exited: Exited, now: float) -> None:
        self._ended.add(exited.rank)
        if exited.code == 0 or exited.ours:
            return
        loss = Loss.of_exit(exited, layout=None, generation=0, now=now)
        stop = Stop(
            exit_code=code_for_lost(exited.code), reason=loss.reason, root_rank=exited.rank
        )  # fmt: skip
        failure = _Failure(
            failed_at=now - max(0.0, exited.age_s),
            rank=exited.rank,
            stop=stop,
            cascade=tells_of_another(exited.error),
            certain=exited.code < 0 and -exited.code not in _CONTAGIOUS,
            lost=False,
        )
        self._add(failure, now)

    def _add(self, failure: _Failure, now: float) -> None:
        self._failures.append(failure)
        if failure.cascade:
            wait_s = heartbeat(self._nodes).silent_s + NOTICE_S if self._nodes > 1 else ALONE_S
            until = now + wait_s if self._conclude_at is None else self._conclude_at
        elif failure.certain or self._nodes == 1:
            until = now
        else:
            until = now + ACROSS_S
        self._conclude_at = until if self._conclude_at is None else min(self._conclude_at, until)

    def _conclude(self, now: float) -> list[Concluded]:
        if self._stop is None:
            return []
        everybody = len(self._ended) >= self._world_size  # There is nobody left to wait for.
        if self._conclude_at is not None and now < self._conclude_at and not everybody:
            return []
        self._over = True
        causes = [failure for failure in self._failures if not failure.cascade]
        first = min(causes or self._failures, default=None)
        if first is None:
            return [Concluded(self._stop, lost=False)]
        return [Concluded(first.stop, first.lost)]
