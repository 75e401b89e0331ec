"""The host of the coordinator: the machines that serve the whole job, in one launcher's loop.

It composes formation, coordinator, store and detector, none of which knows another, and turns their
effects into posts: messages for the launchers, of which its own is one. It decides nothing but what
is fenced: nobody speaks for a launcher but itself, and for a rank only the launcher hosting it. Who
gets a place, and who waits for one, is with `newcomers`.

Where the coordinator wants to stop a job that may be started again, only an *attempt* ends: every
launcher ends its workers and joins once more, and the next attempt has a new formation, a new
coordinator and a new store, so that nothing of the dead one is ever read.
"""

from collections.abc import Callable, Iterable

from recoverrun.launcher.leadership import first_failure
from recoverrun.launcher.leadership.acts import Gone, Silences, TakeOver
from recoverrun.launcher.leadership.attempts import Attempts, survives
from recoverrun.launcher.leadership.first_failure import FirstFailure
from recoverrun.launcher.leadership.host_messages import HostMessages
from recoverrun.launcher.leadership.launchers import AttemptMembers, is_past, too_few, verdict
from recoverrun.launcher.leadership.newcomers import Newcomers
from recoverrun.launcher.leadership.rollbacks import OF_SNAPSHOTS, Rollbacks
from recoverrun.launcher.network.frames import NOBODY, Envelope
from recoverrun.launcher.network.job_fingerprint import differences
from rendezvous.coordinator import coordinator
from rendezvous.coordinator.coordinator import Coordinator
from rendezvous.coordinator.recovery_policy import RecoveryPolicy
from rendezvous.coordinator.standing import Vacancy
from rendezvous.coordinator.takeover import new_coordinator
from rendezvous.membership import failure_detector
from rendezvous.membership.failure_detector import Detector
from rendezvous.membership.flapping import FlappingNodes
from rendezvous.membership.formation import Formation, Formed
from rendezvous.protocol.effects import Effect, StopJob
from rendezvous.protocol.exit_codes import ExitCode
from rendezvous.protocol.formation_messages import Beat, Join, Refusal, Restart, Start
from rendezvous.protocol.heartbeat import heartbeat
from rendezvous.protocol.messages import Exited, Leaving, Message, Stop
from rendezvous.protocol.records import Record
from rendezvous.protocol.register_messages import Ping
from rendezvous.protocol.store_messages import StoreCall
from rendezvous.store.replicated_store import Effect as StoreEffect
from rendezvous.store.replicated_store import ReplicatedStore


class CoordinatorHost(HostMessages):
    """Everything of the job that exists once. Launchers are named by their incarnations."""

    def __init__(
        self,
        *,
        formation: Formation,
        own: str,
        policy: RecoveryPolicy,
        record: Callable[[Record], None],
        store: ReplicatedStore,
        flapping_nodes: FlappingNodes,
        max_restarts: int = 0,
    ) -> None:
        members = AttemptMembers()
        super().__init__(
            own=own,
            members=members,
            record=record,
            newcomers=Newcomers(
                formation,
                members,
                own=own,
                begin=self._open,
                record=record,
                flapping_nodes=flapping_nodes,
            ),
        )
        self._policy = policy
        self._attempts = Attempts(max_restarts)
        self._changing = False  # the membership, not by a failure of a worker
        self._heartbeat = heartbeat(formation.most)
        self._detector = Detector(self._heartbeat)
        self._first_failure = FirstFailure(nodes=1, world_size=0)
        self._store = store  # of this launcher: it outlives this coordinator host
        self._generation = 0
        self._rollbacks = Rollbacks(
            members, record, policy.snapshot_parity, on_disk=policy.snapshots_on_disk
        )

    # --------------------------------------------------------------------------- events

    def receive(self, sender: str, message: Message, now: float) -> list[Envelope]:
        """A message of the launcher `sender`, or of a worker that it hosts."""
        if sender in self._members.evicted:
            # A message about its end needs no answer: that would be answered again.
            over = isinstance(message, Stop | Leaving)
            return [] if over else [Envelope(sender, NOBODY, self._members.eviction(sender))]
        if isinstance(message, Join):
            return self._join(sender, self._rollbacks.without_unfit(message), now)
        if not self._newcomers.knows(sender):
            return []
        self._watch(sender, now)
        if self.stopped is not None:
            return self._after_stop(sender, message, self.stopped, now)
        if isinstance(message, Stop):
            return self.stop(message)
        if isinstance(message, Leaving):
            return self._leave(sender, message, now)
        if isinstance(message, Beat | Ping):
            return [] if self._coordinator is not None else self._newcomers.call_again(sender)
        if isinstance(message, OF_SNAPSHOTS):
            return self._rollbacks.hear(sender, message, now)
        if self._coordinator is None or is_past(message, self._attempts.number):
            return []
        rank = getattr(message, "rank", NOBODY)
        if rank not in self._members.known[sender].ranks:
            return []  # Nobody speaks for ranks that it does not host.
        if isinstance(message, StoreCall):
            return self.answer(self._store.call(message, now))
        held: list[Envelope] = []
        if isinstance(message, Exited):
            self._rollbacks.exited(message, self._coordinator.members.layout)
            held = self._concluded(self._first_failure.step(first_failure.Ended(message), now), now)
        return held or self._coordinate(coordinator.Received(message=message), now)

    def tick(self, now: float) -> list[Envelope]:
        """Time passed."""
        envelopes: list[Envelope] = []
        for silence in self._detector.step(failure_detector.Tick(), now):
            words = f"silent for {silence.silent_s:.1f} s (limit {self._heartbeat.silent_s:.1f} s)"
            envelopes += self._lose(silence.peer.decode(), words, now)
        if self._coordinator is None:
            envelopes += self._newcomers.tick(now)
        elif self.stopped is None:
            envelopes += self._concluded(self._first_failure.step(first_failure.Tick(), now), now)
            if self._coordinator is not None:
                envelopes += self._coordinate(coordinator.Tick(), now)
                envelopes += self._give_places(now)
                orders, stop = self._rollbacks.tick(now)
                envelopes += orders if stop is None else self.stop(stop)
        return envelopes + self.answer(self._store.tick(now))

    def deadline(self) -> float | None:
        """The time at which `tick` is next needed, or None."""
        machines = [self._detector.deadline(), self._store.deadline()]
        if self._coordinator is None:
            machines.append(self._newcomers.deadline())
        elif self.stopped is None:
            machines += [self._coordinator.deadline(), self._first_failure.deadline()]
        return min((at for at in machines if at is not None), default=None)

    # --------------------------------------------------------------------------- forming

    def _join(self, sender: str, join: Join, now: float) -> list[Envelope]:
        if join.incarnation != sender:
            return []
        if self._newcomers.refusal is not None:
            return [Envelope(sender, NOBODY, self._newcomers.refusal)]
        if sender in self._members.known and join.attempt != self._attempts.number:
            # It still lives in an attempt that is over.
            return self._newcomers.call(sender)
        if self._members.changed and self._coordinator and sender in self._members.known:
            return self._members.place_of(sender, self._own)
        begun = self._coordinator is not None or self._newcomers.restart is not None
        if begun and not self._newcomers.knows(sender):
            envelopes = self._late(sender, join, now)
            if envelopes is not None:
                return envelopes
        envelopes = self._newcomers.join(join, now)
        refused = any(
            envelope.to == sender and isinstance(envelope.message, Refusal)
            for envelope in envelopes
        )
        if not refused and self._coordinator is None:
            self._newcomers.waiting.add(sender)
        if not refused:
            self._watch(sender, now)
        return envelopes

    def _watch(self, sender: str, now: float) -> None:
        """A sign of life. Over members of a job that runs it is the register that watches."""
        if self._newcomers.watches(sender, running=self._coordinator is not None):
            self._detector.step(failure_detector.Heard(sender.encode()), now)

    def _give_places(self, now: float) -> list[Envelope]:
        """Let those who wait have the places of lost nodes whose replicas come back."""
        if self._coordinator is None or not self._policy.returns:
            return []
        envelopes: list[Envelope] = []
        for given in self._newcomers.give_places(self._coordinator.wants):
            taken = coordinator.PlaceTaken(ranks=given.ranks)
            envelopes += [*given.told, *self._coordinate(taken, now), *self._rollbacks.set_ranks()]
        return envelopes

    def _open(self, formed: Formed, now: float) -> None:
        """An attempt has formed."""
        starts = formed.starts
        self._members.take(starts[0])
        self._rollbacks.begin(starts[0], now)
        for member in self._members.known.values():
            self._record(member.record())
            self._detector.step(failure_detector.Forget(member.incarnation.encode()), now)
        for record in differences(formed.joins):
            self._record(record)
        world = tuple(range(starts[0].world_size))
        self._coordinator = Coordinator(world=world, policy=self._policy)
        self._first_failure = FirstFailure(nodes=len(starts), world_size=len(world))
        self._generation = self._coordinator.generation

    # --------------------------------------------------------------------------- starting again

    def _late(self, sender: str, join: Join, now: float) -> list[Envelope] | None:
        """A launcher comes when the job has begun. None: the formation answers it."""
        offer = self._newcomers.offer(join, now)
        if offer is None:
            return None
        answer = [Envelope(sender, NOBODY, offer.message)]
        if not offer.spare:
            return answer
        self._detector.step(failure_detector.Heard(sender.encode()), now)
        if self._newcomers.free < 0:
            return answer
        if self._coordinator is None:
            return None
        coordinator = self._coordinator
        if self._first_failure.pending or coordinator.protected or coordinator.starting:
            return answer  # A job that survives losses is not interrupted for it.
        reason = f"node {join.node} joins a job of {self._newcomers.least} to "
        return self._begin_again(f"{reason}{self._newcomers.most} nodes", -1, now, counts=False)

    def _inquire(self, stop: Stop, now: float) -> list[Envelope]:
        """The coordinator wants to stop; the cause may not be known yet."""
        assert self._coordinator is not None, "who else would want to stop"
        known = stop.root_rank < 0 or stop.exit_code == ExitCode.INVARIANT or self._changing
        if known or self._coordinator.protected:
            return self._end_attempt(stop, now)
        return self._concluded(self._first_failure.step(first_failure.Stopping(stop), now), now)

    def _concluded(self, found: list[first_failure.Concluded], now: float) -> list[Envelope]:
        envelopes: list[Envelope] = []
        for conclusion in found:
            self._changing = conclusion.lost
            envelopes += self._end_attempt(conclusion.stop, now)
            self._changing = False
        return envelopes

    def _end_attempt(self, stop: Stop, now: float) -> list[Envelope]:
        """The cause is known: what ends is the job, or only this attempt of it."""
        if self.stopped is not None:
            return []
        if stop.exit_code in (ExitCode.DONE, ExitCode.INVARIANT):
            return self.stop(stop)
        left = len(self._members.present) + len(self._newcomers.spares)
        enough = left >= self._newcomers.least
        back = self._rollbacks.judge(stop)
        again = back or self._attempts.judge(
            stop, self._coordinator, enough=enough, changing=self._changing
        )
        if again is None:
            if self._changing and not enough:
                stop = too_few(stop, left, self._newcomers.least)
            return self.stop(verdict(stop, self._attempts.ends))
        return self._begin_again(again.reason, stop.root_rank, now, counts=again.counts)

    def _begin_again(
        self, reason: str, root_rank: int, now: float, *, counts: bool
    ) -> list[Envelope]:
        attempts = self._attempts
        attempts.begin(counts=counts)
        self._coordinator, self._generation = None, 0
        self._store.empty()
        back = self._rollbacks.end(now)
        restart = Restart(attempt=attempts.number, reason=reason, root_rank=root_rank, back=back)
        self._record(attempts.record(reason, root_rank))
        return self._newcomers.renew(restart, attempts.restarts, now)

    # --------------------------------------------------------------------------- running

    def _coordinate(self, event: coordinator.Event, now: float) -> list[Envelope]:
        """Take the coordinator's step; an invariant that breaks in it ends the job with 85."""
        assert self._coordinator is not None, "there is no job yet"
        try:
            effects = self._coordinator.step(event, now)
        except AssertionError as error:
            return self._broken(str(error))
        envelopes: list[Envelope] = []
        if self._coordinator.generation != self._generation:
            # First of all: those who wait in the old generation's store are let go.
            self._generation = self._coordinator.generation
            envelopes += self.answer(self._store.supersede(self._generation, now))
        for effect in effects:
            envelopes += self._carry_out(effect, now)
        return envelopes

    def _carry_out(self, effect: Effect, now: float) -> list[Envelope]:
        match effect:
            case StopJob(stop=stop):
                return self._inquire(stop, now)
            case Record():
                self._record(effect)
                return []
            case _:
                return self._members.carry_out(effect)

    def _broken(self, words: str) -> list[Envelope]:
        invariant = words.split(":")[0]
        self._record(Record("invariant.break", words, {"invariant": invariant}))
        return self.stop(Stop(exit_code=ExitCode.INVARIANT, reason=words, root_rank=-1))

    def answer(self, effects: Iterable[StoreEffect]) -> list[Envelope]:
        """The messages of the store: to its followers, or to its callers."""
        return [envelope for effect in effects for envelope in self._members.answer(effect)]

    # --------------------------------------------------------------------------- taking over

    def take_over(
        self, start: Start, vacancy: Vacancy, takeover: TakeOver, now: float
    ) -> list[Envelope]:
        """Go on with an attempt that another host has begun, from what all members remember."""
        self._attempts.adopt(start)
        self._members.adopt(start, {name for name, _, _ in vacancy.lost})
        self._rollbacks.begin(start, now, known=True)
        envelopes = self._rollbacks.adopt(takeover.held, now)  # before it is judged who is lost
        self._first_failure = FirstFailure(
            nodes=len(self._members.known), world_size=start.world_size
        )
        try:
            self._coordinator, effects = new_coordinator(vacancy, takeover.standings, now)
        except AssertionError as error:
            return self._broken(str(error))
        self._generation = self._coordinator.generation
        envelopes += self.answer(self._store.supersede(self._generation, now))
        self._changing = True  # Whatever has to end ends because a node is lost.
        for effect in effects:
            envelopes += self._carry_out(effect, now)
        self._changing = False
        return envelopes

    def begin_anew(self, start: Start, gone: set[str], attempt: int, now: float) -> list[Envelope]:
        """Begin again, for the coordinator host before us was lost between two attempts."""
        self._attempts.adopt(start)
        self._members.adopt(start, gone)
        self._attempts.number = attempt
        self._members.forget(gone)
        reason = "the launcher that coordinated was lost while the job began again"
        return self._begin_again(reason, NOBODY, now, counts=False)

    # --------------------------------------------------------------------------- losing

    def depart(
        self, gone: Gone, now: float, *, came: Iterable[str] = (), silent_s: Silences = ()
    ) -> list[Envelope]:
        """The launchers agreed that these take no part any more, (launcher, why), and who does."""
        for name in came:
            self._newcomers.placed.discard(name)
            self._detector.step(failure_detector.Forget(name.encode()), now)
        self._members.silent_s |= dict(silent_s)
        return [envelope for sender, reason in gone for envelope in self._lose(sender, reason, now)]

    def _lose(self, sender: str, reason: str, now: float) -> list[Envelope]:
        if self.stopped is None:
            self._newcomers.count_loss(sender, reason, now)
        if self._newcomers.drop(sender) and self._coordinator is not None:
            return []
        if self._coordinator is None:
            self._rollbacks.lose(sender)
            left = self._newcomers.leave(sender, reason, now)
            return left + ([] if self._newcomers.restart is None else self._newcomers.fill(now))
        self._members.uninformed.discard(sender)
        member = self._members.known.get(sender)
        if self.stopped is not None or member is None or sender in self._members.evicted:
            return []
        self._members.evicted.add(sender)
        self._rollbacks.lose(sender)
        if self._first_failure.pending:  # The coordinator has done its part.
            words = f"node {member.name} is lost: {reason}"
            self._record(member.lost(words))
            event = first_failure.Lost(min(member.ranks, default=-1), words)
            return self._concluded(self._first_failure.step(event, now), now)
        self._changing = True
        envelopes = self._coordinate(self._members.loss(member, reason), now)
        self._changing = False
        return envelopes

    def _leave(self, sender: str, leave: Leaving, now: float) -> list[Envelope]:
        """A user ends one node's part: whatever can go on without it does."""
        self._newcomers.part(sender, leave.reason)
        member = self._members.known.get(sender)
        # A successor of ours does not know of the spares.
        waiting = len(self._newcomers.spares) if sender != self._own else 0
        left = len(self._members.present - {sender}) + waiting
        enough = left >= self._newcomers.least
        if member is not None and self._coordinator is not None:
            survived = survives(self._coordinator, member.ranks)
            if survived or enough:
                self._members.evicted.add(sender)
                self._detector.step(failure_detector.Forget(sender.encode()), now)
            if survived:
                return self._coordinate(self._members.loss(member, leave.reason), now)
            if enough:
                reason = f"node {member.name} leaves ({leave.reason})"
                return self._begin_again(reason, -1, now, counts=False)
        return self.stop(Stop(exit_code=leave.exit_code, reason=leave.reason, root_rank=-1))
