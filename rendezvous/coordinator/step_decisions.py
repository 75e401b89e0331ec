"""The fate of the step in flight when a generation begins: reports in, decisions out.

Theory of operation. Let `s` be the largest step that a survivor reports in the new generation. A
survivor still at `s - 1` has every bucket of that step, because the one that is ahead completed the
vote, which only ranks that hold every bucket enter: it is told to commit. When all are at `s` and
wait at the commit point: if all hold every bucket, reduced in one generation, they commit; else the
missing identities are dealt out and the step is reduced anew. Only a "redo" ends the generation's
gathering; after a "commit" the next step asks again. A second loss at any moment starts another
generation and the same path: recovery has no path of its own. What reports allow is answered by
pure functions in `gather`.

Where a step cannot be decided, what stands in the way goes back to the coordinator.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from rendezvous.coordinator import gather
from rendezvous.coordinator.gather import (
    Contradiction,
    Gathering,
    Unequal,
    announcement,
    resend_after,
)
from rendezvous.coordinator.losses import Loss
from rendezvous.coordinator.members import Membership
from rendezvous.coordinator.step_log import StepBook
from rendezvous.protocol.effects import Effect, ToRank
from rendezvous.protocol.messages import Decision
from rendezvous.protocol.rank_differences import missed

CONTEXTS_WAIT_S = 1.5
"""How long a decision waits for the context of a rank that the kernel has not reaped yet: longer
than a launcher waits for the stacks of one that hangs (`py_spy.WITHIN_S`, 1 s).
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """Processes of `ranks` ended, with code 0 and no word, before `step` was reduced: a loss."""

    ranks: tuple[int, ...]
    step: int


Decisions = dict[int, Decision]
"""By the rank that is told."""

Obstacle = Contradiction | Unequal | Ended
"""Why nothing can be decided among these members."""


class StepDecisions:
    """Those of one job: of the generation that began last, if it is not over yet."""

    def __init__(self, members: Membership, book: StepBook, lost: Mapping[int, Loss]) -> None:
        """`lost` are the replicas that have left, by slot, kept by the coordinator."""
        self.gathering: Gathering | None = None
        self._members = members
        self._book = book
        self._lost = lost

    def begin(self, now: float) -> None:
        """A generation begins: what its members hold is gathered anew."""
        resend_at = now + resend_after(len(self._members.running))
        self.gathering = Gathering(
            generation=self._members.generation, begun_at=now, resend_at=resend_at
        )

    def conclude(self) -> None:
        """A step was committed: nothing is left to say once all have passed the decided one."""
        gathering, live_ranks = self.gathering, self._members.live_ranks
        if gathering and gathering.decided and self._book.passed(gathering.step, live_ranks):
            self.gathering = None

    def deadline(self) -> float | None:
        """The time at which something may be sent again. After a decision it is the workers that
        ask again.
        """
        if self.gathering is None or self.gathering.decided:
            return None
        return self.gathering.resend_at

    def resend(self, now: float) -> list[int] | None:
        """Return the ranks that have not answered in time; None if it is not time."""
        gathering = self.gathering
        if gathering is None or gathering.decided or now < gathering.resend_at:
            return None
        running = self._members.running
        gathering.resend_at = now + resend_after(len(running))
        return [rank for rank in running if rank not in gathering.reports]

    def decide(
        self, ranks: Sequence[int] | None, now: float
    ) -> tuple[list[Effect], Obstacle | None]:
        """Decide as far as the reports of this generation allow, or those of `ranks`."""
        gathering, layout = self.gathering, self._members.layout
        if gathering is None or gathering.decided or layout is None:
            return [], None
        running = self._members.running
        reports = gathering.of(running if ranks is None else ranks)
        if not reports:
            return [], None
        finished = self._members.finished
        newest = max([gathering.newest, *(finished[r] for r in self._members.ended)])
        broken = gather.laggard(reports, newest)
        if broken is not None:
            return [], broken
        effects = self._catch_up(gathering, gather.catch_ups(gathering, reports, newest), now)
        effects += self._level(gathering, gather.levels(gathering, reports, layout), now)
        if len(reports) < len(running) or not gather.settled(gathering, reports, newest):
            return effects, None
        settled, obstacle = self._settle(gathering, reports, newest, now)
        return effects + settled, obstacle

    def _settle(
        self, gathering: Gathering, reports: gather.Reports, step: int, now: float
    ) -> tuple[list[Effect], Obstacle | None]:
        """All who still run wait at the commit point of `step`."""
        held = gather.held_by_all(reports)
        if held:
            if gathering.committed(step):
                return [], None  # whoever missed it asks again
            decision = gather.commit(gathering.generation, step, held)
            reason = f"step {step}: every survivor holds every bucket of generation {held}"
            told = self._tell(gathering, dict.fromkeys(reports, decision), now)
            return [*told, announcement(decision, reason)], None
        if self._members.ended:
            return [], self._without(self._members.ended, step, sorted(reports))
        if self._waits_for_contexts(gathering, now):
            return [], None
        hung = [slot for slot, loss in self._lost.items() if loss.hung]
        wary = self._members.unreaped(sorted(hung))
        redo = gather.redo(gathering.generation, reports, self._members, wary=wary)
        if not isinstance(redo, Decision):
            return [], redo
        gathering.decided = True
        self._book.decide(redo, now)
        reason = f"step {step}: what is missing is dealt out, all buckets are reduced anew"
        told = self._tell(gathering, dict.fromkeys(reports, redo), now)
        return [*told, announcement(redo, reason)], None

    def _without(self, ended: Sequence[int], step: int, waiting: list[int]) -> Unequal | Ended:
        """Scripts that ended take no part in a step that is still to be reduced.

        Where they said how many steps they had taken, those were to be fewer than others take: no
        loss, but an error.
        """
        layout, finished = self._members.layout, self._members.finished
        assert layout is not None, "replicas are known once anything is gathered"
        parted = {rank: finished[rank] for rank in ended if 0 <= finished[rank] <= step}
        if parted:
            return Unequal(reason=missed(step, waiting, parted))
        if {layout.slot(rank) for rank in ended} == set(self._members.live):
            reason = f"ranks {list(ended)} ended before step {step}"
            return Unequal(reason=f"{reason}, and no whole replica goes on")
        return Ended(ranks=tuple(ended), step=step)

    def _tell(self, gathering: Gathering, decisions: Decisions, now: float) -> list[Effect]:
        for rank, decision in decisions.items():
            gathering.decisions[rank] = decision
            if decision.verdict == "commit":
                self._book.decide(decision, now)
        return [ToRank(rank=rank, message=decisions[rank]) for rank in sorted(decisions)]

    def _catch_up(self, gathering: Gathering, decisions: Decisions, now: float) -> list[Effect]:
        first = next((d for d in decisions.values() if not gathering.committed(d.step)), None)
        effects = self._tell(gathering, decisions, now)
        if first is not None:  # one record, however many ranks are behind
            reason = f"step {first.step}: committed elsewhere, so ranks behind hold every bucket"
            effects.append(announcement(first, reason))
        return effects

    def _level(self, gathering: Gathering, decisions: Decisions, now: float) -> list[Effect]:
        told = self._tell(gathering, decisions, now)
        effects = [*self.lost_contexts(sorted(decisions)), *told]
        for rank, decision in decisions.items():
            reason = f"rank {rank} joins its shard mates in what they have begun"
            effects.append(announcement(decision, reason))
        return effects

    def lost_contexts(self, ranks: Iterable[int]) -> list[ToRank]:
        """The contexts of every lost rank, to the survivors of the same shard position."""
        found = self._members.lost_contexts(ranks)
        return [ToRank(rank=rank, message=contexts) for rank, contexts in found]

    def _waits_for_contexts(self, gathering: Gathering, now: float) -> bool:
        """True if a rank of a lost replica, not reaped yet, may still leave its context."""
        patient = now < gathering.begun_at + CONTEXTS_WAIT_S
        return patient and self._members.unreaped(sorted(self._lost))
