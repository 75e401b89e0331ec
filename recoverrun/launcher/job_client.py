"""The part of a launcher that speaks for its node to the rest of the job: it listens, speaks and
takes over.

It composes the connections to other launchers, the view of who coordinates, and the coordinator
host while that is here. Whatever concerns this node's own workers it hands to the agent.
"""

import random
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import TYPE_CHECKING, assert_never, get_args

from recoverrun.config.run_config import RunConfig
from recoverrun.launcher.leadership.acts import Act, CutOff, Departed, Follow, Inquire, TakeOver
from recoverrun.launcher.leadership.coordinator_host import CoordinatorHost
from recoverrun.launcher.leadership.launchers import formation_of
from recoverrun.launcher.leadership.leadership import Leadership
from recoverrun.launcher.leadership.loss_news import leave
from recoverrun.launcher.leadership.node_agent import NodeAgent
from recoverrun.launcher.leadership.place_search import PlaceSearch
from recoverrun.launcher.network.connections import Connections, Word, refer
from recoverrun.launcher.network.endpoint_call import EndpointCall
from recoverrun.launcher.network.farewell import see_off
from recoverrun.launcher.network.frames import NOBODY, Envelope
from recoverrun.launcher.network.journal_desk import JournalDesk
from recoverrun.launcher.network.witness_client import WitnessMonitor, witness_client_at
from recoverrun.launcher.output.node_records import NodeRecords
from recoverrun.launcher.output.run_folder import RunFolder
from rendezvous.consensus.register_events import Dead, Part, RegisterMessage
from rendezvous.protocol.arrival_messages import Held
from rendezvous.protocol.formation_messages import Beat, Join, LossNews, Running, Start
from rendezvous.protocol.heartbeat import heartbeat
from rendezvous.protocol.messages import Committed, ContextBuffer, Leaving, Message
from rendezvous.protocol.records import Record
from rendezvous.protocol.register_messages import Copied, Copy, Ping, Statement, Whole
from rendezvous.protocol.store_messages import StoreAnswer
from rendezvous.transport.station import Station

if TYPE_CHECKING:  # HTTP and TLS: 2 MiB that a job without etcd has no use for
    from recoverrun.launcher.network.etcd_client import EtcdClient

AMONG_LAUNCHERS = (*get_args(RegisterMessage | LossNews), Copy, Whole, Copied, Statement)
"""Messages that have nothing to do with a coordinator."""


class JobClient:
    """One launcher's. Nothing in it waits."""

    def __init__(
        self,
        *,
        config: RunConfig,
        station: Station,
        agent: NodeAgent,
        record: Callable[[Record], None],
        folder: RunFolder,
        began_at: float,
    ) -> None:
        self._folder = folder
        self._config = config
        self._incarnation = station.incarnation
        self._agent = agent
        self._record = record
        self.connections = Connections(station, config)
        self._journal_desk = JournalDesk(station, folder, self.connections)
        self._leadership = Leadership(
            own=self._incarnation,
            chance=random.random,
            on_silence=config.on_silence,
            etcd=bool(config.etcd),
        )
        self._coordinator_host: CoordinatorHost | None = None
        self._heartbeat = heartbeat(config.nnodes)
        self._search = PlaceSearch(agent, self.connections, self._heartbeat, config.nnodes)
        self._endpoint_call = EndpointCall(station, config.of_job, self._search.running)
        self._cut_off = False  # from the job
        self._node_records = NodeRecords(record, lambda: self._coordinator_host is not None)
        self._beat_at = began_at
        self._witness_monitor: WitnessMonitor | None = None
        self._etcd: EtcdClient | None = None
        self._station = station

    def open(self, now: float) -> None:
        """Listen and call, and ask for a place. Raises RecoverrunError."""
        self.connections.open(now)
        if self._config.etcd:
            from recoverrun.launcher.network.etcd_client import EtcdClient

            self._etcd = EtcdClient(self._station, self._config.etcd, self._config.run_id)
        if self._config.witness is not None and self._config.endpoint is not None:
            witness_client = witness_client_at(self._config.witness, self._station)
            self._witness_monitor = WitnessMonitor(witness_client, now)
        if self._config.endpoint is None or self.connections.hosts:
            self._host_coordinator(over=False, now=now)

    def close(self, flush: Callable[[], bool]) -> None:
        """The station closes the connections. `flush` waits for the journal's last records."""
        if self._coordinator_host is not None and self._coordinator_host.refuses:
            see_off(self._station, self.connections, self._hear)
        self.connections.close()
        self._endpoint_call.close()
        self._journal_desk.close(flush, time.monotonic())
        for beside in (self._witness_monitor, self._etcd):
            if beside is not None:
                beside.close()

    @property
    def settled(self) -> bool:
        """True if all others know that the job is over, as far as it is for us to tell them."""
        return self._coordinator_host is None or self._coordinator_host.settled

    @property
    def agreement(self) -> str:
        """The backend that decides who takes part: "" if the launchers do."""
        return "" if self._etcd is None else f"etcd {self._etcd.cluster}"

    @property
    def is_alone(self) -> bool:
        """True if the job ends with this launcher."""
        return self._coordinator_host is not None and self._coordinator_host.is_alone

    def read(self, ready: Collection[object], now: float) -> None:
        """Hear what has come, of what is `ready`. Raises RecoverrunError at a stranger's words."""
        for word in self.connections.read(ready, now):
            self._hear(word, now)
        self._journal_desk.answer(ready)
        for peer in self.connections.met():
            self._greet(peer)
        self._endpoint_call.read(ready)
        for beside in (self._etcd, self._witness_monitor):
            for heard in beside.read(ready, now) if beside is not None else ():
                if isinstance(heard, Record):
                    self._record(heard)
                else:
                    self._act(self._leadership.tell_register(heard, now), now)

    def tick(self, now: float) -> None:
        """Time passed."""
        if self.connections.claim(now):
            self._host_coordinator(over=False, now=now)
            self._agent.host()
            self.join(now)
        if self._coordinator_host is not None:
            self._send(self._coordinator_host.tick(now), now)
        ended, host = self.connections.ask(now), self._coordinator_host
        if host is None or host.stopped is None:
            for name in ended:
                self._act(self._leadership.tell_register(Dead(name), now), now)
        elif host.settles_without(ended):
            self._leadership.close()  # Those who end with the job are no losses: nobody stands.
        self._act(self._leadership.tick(now), now)
        for record in self._witness_monitor.tick(now) if self._witness_monitor is not None else ():
            self._record(record)
        self._search.tick(now)
        misses = host is not None and host.misses_nodes and not self.connections.at_endpoint
        self._endpoint_call.tick(now, misses=misses)
        if now >= self._beat_at:
            self._beat_at = now + self._heartbeat.beat_s
            self._beat(now)

    def deadline(self) -> float:
        """The time at which `tick` is next needed."""
        parts = (
            self._coordinator_host,
            self._search,
            self._leadership,
            self.connections,
            self._endpoint_call,
            self._witness_monitor,
        )
        times = [at for part in parts if part is not None and (at := part.deadline()) is not None]
        return min([self._beat_at, *times])

    # --------------------------------------------------------------------------- the job

    def begin(self, start: Start, now: float) -> None:
        """This node has its place: its workers are about to be started. Where they run, another
        launcher has taken the place of a lost one.
        """
        self._search.end(now)
        self.connections.learn(start, self._incarnation)
        if self._agent.local_workers is not None:
            self._act(self._leadership.hear(start.leader, start, now), now)
            return
        self._node_records.begin(range(start.first_rank, start.first_rank + start.nproc))
        several = self._config.endpoint is not None
        policy = self._config.recovery_policy
        acts = self._leadership.join(start, policy=policy, several=several, now=now)
        self._act(acts, now)
        self.connections.call(self._leadership.callees(), now)

    def leave_attempt(self, attempt: int) -> None:
        """Our workers are being ended, for `attempt` to begin."""
        self._node_records.close()
        self._leadership.leave_attempt(attempt)

    def leave_job(self, now: float, *, ended: bool = False) -> None:
        """Our part is over. Whoever coordinates stays until the others know (`tick`).

        `ended`: so have our workers, and the journal gets what is known of their last steps.
        """
        if self._coordinator_host is None:
            self._leadership.close()
        elif ended:
            self._coordinator_host.close(now)
        if ended:
            self._node_records.close()

    def heard(self, message: Message, now: float) -> None:
        """One of our workers is told so."""
        self._leadership.heard(message)
        self._node_records.heard(message, now)

    def _host_coordinator(self, *, over: bool, now: float) -> CoordinatorHost:
        """Host the coordinator; `over`: of a job that another launcher has formed."""
        config, own = self._config, self._incarnation
        self._coordinator_host = CoordinatorHost(
            flapping_nodes=self._leadership.flapping_nodes,
            formation=formation_of(config, own, folder=self._folder.name, begun_at=now, over=over),
            own=own,
            policy=config.recovery_policy,
            max_restarts=config.max_restarts,
            store=self._leadership.store,
            record=self._record,
        )
        return self._coordinator_host

    # --------------------------------------------------------------------------- speaking

    def join(self, now: float) -> None:
        """Ask for a place in the job."""
        leader, join = self._leadership.leader, self._agent.join_message()
        if self._coordinator_host is not None:
            self._send(self._coordinator_host.receive(self._incarnation, join, now), now)
        elif not leader:
            self.connections.tell_endpoint(join)
        else:
            self.connections.send(leader, NOBODY, join)

    def _beat(self, now: float) -> None:
        if (local_workers := self._agent.local_workers) is not None:
            self.up(local_workers.stands(now), now)
        if self._coordinator_host is not None:
            beat = self._sign_of_life(self._leadership.term)
            self._send(self._coordinator_host.beat(beat, members=False), now)
        elif self._agent.local_workers is None:
            self.join(now)  # To ask again is a sign of life too.
        else:
            self.connections.flush(self._leadership.leader)
            if self._leadership.attempt.strangers:
                self.join(now)
            if not self._leadership.pings:
                self.connections.send(self._leadership.leader, NOBODY, self._sign_of_life())
        self.connections.call(self._leadership.callees(), now)

    def _greet(self, peer: str) -> None:
        """A call was put through: nobody can answer it who does not know who calls."""
        if peer:
            self.connections.send(peer, NOBODY, self._sign_of_life())
        if peer == self._leadership.leader or not peer:
            self._beat(time.monotonic())  # Messages before the connection are lost.

    def _sign_of_life(self, term: int = 0) -> Beat:
        """A beat for launchers that listen to us; `term`: in which we coordinate, if we do."""
        return Beat(node=self._agent.node, incarnation=self._incarnation, term=term)

    # --------------------------------------------------------------------------- hearing

    def _hear(self, word: Word, now: float) -> None:
        """Another launcher has spoken."""
        sender, message, leadership = word.sender, word.message, self._leadership
        if self._journal_desk.hear(sender, message, now):
            return
        if isinstance(message, Running):
            if not leadership.leader and self._search.is_called(message):
                self._coordinator_host = None
        elif isinstance(message, AMONG_LAUNCHERS):
            self._act(leadership.hear(sender, message, now), now)
            if isinstance(message, Ping) and self._coordinator_host is not None:
                self._send(self._coordinator_host.receive(sender, message, now), now)
        elif self._coordinator_host is not None:
            self._send(self._coordinator_host.receive(sender, message, now), now)
            if isinstance(message, Leaving):
                self._act(leadership.tell_register(Part(sender, message.reason), now), now)
        elif not leadership.leader:
            if word.called and self._search.hear(message, now):
                self._take(word, now)
            elif isinstance(message, Join):
                self._search.refer(sender)
        elif isinstance(message, ContextBuffer):
            self._act(leadership.hear(sender, message, now), now)
        elif leadership.obeys(sender, message):
            self._take(word, now)
        elif isinstance(message, Join):
            refer(self.connections, sender, leadership.leader)
        else:
            leadership.keep_for_coordinator(sender, message)

    def _take(self, word: Word, now: float) -> None:
        for rank in word.ranks:
            self._agent.take(rank, word.message, now)

    def _act(self, acts: Iterable[Act], now: float) -> None:
        """Carry out what the launchers have agreed on."""
        for act in acts:
            match act:
                case Envelope():
                    self._send([act], now)
                case StoreAnswer():
                    if self._coordinator_host is not None:
                        self._send(self._coordinator_host.answer([act]), now)
                case Record():
                    self._record(act)
                case TakeOver():
                    self._take_over(act, now)
                case Follow(leader=leader):
                    self._coordinator_host = None
                    self.connections.forget_backlog()
                    self.connections.call([leader], now)
                    self._ask_again(now)
                case Inquire(serial=serial, call=call, job=job):
                    assert self._etcd is not None, "nobody else makes requests"
                    self._etcd.ask(serial, call, job)
                case Departed(gone=gone, came=came, silent_s=silent_s):
                    if (host := self._coordinator_host) is not None:
                        self._send(host.depart(gone, now, came=came, silent_s=silent_s), now)
                case CutOff(reason=reason):
                    # Others decide now: the end of our workers is no loss.
                    self._coordinator_host = None
                    self._cut_off = True
                    self._agent.cut_off(reason, now)
                case _:
                    assert_never(act)

    def _take_over(self, takeover: TakeOver, now: float) -> None:
        """The job is coordinated from here."""
        start = self._leadership.attempt.start
        assert start is not None, "nobody can be elected who has no place in the job"
        coordinator_host = self._host_coordinator(over=True, now=now)
        if (vacancy := takeover.vacancy) is None:
            gone = self._leadership.absent()
            self._send(coordinator_host.begin_anew(start, gone, takeover.attempt + 1, now), now)
        else:
            self._send(coordinator_host.take_over(start, vacancy, takeover, now), now)
        beat = self._sign_of_life(self._leadership.term)
        self._send(coordinator_host.beat(beat, members=True), now)
        for sender, message in takeover.early:
            self._send(coordinator_host.receive(sender, message, now), now)
        self._ask_again(now)

    def _ask_again(self, now: float) -> None:
        """Repeat our workers' store calls, which the former coordinator may not have answered."""
        local_workers = self._agent.local_workers
        if local_workers is not None:
            self.up(local_workers.unanswered(), now)

    def up(self, messages: Iterable[Message], now: float) -> None:
        """Towards the coordinator. What becomes of a node that is cut off causes nothing else."""
        for message in messages if not self._cut_off else ():
            self._act(self._leadership.said(message, now), now)
            self._node_records.said(message, now)
            if isinstance(message, Leaving):
                leadership = self._leadership
                told = leave(
                    leadership.flapping_nodes, leadership.own, message.reason, leadership.callees()
                )
                self._act(told, now)
            local_workers = self._agent.local_workers
            if isinstance(message, Committed | Held) and local_workers is not None:
                # Whoever takes part again can follow a lost rank only from the top of its step on.
                holders = self._leadership.context_holders()
                context_buffer = local_workers.context_buffer(message) if holders else None
                if context_buffer is not None:
                    for holder in holders:
                        self.connections.send(holder, NOBODY, context_buffer)
            if self._coordinator_host is not None:
                self._send(self._coordinator_host.receive(self._incarnation, message, now), now)
            elif not self._leadership.leader:
                self.connections.tell_endpoint(message)
            elif self._leadership.leader == self._incarnation:
                self._leadership.keep_for_coordinator(self._incarnation, message)
            else:
                self.connections.queue(message, self._leadership.leader)

    def _send(self, envelopes: Sequence[Envelope], now: float) -> None:
        """Send what the coordinator host wants sent: first to others, because ours may end us."""
        far = []
        for envelope in envelopes:
            if (
                self._witness_monitor is not None
                and isinstance(envelope.message, RegisterMessage)
                and "/" in envelope.to
            ):
                self._witness_monitor.tell(envelope.to, envelope.message)
            elif envelope.to != self._incarnation:
                far.append(envelope)
        self.connections.send_all(far)
        for envelope in envelopes:
            if envelope.to == self._incarnation:
                self._agent.take(envelope.rank, envelope.message, now)
