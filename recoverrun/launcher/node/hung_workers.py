"""Workers of this node that hang: looked at, made to show their stacks, and ended.

Before one is ended that keeps Python's lock, and so could not show its stacks, a signal has
faulthandler write them: that would disturb a process that goes on, but this one does not. Where
py-spy is installed, it reads them from outside, also of one that is stopped.
"""

import os
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Thread

from recoverrun.launcher.node import py_spy
from recoverrun.launcher.node.progress_watch import ProgressWatch, state_of
from recoverrun.launcher.node.supervisor import EndOrder, KillOrder
from recoverrun.launcher.node.worker_messages import Worker
from recoverrun.reports.hang_stacks import heading
from rendezvous.membership.hang_evidence import STOPPED
from rendezvous.protocol.hang_messages import Inspect
from rendezvous.protocol.incarnations import birth_of
from rendezvous.protocol.messages import Kill
from rendezvous.protocol.progress_page import DUMP_SIGNAL, dump_beside, stacks_beside
from rendezvous.protocol.side_threads import begin_thread

KEPT = 8
"""The newest hangs whose stacks stay in the run directory."""

COPIES = "stacks"
"""The name of threads that copy them."""

DUMP_S = 0.2
"""faulthandler needs a few milliseconds; a process that does not run any code is not waited for."""

LOOK_S = 0.05
"""So often the launcher looks whether py-spy is done: it needs less than its limit."""

LINGERS = (
    "its script ended {:.0f} s ago and its process did not: a thread or an exit function waits"
)


@dataclass(slots=True)
class _Deferred:
    """A kill that waits for stacks: until `most`, or `least` and those who read them are done."""

    kill: Kill
    least: float
    most: float
    readers: list[Thread] = field(default_factory=list)

    def is_due(self, now: float) -> bool:
        done = not any(one.is_alive() for one in self.readers)
        return now >= (self.least if done else self.most)


class HungWorkers:
    """The hung workers of one node; `workers` by rank. `run` is the name of the run. `spy` is the
    path of py-spy, "" for none; None: the one on PATH.
    """

    def __init__(
        self, workers: Mapping[int, Worker], run_dir: Path, run: str, spy: str | None = None
    ) -> None:
        self.watch = ProgressWatch(workers)
        self._workers = workers
        self._folder = run_dir / "hangs"
        self._heading = heading(run).encode()
        self._spy = py_spy.find() if spy is None else spy
        self._hang = 0
        self._deferred: list[_Deferred] = []
        self._looked_at = 0.0  # whether any is due

    def inspect(self, inspect: Inspect) -> None:
        """A suspicion: stacks belong to it from now on."""
        self._hang = max(self._hang, inspect.hang)

    def defers(self, kill: Kill, now: float) -> bool:
        """True if `kill` has to wait until stacks are written."""
        deferred = _Deferred(kill, now, now)
        births = dict(zip(kill.ranks, kill.births, strict=False))
        for rank in kill.hung:
            worker = self._workers.get(rank)
            if worker is None or worker.ended or worker.hung:
                continue
            if birth_of(worker.incarnation) != births.get(rank):
                continue
            worker.hung = True
            if worker.shown < self._hang:
                self._ask(worker, deferred, now)
        if waits := deferred.most > now:
            self._deferred.append(deferred)
            self._looked_at = now
        return waits

    def _ask(self, worker: Worker, deferred: _Deferred, now: float) -> None:
        """Have the stacks of a silent worker written; its end has to wait for that."""
        pid = worker.child.pid
        if self._spy:
            place = (self._spy, pid, spied_beside(worker.context))
            if (reader := begin_thread(COPIES, py_spy.leave, *place)) is not None:
                deferred.readers.append(reader)
                deferred.most = now + py_spy.WITHIN_S
        if state_of(pid)[0] not in STOPPED:
            with suppress(ProcessLookupError):
                os.kill(pid, DUMP_SIGNAL)
            deferred.least = now + DUMP_S
            deferred.most = max(deferred.most, deferred.least)

    def due(self, now: float) -> list[Kill]:
        """Kills that have waited for stacks; those are kept."""
        self._looked_at = now
        due = [one.kill for one in self._deferred if one.is_due(now)]
        self._deferred = [one for one in self._deferred if one.kill not in due]
        for rank in {rank for kill in due for rank in kill.hung} & self._workers.keys():
            context = self._workers[rank].context
            sources = dump_beside(context), spied_beside(context)
            self._keep(self._workers[rank], self._hang, *sources)
        return due

    def replaced(self, worker: Worker) -> None:
        """Another process follows `worker`, which has ended: a kill that waits is not for it."""
        if worker.hung and any(worker.rank in one.kill.hung for one in self._deferred):
            self._keep(
                worker, self._hang, dump_beside(worker.context), spied_beside(worker.context)
            )
        for one in self._deferred:
            one.kill = _without(one.kill, worker.rank)

    def deadline(self) -> float | None:
        """The time at which a waiting kill is due, or to be looked at again; None without one."""
        looks = [min(one.most, max(one.least, self._looked_at + LOOK_S)) for one in self._deferred]
        return min(looks, default=None)

    def lingering(self, now: float) -> list[EndOrder | KillOrder]:
        """The orders for workers whose process does not end: a request first, then a kill."""
        orders: list[EndOrder | KillOrder] = []
        for worker, quiet_s in self.watch.lingering(now):
            worker.ends_asked += 1
            order = EndOrder if worker.ends_asked == 1 else KillOrder
            orders.append(order((worker.rank,), LINGERS.format(quiet_s)))
        return orders

    def shown(self, worker: Worker, hang: int) -> None:
        """A worker has left its stacks. One that the signal has woken shows others than it had."""
        if not worker.hung:
            worker.shown = hang
            self._keep(worker, hang, stacks_beside(worker.context))

    def _keep(self, worker: Worker, hang: int, *sources: str) -> None:
        """Copy stacks to the run directory: in a thread, as a disk may stall, or not at all."""
        file = f"rank{worker.rank}.stack"
        begin_thread(COPIES, _copy, self._heading, sources, self._folder, hang, file)


def _without(kill: Kill, rank: int) -> Kill:
    left = [pair for pair in zip(kill.ranks, kill.births, strict=False) if pair[0] != rank]
    ranks, births = tuple(one for one, _ in left), tuple(birth for _, birth in left)
    hung = tuple(one for one in kill.hung if one != rank)
    return replace(kill, ranks=ranks, births=births, hung=hung)


def spied_beside(context: str) -> str:
    """The path of the file to which py-spy's account of a worker goes."""
    return f"{context}.spied"


def _copy(first: bytes, sources: Sequence[str], folder: Path, hang: int, file: str) -> None:
    with suppress(OSError):  # Evidence that cannot be kept must not keep a job from going on.
        here = folder / str(hang)
        if not here.exists():
            here.mkdir(parents=True, exist_ok=True)
            shutil.rmtree(folder / str(hang - KEPT), ignore_errors=True)
        known = [Path(source).read_bytes() for source in sources if Path(source).exists()]
        (here / file).write_bytes(b"".join((first, *known)))
