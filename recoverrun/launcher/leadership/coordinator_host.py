"""The host of the coordinator: the machines that serve the whole job, in one launcher's loop.

It composes formation, coordinator, store and detector, none of which knows another, and turns their
effects into posts: messages for the launchers, of which its own is one. It decides nothing but what
is fenced: nobody speaks for a launcher but itself, and for a rank only the launcher hosting it.

Where the coordinator wants to stop a job that may be started again, only an *attempt* ends: every
launcher ends its workers and joins once more, and the next attempt has a new formation, a new
coordinator and a new store, so that nothing of the dead one is ever read.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from recoverrun.errors import ExitCode
from recoverrun.launcher.leadership import first_failure
from recoverrun.launcher.leadership.attempts import Attempts
from recoverrun.launcher.leadership.first_failure import FirstFailure
from recoverrun.launcher.leadership.launchers import (
    Member,
    alternatives,
    eviction,
    is_past,
    members_of,
    survives,
    verdict,
)
from recoverrun.launcher.network.frames import NOBODY, Envelope
from recoverrun.launcher.network.job_fingerprint import differences
from rendezvous.coordinator import coordinator
from rendezvous.coordinator.coordinator import Coordinator
from rendezvous.coordinator.takeover import Standing, Vacancy, new_coordinator
from rendezvous.membership import failure_detector, formation
from rendezvous.membership.failure_detector import Detector
from rendezvous.membership.flapping import FlappingNodes
from rendezvous.membership.formation import Abandoned, Formation, Formed, Reply
from rendezvous.protocol.effects import Effect, Json, KillRanks, Record, StopJob, ToRank, notice
from rendezvous.protocol.formation_messages import Beat, Join, Peer, Refusal, Restart, Spare, Start
from rendezvous.protocol.heartbeat import heartbeat
from rendezvous.protocol.messages import Exited, Leaving, Message, Stop, StoreCall
from rendezvous.protocol.register_messages import Ping
from rendezvous.store.replicated_store import Effect as StoreEffect
from rendezvous.store.replicated_store import ReplicatedStore, Say

SPARES_MOST = 256
"""Launchers that may wait for a place: what comes back again and again must not fill the memory."""


class CoordinatorHost:
    """Everything of the job that exists once. Launchers are named by their incarnations."""

    def __init__(
        self,
        *,
        formation: Formation,
        own: str,
        min_replicas: int,
        record: Callable[[Record], None],
        store: ReplicatedStore,
        max_restarts: int = 0,
    ) -> None:
        self._formation = formation
        self._own = own
        self._min_replicas = min_replicas
        self._record = record
        self._attempts = Attempts(max_restarts)
        self._restart: Restart | None = None  # what the members were told last
        self._spares: dict[str, Join] = {}  # for the next attempt
        self._changing = False  # the membership, not by a failure of a worker
        self._heartbeat = heartbeat(formation.most)
        self._detector = Detector(self._heartbeat)
        self._coordinator: Coordinator | None = None
        self._first_failure = FirstFailure(nodes=1, world_size=0)
        self._store = store  # of this launcher: it outlives this coordinator host
        self._generation = 0
        self._members: dict[str, Member] = {}
        self._hosts: dict[int, Member] = {}  # by rank
        self._peers: tuple[Peer, ...] = ()
        self._waiting: set[str] = set()  # launchers that joined a job not yet formed
        self._flapping_nodes = FlappingNodes()
        self._evicted: set[str] = set()  # members that were silent for too long
        self._uninformed: set[str] = set()  # members that have not confirmed the stop
        self._refusal: Refusal | None = None  # the job will never be formed
        self.stopped: Stop | None = None

    # --------------------------------------------------------------------------- events

    def receive(self, sender: str, message: Message, now: float) -> list[Envelope]:
        """A message of the launcher `sender`, or of a worker that it hosts."""
        if sender in self._evicted:
            # What it says of its end needs no answer: that would be answered again.
            over = isinstance(message, Stop | Leaving)
            return [] if over else [Envelope(sender, NOBODY, self._eviction(sender))]
        if isinstance(message, Join):
            return self._join(sender, message, now)
        if sender not in self._members and sender not in self._waiting:
            return []
        self._watch(sender, now)
        if self.stopped is not None:
            return self._remind(sender, message)
        if isinstance(message, Stop):
            return self.stop(message)
        if isinstance(message, Leaving):
            return self._leave(sender, message, now)
        if isinstance(message, Beat | Ping):
            return self._repeat(sender)
        if self._coordinator is None or is_past(message, self._attempts.number):
            return []
        rank = getattr(message, "rank", NOBODY)
        if rank not in self._members[sender].ranks:
            return []  # Nobody speaks for ranks that it does not host.
        if isinstance(message, StoreCall):
            return self.answer(self._store.call(message, now))
        held: list[Envelope] = []
        if isinstance(message, Exited):
            held = self._concluded(self._first_failure.step(first_failure.Ended(message), now), now)
        return held or self._coordinate(coordinator.Received(message=message), now)

    def tick(self, now: float) -> list[Envelope]:
        """Time passed."""
        envelopes: list[Envelope] = []
        for silence in self._detector.step(failure_detector.Tick(), now):
            words = f"silent for {silence.silent_s:.1f} s (limit {self._heartbeat.silent_s:.1f} s)"
            envelopes += self._lose(silence.peer.decode(), words, now)
        if self._coordinator is None:
            envelopes += self._form(self._formation.step(formation.Tick(), now), now)
        elif self.stopped is None:
            envelopes += self._concluded(self._first_failure.step(first_failure.Tick(), now), now)
            if self._coordinator is not None:
                envelopes += self._coordinate(coordinator.Tick(), now)
        return envelopes + self.answer(self._store.tick(now))

    def deadline(self) -> float | None:
        """When `tick` is next needed, or None."""
        machines = [self._detector.deadline(), self._store.deadline()]
        if self._coordinator is None:
            machines.append(self._formation.deadline())
        elif self.stopped is None:
            machines += [self._coordinator.deadline(), self._first_failure.deadline()]
        return min((at for at in machines if at is not None), default=None)

    def beat(self, beat: Beat, *, members: bool) -> list[Envelope]:
        """Tell those who wait for a place that this launcher lives, and perhaps the members too.

        Members ask the register how it is, and need no other sign.
        """
        waiting = sorted({*self._waiting, *self._spares} - self._evicted - {self._own})
        return [Envelope(peer, NOBODY, beat) for peer in (self._others() if members else waiting)]

    def stop(self, stop: Stop) -> list[Envelope]:
        """End the job, or its forming; only the first reason counts."""
        if self.stopped is not None:
            return []
        self.stopped = stop
        if stop.root_rank >= 0 and (host := self._host(stop.root_rank, evicted=True)) is not None:
            self.stopped = stop = replace(stop, node=host.name)
        self._refusal = Refusal(reason=stop.reason, exit_code=stop.exit_code)
        spares = [Envelope(peer, NOBODY, self._refusal) for peer in sorted(self._spares)]
        self._spares.clear()
        if self._coordinator is None:
            return spares + [Envelope(peer, NOBODY, self._refusal) for peer in self._others()]
        self._uninformed = set(self._others())
        return spares + [Envelope(peer, NOBODY, stop) for peer in [*self._others(), self._own]]

    @property
    def is_alone(self) -> bool:
        """True if no other launcher could go on without this one."""
        return not self._members.keys() - self._evicted - {self._own}

    @property
    def settled(self) -> bool:
        """True if every launcher that lives knows that the job is over."""
        return not self._uninformed

    def _remind(self, sender: str, message: Message) -> list[Envelope]:
        """A launcher confirms a stop by sending it back; until then it is told again."""
        if isinstance(message, Stop):
            self._uninformed.discard(sender)
        known = sender not in self._uninformed or not isinstance(message, Beat | Ping)
        return [] if known or self.stopped is None else [Envelope(sender, NOBODY, self.stopped)]

    # --------------------------------------------------------------------------- forming

    def _join(self, sender: str, join: Join, now: float) -> list[Envelope]:
        if join.incarnation != sender:
            return []
        if self._refusal is not None:
            return [Envelope(sender, NOBODY, self._refusal)]
        if sender in self._members and join.attempt != self._attempts.number:
            # It still lives in an attempt that is over.
            return [] if self._restart is None else [Envelope(sender, NOBODY, self._restart)]
        begun = self._coordinator is not None or self._restart is not None
        if begun and sender not in self._members and sender not in self._waiting:
            envelopes = self._late(sender, join, now)
            if envelopes is not None:
                return envelopes
        envelopes = self._form(self._formation.step(formation.Joined(join), now), now)
        refused = any(
            envelope.to == sender and isinstance(envelope.message, Refusal)
            for envelope in envelopes
        )
        if not refused and self._coordinator is None:
            self._waiting.add(sender)
        if not refused:
            self._watch(sender, now)
        return envelopes

    def _watch(self, sender: str, now: float) -> None:
        """A sign of life. Over members of a job that runs it is the register that watches."""
        member = sender in self._members and self._coordinator is not None
        if sender != self._own and not member:
            self._detector.step(failure_detector.Heard(sender.encode()), now)

    def _form(self, effects: list[formation.Effect], now: float) -> list[Envelope]:
        envelopes: list[Envelope] = []
        for effect in effects:
            match effect:
                case Reply(incarnation=to, message=message):
                    envelopes.append(Envelope(to, NOBODY, message))
                case Formed(joins=joins, starts=starts):
                    self._open(joins, starts, now)
                case Abandoned(reason=reason):
                    code = ExitCode.NEVER_FORMED
                    self._refusal = Refusal(reason=reason, exit_code=code)
        return envelopes

    def _open(self, joins: tuple[Join, ...], starts: tuple[Start, ...], now: float) -> None:
        self._take_members(starts[0])
        self._flapping_nodes.know(joins)
        for member in self._members.values():
            nproc = len(member.ranks)
            fields: dict[str, Json] = {"nproc": nproc, "name": member.name}
            words = f"node {member.name} joins with {nproc} workers"
            self._record(Record("node.join", words, fields))
            self._detector.step(failure_detector.Forget(member.incarnation.encode()), now)
        for words in differences(joins):
            self._record(notice(words))
        self._waiting.clear()
        for join in joins:
            self._spares.pop(join.incarnation, None)
        world = tuple(range(starts[0].world_size))
        self._coordinator = Coordinator(world=world, min_replicas=self._min_replicas)
        self._first_failure = FirstFailure(nodes=len(starts), world_size=len(world))
        self._generation = self._coordinator.generation

    # --------------------------------------------------------------------------- starting again

    def _late(self, sender: str, join: Join, now: float) -> list[Envelope] | None:
        """A launcher comes when the job has begun. None: it is for the formation to answer."""
        flapping = self._flapping_nodes.judge(join, now)
        if isinstance(flapping, Refusal):
            return [Envelope(sender, NOBODY, flapping)]
        many = sender not in self._spares and len(self._spares) >= SPARES_MOST
        if many or self._formation.objection(join) is not None:
            return None
        places = alternatives(self._peers, self._evicted | {self._own})
        wait = [Envelope(sender, NOBODY, Spare(nnodes=self._formation.most, places=places))]
        if flapping is not None:
            return wait
        self._spares[sender] = join
        self._flapping_nodes.know([join])
        self._detector.step(failure_detector.Heard(sender.encode()), now)
        if len(self._spares) > self._vacant:
            return wait
        if self._coordinator is None:
            return None
        coordinator = self._coordinator
        if self._first_failure.pending or coordinator.protected or coordinator.starting:
            return wait  # A job that survives losses is not interrupted for it.
        reason = f"node {join.node} joins a job of {self._formation.least} to "
        return self._begin_again(f"{reason}{self._formation.most} nodes", -1, now, counts=False)

    @property
    def _vacant(self) -> int:
        """Nodes that the job could have and has not."""
        return self._formation.most - len(self._members.keys() - self._evicted)

    def _inquire(self, stop: Stop, now: float) -> list[Envelope]:
        """The coordinator wants to stop: why, may not be known yet."""
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
        left = len(self._members.keys() - self._evicted) + len(self._spares)
        enough = left >= self._formation.least
        again = self._attempts.judge(
            stop, self._coordinator, enough=enough, changing=self._changing
        )
        if again is None:
            return self.stop(verdict(stop, self._attempts.ends))
        return self._begin_again(again.reason, stop.root_rank, now, counts=again.counts)

    def _begin_again(
        self, reason: str, root_rank: int, now: float, *, counts: bool
    ) -> list[Envelope]:
        attempts = self._attempts
        attempts.begin(counts=counts)
        chosen = list(self._spares.values())[: self._vacant]
        awaited = frozenset(self._members) - self._evicted | {join.incarnation for join in chosen}
        self._formation = self._formation.renewed(
            attempt=attempts.number, restarts=attempts.restarts, awaited=awaited, begun_at=now
        )
        self._coordinator, self._generation = None, 0
        self._store.empty()
        self._restart = Restart(attempt=attempts.number, reason=reason, root_rank=root_rank)
        fields: dict[str, Json] = {
            "attempt": attempts.number, "restarts": attempts.restarts, "of": attempts.most,
            "root_rank": root_rank,
        }  # fmt: skip
        self._record(Record("job.restart", reason, fields))
        told = [Envelope(peer, NOBODY, self._restart) for peer in [*self._others(), self._own]]
        self._waiting = set()
        return told + self._fill(now)

    def _fill(self, now: float) -> list[Envelope]:
        """Give spares the places of nodes that will not come again."""
        envelopes: list[Envelope] = []
        for join in list(self._spares.values())[: self._vacant]:
            if join.incarnation not in self._waiting:
                self._waiting.add(join.incarnation)
                envelopes += self._form(self._formation.step(formation.Joined(join), now), now)
        return envelopes

    def _repeat(self, sender: str) -> list[Envelope]:
        """A beat of a launcher that has not heard yet that it should join again."""
        heard = self._coordinator is not None or self._restart is None or sender in self._waiting
        return [] if heard else [Envelope(sender, NOBODY, self._restart)] if self._restart else []

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
            case ToRank(rank=rank, message=message):
                host = self._host(rank)
                return [] if host is None else [Envelope(host.incarnation, rank, message)]
            case KillRanks(kill=kill):
                hosts = {host for rank in kill.ranks if (host := self._host(rank)) is not None}
                names = sorted(host.incarnation for host in hosts)
                return [Envelope(name, NOBODY, kill) for name in names]
            case StopJob(stop=stop):
                return self._inquire(stop, now)
            case Record():
                self._record(effect)
                return []

    def _broken(self, words: str) -> list[Envelope]:
        invariant = words.split(":")[0]
        self._record(Record("invariant.break", words, {"invariant": invariant}))
        return self.stop(Stop(exit_code=ExitCode.INVARIANT, reason=words, root_rank=-1))

    def answer(self, effects: Iterable[StoreEffect]) -> list[Envelope]:
        """What the store wants sent: to its followers, or to whoever had called."""
        envelopes = []
        for effect in effects:
            if isinstance(effect, Say):
                envelopes.append(Envelope(effect.to, NOBODY, effect.message))
            elif (host := self._host(effect.rank)) is not None:
                envelopes.append(Envelope(host.incarnation, effect.rank, effect))
        return envelopes

    # --------------------------------------------------------------------------- taking over

    def take_over(
        self, start: Start, vacancy: Vacancy, standings: Sequence[Standing], now: float
    ) -> list[Envelope]:
        """Go on with an attempt that another host has begun, from what all members remember."""
        self._adopt(start, {name for name, _, _ in vacancy.lost})
        self._first_failure = FirstFailure(nodes=len(self._members), world_size=start.world_size)
        try:
            self._coordinator, effects = new_coordinator(vacancy, standings, now)
        except AssertionError as error:
            return self._broken(str(error))
        self._generation = self._coordinator.generation
        envelopes = self.answer(self._store.supersede(self._generation, now))
        self._changing = True  # Whatever has to end ends because a node is lost.
        for effect in effects:
            envelopes += self._carry_out(effect, now)
        self._changing = False
        return envelopes

    def begin_anew(self, start: Start, gone: set[str], attempt: int, now: float) -> list[Envelope]:
        """Begin again, for the coordinator host before us was lost between two attempts."""
        self._adopt(start, gone)
        self._attempts.number = attempt
        for name in [m.incarnation for m in self._members.values() if m.name in gone]:
            del self._members[name]
        reason = "the launcher that coordinated was lost while the job began again"
        return self._begin_again(reason, NOBODY, now, counts=False)

    def _adopt(self, start: Start, gone: set[str]) -> None:
        self._take_members(start)
        self._attempts.number, self._attempts.restarts = start.attempt, start.restarts
        self._evicted = {m.incarnation for m in self._members.values() if m.name in gone}

    # --------------------------------------------------------------------------- losing

    def depart(self, gone: Iterable[tuple[str, str]], now: float) -> list[Envelope]:
        """The launchers agreed that these take no part any more: (launcher, why)."""
        return [envelope for sender, reason in gone for envelope in self._lose(sender, reason, now)]

    def _lose(self, sender: str, reason: str, now: float) -> list[Envelope]:
        for record in (
            self._flapping_nodes.lose(sender, reason, now) if self.stopped is None else ()
        ):
            self._record(record)
        if sender in self._spares:
            del self._spares[sender]
            self._waiting.discard(sender)
            if self._coordinator is not None:
                return []
        if self._coordinator is None:
            self._waiting.discard(sender)
            self._members.pop(sender, None)
            return self._form(self._formation.step(formation.Left(sender), now), now) + (
                [] if self._restart is None else self._fill(now)
            )
        self._uninformed.discard(sender)
        member = self._members.get(sender)
        if self.stopped is not None or member is None or sender in self._evicted:
            return []
        self._evicted.add(sender)
        lost = coordinator.NodeLost(node=member.name, ranks=tuple(member.ranks), reason=reason)
        if self._first_failure.pending:  # The coordinator has done its part.
            words = f"node {member.name} is lost: {reason}"
            self._record(Record("node.lost", words, {"ranks": list(member.ranks)}))
            event = first_failure.Lost(min(member.ranks, default=-1), words)
            return self._concluded(self._first_failure.step(event, now), now)
        self._changing = True
        envelopes = self._coordinate(lost, now)
        self._changing = False
        return envelopes

    def _leave(self, sender: str, leave: Leaving, now: float) -> list[Envelope]:
        """A user ends one node's part: whatever can go on without it does."""
        self._flapping_nodes.forget(sender)
        member = self._members.get(sender)
        # Who takes over from us does not know of those who wait.
        waiting = len(self._spares) if sender != self._own else 0
        left = len(self._members.keys() - self._evicted - {sender}) + waiting
        enough = left >= self._formation.least
        if member is not None and self._coordinator is not None:
            survived = survives(self._coordinator, member.ranks)
            if survived or enough:
                self._evicted.add(sender)
                self._detector.step(failure_detector.Forget(sender.encode()), now)
            if survived:
                ranks = tuple(member.ranks)
                lost = coordinator.NodeLost(node=member.name, ranks=ranks, reason=leave.reason)
                return self._coordinate(lost, now)
            if enough:
                reason = f"node {member.name} leaves ({leave.reason})"
                return self._begin_again(reason, -1, now, counts=False)
        return self.stop(Stop(exit_code=leave.exit_code, reason=leave.reason, root_rank=-1))

    def _eviction(self, sender: str) -> Stop:
        return eviction(self._members.get(sender))  # None once an attempt began without it

    def _host(self, rank: int, *, evicted: bool = False) -> Member | None:
        """The member of this rank; None if it was evicted, unless asked for."""
        member = self._hosts.get(rank)
        if member is None or member.incarnation not in self._members:
            return None
        return None if member.incarnation in self._evicted and not evicted else member

    def _take_members(self, start: Start) -> None:
        self._peers, self._members = start.peers, members_of(start)
        self._hosts = {rank: member for member in self._members.values() for rank in member.ranks}

    def _others(self) -> list[str]:
        peers = {*self._members, *self._waiting, *self._spares} - self._evicted - {self._own}
        return sorted(peers)
