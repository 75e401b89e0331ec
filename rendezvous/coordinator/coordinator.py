"""Membership and the fate of steps: who is in, and what becomes of a step that lost somebody.

The coordinator is the only judge of membership. A worker that ends takes its replica out: a new
generation begins, its View goes to every survivor at once, and nothing of an older generation has
any effect from then on (one fence, `_fenced`). Then it gathers: every survivor reports what it
really holds, and only then is anything shared out (see `step_decisions`).

A script may end on some ranks while others still finish the last step. Ended ranks stay members:
they are proof that the step before their end is whole. Only when a step must be reduced without
them do their replicas leave.

In a step without losses the coordinator is told afterwards what was committed (`Committed`), and
nobody waits for it. Those totals make the ledger of the journal.
"""

from collections.abc import Iterable, Sequence
from typing import assert_never

from rendezvous.coordinator.beginning import Beginning, introduction
from rendezvous.coordinator.gather import Broken as Contradiction
from rendezvous.coordinator.gather import Unequal
from rendezvous.coordinator.job_events import Event as Event
from rendezvous.coordinator.job_events import NodeLost as NodeLost
from rendezvous.coordinator.job_events import Received as Received
from rendezvous.coordinator.job_events import Resumed as Resumed
from rendezvous.coordinator.job_events import Tick as Tick
from rendezvous.coordinator.losses import Loss, exit_code
from rendezvous.coordinator.members import FIRST_GENERATION, Membership
from rendezvous.coordinator.step_decisions import Ended, StepDecisions
from rendezvous.coordinator.step_log import StepBook
from rendezvous.protocol.effects import Effect, Json, KillRanks, Record, StopJob, ToRank
from rendezvous.protocol.messages import (
    Broken,
    Committed,
    ContextBuffer,
    Discord,
    Exited,
    Farewell,
    Hello,
    Kill,
    Message,
    Notice,
    Overdue,
    PeerFault,
    Report,
    Stop,
    StoreCall,
    Topology,
    Verdict,
    View,
)

EXIT_ERROR, EXIT_BELOW_MIN, EXIT_INVARIANT = 1, 81, 85


class Coordinator:
    """Machine for `world` ranks; the job stops below `min_replicas` replicas."""

    def __init__(self, *, world: tuple[int, ...], min_replicas: int = 1) -> None:
        self.members = Membership(world=world, live_ranks=set(world))
        self.min_replicas = max(1, min_replicas)
        self.greeted: set[tuple[int, int]] = set()  # (rank, incarnation)
        self.losses: dict[int, Loss] = {}  # by slot
        self.overdue: set[int] = set()  # ranks whose script was told that others do not come
        self.beginning = Beginning()
        self.book = StepBook()
        self.decisions = StepDecisions(self.members, self.book, lost=self.losses)
        self.stopped: Stop | None = None
        self.now = 0.0

    # --------------------------------------------------------------------------- machine

    def step(self, event: Event, now: float) -> list[Effect]:
        """Take one event at monotonic time `now` (seconds)."""
        self.now = now
        if self.stopped is not None:
            return []
        match event:
            case Received(message=message):
                effects = self._receive(message)
            case NodeLost(node=node, ranks=ranks, reason=reason):
                effects = self._lose_node(node, ranks, reason)
            case Resumed(reason=reason):
                effects = self._resume(reason)
            case Tick():
                effects = self._expire()
            case _:
                assert_never(event)
        self.check()
        return effects

    def deadline(self) -> float | None:
        """When it next needs a `Tick`, or None."""
        return None if self.stopped is not None else self.decisions.deadline()

    def check(self) -> None:
        self.members.check()
        gathering = self.decisions.gathering
        gathered = self.generation if gathering is None else gathering.generation
        assert gathered == self.generation, f"INV-2: gathering {gathered} in {self.generation}"

    def snapshot(self) -> dict[str, object]:
        return {
            "generation": self.generation, "live": self.members.live, "stopped": self.stopped,
            "finished": dict(self.members.finished), "protected": self.protected,
            "gathering": self.decisions.gathering is not None,
        }  # fmt: skip

    @property
    def generation(self) -> int:
        return self.members.generation

    @property
    def protected(self) -> bool:
        """A loss would be recovered from, if enough replicas are left."""
        return self.beginning.serves(self.members.layout, self.members.live_ranks)

    @property
    def starting(self) -> bool:
        """Recovery is about to begin (see `beginning`)."""
        return self.beginning.awaited(self.members.layout, self.members.live_ranks)

    @property
    def view(self) -> View:
        new = [loss for loss in self.losses.values() if loss.generation == self.generation]
        return self.members.view({loss.slot: loss.root_rank for loss in new})

    # --------------------------------------------------------------------------- messages

    def _receive(self, message: Message) -> list[Effect]:
        fenced = self._fenced(message)
        if fenced is not None:
            return fenced
        match message:
            case Exited():
                return self._exit(message)
            case ContextBuffer():
                return self._inherit(message)
            case Hello():
                return self._greet(message)
            case Topology():
                return self._learn(message)
            case Verdict():
                return self.beginning.hear(message, self.members.live_ranks)
            case Farewell(rank=rank, step=step, generation=generation):
                return self._finish(rank, step, generation)
            case Notice(rank=rank, event=event, reason=reason):
                return [Record("notice.give", reason, {"rank": rank, "event": event})]
            case PeerFault():
                return self._hint(message)
            case Report():
                return self._report(message)
            case Committed():
                return self._account(message)
            case Broken(rank=rank, invariant=invariant, reason=reason):
                return self._break(invariant, f"rank {rank}: {reason}", rank)
            case Discord(reason=reason):
                return self._stop(EXIT_ERROR, reason, -1)
            case Overdue(rank=rank, reason=reason):
                self.overdue.add(rank)
                return [Record("notice.give", reason, {"rank": rank})]
            case StoreCall():
                raise AssertionError("store calls go to the kv machine")
            case _:
                return []  # not for a coordinator; the wire already refused what is not a message

    def _fenced(self, message: Message) -> list[Effect] | None:
        """What is answered to a message that has no say any more; None: it has (INV-5).

        Where a rank stands counts only in the present generation. Facts, such as an end or a
        committed step, stay true in any.
        """
        rank = getattr(message, "rank", None)
        if rank is not None and rank not in self.members:
            return []
        if not isinstance(message, Report | PeerFault):
            return None
        if message.rank not in self.members.live_ranks or message.generation > self.generation:
            return []
        old = message.generation < self.generation
        return [ToRank(rank=message.rank, message=self.view)] if old else None

    def _greet(self, hello: Hello) -> list[Effect]:
        view = ToRank(rank=hello.rank, message=self.view)
        if (hello.rank, hello.incarnation) in self.greeted:
            return [view]
        self.greeted.add((hello.rank, hello.incarnation))
        fields: dict[str, Json] = {"rank": hello.rank, "torch": hello.torch}
        return [Record("worker.hello", f"rank {hello.rank} has its hooks", fields), view]

    def _learn(self, topology: Topology) -> list[Effect]:
        new = self.members.layout is None
        words = self.members.place(topology)
        if words:
            reason = f"rank {topology.rank} sees replicas {topology.replicas}: {words}"
            return self._break("INV-2", reason, topology.rank)
        effects: list[Effect] = []
        if new and self.members.layout is not None:
            self.book.open(self.generation, self.members.live)
            effects.append(introduction(topology.strategy, self.members.layout))
        return [*effects, ToRank(rank=topology.rank, message=self.view)]

    def _hint(self, fault: PeerFault) -> list[Effect]:
        """A broken collective without a death: the same members meet again in a new generation."""
        hint = self.beginning.hint(fault, self.generation, self.now)
        words = f"rank {fault.rank}: {fault.reason}"
        if self.protected:
            return [*hint, *self._next_generation(words, [])]
        if self.starting and self.beginning.overdue(self.now):
            return self._stop(EXIT_ERROR, words, -1)
        return hint  # perhaps not yet protected: the worker goes on saying it

    def _resume(self, reason: str) -> list[Effect]:
        if self.starting:
            return self._stop(EXIT_ERROR, reason, -1)
        return self._next_generation(reason, [])

    # --------------------------------------------------------------------------- ends

    def _finish(self, rank: int, step: int, generation: int) -> list[Effect]:
        awaited = self.members.finish(rank, step, generation)
        if awaited and self.protected and self.decisions.gathering is not None:
            return self._next_generation(f"rank {rank} ended before it met the others", [])
        return [*self._gathered(), *self._done()]

    def _done(self) -> list[Effect]:
        """The job ends when every member's script has ended and the kernel has reaped it."""
        left = self.members.live_ranks
        if self.stopped is not None or not left <= self.members.gone:
            return []
        return self._stop(0, f"all {len(left)} live ranks ended normally", -1)

    def _exit(self, exited: Exited) -> list[Effect]:
        rank = exited.rank
        if rank in self.members.gone:
            return []
        self.members.gone.add(rank)
        if rank not in self.members.live_ranks:
            return self._gathered()  # its replica had left; perhaps we waited for its contexts
        if exited.code == 0:  # perhaps without hooks that could say farewell
            return self._finish(rank, -1, FIRST_GENERATION)
        if rank in self.members.finished:
            reason = f"rank {rank} failed after its script had ended (code {exited.code})"
            return [Record("notice.give", reason, {"rank": rank}), *self._done()]
        layout, generation = self.members.layout, self.generation + 1
        loss = Loss.of_exit(exited, layout=layout, generation=generation, now=self.now)
        if rank in self.overdue and exited.code > 0:  # it waited for one that lives, and hangs
            return self._stop(exit_code(exited.code), loss.reason, rank)
        return self._lose([loss])

    def _lose_node(self, node: str, ranks: tuple[int, ...], reason: str) -> list[Effect]:
        record = Record("node.lost", f"{node}: {reason}", {"ranks": list(ranks)})
        self.members.gone |= set(ranks)
        layout, generation = self.members.layout, self.generation + 1
        words = f"node {node} is lost: {reason}"
        losses = [
            Loss.of_node(rank, words, layout=layout, generation=generation, now=self.now)
            for rank in self.members.running
            if rank in ranks
        ]
        return [record, *(self._lose(losses) if losses else [*self._gathered(), *self._done()])]

    # --------------------------------------------------------------------------- losses

    def _lose(self, struck: Sequence[Loss]) -> list[Effect]:
        """One generation change covers all of `struck`; the first of a replica is its root."""
        first, layout = struck[0], self.members.layout
        rest = self.members.without(loss.slot for loss in struck) - self.members.gone
        if layout is None or not self.beginning.serves(layout, rest):
            return self._stop(exit_code(first.code), first.reason, first.root_rank)
        twin = first.twin(self.losses.values(), self.book.committed_at)
        effects: list[Effect] = []
        leaving: list[int] = []
        for loss in struck:
            if loss.root_rank in leaving:
                continue
            leaving += layout.replicas[loss.slot]
            self.losses[loss.slot] = loss
            self.book.lose(loss)
            effects += self._part(loss.slot, f"replica {loss.slot} left with rank {loss.root_rank}")
            effects.append(loss.record(layout))
        left = [slot for slot in self.members.live if layout.replicas[slot][0] not in leaving]
        if len(left) < self.min_replicas:
            code = EXIT_BELOW_MIN if left else exit_code(first.code)
            words = f"{len(left)} of at least {self.min_replicas} replicas are left"
            return effects + self._stop(code, f"{first.reason}; {words}", first.root_rank)
        if twin is not None:
            words = f"rank {first.root_rank} did the same: an error of the script itself"
            code = exit_code(twin.code)
            return effects + self._stop(code, f"{twin.reason}; {words}", twin.root_rank)
        return effects + self._next_generation(first.reason, leaving)

    def _part(self, slot: int, reason: str) -> list[Effect]:
        """End those ranks of a replica that leaves whose script still runs."""
        assert self.members.layout is not None, "replicas are known before one can leave"
        over = self.members.gone | self.members.finished.keys()
        rest = tuple(r for r in sorted(self.members.layout.replicas[slot]) if r not in over)
        kill = Kill(generation=self.generation + 1, ranks=rest, reason=reason)
        return [KillRanks(kill=kill)] if rest else []

    def _next_generation(self, reason: str, leaving: Iterable[int]) -> list[Effect]:
        self.members.advance(leaving)
        self.decisions.begin(self.now)
        self.book.open(self.generation, self.members.live)
        view = self.view
        fields: dict[str, Json] = {
            "generation": view.generation, "live": [*view.live], "lost_ranks": [*sorted(leaving)],
        }  # fmt: skip
        members = sorted(self.members.live_ranks)
        return [
            *(ToRank(rank=rank, message=view) for rank in members),
            *self.decisions.lost_contexts(members),
            Record("view.change", reason, fields),
            *self.beginning.stated(self.members.live_ranks),
            *self._write_up(),  # steps whose line had waited for those who left
            *self._done(),
        ]

    def _inherit(self, context_buffer: ContextBuffer) -> list[Effect]:
        self.members.context_buffer[context_buffer.rank] = context_buffer
        if self.members.layout is None or context_buffer.rank in self.members.live_ranks:
            return []
        return [
            *self.decisions.lost_contexts(self.members.shard_peers(context_buffer.rank)),
            *self._gathered(),
        ]

    # --------------------------------------------------------------------------- gathering

    def _report(self, report: Report) -> list[Effect]:
        if report.phase == "done":
            return self._finish(report.rank, report.step, report.generation)
        gathering, rank = self.decisions.gathering, report.rank
        if gathering is None:
            return []
        if (answer := gathering.answer(report)) is not None:
            return [*self.decisions.lost_contexts([rank]), ToRank(rank=rank, message=answer)]
        if gathering.decided or not gathering.take(report):
            return []
        return self._gathered(gathering.concern(rank, self.members))

    def _gathered(self, ranks: Sequence[int] | None = None) -> list[Effect]:
        """Decide as far as the reports of this generation allow, or those of `ranks`."""
        effects, obstacle = self.decisions.decide(ranks, self.now)
        match obstacle:
            case None:
                return effects
            case Contradiction(invariant=invariant, reason=reason, rank=rank):
                return effects + self._break(invariant, reason, rank)
            case Unequal(reason=reason):
                return effects + self._stop(EXIT_ERROR, reason, -1)
            case Ended(slots=slots, reason=reason):
                return effects + self._go_on_without(slots, reason)
            case _:
                assert_never(obstacle)

    def _go_on_without(self, slots: tuple[int, ...], reason: str) -> list[Effect]:
        assert self.members.layout is not None, "replicas are known once anything is gathered"
        kills = [effect for slot in slots for effect in self._part(slot, reason)]
        return kills + self._next_generation(reason, self.members.layout.ranks(slots))

    def _expire(self) -> list[Effect]:
        """Send again what had no answer; decide without the contexts that never came."""
        silent = self.decisions.resend(self.now)
        if silent is None:
            return []
        return [*(ToRank(rank=rank, message=self.view) for rank in silent), *self._gathered()]

    # --------------------------------------------------------------------------- the account

    def _account(self, committed: Committed) -> list[Effect]:
        self.overdue.discard(committed.rank)
        self.beginning.voted |= committed.step > 0
        if not self.book.enter(committed, self.now, live=len(self.members.live_ranks)):
            return []
        self.decisions.conclude()
        return self._write_up()

    def _write_up(self) -> list[Effect]:
        if self.members.layout is None:
            return []
        records = self.book.write(self.members.layout, frozenset(self.members.live_ranks))
        differ = [record for record in records if record.event == "digest.differ"]
        return [*records, *(self._break("INV-3", differ[0].reason, -1) if differ else ())]

    # --------------------------------------------------------------------------- the end

    def _break(self, invariant: str, reason: str, rank: int) -> list[Effect]:
        record = Record("invariant.break", reason, {"invariant": invariant})
        return [record, *self._stop(EXIT_INVARIANT, f"{invariant} is broken: {reason}", rank)]

    def _stop(self, code: int, reason: str, root_rank: int) -> list[Effect]:
        self.stopped = Stop(exit_code=code, reason=reason, root_rank=root_rank)
        layout, live_ranks = self.members.layout, frozenset(self.members.live_ranks)
        last = self.book.close(layout, live_ranks, self.now, well=not code)
        return [*last, StopJob(stop=self.stopped)]
