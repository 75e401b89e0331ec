"""Membership and the fate of steps: who is in, and what becomes of a step that lost somebody.

The coordinator is the only judge of membership. A worker that ends takes its replica out: a new
generation begins, its View goes to every survivor at once, and nothing of an older generation has
any effect from then on (one `fence`). Then it gathers: every survivor reports what it
really holds, and only then is anything shared out (see `step_decisions`).

A script may end on some ranks while others still finish the last step. Ended ranks stay members:
they are proof that the step before their end is whole. Only when a step must be reduced without
them are their replicas lost. A lost replica may come back between two steps (`arrivals`).

In a step without losses the coordinator is told afterwards what was committed (`Committed`), and
nobody waits for it. Those totals make the ledger of the journal.
"""

from typing import assert_never

from rendezvous.coordinator.arrivals import ArrivalVerdict
from rendezvous.coordinator.beginning import introduction
from rendezvous.coordinator.fence import message_rank
from rendezvous.coordinator.generations import Generations
from rendezvous.coordinator.hang_watch import HangMessage, HangWatch
from rendezvous.coordinator.job_events import Closing as Closing
from rendezvous.coordinator.job_events import Event as Event
from rendezvous.coordinator.job_events import NodeLost as NodeLost
from rendezvous.coordinator.job_events import PlaceTaken as PlaceTaken
from rendezvous.coordinator.job_events import Received as Received
from rendezvous.coordinator.job_events import Resumed as Resumed
from rendezvous.coordinator.job_events import Stopping as Stopping
from rendezvous.coordinator.job_events import Tick as Tick
from rendezvous.coordinator.losses import Loss, cause_of, code_of
from rendezvous.coordinator.notices import Notices
from rendezvous.coordinator.recovery_policy import USUAL, RecoveryPolicy
from rendezvous.coordinator.way_parts import parts
from rendezvous.membership.hang_events import Tick as TimePassed
from rendezvous.protocol.arrival_messages import REFUSE_RETURN, Held, Ready
from rendezvous.protocol.effects import Effect, ToRank
from rendezvous.protocol.exit_codes import ExitCode
from rendezvous.protocol.hang_messages import Evidence, Progress, Stack
from rendezvous.protocol.incarnations import birth_of
from rendezvous.protocol.layout import FIRST_GENERATION
from rendezvous.protocol.messages import (
    Broken,
    Committed,
    ContextBuffer,
    Discord,
    Exited,
    Farewell,
    Hello,
    Message,
    Notice,
    Overdue,
    PeerFault,
    Report,
    Topology,
    Verdict,
)
from rendezvous.protocol.records import Json, Record
from rendezvous.protocol.store_messages import StoreCall


class Coordinator(Generations):
    """Machine for `world` ranks."""

    def __init__(self, *, world: tuple[int, ...], policy: RecoveryPolicy = USUAL) -> None:
        super().__init__(world=world, policy=policy)
        self.overdue: set[int] = set()  # ranks whose script was told that others do not come
        self.hangs = HangWatch(policy)
        self.notices = Notices()

    # --------------------------------------------------------------------------- machine

    def step(self, event: Event, now: float) -> list[Effect]:
        """Take one event at monotonic time `now` (seconds)."""
        self.now = now
        if self.stopped is not None:
            return self._account_late(event)
        match event:
            case Received(message=message):
                effects = self._receive(message)
            case NodeLost():
                effects = self._lose_node(event)
            case PlaceTaken(ranks=ranks):
                effects = self.arrivals.revivals.take_place(ranks)
            case Resumed(reason=reason):
                effects = self._resume(reason)
            case Stopping(stop=stop):
                self.stopped = stop
                return []
            case Closing():
                effects = []
            case Tick():
                effects = self._expire()
            case _:
                assert_never(event)
        effects += self._bring_back()
        self.check()
        return effects

    def deadline(self) -> float | None:
        """The time of the next `Tick`, or None."""
        parts = (self.decisions, self.hangs, self.arrivals)
        times = [at for part in parts if (at := part.deadline()) is not None]
        return min(times, default=None) if self.stopped is None else None

    def check(self) -> None:
        self.members.check()
        gathering = self.decisions.gathering
        gathered = self.generation if gathering is None else gathering.generation
        assert gathered == self.generation, f"INV-2: gathering {gathered} in {self.generation}"

    def snapshot(self) -> dict[str, object]:
        return {
            "generation": self.generation, "live": self.members.live, "stopped": self.stopped,
            "finished": dict(self.members.finished), "protected": self.protected,
            "gathering": self.decisions.gathering is not None, "arrivals": self.arrivals.snapshot(),
        }  # fmt: skip

    # --------------------------------------------------------------------------- messages

    def _receive(self, message: Message) -> list[Effect]:
        match self.fence.judge(message):
            case "dropped":
                return []
            case "answered":
                return [ToRank(rank=message_rank(message), message=self.view)]
            case "heard":
                pass
        match message:
            case Exited():
                return self._exit(message)
            case ContextBuffer():
                return self._inherit(message)
            case Hello(rank=rank, incarnation=incarnation):
                if self.fence.comes(rank):
                    self.arrivals.greet(rank, birth_of(incarnation))
                view = ToRank(rank=rank, message=self.view)
                return [*self.beginning.greet(message), view]
            case Ready(rank=rank, incarnation=incarnation):
                if self.fence.comes(rank):
                    return self.arrivals.ready(rank, birth_of(incarnation), self.now)
                return [ToRank(rank=rank, message=self.view)]
            case Held():
                return self._follow_arrivals(self.arrivals.held(message, self.now))
            case Progress() | Evidence() | Stack():
                return self._lose_hung(message)
            case Topology():
                return self._learn(message)
            case Verdict():
                return [*self.beginning.hear(message, self.members.live_ranks), *self._end_run()]
            case Farewell(rank=rank, step=step, generation=generation):
                self.members.farewells[rank] = message
                return self._finish(rank, step, generation)
            case Notice(event=event, reason=reason):
                record = self.notices.record(message)
                if record is None:
                    return []
                refused = event == REFUSE_RETURN
                return [
                    record,
                    *(self._follow_arrivals(self.arrivals.refuse(reason)) if refused else ()),
                ]
            case PeerFault():
                return self._hint(message)
            case Report():
                return self._report(message)
            case Committed():
                return self._account(message)
            case Broken(rank=rank, invariant=invariant, reason=reason):
                return self._break(invariant, f"rank {rank}: {reason}", rank)
            case Discord(reason=reason):
                return self._stop(ExitCode.FAILED, reason, -1)
            case Overdue(rank=rank, reason=reason):
                self.overdue.add(rank)
                return [Record("notice.give", reason, {"rank": rank})]
            case StoreCall():
                raise AssertionError("store calls go to the kv machine")
            case _:
                return []  # not for a coordinator; the wire already refused what is not a message

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
            count = len(self.members.layout.replicas)
            if count < self.min_replicas:
                words = f"--min-replicas {self.min_replicas}, but the script has {count} in all"
                return effects + self._stop(ExitCode.USAGE, words, -1)
        return [*effects, ToRank(rank=topology.rank, message=self.view)]

    def _hint(self, fault: PeerFault) -> list[Effect]:
        """A broken collective without a death: the same members meet again in a new generation."""
        hint = self.beginning.hint(fault, self.generation, self.now)
        words = f"rank {fault.rank}: {fault.reason}"
        if self.protected:
            return [*hint, *self._next_generation(words, [])]
        if self.starting and self.beginning.overdue(self.now):
            return self._stop(ExitCode.FAILED, words, -1)
        return hint  # perhaps not yet protected: the worker goes on saying it

    def _resume(self, reason: str) -> list[Effect]:
        if self.starting:
            return self._stop(ExitCode.FAILED, reason, -1)
        return self._next_generation(reason, [])

    # --------------------------------------------------------------------------- ends

    def _finish(self, rank: int, step: int, generation: int) -> list[Effect]:
        awaited = self.members.finish(rank, step, generation)
        came = ArrivalVerdict()
        if rank in self.members.live_ranks:
            words = f"the script of rank {rank} has ended, so nobody comes back any more"
            came = self.arrivals.dismiss(words)
        if came.meet:
            return [*came.effects, *self._next_generation(came.meet, [])]
        if awaited and self.protected and self.decisions.gathering is not None:
            words = f"rank {rank} ended before it met the others"
            return [*came.effects, *self._next_generation(words, [])]
        return [*came.effects, *self._gathered(), *self._done()]

    def _exit(self, exited: Exited) -> list[Effect]:
        rank, member = exited.rank, exited.rank in self.members.live_ranks
        birth = birth_of(exited.incarnation)
        effects = [] if member else self._follow_arrivals(self.arrivals.end(rank, birth))
        if rank in self.members.gone:
            return effects
        if birth >= self.members.births.get(rank, 0):  # else of one whose successor lives
            self.members.gone.add(rank)
        if not member:
            return [
                *effects,
                *self._gathered(),
            ]  # its replica had left; perhaps we waited for its contexts
        if exited.code == 0:  # perhaps without hooks that could say farewell
            return self._finish(rank, -1, FIRST_GENERATION)
        if rank in self.members.finished:
            reason = f"{cause_of(exited)} after its script had ended"
            if exited.ours:
                reason = "did not end after its script, and recoverrun ended it"
            return [Record("notice.give", reason, {"rank": rank}), *self._done()]
        layout, generation = self.members.layout, self.generation + 1
        loss = Loss.of_exit(exited, layout=layout, generation=generation, now=self.now)
        if rank in self.overdue and exited.code > 0:  # it waited for one that lives, and hangs
            return self._stop(code_of(loss), loss.reason, rank)
        return self._lose([loss.caused_by(self.members.ended_mates(rank))])

    def _lose_node(self, lost: NodeLost) -> list[Effect]:
        ranks = lost.ranks
        fields: dict[str, Json] = {"name": lost.node, "ranks": list(ranks)}
        if lost.silent_s:
            fields["silent_s"] = round(lost.silent_s, 3)
        record = Record("node.lost", f"{lost.node}: {lost.reason}", fields)
        away = self.members.gone.intersection(ranks).difference(self.members.finished)
        self.members.gone |= set(ranks)
        losses = Loss.of_node(
            [rank for rank in self.members.running if rank in ranks],
            f"node {lost.node} is lost: {lost.reason}",
            layout=self.members.layout,
            generation=self.generation + 1,
            now=self.now,
            silent_s=lost.silent_s,
        )
        came = self.arrivals.lose_node(ranks)
        if losses:
            return [record, *came.effects, *self._lose(losses)]
        # Its replicas were lost before, so that no other line tells why they do not come back.
        words = f"node {lost.node} is lost, too: {lost.reason}"
        told = [Record("notice.give", words, {"rank": -1})] if away else []
        return [record, *told, *self._follow_arrivals(came), *self._gathered(), *self._done()]

    def _inherit(self, context_buffer: ContextBuffer) -> list[Effect]:
        self.members.context_buffer[context_buffer.rank] = context_buffer
        if self.members.layout is None or context_buffer.rank in self.members.live_ranks:
            return []
        return [
            *self.decisions.lost_contexts(self.members.shard_peers(context_buffer.rank)),
            *self._gathered(),
        ]

    # --------------------------------------------------------------------------- gathering

    def _end_run(self) -> list[Effect]:
        """A loss that is being made good is the end of the run, if a rank says that none can be."""
        gathering = self.decisions.gathering
        if self.stopped is not None or gathering is None or gathering.decided:
            return []
        if not self.beginning.promises.refused or not self.book.recoveries:
            return []
        root = self.book.root()
        return self._stop(code_of(root), root.reason, root.root_rank)

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

    def _expire(self) -> list[Effect]:
        """Send again what had no answer; decide without the contexts that never came."""
        silent = self.decisions.resend(self.now)
        effects = [] if silent is None else self._gathered()
        again = [ToRank(rank=rank, message=self.view) for rank in silent or ()]
        came = self._follow_arrivals(self.arrivals.expire(self.now)) if self.stopped is None else []
        return [*again, *effects, *came, *self._lose_hung(TimePassed())]

    def _lose_hung(self, event: HangMessage | TimePassed) -> list[Effect]:
        """Go on without ranks that hang."""
        if self.stopped is not None:
            return []
        verdict = self.hangs.step(event, self.members, protected=self.protected, now=self.now)
        if verdict.stop is not None:
            return verdict.effects + self._stop(*verdict.stop, -1)
        if verdict.losses:
            refused = self._refuse(verdict.refusal) if verdict.refusal else []
            return verdict.effects + self._lose(verdict.losses) + refused
        again = self._next_generation(verdict.meet, []) if verdict.meet else []
        return verdict.effects + again

    # --------------------------------------------------------------------------- the account

    def _account(self, committed: Committed) -> list[Effect]:
        self.overdue.discard(committed.rank)
        proved = self.arrivals.first_step.committed(committed, self.now)
        self.beginning.voted |= committed.step > 0
        told: list[Effect] = [*proved, *parts(committed)]
        if not self.book.enter(committed, self.now, live=len(self.members.live_ranks)):
            return told
        self.decisions.conclude()
        self.hangs.stepped(committed.step, self.now)
        return [*told, *self._write_up()]

    def _account_late(self, event: Event) -> list[Effect]:
        """Steps that workers commit while they are being ended; nothing else counts any more."""
        layout, live_ranks = self.members.layout, frozenset(self.members.live_ranks)
        match event:
            case Received(message=Committed() as committed) if layout is not None:
                if self.fence.judge(committed) != "heard":
                    return []
                told: list[Effect] = [*parts(committed)]
                if self.book.enter(committed, self.now, live=len(live_ranks)):
                    told += self.book.write(layout, live_ranks)
                return told
            case Closing():
                return [*self.book.close(layout, live_ranks, self.now, well=False)]
            case _:
                return []
