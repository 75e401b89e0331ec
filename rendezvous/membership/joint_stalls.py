"""Standstill of all ranks together: a stuck operation, parted ranks, or quiet.

All wait, and an operation was joined by all of its members: the network or the library is stuck,
or slow. The members meet anew, each time after a longer wait, and in the end the job stops. All
wait, each in an operation that some do not come to: the script's ranks have parted, and a restart
would do the same. All are quiet: evaluation, a checkpoint, compilation, or code that hangs
everywhere; nobody can tell by looking, so it is said, and nobody is ended for it unless the user
sets a limit.

Nothing is found before each rank has been looked at and was where it is said to stand: of those
whose launcher is silent nobody knows.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from rendezvous.membership.hang_events import AllQuiet, Effect, LookAt, Parted, Still, Stuck
from rendezvous.membership.hang_evidence import LOOK_EVERY_S
from rendezvous.membership.hang_joins import Joins, all_shown
from rendezvous.membership.hang_limits import TIMES, UNSEEN_S

QUIET_TIMES = 5.0
"""All may be quiet so many times as long as they were before."""

START_S = 300.0
"""Ranks that compute or read may import for so long before their script begins, unsaid: packages on
a network file system that thousands read at once, or a machine with too few CPUs.
"""

MEETINGS = 2
"""So often members meet anew where an operation is stuck, before the job stops."""

WITHIN = "torch's own communication"

LOOKS_TOGETHER = 2

MUTE_S = 3.0
"""A rank that waits and does not show its stack is given so much longer to."""

EARLY_S = LOOKS_TOGETHER * LOOK_EVERY_S
"""All are looked at so long before an operation is found to be stuck, or ranks to have parted."""


@dataclass(slots=True)
class _Lasting:
    """The duration of a common state of all ranks, and the longest one before."""

    since: float | None = None
    lasts_s: float = 0.0
    longest_s: float = 0.0

    def on(self, since: float, now: float) -> bool:
        """Note that the state lasts; True if it began anew."""
        new = since != self.since
        if new:
            self.over()
            self.since = since
        self.lasts_s = now - since
        return new

    def over(self) -> None:
        self.longest_s = max(self.longest_s, self.lasts_s)
        self.void()

    def void(self) -> None:
        """Note that the state did not end by itself."""
        self.since, self.lasts_s = None, 0.0


class JointStalls:
    """The joint stalls of one job; `hang_limit_s` 0: quiet may last for any time."""

    def __init__(self, hang_limit_s: float) -> None:
        self._hang_limit_s = hang_limit_s
        self._look, self._looked_at = 0, float("-inf")
        self._quiet, self._wait = _Lasting(), _Lasting()
        self._quiet_said = self._wait_said = False
        self._busy_until_s = 0.0  # quiet of ranks that are at work, before their scripts have begun
        self._meetings = 0
        self._renewed_at = float("-inf")

    def stepped(self) -> None:
        """A step is over: nothing is stuck."""
        self._meetings = 0

    def renew(self, now: float) -> None:
        """The members changed: all that they wait for is about to end."""
        self._renewed_at = now
        self._wait.void()
        self._wait_said = False

    def end(self) -> None:
        """Note that not all stand still in the same way any more."""
        self._quiet.over()
        self._wait.over()
        self._wait_said, self._look = False, 0

    def wait(
        self,
        waiting: Mapping[int, Still],
        limit_s: float,
        hang: Callable[[], int],
        now: float,
        *,
        acts: bool,
    ) -> list[Effect]:
        """All ranks wait. `hang` returns the number of a suspicion. `acts`: what is found has
        consequences; else it is said once.
        """
        self._quiet.over()
        since = max(self._renewed_at, *(still.since for still in waiting.values()))
        lag_s = now - since
        joined = Joins(waiting).whole
        # Of one that shows no stack nobody knows what it has joined: in the end members meet anew.
        parted = not joined and (all_shown(waiting) or lag_s < limit_s + MUTE_S)
        if not parted:
            if self._wait.on(since, now):
                self._wait_said, self._look = False, 0
            limit_s = self._patience_s(limit_s)
        if lag_s < limit_s - EARLY_S or self._wait_said:
            return []
        asked = self._look_at(waiting, hang(), now, stacks=parted)
        if lag_s < limit_s or not self._looked(waiting, stacks=parted):
            return asked
        self._look = 0
        self._wait_said = parted or not acts
        if parted:
            return [parted_in(hang(), waiting, {}, lag_s)]
        what = waiting[min(joined or waiting)].mark.what
        if not acts:
            return [Stuck(what=what, lag_s=lag_s, meet=False, acts=False)]
        self._meetings += 1
        self._renewed_at = now
        self._wait.void()
        return [Stuck(what=what, lag_s=lag_s, meet=self._meetings <= MEETINGS)]

    def _patience_s(self, limit_s: float) -> float:
        """The time that an operation may take which all have joined: it may be slow, and not stuck.

        If it is slow it begins again with each meeting; so each time it is given longer, and the
        job stops for it only after a minute.
        """
        limit_s *= TIMES ** min(self._meetings, MEETINGS)
        least_s = UNSEEN_S if self._meetings >= MEETINGS else 0.0
        return max(limit_s, least_s, TIMES * self._wait.longest_s)

    def quiet(
        self, quiet: Mapping[int, Still], hang: Callable[[], int], now: float
    ) -> list[Effect]:
        """No rank moves, and none waits. `hang` returns the number of a suspicion."""
        self._wait.over()
        if self._quiet.on(max(still.since for still in quiet.values()), now):
            self._quiet_said, self._look, self._busy_until_s = False, 0, 0.0
        quiet_s = self._quiet.lasts_s
        started = any(still.mark.serial > 1 for still in quiet.values())  # some mark was made
        over = started and 0 < self._hang_limit_s <= quiet_s
        due = quiet_s >= max(UNSEEN_S, QUIET_TIMES * self._quiet.longest_s, self._busy_until_s)
        if not over and (self._quiet_said or not due):
            return []
        asked = self._look_at(quiet, hang(), now)
        if not self._looked(quiet):
            return asked
        self._look = 0
        if not started and quiet_s < START_S and any(s.looks.busy for s in quiet.values()):
            self._busy_until_s = min(quiet_s + UNSEEN_S, START_S)
            return asked
        self._quiet_said = True
        first = quiet[min(quiet)]
        told = AllQuiet(
            hang=hang(),
            quiet_s=quiet_s,
            phase=first.phase,
            step=first.mark.step,
            words=first.looks.words,
            over=over,
            started=started,
        )
        return [told]

    def _look_at(
        self, ranks: Mapping[int, Still], hang: int, now: float, *, stacks: bool = False
    ) -> list[Effect]:
        """Ask for looks at all of `ranks`, a second apart, until all have answered."""
        if self._looked(ranks, stacks=stacks) or now < self._looked_at + LOOK_EVERY_S:
            return []
        self._look, self._looked_at = self._look + 1, now
        number = 1 + max(still.asked for still in ranks.values())
        for still in ranks.values():
            still.asked = number
        return [LookAt(hang=hang, look=number, ranks=tuple(sorted(ranks)), stacks=True)]

    def _looked(self, ranks: Mapping[int, Still], *, stacks: bool = False) -> bool:
        """True if all have answered the last of so many looks as it takes; `stacks`: themselves."""
        if stacks and not all_shown(ranks):
            return False
        return self._look >= LOOKS_TOGETHER and all(
            still.looks.since(self._looked_at) for still in ranks.values()
        )


def parted_in(
    hang: int, waiting: Mapping[int, Still], within: Mapping[int, Still], lag_s: float
) -> Parted:
    """The message about parted ranks; those `within` wait for mates in torch's own way."""
    what = {rank: still.mark.what for rank, still in waiting.items()}
    what |= dict.fromkeys(within, WITHIN)
    words = {rank: still.looks.words for rank, still in (*waiting.items(), *within.items())}
    places = tuple((rank, what[rank], words[rank]) for rank in sorted(what))
    return Parted(hang=hang, places=places, lag_s=lag_s)
