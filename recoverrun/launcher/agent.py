"""The launcher's loop: one thread, one poll, and machines that it tells what happened.

Every node has an agent. It brings its node into the job, runs its workers (`workers`), and passes
messages between them and the coordinator. One agent hosts the coordinator (`CoordinatorHost`):
first the one that listens at the endpoint, after its end another (`leadership`). The host's own
workers reach it by a function call, those of other nodes by a socket (`connections`). An agent
decides only when to leave: as the coordinator or the user says stop, or its node is cut off.
"""

import os
import signal
import time
from collections.abc import Callable, Sequence

from recoverrun.config.run_config import RunConfig
from recoverrun.errors import RecoverrunError
from recoverrun.launcher.job_client import JobClient
from recoverrun.launcher.network.addresses import master_address
from recoverrun.launcher.network.connections import located
from recoverrun.launcher.network.frames import NOBODY
from recoverrun.launcher.network.gloo_interface import WayToOthers
from recoverrun.launcher.network.job_fingerprint import job_fingerprint, join_message
from recoverrun.launcher.network.job_wait import JobWait
from recoverrun.launcher.network.key_lookup import Keyring
from recoverrun.launcher.node import process
from recoverrun.launcher.node.bystanders import Bystanders
from recoverrun.launcher.node.last_alive import last_alive
from recoverrun.launcher.node.private_socket import PrivateSocket
from recoverrun.launcher.node.signals import STOPPERS, SignalInbox
from recoverrun.launcher.node.supervisor import Leave
from recoverrun.launcher.node.workers import LocalWorkers, Order
from recoverrun.launcher.output.announcements import begun, starts_again, waiting
from recoverrun.launcher.output.log_files import LogTree
from recoverrun.launcher.output.recorder import FLUSH_S, Recorder
from recoverrun.launcher.output.run_dir import PrivateDir
from recoverrun.launcher.output.run_folder import RunFolder
from rendezvous.protocol.exit_codes import SIGNALLED, ExitCode
from rendezvous.protocol.formation_messages import Join, Refusal, Restart, Spare, Start
from rendezvous.protocol.messages import Leaving, Message, Stop
from rendezvous.protocol.records import notice
from rendezvous.protocol.snapshot_messages import Drain
from rendezvous.transport.station import Station

SETTLE_S = 3.0
"""How long the coordinating launcher waits for others to confirm that the job is over."""

SHOWN_S = 0.2
"""How long the loop waits for the last lines of an attempt to be shown before the next one."""


class Agent:
    """One launcher. `run` returns the exit code; until then the agent owns the process."""

    def __init__(
        self,
        *,
        config: RunConfig,
        node: str,
        folder: RunFolder,
        private: PrivateDir,
        keyring: Keyring,
        signals: SignalInbox,
        began_at: float,
        say: Callable[[str], None],
        left_out: str = "",
    ) -> None:
        """`signals` are held from now on, also after our end. `say` prints a line for the user.
        `left_out`: why the job went on without us, or "".
        """
        self._config = config
        self._node = node
        self._folder = folder
        self._private = private
        self._began_at = began_at
        self._say = say
        self._master = ""  # where rank 0 could listen if it were ours
        self._bystanders = Bystanders(private.socket, keyring.key)
        self.recorder = Recorder(config=config, folder=folder, began_at=began_at, say=say)
        self._attempt = 0
        self._logs = LogTree(config, folder)
        self._restart: Restart | None = None  # our workers are ended for it
        self.waiting = JobWait(config, say, began_at, left_out)
        self._keyring, self._station = keyring, Station(keyring.key)
        self._incarnation = self._station.incarnation
        self._signals = signals
        signals.hold()
        self._station.watch(self._signals.fd)
        self._private_socket: PrivateSocket | None = None
        self._local_workers: LocalWorkers | None = None
        self._way_to_others = WayToOthers(config, self._incarnation)
        self._dismissed = False  # a spare that was not needed
        self._ignored: set[signal.Signals] = set()
        self._stop: Stop | None = None
        self._settle_until, self._looked_at = 0.0, began_at
        self.job_client = JobClient(
            config=config, station=self._station, agent=self, record=self.recorder.record,
            folder=folder, began_at=began_at,
        )  # fmt: skip

    # --------------------------------------------------------------------------- the loop

    def run(self) -> int:
        """Take part in the job until its end. Raises RecoverrunError if there is none."""
        try:
            process.adopt_orphans()
            self._open()
            while (left := self._left()) is None:
                self._turn()
            for notice in left.notices():
                self.recorder.record(notice)
            self.job_client.leave_job(self._looked_at, ended=True)
            assert self._stop is not None, "the workers left without being told to"
            self._finish(self._stop)
            return self._stop.exit_code
        except RecoverrunError as error:
            code = error.exit_code
            self._finish(Stop(exit_code=code, reason=str(error), root_rank=-1))
            raise
        finally:
            self._close()

    def _left(self) -> Leave | None:
        """The way in which our workers left, once nothing more is to be done here."""
        if self._dismissed:
            return Leave(0, ())
        if self._local_workers is None or self._local_workers.left is None:
            return None
        if self._restart is not None and self._stop is None:
            return None  # The loop is about to begin the next attempt.
        # A stop may be lost with the connection that closes behind it, so the others confirm it.
        if not self.job_client.settled:
            self._settle_until = self._settle_until or self._looked_at + SETTLE_S
            if self._looked_at < self._settle_until:
                return None
        return self._local_workers.left

    @property
    def stopped(self) -> Stop | None:
        """The reason and the way in which the job ended, once it has."""
        return self._stop

    @property
    def node(self) -> str:
        """The name of this node."""
        return self._node

    @property
    def local_workers(self) -> LocalWorkers | None:
        """The workers of this node, or None if there were none."""
        return self._local_workers

    def _open(self) -> None:
        self._private_socket = PrivateSocket(self._private, self._station, self.recorder.record)
        if self._config.endpoint is not None:
            self._say(waiting(self._config))
            self.waiting.look_up(self._signals)
            self._way_to_others.look_up()
        self.job_client.open(self._began_at)
        if self.job_client.connections.hosts:
            self.host()
        else:
            self._master = master_address(self._config, hosts=False)
        job = job_fingerprint(self._config)
        notes = self._bystanders.look(self._config, job.script, job.arguments)
        for note in (*self._config.notes, *notes):
            self._say(f"recoverrun: {note}")
        self.job_client.join(time.monotonic())

    def _turn(self) -> None:
        before, due = time.monotonic(), self._deadline()
        ready = self._station.wait(due - before)
        now = time.monotonic()
        alive_at = last_alive(looked_at=self._looked_at, began=before, due=due, now=now)
        self._looked_at = now
        if self._signals.fd in ready:
            for number in self._signals.take():
                self._signal(number, now)
        self.job_client.read(ready, now)
        self._up(self._bystanders.read(ready), now)
        if self._local_workers is not None:
            if self._private_socket is not None and self._private_socket.router in ready:
                self._up(self._local_workers.listen(now), now)
            fds = {item for item in ready if isinstance(item, int)}
            self._up(self._local_workers.reap(fds, alive_at, now), now)
        self._tick(time.monotonic())
        if self._restart is not None and self._stop is None:
            if self._local_workers is None or self._local_workers.left is not None:
                self._join_again(time.monotonic())

    def _deadline(self) -> float:
        workers_at = self._local_workers.deadline() if self._local_workers is not None else None
        at = self.job_client.deadline()
        return at if workers_at is None else min(at, workers_at)

    def _tick(self, now: float) -> None:
        if self._private_socket is not None:
            self._private_socket.tick(now)
        if self._local_workers is not None:
            self._up(self._local_workers.tick(now), now)
        self.job_client.tick(now)
        self.recorder.announcer.tick(now)
        for words in self._station.log_lines(now):
            self.recorder.record(notice(words))
        self.recorder.tick(now)
        if self._local_workers is None:
            self.waiting.give_up(self.job_client.connections, self._keyring, now)

    # --------------------------------------------------------------------------- other nodes

    def host(self) -> None:
        """The others come to this launcher."""
        self._master = master_address(self._config, hosts=True)
        if self._keyring.note:
            self._say(f"recoverrun: {self._keyring.note}")

    def join_message(self) -> Join:
        """The request of this node for a place in the job."""
        return join_message(
            self._config,
            node=self._node,
            incarnation=self._incarnation,
            master=self._master,
            attempt=self._attempt,
            agreement=self.job_client.agreement,
            listen=self.job_client.connections.port,
            holding=(self._bystanders.held, self._bystanders.shares),
            starts=self._bystanders.starts,
        )

    def cut_off(self, reason: str, now: float) -> None:
        """The job may go on elsewhere, and not here. Who has done its whole part has not failed."""
        if self._local_workers is None:
            raise RecoverrunError(reason, ExitCode.PARTITIONED)
        self._up(self._local_workers.reap(None, now, now), now)  # Who stood still has seen none.
        finished = self._local_workers.processes.have_finished(self._local_workers.ranks)
        code = ExitCode.DONE if finished else ExitCode.PARTITIONED
        self._halt(Stop(exit_code=code, reason=reason, root_rank=-1), now)

    # --------------------------------------------------------------------------- messages

    def _up(self, messages: Sequence[Message], now: float) -> None:
        self.job_client.up(messages, now)

    def take(self, rank: int, message: Message, now: float) -> None:
        """Take a message of the coordinator, for one of our workers or for ourselves."""
        local_workers = self._local_workers
        if isinstance(message, Restart):
            self._obey(message, now)
        elif isinstance(message, Start):
            if local_workers is None:
                self._start(message, now)
            elif message.succeeds and message.attempt == self._attempt and self._restart is None:
                self.job_client.begin(message, now)
        elif isinstance(message, Refusal) and (local_workers is None or self._restart is not None):
            self._refused(message, now)
        elif isinstance(message, Spare) and local_workers is None:
            self.waiting.be_spare(now)
        elif local_workers is None:
            pass  # Meant for a job that we are not in.
        elif rank != NOBODY:
            self.job_client.heard(message, now)
            local_workers.deliver(rank, message)
        elif isinstance(message, Order):
            self.job_client.heard(message, now)
            self._up(local_workers.obey(message, now), now)
        elif isinstance(message, Stop):
            self._up([message], now)  # So it is known that we know.
            self._halt(message, now)

    # --------------------------------------------------------------------------- the job

    def _refused(self, refusal: Refusal, now: float) -> None:
        """End: there is no job for us any more, or there never was."""
        if self._local_workers is not None:
            self._halt(Stop(exit_code=refusal.exit_code, reason=refusal.reason, root_rank=-1), now)
        elif refusal.exit_code:
            raise RecoverrunError(refusal.reason, refusal.exit_code)
        else:
            self._dismissed = True
            self._stop = Stop(exit_code=0, reason=refusal.reason, root_rank=-1)

    def _obey(self, restart: Restart, now: float) -> None:
        """End the workers of this attempt; the job begins again without a trace of them."""
        if restart.attempt <= self._attempt or self._restart is not None:
            return
        self._restart = restart
        self.job_client.leave_attempt(restart.attempt)
        if self._local_workers is None:
            self._join_again(now)
            return
        self._say(starts_again(restart))
        stop = Stop(exit_code=0, reason=restart.reason, root_rank=restart.root_rank)
        self._up(self._local_workers.stop(stop, now), now)

    def _join_again(self, now: float) -> None:
        """Our workers are gone: ask for the next attempt."""
        assert self._restart is not None, "only called for a restart"
        self._attempt, self._restart = self._restart.attempt, None
        if self._local_workers is not None:
            self._local_workers.close(within_s=SHOWN_S)
            process.sweep(keep=self._bystanders.pids)
        self._local_workers = None
        self.waiting.begin(now)
        self._master = master_address(self._config, hosts=self.job_client.connections.hosts)
        self.job_client.join(now)

    def _start(self, start: Start, now: float) -> None:
        assert self._private_socket is not None, "opened before anybody could answer"
        self._node = start.nodes[start.node_rank]
        self._attempt = start.attempt
        self._folder.agree(start.folder)
        self.recorder.open(self._node, start.world_size, start.nodes)
        self.job_client.begin(start, now)
        start = located(start, self.job_client.connections.places)
        inherited, words = self._way_to_others.environ(start, os.environ)
        if words:
            self.recorder.record(notice(words))
        self._local_workers = LocalWorkers(
            config=self._config,
            start=start,
            station=self._station,
            router=self._private_socket.router,
            run=self._folder,
            private=self._private,
            keeper=self._bystanders.begin(self._config, start, self._station, self.recorder.record),
            record=self.recorder.record,
            logs=self._logs,
            inherited=inherited,
        )
        try:
            self._local_workers.launch(begin=not start.succeeds)
            pids = self._local_workers.processes.pids
            self._say(begun(self._config, start, self._folder.path, pids))
        except RecoverrunError as error:
            self._ask_to_stop(Stop(exit_code=error.exit_code, reason=str(error), root_rank=-1), now)

    def _signal(self, number: signal.Signals, now: float) -> None:
        if number == signal.SIGCHLD:
            if self._local_workers is not None:
                known = self._local_workers.processes.known
                process.reap_orphans(self._bystanders.pids | known)
            return
        if number not in STOPPERS:
            self._pass_on(number)
            return
        if self._stop is not None and self._local_workers is not None:
            self._up(self._local_workers.hurry(now), now)
            return
        reason = f"{number.name} was sent to the launcher on {self._node}"
        if number == signal.SIGTERM and self._stop is None and self._bystanders.may_drain():
            self._up([Drain(reason=reason)], now)
            return
        stop = Stop(exit_code=SIGNALLED + number, reason=reason, root_rank=-1)
        alone = self._local_workers is None or self.job_client.is_alone
        if number == signal.SIGTERM and not alone:
            # That is how a scheduler takes one node away: the others may do without.
            self._up([Leaving(node=self._node, exit_code=stop.exit_code, reason=reason)], now)
            self._halt(stop, now)
        else:
            self._ask_to_stop(stop, now)
        if self._local_workers is None:
            raise RecoverrunError(reason, stop.exit_code)

    def _pass_on(self, number: signal.Signals) -> None:
        """A signal that the workers may want to know of."""
        if number in self._config.signals:
            if self._local_workers is not None:
                self._local_workers.forward(number)
        elif number not in self._ignored:
            self._ignored.add(number)
            self._say(f"recoverrun: {number.name} ignored; --signals-to-handle passes it on")

    def _ask_to_stop(self, stop: Stop, now: float) -> None:
        """End the whole job for a reason of this node."""
        self._up([stop], now)
        self._halt(stop, now)

    def _halt(self, stop: Stop, now: float) -> None:
        """End our part of the job; only the first reason counts."""
        if self._stop is None and self._local_workers is not None:
            self._stop = stop
            self.job_client.leave_job(now)
            self._up(self._local_workers.stop(stop, now), now)

    # --------------------------------------------------------------------------- the end

    def _finish(self, stop: Stop) -> None:
        if self.waiting.left_out and self._local_workers is None:
            return  # Its journal tells of it. With another one a new run would seem to begin.
        self.recorder.end(self._node, stop)

    def _close(self) -> None:
        if self._local_workers is not None:
            self._local_workers.close(within_s=FLUSH_S)
        failed = self._stop is None or self._stop.exit_code != 0
        process.sweep(keep=self._bystanders.pids, gently=not failed)
        self.job_client.close(self.recorder.flush)
        self._bystanders.end()
        self._station.close()
        self.recorder.close()
