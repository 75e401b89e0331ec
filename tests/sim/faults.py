"""The faults of a history: each strikes at its time, or when a rank comes to its point."""

from collections import Counter
from collections.abc import Mapping
from typing import Protocol

from tests.sim.engine import Engine
from tests.sim.network import Network
from tests.sim.plan import Fault, Plan
from tests.sim.plane import Plane
from tests.sim.takeover import Takeover
from tests.sim.worker import Worker


class ProcessEnds(Protocol):
    """The ends of processes."""

    def kill(self, rank: int, code: int, ours: bool, error: str) -> None: ...
    def lose_node(self, ranks: tuple[int, ...]) -> None: ...


class Victim(Protocol):
    """The interface of the history that faults strike."""

    engine: Engine
    plan: Plan
    plane: Plane
    network: Network
    coverage: Counter[str]
    takeover: Takeover

    @property
    def workers(self) -> Mapping[int, Worker]: ...
    def trace(self, event: str, reason: str, **fields: object) -> None: ...
    @property
    def life(self) -> ProcessEnds: ...


class Faults:
    def __init__(self, job: Victim) -> None:
        self.job = job
        self.dying: set[int] = set()
        self._reached: Counter[int] = Counter()  # fault -> how often its point was reached

    def begin(self) -> None:
        for fault in self.job.plan.faults:
            if fault.at_s >= 0:
                self.job.engine.at(fault.at_s, self._strike, fault)

    def point(self, rank: int, step: int, name: str) -> None:
        """A rank has come to the point of this name."""
        for number, fault in enumerate(self.job.plan.faults):
            aimed = fault.trigger == rank and fault.point == name and fault.step in (-1, step)
            if not aimed or self.job.network.healed:
                continue
            self._reached[number] += 1
            if self._reached[number] == fault.nth:
                if fault.kind in ("kill", "crash", "node") and fault.delay_s == 0.0:
                    self.dying.update(fault.ranks)
                self.job.engine.after(fault.delay_s, self._strike, fault)

    def _strike(self, fault: Fault) -> None:
        job = self.job
        ranks = [rank for rank in fault.ranks if job.workers[rank].alive]
        if not ranks or (job.network.healed and fault.at_s < 0):
            return
        job.trace("sim.fault", f"{fault.kind} of ranks {ranks}", ranks=ranks, point=fault.point)
        job.coverage[f"fault {fault.kind}"] += 1
        match fault.kind:
            case "kill" | "crash":
                for rank in ranks:
                    error = f"ValueError: of rank {rank}" if fault.kind == "crash" else ""
                    job.coverage[f"death in {_phase(job.workers[rank])}"] += 1
                    job.life.kill(rank, -9 if fault.kind == "kill" else 1, False, error)
            case "node":
                job.life.lose_node(tuple(ranks))
            case "leader":
                job.life.lose_node(tuple(ranks))
                job.takeover.begin()
            case "depose":
                job.takeover.begin()
            case "pause":
                for rank in ranks:
                    job.workers[rank].paused_until = job.engine.now + fault.for_s
            case "flake":
                for rank in ranks:
                    job.plane.flake(rank)


def _phase(worker: Worker) -> str:
    if worker.machine is None:
        return "start"
    return "agreeing" if worker.busy == "agree" else worker.machine.state
