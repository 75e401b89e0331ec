"""Where an injected fault strikes: a real SIGKILL, sent by the worker to itself at a known moment.

Only `recoverrun inject`, `recoverrun demo` and tests fill the schedule; normally it is empty and
`strike` costs one comparison.
"""

import signal
from collections.abc import Callable
from os import getpid
from os import kill as end  # as it is now: executed code may not end this process (`exit_calls`)

from rendezvous.protocol.fault_schedule import MIDDLE, Kill, Phase, parse


class Failpoints:
    """The kills of `schedule` that are meant for `rank`. Raises ScheduleError."""

    def __init__(self, schedule: str, rank: int, before: Callable[[], None]) -> None:
        """`before` is the last thing that this process does."""
        self._kills: tuple[Kill, ...] = tuple(k for k in parse(schedule) if k.rank == rank)
        self.armed = bool(self._kills)  # any kill is meant for this process
        self._updates = 0  # of optimizers, while nothing is protected
        self._before = before

    def disarm(self) -> None:
        """Nobody dies here: this process is a copy of the one that is meant."""
        self._kills, self.armed = (), False

    def strike(self, step: int, phase: Phase, bucket: int = 0, buckets: int = 1) -> None:
        """End this process if the schedule wants it here. `bucket` of `buckets` was launched."""
        for kill in self._kills:
            wanted = buckets // 2 if kill.bucket == MIDDLE else kill.bucket
            here = phase != "reduce" or bucket == min(wanted, buckets - 1)
            if kill.step == step and kill.phase == phase and here:
                self._before()
                end(getpid(), signal.SIGKILL)

    def update(self, refused: bool) -> None:
        """An optimizer is about to step in a script that is not protected, or not yet.

        Where protection is `refused` nobody looks at phases: a step's kill strikes here.
        """
        for kill in self._kills:
            if refused and kill.step == self._updates:
                end(getpid(), signal.SIGKILL)
        self._updates += 1
