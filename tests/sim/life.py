"""The processes of a simulated history: how they begin, end and begin again, for launchers."""

from collections import Counter
from collections.abc import MutableMapping
from typing import Protocol

from rendezvous.coordinator.coordinator import Coordinator, NodeLost, PlaceTaken
from rendezvous.membership.births import Births
from rendezvous.protocol.arrival_messages import StartAgain
from rendezvous.protocol.effects import Effect
from rendezvous.protocol.messages import ContextBuffer, Exited, Kill, Message
from tests.sim.book import Book
from tests.sim.engine import Engine
from tests.sim.faults import Faults
from tests.sim.network import Network
from tests.sim.newcomer import Newcomer
from tests.sim.plan import Plan
from tests.sim.plane import Plane
from tests.sim.rare_paths import RarePaths
from tests.sim.suspects import begun_by, ended_itself
from tests.sim.takeover import Line, Takeover
from tests.sim.worker import Surroundings, Worker

PLACE_AGAIN_S = 0.1
"""So often a launcher that waits for a place is looked at."""


class Job(Surroundings, Protocol):
    """The parts of a history that live and die, and who is told."""

    engine: Engine
    plan: Plan
    plane: Plane
    book: Book
    network: Network
    faults: Faults
    takeover: Takeover
    rare_paths: RarePaths
    coverage: Counter[str]
    coordinator: Coordinator

    @property
    def workers(self) -> MutableMapping[int, Worker]: ...
    def trace(self, event: str, reason: str, **fields: object) -> None: ...
    def wish(self, effects: list[Effect], cause: Message | None) -> None: ...
    def receive(self, rank: int, message: Message, line: Line) -> None: ...


class Life:
    """Each rank has a launcher of its own, which gives births."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self._births = {rank: Births((rank,)) for rank in job.plan.world}

    # --------------------------------------------------------------------------- beginning

    def start_again(self, start: StartAgain) -> None:
        """The coordinator has these ranks started again; all launchers are told of it."""
        job = self.job
        job.trace("sim.start", start.reason, ranks=list(start.ranks), birth=start.birth)
        for rank in job.plan.world:
            if job.network.loses():
                job.coverage["lost StartAgain"] += rank in start.ranks
                continue
            for delay_s in job.network.delays():
                line = job.takeover.down(rank)
                job.engine.after(delay_s, self._ordered, rank, start, line)

    def _ordered(self, rank: int, start: StartAgain, line: Line) -> None:
        """The launcher of `rank` hears of a start."""
        if self.job.takeover.heard(rank, start, line) and rank in start.ranks:
            self._begin(rank, start.birth)

    def _begin(self, rank: int, birth: int) -> None:
        job = self.job
        if job.workers[rank].alive or self._births[rank].judge(rank, birth) != "future":
            return
        self._births[rank].use(rank, birth)
        worker = Newcomer(job, rank, birth)
        job.trace("sim.begin", f"rank {rank} begins again", rank=rank, birth=birth)
        job.workers[rank] = worker
        job.plane.gone.discard(rank)
        job.faults.dying.discard(rank)
        job.book.returns.began(rank, birth)
        job.on(rank, job.plan.again_s * (0.5 + job.engine.rng.random()), worker.start)

    # --------------------------------------------------------------------------- ending

    def order(self, kill: Kill) -> None:
        """The coordinator has these ranks ended; the order may come twice."""
        for rank, birth in zip(kill.ranks, kill.births, strict=True):
            if rank in kill.hung:
                self._hangs(rank)
            line = self.job.takeover.down(rank)
            for delay_s in [self.job.engine.jitter(self.job.plan.kill_s), *self._repeated()]:
                self.job.engine.after(delay_s, self._obey, rank, birth, line)

    def _repeated(self) -> list[float]:
        """After what times an order comes that came before."""
        again = self.job.engine.chance(self.job.plan.duplicate)
        return [self.job.engine.jitter(10 * self.job.plan.again_s)] if again else []

    def _obey(self, rank: int, birth: int, line: Line) -> None:
        job = self.job
        if line != job.takeover.up(rank) or rank in job.takeover.lost:
            return
        match self._births[rank].judge(rank, birth):
            case "present":
                self._kill(job.workers[rank], -9, True, "")
            case "former":
                job.coverage["a kill for a former process"] += 1
            case "future":
                job.coverage["a kill for a process that never begins"] += 1
                self._births[rank].use(rank, birth)
                exited = Exited(
                    rank=rank, incarnation=birth, node="sim", code=1, ours=True, error="",
                    detected_s=0.0,
                )  # fmt: skip
                self._tell_exit(exited, job.engine.jitter(job.plan.reap_s))

    def _hangs(self, rank: int) -> None:
        book, slot = self.job.book, self.job.workers[rank].slot
        book.returns.hangs(slot, self.job.engine.now)
        book.faulted.setdefault(slot, rank)
        self.tell_loss((rank,), False)
        self.job.coverage["a newcomer that hangs is lost"] += 1

    def kill(self, rank: int, code: int, ours: bool, error: str) -> None:
        book, slot = self.job.book, self.job.workers[rank].slot
        if code > 0 and not ours and self.job.workers[rank].alive and slot not in book.faulted:
            book.crashed.add(slot)
        self._kill(self.job.workers[rank], code, ours, error)

    def _kill(self, worker: Worker, code: int, ours: bool, error: str) -> None:
        if not worker.alive:
            return
        rank = worker.rank
        self._end(rank)
        self.job.trace("sim.exit", f"rank {rank} is dead", rank=rank, code=code, ours=ours)
        if not ours:
            self.job.book.faulted.setdefault(worker.slot, rank)
        self._reap(worker, code, ours, error)

    def _end(self, rank: int) -> None:
        worker = self.job.workers[rank]
        if worker.alive and worker.stage:
            self.job.coverage[f"death of a newcomer: {worker.stage}"] += 1
        worker.alive = False
        self.job.book.returns.died(rank)
        self.job.plane.die(rank)

    def fail(self, rank: int, error: str, code: int = 1) -> None:
        """A script ends by an error that another's end has brought about."""
        self._kill(self.job.workers[rank], code, False, error)

    def leave(self, rank: int) -> None:
        """The process of a script that has ended exits."""
        self._end(rank)
        self._reap(self.job.workers[rank], 0, False, "")

    def _reap(self, worker: Worker, code: int, ours: bool, error: str) -> None:
        """The launcher sees an exit after all that the worker had said, if the network is fifo."""
        job, rank, incarnation = self.job, worker.rank, worker.incarnation
        seen, line = job.engine.jitter(job.plan.reap_s), job.takeover.up(rank)
        if code and not job.engine.chance(job.plan.contexts_lost):
            late = job.engine.chance(0.2)
            job.coverage["late contexts"] += late
            delay_s = seen + (job.engine.rng.random() * 3.0 if late else 0.0)
            context_buffer = ContextBuffer(
                rank=rank, incarnation=incarnation, contexts=(b"context",),
                begun=begun_by(worker), by_itself=ended_itself(worker, ours=ours),
            )  # fmt: skip
            job.takeover.said(rank, context_buffer)
            at = job.network.arrival("up", rank, 0.0) + delay_s
            job.engine.at(at, job.receive, rank, context_buffer, line)
        exited = Exited(
            rank=rank, incarnation=incarnation, node="sim", code=code, ours=ours, error=error,
            detected_s=seen,
        )  # fmt: skip
        self._tell_exit(exited, seen)

    def _tell_exit(self, exited: Exited, seen: float) -> None:
        job, rank = self.job, exited.rank
        at = job.network.arrival("up", rank, 0.0) + seen
        job.network.hold("up", rank, at)
        job.takeover.said(rank, exited)
        job.engine.at(at, self._exited, exited, job.takeover.up(rank))

    def _exited(self, exited: Exited, line: Line) -> None:
        self.tell_loss((exited.rank,), exited.ours or exited.code == 0)
        self.job.receive(exited.rank, exited, line)

    def tell_loss(self, ranks: tuple[int, ...], expected: bool) -> None:
        job = self.job
        for rank in ranks:
            slot = job.workers[rank].slot
            if not expected:
                job.book.missed.add(slot)
            if not expected and slot not in job.book.told:
                job.book.told.add(slot)
                job.rare_paths.loss(set(job.book.lines))

    # --------------------------------------------------------------------------- nodes

    def lose_node(self, ranks: tuple[int, ...]) -> None:
        job = self.job
        for rank in ranks:
            self._end(rank)
            job.book.faulted.setdefault(job.workers[rank].slot, rank)
        job.takeover.lose(ranks)
        job.book.returns.unhosted(ranks)
        for rank in ranks if job.plan.place_s else ():
            job.engine.after(job.engine.jitter(job.plan.place_s), self._await_place, rank)
        job.engine.after(0.2 + job.engine.jitter(0.5), self._node_lost, ranks)

    def _node_lost(self, ranks: tuple[int, ...]) -> None:
        self.tell_loss(ranks, False)
        takeover = self.job.takeover
        if takeover.vacant or not takeover.lost.difference(takeover.noticed).intersection(ranks):
            return  # a successor finds it missing, or has
        takeover.noticed.update(ranks)
        lost = NodeLost(node="sim1", ranks=ranks, reason="silent")
        self.job.wish(self.job.coordinator.step(lost, self.job.engine.now), None)

    def _await_place(self, rank: int) -> None:
        """Another launcher waits to take the place of a rank's launcher, which is lost."""
        job = self.job
        if rank not in job.takeover.lost:
            return
        machine = job.coordinator
        known = rank in job.takeover.noticed and machine.wants((rank,))
        if job.takeover.vacant or not known:
            job.engine.after(PLACE_AGAIN_S, self._await_place, rank)
            return
        job.trace("sim.place", f"another launcher has the place of rank {rank}", rank=rank)
        job.coverage["place taken"] += 1
        job.takeover.take_place(rank)
        self._births[rank] = Births((rank,), first=False)
        job.book.returns.hosted(rank)
        job.wish(machine.step(PlaceTaken(ranks=(rank,)), job.engine.now), None)
