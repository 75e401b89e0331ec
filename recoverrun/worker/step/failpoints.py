"""The moments at which an injected fault strikes: a real SIGKILL, sent by the worker to itself.

Only `recoverrun inject`, `recoverrun demo` and tests fill the schedule; normally it is empty and
`strike` costs one comparison. Points within a return are passed in returns alone.
"""

import signal
import time
from collections.abc import Callable
from dataclasses import replace
from os import getpid, getppid
from os import kill as end  # as it is now: executed code may not end this process (`exit_calls`)

from recoverrun.worker.step.first_updates import FirstUpdates
from rendezvous.bays.node_processes import end_keeper
from rendezvous.protocol.fault_schedule import (
    ALL,
    MIDDLE,
    NO_STEP,
    OF_SNAPSHOTS,
    PHASES,
    Phase,
    ReturnPhase,
    ScheduledKill,
    WelcomePhase,
    pace_ms,
    parse,
)


class Failpoints:
    """The kills of `schedule` that are meant for `rank`. Raises ScheduleError."""

    def __init__(
        self, schedule: str, rank: int, before: Callable[[], None], *, birth: int = 0
    ) -> None:
        """`before` is the last thing that this process does. `birth`: of this process, > 0 if its
        rank was lost before; what is meant for a member's first process is not for later ones.
        """
        self._kills: tuple[ScheduledKill, ...] = tuple(
            kill
            for kill in parse(schedule)
            if kill.rank in (rank, ALL)
            and (kill.when != "return" or kill.nth == birth)
            and (kill.when != "welcome" or not birth)
        )
        self.armed = bool(self._kills)  # any kill is meant for this process
        self.pace_s = pace_ms(schedule) / 1000  # least duration of a step while a replica is away
        self._begun_at = 0.0  # when the present step began, if there is a pace
        self._updates = 0  # steps with an update, while nothing is protected
        self._first_updates = FirstUpdates()
        self._welcomes = 0  # how often this process has stopped for others
        self._before = before

    def disarm(self) -> None:
        """Strike nobody here: this process is a copy of the one that is meant."""
        self._kills, self.armed, self.pace_s = (), False, 0.0

    def strike(self, step: int, phase: Phase, bucket: int = 0, buckets: int = 1) -> None:
        """End this process if the schedule wants it here. `bucket` of `buckets` was launched."""
        for kill in self._kills:
            wanted = buckets // 2 if kill.bucket == MIDDLE else kill.bucket
            here = phase != "reduce" or bucket == min(wanted, buckets - 1)
            if kill.step == step and kill.phase == phase and here:
                self._end(kill)

    def _end(self, kill: ScheduledKill) -> None:
        if kill.keeper:
            self._kills = tuple(one for one in self._kills if one is not kill)
            end_keeper(getppid())
            return
        self._before()
        if kill.node:
            end(getppid(), signal.SIGKILL)
        end(getpid(), signal.SIGKILL)

    # --------------------------------------------------------------------------- in a return

    def comes(self, phase: ReturnPhase, before: Callable[[], None] = lambda: None) -> None:
        """This process is on its way to a lost rank's place; `before` is done before it dies."""
        for kill in self._kills:
            if kill.when == "return" and kill.phase == phase:
                before()
                self._end(kill)

    def stops(self) -> None:
        """This rank stops at the top of a step, for others to take part."""
        self._welcomes += 1

    def welcomes(self, phase: WelcomePhase, before: Callable[[], None] = lambda: None) -> None:
        """Others take part again; `before` is done before this process dies."""
        for kill in self._kills:
            if self._is_now(kill) and kill.phase == phase:
                before()
                self._end(kill)

    def return_begins(self, step: int) -> None:
        """`step` is the first of this process, or of others that it has stopped for."""
        self._kills = tuple(
            replace(kill, step=step) if self._is_now(kill) and kill.phase in PHASES else kill
            for kill in self._kills
        )

    def _is_now(self, kill: ScheduledKill) -> bool:
        now = kill.when == "return" or (kill.when == "welcome" and kill.nth == self._welcomes)
        return now and kill.step == NO_STEP

    def keep_pace(self, away: bool) -> None:
        """A step begins; the one before took as long as the schedule wants if one is `away`."""
        left_s = self._begun_at + self.pace_s - time.monotonic()
        if away and left_s > 0:
            time.sleep(left_s)
        self._begun_at = time.monotonic()

    def backward_begins(self) -> None:
        """A backward of the script begins."""
        self._first_updates.backward_begins()

    def update(self, refused: bool) -> None:
        """An optimizer is about to step in a script that is not protected, or not yet.

        Where protection is `refused` nobody looks at phases but those of snapshots: a step's kill
        strikes here.
        """
        if not self._first_updates.is_first():
            return
        for kill in self._kills:
            if refused and kill.step == self._updates and kill.phase not in OF_SNAPSHOTS:
                end(getpid(), signal.SIGKILL)
        self._updates += 1
