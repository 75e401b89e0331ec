"""The workers of this node: started, listened to, stopped and mourned.

A shell around the supervisor machine. What workers send goes up to the coordinator in the order in
which they sent it; what they are sent waits until they can be reached. Nothing is believed of a
worker but what it says about itself, and nothing at all after its end.
"""

import time
from collections.abc import Callable, Mapping
from signal import SIGHUP, SIGINT, SIGKILL, SIGQUIT, SIGTERM, Signals
from typing import TYPE_CHECKING

from recoverrun.config.run_config import RunConfig
from recoverrun.errors import RecoverrunError
from recoverrun.launcher.node.beginnings import Beginnings
from recoverrun.launcher.node.endings import Ending, never_begun
from recoverrun.launcher.node.hung_workers import HungWorkers
from recoverrun.launcher.node.oom_kills import OomKills
from recoverrun.launcher.node.processes import Processes
from recoverrun.launcher.node.progress_watch import program_of
from recoverrun.launcher.node.spares import Spares
from recoverrun.launcher.node.supervisor import (
    Again,
    Begin,
    Completed,
    Ended,
    Event,
    Gone,
    Hurry,
    KillOrder,
    Leave,
    Signal,
    StopOrder,
    Supervisor,
    Tick,
    Unbegun,
    Unborn,
)
from recoverrun.launcher.node.worker_messages import BATCH, Worker, WorkerMessages
from recoverrun.launcher.output.error_file import NONE, LastWords, last_words
from recoverrun.launcher.output.log_files import LogTree, Outlets
from recoverrun.launcher.output.patience import Patience
from recoverrun.launcher.output.run_dir import PrivateDir
from recoverrun.launcher.output.run_folder import RunFolder
from rendezvous.protocol import shared_memory
from rendezvous.protocol.arrival_messages import Held, StartAgain
from rendezvous.protocol.context_copies import packed
from rendezvous.protocol.exit_codes import SIGNALLED
from rendezvous.protocol.formation_messages import Start
from rendezvous.protocol.hang_messages import Inspect, ShowStack, Stack
from rendezvous.protocol.messages import (
    Committed,
    ContextBuffer,
    Farewell,
    Hello,
    Kill,
    Message,
    Stop,
)
from rendezvous.protocol.records import Json, Record
from rendezvous.protocol.shared_memory import error_beside
from rendezvous.protocol.snapshot_messages import Circle, Keep, Persist
from rendezvous.transport.links import Router
from rendezvous.transport.sockets import QUEUE
from rendezvous.transport.station import Station

if TYPE_CHECKING:
    from recoverrun.launcher.node.node_snapshots import NodeSnapshots  # what only snapshots need

LAST_WORDS_S = 0.5
"""How long the loop waits for a disk to give what a failed worker left: on a machine that is busy
it may take a while, and a launcher may be silent for four times as long.
"""

FORWARD_BYTES = 64 << 10
"""The largest context, packed, that is sent to another node in advance of any loss."""

Order = Circle | Inspect | Kill | Keep | Persist | StartAgain
"""Of the coordinator, for this launcher."""


LATE_S = 0.2
"""So long the last word of a process is waited for that has ended without an error: a launcher that
stood still may know of the end before the thread that reads for it has read on."""


class LocalWorkers:
    """Starts and ends the workers of one node, and passes their messages on."""

    def __init__(
        self,
        *,
        config: RunConfig,
        start: Start,
        station: Station,
        router: Router,
        run: RunFolder,
        private: PrivateDir,
        record: Callable[[Record], None],
        logs: LogTree,
        inherited: Mapping[str, str],
        keeper: "NodeSnapshots | None" = None,
    ) -> None:
        """`run` is the directory of the run, which exists; `inherited` the environment that
        workers get, before what is their own; `keeper` that of their snapshots.
        """
        self._config = config
        self._station = station
        self._record = record
        self._node = start.nodes[start.node_rank]
        self.ranks = range(start.first_rank, start.first_rank + start.nproc)
        self._oom_kills = OomKills()
        self._supervisor = Supervisor(())
        self._spares = Spares(config.spares, station, record)
        self.processes = Processes(self._spares)
        self._workers: Mapping[int, Worker] = self.processes.newest
        self._messages = WorkerMessages(router, self._workers, record)
        self._hangs = HungWorkers(self._workers, run.path, run.name)
        self._by_pidfd: dict[int, Worker] = {}
        self.left: Leave | None = None
        self._keeper = keeper
        if keeper is not None:
            keeper.begin(start)
        folder = logs.attempt(start.restarts)
        self._outlets = Outlets(config=config, folder=folder, run_dir=run.path, node=self._node)
        self._beginnings = Beginnings(
            config=config,
            start=start,
            run_dir=run.path,
            private=private,
            outlets=self._outlets,
            spares=self._spares,
            keeper="" if self._keeper is None else self._keeper.path,
            inherited=inherited,
        )
        self._patience: Patience[LastWords] = Patience(LAST_WORDS_S)

    # --------------------------------------------------------------------------- beginning

    def launch(self, *, begin: bool = True) -> None:
        """Start all workers. Raises RecoverrunError; then the caller stops those that run.

        Not `begin`: another node had these ranks, and they begin as `start_again` has it.
        """
        try:
            for rank in self.ranks if begin else ():
                self._begin(rank, 0, f"rank {rank} starts")
        finally:
            ranks = tuple(self._workers if begin else self.ranks)
            patience_s = self._config.shutdown_s
            self._supervisor = Supervisor(ranks, begun=begin, grace_s=patience_s)
            self._outlets.begin()

    def start_again(self, start: StartAgain, now: float) -> list[Message]:
        """Give each of its ranks that has ended here another process.

        Those that run go on, and once a stop was ordered nothing begins any more.
        """
        return self._tell(Again(start.ranks, start.birth, start.reason), now)

    def _begin(self, rank: int, birth: int, reason: str) -> None:
        worker = self._beginnings.begin(rank, birth)
        former = self.processes.put(worker)
        if former is not None:
            self._hangs.replaced(former)
        self._by_pidfd[worker.child.pidfd] = worker
        self._station.watch(worker.child.pidfd)
        fields: dict[str, Json] = {
            "rank": rank,
            "pid": worker.child.pid,
            "incarnation": worker.incarnation,
        }
        self._record(Record("worker.spawn", reason, fields))

    def _begin_again(self, begin: Begin, now: float) -> list[Message]:
        """Another process for a rank that has ended, or the end of that attempt at once."""
        rank = begin.rank
        try:
            self._begin(rank, begin.birth, begin.reason)
        except RecoverrunError as error:
            words = f"rank {rank} cannot be started again: {error}"
            self._record(Record("notice.give", words, {"rank": rank}))
            number = self._beginnings.number(begin.birth)
            exited = never_begun(rank, number, self._node, str(error))
            return [exited, *self._tell(Unborn(rank), now)]
        return []

    # --------------------------------------------------------------------------- messages

    def listen(self, now: float, most: int = BATCH) -> list[Message]:
        """The checked messages of workers, for the coordinator."""
        up: list[Message] = []
        for worker, message in self._messages.received(most):
            up += self._noted(worker, message, now)
        return up

    def deliver(self, rank: int, message: Message) -> None:
        """Send to a worker, as soon as it can be reached."""
        self._messages.deliver(rank, message)

    def unanswered(self) -> list[Message]:
        """The messages for another coordinator: the store calls that workers wait for, and the
        snapshots that are here.
        """
        held = [] if self._keeper is None else self._keeper.standing
        return [*held, *self._messages.unanswered()]

    def _noted(self, worker: Worker, message: Message, now: float) -> list[Message]:
        """`message`, and what its arrival sets off."""
        match message:
            case Hello():
                worker.hello, worker.program = True, program_of(worker.child.pid)
            case Stack(hang=hang):
                self._hangs.shown(worker, hang)
            case Committed():
                self._beginnings.committed()
            case Farewell():
                worker.farewell = True
                return [message, *self._tell(Completed(worker.rank), now)]
            case _:
                pass
        return [message]

    def context_buffer(self, reached: Committed | Held) -> ContextBuffer | None:
        """The context as of a committed step, or of the top of one in which others take part
        again, to be kept on another node in case this one dies.
        """
        worker = self._workers[reached.rank]
        point = (reached.step, isinstance(reached, Committed))
        if point <= worker.forwarded:
            return None
        worker.forwarded = point
        contexts = tuple(map(packed, shared_memory.read(worker.context)[-1:]))
        if not contexts or len(contexts[0]) > FORWARD_BYTES:
            return None
        buffers = shared_memory.newest(shared_memory.buffers_beside(worker.context))
        if len(contexts[0]) + len(buffers) > FORWARD_BYTES:
            buffers = b""
        return ContextBuffer(
            rank=worker.rank, incarnation=worker.incarnation, contexts=contexts, buffers=buffers
        )

    # --------------------------------------------------------------------------- ending

    def reap(self, ready: set[int] | None, alive_at: float, now: float) -> list[Message]:
        """Take the ends that pidfds in `ready` announce, None: all; their last messages go first.

        `alive_at` is the latest time at which these workers were known to be alive.
        """
        ready = set(self._by_pidfd) if ready is None else ready
        self._spares.reap(ready)
        workers = [self._by_pidfd[fd] for fd in sorted(ready & self._by_pidfd.keys())]
        up: list[Message] = []
        for worker in workers:
            code = worker.child.reap()
            if code is not None:
                worker.died_at = alive_at
                up += self.listen(now, most=QUEUE)  # Whatever it had sent before it died.
                until = now + LATE_S
                while code == 0 and worker.hello and not worker.farewell:
                    if not self._messages.wait(until):
                        break
                    up += self.listen(now, most=QUEUE)
                up += self._end(worker, code, now)
        return up

    def _end(self, worker: Worker, code: int, now: float) -> list[Message]:
        self._station.unwatch(worker.child.pidfd)
        del self._by_pidfd[worker.child.pidfd]
        worker.child.close()
        self._hangs.watch.ended(worker)
        complete = code != 0 or not worker.hello or worker.farewell
        return self._tell(Ended(worker.rank, code, complete), now)

    def stands(self, now: float) -> list[Message]:
        """The workers that stand still, or move again, for the coordinator."""
        up: list[Message] = [*self._hangs.watch.stands(now)]
        ends = (
            self._config.recovery_policy.on_hang == "recover"
        )  # else nobody is ended for standing still
        for order in self._hangs.lingering(now) if ends else ():
            up += self._tell(order, now)
        return up

    def obey(self, order: Order, now: float) -> list[Message]:
        """Carry out the coordinator's order for these ranks."""
        match order:
            case Inspect():
                return self.inspect(order)
            case Kill():
                return self.kill(order, now)
            case StartAgain():
                return self.start_again(order, now)
            case Keep() | Circle():
                if self._keeper is not None:
                    self._keeper.obey(order)
                return []
            case Persist():
                return [] if self._keeper is None else self._keeper.persist(order)

    def inspect(self, inspect: Inspect) -> list[Message]:
        """Look at these ranks, and have them show their stacks."""
        self._hangs.inspect(inspect)
        for rank in inspect.ranks if inspect.stacks else ():
            self.deliver(rank, ShowStack(rank=rank, hang=inspect.hang, look=inspect.look))
        return [*self._hangs.watch.look(inspect)]

    def kill(self, kill: Kill, now: float) -> list[Message]:
        """The replica of these ranks has left."""
        if self._hangs.defers(kill, now):
            return []
        return self._tell(KillOrder(kill.ranks, kill.reason, kill.births), now)

    def stop(self, stop: Stop, now: float) -> list[Message]:
        """End all workers; `left` is set once that is done."""
        self._spares.end()
        order = StopOrder(stop.exit_code, stop.reason, _passed_on(stop))
        return self._tell(order, now)

    def forward(self, number: Signals) -> None:
        """Pass a signal on to those who live; it is not meant to end them."""
        here = tuple(rank for rank, worker in self._workers.items() if not worker.ended)
        self._signal(Signal(here, number, "the launcher was sent it"))

    def hurry(self, now: float) -> list[Message]:
        """Kill what is left."""
        return self._tell(Hurry(), now)

    def tick(self, now: float) -> list[Message]:
        """Time passed."""
        self._oom_kills.look(self.processes.pids.values(), now)
        held = [] if self._keeper is None else self._keeper.tick(now)
        up = [message for kill in self._hangs.due(now) for message in self.kill(kill, now)]
        return [*held, *up, *self._tell(Tick(), now)]

    def deadline(self) -> float | None:
        """The time at which `tick` is next needed, or None."""
        keeper_at = None if self._keeper is None else self._keeper.deadline()
        times = (self._supervisor.deadline(), self._hangs.deadline(), keeper_at)
        return min((at for at in times if at is not None), default=None)

    def close(self, within_s: float) -> None:
        """Show what is left to show, and wait for that, `within_s` at most.

        Nothing can be done with the workers afterwards.
        """
        self._outlets.end(within_s)

    def _tell(self, event: Event, now: float) -> list[Message]:
        """Carry out what the supervisor makes of an event."""
        up: list[Message] = []
        for effect in self._supervisor.step(event, now):
            match effect:
                case Signal():
                    self._signal(effect)
                case Gone():
                    up += self._on_exit(effect, now)
                case Begin():
                    up += self._begin_again(effect, now)
                case Unbegun(rank=rank, birth=birth):
                    number = self._beginnings.number(birth)
                    up.append(never_begun(rank, number, self._node, ""))
                case Leave():
                    self.left = effect
        return up

    def _signal(self, effect: Signal) -> None:
        # Written first: nobody may wonder later whether it was us.
        fields: dict[str, Json] = {"ranks": list(effect.ranks), "signal": effect.number.name}
        reason = f"{effect.number.name} to {list(effect.ranks)}: {effect.reason}"
        self._record(Record("worker.kill", reason, fields))
        for rank in effect.ranks:
            self._workers[rank].child.signal(effect.number)

    def _on_exit(self, gone: Gone, now: float) -> list[Message]:
        """Tell the coordinator that a worker is gone, and what it left."""
        worker = self._workers[gone.rank]
        worker.ended = True
        worker.fell = bool(gone.code) and not gone.ours
        worker.held.clear()
        detected_s = max(0.0, time.monotonic() - worker.died_at)
        last = NONE
        if gone.code:
            spare = last_words(error_beside(worker.context))  # where the disk took none
            last = self._patience.ask(lambda: last_words(worker.error_file), NONE)
            last = spare if last == NONE else last
        killed = gone.code == -SIGKILL and not gone.ours
        starved = killed and self._oom_kills.explain_one(worker.child.pid, now)
        ending = Ending(worker, gone, last, detected_s, self._node, starved=starved)
        self._record(ending.record())
        return [*ending.messages()]


def _passed_on(stop: Stop) -> Signals:
    """The signals that end workers: the one that the launcher was sent, if it was one."""
    number = stop.exit_code - SIGNALLED
    known = stop.root_rank < 0 and number in (SIGINT, SIGHUP, SIGQUIT)
    return Signals(number) if known else SIGTERM
