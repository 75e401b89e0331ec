"""The beginning of a generation and the end of the job, as the coordinator carries them out.

A generation begins without those who were lost, with those who come back, or with the same members
where they do not stand alike. It ends with the next one, or with the job.
"""

from collections.abc import Iterable, Sequence
from typing import assert_never

from rendezvous.coordinator.arrivals import Arrivals, ArrivalVerdict, Return
from rendezvous.coordinator.beginning import Beginning
from rendezvous.coordinator.digests import outvoted
from rendezvous.coordinator.fence import Fence
from rendezvous.coordinator.gather import Contradiction, Unequal
from rendezvous.coordinator.losses import Loss, code_of, done_twice, early_ends, too_few
from rendezvous.coordinator.members import Membership, changed
from rendezvous.coordinator.recovery_policy import RecoveryPolicy
from rendezvous.coordinator.step_decisions import Ended, StepDecisions
from rendezvous.coordinator.step_log import StepBook
from rendezvous.coordinator.undone_work import left_undone
from rendezvous.protocol.arrival_messages import REFUSE_RETURN
from rendezvous.protocol.effects import Effect, StopJob, ToRank
from rendezvous.protocol.exit_codes import ExitCode
from rendezvous.protocol.messages import Stop
from rendezvous.protocol.rank_differences import diverged, uneven_newcomers
from rendezvous.protocol.records import Record
from rendezvous.protocol.views import View


class Generations:
    """The generations of a job of `world` ranks; `coordinator` tells it what happens."""

    def __init__(self, *, world: tuple[int, ...], policy: RecoveryPolicy) -> None:
        self.members = Membership(world=world, live_ranks=set(world))
        self.fence = Fence(self.members)
        self.arrivals = Arrivals(self.members, policy)
        self.min_replicas = max(1, policy.min_replicas)
        self._several_nodes = policy.several_nodes
        self.losses: dict[int, Loss] = {}  # by slot
        self.beginning = Beginning()
        self.book = StepBook()
        self.decisions = StepDecisions(self.members, self.book, lost=self.losses)
        self.stopped: Stop | None = None
        self.resuming = False  # another coordinator's state is coming in, with ends of long ago
        self.now = 0.0

    @property
    def generation(self) -> int:
        return self.members.generation

    @property
    def protected(self) -> bool:
        """True if a loss would be recovered from, as long as enough replicas are left."""
        return self.beginning.serves(self.members.layout, self.members.live_ranks)

    def wants(self, ranks: tuple[int, ...]) -> bool:
        """True if a lost replica comes back once somebody hosts these ranks."""
        awaited = self.stopped is None and self.arrivals.awaited and self.protected
        return awaited and not self.members.ended and self.arrivals.revivals.wants(ranks)

    @property
    def starting(self) -> bool:
        """True if recovery is about to begin (see `beginning`)."""
        return self.beginning.awaited(self.members.layout, self.members.live_ranks)

    @property
    def view(self) -> View:
        new = [loss for loss in self.losses.values() if loss.generation == self.generation]
        return self.members.view({loss.slot: loss.root_rank for loss in new})

    # --------------------------------------------------------------------------- losses

    def _lose(self, struck: Sequence[Loss]) -> list[Effect]:
        """One generation change covers all of `struck`; the first of a replica is its root."""
        first, layout = struck[0], self.members.layout
        rest = self.members.without(loss.slot for loss in struck) - self.members.gone
        if layout is None or not self.beginning.serves(layout, rest):
            return self._stop(code_of(first), first.reason, first.root_rank)
        alike = first.alike(
            self.losses.values(), self.book.committed_at, several_nodes=self._several_nodes
        )
        effects: list[Effect] = []
        leaving: list[int] = []
        for loss in struck:
            if loss.root_rank in leaving:
                continue
            leaving += layout.replicas[loss.slot]
            self.losses[loss.slot] = loss
            self.book.lose(loss)
            self.arrivals.lose(loss)
            words = f"replica {loss.slot} left with rank {loss.root_rank}"
            hung = loss.root_rank if loss.hung else None
            effects += self.members.end(loss.slot, words, hung)
            effects.append(loss.record(layout))
        left = [slot for slot in self.members.live if layout.replicas[slot][0] not in leaving]
        if len(left) < self.min_replicas:
            return effects + self._stop(*too_few(self.book.root(), len(left), self.min_replicas))
        if alike is not None:
            return effects + self._stop(*done_twice(alike, first))
        return effects + self._next_generation(first.reason, leaving)

    def _next_generation(self, reason: str, leaving: Iterable[int]) -> list[Effect]:
        self.members.advance(leaving)
        self.decisions.begin(self.now)
        self.arrivals.began(self.now)
        return [
            *self._begin(reason, leaving),
            *self.decisions.lost_contexts(sorted(self.members.live_ranks)),
            *self.beginning.stated(self.members.live_ranks),
            *self._write_up(),  # steps whose line had waited for those who left
            *self._done(),
        ]

    def _begin(self, reason: str, leaving: Iterable[int]) -> list[Effect]:
        """Tell all members of the generation that begins."""
        self.book.open(self.generation, self.members.live)
        view = self.view
        told = [ToRank(rank=rank, message=view) for rank in sorted(self.members.live_ranks)]
        return [*told, changed(view, leaving, reason)]

    # --------------------------------------------------------------------------- returns

    def _bring_back(self) -> list[Effect]:
        """Start who is lost, and invite who is ready, as far as nothing stands against it."""
        if self.stopped is not None or self.resuming or not self.arrivals.serves:
            return []
        quiet = self.decisions.gathering is None
        protected = self.arrivals.awaited and self.protected
        return self.arrivals.advance(self.now, quiet=quiet, protected=protected)

    def _follow_arrivals(self, verdict: ArrivalVerdict) -> list[Effect]:
        """Go on as those who come back make it necessary."""
        effects = verdict.effects
        if verdict.broken:
            return effects + self._break("INV-9", verdict.broken, -1)
        if verdict.losses:
            return effects + self._lose(verdict.losses)
        if verdict.comes is not None:
            return effects + self._return(verdict.comes)
        return effects + (self._next_generation(verdict.meet, []) if verdict.meet else [])

    def _return(self, comes: Return) -> list[Effect]:
        """A generation begins with those who come back; nothing of its step is done anywhere."""
        for slot in comes.slots:
            self.losses.pop(slot, None)
        self.members.arrive(comes.ranks, comes.step)
        self.fence.admit(comes.ranks, self.generation)
        self.book.join(comes.ranks, comes.step)
        reason = f"ranks {list(comes.ranks)} take part again from step {comes.step} on"
        return [*self._begin(reason, []), *comes.records]

    # --------------------------------------------------------------------------- steps

    def _gathered(self, ranks: Sequence[int] | None = None) -> list[Effect]:
        """Decide as far as the reports of this generation allow, or those of `ranks`."""
        effects, obstacle = self.decisions.decide(ranks, self.now)
        match obstacle:
            case None:
                return effects
            case Contradiction(invariant=invariant, reason=reason, rank=rank):
                return effects + self._break(invariant, reason, rank)
            case Unequal():
                return effects + self._part(obstacle)
            case Ended(ranks=ranks, step=step):
                layout, generation = self.members.layout, self.generation + 1
                return effects + self._lose(early_ends(ranks, step, layout, generation, self.now))
            case _:
                assert_never(obstacle)

    def _part(self, unequal: Unequal) -> list[Effect]:
        """Ranks have taken unequally many microbatches. If it is those that came back, in their
        first step or later, the others go on without them.
        """
        layout, now = self.members.layout, self.now
        odd = diverged(unequal.taken, self.members.came_back)
        if not odd or layout is None:
            return self._stop(ExitCode.FAILED, unequal.reason, -1)
        reason = uneven_newcomers(unequal.step, unequal.taken, odd)
        generation = self.generation + 1
        losses = [
            Loss.of_diverged(rank, reason, layout=layout, generation=generation, now=now)
            for rank in odd
        ]
        return [*self._lose(losses), *self._refuse(reason)]

    def _refuse(self, reason: str) -> list[Effect]:
        """A replica that has come back went another way than the others: nobody else comes."""
        words = f"a lost replica does not come back any more: {reason}"
        told = Record("notice.give", words, {"rank": -1, "event": REFUSE_RETURN})
        return [told, *self._follow_arrivals(self.arrivals.refuse(reason))]

    def _write_up(self) -> list[Effect]:
        if self.members.layout is None:
            return []
        records = self.book.write(self.members.layout, frozenset(self.members.live_ranks))
        found = outvoted(records, self.members, self.now, protected=self.protected)
        if isinstance(found, str):
            return [*records, *self._break("INV-3", found, -1)]
        return [*records, *(self._lose(found) if found else ())]

    # --------------------------------------------------------------------------- the end

    def _break(self, invariant: str, reason: str, rank: int) -> list[Effect]:
        record = Record("invariant.break", reason, {"invariant": invariant})
        return [record, *self._stop(ExitCode.INVARIANT, f"{invariant} is broken: {reason}", rank)]

    def _stop(self, code: int, reason: str, root_rank: int) -> list[Effect]:
        self.stopped = Stop(exit_code=code, reason=reason, root_rank=root_rank)
        layout, live_ranks = self.members.layout, frozenset(self.members.live_ranks)
        last = self.book.close(layout, live_ranks, self.now, well=not code)
        return [*last, StopJob(stop=self.stopped)]

    def _done(self) -> list[Effect]:
        """The job ends when every member's script has ended and the kernel has reaped it."""
        left = self.members.live_ranks
        if self.stopped is not None or not left <= self.members.gone:
            return []
        layout = self.members.layout
        last = [] if layout is None else self.book.write(layout, frozenset(left), final=True)
        who = f"all {len(left)} live ranks" if len(left) > 1 else "the only live rank"
        undone = left_undone(self.book.unmet, self.members)
        return [*last, *self._stop(*(undone or (0, f"{who} ended normally", -1)))]
