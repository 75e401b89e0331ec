"""The truth about a run, and the promises of the pages: checked against what the machine says.

Nothing here asks the machine: limits are computed again, from the truth, as docs/hangs.md has them.
"""

from collections import Counter
from dataclasses import dataclass
from math import inf
from statistics import median
from typing import Protocol

from rendezvous.membership.hang_events import (
    AllQuiet,
    Cleared,
    Condemned,
    Parted,
    Stuck,
    Suspected,
)
from rendezvous.protocol.progress_page import Phase
from tests.sim.engine import Engine
from tests.sim.standstill.activities import PROVED, Activity
from tests.sim.standstill.plan import Plan
from tests.sim.standstill.rank import Rank

LEAST_S, UNSEEN_S = 5.0, 60.0
EVERY_STEP = (Phase.MICROBATCH, Phase.DATA, Phase.SETTLE)
TIMES, PATIENCE, REMEMBERED = 3.0, 10.0, 64

EXTRA = "an extra barrier"
"""The operation of a rank that has parted."""

NOTED_S = 4.0
"""A shorter lag may stay unseen between two beats."""

SLACK_S = 3.0
"""Beats, ticks, and the way of a message."""

LOST_S = 15.0
"""More where messages get lost, and for each that was lost: standing still is said again after 5 s,
and it takes three looks in a row, 5 s apart in the end."""

LATE_S = 6.0


@dataclass(frozen=True, slots=True)
class Violation:
    checker: str
    words: str
    at: float

    def __str__(self) -> str:
        return f"{self.checker} at {self.at:.3f}: {self.words}"


@dataclass(frozen=True, slots=True)
class Lag:
    """For so long a rank kept others waiting, and came."""

    at: float
    step: int
    phase: Phase
    seconds: float
    activity: Activity
    ends: float  # when the first wait for it would have ended by the script's own limit


class Run(Protocol):
    plan: Plan
    engine: Engine
    ranks: dict[int, Rank]
    generation: int
    end: str

    @property
    def now(self) -> float: ...
    def say(self, words: str) -> None: ...


class Book:
    """Of one run."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self.violation: Violation | None = None
        self.coverage: Counter[str] = Counter()
        self.stuck_now = False
        self._lags: list[Lag] = []
        self._newest: dict[int, Lag] = {}
        self._steps: list[float] = []
        self._step, self._stepped_at = 0, 0.0
        self._planned: set[int] = set()  # hung ranks whose end is awaited
        self._condemned: set[tuple[int, int]] = set()
        self._joint = False
        self._unheard: list[tuple[int, float]] = []  # (rank, when) of messages that were lost
        self._delay_s = 0.0  # of the message that was longest on its way so far

    def break_(self, checker: str, words: str) -> None:
        self.violation = self.violation or Violation(checker, words, self._run.now)

    # --------------------------------------------------------------------------- the truth

    def stepped(self, step: int) -> None:
        now = self._run.now
        if step == self._step + 1 and self._step:
            self._steps = [*self._steps[-32:], now - self._stepped_at]
        self._step, self._stepped_at = step, now
        self.stuck_now = self._joint = False
        self.coverage["steps"] += 1

    def _waits_for(self, rank: Rank) -> list[float]:
        """Times since which others wait for it. Where members met anew, older waits are over."""
        return [
            other.since
            for other in self._run.ranks.values()
            if other is not rank and other.waits is not None and rank.number in other.waits.ranks
            and other.joined_in == self._run.generation
        ]  # fmt: skip

    def _blamed_since(self, rank: Rank) -> float | None:
        since = self._waits_for(rank)
        blamed = since and (rank.waits is None or rank.hung is not None)
        return max(min(since), rank.since) if blamed else None

    def _ends(self, rank: Rank) -> float:
        limit_s = self._run.plan.limit_s
        return min(self._waits_for(rank), default=inf) + limit_s if limit_s else inf

    def marks(self, rank: Rank) -> None:
        """A rank is about to go on to another mark."""
        now = self._run.now
        if now - rank.since < 1.0 or rank.waits is not None:
            return
        since = self._blamed_since(rank)
        if since is not None:
            lag = Lag(now, rank.step, rank.phase, now - since, rank.mostly(now), self._ends(rank))
            self._lags.append(lag)
            self._newest[rank.number] = lag

    def _basis_s(self, phase: Phase, step_s: float) -> float:
        return max(LEAST_S, 3 * step_s) if phase in EVERY_STEP else max(UNSEEN_S, 20 * step_s)

    def _step_s(self, *, most: bool) -> float:
        """The usual step. A coordinator that stood still has seen other ones."""
        if not self._steps:
            return 0.0
        if self._is_exact():
            return median(self._steps) * (1.1 if most else 0.9)
        return max(self._steps) if most else min(self._steps)

    def least_s(self, phase: Phase, before: float) -> float:
        """A limit is not shorter."""
        known = [
            lag.seconds - 1.5
            for lag in self._lags
            if lag.phase is phase and NOTED_S <= lag.seconds and lag.at < before
            and (phase not in EVERY_STEP or lag.step > self._step - REMEMBERED)
        ]  # fmt: skip
        learned_s = TIMES * max(known, default=0.0) if self._is_exact() else 0.0
        return max(self._basis_s(phase, self._step_s(most=False)), learned_s)

    def most_s(self, phase: Phase) -> float:
        """A limit is not longer. Who came is known to have come only once a message says so."""
        unknown_s = 0.5 + self._delay_s
        known = [lag.seconds + unknown_s for lag in self._lags if lag.phase is phase]
        return max(self._basis_s(phase, self._step_s(most=True)), TIMES * max(known, default=0.0))

    def _longest_wait_s(self) -> float:
        slow_s = max((seconds for _, seconds in self._run.plan.transfers_s), default=0.0)
        return max(self.most_s(Phase.SETTLE), TIMES * (slow_s + 1.0))

    def _is_exact(self) -> bool:
        return not (self._run.plan.loss or self._run.plan.late or self._run.plan.frozen)

    def _slack_s(self, since: float) -> float:
        plan, now = self._run.plan, self._run.now
        frozen_s = sum(s + 1.0 for _, at, s in plan.frozen if at + s >= since and at < now)
        return SLACK_S + frozen_s + LOST_S * bool(plan.loss) + LATE_S * bool(plan.late)

    def unheard(self, rank: int) -> None:
        """A message about it was lost."""
        self._unheard.append((rank, self._run.now))

    def delayed(self, seconds: float) -> None:
        """A message was on its way for so long."""
        self._delay_s = max(self._delay_s, seconds)

    # --------------------------------------------------------------------------- in time

    def hangs(self, rank: Rank) -> None:
        self.coverage[f"hang: {rank.hung}"] += 1
        self.coverage[f"hang in {rank.phase.name}"] += 1
        self._expect(rank)

    def waits(self, rank: Rank) -> None:
        for other in self._run.ranks.values():
            if other.hung is not None and rank.waits and other.number in rank.waits.ranks:
                self._expect(other)
        channels = {one.waits and one.waits.channel for one in self._run.ranks.values()}
        if None not in channels and len(channels) > 1 and EXTRA in channels:
            self._expect_joint("parted")

    def sticks(self) -> None:
        self.stuck_now = True
        self.coverage["stuck"] += 1
        self._joint = False
        self._expect_joint("stuck")

    def meets_anew(self) -> None:
        self._planned.clear()
        self._joint = False

    def _expect(self, rank: Rank) -> None:
        since = self._blamed_since(rank)
        if since is not None and rank.number not in self._planned:
            self._planned.add(rank.number)
            self._due(rank, since, self._run.generation)

    def _due(self, rank: Rank, since: float, generation: int) -> None:
        """A rank hangs and is waited for since `since`: is it lost in time?"""
        run = self._run
        if run.end or run.generation != generation or rank.number not in run.ranks:
            return
        if self._blamed_since(rank) is None:
            self._planned.discard(rank.number)
            return
        limit_s = self.most_s(rank.phase)
        if rank.hung == "stopped":
            limit_s = max(LEAST_S, 3 * self._step_s(most=True))
        elif rank.hung not in PROVED:
            limit_s *= PATIENCE
        lost = sum(1 for number, at in self._unheard if number == rank.number and at >= since)
        due = since + limit_s + self._slack_s(since) + LOST_S * lost
        if run.now >= due - 1e-6:
            self.break_("late", f"rank {rank.number} hangs ({rank.hung}) since {since:.1f}")
        else:
            run.engine.at(due, self._due, rank, since, generation)

    def _expect_joint(self, checker: str) -> None:
        if not self._joint:
            self._joint = True
            now = self._run.now
            # With each meeting they are given three times as long, and a minute in the end.
            due = now + max(UNSEEN_S, 9 * self._longest_wait_s()) + 2 * self._slack_s(now)
            self._run.engine.at(due, self._joint_due, checker, self._run.generation)

    def _joint_due(self, checker: str, generation: int) -> None:
        run = self._run
        if self._joint and not run.end and run.generation == generation:
            self.break_("late", f"all wait, {checker}, and nobody has said so")

    def limited(self, rank: Rank) -> None:
        """A wait of `rank` ends by the script's own limit."""
        assert rank.waits is not None, "it waits"
        self.coverage["ended by the script's limit"] += 1
        for other in self._run.ranks.values():
            since = self._blamed_since(other)
            if other.hung in PROVED and since is not None and other.number in rank.waits.ranks:
                if self._is_exact() and self._run.now - since > LEAST_S + SLACK_S:
                    self.break_("limit", f"rank {other.number} hangs, and the script's limit came")

    # --------------------------------------------------------------------------- findings

    def condemned(self, found: Condemned) -> None:
        rank = self._run.ranks[found.rank]
        self._condemned.add((found.hang, found.rank))
        if rank.hung is not None:
            self.coverage[f"condemned: {found.proof}"] += 1
            return
        mates = [one for one in self._run.ranks.values() if one.slot == rank.slot and one.hung]
        if mates:
            self.break_("mate", f"{found.rank} is named, and {mates[0].number} hangs")
        if rank.native is not None and self._has_parted():
            self.break_("parted", f"{found.rank} waits for a mate that has parted from all")
        self.coverage["healthy ranks lost"] += 1
        newest, now = self._newest.get(found.rank), self._run.now
        since = self._blamed_since(rank)
        seconds, phase, activity = now - (since or now), rank.phase, rank.mostly(now)
        ends = self._ends(rank)
        just = 2.0 + (self._slack_s(now - 30.0) if not self._is_exact() else 0.0)
        if newest is not None and now - newest.at < just and newest.seconds > seconds:
            seconds, phase, activity = newest.seconds, newest.phase, newest.activity
            ends = newest.ends
            self.coverage["lost as it came"] += 1
        # Nothing is learned from a rank that came as it was lost.
        self._lags = [lag for lag in self._lags if lag is not newest or now - lag.at > just]
        idle = activity.states == "S" and activity.digest and activity.cpu_ms_per_s < 50.0
        self.coverage[f"healthy ranks lost: {'idle' if idle else 'others'}"] += 1
        least_s = self.least_s(phase, now - seconds) * (1.0 if idle else PATIENCE)
        if idle:
            least_s = min(least_s, ends - 1.0 - (now - seconds))
        if seconds < least_s - 1.0:
            words = f"rank {found.rank} is lost after {seconds:.1f} of {least_s:.1f} s, {activity}"
            self.break_("innocent", words)

    def suspected(self, found: Suspected) -> None:
        rank = self._run.ranks.get(found.rank)
        true = rank is not None and rank.hung is not None
        self.coverage["suspicions" if true else "false alarms"] += 1

    def cleared(self, found: Cleared) -> None:
        rank = self._run.ranks.get(found.rank)
        self.coverage["cleared"] += 1
        if rank is not None and rank.hung is not None:
            self.break_("cleared", f"rank {found.rank} hangs")
        if (found.hang, found.rank) in self._condemned:
            self.break_("cleared", f"rank {found.rank} was condemned before")

    def all_quiet(self, found: AllQuiet) -> None:
        self.coverage["all quiet"] += 1
        least_s = UNSEEN_S - 1.0
        moving = [
            rank.number
            for rank in self._run.ranks.values()
            if rank.waits is not None or self._run.now - rank.since < least_s
        ]
        if moving:
            self.break_("quiet", f"{moving} move or wait: {found}")

    def parted(self, found: Parted) -> None:
        self.coverage["parted"] += 1
        if not self._has_parted():
            self.break_("parted", f"nobody has: {found}")

    def _has_parted(self) -> bool:
        rank = self._run.ranks.get(self._run.plan.parted[0])
        return rank is not None and rank.waits is not None and rank.waits.channel == EXTRA

    def stuck(self, found: Stuck) -> None:
        self.coverage["meets anew" if found.meet else "stuck for good"] += 1
        stopped = [rank.number for rank in self._run.ranks.values() if rank.hung == "stopped"]
        if stopped and self._is_exact():
            self.break_("stuck", f"{stopped} are stopped: {found}")
        if self.stuck_now:
            return
        self.coverage["slow operations torn"] += 1
        if not found.meet:
            self.break_("stuck", f"nothing is: {found}")
        now = self._run.now
        plan = self._run.plan
        # A launcher that stands still answers no look; one that hosts the coordinator hears late.
        late = plan.loss or plan.late or any(node == 0 for node, _, _ in plan.frozen)
        old_s = 2.0 + (self._slack_s(now - 10.0) if late else 0.0)
        ranks = self._run.ranks.values()
        if any(rank.waits is None and now - rank.freed_at > old_s for rank in ranks):
            self.break_("stuck", f"some do not wait: {found}")
