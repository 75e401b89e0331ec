"""The ranks that hang: seen by comparison, proved by looks, and only then condemned.

Theory of operation. Each rank is moving, waiting (it has entered an operation that others have to
join), or quiet (neither). A quiet rank that is waited for is a suspect; its lag is the time since
it stood still and was waited for. Shortly before the limit of its phase (`hang_limits`) it is
looked at, three times, a second apart (`hang_evidence`). At the limit it is condemned if the looks
prove that it will not come, else at ten times the limit. Of a replica the one is condemned that
waits for nobody. Where all ranks stand still in the same way, nobody is a suspect (`joint_stalls`).
A rank that was stopped while it waits, or still waits where the members have met anew, is quiet.

The machine is told of ranks that stand still, and of those among them that move again; a rank that
it hears nothing of moves. It judges by its own clock and by ages, never by clocks of others.
"""

from collections.abc import Mapping
from typing import assert_never

from rendezvous.membership.awaited_ranks import AwaitedRanks
from rendezvous.membership.hang_events import (
    Cleared,
    Condemned,
    Effect,
    Event,
    LookAt,
    Members,
    Stepped,
    Still,
    Suspected,
    Tick,
)
from rendezvous.membership.hang_evidence import LOOK_EVERY_S, LOOKS, Looks
from rendezvous.membership.hang_joins import Joins, all_shown
from rendezvous.membership.hang_limits import HangLimits
from rendezvous.membership.joint_stalls import MUTE_S, JointStalls, parted_in
from rendezvous.protocol.hang_messages import STILL_S, Evidence, Progress, Stack
from rendezvous.protocol.progress_page import Phase

PATIENCE = 10.0
"""A suspect against which nothing is proved has so many times its limit."""

MARGIN_S = 1.0
"""A rank is condemned so long before the wait for it ends by the script's own limit."""

LOOKING_S = (LOOKS - 1) * LOOK_EVERY_S + 0.5
"""Looks begin so long before the limit."""

SELDOM, SELDOM_S = LOOKS + 2, 5.0
"""After so many looks of a kind they are taken at longer intervals."""

TICK_S = 0.25

BLIND_S = 3.0
"""A machine with suspects that is not stepped for so long stood still itself, with its launcher: a
suspended job, a paused container. Nobody is blamed for that time."""


class Standstill:
    """Machine for one job; `hang_limit_s` 0: quiet may last for any time."""

    def __init__(self, *, hang_limit_s: float = 0.0) -> None:
        self._joint = JointStalls(hang_limit_s)
        self._limits = HangLimits()
        self._slots: Mapping[int, int] = {}
        self._mates: dict[int, list[int]] = {}  # by slot
        self._protected = False
        self._generation = 0
        self._still: dict[int, Still] = {}
        self._hangs = 0  # suspicions so far
        self._next: float | None = None
        self._stepped_at = float("-inf")

    def step(self, event: Event, now: float) -> list[Effect]:
        """Take one event at monotonic time `now` (seconds)."""
        blind_s = now - self._stepped_at
        if blind_s > BLIND_S:
            for one in self._still.values():
                one.excuse(blind_s)
        self._stepped_at = now
        match event:
            case Members():
                self._slots, self._protected = event.slots, event.protected
                if event.generation != self._generation:
                    self._forget_waits()
                self._generation = event.generation
                self._mates = {}
                for rank, slot in event.slots.items():
                    self._mates.setdefault(slot, []).append(rank)
                for rank in self._still.keys() - event.slots.keys():
                    del self._still[rank]
                self._joint.renew(now)
                return []
            case Stepped(step=step):
                self._joint.stepped()
                self._limits.stepped(step, now)
                return []
            case Progress():
                return self._stands(event, now)
            case Evidence():
                return self._looked(event, now)
            case Stack(rank=rank):
                if still := self._still.get(rank):
                    still.looks.shown(event)
                return []
            case Tick():
                return self._judge(now)
            case _:
                assert_never(event)

    def _forget_waits(self) -> None:
        """Members meet anew: looks at ranks as they waited before prove nothing of what follows."""
        for still in self._still.values():
            if still.mark.waits and not still.looks.stopped:
                still.looks, still.asked_stacks = Looks(), 0

    def deadline(self) -> float | None:
        """The time of the next `Tick`, or None."""
        return self._next if self._still else None

    def check(self) -> None:
        assert self._still.keys() <= self._slots.keys(), "a rank stands still that is no member"

    # --------------------------------------------------------------------------- who stands still

    def _stands(self, mark: Progress, now: float) -> list[Effect]:
        rank, age_s = mark.rank, mark.age_ms / 1000
        if rank not in self._slots:
            return []
        known = self._still.get(rank)
        if known is not None and known.mark.serial == mark.serial:
            return []
        effects = self._came(rank, known, now - age_s) if known is not None else []
        if age_s < STILL_S:
            self._still.pop(rank, None)
        else:
            self._still[rank] = Still(mark, now - age_s)
            self._next = now if self._next is None else self._next
        return effects

    def _looked(self, evidence: Evidence, now: float) -> list[Effect]:
        still = self._still.get(evidence.rank)
        if still is None or evidence.serial < still.mark.serial:
            return []
        if evidence.serial == still.mark.serial:
            still.looks.looked(evidence, now)
            return []
        # It has moved. What says so is lost or on its way, and so is where it stands now.
        del self._still[evidence.rank]
        return self._came(evidence.rank, still, now)

    def _came(self, rank: int, still: Still, at: float) -> list[Effect]:
        """A rank that stood still has moved, at `at`."""
        if still.blamed_since is None:
            return []
        lag_s = max(0.0, at - still.blamed_since)
        self._limits.came(still.phase, lag_s)
        if not still.said:
            return []
        return [Cleared(hang=still.hang, rank=rank, lag_s=lag_s, phase=still.phase)]

    # --------------------------------------------------------------------------- the picture

    def _judge(self, now: float) -> list[Effect]:
        self._next = now + TICK_S
        waiting = {rank: still for rank, still in self._still.items() if self._waits(still)}
        quiet = {rank: still for rank, still in self._still.items() if rank not in waiting}
        awaited = AwaitedRanks(waiting)
        effects: list[Effect] = []
        for rank, still in quiet.items():
            since = awaited.since(rank)
            still.blamed_since = None if since is None else max(since, still.since)
            still.said &= since is not None
        suspects = {r: s for r, s in quiet.items() if s.blamed_since is not None}
        if suspects:
            effects += self._suspect(suspects, waiting, awaited, now)
        whole = len(self._still) == len(self._slots) and bool(self._still)
        if whole and not quiet:
            effects += self._glance(now)
            limit_s = self._limits.limit_s(Phase.SETTLE)
            hang, acts = self._joint_hang, self._protected
            effects += self._joint.wait(waiting, limit_s, hang, now, acts=acts)
        elif whole and not any(still.mark.waits for still in quiet.values()) and not waiting:
            effects += self._joint.quiet(quiet, self._joint_hang, now)
        else:
            self._joint.end()
        return effects

    def _waits(self, still: Still) -> bool:
        """True if it waits in an operation that others can join."""
        mark = still.mark
        if not mark.waits or still.looks.stopped:
            return False
        # A wait for an operation ends as members meet anew; for the coordinator's word it goes on.
        return not (mark.number and mark.generation < self._generation)

    def _joint_hang(self) -> int:
        """The number of a suspicion that concerns all."""
        if not all(still.hang for still in self._still.values()):
            self._hangs += 1
            for still in self._still.values():
                still.hang = self._hangs
        return max(still.hang for still in self._still.values())

    def _limit_s(self, rank: int, still: Still, awaited: AwaitedRanks) -> float:
        """The time for which `rank` may be waited for, since it is."""
        assert still.blamed_since is not None, "a suspect"
        proof = still.looks.proof
        limits = self._limits
        limit_s = limits.stopped_s if proof == "stopped" else limits.limit_s(still.phase)
        limit_s = 0.0 if still.looks.replaced else limit_s
        return min(limit_s, awaited.ends(rank) - MARGIN_S - still.blamed_since)

    def _suspect(
        self,
        suspects: Mapping[int, Still],
        waiting: Mapping[int, Still],
        awaited: AwaitedRanks,
        now: float,
    ) -> list[Effect]:
        effects: list[Effect] = []
        due: dict[int, bool] = {}  # and whether stacks are wanted
        for rank, still in suspects.items():
            assert still.blamed_since is not None, "a suspect"
            lag_s = now - still.blamed_since
            limit_s = self._limit_s(rank, still, awaited)
            early_s = min(limit_s, self._limits.stopped_s)  # one that is stopped is given no more
            stacks = lag_s >= limit_s - LOOKING_S
            if lag_s >= early_s - LOOKING_S and self._look_is_due(still, stacks, now):
                due[rank] = stacks
        if any(still.looks.within for still in suspects.values()):
            due |= self._unshown(waiting, now)
        if due:
            effects += self._ask(due, suspects, now)
        condemned = self._condemn(suspects, waiting, awaited, now) if self._protected else []
        if not condemned:
            effects += self._suspicions(suspects, awaited, now)
        return [*effects, *condemned]

    def _unshown(self, waiting: Mapping[int, Still], now: float) -> dict[int, bool]:
        """The ranks that have to tell what they have joined, before one is lost that waits within
        its replica.
        """
        return {
            rank: True
            for rank, still in waiting.items()
            if still.looks.stack is None and self._look_is_due(still, True, now)
        }

    def _glance(self, now: float) -> list[Effect]:
        """All wait: look whether one of them was stopped."""
        since = max(still.since for still in self._still.values())
        if now < since + self._limits.stopped_s - LOOKING_S:
            return []
        due = {r: False for r, s in self._still.items() if self._look_is_due(s, False, now)}
        return self._ask(due, self._still, now) if due else []

    def _look_is_due(self, still: Still, stacks: bool, now: float) -> bool:
        asked = still.asked_stacks if stacks else still.asked
        return now >= still.asked_at + (LOOK_EVERY_S if asked < SELDOM else SELDOM_S)

    def _ask(
        self, due: Mapping[int, bool], suspects: Mapping[int, Still], now: float
    ) -> list[Effect]:
        """Look at those who are due, all of one suspicion."""
        hangs = [still.hang for still in suspects.values() if still.hang]
        if not hangs:
            self._hangs += 1
        hang = max(hangs, default=self._hangs)
        together: dict[tuple[int, bool], list[int]] = {}
        for rank, stacks in due.items():
            still = self._still[rank]
            still.hang, still.asked, still.asked_at = hang, still.asked + 1, now
            still.asked_stacks += stacks
            together.setdefault((still.asked, stacks), []).append(rank)
        return [
            LookAt(hang=hang, look=look, ranks=tuple(sorted(ranks)), stacks=stacks)
            for (look, stacks), ranks in sorted(together.items())
        ]

    def _suspicions(
        self, suspects: Mapping[int, Still], awaited: AwaitedRanks, now: float
    ) -> list[Effect]:
        """Name those who are beyond their limit, once."""
        effects: list[Effect] = []
        for rank in (rank for ranks in self._waited_for(suspects) for rank in ranks):
            still = suspects[rank]
            assert still.blamed_since is not None, "a suspect"
            lag_s, limit_s = now - still.blamed_since, self._limit_s(rank, still, awaited)
            if lag_s < limit_s or still.said:
                continue
            still.said = True
            effects.append(
                Suspected(
                    hang=still.hang,
                    rank=rank,
                    waiting=awaited.by(rank),
                    lag_s=lag_s,
                    phase=still.phase,
                    step=still.mark.step,
                    words=still.looks.words,
                    limit_s=limit_s,
                )
            )
        return effects

    def _condemn(
        self,
        suspects: Mapping[int, Still],
        waiting: Mapping[int, Still],
        awaited: AwaitedRanks,
        now: float,
    ) -> list[Effect]:
        """Condemn, of each replica, one that will not come and that waits for nobody."""
        effects: list[Effect] = []
        for ranks in self._waited_for(suspects):
            for rank in ranks:
                still = suspects[rank]
                assert still.blamed_since is not None, "a suspect"
                lag_s, limit_s = now - still.blamed_since, self._limit_s(rank, still, awaited)
                proof = still.looks.proof
                if lag_s < (limit_s if proof != "none" else PATIENCE * limit_s):
                    continue
                if still.looks.spared:
                    continue
                if not still.looks.since(now - 2 * SELDOM_S):
                    continue  # its launcher does not answer: it may have moved
                shown = not still.looks.within or all_shown(waiting)
                if not shown and lag_s < limit_s + MUTE_S:
                    continue
                if still.looks.within and shown and Joins(waiting).crossed:
                    within = {one: suspects[one] for one in suspects if suspects[one].looks.within}
                    return [parted_in(still.hang, waiting, within, lag_s)]
                effects.append(self._sentence(rank, still, awaited, lag_s, proof))
                break
        return effects

    def _waited_for(self, suspects: Mapping[int, Still]) -> list[list[int]]:
        """Those of each replica's suspects that wait for none of its own."""
        by_slot: dict[int, list[int]] = {}
        for rank in sorted(suspects):
            by_slot.setdefault(self._slots[rank], []).append(rank)
        found: list[list[int]] = []
        for slot, ranks in by_slot.items():
            free = [rank for rank in ranks if not suspects[rank].looks.within]
            # Those who wait within it may wait for a mate that moves, or that nobody blames yet.
            others = [one for one in self._mates[slot] if one not in suspects]
            waits = all((still := self._still.get(one)) and still.mark.waits for one in others)
            found.append(free or (ranks if waits else []))
        return found

    def _sentence(
        self, rank: int, still: Still, awaited: AwaitedRanks, lag_s: float, proof: str
    ) -> Condemned:
        return Condemned(
            hang=still.hang,
            rank=rank,
            lag_s=lag_s,
            phase=still.phase,
            step=still.mark.step,
            what=awaited.what(rank),
            words=still.looks.words,
            proof=proof,
        )
