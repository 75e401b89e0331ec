"""The workers of this node: started, listened to, stopped and mourned.

A shell around the supervisor machine. What workers send goes up to the coordinator in the order in
which they sent it; what they are sent waits until they can be reached. Nothing is believed of a
worker but what it says about itself, and nothing at all after its end.
"""

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from signal import SIGHUP, SIGINT, SIGQUIT, SIGTERM, Signals

from recoverrun.config.run_config import RunConfig
from recoverrun.launcher.node.environment import Place, worker_command, worker_environ
from recoverrun.launcher.node.process import spawn
from recoverrun.launcher.node.supervisor import (
    Completed,
    Effect,
    Ended,
    Gone,
    Hurry,
    KillOrder,
    Leave,
    Signal,
    StopOrder,
    Supervisor,
    Tick,
)
from recoverrun.launcher.node.worker_messages import BATCH, Worker, WorkerMessages
from recoverrun.launcher.output.console import LOOK_S
from recoverrun.launcher.output.error_file import NONE, LastWords, last_words
from recoverrun.launcher.output.log_files import LogTree, Outlets
from recoverrun.launcher.output.run_dir import PrivateDir
from rendezvous.protocol import shared_memory
from rendezvous.protocol.effects import Json, Record
from rendezvous.protocol.formation_messages import Start
from rendezvous.protocol.messages import (
    Committed,
    ContextBuffer,
    Exited,
    Farewell,
    Hello,
    Kill,
    Message,
    Stop,
    StoreCall,
)
from rendezvous.transport.links import Router
from rendezvous.transport.sockets import QUEUE
from rendezvous.transport.station import Station

FORWARD_BYTES = 64 << 10
"""The largest context that is sent to another node in advance of any loss."""


class LocalWorkers:
    """Starts and ends the workers of one node, and passes their messages on."""

    def __init__(
        self,
        *,
        config: RunConfig,
        start: Start,
        station: Station,
        router: Router,
        run_dir: Path,
        private: PrivateDir,
        record: Callable[[Record], None],
        logs: LogTree,
    ) -> None:
        self._config = config
        self._start = start
        self._station = station
        self._run_dir = run_dir
        self._private = private
        self._record = record
        self._node = start.nodes[start.node_rank]
        self.ranks = range(start.first_rank, start.first_rank + start.nproc)
        self._supervisor = Supervisor(())
        self._workers: dict[int, Worker] = {}
        self._messages = WorkerMessages(router, self._workers, record)
        self._by_pidfd: dict[int, Worker] = {}
        self.left: Leave | None = None
        folder = logs.attempt(start.restarts)
        self._outlets = Outlets(config=config, folder=folder, run_dir=run_dir, node=self._node)
        self._look_at: float | None = None

    # --------------------------------------------------------------------------- beginning

    def launch(self) -> None:
        """Start all workers. Raises RecoverrunError; then the caller stops those that run."""
        inherited = dict(os.environ)
        try:
            for local_rank, rank in enumerate(self.ranks):
                self._begin(rank, local_rank, inherited)
        finally:
            patience_s = self._config.shutdown_s
            self._supervisor = Supervisor(tuple(self._workers), grace_s=patience_s)
            self._look_at = None if self._outlets.idle else time.monotonic() + LOOK_S

    def _begin(self, rank: int, local_rank: int, inherited: dict[str, str]) -> None:
        incarnation = self._start.attempt
        outlet = self._outlets.open(rank, local_rank, incarnation)
        place = Place(
            local_rank=local_rank,
            incarnation=incarnation,
            endpoint=f"ipc://{self._private.socket}",
            run_dir=str(self._run_dir),
            context=self._private.context(rank, incarnation),
            error_file=str(outlet.error_file),
            restarts=self._start.restarts,
        )
        # A file that another run left here would speak for a worker of ours.
        Path(place.error_file).unlink(missing_ok=True)
        python = inherited.get("PYTHON_EXEC") or sys.executable
        command = worker_command(self._config, local_rank, python)
        environ = worker_environ(self._config, self._start, place, inherited)
        cpus = self._config.bindings[local_rank] if self._config.bindings else ()
        child = spawn(command, environ, outlet.stdout, outlet.stderr, cpus)
        worker = Worker(
            rank=rank,
            incarnation=place.incarnation,
            child=child,
            context=place.context,
            error_file=place.error_file,
            stderr=outlet.stderr,
        )
        self._workers[rank] = worker
        self._by_pidfd[child.pidfd] = worker
        self._station.watch(child.pidfd)
        fields: dict[str, Json] = {
            "rank": rank,
            "pid": child.pid,
            "incarnation": worker.incarnation,
        }
        self._record(Record("worker.spawn", f"rank {rank} starts", fields))

    @property
    def pids(self) -> frozenset[int]:
        """Of workers that are not reaped yet."""
        return frozenset(w.child.pid for w in self._workers.values() if not w.ended)

    def error_file(self, rank: int) -> Path | None:
        """Where the worker left its exception, if it did."""
        worker = self._workers.get(rank)
        path = None if worker is None else Path(worker.error_file)
        return path if path is not None and path.exists() else None

    def stderr(self, rank: int) -> Path | None:
        """The file that a worker's errors went to, if they did not go to the console alone."""
        worker = self._workers.get(rank)
        path = None if worker is None else worker.stderr
        return None if path is None or path == Path(os.devnull) else path

    # --------------------------------------------------------------------------- messages

    def listen(self, now: float, most: int = BATCH) -> list[Message]:
        """What workers sent, checked, for the coordinator."""
        up: list[Message] = []
        for worker, message in self._messages.received(most):
            up += self._noted(worker, message, now)
        return up

    def deliver(self, rank: int, message: Message) -> None:
        """Send to a worker, as soon as it can be reached."""
        self._messages.deliver(rank, message)

    def unanswered(self) -> list[StoreCall]:
        """What workers asked the store and still wait for."""
        return self._messages.unanswered()

    def _noted(self, worker: Worker, message: Message, now: float) -> list[Message]:
        """`message`, and what its arrival sets off."""
        match message:
            case Hello():
                worker.hello = True
            case Farewell():
                worker.farewell = True
                return [message, *self._do(self._supervisor.step(Completed(worker.rank), now))]
            case _:
                pass
        return [message]

    def context_buffer(self, committed: Committed) -> ContextBuffer | None:
        """The context as of a committed step, to be kept on another node in case this one dies."""
        worker = self._workers[committed.rank]
        if committed.step <= worker.forwarded:
            return None
        worker.forwarded = committed.step
        contexts = shared_memory.read(worker.context)[-1:]
        if not contexts or len(contexts[0]) > FORWARD_BYTES:
            return None
        return ContextBuffer(rank=worker.rank, incarnation=worker.incarnation, contexts=contexts)

    # --------------------------------------------------------------------------- ending

    def reap(self, ready: set[int], alive_at: float, now: float) -> list[Message]:
        """Take the ends that pidfds in `ready` announce; their last messages go first.

        `alive_at` is the latest time at which these workers were known to be alive.
        """
        workers = [self._by_pidfd[fd] for fd in sorted(ready & self._by_pidfd.keys())]
        up: list[Message] = []
        for worker in workers:
            code = worker.child.reap()
            if code is not None:
                worker.died_at = alive_at
                up += self.listen(now, most=QUEUE)  # Whatever it had sent before it died.
                up += self._end(worker, code, now)
        return up

    def _end(self, worker: Worker, code: int, now: float) -> list[Message]:
        self._station.unwatch(worker.child.pidfd)
        del self._by_pidfd[worker.child.pidfd]
        worker.child.close()
        complete = code != 0 or not worker.hello or worker.farewell
        return self._do(self._supervisor.step(Ended(worker.rank, code, complete), now))

    def kill(self, kill: Kill, now: float) -> list[Message]:
        """The replica of these ranks has left."""
        return self._do(self._supervisor.step(KillOrder(kill.ranks, kill.reason), now))

    def stop(self, stop: Stop, now: float) -> list[Message]:
        """End all workers; `left` is set once that is done."""
        order = StopOrder(stop.exit_code, stop.reason, _passed_on(stop))
        return self._do(self._supervisor.step(order, now))

    def forward(self, number: Signals) -> None:
        """Pass a signal on to those who live; it is not meant to end them."""
        here = tuple(rank for rank, worker in self._workers.items() if not worker.ended)
        self._signal(Signal(here, number, "the launcher was sent it"))

    def hurry(self, now: float) -> list[Message]:
        """Kill what is left."""
        return self._do(self._supervisor.step(Hurry(), now))

    def tick(self, now: float) -> list[Message]:
        """Time passed."""
        if self._look_at is not None and now >= self._look_at:
            self._outlets.pump()
            self._look_at = now + LOOK_S
        return self._do(self._supervisor.step(Tick(), now))

    def deadline(self) -> float | None:
        """When `tick` is next needed, or None."""
        times = [at for at in (self._supervisor.deadline(), self._look_at) if at is not None]
        return min(times, default=None)

    def close(self) -> None:
        """Show what is left to show. Nothing can be done with the workers afterwards."""
        self._outlets.pump(last=True)
        self._look_at = None

    def _do(self, effects: list[Effect]) -> list[Message]:
        up: list[Message] = []
        for effect in effects:
            match effect:
                case Signal():
                    self._signal(effect)
                case Gone():
                    up += self._on_exit(effect)
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

    def _on_exit(self, gone: Gone) -> list[Message]:
        """Tell the coordinator that a worker is gone, and what it left."""
        worker = self._workers[gone.rank]
        worker.ended = True
        worker.held.clear()
        detected_s = max(0.0, time.monotonic() - worker.died_at)
        last = last_words(worker.error_file) if gone.code else NONE
        error = last.error
        signal = -gone.code if gone.code < 0 else 0
        fields: dict[str, Json] = {
            "rank": worker.rank,
            "pid": worker.child.pid,
            "code": gone.code,
            "signal": signal,
            "ours": gone.ours,
            "error": error,
            "incarnation": worker.incarnation,
            "detect_ms": round(detected_s * 1000, 3),
        }
        how = f"was ended by signal {signal}" if signal else f"exited with code {gone.code}"
        by = ", by our hand" if gone.ours else ""
        words = f": {error}" if error else ""
        self._record(Record("worker.exit", f"rank {worker.rank} {how}{by}{words}", fields))
        return [
            ContextBuffer(
                rank=worker.rank,
                incarnation=worker.incarnation,
                contexts=_bounded(shared_memory.read(worker.context)),
                marks=shared_memory.read_marks(worker.context),
                doing=shared_memory.read_doing(worker.context, ended_by_us=gone.ours),
            ),
            Exited(
                rank=worker.rank,
                incarnation=worker.incarnation,
                node=self._node,
                code=gone.code,
                ours=gone.ours,
                error=error,
                detected_s=detected_s,
                age_s=_age_s(last, worker.error_file, detected_s) if error else detected_s,
            ),
        ]


def _age_s(last: LastWords, error_file: str, detected_s: float) -> float:
    """Seconds since a worker wrote down its exception; the same machine's clock on both sides."""
    now = time.monotonic()
    if 0 <= last.written_at <= now:
        return max(detected_s, now - last.written_at)
    try:  # Another program than our hooks wrote it: only a clock that may be set tells when.
        written = Path(error_file).stat().st_mtime
    except OSError:
        return detected_s
    return max(detected_s, time.time() - written)


def _passed_on(stop: Stop) -> Signals:
    """What workers are told to end with: the signal that the launcher was sent, if it was one."""
    number = stop.exit_code - 128
    known = stop.root_rank < 0 and number in (SIGINT, SIGHUP, SIGQUIT)
    return Signals(number) if known else SIGTERM


def _bounded(contexts: tuple[bytes, ...]) -> tuple[bytes, ...]:
    """At most one payload's limit in all: the newest if both are too much."""
    return contexts if sum(map(len, contexts)) <= shared_memory.MOST_BYTES else contexts[-1:]
