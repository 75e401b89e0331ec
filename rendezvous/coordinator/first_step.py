"""The first step of those who came back last: until it is committed they are on trial.

All others wait for their vote in it. Whoever does not come so far in time is lost like a rank that
hangs.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from rendezvous.coordinator.losses import Loss
from rendezvous.coordinator.members import Membership
from rendezvous.protocol.layout import Layout
from rendezvous.protocol.messages import Committed
from rendezvous.protocol.records import Json, Record


@dataclass(frozen=True, slots=True, kw_only=True)
class _Trial:
    slots: tuple[int, ...]
    step: int
    since: float


class FirstStep:
    """The first step of newcomers in one job; `within_s` is what they have beyond the time of two
    steps.
    """

    def __init__(self, members: Membership, within_s: float) -> None:
        self._members = members
        self._within_s = within_s
        self._trial: _Trial | None = None
        self._newest = (-1, 0.0)  # step that was committed, and when
        self._step_s = 0.0  # how long it took

    @property
    def under_way(self) -> bool:
        """True if those who came last have not committed yet."""
        return self._trial is not None

    def deadline(self) -> float | None:
        """The time at which `overdue` has something to say, or None."""
        return None if self._trial is None else self._trial.since + self._limit_s

    def snapshot(self) -> tuple[tuple[int, ...], int] | None:
        """The slots on trial, and their step."""
        return None if self._trial is None else (self._trial.slots, self._trial.step)

    def begin(self, slots: tuple[int, ...], step: int, now: float) -> None:
        """They take part from `step` on."""
        self._trial = _Trial(slots=slots, step=step, since=now)

    def adopt(self, joined: Iterable[int], step: int, now: float) -> None:
        """Another coordinator has told members that these ranks take part from `step` on."""
        layout = self._members.layout
        ranks = self._members.live_ranks.intersection(joined)
        if layout is not None and ranks and step > self._newest[0]:
            self.begin(tuple(sorted({layout.slot(rank) for rank in ranks})), step, now)

    def began(self, now: float) -> None:
        """Another generation: they have longer."""
        if self._trial is not None:
            self._trial = replace(self._trial, since=now)

    def committed(self, committed: Committed, now: float) -> list[Record]:
        """A member has committed a step: all have voted in it, and who came back is proved."""
        newest, at = self._newest
        if committed.step > newest:
            self._step_s = now - at if newest >= 0 else 0.0
            self._newest = (committed.step, now)
        trial = self._trial
        if trial is None or committed.step < trial.step:
            return []
        self._trial = None
        assert self._members.layout is not None, "slots are known once one comes back"
        return [proved(slot, self._members.layout, trial.step) for slot in trial.slots]

    def lose(self, slot: int) -> None:
        """A replica leaves."""
        trial = self._trial
        if trial is not None and slot in trial.slots:
            rest = tuple(one for one in trial.slots if one != slot)
            self._trial = replace(trial, slots=rest) if rest else None

    def overdue(self, now: float) -> list[Loss]:
        """Those who have not committed their first step in time; they are on trial no more."""
        trial, deadline = self._trial, self.deadline()
        if trial is None or deadline is None or now < deadline:
            return []
        self._trial = None
        return [self._hung(slot, trial.step, now) for slot in trial.slots]

    @property
    def _limit_s(self) -> float:
        return self._within_s + 2 * self._step_s

    def _hung(self, slot: int, step: int, now: float) -> Loss:
        assert self._members.layout is not None, "slots are known once one comes back"
        rank = min(self._members.layout.replicas[slot])
        words = f"for {self._limit_s:.0f} s it has not committed step {step}, where it came back"
        return Loss(
            slot=slot,
            root_rank=rank,
            code=-9,
            generation=self._members.generation + 1,
            lost_at=now,
            failed_at=now,
            detected_s=self._limit_s,
            error="",
            reason=f"rank {rank}: {words}",
            hung=True,
        )


def proved(slot: int, layout: Layout, step: int) -> Record:
    """The first step of a replica that came back is committed."""
    words = f"replica {slot} is back: step {step}, its first one, is committed"
    ranks: list[Json] = [*sorted(layout.replicas[slot])]
    return Record("replica.prove", words, {"slot": slot, "ranks": ranks, "step": step})
